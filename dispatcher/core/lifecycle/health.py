"""What is wrong with a gang that was dispatched, and from when on something is to be done about it.

Each trouble counts either from the dispatch, while the gang has never run, or from when it was first noted in
the record; what cures itself before its grace is over is forgotten. MCAD's checks apply where `minAvailable` was
written, v1beta2's to components. Without either a gang is taken back only for what does not cure itself: no pod at
all, pods that it had and lost, or a pod for which there is no node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from dispatcher.api import conditions as words
from dispatcher.core.kinds.completion import pods_of
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.model.pod_counts import PodCounts
from dispatcher.core.model.record import ObjectRef, Phase, Record

UNSEEN: Final = timedelta(seconds=5)
"""For so long a watch may not have shown an object that was created."""

_KEEPING: Final = frozenset({words.FAILED_COMPONENT, words.MISSING_COMPONENT, words.FOUND_FAILED_PODS})


def keeps_what_ended(record: Record) -> bool:
    """True if what has ended by itself stays for its logs while the rest of a failed gang is removed."""
    was_created = record.attempt is not None and record.attempt.created_at is not None
    return record.phase is Phase.FAILING and was_created and record.reason in _KEEPING


class Remedy(StrEnum):
    """What is done about a trouble that lasts."""

    REQUEUE = "requeue"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class HealthIssue:
    """Something wrong; `due` is when it is acted upon, None as long as it must be noted in the record first."""

    reason: str
    message: str
    remedy: Remedy
    due: datetime | None


@dataclass(frozen=True, slots=True)
class ObservedObjects:
    """What is seen of a dispatched gang: its pods, and each wrapped object in the order of the attempt's.

    A state is None where nothing is known; `absent` are objects that a complete watch does not have. `drift` says
    what somebody has changed of them; empty if nobody did.
    """

    pods: PodCounts = field(default_factory=PodCounts)
    states: tuple[ObjectState | None, ...] = ()
    absent: tuple[ObjectRef, ...] = ()
    drift: str = ""


def failures(record: Record, states: Sequence[ObjectState | None]) -> Iterator[HealthIssue]:
    """Wrapped objects that say they failed; one that was evicted may be tried again."""
    for ref, state in zip(_objects(record), states, strict=False):
        if state is not None and state.end in {End.FAILED, End.EVICTED}:
            failed = state.end is End.FAILED
            said = f": {state.message}" if state.message else ""
            yield HealthIssue(
                words.FAILED_COMPONENT if failed else words.FOUND_FAILED_PODS,
                f"{ref.kind} {ref.namespace}/{ref.name} {'failed' if failed else 'was evicted'}{said}",
                Remedy.FAIL if failed else Remedy.REQUEUE,
                record.phase_since,
            )


def deadline(record: Record, policy: LifecyclePolicy) -> HealthIssue | None:
    """The end of the time it may run."""
    if policy.limit is None:
        return None
    message = words.DEADLINE_MESSAGE.format(seconds=int(policy.limit.total_seconds()))
    due = _dispatched_at(record) + policy.limit
    return HealthIssue(words.DISPATCH_DEADLINE_EXCEEDED, message, Remedy.FAIL, due)


def missing(record: Record, absent: Sequence[ObjectRef], done: Collection[int] = ()) -> HealthIssue | None:
    """Objects that somebody deleted, before they were done; `done` are the items of which that is known."""
    lost = [ref for ref in absent if not (ref.done or ref.item in done)]
    if not lost:
        return None
    # What was created a moment ago may not have been seen yet.
    due = _dispatched_at(record) + UNSEEN
    expected = len(_objects(record))
    counted = words.MISSING_MESSAGE.format(found=expected - len(lost), expected=expected)
    named = ", ".join(f"{ref.kind} {ref.namespace}/{ref.name}" for ref in lost[:3])
    return HealthIssue(words.MISSING_COMPONENT, f"{counted}: {named} was deleted", Remedy.FAIL, due)


def shortage(
    record: Record, policy: LifecyclePolicy, pods: PodCounts, done: Collection[int] = ()
) -> HealthIssue | None:
    """Pods that should run and do not; those of items that are `done` need not, and may be gone."""
    pods = replace(pods, succeeded=completed(record, policy, pods, done))
    if policy.min_available:
        found = _shortage_of_mcad(record, policy, pods)
    else:
        found = _shortage(record, policy, pods, some_are_done=bool(done))
    if found is None:
        return None
    reason, message, grace = found
    due = _due(record, reason, grace, from_note=_lacks_only_nodes(record, policy, pods))
    trouble = HealthIssue(reason, message, Remedy.REQUEUE, due)
    if reason == words.FOUND_FAILED_PODS and policy.is_terminal(pods.exit_codes):
        codes = ", ".join(map(str, sorted(pods.exit_codes)))
        return HealthIssue(reason, f"{message}, with exit code {codes}", Remedy.FAIL, trouble.due)
    return trouble


_Found = tuple[str, str, timedelta]


def _shortage_of_mcad(record: Record, policy: LifecyclePolicy, pods: PodCounts) -> _Found | None:
    """Too few pods, or pods that cannot be scheduled; a wait that nobody wrote down is patient with a slow start."""
    minimum, run = policy.min_available or 0, running(pods)
    starting = 0 if policy.requeuing.explicit else pods.starting
    wait = policy.wait(record.requeuings)
    if run + pods.succeeded + starting < minimum:
        message = words.MIN_PODS_MESSAGE.format(minimum=minimum, running=run, completed=pods.succeeded)
        return words.MIN_PODS_NOT_RUNNING, message, wait
    if pods.unschedulable:
        message = words.PODS_FAILED_SCHEDULING_MESSAGE.format(failed=pods.unschedulable, running=run)
        return words.PODS_FAILED_SCHEDULING, message, wait
    return None


def completed(record: Record, policy: LifecyclePolicy, pods: PodCounts, done: Collection[int]) -> int:
    """How many pods have done their work: those that can be seen, or those that belong to what is done.

    Of these only as many as are missing: what is done may have live pods, which are counted as such.
    """
    return max(pods.succeeded, min(pods_of(policy.items, done), record.gang.pods - pods.live))


def _shortage(
    record: Record, policy: LifecyclePolicy, pods: PodCounts, *, some_are_done: bool
) -> _Found | None:
    run, wanted = running(pods) + pods.succeeded, record.gang.pods
    # What is done may have got there on a second try, and its failed pods are left.
    if pods.failed and policy.has_components and not some_are_done:
        return words.FOUND_FAILED_PODS, f"failed pods: {pods.failed}", policy.failure_grace
    if run >= wanted:
        return None
    message = f"{run} of {wanted} pods run"
    if not (pods.live or pods.failed or (pods.succeeded and not some_are_done)):
        if not (_has_run(record) or policy.expects_pods):
            return None
        return words.INSUFFICIENT_PODS_READY, f"{message}: there is none", policy.admission_grace
    if _is_ill(record, policy, pods):
        return words.INSUFFICIENT_PODS_READY, _with_lost(message, pods), policy.warmup_grace
    if pods.unschedulable:
        failed = words.PODS_FAILED_SCHEDULING_MESSAGE.format(failed=pods.unschedulable, running=running(pods))
        return words.INSUFFICIENT_PODS_READY, f"{message}: {failed}", policy.warmup_grace
    return None


def _lacks_only_nodes(record: Record, policy: LifecyclePolicy, pods: PodCounts) -> bool:
    """True if nothing else is wrong with a gang nobody asked to look after than that pods of it have no node.

    Such a pod may be made long after the dispatch, as by a StatefulSet, and have its node a moment later.
    """
    return pods.unschedulable > 0 and not policy.min_available and not _is_ill(record, policy, pods)


def _is_ill(record: Record, policy: LifecyclePolicy, pods: PodCounts) -> bool:
    """True if the pods that do not run are no slow start, and nobody's wish."""
    if policy.has_components:
        return not _has_run(record) or bool(pods.pending or pods.failed or pods.lost)
    failed = pods.failed > 0 and policy.counts_failed_pods
    if not _has_run(record):
        return bool(pods.lost or (failed and not pods.pending))
    # Fewer pods and nothing wrong: an autoscaler, or a hand, has scaled it down, or has one more started.
    return bool(failed or pods.lost or pods.pending > pods.starting)


