"""Removing what an attempt created, and giving its capacity back: not earlier and not later than it is free.

It is free once every object that takes any is confirmed gone by asking for it, and a list of pods begun after that
shows no live one. Nobody waits for either: each look does what can be done now and says when to look again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dispatcher.controller.cluster import Cluster
from dispatcher.controller.parts import Parts
from dispatcher.controller.specs import owner_of
from dispatcher.core import lifecycle
from dispatcher.core.endings import End
from dispatcher.core.health import keeps_what_ended
from dispatcher.core.podsets import KINDS
from dispatcher.core.record import ObjectRef, Record
from dispatcher.core.terms import Terms
from dispatcher.kube.appwrappers import NO_ANNOTATIONS
from dispatcher.kube.livepods import UNKNOWN_ITEM


async def remove(parts: Parts, record: Record) -> None:
    """Delete what the attempt created, last first, but for what is kept for its logs; commit once that is gone."""
    cluster = parts.cluster_of(record)
    if cluster is None:
        return
    refs = await parts.refs(record)
    taking = [ref for ref in refs if _takes_capacity(ref, cluster)] if keeps_what_ended(record) else refs
    if not await _are_gone(parts, record, cluster, taking):
        parts.look_again(record)
        return
    live = await _live_items(parts, record, cluster)
    if live is None:
        return  # the answer wakes us
    if live:
        await _are_gone(parts, record, cluster, [ref for ref in refs if _is_among(ref, live)])
        parts.look_again(record)
        return
    now = parts.now()
    kept_until = now + (await _terms(parts, record)).kept_failed if len(taking) < len(refs) else None
    await parts.commit(lifecycle.removed(record, now, kept_until))
    parts.wake_dispatch()


async def confirm_gone(parts: Parts, record: Record) -> None:
    """Release what a deleted AppWrapper holds, once neither objects nor live pods are left."""
    cluster = parts.cluster_of(record)
    if cluster is None:
        return
    if cluster.pod_counts(record.uid).live:
        # Not proof, but it saves asking: their going is an event that wakes us.
        await _force_if_overdue(parts, record, cluster)
        parts.look_again(record)
        return
    for ref in await parts.refs(record):
        if not await cluster.wrapped.is_gone(ref, record.uid):
            parts.look_again(record)
            return
    live = await _live_items(parts, record, cluster)
    if live is None:
        return
    if live:
        parts.look_again(record)
        return
    await parts.commit(lifecycle.release(record, parts.now()))
    parts.wake_dispatch()


async def expire(parts: Parts, record: Record) -> None:
    """Delete what was kept of an AppWrapper after its end, and commit once it is gone."""
    cluster = parts.cluster_of(record)
    if cluster is None:
        return
    if await _are_gone(parts, record, cluster, await parts.refs(record)):
        await parts.commit(lifecycle.expire(record, parts.now()))
    else:
        parts.look_again(record)


async def _are_gone(parts: Parts, record: Record, cluster: Cluster, refs: Sequence[ObjectRef]) -> bool:
    """Delete those that are not on their way out yet; true once all are gone."""
    owner = owner_of(record, parts.hub_id)
    return all([await cluster.wrapped.remove(ref, owner) for ref in reversed(refs)])


async def _live_items(parts: Parts, record: Record, cluster: Cluster) -> Collection[int] | None:
    """The items of which live pods are left, by a list begun after this was asked; None until that is answered."""
    live = cluster.live_pods.ask((record.namespace, record.uid), record.version)
    if live is None:
        return None
    if not live and cluster.pod_counts(record.uid).live:
        live = frozenset({UNKNOWN_ITEM})  # pods that bear no label of ours, but have an owner that is ours
    if live:
        await _force_if_overdue(parts, record, cluster)
    return live


async def _force_if_overdue(parts: Parts, record: Record, cluster: Cluster) -> None:
    """Delete pods that will not go without asking their node, once they had the time they are given."""
    after = (await _terms(parts, record)).force_deletion_after
    if after is not None and parts.now() - record.phase_since >= after:
        await cluster.live_pods.force((record.namespace, record.uid))


async def _terms(parts: Parts, record: Record) -> Terms:
    view = parts.hub.view(record.uid)
    return await parts.specs.terms_of(record, view.tolerance if view else NO_ANNOTATIONS)


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


def _is_among(ref: ObjectRef, live: Collection[int]) -> bool:
    return ref.item in live or UNKNOWN_ITEM in live
