"""Which queued gangs go where: what fits, what waits, what never fits, and what each is told."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatcher.api.selector import parse_selector
from dispatcher.core.model.clusters.nodes import Node, Taint, Toleration
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.quantity import in_words
from dispatcher.core.model.records.record import Pending, Record
from dispatcher.core.model.records.requirements import ClusterRequirements, Rejection
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.access import are_there
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Access, Queue, QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.cycle.outcomes import (
    SOME_TIME,
    Impossible,
    Outcome,
    Placed,
    Waiting,
)
from dispatcher.core.scheduling.cycle.recheck import Rechecked, still_fitting
from dispatcher.core.scheduling.fit.cluster_filters import Closed, ClusterSnapshot
from dispatcher.core.scheduling.fit.fit import Shortfall
from dispatcher.core.scheduling.fit.refused import ClusterShortfall, rejection_of
from tests.builders import make_core_node, make_gang, make_record, make_snapshot, make_snapshots
from tests.one_queue import OneQueue, plan, rules

GPU_ONLY = Taint("gpu", "", "NoSchedule")
TOLERATED = Toleration("gpu", "Exists")


def queue_of(*gangs: Gang) -> list[Record]:
    return [make_record(name=f"aw-{index}", gang=gang) for index, gang in enumerate(gangs)]


def places(outcomes: Iterable[Outcome]) -> list[str]:
    """The cluster of what is placed, else in a word what became of it."""
    return [each.cluster if isinstance(each, Placed) else type(each).__name__ for each in outcomes]


def test_blog_story_two_gangs_of_two_gpus_on_three_gpus() -> None:
    queue = queue_of(make_gang(2, cpu=3000, gpu=1), make_gang(2, cpu=3000, gpu=1))

    outcomes = plan(queue, make_snapshots(hub=make_snapshot(cpu=24000, gpu=3)))

    waits = Pending(
        "InsufficientResources",
        "cluster hub: nvidia.com/gpu: needs 2, 1 free",
        resource="nvidia.com/gpu",
        cluster="hub",
    )
    assert outcomes == [Placed(queue[0], "hub"), Waiting(queue[1], waits, is_head=True)]


@pytest.mark.parametrize(
    ("gangs", "expected"),
    [
        pytest.param([make_gang(cpu=4000)] * 3, ["hub", "hub", "Waiting"], id="as-many-as-fit-in-one-pass"),
        pytest.param(
            [make_gang(cpu=6000), make_gang(cpu=4000), make_gang(cpu=2000)],
            ["hub", "Waiting", "hub"],
            id="what-does-not-fit-is-passed-by",
        ),
        pytest.param(
            [make_gang(cpu=8001), make_gang(cpu=8000)],
            ["Impossible", "hub"],
            id="what-never-fits-holds-up-nobody",
        ),
        pytest.param([make_gang(2, cpu=4001)], ["Impossible"], id="a-gang-is-never-split"),
        pytest.param([make_gang(cpu=8000), Gang()], ["hub", "hub"], id="who-asks-for-nothing-always-fits"),
        pytest.param([make_gang(fpga=1)], ["Impossible"], id="a-resource-nobody-has"),
        pytest.param([], [], id="an-empty-queue"),
    ],
)
def test_one_cluster_of_eight_cpus(gangs: list[Gang], expected: list[str]) -> None:
    assert places(plan(queue_of(*gangs), make_snapshots(hub=make_snapshot(cpu=8000)))) == expected


@pytest.mark.parametrize(
    ("gangs", "expected"),
    [
        pytest.param([make_gang(2, cpu=4000)], ["Impossible"], id="two-halves-on-two-clusters-are-no-whole"),
        pytest.param([make_gang(cpu=4000)] * 3, ["east", "west", "Waiting"], id="the-next-cluster-is-tried"),
        pytest.param([make_gang(cpu=1000, gpu=1)], ["west"], id="the-cluster-that-has-what-is-asked-for"),
        pytest.param(
            [make_gang(cpu=4000, gpu=1), make_gang(cpu=4000, gpu=1)],
            ["west", "Waiting"],
            id="what-fits-one-cluster-when-empty-waits",
        ),
    ],
)
def test_two_clusters_of_four_cpus(gangs: list[Gang], expected: list[str]) -> None:
    clusters = {"west": make_snapshot(cpu=4000, gpu=1), "east": make_snapshot(cpu=4000)}
    assert places(plan(queue_of(*gangs), make_snapshots(**clusters))) == expected


def test_equal_gangs_are_admitted_in_the_order_of_the_queue() -> None:
    queue = queue_of(*[make_gang(cpu=3000)] * 4)
    placed = [
        each.record.name
        for each in plan(queue, make_snapshots(hub=make_snapshot(cpu=8000)))
        if isinstance(each, Placed)
    ]
    assert placed == ["aw-0", "aw-1"]


def test_without_any_cluster_everything_waits_for_one() -> None:
    (record,) = queue = queue_of(make_gang())
    waits = Pending("NoCluster", "no cluster has reported its capacity yet")
    assert plan(queue, {}) == [Waiting(record, waits, is_head=True)]


def test_only_placed_gangs_are_taken_from_the_snapshot() -> None:
    snapshot = make_snapshot(cpu=8000, gpu=2)
    plan(queue_of(make_gang(2, cpu=1000, gpu=1), make_gang(cpu=9000)), make_snapshots(hub=snapshot))
    assert snapshot.free_for(None) == Resources({"cpu": 6000})


@pytest.mark.parametrize(
    ("gang", "expected"),
    [
        pytest.param(make_gang(cpu=2000), "hub", id="fits-the-open-node"),
        pytest.param(make_gang(cpu=3000), "Impossible", id="the-tainted-node-is-not-for-it"),
        pytest.param(make_gang(1, TOLERATED, cpu=10000), "hub", id="who-tolerates-sees-both"),
    ],
)
def test_gang_sees_only_nodes_whose_taints_it_tolerates(gang: Gang, expected: str) -> None:
    nodes = make_core_node("n1", cpu=2000), make_core_node("n2", GPU_ONLY, cpu=8000)
    assert places(plan(queue_of(gang), make_snapshots(hub=make_snapshot(*nodes)))) == [expected]


def test_debt_of_a_resource_keeps_out_only_gangs_that_request_it() -> None:
    snapshot = make_snapshot(cpu=4000, gpu=1)
    snapshot.take(Gang(Resources({"nvidia.com/gpu": 3})))
    queue = queue_of(make_gang(cpu=1000), make_gang(cpu=1000, gpu=1))

    outcomes = plan(queue, make_snapshots(hub=snapshot))

    waits = Pending(
        "InsufficientResources",
        "cluster hub: nvidia.com/gpu: needs 1, -2 free",
        resource="nvidia.com/gpu",
        cluster="hub",
    )
    assert outcomes == [Placed(queue[0], "hub"), Waiting(queue[1], waits, is_head=True)]


def test_rejection_of_a_gang_larger_than_every_cluster_gives_the_capacity_of_each() -> None:
    (record,) = queue = queue_of(make_gang(2, cpu=5000, memory=2**30))
    clusters = {"west": make_snapshot(cpu=4000, memory=2**34), "east": make_snapshot(cpu=8000, memory=2**34)}
    expected = Pending(
        "LargerThanCluster",
        "east (cpu: needs 10, 8 in all of it), west (cpu: needs 10, 4 in all of it)",
        resource="cpu",
        cluster="east",
        clusters=(
            Rejection("east", "LargerThanCluster", "cpu: needs 10, 8 in all of it", "cpu"),
            Rejection("west", "LargerThanCluster", "cpu: needs 10, 4 in all of it", "cpu"),
        ),
    )
    assert plan(queue, make_snapshots(**clusters)) == [Impossible(record, expected)]


def test_rejection_of_a_gang_larger_than_the_hub_gives_its_capacity() -> None:
    (record,) = queue = queue_of(make_gang(cpu=9000))
    expected = Pending("LargerThanCluster", "cluster hub: cpu: needs 9, 8 in all of it", "cpu", "hub")
    assert plan(queue, make_snapshots(hub=make_snapshot(cpu=8000))) == [Impossible(record, expected)]


def test_pending_gang_names_the_cluster_that_it_would_fit_if_empty() -> None:
    (record,) = queue = queue_of(make_gang(cpu=8000))
    west = make_snapshot(cpu=8000)
    west.take(Gang(Resources({"cpu": 500})))
    expected = Pending(
        "InsufficientResources",
        "west (cpu: needs 8, 7500m free), east (cpu: needs 8, 4 in all of it)",
        resource="cpu",
        cluster="west",
        clusters=(
            Rejection("east", "LargerThanCluster", "cpu: needs 8, 4 in all of it", "cpu"),
            Rejection("west", "InsufficientResources", "cpu: needs 8, 7500m free", "cpu"),
        ),
    )
    snapshots = make_snapshots(east=make_snapshot(cpu=4000), west=west)
    assert plan(queue, snapshots) == [Waiting(record, expected, is_head=True)]


@pytest.mark.parametrize(
    ("demand", "available", "resource", "message"),
    [
        pytest.param(
            {"cpu": 4000, "memory": 16 * 10**9, "nvidia.com/gpu": 2},
            {"cpu": 3000, "memory": 2**30, "nvidia.com/gpu": 0},
            "nvidia.com/gpu",
            "cpu: needs 4, 3 free; memory: needs 16G, 1Gi free; nvidia.com/gpu: needs 2, 0 free",
            id="every-shortfall-is-named-and-the-relatively-worst-is-the-resource",
        ),
        pytest.param(
            {"memory": 2000, "cpu": 2000},
            {"memory": 1000, "cpu": 1000},
            "cpu",
            "cpu: needs 2, 1 free; memory: needs 2000, 1000 free",
            id="of-equal-shortfalls-the-first-by-name",
        ),
    ],
)
def test_explanation(demand: dict[str, int], available: dict[str, int], resource: str, message: str) -> None:
    gang, free = Gang(Resources(demand)), Resources(available)
    short = ClusterShortfall(
        "hub", "InsufficientResources", Shortfall(gang.demand.shortfall(free), available=free)
    )
    said = rejection_of(gang, short)
    assert said == Rejection("hub", "InsufficientResources", message, resource)


@pytest.mark.parametrize(
    ("resource", "amount", "words"),
    [
        ("cpu", 2000, "2"),
        ("cpu", 1500, "1500m"),
        ("cpu", -500, "-500m"),
        ("cpu", 0, "0"),
        ("memory", 16 * 10**9, "16G"),
        ("memory", 61 * 2**30, "61Gi"),
        ("memory", 1536 * 2**20, "1536Mi"),
        ("memory", 500 * 10**6, "500M"),
        ("memory", 4096, "4Ki"),
        ("memory", 5 * 2**30 + 1, "5.0Gi"),
        ("memory", 886241824 * 2**10, "845.1Gi"),
        ("memory", -3 * 2**30, "-3Gi"),
        ("memory", 1000, "1000"),
        ("memory", 0, "0"),
        ("ephemeral-storage", 2**30, "1Gi"),
        ("requests.storage", 2**30, "1Gi"),
        ("hugepages-2Mi", 2**21, "2Mi"),
        ("nvidia.com/gpu", 1500, "1500"),
    ],
)
def test_amounts_are_said_as_people_write_them(resource: str, amount: int, words: str) -> None:
    assert in_words(resource, amount) == words


def test_snapshot_that_was_not_used_stays_as_it_was() -> None:
    snapshot = make_snapshot(cpu=4000)
    copy: CapacitySnapshot = snapshot.copy()
    plan(queue_of(make_gang(cpu=4000)), make_snapshots(hub=copy))
    assert snapshot.free_for(None) == Resources({"cpu": 4000})


@pytest.mark.parametrize(
    ("count", "named"),
    [
        pytest.param(1, "path-0: the devices", id="one"),
        pytest.param(7, "path-0, path-1, path-2, path-3, path-4 and 2 more: the devices", id="many"),
    ],
)
def test_gang_with_uncounted_devices_waits_and_blocks_no_other_gang(count: int, named: str) -> None:
    claims = tuple(f"path-{at}" for at in range(count))
    claiming = make_record(
        name="a", gang=Gang(Resources({"cpu": 1}), 1, (PodSet(1, Resources({"cpu": 1}), claims=claims),))
    )
    other = make_record(name="b", gang=make_gang(cpu=1))
    first, second = plan([claiming, other], make_snapshots(hub=make_snapshot(cpu=4)))
    assert isinstance(first, Impossible)
    assert (first.pending.reason, first.pending.cluster) == ("DeviceClaimsNotCounted", "hub")
    assert first.pending.message.startswith(f"cluster hub: {named}")
    assert isinstance(second, Placed)


FPGA = "example.com/fpga"
IMPLICIT = "deviceclass.resource.kubernetes.io/large-gpu"


@pytest.mark.parametrize("fit", FitMode)
@pytest.mark.parametrize(
    ("resource", "listed", "named", "is_trusted", "reason"),
    [
        pytest.param(FPGA, 0, {FPGA}, False, "DeviceClaimsNotCounted", id="named-by-a-device-class"),
        pytest.param(IMPLICIT, 0, set(), False, "DeviceClaimsNotCounted", id="implicit"),
        pytest.param(FPGA, 0, set(), False, "LargerThanCluster", id="of-no-device-class"),
        pytest.param(FPGA, 1, {FPGA}, False, "", id="on-a-node"),
        pytest.param(FPGA, 0, {FPGA}, True, "", id="trusted"),
        pytest.param(IMPLICIT, 0, set(), True, "", id="implicit-and-trusted"),
        pytest.param(FPGA, 0, set(), True, "LargerThanCluster", id="trusted-and-of-no-device-class"),
    ],
)
def test_devices_of_a_device_class_that_no_node_lists_are_not_counted(
    fit: FitMode, resource: str, listed: int, named: set[str], is_trusted: bool, reason: str
) -> None:
    ledger = CapacityLedger(fit)
    ledger.set_node(Node("n", Resources({"cpu": 4, resource: listed})))
    requests = Resources({"cpu": 1, resource: 1})
    gang = Gang(requests, 1, (PodSet(1, requests, is_trusted=is_trusted),))
    capacity = ledger.snapshot().backed_by(frozenset(named))
    (outcome,) = plan([make_record(gang=gang)], make_snapshots(hub=capacity))
    assert ("" if isinstance(outcome, Placed) else outcome.pending.reason) == reason
    if reason == "DeviceClaimsNotCounted":
        assert isinstance(outcome, Impossible)
        assert outcome.pending.message.startswith(f"cluster hub: {resource}: the devices of resource claims")


def test_device_that_no_node_lists_keeps_a_gang_out_of_one_cluster_only() -> None:
    requests = Resources({FPGA: 1})
    there, not_there = (ledger_of(Node("n", Resources(amounts))) for amounts in ({FPGA: 1}, {"cpu": 1}))
    snapshots = make_snapshots(east=not_there.snapshot().backed_by(frozenset({FPGA})), west=there.snapshot())
    (outcome,) = plan([make_record(gang=Gang(requests, 1, (PodSet(1, requests),)))], snapshots)
    assert isinstance(outcome, Placed)
    assert outcome.cluster == "west"


def ledger_of(node: Node) -> CapacityLedger:
    ledger = CapacityLedger(FitMode.NODE)
    ledger.set_node(node)
    return ledger


NAMED = make_record(name="named", gang=make_gang(cpu=1000), queue="team", more_queues=("context/gold",))
IN_A_TREE = make_record(name="in-a-tree", gang=make_gang(cpu=1000), more_queues=("context/gold",))
PLAIN = make_record(name="plain", gang=make_gang(cpu=1000))
WAITS_FOR = "there is no queue {}: none is declared, and a gang waits for the queue that its label names"


@pytest.mark.parametrize(
    ("record", "access", "awaited"),
    [
        pytest.param(NAMED, Access.SELECTED, "team", id="selected"),
        pytest.param(IN_A_TREE, Access.SELECTED, "context/gold", id="selected-in-a-tree"),
        pytest.param(PLAIN, Access.SELECTED, "", id="selected-without-a-label"),
        pytest.param(NAMED, Access.OPEN, "", id="open"),
        pytest.param(IN_A_TREE, Access.OPEN, "", id="open-in-a-tree"),
    ],
)
def test_gang_awaits_the_queue_that_it_names_where_none_is_declared_unless_queues_are_open(
    record: Record, access: Access, awaited: str
) -> None:
    waits = Pending("QueueNotFound", WAITS_FOR.format(awaited), queue=awaited)
    expected: Outcome = Impossible(record, waits) if awaited else Placed(record, "hub")
    assert plan([record], make_snapshots(hub=make_snapshot(cpu=8000)), access=access) == [expected]
    queue, bound = OneQueue(access=access), timedelta(minutes=10)
    queue.put(record)
    snapshots = make_snapshots(hub=make_snapshot(cpu=8000))
    assert queue.plan(snapshots, QueueingStrategy.BEST_EFFORT_FIFO, bound, SOME_TIME) == [expected]
    assert are_there(record, rules(access=access).forest) is not bool(awaited)


def test_gang_has_its_queues_only_if_all_of_them_are_there() -> None:
    tree = Forest.of((Queue("team"), Queue("context/gold")))
    below = replace(
        Forest.of((Queue("org"),), has_default=False), charged_in={"team": "org", "default": "org"}
    )
    assert [are_there(each, tree) for each in (NAMED, IN_A_TREE, PLAIN)] == [True, True, True]
    assert [are_there(each, below) for each in (NAMED, IN_A_TREE, PLAIN)] == [False] * 3
    assert not are_there(PLAIN, Forest())


# -----------------------------------------------------------------------------------------------------------
# What was placed is asked for again: nothing that no longer fits is committed, and all of it together fits.


SMALL = Placed(make_record(name="small", gang=make_gang(cpu=2000)), "east")
LARGE = Placed(make_record(name="large", gang=make_gang(cpu=6000)), "east")
BERLIN = Placed(
    make_record(name="berlin", requirements=ClusterRequirements(parse_selector("city=berlin", ""))), "east"
)


@pytest.mark.parametrize(
    ("placed", "snapshots", "found"),
    [
        pytest.param(
            [SMALL, LARGE], make_snapshots(east=make_snapshot(cpu=8000)), [SMALL, LARGE], id="all-fit"
        ),
        pytest.param(
            [SMALL, LARGE], make_snapshots(east=make_snapshot(cpu=7000)), [SMALL], id="not-together"
        ),
        pytest.param(
            [LARGE, SMALL], make_snapshots(east=make_snapshot(cpu=5000)), [SMALL], id="one-too-large"
        ),
        pytest.param([SMALL], make_snapshots(west=make_snapshot(cpu=8000)), [], id="cluster-is-gone"),
        pytest.param(
            [SMALL],
            {
                "east": ClusterSnapshot(
                    "east", make_snapshot(cpu=8000), closed=Closed("ClusterCordoned", "new racks")
                )
            },
            [],
            id="cluster-was-closed",
        ),
        pytest.param(
            [BERLIN],
            {"east": ClusterSnapshot("east", make_snapshot(cpu=8000), {"city": "rome"})},
            [],
            id="relabelled",
        ),
        pytest.param(
            [Placed(BERLIN.record, "hub")],
            make_snapshots(hub=make_snapshot(cpu=8000)),
            [Placed(BERLIN.record, "hub")],
            id="hub-alone-is-not-chosen",
        ),
    ],
)
def test_still_fitting(
    placed: list[Placed], snapshots: dict[str, ClusterSnapshot], found: list[Placed]
) -> None:
    assert still_fitting(placed, snapshots) == Rechecked(found, [])
