"""The life of an AppWrapper: every phase change there is, and the only code that makes one.

`TRANSITIONS` is the whole machine; `docs/lifecycle.md` is generated from it. The functions below each
make one step: they take the record as it was, return a `Change` (record after, history made) and raise
`IllegalTransition` for a step the table does not have. Which step is due is `core.decision`'s to say. Nothing
here does anything: no clock, no I/O; `now` is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType
from dispatcher.api.mistakes import one_line
from dispatcher.core.gang import Gang
from dispatcher.core.record import Attempt, Change, Condition, Event, ObjectRef, Pending, Phase, Record
from dispatcher.errors import IllegalTransition


class Cause(StrEnum):
    """Why a record changed; the word history uses for it."""

    SUBMITTED = "submitted"
    REJECTED = "rejected"
    ADOPTED = "adopted"
    BLOCKED = "blocked"
    LINED_UP = "lined-up"
    BECAME_HEAD = "became-head"
    REPRIORITISED = "reprioritised"
    DISPATCHED = "dispatched"
    CREATED = "created"
    PODS_RUNNING = "pods-running"
    CREATION_REFUSED = "creation-refused"
    CREATION_POSTPONED = "creation-postponed"
    REMOVED = "removed"
    DELETED = "deleted"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the table: `source` None is an AppWrapper never seen before."""

    source: Phase | None
    cause: Cause
    target: Phase
    meaning: str


TRANSITIONS: Final[tuple[Transition, ...]] = (
    Transition(None, Cause.SUBMITTED, Phase.QUEUED, "a valid AppWrapper was seen for the first time"),
    Transition(None, Cause.REJECTED, Phase.FAILED, "it can never be dispatched as it is written"),
    Transition(
        None, Cause.ADOPTED, Phase.DISPATCHING, "objects of it exist, though the database knew nothing"
    ),
    Transition(Phase.QUEUED, Cause.BLOCKED, Phase.QUEUED, "a cycle evaluated it and it does not fit"),
    Transition(Phase.QUEUED, Cause.LINED_UP, Phase.QUEUED, "StrictFIFO: it stands behind one that waits"),
    Transition(
        Phase.QUEUED, Cause.BECAME_HEAD, Phase.QUEUED, "first of those that do not fit: its bound runs"
    ),
    Transition(Phase.QUEUED, Cause.REPRIORITISED, Phase.QUEUED, "the user changed its priority"),
    Transition(Phase.QUEUED, Cause.DISPATCHED, Phase.DISPATCHING, "the gang fits: committed to a cluster"),
    Transition(Phase.QUEUED, Cause.DELETED, Phase.DELETED, "deleted while nothing of it existed"),
    Transition(Phase.DISPATCHING, Cause.CREATED, Phase.DISPATCHED, "every wrapped object was created"),
    Transition(Phase.DISPATCHING, Cause.CREATION_REFUSED, Phase.FAILING, "an object can never be created"),
    Transition(
        Phase.DISPATCHING, Cause.CREATION_POSTPONED, Phase.REQUEUEING, "an object cannot be created now"
    ),
    Transition(Phase.DISPATCHING, Cause.DELETED, Phase.DELETING, "deleted while being created"),
    Transition(Phase.DISPATCHED, Cause.PODS_RUNNING, Phase.RUNNING, "as many pods run as the gang needs"),
    Transition(Phase.DISPATCHED, Cause.DELETED, Phase.DELETING, "deleted before its pods ran"),
    Transition(Phase.RUNNING, Cause.DELETED, Phase.DELETING, "deleted while running"),
    Transition(Phase.REQUEUEING, Cause.REMOVED, Phase.QUEUED, "what was created is confirmed gone"),
    Transition(Phase.REQUEUEING, Cause.DELETED, Phase.DELETING, "deleted while being rolled back"),
    Transition(Phase.FAILING, Cause.REMOVED, Phase.FAILED, "what was created is confirmed gone"),
    Transition(Phase.FAILING, Cause.DELETED, Phase.DELETING, "deleted while being rolled back"),
    Transition(Phase.FAILED, Cause.DELETED, Phase.DELETED, "deleted after it failed"),
    Transition(Phase.DELETING, Cause.RELEASED, Phase.DELETED, "its objects and pods are confirmed gone"),
)

