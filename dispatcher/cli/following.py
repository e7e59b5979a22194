"""Follows AppWrappers until all have reached a goal, and prints each change of state.

Each AppWrapper has a watch and a thread of its own, and all share one timeout: a slow gang hides no other.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue

import click
from msgspec import Struct

from dispatcher.cli.appwrapper_client import AppWrapperClient, Found, TimeIsUp
from dispatcher.cli.durations import duration
from dispatcher.cli.gang_progress import Goal, Wait, progress, wait_for
from dispatcher.cli.output import put
from dispatcher.cli.query import note
from dispatcher.kube.user_client import UserClient


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


def follow(client: UserClient, found: Sequence[Found], goal: Goal, timeout: str) -> None:
    """Print each change of state until all have reached the goal.

    Exits with 1 if one failed or was deleted, else with 124 if one has not reached the goal in time.
    """
    ends = time.monotonic() + duration(timeout).total_seconds() if timeout else None
    codes = set()
    for key, news in _together(client, found, _Until(goal, timeout, ends)):
        if news.state:
            put(f"{key} {news.state}", None)
            sys.stdout.flush()
        if news.problem:
            note(f"{key} {news.problem}")
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
            for news in _news(AppWrapperClient(client), found, until):
                put((found.key, news))
    except Exception as error:  # noqa: BLE001  # the edge of a thread: the other one raises it
        put((found.key, error))


def _news(client: AppWrapperClient, found: Found, until: _Until) -> Iterator[_News]:
    """The news of one AppWrapper; the last one has a code."""
    said = ""
    try:
        for raw in client.states(found, until.ends):
            before, said = said, progress(raw)
            code = {Wait.GOES_ON: None, Wait.REACHED: 0, Wait.FAILED: 1}[wait_for(raw, until.goal)]
            if said != before or code is not None:
                yield _News(said if said != before else "", code=code)
            if code is not None:
                return
        yield _News(problem="was deleted", code=1)
    except TimeIsUp:
        yield _News(problem=f"is not {until.goal} after {until.timeout}: {said}", code=TimeIsUp.exit_code)
