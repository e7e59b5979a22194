"""Removing what an attempt created, and giving its capacity back: not earlier and not later than it is free.

It is free once every object that takes any is confirmed gone by asking for it, and a list of pods begun after that
shows no live one. Nobody waits for either: each look does what can be done now and says when to look again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Final

from dispatcher.controller.intake.specs import owner_of
from dispatcher.controller.members.cluster import Cluster
from dispatcher.controller.reconcile.parts import Parts
from dispatcher.core.kinds.manifest import anchor_name
from dispatcher.core.kinds.object_status import End
from dispatcher.core.kinds.registry import KINDS
from dispatcher.core.lifecycle import steps
from dispatcher.core.lifecycle.health import keeps_what_ended
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.model.record import ObjectRef, Phase, Record
from dispatcher.kube.live_pod_lister import UNKNOWN_ITEM

LINGERING: Final = timedelta(seconds=5)
"""So long what has ended is left to its operator, which may remove its pods by itself: then its status is kept."""


async def remove(parts: Parts, record: Record) -> None:
    """Delete what the attempt created, last first, but for what stays; commit once that is gone."""
    cluster = parts.cluster_of(record)
    if cluster is None:
        return
    refs = await parts.refs(record)
    taking = [ref for ref in refs if not _stays(ref, record, cluster)]
    if not await _are_gone(parts, record, cluster, taking):
        parts.look_again(record)
        return
    if taking == refs and cluster.pod_counts(record.uid).live:
        await _wait_for_pods(parts, record, cluster)
        return
    left = cluster.live_pods.ask((record.namespace, record.uid), record.version)
    if left is None:
        return  # the answer wakes us
    now = parts.now()
    if left.live or cluster.pod_counts(record.uid).live:
        if now - record.phase_since >= LINGERING:
            await _are_gone(parts, record, cluster, [ref for ref in refs if _is_among(ref, left.staying)])
        await _wait_for_pods(parts, record, cluster)
        return
    if taking == refs and not await _is_anchor_gone(record, cluster):
        parts.look_again(record)
        return
    kept = record.phase is Phase.FAILING and len(taking) < len(refs)
    kept_until = now + (await _terms(parts, record)).kept_failed if kept else None
    await parts.commit(steps.removed(record, now, kept_until))
    parts.wake_dispatch()


async def confirm_gone(parts: Parts, record: Record) -> None:
    """Release what a deleted AppWrapper holds, once neither objects nor live pods are left."""
    cluster = parts.cluster_of(record)
    if cluster is None:
        return
    if not _goes_with_it(parts, record, cluster) and not await _are_gone(
        parts, record, cluster, await parts.refs(record)
    ):
        parts.look_again(record)
        return
    if cluster.pod_counts(record.uid).live:
        await _wait_for_pods(parts, record, cluster)
        return
    if not await _went_with_it(parts, record, cluster):
        parts.look_again(record)
        return
    left = cluster.live_pods.ask((record.namespace, record.uid), record.version)
    if left is None:
        return
    if left.live or cluster.pod_counts(record.uid).live:
        await _wait_for_pods(parts, record, cluster)
        return
    await parts.commit(steps.release(record, parts.now()))
    parts.wake_dispatch()


async def expire(parts: Parts, record: Record) -> None:
    """Delete what was kept of an AppWrapper after its end, and commit once it is gone."""
    cluster = parts.cluster_of(record)
    if cluster is None:
        return
    refs = await parts.refs(record)
    if await _are_gone(parts, record, cluster, refs) and await _is_anchor_gone(record, cluster):
        await parts.commit(steps.expire(record, parts.now()))
    else:
        parts.look_again(record)


def _goes_with_it(parts: Parts, record: Record, cluster: Cluster) -> bool:
    """True where the API server removes what an AppWrapper owns: on the hub, once that is gone and nothing holds it."""
    view = parts.hub.view(record.uid)
    return not cluster.is_member and not (view is not None and view.is_held)


async def _went_with_it(parts: Parts, record: Record, cluster: Cluster) -> bool:
    """True once all objects of a deleted AppWrapper are gone; in a member the last of them is the anchor."""
    if cluster.is_member:
        return await _is_anchor_gone(record, cluster)
    for ref in await parts.refs(record):
        if not await cluster.wrapped.is_gone(ref, record.uid):
            return False
    return True


async def _is_anchor_gone(record: Record, cluster: Cluster) -> bool:
    """Delete the anchor of an attempt in a member cluster; true once there is none."""
    if record.attempt is None or not cluster.is_member:
        return True
    name = anchor_name(record.uid, record.attempt.number)
    return await cluster.anchors.remove(record.namespace, name, record.uid)


async def _are_gone(parts: Parts, record: Record, cluster: Cluster, refs: Sequence[ObjectRef]) -> bool:
    """Delete those that are not on their way out yet; true once all are gone."""
    owner = owner_of(record, parts.hub_id)
    return all([await cluster.wrapped.remove(ref, owner) for ref in reversed(refs)])


async def _wait_for_pods(parts: Parts, record: Record, cluster: Cluster) -> None:
    """Look again when pods may be gone; delete those that will not go, once they had the time they are given.

    While the watch shows live ones no list is asked for: their going is an event that wakes us.
    """
    after = (await _terms(parts, record)).force_deletion_after
    if after is None:
        parts.look_again(record)
        return
    left = (record.phase_since + after - parts.now()).total_seconds()
    if left > 0:
        parts.look_again(record, within=left)
        return
    await cluster.live_pods.force((record.namespace, record.uid), parts.now())
    parts.look_again(record)


async def _terms(parts: Parts, record: Record) -> LifecyclePolicy:
    """Its terms; those of one that was deleted before our watch began are as if it had no annotations."""
    return await parts.specs.terms_of(record, parts.hub.tolerance(record.uid))


def _stays(ref: ObjectRef, record: Record, cluster: Cluster) -> bool:
    """True for what a failed gang keeps for its logs, and for what the next attempt need not do again."""
    if record.phase is Phase.FAILING:
        return keeps_what_ended(record) and not _takes_capacity(ref, cluster)
    return ref.done


def _takes_capacity(ref: ObjectRef, cluster: Cluster) -> bool:
    """False for what makes no pods, and for what has ended: its pods, if any live, are asked for by themselves.

    Where we know how a kind ends, that counts, and not what its author calls done: a Deployment that is available
    goes on.
    """
    kind = KINDS.get((ref.api_version.rpartition("/")[0], ref.kind))
    if kind is not None and not kind.rules:
        return False
    state = cluster.objects.state(ref)
    if state is None or kind is None:
        return not ref.done and (state is None or state.end is End.OPEN)
    return state.end is End.OPEN


def _is_among(ref: ObjectRef, items: Collection[int]) -> bool:
    return ref.item in items or UNKNOWN_ITEM in items
