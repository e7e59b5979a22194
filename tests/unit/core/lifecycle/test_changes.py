"""The lifecycle's table and its steps: every phase with every step."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import product

import pytest
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.conditions import ConditionType
from dispatcher.api.selector import EVERYTHING, parse_selector
from dispatcher.core.lifecycle import (
    first_changes,
    provisioning,
    queue_changes,
    record_change,
    removal,
    run_changes,
)
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.lifecycle.transitions import TRANSITIONS, Cause, Transition
from dispatcher.core.model.gangs.growth import GrowthRequest, Shrinking
from dispatcher.core.model.records.pending_reasons import AWAITING_APPROVAL
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.provisioning import Provisioning
from dispatcher.core.model.records.record import HOLDING, Change, Condition, Event, Pending, Phase, Record
from dispatcher.core.model.resources import NOTHING
from dispatcher.errors import IllegalTransition
from tests.builders import (
    QUEUED_CLASS,
    WAITS,
    at,
    attempt_of,
    make_drained,
    make_evicted,
    make_failing_run,
    make_gang,
    make_preempted,
    make_record,
    make_ref,
    make_submission,
)

LATER = at(10)
BEHIND = Pending("AwaitingHeadOfLine", "behind default/other, which waits")
PREEMPTS = Pending("AwaitingRelease", "fits once default/other is gone, which it preempts", cluster="hub")
AWAITS = Pending(AWAITING_APPROVAL, "it lacks the approval budget", approvals=("budget",))
TABLE = {(row.source, row.cause, row.target) for row in TRANSITIONS}

FIRST_STEPS: dict[Cause, Callable[[], Change]] = {
    Cause.SUBMITTED: lambda: first_changes.submit(make_submission(), make_gang(), LATER),
    Cause.SUBMITTED_SUSPENDED: lambda: first_changes.submit(
        make_submission(suspended=True), make_gang(), LATER
    ),
    Cause.REJECTED: lambda: first_changes.reject(make_submission(), "cannot be read", LATER),
    Cause.ADOPTED: lambda: first_changes.adopt(make_submission(), make_gang(), "hub", 3, LATER),
    Cause.FOUND_COMPLETED: lambda: first_changes.recall_completed(make_submission(), make_gang(), LATER),
    Cause.FOUND_FAILED: lambda: first_changes.recall_failed(
        make_submission(), make_gang(), words.DISPATCH_DEADLINE_EXCEEDED, "ran too long", LATER
    ),
}


def at_later(step: Callable[[Record, datetime], Change | None]) -> Callable[[Record], Change | None]:
    return lambda record: step(record, LATER)


STEPS_AT: dict[Cause, Callable[[Record, datetime], Change | None]] = {
    Cause.BLOCKED: lambda record, now: queue_changes.block(record, WAITS, now),
    Cause.NOT_EVALUATED: lambda record, now: queue_changes.note_not_evaluated(record, BEHIND, now),
    Cause.BLOCKED_AT_HEAD: lambda record, now: queue_changes.block(told(record), WAITS, now, is_head=True),
    Cause.WARNED: lambda record, now: queue_changes.warn(record, ["Job a: unknown"], now),
    Cause.REPRIORITISED: lambda record, now: queue_changes.reprioritise(record, 7, 0.5, now),
    Cause.SUSPENDED: lambda record, now: queue_changes.suspend(record, now),
    Cause.RESUMED: lambda record, now: queue_changes.resume(record, now),
    Cause.DISPATCHED: lambda record, now: queue_changes.dispatch(record, "hub", now),
    Cause.PROVISIONING: lambda record, now: provisioning.note(awaiting(record), "asked", now),
    Cause.PROVISIONED: lambda record, now: provisioning.provisioned(awaiting(record), "it is there", now),
    Cause.PROVISIONING_FAILED: lambda record, now: provisioning.fail(
        awaiting(record), "no nodes", has_other_cluster=False, now=now
    ),
    Cause.PROVISIONING_REFUSED: lambda record, now: provisioning.fail(
        replace(awaiting(record), provisioning_failures=3), "no nodes", has_other_cluster=False, now=now
    ),
    Cause.CREATED: lambda record, now: run_changes.created(record, (make_ref(),), now),
    Cause.PODS_RUNNING: lambda record, now: run_changes.mark_running(record, now),
    Cause.UNHEALTHY: lambda record, now: run_changes.note_health_issue(
        record, words.INSUFFICIENT_PODS_READY, "0 of 1 pods run", now
    ),
    Cause.RECOVERED: lambda record, now: run_changes.recover(record, now),
    Cause.GREW: lambda record, now: run_changes.note_growth(record, record.gang.demand * 3, now),
    Cause.SHRANK: lambda record, now: run_changes.note_growth(record, NOTHING, now),
    Cause.GRANTED: lambda record, now: run_changes.grant(
        record, record.gang.demand, None, "2 more pods", now
    ),
    Cause.GROWTH_WAITS: lambda record, now: run_changes.note_growth_request(
        record, GrowthRequest(2, record.gang.demand, now, "InsufficientQuota", "no quota"), now
    ),
    Cause.SURPLUS_PREEMPTED: lambda record, now: run_changes.give_up(
        record, Shrinking((), NOTHING, "uid-of-other"), Reason.QUOTA_RECLAIMED, "1 surplus pod", now
    ),
    Cause.GROWTH_TAKEN_BACK: lambda record, now: run_changes.take_back_growth(
        record, Shrinking((), NOTHING, ""), "no nodes came", now
    ),
    Cause.ITEMS_DONE: lambda record, now: run_changes.note_done(record, (0,), now),
    Cause.SOME_COMPLETED: lambda record, now: run_changes.complete_some(record, (0,), now),
    Cause.COMPLETED: lambda record, now: run_changes.complete(record, (0,), at(100), now),
    Cause.EVICTED: lambda record, now: run_changes.evict(
        record, EvictionReason(words.MIN_PODS_NOT_RUNNING, "too few pods"), at(40), 600, now
    ),
    Cause.PREEMPTED: lambda record, now: run_changes.preempt(
        record, Reason.QUOTA_RECLAIMED, "preempted for default/other", now, "uid-of-other"
    ),
    Cause.PREEMPTING: lambda record, now: queue_changes.begin_preempting(record, PREEMPTS, now),
    Cause.REDIRECTED: lambda record, now: queue_changes.redirect(
        record, record.requirements.directed(parse_selector("zone=east", ""), EVERYTHING), now
    ),
    Cause.AWAITING_APPROVAL: lambda record, now: queue_changes.await_approvals(record, AWAITS, now),
    Cause.APPROVED: lambda record, now: queue_changes.approve(record, now),
    Cause.MOVED: lambda record, now: queue_changes.move(record, ("team", "tree/gold"), now),
    Cause.NOTIFICATIONS_CHANGED: lambda record, now: queue_changes.choose_notifications(
        record, "mail=Failed", now
    ),
    Cause.RUN_FAILED: lambda record, now: run_changes.fail(
        record, EvictionReason(words.FAILED_COMPONENT, "it failed"), now
    ),
    Cause.CREATION_REFUSED: lambda record, now: run_changes.refuse_creation(record, (make_ref(),), "no", now),
    Cause.CREATION_POSTPONED: lambda record, now: run_changes.postpone_creation(
        record, (make_ref(),), "quota", at(15), now
    ),
    Cause.WITHDRAWN: lambda record, now: run_changes.withdraw(record, "no answer", at(45), now),
    Cause.REMOVED: lambda record, now: removal.removed(record, now),
    Cause.DELETED: lambda record, now: removal.delete(record, now),
    Cause.RELEASED: lambda record, now: removal.release(record, now),
    Cause.EXPIRED: lambda record, now: removal.expire(record, now),
    Cause.ABANDONED: lambda record, now: removal.abandon(record, "cluster east has not answered", now),
    Cause.LOST: lambda record, now: removal.lose(record, "cluster east has not answered", now),
    Cause.FOUND_ENDED: lambda record, now: first_changes.end_missed_attempt(record, "it is gone", now),
    Cause.FOUND_RUNNING: lambda record, now: first_changes.take_over(
        record, "east", record.attempts + 2, now
    ),
    Cause.FOUND_COMPLETED: lambda record, now: first_changes.complete_missed(record, at(100), now),
    Cause.FOUND_FAILED: lambda record, now: first_changes.fail_missed(
        record, words.DISPATCH_DEADLINE_EXCEEDED, "ran too long", at(100), now
    ),
}
STEPS: dict[Cause, Callable[[Record], Change | None]] = {
    cause: at_later(step) for cause, step in STEPS_AT.items()
}


def told(record: Record) -> Record:
    """The record of one that knows already that it does not fit."""
    backoff = Condition(ConditionType.BACKOFF, status=True, since=at(1), updated=at(1))
    others = tuple(each for each in record.conditions if each.type is not ConditionType.BACKOFF)
    return replace(record, pending=WAITS, conditions=(*others, backoff))


PROVISIONING = {Cause.PROVISIONING, Cause.PROVISIONED, Cause.PROVISIONING_FAILED}


def awaiting(record: Record) -> Record:
    """The record, its attempt with a request for capacity if it has one."""
    if record.attempt is None:
        return record
    return replace(record, attempt=replace(record.attempt, provisioning=Provisioning(QUEUED_CLASS)))


def start_of(row: Transition) -> Record | None:
    record = record_in(row.source)
    if record is None:
        return None
    if row.cause is Cause.PROVISIONING_REFUSED:
        return replace(awaiting(record), provisioning_failures=3)
    if row.cause in PROVISIONING:
        return awaiting(record)
    return told(record) if row.cause is Cause.BLOCKED_AT_HEAD else record


def record_in(phase: Phase | None) -> Record | None:
    return make_record(phase) if phase else None


def step_from(record: Record | None, cause: Cause) -> Change | None:
    return FIRST_STEPS[cause]() if record is None else STEPS[cause](record)


# --- the table -----------------------------------------------------------------------------------------


def test_table_names_each_cause_once_per_phase_and_uses_all_words() -> None:
    assert len({(row.source, row.cause) for row in TRANSITIONS}) == len(TRANSITIONS)
    assert {row.cause for row in TRANSITIONS} == set(Cause)
    assert {row.target for row in TRANSITIONS} == set(Phase)
    assert {row.source for row in TRANSITIONS} == {None, *Phase} - {Phase.DELETED}


def test_steps_make_exactly_the_transitions_of_the_table() -> None:
    made: set[tuple[Phase | None, Cause, Phase]] = {
        (None, cause, step().after.phase) for cause, step in FIRST_STEPS.items()
    }
    for phase, (cause, step) in product(Phase, STEPS.items()):
        try:
            change = step(make_record(phase))
        except IllegalTransition:
            continue
        assert change is not None
        made.add((phase, cause, change.after.phase))
    assert made == TABLE


ILLEGAL = [
    pytest.param(phase, cause, id=f"{phase}-{cause}")
    for phase, cause in product(Phase, STEPS)
    if not any((phase, cause) == (row.source, row.cause) for row in TRANSITIONS)
]


@pytest.mark.parametrize(("phase", "cause"), ILLEGAL)
def test_step_the_table_does_not_have_is_refused(phase: Phase, cause: Cause) -> None:
    with pytest.raises(IllegalTransition, match=r"^uid-of-aw: "):
        STEPS[cause](make_record(phase))


def test_step_that_ends_an_attempt_is_refused_once_the_attempt_is_over() -> None:
    record = make_record(Phase.DISPATCHING)
    over = replace(record, attempt=replace(attempt_of(record), ended_at=at(2)))
    with pytest.raises(IllegalTransition, match="Dispatching without a live attempt"):
        run_changes.created(over, (), LATER)


# --- every change --------------------------------------------------------------------------------------

LEGAL = [
    pytest.param(row, id=f"{row.source or 'unseen'}-{row.cause}-{row.target}".lower()) for row in TRANSITIONS
]


@pytest.mark.parametrize("row", LEGAL)
def test_every_change_grows_the_version_by_one_and_makes_one_event(row: Transition) -> None:
    before = start_of(row)
    change = step_from(before, row.cause)
    assert change is not None
    event = change.events[0]

    assert change.before == before
    assert change.after.version == (before.version if before else 0) + 1
    assert len(change.events) == 1
    assert (event.at, event.cause, event.from_phase, event.to_phase) == (
        LATER,
        row.cause,
        row.source,
        row.target,
    )
    assert (change.spec is None) is (before is not None)


@pytest.mark.parametrize("row", LEGAL)
def test_only_a_pending_gang_may_be_marked_as_preempting(row: Transition) -> None:
    before = start_of(row)
    if before is not None and row.source is Phase.QUEUED:
        before = replace(before, is_preempting=True)
    change = step_from(before, row.cause)
    assert change is not None
    assert not change.after.is_preempting or row.target is Phase.QUEUED


WAYS_BACK = [
    pytest.param(make_evicted(), Phase.QUEUED, "evicted", id="taken-from-its-cluster"),
    pytest.param(make_preempted(), Phase.QUEUED, "preempted", id="preempted"),
    pytest.param(make_drained(), Phase.QUEUED, "evicted", id="drained-with-its-queue"),
    pytest.param(make_record(Phase.REQUEUEING), Phase.QUEUED, "postponed", id="not-created-for-now"),
    pytest.param(make_record(Phase.SUSPENDING), Phase.SUSPENDED, "suspended", id="suspended"),
    pytest.param(make_record(Phase.FAILING), Phase.FAILED, "failed", id="never-created"),
    pytest.param(make_failing_run(), Phase.FAILED, "failed", id="failed-in-its-run"),
]


@pytest.mark.parametrize(("before", "phase", "outcome"), WAYS_BACK)
def test_removed_attempt_states_its_outcome(before: Record, phase: Phase, outcome: str) -> None:
    after = removal.removed(before, LATER).after
    assert (after.phase, after.attempt) == (
        phase,
        replace(attempt_of(before), ended_at=LATER, outcome=outcome),
    )


@pytest.mark.parametrize("row", LEGAL)
def test_phase_since_moves_only_with_the_phase(row: Transition) -> None:
    before = start_of(row)
    change = step_from(before, row.cause)
    assert change is not None
    moved = row.source is not row.target
    assert change.after.phase_since == (LATER if moved or before is None else before.phase_since)


@pytest.mark.parametrize("row", LEGAL)
def test_a_phase_holds_capacity_exactly_while_its_attempt_lives(row: Transition) -> None:
    change = step_from(start_of(row), row.cause)
    assert change is not None
    attempt = change.after.attempt
    lives = attempt is not None and attempt.ended_at is None
    assert (change.after.phase in HOLDING) is lives


ATTEMPT: dict[str, object] = {"cluster": "hub", "attempt": 1}
WITHOUT_SUSPENSION = (
    "its age counts from 2026-11-20 08:58:15 UTC, without the time in which its author kept it back"
)

EVENTS: list[tuple[Cause, Phase | None, Phase, dict[str, object]]] = [
    (Cause.SUBMITTED, None, Phase.QUEUED, {}),
    (Cause.REJECTED, None, Phase.FAILED, {"message": "cannot be read"}),
    (Cause.ADOPTED, None, Phase.DISPATCHING, {"cluster": "hub", "attempt": 3}),
    (Cause.SUBMITTED_SUSPENDED, None, Phase.SUSPENDED, {}),
    (Cause.FOUND_COMPLETED, None, Phase.COMPLETED, {}),
    (Cause.FOUND_FAILED, None, Phase.FAILED, {"message": "ran too long"}),
    (Cause.BLOCKED, Phase.QUEUED, Phase.QUEUED, {"reason": WAITS.reason, "message": WAITS.message}),
    (Cause.NOT_EVALUATED, Phase.QUEUED, Phase.QUEUED, {"reason": BEHIND.reason, "message": BEHIND.message}),
    (Cause.BLOCKED_AT_HEAD, Phase.QUEUED, Phase.QUEUED, {}),
    (
        Cause.REPRIORITISED,
        Phase.QUEUED,
        Phase.QUEUED,
        {"message": "priority 0 → 7, slope 0 → 0.5"},
    ),
    (
        Cause.AWAITING_APPROVAL,
        Phase.QUEUED,
        Phase.QUEUED,
        {"reason": "AwaitingApproval", "message": "it lacks the approval budget"},
    ),
    (Cause.APPROVED, Phase.QUEUED, Phase.QUEUED, {}),
    (Cause.DISPATCHED, Phase.QUEUED, Phase.DISPATCHING, ATTEMPT),
    (Cause.DELETED, Phase.QUEUED, Phase.DELETED, {}),
    (Cause.CREATED, Phase.DISPATCHING, Phase.DISPATCHED, ATTEMPT),
    (
        Cause.CREATION_REFUSED,
        Phase.DISPATCHING,
        Phase.FAILING,
        {"message": "no", **ATTEMPT},
    ),
    (
        Cause.CREATION_POSTPONED,
        Phase.DISPATCHING,
        Phase.REQUEUEING,
        {"message": "quota", **ATTEMPT},
    ),
    (Cause.PODS_RUNNING, Phase.DISPATCHED, Phase.RUNNING, ATTEMPT),
    (Cause.DELETED, Phase.RUNNING, Phase.DELETING, ATTEMPT),
    (Cause.REMOVED, Phase.REQUEUEING, Phase.QUEUED, ATTEMPT),
    (
        Cause.REMOVED,
        Phase.FAILING,
        Phase.FAILED,
        {"message": "it is invalid", **ATTEMPT},
    ),
    (Cause.SUSPENDED, Phase.QUEUED, Phase.SUSPENDED, {}),
    (Cause.RESUMED, Phase.SUSPENDED, Phase.QUEUED, {"message": WITHOUT_SUSPENSION}),
    (
        Cause.UNHEALTHY,
        Phase.RUNNING,
        Phase.RUNNING,
        {"reason": "InsufficientPodsReady", "message": "0 of 1 pods run", **ATTEMPT},
    ),
    (Cause.RECOVERED, Phase.RUNNING, Phase.RUNNING, ATTEMPT),
    (
        Cause.GREW,
        Phase.RUNNING,
        Phase.RUNNING,
        {"message": "cpu: holds 3, before 1, demand 1", **ATTEMPT},
    ),
    (Cause.SOME_COMPLETED, Phase.RUNNING, Phase.RUNNING_HOLD_COMPLETION, ATTEMPT),
    (Cause.COMPLETED, Phase.RUNNING_HOLD_COMPLETION, Phase.COMPLETED, ATTEMPT),
    (
        Cause.EVICTED,
        Phase.RUNNING,
        Phase.REQUEUEING,
        {"reason": "MinPodsNotRunning", "message": "too few pods", **ATTEMPT},
    ),
    (
        Cause.PREEMPTED,
        Phase.RUNNING,
        Phase.REQUEUEING,
        {"reason": "QuotaReclaimed", "message": "preempted for default/other", **ATTEMPT},
    ),
    (
        Cause.PREEMPTING,
        Phase.QUEUED,
        Phase.QUEUED,
        {"reason": PREEMPTS.reason, "message": PREEMPTS.message},
    ),
    (
        Cause.RUN_FAILED,
        Phase.RUNNING,
        Phase.FAILING,
        {"reason": "FailedComponent", "message": "it failed", **ATTEMPT},
    ),
    (Cause.SUSPENDED, Phase.RUNNING, Phase.SUSPENDING, ATTEMPT),
    (Cause.REMOVED, Phase.SUSPENDING, Phase.SUSPENDED, ATTEMPT),
    (Cause.EXPIRED, Phase.COMPLETED, Phase.COMPLETED, {}),
    (Cause.DELETED, Phase.COMPLETED, Phase.DELETED, {}),
    (Cause.DELETED, Phase.FAILED, Phase.DELETED, {}),
    (Cause.RELEASED, Phase.DELETING, Phase.DELETED, ATTEMPT),
    (
        Cause.FOUND_ENDED,
        Phase.RUNNING,
        Phase.QUEUED,
        {"message": "it is gone", **ATTEMPT},
    ),
    (Cause.FOUND_RUNNING, Phase.QUEUED, Phase.DISPATCHING, {"cluster": "east", "attempt": 2}),
    (Cause.FOUND_COMPLETED, Phase.RUNNING, Phase.COMPLETED, ATTEMPT),
    (Cause.FOUND_FAILED, Phase.QUEUED, Phase.FAILED, {"message": "ran too long"}),
]


@pytest.mark.parametrize(
    ("cause", "source", "target", "fields"),
    [pytest.param(*row, id=f"{row[0]}-from-{row[1] or 'unseen'}") for row in EVENTS],
)
def test_history_states_each_step_its_cluster_and_its_reason(
    cause: Cause, source: Phase | None, target: Phase, fields: dict[str, object]
) -> None:
    change = step_from(record_in(source), cause)
    assert change is not None
    assert change.events == (Event(LATER, cause, source, target, **fields),)  # type: ignore[arg-type]


FROM_LATER = at(3600)
"""When a former leader, whose clock was ahead, made the last step."""


@pytest.mark.parametrize(
    "transition",
    # What is told of a head is a step of its own here, and made before.
    [row for row in TRANSITIONS if row.source and row.cause in STEPS and row.cause != Cause.BLOCKED_AT_HEAD],
    ids=lambda row: f"{row.source}-{row.cause}",
)
def test_times_of_one_appwrapper_never_run_backwards(transition: Transition) -> None:
    assert transition.source is not None
    record = replace(make_record(transition.source), phase_since=FROM_LATER)
    change = STEPS[transition.cause](record)
    assert change is not None
    after, before = change.after, record.attempt
    moments = [each.at for each in change.events] + [after.phase_since]
    moments += [each.updated for each in after.conditions if each not in record.conditions]
    if after.attempt is not None:
        pairs = (
            (getattr(after.attempt, name), getattr(before, name, None))
            for name in ("decided_at", "created_at", "started_at", "ended_at")
        )
        moments += [new for new, old in pairs if new is not None and new != old]
    assert min(moments) >= FROM_LATER


@pytest.mark.parametrize("first", LEGAL)
def test_events_of_one_appwrapper_never_run_backwards(first: Transition) -> None:
    """The leader that makes the second step has a clock that is behind that of the leader that made the first."""
    earlier = step_from(start_of(first), first.cause)
    assert earlier is not None
    for second in TRANSITIONS:
        if first.target is not second.source or second.cause not in STEPS_AT:
            continue
        record = told(earlier.after) if second.cause is Cause.BLOCKED_AT_HEAD else earlier.after
        later = STEPS_AT[second.cause](record, at(5))
        # A step that says nothing new makes no event.
        times = [event.at for event in later.events] if later else []
        assert min(times, default=LATER) >= LATER, second.cause


def test_latest_time_of_a_record_is_its_last_step_and_never_a_future_time() -> None:
    running = make_record(Phase.RUNNING, eligible_at=at(1e6), kept_until=at(1e6))
    assert record_change.latest(running) == running.phase_since
    ill = run_changes.note_health_issue(running, words.INSUFFICIENT_PODS_READY, "0 of 1", at(700)).after
    assert record_change.latest(ill) == at(700)


def test_creation_time_never_follows_submission_though_the_api_servers_clock_is_ahead() -> None:
    record = first_changes.submit(make_submission(created_at=at(86400)), make_gang(), LATER).after
    assert record.created_at == LATER
