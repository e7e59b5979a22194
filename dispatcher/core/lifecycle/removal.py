"""Policy of a removal: which objects stay, what still takes capacity, and what to do about pods that do not go."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.kinds.provisioning_request import REQUEST_ITEM
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.lifecycle.health import keeps_what_ended
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.model.record import ObjectRef, Phase, Record

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
