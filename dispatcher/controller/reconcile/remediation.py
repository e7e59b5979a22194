"""What is done about a gang that was dispatched and does not do well, or is done; each after asking once more.

What the watches told is a suspicion: before an attempt is given up for it, the API server itself is asked.
"""

from __future__ import annotations

from dataclasses import replace

from dispatcher.api import conditions as words
from dispatcher.controller.intake.specs import owner_of
from dispatcher.controller.members.cluster import Cluster
from dispatcher.controller.reconcile.parts import Parts
from dispatcher.core.lifecycle import steps
from dispatcher.core.lifecycle.decision import Decision, ObservedState, Step, decide
from dispatcher.core.lifecycle.health import ObservedObjects
from dispatcher.core.lifecycle.steps import EvictionReason
from dispatcher.core.model.record import Record


async def complete(parts: Parts, record: Record, seen: ObservedState, decision: Decision) -> None:
    """Commit that it is complete, once a list of pods shows no live one of it."""
    cluster = parts.cluster_of(record)
    if cluster is None:
        return
    left = cluster.live_pods.ask((record.namespace, record.uid), record.version)
    if left is None:
        return  # the answer wakes us
    if left.live:
        parts.look_again(record)
        return
    now = parts.now()
    await parts.commit(steps.complete(record, decision.done, now + seen.terms.kept_completed, now))
    parts.wake_dispatch()


async def act(parts: Parts, record: Record, seen: ObservedState, decision: Decision) -> None:
    """Requeue or fail it, if the API server agrees that it is as bad as it looks."""
    cluster = parts.cluster_of(record)
    if cluster is None:
        return
    confirmed = await _look_closer(parts, record, seen, decision, cluster)
    again = decide(confirmed)
    if (again.step, again.reason) != (decision.step, decision.reason):
        if decision.reason == words.MISSING_COMPONENT:
            await _take_as_found(parts, record, confirmed, again)
        else:
            parts.look_again(record)
        return
    hint = await _hint(record, decision, seen, cluster)
    verdict = EvictionReason(again.reason, again.message, again.detail + hint)
    now, terms = parts.now(), seen.terms
    if again.step is Step.FAIL:
        await parts.commit(steps.fail(record, verdict, now))
        return
    eligible_at = now + terms.pause(again.reason)
    next_wait = int(terms.wait(record.requeuings + 1).total_seconds())
    await parts.commit(steps.evict(record, verdict, eligible_at, next_wait, now, again.done))


async def _take_as_found(parts: Parts, record: Record, confirmed: ObservedState, again: Decision) -> None:
    """What seemed to be missing exists: commit how it ended, if it has; else wait until the watch shows it, too.

    If it cannot be given our marks, no watch ever will, and its end must be seen all the same.
    """
    match again.step:
        case Step.NOTE_DONE:
            await parts.commit(steps.note_done(record, again.done, parts.now()))
        case Step.NOTE_PROGRESS:
            await parts.commit(steps.complete_some(record, again.done, parts.now()))
        case Step.FAIL | Step.REQUEUE:
            await act(parts, record, confirmed, again)
        case _:
            parts.look_again(record)


async def _look_closer(
    parts: Parts, record: Record, seen: ObservedState, decision: Decision, cluster: Cluster
) -> ObservedState:
    """The same observation with what it rests on asked anew."""
    match decision.reason:
        case words.MISSING_COMPONENT:
            return replace(seen, sight=await _without_doubt(parts, record, seen.sight, cluster))
        case words.FAILED_COMPONENT | words.DISPATCH_DEADLINE_EXCEEDED:
            return seen  # a fact about an object, or a time: neither is taken back
        case _:
            pods = await cluster.live_pods.count((record.namespace, record.uid))
            return replace(seen, sight=replace(seen.sight, pods=pods))


async def _without_doubt(
    parts: Parts, record: Record, sight: ObservedObjects, cluster: Cluster
) -> ObservedObjects:
    """What is to be seen of the objects if those that the watches miss are looked for."""
    owner, wrapped = owner_of(record, parts.hub_id), (await parts.specs.of(record)).wrapped
    objects = record.attempt.objects if record.attempt else ()
    found = {
        ref: await cluster.wrapped.reclaim(wrapped[ref.item], ref, owner)
        for ref in objects
        if ref in sight.absent
    }
    states = tuple(found.get(ref) or state for ref, state in zip(objects, sight.states, strict=False))
    return replace(sight, states=states, absent=tuple(ref for ref, state in found.items() if state is None))


async def _hint(record: Record, decision: Decision, seen: ObservedState, cluster: Cluster) -> str:
    """Why pods do not come, in the words of whoever should make them: often an Event is all there is of it."""
    if decision.reason not in {words.INSUFFICIENT_PODS_READY, words.MIN_PODS_NOT_RUNNING}:
        return ""
    if seen.sight.pods.live:
        return ""
    objects = record.attempt.objects if record.attempt else ()
    for ref, state in zip(objects, seen.sight.states, strict=False):
        said = (state.message if state else "") or await cluster.wrapped.complaint(ref)
        if said:
            return f"; {ref.kind} {ref.namespace}/{ref.name}: {said}"
    return ""
