"""Ends attempts: completes, requeues or fails a dispatched gang, and removes what an attempt created.

The API server confirms each end before it is committed. `Remover` gives capacity back, not before it is free, and not
later. Capacity is free once the API server confirms that every object that takes any is gone, and a list of pods begun
after that shows no live one. No step waits for either: each does what can be done now, and its result says when to look
again. The policy is `core.lifecycle.removal`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.controller.intake.attempt_context import AttemptContext
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.members.potential_trust import PoolsFailed
from dispatcher.controller.reconcile.result import NOTHING, Result, poll
from dispatcher.core.kinds.manifest import anchor_name
from dispatcher.core.kinds.provisioning_request import refs_of
from dispatcher.core.lifecycle import removal, run_changes
from dispatcher.core.lifecycle.confirmation import (
    Complaint,
    Evidence,
    complaint_about,
    end_of_attempt,
    evidence_for,
    is_confirmed,
    may_have_failed_pods,
    why_without_nodes,
)
from dispatcher.core.lifecycle.decision import decide
from dispatcher.core.lifecycle.health import ObservedObjects
from dispatcher.core.lifecycle.missing_pods import Withheld, unread_of, withheld_by
from dispatcher.core.lifecycle.removal import may_delete_ended, seconds_until_forced, stays
from dispatcher.core.lifecycle.step import Act, Commit, Decision, Do, ObservedState
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.gangs.pods import PodFailure
from dispatcher.core.model.records.record import ObjectRef, Phase, Record
from dispatcher.kube.objects.live_pod_lister import UNKNOWN_ITEM

MOST_READ_ONE_BY_ONE: Final = 3
"""The most wrapped objects of a gang whose Events are read one by one. One list of the namespace serves the others."""


class Remediator:
    """Ends attempts that are done or have a health issue for too long."""

    def __init__(
        self, context: AttemptContext, note_pools_failed: Callable[[PoolsFailed], Awaitable[None]]
    ) -> None:
        self._context = context
        self._note_pools_failed = note_pools_failed

    async def complete(self, record: Record, observed: ObservedState, decision: Do) -> Result:
        """Commits that the gang is complete, once a list of pods shows no live one of it."""
        cluster = self._context.cluster_of(record)
        if cluster is None:
            return NOTHING
        live = cluster.live_pods.ask((record.namespace, record.uid), record.version)
        if live is None:
            return Result(is_ending=True)  # the answer wakes the AppWrapper
        if live.live or not await self._give_back_capacity(record, cluster):
            return poll()
        now = self._context.now()
        change = run_changes.complete(record, decision.done, now + observed.policy.kept_completed, now)
        return Result(change, wakes_scheduler=True)

    async def _give_back_capacity(self, record: Record, cluster: WatchedCluster) -> bool:
        """Deletes the request for the capacity of a gang that needs none any more; true once it is gone.

        The wrapped objects stay for their logs, and no node has to stay for them.
        """
        owner = self._context.owner_of(record)
        return all([await cluster.object_client.remove(ref, owner) for ref in reversed(refs_of(record))])

    async def note(self, record: Record, observed: ObservedState, decision: Do) -> Result:
        """Notes a health issue; if pods are missing, in the words of the controllers that cannot make them."""
        cluster = self._context.cluster_of(record)
        said = "" if cluster is None else await _complaint(record, decision, observed, cluster)
        message = "; ".join(filter(None, (decision.message, said)))
        now = self._context.now()
        return Result(run_changes.note_health_issue(record, decision.reason, message, now, decision.since))

    async def end(self, record: Record, observed: ObservedState, suspected: Do) -> Result:
        """Requeues or fails the gang, if the API server confirms the health issue that the watches show."""
        cluster = self._context.cluster_of(record)
        if cluster is None:
            return NOTHING
        confirmed = await self._confirm(record, observed, suspected, cluster)
        decision = decide(confirmed)
        if isinstance(decision, Do) and is_confirmed(suspected, decision):
            complaint = await _complaint(record, suspected, observed, cluster)
            failure = await _failure(record, decision.reason, cluster)
            if decision.reason == words.POTENTIAL_NODES_MISSING:
                # Before the eviction: the next cycle must not dispatch the gang to the same pool. A failure while a
                # pool is not trusted counts nothing, so a new leader may repeat both.
                await self._note_pools_failed(pools_failed(record, observed, cluster))
            now = self._context.now()
            return Result(end_of_attempt(record, decision, observed.policy, complaint, now, failure))
        if suspected.reason == words.MISSING_COMPONENT:
            return await self._take_as_found(record, confirmed, decision)
        return poll()

    async def _take_as_found(self, record: Record, confirmed: ObservedState, decision: Decision) -> Result:
        """An object that seemed to be missing exists: commits its end, if it has ended; else polls the watch.

        No watch shows an object that cannot be given our labels, so it is polled until its end. An object whose kind is
        not served was not deleted by itself, and that is noted.
        """
        match decision:
            case Commit(cause=Cause.ITEMS_DONE | Cause.SOME_COMPLETED):
                return Result(decision.change)
            case Do(act=Act.NOTE_HEALTH_ISSUE, reason=words.KIND_NOT_INSTALLED):
                return await self.note(record, confirmed, decision)
            case Do(act=Act.FAIL | Act.REQUEUE):
                return await self.end(record, confirmed, decision)
            case _:
                return poll()

    async def _confirm(
        self, record: Record, observed: ObservedState, suspected: Do, cluster: WatchedCluster
    ) -> ObservedState:
        """The observed state, with the evidence for the suspicion read from the API server."""
        match evidence_for(suspected.reason):
            case Evidence.OBJECTS:
                return replace(observed, objects=await self._with_missing(record, observed.objects, cluster))
            case Evidence.PODS:
                pods = await cluster.live_pods.count((record.namespace, record.uid))
                withheld = await self._withheld(record, observed, cluster)
                return replace(observed, objects=replace(observed.objects, pods=pods, withheld=withheld))
            case Evidence.NOTHING:
                return observed

    async def _withheld(self, record: Record, observed: ObservedState, cluster: WatchedCluster) -> Withheld:
        """The pods that its objects do not ask for; objects that no watch shows are read from the API server.

        With `minAvailable` it does not matter what they ask for.
        """
        if not observed.objects.withheld.unread or observed.policy.min_available:
            return observed.objects.withheld
        refs, items = record.attempt.objects if record.attempt else (), observed.policy.items
        shown = [cluster.objects.asked(ref) for ref in refs]
        read = {
            ref: await cluster.object_client.asked(ref, record.uid)
            for ref, _ in list(unread_of(refs, items, shown))
        }
        return withheld_by(refs, items, [read.get(ref, now) for ref, now in zip(refs, shown, strict=True)])

    async def _with_missing(
        self, record: Record, objects: ObservedObjects, cluster: WatchedCluster
    ) -> ObservedObjects:
        """The observed objects, with those that the watches miss read from the API server.

        Of those that it does not have either, the API server is asked whether it serves their kinds.
        """
        owner, wrapped = self._context.owner_of(record), (await self._context.specs.of(record)).wrapped
        refs = record.attempt.objects if record.attempt else ()
        found = {
            ref: await cluster.object_client.reclaim(wrapped[ref.item], ref, owner)
            for ref in refs
            if ref in objects.absent
        }
        states = tuple(found.get(ref) or state for ref, state in zip(refs, objects.states, strict=False))
        absent = tuple(ref for ref, state in found.items() if state is None)
        kinds = {(ref.api_version, ref.kind) for ref in absent}
        gone = {kind for kind in sorted(kinds) if not await cluster.discovery.serves_now(kind)}
        unserved = tuple(ref for ref in absent if (ref.api_version, ref.kind) in gone)
        return replace(objects, states=states, absent=absent, unserved=unserved)


def pools_failed(record: Record, observed: ObservedState, cluster: WatchedCluster) -> PoolsFailed:
    """The pools whose nodes did not come for a gang, and whether a scheduler looked for nodes for its pods."""
    confirmed = bool(cluster.ledger.unscheduled(record.uid))
    return PoolsFailed(cluster.name, observed.awaited_pools, record.namespace, confirmed)


async def _complaint(record: Record, decision: Do, observed: ObservedState, cluster: WatchedCluster) -> str:
    """Why an operator makes no pods, or no node runs them, in their own words. Empty if not known.

    Often an Event is the only trace of an operator's problem.
    """
    who, said = complaint_about(decision, record, observed), ""
    if who is Complaint.CONTROLLERS:
        said = await _of_controllers(record, observed, cluster)
    if not said:
        unscheduled = cluster.ledger.unscheduled(record.uid)
        said = why_without_nodes(decision, {each.pod: each.message for each in unscheduled})
    if not said and who is Complaint.NODES:
        refs = record.attempt.objects if record.attempt else ()
        said = await cluster.warnings.about_pods(record.uid, refs, record.namespace)
    why = observed.objects.withheld.why if who is Complaint.CONTROLLERS else ""
    return "; ".join(each for each in (why, said) if each and each not in decision.message)


async def _failure(record: Record, reason: str, cluster: WatchedCluster) -> PodFailure | None:
    """How a pod of a gang that ends for this reason failed first; None if none did, or if it cannot be read."""
    if not may_have_failed_pods(reason):
        return None
    return await cluster.pod_failures.first(record.namespace, record.uid)


async def _of_controllers(record: Record, observed: ObservedState, cluster: WatchedCluster) -> str:
    """Why controllers make no pods, in their words, with the title of the object; empty if not known.

    First the statuses of the wrapped objects are looked at, then the warnings of their namespace, which may be too many
    to be read, and last the warnings about the first wrapped objects, one request for each.
    """
    refs = record.attempt.objects if record.attempt else ()
    for ref, state in zip(refs, observed.objects.states, strict=False):
        if state and state.message:
            return f"{ref.title}: {state.message}"
    said = await cluster.warnings.about_controllers(
        record.uid, refs, record.namespace, awaits_kueue=bool(observed.objects.withheld.awaiting)
    )
    if said:
        return said
    for ref in refs[:MOST_READ_ONE_BY_ONE]:
        if said := await cluster.object_client.newest_warning(ref):
            return f"{ref.title}: {said}"
    return ""


class Remover:
    """Removes the objects of attempts; each removal may be repeated."""

    def __init__(self, context: AttemptContext) -> None:
        self._context = context

    async def remove(self, record: Record) -> Result:
        """Deletes what the attempt created, last first, but for what stays; commits once that is gone."""
        cluster = self._context.cluster_of(record)
        if cluster is None:
            return NOTHING
        refs = await self._context.refs(record)
        going = [ref for ref in refs if not stays(ref, record, cluster.objects.state(ref), cluster.kinds)]
        if not await self._delete(record, cluster, going):
            return poll()
        if going == refs and cluster.pod_counts(record.uid).live:
            return await self._wait_for_pods(record, cluster)
        live = cluster.live_pods.ask((record.namespace, record.uid), record.version)
        if live is None:
            return NOTHING  # the answer wakes the AppWrapper
        now = self._context.now()
        if live.live or cluster.pod_counts(record.uid).live:
            if may_delete_ended(record, now):
                await self._delete(record, cluster, [ref for ref in refs if _is_among(ref, live.staying)])
            return await self._wait_for_pods(record, cluster)
        if going == refs and not await self._is_anchor_gone(record, cluster):
            return poll()
        is_kept = record.phase is Phase.FAILING and len(going) < len(refs)
        kept_until = now + (await self._context.policy_of(record)).kept_failed if is_kept else None
        return Result(removal.removed(record, now, kept_until), wakes_scheduler=True)

    async def confirm_gone(self, record: Record) -> Result:
        """Releases what a deleted AppWrapper holds, once neither objects nor live pods are left."""
        cluster = self._context.cluster_of(record)
        if cluster is None:
            return NOTHING
        if not self._is_garbage_collected(record, cluster) and not await self._delete(
            record, cluster, await self._context.refs(record)
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
        return Result(removal.release(record, self._context.now()), wakes_scheduler=True)

    async def expire(self, record: Record) -> Result:
        """Deletes what was kept of an AppWrapper after its end, and commits once that is gone."""
        cluster = self._context.cluster_of(record)
        if cluster is None:
            return NOTHING
        refs = await self._context.refs(record)
        if await self._delete(record, cluster, refs) and await self._is_anchor_gone(record, cluster):
            return Result(removal.expire(record, self._context.now()))
        return poll()

    def _is_garbage_collected(self, record: Record, cluster: WatchedCluster) -> bool:
        """True on the hub, once the AppWrapper is gone or has no finalizer: the API server removes what it owns."""
        view = self._context.informer.view(record.uid)
        return not cluster.is_member and not (view is not None and view.has_finalizer)

    async def _are_gone(self, record: Record, cluster: WatchedCluster) -> bool:
        """True once all objects of a deleted AppWrapper are gone; in a member the last of them is the anchor."""
        if cluster.is_member:
            return await self._is_anchor_gone(record, cluster)
        for ref in await self._context.refs(record):
            if not await cluster.object_client.is_gone(ref, record.uid):
                return False
        return True

    async def _is_anchor_gone(self, record: Record, cluster: WatchedCluster) -> bool:
        """Deletes the anchor of an attempt in a member cluster; true once there is none."""
        if record.attempt is None or not cluster.is_member:
            return True
        name = anchor_name(record.uid, record.attempt.number)
        return await cluster.anchors.remove(record.namespace, name, record.uid)

    async def _delete(self, record: Record, cluster: WatchedCluster, refs: Sequence[ObjectRef]) -> bool:
        """Deletes the objects that are not being deleted yet, last first; true once all are gone."""
        owner = self._context.owner_of(record)
        return all([await cluster.object_client.remove(ref, owner) for ref in reversed(refs)])

    async def _wait_for_pods(self, record: Record, cluster: WatchedCluster) -> Result:
        """Looks again when pods may be gone; deletes pods that stay by force, once the policy allows that.

        While the watch shows live pods no list is asked for: an event wakes the AppWrapper when they go.
        """
        policy, now = await self._context.policy_of(record), self._context.now()
        left = seconds_until_forced(record, policy, now)
        if left is not None and left > 0:
            return poll(within=left)
        if left is not None:
            await cluster.live_pods.force((record.namespace, record.uid), now, record.phase_since)
        return poll()


def _is_among(ref: ObjectRef, items: Collection[int]) -> bool:
    return ref.item in items or UNKNOWN_ITEM in items
