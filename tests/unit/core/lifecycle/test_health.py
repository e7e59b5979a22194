"""What is wrong with a gang, in which words, and from when on it is acted upon."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.appwrapper import Growth, Requeuing
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.lifecycle import creation_steps, health, queue_steps, removal_steps, run_steps
from dispatcher.core.lifecycle.health import HealthIssue, Remedy
from dispatcher.core.lifecycle.withheld import Withheld
from dispatcher.core.model.pod_counts import PodCounts
from dispatcher.core.model.record import NotedIssue, Phase, Record
from tests.builders import (
    at,
    attempt_of,
    make_evicted,
    make_failed_run,
    make_failing_run,
    make_gang,
    make_policy,
    make_record,
    make_ref,
)

GANG = make_gang(3)
NEVER_RAN = make_record(Phase.DISPATCHED, gang=GANG)
"""Dispatched at second 2."""
RAN = make_record(Phase.RUNNING, gang=GANG)


def minutes(number: float) -> timedelta:
    return timedelta(minutes=number)


def without_telling(issue: HealthIssue) -> HealthIssue:
    """The issue, whenever it is told."""
    return replace(issue, told_from=None, since=None)


def unhealthy(record: Record, reason: str, since: float = 60) -> Record:
    return replace(record, unhealthy=NotedIssue(reason, "something", at(since)))


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
    again = queue_steps.dispatch(removal_steps.removed(make_evicted(), at(5)).after, "hub", at(100)).after
    again = creation_steps.created(again, (make_ref(),), at(101)).after
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


# --- minAvailable -------------------------------------------------------------------------------------

PATIENT = Requeuing(wait=minutes(1))
EXPLICIT = Requeuing(wait=minutes(1), explicit=True)
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

NOT_READY, FOUND_FAILED = words.INSUFFICIENT_PODS_READY, words.FOUND_FAILED_PODS
PENDING = PodCounts(pending=3)
SERVER = CompletionRule(holds=True, pods=3)

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


# --- pods that nobody made, or that do not start --------------------------------------------------------

FOUR = make_record(Phase.DISPATCHED, gang=make_gang(4))
JOB_OF_FOUR = CompletionRule(ends=True, holds=True, pods=4, asks=4)
IN_ORDER = CompletionRule(holds=True, pods=4, asks=4, in_order=True)
TOLD = at(2) + health.TOLD_AFTER

INCOMPLETE: list[Any] = [
    # item, pods, message, whether the time counts from the dispatch
    pytest.param(
        JOB_OF_FOUR, PodCounts(running=2), "2 of 4 pods run: pods that do not exist: 2", True, id="half-exist"
    ),
    pytest.param(
        JOB_OF_FOUR,
        PodCounts(pending=2, starting=2),
        "0 of 4 pods run: pods that do not exist: 2",
        True,
        id="half-exist-and-start",
    ),
    pytest.param(JOB_OF_FOUR, PodCounts(running=3, failed=1), None, True, id="its-job-replaces-a-failed-pod"),
    pytest.param(JOB_OF_FOUR, PodCounts(running=3, succeeded=1), None, True, id="one-is-done-already"),
    pytest.param(
        IN_ORDER,
        PodCounts(running=1),
        "1 of 4 pods run: pods that do not exist: 3",
        False,
        id="the-next-in-order-is-not-made",
    ),
    pytest.param(
        IN_ORDER, PodCounts(running=1, pending=1, starting=1), None, False, id="the-next-in-order-starts"
    ),
    pytest.param(
        CompletionRule(holds=True, pods=4),
        PodCounts(running=2),
        None,
        True,
        id="nobody-knows-how-many-it-makes",
    ),
    pytest.param(
        JOB_OF_FOUR,
        PodCounts(running=3, pending=1),
        "3 of 4 pods run: pods that do not start: 1",
        False,
        id="an-image-cannot-be-pulled-or-a-gate-of-others-is-there",
    ),
    pytest.param(
        JOB_OF_FOUR, PodCounts(running=4, pending=2, gated=2), None, True, id="a-growth-waits-for-its-grant"
    ),
]


@pytest.mark.parametrize(("rule", "pods", "message", "from_dispatch"), INCOMPLETE)
def test_gang_that_never_ran_is_evicted_for_pods_that_nobody_made_or_that_do_not_start(
    rule: CompletionRule, pods: PodCounts, message: str | None, from_dispatch: bool
) -> None:
    policy = make_policy(rule)
    issue = health.missing_pods(FOUR, policy, pods)
    if message is None:
        assert issue is None
        return
    due, since = (at(2) + minutes(5), at(2)) if from_dispatch else (None, None)
    assert issue == HealthIssue(NOT_READY, message, Remedy.REQUEUE, due, TOLD, since)
    noted = health.missing_pods(unhealthy(FOUR, NOT_READY), policy, pods)
    assert noted is not None
    assert noted.due == at(60) + minutes(5)


@pytest.mark.parametrize(
    ("pods", "unmade"),
    [
        pytest.param(PodCounts(running=2, succeeded=4), 2, id="the-other-job-is-half-made"),
        pytest.param(PodCounts(succeeded=4), 4, id="none-of-the-other-job"),
        pytest.param(PodCounts(running=2, failed=1, succeeded=4), 1, id="at-its-second-try"),
        pytest.param(PodCounts(running=3, succeeded=5), 0, id="one-of-the-other-job-is-done"),
        pytest.param(PodCounts(running=2, succeeded=2), 0, id="pods-of-the-done-job-are-gone"),
    ],
)
def test_pods_of_a_job_that_is_done_do_not_stand_for_those_that_another_job_lacks(
    pods: PodCounts, unmade: int
) -> None:
    record, policy = make_record(Phase.DISPATCHED, gang=make_gang(8)), make_policy(JOB_OF_FOUR, JOB_OF_FOUR)
    assert health.unmade_pods(record, policy, pods, {0}) == unmade


def test_gang_that_ran_may_lose_pods_that_nobody_replaces() -> None:
    record = make_record(Phase.RUNNING, gang=make_gang(4))
    assert health.missing_pods(record, make_policy(JOB_OF_FOUR), PodCounts(running=2)) is None


def test_grace_of_a_large_gang_grows_with_the_time_that_its_controllers_need_to_make_its_pods() -> None:
    record = make_record(Phase.DISPATCHED, gang=make_gang(10_000))
    rule = CompletionRule(ends=True, holds=True, pods=10_000, asks=10_000)
    issue = health.missing_pods(record, make_policy(rule), PodCounts(running=9_000))
    assert issue is not None
    assert issue.due == at(2) + minutes(5) + timedelta(seconds=2000)


@pytest.mark.parametrize("requeuing", [PATIENT, EXPLICIT])
def test_pods_that_nobody_made_are_told_of_a_gang_with_minavailable_before_its_wait_is_over(
    requeuing: Requeuing,
) -> None:
    policy = make_policy(JOB_OF_FOUR, min_available=4, requeuing=requeuing)
    issue = health.missing_pods(FOUR, policy, PodCounts(running=2))
    assert issue is not None
    assert (issue.told_from, issue.since, issue.due) == (TOLD, at(2), at(62))


# --- pods that its objects do not ask for ----------------------------------------------------------------

ZERO = Withheld(
    3, "StatefulSet default/s asks for none of its 3 pods", "", "StatefulSet default/s asks for none"
)
ONE_LESS = Withheld(1, "StatefulSet default/s asks for fewer than its 3 pods")
MANAGED = Withheld(why="Job default/j is managed by example.com/other")


@pytest.mark.parametrize(
    ("record", "pods", "withheld", "message"),
    [
        pytest.param(RAN, PodCounts(), ZERO, None, id="scaled-to-zero-after-it-ran"),
        pytest.param(RAN, PodCounts(), ONE_LESS, "0 of 2 pods run: there is none", id="but-not-to-zero"),
        pytest.param(
            RAN, PodCounts(running=2, failed=1), ONE_LESS, None, id="as-many-run-as-its-object-asks-for"
        ),
        pytest.param(
            NEVER_RAN,
            PodCounts(),
            ZERO,
            "0 of 3 pods run: StatefulSet default/s asks for none",
            id="before-it-ran-it-is-taken-back",
        ),
        pytest.param(NEVER_RAN, PodCounts(running=2), ONE_LESS, None, id="scaled-down-before-it-ran"),
        pytest.param(
            NEVER_RAN,
            PodCounts(),
            MANAGED,
            "0 of 3 pods run: Job default/j is managed by example.com/other",
            id="another-controller-is-to-make-them",
        ),
    ],
)
def test_pods_that_its_objects_do_not_ask_for_are_no_health_issue_of_a_gang_that_ran(
    record: Record, pods: PodCounts, withheld: Withheld, message: str | None
) -> None:
    issue = health.missing_pods(record, make_policy(SERVER), pods, withheld=withheld)
    assert (issue and issue.message) == message


def test_gang_with_minavailable_is_short_of_pods_whoever_scaled_it() -> None:
    issue = health.missing_pods(RAN, make_policy(min_available=2), PodCounts(), withheld=ZERO)
    assert issue is not None
    assert issue.reason == "MinPodsNotRunning"


UNREAD = Withheld(unread="Deployment default/d", unread_pods=3)
UNREAD_ONE = Withheld(unread="Deployment default/d", unread_pods=1)
DRIFTED = unhealthy(RAN, words.DRIFTED)


@pytest.mark.parametrize(
    ("record", "pods", "withheld", "in_doubt"),
    [
        pytest.param(RAN, PodCounts(), UNREAD, True, id="no-pod-is-left"),
        pytest.param(DRIFTED, PodCounts(), UNREAD, None, id="and-it-was-known-to-be-edited"),
        pytest.param(RAN, PodCounts(running=1, failed=1), UNREAD, True, id="a-failed-pod-is-left-over"),
        pytest.param(RAN, PodCounts(running=3, lost=1), UNREAD, False, id="a-pod-that-lives-is-asked-for"),
        pytest.param(DRIFTED, PodCounts(running=3, lost=1), UNREAD, False, id="also-of-an-edited-object"),
        pytest.param(RAN, PodCounts(running=1, pending=2), UNREAD, False, id="pods-do-not-come-back"),
        pytest.param(RAN, PodCounts(), UNREAD_ONE, False, id="another-object-asks-for-two-more"),
        pytest.param(RAN, PodCounts(), ZERO, None, id="it-is-read"),
        pytest.param(NEVER_RAN, PodCounts(), UNREAD, False, id="its-time-to-begin-is-bounded"),
    ],
)
def test_pods_that_objects_may_not_ask_for_are_in_doubt_until_the_objects_are_read(
    record: Record, pods: PodCounts, withheld: Withheld, in_doubt: bool | None
) -> None:
    issue = health.missing_pods(record, make_policy(SERVER), pods, withheld=withheld)
    assert (issue and issue.is_in_doubt) == in_doubt


def test_health_issue_in_doubt_names_the_objects_that_nobody_has_read() -> None:
    issue = health.missing_pods(RAN, make_policy(SERVER), PodCounts(), withheld=UNREAD)
    assert issue is not None
    assert issue.message == (
        "0 of 3 pods run: there is none; how many pods are asked for is not known: Deployment default/d"
    )


def test_pods_of_a_gang_with_minavailable_are_never_in_doubt() -> None:
    issue = health.missing_pods(RAN, make_policy(min_available=2), PodCounts(), withheld=UNREAD)
    assert issue is not None
    assert not issue.is_in_doubt


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
    record = run_steps.complete_some(NEVER_RAN, (0,), at(30)).after
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


@pytest.mark.parametrize("growth", Growth)
def test_default_wait_of_mcad_is_five_minutes_however_it_grows(growth: Growth) -> None:
    policy = make_policy(min_available=1, requeuing=Requeuing(growth=growth))
    issue = health.missing_pods(NEVER_RAN, policy, PodCounts())
    assert issue is not None
    assert issue.due == at(302)


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
