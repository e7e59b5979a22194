"""Health issues of a dispatched gang, and when each is due for an eviction or a failure.

The time of an issue begins at the dispatch while the gang has never run, later when the issue is noted in the record.
An issue that ends within its grace has no effect. MCAD's checks apply where `minAvailable` is written, v1beta2's to
components. Without either, a gang is evicted only for issues that do not recover: no pods at all, lost pods, or a pod
without a node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.core.kinds.completion import pods_of
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.model.growth import GatedPod, PodRef, PodsByTemplate, SurplusPod
from dispatcher.core.model.pod_counts import PodCounts
from dispatcher.core.model.potential import in_words
from dispatcher.core.model.record import ObjectRef, Phase, Record
from dispatcher.core.model.resources import Resources

UNSEEN: Final = timedelta(seconds=5)
"""The time after a creation in which a watch may not show the object yet."""

_KEEPING: Final = frozenset({words.FAILED_COMPONENT, words.MISSING_COMPONENT, words.FOUND_FAILED_PODS})


def keeps_what_ended(record: Record) -> bool:
    """True if ended objects of a failed gang stay for their logs while the others are removed."""
    was_created = record.attempt is not None and record.attempt.created_at is not None
    return record.phase is Phase.FAILING and was_created and record.reason in _KEEPING


class Remedy(StrEnum):
    """The step that follows once a health issue is due."""

    REQUEUE = "requeue"
    FAIL = "fail"


class HealthIssue(Struct, frozen=True):
    """A health issue; at `due` its remedy follows. `due` is None until the issue is noted in the record."""

    reason: str
    message: str
    remedy: Remedy
    due: datetime | None


class ObservedObjects(Struct, frozen=True):
    """The pods of a dispatched gang, and the states of its wrapped objects in the order of the attempt.

    A state is None where it is unknown; `absent` are objects that a complete watch does not have. `drift` names the
    changed fields; empty if there are none, None while that is not known. `taken` are the requests of the live pods
    that it is charged for, which are the bound ones, or the admitted ones if its templates have the dispatcher's gate;
    None if not known. `beyond` are its admitted pods beyond the base gang, None if its templates have no gate. `gated`
    are its pods with the gate, the oldest first. It `gives_up` pods while one of those that it gives up for another
    gang is live; `to_delete` are those of them whose deletion was not requested yet. `unplaced` are its granted pods
    without a node, with the other hosts of their slices.
    """

    pods: PodCounts = field(default_factory=PodCounts)
    states: tuple[ObjectState | None, ...] = ()
    absent: tuple[ObjectRef, ...] = ()
    drift: str | None = ""
    taken: Resources | None = None
    gated: tuple[GatedPod, ...] = ()
    gives_up: bool = False
    to_delete: tuple[PodRef, ...] = ()
    beyond: PodsByTemplate | None = None
    unplaced: tuple[SurplusPod, ...] = ()


def failures(record: Record, states: Sequence[ObjectState | None]) -> Iterator[HealthIssue]:
    """Wrapped objects that failed; a gang with an evicted Pod is requeued."""
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
    """The end of the dispatch duration."""
    if policy.limit is None:
        return None
    message = words.DEADLINE_MESSAGE.format(seconds=int(policy.limit.total_seconds()))
    due = _dispatched_at(record) + policy.limit
    return HealthIssue(words.DISPATCH_DEADLINE_EXCEEDED, message, Remedy.FAIL, due)


def missing(record: Record, absent: Sequence[ObjectRef], done: Collection[int] = ()) -> HealthIssue | None:
    """Objects that were deleted before they were done; `done` are the done items."""
    lost = [ref for ref in absent if not (ref.done or ref.item in done)]
    if not lost:
        return None
    # A watch may not show a new object yet.
    due = _dispatched_at(record) + UNSEEN
    expected = len(_objects(record))
    counted = words.MISSING_MESSAGE.format(found=expected - len(lost), expected=expected)
    named = ", ".join(f"{ref.kind} {ref.namespace}/{ref.name}" for ref in lost[:3])
    return HealthIssue(words.MISSING_COMPONENT, f"{counted}: {named} was deleted", Remedy.FAIL, due)


def potential_nodes_missing(
    record: Record, pods: PodCounts, bind_within: timedelta | None, awaited: Collection[str], now: datetime
) -> HealthIssue | None:
    """Pods without nodes of a gang on trust, which must have them `bind_within` after its creation.

    `bind_within` is None for a gang that is not on trust. `awaited` are the pools whose nodes have not come. Once all
    have, a pod may lack its node for another reason: it has just been made in place of another one, or its scheduler is
    slow.
    """
    if bind_within is None or not pods.unbound or record.attempt is None:
        return None
    seconds, trusted = int(bind_within.total_seconds()), in_words(record.attempt.assignment.trusted)
    said = f"pods without a node {seconds} s after their creation: {pods.unbound}"
    message = f"{said}; the gang trusted {trusted} to come"
    due = _dispatched_at(record) + bind_within
    if now >= due and not awaited:
        return None
    return HealthIssue(words.POTENTIAL_NODES_MISSING, message, Remedy.REQUEUE, due)


def missing_pods(
    record: Record,
    policy: LifecyclePolicy,
    pods: PodCounts,
    done: Collection[int] = (),
    bind_within: timedelta | None = None,
) -> HealthIssue | None:
    """Pods that should run and do not; pods of `done` items need not, and may be gone.

    The time of a gang on trust begins once its pods should have nodes, `bind_within` after its creation.
    """
    pods = replace(pods, succeeded=completed(record, policy, pods, done))
    if policy.min_available:
        found = _shortage_of_mcad(record, policy, pods)
    else:
        found = _shortage(record, policy, pods, some_are_done=bool(done))
    if found is None:
        return None
    reason, message, grace = found
    due = _due(record, reason, grace, from_note=_lacks_only_nodes(record, policy, pods))
    if bind_within is not None and reason != words.FOUND_FAILED_PODS:
        due = _dispatched_at(record) + bind_within + grace
    issue = HealthIssue(reason, message, Remedy.REQUEUE, due)
    if reason == words.FOUND_FAILED_PODS and policy.is_terminal(pods.exit_codes):
        codes = ", ".join(map(str, sorted(pods.exit_codes)))
        return HealthIssue(reason, f"{message}, with exit code {codes}", Remedy.FAIL, issue.due)
    return issue


_Found = tuple[str, str, timedelta]


def _shortage_of_mcad(record: Record, policy: LifecyclePolicy, pods: PodCounts) -> _Found | None:
    """Too few pods, or unschedulable pods; starting pods count as running unless the author wrote a wait."""
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
    """The number of completed pods: the succeeded ones, or those of the done items.

    Pods of done items count only up to the missing number: live pods of done items are counted as live.
    """
    return max(pods.succeeded, min(pods_of(policy.items, done), record.gang.pods - pods.live))


def _shortage(
    record: Record, policy: LifecyclePolicy, pods: PodCounts, *, some_are_done: bool
) -> _Found | None:
    run, wanted = running(pods) + pods.succeeded, record.gang.pods
    # A done item may have succeeded on a second try, and its failed pods are left.
    if pods.failed and policy.has_components and not some_are_done:
        return words.FOUND_FAILED_PODS, f"failed pods: {pods.failed}", policy.failure_grace
    if run >= wanted:
        return None
    message = f"{run} of {wanted} pods run"
    if not (pods.live or pods.failed or (pods.succeeded and not some_are_done)):
        if not (_has_run(record) or policy.expects_pods):
            return None
        return words.INSUFFICIENT_PODS_READY, f"{message}: there is none", policy.admission_grace
    if _is_unhealthy(record, policy, pods):
        return words.INSUFFICIENT_PODS_READY, _with_lost(message, pods), policy.warmup_grace
    if pods.unschedulable:
        failed = words.PODS_FAILED_SCHEDULING_MESSAGE.format(failed=pods.unschedulable, running=running(pods))
        return words.INSUFFICIENT_PODS_READY, f"{message}: {failed}", policy.warmup_grace
    return None


def _lacks_only_nodes(record: Record, policy: LifecyclePolicy, pods: PodCounts) -> bool:
    """True if unschedulable pods are the only issue of a gang without `minAvailable`.

    Such a pod may be made long after the dispatch, as by a StatefulSet, and have its node a moment later.
    """
    return pods.unschedulable > 0 and not policy.min_available and not _is_unhealthy(record, policy, pods)


def _is_unhealthy(record: Record, policy: LifecyclePolicy, pods: PodCounts) -> bool:
    """True if the pods that do not run are neither starting nor scaled down, nor a growth that waits for a grant."""
    pods = replace(pods, pending=pods.pending - pods.gated)
    if policy.has_components:
        return not _has_run(record) or bool(pods.pending or pods.failed or pods.lost)
    failed = pods.failed > 0 and policy.counts_failed_pods
    if not _has_run(record):
        return bool(pods.lost or (failed and not pods.pending))
    # Fewer pods without failures: an autoscaler or a user scaled the object, or another pod is starting.
    return bool(failed or pods.lost or pods.pending > pods.starting)


def _with_lost(message: str, pods: PodCounts) -> str:
    return f"{message}, on nodes that do not answer: {pods.lost}" if pods.lost else message


def running(pods: PodCounts) -> int:
    """How many pods run on nodes that answer."""
    return max(0, pods.running - pods.lost)


def _due(record: Record, reason: str, grace: timedelta, *, from_note: bool) -> datetime | None:
    """The grace counts from the dispatch until the gang has run or an item is done, then from the note."""
    if record.unhealthy is not None and is_the_same(record.unhealthy.reason, reason):
        return record.unhealthy.since + grace
    is_under_way = _has_run(record) or record.phase is Phase.RUNNING_HOLD_COMPLETION
    return None if is_under_way or from_note else _dispatched_at(record) + grace


def is_the_same(noted: str, reason: str) -> bool:
    """True if one issue goes on: too few pods and unschedulable pods are the same issue for MCAD."""
    return noted == reason or {noted, reason} <= words.REASONS_OF_MCAD


def _has_run(record: Record) -> bool:
    return record.attempt is not None and record.attempt.started_at is not None


def _dispatched_at(record: Record) -> datetime:
    """When all objects were created; without that time, when the phase began."""
    created_at = record.attempt.created_at if record.attempt else None
    return created_at or record.phase_since


def _objects(record: Record) -> tuple[ObjectRef, ...]:
    return record.attempt.objects if record.attempt else ()
