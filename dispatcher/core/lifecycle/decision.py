"""The next step of one AppWrapper, as a function of its observed state.

Where nothing is awaited the decision is the change to commit, else an act of the reconciler.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, TypeGuard, assert_never

from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.clusters.clusterpolicies import OnClusterLost
from dispatcher.api.conditions import ConditionType
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.core.kinds.completion import Progress, progress
from dispatcher.core.kinds.object_status import End
from dispatcher.core.lifecycle import health, provisioning, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.growth import (
    admissible,
    count_of,
    growth_due,
    pods_soon,
    taken_soon,
    with_pods,
)
from dispatcher.core.lifecycle.health import HealthIssue, ObservedObjects, Remedy
from dispatcher.core.lifecycle.missing_pods import NONE_WITHHELD, Withheld, says_otherwise
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.lifecycle.provisioning import Answer
from dispatcher.core.lifecycle.record_change import live_attempt, noted_warning
from dispatcher.core.lifecycle.step import NOOP, Act, Commit, Decision, Do, Loss, ObservedState
from dispatcher.core.model.clusters.potential import in_words
from dispatcher.core.model.gangs.pods import PodCounts
from dispatcher.core.model.records.provisioning import Provisioning
from dispatcher.core.model.records.record import ACTIVE, Change, Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import Resources


def decide(seen: ObservedState) -> Decision:
    """The next step for one AppWrapper; repeating it is always safe."""
    record = seen.record
    if record is None:
        if seen.wanted:
            return Do(Act.TAKE_IN)
        return Do(Act.REMOVE_FINALIZER) if seen.is_finalizing else NOOP
    if record.phase is Phase.DELETED:
        return NOOP
    if seen.loss and record.holds_capacity and _is_given_up(record, seen.loss, seen.now):
        return _give_up(record, seen.loss, seen.now)
    if not seen.wanted and record.phase is not Phase.DELETING:
        return Do(Act.EXPIRE if _is_left_in_member(record, seen.loss) else Act.DELETE)
    if record.phase in ACTIVE and _is_suspended(seen):
        return _suspend(record, seen, _finished(record, seen))
    return _note_its_cluster(record, seen) or _follow_choice(record, seen, _go_on(record, seen))


def _note_its_cluster(record: Record, seen: ObservedState) -> Decision | None:
    """Notes that the cluster became unreachable, or reachable again.

    An active gang is evaluated afresh instead, once its cluster is reachable again.
    """
    is_said = record.unhealthy is not None and record.unhealthy.reason == words.CLUSTER_UNREACHABLE
    if not record.holds_capacity or bool(seen.unreachable) is is_said:
        return None
    if seen.unreachable:
        return Do(Act.NOTE_HEALTH_ISSUE, words.CLUSTER_UNREACHABLE, seen.unreachable)
    return None if record.phase in ACTIVE else Commit(run_changes.recover(record, seen.now))


def _go_on(record: Record, seen: ObservedState) -> Decision:
    if record.phase is Phase.DELETING:
        return Do(Act.CONFIRM_GONE)
    if record.phase in ACTIVE:
        return NOOP if seen.unreachable else _let_grow(record, seen, _watch_over(record, seen))
    return _decide_inactive(record, seen)


def _follow_choice(record: Record, seen: ObservedState, next_step: Decision) -> Decision:
    """Notes other notifications, once there is nothing else to do; an AppWrapper that has ended keeps its own.

    After each choice the next one waits for its turn, and the latest counts then.
    """
    chosen = seen.notifications
    if chosen is None or record.phase not in queue_changes.CHOOSING or not _rests(next_step):
        return next_step
    if str(chosen) == record.notifications:
        return next_step
    due = seen.chosen_at + queue_changes.CHOSEN_EVERY if seen.chosen_at else seen.now
    if seen.now < due:
        return replace(next_step, until=min(due, next_step.until or due))
    change = queue_changes.choose_notifications(record, str(chosen), seen.now, chosen.problems)
    return Commit(change, follows_user=True)


def _is_left_in_member(record: Record, loss: Loss | None) -> bool:
    """True while a member cluster has kept objects, which are not deleted with the AppWrapper."""
    return record.kept_until is not None and _is_in_member(record) and not (loss and loss.is_undeclared)


def _is_given_up(record: Record, loss: Loss, now: datetime) -> bool:
    """True once the gang no longer waits for its cluster; a deleted gang does not wait for an undeclared one."""
    if loss.is_undeclared and record.phase is Phase.DELETING:
        return True
    return loss.policy is not OnClusterLost.WAIT and now >= loss.due


def _give_up(record: Record, loss: Loss, now: datetime) -> Decision:
    """Ends the attempt: a removal goes on to its target phase, another gang follows the policy."""
    fails = record.phase is Phase.FAILING or (
        loss.policy is OnClusterLost.FAIL and record.phase in {Phase.DISPATCHING, *ACTIVE}
    )
    if fails:
        return Commit(removal.lose(record, loss.message, now))
    return Commit(removal.abandon(record, loss.message, now), wakes_scheduler=True)


def _decide_inactive(record: Record, seen: ObservedState) -> Decision:
    match record.phase:
        case Phase.QUEUED:
            return _decide_queued(record, seen)
        case Phase.SUSPENDED:
            released = seen.asked is not None and not seen.asked.suspend
            return _by_user(queue_changes.resume(record, seen.now)) if released else _follow(record, seen)
        case Phase.DISPATCHING:
            if _is_suspended(seen):
                return _suspend(record, seen, _noted_done(record))
            return _await_capacity(record, seen) or Do(Act.CREATE, done=_noted_done(record))
        case Phase.REQUEUEING | Phase.SUSPENDING | Phase.FAILING:
            return Do(Act.REMOVE)
        case Phase.FAILED | Phase.COMPLETED:
            return _expire(record, seen.now)
        case (
            Phase.DISPATCHED | Phase.RUNNING | Phase.RUNNING_HOLD_COMPLETION | Phase.DELETING | Phase.DELETED
        ):
            return NOOP  # decided before
        case _:
            assert_never(record.phase)


def _await_capacity(record: Record, seen: ObservedState) -> Decision | None:
    """The next step of a gang that waits for requested capacity; None for a gang that does not wait for any."""
    attempt = record.attempt
    if attempt is None or attempt.provisioning is None or not attempt.awaits_capacity:
        return None
    noted = attempt.provisioning
    if seen.draining:
        return Commit(provisioning.leave(record, seen.draining, seen.now))
    if not noted.request_uid:
        return Do(Act.REQUEST_CAPACITY)
    noted_at = noted.noted_at or attempt.decided_at
    if seen.request_is_absent:
        again = noted_at + provisioning.LEAST_BETWEEN_REQUESTS
        return Do(Act.NOOP, until=again) if again > seen.now else Do(Act.REQUEST_CAPACITY)
    answer = provisioning.answer_of(seen.request)
    said = provisioning.sentence(seen.request, attempt.cluster)
    if answer in provisioning.BROKEN:
        return Do(Act.REQUEST_ELSEWHERE, words.PROVISIONING_FAILED, said)
    if answer is Answer.PROVISIONED:
        return Commit(provisioning.provisioned(record, said, seen.now))
    if seen.request is None:
        return NOOP
    is_first = provisioning.is_of_new_request(noted.message, attempt.cluster)
    if answer is Answer.NONE and is_first:
        return _await_answer(record, noted, seen.now)
    if said == noted.message:
        return NOOP
    due = noted_at + provisioning.LEAST_BETWEEN_NOTES
    if due > seen.now and not is_first:
        return Do(Act.NOOP, until=due)
    return Commit(provisioning.note(record, said, seen.now))


def _await_answer(record: Record, noted: Provisioning, now: datetime) -> Decision:
    """Gives up a request that nobody has looked at for too long: no API says whether a class is served."""
    attempt = live_attempt(record)
    due = (noted.noted_at or attempt.decided_at) + noted.asked.accept_within
    if now < due:
        return Do(Act.NOOP, until=due)
    said = provisioning.unanswered(noted.asked, attempt.cluster)
    return Do(Act.REQUEST_ELSEWHERE, words.PROVISIONING_FAILED, said)


def _decide_queued(record: Record, seen: ObservedState) -> Decision:
    if _is_suspended(seen):
        return _suspend(record, seen)
    known = record.pending if record.awaits_approval else None
    if seen.awaits is not None and known is None:
        return Do(Act.FOLLOW_APPROVALS)
    followed = _follow(record, seen)
    return Do(Act.FOLLOW_APPROVALS) if followed is NOOP and seen.awaits != known else followed


def pods_run(
    record: Record, policy: LifecyclePolicy, pods: PodCounts, withheld: Withheld = NONE_WITHHELD
) -> bool:
    """True if as many pods run, or have done their work, as the gang needs; a gang without pods always runs."""
    run = health.running(pods) + health.completed(record, policy, pods, _noted_done(record))
    return run >= health.pods_needed(record, policy, withheld)


def retry_pause(attempts: int) -> timedelta:
    """How long to wait before a creation that was postponed is tried again: 5 s, doubling, at most 5 minutes."""
    return min(timedelta(minutes=5), timedelta(seconds=5 * 2.0 ** min(max(0, attempts - 1), 10)))


def _is_in_member(record: Record) -> bool:
    return record.attempt is not None and record.attempt.cluster != HUB_CLUSTER


def _is_suspended(seen: ObservedState) -> bool:
    return seen.asked is not None and seen.asked.suspend


def _suspend(record: Record, seen: ObservedState, done: frozenset[int] = frozenset()) -> Commit:
    return _by_user(queue_changes.suspend(record, seen.now, done))


def _by_user(change: Change) -> Commit:
    return Commit(change, wakes_scheduler=True, follows_user=True)


def _follow(record: Record, seen: ObservedState) -> Decision:
    """Follows the user's changes: first queues and requirements, which a cycle waits for (`is_unchanged`)."""
    asked, now = seen.asked, seen.now
    if not _is_in(record, seen.queues):
        return _by_user(queue_changes.move(record, seen.queues, now))
    if asked is None:
        return NOOP
    requirements = requested_requirements(record, asked)
    if requirements != record.requirements:
        return _by_user(queue_changes.redirect(record, requirements, now))
    is_as_urgent = (asked.priority, asked.priority_slope, asked.never_preempts) == (
        record.priority,
        record.priority_slope,
        record.class_never_preempts,
    )
    if is_as_urgent and seen.unknown_class == noted_warning(record, ConditionType.PRIORITY_CLASS_UNKNOWN):
        return NOOP
    return _by_user(
        queue_changes.reprioritise(
            record,
            asked.priority,
            asked.priority_slope,
            now,
            seen.cut,
            seen.unknown_class,
            never_preempts=asked.never_preempts,
        )
    )


