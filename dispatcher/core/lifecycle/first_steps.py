"""How the record of an AppWrapper begins: the first change, of one that was never seen before.

It is queued, held back, rejected, or found to be running or over already. What becomes of it then is `lifecycle`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType
from dispatcher.api.spec_errors import one_line
from dispatcher.api.submitter import UNKNOWN, Submitter
from dispatcher.core.lifecycle.condition_updates import new_condition
from dispatcher.core.lifecycle.transitions import TARGETS, Cause
from dispatcher.core.model.gang import Gang
from dispatcher.core.model.record import Attempt, Change, Event, ObjectRef, Record
from dispatcher.core.model.requirements import ANYWHERE, ClusterRequirements


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
    suspended: bool = False
    expected_seconds: int = 0
    requirements: ClusterRequirements = ANYWHERE
    submitter: Submitter = UNKNOWN
    warnings: tuple[str, ...] = ()
    """What is not done as its author wrote it, in sentences: the first line of its history says so."""


_CARRYING_WARNINGS: Final = frozenset({Cause.SUBMITTED, Cause.SUBMITTED_SUSPENDED, Cause.ADOPTED})


def submit(newcomer: Newcomer, gang: Gang, now: datetime) -> Change:
    """Queue a valid AppWrapper, or hold it back from the start."""
    init = new_condition(ConditionType.INIT, now)
    if newcomer.suspended:
        held = new_condition(ConditionType.SUSPENDED, now, words.SUSPENDED_BY_USER)
        return _first(newcomer, Cause.SUBMITTED_SUSPENDED, now, gang=gang, conditions=(init, held))
    queueing = new_condition(ConditionType.QUEUEING, now, words.AWAITING_HEAD_OF_LINE)
    return _first(newcomer, Cause.SUBMITTED, now, gang=gang, conditions=(init, queueing))


def reject(newcomer: Newcomer, message: str, now: datetime) -> Change:
    """Refuse an AppWrapper that can never be dispatched as it is written; `message` is for its user."""
    message = one_line(message)
    failed = new_condition(ConditionType.FAILED, now, words.ITEM_CREATION_FAILURE, message)
    conditions = (new_condition(ConditionType.INIT, now), failed)
    return _first(
        newcomer,
        Cause.REJECTED,
        now,
        conditions=conditions,
        reason=words.ITEM_CREATION_FAILURE,
        message=message,
    )


def fail_unstorable(record: Record, now: datetime) -> Change:
    """Fail one that the database cannot hold as it is, by no more than its names."""
    bare = Newcomer(
        uid=record.uid,
        group=record.group,
        namespace=record.namespace,
        name=record.name,
        created_at=record.created_at,
        spec=b"",
        spec_hash="",
    )
    said = "something in it is beyond what can be stored; the dispatcher's log says what (change_refused)"
    return replace(reject(bare, f"{record.key} creation failure: {said}", now), spec=None)


class Kept(NamedTuple):
    """What is still there of an AppWrapper that has ended, and until when."""

    cluster: str
    until: datetime


def recall_completed(newcomer: Newcomer, gang: Gang, now: datetime, kept: Kept | None = None) -> Change:
    """Believe a status that says Completed, which somebody else, or a lost database, has known: never run it again."""
    conditions = (
        new_condition(ConditionType.INIT, now),
        new_condition(ConditionType.COMPLETED, now, words.PODS_COMPLETED),
    )
    left = _left(kept, "completed", now)
    return _first(newcomer, Cause.FOUND_COMPLETED, now, gang=gang, conditions=conditions, **left)


def recall_failed(
    newcomer: Newcomer, gang: Gang, reason: str, message: str, now: datetime, kept: Kept | None = None
) -> Change:
    """Believe a status that says Failed: it has been told that it will not run."""
    message = one_line(message)
    failed = new_condition(ConditionType.FAILED, now, reason, message)
    conditions = (new_condition(ConditionType.INIT, now), failed)
    left = _left(kept, "failed", now)
    return _first(
        newcomer,
        Cause.FOUND_FAILED,
        now,
        gang=gang,
        conditions=conditions,
        reason=reason,
        message=message,
        **left,
    )


def _left(kept: Kept | None, outcome: str, now: datetime) -> dict[str, object]:
    """The attempt that what is kept is of; which it was, and when, nobody knows any more."""
    if kept is None:
        return {}
    attempt = Attempt(number=1, cluster=kept.cluster, decided_at=now, ended_at=now, outcome=outcome)
    return {"attempt": attempt, "attempts": 1, "kept_until": kept.until}


def without_spec(change: Change, objects: Iterable[ObjectRef]) -> Change:
    """The same first step of an AppWrapper whose spec is not to be stored.

    `objects` are what it wraps, by which what is kept of it is removed when its time is up.
    """
    attempt = change.after.attempt
    if attempt is not None:
        attempt = replace(attempt, objects=tuple(objects))
    return replace(change, after=replace(change.after, spec_hash="", attempt=attempt), spec=None)


def adopt(newcomer: Newcomer, gang: Gang, cluster: str, number: int, now: datetime) -> Change:
    """Take over an AppWrapper some of whose objects exist and are ours, so that it never queues behind itself.

    It continues as attempt `number` being created: what exists is found and kept, what is missing is made.
    """
    conditions = (
        new_condition(ConditionType.INIT, now),
        new_condition(ConditionType.QUEUEING, now, words.AWAITING_HEAD_OF_LINE),
        new_condition(ConditionType.HEAD_OF_LINE, now, words.FRONT_OF_QUEUE),
    )
    attempt = Attempt(number=number, cluster=cluster, decided_at=now)
    return _first(
        newcomer, Cause.ADOPTED, now, gang=gang, conditions=conditions, attempt=attempt, attempts=number
    )


def _first(newcomer: Newcomer, cause: Cause, now: datetime, **fields: object) -> Change:
    target = TARGETS[None, cause]
    record = Record(
        uid=newcomer.uid,
        group=newcomer.group,
        namespace=newcomer.namespace,
        name=newcomer.name,
        # By the API server's clock, which may be ahead: nobody is taken in before being created.
        created_at=min(newcomer.created_at, now),
        spec_hash=newcomer.spec_hash,
        priority=newcomer.priority,
        priority_slope=newcomer.priority_slope,
        expected_seconds=newcomer.expected_seconds,
        requirements=newcomer.requirements,
        user=newcomer.submitter.user,
        groups=newcomer.submitter.groups,
        phase=target,
        phase_since=now,
        last_event_at=now,
        version=1,
    )
    warning = one_line("; ".join(newcomer.warnings)) if cause in _CARRYING_WARNINGS else ""
    after = replace(record, **fields)  # type: ignore[arg-type]  # fields are Record's own, by keyword
    event = Event(
        at=now,
        cause=cause,
        from_phase=None,
        to_phase=target,
        message=after.message or warning,
        cluster=after.attempt.cluster if after.attempt else "",
        attempt=after.attempts,
    )
    return Change(before=None, after=after, events=(event,), spec=newcomer.spec)
