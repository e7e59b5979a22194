"""A preemption, step by step: what it changes of the victim and of its preemptor, and what it counts as."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dispatcher.api.conditions import ConditionType
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.lifecycle import queue_changes, removal, run_changes
from dispatcher.core.lifecycle.decision import decide, finished_items
from dispatcher.core.lifecycle.removal import stays
from dispatcher.core.lifecycle.step import Act
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.gangs.gang import Assignment
from dispatcher.core.model.gangs.pods import PodCounts
from dispatcher.core.model.records.preemption import MOST_REMEMBERED, Reason
from dispatcher.core.model.records.record import ACTIVE, Change, NotedIssue, Pending, Phase, Record
from dispatcher.core.queues.ordering import is_eligible, rank
from tests.builders import (
    WAITS,
    at,
    attempt_of,
    make_blocked,
    make_drained,
    make_evicted,
    make_objects,
    make_observation,
    make_policy,
    make_preempted,
    make_record,
    make_ref,
)
from tests.unit.core.lifecycle.dispatched import step_of
from tests.unit.core.lifecycle.test_changes import BEHIND, LATER, PREEMPTS

WHY = "preempted for default/other (queue b, priority 3): its queue uses more than its quota"


def preempting(record: Record | None = None, seconds: float = 1) -> Record:
    return queue_changes.begin_preempting(record or make_record(), PREEMPTS, at(seconds)).after


# --- the victim ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", sorted(ACTIVE))
def test_victim_leaves_with_its_attempt_marked_and_nothing_counted(phase: Phase) -> None:
    record = make_record(
        phase, requeuings=2, retries=1, requeuing_seconds=600, unhealthy=NotedIssue("r", "m", at(3))
    )

    after = run_changes.preempt(record, Reason.FAIR_SHARE, "too\nmuch", LATER, "uid-of-other").after

    objects = tuple(replace(ref, done=False) for ref in attempt_of(record).objects)
    assert after == replace(
        record,
        phase=Phase.REQUEUEING,
        phase_since=LATER,
        last_event_at=LATER,
        version=record.version + 1,
        conditions=after.conditions,
        reason="FairShare",
        message=r"too\nmuch",
        unhealthy=None,
        preempted_at=(LATER,),
        attempt=replace(attempt_of(record), objects=objects, preempted_by="uid-of-other"),
    )
    said = after.condition(ConditionType.PREEMPT_CANDIDATE)
    assert said is not None
    assert (said.status, said.reason, said.message) == (True, "FairShare", r"too\nmuch")


def test_victim_is_queued_again_by_its_original_age_after_the_gangs_that_go_first() -> None:
    record = make_record(Phase.RUNNING, enqueue_seq=17, priority=9, blocked_since=None)
    preempted = make_preempted(record)

    after = removal.removed(preempted, LATER).after

    assert after == replace(
        record,
        phase=Phase.QUEUED,
        phase_since=LATER,
        last_event_at=LATER,
        version=record.version + 2,
        conditions=after.conditions,
        reason="QuotaReclaimed",
        message=WHY,
        pending=Pending("PreemptionTriggered", WHY, cluster="hub"),
        eligible_at=LATER + removal.YIELD,
        preempted_at=(at(4),),
        attempt=replace(attempt_of(preempted), ended_at=LATER, outcome="preempted"),
    )
    backoff = after.condition(ConditionType.BACKOFF)
    assert backoff is not None
    assert (backoff.status, backoff.reason, backoff.message) == (True, "PreemptionTriggered", WHY)
    assert not is_eligible(after, LATER)
    assert is_eligible(after, LATER + removal.YIELD)
    assert rank(after, at(100)) == rank(make_record(enqueue_seq=17, priority=9), at(100))


def test_drained_gang_is_evicted_and_that_counts_neither_as_requeuing_nor_as_preemption() -> None:
    record = make_record(Phase.RUNNING, requeuings=2, retries=1, requeuing_seconds=70, preempted_at=(at(-9),))
    after = removal.removed(make_drained(record), LATER).after
    assert (attempt_of(after).outcome, attempt_of(after).preempted_by, after.preempted_at) == (
        "evicted",
        "",
        (at(-9),),
    )
    assert (after.requeuings, after.retries, after.requeuing_seconds) == (2, 1, 70)
    assert after.eligible_at == LATER + removal.YIELD


def test_record_remembers_the_latest_preemptions_alone() -> None:
    record = make_record(Phase.RUNNING, preempted_at=tuple(map(at, range(-30, -10))))
    assert len(record.preempted_at) == MOST_REMEMBERED
    assert make_preempted(record).preempted_at == (*map(at, range(-29, -10)), at(4))


def test_next_attempt_forgets_why_the_last_one_was_preempted_but_not_when() -> None:
    queued = removal.removed(make_preempted(), at(5)).after

    after = queue_changes.dispatch(queued, "hub", LATER, assignment=Assignment(((("n1", 1),),))).after

    assert (after.reason, after.message, after.pending, after.preempted_at) == ("", "", None, (at(4),))
    assert (attempt_of(after).number, attempt_of(after).preempted_by) == (2, "")


def test_eviction_after_a_preemption_is_an_eviction() -> None:
    queued = removal.removed(make_preempted(), at(5)).after
    again = make_record(Phase.RUNNING, preempted_at=queued.preempted_at)
    after = removal.removed(make_evicted(again), at(6)).after
    assert (attempt_of(after).outcome, after.requeuings, after.preempted_at) == ("evicted", 1, (at(4),))


JOB = CompletionRule(ends=True, holds=True, pods=1)
READY = CompletionRule(words=("Available",), holds=True, pods=1)
DONE = ObjectState(End.SUCCEEDED, frozenset({"Complete"}))
AVAILABLE = ObjectState(End.OPEN, frozenset({"Available"}))


def of_two(*, noted: tuple[int, ...] = (0, 1), cluster: str = "hub") -> Record:
    """A Job that is done and a Deployment that its author calls done once it is available."""
    record = make_record(Phase.RUNNING)
    refs = tuple(replace(make_ref(item), done=item in noted) for item in (0, 1))
    return replace(record, attempt=replace(attempt_of(record), objects=refs, cluster=cluster))


@pytest.mark.parametrize("noted", [(), (0, 1)], ids=["not-noted-yet", "noted"])
def test_finished_items_stay_done_and_others_are_created_again(noted: tuple[int, ...]) -> None:
    record = of_two(noted=noted)
    objects = make_objects(PodCounts(running=1), DONE, AVAILABLE)
    finished = finished_items(record, make_policy(JOB, READY), objects)

    preempted = run_changes.preempt(record, Reason.FAIR_SHARE, "why", LATER, "uid-of-other", finished).after

    assert [stays(ref, preempted, None) for ref in attempt_of(preempted).objects] == [True, False]
    queued = removal.removed(preempted, LATER).after
    again = queue_changes.dispatch(queued, "hub", at(20)).after.attempt
    assert again is not None
    assert [(ref.item, ref.done) for ref in again.objects] == [(0, True)]


def test_nothing_of_an_attempt_in_a_member_stays_because_it_goes_with_its_anchor() -> None:
    objects = make_objects(PodCounts(running=1), DONE, AVAILABLE)
    assert finished_items(of_two(cluster="east"), make_policy(JOB, READY), objects) == frozenset()


# --- what its user does meanwhile ----------------------------------------------------------------------


def test_victim_that_its_user_deletes_is_deleted_and_holds_its_capacity_until_it_is_gone() -> None:
    preempted = make_preempted()
    assert step_of(decide(make_observation(preempted, wanted=False))) is Act.DELETE
    deleting = removal.delete(preempted, LATER).after
    assert (deleting.phase, deleting.holds_capacity) == (Phase.DELETING, True)
    released = removal.release(deleting, LATER).after
    assert (released.phase, attempt_of(released).outcome) == (Phase.DELETED, "deleted")


def test_victim_that_its_user_suspends_is_removed_first_and_then_suspended() -> None:
    wish = MutableSpec(suspend=True)
    preempted = make_preempted()
    assert step_of(decide(make_observation(preempted, asked=wish))) is Act.REMOVE
    queued = removal.removed(preempted, at(5)).after
    assert step_of(decide(make_observation(queued, asked=wish))) is Cause.SUSPENDED
    suspended = queue_changes.suspend(queued, LATER).after
    assert (suspended.phase, suspended.pending, suspended.eligible_at) == (Phase.SUSPENDED, None, None)
    assert queue_changes.resume(suspended, LATER).after.preempted_at == (at(4),)


def test_victim_on_a_lost_cluster_is_requeued_for_the_lost_cluster() -> None:
    after = removal.abandon(make_preempted(), "east has not answered for 300 s", LATER).after
    assert (after.phase, after.reason, attempt_of(after).outcome) == (Phase.QUEUED, "ClusterLost", "lost")


# --- the gang that they give way to --------------------------------------------------------------------


def test_preemptor_is_marked_and_gets_its_pending_reason() -> None:
    record = make_record()
    change = queue_changes.begin_preempting(record, PREEMPTS, LATER, is_head=True)
    assert change.after == replace(
        record,
        version=2,
        last_event_at=LATER,
        conditions=change.after.conditions,
        pending=PREEMPTS,
        blocked_since=LATER,
        is_preempting=True,
    )


def test_mark_stays_while_the_gang_awaits_the_release_and_that_is_no_news() -> None:
    marked = preempting()
    assert queue_changes.block(marked, PREEMPTS, LATER) is None
    elsewhere = queue_changes.block(marked, replace(PREEMPTS, cluster="east"), LATER)
    assert elsewhere is not None
    assert elsewhere.after.is_preempting


def test_preemptor_names_its_victims_until_it_waits_for_anything_else() -> None:
    named = replace(PREEMPTS, preempting=("default/other", "red/one"))
    marked = queue_changes.begin_preempting(make_record(), named, at(1)).after
    assert queue_changes.block(marked, PREEMPTS, LATER) is None

    elsewhere = queue_changes.block(marked, replace(PREEMPTS, cluster="east"), LATER)
    assert elsewhere is not None
    assert elsewhere.after.pending == replace(named, cluster="east")

    blocked = queue_changes.block(elsewhere.after, WAITS, at(20))
    assert blocked is not None
    assert blocked.after.pending == WAITS
    again = queue_changes.block(blocked.after, PREEMPTS, at(30))
    assert again is not None
    assert again.after.pending == PREEMPTS


def test_gang_that_moves_to_another_queue_names_no_victims() -> None:
    named = replace(PREEMPTS, preempting=("default/other",))
    marked = queue_changes.begin_preempting(make_record(), named, at(1)).after
    moved = queue_changes.move(marked, ("team",), LATER).after
    assert (moved.pending, moved.is_preempting) == (PREEMPTS, False)


def test_gang_that_awaits_a_release_without_preempting_is_not_marked() -> None:
    change = queue_changes.block(make_record(), PREEMPTS, LATER)
    assert change is not None
    assert not change.after.is_preempting


def test_second_preemption_for_a_gang_that_is_marked_already_keeps_its_time_at_the_head() -> None:
    head = queue_changes.begin_preempting(make_record(), PREEMPTS, at(1), is_head=True).after
    again = queue_changes.begin_preempting(head, PREEMPTS, LATER, is_head=True)
    assert (again.events[0].cause, again.after.blocked_since) == (Cause.PREEMPTING, at(1))


MARK_ENDS: dict[str, Callable[[Record], Change | None]] = {
    "blocked": lambda record: queue_changes.block(record, WAITS, LATER),
    "not-evaluated": lambda record: queue_changes.note_not_evaluated(record, BEHIND, LATER),
    "dispatched": lambda record: queue_changes.dispatch(record, "hub", LATER),
    "suspended": lambda record: queue_changes.suspend(record, LATER),
    "deleted": lambda record: removal.delete(record, LATER),
}


@pytest.mark.parametrize("name", MARK_ENDS)
def test_mark_ends_when_the_gang_is_dispatched_or_waits_for_anything_else(name: str) -> None:
    change = MARK_ENDS[name](preempting())
    assert change is not None
    assert not change.after.is_preempting


def test_mark_ends_even_if_the_reason_was_known_before_the_preemption() -> None:
    """The record says so, whatever its pending reason."""
    marked = replace(make_blocked(), is_preempting=True)
    assert queue_changes.says_otherwise(marked, WAITS)
    change = queue_changes.block(marked, WAITS, LATER)
    assert change is not None
    assert (change.events[0].cause, change.after.is_preempting) == (Cause.BLOCKED, False)


def test_new_priority_leaves_the_mark() -> None:
    assert queue_changes.reprioritise(preempting(), 5, 0, LATER).after.is_preempting


def test_slow_clock_of_a_new_leader_does_not_turn_back_preemption_times() -> None:
    first = make_preempted(seconds=500)
    running = replace(make_record(Phase.RUNNING), preempted_at=first.preempted_at, last_event_at=at(500))
    assert make_preempted(running, seconds=4).preempted_at == (at(500), at(500))