def requested_requirements(record: Record, asked: MutableSpec) -> ClusterRequirements:
    """The requirements with the user's current selectors; an unreadable selector changes nothing."""
    requirements = record.requirements
    selector = requirements.selector if asked.selector is None else asked.selector
    prefers = requirements.prefers if asked.prefers is None else asked.prefers
    return requirements.directed(selector, prefers)


def is_unchanged(
    record: Record, wanted: bool, asked: MutableSpec | None, queues: tuple[str, ...] = ()
) -> bool:
    """True unless a queued gang is suspended, redirected, moved or deleted, and the record does not say so yet.

    A changed priority does not count: it changes whose turn it is, not whether or where the gang may run.
    """
    if not wanted or not _is_in(record, queues):
        return False
    return asked is None or (
        not asked.suspend and requested_requirements(record, asked) == record.requirements
    )


def _is_in(record: Record, queues: tuple[str, ...]) -> bool:
    return not queues or queues == record.leaves


def _expire(record: Record, now: datetime) -> Decision:
    if record.kept_until is None:
        return NOOP
    return Do(Act.EXPIRE) if now >= record.kept_until else Do(Act.NOOP, until=record.kept_until)


# --- dispatched gangs ---------------------------------------------------------------------------------


def _watch_over(record: Record, seen: ObservedState) -> Decision:
    """Checks in this order: it runs, failed, is complete, is drained, has a health issue for too long, progresses."""
    pods = seen.objects.pods
    if record.phase is Phase.DISPATCHED and pods_run(record, seen.policy, pods, seen.objects.withheld):
        return Commit(run_changes.mark_running(record, seen.now))
    failures = sorted(health.failures(record, seen.objects.states), key=_is_curable)
    if failures:
        return _act(failures[0], record, seen)
    done = _done(record, seen.policy, seen.objects)
    items = seen.policy.items
    achieved = progress(items, [index in done for index in range(len(items))])
    if achieved is Progress.ALL and not pods.live and not _has_only_begun(record, seen):
        is_noted = done <= _noted_done(record)
        return (
            Do(Act.COMPLETE, done=done) if is_noted else Commit(run_changes.note_done(record, done, seen.now))
        )
    if seen.draining:
        return Do(Act.REQUEUE, words.CLUSTER_DRAINING, seen.draining, done=_finished(record, seen))
    if revoked := _revoked(record, seen):
        return revoked
    issues = _issues(record, seen, achieved, done)
    for issue in issues:
        if issue.due is not None and issue.due <= seen.now and not _is_to_tell_first(issue, record):
            return _act(issue, record, seen)
    if achieved is not Progress.NONE and _is_news(record, done):
        return Commit(run_changes.complete_some(record, done, seen.now))
    return _note(record, issues, seen)


