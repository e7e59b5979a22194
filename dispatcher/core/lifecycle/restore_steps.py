"""Steps that correct a record of a restored database: it is older than the clusters."""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType
from dispatcher.api.spec_errors import one_line
from dispatcher.core.lifecycle.condition_updates import after_requeue, with_false, with_true
from dispatcher.core.lifecycle.queue_steps import begin_attempt
from dispatcher.core.lifecycle.record_change import at_latest_time, change_by, live_attempt
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.provisioning import Provisioning
from dispatcher.core.model.record import Change, Condition, Phase, Record
from dispatcher.errors import IllegalTransition


@at_latest_time
def end_missed_attempt(record: Record, message: str, now: datetime) -> Change:
    """Ends an attempt that was over before the database was restored; its outcome is unknown."""
    attempt = replace(live_attempt(record), ended_at=now, outcome="missed")
    return change_by(
        record,
        Cause.FOUND_ENDED,
        now,
        note=message,
        conditions=after_requeue(record.conditions, now),
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
def recall_completed(record: Record, kept_until: datetime | None, now: datetime) -> Change:
    """Completes the record as its status says; the status shows what the database said before it was restored."""
    conditions = with_true(record.conditions, ConditionType.COMPLETED, now, words.PODS_COMPLETED)
    return _recall(record, Cause.FOUND_COMPLETED, "completed", conditions, kept_until, now)


@at_latest_time
def recall_failed(
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
    """Ends the attempt that the restored database has as live; `kept_until` counts only if there is one."""
    attempt, is_kept = record.attempt, record.holds_capacity
    return change_by(
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
