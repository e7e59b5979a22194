"""What is to be done about one AppWrapper next: a value for everything that can be seen of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, assert_never

from dispatcher.api import conditions as words
from dispatcher.api.clusterpolicies import OnClusterLost
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.core.kinds.completion import Progress, progress
from dispatcher.core.kinds.object_status import End
from dispatcher.core.lifecycle import health
from dispatcher.core.lifecycle.health import HealthIssue, ObservedObjects, Remedy
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.model.pod_counts import PodCounts
from dispatcher.core.model.record import ACTIVE, Phase, Record
from dispatcher.core.model.requirements import ClusterRequirements


@dataclass(frozen=True, slots=True)
class Loss:
    """A cluster that does not answer: from `due` on its operator's policy counts for what was dispatched there.

    One that `is_undeclared` will never be asked again, as far as anybody knows.
    """

    policy: OnClusterLost
    due: datetime
    message: str
    is_undeclared: bool = False


@dataclass(frozen=True, slots=True)
class ObservedState:
    """One AppWrapper as seen now.

    `wanted` is false once it is gone, or on its way out, at the API server. `asked` is what its spec asks for now
    of what may change; None if that is not known. `objects` and `policy` count only once it was dispatched, and while
    its cluster is not `unreachable`, which says why in a sentence. `draining` says why the cluster is being drained.
    """

    record: Record | None
    wanted: bool
    now: datetime
    asked: MutableSpec | None = None
    policy: LifecyclePolicy = field(default_factory=LifecyclePolicy)
    objects: ObservedObjects = field(default_factory=ObservedObjects)
    unreachable: str = ""
    draining: str = ""
    loss: Loss | None = None
    is_finalizing: bool = False
    """True while the AppWrapper is being deleted and bears the dispatcher's finalizer."""


class Step(StrEnum):
    """What the reconciler does about one AppWrapper."""

    NOOP = "noop"
    """Nothing, until something changes."""
    TAKE_IN = "take-in"
    """Read it, and queue or reject it."""
    DELETE = "delete"
    """It was deleted: commit that."""
    REPRIORITISE = "reprioritise"
    """Commit the priority it asks for now."""
    REDIRECT = "redirect"
    """Commit to which clusters it asks to go now."""
    SUSPEND = "suspend"
    """Commit that its user holds it back."""
    RESUME = "resume"
    """Commit that its user released it."""
    CREATE = "create"
    """Create its wrapped objects, then commit what came of it."""
    MARK_RUNNING = "mark-running"
    """Commit that its pods run."""
    NOTE_HEALTH_ISSUE = "note-health-issue"
    """Commit that something is wrong with it."""
    NOTE_RECOVERY = "note-recovery"
    """Commit that nothing is wrong with it any more."""
    NOTE_PROGRESS = "note-progress"
    """Commit that some of its wrapped objects are done."""
    NOTE_DONE = "note-done"
    """Commit which of its wrapped objects are done, before anybody asks for their pods."""
    COMPLETE = "complete"
    """Commit that it is complete, once no live pod of it is confirmed."""
    REQUEUE = "requeue"
    """Take it from its cluster, once what is wrong with it is confirmed."""
    FAIL = "fail"
    """Commit that it failed, once that is confirmed."""
    REMOVE = "remove"
    """Delete what the attempt created, and commit once that is confirmed gone."""
    CONFIRM_GONE = "confirm-gone"
    """Commit the release once objects and pods are confirmed gone."""
    ABANDON = "abandon"
    """Commit that its attempt was given up with the cluster."""
    LOSE = "lose"
    """Commit that it failed with the cluster."""
    EXPIRE = "expire"
    """Delete what was kept after its end, and commit once that is gone."""
    REMOVE_FINALIZER = "remove-finalizer"
    """Let the API server delete the AppWrapper: no cluster has anything of it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The step, and what it needs to know.

    `reason` and `message` say why, `detail` what MCAD would not have said; `done` are the items known to be done,
    or, where it leaves its cluster, those that need not be done again; `until` is when to look again though nothing
    happens, None for never.
    """

    step: Step
    reason: str = ""
    message: str = ""
    detail: str = ""
    done: frozenset[int] = frozenset()
    until: datetime | None = None


