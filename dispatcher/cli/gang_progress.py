"""Where an AppWrapper stands, from its status alone: one line for people, and whether a wait for it is over."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from dispatcher.cli.sentences import state_in_words
from dispatcher.text import one_line

Json = dict[str, Any]

_RUNNING: Final = frozenset({"Running", "RunningHoldCompletion"})


class Goal(StrEnum):
    """The state that a person waits for."""

    RUNNING = "running"
    DONE = "done"


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
    # Imported here, because all commands import this module, and few ask for a phase.
    from dispatcher.core.model.record import Phase
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


def holds_objects(appwrapper: Json) -> bool:
    """True for a gang that has been dispatched and has not ended: to suspend it deletes its objects."""
    status = appwrapper.get("status") or {}
    return bool(status.get("cluster")) and status.get("state") not in {"Completed", "Failed"}


def _condition(status: Json, type_: str) -> Json:
    found: list[Json] = [each for each in status.get("conditions") or () if each.get("type") == type_]
    return found[0] if found else {}
