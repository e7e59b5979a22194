"""A scheduling cycle over given facts, and the edits of the facts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api.selector import parse_selector
from dispatcher.core.model.gang import PodSet
from dispatcher.core.model.nodes import Node, NodeRequirements, Taint, Toleration
from dispatcher.core.model.record import Record
from dispatcher.core.model.requirements import ClusterRequirements
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.backfill_reservation import Reservation
from dispatcher.core.scheduling.cluster_filters import Closed
from dispatcher.core.scheduling.cycle import Impossible, NotEvaluated, Placed, Waiting
from dispatcher.core.scheduling.world import World
from dispatcher.core.scheduling.world_facts import Cluster, NoNode, RunningGang, RunningPods
from tests.builders import make_core_node, make_gang, make_record

GPU = Taint("gpu", "", "NoSchedule")
TOLERATES = Toleration("gpu", "Exists")


def pending(name: str, cpu: int = 1000, age: float = 0, **fields: Any) -> Record:  # noqa: ANN401
    created = World().now - timedelta(seconds=age)
    return make_record(name=name, uid=name, created_at=created, gang=make_gang(cpu=cpu), **fields)


def starved(name: str, cpu: int) -> Record:
    return pending(name, cpu, 900, blocked_since=World().now - timedelta(seconds=600))


def runs(name: str, cpu: int, *nodes: str, count: int = 1, cluster: str = "east") -> RunningGang:
    pods = PodSet(count, Resources({"cpu": cpu}))
    return RunningGang(name, cluster, pods.requests * count, (RunningPods(pods, nodes),))


def world_of(*nodes: Node, **fields: object) -> World:
    return replace(World((Cluster("east", nodes),)), **fields)  # type: ignore[arg-type]


def decisions(world: World) -> list[tuple[str, str]]:
    return [
        (each.record.name, each.cluster if isinstance(each, Placed) else each.pending.reason)
        for each in world.plan()
    ]


def test_gangs_are_decided_by_priority_and_then_by_age_and_arrival() -> None:
    queue = (pending("late"), pending("later"), pending("old", age=9), pending("first", priority=1))
    world = world_of(make_core_node("n", cpu=3000), pending=queue)
    assert decisions(world) == [
        ("first", "east"),
        ("old", "east"),
        ("late", "east"),
        ("later", "InsufficientResources"),
    ]


def test_starved_gangs_are_decided_first_and_their_message_has_no_date() -> None:
    queue = (pending("small", age=999), starved("large", 4000))
    world = world_of(make_core_node("n", cpu=4000), pending=queue, running=(runs("r", 1000),))
    assert decisions(world) == [("large", "InsufficientResources"), ("small", "ReservedForAnother")]
    outcome = world.plan()[0]
    assert isinstance(outcome, Waiting)
    assert outcome.pending.message.endswith("; a backfill reservation keeps capacity for it on east")


@pytest.mark.parametrize(
    ("cluster", "waits", "told"),
    [
        ("east", False, "keeps capacity for it on east"),
        ("", True, "can begin later"),
        ("", False, "can begin later"),
    ],
)
def test_message_says_whether_a_reservation_of_the_leader_keeps_anything(
    cluster: str, told: str, *, waits: bool
) -> None:
    now = World().now
    known = Reservation(cluster, now, now + timedelta(hours=1), now, ("east",), waits=waits)
    world = world_of(
        make_core_node("n", cpu=4000), pending=(starved("large", 4000),), running=(runs("r", 1000),)
    )
    (outcome,) = replace(world, reservations={"large": known}).plan()
    assert not isinstance(outcome, Placed)
    assert outcome.pending.reservation == told


def test_a_strict_queue_stops_at_its_head_and_keeps_its_order() -> None:
    queue = (pending("head", 4000, 1000), starved("starved", 1000))
    world = world_of(make_core_node("n", cpu=4000), pending=queue, running=(runs("r", 1000),))
    outcomes = replace(world, policy=QueueingStrategy.STRICT_FIFO).plan()
    assert [(type(each), each.record.name) for each in outcomes] == [
        (Waiting, "head"),
        (NotEvaluated, "starved"),
    ]


def test_closed_and_not_selected_clusters_take_no_gang() -> None:
    east = Cluster("east", (make_core_node("n", cpu=4000),), closed=Closed("ClusterCordoned", "it is closed"))
    west = replace(east, name="west", closed=None, labels={"gpu": "h100"})
    selects = ClusterRequirements(parse_selector("gpu=a100", ""))
    picky = pending("picky", requirements=selects)
    world = World((east, west), pending=(pending("any"), picky))
    assert decisions(world) == [("any", "west"), ("picky", "ClusterNotSelected")]
    assert isinstance(world.plan()[1], Impossible)
    assert [world.accepts(cluster, picky) for cluster in world.clusters] == [False, False]
    assert [world.accepts(cluster, pending("any")) for cluster in world.clusters] == [False, True]


def test_a_selector_counts_for_nothing_where_the_hub_is_alone() -> None:
    hub = Cluster("hub", (make_core_node("n", cpu=1000),))
    picky = pending("picky", requirements=ClusterRequirements(parse_selector("gpu=a100", "")))
    world = World((hub,), pending=(picky,))
    assert decisions(world) == [("picky", "hub")]
    assert world.accepts(hub, picky)


def test_reserves_and_declared_amounts_beyond_the_pods_are_not_free() -> None:
    node = make_core_node("n", cpu=4000)
    world = world_of(node, pending=(pending("p", 2000),))
    declares = replace(runs("r", 1000, "n"), demand=Resources({"cpu": 3000}))
    assert decisions(world) == [("p", "east")]
    assert decisions(replace(world, running=(declares,))) == [("p", "InsufficientResources")]
    reserves = replace(world, clusters=(Cluster("east", (node,), reserve=Resources({"cpu": 3000})),))
    assert decisions(reserves) == [("p", "LargerThanCluster")]


def nodes_of(world: World) -> dict[str, str]:
    return {pod.uid: pod.node for pod in world.bound_pods()["east"]}


def test_pods_without_nodes_are_bound_to_the_first_node_that_takes_them() -> None:
    nodes = (
        make_core_node("tainted", GPU, cpu=9000),
        replace(make_core_node("labelled", cpu=2000), labels={"zone": "a"}),
        make_core_node("full", cpu=9000, pods=1),
        make_core_node("last", cpu=3000),
    )
    in_zone = PodSet(1, Resources({"cpu": 500}), nodes=NodeRequirements((("zone", "a"),)))
    tolerant = PodSet(1, Resources({"cpu": 500}), (TOLERATES,))
    gangs = (
        runs("a", 1500, count=3),
        RunningGang("b", "east", Resources(), (RunningPods(in_zone), RunningPods(tolerant))),
        runs("c", 100, "full"),
    )
    assert nodes_of(world_of(*nodes, running=gangs)) == {
        "a/0/0": "labelled",
        "a/0/1": "last",
        "a/0/2": "last",
        "b/0/0": "labelled",
        "b/1/0": "tainted",
        "c/0/0": "full",
    }


def test_a_pod_that_no_node_takes_is_named() -> None:
    world = world_of(make_core_node("n", cpu=2000), running=(runs("a", 1000), runs("b", 1500)))
    with pytest.raises(NoNode) as raised:
        world.plan()
    assert (raised.value.gang, raised.value.pod_set) == (1, 0)


def test_named_nodes_are_taken_at_their_word() -> None:
    world = world_of(make_core_node("n", GPU, cpu=1000), running=(runs("a", 3000, "n"),))
    assert nodes_of(world) == {"a/0/0": "n"}


def test_edits_return_another_world() -> None:
    world = world_of(
        make_core_node("n", cpu=1000),
        make_core_node("t", GPU, cpu=2000),
        running=(runs("r", 1000),),
        pending=(pending("p", 1000),),
    )
    assert decisions(world) == [("p", "InsufficientResources")]
    assert decisions(world.with_nodes("east", [make_core_node("m", cpu=1000)])) == [("p", "east")]
    assert decisions(world.without_gangs({"r"})) == [("p", "east")]
    assert decisions(world.without_taints("east", {"t"})) == [("p", "east")]
    assert [node.taints for node in world.clusters[0].nodes] == [(), (GPU,)]