NOOP: Final = Decision(Step.NOOP)


def decide(seen: ObservedState) -> Decision:
    """The next step for one AppWrapper; repeating it is always safe."""
    record = seen.record
    if record is None:
        if seen.wanted:
            return Decision(Step.TAKE_IN)
        return Decision(Step.REMOVE_FINALIZER) if seen.is_finalizing else NOOP
    if record.phase is Phase.DELETED:
        return NOOP
    if seen.loss and record.holds_capacity and _is_given_up(record, seen.loss, seen.now):
        return _give_up(record, seen.loss)
    if not seen.wanted and record.phase is not Phase.DELETING:
        return Decision(Step.EXPIRE if _is_left_in_member(record, seen.loss) else Step.DELETE)
    if record.phase in ACTIVE and _is_held_back(seen):
        return Decision(Step.SUSPEND, done=_finished(record, seen))
    return _note_its_cluster(record, seen) or _go_on(record, seen)


def _note_its_cluster(record: Record, seen: ObservedState) -> Decision | None:
    """Say that its cluster is away, where nothing is known of it and nothing can be done, or that it is back.

    What is to be watched over is judged afresh instead once it is back.
    """
    is_said = record.unhealthy is not None and record.unhealthy.reason == words.CLUSTER_UNREACHABLE
    if not record.holds_capacity or bool(seen.unreachable) is is_said:
        return None
    if seen.unreachable:
        return Decision(Step.NOTE_HEALTH_ISSUE, words.CLUSTER_UNREACHABLE, seen.unreachable)
    return None if record.phase in ACTIVE else Decision(Step.NOTE_RECOVERY)


def _go_on(record: Record, seen: ObservedState) -> Decision:
    if record.phase is Phase.DELETING:
        return Decision(Step.CONFIRM_GONE)
    if record.phase in ACTIVE:
        return NOOP if seen.unreachable else _watch_over(record, seen)
    return _decide_inactive(record, seen)


def _is_left_in_member(record: Record, loss: Loss | None) -> bool:
    """True while something is kept in a member cluster, where nothing goes with the AppWrapper by itself."""
    return record.kept_until is not None and _is_in_member(record) and not (loss and loss.is_undeclared)


def _is_given_up(record: Record, loss: Loss, now: datetime) -> bool:
    """True once its cluster is not waited for any more; what was deleted does not wait for one nobody declares."""
    if loss.is_undeclared and record.phase is Phase.DELETING:
        return True
    return loss.policy is not OnClusterLost.WAIT and now >= loss.due


def _give_up(record: Record, loss: Loss) -> Decision:
    """What is on its way back, or out, goes on to where it was going; what was dispatched follows the policy."""
    fails = record.phase is Phase.FAILING or (
        loss.policy is OnClusterLost.FAIL and record.phase in {Phase.DISPATCHING, *ACTIVE}
    )
    return Decision(Step.LOSE if fails else Step.ABANDON, words.CLUSTER_LOST, loss.message)


def _decide_inactive(record: Record, seen: ObservedState) -> Decision:
    match record.phase:
        case Phase.QUEUED:
            return Decision(Step.SUSPEND) if _is_held_back(seen) else _follow(record, seen.asked)
        case Phase.SUSPENDED:
            released = seen.asked is not None and not seen.asked.suspend
            return Decision(Step.RESUME) if released else _follow(record, seen.asked)
        case Phase.DISPATCHING:
            return Decision(Step.SUSPEND if _is_held_back(seen) else Step.CREATE, done=_known_done(record))
        case Phase.REQUEUEING | Phase.SUSPENDING | Phase.FAILING:
            return Decision(Step.REMOVE)
        case Phase.FAILED | Phase.COMPLETED:
            return _expire(record, seen.now)
        case (
            Phase.DISPATCHED | Phase.RUNNING | Phase.RUNNING_HOLD_COMPLETION | Phase.DELETING | Phase.DELETED
        ):
            return NOOP  # decided before
        case _:
            assert_never(record.phase)


