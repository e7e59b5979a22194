"""The sentences about a gang that has no nodes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.core.lifecycle.approvals import pending_without
from dispatcher.core.model.clusters.nodes import Node, NodeRequirements, Taint
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet, Spread
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.queues import ordering
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.capacity.node_snapshot import Place
from dispatcher.core.scheduling.cycle.outcomes import Impossible, NotEvaluated, Placed, Waiting
from dispatcher.core.scheduling.explain.advice import NO_ADVICE, Advice, advise, advise_one
from dispatcher.core.scheduling.explain.explanation import Explanation, explain, has_position
from dispatcher.core.scheduling.explain.repair import AddNodes, RemoveGangs, RemoveTaints
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.explain.world_facts import Cluster, NoNode, RunningGang, RunningPods
from tests.builders import make_core_node, make_gang, make_record, make_snapshots
from tests.one_queue import plan
from tests.unit.core.scheduling.scenarios import documents

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


TYPO, FPGA = "nvidia.com/gpus", "example.com/fpga"


@pytest.mark.parametrize("fit", FitMode)
@pytest.mark.parametrize(
    ("nodes", "demand", "told"),
    [
        pytest.param(FOUR, {TYPO: 2}, f"no node has {TYPO}; did you mean {GPU}?", id="typing-error"),
        pytest.param(FOUR, {FPGA: 2}, f"no node has {FPGA}", id="nothing-similar"),
        pytest.param(
            FOUR,
            {TYPO: 2, FPGA: 1},
            f"no node has {FPGA}; no node has {TYPO}; did you mean {GPU}?",
            id="several",
        ),
        pytest.param(FOUR, {GPU: 33}, "", id="too-few-of-a-resource-that-nodes-have"),
        pytest.param((Node("n", Resources({GPU: 0})),), {GPU: 1}, "", id="nodes-list-it-and-have-none"),
        pytest.param((), {GPU: 1}, "", id="no-nodes-at-all"),
    ],
)
def test_message_names_the_resource_that_no_node_has(
    fit: FitMode, nodes: tuple[Node, ...], demand: dict[str, int], told: str
) -> None:
    ledger = CapacityLedger(fit)
    for node in nodes:
        ledger.set_node(node)
    (outcome,) = plan([make_record(gang=Gang(Resources(demand)))], make_snapshots(hub=ledger.snapshot()))
    assert not isinstance(outcome, Placed)
    short = "; ".join(
        f"{name}: needs {demand[name]}, {32 * (name == GPU and nodes == FOUR)} in all of it"
        for name in sorted(demand)
    )
    if fit is FitMode.AGGREGATE:
        told = told.replace("no node", "no usable node")
    assert outcome.pending.reason == "LargerThanCluster"
    assert outcome.pending.message == "; ".join(filter(None, (f"cluster hub: {short}", told)))


def test_resource_that_only_a_closed_node_lists_is_one_that_a_node_has() -> None:
    ledger = CapacityLedger(FitMode.NODE)
    for node in (*CORDONED, Node("plain", Resources({"cpu": 8000}))):
        ledger.set_node(node)
    (outcome,) = plan([make_record(gang=Gang(Resources({GPU: 1})))], make_snapshots(hub=ledger.snapshot()))
    assert not isinstance(outcome, Placed)
    message = f"cluster hub: {GPU}: needs 1, 0 in all of it; 1 of 2 nodes excluded: 1 cordoned"
    assert outcome.pending.message == message


def test_sums_do_not_compare_the_number_of_pods_on_a_node() -> None:
    ledger = CapacityLedger(FitMode.AGGREGATE)
    for node in places(0):
        ledger.set_node(node)
    record = make_record(gang=Gang(Resources({GPU: 1}), 1, (gpus(1, 1),)))
    (outcome,) = plan([record], make_snapshots(hub=ledger.snapshot()))
    assert isinstance(outcome, Placed)


# --- The explanation of one gang: its decision, its position, and repairs each of which lets it go ---------


NODE = make_core_node("n", cpu=4000)
CUT_SHORT = "the search for repairs was cut short, because the scenario is large"


def pending(name: str, cpu: int = 1000, age: float = 0, **fields: Any) -> Record:  # noqa: ANN401
    created = World().now - timedelta(seconds=age)
    return make_record(name=name, uid=name, created_at=created, gang=make_gang(cpu=cpu), **fields)


def runs(name: str, cpu: int, node: str = "n") -> RunningGang:
    """A gang of one pod, which is bound."""
    gang = make_gang(cpu=cpu)
    pods = tuple(map(RunningPods, gang.pod_sets))
    return RunningGang(name, "east", gang.demand, pods, bound=(Place(node, gang.demand, 1),))


def world_of(*queue: Record, nodes: tuple[Node, ...] = (NODE,), **fields: Any) -> World:  # noqa: ANN401
    return World((Cluster("east", nodes),), pending=queue, **fields)


def names(records: tuple[Record, ...]) -> list[str]:
    return [each.name for each in records]


# --- decision and position ----------------------------------------------------------------------------------


QUEUE = (
    pending("young", age=1),
    pending("old", age=9),
    pending("urgent", priority=5),
    pending("rising", age=8, priority_slope=0.5),
    pending("same"),
    pending("later", eligible_at=World().now + timedelta(seconds=1)),
)


@pytest.mark.parametrize(
    ("uid", "ahead", "behind"),
    [
        ("urgent", [], ["rising", "old", "young", "same"]),
        ("rising", ["urgent"], ["old", "young", "same"]),
        ("young", ["urgent", "rising", "old"], ["same"]),
        ("same", ["urgent", "rising", "old", "young"], []),
    ],
)
def test_the_position_follows_priority_and_age(uid: str, ahead: list[str], behind: list[str]) -> None:
    found = explain(world_of(*QUEUE), uid)
    assert (names(found.ahead), names(found.behind)) == (ahead, behind)
    assert (found.position, found.eligible_at) == (len(ahead) + 1, None)


def test_a_starved_gang_is_decided_first_and_keeps_its_position() -> None:
    starved = pending("starved", 4000, blocked_since=World().now - timedelta(minutes=10))
    found = explain(world_of(pending("old", age=9), starved, running=(runs("r", 1000),)), "starved")
    assert (names(found.ahead), found.position) == (["old"], 2)


def test_a_gang_that_is_not_eligible_yet_has_a_time_and_no_position() -> None:
    found = explain(world_of(*QUEUE), "later")
    assert found == Explanation(QUEUE[-1])
    assert (found.position, found.eligible_at) == (None, World().now + timedelta(seconds=1))


def test_gang_that_lacks_approvals_has_no_position_and_no_other_counts_it() -> None:
    lacks = pending_without(["budget"])
    world = world_of(
        pending("gated", age=9, pending=lacks), pending("large", 8000, age=5), pending("small", 4000)
    )
    found = explain(world, "gated")
    assert (found.outcome, found.awaited, found.position, found.eligible_at) == (None, lacks, None, None)
    small = explain(world, "small")
    assert (type(small.outcome), small.position, names(small.ahead)) == (Placed, 1, [])


def test_a_gang_that_is_too_large_has_no_position_and_no_other_counts_it() -> None:
    world = world_of(pending("large", 5000, age=9), pending("p", 4000), running=(runs("r", 1000),))
    large, small = explain(world, "large"), explain(world, "p")
    assert (large.position, large.ahead, large.behind, large.eligible_at) == (None, (), (), None)
    assert (small.position, small.ahead, small.behind) == (1, (), ())


def test_a_gang_that_fits_is_placed_and_needs_no_advice() -> None:
    record = pending("p")
    expected = Placed(record, "east", assignment=Assignment(((("n", 1),),)))
    assert explain(world_of(record), "p") == Explanation(record, expected)


def test_a_gang_that_waits_has_holders_and_repairs() -> None:
    tainted = replace(NODE, name="t", taints=(Taint("team", "", "NoSchedule"),))
    world = world_of(
        pending("p", 3000), nodes=(NODE, tainted), running=(runs("small", 1000), runs("r", 1500))
    )
    found = explain(world, "p")
    assert isinstance(found.outcome, Waiting)
    shape = Node("", NODE.allocatable)
    assert found.advice == Advice(
        ("r",), (RemoveTaints("east", ("t",)), AddNodes("east", 1, shape), RemoveGangs(("r",)))
    )


def test_a_gang_that_fits_no_empty_cluster_is_impossible_and_nodes_help() -> None:
    found = explain(world_of(pending("p", 5000), running=(runs("r", 1000),)), "p")
    assert isinstance(found.outcome, Impossible)
    assert found.advice == Advice((), (AddNodes("east", 1, Node("", Resources({"cpu": 5000}))),))


def test_gang_behind_the_head_of_a_strict_queue_is_not_evaluated_and_starts_with_it() -> None:
    queue = (pending("head", 4000, 9), pending("small", 1000))
    world = world_of(*queue, running=(runs("r", 1000),), policy=QueueingStrategy.STRICT_FIFO)
    found = explain(world, "small")
    assert isinstance(found.outcome, NotEvaluated)
    assert (names(found.ahead), found.advice) == (
        ["head"],
        Advice((), (AddNodes("east", 1, Node("", NODE.allocatable)),)),
    )


def test_pods_on_nodes_that_are_gone_hold_nothing() -> None:
    """The watch of nodes is ahead of that of pods: an explanation must not fail meanwhile."""
    running = (runs("gone", 4000, "no-more"), runs("r", 4000))
    assert explain(world_of(pending("p"), running=running), "p").advice.holders == ("r",)


def test_where_the_search_is_cut_short_the_advice_says_so() -> None:
    found = explain(world_of(pending("p", 4000), running=(runs("r", 1000),)), "p", most_work=1)
    assert found.advice == Advice(message=CUT_SHORT)


def test_the_least_priority_that_dispatches_a_gang_is_named() -> None:
    world = world_of(pending("a", 3000, 9), pending("b", 3000, 5, priority=7), pending("p", 2000))
    assert explain(world, "p").priority == 8
    assert (explain(world, "p", ceiling=8).priority, explain(world, "p", ceiling=7).priority) == (8, None)
    assert explain(world, "a").priority == 7  # of equal ones the older goes first
    assert explain(world, "b").priority is None


# --- whatever the world -------------------------------------------------------------------------------------


WORLDS = st.builds(
    lambda document, policy, fit: replace(parse_scenario(document), policy=policy, fit=fit),
    documents(),
    st.sampled_from(QueueingStrategy),
    st.sampled_from(FitMode),
)


@settings(max_examples=60)
@given(WORLDS)
def test_the_advice_for_one_gang_is_that_for_all(world: World) -> None:
    outcomes = world.plan()
    together = advise(world, outcomes)
    alone = {
        each.record.uid: advise_one(world, outcomes, each.record.uid)
        for each in outcomes
        if not isinstance(each, Placed)
    }
    assert alone == together


@settings(max_examples=60)
@given(WORLDS)
def test_each_explanation_is_the_decision_and_its_advice_that_for_the_gang(world: World) -> None:
    check(world)


def check(world: World) -> None:
    outcomes = {each.record.uid: each for each in world.plan()}
    queue = ordering.in_order(world.pending, world.now)
    counted = [each for each in queue if has_position(outcomes[each.uid])]
    for record in queue:
        found = explain(world, record.uid)
        assert found.outcome == outcomes[record.uid]
        assert found.position == (counted.index(record) + 1 if record in counted else None)
        assert [*found.ahead, *([record] if record in counted else []), *found.behind] == (
            counted if record in counted else []
        )
        if not isinstance(found.outcome, Placed):
            assert found.advice == advise_one(world, world.plan(), record.uid)
        if found.priority is not None:
            assert goes(world.with_priority(record.uid, found.priority), record.uid)
            assert not goes(world.with_priority(record.uid, found.priority - 1), record.uid)
        if isinstance(found.outcome, Placed):
            assert (found.advice, found.priority) == (NO_ADVICE, None)


def goes(world: World, uid: str) -> bool:
    try:
        return any(isinstance(each, Placed) and each.record.uid == uid for each in world.plan())
    except NoNode:
        return False
