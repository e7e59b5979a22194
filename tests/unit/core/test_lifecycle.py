"""The lifecycle's table, its decisions and its steps: every phase with every observation and every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest

from dispatcher.api.conditions import ConditionType
from dispatcher.core import lifecycle
from dispatcher.core.capacity import PodCounts
from dispatcher.core.decision import Observation, Step, decide, retry_pause
from dispatcher.core.gang import Gang
from dispatcher.core.lifecycle import TRANSITIONS, Cause
from dispatcher.core.record import HOLDING, Change, Condition, Event, Pending, Phase, Record
from dispatcher.errors import IllegalTransition
from tests.builders import WAITS, at, make_gang, make_newcomer, make_record, make_ref

LATER = at(10)
BEHIND = Pending("AwaitingHeadOfLine", "behind default/other, which waits")
TABLE = {(row.source, row.cause, row.target) for row in TRANSITIONS}

FIRST_STEPS: dict[Cause, Callable[[], Change]] = {
    Cause.SUBMITTED: lambda: lifecycle.submit(make_newcomer(), make_gang(), LATER),
    Cause.REJECTED: lambda: lifecycle.reject(make_newcomer(), "cannot be read", LATER),
    Cause.ADOPTED: lambda: lifecycle.adopt(make_newcomer(), make_gang(), "hub", 3, LATER),
}
STEPS: dict[Cause, Callable[[Record], Change | None]] = {
    Cause.BLOCKED: lambda record: lifecycle.block(record, WAITS, LATER),
    Cause.LINED_UP: lambda record: lifecycle.line_up(record, BEHIND, LATER),
    Cause.BECAME_HEAD: lambda record: lifecycle.block(told(record), WAITS, LATER, is_head=True),
    Cause.REPRIORITISED: lambda record: lifecycle.reprioritise(record, 7, 0.5, LATER),
    Cause.DISPATCHED: lambda record: lifecycle.dispatch(record, "hub", LATER),
    Cause.CREATED: lambda record: lifecycle.created(record, (make_ref(),), LATER),
    Cause.PODS_RUNNING: lambda record: lifecycle.mark_running(record, LATER),
    Cause.CREATION_REFUSED: lambda record: lifecycle.refuse_creation(record, (make_ref(),), "no", LATER),
    Cause.CREATION_POSTPONED: lambda record: lifecycle.postpone_creation(
        record, (make_ref(),), "quota", at(15), LATER
    ),
    Cause.REMOVED: lambda record: lifecycle.removed(record, LATER),
    Cause.DELETED: lambda record: lifecycle.delete(record, LATER),
    Cause.RELEASED: lambda record: lifecycle.release(record, LATER),
}
MADE_BY: dict[Step, tuple[Cause, ...]] = {
    Step.REST: (),
    Step.ADMIT: (Cause.SUBMITTED, Cause.REJECTED, Cause.ADOPTED),
    Step.FORGET: (Cause.DELETED,),
    Step.REPRIORITISE: (Cause.REPRIORITISED,),
    Step.CREATE: (Cause.CREATED, Cause.CREATION_REFUSED, Cause.CREATION_POSTPONED),
    Step.MARK_RUNNING: (Cause.PODS_RUNNING,),
    Step.REMOVE: (Cause.REMOVED,),
    Step.CONFIRM_GONE: (Cause.RELEASED,),
}
"""What the reconciler may commit for each step."""

NO_PODS, ENOUGH = PodCounts(), PodCounts(running=1)

DECISIONS: dict[Phase | None, tuple[Step, Step, Step]] = {
    # wanted, no pods    wanted, enough pods    no longer wanted
    None: (Step.ADMIT, Step.ADMIT, Step.REST),
    Phase.QUEUED: (Step.REST, Step.REST, Step.FORGET),
    Phase.DISPATCHING: (Step.CREATE, Step.CREATE, Step.FORGET),
    Phase.DISPATCHED: (Step.REST, Step.MARK_RUNNING, Step.FORGET),
    Phase.RUNNING: (Step.REST, Step.REST, Step.FORGET),
    Phase.REQUEUEING: (Step.REMOVE, Step.REMOVE, Step.FORGET),
    Phase.FAILING: (Step.REMOVE, Step.REMOVE, Step.FORGET),
    Phase.FAILED: (Step.REST, Step.REST, Step.FORGET),
    Phase.DELETING: (Step.CONFIRM_GONE, Step.CONFIRM_GONE, Step.CONFIRM_GONE),
    Phase.DELETED: (Step.REST, Step.REST, Step.REST),
}
SEEN = (
    pytest.param(0, True, NO_PODS, id="wanted-no-pods"),
    pytest.param(1, True, ENOUGH, id="wanted-enough-pods"),
    pytest.param(2, False, NO_PODS, id="unwanted-no-pods"),
    pytest.param(2, False, ENOUGH, id="unwanted-with-pods"),
)
PHASES = [pytest.param(phase, id=phase.value if phase else "unseen") for phase in DECISIONS]


def told(record: Record) -> Record:
    """The record of one that knows already that it does not fit."""
    backoff = Condition(ConditionType.BACKOFF, status=True, since=at(1), updated=at(1))
    others = tuple(each for each in record.conditions if each.type is not ConditionType.BACKOFF)
    return replace(record, pending=WAITS, conditions=(*others, backoff))


def start_of(row: lifecycle.Transition) -> Record | None:
    record = record_in(row.source)
    return told(record) if record and row.cause is Cause.BECAME_HEAD else record


def record_in(phase: Phase | None) -> Record | None:
    return make_record(phase) if phase else None


def step_from(record: Record | None, cause: Cause) -> Change | None:
    return FIRST_STEPS[cause]() if record is None else STEPS[cause](record)


@pytest.mark.parametrize(("column", "wanted", "pods"), SEEN)
@pytest.mark.parametrize("phase", PHASES)
def test_each_phase_with_each_observation_leads_to_one_step(
    phase: Phase | None, column: int, wanted: bool, pods: PodCounts
) -> None:
    assert decide(Observation(record_in(phase), wanted, pods)) is DECISIONS[phase][column]


@pytest.mark.parametrize(("column", "wanted", "pods"), SEEN)
@pytest.mark.parametrize("phase", PHASES)
def test_whatever_is_committed_for_a_step_is_a_transition_of_the_table(
    phase: Phase | None, column: int, wanted: bool, pods: PodCounts
) -> None:
    record = record_in(phase)
    for cause in MADE_BY[decide(Observation(record, wanted, pods))]:
        change = step_from(record, cause)
        assert change is not None
        assert (phase, cause, change.after.phase) in TABLE


ASKED = [
    pytest.param(Phase.QUEUED, None, Step.REST, id="spec-as-submitted"),
    pytest.param(Phase.QUEUED, (0, 0.0), Step.REST, id="it-stands-there-already"),
    pytest.param(Phase.QUEUED, (7, 0.0), Step.REPRIORITISE, id="another-priority"),
    pytest.param(Phase.QUEUED, (0, 0.5), Step.REPRIORITISE, id="another-slope"),
    pytest.param(Phase.DISPATCHING, (7, 0.0), Step.CREATE, id="priority-of-what-left-the-queue"),
    pytest.param(Phase.RUNNING, (7, 0.0), Step.REST, id="priority-of-what-runs"),
]


@pytest.mark.parametrize(("phase", "asked", "step"), ASKED)
def test_new_priority_moves_only_what_is_queued(
    phase: Phase, asked: tuple[int, float] | None, step: Step
) -> None:
    assert decide(Observation(make_record(phase), wanted=True, pods=NO_PODS, asked=asked)) is step


def test_deleted_appwrapper_is_forgotten_whatever_priority_it_asks_for() -> None:
    seen = Observation(make_record(), wanted=False, pods=NO_PODS, asked=(7, 0.0))
    assert decide(seen) is Step.FORGET


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.DELETED])
def test_what_is_no_longer_wanted_is_deleted_in_the_end_from_any_phase(phase: Phase) -> None:
    record = make_record(phase)
    steps = 0
    while record.phase is not Phase.DELETED:
        (cause,) = MADE_BY[decide(Observation(record, wanted=False, pods=NO_PODS))]
        change = STEPS[cause](record)
        assert change is not None
        record, steps = change.after, steps + 1
    assert steps <= 2


def test_what_is_wanted_runs_in_the_end_when_nothing_goes_wrong() -> None:
    record = lifecycle.dispatch(make_record(), "hub", LATER).after
    seen = []
    while (step := decide(Observation(record, wanted=True, pods=ENOUGH))) is not Step.REST:
        change = STEPS[MADE_BY[step][0]](record)
        assert change is not None
        record = change.after
        seen.append(record.phase)
    assert seen == [Phase.DISPATCHED, Phase.RUNNING]


@pytest.mark.parametrize(
    ("needed", "pods", "runs"),
    [
        pytest.param(2, PodCounts(running=1), False, id="one-of-two-runs"),
        pytest.param(2, PodCounts(running=2), True, id="both-run"),
        pytest.param(2, PodCounts(running=1, succeeded=1), True, id="one-has-succeeded-already"),
        pytest.param(2, PodCounts(running=1, failed=1), False, id="a-failed-pod-does-not-count"),
        pytest.param(2, PodCounts(pending=2), False, id="pending-pods-do-not-run"),
        pytest.param(0, PodCounts(), True, id="a-gang-without-pods-always-runs"),
    ],
)
def test_gang_runs_when_as_many_pods_run_or_have_succeeded_as_it_needs(
    needed: int, pods: PodCounts, runs: bool
) -> None:
    record = make_record(Phase.DISPATCHED, gang=Gang(pods=needed))
    assert decide(Observation(record, wanted=True, pods=pods)) is (Step.MARK_RUNNING if runs else Step.REST)


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
    assert record.attempt is not None
    over = replace(record, attempt=replace(record.attempt, ended_at=at(2)))
    with pytest.raises(IllegalTransition, match="Dispatching without a live attempt"):
        lifecycle.created(over, (), LATER)


# --- every change --------------------------------------------------------------------------------------

LEGAL = [
    pytest.param(row, id=f"{row.source or 'unseen'}-{row.cause}-{row.target}".lower()) for row in TRANSITIONS
]


@pytest.mark.parametrize("row", LEGAL)
def test_every_change_grows_the_version_by_one_and_makes_one_event(row: lifecycle.Transition) -> None:
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
def test_phase_since_moves_only_with_the_phase(row: lifecycle.Transition) -> None:
    before = start_of(row)
    change = step_from(before, row.cause)
    assert change is not None
    moved = row.source is not row.target
    assert change.after.phase_since == (LATER if moved or before is None else before.phase_since)


@pytest.mark.parametrize("row", LEGAL)
def test_a_phase_holds_capacity_exactly_while_its_attempt_lives(row: lifecycle.Transition) -> None:
    change = step_from(start_of(row), row.cause)
    assert change is not None
    attempt = change.after.attempt
    lives = attempt is not None and attempt.ended_at is None
    assert (change.after.phase in HOLDING) is lives


EVENTS = [
    (Cause.SUBMITTED, None, Phase.QUEUED, {}),
    (Cause.REJECTED, None, Phase.FAILED, {"message": "cannot be read"}),
    (Cause.ADOPTED, None, Phase.DISPATCHING, {"cluster": "hub", "attempt": 3}),
    (Cause.BLOCKED, Phase.QUEUED, Phase.QUEUED, {"reason": WAITS.reason, "message": WAITS.message}),
    (Cause.LINED_UP, Phase.QUEUED, Phase.QUEUED, {"reason": BEHIND.reason, "message": BEHIND.message}),
    (Cause.BECAME_HEAD, Phase.QUEUED, Phase.QUEUED, {}),
    (
        Cause.REPRIORITISED,
        Phase.QUEUED,
        Phase.QUEUED,
        {"message": "priority 0 → 7, slope 0 → 0.5"},
    ),
    (Cause.DISPATCHED, Phase.QUEUED, Phase.DISPATCHING, {"cluster": "hub", "attempt": 1}),
    (Cause.DELETED, Phase.QUEUED, Phase.DELETED, {}),
    (Cause.CREATED, Phase.DISPATCHING, Phase.DISPATCHED, {"cluster": "hub", "attempt": 1}),
    (
        Cause.CREATION_REFUSED,
        Phase.DISPATCHING,
        Phase.FAILING,
        {"message": "no", "cluster": "hub", "attempt": 1},
    ),
    (
        Cause.CREATION_POSTPONED,
        Phase.DISPATCHING,
        Phase.REQUEUEING,
        {"message": "quota", "cluster": "hub", "attempt": 1},
    ),
    (Cause.PODS_RUNNING, Phase.DISPATCHED, Phase.RUNNING, {"cluster": "hub", "attempt": 1}),
    (Cause.DELETED, Phase.RUNNING, Phase.DELETING, {"cluster": "hub", "attempt": 1}),
    (Cause.REMOVED, Phase.REQUEUEING, Phase.QUEUED, {"cluster": "hub", "attempt": 1}),
    (
        Cause.REMOVED,
        Phase.FAILING,
        Phase.FAILED,
        {"message": "it is invalid", "cluster": "hub", "attempt": 1},
    ),
    (Cause.DELETED, Phase.FAILED, Phase.DELETED, {}),
    (Cause.RELEASED, Phase.DELETING, Phase.DELETED, {"cluster": "hub", "attempt": 1}),
]


@pytest.mark.parametrize(
    ("cause", "source", "target", "fields"),
    [pytest.param(*row, id=f"{row[0]}-from-{row[1] or 'unseen'}") for row in EVENTS],
)
def test_history_says_what_happened_where_and_why(
    cause: Cause, source: Phase | None, target: Phase, fields: dict[str, object]
) -> None:
    change = step_from(record_in(source), cause)
    assert change is not None
    assert change.events == (Event(LATER, cause, source, target, **fields),)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attempts", "seconds"),
    [(0, 5), (1, 5), (2, 10), (3, 20), (6, 160), (7, 300), (8, 300), (10_000, 300)],
)
def test_pause_before_another_try_doubles_up_to_five_minutes(attempts: int, seconds: int) -> None:
    assert retry_pause(attempts) == timedelta(seconds=seconds)
