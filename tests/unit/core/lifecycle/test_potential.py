"""Gangs on trust: how long they may lack nodes, and how long a pool is not trusted after that."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.lifecycle import run_changes
from dispatcher.core.lifecycle.confirmation import Evidence, evidence_for
from dispatcher.core.lifecycle.decision import decide
from dispatcher.core.lifecycle.growth import without_unplaced
from dispatcher.core.lifecycle.health import ObservedObjects
from dispatcher.core.lifecycle.step import Act, Do
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.clusters.potential import LONGEST_DISTRUST, PoolFailures
from dispatcher.core.model.gangs.gang import Assignment
from dispatcher.core.model.gangs.growth import GatedPod, GrowthTrust, PodRef, Shrinking, SurplusPod
from dispatcher.core.model.gangs.pods import PodCounts
from dispatcher.core.model.records.record import Growth, Phase, Record
from dispatcher.core.model.resources import Resources
from tests.builders import (
    NOW,
    at,
    attempt_of,
    make_gang,
    make_objects,
    make_observation,
    make_policy,
    make_record,
)
from tests.unit.core.lifecycle.dispatched import Outline, act_of, by, outline, step_of

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


# -----------------------------------------------------------------------------------------------------------
# Growth that trusts in potential nodes has a time in which they must come; then its pods are taken back.


ONE = Resources({"cpu": 1000})
"""The demand of a gang of one pod, and the requests of each of its pods."""
NODES = ("potential/l4/0", "potential/l4/1")


def granted(trusted: tuple[str, ...] = NODES) -> Record:
    """A gang of one pod that was granted two more."""
    record = make_record(Phase.RUNNING, gang=make_gang(1, cpu=1000))
    return run_changes.grant(record, ONE * 2, None, "2 pods may start", at(20), trusted=trusted).after


def surplus(name: str, *, is_gated: bool = False) -> SurplusPod:
    return SurplusPod("team-a", name, f"uid-of-{name}", ONE, "", "2026-01-01T00:00:00Z", is_gated=is_gated)


A, B, GATED = surplus("a"), surplus("b"), surplus("c", is_gated=True)
TAKEN_BACK = Do(
    Act.TAKE_BACK_GROWTH,
    words.POTENTIAL_NODES_MISSING,
    "granted pods without a node 60 s after the grant: 1; it trusted 2 nodes of pool l4 to come",
)


def decided(
    record: Record,
    unplaced: tuple[SurplusPod, ...],
    seconds: float,
    awaited: tuple[str, ...] = ("l4",),
    taken: int = 3,
    gated: tuple[GatedPod, ...] = (),
) -> Outline:
    objects = replace(make_objects(PodCounts(running=1)), taken=ONE * taken, unplaced=unplaced, gated=gated)
    seen = make_observation(record, seconds, objects=objects)
    trusts = attempt_of(record).growth_trust is not None
    bind_within = timedelta(seconds=60) if trusts else None
    return outline(decide(replace(seen, growth_bind_within=bind_within, awaited_pools=frozenset(awaited))))


@pytest.mark.parametrize(
    ("unplaced", "seconds", "awaited", "expected"),
    [
        pytest.param((A,), 79, ("l4",), Do(Act.NOOP, until=at(80)), id="in-time"),
        pytest.param((A,), 80, ("l4",), TAKEN_BACK, id="too-late"),
        pytest.param((A,), 80, (), Do(Act.NOOP), id="its-nodes-came"),
        pytest.param((), 30, (), by(Cause.GREW), id="all-have-nodes"),
    ],
)
def test_granted_pods_have_a_time_in_which_the_trusted_nodes_must_come(
    unplaced: tuple[SurplusPod, ...], seconds: float, awaited: tuple[str, ...], expected: Outline
) -> None:
    assert decided(granted(), unplaced, seconds, awaited) == expected


def test_growth_that_trusts_in_no_potential_nodes_has_no_such_time() -> None:
    assert decided(granted(()), (A,), 10**6) == Do(Act.NOOP)


def test_later_grant_on_trust_begins_the_time_anew_and_another_grant_does_not() -> None:
    more = run_changes.grant(granted(), ONE * 3, None, "1 pod", at(30), trusted=("potential/cpu/0",)).after
    trust = GrowthTrust(at(30), ("potential/cpu/0", *NODES))
    assert attempt_of(more).growth_trust == trust
    assert trust.pools == (("cpu", 1), ("l4", 2))
    again = run_changes.grant(more, ONE * 4, None, "1 pod", at(40)).after
    assert attempt_of(again).growth_trust == trust


def test_only_pods_without_nodes_are_given_up_and_gated_ones_need_no_deletion() -> None:
    assert without_unplaced(ONE * 3, (A, GATED)) == Shrinking((PodRef("team-a", "a", "uid-of-a"),), ONE, "")


def test_pods_that_are_taken_back_are_charged_until_they_are_gone() -> None:
    change = run_changes.take_back_growth(granted(), without_unplaced(ONE * 2, (A,)), "no nodes", at(80))
    record = change.after
    assert [(each.cause, each.reason, each.message) for each in change.events] == [
        ("growth-taken-back", words.POTENTIAL_NODES_MISSING, "no nodes")
    ]
    assert (record.phase, record.charge, record.allowed) == (Phase.RUNNING, ONE * 3, ONE * 2)
    assert step_of(decided(record, (A,), 10**6)) is Cause.SHRANK  # they are gone: none is to be deleted
    gone = run_changes.note_growth(record, ONE * 2, at(90)).after
    assert attempt_of(gone).growth[-1] == Growth(at(90), ONE)  # taken for no other gang
    assert gone.preempted_at == ()


def test_growth_whose_pods_all_have_nodes_trusts_no_more() -> None:
    change = run_changes.note_growth(granted(), ONE * 3, at(40))
    assert attempt_of(change.after).growth_trust is None
    assert change.after.charge == ONE * 3
    assert [(each.cause, each.message) for each in change.events] == [
        ("grew", "all pods of its growth have nodes")
    ]
    assert run_changes.has_nodes(attempt_of(granted()), attempt_of(change.after))


def test_growth_that_shrinks_while_it_waits_for_nodes_goes_on_trusting() -> None:
    change = run_changes.note_growth(granted(), ONE * 2, at(40), keeps_trust=True)
    assert attempt_of(change.after).growth_trust == attempt_of(granted()).growth_trust
    assert not run_changes.has_nodes(attempt_of(granted()), attempt_of(change.after))
    gone = run_changes.note_growth(granted(), ONE * 2, at(40)).after
    assert not run_changes.has_nodes(attempt_of(granted()), attempt_of(gone))
