"""A gang that gives its capacity back: the changes of a removal, a lost cluster and a deletion, and the policy.

The policy says which objects stay, what still takes capacity, what to do about pods that do not go, and which anchors
in a member are orphans, and which of them may be deleted.

The anchor of an attempt that has ended, or whose AppWrapper is deleted, is always deleted. The anchor of an attempt
that the database does not know is deleted only if all such anchors are a small share of the anchors of the member: a
wrong database must not empty a cluster. After a restore of the database, unknown anchors from before it stay.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType
from dispatcher.api.spec_errors import one_line
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.kinds.provisioning_request import REQUEST_ITEM
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.lifecycle import ageing
from dispatcher.core.lifecycle.health import keeps_what_ended
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.lifecycle.record_change import (
    EvictionReason,
    after_requeue,
    after_suspend,
    at_latest_time,
    change_by,
    evicted,
    live_attempt,
    with_finished,
    with_true,
)
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.records.pending_reasons import CREATION_POSTPONED
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Attempt, Change, ObjectRef, Pending, Phase, Record

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


LINGERING: Final = timedelta(seconds=5)
"""Time in which the operator of an object that has ended may remove its pods by itself, so that its status is kept."""


def stays(ref: ObjectRef, record: Record, state: ObjectState | None, kinds: Kinds = BUILT_IN) -> bool:
    """True for an object that a failed gang keeps for its logs, or that the next attempt does not create again.

    A ProvisioningRequest and its PodTemplates never stay: logs need no nodes.
    """
    if ref.item <= REQUEST_ITEM:
        return False
    if record.phase is Phase.FAILING:
        return keeps_what_ended(record) and not takes_capacity(ref, state, kinds)
    return ref.done


def takes_capacity(ref: ObjectRef, state: ObjectState | None, kinds: Kinds = BUILT_IN) -> bool:
    """False for an object that makes no pods, or that has ended: the caller asks for its live pods separately.

    For a kind in the registry its own end counts, and not the condition that the author of the AppWrapper declares: a
    Deployment that is available goes on. `state` is None for an object that no watch has shown.
    """
    kind = kinds.row(ref.api_version.rpartition("/")[0], ref.kind).pods
    if kind is not None and not kind.rules:
        return False
    if state is None or kind is None:
        return not ref.done and (state is None or state.end is End.OPEN)
    return state.end is End.OPEN


def may_delete_ended(record: Record, now: datetime) -> bool:
    """True once the operators had time to remove the pods of objects that have ended."""
    return now - record.phase_since >= LINGERING


def seconds_until_forced(record: Record, policy: LifecyclePolicy, now: datetime) -> float | None:
    """Seconds until pods that stay are deleted by force, 0 or less once that is due; None if it never is."""
    if policy.force_deletion_after is None:
        return None
    return (record.phase_since + policy.force_deletion_after - now).total_seconds()


LARGEST_SHARE: Final = 20
"""In percent of the anchors in a cluster."""
FEW: Final = 5
"""Unknown anchors that are removed whatever their share: a fifth of two anchors would be none."""
CLOCKS_APART: Final = timedelta(minutes=5)
"""The largest difference between the clocks of a member and of the database."""


class AnchorState(StrEnum):
    """Whether the attempt of an anchor has objects, has ended, or is not in the database."""

    LIVE = "live"
    ENDED = "ended"
    UNKNOWN = "unknown"


def anchor_state(attempt: int, record: Record | None, *, may_come: bool) -> AnchorState:
    """The state of the anchor of attempt number `attempt`.

    `record` is the record of its AppWrapper, None if the database has none. `may_come` is true if the AppWrapper is on
    the hub and its intake may follow, or if the list of AppWrappers is not complete.
    """
    if record is None:
        return AnchorState.LIVE if may_come else AnchorState.UNKNOWN
    if attempt > record.attempts:
        return AnchorState.UNKNOWN
    # Only the number counts: the cluster may have another name since the dispatch.
    if record.attempt is None or record.attempt.number != attempt:
        return AnchorState.ENDED
    return AnchorState.LIVE if record.has_objects else AnchorState.ENDED


def is_small_share(unknown: int, anchors: int) -> bool:
    """True if this number of unknown anchors, among all `anchors` of a cluster, may be removed."""
    return unknown <= max(FEW, anchors * LARGEST_SHARE // 100)


def was_missed(created_at: datetime, restored_at: datetime | None) -> bool:
    """True for an unknown anchor that a restored database may have known before its restore."""
    return restored_at is not None and created_at <= restored_at + CLOCKS_APART
