"""Without declared queues, a cycle over queues decides as the cycle without queues does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.core.model.record import Record
from dispatcher.core.queues.queue import Queue, QueueingStrategy
from dispatcher.core.scheduling.cycle import ordering
from dispatcher.core.scheduling.cycle.cycle import SOME_TIME, Outcome, Placed, Preempting, Waiting
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
from dispatcher.core.scheduling.fit.backfill import Backfill
from dispatcher.core.scheduling.sharing.cycle import Drained, QueueOutcome
from tests.unit.core.scheduling.queue_answers import answer_of
from tests.unit.core.scheduling.scenarios import documents

Json = dict[str, Any]


def check(document: Json, policy: QueueingStrategy) -> None:
    """Both get the same backfill reservations: of new ones, only the cycle without queues gives gangs that fit some."""
    world = replace(parse_scenario(document), policy=policy)
    starved = starved_of(world)
    reservations = Backfill().renew(starved, KnownSnapshots().of(world), SOME_TIME)
    world = replace(world, reservations=reservations)
    without, (_, over_queues) = world.plan(), replace(world, queues=(Queue("default"),)).plan_queues()
    # The first starved gang is decided first, so it is the head; without queues, the first of the queue is.
    assert len(over_queues) == len(without)
    assert {decided(each, has_head=not starved) for each in over_queues} == {
        decided(each, has_head=not starved) for each in without
    }
    # A refused class is decided at once, so only those that are dispatched come in the same order.
    assert [uid_of(each) for each in over_queues if isinstance(each, Placed)] == [
        uid_of(each) for each in without if isinstance(each, Placed)
    ]
    if not any(isinstance(each, Placed) for each in without):
        # Else the gangs of a class share a message from the time before some were placed.
        assert {uid_of(each): message_of(each) for each in over_queues} == {
            uid_of(each): message_of(each) for each in without
        }


def starved_of(world: World) -> list[Record]:
    queue = ordering.in_order(world.pending, world.now)
    uids = ordering.starved(queue, world.now, world.starvation_bound)
    is_strict = world.policy is QueueingStrategy.STRICT_FIFO
    return [] if is_strict else [each for each in queue if each.uid in uids]


def decided(outcome: Outcome | QueueOutcome, *, has_head: bool) -> tuple[object, ...]:
    """What was decided, without the words."""
    if isinstance(outcome, Placed):
        return Placed, outcome.record.uid, outcome.cluster, outcome.assignment
    assert not isinstance(outcome, Drained | Preempting)
    pending = outcome.pending
    is_head = has_head and isinstance(outcome, Waiting) and outcome.is_head
    return type(outcome), outcome.record.uid, pending.reason, pending.cluster, pending.resource, is_head


def uid_of(outcome: Outcome | QueueOutcome) -> str:
    assert not isinstance(outcome, Drained)
    return outcome.record.uid


def message_of(outcome: Outcome | QueueOutcome) -> object:
    """What the gang is told, without the queue, which only a cycle over queues has."""
    assert not isinstance(outcome, Placed)
    assert not isinstance(outcome, Drained | Preempting)
    return replace(outcome.pending, queue="")


POLICIES = st.sampled_from(list(QueueingStrategy))


@settings(max_examples=150)
@given(documents(), POLICIES)
def test_a_cycle_over_the_default_queue_is_the_cycle_without_queues(
    document: Json, policy: QueueingStrategy
) -> None:
    check(document, policy)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@settings(max_examples=5000)
@given(documents(), POLICIES)
def test_many_cycles_over_the_default_queue_are_cycles_without_queues(
    document: Json, policy: QueueingStrategy
) -> None:
    check(document, policy)


STARVED_PAIR = {
    "clusters": [{"name": "east", "nodes": [{"name": "n", "count": 2, "allocatable": {"cpu": 4}}]}],
    "running": [{"name": "r", "cluster": "east", "pods": [{"requests": {"cpu": 2}, "nodes": ["n-0"]}]}],
    "pending": [
        {"name": "fits", "age": 99, "blocked": 700, "demand": {"cpu": 4}},
        {"name": "waits", "age": 98, "blocked": 700, "demand": {"cpu": 3}},
        {"name": "small", "age": 97, "demand": {"cpu": 2}},
    ],
}


def test_only_a_starved_gang_that_waits_keeps_a_cluster() -> None:
    """Without queues, a new reservation may be for a gang that is dispatched at once, and the next gang gets none."""
    world = parse_scenario(STARVED_PAIR)
    assert [type(each).__name__ for each in world.plan()] == ["Placed", "Waiting", "Placed"]
    assert answer_of(replace(world, queues=(Queue("default"),)))["decisions"] == [
        {"dispatch": "fits", "cluster": "east"},
        {"waiting": "waits", "reason": "InsufficientResources"},
        {"waiting": "small", "reason": "ReservedForAnother"},
    ]
