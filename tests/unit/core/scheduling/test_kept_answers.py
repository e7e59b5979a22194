"""Answers of clusters that are kept while no gang like the one asked about is queued: they change no decision."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from random import Random

import pytest

from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet
from dispatcher.core.model.incremental import run
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.forest import Forest
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.isolation import copies_of
from dispatcher.core.scheduling.cycle.outcomes import Placed
from dispatcher.core.scheduling.cycle.queue_planner import QueuePlanner, QueueRules
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.queued.pending_queue import Changes
from tests.builders import NOW, make_record

RULES = QueueRules(Forest.undeclared())
STEPS = 150


def gang(count: int, gpus: int) -> Gang:
    """So many pods of so many GPUs."""
    pods = PodSet(count, Resources({"nvidia.com/gpu": gpus}))
    return Gang(pods.total, count, (pods,))


SHAPES = [gang(1, 1), gang(1, 2), gang(3, 2), gang(1, 4), gang(2, 4), gang(5, 1)]


def placed(
    planner: QueuePlanner, changes: Changes, snapshots: Mapping[str, ClusterSnapshot], step: int
) -> list[tuple[str, str, Assignment]]:
    """The gangs that a cycle places, each with its cluster and its nodes."""
    now = NOW + timedelta(seconds=step)
    news = run(planner.news_in_steps(changes, RULES, [], copies_of(snapshots), now))
    return [(each.record.uid, each.cluster, each.assignment) for each in news if isinstance(each, Placed)]


@pytest.mark.parametrize("seed", range(8))
def test_gang_that_arrives_at_an_empty_queue_goes_where_a_new_planner_sends_it(seed: int) -> None:
    random, planner = Random(seed), QueuePlanner()  # noqa: S311  # worlds, not secrets
    ledgers = {name: CapacityLedger(FitMode.NODE, name) for name in ("east", "north", "west")}
    for ledger in ledgers.values():
        for index in range(3):
            ledger.set_node(Node(f"node-{index}", Resources({"nvidia.com/gpu": 4, "cpu": 8000})))
    running: list[tuple[str, str]] = []
    changes: dict[str, Record | None] = {}
    for step in range(STEPS):
        while running and random.random() < 0.4:
            cluster, uid = running.pop(random.randrange(len(running)))
            ledgers[cluster].release(uid)
        record = make_record(uid=f"g{step}", gang=random.choice(SHAPES))
        snapshots = {name: ClusterSnapshot(name, ledger.snapshot()) for name, ledger in ledgers.items()}
        changes[record.uid] = record
        found = placed(planner, Changes(changes, are_all=not step), snapshots, step)
        assert found == placed(QueuePlanner(), Changes({record.uid: record}, are_all=True), snapshots, step)
        changes = {record.uid: None}
        for uid, cluster, assignment in found:
            ledgers[cluster].reserve(uid, record.gang, assignment)
            running.append((cluster, uid))
    assert running
