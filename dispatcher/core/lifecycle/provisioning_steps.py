"""Steps of a gang whose capacity is requested: the request is noted, answered, tried again, or its answer revoked."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.spec_errors import one_line
from dispatcher.core.lifecycle import run_steps
from dispatcher.core.lifecycle.provisioning import failures_with_revocation, retry_in_words
from dispatcher.core.lifecycle.record_change import EvictionReason, at_latest_time, change_by, live_attempt
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.pending_reasons import AWAITING_CAPACITY
from dispatcher.core.model.provisioning import Provisioning
from dispatcher.core.model.record import Attempt, Change, Pending, Record
from dispatcher.errors import IllegalTransition


@at_latest_time
def note(record: Record, message: str, now: datetime, request_uid: str = "") -> Change:
    """Notes that the request exists, with its uid, or what its class says about it."""
    attempt, provisioning = _awaiting(record)
    message = one_line(message)
    noted = replace(
        provisioning, request_uid=request_uid or provisioning.request_uid, message=message, noted_at=now
    )
    return change_by(
        record,
        Cause.PROVISIONING,
        now,
        event_reason=AWAITING_CAPACITY,
        note=message,
        pending=Pending(AWAITING_CAPACITY, message, cluster=attempt.cluster),
        attempt=replace(attempt, provisioning=noted),
    )


@at_latest_time
def provisioned(record: Record, message: str, now: datetime, request_uid: str = "") -> Change:
    """The capacity is there: the cluster is charged with the demand, and the objects are created next.

    `request_uid` is the uid of the request if the record may lack it.
    """
    attempt, provisioning = _awaiting(record)
    uid = request_uid or provisioning.request_uid
    there = replace(provisioning, request_uid=uid, message=one_line(message), provisioned_at=now)
    return change_by(
        record,
        Cause.PROVISIONED,
        now,
        note=there.message,
        pending=None,
        requirements=record.requirements.with_all_provisioners(),
        attempt=replace(attempt, provisioning=there),
    )


@at_latest_time
def fail(record: Record, message: str, has_other_cluster: bool, now: datetime) -> Change:
    """The capacity does not come: the quota is given back, and the gang is queued for another try.

    With `has_other_cluster` it goes on at once in a cluster that was not asked in this round. Else a round is over: the
    next one begins after a pause, and after the last retry the gang fails with the words of the class.
    """
    attempt, provisioning = _awaiting(record)
    message, retry = one_line(message), provisioning.asked.retry
    if has_other_cluster:
        requirements = record.requirements.unprovisioned_in(attempt.cluster, message)
        return _try_again(record, message, now, now, requirements=requirements)
    failures = record.provisioning_failures + 1
    if failures > retry.limit:
        return change_by(
            record,
            Cause.PROVISIONING_REFUSED,
            now,
            event_reason=words.PROVISIONING_FAILED,
            note=message,
            reason=words.PROVISIONING_FAILED,
            message=message,
            pending=None,
            attempt=_answered(record, message),
        )
    return _try_again(
        record,
        f"{message}; {retry_in_words(retry, failures)}",
        now + retry.pause(failures),
        now,
        provisioning_failures=failures,
        requirements=record.requirements.with_all_provisioners(),
    )


@at_latest_time
def revoke(
    record: Record, because: EvictionReason, next_wait: int, now: datetime, finished: Collection[int]
) -> Change:
    """The class takes the capacity back: evicts the gang, which is queued again after the pause of its retry rule.

    `next_wait` and `finished` are those of `run_steps.evict`.
    """
    failures, provisioning = failures_with_revocation(record, now), live_attempt(record).provisioning
    pause = provisioning.asked.retry.pause(failures) if provisioning and failures else timedelta(0)
    return run_steps.evict(
        record, because, now + pause, next_wait, now, finished, provisioning_failures=failures
    )


@at_latest_time
def leave(record: Record, message: str, now: datetime) -> Change:
    """The cluster is drained: the quota is given back, and the gang is queued at once. That counts as no failure."""
    _awaiting(record)
    return _try_again(record, one_line(message), now, now)


def _try_again(
    record: Record,
    message: str,
    eligible_at: datetime,
    now: datetime,
    **fields: object,
) -> Change:
    return change_by(
        record,
        Cause.PROVISIONING_FAILED,
        now,
        event_reason=words.PROVISIONING_FAILED,
        note=message,
        message=message,
        eligible_at=eligible_at,
        pending=Pending(words.PROVISIONING_FAILED, message, cluster=live_attempt(record).cluster),
        attempt=_answered(record, message),
        **fields,
    )


def _answered(record: Record, message: str) -> Attempt:
    """The attempt with what the class said last."""
    attempt, provisioning = _awaiting(record)
    return replace(attempt, provisioning=replace(provisioning, message=message))


def _awaiting(record: Record) -> tuple[Attempt, Provisioning]:
    attempt = live_attempt(record)
    if attempt.provisioning is None or attempt.provisioning.provisioned_at is not None:
        raise IllegalTransition(f"{record.uid}: attempt {attempt.number} does not await capacity")
    return attempt, attempt.provisioning
