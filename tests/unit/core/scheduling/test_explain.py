"""The sentences about a gang that has no nodes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dispatcher.core.model.gang import Gang, PodSet, Spread
from dispatcher.core.model.nodes import Node, NodeRequirements, Taint
from dispatcher.core.model.pods import Pod, PodPhase
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle import Placed, plan
from tests.builders import make_record, make_snapshots

GPU = "nvidia.com/gpu"
FOUR = tuple(Node(f"n{at}", Resources({GPU: 8})) for at in range(4))
TAINTED = tuple(replace(node, taints=(Taint("team", "a", "NoSchedule"),)) for node in FOUR[:2])
CORDONED = (replace(FOUR[3], usable=False),)
DOWN = (replace(FOUR[2], usable=False, ready=False),)
ZONED = tuple(replace(node, labels={"zone": "abbb"[at]}) for at, node in enumerate(FOUR))
BY_ZONE = (Spread("zone"),)
RACK = NodeRequirements((("rack", "none"),))


def gpus(count: int, each: int, **fields: object) -> PodSet:
    return PodSet(count, Resources({GPU: each}), **fields)  # type: ignore[arg-type]


def places(most_pods: int) -> tuple[Node, ...]:
    """The four nodes, each with places for so many pods."""
    return tuple(replace(node, most_pods=most_pods) for node in FOUR)


@pytest.mark.parametrize(
    ("nodes", "pod_sets", "reason", "message"),
    [
        pytest.param(
            FOUR,
            (gpus(1, 4),),
            "InsufficientResources",
            f"{GPU}: 8 free, at most 2 on one node, and the pod requests 4",
            id="one-pod",
        ),
        pytest.param(
            FOUR,
            (gpus(2, 3),),
            "InsufficientResources",
            f"{GPU}: 8 free, at most 2 on one node, and each of 2 pods requests 3: 0 of them have a node",
            id="pods",
        ),
        pytest.param(
            FOUR,
            (gpus(1, 9),),
            "LargerThanCluster",
            f"{GPU}: 32 in all of it, at most 8 on one node, and the pod requests 9",
            id="never",
        ),
        pytest.param(
            (*TAINTED, *FOUR[2:]),
            (gpus(3, 2),),
            "InsufficientResources",
            f"{GPU}: needs 6, 4 free; 2 of 4 nodes excluded: 2 with taint team=a not tolerated",
            id="taints",
        ),
        pytest.param(
            (*TAINTED, *DOWN, *CORDONED),
            (gpus(1, 1),),
            "LargerThanCluster",
            f"{GPU}: needs 1, 0 in all of it; 4 of 4 nodes excluded: 2 with taint team=a not tolerated, "
            "1 cordoned, 1 not ready",
            id="every-node-is-excluded",
        ),
        pytest.param(
            FOUR,
            (gpus(1, 1), gpus(1, 1, nodes=RACK, path="spec.template")),
            "LargerThanCluster",
            "no node takes the pod of spec.template; 4 of 4 nodes excluded: 4 not selected by its pods",
            id="no-node-is-selected",
        ),
        pytest.param(
            FOUR[:2],
            (gpus(2, 5), gpus(1, 4)),
            "LargerThanCluster",
            f"{GPU}: 16 in all of it, at most 8 on one node; the pods of each pod set have nodes, but not all 3 pods "
            "at once",
            id="not-all-at-once",
        ),
        pytest.param(
            ZONED,
            (gpus(6, 1, spread=BY_ZONE),),
            "InsufficientResources",
            f"{GPU}: 8 free, at most 2 on one node, and each of 6 pods requests 1: 5 of them have a node, "
            "spread over zone with a skew of at most 1",
            id="spread",
        ),
        pytest.param(
            ZONED,
            (gpus(6, 3, spread=BY_ZONE),),
            "LargerThanCluster",
            f"{GPU}: 32 in all of it, at most 8 on one node, and each of 6 pods requests 3: 5 of them have a node, "
            "spread over zone with a skew of at most 1",
            id="spread-for-ever",
        ),
        pytest.param(
            ZONED,
            (gpus(2, 3, spread=BY_ZONE),),
            "InsufficientResources",
            f"{GPU}: 8 free, at most 2 on one node, and each of 2 pods requests 3: 0 of them have a node",
            id="requests-and-not-the-spread",
        ),
        pytest.param(
            FOUR,
            (gpus(1, 1, spread=(Spread("zone", 2, 3),)),),
            "LargerThanCluster",
            f"{GPU}: 32 in all of it, at most 8 on one node, and the pod requests 1, "
            "spread over zone with a skew of at most 2 and at least 3 domains",
            id="no-node-has-the-label-of-the-spread",
        ),
        pytest.param(
            places(1),
            (gpus(1, 1),),
            "InsufficientResources",
            "pods: 0 free on nodes with its other requests, at most 0 on one node, and the pod requests 1",
            id="no-place-for-a-pod",
        ),
        pytest.param(
            places(2),
            (gpus(5, 1),),
            "InsufficientResources",
            "pods: 4 free on nodes with its other requests, at most 1 on one node, and each of 5 pods requests 1: "
            "4 of them have a node",
            id="too-few-places",
        ),
        pytest.param(
            places(2),
            (gpus(2, 4),),
            "InsufficientResources",
            f"{GPU}: 8 free, at most 2 on one node, and each of 2 pods requests 4: 0 of them have a node",
            id="places-on-nodes-without-the-resource",
        ),
        pytest.param(
            (*places(1), Node("n4", Resources({GPU: 6}))),
            (gpus(1, 1),),
            "InsufficientResources",
            "pods: 0 free on nodes with its other requests, at most 0 on one node, and the pod requests 1",
            id="places-only-on-a-node-without-the-resource",
        ),
        pytest.param(
            (*places(1)[:1], Node("n4", Resources({GPU: 9}))),
            (gpus(2, 2),),
            "InsufficientResources",
            "pods: 1 free on nodes with its other requests, at most 1 on one node, and each of 2 pods requests 1: "
            "1 of them have a node",
            id="places-that-the-resources-of-their-node-do-not-allow",
        ),
        pytest.param(
            places(0),
            (gpus(1, 1),),
            "LargerThanCluster",
            "pods: 0 in all of it on nodes with its other requests, at most 0 on one node, and the pod requests 1",
            id="never-a-place",
        ),
        pytest.param(
            places(3)[:1],
            (gpus(1, 1), PodSet(2, NOTHING)),
            "InsufficientResources",
            "pods: 2 free, at most 2 on one node; the pods of each pod set have nodes, but not all 3 pods at once",
            id="too-few-places-for-all-pod-sets",
        ),
    ],
)
def test_message_of_a_gang_whose_pods_have_no_nodes(
    nodes: tuple[Node, ...], pod_sets: tuple[PodSet, ...], reason: str, message: str
) -> None:
    ledger = CapacityLedger(FitMode.NODE)
    for node in nodes:
        ledger.set_node(node)
        ledger.set_pod(Pod(f"on-{node.name}", Resources({GPU: 6}), node.name, PodPhase.RUNNING))
    demand = sum((each.requests * each.count for each in pod_sets), start=NOTHING)
    record = make_record(gang=Gang(demand, 0, pod_sets))
    (outcome,) = plan([record], make_snapshots(hub=ledger.snapshot()))
    assert not isinstance(outcome, Placed)
    assert (outcome.pending.reason, outcome.pending.message) == (reason, f"cluster hub: {message}")


@pytest.mark.parametrize(
    ("reserve", "message"),
    [
        pytest.param(9, "0 in all of it (of 8, 9 are the reserve of the cluster)", id="more-than-all"),
        pytest.param(6, "2 in all of it (of 8, 6 are the reserve of the cluster)", id="a-part"),
    ],
)
def test_message_names_the_reserve_that_leaves_too_little(reserve: int, message: str) -> None:
    ledger = CapacityLedger(FitMode.NODE)
    ledger.set_node(FOUR[0])
    capacity = ledger.snapshot().without(Resources({GPU: reserve}))
    (outcome,) = plan([make_record(gang=Gang(Resources({GPU: 3})))], make_snapshots(hub=capacity))
    assert not isinstance(outcome, Placed)
    assert outcome.pending.message == f"cluster hub: {GPU}: needs 3, {message}"


def test_sums_do_not_compare_the_number_of_pods_on_a_node() -> None:
    ledger = CapacityLedger(FitMode.AGGREGATE)
    for node in places(0):
        ledger.set_node(node)
    record = make_record(gang=Gang(Resources({GPU: 1}), 1, (gpus(1, 1),)))
    (outcome,) = plan([record], make_snapshots(hub=ledger.snapshot()))
    assert isinstance(outcome, Placed)
