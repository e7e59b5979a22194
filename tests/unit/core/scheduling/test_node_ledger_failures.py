"""An exception while one AppWrapper gets its places takes no place from another one, and is kept to be logged."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dispatcher.core.model.failures import Failure
from dispatcher.core.model.gang import Assignment, Gang, PodSet
from dispatcher.core.model.nodes import Node
from dispatcher.core.model.pods import Pod, PodPhase
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling import node_ledger, placement
from dispatcher.core.scheduling.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.node_room import Room
from dispatcher.core.scheduling.node_traits import Traits
from dispatcher.core.scheduling.placement import Placement, Rest, Unplaceable

TENANT = Resources({"cpu": 3})
HONEST = Resources({"cpu": 4})


def gang_of(requests: Resources) -> Gang:
    return Gang(requests, 1, (PodSet(1, requests),))


@pytest.fixture
def ledger() -> CapacityLedger:
    """Three nodes: the tenant's pod has its place on the first, the honest one's on the second."""
    ledger = CapacityLedger(FitMode.NODE, "hub")
    for name in ("n1", "n2", "n3"):
        ledger.set_node(Node(name, Resources({"cpu": 8})))
    ledger.reserve("tenant", gang_of(TENANT), Assignment(((("n1", 1),),)))
    ledger.reserve("honest", gang_of(HONEST), Assignment(((("n2", 1),),)))
    ledger.snapshot()
    return ledger


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Any placement of the tenant's pod raises these exceptions in turn, the last one again and again."""
    errors: list[Exception] = [RecursionError("too deep")]

    def place(
        pod_sets: Sequence[PodSet], room: Room, traits: Traits, rest: Rest | None = None
    ) -> Placement | Unplaceable:
        if errors and any(each.requests == TENANT for each in pod_sets):
            raise errors[0]
        return placement.place(pod_sets, room, traits, rest)

    monkeypatch.setattr(node_ledger, "place", place)
    return errors


def crowd(ledger: CapacityLedger) -> None:
    """Foreign pods take both planned places, so that both gangs need other ones."""
    ledger.set_pod(Pod("f1", Resources({"cpu": 6}), "n1", PodPhase.RUNNING))
    ledger.set_pod(Pod("f2", Resources({"cpu": 6}), "n2", PodPhase.RUNNING))


def held(ledger: CapacityLedger, uid: str) -> list[str]:
    nodes = ledger.snapshot().nodes
    assert nodes is not None
    return [each.node for each in nodes.uses[uid].held]


def test_others_keep_their_places_and_the_demand_without_a_place_is_charged(
    ledger: CapacityLedger, raised: list[Exception]
) -> None:
    before = ledger.free()
    crowd(ledger)
    for _ in range(3):
        assert held(ledger, "honest") == ["n3"]
        assert held(ledger, "tenant") == []
    assert before - ledger.free() == Resources({"cpu": 12})
    assert ledger.take_failures() == [Failure("tenant", raised[0])]
    assert ledger.take_failures() == []


def test_gang_gets_a_place_once_its_placement_raises_no_more(
    ledger: CapacityLedger, raised: list[Exception]
) -> None:
    crowd(ledger)
    ledger.snapshot()
    raised.clear()
    ledger.set_pod(Pod("f3", Resources({"cpu": 1}), "n3", PodPhase.RUNNING))
    assert held(ledger, "tenant") == ["n3"]


def test_lack_of_memory_is_not_the_fault_of_a_gang_and_the_next_snapshot_settles_again(
    ledger: CapacityLedger, raised: list[Exception]
) -> None:
    raised[:] = [MemoryError()]
    crowd(ledger)
    with pytest.raises(MemoryError):
        ledger.snapshot()
    raised.clear()
    assert held(ledger, "honest") == ["n3"]
    assert held(ledger, "tenant") == ["n3"]
    assert ledger.take_failures() == []
