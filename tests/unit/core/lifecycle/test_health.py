"""Health issues of the wrapped objects and of the time that a gang may run, and which objects stay after them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.lifecycle import health, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.health import HealthIssue, Remedy
from dispatcher.core.model.record import Phase, Record
from tests.builders import (
    at,
    attempt_of,
    make_evicted,
    make_failed_run,
    make_failing_run,
    make_policy,
    make_record,
    make_ref,
)
from tests.unit.core.lifecycle.dispatched import NEVER_RAN, RAN, minutes

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
