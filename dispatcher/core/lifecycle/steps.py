"""The life of an AppWrapper: the only code that changes a record, once `core.lifecycle.first_steps` has made it.

`core.lifecycle.transitions` is the whole machine. The functions below each make one step of it: they take the record as
it was, return a `Change` (record after, history made) and raise `IllegalTransition` for a step the table does
not have. `core.lifecycle.decision` says which step is due. Nothing here does anything: no clock, no I/O; `now` is an
argument.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar, cast

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType
from dispatcher.api.selector import Selector
from dispatcher.api.spec_errors import one_line
from dispatcher.core.lifecycle.condition_updates import blocked, gone_back, held_back, with_false, with_true
from dispatcher.core.lifecycle.transitions import TARGETS, Cause
from dispatcher.core.model.record import (
    Attempt,
    Change,
    Condition,
    Event,
    NotedIssue,
    ObjectRef,
    Pending,
    Phase,
    Record,
)
from dispatcher.core.model.requirements import ClusterRequirements
from dispatcher.errors import IllegalTransition

CREATION_POSTPONED: Final = "CreationPostponed"
"""Why one waits that was dispatched and could not be created."""

YIELD: Final = timedelta(seconds=1)
"""How long one that was taken from its cluster lets the others go first, whatever pause was asked for."""


class PendingKey(NamedTuple):
    """What an AppWrapper's status says of its waiting, as far as a change of it is news; all empty if nothing.

    Amounts are not in it: they change with every neighbour. `reservation` is what is said of the capacity that is kept
    for it, which is the same for as long as it is kept there.
    """

    reason: str = ""
    resource: str = ""
    cluster: str = ""
    is_backoff: bool = False
    reservation: str = ""


def told(record: Record) -> PendingKey:
    """What was told last."""
    backoff, pending = record.condition(ConditionType.BACKOFF), record.pending
    is_backoff = backoff is not None and backoff.status
    if pending is None:
        return PendingKey(is_backoff=is_backoff)
    return PendingKey(pending.reason, pending.resource, pending.cluster, is_backoff, pending.reservation)


def pending_key_of(pending: Pending) -> PendingKey:
    """What `block` tells."""
    return PendingKey(
        pending.reason, pending.resource, pending.cluster, is_backoff=True, reservation=pending.reservation
    )


P = ParamSpec("P")
Outcome = TypeVar("Outcome")


def _onwards(
    step: Callable[Concatenate[Record, P], Outcome],
) -> Callable[Concatenate[Record, P], Outcome]:
    """Have a step take the record's latest time for `now` if that is later: a record's times never run backwards.

    They would if a new leader's clock is behind the former one's, and what is over before it began cannot be archived.
    """
    place = list(inspect.signature(step).parameters).index("now") - 1
    make = cast("Callable[..., Outcome]", step)

    @functools.wraps(step)
    def onwards(record: Record, *args: P.args, **kwargs: P.kwargs) -> Outcome:
        given: list[Any] = list(args)
        named: dict[str, Any] = dict(kwargs)
        holder, key = (given, place) if place < len(given) else (named, "now")
        holder[key] = max(holder[key], latest(record))  # type: ignore[index]  # a list by number, or a dict by name
        return make(record, *given, **named)

    return cast("Callable[Concatenate[Record, P], Outcome]", onwards)


def latest(record: Record) -> datetime:
    """The latest time at which the record says that something happened.

    That is the time of its last event, unless an older release wrote the record.
    """
    attempt, unhealthy = record.attempt, record.unhealthy
    moments = [
        record.last_event_at,
        record.phase_since,
        record.blocked_since,
        unhealthy.since if unhealthy else None,
        *(condition.updated for condition in record.conditions),
    ]
    if attempt:
        moments += (attempt.decided_at, attempt.created_at, attempt.started_at, attempt.ended_at)
    return max(filter(None, moments))


# --- the steps ---------------------------------------------------------------------------------------


@_onwards
def block(record: Record, pending: Pending, now: datetime, *, is_head: bool = False) -> Change | None:
    """Note that a cycle evaluated it and it must wait; None if that is known already.

    Only a new reason, resource, cluster or reservation counts as news: amounts that change with every neighbour do not.
    `is_head` starts the time after which it is protected from those who pass it by.
    """
    blocked_since = record.blocked_since or (now if is_head else None)
    if told(record) == pending_key_of(pending):
        if blocked_since == record.blocked_since:
            return None
        return _step(record, Cause.BECAME_HEAD, now, blocked_since=blocked_since)
    return _step(
        record,
        Cause.BLOCKED,
        now,
        event_reason=pending.reason,
        note=pending.message,
        conditions=blocked(record.conditions, pending.mcad_message, now),
        pending=pending,
        blocked_since=blocked_since,
    )


@_onwards
def note_not_evaluated(record: Record, pending: Pending, now: datetime) -> Change | None:
    """Note that it was not looked at, because one before it waits; None if that is known already."""
    if told(record).reason == pending.reason:
        return None
    return _step(
        record, Cause.NOT_EVALUATED, now, event_reason=pending.reason, note=pending.message, pending=pending
    )


@_onwards
def reprioritise(record: Record, priority: int, slope: float, now: datetime, cut: str = "") -> Change:
    """Move it in the queue; `cut` says what of its wish does not count."""
    note = f"priority {record.priority} → {priority}, slope {record.priority_slope:g} → {slope:g}"
    return _step(
        record,
        Cause.REPRIORITISED,
        now,
        event_reason=words.PRIORITY_CAPPED if cut else "",
        note=f"{note}: {cut}" if cut else note,
        priority=priority,
        priority_slope=slope,
    )


@_onwards
def redirect(record: Record, requirements: ClusterRequirements, now: datetime) -> Change:
    """Have it go to other clusters from now on; where it is, if it is anywhere, it stays."""
    note = f"selector {_in_words(record.requirements.selector)} → {_in_words(requirements.selector)}"
    if requirements.prefers != record.requirements.prefers:
        note += f", preference {_in_words(record.requirements.prefers)} → {_in_words(requirements.prefers)}"
    return _step(record, Cause.REDIRECTED, now, note=one_line(note), requirements=requirements)


def _in_words(selector: Selector) -> str:
    return str(selector) or "any"


@_onwards
def dispatch(record: Record, cluster: str, now: datetime, why: str = "") -> Change:
    """Commit it to `cluster`, and say why to no other: from here on its demand is charged there.

    What is created needs no list of its own here: it is what `spec_hash` names, item by item.
    """
    return _commit_to(record, Cause.DISPATCHED, cluster, record.attempts + 1, record.conditions, now, why)


def _commit_to(
    record: Record,
    cause: Cause,
    cluster: str,
    number: int,
    conditions: tuple[Condition, ...],
    now: datetime,
    why: str = "",
) -> Change:
    conditions = with_true(conditions, ConditionType.HEAD_OF_LINE, now, words.FRONT_OF_QUEUE)
    if record.condition(ConditionType.BACKOFF):
        conditions = with_false(conditions, ConditionType.BACKOFF, now)
    return _step(
        record,
        cause,
        now,
        note=why,
        conditions=conditions,
        pending=None,
        blocked_since=None,
        eligible_at=None,
        reason="",
        message="",
        attempts=number,
        attempt=Attempt(number, cluster, now, objects=_carried(record.attempt, cluster)),
    )


@_onwards
def end_missed_attempt(record: Record, message: str, now: datetime) -> Change:
    """End an attempt that was over already when the database was restored, nobody knows how."""
    attempt = replace(_live_attempt(record), ended_at=now, outcome="missed")
    return _step(
        record,
        Cause.FOUND_OVER,
        now,
        note=message,
        conditions=gone_back(record.conditions, now),
        reason="",
        message="",
        unhealthy=None,
        eligible_at=None,
        attempt=attempt,
    )


@_onwards
def take_over(record: Record, cluster: str, number: int, now: datetime) -> Change:
    """Go on with an attempt that a restored database did not know of: what exists is kept, what is missing is made."""
    if number <= record.attempts:
        raise IllegalTransition(f"{record.uid}: attempt {number} is not later than {record.attempts}")
    conditions = record.conditions
    if record.phase is Phase.SUSPENDED:
        conditions = with_false(conditions, ConditionType.SUSPENDED, now)
        conditions = with_true(conditions, ConditionType.QUEUEING, now, words.AWAITING_HEAD_OF_LINE)
    return _commit_to(record, Cause.FOUND_RUNNING, cluster, number, conditions, now)


@_onwards
def recall_completed(record: Record, kept_until: datetime | None, now: datetime) -> Change:
    """Believe a status that says Completed, which the database said, too, before it was restored."""
    conditions = with_true(record.conditions, ConditionType.COMPLETED, now, words.PODS_COMPLETED)
    return _recall(record, Cause.FOUND_COMPLETED, "completed", conditions, kept_until, now)


@_onwards
def recall_failed(
    record: Record, reason: str, message: str, kept_until: datetime | None, now: datetime
) -> Change:
    """Believe a status that says Failed, which the database said, too, before it was restored."""
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
    """End what a restored database takes to be under way; of what it believes to be nowhere, nothing is kept."""
    attempt, is_kept = record.attempt, record.holds_capacity
    return _step(
        record,
        cause,
        now,
        note=because[1],
        conditions=with_false(conditions, ConditionType.SUSPENDED, now),
        reason=because[0],
        message=because[1],
        pending=None,
        blocked_since=None,
        eligible_at=None,
        unhealthy=None,
        attempt=replace(attempt, ended_at=now, outcome=outcome) if attempt and is_kept else attempt,
        kept_until=kept_until if is_kept else None,
    )


def _carried(earlier: Attempt | None, cluster: str) -> tuple[ObjectRef, ...]:
    """What an earlier attempt in that cluster finished and left: it is not done again."""
    if earlier is None or earlier.cluster != cluster:
        return ()
    return tuple(ref for ref in earlier.objects if ref.done)


@_onwards
def created(record: Record, objects: tuple[ObjectRef, ...], now: datetime) -> Change:
    """Every wrapped object exists; `objects` carry their uids."""
    conditions = with_true(record.conditions, ConditionType.DISPATCHED, now, words.APPWRAPPER_RUNNABLE)
    attempt = replace(_live_attempt(record), objects=objects, created_at=now)
    return _step(record, Cause.CREATED, now, conditions=conditions, attempt=attempt)


@_onwards
def mark_running(record: Record, now: datetime) -> Change:
    """As many of its pods run as it needs."""
    conditions = with_true(record.conditions, ConditionType.RUNNING, now, words.PODS_RUNNING)
    attempt = replace(_live_attempt(record), started_at=now)
    return _step(record, Cause.PODS_RUNNING, now, conditions=conditions, attempt=attempt)


@_onwards
def note_health_issue(record: Record, reason: str, message: str, now: datetime) -> Change:
    """Note that something is wrong with it: from now on, unless only what is said of it has changed."""
    known = record.unhealthy
    since = known.since if known and known.reason == reason else now
    noted = NotedIssue(reason, one_line(message), since)
    return _step(record, Cause.UNHEALTHY, now, event_reason=reason, note=noted.message, unhealthy=noted)


@_onwards
def recover(record: Record, now: datetime) -> Change:
    """What was wrong with it is no longer."""
    return _step(record, Cause.RECOVERED, now, unhealthy=None)


@_onwards
def note_done(record: Record, done: Collection[int], now: datetime) -> Change:
    """Remember what is done, though it shows nowhere yet: the objects that say so may be gone a moment later."""
    return _step(record, Cause.ITEMS_DONE, now, attempt=_with_done(_live_attempt(record), done))


@_onwards
def complete_some(record: Record, done: Collection[int], now: datetime) -> Change:
    """Some of its wrapped objects (`done`, by item) are done."""
    conditions = with_true(
        record.conditions, ConditionType.RUNNING_HOLD_COMPLETION, now, words.SOME_ITEMS_COMPLETED
    )
    attempt = _with_done(_live_attempt(record), done)
    return _step(record, Cause.SOME_COMPLETED, now, conditions=conditions, attempt=attempt)


@_onwards
def complete(record: Record, done: Collection[int], kept_until: datetime, now: datetime) -> Change:
    """All that ends is done and no pod lives: what is left of it is kept for a while."""
    conditions = with_true(record.conditions, ConditionType.COMPLETED, now, words.PODS_COMPLETED)
    attempt = replace(_with_done(_live_attempt(record), done), ended_at=now, outcome="completed")
    return _step(
        record,
        Cause.COMPLETED,
        now,
        conditions=conditions,
        attempt=attempt,
        unhealthy=None,
        kept_until=kept_until,
    )


@dataclass(frozen=True, slots=True)
class EvictionReason:
    """Why an attempt is over: `message` is MCAD's sentence where MCAD had one, `detail` what we know beyond it."""

    reason: str
    message: str
    detail: str = ""

    @property
    def whole(self) -> str:
        """All that is known, in one line."""
        return one_line(self.message + self.detail)


