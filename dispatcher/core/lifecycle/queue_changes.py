"""Changes of a gang in the pending queue: why it waits, changes by its user, suspend, resume, dispatch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType
from dispatcher.api.notifications import Choices
from dispatcher.api.selector import Selector
from dispatcher.api.spec_errors import one_line
from dispatcher.core.lifecycle import ageing
from dispatcher.core.lifecycle.provisioning import failures_before
from dispatcher.core.lifecycle.record_change import (
    after_block,
    after_requeue,
    after_suspend,
    at_latest_time,
    change_by,
    in_short,
    live_attempt,
    noted_warning,
    with_failure,
    with_false,
    with_finished,
    with_true,
    with_unknown_class,
)
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.clusters.potential import in_words
from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment
from dispatcher.core.model.records.pending_reasons import AWAITING_RELEASE
from dispatcher.core.model.records.provisioning import Provisioning
from dispatcher.core.model.records.record import (
    ACTIVE,
    Attempt,
    Change,
    Condition,
    ObjectRef,
    Pending,
    Phase,
    Record,
)
from dispatcher.core.model.records.requirements import ClusterRequirements


class PendingKey(NamedTuple):
    """The parts of a pending reason whose change is committed; all empty for a gang without one.

    Amounts are not among them: they change with every other gang. `reservation` is the text about the gang's backfill
    reservation, which stays the same while the reservation lasts.
    """

    reason: str = ""
    resource: str = ""
    cluster: str = ""
    is_backoff: bool = False
    reservation: str = ""
    queue: str = ""


def pending_key(record: Record) -> PendingKey:
    """The key of the pending reason in the record."""
    backoff, pending = record.condition(ConditionType.BACKOFF), record.pending
    is_backoff = backoff is not None and backoff.status
    if pending is None:
        return PendingKey(is_backoff=is_backoff)
    return _key_of(pending, is_backoff=is_backoff)


def pending_key_of(pending: Pending) -> PendingKey:
    """The key that the record has once `block` has noted `pending`."""
    return _key_of(pending, is_backoff=True)


def _key_of(pending: Pending, *, is_backoff: bool) -> PendingKey:
    return PendingKey(
        pending.reason, pending.resource, pending.cluster, is_backoff, pending.reservation, pending.queue
    )


def is_known_not_evaluated(known: PendingKey, pending: Pending) -> bool:
    """True if a record with the key `known` says already that a StrictFIFO queue stopped before its gang."""
    return (known.reason, known.queue) == (pending.reason, pending.queue)


def says_otherwise(record: Record, pending: Pending) -> bool:
    """True if the record says something else than that the gang waits for this reason."""
    is_marked = _stays_preempting(record, pending) != record.is_preempting
    return is_marked or pending_key(record) != pending_key_of(pending)


def _stays_preempting(record: Record, pending: Pending) -> bool:
    return record.is_preempting and pending.reason == AWAITING_RELEASE


@at_latest_time
def block(record: Record, pending: Pending, now: datetime, *, is_head: bool = False) -> Change | None:
    """Notes why a cycle could not place the gang; None if the record has the same `PendingKey` already.

    `is_head` starts the starvation bound, after which the gang gets a backfill reservation.
    """
    blocked_since = record.blocked_since or (now if is_head else None)
    is_preempting = _stays_preempting(record, pending)
    if is_preempting and record.pending is not None:
        pending = replace(pending, preempting=record.pending.preempting)
    if not says_otherwise(record, pending):
        if blocked_since == record.blocked_since:
            return None
        return change_by(record, Cause.BLOCKED_AT_HEAD, now, blocked_since=blocked_since)
    return change_by(
        record,
        Cause.BLOCKED,
        now,
        event_reason=pending.reason,
        note=pending.message,
        conditions=after_block(record.conditions, pending, now),
        pending=pending,
        blocked_since=blocked_since,
        is_preempting=is_preempting,
        **ageing.waiting(record, pending, now).fields,
    )


@at_latest_time
def begin_preempting(record: Record, pending: Pending, now: datetime, *, is_head: bool = False) -> Change:
    """Notes that gangs are preempted for the gang: until it is dispatched, it goes before all others."""
    return change_by(
        record,
        Cause.PREEMPTING,
        now,
        event_reason=pending.reason,
        note=pending.message,
        conditions=after_block(record.conditions, pending, now),
        pending=pending,
        blocked_since=record.blocked_since or (now if is_head else None),
        is_preempting=True,
        **ageing.waiting(record, pending, now).fields,
    )


@at_latest_time
def note_not_evaluated(record: Record, pending: Pending, now: datetime) -> Change | None:
    """Notes that a StrictFIFO queue stopped before the gang; None if the record says so already."""
    if is_known_not_evaluated(pending_key(record), pending):
        return None
    return change_by(
        record,
        Cause.NOT_EVALUATED,
        now,
        event_reason=pending.reason,
        note=pending.message,
        pending=pending,
        is_preempting=False,
        **ageing.waiting(record, pending, now).fields,
    )


@at_latest_time
def await_approvals(
    record: Record, pending: Pending, now: datetime, *, is_authors_own: bool = False
) -> Change:
    """Notes which approvals the gang lacks: from now on it takes part in no cycle.

    The gang loses two grants of its queue: its starvation bound starts anew, and it has no claim any more on the
    capacity of gangs that were preempted for it. Its age stands still while it lacks one of its author's own.
    """
    if is_authors_own:
        age = ageing.kept_back(record, now)
    elif record.awaits_approval:
        age = ageing.let_go(record, now)
    else:
        age = ageing.waiting(record, pending, now)
    return change_by(
        record,
        Cause.AWAITING_APPROVAL,
        now,
        event_reason=pending.reason,
        note=pending.message,
        pending=pending,
        blocked_since=None,
        is_preempting=False,
        **age.fields,
    )


@at_latest_time
def approve(record: Record, now: datetime) -> Change:
    """Notes that the gang has all approvals: the next cycle evaluates it."""
    age = ageing.let_go(record, now)
    return change_by(
        record, Cause.APPROVED, now, note=ageing.sentence(record, age), pending=None, **age.fields
    )


@at_latest_time
def warn(record: Record, warnings: Sequence[str], now: datetime) -> Change | None:
    """Notes unknown fields of wrapped objects, each with its object; None if the record says the same already."""
    message = in_short(warnings)
    if message == noted_warning(record, ConditionType.UNKNOWN_FIELDS):
        return None
    warned = ConditionType.UNKNOWN_FIELDS
    conditions = with_true(record.conditions, warned, now, words.API_SERVER_WARNED, message)
    return change_by(record, Cause.WARNED, now, note=message, conditions=conditions)


@at_latest_time
def reprioritise(
    record: Record,
    priority: int,
    slope: float,
    now: datetime,
    cut: str = "",
    unknown_class: str = "",
    *,
    never_preempts: bool = False,
) -> Change:
    """Changes priority and slope, and whether the priority class says that the gang preempts no other.

    `cut` says how the ceiling of the namespace lowered them, `unknown_class` that the priority class does not exist;
    each is empty if that is not so.
    """
    note = f"priority {record.priority} → {priority}, slope {record.priority_slope:g} → {slope:g}"
    if never_preempts != record.class_never_preempts:
        note += ", preempts no gang" if never_preempts else ", may preempt"
    why = "; ".join(filter(None, (cut, unknown_class)))
    return change_by(
        record,
        Cause.REPRIORITISED,
        now,
        event_reason=words.PRIORITY_CAPPED if cut else "",
        note=one_line(f"{note}: {why}") if why else note,
        conditions=with_unknown_class(record.conditions, unknown_class, now),
        priority=priority,
        priority_slope=slope,
        class_never_preempts=never_preempts,
    )


@at_latest_time
def redirect(record: Record, requirements: ClusterRequirements, now: datetime) -> Change:
    """Changes the cluster requirements for later dispatches; a running gang stays where it is."""
    note = f"selector {_in_words(record.requirements.selector)} → {_in_words(requirements.selector)}"
    if requirements.prefers != record.requirements.prefers:
        note += f", preference {_in_words(record.requirements.prefers)} → {_in_words(requirements.prefers)}"
    age = ageing.changed_by_author(record, now)
    return change_by(
        record,
        Cause.REDIRECTED,
        now,
        note=one_line("; ".join(filter(None, (note, ageing.sentence(record, age))))),
        requirements=requirements,
        **age.fields,
    )


def _in_words(selector: Selector) -> str:
    return str(selector) or "any"


@at_latest_time
def move(record: Record, queues: tuple[str, ...], now: datetime) -> Change:
    """Moves the gang to other queues: its own, then one in each of MCAD's trees.

    What it was granted in the former queues does not go with it: the start of its starvation bound, and the capacity of
    gangs that were preempted for it. Nor does the time for which it waited for a queue that would never take it.
    """
    age = ageing.changed_by_author(record, now)
    note = f"queue {', '.join(record.leaves)} → {', '.join(queues)}"
    pending = None if record.pending is None else replace(record.pending, preempting=())
    return change_by(
        record,
        Cause.MOVED,
        now,
        note=one_line("; ".join(filter(None, (note, ageing.sentence(record, age))))),
        queue=queues[0],
        more_queues=queues[1:],
        pending=pending,
        blocked_since=None,
        is_preempting=False,
        **age.fields,
    )


CHOOSING: Final = frozenset({Phase.QUEUED, Phase.SUSPENDED, Phase.DISPATCHING, *ACTIVE})
"""Phases in which other notifications are followed: there is more to come."""

CHOSEN_EVERY: Final = timedelta(minutes=1)
"""The pause between two changes of a gang that only choose other notifications: users may patch in a loop."""


@at_latest_time
def choose_notifications(record: Record, chosen: str, now: datetime, problems: Sequence[str] = ()) -> Change:
    """Changes which notifications its annotation, or that of its namespace, chooses; `problems` are left out."""
    note = f"notifications {record.notifications or 'none'} → {chosen or 'none'}"
    return change_by(
        record,
        Cause.NOTIFICATIONS_CHANGED,
        now,
        note=one_line("; ".join((note, *problems))),
        notifications=chosen,
    )


def takes_choice_along(change: Change) -> bool:
    """True if targets may be told of the change by a choice of notifications that waits for its turn."""
    before = change.before
    return before is not None and before.phase in CHOOSING and change.after.phase is not before.phase


def with_choice(change: Change, chosen: Choices | None) -> Change:
    """The change, if it is to take a choice along, with the latest one, by which targets are told of it.

    So a choice that waits for its turn (`CHOSEN_EVERY`) is not lost when the gang starts, leaves or ends. Its
    event names what cannot be read of the choice, as that of `choose_notifications` does.
    """
    after = change.after
    if chosen is None or not takes_choice_along(change) or str(chosen) == after.notifications:
        return change
    told = change.events[-1]
    told = replace(told, message=one_line("; ".join(filter(None, (told.message, *chosen.problems)))))
    return replace(
        change, after=replace(after, notifications=str(chosen)), events=(*change.events[:-1], told)
    )


@at_latest_time
def dispatch(
    record: Record, cluster: str, now: datetime, why: str = "", assignment: Assignment = ASSIGNED_NOWHERE
) -> Change:
    """Dispatches the gang to `cluster`, which is charged with its demand from now on; `why` explains the choice.

    `assignment` is where its pods have places there; the event names the pools that it trusts.
    The change lists no objects: `spec_hash` names what will be created, item by item.
    """
    number = record.attempts + 1
    if trusted := assignment.trusted:
        why = "; ".join(filter(None, (f"trusts {in_words(trusted)} in cluster {cluster} to come", why)))
    asked = assignment.provisioning
    return begin_attempt(
        record,
        Cause.DISPATCHED,
        cluster,
        number,
        record.conditions,
        now,
        why,
        assignment=replace(assignment, provisioning=None) if asked else assignment,
        provisioning=Provisioning(asked) if asked else None,
    )


def begin_attempt(
    record: Record,
    cause: Cause,
    cluster: str,
    number: int,
    conditions: tuple[Condition, ...],
    now: datetime,
    why: str = "",
    *,
    assignment: Assignment = ASSIGNED_NOWHERE,
    provisioning: Provisioning | None = None,
) -> Change:
    """Starts attempt `number` in `cluster`; `provisioning` is its request for capacity, if it needs one.

    From now on, nothing is said of a pod that failed in an earlier attempt.
    """
    conditions = with_true(conditions, ConditionType.HEAD_OF_LINE, now, words.FRONT_OF_QUEUE)
    conditions = with_failure(conditions, None)
    if record.condition(ConditionType.BACKOFF):
        conditions = with_false(conditions, ConditionType.BACKOFF, now)
    return change_by(
        record,
        cause,
        now,
        note=why,
        conditions=conditions,
        pending=None,
        blocked_since=None,
        **ageing.dispatched(record, now).fields,
        eligible_at=None,
        reason="",
        message="",
        attempts=number,
        provisioning_failures=failures_before(record),
        attempt=Attempt(
            number,
            cluster,
            now,
            objects=_carried(record.attempt, cluster),
            assignment=assignment,
            provisioning=provisioning,
        ),
    )


def _carried(earlier: Attempt | None, cluster: str) -> tuple[ObjectRef, ...]:
    """The objects that an earlier attempt in the same cluster finished: they are not created again."""
    if earlier is None or earlier.cluster != cluster:
        return ()
    return tuple(ref for ref in earlier.objects if ref.done)


@at_latest_time
def suspend(record: Record, now: datetime, finished: Collection[int] = ()) -> Change:
    """Suspends a queued gang at once, another one after the removal of its objects, but for the `finished` items.

    From now on its age stands still.
    """
    stopped_at = ageing.kept_back(record, now).age_stopped_at
    if record.phase is Phase.QUEUED:
        return change_by(
            record,
            Cause.SUSPENDED,
            now,
            conditions=after_suspend(record.conditions, now),
            pending=None,
            blocked_since=None,
            eligible_at=None,
            age_stopped_at=stopped_at,
        )
    return change_by(
        record,
        Cause.SUSPENDED,
        now,
        conditions=after_requeue(record.conditions, now),
        unhealthy=None,
        attempt=with_finished(live_attempt(record), finished),
        age_stopped_at=stopped_at,
    )


@at_latest_time
def resume(record: Record, now: datetime) -> Change:
    """Queues a suspended gang again, with the age that it had when it was suspended."""
    age = ageing.let_go(record, now)
    conditions = with_false(record.conditions, ConditionType.SUSPENDED, now)
    conditions = with_true(conditions, ConditionType.QUEUEING, now, words.AWAITING_HEAD_OF_LINE)
    note = ageing.sentence(record, age)
    return change_by(record, Cause.RESUMED, now, note=note, conditions=conditions, **age.fields)
