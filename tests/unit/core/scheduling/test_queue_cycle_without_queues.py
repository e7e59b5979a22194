"""Without declared queues there is one queue without limits, and no answer names it."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.core.queues.queue import Queue, QueueingStrategy
from dispatcher.core.scheduling.cycle.outcomes import Placed, Preempting
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.sharing.cycle import Drained, QueueOutcome
from tests.unit.core.scheduling.queue_answers import answer_of
from tests.unit.core.scheduling.scenarios import documents

Json = dict[str, Any]


def without_queue(outcome: QueueOutcome, queue: str) -> QueueOutcome:
    """The outcome without the queue, which must be this one."""
    assert not isinstance(outcome, Drained | Preempting)
    if isinstance(outcome, Placed):
        return outcome
    assert outcome.pending.queue == queue
    return replace(outcome, pending=replace(outcome.pending, queue=""))


def decisions(world: World, queue: str) -> dict[str, QueueOutcome]:
    """The outcomes by uid, without the queue that they name."""
    _, outcomes = world.plan_queues()
    found = [without_queue(each, queue) for each in outcomes]
    return {each.record.uid: each for each in found if not isinstance(each, Drained)}


@settings(max_examples=150)
@given(documents(), st.sampled_from(list(QueueingStrategy)))
def test_hub_without_queues_decides_as_one_with_a_queue_without_limits(
    document: Json, policy: QueueingStrategy
) -> None:
    world = replace(parse_scenario(document), policy=policy)
    assert decisions(world, "") == decisions(replace(world, queues=(Queue("default"),)), "default")


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
    assert answer_of(parse_scenario(STARVED_PAIR))["decisions"] == [
        {"dispatch": "fits", "cluster": "east"},
        {"waiting": "waits", "reason": "InsufficientResources"},
        {"waiting": "small", "reason": "ReservedForAnother"},
    ]
