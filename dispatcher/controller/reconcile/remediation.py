"""Completing, requeueing or failing a dispatched gang; the API server confirms each before it is committed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.controller.intake.attempts import Attempts
from dispatcher.controller.members.cluster import Cluster
from dispatcher.controller.members.potential_trust import PoolsFailed
from dispatcher.controller.reconcile.result import NOTHING, Result, poll
from dispatcher.core.kinds.provisioning_request import refs_of
from dispatcher.core.lifecycle import run_changes
from dispatcher.core.lifecycle.confirmation import (
    Complaint,
    Evidence,
    complaint_about,
    end_of_attempt,
    evidence_for,
    is_confirmed,
    why_without_nodes,
)
from dispatcher.core.lifecycle.decision import decide
from dispatcher.core.lifecycle.health import ObservedObjects
from dispatcher.core.lifecycle.missing_pods import Withheld, unread_of, withheld_by
from dispatcher.core.lifecycle.step import Decision, ObservedState, Step
from dispatcher.core.model.record import Record

MOST_READ_ONE_BY_ONE: Final = 3
"""The most wrapped objects of a gang whose Events are read one by one. One list of the namespace serves the others."""


class Remediator:
    """Ends attempts that are done or have a health issue for too long."""

    def __init__(
        self, attempts: Attempts, note_pools_failed: Callable[[PoolsFailed], Awaitable[None]]
    ) -> None:
        self._attempts = attempts
        self._note_pools_failed = note_pools_failed

    async def complete(self, record: Record, observed: ObservedState, decision: Decision) -> Result:
        """Commits that the gang is complete, once a list of pods shows no live one of it."""
        cluster = self._attempts.cluster_of(record)
        if cluster is None:
            return NOTHING
        live = cluster.live_pods.ask((record.namespace, record.uid), record.version)
        if live is None:
            return Result(is_ending=True)  # the answer wakes the AppWrapper
        if live.live or not await self._give_back_capacity(record, cluster):
            return poll()
        now = self._attempts.now()
        change = run_changes.complete(record, decision.done, now + observed.policy.kept_completed, now)
        return Result(change, wakes_scheduler=True)

    async def _give_back_capacity(self, record: Record, cluster: Cluster) -> bool:
        """Deletes the request for the capacity of a gang that needs none any more; true once it is gone.

        The wrapped objects stay for their logs, and no node has to stay for them.
        """
        owner = self._attempts.owner_of(record)
        return all([await cluster.object_client.remove(ref, owner) for ref in reversed(refs_of(record))])

    async def note(self, record: Record, observed: ObservedState, decision: Decision) -> Result:
        """Notes a health issue; if pods are missing, in the words of the controllers that cannot make them."""
        cluster = self._attempts.cluster_of(record)
        said = "" if cluster is None else await _complaint(record, decision, observed, cluster)
        message = "; ".join(filter(None, (decision.message, said)))
        now = self._attempts.now()
        return Result(run_changes.note_health_issue(record, decision.reason, message, now, decision.since))

    async def end(self, record: Record, observed: ObservedState, suspected: Decision) -> Result:
        """Requeues or fails the gang, if the API server confirms the health issue that the watches show."""
        cluster = self._attempts.cluster_of(record)
        if cluster is None:
            return NOTHING
        confirmed = await self._confirm(record, observed, suspected, cluster)
        decision = decide(confirmed)
        if is_confirmed(suspected, decision):
            complaint = await _complaint(record, suspected, observed, cluster)
            if decision.reason == words.POTENTIAL_NODES_MISSING:
                # Before the eviction: the next cycle must not dispatch the gang to the same pool. A failure while a
                # pool is not trusted counts nothing, so a new leader may repeat both.
                await self._note_pools_failed(pools_failed(record, observed, cluster))
            now = self._attempts.now()
            return Result(end_of_attempt(record, decision, observed.policy, complaint, now))
        if suspected.reason == words.MISSING_COMPONENT:
            return await self._take_as_found(record, confirmed, decision)
        return poll()

    async def _take_as_found(self, record: Record, confirmed: ObservedState, decision: Decision) -> Result:
        """An object that seemed to be missing exists: commits its end, if it has ended; else polls the watch.

        No watch shows an object that cannot be given our labels, so it is polled until its end. An object whose kind is
        not served was not deleted by itself, and that is noted.
        """
        match decision.step:
            case Step.NOTE_DONE:
                return Result(run_changes.note_done(record, decision.done, self._attempts.now()))
            case Step.NOTE_PROGRESS:
                return Result(run_changes.complete_some(record, decision.done, self._attempts.now()))
            case Step.NOTE_HEALTH_ISSUE if decision.reason == words.KIND_NOT_INSTALLED:
                return await self.note(record, confirmed, decision)
            case Step.FAIL | Step.REQUEUE:
                return await self.end(record, confirmed, decision)
            case _:
                return poll()

    async def _confirm(
        self, record: Record, observed: ObservedState, suspected: Decision, cluster: Cluster
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

    async def _withheld(self, record: Record, observed: ObservedState, cluster: Cluster) -> Withheld:
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
        self, record: Record, objects: ObservedObjects, cluster: Cluster
    ) -> ObservedObjects:
        """The observed objects, with those that the watches miss read from the API server.

        Of those that it does not have either, the API server is asked whether it serves their kinds.
        """
        owner, wrapped = self._attempts.owner_of(record), (await self._attempts.specs.of(record)).wrapped
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


def pools_failed(record: Record, observed: ObservedState, cluster: Cluster) -> PoolsFailed:
    """The pools whose nodes did not come for a gang, and whether a scheduler looked for nodes for its pods."""
    confirmed = bool(cluster.ledger.unscheduled(record.uid))
    return PoolsFailed(cluster.name, observed.awaited_pools, record.namespace, confirmed)


async def _complaint(record: Record, decision: Decision, observed: ObservedState, cluster: Cluster) -> str:
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


async def _of_controllers(record: Record, observed: ObservedState, cluster: Cluster) -> str:
    """The words of the operator of a wrapped object, else of a controller below it."""
    refs = record.attempt.objects if record.attempt else ()
    for number, (ref, state) in enumerate(zip(refs, observed.objects.states, strict=False)):
        message = state.message if state else ""
        if not message and number < MOST_READ_ONE_BY_ONE:
            message = await cluster.object_client.newest_warning(ref)
        if message:
            return f"{ref.kind} {ref.namespace}/{ref.name}: {message}"
    return await cluster.warnings.about_controllers(record.uid, refs, record.namespace)
