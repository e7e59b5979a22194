"""A gang of any pod sets gets an answer within stated steps: places, none, or that its search was not decided."""

from __future__ import annotations

import pytest

from dispatcher.core.model.gang import Assignment, Gang, PodSet, Spread
from dispatcher.core.model.nodes import HOSTNAME, Node, NodeRequirements
from dispatcher.core.model.pending_reasons import INSUFFICIENT, LARGER_THAN_CLUSTER, NOT_DECIDED
from dispatcher.core.model.resources import Resources, sum_of
from dispatcher.core.scheduling.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle import Impossible, Placed, Waiting, plan
from dispatcher.core.scheduling.fit import Shortfall, fit
from dispatcher.core.scheduling.placement_bounds import MOST_ORDERED, MOST_STEPS, MOST_STEPS_IN_ALL
from tests.builders import make_record, make_snapshots


def node(at: int, *, cpu: int = 32_000, zone: str = "a") -> Node:
    name = f"n{at:03}"
    return Node(name, Resources({"cpu": cpu, "pods": 110}), labels={HOSTNAME: name, "zone": zone})


def ledger_of(*nodes: Node) -> CapacityLedger:
    ledger = CapacityLedger(FitMode.NODE, "hub")
    for each in nodes:
        ledger.set_node(each)
    return ledger


def gang_of(*pod_sets: PodSet) -> Gang:
    return Gang(sum_of(each.total for each in pod_sets), sum(each.count for each in pod_sets), pod_sets)


def crowd_on_the_last_of(nodes: int) -> Gang:
    """Pods of different sizes that each fit the last node alone but not together, after one that fits any node."""
    last = NodeRequirements(selector=((HOSTNAME, f"n{nodes - 1:03}"),))
    crowd = [PodSet(1, Resources({"cpu": 521 + at}), nodes=last, path=f"jobs/{at}") for at in range(60)]
    return gang_of(PodSet(1, Resources({"cpu": 520}), path="first"), *crowd)


def pairs(pods: int) -> Gang:
    """Pods of different sizes, of which a node with 1 cpu takes two."""
    return gang_of(*(PodSet(1, Resources({"cpu": 334 + at}), path=f"jobs/{at}") for at in range(pods)))


SMALL = [node(at, cpu=1000) for at in range(12)]


@pytest.mark.parametrize("nodes", [12, 18, 24])
def test_search_over_many_pod_sets_and_nodes_ends_without_an_exception(nodes: int) -> None:
    found = fit(crowd_on_the_last_of(nodes), ledger_of(*map(node, range(nodes))).snapshot())
    assert isinstance(found, Shortfall)
    assert found.pod_set is None
    assert found.undecided == 0


def test_search_ends_at_its_bound() -> None:
    found = fit(pairs(25), ledger_of(*SMALL).snapshot())
    assert isinstance(found, Shortfall)
    assert MOST_STEPS <= found.undecided <= MOST_STEPS + MOST_ORDERED


def test_gang_that_was_not_decided_says_so_and_others_are_dispatched() -> None:
    crowd = make_record(name="crowd", gang=pairs(25))
    canary = make_record(name="canary", gang=gang_of(PodSet(1, Resources({"cpu": 1000}))))
    refused, placed = plan([crowd, canary], make_snapshots(hub=ledger_of(*SMALL).snapshot()))
    assert isinstance(placed, Placed)
    assert isinstance(refused, Impossible)
    assert refused.pending.reason == NOT_DECIDED
    words = "cpu: 12 in all of it, at most 1 on one node; not decided within "
    assert refused.pending.message.startswith(f"cluster hub: {words}")
    assert refused.pending.message.endswith(" steps whether all 25 pods have nodes at once")


def test_gang_that_fits_once_others_end_waits_for_room_although_that_was_not_decided_now() -> None:
    ledger = ledger_of(*SMALL)
    assert isinstance(fit(pairs(24), ledger.snapshot()), Assignment)
    ledger.reserve("other", gang_of(PodSet(1, Resources({"cpu": 1000}))))
    (waiting,) = plan([make_record(gang=pairs(24))], make_snapshots(hub=ledger.snapshot()))
    assert isinstance(waiting, Waiting)
    assert waiting.pending.reason == INSUFFICIENT
    assert "not decided within" in waiting.pending.message


def test_gang_that_a_whole_search_refuses_is_told_that_it_does_not_fit() -> None:
    gang = gang_of(PodSet(1, Resources({"cpu": 3})), PodSet(1, Resources({"cpu": 2})))
    ledger = ledger_of(node(0, cpu=4), node(1, cpu=1))
    (refused,) = plan([make_record(gang=gang)], make_snapshots(hub=ledger.snapshot()))
    assert isinstance(refused, Impossible)
    assert refused.pending.reason == LARGER_THAN_CLUSTER
    assert "but not all 2 pods at once" in refused.pending.message


def test_thousand_different_pods_have_places() -> None:
    gang = gang_of(*(PodSet(1, Resources({"cpu": 100 + at}), path=f"pods/{at}") for at in range(1000)))
    nodes = [node(at, cpu=640_000) for at in range(40)]
    assert isinstance(fit(gang, ledger_of(*nodes).snapshot()), Assignment)


def test_each_of_many_sets_that_counts_the_earlier_ones_comes_after_them() -> None:
    spread = [
        PodSet(1, Resources({"cpu": 1}), spread=(Spread("zone", 1, 1, counts=tuple(range(-at, 0))),))
        for at in range(300)
    ]
    nodes = [node(at, zone=f"zone-{at % 3}") for at in range(24)]
    assert isinstance(fit(gang_of(*spread), ledger_of(*nodes).snapshot()), Assignment)


def test_steps_in_all_combinations_of_domains_are_bounded_together() -> None:
    """Each zone has nodes for each pod set alone; in each combination orders fail, and a search is long."""
    nodes = [node(at, cpu=100, zone=f"zone-{at % 70}") for at in range(70 * 6)]
    sizes = [51, 50, 49, 48, 47, 46, 45, 44, 43, 42, 41, 40, 39, 38, 37]
    near = [
        PodSet(1, Resources({"cpu": size}), together=("zone",), near=(("zone", (-at or 1,)),))
        for at, size in enumerate(sizes)
    ]
    found = fit(gang_of(*near), ledger_of(*nodes).snapshot())
    assert isinstance(found, Shortfall)
    assert MOST_STEPS < found.undecided <= MOST_STEPS_IN_ALL + MOST_ORDERED + len(sizes)


def test_pod_set_without_a_domain_ends_the_search_for_combinations() -> None:
    """Sixty sets with two zones each have more combinations than can be looked at before the set that has none."""
    nodes = [node(at, cpu=1000, zone="ab"[at % 2]) for at in range(8)]
    free = [PodSet(1, Resources({"cpu": 1 + at}), together=("zone",)) for at in range(60)]
    torn = PodSet(5, Resources({"cpu": 600}), together=("zone",))
    found = fit(gang_of(*free, torn), ledger_of(*nodes).snapshot())
    assert isinstance(found, Shortfall)
    assert found.undecided == 0