_TARGETS: Final = {(row.source, row.cause): row.target for row in TRANSITIONS}


class Told(NamedTuple):
    """What an AppWrapper's status says of its waiting, as far as a change of it is news; all empty if nothing.

    Amounts are not in it: they change with every neighbour.
    """

    reason: str = ""
    resource: str = ""
    cluster: str = ""
    is_backoff: bool = False


def told(record: Record) -> Told:
    """What was told last."""
    backoff, pending = record.condition(ConditionType.BACKOFF), record.pending
    is_backoff = backoff is not None and backoff.status
    if pending is None:
        return Told(is_backoff=is_backoff)
    return Told(pending.reason, pending.resource, pending.cluster, is_backoff)


def told_by(pending: Pending) -> Told:
    """What `block` tells."""
    return Told(pending.reason, pending.resource, pending.cluster, is_backoff=True)


# --- the steps ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Newcomer:
    """An AppWrapper never seen before, as far as it could be read."""

    uid: str
    group: str
    namespace: str
    name: str
    created_at: datetime
    spec: bytes
    spec_hash: str
    priority: int = 0
    priority_slope: float = 0.0


def submit(newcomer: Newcomer, gang: Gang, now: datetime) -> Change:
    """Queue a valid AppWrapper."""
    conditions = (
        _condition(ConditionType.INIT, now),
        _condition(ConditionType.QUEUEING, now, words.AWAITING_HEAD_OF_LINE),
    )
    return _first(newcomer, Cause.SUBMITTED, now, gang=gang, conditions=conditions)


def reject(newcomer: Newcomer, message: str, now: datetime) -> Change:
    """Refuse an AppWrapper that can never be dispatched as it is written; `message` is for its user."""
    message = one_line(message)
    failed = _condition(ConditionType.FAILED, now, words.ITEM_CREATION_FAILURE, message)
    conditions = (_condition(ConditionType.INIT, now), failed)
    return _first(newcomer, Cause.REJECTED, now, conditions=conditions, message=message)


def adopt(newcomer: Newcomer, gang: Gang, cluster: str, number: int, now: datetime) -> Change:
    """Take over an AppWrapper some of whose objects exist and are ours, so that it never queues behind itself.

    It continues as attempt `number` being created: what exists is found and kept, what is missing is made.
    """
    conditions = (
        _condition(ConditionType.INIT, now),
        _condition(ConditionType.QUEUEING, now, words.AWAITING_HEAD_OF_LINE),
        _condition(ConditionType.HEAD_OF_LINE, now, words.FRONT_OF_QUEUE),
    )
    attempt = Attempt(number=number, cluster=cluster, decided_at=now)
    return _first(
        newcomer, Cause.ADOPTED, now, gang=gang, conditions=conditions, attempt=attempt, attempts=number
    )


def block(record: Record, pending: Pending, now: datetime, *, is_head: bool = False) -> Change | None:
    """Note that a cycle evaluated it and it must wait; None if that is known already.

    Only a new reason, resource or cluster counts as news: amounts that change with every neighbour do not.
    `is_head` starts the time after which it is protected from those who pass it by.
    """
    blocked_since = record.blocked_since or (now if is_head else None)
    if told(record) == told_by(pending):
        if blocked_since == record.blocked_since:
            return None
        return _step(record, Cause.BECAME_HEAD, now, blocked_since=blocked_since)
    conditions = _with(record.conditions, ConditionType.HEAD_OF_LINE, now, words.FRONT_OF_QUEUE)
    conditions = _with(
        conditions,
        ConditionType.BACKOFF,
        now,
        words.APPWRAPPER_NOT_RUNNABLE,
        words.INSUFFICIENT_RESOURCES,
    )
    return _step(
        record,
        Cause.BLOCKED,
        now,
        reason=pending.reason,
        note=pending.message,
        conditions=conditions,
        pending=pending,
        blocked_since=blocked_since,
    )


