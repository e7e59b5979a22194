"""Steps of a gang that gives its capacity back: removal, the loss of its cluster, deletion."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType
from dispatcher.api.spec_errors import one_line
from dispatcher.core.lifecycle import ageing
from dispatcher.core.lifecycle.condition_updates import after_requeue, after_suspend, with_true
from dispatcher.core.lifecycle.record_change import (
    EvictionReason,
    at_latest_time,
    change_by,
    evicted,
    live_attempt,
    with_finished,
)
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.pending_reasons import CREATION_POSTPONED
from dispatcher.core.model.preemption import Reason
from dispatcher.core.model.record import Attempt, Change, Pending, Phase, Record

YIELD: Final = timedelta(seconds=1)
"""The least pause after an eviction, in which a cycle can place other gangs."""

_PREEMPTED: Final = frozenset(Reason)


@at_latest_time
def removed(record: Record, now: datetime, kept_until: datetime | None = None) -> Change:
    """The objects of the attempt are confirmed gone, but for those kept for their logs until `kept_until`."""
    match record.phase:
        case Phase.FAILING:
            because = ConditionType.FAILED, record.reason, record.message
            return _removed(record, "failed", because, now, note=record.message, kept_until=kept_until)
        case Phase.SUSPENDING:
            conditions = after_suspend(record.conditions, now)
            attempt = replace(live_attempt(record), ended_at=now, outcome="suspended")
            return change_by(
                record, Cause.REMOVED, now, conditions=conditions, attempt=attempt, eligible_at=None
            )
        case _ if record.reason:
            # Other gangs get one cycle first: this gang is older and would take the same place again at once.
            eligible_at = max(record.eligible_at or now, now + YIELD)
            candidate = record.condition(ConditionType.PREEMPT_CANDIDATE)
            said = candidate.message if candidate else record.message
            because = ConditionType.BACKOFF, words.PREEMPTION_TRIGGERED, said
            pending = _back(record, words.PREEMPTION_TRIGGERED)
            outcome = "preempted" if record.reason in _PREEMPTED else "evicted"
            age = _age_after_pause(record, now).fields
            return _removed(record, outcome, because, now, pending=pending, eligible_at=eligible_at, **age)
        case _:
            because = ConditionType.BACKOFF, words.APPWRAPPER_NOT_RUNNABLE, record.message
            pending = record.pending or _back(record, CREATION_POSTPONED)
            age = _age_after_pause(record, now).fields
            return _removed(record, "postponed", because, now, pending=pending, **age)


def _age_after_pause(record: Record, now: datetime) -> ageing.Ageing:
    """The age without the pause that follows, unless the gang waits only for capacity that no cluster provides yet."""
    is_for_capacity = record.pending is not None and record.pending.reason == words.PROVISIONING_FAILED
    if is_for_capacity or record.reason in words.NOT_BY_THE_GANG:
        return ageing.paused(record, now, now)
    return ageing.paused(record, record.eligible_at or now, now)


def _removed(
    record: Record,
    outcome: str,
    because: tuple[ConditionType, str, str],
    now: datetime,
    **fields: Any,  # noqa: ANN401  # of `_step`, or Record's own, by keyword
) -> Change:
    """Ends the attempt; `because` is the type, reason and message of the condition that says why."""
    attempt = replace(live_attempt(record), ended_at=now, outcome=outcome)
    type_, reason, message = because
    conditions = with_true(record.conditions, type_, now, reason, message)
    return change_by(record, Cause.REMOVED, now, conditions=conditions, attempt=attempt, **fields)


def _back(record: Record, reason: str) -> Pending:
    return Pending(reason, record.message, cluster=live_attempt(record).cluster)


@at_latest_time
def abandon(record: Record, message: str, now: datetime) -> Change:
    """Ends an attempt whose cluster is lost; its objects are removed as orphans if the cluster returns."""
    message = one_line(message)
    attempt = _lost(record, now)
    told: dict[str, Any] = {"event_reason": words.CLUSTER_LOST, "note": message, "attempt": attempt}
    if record.phase is Phase.DELETING:
        return change_by(record, Cause.ABANDONED, now, **told)
    if record.phase is Phase.SUSPENDING:
        conditions = after_suspend(record.conditions, now)
        return change_by(record, Cause.ABANDONED, now, conditions=conditions, eligible_at=None, **told)
    gone = after_requeue(evicted(record, EvictionReason(words.CLUSTER_LOST, message), now), now)
    return change_by(
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


@at_latest_time
def lose(record: Record, message: str, now: datetime) -> Change:
    """Fails the gang because its cluster is lost; its objects are removed as orphans if the cluster returns."""
    message = one_line(message)
    attempt = _lost(record, now)
    return change_by(
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
    """The ended attempt, without done items: the next cluster creates all objects again."""
    return replace(with_finished(live_attempt(record), ()), ended_at=now, outcome="lost")


@at_latest_time
def expire(record: Record, now: datetime) -> Change:
    """The objects that were kept after the end are removed."""
    return change_by(record, Cause.EXPIRED, now, kept_until=None)


@at_latest_time
def delete(record: Record, now: datetime) -> Change:
    """The AppWrapper was deleted; a live attempt stays charged until `release`."""
    return change_by(record, Cause.DELETED, now, pending=None, unhealthy=None, kept_until=None)


@at_latest_time
def release(record: Record, now: datetime) -> Change:
    """No cluster has anything of the AppWrapper."""
    attempt = replace(live_attempt(record), ended_at=now, outcome="deleted")
    return change_by(record, Cause.RELEASED, now, attempt=attempt)
