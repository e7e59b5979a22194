"""The first change of an AppWrapper, and those by what clusters have and the database does not know.

A new AppWrapper is queued, suspended or rejected, or found running or ended already. The record of a restored database
is older than the clusters, and corrected.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.annotations import UNKNOWN, Submitter
from dispatcher.api.conditions import ConditionType
from dispatcher.api.names import DEFAULT_QUEUE
from dispatcher.api.spec_errors import one_line
from dispatcher.core.lifecycle.ageing import Ageing
from dispatcher.core.lifecycle.queue_changes import begin_attempt
from dispatcher.core.lifecycle.record_change import (
    after_requeue,
    at_latest_time,
    change_by,
    live_attempt,
    new_condition,
    unknown_class,
    with_failure,
    with_false,
    with_true,
)
from dispatcher.core.lifecycle.transitions import TARGETS, Cause
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.provisioning import Provisioning
from dispatcher.core.model.records.record import (
    Attempt,
    Change,
    Condition,
    Event,
    ObjectRef,
    Pending,
    Phase,
    Record,
)
from dispatcher.core.model.records.requirements import ANYWHERE, ClusterRequirements
from dispatcher.errors import IllegalTransition


class Submission(Struct, frozen=True):
    """An AppWrapper without a record, as far as it could be read."""

    uid: str
    group: str
    namespace: str
    name: str
    created_at: datetime
    spec: bytes
    spec_hash: str
    queues: tuple[str, ...] = (DEFAULT_QUEUE,)
    """The queues in which it is charged: its own, then one in each of MCAD's trees."""
    priority: int = 0
    priority_slope: float = 0.0
    suspended: bool = False
    expected_seconds: int = 0
    limit_seconds: int = 0
    requirements: ClusterRequirements = ANYWHERE
    submitter: Submitter = UNKNOWN
    warnings: tuple[str, ...] = ()
    """Sentences about parts of the spec that the dispatcher changes or drops; the first event carries them."""
    demand_differs: str = ""
    """How the declared demand differs from that of the templates, with both amounts; empty if they agree."""
    unknown_class: str = ""
    """A sentence that the priority class which its labels name does not exist; empty if there is no need for one."""
    awaits: Pending | None = None
    """The pending reason of an AppWrapper that lacks approvals; None if it has all."""
    awaits_its_own: bool = False
    """True if it lacks an approval that only its author's annotation names."""
    pods_never_preempt: bool = False
    class_never_preempts: bool = False
    notifications: str = ""
    """What its annotation, else that of its namespace, chooses to be told (`api.notifications`)."""
    is_edited: bool = False
    """True if its spec was changed before it was read first: it may have been suspended until then."""
    was_deferred: bool = False
    """True if its namespace had no room for it: its author may have kept back the AppWrappers that were in its way."""


_CARRYING_WARNINGS: Final = frozenset({Cause.SUBMITTED, Cause.SUBMITTED_SUSPENDED, Cause.ADOPTED})


def submit(submission: Submission, gang: Gang, now: datetime) -> Change:
    """Queues a valid AppWrapper, or records it as suspended; one that lacks approvals takes part in no cycle.

    The age of an AppWrapper that its author keeps back, or may have kept back until now, does not begin before now.
    """
    is_kept_back = submission.suspended or submission.awaits_its_own
    age = Ageing(
        aged_from=now if is_kept_back or submission.is_edited or submission.was_deferred else None,
        age_stopped_at=now if is_kept_back else None,
    )
    first = _first_conditions(submission, now)
    if submission.suspended:
        suspended = new_condition(ConditionType.SUSPENDED, now, words.SUSPENDED_BY_USER)
        return _first(
            submission,
            Cause.SUBMITTED_SUSPENDED,
            now,
            gang=gang,
            conditions=(*first, suspended),
            **age.fields,
        )
    queueing = new_condition(ConditionType.QUEUEING, now, words.AWAITING_HEAD_OF_LINE)
    return _first(
        submission,
        Cause.SUBMITTED,
        now,
        gang=gang,
        conditions=(*first, queueing),
        pending=submission.awaits,
        **age.fields,
    )


def reject(submission: Submission, message: str, now: datetime) -> Change:
    """Rejects an AppWrapper that can never be dispatched as it is written; `message` is for its user."""
    message = one_line(message)
    failed = new_condition(ConditionType.FAILED, now, words.ITEM_CREATION_FAILURE, message)
    conditions = (*_first_conditions(submission, now), failed)
    return _first(
        submission,
        Cause.REJECTED,
        now,
        conditions=conditions,
        reason=words.ITEM_CREATION_FAILURE,
        message=message,
    )