def line_up(record: Record, pending: Pending, now: datetime) -> Change | None:
    """Note that it was not looked at, because one before it waits; None if that is known already."""
    if told(record).reason == pending.reason:
        return None
    return _step(record, Cause.LINED_UP, now, reason=pending.reason, note=pending.message, pending=pending)


def reprioritise(record: Record, priority: int, slope: float, now: datetime) -> Change:
    """Move it in the queue."""
    note = f"priority {record.priority} → {priority}, slope {record.priority_slope:g} → {slope:g}"
    return _step(record, Cause.REPRIORITISED, now, note=note, priority=priority, priority_slope=slope)


def dispatch(record: Record, cluster: str, now: datetime) -> Change:
    """Commit it to `cluster`: from here on its demand is charged there.

    What is created needs no list of its own here: it is what `spec_hash` names, item by item.
    """
    conditions = _with(record.conditions, ConditionType.HEAD_OF_LINE, now, words.FRONT_OF_QUEUE)
    if record.condition(ConditionType.BACKOFF):
        conditions = _without(conditions, ConditionType.BACKOFF, now)
    number = record.attempts + 1
    return _step(
        record,
        Cause.DISPATCHED,
        now,
        conditions=conditions,
        pending=None,
        blocked_since=None,
        eligible_at=None,
        message="",
        attempts=number,
        attempt=Attempt(number=number, cluster=cluster, decided_at=now),
    )


def created(record: Record, objects: tuple[ObjectRef, ...], now: datetime) -> Change:
    """Every wrapped object exists; `objects` carry their uids."""
    conditions = _with(record.conditions, ConditionType.DISPATCHED, now, words.APPWRAPPER_RUNNABLE)
    attempt = replace(_live_attempt(record), objects=objects, created_at=now)
    return _step(record, Cause.CREATED, now, conditions=conditions, attempt=attempt)


def mark_running(record: Record, now: datetime) -> Change:
    """As many of its pods run as it needs."""
    conditions = _with(record.conditions, ConditionType.RUNNING, now, words.PODS_RUNNING)
    attempt = replace(_live_attempt(record), started_at=now)
    return _step(record, Cause.PODS_RUNNING, now, conditions=conditions, attempt=attempt)


def refuse_creation(record: Record, objects: tuple[ObjectRef, ...], message: str, now: datetime) -> Change:
    """A wrapped object can never be created: what exists of the attempt (`objects`) is to be removed."""
    message = one_line(message)
    attempt = replace(_live_attempt(record), objects=objects)
    return _step(record, Cause.CREATION_REFUSED, now, note=message, message=message, attempt=attempt)


def postpone_creation(
    record: Record, objects: tuple[ObjectRef, ...], message: str, eligible_at: datetime, now: datetime
) -> Change:
    """A wrapped object cannot be created now: remove what exists, and try again from `eligible_at` on."""
    message = one_line(message)
    attempt = replace(_live_attempt(record), objects=objects)
    return _step(
        record,
        Cause.CREATION_POSTPONED,
        now,
        note=message,
        message=message,
        attempt=attempt,
        eligible_at=eligible_at,
    )


def removed(record: Record, now: datetime) -> Change:
    """What a failed attempt had created is confirmed gone."""
    if record.phase is Phase.FAILING:
        attempt = replace(_live_attempt(record), ended_at=now, outcome="failed")
        conditions = _with(
            record.conditions, ConditionType.FAILED, now, words.ITEM_CREATION_FAILURE, record.message
        )
        return _step(record, Cause.REMOVED, now, note=record.message, conditions=conditions, attempt=attempt)
    attempt = replace(_live_attempt(record), ended_at=now, outcome="postponed")
    conditions = _with(
        record.conditions, ConditionType.BACKOFF, now, words.APPWRAPPER_NOT_RUNNABLE, record.message
    )
    pending = Pending("CreationPostponed", record.message, cluster=attempt.cluster)
    return _step(record, Cause.REMOVED, now, conditions=conditions, pending=pending, attempt=attempt)


