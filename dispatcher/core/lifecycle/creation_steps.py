"""Steps of a gang whose wrapped objects are being created."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType
from dispatcher.api.spec_errors import one_line
from dispatcher.core.lifecycle.condition_updates import after_creation, in_short, noted_warning, with_true
from dispatcher.core.lifecycle.record_change import at_latest_time, change_by, live_attempt
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.gang import Assignment
from dispatcher.core.model.pending_reasons import CREATION_POSTPONED
from dispatcher.core.model.record import Change, ObjectRef, Pending, Record
from dispatcher.core.model.requirements import ClusterRequirements

LONGEST_FIRST: Final = timedelta(seconds=10)
"""How long after its dispatch a gang goes first: pods without a node by then may stay without one."""


def goes_first(record: Record, now: datetime) -> bool:
    """True while gangs that were dispatched later, and share nodes with this one, wait for the binding of its pods."""
    attempt = record.attempt
    return attempt is not None and now < attempt.decided_at + LONGEST_FIRST


@at_latest_time
def created(
    record: Record,
    objects: tuple[ObjectRef, ...],
    now: datetime,
    warnings: Sequence[str] = (),
    assignment: Assignment | None = None,
) -> Change:
    """Every wrapped object exists; `objects` have their uids, `warnings` are the API server's, each with its object.

    `assignment` are the places that the pods prefer, if they are not the ones of the dispatch any more.
    Warnings that an earlier attempt had, too, are no news: its event says nothing of them. They also stand if an item
    that is done was not sent again, because the API server did not see all objects.
    """
    known = noted_warning(record, ConditionType.CREATED_WITH_WARNINGS)
    message = in_short(warnings) or (known if any(ref.done for ref in objects) else "")
    attempt = replace(live_attempt(record), objects=objects, created_at=now)
    if assignment is not None:
        attempt = replace(attempt, assignment=assignment)
    return change_by(
        record,
        Cause.CREATED,
        now,
        note="" if message == known else message,
        conditions=after_creation(record.conditions, message, now),
        attempt=attempt,
    )


@at_latest_time
def refuse_creation(record: Record, objects: tuple[ObjectRef, ...], message: str, now: datetime) -> Change:
    """A wrapped object can never be created: the gang fails once the existing `objects` are removed."""
    message = one_line(message)
    attempt = replace(live_attempt(record), objects=objects)
    return change_by(
        record,
        Cause.CREATION_REFUSED,
        now,
        note=message,
        reason=words.ITEM_CREATION_FAILURE,
        message=message,
        attempt=attempt,
    )


@at_latest_time
def postpone_creation(
    record: Record, objects: tuple[ObjectRef, ...], message: str, eligible_at: datetime, now: datetime
) -> Change:
    """A wrapped object cannot be created now: the gang is queued from `eligible_at` on, once `objects` are removed."""
    message = one_line(message)
    attempt = replace(live_attempt(record), objects=objects)
    return change_by(
        record,
        Cause.CREATION_POSTPONED,
        now,
        note=message,
        message=message,
        attempt=attempt,
        eligible_at=eligible_at,
    )


@at_latest_time
def rule_out(
    record: Record,
    objects: tuple[ObjectRef, ...],
    requirements: ClusterRequirements,
    message: str,
    now: datetime,
) -> Change:
    """A name is taken in the cluster: the gang is queued with `requirements`, which exclude the cluster."""
    change = postpone_creation(record, objects, message, now, now)
    return replace(change, after=replace(change.after, requirements=requirements))


@at_latest_time
def withdraw(record: Record, message: str, eligible_at: datetime, now: datetime) -> Change:
    """Queues the gang again: its cluster does not answer, and no request to create anything was sent there."""
    message = one_line(message)
    attempt = replace(live_attempt(record), ended_at=now, outcome="withdrawn")
    because = words.APPWRAPPER_NOT_RUNNABLE, message
    return change_by(
        record,
        Cause.WITHDRAWN,
        now,
        note=message,
        conditions=with_true(record.conditions, ConditionType.BACKOFF, now, *because),
        pending=Pending(CREATION_POSTPONED, message, cluster=attempt.cluster),
        message=message,
        unhealthy=None,
        attempt=attempt,
        eligible_at=eligible_at,
    )
