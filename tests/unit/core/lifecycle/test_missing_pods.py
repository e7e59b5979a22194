"""Pods that a gang lacks: in which words they are a health issue, and from when on it is acted upon."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.appwrapper import Requeuing, WaitGrowth
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.lifecycle import health, run_changes
from dispatcher.core.lifecycle.health import HealthIssue, Remedy
from dispatcher.core.model.gangs.pods import PodCounts
from dispatcher.core.model.records.record import Record
from tests.builders import at, make_policy
from tests.unit.core.lifecycle.dispatched import (
    EXPLICIT,
    FOUND_FAILED,
    NEVER_RAN,
    NOT_READY,
    PATIENT,
    RAN,
    SERVER,
    minutes,
    unhealthy,
)


def without_telling(issue: HealthIssue) -> HealthIssue:
    """The issue, whenever it is told."""
    return replace(issue, told_from=None, since=None)


# --- minAvailable -------------------------------------------------------------------------------------

TOO_FEW = "Insufficient number of Running and Completed pods, minimum=2, running={}, completed={}."

MCAD = [
    pytest.param(PodCounts(running=2), PATIENT, None, id="enough-run"),
    pytest.param(PodCounts(running=1, succeeded=1), PATIENT, None, id="one-has-succeeded"),
    pytest.param(PodCounts(running=2, pending=1), PATIENT, None, id="enough-of-three-run"),
    pytest.param(PodCounts(), PATIENT, ("MinPodsNotRunning", TOO_FEW.format(0, 0)), id="there-is-none"),
    pytest.param(
        PodCounts(running=1, pending=2),
        PATIENT,
        ("MinPodsNotRunning", TOO_FEW.format(1, 0)),
        id="too-few-run",
    ),
    pytest.param(
        PodCounts(succeeded=1, failed=2),
        PATIENT,
        ("MinPodsNotRunning", TOO_FEW.format(0, 1)),
        id="too-few-succeeded",
    ),
    pytest.param(
        PodCounts(running=2, lost=1),
        PATIENT,
        ("MinPodsNotRunning", TOO_FEW.format(1, 0)),
        id="one-on-a-node-that-does-not-answer",
    ),
    pytest.param(
        PodCounts(pending=2, starting=2), PATIENT, None, id="they-pull-images-and-nothing-was-written"
    ),
    pytest.param(
        PodCounts(pending=2, starting=2),
        EXPLICIT,
        ("MinPodsNotRunning", TOO_FEW.format(0, 0)),
        id="they-pull-images-and-a-wait-was-written",
    ),
    pytest.param(
        PodCounts(running=2, pending=1, unschedulable=1),
        PATIENT,
        ("PodsFailedScheduling", "Pods failed scheduling failed=1, running=2."),
        id="enough-run-and-another-cannot-be-scheduled",
    ),
]


@pytest.mark.parametrize(("pods", "requeuing", "found"), MCAD)
@pytest.mark.parametrize("has_components", [False, True])
def test_gang_with_minavailable_is_short_of_pods_as_mcad_says(
    pods: PodCounts, requeuing: Requeuing, found: tuple[str, str] | None, has_components: bool
) -> None:
    policy = make_policy(min_available=2, requeuing=requeuing, has_components=has_components)
    issue = HealthIssue(*found, Remedy.REQUEUE, at(62)) if found else None
    assert health.missing_pods(NEVER_RAN, policy, pods) == issue


@pytest.mark.parametrize(
    ("requeuings", "wait"), [pytest.param(0, 1, id="first"), pytest.param(2, 4, id="third")]
)
def test_wait_for_enough_pods_grows_with_each_requeuing(requeuings: int, wait: int) -> None:
    record = replace(NEVER_RAN, requeuings=requeuings)
    issue = health.missing_pods(record, make_policy(min_available=2, requeuing=PATIENT), PodCounts())
    assert issue is not None
    assert issue.due == at(2) + minutes(wait)


def test_minavailable_of_0_asks_for_no_check_of_mcad() -> None:
    starting = PodCounts(pending=3, starting=3)
    assert health.missing_pods(NEVER_RAN, make_policy(min_available=0), starting) is None
    issue = health.missing_pods(
        NEVER_RAN, make_policy(min_available=0), PodCounts(pending=3, unschedulable=3)
    )
    assert issue is not None
    assert issue.reason == NOT_READY


# --- without minAvailable ---------------------------------------------------------------------------

PENDING = PodCounts(pending=3)

OURS: list[Any] = [
    # record, terms, pods, reason, message, grace in minutes
    pytest.param(NEVER_RAN, {}, PodCounts(running=3), None, id="all-run"),
    pytest.param(
        NEVER_RAN, {}, PodCounts(), (NOT_READY, "0 of 3 pods run: there is none", 1), id="no-pod-appears"
    ),
    pytest.param(NEVER_RAN, {"expects_pods": False}, PodCounts(), None, id="no-pod-of-an-unknown-kind"),
    pytest.param(
        NEVER_RAN, {}, PodCounts(pending=3, starting=3), None, id="pods-pull-images-which-may-take-any-time"
    ),
    pytest.param(
        NEVER_RAN,
        {"has_components": True},
        PENDING,
        (NOT_READY, "0 of 3 pods run", 5),
        id="pods-of-components-are-slow",
    ),
    pytest.param(
        NEVER_RAN,
        {},
        PodCounts(running=2, pending=1, starting=1, failed=1),
        None,
        id="a-failed-pod-is-replaced",
    ),
    pytest.param(
        NEVER_RAN,
        {},
        PodCounts(running=2, failed=1),
        (NOT_READY, "2 of 3 pods run", 5),
        id="a-failed-pod-is-not-replaced",
    ),
    pytest.param(
        NEVER_RAN,
        {"has_components": True},
        PodCounts(running=3, failed=2),
        (FOUND_FAILED, "failed pods: 2", 1),
        id="failed-pods-of-components-though-all-run",
    ),
    pytest.param(RAN, {}, PodCounts(running=2, succeeded=1), None, id="one-has-succeeded"),
    pytest.param(RAN, {}, PodCounts(running=1), None, id="it-was-scaled-down"),
    pytest.param(
        RAN, {}, PodCounts(), (NOT_READY, "0 of 3 pods run: there is none", 1), id="all-pods-are-gone"
    ),
    pytest.param(
        RAN,
        {"expects_pods": False},
        PodCounts(),
        (NOT_READY, "0 of 3 pods run: there is none", 1),
        id="all-pods-of-an-unknown-kind-are-gone",
    ),
    pytest.param(
        RAN,
        {},
        PodCounts(running=2, pending=1),
        (NOT_READY, "2 of 3 pods run", 5),
        id="one-does-not-come-back",
    ),
    pytest.param(RAN, {}, PodCounts(running=2, pending=1, starting=1), None, id="one-more-is-started"),
    pytest.param(
        NEVER_RAN, {}, PodCounts(failed=3, evicted=3), (NOT_READY, "0 of 3 pods run", 5), id="evicted-at-once"
    ),
    pytest.param(
        NEVER_RAN,
        {},
        PodCounts(pending=1, running=2, lost=1),
        (NOT_READY, "1 of 3 pods run, on nodes that do not answer: 1", 5),
        id="a-node-died-before-all-ran",
    ),
    pytest.param(RAN, {}, PodCounts(running=2, failed=1), (NOT_READY, "2 of 3 pods run", 5), id="one-failed"),
    pytest.param(
        RAN,
        {},
        PodCounts(running=3, lost=2),
        (NOT_READY, "1 of 3 pods run, on nodes that do not answer: 2", 5),
        id="nodes-died",
    ),
    pytest.param(
        RAN, {}, PodCounts(failed=3), (NOT_READY, "0 of 3 pods run", 5), id="all-failed-and-none-lives"
    ),
]


@pytest.mark.parametrize(("record", "policy", "pods", "found"), OURS)
def test_gang_without_minavailable_is_evicted_only_for_pods_that_cannot_recover(
    record: Record, policy: dict[str, Any], pods: PodCounts, found: tuple[str, str, float] | None
) -> None:
    kept = make_policy(SERVER, **policy)
    issue = health.missing_pods(record, kept, pods)
    if found is None:
        assert issue is None
        return
    reason, message, grace = found
    due = at(2) + minutes(grace) if record is NEVER_RAN else None
    assert issue is not None
    assert without_telling(issue) == HealthIssue(reason, message, Remedy.REQUEUE, due)
    noted = health.missing_pods(unhealthy(record, reason), kept, pods)
    assert noted is not None
    assert without_telling(noted) == HealthIssue(reason, message, Remedy.REQUEUE, at(60) + minutes(grace))


STUCK = "2 of 3 pods run: Pods failed scheduling failed=1, running=2."


@pytest.mark.parametrize(
    ("record", "pods", "found"),
    [
        pytest.param(
            NEVER_RAN, PodCounts(running=2, pending=1, unschedulable=1), STUCK, id="one-has-no-node"
        ),
        pytest.param(
            NEVER_RAN,
            PodCounts(pending=3, starting=2, unschedulable=1),
            "0 of 3 pods run: Pods failed scheduling failed=1, running=0.",
            id="one-has-no-node-while-the-others-start",
        ),
        pytest.param(NEVER_RAN, PodCounts(running=2, pending=1, starting=1), None, id="one-starts-slowly"),
        pytest.param(
            NEVER_RAN, PodCounts(running=3, pending=1, unschedulable=1), None, id="one-more-than-it-needs"
        ),
        pytest.param(
            RAN, PodCounts(running=3, pending=1, unschedulable=1), None, id="an-autoscaler-asks-for-one-more"
        ),
        pytest.param(
            RAN, PodCounts(running=3, pending=1, starting=1), None, id="one-more-of-an-autoscaler-starts"
        ),
    ],
)
def test_pod_without_a_node_is_not_waited_for_longer_than_the_grace(
    record: Record, pods: PodCounts, found: str | None
) -> None:
    """The grace counts from when it was noted: a pod may be made, and find no node at first, long after the others."""
    policy = make_policy(SERVER, warmup_grace=minutes(7))
    issue = health.missing_pods(record, policy, pods)
    assert issue == (HealthIssue(NOT_READY, found, Remedy.REQUEUE, None) if found else None)
    noted = health.missing_pods(unhealthy(record, NOT_READY), policy, pods)
    assert noted == (HealthIssue(NOT_READY, found, Remedy.REQUEUE, at(60) + minutes(7)) if found else None)


HALF_DONE: list[Any] = [
    # terms, pods, found: a Job of one pod is done, a server of two goes on
    pytest.param({}, PodCounts(running=2), None, id="the-rest-runs-and-the-pods-of-the-job-are-gone"),
    pytest.param({}, PodCounts(running=2, succeeded=1), None, id="the-rest-runs"),
    pytest.param(
        {}, PodCounts(succeeded=1), (NOT_READY, "1 of 3 pods run: there is none"), id="no-pod-of-the-rest"
    ),
    pytest.param(
        {},
        PodCounts(running=2, succeeded=1, lost=1),
        (NOT_READY, "2 of 3 pods run, on nodes that do not answer: 1"),
        id="a-node-of-the-rest-died",
    ),
    pytest.param(
        {}, PodCounts(running=1, failed=1, succeeded=1), (NOT_READY, "2 of 3 pods run"), id="one-failed"
    ),
    pytest.param({}, PodCounts(running=2, failed=1), None, id="the-job-was-done-at-its-second-try"),
    pytest.param(
        {"has_components": True},
        PodCounts(running=2, failed=1),
        None,
        id="the-job-of-components-at-its-second-try",
    ),
    pytest.param({"min_available": 3}, PodCounts(running=2), None, id="as-many-as-asked-for"),
    pytest.param(
        {"min_available": 3},
        PodCounts(running=1),
        (
            "MinPodsNotRunning",
            "Insufficient number of Running and Completed pods, minimum=3, running=1, completed=1.",
        ),
        id="fewer-than-asked-for",
    ),
]


@pytest.mark.parametrize(("policy", "pods", "found"), HALF_DONE)
def test_rest_of_a_gang_is_watched_over_when_some_of_it_is_done(
    policy: dict[str, Any], pods: PodCounts, found: tuple[str, str] | None
) -> None:
    kept = make_policy(
        CompletionRule(ends=True, holds=True, pods=1), CompletionRule(holds=True, pods=2), **policy
    )
    issue = health.missing_pods(RAN, kept, pods, {0})
    assert (issue and (issue.reason, issue.message)) == found


def test_grace_of_a_partly_done_gang_counts_from_the_start_of_its_health_issue() -> None:
    """Though it was never seen to run whole: the first part was done before the last one had started."""
    record = run_changes.complete_some(NEVER_RAN, (0,), at(30)).after
    kept = make_policy(CompletionRule(ends=True, holds=True, pods=1), CompletionRule(holds=True, pods=2))
    lost = PodCounts(running=2, lost=1, succeeded=1)
    issue = health.missing_pods(record, kept, lost, {0})
    noted = health.missing_pods(unhealthy(record, NOT_READY), kept, lost, {0})
    assert [each and each.due for each in (issue, noted)] == [None, at(60) + minutes(5)]


def test_job_with_failed_pods_reports_its_own_failure() -> None:
    kept = make_policy(CompletionRule(ends=True, holds=True, pods=3))
    assert health.missing_pods(NEVER_RAN, kept, PodCounts(failed=2)) is None
    assert health.missing_pods(RAN, kept, PodCounts(failed=2)) is None


def test_shortage_goes_on_whatever_mcad_calls_it_from_one_moment_to_the_next() -> None:
    record = unhealthy(RAN, words.PODS_FAILED_SCHEDULING)
    issue = health.missing_pods(record, make_policy(SERVER, min_available=3), PodCounts(running=2, pending=1))
    assert issue is not None
    assert (issue.reason, issue.due) == ("MinPodsNotRunning", at(60) + minutes(5))


@pytest.mark.parametrize(
    ("record", "due"),
    [
        pytest.param(NEVER_RAN, at(2) + minutes(5), id="never-ran-from-the-dispatch"),
        pytest.param(unhealthy(NEVER_RAN, NOT_READY), at(60) + minutes(5), id="never-ran-but-it-is-noted"),
        pytest.param(
            unhealthy(NEVER_RAN, "another"), at(2) + minutes(5), id="never-ran-and-another-is-noted"
        ),
        pytest.param(RAN, None, id="ran-to-be-noted-first"),
        pytest.param(unhealthy(RAN, NOT_READY), at(60) + minutes(5), id="ran-from-when-it-was-noted"),
        pytest.param(unhealthy(RAN, "another"), None, id="ran-and-another-is-noted"),
    ],
)
def test_grace_counts_from_the_dispatch_until_it_has_run_then_from_the_note(
    record: Record, due: datetime | None
) -> None:
    issue = health.missing_pods(record, make_policy(has_components=True), PENDING)
    assert issue == HealthIssue(NOT_READY, "0 of 3 pods run", Remedy.REQUEUE, due)


@pytest.mark.parametrize(
    ("field", "record", "pods"),
    [
        pytest.param("admission_grace", NEVER_RAN, PodCounts(), id="no-pod"),
        pytest.param("warmup_grace", NEVER_RAN, PENDING, id="no-running-pod"),
        pytest.param("failure_grace", NEVER_RAN, PodCounts(running=3, failed=1), id="a-failed-pod"),
    ],
)
def test_grace_periods_come_from_the_lifecycle_policy(field: str, record: Record, pods: PodCounts) -> None:
    policy: dict[str, Any] = {"has_components": True, field: timedelta(seconds=7)}
    issue = health.missing_pods(record, make_policy(**policy), pods)
    assert issue is not None
    assert issue.due == at(9)


def test_exit_code_that_no_attempt_would_mend_fails_the_gang_after_the_same_grace() -> None:
    policy = make_policy(has_components=True, terminal_exit_codes=frozenset({3}))
    pods = PodCounts(running=1, failed=2, exit_codes=frozenset({3, 1}))
    assert health.missing_pods(NEVER_RAN, policy, pods) == HealthIssue(
        FOUND_FAILED, "failed pods: 2, with exit code 1, 3", Remedy.FAIL, at(62)
    )


def test_exit_codes_mean_nothing_to_a_gang_with_minavailable() -> None:
    policy = make_policy(min_available=3, terminal_exit_codes=frozenset({3}), requeuing=PATIENT)
    issue = health.missing_pods(NEVER_RAN, policy, PodCounts(failed=3, exit_codes=frozenset({3})))
    assert issue is not None
    assert issue.remedy is Remedy.REQUEUE


@pytest.mark.parametrize("growth", WaitGrowth)
def test_default_wait_of_mcad_is_five_minutes_however_it_grows(growth: WaitGrowth) -> None:
    policy = make_policy(min_available=1, requeuing=Requeuing(growth=growth))
    issue = health.missing_pods(NEVER_RAN, policy, PodCounts())
    assert issue is not None
    assert issue.due == at(302)