@_onwards
def evict(
    record: Record,
    eviction: EvictionReason,
    eligible_at: datetime,
    requeuing_seconds: int,
    now: datetime,
    finished: Collection[int] = (),
) -> Change:
    """Take it from its cluster, to be queued again by its original age; counted.

    `requeuing_seconds` is how long it may be short of pods the next time; `finished` are the items that the next
    attempt need not do again. What is no fault of its own does not count.
    """
    counts = eviction.reason != words.CLUSTER_DRAINING
    return _step(
        record,
        Cause.EVICTED,
        now,
        event_reason=eviction.reason,
        note=eviction.whole,
        conditions=gone_back(_evicted(record, eviction, now), now),
        reason=eviction.reason,
        message=eviction.whole,
        unhealthy=None,
        requeuings=record.requeuings + counts,
        retries=record.retries + (counts and eviction.reason not in words.REASONS_OF_MCAD),
        requeuing_seconds=requeuing_seconds,
        eligible_at=eligible_at,
        attempt=_finished(_live_attempt(record), finished),
    )


@_onwards
def fail(record: Record, eviction: EvictionReason, now: datetime) -> Change:
    """It failed while it was dispatched: what takes capacity is removed, then it has failed for good."""
    conditions = record.conditions
    if eviction.reason not in _FAILED_BY_ITSELF:
        conditions = _evicted(record, eviction, now)
    return _step(
        record,
        Cause.RUN_FAILED,
        now,
        event_reason=eviction.reason,
        note=eviction.whole,
        conditions=conditions,
        reason=eviction.reason,
        message=eviction.whole,
        unhealthy=None,
    )


