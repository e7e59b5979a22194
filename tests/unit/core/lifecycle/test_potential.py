"""Gangs on trust: how long they may lack nodes, and how long a pool is not trusted after that."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.lifecycle.confirmation import Evidence, evidence_for
from dispatcher.core.lifecycle.decision import decide
from dispatcher.core.lifecycle.health import ObservedObjects
from dispatcher.core.lifecycle.step import Act, Do
from dispatcher.core.model.gang import Assignment
from dispatcher.core.model.pods import PodCounts
from dispatcher.core.model.potential import LONGEST_DISTRUST, PoolFailures
from dispatcher.core.model.record import Phase, Record
from tests.builders import NOW, attempt_of, make_observation, make_policy, make_record
from tests.unit.core.lifecycle.dispatched import act_of

BIND_WITHIN = timedelta(minutes=15)
UNBOUND = PodCounts(pending=2, unschedulable=2, unbound=2)
STARTING = PodCounts(pending=2, starting=2)


def on_trust(phase: Phase = Phase.DISPATCHED) -> Record:
    record = make_record(phase)
    places = Assignment(((("potential/l4/0", 1), ("potential/l4/1", 1)),))
    return replace(record, attempt=replace(attempt_of(record), assignment=places))


def see(pods: PodCounts, seconds: float, min_available: int | None = None, **fields: object) -> Do:
    record = on_trust()
    created_at = attempt_of(record).created_at
    assert created_at is not None
    observed = make_observation(
        record,
        policy=make_policy(CompletionRule(), min_available=min_available),
        objects=ObservedObjects(pods=pods),
        bind_within=BIND_WITHIN,
        awaited_pools=frozenset({"l4"}),
    )
    return act_of(decide(replace(observed, now=created_at + timedelta(seconds=seconds), **fields)))  # type: ignore[arg-type]


@pytest.mark.parametrize("min_available", [None, 2])
@pytest.mark.parametrize(
    ("pods", "seconds", "step", "reason"),
    [
        pytest.param(UNBOUND, 899, Act.NOOP, "", id="nodes-may-come"),
        pytest.param(UNBOUND, 900, Act.REQUEUE, words.POTENTIAL_NODES_MISSING, id="nodes-did-not-come"),
        pytest.param(STARTING, 900, Act.NOOP, "", id="pods-have-nodes-and-start"),
        pytest.param(PodCounts(), 900, Act.NOOP, "", id="no-pods-yet"),
    ],
)
def test_pods_on_trust_may_lack_nodes_for_a_while(
    pods: PodCounts, seconds: float, step: Act, reason: str, min_available: int | None
) -> None:
    decision = see(pods, seconds, min_available)
    assert (decision.act, decision.reason) == (step, reason)


def test_pod_made_anew_after_the_nodes_came_is_not_without_potential_nodes() -> None:
    made_anew = PodCounts(pending=2, starting=1, unbound=1)
    assert see(made_anew, 3600).reason == words.POTENTIAL_NODES_MISSING
    now = see(made_anew, 3600, awaited_pools=frozenset())
    assert (now.act, now.reason) == (Act.NOTE_HEALTH_ISSUE, words.INSUFFICIENT_PODS_READY)


def test_message_names_the_pool() -> None:
    said = "pods without a node 900 s after their creation: 2; the gang trusted 2 nodes of pool l4 to come"
    assert see(UNBOUND, 900).message == said


def test_too_few_pods_count_once_the_nodes_should_be_there() -> None:
    policy = make_policy(min_available=2)
    wait = int(policy.requeuing.wait.total_seconds())
    assert see(STARTING, 900 + wait - 1, 3).act is Act.NOOP
    late = see(STARTING, 900 + wait, 3)
    assert (late.act, late.reason) == (Act.REQUEUE, words.MIN_PODS_NOT_RUNNING)


def test_without_trust_pods_without_nodes_are_noted_at_once() -> None:
    assert see(UNBOUND, 10, bind_within=None).act is Act.NOTE_HEALTH_ISSUE


def test_eviction_is_confirmed_by_pods_and_counts_as_no_requeuing() -> None:
    assert evidence_for(words.POTENTIAL_NODES_MISSING) is Evidence.PODS
    assert words.POTENTIAL_NODES_MISSING in words.NOT_BY_THE_GANG
    policy = make_policy()
    assert not policy.is_spent(replace(on_trust(), retries=10**6), words.POTENTIAL_NODES_MISSING)
    assert policy.pause(words.POTENTIAL_NODES_MISSING) == timedelta(0)


def test_distrust_doubles_up_to_six_hours_and_counts_once_while_it_lasts() -> None:
    failures, now, lasted = PoolFailures(), NOW, list[timedelta]()
    for _ in range(7):
        failures = failures.after_failure(BIND_WITHIN, now)
        assert failures.after_failure(BIND_WITHIN, failures.until - timedelta(seconds=1)) == failures
        lasted.append(failures.until - now)
        now = failures.until
    minutes = [15, 30, 60, 120, 240, 360, 360]
    assert lasted == [timedelta(minutes=each) for each in minutes]
    assert failures.count == 7
    many = PoolFailures(10**6, NOW)
    assert many.after_failure(BIND_WITHIN, NOW).until == NOW + LONGEST_DISTRUST
    assert many.after_failure(BIND_WITHIN, NOW + LONGEST_DISTRUST).count == 1  # a row of the distant past