def _revoked(record: Record, seen: ObservedState) -> Decision | None:
    """Evicts a gang whose capacity was revoked, or fails it if that happened too often; None if it was not revoked."""
    attempt = record.attempt
    if (
        attempt is None
        or attempt.provisioning is None
        or provisioning.answer_of(seen.request) is not Answer.REVOKED
    ):
        return None
    said = provisioning.sentence(seen.request, attempt.cluster)
    failures = provisioning.failures_with_revocation(record, seen.now)
    retry = attempt.provisioning.asked.retry
    if failures > retry.limit:
        return Do(Act.FAIL, words.CAPACITY_REVOKED, said)
    detail = f"; {provisioning.retry_in_words(retry, failures)}" if failures else ""
    return Do(Act.REQUEUE, words.CAPACITY_REVOKED, said, detail, done=_finished(record, seen))


def _let_grow(record: Record, seen: ObservedState, next_step: Decision) -> Decision:
    """Notes what its pods hold beyond its demand, and admits pods within that, once there is nothing else to do.

    Pods that it gives up are deleted then. Pods are admitted first: only with the right to admit pods a gang has any to
    give up, so a missing right to delete them keeps no pod of the base gang waiting.
    """
    taken, gated = seen.objects.taken, seen.objects.gated
    if not _rests(next_step) or taken is None:
        return next_step
    due = _note_growth_at(record, seen, taken)
    if due is not None and due <= seen.now:
        return _note_growth(record, seen, taken)
    awaited = _await_nodes(record, seen, taken) if due is None else NOOP
    if not _rests(awaited):
        return awaited
    until = min(filter(None, (due, awaited.until, next_step.until)), default=None)
    if pods := tuple(admissible(record.allowed, taken, gated, record.granted)):
        return Do(Act.ADMIT_PODS, pods=pods, until=until)
    return Do(Act.DELETE_PODS if seen.objects.to_delete else Act.NOOP, until=until)


