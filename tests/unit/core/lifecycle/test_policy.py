"""On what terms a gang is kept: what its author wrote, and what holds where nothing was written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.annotations import FaultTolerance
from dispatcher.api.appwrapper import (
    AppWrapperSpec,
    DispatchDuration,
    Requeuing,
    Scheduling,
    TemplatePodSet,
    WaitGrowth,
    WrappedObject,
)
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.lifecycle import health, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.health import HealthIssue, Remedy
from dispatcher.core.lifecycle.policy import LifecyclePolicy, policy_of
from dispatcher.core.model.records.record import Phase, Record
from tests.builders import (
    at,
    attempt_of,
    make_evicted,
    make_failed_run,
    make_failing_run,
    make_policy,
    make_record,
    make_ref,
    make_template,
    make_wrapped,
)
from tests.unit.core.lifecycle.dispatched import NEVER_RAN, RAN, minutes

NOTHING_ASKED = FaultTolerance()
WEEK = timedelta(days=7)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def spec(*wrapped: WrappedObject, requeuing: Requeuing | None = None, **fields: Any) -> AppWrapperSpec:  # noqa: ANN401
    scheduling = Scheduling(requeuing or Requeuing(), DispatchDuration(limit=fields.pop("limit", None)))
    return AppWrapperSpec(wrapped or (make_wrapped(),), scheduling=scheduling, **fields)


def limit_of(policy: LifecyclePolicy, reason: str) -> int | None:
    """How often one may be taken back for that reason alone; None if there is no end to it."""
    ours = reason not in words.REASONS_OF_MCAD
    records = (make_record(Phase.RUNNING, requeuings=count, retries=count * ours) for count in range(1000))
    return next((count for count, record in enumerate(records) if policy.is_spent(record, reason)), None)


def test_policy_of_an_appwrapper_without_any_setting() -> None:
    assert policy_of(spec(), NOTHING_ASKED) == LifecyclePolicy(
        items=(CompletionRule(ends=True, holds=True, pods=1, asks=1),),
        min_available=None,
        requeuing=Requeuing(),
        limit=None,
        expects_pods=True,
        has_components=False,
        admission_grace=seconds(60),
        warmup_grace=seconds(300),
        failure_grace=seconds(60),
        retry_pause=seconds(90),
        retry_limit=3,
        force_deletion_after=seconds(600),
        kept_completed=WEEK,
        kept_failed=WEEK,
        terminal_exit_codes=frozenset(),
        retryable_exit_codes=frozenset(),
    )


def test_policy_of_an_appwrapper_with_every_setting() -> None:
    requeuing = Requeuing(
        wait=seconds(20),
        growth=WaitGrowth.LINEAR,
        max_wait=seconds(90),
        max_requeuings=7,
        pause=seconds(11),
        force_deletion_after=None,
        explicit=True,
    )
    tolerance = FaultTolerance(
        admission_grace=seconds(1),
        warmup_grace=seconds(2),
        failure_grace=seconds(0),
        retry_pause=seconds(4),
        force_deletion_grace=seconds(5),
        deletion_on_failure_grace=seconds(6),
        success_ttl=seconds(8),
        retry_limit=0,
        terminal_exit_codes=frozenset({3}),
        retryable_exit_codes=frozenset({4, 5}),
    )
    written = spec(requeuing=requeuing, min_available=2, spelling="v1beta2", limit=seconds(60))
    assert policy_of(written, tolerance) == LifecyclePolicy(
        items=(CompletionRule(ends=True, holds=True, pods=1, asks=1),),
        min_available=2,
        requeuing=requeuing,
        limit=seconds(60),
        expects_pods=True,
        has_components=True,
        admission_grace=seconds(1),
        warmup_grace=seconds(2),
        failure_grace=seconds(0),
        retry_pause=seconds(4),
        retry_limit=0,
        force_deletion_after=seconds(5),
        kept_completed=seconds(8),
        kept_failed=seconds(6),
        terminal_exit_codes=frozenset({3}),
        retryable_exit_codes=frozenset({4, 5}),
    )


@pytest.mark.parametrize(
    ("requeuing", "tolerance", "pause", "limit"),
    [
        pytest.param({}, {}, 90, 3, id="nothing-written"),
        pytest.param({"explicit": True}, {}, 0, None, id="a-requeuing-block-without-a-maximum"),
        pytest.param(
            {"explicit": True, "pause": seconds(7), "max_requeuings": 5}, {}, 7, 5, id="a-requeuing-block"
        ),
        pytest.param({}, {"retry_pause": seconds(2), "retry_limit": 1}, 2, 1, id="annotations"),
        pytest.param(
            {"explicit": True, "pause": seconds(7), "max_requeuings": 5},
            {"retry_pause": seconds(0), "retry_limit": 0},
            0,
            0,
            id="annotations-before-a-requeuing-block",
        ),
    ],
)
def test_retries_without_minavailable_follow_annotations_then_the_block_then_defaults(
    requeuing: dict[str, Any], tolerance: dict[str, Any], pause: float, limit: int
) -> None:
    policy = policy_of(spec(requeuing=Requeuing(**requeuing)), FaultTolerance(**tolerance))
    reason = words.INSUFFICIENT_PODS_READY
    assert (policy.pause(reason), limit_of(policy, reason)) == (seconds(pause), limit)


def test_requeuings_used_up_for_minavailable_leave_the_other_retries_alone() -> None:
    policy = make_policy(requeuing=Requeuing(max_requeuings=5), retry_limit=3)
    record = make_record(Phase.RUNNING, requeuings=7, retries=2)

    spent = {reason: policy.is_spent(record, reason) for reason in ("MinPodsNotRunning", "FoundFailedPods")}

    assert spent == {"MinPodsNotRunning": True, "FoundFailedPods": False}


@pytest.mark.parametrize("reason", [words.MIN_PODS_NOT_RUNNING, words.PODS_FAILED_SCHEDULING])
@pytest.mark.parametrize("maximum", [None, 5])
def test_retries_for_minavailable_follow_the_block_alone(reason: str, maximum: int | None) -> None:
    requeuing = Requeuing(pause=seconds(7), max_requeuings=maximum)
    policy = make_policy(requeuing=requeuing, retry_pause=seconds(90), retry_limit=0)
    assert (policy.pause(reason), limit_of(policy, reason)) == (seconds(7), maximum)


@pytest.mark.parametrize(
    ("growth", "most", "waits"),
    [
        pytest.param(WaitGrowth.EXPONENTIAL, None, [60, 120, 240, 480], id="exponential"),
        pytest.param(WaitGrowth.LINEAR, None, [60, 120, 180, 240], id="linear"),
        pytest.param(WaitGrowth.NONE, None, [60, 60, 60, 60], id="none"),
        pytest.param(WaitGrowth.EXPONENTIAL, 100, [60, 100, 100, 100], id="capped"),
        pytest.param(WaitGrowth.NONE, 30, [30, 30, 30, 30], id="capped-from-the-start"),
    ],
)
def test_wait_grows_with_each_requeuing(growth: WaitGrowth, most: int | None, waits: list[int]) -> None:
    max_wait = None if most is None else seconds(most)
    policy = make_policy(requeuing=Requeuing(wait=seconds(60), growth=growth, max_wait=max_wait))
    assert [policy.wait(requeuings) for requeuings in range(4)] == [seconds(each) for each in waits]


@pytest.mark.parametrize("growth", WaitGrowth)
@pytest.mark.parametrize("requeuings", [31, 32, 1000, 2**31 - 1])
def test_wait_stays_a_number_that_a_status_can_hold(growth: WaitGrowth, requeuings: int) -> None:
    policy = make_policy(requeuing=Requeuing(wait=seconds(2**31 - 1), growth=growth))
    assert policy.wait(requeuings) == seconds(2**31 - 1)


@pytest.mark.parametrize(
    ("asked", "setting", "kept"),
    [
        pytest.param(None, WEEK, WEEK, id="nothing-asked"),
        pytest.param(seconds(60), WEEK, seconds(60), id="shorter"),
        pytest.param(WEEK, seconds(60), seconds(60), id="longer-than-the-setting"),
    ],
)
def test_objects_of_a_completed_gang_are_kept_as_the_setting_says_or_shorter(
    asked: timedelta | None, setting: timedelta, kept: timedelta
) -> None:
    assert policy_of(spec(), FaultTolerance(success_ttl=asked), setting).kept_completed == kept


@pytest.mark.parametrize("asked", [None, seconds(0), seconds(60)])
def test_objects_of_a_failed_gang_are_kept_as_its_author_says(asked: timedelta | None) -> None:
    policy = policy_of(spec(), FaultTolerance(deletion_on_failure_grace=asked), WEEK)
    assert policy.kept_failed == (WEEK if asked is None else asked)


@pytest.mark.parametrize(
    ("wrapped", "expected"),
    [
        pytest.param([make_wrapped()], True, id="a-pod"),
        pytest.param([make_wrapped(make_template("Deployment", "apps/v1"))], True, id="a-deployment"),
        pytest.param([make_wrapped(make_template("Service"))], False, id="a-service"),
        pytest.param([make_wrapped(make_template("Thing", "example.com/v1"))], False, id="unknown-kind"),
        pytest.param(
            [
                WrappedObject(
                    0,
                    make_template("Thing", "example.com/v1"),
                    pod_sets=(TemplatePodSet("template.spec.template", 2),),
                )
            ],
            True,
            id="unknown-kind-that-says-where-its-pods-are",
        ),
        pytest.param([make_wrapped(make_template("Service")), make_wrapped(index=1)], True, id="one-of-two"),
    ],
)
def test_pods_are_expected_only_of_kinds_that_are_sure_to_make_them(
    wrapped: list[WrappedObject], expected: bool
) -> None:
    assert policy_of(spec(*wrapped), NOTHING_ASKED).expects_pods is expected


@pytest.mark.parametrize(
    ("terminal", "retryable", "codes", "is_terminal"),
    [
        pytest.param((), (), (1, 2), False, id="nothing-written"),
        pytest.param((3,), (), (1, 3), True, id="one-is-terminal"),
        pytest.param((3,), (), (1,), False, id="none-is-terminal"),
        pytest.param((), (4,), (4,), False, id="all-are-retryable"),
        pytest.param((), (4,), (4, 5), True, id="one-is-not-retryable"),
        pytest.param((), (4,), (), False, id="no-code-is-known"),
        pytest.param((4,), (4,), (4,), True, id="both-terminal-and-retryable"),
    ],
)
def test_exit_codes_say_whether_another_attempt_may_help(
    terminal: tuple[int, ...], retryable: tuple[int, ...], codes: tuple[int, ...], is_terminal: bool
) -> None:
    policy = make_policy(terminal_exit_codes=frozenset(terminal), retryable_exit_codes=frozenset(retryable))
    assert policy.is_terminal(frozenset(codes)) is is_terminal


def test_annotation_of_no_grace_at_all_forces_deletion_at_once() -> None:
    at_once = FaultTolerance(force_deletion_grace=timedelta(0))
    assert policy_of(spec(), at_once).force_deletion_after == timedelta(0)


# -----------------------------------------------------------------------------------------------------------
# Health issues of the wrapped objects and of the time that a gang may run, and which objects stay after
# them.


# --- wrapped objects that failed -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "issue"),
    [
        pytest.param(None, None, id="unknown"),
        pytest.param(ObjectState(), None, id="open"),
        pytest.param(ObjectState(End.SUCCEEDED), None, id="succeeded"),
        pytest.param(
            ObjectState(End.FAILED, message="BackoffLimitExceeded: too many"),
            HealthIssue(
                "FailedComponent",
                "Job default/job-0 failed: BackoffLimitExceeded: too many",
                Remedy.FAIL,
                at(3),
            ),
            id="failed",
        ),
        pytest.param(
            ObjectState(End.FAILED),
            HealthIssue("FailedComponent", "Job default/job-0 failed", Remedy.FAIL, at(3)),
            id="failed-and-says-nothing",
        ),
        pytest.param(
            ObjectState(End.EVICTED, message="Evicted: low on memory"),
            HealthIssue(
                "FoundFailedPods",
                "Job default/job-0 was evicted: Evicted: low on memory",
                Remedy.REQUEUE,
                at(3),
            ),
            id="evicted",
        ),
    ],
)
def test_failed_object_fails_its_gang_and_an_evicted_object_may_be_retried(
    state: ObjectState | None, issue: HealthIssue | None
) -> None:
    record = replace(RAN, attempt=replace(attempt_of(RAN), objects=(make_ref(0, "Job"), make_ref(1, "Job"))))
    assert list(health.failures(record, (state, ObjectState()))) == ([issue] if issue else [])


# --- the time it may run, and objects that somebody deleted -----------------------------------------


def test_deadline_counts_from_the_dispatch_in_words_of_mcad() -> None:
    policy = make_policy(limit=timedelta(seconds=90.5))
    issue = HealthIssue(
        "DispatchDeadlineExceeded",
        "Dispatch deadline exceeded. allowed to run for 90 seconds",
        Remedy.FAIL,
        at(92.5),
    )
    assert [health.deadline(record, policy) for record in (NEVER_RAN, RAN)] == [issue, issue]


def test_deadline_counts_anew_at_each_attempt() -> None:
    again = queue_changes.dispatch(removal.removed(make_evicted(), at(5)).after, "hub", at(100)).after
    again = run_changes.created(again, (make_ref(),), at(101)).after
    issue = health.deadline(again, make_policy(limit=minutes(1)))
    assert issue is not None
    assert issue.due == at(161)


def test_without_a_limit_there_is_no_deadline() -> None:
    assert health.deadline(RAN, make_policy(limit=None)) is None


@pytest.mark.parametrize(
    ("done", "absent", "message"),
    [
        pytest.param((), (), None, id="none"),
        pytest.param(
            (),
            (1,),
            "Only found 3 deployed components, but was expecting 4: Job default/job-1 was deleted",
            id="one",
        ),
        pytest.param(
            (),
            (0, 1, 2, 3),
            "Only found 0 deployed components, but was expecting 4: "
            "Job default/job-0, Job default/job-1, Job default/job-2 was deleted",
            id="many-of-which-three-are-named",
        ),
        pytest.param((1,), (1,), None, id="one-that-was-done"),
        pytest.param(
            (1,),
            (1, 2),
            "Only found 3 deployed components, but was expecting 4: Job default/job-2 was deleted",
            id="one-that-was-done-and-one-that-was-not",
        ),
    ],
)
def test_deleted_object_fails_its_gang_unless_the_object_was_done(
    done: tuple[int, ...], absent: tuple[int, ...], message: str | None
) -> None:
    refs = tuple(make_ref(item, "Job", done=item in done) for item in range(4))
    record = replace(RAN, attempt=replace(attempt_of(RAN), objects=refs))
    issue = HealthIssue("MissingComponent", message or "", Remedy.FAIL, at(2) + health.UNSEEN)
    assert health.missing(record, [refs[item] for item in absent]) == (issue if message else None)


# --- what stays --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "keeps"),
    [
        pytest.param(make_failing_run, True, id="an-object-failed"),
        pytest.param(lambda: make_failing_run(reason="MissingComponent"), True, id="an-object-was-deleted"),
        pytest.param(lambda: make_failing_run(reason="FoundFailedPods"), True, id="pods-failed"),
        pytest.param(
            lambda: make_failing_run(reason="DispatchDeadlineExceeded"), False, id="it-ran-too-long"
        ),
        pytest.param(lambda: make_failing_run(reason="MinPodsNotRunning"), False, id="too-often-too-few"),
        pytest.param(lambda: make_record(Phase.FAILING), False, id="it-was-never-created"),
        pytest.param(make_failed_run, False, id="it-is-over"),
        pytest.param(make_evicted, False, id="it-is-tried-again"),
    ],
)
def test_ended_objects_stay_for_their_logs_only_if_the_gang_failed_by_itself(
    make: Callable[[], Record], keeps: bool
) -> None:
    assert health.keeps_what_ended(make()) is keeps
