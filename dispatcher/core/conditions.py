"""The status an AppWrapper shows, projected from its record: output only, the same for the same record.

MCAD's words are kept to the letter and all in one place each: `state`, `queuejobstate`, `canrun`, the
conditions with micro times, and the internal `sender` and `filterignore` that old clients print. Ours are
`cluster` and `waiting` (why it waits, structured); MCAD's `pending` is a count of pods and stays one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, assert_never

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType, State
from dispatcher.core.capacity import PodCounts
from dispatcher.core.record import Condition, Phase, Record

NO_PODS: Final = PodCounts()

POD_COUNTS: Final = ("pending", "running", "Succeeded", "failed")
"""The fields of the status that count pods; MCAD spelled exactly one of them with a capital."""


def project(record: Record, pods: PodCounts = NO_PODS) -> dict[str, Any]:
    """The whole `status` of the AppWrapper behind `record`, as JSON; absent fields mean zero or unknown."""
    status: dict[str, Any] = {
        "conditions": [_entry(condition) for condition in record.conditions],
        "filterignore": True,
        "queuejobstate": queue_job_state(record).value,
        "sender": _sender(record),
        "state": state(record).value,
        "systempriority": record.priority,
    }
    first = record.condition(ConditionType.INIT)
    if first:
        status["controllerfirsttimestamp"] = _micro_time(first.since)
    if can_run(record):
        status["canrun"] = True
    if record.attempt and record.holds_capacity:
        status["cluster"] = record.attempt.cluster
    if record.pending:
        status["waiting"] = _waiting(record)
    counts = (pods.pending, pods.running, pods.succeeded, pods.failed)
    status.update({word: count for word, count in zip(POD_COUNTS, counts, strict=True) if count})
    return status


def state(record: Record) -> State:
    """MCAD's coarse state; it says Running as soon as everything was created."""
    match record.phase:
        case Phase.QUEUED | Phase.DISPATCHING | Phase.REQUEUEING | Phase.FAILING:
            return State.PENDING
        case Phase.DISPATCHED | Phase.RUNNING:
            return State.RUNNING
        case Phase.FAILED:
            return State.FAILED
        case Phase.DELETING | Phase.DELETED:
            return State.DELETED
        case _:
            assert_never(record.phase)


def queue_job_state(record: Record) -> ConditionType:
    """MCAD's finer state: the type of the condition that describes it best now."""
    match record.phase:
        case Phase.QUEUED:
            return _queued_state(record)
        case Phase.DISPATCHING | Phase.FAILING:
            # Failed is final, so it is not said before what was created is confirmed gone.
            return ConditionType.HEAD_OF_LINE
        case Phase.REQUEUEING:
            return ConditionType.BACKOFF
        case Phase.DISPATCHED:
            return ConditionType.DISPATCHED
        case Phase.RUNNING | Phase.DELETING | Phase.DELETED:
            return ConditionType.RUNNING
        case Phase.FAILED:
            return ConditionType.FAILED
        case _:
            assert_never(record.phase)


def can_run(record: Record) -> bool:
    """True from the decision to dispatch until the attempt is over or has gone wrong."""
    return record.phase in {Phase.DISPATCHING, Phase.DISPATCHED, Phase.RUNNING}


def _queued_state(record: Record) -> ConditionType:
    backoff = record.condition(ConditionType.BACKOFF)
    if backoff and backoff.status:
        return ConditionType.BACKOFF
    if record.condition(ConditionType.HEAD_OF_LINE):
        return ConditionType.HEAD_OF_LINE
    return ConditionType.QUEUEING


def _sender(record: Record) -> str:
    match queue_job_state(record):
        case ConditionType.BACKOFF:
            return words.SENDER_BACKOFF
        case ConditionType.HEAD_OF_LINE:
            return words.SENDER_HEAD_OF_LINE
        case ConditionType.DISPATCHED | ConditionType.RUNNING:
            return words.SENDER_DISPATCHED
        case ConditionType.FAILED:
            return words.SENDER_FAILED
        case ConditionType.INIT | ConditionType.QUEUEING:
            return words.SENDER_QUEUEING


def _entry(condition: Condition) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "type": condition.type.value,
        "status": "True" if condition.status else "False",
        "lastUpdateMicroTime": _micro_time(condition.updated),
        "lastTransitionMicroTime": _micro_time(condition.since),
        "lastTransitionTime": _time(condition.since),
    }
    if condition.reason:
        entry["reason"] = condition.reason
    if condition.message:
        entry["message"] = condition.message
    return entry


def _waiting(record: Record) -> dict[str, Any]:
    assert record.pending is not None  # noqa: S101  # the caller has looked
    found = {
        "reason": record.pending.reason,
        "message": record.pending.message,
        "resource": record.pending.resource,
        "cluster": record.pending.cluster,
    }
    return {word: value for word, value in found.items() if value}


def _micro_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