_FAILED_BY_ITSELF: Final = frozenset({words.FAILED_COMPONENT, words.MISSING_COMPONENT})
"""Reasons of failing for which nobody has to take it from its cluster."""


@_onwards
def suspend(record: Record, now: datetime, finished: Collection[int] = ()) -> Change:
    """Its user holds it back: at once if nothing of it exists, else once that is removed, but for `finished`."""
    if record.phase is Phase.QUEUED:
        return _step(
            record,
            Cause.SUSPENDED,
            now,
            conditions=held_back(record.conditions, now),
            pending=None,
            blocked_since=None,
            eligible_at=None,
        )
    return _step(
        record,
        Cause.SUSPENDED,
        now,
        conditions=gone_back(record.conditions, now),
        unhealthy=None,
        attempt=_finished(_live_attempt(record), finished),
    )


@_onwards
def resume(record: Record, now: datetime) -> Change:
    """Its user releases it: it stands in the queue where its age puts it."""
    conditions = with_false(record.conditions, ConditionType.SUSPENDED, now)
    conditions = with_true(conditions, ConditionType.QUEUEING, now, words.AWAITING_HEAD_OF_LINE)
    return _step(record, Cause.RESUMED, now, conditions=conditions)


@_onwards
def refuse_creation(record: Record, objects: tuple[ObjectRef, ...], message: str, now: datetime) -> Change:
    """A wrapped object can never be created: what exists of the attempt (`objects`) is to be removed."""
    message = one_line(message)
    attempt = replace(_live_attempt(record), objects=objects)
    return _step(
        record,
        Cause.CREATION_REFUSED,
        now,
        note=message,
        reason=words.ITEM_CREATION_FAILURE,
        message=message,
        attempt=attempt,
    )