def fail_unstorable(record: Record, now: datetime) -> Change:
    """Fails an AppWrapper that the database cannot store: the record has its names and nothing else."""
    bare = Submission(
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


class KeptObjects(NamedTuple):
    """The cluster with the objects that an ended AppWrapper keeps, and the time until which it keeps them."""

    cluster: str
    until: datetime


def recall_completed(
    submission: Submission, gang: Gang, now: datetime, kept: KeptObjects | None = None
) -> Change:
    """Records as Completed an AppWrapper whose status says so, as another release or a lost database wrote it."""
    completed = new_condition(ConditionType.COMPLETED, now, words.PODS_COMPLETED)
    conditions = (*_first_conditions(submission, now), completed)
    left = _left(kept, "completed", now)
    return _first(submission, Cause.FOUND_COMPLETED, now, gang=gang, conditions=conditions, **left)


def recall_failed(
    submission: Submission,
    gang: Gang,
    reason: str,
    message: str,
    now: datetime,
    kept: KeptObjects | None = None,
) -> Change:
    """Records as Failed an AppWrapper whose status says so."""
    message = one_line(message)
    failed = new_condition(ConditionType.FAILED, now, reason, message)
    conditions = (*_first_conditions(submission, now), failed)
    left = _left(kept, "failed", now)
    return _first(
        submission,
        Cause.FOUND_FAILED,
        now,
        gang=gang,
        conditions=conditions,
        reason=reason,
        message=message,
        **left,
    )


def _left(kept: KeptObjects | None, outcome: str, now: datetime) -> dict[str, object]:
    """The fields of an attempt to which the kept objects belong; its number and times are unknown."""
    if kept is None:
        return {}
    attempt = Attempt(number=1, cluster=kept.cluster, decided_at=now, ended_at=now, outcome=outcome)
    return {"attempt": attempt, "attempts": 1, "kept_until": kept.until}


def without_spec(change: Change, objects: Iterable[ObjectRef]) -> Change:
    """The same first change without the spec; `objects` are stored instead, for their removal at `kept_until`."""
    attempt = change.after.attempt
    if attempt is not None:
        attempt = replace(attempt, objects=tuple(objects))
    return replace(change, after=replace(change.after, spec_hash="", attempt=attempt), spec=None)


def adopt(
    submission: Submission,
    gang: Gang,
    cluster: str,
    number: int,
    now: datetime,
    provisioning: Provisioning | None = None,
) -> Change:
    """Adopts an AppWrapper that has objects of ours in `cluster`: they must not compete with a second attempt.

    It continues as attempt `number` in Dispatching: missing objects are created, others are kept. `provisioning` is its
    request for capacity, if it has one.
    """
    conditions = (
        *_first_conditions(submission, now),
        new_condition(ConditionType.QUEUEING, now, words.AWAITING_HEAD_OF_LINE),
        new_condition(ConditionType.HEAD_OF_LINE, now, words.FRONT_OF_QUEUE),
    )
    attempt = Attempt(number=number, cluster=cluster, decided_at=now, provisioning=provisioning)
    return _first(
        submission, Cause.ADOPTED, now, gang=gang, conditions=conditions, attempt=attempt, attempts=number
    )


def _first_conditions(submission: Submission, now: datetime) -> tuple[Condition, ...]:
    """Init and the warnings; MCAD's conditions stay the first and the last ones."""
    conditions = [new_condition(ConditionType.INIT, now)]
    if submission.unknown_class:
        conditions.append(unknown_class(submission.unknown_class, now))
    if submission.demand_differs:
        message = one_line(submission.demand_differs)
        differs = new_condition(ConditionType.DEMAND_DIFFERS, now, words.DECLARATION_DIFFERS, message)
        conditions.append(differs)
    return tuple(conditions)


def _first(submission: Submission, cause: Cause, now: datetime, **fields: object) -> Change:
    target = TARGETS[None, cause]
    record = Record(
        uid=submission.uid,
        group=submission.group,
        namespace=submission.namespace,
        name=submission.name,
        # The API server's clock may be ahead, and an AppWrapper is not taken in before its creation.
        created_at=min(submission.created_at, now),
        spec_hash=submission.spec_hash,
        queue=submission.queues[0],
        more_queues=submission.queues[1:],
        priority=submission.priority,
        priority_slope=submission.priority_slope,
        expected_seconds=submission.expected_seconds,
        limit_seconds=submission.limit_seconds,
        requirements=submission.requirements,
        pods_never_preempt=submission.pods_never_preempt,
        class_never_preempts=submission.class_never_preempts,
        notifications=submission.notifications,
        user=submission.submitter.user,
        groups=submission.submitter.groups,
        phase=target,
        phase_since=now,
        last_event_at=now,
        version=1,
    )
    warning = one_line("; ".join(submission.warnings)) if cause in _CARRYING_WARNINGS else ""
    after = replace(record, **fields)  # type: ignore[arg-type]  # fields are Record's own, by keyword
    pending = after.pending
    event = Event(
        at=now,
        cause=cause,
        from_phase=None,
        to_phase=target,
        reason=pending.reason if pending else "",
        message=after.message or "; ".join(filter(None, (pending.message if pending else "", warning))),
        cluster=after.attempt.cluster if after.attempt else "",
        attempt=after.attempts,
    )
    return Change(before=None, after=after, events=(event,), spec=submission.spec)


@at_latest_time
def end_missed_attempt(record: Record, message: str, now: datetime) -> Change:
    """Ends an attempt that was over before the database was restored: how is unknown, also how a pod failed."""
    attempt = replace(live_attempt(record), ended_at=now, outcome="missed")
    return change_by(
        record,
        Cause.FOUND_ENDED,
        now,
        note=message,
        conditions=with_failure(after_requeue(record.conditions, now), None),
        reason="",
        message="",
        unhealthy=None,
        eligible_at=None,
        attempt=attempt,
    )


@at_latest_time
def take_over(
    record: Record, cluster: str, number: int, now: datetime, provisioning: Provisioning | None = None
) -> Change:
    """Continues attempt `number`, which the restored database lacks: missing objects are created, others are kept.

    `provisioning` is its request for capacity (`core.lifecycle.provisioning.recovered`), if it has one.
    """
    if number <= record.attempts:
        raise IllegalTransition(f"{record.uid}: attempt {number} is not later than {record.attempts}")
    conditions = record.conditions
    if record.phase is Phase.SUSPENDED:
        conditions = with_false(conditions, ConditionType.SUSPENDED, now)
        conditions = with_true(conditions, ConditionType.QUEUEING, now, words.AWAITING_HEAD_OF_LINE)
    return begin_attempt(
        record, Cause.FOUND_RUNNING, cluster, number, conditions, now, provisioning=provisioning
    )


@at_latest_time
def complete_missed(record: Record, kept_until: datetime | None, now: datetime) -> Change:
    """Completes the record as its status says; the status shows what the database said before it was restored."""
    conditions = with_true(record.conditions, ConditionType.COMPLETED, now, words.PODS_COMPLETED)
    return _recall(record, Cause.FOUND_COMPLETED, "completed", conditions, kept_until, now)


@at_latest_time
def fail_missed(
    record: Record, reason: str, message: str, kept_until: datetime | None, now: datetime
) -> Change:
    """Fails the record as its status says; the status shows what the database said before it was restored."""
    message = one_line(message)
    conditions = with_true(record.conditions, ConditionType.FAILED, now, reason, message)
    return _recall(record, Cause.FOUND_FAILED, "failed", conditions, kept_until, now, (reason, message))


def _recall(
    record: Record,
    cause: Cause,
    outcome: str,
    conditions: tuple[Condition, ...],
    kept_until: datetime | None,
    now: datetime,
    because: tuple[str, str] = ("", ""),
) -> Change:
    """Ends the attempt that the restored database has as live; `kept_until` counts only if there is one.

    How a pod of a later attempt failed is not known.
    """
    attempt, is_kept = record.attempt, record.holds_capacity
    return change_by(
        record,
        cause,
        now,
        note=because[1],
        conditions=with_failure(with_false(conditions, ConditionType.SUSPENDED, now), None),
        reason=because[0],
        message=because[1],
        pending=None,
        blocked_since=None,
        eligible_at=None,
        unhealthy=None,
        attempt=replace(attempt, ended_at=now, outcome=outcome) if attempt and is_kept else attempt,
        kept_until=kept_until if is_kept else None,
    )
