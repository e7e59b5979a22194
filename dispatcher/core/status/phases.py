"""The phase of an AppWrapper, read from its status.

It is `lifecyclePhase`, which MCAD does not write. MCAD's words say it, too: several phases share one of
them, and `canrun` and `cluster` tell these phases apart. So commands that read statuses and commands that read the
database name the same state by the same word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dispatcher.api.conditions import ConditionType, State
from dispatcher.core.model.records.record import Phase
from dispatcher.text import text_of

_PHASES: Final = frozenset(each.value for each in Phase)
_BY_STATE: Final[Mapping[str, Phase]] = {
    State.COMPLETED: Phase.COMPLETED,
    State.FAILED: Phase.FAILED,
    State.RUNNING_HOLD_COMPLETION: Phase.RUNNING_HOLD_COMPLETION,
    State.DELETED: Phase.DELETING,
}
_REMOVED: Final[Mapping[str | None, Phase]] = {
    ConditionType.SUSPENDED: Phase.SUSPENDING,
    ConditionType.BACKOFF: Phase.REQUEUEING,
    ConditionType.HEAD_OF_LINE: Phase.FAILING,
    ConditionType.PREEMPT_CANDIDATE: Phase.FAILING,
}
"""The phases in which a pending AppWrapper holds capacity and cannot run."""


def phase_in(status: Mapping[str, Any]) -> Phase | None:
    """The phase of which `conditions.project` made this status; None if the AppWrapper has no record.

    It has none before a dispatcher has seen it, and while it is outside the queue (`core.intake.namespace_bounds`).
    Foreign words count as `Queued`, and what is no text counts as absent.
    """
    written, state, word = (text_of(status.get(key)) for key in ("lifecyclePhase", "state", "queuejobstate"))
    if written in _PHASES:
        return Phase(written)
    if not state or word == ConditionType.INIT:
        return None
    if state in _BY_STATE:
        return _BY_STATE[state]
    if state == State.RUNNING:
        return Phase.DISPATCHED if word == ConditionType.DISPATCHED else Phase.RUNNING
    if status.get("canrun"):
        return Phase.DISPATCHING
    if status.get("cluster"):
        return _REMOVED.get(word, Phase.REQUEUEING)
    return Phase.SUSPENDED if word == ConditionType.SUSPENDED else Phase.QUEUED
