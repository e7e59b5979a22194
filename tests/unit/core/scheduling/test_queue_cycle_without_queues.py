"""Without declared queues there is one queue without limits, and no answer names it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.core.queues.queue import Access, Queue, QueueingStrategy
from dispatcher.core.scheduling.cycle.cycle import Drained, QueueOutcome
from dispatcher.core.scheduling.cycle.outcomes import Placed, Preempting
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.fit.backfill import Backfill, Backfills
from dispatcher.core.scheduling.fit.backfill_reservation import Bounds
from dispatcher.core.scheduling.queued.pending_queue import PendingQueue
from tests import sweeps
from tests.builders import at, make_gang, make_record, make_snapshots
from tests.one_queue import Cycles
from tests.unit.core.scheduling.month import make_cluster
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


@settings(max_examples=sweeps.examples(150))
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


@pytest.mark.parametrize(
    ("access", "queue"),
    [
        pytest.param(Access.OPEN, "anything", id="no-label-counts"),
        pytest.param(Access.SELECTED, "default", id="labels-count"),
    ],
)
def test_debts_are_of_the_queue_in_which_a_gang_waits_and_are_forgotten_once_they_are_over(
    access: Access, queue: str
) -> None:
    """A gang keeps the hub for an hour in vain, so the hub rests for an hour; then one comes that fits."""
    hour, pending = timedelta(hours=1), PendingQueue()
    backfills = Backfills(Backfill(Bounds(kept=hour)))
    cycles = Cycles(pending, backfills, access=access)
    snapshots = make_snapshots(hub=make_cluster(1, 8, foreign=4).snapshot())
    large = make_record(gang=make_gang(cpu=8000), queue=queue, blocked_since=at(-7200))
    pending.put(large)
    for hours in (0, 1):
        cycles.plan(snapshots, QueueingStrategy.BEST_EFFORT_FIFO, hour, at(3600 * hours))
    assert backfills.debts.resting_rooms == {"default": at(7200)}

    pending.remove(large.uid)
    cycles.plan(snapshots, QueueingStrategy.BEST_EFFORT_FIFO, hour, at(3601))
    pending.put(make_record(name="small", queue=queue))
    cycles.plan(snapshots, QueueingStrategy.BEST_EFFORT_FIFO, hour, at(7200))
    assert backfills.debts.resting_rooms == {}
