"""Each step by itself: what it changes in a record, and that it changes nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatcher.api.conditions import ConditionType
from dispatcher.core import lifecycle
from dispatcher.core.lifecycle import Cause
from dispatcher.core.record import Attempt, Change, Event, Pending, Phase, Record
from tests.builders import WAITS, at, make_blocked, make_gang, make_newcomer, make_record, make_ref
from tests.unit.core.test_lifecycle import BEHIND, LATER, STEPS


def test_newcomer_becomes_a_queued_record_of_its_own_values() -> None:
    newcomer = make_newcomer("urgent", priority=9, priority_slope=0.5, spec=b'{"a": 1}', spec_hash="h")

    change = lifecycle.submit(newcomer, make_gang(2), LATER)

    after = change.after
    assert change == Change(
        before=None,
        after=Record(
            uid="uid-of-urgent",
            group=newcomer.group,
            namespace="default",
            name="urgent",
            created_at=newcomer.created_at,
            phase=Phase.QUEUED,
            phase_since=LATER,
            spec_hash="h",
            version=1,
            priority=9,
            priority_slope=0.5,
            gang=make_gang(2),
            conditions=after.conditions,
        ),
        events=(Event(LATER, Cause.SUBMITTED, None, Phase.QUEUED),),
        spec=b'{"a": 1}',
    )
    assert [condition.type for condition in after.conditions] == ["Init", "Queueing"]


def test_adopted_appwrapper_goes_on_with_the_attempt_that_was_found() -> None:
    after = lifecycle.adopt(make_newcomer(), make_gang(), "hub", 3, LATER).after

    assert after.attempt is not None
    assert (after.phase, after.attempts, after.attempt.number, after.attempt.cluster) == (
        Phase.DISPATCHING,
        3,
        3,
        "hub",
    )


def test_being_blocked_again_for_the_same_reason_is_no_news_whatever_the_amounts() -> None:
    blocked = make_blocked()
    assert lifecycle.block(blocked, replace(WAITS, message="cpu: needs 1, 0.5 free"), LATER) is None


@pytest.mark.parametrize(
    "pending",
    [
        pytest.param(replace(WAITS, reason="LargerThanCluster"), id="reason"),
        pytest.param(replace(WAITS, resource="nvidia.com/gpu"), id="resource"),
        pytest.param(replace(WAITS, cluster="east"), id="cluster"),
    ],
)
def test_being_blocked_for_something_else_is_news_but_not_a_new_wait(pending: Pending) -> None:
    blocked = make_blocked()

    change = lifecycle.block(blocked, pending, LATER)

    assert change is not None
    assert change.after == replace(blocked, version=blocked.version + 1, pending=pending)


def test_time_at_the_head_runs_from_the_first_time_it_is_the_head() -> None:
    blocked = make_blocked()
    head = lifecycle.block(blocked, WAITS, at(20), is_head=True)
    assert (blocked.blocked_since, head and head.after) == (
        None,
        replace(blocked, version=blocked.version + 1, blocked_since=at(20)),
    )
    assert head is not None
    for is_head in (True, False):
        assert lifecycle.block(head.after, WAITS, at(30), is_head=is_head) is None
    other = lifecycle.block(head.after, replace(WAITS, resource="memory"), at(30), is_head=True)
    assert other is not None
    assert other.after.blocked_since == at(20)


def test_newcomer_that_is_the_head_at_once_is_blocked_in_one_step() -> None:
    change = lifecycle.block(make_record(), WAITS, LATER, is_head=True)
    assert change is not None
    assert (change.events[0].cause, change.after.blocked_since) == (Cause.BLOCKED, LATER)


def test_one_behind_the_head_is_told_once_and_stays_what_it_was() -> None:
    change = lifecycle.line_up(make_record(), BEHIND, LATER)
    assert change is not None
    assert change.after == replace(make_record(), version=2, pending=BEHIND)
    assert lifecycle.line_up(change.after, replace(BEHIND, message="behind another"), at(20)) is None


def test_dispatch_clears_everything_that_was_about_waiting() -> None:
    blocked = replace(make_blocked(), message="exceeded quota", eligible_at=at(2))

    after = lifecycle.dispatch(blocked, "hub", LATER).after

    assert (after.pending, after.blocked_since, after.eligible_at, after.message) == (None, None, None, "")


def test_reprioritised_appwrapper_changes_in_nothing_else() -> None:
    record = make_blocked(make_record(enqueue_seq=17))

    after = lifecycle.reprioritise(record, 8, 0.5, LATER).after

    assert after == replace(record, priority=8, priority_slope=0.5, version=record.version + 1)


def test_requeued_appwrapper_keeps_its_place_and_says_why_it_waits() -> None:
    queued = make_blocked(make_record(enqueue_seq=17, priority=9))
    dispatching = lifecycle.dispatch(queued, "east", at(2)).after
    requeueing = lifecycle.postpone_creation(dispatching, (make_ref(),), "exceeded quota", at(8), at(3)).after

    after = lifecycle.removed(requeueing, LATER).after

    assert dispatching.attempt is not None
    assert after == replace(
        queued,
        version=queued.version + 3,
        phase_since=LATER,
        conditions=after.conditions,
        message="exceeded quota",
        pending=Pending("CreationPostponed", "exceeded quota", cluster="east"),
        eligible_at=at(8),
        blocked_since=None,
        attempts=1,
        attempt=replace(dispatching.attempt, objects=(make_ref(),), ended_at=LATER, outcome="postponed"),
    )


def test_second_attempt_is_a_new_one_with_the_next_number() -> None:
    requeued = lifecycle.removed(make_record(Phase.REQUEUEING), at(5)).after

    after = lifecycle.dispatch(requeued, "hub", LATER).after

    assert after.attempt == Attempt(number=2, cluster="hub", decided_at=LATER)
    assert after.attempts == 2


@pytest.mark.parametrize(
    ("step", "phase", "fields"),
    [
        pytest.param(
            Cause.CREATED, Phase.DISPATCHING, {"created_at": LATER, "objects": (make_ref(),)}, id="created"
        ),
        pytest.param(Cause.PODS_RUNNING, Phase.DISPATCHED, {"started_at": LATER}, id="running"),
        pytest.param(Cause.CREATION_REFUSED, Phase.DISPATCHING, {"objects": (make_ref(),)}, id="refused"),
        pytest.param(Cause.REMOVED, Phase.FAILING, {"ended_at": LATER, "outcome": "failed"}, id="failed"),
        pytest.param(Cause.DELETED, Phase.RUNNING, {}, id="deleted"),
        pytest.param(
            Cause.RELEASED, Phase.DELETING, {"ended_at": LATER, "outcome": "deleted"}, id="released"
        ),
    ],
)
def test_attempt_tells_its_own_story(step: Cause, phase: Phase, fields: dict[str, object]) -> None:
    before = make_record(phase)
    change = STEPS[step](before)
    assert change is not None
    assert before.attempt is not None
    assert change.after.attempt == replace(before.attempt, **fields)  # type: ignore[arg-type]


def test_condition_keeps_its_time_while_its_status_stays() -> None:
    blocked = make_blocked(seconds=1)
    requeued = lifecycle.removed(replace(make_record(Phase.REQUEUEING), conditions=blocked.conditions), LATER)
    before, after = blocked.condition(ConditionType.BACKOFF), requeued.after.condition(ConditionType.BACKOFF)
    assert before is not None
    assert after == replace(before, updated=LATER, message="exceeded quota")


def test_backoff_turns_false_when_dispatched_and_keeps_saying_what_it_was() -> None:
    blocked = make_blocked()
    before = blocked.condition(ConditionType.BACKOFF)
    assert before is not None

    after = lifecycle.dispatch(blocked, "hub", LATER).after

    assert after.condition(ConditionType.BACKOFF) == replace(before, status=False, since=LATER, updated=LATER)


def test_conditions_stand_in_the_order_in_which_they_first_came_about() -> None:
    record = make_blocked()
    for cause in (Cause.DISPATCHED, Cause.CREATED, Cause.PODS_RUNNING):
        change = STEPS[cause](record)
        assert change is not None
        record = change.after
    assert [(condition.type.value, condition.status) for condition in record.conditions] == [
        ("Init", True),
        ("Queueing", True),
        ("HeadOfLine", True),
        ("Backoff", False),
        ("Dispatched", True),
        ("Running", True),
    ]