def pods_run(record: Record, policy: LifecyclePolicy, pods: PodCounts) -> bool:
    """True if as many pods run, or have done their work, as the gang needs; a gang without pods always runs."""
    return (
        health.running(pods) + health.completed(record, policy, pods, _known_done(record)) >= record.gang.pods
    )


def retry_pause(attempts: int) -> timedelta:
    """How long to wait before a creation that was postponed is tried again: 5 s, doubling, at most 5 minutes."""
    return min(timedelta(minutes=5), timedelta(seconds=5 * 2.0 ** min(max(0, attempts - 1), 10)))


def _is_in_member(record: Record) -> bool:
    return record.attempt is not None and record.attempt.cluster != HUB_CLUSTER


def _is_held_back(seen: ObservedState) -> bool:
    return seen.asked is not None and seen.asked.suspend


def _follow(record: Record, asked: MutableSpec | None) -> Decision:
    """Do what its user has changed meanwhile; first where it may go, which a cycle waits for (`is_as_asked`)."""
    if asked is None:
        return NOOP
    if asked_requirements(record, asked) != record.requirements:
        return Decision(Step.REDIRECT)
    is_as_urgent = (asked.priority, asked.priority_slope) == (record.priority, record.priority_slope)
    return NOOP if is_as_urgent else Decision(Step.REPRIORITISE)


def asked_requirements(record: Record, asked: MutableSpec) -> ClusterRequirements:
    """What it requires of a cluster, as its user has it now; what is no selector changes nothing."""
    requirements = record.requirements
    selector = requirements.selector if asked.selector is None else asked.selector
    prefers = requirements.prefers if asked.prefers is None else asked.prefers
    return requirements.directed(selector, prefers)


def is_as_asked(record: Record, wanted: bool, asked: MutableSpec | None) -> bool:
    """True unless the user of a queued gang suspends, redirects or deletes it, and the record does not say so yet.

    A changed priority does not count: it changes whose turn it is, not whether or where the gang may run.
    """
    if asked is None:
        return wanted
    return wanted and not asked.suspend and asked_requirements(record, asked) == record.requirements


def _expire(record: Record, now: datetime) -> Decision:
    if record.kept_until is None:
        return NOOP
    return Decision(Step.EXPIRE) if now >= record.kept_until else Decision(Step.NOOP, until=record.kept_until)


# --- what was dispatched ---------------------------------------------------------------------------------


def _watch_over(record: Record, seen: ObservedState) -> Decision:
    """In this order: it runs, failed, is complete, has to go elsewhere, was in trouble for too long, makes progress."""
    pods = seen.objects.pods
    if record.phase is Phase.DISPATCHED and pods_run(record, seen.policy, pods):
        return Decision(Step.MARK_RUNNING)
    failures = sorted(health.failures(record, seen.objects.states), key=_is_curable)
    if failures:
        return _act(failures[0], record, seen)
    done = _done(record, seen)
    items = seen.policy.items
    achieved = progress(items, [index in done for index in range(len(items))])
    if achieved is Progress.ALL and not pods.live and not _has_only_begun(record, seen):
        return Decision(Step.COMPLETE if done <= _known_done(record) else Step.NOTE_DONE, done=done)
    if seen.draining:
        return Decision(Step.REQUEUE, words.CLUSTER_DRAINING, seen.draining, done=_finished(record, seen))
    troubles = _troubles(record, seen, achieved, done)
    for trouble in troubles:
        if trouble.due is not None and trouble.due <= seen.now:
            return _act(trouble, record, seen)
    if achieved is not Progress.NONE and _is_news(record, done):
        return Decision(Step.NOTE_PROGRESS, done=done)
    return _note(record, troubles, seen.objects.drift)


def _is_news(record: Record, done: frozenset[int]) -> bool:
    """True if more is done than was noted, or if what an earlier attempt finished was not yet noted of this one."""
    return not done <= _known_done(record) or record.phase is Phase.RUNNING


