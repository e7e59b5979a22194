"""The end of an AppWrapper that ended under an earlier database: its status says so, and the status is final."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from dispatcher.api.conditions import ConditionType, State
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.core.lifecycle import first_changes
from dispatcher.core.lifecycle.first_changes import KeptObjects, Submission
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.record import Change
from dispatcher.text import mappings_of, name_of, text_of

_ENDS: Final = ((State.COMPLETED, ConditionType.COMPLETED), (State.FAILED, ConditionType.FAILED))


class StatusEnd(NamedTuple):
    """The end of an AppWrapper, as its status says; objects of it are kept until `kept_until`, if any are."""

    state: State
    reason: str
    message: str
    kept_until: datetime | None


def end_in_status(status: Mapping[str, Any]) -> StatusEnd | None:
    """The end in the status of an AppWrapper; None if there is none, or if the status contradicts itself."""
    conditions = mappings_of(status.get("conditions"))
    said = {name_of(one.get("type")): one for one in conditions if one.get("status") == "True"}
    for state, type_ in _ENDS:
        if status.get("state") == state and type_ in said:
            reason, message = name_of(said[type_].get("reason")), text_of(said[type_].get("message"))
            return StatusEnd(state, reason, message, _kept_until(status))
    return None


def recall(end: StatusEnd, submission: Submission, gang: Gang, now: datetime) -> Change:
    """The change that keeps an AppWrapper ended."""
    kept = KeptObjects(HUB_CLUSTER, end.kept_until) if end.kept_until else None
    if end.state is State.COMPLETED:
        return first_changes.recall_completed(submission, gang, now, kept)
    return first_changes.recall_failed(submission, gang, end.reason, end.message, now, kept)


def _kept_until(status: Mapping[str, Any]) -> datetime | None:
    """The time until which objects are kept, by the status; None if the status names no readable time."""
    try:
        until = datetime.fromisoformat(str(status.get("keptUntil")))
        return until.astimezone(UTC) if until.tzinfo else None
    except (ValueError, OverflowError):
        return None
