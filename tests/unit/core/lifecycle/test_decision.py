"""What is to be done next about one AppWrapper, by sentence; every combination is in test_decision_table.py."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.appwrapper import Requeuing
from dispatcher.api.clusters.clusterpolicies import OnClusterLost
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.api.notifications import choices_in
from dispatcher.api.selector import parse_selector
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.lifecycle import queue_changes, removal, run_changes
from dispatcher.core.lifecycle.decision import decide, is_unchanged, retry_pause
from dispatcher.core.lifecycle.health import ObservedObjects
from dispatcher.core.lifecycle.policy import KEPT
from dispatcher.core.lifecycle.record_change import unknown_class, with_unknown_class
from dispatcher.core.lifecycle.step import NOOP, Act, Commit, Do, Loss, ObservedState
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.gangs.pods import PodCounts
from dispatcher.core.model.records.record import ACTIVE, Change, NotedIssue, Phase, Record
from tests.builders import (
    NOW,
    at,
    attempt_of,
    make_evicted,
    make_failed_run,
    make_objects,
    make_observation,
    make_policy,
    make_record,
    make_ref,
)
from tests.unit.core.lifecycle.dispatched import Outline, by, outline, step_of

NO_PODS, ENOUGH = PodCounts(), PodCounts(running=1)
JOB = CompletionRule(ends=True, holds=True)
RUNS = ObjectState()
SUCCEEDED = ObjectState(End.SUCCEEDED, frozenset({"Complete"}))
FAILED = ObjectState(End.FAILED, frozenset({"Failed"}), "BackoffLimitExceeded: too many")
EVICTED = ObjectState(End.EVICTED, frozenset(), "Evicted: memory")


def decided(record: Record, **seen: Any) -> Outline:  # noqa: ANN401
    return outline(decide(make_observation(record, **seen)))


# --- by phase ----------------------------------------------------------------------------------------------

BY_PHASE = [
    (Phase.QUEUED, NOOP),
    (Phase.SUSPENDED, NOOP),
    (Phase.DISPATCHING, Do(Act.CREATE)),
    (Phase.DISPATCHED, by(Cause.PODS_RUNNING)),
    (Phase.RUNNING, NOOP),
    (Phase.RUNNING_HOLD_COMPLETION, NOOP),
    (Phase.COMPLETED, Do(Act.NOOP, until=at(4) + KEPT)),
    (Phase.REQUEUEING, Do(Act.REMOVE)),
    (Phase.SUSPENDING, Do(Act.REMOVE)),
    (Phase.FAILING, Do(Act.REMOVE)),
    (Phase.FAILED, NOOP),
    (Phase.DELETING, Do(Act.CONFIRM_GONE)),
    (Phase.DELETED, NOOP),
]


@pytest.mark.parametrize(("phase", "decision"), BY_PHASE)
def test_decision_of_each_phase_when_all_goes_well(phase: Phase, decision: Outline) -> None:
    assert decided(make_record(phase)) == decision


@pytest.mark.parametrize("phase", Phase)
def test_unwanted_appwrapper_is_removed_whatever_else_is_observed(phase: Phase) -> None:
    expected = {Phase.DELETING: Do(Act.CONFIRM_GONE), Phase.DELETED: NOOP}
    for pods, asked in (
        (NO_PODS, None),
        (ENOUGH, MutableSpec(7)),
        (PodCounts(failed=1), MutableSpec(suspend=True)),
    ):
        seen = decided(make_record(phase), wanted=False, asked=asked, objects=make_objects(pods, FAILED))
        assert seen == expected.get(phase, Do(Act.DELETE))


def test_new_appwrapper_is_taken_in_if_it_is_wanted() -> None:
    decisions = [decide(ObservedState(None, wanted, NOW)) for wanted in (True, False)]
    assert decisions == [Do(Act.TAKE_IN), NOOP]


@pytest.mark.parametrize("phase", [None, *Phase])
def test_finalizer_is_removed_only_once_no_record_is_left(phase: Phase | None) -> None:
    record = None if phase is None else make_record(phase)
    step = step_of(decide(ObservedState(record, wanted=False, now=NOW, is_finalizing=True)))
    assert (step is Act.REMOVE_FINALIZER) is (record is None)


@pytest.mark.parametrize("phase", Phase)
def test_appwrapper_is_neither_suspended_nor_resumed_while_its_spec_is_unknown(phase: Phase) -> None:
    assert decided(make_record(phase), asked=None) == dict(BY_PHASE)[phase]


@pytest.mark.parametrize(
    ("phase", "asked", "step"),
    [
        pytest.param(Phase.QUEUED, MutableSpec(), Act.NOOP, id="it-stands-there-already"),
        pytest.param(Phase.QUEUED, MutableSpec(7), Cause.REPRIORITISED, id="another-priority"),
        pytest.param(Phase.QUEUED, MutableSpec(0, 0.5), Cause.REPRIORITISED, id="another-slope"),
        pytest.param(
            Phase.QUEUED,
            MutableSpec(7, prefers=parse_selector("a=b", "x")),
            Cause.REDIRECTED,
            id="another-priority-and-wish",
        ),
        pytest.param(
            Phase.SUSPENDED, MutableSpec(7, suspend=True), Cause.REPRIORITISED, id="of-what-is-held-back"
        ),
        pytest.param(Phase.DISPATCHING, MutableSpec(7), Act.CREATE, id="of-what-left-the-queue"),
        pytest.param(Phase.RUNNING, MutableSpec(7), Act.NOOP, id="of-what-runs"),
        pytest.param(Phase.FAILED, MutableSpec(7), Act.NOOP, id="of-what-failed"),
    ],
)
def test_new_priority_moves_only_pending_appwrappers(
    phase: Phase, asked: MutableSpec, step: Act | Cause
) -> None:
    assert step_of(decided(make_record(phase), asked=asked)) is step


SUSPENDABLE = {
    Phase.QUEUED,
    Phase.DISPATCHING,
    Phase.DISPATCHED,
    Phase.RUNNING,
    Phase.RUNNING_HOLD_COMPLETION,
}


@pytest.mark.parametrize("phase", Phase)
def test_suspend_applies_to_pending_and_running_gangs_only(phase: Phase) -> None:
    decision = decided(make_record(phase), asked=MutableSpec(suspend=True))
    assert decision == (by(Cause.SUSPENDED) if phase in SUSPENDABLE else dict(BY_PHASE)[phase])


@pytest.mark.parametrize("phase", Phase)
def test_resume_is_due_only_once_nothing_of_it_exists(phase: Phase) -> None:
    decision = decided(make_record(phase), asked=MutableSpec(suspend=False))
    assert decision == (by(Cause.RESUMED) if phase is Phase.SUSPENDED else dict(BY_PHASE)[phase])


def test_suspend_comes_before_whatever_is_wrong() -> None:
    decision = decided(
        make_record(Phase.RUNNING),
        asked=MutableSpec(suspend=True),
        objects=make_objects(NO_PODS, FAILED),
        policy=make_policy(limit=timedelta(0)),
    )
    assert decision == by(Cause.SUSPENDED)


def test_gang_that_is_suspended_while_it_is_requeued_is_queued_first_and_then_suspended() -> None:
    asked = MutableSpec(suspend=True)
    requeueing = make_evicted()
    queued = removal.removed(requeueing, at(6)).after
    assert [step_of(decided(record, asked=asked)) for record in (requeueing, queued)] == [
        Act.REMOVE,
        Cause.SUSPENDED,
    ]


@pytest.mark.parametrize(
    ("make", "kept_until"),
    [
        pytest.param(lambda: make_record(Phase.COMPLETED), at(4) + KEPT, id="completed"),
        pytest.param(make_failed_run, at(5) + KEPT, id="failed"),
    ],
)
def test_kept_objects_go_when_the_time_after_the_end_is_up(
    make: Callable[[], Record], kept_until: object
) -> None:
    record = make()
    assert record.kept_until == kept_until
    week = KEPT.total_seconds()
    decisions = [decided(record, seconds=seconds) for seconds in (10, week + 5, week + 50)]
    expired = removal.expire(record, at(week + 50)).after
    assert [*decisions, decided(expired, seconds=2 * week)] == [
        Do(Act.NOOP, until=record.kept_until),
        Do(Act.EXPIRE),
        Do(Act.EXPIRE),
        NOOP,
    ]


# --- a gang that runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("needed", "pods", "runs"),
    [
        pytest.param(2, PodCounts(running=1), False, id="one-of-two-runs"),
        pytest.param(2, PodCounts(running=2), True, id="both-run"),
        pytest.param(2, PodCounts(running=1, succeeded=1), True, id="one-has-succeeded-already"),
        pytest.param(2, PodCounts(running=1, failed=1), False, id="a-failed-pod-does-not-count"),
        pytest.param(2, PodCounts(pending=2, starting=2), False, id="pending-pods-do-not-run"),
        pytest.param(0, PodCounts(), True, id="a-gang-without-pods-always-runs"),
    ],
)
def test_gang_runs_when_as_many_pods_run_or_have_succeeded_as_it_needs(
    needed: int, pods: PodCounts, runs: bool
) -> None:
    record = make_record(Phase.DISPATCHED, gang=Gang(pods=needed))
    assert step_of(decided(record, objects=make_objects(pods))) is (Cause.PODS_RUNNING if runs else Act.NOOP)


def unhealthy(record: Record, reason: str = words.INSUFFICIENT_PODS_READY, since: float = 5) -> Record:
    return replace(record, unhealthy=NotedIssue(reason, "0 of 1 pods run", at(since)))


RUNNING = make_record(Phase.RUNNING)
LOST = PodCounts(pending=1, running=0)
TOO_FEW = "0 of 1 pods run"
REASON = words.INSUFFICIENT_PODS_READY
NEVER_RAN = make_record(Phase.DISPATCHED)

IN_ORDER = [
    pytest.param(
        NEVER_RAN, make_objects(ENOUGH, FAILED), {}, by(Cause.PODS_RUNNING), id="it-ran-before-it-failed"
    ),
    pytest.param(
        RUNNING,
        make_objects(NO_PODS, SUCCEEDED, FAILED),
        {"limit": timedelta(0)},
        Do(
            Act.FAIL,
            words.FAILED_COMPONENT,
            "RayCluster default/raycluster-1 failed: BackoffLimitExceeded: too many",
        ),
        id="failure-before-completion-and-deadline",
    ),
    pytest.param(
        RUNNING,
        make_objects(NO_PODS, SUCCEEDED, SUCCEEDED),
        {"limit": timedelta(0)},
        by(Cause.ITEMS_DONE, frozenset({0, 1})),
        id="completion-before-deadline",
    ),
    pytest.param(
        RUNNING,
        make_objects(NO_PODS, SUCCEEDED, SUCCEEDED, absent=(make_ref(1),)),
        {},
        by(Cause.ITEMS_DONE, frozenset({0, 1})),
        id="completion-before-what-is-missing",
    ),
    pytest.param(
        RUNNING,
        make_objects(ENOUGH, SUCCEEDED, SUCCEEDED),
        {"limit": timedelta(seconds=7)},
        Do(
            Act.FAIL,
            words.DISPATCH_DEADLINE_EXCEEDED,
            "Dispatch deadline exceeded. allowed to run for 7 seconds",
        ),
        id="deadline-before-progress-while-a-pod-lives",
    ),
    pytest.param(
        RUNNING,
        make_objects(ENOUGH, SUCCEEDED, RUNS, absent=(make_ref(1),)),
        {"limit": timedelta(seconds=7)},
        Do(
            Act.FAIL,
            words.DISPATCH_DEADLINE_EXCEEDED,
            "Dispatch deadline exceeded. allowed to run for 7 seconds",
        ),
        id="deadline-before-what-is-missing",
    ),
    pytest.param(
        RUNNING,
        make_objects(ENOUGH, SUCCEEDED, None, absent=(make_ref(1),)),
        {},
        Do(
            Act.FAIL,
            words.MISSING_COMPONENT,
            "Only found 1 deployed components, but was expecting 2: RayCluster default/raycluster-1 was deleted",
        ),
        id="what-is-missing-before-progress",
    ),
    pytest.param(
        RUNNING,
        make_objects(LOST, SUCCEEDED, RUNS),
        {},
        by(Cause.SOME_COMPLETED, frozenset({0})),
        id="progress-before-pods-that-are-short-by-nature-now",
    ),
    pytest.param(
        RUNNING,
        make_objects(LOST, RUNS, RUNS),
        {},
        Do(Act.NOTE_HEALTH_ISSUE, REASON, TOO_FEW),
        id="pods-that-were-lost-are-noted-first",
    ),
    pytest.param(
        unhealthy(RUNNING),
        make_objects(LOST, RUNS, RUNS),
        {},
        Do(Act.NOOP, until=at(305)),
        id="what-is-noted-is-waited-for",
    ),
    pytest.param(
        unhealthy(RUNNING),
        make_objects(LOST, RUNS, RUNS),
        {"limit": timedelta(seconds=100)},
        Do(Act.NOOP, until=at(102)),
        id="the-earlier-of-two-troubles-wakes",
    ),
    pytest.param(
        unhealthy(RUNNING, since=-300),
        make_objects(LOST, RUNS, RUNS),
        {},
        Do(Act.REQUEUE, REASON, TOO_FEW),
        id="what-lasts-is-acted-upon",
    ),
    pytest.param(
        unhealthy(RUNNING, since=-300),
        make_objects(ENOUGH, RUNS, RUNS),
        {},
        by(Cause.RECOVERED),
        id="what-cured-itself-is-forgotten-however-long-it-took",
    ),
    pytest.param(
        unhealthy(RUNNING, words.FOUND_FAILED_PODS),
        make_objects(LOST, RUNS, RUNS),
        {},
        Do(Act.NOTE_HEALTH_ISSUE, REASON, TOO_FEW),
        id="another-trouble-takes-its-place",
    ),
    pytest.param(
        RUNNING,
        make_objects(ENOUGH, EVICTED, RUNS),
        {},
        Do(
            Act.REQUEUE,
            words.FOUND_FAILED_PODS,
            "RayCluster default/raycluster-0 was evicted: Evicted: memory",
        ),
        id="what-was-evicted-is-tried-again",
    ),
    pytest.param(
        RUNNING,
        make_objects(ENOUGH, EVICTED, FAILED),
        {},
        Do(
            Act.FAIL,
            words.FAILED_COMPONENT,
            f"RayCluster default/raycluster-1 failed: {FAILED.message}",
        ),
        id="what-failed-for-good-counts-before-what-was-evicted",
    ),
    pytest.param(
        NEVER_RAN,
        make_objects(NO_PODS, SUCCEEDED, RUNS),
        {},
        by(Cause.SOME_COMPLETED, frozenset({0})),
        id="some-may-be-done-before-all-ran",
    ),
]


@pytest.mark.parametrize(("record", "objects", "policy", "decision"), IN_ORDER)
def test_of_several_things_to_do_the_first_is_done(
    record: Record, objects: ObservedObjects, policy: dict[str, Any], decision: Outline
) -> None:
    two = replace(record, attempt=replace(attempt_of(record), objects=(make_ref(0), make_ref(1))))
    assert decided(two, objects=objects, policy=make_policy(JOB, JOB, **policy)) == decision


@pytest.mark.parametrize(
    ("record", "pods", "step"),
    [
        pytest.param(NEVER_RAN, NO_PODS, Cause.SOME_COMPLETED, id="before-its-first-pod"),
        pytest.param(NEVER_RAN, PodCounts(succeeded=1), Cause.PODS_RUNNING, id="its-pod-has-succeeded"),
        pytest.param(RUNNING, NO_PODS, Cause.ITEMS_DONE, id="after-its-last-pod"),
    ],
)
def test_deployment_that_is_called_done_when_it_progresses_is_not_complete_before_its_first_pod(
    record: Record, pods: PodCounts, step: Act | Cause
) -> None:
    progressing = ObjectState(conditions=frozenset({"Progressing"}))
    policy = make_policy(CompletionRule(words=("Progressing",), holds=True))
    assert step_of(decided(record, objects=make_objects(pods, progressing), policy=policy)) is step


def test_done_item_stays_done_when_its_object_is_gone() -> None:
    record = make_record(Phase.RUNNING_HOLD_COMPLETION)
    gone = make_objects(NO_PODS, None, absent=attempt_of(record).objects)
    assert decided(record, objects=gone, policy=make_policy(JOB)) == Do(Act.COMPLETE, done=frozenset({0}))


def test_progress_is_noted_once() -> None:
    record = make_record(Phase.RUNNING_HOLD_COMPLETION)
    seen = make_objects(ENOUGH, SUCCEEDED)
    assert decided(record, objects=seen, policy=make_policy(JOB)) == NOOP


# --- in a member cluster ---------------------------------------------------------------------------------

AWAY = "cluster east does not answer: timeout"
REACHED = [Phase.DISPATCHED, Phase.RUNNING, Phase.RUNNING_HOLD_COMPLETION]


def elsewhere(record: Record, cluster: str = "east") -> Record:
    """The same in a member cluster."""
    return replace(record, attempt=replace(attempt_of(record), cluster=cluster))


@pytest.mark.parametrize("phase", REACHED)
def test_gang_on_an_unreachable_cluster_is_noted_once_and_then_left_alone(phase: Phase) -> None:
    record = elsewhere(make_record(phase))
    noted = run_changes.note_health_issue(record, words.CLUSTER_UNREACHABLE, AWAY, at(10)).after
    assert [decided(each, unreachable=AWAY) for each in (record, noted)] == [
        Do(Act.NOTE_HEALTH_ISSUE, words.CLUSTER_UNREACHABLE, AWAY),
        NOOP,
    ]
    assert decided(noted, unreachable="cluster east does not answer: 503", seconds=10**6) == NOOP


@pytest.mark.parametrize("phase", REACHED)
@pytest.mark.parametrize(
    ("objects", "policy"),
    [
        pytest.param(make_objects(NO_PODS, FAILED), {}, id="failed"),
        pytest.param(make_objects(NO_PODS, SUCCEEDED), {}, id="done"),
        pytest.param(make_objects(NO_PODS, None, absent=(make_ref(),)), {}, id="deleted"),
        pytest.param(make_objects(LOST, RUNS), {"min_available": 1}, id="short"),
        pytest.param(make_objects(ENOUGH, RUNS), {"limit": timedelta(0)}, id="over-its-time"),
    ],
)
def test_nothing_that_is_seen_of_a_gang_counts_while_its_cluster_is_away(
    phase: Phase, objects: ObservedObjects, policy: dict[str, Any]
) -> None:
    noted = unhealthy(elsewhere(make_record(phase)), words.CLUSTER_UNREACHABLE)
    assert decided(noted, unreachable=AWAY, objects=objects, policy=make_policy(JOB, **policy)) == NOOP


def test_unreachable_cluster_replaces_another_health_issue() -> None:
    decision = decided(unhealthy(elsewhere(RUNNING)), unreachable=AWAY)
    assert decision == Do(Act.NOTE_HEALTH_ISSUE, words.CLUSTER_UNREACHABLE, AWAY)


@pytest.mark.parametrize(
    ("objects", "decision"),
    [
        pytest.param(make_objects(ENOUGH), by(Cause.RECOVERED), id="well"),
        pytest.param(
            make_objects(LOST),
            Do(Act.NOTE_HEALTH_ISSUE, REASON, TOO_FEW),
            id="short-and-given-time-anew",
        ),
    ],
)
def test_gang_is_judged_afresh_once_its_cluster_is_back(objects: ObservedObjects, decision: Outline) -> None:
    noted = unhealthy(elsewhere(RUNNING), words.CLUSTER_UNREACHABLE)
    assert decided(noted, objects=objects, seconds=10**5) == decision


@pytest.mark.parametrize("phase", REACHED)
@pytest.mark.parametrize("is_noted", [False, True])
def test_gang_is_suspended_while_its_cluster_is_away(phase: Phase, is_noted: bool) -> None:
    record = elsewhere(make_record(phase))
    record = unhealthy(record, words.CLUSTER_UNREACHABLE) if is_noted else record
    assert decided(record, unreachable=AWAY, asked=MutableSpec(suspend=True)) == by(Cause.SUSPENDED)


@pytest.mark.parametrize("phase", [Phase.REQUEUEING, Phase.SUSPENDING, Phase.FAILING])
def test_removal_goes_on_though_the_cluster_is_away(phase: Phase) -> None:
    noted = unhealthy(elsewhere(make_record(phase)), words.CLUSTER_UNREACHABLE)
    assert decided(noted, unreachable=AWAY) == Do(Act.REMOVE)


HELD = [Phase.DISPATCHING, Phase.REQUEUEING, Phase.SUSPENDING, Phase.FAILING, Phase.DELETING]


@pytest.mark.parametrize("phase", HELD)
def test_gang_that_waits_for_its_cluster_has_a_health_issue_until_that_answers(phase: Phase) -> None:
    record, wanted = elsewhere(make_record(phase)), phase is not Phase.DELETING
    noted = run_changes.note_health_issue(record, words.CLUSTER_UNREACHABLE, AWAY, at(10)).after
    assert [decided(record, unreachable=AWAY, wanted=wanted), decided(noted, wanted=wanted)] == [
        Do(Act.NOTE_HEALTH_ISSUE, words.CLUSTER_UNREACHABLE, AWAY),
        by(Cause.RECOVERED),
    ]


@pytest.mark.parametrize(
    ("policy", "phase", "ends"),
    [
        pytest.param(OnClusterLost.WAIT, Phase.RUNNING, None, id="it-waits"),
        pytest.param(OnClusterLost.REQUEUE, Phase.RUNNING, removal.abandon, id="it-is-queued-again"),
        pytest.param(OnClusterLost.FAIL, Phase.RUNNING, removal.lose, id="it-fails"),
        pytest.param(OnClusterLost.FAIL, Phase.DISPATCHING, removal.lose, id="it-fails-half-created"),
        pytest.param(OnClusterLost.FAIL, Phase.REQUEUEING, removal.abandon, id="its-requeue-goes-on"),
        pytest.param(OnClusterLost.REQUEUE, Phase.FAILING, removal.lose, id="its-failure-goes-on"),
    ],
)
def test_gang_of_a_lost_cluster_ends_as_the_policy_says_once_its_grace_is_over(
    policy: OnClusterLost, phase: Phase, ends: Callable[[Record, str, datetime], Change] | None
) -> None:
    record, said = elsewhere(make_record(phase)), "cluster east has not answered"
    early, late = (
        decide(make_observation(record, unreachable=AWAY, loss=Loss(policy, at(due), said)))
        for due in (11, 10)
    )
    assert early == Do(Act.NOTE_HEALTH_ISSUE, words.CLUSTER_UNREACHABLE, AWAY)
    assert late == (
        early if ends is None else Commit(ends(record, said, at(10)), wakes_scheduler=ends is removal.abandon)
    )


UNDECLARED = Loss(OnClusterLost.WAIT, at(0), "cluster east is not declared any more", is_undeclared=True)


def test_deleted_appwrapper_does_not_wait_for_an_undeclared_cluster() -> None:
    deleting, kept = elsewhere(make_record(Phase.DELETING)), elsewhere(make_record(Phase.COMPLETED))
    seen: dict[str, Any] = {"unreachable": AWAY, "loss": UNDECLARED, "wanted": False}
    abandoned = Commit(removal.abandon(deleting, UNDECLARED.message, at(10)), wakes_scheduler=True)
    assert decide(make_observation(deleting, **seen)) == abandoned
    assert decided(kept, **seen) == Do(Act.DELETE)


@pytest.mark.parametrize("phase", REACHED)
def test_gang_in_an_undeclared_cluster_is_left_alone(phase: Phase) -> None:
    noted = unhealthy(elsewhere(make_record(phase)), words.CLUSTER_UNREACHABLE)
    assert decided(noted, unreachable=AWAY, loss=UNDECLARED) == NOOP


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.SUSPENDED])
def test_changed_cluster_selector_is_followed_and_an_invalid_selector_is_not(phase: Phase) -> None:
    east = parse_selector("zone=east", "annotation")
    asks = [MutableSpec(selector=east), MutableSpec(prefers=east), MutableSpec(selector=None, prefers=None)]
    suspended = phase is Phase.SUSPENDED
    assert [
        step_of(decided(make_record(phase), asked=replace(each, suspend=suspended))) for each in asks
    ] == [
        Cause.REDIRECTED,
        Cause.REDIRECTED,
        Act.NOOP,
    ]


@pytest.mark.parametrize("asked", [None, MutableSpec(7, selector=parse_selector("zone=east", "annotation"))])
@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.SUSPENDED])
def test_change_of_queue_is_followed_first(phase: Phase, asked: MutableSpec | None) -> None:
    record = make_record(phase)
    asked = replace(asked, suspend=phase is Phase.SUSPENDED) if asked else None
    steps = [
        step_of(decided(record, asked=asked, queues=each)) for each in (("team",), ("default", "tree/gold"))
    ]
    assert steps == [Cause.MOVED, Cause.MOVED]
    assert decided(record, asked=asked, queues=("default",)) == decided(record, asked=asked)


@pytest.mark.parametrize("phase", Phase)
def test_unknown_priority_class_of_an_undispatched_gang_is_noted_and_cleared_once(phase: Phase) -> None:
    record, asked = make_record(phase), MutableSpec(suspend=phase is Phase.SUSPENDED)
    usual = step_of(decided(record, asked=asked))
    follows = Cause.REPRIORITISED if phase in {Phase.QUEUED, Phase.SUSPENDED} else usual
    noted = replace(record, conditions=(*record.conditions, unknown_class("no train", NOW)))
    over = replace(record, conditions=with_unknown_class(noted.conditions, "", NOW))
    steps = {
        (name, said): step_of(decided(each, asked=asked, unknown_class=said))
        for name, each in {"none": record, "noted": noted, "over": over}.items()
        for said in ("", "no train", "no test")
    }
    assert steps == {
        ("none", ""): usual,
        ("none", "no train"): follows,
        ("none", "no test"): follows,
        ("noted", ""): follows,
        ("noted", "no train"): usual,
        ("noted", "no test"): follows,
        ("over", ""): usual,
        ("over", "no train"): follows,
        ("over", "no test"): follows,
    }


def test_suspension_comes_before_a_change_of_queue() -> None:
    queued = make_record(Phase.QUEUED)
    assert step_of(decided(queued, asked=MutableSpec(suspend=True), queues=("team",))) is Cause.SUSPENDED


@pytest.mark.parametrize("phase", [each for each in Phase if each not in {Phase.QUEUED, Phase.SUSPENDED}])
def test_gang_that_left_the_queue_stays_charged_where_it_was(phase: Phase) -> None:
    record = make_record(phase)
    assert decided(record, queues=("team",)) == decided(record)


@pytest.mark.parametrize("queues", [("team",), ("default", "tree/gold"), ("default",), ()])
def test_queued_gang_is_not_as_asked_while_its_labels_name_another_queue(queues: tuple[str, ...]) -> None:
    record = make_record(Phase.QUEUED)
    for asked in (None, MutableSpec()):
        assert is_unchanged(record, True, asked, queues) is (queues in {("default",), ()})


@pytest.mark.parametrize(
    ("wanted", "asked", "expected"),
    [
        pytest.param(True, MutableSpec(), True, id="nothing-changed"),
        pytest.param(True, None, True, id="spec-not-read"),
        pytest.param(True, MutableSpec(7, 0.5), True, id="another-priority"),
        pytest.param(True, MutableSpec(selector=None), True, id="no-selector"),
        pytest.param(True, MutableSpec(suspend=True), False, id="suspended"),
        pytest.param(True, MutableSpec(selector=parse_selector("zone=east", "a")), False, id="redirected"),
        pytest.param(
            True, MutableSpec(prefers=parse_selector("zone=east", "a")), False, id="prefers-another"
        ),
        pytest.param(False, MutableSpec(), False, id="deleted"),
        pytest.param(False, None, False, id="deleted-and-not-read"),
    ],
)
def test_queued_gang_is_as_asked_unless_its_user_has_changed_whether_or_where_it_runs(
    wanted: bool, asked: MutableSpec | None, expected: bool
) -> None:
    assert is_unchanged(make_record(Phase.QUEUED), wanted, asked) is expected


@pytest.mark.parametrize("phase", REACHED)
def test_unwanted_gang_on_an_unreachable_cluster_is_forgotten(phase: Phase) -> None:
    assert decided(elsewhere(make_record(phase)), unreachable=AWAY, wanted=False) == Do(Act.DELETE)


KEPT_ONES = [
    pytest.param(lambda: make_record(Phase.COMPLETED), id="completed"),
    pytest.param(make_failed_run, id="failed"),
]


@pytest.mark.parametrize("make", KEPT_ONES)
def test_kept_objects_in_a_member_go_before_the_deleted_appwrapper_is_forgotten(
    make: Callable[[], Record],
) -> None:
    kept = elsewhere(make())
    expired = removal.expire(kept, at(11)).after
    assert [decided(record, wanted=False) for record in (kept, expired)] == [
        Do(Act.EXPIRE),
        Do(Act.DELETE),
    ]


@pytest.mark.parametrize("make", KEPT_ONES)
def test_kept_objects_on_the_hub_go_with_the_deleted_appwrapper(make: Callable[[], Record]) -> None:
    assert decided(make(), wanted=False) == Do(Act.DELETE)


@pytest.mark.parametrize(
    ("cluster", "done"),
    [
        pytest.param("hub", frozenset({0}), id="on-the-hub"),
        pytest.param("east", frozenset(), id="in-a-member"),
    ],
)
@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.RUNNING_HOLD_COMPLETION])
def test_done_items_are_carried_over_to_the_next_attempt_on_the_hub_alone(
    phase: Phase, cluster: str, done: frozenset[int]
) -> None:
    record = elsewhere(make_record(phase), cluster)
    objects = (replace(make_ref(0), done=phase is Phase.RUNNING_HOLD_COMPLETION), make_ref(1))
    two = replace(record, attempt=replace(attempt_of(record), objects=objects))
    policy = make_policy(JOB, JOB)
    suspended = decided(
        two, asked=MutableSpec(suspend=True), objects=make_objects(ENOUGH, SUCCEEDED, RUNS), policy=policy
    )
    evicted = decided(two, objects=make_objects(ENOUGH, SUCCEEDED, EVICTED), policy=policy)
    message = "RayCluster default/raycluster-1 was evicted: Evicted: memory"
    assert [suspended, evicted] == [
        by(Cause.SUSPENDED, done),
        Do(Act.REQUEUE, words.FOUND_FAILED_PODS, message, done=done),
    ]


def test_done_items_in_a_member_count_while_the_attempt_lasts() -> None:
    record = elsewhere(RUNNING)
    done = elsewhere(run_changes.note_done(RUNNING, (0,), at(5)).after)
    seen = {"objects": make_objects(NO_PODS, SUCCEEDED), "policy": make_policy(JOB)}
    assert [decided(each, **seen) for each in (record, done)] == [
        by(Cause.ITEMS_DONE, frozenset({0})),
        Do(Act.COMPLETE, done=frozenset({0})),
    ]


# --- how often --------------------------------------------------------------------------------------------

LIMITS = [
    pytest.param(words.MIN_PODS_NOT_RUNNING, {"explicit": True}, 1000, None, id="mcad-without-a-maximum"),
    pytest.param(words.MIN_PODS_NOT_RUNNING, {"max_requeuings": 2}, 1, None, id="mcad-below-its-maximum"),
    pytest.param(
        words.MIN_PODS_NOT_RUNNING,
        {"max_requeuings": 2},
        2,
        " (requeued so far: 2)",
        id="mcad-at-its-maximum",
    ),
    pytest.param(words.INSUFFICIENT_PODS_READY, {}, 2, None, id="ours-below-three"),
    pytest.param(words.INSUFFICIENT_PODS_READY, {}, 3, " (requeued so far: 3)", id="ours-at-three"),
]


@pytest.mark.parametrize(("reason", "requeuing", "requeuings", "failed_with"), LIMITS)
def test_gang_that_was_taken_back_too_often_fails(
    reason: str, requeuing: dict[str, Any], requeuings: int, failed_with: str | None
) -> None:
    counted: dict[str, Any] = {
        "requeuings": requeuings,
        "retries": requeuings * (reason not in words.REASONS_OF_MCAD),
    }
    record = unhealthy(make_record(Phase.RUNNING, **counted), reason, since=-(2**31))
    minimum = 1 if reason == words.MIN_PODS_NOT_RUNNING else None
    policy = make_policy(min_available=minimum, requeuing=Requeuing(**requeuing))
    message = TOO_FEW if minimum is None else words.MIN_PODS_MESSAGE.format(minimum=1, running=0, completed=0)
    step = Act.REQUEUE if failed_with is None else Act.FAIL
    assert decided(record, objects=make_objects(LOST), policy=policy) == Do(
        step, reason, message, failed_with or ""
    )


@pytest.mark.parametrize(
    ("attempts", "seconds"),
    [(0, 5), (1, 5), (2, 10), (3, 20), (6, 160), (7, 300), (8, 300), (10_000, 300)],
)
def test_pause_before_another_try_doubles_up_to_five_minutes(attempts: int, seconds: int) -> None:
    assert retry_pause(attempts) == timedelta(seconds=seconds)


CHOICES = choices_in("mail=Failed chat=Ended,Waiting:2h oops")


@pytest.mark.parametrize("phase", Phase)
def test_other_notifications_are_followed_while_there_is_more_to_come(phase: Phase) -> None:
    record, asked = make_record(phase), MutableSpec(suspend=phase is Phase.SUSPENDED)
    usual = decide(make_observation(record, asked=asked))
    decision = decide(make_observation(record, asked=asked, notifications=CHOICES))
    rests = isinstance(usual, Do) and usual.act is Act.NOOP
    if not (rests and phase in {Phase.QUEUED, Phase.SUSPENDED, *ACTIVE}):
        assert decision == usual
        return
    assert isinstance(decision, Commit)
    assert (decision.follows_user, decision.wakes_scheduler) == (True, False)
    [event] = decision.change.events
    chosen = "mail=Failed chat=Completed,Failed,Waiting:2h"
    assert decision.change.after.notifications == chosen
    assert event.message.startswith(
        f"notifications none → {chosen}; dispatcher.codeflare.dev/notify: 'oops' is not"
    )
    assert decide(make_observation(decision.change.after, asked=asked, notifications=CHOICES)) == usual


def test_notifications_wait_until_nothing_else_is_to_do() -> None:
    assert step_of(decided(make_record(), queues=("team",), notifications=CHOICES)) is Cause.MOVED


@pytest.mark.parametrize(
    ("seconds", "limit", "until"),
    [
        pytest.param(20, None, 70, id="for-a-minute"),
        pytest.param(69, None, 70, id="until-its-end"),
        pytest.param(20, 30, 32, id="while-another-look-comes-first"),
    ],
)
def test_other_notifications_wait_after_a_change_of_them(
    seconds: float, limit: int | None, until: float
) -> None:
    policy = make_policy(limit=timedelta(seconds=limit) if limit else None)
    seen = make_observation(
        make_record(Phase.RUNNING), seconds, policy=policy, notifications=CHOICES, chosen_at=at(10)
    )
    assert decide(seen) == Do(Act.NOOP, until=at(until))


def test_other_notifications_are_followed_a_minute_after_a_change_of_them() -> None:
    seen = make_observation(make_record(Phase.RUNNING), 70, notifications=CHOICES, chosen_at=at(10))
    assert step_of(decide(seen)) is Cause.NOTIFICATIONS_CHANGED


RUNS_NOW = make_record(Phase.RUNNING)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(run_changes.complete(RUNS_NOW, (0,), at(99), at(9)), str(CHOICES), id="it-ends"),
        pytest.param(run_changes.recover(RUNS_NOW, at(9)), "", id="its-phase-stays"),
        pytest.param(removal.removed(make_record(Phase.FAILING), at(9)), "", id="it-had-ended"),
    ],
)
def test_change_of_the_phase_takes_the_latest_choice_of_notifications_along(
    change: Change, expected: str
) -> None:
    assert queue_changes.with_choice(change, None) is change
    after = queue_changes.with_choice(change, CHOICES).after
    assert after == replace(change.after, notifications=expected)


def test_choice_that_goes_along_says_what_cannot_be_read() -> None:
    change = run_changes.complete(RUNS_NOW, (0,), at(99), at(9))
    typo = replace(CHOICES, problems=("mial is no target",))
    assert queue_changes.with_choice(change, typo).events[-1].message.endswith("mial is no target")
