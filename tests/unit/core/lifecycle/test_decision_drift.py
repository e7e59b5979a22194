"""What somebody changed of a gang's objects is told as long as nothing else is; nothing is ever done about it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.lifecycle.decision import decide
from dispatcher.core.lifecycle.missing_pods import NONE_WITHHELD, Withheld
from dispatcher.core.lifecycle.step import NOOP, Act, Do
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.gangs.pods import PodCounts
from dispatcher.core.model.records.record import NotedIssue, Phase, Record
from tests.builders import at, make_objects, make_observation, make_policy, make_record, make_ref
from tests.unit.core.lifecycle.dispatched import Outline, act_of, by, outline

DRIFT = "RayCluster default/ray: spec.x was changed"
NOTED = Do(Act.NOTE_HEALTH_ISSUE, words.DRIFTED, DRIFT)
ENOUGH, LOST = PodCounts(running=1), PodCounts(running=1, lost=1)
TOO_FEW = "0 of 1 pods run, on nodes that do not answer: 1"
SHORT = Do(Act.NOTE_HEALTH_ISSUE, words.INSUFFICIENT_PODS_READY, TOO_FEW)
RUNNING = make_record(Phase.RUNNING)
HOLDING = make_record(Phase.RUNNING_HOLD_COMPLETION)
JOB = CompletionRule(ends=True, holds=True)
DONE, FAILED = ObjectState(End.SUCCEEDED), ObjectState(End.FAILED, message="too many")


def ill(reason: str = words.DRIFTED, message: str = DRIFT, record: Record = RUNNING) -> Record:
    return replace(record, unhealthy=NotedIssue(reason, message, at(5)))


def decided(record: Record, pods: PodCounts = ENOUGH, *states: ObjectState, **seen: Any) -> Outline:  # noqa: ANN401
    """What is due of a gang, at second 10, of which somebody has edited something."""
    objects = replace(make_objects(pods, *states), drift=seen.pop("drift", DRIFT))
    return outline(decide(make_observation(record, objects=objects, **seen)))


def not_yet_running(pods: PodCounts) -> Outline:
    return decided(make_record(Phase.DISPATCHED), pods)


@pytest.mark.parametrize(
    ("decision", "due"),
    [
        pytest.param(decided(RUNNING), NOTED, id="it-is-noted"),
        pytest.param(decided(HOLDING), NOTED, id="also-when-some-of-it-is-done"),
        pytest.param(not_yet_running(PodCounts(pending=1, starting=1)), NOTED, id="also-before-it-runs"),
        pytest.param(decided(ill()), NOOP, id="once"),
        pytest.param(decided(ill(), seconds=10**7), NOOP, id="and-never-acted-upon"),
        pytest.param(decided(ill(message="x: y was changed")), NOTED, id="anew-when-more-is-changed"),
        pytest.param(decided(ill(), drift=""), by(Cause.RECOVERED), id="taken-back"),
        pytest.param(decided(ill(), drift=None), NOOP, id="not-taken-back-before-it-is-compared"),
        pytest.param(
            decided(ill(words.INSUFFICIENT_PODS_READY), drift=None),
            NOOP,
            id="no-recovery-from-another-trouble-before-it-is-compared",
        ),
        pytest.param(decided(RUNNING, drift=None), NOOP, id="nothing-is-noted-before-it-is-compared"),
        pytest.param(decided(RUNNING, LOST), SHORT, id="another-trouble-first"),
        pytest.param(decided(ill(), LOST), SHORT, id="another-trouble-in-its-place"),
        pytest.param(
            decided(ill(words.INSUFFICIENT_PODS_READY, TOO_FEW), LOST),
            Do(Act.NOOP, until=at(305)),
            id="not-while-another-is-told",
        ),
        pytest.param(
            decided(ill(words.INSUFFICIENT_PODS_READY, TOO_FEW), LOST, seconds=306),
            Do(Act.REQUEUE, words.INSUFFICIENT_PODS_READY, TOO_FEW),
            id="which-is-acted-upon-as-ever",
        ),
        pytest.param(decided(ill(words.INSUFFICIENT_PODS_READY)), NOTED, id="in-place-of-one-that-is-over"),
        pytest.param(decided(ill(words.CLUSTER_UNREACHABLE)), NOTED, id="when-the-cluster-is-back"),
        pytest.param(
            decided(ill(), unreachable="east does not answer"),
            Do(Act.NOTE_HEALTH_ISSUE, words.CLUSTER_UNREACHABLE, "east does not answer"),
            id="not-while-the-cluster-is-away",
        ),
        pytest.param(
            decided(ill(), policy=make_policy(limit=timedelta(seconds=100))),
            Do(Act.NOOP, until=at(102)),
            id="a-deadline-to-come-is-looked-at-in-time",
        ),
        pytest.param(
            decided(RUNNING, policy=make_policy(limit=timedelta(seconds=100))),
            NOTED,
            id="and-is-no-trouble-yet",
        ),
        pytest.param(
            decided(ill(), policy=make_policy(limit=timedelta(seconds=5))),
            Do(
                Act.FAIL,
                words.DISPATCH_DEADLINE_EXCEEDED,
                "Dispatch deadline exceeded. allowed to run for 5 seconds",
            ),
            id="a-deadline-counts-all-the-same",
        ),
        pytest.param(
            decided(ill(), ENOUGH, FAILED, policy=make_policy(JOB)),
            Do(Act.FAIL, words.FAILED_COMPONENT, "RayCluster default/raycluster-0 failed: too many"),
            id="so-does-a-failure",
        ),
        pytest.param(
            decided(ill(), PodCounts(), DONE, policy=make_policy(JOB)),
            by(Cause.ITEMS_DONE, frozenset({0})),
            id="and-what-is-done",
        ),
        pytest.param(
            decided(RUNNING, ENOUGH, DONE, policy=make_policy(JOB)),
            by(Cause.SOME_COMPLETED, frozenset({0})),
            id="progress-is-told-first",
        ),
        pytest.param(
            decided(ill(), asked=MutableSpec(suspend=True)), by(Cause.SUSPENDED), id="it-can-be-suspended"
        ),
        pytest.param(
            decided(ill(), draining="east is being emptied"),
            Do(Act.REQUEUE, words.CLUSTER_DRAINING, "east is being emptied"),
            id="and-moved-elsewhere",
        ),
    ],
)
def test_decision_of_an_edited_gang(decision: Outline, due: Outline) -> None:
    assert decision == due


LOWERED = "Deployment default/d asks for none of its 1 pods"
UNREAD = Withheld(unread="Deployment default/d", unread_pods=1)
SUSPENDED = "Job default/j is suspended, as its AppWrapper says"


def with_unread(record: Record, seconds: float, drift: str | None = "") -> Outline:
    """What is due of a gang without pods, of whose object the watch of this leader shows nothing."""
    objects = replace(make_objects(PodCounts(), None), drift=drift, withheld=UNREAD)
    return outline(
        decide(make_observation(record, seconds=seconds, policy=make_policy(JOB), objects=objects))
    )


@pytest.mark.parametrize("seconds", [10, 71, 10**7])
def test_gang_that_was_scaled_to_zero_stays_so_under_a_leader_that_cannot_read_its_object(
    seconds: float,
) -> None:
    assert with_unread(ill(message=LOWERED), seconds, drift=LOWERED) == NOOP


def test_suspended_object_is_told_of_until_it_is_read_again() -> None:
    record = ill(words.OBJECT_SUSPENDED, SUSPENDED)
    unread = Withheld(unread="Job default/j")
    objects = replace(make_objects(ENOUGH, None), withheld=unread)
    assert decide(make_observation(record, objects=objects)) == NOOP
    read = replace(objects, withheld=NONE_WITHHELD)
    assert outline(decide(make_observation(record, objects=read))) == by(Cause.RECOVERED)


def test_gang_without_pods_whose_object_nobody_has_read_is_told_of_and_its_end_is_in_doubt() -> None:
    told = "0 of 1 pods run: there is none; how many pods are asked for is not known: Deployment default/d"
    reason = words.INSUFFICIENT_PODS_READY
    assert with_unread(RUNNING, 10) == Do(Act.NOTE_HEALTH_ISSUE, reason, told)
    noted = ill(reason, told)
    assert with_unread(noted, 10) == Do(Act.NOOP, until=at(65))
    assert with_unread(noted, 66) == Do(Act.REQUEUE, reason, told, is_in_doubt=True)


def test_missing_object_is_a_health_issue_of_its_own() -> None:
    objects = replace(make_objects(ENOUGH, absent=(make_ref(),)), drift=DRIFT)
    decision = act_of(decide(make_observation(ill(), objects=objects)))
    assert (decision.act, decision.reason) == (Act.FAIL, words.MISSING_COMPONENT)