def _rests(decision: Decision) -> TypeGuard[Do]:
    return isinstance(decision, Do) and decision.act is Act.NOOP


def _note_growth(record: Record, seen: ObservedState, taken: Resources) -> Commit:
    """Charges a gang for what its pods hold; less may let other gangs go."""
    objects = seen.objects
    within = admissible(record.allowed, taken, objects.gated, record.granted)
    soon = taken_soon(record.allowed, taken, within)
    count = count_of(record, pods_soon(record, objects.taken_pods, within))
    pods = None if objects.beyond is None else with_pods(objects.beyond, within)
    shrinking = record.attempt.shrinking if record.attempt else None
    is_taken_back = shrinking is not None and not shrinking.preempted_by
    keeps_trust = bool(objects.unplaced) and not is_taken_back
    change = run_changes.note_growth(record, soon, seen.now, pods, count=count, keeps_trust=keeps_trust)
    return Commit(change, wakes_scheduler=True)


def _await_nodes(record: Record, seen: ObservedState, taken: Resources) -> Decision:
    """Notes that all pods of a growth on trust have nodes, or takes back the others once their time is over.

    Once all nodes have come, a pod may lack its node for another reason, as its scheduler is slow.
    """
    attempt, bind_within = record.attempt, seen.growth_bind_within
    trust = attempt.growth_trust if attempt is not None and attempt.shrinking is None else None
    if trust is None or bind_within is None:
        return NOOP
    unplaced = len(seen.objects.unplaced)
    if not unplaced:
        return _note_growth(record, seen, taken)
    due = trust.since + bind_within
    if seen.now < due:
        return Do(Act.NOOP, until=due)
    if not seen.awaited_pools:
        return NOOP
    seconds, trusted = int(bind_within.total_seconds()), in_words(trust.pools)
    message = (
        f"granted pods without a node {seconds} s after the grant: {unplaced}; it trusted {trusted} to come"
    )
    return Do(Act.TAKE_BACK_GROWTH, words.POTENTIAL_NODES_MISSING, message)


