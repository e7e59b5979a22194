"""Pods that do not exist or do not start: nobody made them, or the objects of the gang do not ask for them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatcher.api import conditions as words
from dispatcher.api.appwrapper import Requeuing
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.lifecycle import health
from dispatcher.core.lifecycle.health import HealthIssue, Remedy
from dispatcher.core.lifecycle.missing_pods import Withheld
from dispatcher.core.model.gangs.pods import PodCounts
from dispatcher.core.model.records.record import Phase, Record
from tests.builders import at, make_gang, make_policy, make_record
from tests.unit.core.lifecycle.dispatched import (
    EXPLICIT,
    NEVER_RAN,
    NOT_READY,
    PATIENT,
    RAN,
    SERVER,
    minutes,
    unhealthy,
)

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
