"""Where an AppWrapper stands, from its status alone, and following AppWrappers until all have reached a goal.

Each change of state is printed. Each AppWrapper has a watch and a thread of its own, and all share one timeout: a slow
gang hides no other.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from queue import SimpleQueue
from typing import Any, Final

import click
import orjson
from msgspec import Struct

from dispatcher import errors
from dispatcher.cli.command_line import duration
from dispatcher.cli.hub import Found
from dispatcher.cli.options import Goal
from dispatcher.cli.query import note
from dispatcher.cli.screens.output import put
from dispatcher.cli.screens.tables import state_in_words
from dispatcher.kube.user_client import UserClient
from dispatcher.text import one_line

Json = dict[str, Any]

LONGEST_WATCH: Final = 300
"""Seconds after which a watch begins anew: a proxy may cut a silent one."""
PAUSE_SECONDS: Final = 1.0
"""Seconds before a hub that did not answer is asked again."""

_RUNNING: Final = frozenset({"Running", "RunningHoldCompletion"})


class TimeIsUp(errors.CommandFailed):
    """The AppWrapper did not reach the expected state in time; the exit code is that of timeout(1)."""

    exit_code = 124


class Wait(StrEnum):
    """How a wait stands."""

    GOES_ON = "goes on"
    REACHED = "reached"
    FAILED = "failed"


def wait_for(appwrapper: Json, goal: Goal) -> Wait:
    """Whether the goal is reached or cannot be reached any more. A completed gang has run."""
    status = appwrapper.get("status") or {}
    match status.get("state"):
        case "Completed":
            return Wait.REACHED
        case "Failed" | "Deleted":
            return Wait.FAILED
    if appwrapper["metadata"].get("deletionTimestamp"):
        return Wait.FAILED
    is_running = status.get("queuejobstate") in _RUNNING
    return Wait.REACHED if goal is Goal.RUNNING and is_running else Wait.GOES_ON


def progress(appwrapper: Json) -> str:
    """The state in one line, with the cluster of a gang that has one and the reason of a gang that waits or failed."""
    # Imported here, because `submit` imports this module, and only follows with --wait.
    from dispatcher.core.model.records.record import Phase
    from dispatcher.core.status.phases import phase_in

    status = appwrapper.get("status") or {}
    if appwrapper["metadata"].get("deletionTimestamp"):
        return "is being deleted"
    phase = phase_in(status)
    if phase is None and not status.get("waiting"):
        return "not seen by a dispatcher yet"
    told = (
        status.get("waiting")
        or status.get("unhealthy")
        or (_condition(status, phase) if phase is Phase.FAILED else {})
    )
    state = str(phase or "outside the queue")
    return one_line(
        state_in_words(state, status.get("cluster"), told.get("reason"), told.get("message"), mark="; ")
    )


def _condition(status: Json, type_: str) -> Json:
    found: list[Json] = [each for each in status.get("conditions") or () if each.get("type") == type_]
    return found[0] if found else {}


class _News(Struct, frozen=True):
    """A new state of an AppWrapper, or a problem; `code` is the exit code that its end asks for, None before."""

    state: str = ""
    problem: str = ""
    code: int | None = None


class _Until(Struct, frozen=True):
    """The goal, the timeout as written, and the monotonic time at which it is over."""

    goal: Goal
    timeout: str = ""
    ends: float | None = None


def follow(
    client: UserClient, found: Sequence[Found], goal: Goal, timeout: str, *, any_is_enough: bool = False
) -> None:
    """Print each change of state until all have reached the goal, or one if `any_is_enough`.

    Exits with 1 if one failed or was deleted, else with 124 if one has not reached the goal in time. If any is enough,
    that counts only if none has reached it.
    """
    ends = time.monotonic() + duration(timeout).total_seconds() if timeout else None
    codes = set()
    for key, news in _together(client, found, _Until(goal, timeout, ends)):
        if news.state:
            put(f"{key} {news.state}", None)
            sys.stdout.flush()
        if news.problem:
            note(f"{key} {news.problem}")
        if any_is_enough and news.code == 0:
            return
        codes.add(news.code or 0)
    if codes & {1, TimeIsUp.exit_code}:
        raise click.exceptions.Exit(1 if 1 in codes else TimeIsUp.exit_code)


def _together(client: UserClient, found: Sequence[Found], until: _Until) -> Iterator[tuple[str, _News]]:
    """The news of all AppWrappers as they come, until the last has ended; raises what a watch raises."""
    inbox = SimpleQueue[tuple[str, _News | Exception]]()
    for each in found:
        threading.Thread(target=_watch, args=(client.twin(), each, until, inbox.put), daemon=True).start()
    open_ones = len(found)
    while open_ones:
        key, news = inbox.get()
        if isinstance(news, Exception):
            raise news
        yield key, news
        open_ones -= news.code is not None


def _watch(
    client: UserClient, found: Found, until: _Until, put: Callable[[tuple[str, _News | Exception]], None]
) -> None:
    try:
        with client:
            for news in _news(client, found, until):
                put((found.key, news))
    except Exception as error:  # noqa: BLE001  # the edge of a thread: the other one raises it
        put((found.key, error))


def _news(client: UserClient, found: Found, until: _Until) -> Iterator[_News]:
    """The news of one AppWrapper; the last one has a code."""
    said = ""
    try:
        for raw in states(client, found, until.ends):
            before, said = said, progress(raw)
            code = {Wait.GOES_ON: None, Wait.REACHED: 0, Wait.FAILED: 1}[wait_for(raw, until.goal)]
            if said != before or code is not None:
                yield _News(said if said != before else "", code=code)
            if code is not None:
                return
        yield _News(problem="was deleted", code=1)
    except TimeIsUp:
        yield _News(problem=f"is not {until.goal} after {until.timeout}: {said}", code=TimeIsUp.exit_code)


def states(client: UserClient, found: Found, ends: float | None) -> Iterator[Json]:
    """The AppWrapper as it is and after each change, until it is deleted.

    Raises `TimeIsUp` at the monotonic time `ends`.
    """
    uid = found.raw["metadata"]["uid"]
    while True:
        try:
            for raw in _until_cut(client, found, ends):
                if raw is None or raw["metadata"]["uid"] != uid:
                    return
                yield raw
        except (errors.Unavailable, errors.Expired):
            time.sleep(max(0.0, _left(ends, PAUSE_SECONDS)))
        if _left(ends, 1) <= 0:
            raise TimeIsUp("")


def _until_cut(client: UserClient, found: Found, ends: float | None) -> Iterator[Json | None]:
    """The AppWrapper now and after each change, until the server ends the watch; None once it is deleted."""
    collection, _, name = found.path.rpartition("/")
    query = {"fieldSelector": f"metadata.name={name}"}
    listed = client.get(collection, query)
    if not listed.get("items"):
        yield None
        return
    yield listed["items"][0]
    seconds = _left(ends, LONGEST_WATCH)
    watched = {
        **query,
        "watch": "1",
        "resourceVersion": listed["metadata"]["resourceVersion"],
        "timeoutSeconds": str(max(1, int(seconds))),
    }
    for line in client.lines(collection, watched, max(0.1, seconds)):
        event = orjson.loads(line)
        match event["type"]:
            case "ERROR":
                return
            case "DELETED":
                yield None
            case _:
                yield event["object"]


def _left(ends: float | None, most: float) -> float:
    """The seconds that are left, at most `most`."""
    return most if ends is None else min(most, ends - time.monotonic())
