"""Removing what an attempt created, and giving its capacity back: not before it is free, and not later.

Capacity is free once the API server confirms that every object that takes any is gone, and a list of pods begun after
that shows no live one. No step waits for either: each does what can be done now, and its result says when to look
again. The policy is `core.lifecycle.removal`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dispatcher.controller.intake.attempts import Attempts
from dispatcher.controller.members.cluster import Cluster
from dispatcher.controller.reconcile.result import NOTHING, Result, poll
from dispatcher.core.kinds.manifest import anchor_name
from dispatcher.core.lifecycle import removal
from dispatcher.core.lifecycle.removal import may_delete_ended, seconds_until_forced, stays
from dispatcher.core.model.record import ObjectRef, Phase, Record
from dispatcher.kube.live_pod_lister import UNKNOWN_ITEM


class Remover:
    """Removes the objects of attempts; each removal may be repeated."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts

    async def remove(self, record: Record) -> Result:
        """Deletes what the attempt created, last first, but for what stays; commits once that is gone."""
        cluster = self._attempts.cluster_of(record)
        if cluster is None:
            return NOTHING
        refs = await self._attempts.refs(record)
        going = [ref for ref in refs if not stays(ref, record, cluster.objects.state(ref), cluster.kinds)]
        if not await self._delete(record, cluster, going):
            return poll()
        if going == refs and cluster.pod_counts(record.uid).live:
            return await self._wait_for_pods(record, cluster)
        live = cluster.live_pods.ask((record.namespace, record.uid), record.version)
        if live is None:
            return NOTHING  # the answer wakes the AppWrapper
        now = self._attempts.now()
        if live.live or cluster.pod_counts(record.uid).live:
            if may_delete_ended(record, now):
                await self._delete(record, cluster, [ref for ref in refs if _is_among(ref, live.staying)])
            return await self._wait_for_pods(record, cluster)
        if going == refs and not await self._is_anchor_gone(record, cluster):
            return poll()
        is_kept = record.phase is Phase.FAILING and len(going) < len(refs)
        kept_until = now + (await self._attempts.policy_of(record)).kept_failed if is_kept else None
        return Result(removal.removed(record, now, kept_until), wakes_scheduler=True)

    async def confirm_gone(self, record: Record) -> Result:
        """Releases what a deleted AppWrapper holds, once neither objects nor live pods are left."""
        cluster = self._attempts.cluster_of(record)
        if cluster is None:
            return NOTHING
        if not self._is_garbage_collected(record, cluster) and not await self._delete(
            record, cluster, await self._attempts.refs(record)
        ):
            return poll()
        if cluster.pod_counts(record.uid).live:
            return await self._wait_for_pods(record, cluster)
        if not await self._are_gone(record, cluster):
            return poll()
        live = cluster.live_pods.ask((record.namespace, record.uid), record.version)
        if live is None:
            return NOTHING  # the answer wakes the AppWrapper
        if live.live or cluster.pod_counts(record.uid).live:
            return await self._wait_for_pods(record, cluster)
        return Result(removal.release(record, self._attempts.now()), wakes_scheduler=True)

    async def expire(self, record: Record) -> Result:
        """Deletes what was kept of an AppWrapper after its end, and commits once that is gone."""
        cluster = self._attempts.cluster_of(record)
        if cluster is None:
            return NOTHING
        refs = await self._attempts.refs(record)
        if await self._delete(record, cluster, refs) and await self._is_anchor_gone(record, cluster):
            return Result(removal.expire(record, self._attempts.now()))
        return poll()

    def _is_garbage_collected(self, record: Record, cluster: Cluster) -> bool:
        """True on the hub, once the AppWrapper is gone or has no finalizer: the API server removes what it owns."""
        view = self._attempts.informer.view(record.uid)
        return not cluster.is_member and not (view is not None and view.has_finalizer)

    async def _are_gone(self, record: Record, cluster: Cluster) -> bool:
        """True once all objects of a deleted AppWrapper are gone; in a member the last of them is the anchor."""
        if cluster.is_member:
            return await self._is_anchor_gone(record, cluster)
        for ref in await self._attempts.refs(record):
            if not await cluster.object_client.is_gone(ref, record.uid):
                return False
        return True

    async def _is_anchor_gone(self, record: Record, cluster: Cluster) -> bool:
        """Deletes the anchor of an attempt in a member cluster; true once there is none."""
        if record.attempt is None or not cluster.is_member:
            return True
        name = anchor_name(record.uid, record.attempt.number)
        return await cluster.anchors.remove(record.namespace, name, record.uid)

    async def _delete(self, record: Record, cluster: Cluster, refs: Sequence[ObjectRef]) -> bool:
        """Deletes the objects that are not being deleted yet, last first; true once all are gone."""
        owner = self._attempts.owner_of(record)
        return all([await cluster.object_client.remove(ref, owner) for ref in reversed(refs)])

    async def _wait_for_pods(self, record: Record, cluster: Cluster) -> Result:
        """Looks again when pods may be gone; deletes pods that stay by force, once the policy allows that.

        While the watch shows live pods no list is asked for: an event wakes the AppWrapper when they go.
        """
        policy, now = await self._attempts.policy_of(record), self._attempts.now()
        left = seconds_until_forced(record, policy, now)
        if left is not None and left > 0:
            return poll(within=left)
        if left is not None:
            await cluster.live_pods.force((record.namespace, record.uid), now, record.phase_since)
        return poll()


def _is_among(ref: ObjectRef, items: Collection[int]) -> bool:
    return ref.item in items or UNKNOWN_ITEM in items
