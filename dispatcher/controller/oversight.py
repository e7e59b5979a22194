"""What is done about a gang that was dispatched and does not do well, or is done; each after asking once more.

What the watches told is a suspicion: before an attempt is given up for it, the API server itself is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dispatcher.api import conditions as words
from dispatcher.controller.cluster import Cluster
from dispatcher.controller.parts import Parts
from dispatcher.core import lifecycle
from dispatcher.core.decision import Decision, Observation, Step, decide
from dispatcher.core.record import ObjectRef, Record


async def complete(parts: Parts, record: Record, seen: Observation, decision: Decision) -> None:
    """Commit that it is complete, once a list of pods shows no live one of it."""
    cluster = parts.cluster_of(record)
    if cluster is None:
        return
    live = cluster.live_pods.ask((record.namespace, record.uid), record.version)
    if live is None:
        return  # the answer wakes us
    if live:
        parts.look_again(record)
        return
    now = parts.now()
    await parts.commit(lifecycle.complete(record, decision.done, now + seen.terms.kept_completed, now))
    parts.wake_dispatch()


async def act(parts: Parts, record: Record, seen: Observation, decision: Decision) -> None:
    """Requeue or fail it, if the API server agrees that it is as bad as it looks."""
    cluster = parts.cluster_of(record)
    if cluster is None:
        return
    confirmed = await _look_closer(record, seen, decision, cluster)
    again = decide(confirmed)
    if (again.step, again.reason) != (decision.step, decision.reason):
        parts.look_again(record)
        return
    message = again.message + await _hint(record, decision, seen, cluster)
    now = parts.now()
    if again.step is Step.FAIL:
        await parts.commit(lifecycle.fail(record, again.reason, message, now))
        return
    terms = seen.terms
    await parts.commit(
        lifecycle.preempt(
            record,
            again.reason,
            message,
            now + terms.pause(again.reason),
            int(terms.wait(record.requeuings + 1).total_seconds()),
            now,
        )
    )


async def _look_closer(
    record: Record, seen: Observation, decision: Decision, cluster: Cluster
) -> Observation:
    """The same observation with what it rests on asked anew."""
    match decision.reason:
        case words.MISSING_COMPONENT:
            absent = await _gone(record, seen.sight.absent, cluster)
            return replace(seen, sight=replace(seen.sight, absent=absent))
        case words.FAILED_COMPONENT | words.DISPATCH_DEADLINE_EXCEEDED:
            return seen  # a fact about an object, or a time: neither is taken back
        case _:
            pods = await cluster.live_pods.count((record.namespace, record.uid))
            return replace(seen, sight=replace(seen.sight, pods=pods))


async def _gone(record: Record, absent: Sequence[ObjectRef], cluster: Cluster) -> tuple[ObjectRef, ...]:
    return tuple([ref for ref in absent if await cluster.wrapped.is_gone(ref, record.uid)])


async def _hint(record: Record, decision: Decision, seen: Observation, cluster: Cluster) -> str:
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
