"""A random walk over the steps: whatever happens in whatever order, history and conditions stay straight."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType
from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.approvals import pending_without
from dispatcher.core.lifecycle.decision import retry_pause
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.lifecycle.transitions import TRANSITIONS
from dispatcher.core.model.gangs.growth import GrowthRequest, PodRef, Shrinking
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import (
    ACTIVE,
    HOLDING,
    Change,
    Condition,
    ObjectRef,
    Pending,
    Phase,
    Record,
)
from dispatcher.core.queues.ordering import is_eligible
from dispatcher.core.status.conditions import Shown, project
from tests.builders import NOW, attempt_of, make_gang, make_ref, make_submission

TABLE = {(row.source, row.cause, row.target) for row in TRANSITIONS}
PENDINGS = st.builds(
    Pending,
    reason=st.sampled_from(["InsufficientResources", "ReservedForAnother"]),
    message=st.sampled_from(["needs 2, 1 free", "needs 2, 0 free"]),
    resource=st.sampled_from(["cpu", "memory"]),
    cluster=st.sampled_from(["east", "hub"]),
)
OBJECTS = st.sampled_from([(), (make_ref(),), (make_ref(0), make_ref(1))])
SUSPENDABLE = {row.source for row in TRANSITIONS if row.cause == "suspended" and row.source}
GOING_ON = {row.source for row in TRANSITIONS if row.cause == "found-ended" and row.source}
REASONS = st.sampled_from([words.MIN_PODS_NOT_RUNNING, words.INSUFFICIENT_PODS_READY])
FAILURES = st.sampled_from([words.FAILED_COMPONENT, words.DISPATCH_DEADLINE_EXCEEDED])
WITH_COMPONENTS = Shown(has_components=True)


def may_only(*phases: Phase) -> Callable[..., Callable[..., None]]:
    return precondition(lambda machine: machine.record.phase in phases)


class LifeOfAnAppWrapper(RuleBasedStateMachine):
    record: Record

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.changes: list[Change] = []

    def commit(self, change: Change | None) -> None:
        if change is None:
            return
        before, after, (event,) = change.before, change.after, change.events
        assert (event.from_phase, event.cause, event.to_phase) in TABLE
        assert after.version == (before.version + 1 if before else 1)
        assert event.to_phase is after.phase
        assert event.at == self.now
        if before is not None:
            assert before == self.record
            check_conditions_moved_forward(before.conditions, after.conditions, self.now)
        self.record = after
        self.changes.append(change)

    def later(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now

    @initialize(suspended=st.booleans())
    def is_submitted(self, suspended: bool) -> None:
        self.commit(first_changes.submit(make_submission(suspended=suspended), make_gang(2), self.now))

    @may_only(Phase.QUEUED)
    @rule(pending=PENDINGS, is_head=st.booleans())
    def is_blocked(self, pending: Pending, is_head: bool) -> None:
        told = self.record.condition(ConditionType.BACKOFF)
        known, since = self.record.pending, self.record.blocked_since
        change = queue_changes.block(self.record, pending, self.later(), is_head=is_head)
        if told and told.status and known:
            same = (known.reason, known.resource, known.cluster) == (
                pending.reason,
                pending.resource,
                pending.cluster,
            )
            assert (change is None) is (same and (since is not None or not is_head))
        self.commit(change)
        assert since in (None, self.record.blocked_since)

    @may_only(Phase.QUEUED)
    @rule()
    def is_larger_than_every_cluster(self) -> None:
        pending = Pending("LargerThanCluster", "needs 9, 8 in all of it", "cpu", "hub")
        since = self.record.blocked_since
        self.commit(queue_changes.block(self.record, pending, self.later()))
        assert self.record.blocked_since == since

    @may_only(Phase.QUEUED)
    @rule()
    def stands_behind_the_head(self) -> None:
        pending = Pending("AwaitingHeadOfLine", "behind default/other, which waits")
        self.commit(queue_changes.note_not_evaluated(self.record, pending, self.later()))

    @may_only(Phase.QUEUED)
    @rule(names=st.sampled_from([["budget"], ["budget", "data-staged"], []]))
    def approvals_are_withdrawn_or_granted(self, names: list[str]) -> None:
        pending, now = pending_without(names), self.later()
        if pending is None:
            self.commit(queue_changes.approve(self.record, now))
        else:
            self.commit(queue_changes.await_approvals(self.record, pending, now))
        assert self.record.awaits_approval is bool(names)
        assert is_eligible(replace(self.record, eligible_at=None), now) is not bool(names)

    @may_only(Phase.QUEUED, Phase.SUSPENDED)
    @rule(priority=st.integers(0, 3))
    def is_reprioritised(self, priority: int) -> None:
        self.commit(queue_changes.reprioritise(self.record, priority, 0.0, self.later()))

    @may_only(Phase.QUEUED)
    @rule(cluster=st.sampled_from(["east", "hub"]))
    def is_dispatched(self, cluster: str) -> None:
        self.commit(queue_changes.dispatch(self.record, cluster, self.later()))
        backoff = self.record.condition(ConditionType.BACKOFF)
        assert backoff is None or not backoff.status
        assert self.record.pending is None

    @may_only(Phase.DISPATCHING)
    @rule(objects=OBJECTS)
    def is_created(self, objects: tuple[ObjectRef, ...]) -> None:
        self.commit(run_changes.created(self.record, objects, self.later()))

    @may_only(Phase.DISPATCHING)
    @rule(objects=OBJECTS)
    def is_refused(self, objects: tuple[ObjectRef, ...]) -> None:
        self.commit(run_changes.refuse_creation(self.record, objects, "invalid", self.later()))

    @may_only(Phase.DISPATCHING)
    @rule(objects=OBJECTS)
    def is_postponed(self, objects: tuple[ObjectRef, ...]) -> None:
        now = self.later()
        eligible = now + retry_pause(self.record.attempts)
        self.commit(run_changes.postpone_creation(self.record, objects, "quota", eligible, now))

    @may_only(Phase.DISPATCHED)
    @rule()
    def runs(self) -> None:
        self.commit(run_changes.mark_running(self.record, self.later()))

    @may_only(*ACTIVE)
    @rule(reason=REASONS)
    def has_a_health_issue(self, reason: str) -> None:
        self.commit(run_changes.note_health_issue(self.record, reason, "1 of 2 pods run", self.later()))

    @may_only(*ACTIVE)
    @rule()
    def recovers(self) -> None:
        self.commit(run_changes.recover(self.record, self.later()))
        assert self.record.unhealthy is None

    @may_only(*ACTIVE)
    @rule(pods=st.sampled_from([0, 1, 3]))
    def grows_or_shrinks(self, pods: int) -> None:
        demand = self.record.gang.demand
        self.commit(run_changes.note_growth(self.record, demand * pods, self.later()))
        assert self.record.charge == demand * max(1, pods)

    @may_only(*ACTIVE)
    @rule(pods=st.sampled_from([0, 1, 3]))
    def asks_for_growth_or_not_any_more(self, pods: int) -> None:
        now = self.later()
        request = GrowthRequest(pods, self.record.gang.demand * pods, now, "InsufficientQuota", "no quota")
        self.commit(run_changes.note_growth_request(self.record, request if pods else None, now))

    @may_only(*ACTIVE)
    @rule(pods=st.sampled_from([1, 2]))
    def may_grow(self, pods: int) -> None:
        demand = self.record.gang.demand
        self.commit(run_changes.grant(self.record, demand * pods, None, "more pods", self.later()))
        assert self.record.charge == demand * (1 + pods)

    @may_only(*ACTIVE)
    @rule(keeps=st.sampled_from([0, 1]))
    def gives_up_surplus_pods(self, keeps: int) -> None:
        demand, charge = self.record.gang.demand, self.record.charge
        growth = self.record.grown - (self.record.grown - demand * keeps).positive_part()
        given = Shrinking((PodRef("default", "w", "uid-of-w"),), growth, "uid-of-other")
        reason = Reason.QUOTA_RECLAIMED
        self.commit(run_changes.give_up(self.record, given, reason, "1 surplus pod", self.later()))
        assert self.record.charge == charge
        assert self.record.allowed.fits_in(self.record.held)

    @invariant()
    def growth_waits_and_shrinks_only_while_it_is_active(self) -> None:
        attempt = self.record.attempt
        is_growing = attempt is not None and (attempt.growth_request or attempt.shrinking)
        assert not is_growing or self.record.phase in ACTIVE

    @may_only(*ACTIVE)
    @rule(done=st.sampled_from([{0}, {1}, {0, 1}]))
    def is_done_in_part(self, done: set[int]) -> None:
        known = done_items(self.record)
        self.commit(run_changes.complete_some(self.record, done, self.later()))
        assert known <= done_items(self.record)

    @may_only(*ACTIVE)
    @rule()
    def completes(self) -> None:
        now = self.later()
        self.commit(run_changes.complete(self.record, {0, 1}, now + timedelta(days=7), now))

    @may_only(*ACTIVE)
    @rule(reason=REASONS)
    def is_taken_back(self, reason: str) -> None:
        now, requeuings = self.later(), self.record.requeuings
        self.commit(
            run_changes.evict(
                self.record, EvictionReason(reason, "too few"), now + timedelta(minutes=1), 600, now
            )
        )
        assert self.record.requeuings == requeuings + 1

    @may_only(Phase.QUEUED)
    @rule(is_head=st.booleans())
    def others_are_preempted_for_it(self, is_head: bool) -> None:
        pending = Pending("AwaitingRelease", "fits once default/other is gone, which it preempts", "", "hub")
        self.commit(queue_changes.begin_preempting(self.record, pending, self.later(), is_head=is_head))
        assert self.record.is_preempting

    @may_only(Phase.QUEUED)
    @rule()
    def waits_for_a_release(self) -> None:
        was_preempting = self.record.is_preempting
        pending = Pending("AwaitingRelease", "fits once default/other is gone, which it preempts", "", "hub")
        self.commit(queue_changes.block(self.record, pending, self.later()))
        assert self.record.is_preempting is was_preempting

    @may_only(*ACTIVE)
    @rule(reason=st.sampled_from(Reason), finished=st.sampled_from([(), (0,)]))
    def is_preempted(self, reason: Reason, finished: tuple[int, ...]) -> None:
        before, why = self.record, "preempted for a/b"
        self.commit(run_changes.preempt(before, reason, why, self.later(), "uid-of-other", finished))
        self.check_that_nothing_is_requeued(before)
        assert len(self.record.preempted_at) == min(20, len(before.preempted_at) + 1)

    @may_only(*ACTIVE)
    @rule(finished=st.sampled_from([(), (0,)]))
    def is_drained(self, finished: tuple[int, ...]) -> None:
        before, now = self.record, self.later()
        why = EvictionReason("QueueStopped", "its queue is drained")
        self.commit(run_changes.evict(before, why, now, before.requeuing_seconds, now, finished))
        self.check_that_nothing_is_requeued(before)
        assert self.record.preempted_at == before.preempted_at

    def check_that_nothing_is_requeued(self, before: Record) -> None:
        counted = (before.requeuings, before.retries, before.requeuing_seconds)
        assert (self.record.requeuings, self.record.retries, self.record.requeuing_seconds) == counted

    @may_only(*ACTIVE)
    @rule(reason=FAILURES)
    def fails(self, reason: str) -> None:
        self.commit(run_changes.fail(self.record, EvictionReason(reason, "it failed"), self.later()))

    @may_only(*SUSPENDABLE)
    @rule()
    def is_suspended(self) -> None:
        self.commit(queue_changes.suspend(self.record, self.later()))

    @may_only(Phase.SUSPENDED)
    @rule()
    def is_released_by_its_user(self) -> None:
        self.commit(queue_changes.resume(self.record, self.later()))

    @may_only(Phase.REQUEUEING, Phase.SUSPENDING)
    @rule()
    def is_rolled_back(self) -> None:
        taken_back = self.record.phase is Phase.REQUEUEING and bool(self.record.reason)
        self.commit(removal.removed(self.record, self.later()))
        backoff = self.record.condition(ConditionType.BACKOFF)
        if taken_back:
            assert backoff is not None
            assert (backoff.status, backoff.reason) == (True, words.PREEMPTION_TRIGGERED)
            assert self.record.eligible_at is not None
            assert self.record.eligible_at > self.now
            is_preempted = self.record.reason in set(Reason)
            assert attempt_of(self.record).outcome == ("preempted" if is_preempted else "evicted")

    @may_only(Phase.FAILING)
    @rule(is_kept=st.booleans())
    def has_failed(self, is_kept: bool) -> None:
        now = self.later()
        self.commit(removal.removed(self.record, now, now + timedelta(days=7) if is_kept else None))

    @may_only(Phase.COMPLETED, Phase.FAILED)
    @rule()
    def expires(self) -> None:
        self.commit(removal.expire(self.record, self.later()))
        assert self.record.kept_until is None

    @may_only(*(row.source for row in TRANSITIONS if row.cause == "deleted" and row.source))
    @rule()
    def is_deleted(self) -> None:
        self.commit(removal.delete(self.record, self.later()))

    @may_only(*GOING_ON)
    @rule()
    def turns_out_to_be_over(self) -> None:
        self.commit(first_changes.end_missed_attempt(self.record, "it is gone", self.later()))

    @may_only(Phase.QUEUED, Phase.SUSPENDED)
    @rule(cluster=st.sampled_from(["east", "hub"]), missed=st.integers(1, 3))
    def is_found_running(self, cluster: str, missed: int) -> None:
        number = self.record.attempts + missed
        self.commit(first_changes.take_over(self.record, cluster, number, self.later()))
        assert self.record.pending is None

    @may_only(Phase.QUEUED, Phase.SUSPENDED, *GOING_ON)
    @rule(is_completed=st.booleans())
    def turns_out_to_have_ended(self, is_completed: bool) -> None:
        now = self.later()
        kept_until = now + timedelta(days=7)
        if is_completed:
            self.commit(first_changes.complete_missed(self.record, kept_until, now))
        else:
            self.commit(
                first_changes.fail_missed(self.record, "FailedComponent", "it failed", kept_until, now)
            )

    @may_only(Phase.DELETING)
    @rule()
    def is_released(self) -> None:
        self.commit(removal.release(self.record, self.later()))

    @may_only(Phase.DELETED)
    @rule()
    def stays_deleted(self) -> None:
        assert not [row for row in TRANSITIONS if row.source is Phase.DELETED]

    @invariant()
    def there_is_one_condition_per_type(self) -> None:
        types = [condition.type for condition in self.record.conditions]
        assert len(types) == len(set(types))

    @invariant()
    def identity_and_place_in_the_queue_never_change(self) -> None:
        first, last = self.changes[0].after, self.record
        assert (first.uid, first.created_at, first.enqueue_seq, first.spec_hash, first.gang) == (
            last.uid,
            last.created_at,
            last.enqueue_seq,
            last.spec_hash,
            last.gang,
        )

    @invariant()
    def what_has_ended_stays_ended(self) -> None:
        ends = {Phase.COMPLETED, Phase.FAILED}
        phases = [change.after.phase for change in self.changes]
        first = next((index for index, phase in enumerate(phases) if phase in ends), len(phases))
        assert {*phases[first:]} - {Phase.DELETED} <= {*phases[first : first + 1]}

    @invariant()
    def what_is_noted_of_a_run_ends_with_it(self) -> None:
        assert self.record.unhealthy is None or self.record.phase in ACTIVE
        assert self.record.kept_until is None or self.record.phase in {Phase.COMPLETED, Phase.FAILED}
        assert self.record.pending is None or self.record.phase is Phase.QUEUED

    @invariant()
    def only_a_pending_gang_that_awaits_a_release_is_marked_as_preempting(self) -> None:
        pending = self.record.pending
        assert not self.record.is_preempting or (pending and pending.reason == "AwaitingRelease")

    @invariant()
    def times_of_its_preemptions_are_in_order(self) -> None:
        assert list(self.record.preempted_at) == sorted(self.record.preempted_at)

    @invariant()
    def conditions_that_cannot_both_be_true_are_not(self) -> None:
        true = {condition.type for condition in self.record.conditions if condition.status}
        assert not {ConditionType.COMPLETED, ConditionType.FAILED} <= true
        assert (ConditionType.SUSPENDED in true) <= (self.record.phase in {Phase.SUSPENDED, Phase.DELETED})
        assert (ConditionType.RUNNING in true) <= (ConditionType.DISPATCHED in true)
        runs = self.record.phase in {Phase.RUNNING, Phase.RUNNING_HOLD_COMPLETION}
        assert (ConditionType.RUNNING in true) <= runs

    @invariant()
    def capacity_is_held_exactly_while_an_attempt_lives(self) -> None:
        attempt = self.record.attempt
        lives = attempt is not None and attempt.ended_at is None
        assert self.record.holds_capacity is (self.record.phase in HOLDING) is lives
        assert self.record.attempts == (attempt.number if attempt else 0)

    @invariant()
    def status_is_a_function_of_the_record(self) -> None:
        assert project(self.record) == project(self.record)
        types = [entry["type"] for entry in project(self.record, WITH_COMPONENTS)["conditions"]]
        assert len(types) == len(set(types))

    @invariant()
    def history_is_a_chain_from_nothing_to_now(self) -> None:
        phases = [event.to_phase for change in self.changes for event in change.events]
        sources = [event.from_phase for change in self.changes for event in change.events]
        assert sources == [None, *phases[:-1]]
        assert phases[-1] is self.record.phase


def done_items(record: Record) -> set[int]:
    return {ref.item for ref in record.attempt.objects if ref.done} if record.attempt else set()


def check_conditions_moved_forward(
    before: tuple[Condition, ...], after: tuple[Condition, ...], now: datetime
) -> None:
    """Nothing is lost or reordered; times go forward only, and `since` only with the status."""
    assert [condition.type for condition in after[: len(before)]] == [condition.type for condition in before]
    for old, new in zip(before, after, strict=False):
        assert old.since <= new.since <= new.updated <= now
        assert old.updated <= new.updated
        assert (new.since == old.since) is (new.status == old.status)
        assert (new.updated == old.updated) is (new == old)
    for new in after[len(before) :]:
        assert (new.since, new.updated, new.status) == (now, now, True)


LifeOfAnAppWrapper.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLifeOfAnAppWrapper = LifeOfAnAppWrapper.TestCase