@_onwards
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


@_onwards
def rule_out(
    record: Record,
    objects: tuple[ObjectRef, ...],
    requirements: ClusterRequirements,
    message: str,
    now: datetime,
) -> Change:
    """One of its names is taken in that cluster: remove what exists, and go elsewhere, as `requirements` has it now."""
    change = postpone_creation(record, objects, message, now, now)
    return replace(change, after=replace(change.after, requirements=requirements))


@_onwards
def withdraw(record: Record, message: str, eligible_at: datetime, now: datetime) -> Change:
    """Its cluster does not answer, and was asked for nothing yet: nothing is there that would have to be removed."""
    message = one_line(message)
    attempt = replace(_live_attempt(record), ended_at=now, outcome="withdrawn")
    because = words.APPWRAPPER_NOT_RUNNABLE, message
    return _step(
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


@_onwards
def removed(record: Record, now: datetime, kept_until: datetime | None = None) -> Change:
    """What an attempt had created is confirmed gone, but for what is kept for its logs until `kept_until`."""
    match record.phase:
        case Phase.FAILING:
            because = ConditionType.FAILED, record.reason, record.message
            return _removed(record, "failed", because, now, note=record.message, kept_until=kept_until)
        case Phase.SUSPENDING:
            conditions = held_back(record.conditions, now)
            attempt = replace(_live_attempt(record), ended_at=now, outcome="suspended")
            return _step(record, Cause.REMOVED, now, conditions=conditions, attempt=attempt, eligible_at=None)
        case _ if record.reason:
            # Others have one cycle first: it is older than they, and would take the same place again at once.
            eligible_at = max(record.eligible_at or now, now + YIELD)
            candidate = record.condition(ConditionType.PREEMPT_CANDIDATE)
            said = candidate.message if candidate else record.message
            because = ConditionType.BACKOFF, words.PREEMPTION_TRIGGERED, said
            pending = _back(record, words.PREEMPTION_TRIGGERED)
            return _removed(record, "evicted", because, now, pending=pending, eligible_at=eligible_at)
        case _:
            because = ConditionType.BACKOFF, words.APPWRAPPER_NOT_RUNNABLE, record.message
            return _removed(record, "postponed", because, now, pending=_back(record, CREATION_POSTPONED))


def _removed(
    record: Record,
    outcome: str,
    because: tuple[ConditionType, str, str],
    now: datetime,
    **fields: Any,  # noqa: ANN401  # of `_step`, or Record's own, by keyword
) -> Change:
    """End the attempt, and say by one condition (its type, reason and message) what for."""
    attempt = replace(_live_attempt(record), ended_at=now, outcome=outcome)
    type_, reason, message = because
    conditions = with_true(record.conditions, type_, now, reason, message)
    return _step(record, Cause.REMOVED, now, conditions=conditions, attempt=attempt, **fields)


def _back(record: Record, reason: str) -> Pending:
    return Pending(reason, record.message, cluster=_live_attempt(record).cluster)


@_onwards
def abandon(record: Record, message: str, now: datetime) -> Change:
    """Give up an attempt whose cluster was lost: it may run on there, and is removed once that is back."""
    message = one_line(message)
    attempt = _lost(record, now)
    told: dict[str, Any] = {"event_reason": words.CLUSTER_LOST, "note": message, "attempt": attempt}
    if record.phase is Phase.DELETING:
        return _step(record, Cause.ABANDONED, now, **told)
    if record.phase is Phase.SUSPENDING:
        conditions = held_back(record.conditions, now)
        return _step(record, Cause.ABANDONED, now, conditions=conditions, eligible_at=None, **told)
    gone = gone_back(_evicted(record, EvictionReason(words.CLUSTER_LOST, message), now), now)
    return _step(
        record,
        Cause.ABANDONED,
        now,
        conditions=with_true(gone, ConditionType.BACKOFF, now, words.PREEMPTION_TRIGGERED, message),
        pending=Pending(words.CLUSTER_LOST, message, cluster=attempt.cluster),
        reason=words.CLUSTER_LOST,
        message=message,
        unhealthy=None,
        eligible_at=now + YIELD,
        **told,
    )


@_onwards
def lose(record: Record, message: str, now: datetime) -> Change:
    """Fail with the cluster that was lost; what may run on there is removed once that is back."""
    message = one_line(message)
    attempt = _lost(record, now)
    return _step(
        record,
        Cause.LOST,
        now,
        event_reason=words.CLUSTER_LOST,
        note=message,
        conditions=with_true(record.conditions, ConditionType.FAILED, now, words.CLUSTER_LOST, message),
        reason=words.CLUSTER_LOST,
        message=message,
        unhealthy=None,
        attempt=attempt,
    )


def _lost(record: Record, now: datetime) -> Attempt:
    """Its end; what was done in that cluster is done again elsewhere."""
    return replace(_finished(_live_attempt(record), ()), ended_at=now, outcome="lost")


@_onwards
def expire(record: Record, now: datetime) -> Change:
    """What was kept of it after its end is removed."""
    return _step(record, Cause.EXPIRED, now, kept_until=None)


@_onwards
def delete(record: Record, now: datetime) -> Change:
    """The AppWrapper was deleted; what it holds, it holds until `release`."""
    return _step(record, Cause.DELETED, now, pending=None, unhealthy=None, kept_until=None)


@_onwards
def release(record: Record, now: datetime) -> Change:
    """Nothing of it is left in any cluster."""
    attempt = replace(_live_attempt(record), ended_at=now, outcome="deleted")
    return _step(record, Cause.RELEASED, now, attempt=attempt)


# --- the one place where records change -----------------------------------------------------------

_PODS_RUN: Final = frozenset({Phase.RUNNING, Phase.RUNNING_HOLD_COMPLETION})
"""The phases in which the condition Running may be true; MCAD's other conditions stay true after an end."""


def _step(
    record: Record,
    cause: Cause,
    now: datetime,
    *,
    event_reason: str = "",
    note: str = "",
    **fields: Any,  # noqa: ANN401  # fields are Record's own, by keyword
) -> Change:
    target = TARGETS.get((record.phase, cause))
    if target is None:
        raise IllegalTransition(f"{record.uid}: no transition from {record.phase} by {cause}")
    if target is not record.phase:
        fields["phase_since"] = now
    if target not in _PODS_RUN:
        fields["conditions"] = with_false(
            fields.get("conditions", record.conditions), ConditionType.RUNNING, now
        )
    after = replace(record, phase=target, version=record.version + 1, last_event_at=now, **fields)
    attempt = after.attempt if record.holds_capacity or after.holds_capacity else None
    event = Event(
        at=now,
        cause=cause,
        from_phase=record.phase,
        to_phase=target,
        reason=event_reason,
        message=note,
        cluster=attempt.cluster if attempt else "",
        attempt=attempt.number if attempt else 0,
    )
    return Change(before=record, after=after, events=(event,))


def _live_attempt(record: Record) -> Attempt:
    if record.attempt is None or record.attempt.ended_at is not None:
        raise IllegalTransition(f"{record.uid}: {record.phase} without a live attempt")
    return record.attempt


def _with_done(attempt: Attempt, done: Collection[int]) -> Attempt:
    return replace(
        attempt, objects=tuple(replace(ref, done=ref.done or ref.item in done) for ref in attempt.objects)
    )


def _finished(attempt: Attempt, finished: Collection[int]) -> Attempt:
    return replace(attempt, objects=tuple(replace(ref, done=ref.item in finished) for ref in attempt.objects))


def _evicted(record: Record, eviction: EvictionReason, now: datetime) -> tuple[Condition, ...]:
    message = one_line(eviction.message)
    return with_true(record.conditions, ConditionType.PREEMPT_CANDIDATE, now, eviction.reason, message)