def delete(record: Record, now: datetime) -> Change:
    """The AppWrapper was deleted; what it holds, it holds until `release`."""
    return _step(record, Cause.DELETED, now, pending=None)


def release(record: Record, now: datetime) -> Change:
    """Nothing of it is left in any cluster."""
    attempt = replace(_live_attempt(record), ended_at=now, outcome="deleted")
    return _step(record, Cause.RELEASED, now, attempt=attempt)


# --- the one place where records change -----------------------------------------------------------


def _first(newcomer: Newcomer, cause: Cause, now: datetime, **fields: object) -> Change:
    target = _TARGETS[None, cause]
    record = Record(
        uid=newcomer.uid,
        group=newcomer.group,
        namespace=newcomer.namespace,
        name=newcomer.name,
        created_at=newcomer.created_at,
        spec_hash=newcomer.spec_hash,
        priority=newcomer.priority,
        priority_slope=newcomer.priority_slope,
        phase=target,
        phase_since=now,
        version=1,
    )
    after = replace(record, **fields)  # type: ignore[arg-type]  # fields are Record's own, by keyword
    event = Event(
        at=now,
        cause=cause,
        from_phase=None,
        to_phase=target,
        message=after.message,
        cluster=after.attempt.cluster if after.attempt else "",
        attempt=after.attempts,
    )
    return Change(before=None, after=after, events=(event,), spec=newcomer.spec)


def _step(
    record: Record, cause: Cause, now: datetime, *, reason: str = "", note: str = "", **fields: object
) -> Change:
    target = _TARGETS.get((record.phase, cause))
    if target is None:
        raise IllegalTransition(f"{record.uid}: no transition from {record.phase} by {cause}")
    if target is not record.phase:
        fields["phase_since"] = now
    after = replace(record, phase=target, version=record.version + 1, **fields)  # type: ignore[arg-type]  # as above
    attempt = after.attempt if record.holds_capacity or after.holds_capacity else None
    event = Event(
        at=now,
        cause=cause,
        from_phase=record.phase,
        to_phase=target,
        reason=reason,
        message=note,
        cluster=attempt.cluster if attempt else "",
        attempt=attempt.number if attempt else 0,
    )
    return Change(before=record, after=after, events=(event,))


def _live_attempt(record: Record) -> Attempt:
    if record.attempt is None or record.attempt.ended_at is not None:
        raise IllegalTransition(f"{record.uid}: {record.phase} without a live attempt")
    return record.attempt


def _condition(type_: ConditionType, now: datetime, reason: str = "", message: str = "") -> Condition:
    return Condition(type=type_, status=True, since=now, updated=now, reason=reason, message=message)


def _with(
    conditions: Iterable[Condition],
    type_: ConditionType,
    now: datetime,
    reason: str,
    message: str = "",
) -> tuple[Condition, ...]:
    """`conditions` with `type_` true: kept in order of first transition, untouched if it says so already."""
    kept = tuple(conditions)
    for index, known in enumerate(kept):
        if known.type != type_:
            continue
        if (known.status, known.reason, known.message) == (True, reason, message):
            return kept
        since = known.since if known.status else now
        changed = Condition(type_, status=True, since=since, updated=now, reason=reason, message=message)
        return (*kept[:index], changed, *kept[index + 1 :])
    return (*kept, _condition(type_, now, reason, message))


def _without(conditions: Iterable[Condition], type_: ConditionType, now: datetime) -> tuple[Condition, ...]:
    """`conditions` with `type_` false, its reason and message kept: they say why it was true."""
    return tuple(
        replace(known, status=False, since=now, updated=now)
        if known.type == type_ and known.status
        else known
        for known in conditions
    )
