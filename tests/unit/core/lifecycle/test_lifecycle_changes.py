"""Each step by itself: what it changes in a record, and that it changes nothing else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType
from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.first_changes import Submission
from dispatcher.core.lifecycle.record_change import EvictionReason, new_condition
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.record import (
    Attempt,
    Change,
    Condition,
    Event,
    NotedIssue,
    Pending,
    Phase,
    Record,
)
from dispatcher.errors import IllegalTransition
from tests.builders import (
    WAITS,
    at,
    attempt_of,
    make_blocked,
    make_evicted,
    make_failing_run,
    make_gang,
    make_record,
    make_ref,
    make_submission,
)
from tests.unit.core.lifecycle.test_changes import BEHIND, LATER, STEPS


def gone_on(record: Record, steps: int = 1, now: datetime = LATER, **fields: Any) -> Record:  # noqa: ANN401
    """The record after so many steps, the last of them at `now`, if nothing changed but `fields`."""
    return replace(record, version=record.version + steps, last_event_at=now, **fields)


def test_new_appwrapper_becomes_a_queued_record_of_its_own_values() -> None:
    submission = make_submission("urgent", priority=9, priority_slope=0.5, spec=b'{"a": 1}', spec_hash="h")

    change = first_changes.submit(submission, make_gang(2), LATER)

    after = change.after
    assert change == Change(
        before=None,
        after=Record(
            uid="uid-of-urgent",
            group=submission.group,
            namespace="default",
            name="urgent",
            created_at=submission.created_at,
            phase=Phase.QUEUED,
            phase_since=LATER,
            last_event_at=LATER,
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


@pytest.mark.parametrize(
    ("fields", "first_step", "others"),
    [
        pytest.param({}, first_changes.submit, ["Queueing"], id="queued"),
        pytest.param({"suspended": True}, first_changes.submit, ["Suspended"], id="suspended"),
        pytest.param(
            {},
            lambda submission, gang, now: first_changes.adopt(submission, gang, "hub", 3, now),
            ["Queueing", "HeadOfLine"],
            id="adopted",
        ),
        pytest.param({}, first_changes.recall_completed, ["Completed"], id="completed"),
        pytest.param(
            {},
            lambda submission, gang, now: first_changes.recall_failed(
                submission, gang, "why", "it failed", now
            ),
            ["Failed"],
            id="failed",
        ),
    ],
)
def test_new_appwrapper_has_the_condition_of_a_differing_demand_only_if_it_differs(
    fields: dict[str, Any], first_step: Callable[[Submission, Gang, datetime], Change], others: list[str]
) -> None:
    differing = first_step(make_submission(demand_differs="cpu: 1, 4\n", **fields), make_gang(), LATER).after
    agreeing = first_step(make_submission(**fields), make_gang(), LATER).after
    assert [each.type for each in differing.conditions] == ["Init", "DemandDiffers", *others]
    assert [each.type for each in agreeing.conditions] == ["Init", *others]
    assert differing.conditions[1] == Condition(
        ConditionType.DEMAND_DIFFERS,
        status=True,
        since=LATER,
        updated=LATER,
        reason="DeclarationDiffers",
        message="cpu: 1, 4\\n",
    )


def dispatched_again(record: Record) -> Record:
    return queue_changes.dispatch(removal.removed(make_evicted(record), at(5)).after, "hub", at(6)).after


def warned(record: Record) -> tuple[bool, str]:
    found = record.condition(ConditionType.CREATED_WITH_WARNINGS)
    assert found is not None
    return found.status, found.message


def test_warnings_of_api_servers_stand_before_the_last_condition_and_in_history() -> None:
    dispatching = make_record(Phase.DISPATCHING)
    change = run_changes.created(dispatching, (make_ref(),), LATER, ["Job a: un\nknown", "Job b: old"])
    said = "Job a: un\\nknown; Job b: old"
    assert (change.after.conditions[-2].type, warned(change.after)) == ("CreatedWithWarnings", (True, said))
    assert [event.message for event in change.events] == [said]


def test_unknown_fields_of_a_gang_that_waits_are_noted_until_its_objects_are_created() -> None:
    waiting = make_blocked()
    change = queue_changes.warn(waiting, ["Job a: unknown", "Job b: un\nknown"], LATER)
    assert change is not None
    said = "Job a: unknown; Job b: un\\nknown"
    warning = change.after.condition(ConditionType.UNKNOWN_FIELDS)
    assert warning == new_condition(ConditionType.UNKNOWN_FIELDS, LATER, "APIServerWarned", said)
    assert [(event.cause, event.message) for event in change.events] == [("warned", said)]
    assert queue_changes.warn(change.after, ["Job a: unknown", "Job b: un\nknown"], LATER) is None
    other = queue_changes.warn(change.after, ["Job a: other"], LATER)
    assert other is not None
    assert [each.type for each in other.after.conditions] == [each.type for each in change.after.conditions]

    dispatching = queue_changes.dispatch(change.after, "hub", LATER).after
    created = run_changes.created(dispatching, (make_ref(),), LATER, ["Job a: unknown"]).after
    over = created.condition(ConditionType.UNKNOWN_FIELDS)
    assert over is not None
    assert (over.status, warned(created)) == (False, (True, "Job a: unknown"))


def test_warnings_of_api_servers_are_bounded() -> None:
    dispatching = make_record(Phase.DISPATCHING)
    change = run_changes.created(dispatching, (make_ref(),), LATER, ["é" * 600] * 1000)
    (event,) = change.events
    assert len(event.message) <= 4096
    assert event.message.endswith("; 990 more")


@pytest.mark.parametrize(
    ("done", "warnings", "condition", "news"),
    [
        pytest.param(False, ["old"], (True, "old"), "", id="the-same"),
        pytest.param(False, ["new"], (True, "new"), "new", id="others"),
        pytest.param(False, [], (False, "old"), "", id="none"),
        pytest.param(True, [], (True, "old"), "", id="none-but-not-all-objects-were-sent"),
    ],
)
def test_warnings_of_a_later_attempt_make_an_event_if_they_are_new(
    done: bool,
    warnings: list[str],
    condition: tuple[bool, str],
    news: str,
) -> None:
    first = run_changes.created(make_record(Phase.DISPATCHING), (make_ref(),), at(2), ["old"]).after
    again = dispatched_again(run_changes.mark_running(first, at(3)).after)
    change = run_changes.created(again, (replace(make_ref(), done=done),), LATER, warnings)
    assert (warned(change.after), change.events[-1].message) == (condition, news)


def test_warnings_that_return_make_another_event() -> None:
    first = run_changes.created(make_record(Phase.DISPATCHING), (make_ref(),), at(2), ["old"]).after
    without = run_changes.created(
        dispatched_again(run_changes.mark_running(first, at(3)).after), (make_ref(),), at(7)
    ).after
    again = queue_changes.dispatch(
        removal.removed(make_evicted(run_changes.mark_running(without, at(8)).after), at(9)).after,
        "hub",
        at(10),
    ).after
    assert run_changes.created(again, (make_ref(),), LATER, ["old"]).events[-1].message == "old"


def test_adopted_appwrapper_goes_on_with_the_attempt_that_was_found() -> None:
    after = first_changes.adopt(make_submission(), make_gang(), "hub", 3, LATER).after

    assert (after.phase, after.attempts, attempt_of(after).number, attempt_of(after).cluster) == (
        Phase.DISPATCHING,
        3,
        3,
        "hub",
    )


def test_being_blocked_again_for_the_same_reason_is_no_news_whatever_the_amounts() -> None:
    blocked = make_blocked()
    assert queue_changes.block(blocked, replace(WAITS, message="cpu: needs 1, 0.5 free"), LATER) is None


@pytest.mark.parametrize(
    "pending",
    [
        pytest.param(replace(WAITS, reason="ReservedForAnother"), id="reason"),
        pytest.param(replace(WAITS, resource="nvidia.com/gpu"), id="resource"),
        pytest.param(replace(WAITS, cluster="east"), id="cluster"),
    ],
)
def test_being_blocked_for_something_else_is_news_but_not_a_new_wait(pending: Pending) -> None:
    blocked = make_blocked()

    change = queue_changes.block(blocked, pending, LATER)

    assert change is not None
    assert change.after == gone_on(blocked, pending=pending)


def test_time_at_the_head_runs_from_the_first_time_it_is_the_head() -> None:
    blocked = make_blocked()
    head = queue_changes.block(blocked, WAITS, at(20), is_head=True)
    assert (blocked.blocked_since, head and head.after) == (
        None,
        gone_on(blocked, now=at(20), blocked_since=at(20)),
    )
    assert head is not None
    for is_head in (True, False):
        assert queue_changes.block(head.after, WAITS, at(30), is_head=is_head) is None
    other = queue_changes.block(head.after, replace(WAITS, resource="memory"), at(30), is_head=True)
    assert other is not None
    assert other.after.blocked_since == at(20)


def test_new_appwrapper_that_is_the_head_at_once_is_blocked_in_one_step() -> None:
    change = queue_changes.block(make_record(), WAITS, LATER, is_head=True)
    assert change is not None
    assert (change.events[0].cause, change.after.blocked_since) == (Cause.BLOCKED, LATER)


def test_gang_not_evaluated_is_noted_once_and_keeps_its_phase() -> None:
    change = queue_changes.note_not_evaluated(make_record(), BEHIND, LATER)
    assert change is not None
    assert change.after == gone_on(make_record(), pending=BEHIND)
    assert (
        queue_changes.note_not_evaluated(change.after, replace(BEHIND, message="behind another"), at(20))
        is None
    )


def test_dispatch_clears_everything_that_was_about_waiting() -> None:
    blocked = replace(make_blocked(), message="exceeded quota", eligible_at=at(2))

    after = queue_changes.dispatch(blocked, "hub", LATER).after

    assert (after.pending, after.blocked_since, after.eligible_at, after.message) == (None, None, None, "")


def test_attempt_that_is_found_to_be_over_ends_and_leaves_nothing_to_say() -> None:
    evicted = make_evicted()
    assert evicted.reason

    after = first_changes.end_missed_attempt(evicted, "it is gone", LATER).after

    assert after == gone_on(
        evicted,
        phase=Phase.QUEUED,
        phase_since=LATER,
        reason="",
        message="",
        eligible_at=None,
        attempt=replace(attempt_of(evicted), ended_at=LATER, outcome="missed"),
    )


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(replace(make_blocked(), eligible_at=at(2), blocked_since=at(1)), id="queued"),
        pytest.param(make_record(Phase.SUSPENDED), id="suspended"),
    ],
)
def test_attempt_that_is_taken_over_goes_on_by_its_own_number_where_it_was_found(record: Record) -> None:
    after = first_changes.take_over(record, "east", 7, LATER).after

    assert after.attempt == Attempt(7, "east", LATER)
    assert after.attempts == 7
    assert (after.pending, after.blocked_since, after.eligible_at) == (None, None, None)
    true = {condition.type for condition in after.conditions if condition.status}
    assert true == {ConditionType.INIT, ConditionType.QUEUEING, ConditionType.HEAD_OF_LINE}


def test_adopted_attempt_keeps_objects_finished_by_an_earlier_attempt_in_its_cluster() -> None:
    done, other = replace(make_ref(0), done=True), make_ref(1)
    earlier = Attempt(1, "hub", at(1), objects=(done, other), ended_at=at(2), outcome="evicted")
    record = replace(make_record(), attempts=1, attempt=earlier)
    found = {name: first_changes.take_over(record, name, 2, LATER).after.attempt for name in ("hub", "east")}
    assert found == {"hub": Attempt(2, "hub", LATER, objects=(done,)), "east": Attempt(2, "east", LATER)}


def test_attempt_that_is_not_later_than_those_known_is_never_taken_over() -> None:
    record = replace(make_record(), attempts=3)
    with pytest.raises(IllegalTransition, match="attempt 3 is not later than 3"):
        first_changes.take_over(record, "hub", 3, LATER)


RECALLS = [
    pytest.param(
        lambda record: first_changes.complete_missed(record, at(100), LATER), "completed", id="completed"
    ),
    pytest.param(
        lambda record: first_changes.fail_missed(record, "FailedComponent", "it\nfailed", at(100), LATER),
        "failed",
        id="failed",
    ),
]


@pytest.mark.parametrize(("recall", "outcome"), RECALLS)
def test_run_that_had_ended_before_the_restore_ends_and_is_kept_as_its_status_says(
    recall: Callable[[Record], Change], outcome: str
) -> None:
    running = make_record(Phase.RUNNING)
    after = recall(running).after
    assert after.attempt == replace(attempt_of(running), ended_at=LATER, outcome=outcome)
    assert after.kept_until == at(100)
    assert (after.reason, after.message) == (
        ("FailedComponent", r"it\nfailed") if outcome == "failed" else ("", "")
    )


@pytest.mark.parametrize(("recall", "outcome"), RECALLS)
def test_queued_gang_that_had_ended_before_the_restore_keeps_no_objects(
    recall: Callable[[Record], Change], outcome: str
) -> None:
    waits = replace(make_blocked(), eligible_at=at(2), blocked_since=at(1))
    after = recall(waits).after
    assert (after.attempt, after.kept_until, after.pending) == (None, None, None)
    assert (after.eligible_at, after.blocked_since) == (None, None)


def test_moved_gang_takes_nothing_along_that_its_former_queue_granted() -> None:
    blocked = make_blocked(make_record(enqueue_seq=17))
    granted = replace(blocked, is_preempting=True, blocked_since=at(1))
    change = queue_changes.move(granted, ("team", "tree/gold"), LATER)
    assert change.after == gone_on(blocked, queue="team", more_queues=("tree/gold",))
    [event] = change.events
    assert (event.cause, event.message) == (Cause.MOVED, "queue default → team, tree/gold")


def test_reprioritised_appwrapper_changes_in_nothing_else() -> None:
    record = make_blocked(make_record(enqueue_seq=17))

    after = queue_changes.reprioritise(record, 8, 0.5, LATER).after

    assert after == gone_on(record, priority=8, priority_slope=0.5)


def test_requeued_appwrapper_keeps_its_place_and_says_why_it_waits() -> None:
    queued = make_blocked(make_record(enqueue_seq=17, priority=9))
    dispatching = queue_changes.dispatch(queued, "east", at(2)).after
    requeueing = run_changes.postpone_creation(
        dispatching, (make_ref(),), "exceeded quota", at(8), at(3)
    ).after

    after = removal.removed(requeueing, LATER).after

    assert after == gone_on(
        queued,
        3,
        phase_since=LATER,
        conditions=after.conditions,
        message="exceeded quota",
        pending=Pending("CreationPostponed", "exceeded quota", cluster="east"),
        eligible_at=at(8),
        blocked_since=None,
        attempts=1,
        attempt=replace(attempt_of(dispatching), objects=(make_ref(),), ended_at=LATER, outcome="postponed"),
    )


def test_evicted_appwrapper_keeps_its_place_and_says_why_and_how_often() -> None:
    running = make_record(Phase.RUNNING, enqueue_seq=17, priority=9, unhealthy=NotedIssue("r", "m", at(3)))

    taken = run_changes.evict(
        running, EvictionReason("MinPodsNotRunning", "too\nfew"), at(94), 600, at(4)
    ).after
    after = removal.removed(taken, LATER).after

    assert after == gone_on(
        running,
        2,
        phase=Phase.QUEUED,
        phase_since=LATER,
        conditions=after.conditions,
        reason="MinPodsNotRunning",
        message=r"too\nfew",
        pending=Pending("PreemptionTriggered", r"too\nfew", cluster="hub"),
        unhealthy=None,
        requeuings=1,
        requeuing_seconds=600,
        eligible_at=at(94),
        aged_from=running.created_at + (at(94) - LATER),
        attempt=replace(attempt_of(running), ended_at=LATER, outcome="evicted"),
    )


def test_requeued_gang_lets_others_go_first_even_without_a_pause() -> None:
    taken = run_changes.evict(make_record(Phase.RUNNING), EvictionReason("r", "m"), at(4), 300, at(4)).after
    assert removal.removed(taken, LATER).after.eligible_at == LATER + removal.YIELD


def test_next_dispatch_forgets_why_it_was_taken_back_but_not_how_often() -> None:
    requeued = removal.removed(make_evicted(), at(5)).after

    after = queue_changes.dispatch(requeued, "hub", LATER).after

    assert (after.reason, after.message, after.pending, after.requeuings, after.requeuing_seconds) == (
        "",
        "",
        None,
        1,
        600,
    )


def test_creation_that_is_postponed_counts_as_no_requeuing() -> None:
    assert removal.removed(make_record(Phase.REQUEUEING), LATER).after.requeuings == 0


def test_health_issue_is_noted_with_its_time_and_nothing_else() -> None:
    record = make_record(Phase.RUNNING)
    ill = run_changes.note_health_issue(record, "InsufficientPodsReady", "1 of 2\npods run", LATER).after
    noted = NotedIssue("InsufficientPodsReady", r"1 of 2\npods run", LATER)
    assert ill == gone_on(record, unhealthy=noted)
    assert run_changes.recover(ill, at(20)).after == gone_on(record, 2, at(20))


def test_done_items_are_remembered_one_by_one() -> None:
    record = make_record(Phase.DISPATCHED)
    refs = tuple(make_ref(item) for item in range(3))
    record = replace(record, attempt=replace(attempt_of(record), objects=refs))

    first = run_changes.complete_some(record, {1}, at(3)).after
    second = run_changes.complete_some(first, {2}, at(4)).after

    assert [ref.done for ref in attempt_of(second).objects] == [False, True, True]
    assert (second.phase_since, second.conditions) == (at(3), first.conditions)


def test_completed_appwrapper_ends_its_attempt_and_says_until_when_its_parts_stay() -> None:
    record = make_record(Phase.RUNNING, unhealthy=NotedIssue("r", "m", at(3)))

    after = run_changes.complete(record, {0}, at(100), LATER).after

    assert after == gone_on(
        record,
        phase=Phase.COMPLETED,
        phase_since=LATER,
        conditions=after.conditions,
        unhealthy=None,
        kept_until=at(100),
        attempt=replace(
            attempt_of(record), objects=(make_ref(done=True),), ended_at=LATER, outcome="completed"
        ),
    )


def test_failed_appwrapper_keeps_reason_and_message_through_the_removal() -> None:
    failed = removal.removed(make_failing_run(), LATER, at(100)).after
    assert (failed.reason, failed.message, failed.kept_until) == ("FailedComponent", "it failed", at(100))


def test_suspended_appwrapper_stands_in_no_queue_and_keeps_the_age_that_it_has() -> None:
    blocked = make_blocked(make_record(enqueue_seq=17, priority=9, eligible_at=at(50)))
    head = replace(blocked, blocked_since=at(1))

    held = queue_changes.suspend(head, at(5)).after
    back = queue_changes.resume(held, LATER).after

    assert back == gone_on(
        blocked,
        2,
        phase_since=LATER,
        conditions=back.conditions,
        pending=None,
        eligible_at=None,
        aged_from=blocked.created_at + (LATER - at(5)),
    )


def test_gang_suspended_while_it_ran_may_go_at_once_when_it_is_released() -> None:
    held = removal.removed(make_record(Phase.SUSPENDING, eligible_at=at(99)), at(6)).after
    assert queue_changes.resume(held, LATER).after.eligible_at is None


@pytest.mark.parametrize("suspended", [False, True])
def test_new_appwrapper_is_suspended_from_the_start_if_its_user_says_so(suspended: bool) -> None:
    after = first_changes.submit(
        make_submission(suspended=suspended, expected_seconds=60), make_gang(), LATER
    ).after
    assert (
        after.phase,
        [condition.type.value for condition in after.conditions],
        after.expected_seconds,
    ) == (
        Phase.SUSPENDED if suspended else Phase.QUEUED,
        ["Init", "Suspended" if suspended else "Queueing"],
        60,
    )


def test_end_in_a_status_is_believed() -> None:
    submission, gang = make_submission(), make_gang()
    completed = first_changes.recall_completed(submission, gang, LATER).after
    failed = first_changes.recall_failed(submission, gang, "FailedComponent", "it\nfailed", LATER).after
    assert [(each.phase, each.reason, each.message, each.attempt) for each in (completed, failed)] == [
        (Phase.COMPLETED, "", "", None),
        (Phase.FAILED, "FailedComponent", r"it\nfailed", None),
    ]


def test_second_attempt_is_a_new_one_with_the_next_number() -> None:
    requeued = removal.removed(make_record(Phase.REQUEUEING), at(5)).after

    after = queue_changes.dispatch(requeued, "hub", LATER).after

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
    assert change.after.attempt == replace(attempt_of(before), **fields)  # type: ignore[arg-type]


def test_condition_keeps_its_time_while_its_status_stays() -> None:
    blocked = make_blocked(seconds=1)
    requeued = removal.removed(replace(make_record(Phase.REQUEUEING), conditions=blocked.conditions), LATER)
    before, after = blocked.condition(ConditionType.BACKOFF), requeued.after.condition(ConditionType.BACKOFF)
    assert before is not None
    assert after == replace(before, updated=LATER, message="exceeded quota")


def test_backoff_condition_turns_false_at_dispatch_and_keeps_its_message() -> None:
    blocked = make_blocked()
    before = blocked.condition(ConditionType.BACKOFF)
    assert before is not None

    after = queue_changes.dispatch(blocked, "hub", LATER).after

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


def test_health_issue_with_only_a_new_message_keeps_its_start_time() -> None:
    ill = run_changes.note_health_issue(
        make_record(Phase.RUNNING), words.DRIFTED, "one field was changed", at(10)
    ).after
    worse = run_changes.note_health_issue(ill, words.DRIFTED, "two fields were changed", at(20)).after
    other = run_changes.note_health_issue(worse, words.CLUSTER_UNREACHABLE, "east is away", at(30)).after
    assert [each.unhealthy for each in (worse, other)] == [
        NotedIssue(words.DRIFTED, "two fields were changed", at(10)),
        NotedIssue(words.CLUSTER_UNREACHABLE, "east is away", at(30)),
    ]
