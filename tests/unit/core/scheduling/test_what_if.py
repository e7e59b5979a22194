"""Changes of a world as people write them, and what they are told about a wrong one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.api.selector import parse_selector
from dispatcher.core.model.clusters.nodes import HOSTNAME, Node, NodeRequirements, Taint, Toleration
from dispatcher.core.model.gangs.gang import PodSet
from dispatcher.core.model.quantity import ALLOWED
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.queue import Queue, QueueingStrategy, Quota
from dispatcher.core.scheduling.cycle.outcomes import Impossible, NotEvaluated, Placed, Waiting
from dispatcher.core.scheduling.explain.repair import AddNodes, RemoveTaints, Repair
from dispatcher.core.scheduling.explain.what_if import (
    FORMS,
    MOST_ADDED,
    ChangeError,
    check_cluster,
    parse_change,
    with_quota,
)
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.explain.world_facts import Cluster, NoNode, RunningGang, RunningPods
from dispatcher.core.scheduling.fit.backfill_reservation import Reservation
from dispatcher.core.scheduling.fit.cluster_filters import Closed
from tests.builders import make_core_node, make_gang, make_record

GPU = Resources({"cpu": 8000, "nvidia.com/gpu": 4})
TAINT = Taint("gpu", "", "NoSchedule")
N1 = Node("n1", GPU, taints=(TAINT,), labels={HOSTNAME: "n1", "zone": "a"}, most_pods=9)
DOWN = Node("down", GPU, usable=False, ready=False)
ONE = World((Cluster("east", (N1, DOWN)),))
TWO = World((Cluster("east", (N1, DOWN)), Cluster("west", (Node("n1", GPU), Node("n2", GPU)))))


@pytest.mark.parametrize(
    ("world", "written", "expected"),
    [
        (ONE, "nodes+2:cpu=8", AddNodes("east", 2, Node("", Resources({"cpu": 8000})))),
        (ONE, "east/nodes+2:cpu=8", AddNodes("east", 2, Node("", Resources({"cpu": 8000})))),
        (ONE, f"nodes+{MOST_ADDED}:pods=3", AddNodes("east", MOST_ADDED, Node("", Resources({"pods": 3})))),
        (
            TWO,
            "west/nodes+1:cpu=500m,memory=1Gi,nvidia.com/gpu=1",
            AddNodes("west", 1, Node("", Resources({"cpu": 500, "memory": 2**30, "nvidia.com/gpu": 1}))),
        ),
        (ONE, "nodes+1:cpu=0", AddNodes("east", 1, Node("", Resources()))),
        (
            ONE,
            "nodes+003:like=n1",
            AddNodes("east", 3, Node("", GPU, taints=(TAINT,), labels={"zone": "a"}, most_pods=9)),
        ),
        (ONE, "nodes+1:like=down", AddNodes("east", 1, Node("", GPU))),
        (TWO, "nodes+1:like=n2", AddNodes("west", 1, Node("", GPU))),
        (TWO, "west/nodes+1:like=n1", AddNodes("west", 1, Node("", GPU))),
        (ONE, "untaint:n1", RemoveTaints("east", ("n1",))),
        (TWO, "untaint:down,n1", RemoveTaints("east", ("down", "n1"))),
        (TWO, "west/untaint:n1,n2", RemoveTaints("west", ("n1", "n2"))),
    ],
)
def test_a_text_describes_a_change(world: World, written: str, expected: Repair) -> None:
    assert parse_change(written, world) == expected


BOTH = "the clusters are east, west"


@pytest.mark.parametrize(
    ("world", "written", "message"),
    [
        (TWO, "south/nodes+1:cpu=1", f"there is no cluster 'south': {BOTH}"),
        (World(), "east/nodes+1:cpu=1", "there is no cluster 'east': no cluster is known"),
        (World(), "nodes+1:cpu=1", "no cluster is known"),
        (TWO, "nodes+1:cpu=1", f"say in which cluster, such as east/…: {BOTH}"),
        (TWO, "nodes+1:like=n1", f"say in which cluster, such as east/…: {BOTH}"),
        (TWO, "untaint:n1", f"say in which cluster, such as east/…: {BOTH}"),
        (TWO, "untaint:n9", "no cluster has a node 'n9'"),
        (ONE, "nodes+1:like=n9", "no cluster has a node 'n9'"),
        (TWO, "west/untaint:n2,down", "cluster west has no node 'down'"),
        (ONE, "east/nodes+1:like=n9", "cluster east has no node 'n9'"),
        (ONE, "untaint:n1,", "cluster east has no node ''"),
        (ONE, "nodes+1:like=", "cluster east has no node ''"),
        (ONE, "nodes+0:cpu=1", f"'nodes+0:cpu=1': from 1 to {MOST_ADDED} nodes can be added"),
        (ONE, "nodes+10001:cpu=1", f"'nodes+10001:cpu=1': from 1 to {MOST_ADDED} nodes can be added"),
        (ONE, "nodes+1:cpu=1,cpu=2", "'nodes+1:cpu=1,cpu=2': write each resource once, such as cpu=8"),
        (ONE, "nodes+1:cpu", "'nodes+1:cpu': write each resource once, such as cpu=8"),
        (ONE, "nodes+1:=8", "'nodes+1:=8': write each resource once, such as cpu=8"),
        (ONE, "nodes+1:cpu=1,", "'nodes+1:cpu=1,': write each resource once, such as cpu=8"),
        (ONE, "nodes+1:cpu=8Q", f"'nodes+1:cpu=8Q': cpu: '8Q' is not a quantity; {ALLOWED}"),
        (ONE, "nodes+1:cpu=8=9", f"'nodes+1:cpu=8=9': cpu: '8=9' is not a quantity; {ALLOWED}"),
        (ONE, "nodes+1:cpu=-1", f"'nodes+1:cpu=-1': cpu: '-1' is negative; {ALLOWED}"),
    ],
)
def test_an_invalid_change_is_answered_with_the_valid_forms(world: World, written: str, message: str) -> None:
    with pytest.raises(ChangeError) as wrong:
        parse_change(written, world)
    assert str(wrong.value) == message


@pytest.mark.parametrize(
    "written",
    [
        "",
        "nodes",
        "nodes+:cpu=1",
        "nodes+-1:cpu=1",
        "nodes+1000000:cpu=1",
        "nodes+²:cpu=1",
        "nodes+1:",
        "nodes+1",
        "untaint:",
        "untaint",
        "/untaint:n1",
        "east/west/untaint:n1",
        "Untaint:n1",
        "untaint:n1\nrm -rf",
        "nodes+1:cpu=1\n",
        " nodes+1:cpu=1",
    ],
)
def test_another_text_is_answered_with_the_forms(written: str) -> None:
    with pytest.raises(ChangeError) as wrong:
        parse_change(written, ONE)
    assert str(wrong.value) == f"{written!r} is no change: write {FORMS}"


@pytest.mark.parametrize(
    "written",
    [
        "x" * 10_000,
        "nodes+1:" + "x" * 10_000,
        "nodes+1:cpu=" + "9" * 10_000,
        "x" * 10_000 + "/nodes+1:cpu=1",
        "nodes+1:like=" + "x" * 10_000,
        "untaint:" + "x" * 10_000,
        "east/untaint:" + "x" * 10_000,
        "nodes+1:" + ",".join(f"r{index}=1" for index in range(2000)) + ",r0=1",
    ],
    ids=lambda written: written[:16],
)
def test_a_long_text_is_not_repeated_in_full(written: str) -> None:
    with pytest.raises(ChangeError) as wrong:
        parse_change(written, TWO)
    assert len(str(wrong.value)) < 1000


@given(
    st.text(st.characters(), max_size=30), st.sampled_from(["", "nodes+1:", "nodes+1:like=", "east/untaint:"])
)
def test_any_text_is_a_change_or_an_error_in_one_line(rest: str, begins: str) -> None:
    assert answer_to(begins + rest).isprintable()


def answer_to(written: str) -> str:
    try:
        return repr(parse_change(written, TWO))
    except ChangeError as error:
        return str(error)


def test_a_cluster_must_be_known_to_be_left_out() -> None:
    check_cluster(TWO, "west")
    with pytest.raises(ChangeError, match=f"^there is no cluster 'south': {BOTH}$"):
        check_cluster(TWO, "south")


# --- A scheduling cycle over given facts, and the edits of the facts ---------------------------------------


GPUS = Taint("gpu", "", "NoSchedule")
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
        make_core_node("tainted", GPUS, cpu=9000),
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
    world = world_of(make_core_node("n", GPUS, cpu=1000), running=(runs("a", 3000, "n"),))
    assert nodes_of(world) == {"a/0/0": "n"}


def test_edits_return_another_world() -> None:
    world = world_of(
        make_core_node("n", cpu=1000),
        make_core_node("t", GPUS, cpu=2000),
        running=(runs("r", 1000),),
        pending=(pending("p", 1000),),
    )
    assert decisions(world) == [("p", "InsufficientResources")]
    assert decisions(world.with_nodes("east", [make_core_node("m", cpu=1000)])) == [("p", "east")]
    assert decisions(world.without_gangs({"r"})) == [("p", "east")]
    assert decisions(world.without_taints("east", {"t"})) == [("p", "east")]
    assert [node.taints for node in world.clusters[0].nodes] == [(), (GPUS,)]


def test_nominal_quotas_of_a_queue_are_set() -> None:
    queue = Queue("vision", resources={"cpu": Quota(8000, lending_limit=3000), "nvidia.com/gpu": Quota(4)})
    found = with_quota("vision:cpu=4", replace(ONE, queues=(Queue("speech"), queue)))
    changed = replace(queue, resources={"cpu": Quota(4000, lending_limit=3000), "nvidia.com/gpu": Quota(4)})
    assert found.queues == (Queue("speech"), changed)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("vision", "'vision' is no quota: write QUEUE:RESOURCE=AMOUNT"),
        ("speech:cpu=1", "there is no queue 'speech': the queues are vision"),
        ("vision:memory=1", "'vision:memory=1': queue vision has no quota of memory"),
        ("vision:cpu", "'vision:cpu': write each resource once, such as cpu=8"),
        ("vision:cpu=x", "'vision:cpu=x': cpu: 'x' is not a quantity"),
    ],
)
def test_wrong_quota_is_refused(written: str, problem: str) -> None:
    world = replace(ONE, queues=(Queue("vision", resources={"cpu": Quota(8000)}),))
    with pytest.raises(ChangeError) as caught:
        with_quota(written, world)
    assert str(caught.value).startswith(problem)