def _has_only_begun(record: Record, seen: ObservedState) -> bool:
    """True while no pod was ever seen of one that goes on by its kind, whatever its author calls done.

    A Deployment is Progressing before it has made its first pod.
    """
    attempt, pods = record.attempt, seen.objects.pods
    if attempt is None or attempt.started_at or pods.succeeded or not seen.policy.expects_pods:
        return False
    return any(state is not None and state.end is End.OPEN for state in seen.objects.states)


def _is_curable(trouble: HealthIssue) -> bool:
    return trouble.remedy is Remedy.REQUEUE


def _troubles(
    record: Record, seen: ObservedState, achieved: Progress, done: frozenset[int]
) -> list[HealthIssue]:
    """What is wrong or will be; where all is done, nothing has to run any more, unless it has only begun."""
    only_begun = achieved is Progress.ALL and _has_only_begun(record, seen)
    short = achieved is not Progress.ALL or (only_begun and not seen.objects.pods.live)
    done = frozenset() if only_begun else done
    found = [
        health.deadline(record, seen.policy),
        health.missing(record, seen.objects.absent, done),
        health.shortage(record, seen.policy, seen.objects.pods, done) if short else None,
    ]
    return [trouble for trouble in found if trouble is not None]


def _note(record: Record, troubles: list[HealthIssue], drift: str) -> Decision:
    """Keep the record's word about what is wrong current; rest until the next of the troubles is due.

    A drift never is: it is told while nothing else is, and nothing is done about it.
    """
    for trouble in troubles:
        if trouble.due is None:
            return Decision(Step.NOTE_HEALTH_ISSUE, trouble.reason, trouble.message)
    noted = record.unhealthy
    if not (noted and any(health.is_the_same(noted.reason, trouble.reason) for trouble in troubles)):
        if drift and (noted is None or (noted.reason, noted.message) != (words.DRIFTED, drift)):
            return Decision(Step.NOTE_HEALTH_ISSUE, words.DRIFTED, drift)
        if noted and not drift:
            return Decision(Step.NOTE_RECOVERY)
    dues = [trouble.due for trouble in troubles if trouble.due is not None]
    return Decision(Step.NOOP, until=min(dues, default=None))


def _act(trouble: HealthIssue, record: Record, seen: ObservedState) -> Decision:
    """Take it back while that may help; a trouble that came back too often is a failure."""
    if trouble.remedy is Remedy.FAIL:
        return Decision(Step.FAIL, trouble.reason, trouble.message)
    if seen.policy.is_spent(record, trouble.reason):
        detail = f" (requeued so far: {record.requeuings})"
        return Decision(Step.FAIL, trouble.reason, trouble.message, detail)
    return Decision(Step.REQUEUE, trouble.reason, trouble.message, done=_finished(record, seen))


def _done(record: Record, seen: ObservedState) -> frozenset[int]:
    """The items that are done, now or as was seen before."""
    objects = record.attempt.objects if record.attempt else ()
    now_done = {
        ref.item
        for ref, state in zip(objects, seen.objects.states, strict=False)
        if ref.item < len(seen.policy.items) and seen.policy.items[ref.item].is_met_by(state)
    }
    return _known_done(record) | now_done


def _finished(record: Record, seen: ObservedState) -> frozenset[int]:
    """The items that are done and come to no more by their kind: the next attempt leaves them as they are.

    What its author called done while it goes on (a Deployment that is available) is needed again.
    """
    if _is_in_member(record):
        return frozenset()  # they go with the anchor of their attempt
    done, items = _done(record, seen), seen.policy.items
    objects = record.attempt.objects if record.attempt else ()
    return frozenset(
        ref.item
        for ref, state in zip(objects, seen.objects.states, strict=False)
        if ref.item in done and items[ref.item].ends and (state is None or state.end is End.SUCCEEDED)
    )


def _known_done(record: Record) -> frozenset[int]:
    return (
        frozenset(ref.item for ref in record.attempt.objects if ref.done) if record.attempt else frozenset()
    )
