"""Changes of a dispatched gang: its objects are created, its pods run, it has issues, completes, fails or leaves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType
from dispatcher.api.spec_errors import one_line
from dispatcher.core.lifecycle.growth import growth_of, in_words_of
from dispatcher.core.lifecycle.record_change import (
    EvictionReason,
    after_creation,
    after_requeue,
    at_latest_time,
    change_by,
    evicted,
    in_short,
    live_attempt,
    noted_warning,
    with_failure,
    with_finished,
    with_true,
)
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.gangs.gang import Assignment
from dispatcher.core.model.gangs.growth import GrowthRequest, GrowthTrust, PodsByTemplate, Shrinking
from dispatcher.core.model.records.pending_reasons import CREATION_POSTPONED
from dispatcher.core.model.records.preemption import MOST_REMEMBERED, Reason
from dispatcher.core.model.records.record import (
    MOST_GROWTHS_KEPT,
    Attempt,
    Change,
    Growth,
    NotedIssue,
    ObjectRef,
    Pending,
    Record,
)
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import PODS, Resources

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


@at_latest_time
def mark_running(record: Record, now: datetime) -> Change:
    """As many pods run as the gang needs."""
    conditions = with_true(record.conditions, ConditionType.RUNNING, now, words.PODS_RUNNING)
    attempt = replace(live_attempt(record), started_at=now)
    return change_by(record, Cause.PODS_RUNNING, now, conditions=conditions, attempt=attempt)


@at_latest_time
def note_health_issue(
    record: Record, reason: str, message: str, now: datetime, since: datetime | None = None
) -> Change:
    """Notes a health issue that lasts `since` then; None for as long as the noted one of the same reason, else now."""
    known = record.unhealthy
    if since is None:
        since = known.since if known and known.reason == reason else now
    noted = NotedIssue(reason, one_line(message), since)
    return change_by(record, Cause.UNHEALTHY, now, event_reason=reason, note=noted.message, unhealthy=noted)


@at_latest_time
def recover(record: Record, now: datetime) -> Change:
    """The health issue is over."""
    return change_by(record, Cause.RECOVERED, now, unhealthy=None)


@at_latest_time
def note_growth(
    record: Record,
    taken: Resources,
    now: datetime,
    pods: PodsByTemplate | None = None,
    *,
    count: int = 0,
    keeps_trust: bool = False,
) -> Change:
    """Charges the gang for what its pods that count request beyond its demand, from now on.

    `pods` are those beyond its base gang, if it grows by grants. `count` is the number of pods beyond those of the gang
    that its queues are charged with. The pods that it gave up are gone then. If it `keeps_trust`, granted pods still
    wait for potential nodes.
    """
    attempt, demand = live_attempt(record), record.placed_gang.demand
    is_taken = attempt.shrinking is not None and bool(attempt.shrinking.preempted_by)
    trust = attempt.growth_trust if keeps_trust else None
    latest = Growth(now, growth_of(demand, taken), is_taken, pods, trust, count)
    note = in_words_of(demand + {PODS: record.gang.charged[PODS]}, attempt.growth_charge, latest.charge)
    after = replace(attempt, growth=(*attempt.growth, latest)[-MOST_GROWTHS_KEPT:], shrinking=None)
    if has_nodes(attempt, after):
        return change_by(record, Cause.GREW, now, note=_HAS_NODES, attempt=after)
    cause = Cause.SHRANK if latest.charge.fits_in(attempt.growth_charge) else Cause.GREW
    return change_by(record, cause, now, note=note or _NO_OTHER_GROWTH, attempt=after)


def has_nodes(before: Attempt, after: Attempt) -> bool:
    """True if the pods of a growth that trusted in potential nodes have nodes now, so that it trusts no more."""
    if before.growth_trust is None or after.growth_trust is not None or before.shrinking is not None:
        return False
    return before.grown == after.grown


def pools_that_came(change: Change) -> tuple[str, ...]:
    """The potential pools whose nodes have come, as the change says: all pods of a gang or of its growth have nodes."""
    before, after = change.before.attempt if change.before else None, change.after.attempt
    if before is None or after is None:
        return ()
    if before.started_at is None and after.started_at is not None:
        return tuple(pool for pool, _ in after.assignment.trusted)
    trust = before.growth_trust
    return tuple(pool for pool, _ in trust.pools) if trust and has_nodes(before, after) else ()


_NO_OTHER_GROWTH: Final = "the pods that it gave up are gone; it holds as much as before"
_HAS_NODES: Final = "all pods of its growth have nodes"


@at_latest_time
def grant(
    record: Record,
    amounts: Resources,
    left: GrowthRequest | None,
    note: str,
    now: datetime,
    pods: PodsByTemplate | None = None,
    trusted: Collection[str] = (),
    *,
    count: int = 0,
) -> Change:
    """Charges the gang for `amounts` beyond its demand from now on, before the `pods` start that request them.

    They are the whole growth, not the part that is new, and so is `count`, as for `note_growth`. `left` is the growth
    that still waits for a grant, `trusted` are the potential nodes that the new pods are to come to.
    """
    attempt = live_attempt(record)
    trust = attempt.growth_trust
    if trusted:
        known = trust.nodes if trust else ()
        trust = GrowthTrust(now, tuple(sorted({*known, *trusted})))
    growth = (*attempt.growth, Growth(now, amounts, pods=pods, trust=trust, count=count))[-MOST_GROWTHS_KEPT:]
    granted = replace(attempt, growth=growth, growth_request=_noted(attempt, left))
    return change_by(
        record,
        Cause.GRANTED,
        now,
        event_reason=left.reason if left else "",
        note=one_line(note),
        attempt=granted,
    )


@at_latest_time
def note_growth_request(record: Record, request: GrowthRequest | None, now: datetime) -> Change:
    """Notes the growth that waits for a grant, and what for; None if no growth waits any more."""
    attempt = live_attempt(record)
    noted = _noted(attempt, request)
    return change_by(
        record,
        Cause.GROWTH_WAITS,
        now,
        event_reason=noted.reason if noted else "",
        note=noted.message if noted else "no pod waits for a grant any more",
        attempt=replace(attempt, growth_request=noted),
    )


def _noted(attempt: Attempt, request: GrowthRequest | None) -> GrowthRequest | None:
    """The request in one line; it waits since the first request without a pause between them."""
    known = attempt.growth_request
    if request is None:
        return None
    return replace(request, message=one_line(request.message), since=known.since if known else request.since)


@at_latest_time
def note_done(record: Record, done: Collection[int], now: datetime) -> Change:
    """Notes the `done` items, before the pods are listed: the objects may be gone a moment later."""
    return change_by(record, Cause.ITEMS_DONE, now, attempt=_with_done(live_attempt(record), done))


@at_latest_time
def complete_some(record: Record, done: Collection[int], now: datetime) -> Change:
    """Some wrapped objects (`done`, by item) are done."""
    conditions = with_true(
        record.conditions, ConditionType.RUNNING_HOLD_COMPLETION, now, words.SOME_ITEMS_COMPLETED
    )
    attempt = _with_done(live_attempt(record), done)
    return change_by(record, Cause.SOME_COMPLETED, now, conditions=conditions, attempt=attempt)


@at_latest_time
def complete(record: Record, done: Collection[int], kept_until: datetime, now: datetime) -> Change:
    """The gang is complete and no pod lives; its objects are kept until `kept_until`."""
    conditions = with_true(record.conditions, ConditionType.COMPLETED, now, words.PODS_COMPLETED)
    attempt = replace(_with_done(live_attempt(record), done), ended_at=now, outcome="completed")
    return change_by(
        record,
        Cause.COMPLETED,
        now,
        conditions=conditions,
        attempt=attempt,
        unhealthy=None,
        kept_until=kept_until,
    )


@at_latest_time
def evict(
    record: Record,
    eviction: EvictionReason,
    eligible_at: datetime,
    requeuing_seconds: int,
    now: datetime,
    finished: Collection[int] = (),
    provisioning_failures: int | None = None,
) -> Change:
    """Evicts the gang: it is queued again with its age, from `eligible_at` on, once its objects are removed.

    `requeuing_seconds` is how long the next attempt may be short of pods. The next attempt does not create the
    `finished` items again. Evictions are counted, but for those that come from the cluster or the queue.
    `provisioning_failures` replaces the count of the record, unless it is None.
    """
    failures = record.provisioning_failures if provisioning_failures is None else provisioning_failures
    counts = eviction.reason not in words.NOT_BY_THE_GANG
    return change_by(
        record,
        Cause.EVICTED,
        now,
        event_reason=eviction.reason,
        note=eviction.full_message,
        termination_message=eviction.termination_message,
        conditions=with_failure(after_requeue(evicted(record, eviction, now), now), eviction.failure),
        reason=eviction.reason,
        message=eviction.full_message,
        unhealthy=None,
        requeuings=record.requeuings + counts,
        retries=record.retries + (counts and eviction.reason not in words.REASONS_OF_MCAD),
        requeuing_seconds=requeuing_seconds,
        eligible_at=eligible_at,
        attempt=with_finished(live_attempt(record), finished),
        provisioning_failures=failures,
    )


@at_latest_time
def preempt(
    record: Record,
    reason: Reason,
    why: str,
    now: datetime,
    preemptor: str,
    finished: Collection[int] = (),
) -> Change:
    """Preempts the gang: once its objects are removed, it is queued again with its original age.

    `preemptor` is the uid of the gang that it is preempted for. A preemption is no eviction, and counts as no
    requeuing. The next attempt does not create the `finished` items again.
    """
    eviction = EvictionReason(reason, why)
    return change_by(
        record,
        Cause.PREEMPTED,
        now,
        event_reason=reason,
        note=eviction.full_message,
        conditions=after_requeue(evicted(record, eviction, now), now),
        reason=reason,
        message=eviction.full_message,
        pending=None,
        unhealthy=None,
        eligible_at=None,
        preempted_at=(*record.preempted_at, now)[-MOST_REMEMBERED:],
        attempt=replace(with_finished(live_attempt(record), finished), preempted_by=preemptor),
    )


@at_latest_time
def give_up(record: Record, shrinking: Shrinking, reason: Reason, why: str, now: datetime) -> Change:
    """Lets the gang give up surplus pods for another gang; it is charged for them until they are gone.

    `shrinking` also has the pods that it gives up already. This is no preemption of the gang, and not counted as one.
    """
    return change_by(
        record,
        Cause.SURPLUS_PREEMPTED,
        now,
        event_reason=reason,
        note=one_line(why),
        attempt=replace(live_attempt(record), shrinking=shrinking),
    )


@at_latest_time
def take_back_growth(record: Record, shrinking: Shrinking, why: str, now: datetime) -> Change:
    """Takes back a growth whose pods got no nodes; the gang is charged for it until the pods are deleted."""
    return change_by(
        record,
        Cause.GROWTH_TAKEN_BACK,
        now,
        event_reason=words.POTENTIAL_NODES_MISSING,
        note=one_line(why),
        attempt=replace(live_attempt(record), shrinking=shrinking),
    )


@at_latest_time
def fail(record: Record, eviction: EvictionReason, now: datetime) -> Change:
    """Fails the gang: the objects that take capacity are removed, then it is Failed for good."""
    conditions = record.conditions
    if eviction.reason not in _FAILED_BY_ITSELF:
        conditions = evicted(record, eviction, now)
    return change_by(
        record,
        Cause.RUN_FAILED,
        now,
        event_reason=eviction.reason,
        note=eviction.full_message,
        termination_message=eviction.termination_message,
        conditions=with_failure(conditions, eviction.failure),
        reason=eviction.reason,
        message=eviction.full_message,
        unhealthy=None,
    )


_FAILED_BY_ITSELF: Final = frozenset({words.FAILED_COMPONENT, words.MISSING_COMPONENT})
"""Reasons of a failure that is no eviction."""


def _with_done(attempt: Attempt, done: Collection[int]) -> Attempt:
    return replace(
        attempt, objects=tuple(replace(ref, done=ref.done or ref.item in done) for ref in attempt.objects)
    )