def _with_lost(message: str, pods: PodCounts) -> str:
    return f"{message}, on nodes that do not answer: {pods.lost}" if pods.lost else message


def running(pods: PodCounts) -> int:
    """How many pods run on nodes that answer."""
    return max(0, pods.running - pods.lost)


def _due(record: Record, reason: str, grace: timedelta, *, from_note: bool) -> datetime | None:
    """Counted from the dispatch until it has run, or some of it is done; then, or if asked for, from the note."""
    if record.unhealthy is not None and is_the_same(record.unhealthy.reason, reason):
        return record.unhealthy.since + grace
    is_under_way = _has_run(record) or record.phase is Phase.RUNNING_HOLD_COMPLETION
    return None if is_under_way or from_note else _dispatched_at(record) + grace


def is_the_same(noted: str, reason: str) -> bool:
    """True if one trouble goes on: too few pods and pods without a node are the same shortage for MCAD."""
    return noted == reason or {noted, reason} <= words.REASONS_OF_MCAD


def _has_run(record: Record) -> bool:
    return record.attempt is not None and record.attempt.started_at is not None


def _dispatched_at(record: Record) -> datetime:
    """When all was created; of a record that has no such time, since when it is where it is."""
    created_at = record.attempt.created_at if record.attempt else None
    return created_at or record.phase_since


def _objects(record: Record) -> tuple[ObjectRef, ...]:
    return record.attempt.objects if record.attempt else ()