def _note_growth_at(record: Record, seen: ObservedState, taken: Resources) -> datetime | None:
    """When its growth is to be committed; None while the record has it, or while pods that it gives up are live."""
    if record.attempt is not None and record.attempt.shrinking is not None:
        return None if seen.objects.gives_up else seen.now
    within = admissible(record.allowed, taken, seen.objects.gated, record.granted)
    soon = taken_soon(record.allowed, taken, within)
    pods = pods_soon(record, seen.objects.taken_pods, within)
    return growth_due(record, soon, pods, is_awaited=seen.growth_is_awaited)


def _is_news(record: Record, done: frozenset[int]) -> bool:
    """True if the record lacks a done item, or this attempt has not noted items that an earlier one finished."""
    return not done <= _noted_done(record) or record.phase is Phase.RUNNING


def _has_only_begun(record: Record, seen: ObservedState) -> bool:
    """True while a gang whose kind does not end never had a pod, whatever its author calls done.

    A Deployment is Progressing before it has made its first pod.
    """
    attempt, pods = record.attempt, seen.objects.pods
    if attempt is None or attempt.started_at or pods.succeeded or not seen.policy.expects_pods:
        return False
    return any(state is not None and state.end is End.OPEN for state in seen.objects.states)


def _is_curable(issue: HealthIssue) -> bool:
    return issue.remedy is Remedy.REQUEUE


def _issues(
    record: Record, seen: ObservedState, achieved: Progress, done: frozenset[int]
) -> list[HealthIssue]:
    """The health issues, present and future; a complete gang needs no pods, unless it has only begun."""
    only_begun = achieved is Progress.ALL and _has_only_begun(record, seen)
    short = achieved is not Progress.ALL or (only_begun and not seen.objects.pods.live)
    done = frozenset() if only_begun else done
    objects = seen.objects
    missing = health.missing(record, objects.absent, done, objects.unserved, seen.policy.admission_grace)
    # Where the definition of a kind is gone, nobody makes the pods of its objects.
    short = short and (missing is None or missing.reason != words.KIND_NOT_INSTALLED)
    found = [
        health.deadline(record, seen.policy),
        missing,
        health.potential_nodes_missing(
            record, seen.objects.pods, seen.bind_within, seen.awaited_pools, seen.now
        ),
        health.missing_pods(
            record, seen.policy, seen.objects.pods, done, seen.bind_within, seen.objects.withheld
        )
        if short
        else None,
    ]
    return [issue for issue in found if issue is not None]


def _note(record: Record, issues: list[HealthIssue], seen: ObservedState) -> Decision:
    """Keeps the health issue of the record current; the next look is when the next issue is due, or to be told.

    Of an issue that goes on, other words are noted at most once a minute, with its time.

    A drift, a suspended object, or one whose kind is not served, is noted while there is no other issue, and no step
    follows from it. A recovery is noted once it is known that there is no drift either.
    """
    noted, now = record.unhealthy, seen.now
    known = [issue for issue in issues if noted and health.is_the_same(noted.reason, issue.reason)]
    to_note = [(at, issue) for issue in issues if (at := _to_note_at(issue, record)) is not None]
    for at, issue in to_note:
        if at <= now:
            since = _since(issue, record, now)
            return Do(Act.NOTE_HEALTH_ISSUE, issue.reason, issue.message, since=since)
    if not (known or any(issue.told_from for issue in issues)):
        told = _without_consequence(record, seen.objects)
        if told and (noted is None or (noted.reason, noted.message) != told):
            return Do(Act.NOTE_HEALTH_ISSUE, *told)
        if noted and seen.objects.drift is not None and not told:
            return Commit(run_changes.recover(record, now))
    dues = [issue.due for issue in issues if issue.due is not None]
    return Do(Act.NOOP, until=min([*(at for at, _ in to_note), *dues], default=None))


def _to_note_at(issue: HealthIssue, record: Record) -> datetime | None:
    """From when on a health issue is noted, also one that goes on in other words; None if it is not to be noted."""
    noted, at_once = record.unhealthy, record.phase_since
    if _comes_after_a_wait(issue, record):
        return at_once
    if noted is None or not health.is_the_same(noted.reason, issue.reason):
        return issue.told_from or (at_once if issue.due is None else None)
    if issue.is_anew:
        return max(issue.told_from or at_once, noted.since + health.WORDS_RENEWED_AFTER)
    if noted.reason != issue.reason or not says_otherwise(noted.message, issue.message):
        return None
    return (record.last_event_at or at_once) + health.WORDS_RENEWED_AFTER


