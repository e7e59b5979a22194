"""The check before a commit: whether room came for a preemptor, within a bound of steps."""

from __future__ import annotations

from dispatcher.core.model import incremental
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Queue
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.recheck import STEPS_OF_ROOM, has_new_room
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.fit.search_budget import QUESTION, steps_so_far
from tests.builders import make_record
from tests.unit.core.scheduling.test_search_budget import gang_of

SIZES = [*[2, 4, 6, 8] * 15, 2]
"""Requests of pods, even amounts, that fill three nodes of an odd amount by their sum and by no placement."""
FOREST = Forest.of((Queue("a"),))


def clusters(number: int, cpu: int) -> tuple[list[CapacityLedger], dict[str, ClusterSnapshot]]:
    """So many clusters of three nodes each."""
    ledgers = [CapacityLedger(FitMode.NODE) for _ in range(number)]
    for ledger in ledgers:
        for name in ("n1", "n2", "n3"):
            ledger.set_node(Node(name, Resources({"cpu": cpu, "memory": 8})))
    return ledgers, taken(ledgers)


def taken(ledgers: list[CapacityLedger]) -> dict[str, ClusterSnapshot]:
    names = (f"cluster-{at:02}" for at in range(len(ledgers)))
    return {name: ClusterSnapshot(name, each.snapshot()) for name, each in zip(names, ledgers, strict=True)}


def test_search_for_new_room_ends_after_a_bound_however_many_clusters_changed() -> None:
    ledgers, before = clusters(20, -(-sum(SIZES) // 3) | 1)
    for ledger in ledgers:
        ledger.set_pod(Pod("small", Resources({"memory": 1}), "n1", PodPhase.RUNNING))
    now = taken(ledgers)
    record = make_record(name="hard", gang=gang_of(*SIZES), queue="a")
    steps_before = steps_so_far(now.values())
    assert not incremental.run(has_new_room(record, FOREST, before, now))
    assert STEPS_OF_ROOM <= steps_so_far(now.values()) - steps_before < STEPS_OF_ROOM + QUESTION


def test_room_that_came_in_any_cluster_is_found() -> None:
    ledgers, before = clusters(20, 4)
    record = make_record(name="plain", gang=gang_of(5, 5), queue="a")
    assert not incremental.run(has_new_room(record, FOREST, before, taken(ledgers)))
    for name in ("n1", "n2"):
        ledgers[-1].set_node(Node(name, Resources({"cpu": 5})))
    assert incremental.run(has_new_room(record, FOREST, before, taken(ledgers)))