def _is_to_tell_first(issue: HealthIssue, record: Record) -> bool:
    """True for missing pods of which the gang should have been told in time, and was not; MCAD's wait tells nothing.

    This leader may be the first that knows of them, or a pod is made in place of another one. The time of pods that
    Kueue has only just admitted begins now, also if the author wrote a wait.
    """
    if _comes_after_a_wait(issue, record):
        return True
    if issue.reason != words.INSUFFICIENT_PODS_READY or issue.told_from is None or issue.due is None:
        return False
    is_noted = record.unhealthy is not None and record.unhealthy.reason == issue.reason
    return not is_noted and issue.told_from < issue.due


def _comes_after_a_wait(issue: HealthIssue, record: Record) -> bool:
    """True for missing pods of a gang that was noted to wait for Kueue, and does so no more."""
    noted = record.unhealthy
    return (
        noted is not None
        and noted.reason == words.ADMISSION_AWAITED
        and issue.due is not None
        and issue.reason in _FOR_WANT_OF_PODS
    )


_FOR_WANT_OF_PODS: Final = words.REASONS_OF_MCAD | {words.INSUFFICIENT_PODS_READY}


def _since(issue: HealthIssue, record: Record, now: datetime) -> datetime | None:
    """Since when a health issue lasts that is noted now; None for the time of the note."""
    noted = record.unhealthy
    if _comes_after_a_wait(issue, record):
        return now
    if noted is not None and health.is_the_same(noted.reason, issue.reason):
        return (issue.since or now) if issue.is_anew else noted.since
    is_told_late = issue.due is not None and issue.due <= now
    return None if is_told_late else issue.since


def _without_consequence(record: Record, objects: ObservedObjects) -> tuple[str, str] | None:
    """The reason and the message of a health issue that is only told; None if there is none.

    A noted one stands until every object is read.
    """
    if not_served := health.not_served(record, objects.unserved):
        return words.KIND_NOT_INSTALLED, not_served
    if objects.drift:
        return words.DRIFTED, objects.drift
    if objects.withheld.suspended:
        return words.OBJECT_SUSPENDED, f"{objects.withheld.suspended}, as its AppWrapper says"
    if objects.withheld.awaiting:
        return words.ADMISSION_AWAITED, objects.withheld.awaiting
    noted = record.unhealthy
    is_noted = noted is not None and noted.reason in {words.OBJECT_SUSPENDED, words.ADMISSION_AWAITED}
    if noted is not None and is_noted and objects.withheld.unread:
        return noted.reason, noted.message
    return None


def _act(issue: HealthIssue, record: Record, seen: ObservedState) -> Decision:
    """Evicts a gang while that may help; an issue that recurs too often is a failure."""
    if issue.remedy is Remedy.FAIL:
        return Do(Act.FAIL, issue.reason, issue.message, is_in_doubt=issue.is_in_doubt)
    if seen.policy.is_spent(record, issue.reason):
        detail = f" (requeued so far: {record.requeuings})"
        return Do(Act.FAIL, issue.reason, issue.message, detail, is_in_doubt=issue.is_in_doubt)
    done = _finished(record, seen)
    return Do(Act.REQUEUE, issue.reason, issue.message, done=done, is_in_doubt=issue.is_in_doubt)


def _done(record: Record, policy: LifecyclePolicy, objects: ObservedObjects) -> frozenset[int]:
    """The items that are done, now or according to the record."""
    refs = record.attempt.objects if record.attempt else ()
    now_done = {
        ref.item
        for ref, state in zip(refs, objects.states, strict=False)
        if ref.item < len(policy.items) and policy.items[ref.item].is_met_by(state)
    }
    return _noted_done(record) | now_done


def _finished(record: Record, seen: ObservedState) -> frozenset[int]:
    return finished_items(record, seen.policy, seen.objects)


def finished_items(record: Record, policy: LifecyclePolicy, objects: ObservedObjects) -> frozenset[int]:
    """The items that are done and whose kind ends: the next attempt does not create them again.

    An item that goes on though its author calls it done (an available Deployment) is created again.
    """
    if _is_in_member(record):
        return frozenset()  # they are deleted with the anchor of their attempt
    done, items = _done(record, policy, objects), policy.items
    refs = record.attempt.objects if record.attempt else ()
    return frozenset(
        ref.item
        for ref, state in zip(refs, objects.states, strict=False)
        if ref.item in done and items[ref.item].ends and (state is None or state.end is End.SUCCEEDED)
    )


def _noted_done(record: Record) -> frozenset[int]:
    return (
        frozenset(ref.item for ref in record.attempt.objects if ref.done) if record.attempt else frozenset()
    )
