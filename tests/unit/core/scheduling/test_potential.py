"""Pools that grow for pending pods: which gangs fit with their potential nodes, and where their places go."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from dispatcher.api.clusters.potential import NodePool, OnPotential, PotentialNodes
from dispatcher.core.model.clusters.nodes import HOSTNAME, Node, Taint, Toleration
from dispatcher.core.model.clusters.potential import MOST_NODES, PotentialPool, Trust, in_words, pools_of
from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment, Gang, PodSet, Spread
from dispatcher.core.model.gangs.pod_terms import PodSort
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.quantity import QuantityError
from dispatcher.core.model.records.pending_reasons import INSUFFICIENT, LARGER_THAN_CLUSTER, NEEDS_POTENTIAL
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.cycle.outcomes import Impossible, Outcome, Placed, Waiting
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.fit.fit import Shortfall, fit, fit_in_both, fits, shortfall_in_empty
from tests.builders import NOW, make_record
from tests.one_queue import OneQueue, plan

GPU = "nvidia.com/gpu"
LABELS = {"pool": "l4"}
TAINT = Taint("gpu", "", "NoSchedule")
SHAPE = Node("", Resources({"cpu": 8000, GPU: 8}), labels=LABELS)
L4 = PotentialPool("l4", SHAPE, 10)
CPU = PotentialPool("cpu", Node("", Resources({"cpu": 4000}), labels={"pool": "cpu"}), 10)
LATER = datetime(2026, 11, 23, 12, tzinfo=UTC)


def gang(pods: int = 1, gpus: int = 8, cpu: int = 1000, **fields: object) -> Gang:
    requests = Resources({"cpu": cpu} | ({GPU: gpus} if gpus else {}))
    return Gang(requests * pods, pods, (PodSet(pods, requests, **fields),))  # type: ignore[arg-type]


def ledger(*pools: PotentialPool, nodes: int = 0) -> CapacityLedger:
    """A cluster with nodes of the pool l4."""
    found = CapacityLedger(FitMode.NODE)
    found.set_pools(pools)
    for number in range(nodes):
        found.set_node(real(number))
    return found


def real(number: int, *, usable: bool = True) -> Node:
    name = f"n{number}"
    return Node(name, SHAPE.allocatable, labels={**LABELS, HOSTNAME: name}, usable=usable, ready=usable)


def held(there: CapacityLedger, uid: str) -> dict[str, int]:
    """The pods of a gang that hold places, by node."""
    nodes = there.snapshot().nodes
    assert nodes is not None
    return {place.node: place.pods for place in nodes.uses[uid].held}


def assigned(wanted: Gang, there: CapacitySnapshot) -> Assignment:
    found = fit(wanted, there)
    assert isinstance(found, Assignment)
    return found


@pytest.mark.parametrize(
    ("wanted", "nodes", "trusted"),
    [
        pytest.param(gang(2), 2, (), id="nodes-that-are-there-suffice"),
        pytest.param(gang(2), 1, (("l4", 1),), id="one-is-missing"),
        pytest.param(gang(10), 0, (("l4", 10),), id="all-are-missing"),
        pytest.param(gang(16, gpus=1), 0, (("l4", 2),), id="few-nodes-for-many-pods"),
        pytest.param(gang(3, gpus=0), 0, (("l4", 1),), id="the-first-pool-counts-first"),
        pytest.param(gang(3, apart=(HOSTNAME,)), 1, (("l4", 2),), id="pods-apart"),
        pytest.param(gang(3, gpus=1, spread=(Spread(HOSTNAME),)), 0, (("l4", 1),), id="pods-spread"),
    ],
)
def test_gang_trusts_as_few_potential_nodes_as_it_needs(
    wanted: Gang, nodes: int, trusted: tuple[tuple[str, int], ...]
) -> None:
    there = ledger(L4, CPU, nodes=nodes).snapshot()
    assert assigned(wanted, there).trusted == trusted
    assert fits(wanted, there)
    assert shortfall_in_empty(wanted, there) is None
    assert fit_in_both(wanted, there, there.copy()) == fit(wanted, there)


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(gang(11), id="more-than-the-maximum"),
        pytest.param(gang(1, gpus=9), id="no-node-is-so-large"),
        pytest.param(Gang(Resources({GPU: 8}), 1), id="pods-that-are-not-known"),
    ],
)
def test_gang_that_potential_nodes_do_not_take_is_too_large(wanted: Gang) -> None:
    there = ledger(L4, nodes=0).snapshot()
    assert isinstance(fit(wanted, there), Shortfall)
    assert not fits(wanted, there)
    assert shortfall_in_empty(wanted, there) is not None


def test_taints_of_a_pool_count() -> None:
    tainted = PotentialPool("l4", Node("", SHAPE.allocatable, taints=(TAINT,), labels=LABELS), 1)
    there = ledger(tainted).snapshot()
    assert isinstance(fit(gang(), there), Shortfall)
    assert assigned(gang(tolerations=(Toleration("gpu", "Exists"),)), there).trusted == (("l4", 1),)
    assert (TAINT,) in there.taints


def test_reports_count_nodes_that_are_there() -> None:
    there = ledger(L4, nodes=1)
    there.reserve("a", gang(4), assigned(gang(4), there.snapshot()))
    assert there.snapshot().total_for(None) == there.total() == SHAPE.allocatable
    assert there.free(None)[GPU] == 0
    assert [node.name for node in there.nodes()] == ["n0"]


def test_potential_nodes_of_one_gang_are_not_anothers() -> None:
    there = ledger(L4)
    there.reserve("a", gang(6), assigned(gang(6), there.snapshot()))
    assert isinstance(fit(gang(5), there.snapshot()), Shortfall)
    second = assigned(gang(4), there.snapshot())
    there.reserve("b", gang(4), second)
    assert held(there, "a").keys().isdisjoint(held(there, "b"))
    assert isinstance(fit(gang(1), there.snapshot()), Shortfall)


def test_places_in_one_cycle_are_not_given_twice() -> None:
    there = ledger(L4).snapshot()
    for _ in range(10):
        there.take(gang(), assigned(gang(), there))
    assert isinstance(fit(gang(), there), Shortfall)


def test_gang_on_trust_takes_nothing_of_the_nodes_that_are_there() -> None:
    there = ledger(L4, nodes=1)
    there.reserve("a", gang(3, gpus=8), assigned(gang(3), there.snapshot()))
    free = ledger(L4, nodes=2)
    free.reserve("a", gang(3, gpus=8), assigned(gang(3), free.snapshot()))
    assert there.free(None)[GPU] == free.free(None)[GPU] == 0
    there.set_node(Node("other", Resources({"cpu": 8000})))
    assert there.free(None)["cpu"] == 8000 + 7000


def test_places_move_to_the_nodes_that_come() -> None:
    there = ledger(L4)
    there.reserve("a", gang(2), assigned(gang(2), there.snapshot()))
    there.set_node(real(1, usable=False))
    assert held(there, "a") == {"potential/l4/0": 1, "potential/l4/1": 1}
    there.set_node(real(1))
    assert held(there, "a") == {"n1": 1, "potential/l4/1": 1}
    there.set_pod(Pod("p", gang().demand, "n1", PodPhase.RUNNING, owner="a"))
    assert held(there, "a") == {"potential/l4/0": 1}
    there.set_node(real(2))
    assert held(there, "a") == {"n2": 1}
    assert isinstance(fit(gang(9), there.snapshot()), Shortfall)
    assert assigned(gang(8), there.snapshot()).trusted == (("l4", 8),)


def test_place_is_kept_until_the_last_node_of_a_pool_can_be_used() -> None:
    there = ledger(PotentialPool("l4", SHAPE, 1))
    there.reserve("a", gang(), assigned(gang(), there.snapshot()))
    there.set_node(real(1, usable=False))
    assert held(there, "a") == {"potential/l4/0": 1}
    there.set_node(real(1))
    assert held(there, "a") == {"n1": 1}
    assert isinstance(fit(gang(), there.snapshot()), Shortfall)


def test_pods_apart_move_to_nodes_without_others_of_their_gang() -> None:
    there = ledger(L4)
    wanted = gang(2, gpus=1, apart=(HOSTNAME,))
    there.reserve("a", wanted, assigned(wanted, there.snapshot()))
    there.set_node(real(1))
    assert sorted(held(there, "a").values()) == [1, 1]
    assert "n1" in held(there, "a")


def test_place_on_a_node_that_is_there_is_held_beside_a_bound_pod_of_the_gang() -> None:
    there = ledger(L4, nodes=1)
    wanted = gang(6, gpus=4, spread=(Spread(HOSTNAME),))
    places = assigned(wanted, there.snapshot())
    assert ("n0", 2) in places.places[0]
    assert places.trusted == (("l4", 2),)
    there.reserve("a", wanted, places)
    there.set_pod(Pod("p", wanted.pod_sets[0].requests, "n0", PodPhase.RUNNING, owner="a"))
    assert held(there, "a")["n0"] == 1


def test_next_leader_holds_the_same_places_in_any_order_of_events() -> None:
    places = Assignment(((("potential/l4/7", 1), ("potential/l4/8", 1)),))
    there = CapacityLedger(FitMode.NODE)
    there.reserve("a", gang(2), places)
    there.reserve("b", gang(1), Assignment(((("potential/l4/7", 1),),)))
    assert held(there, "a") == {}
    there.set_node(real(1))
    there.set_pools((PotentialPool("l4", SHAPE, 3),))
    nodes = {**held(there, "a"), **held(there, "b")}
    assert nodes == {"n1": 1, "potential/l4/0": 1, "potential/l4/1": 1}
    assert isinstance(fit(gang(1), there.snapshot()), Shortfall)


def test_gang_that_trusts_nothing_gets_no_potential_place() -> None:
    there = ledger(L4, nodes=1)
    there.reserve("a", gang(1), ASSIGNED_NOWHERE)
    there.remove_node("n0")
    assert held(there, "a") == {}  # its demand is charged to the sums, as without pools
    assert assigned(gang(9), there.snapshot()).trusted == (("l4", 9),)


def test_growth_on_trust_holds_its_potential_node_and_takes_no_node_that_is_there() -> None:
    there = ledger(L4, nodes=1)
    there.reserve("a", gang(1), assigned(gang(1), there.snapshot()))
    there.set_pod(Pod("p", gang().demand, "n0", PodPhase.RUNNING, owner="a", can_be_gated=True))
    there.reserve("a", gang(1), Assignment(((("n0", 1),),)), gang().demand)
    there.set_pod(Pod("q", gang().demand, owner="a", can_be_gated=True))
    assert held(there, "a") == {"potential/l4/0": 1}
    assert there.free(None)["cpu"] == 7000
    assert assigned(gang(8), there.snapshot()).trusted == (("l4", 8),)
    assert isinstance(fit(gang(9), there.snapshot()), Shortfall)
    there.set_node(real(1))
    assert held(there, "a") == {"n1": 1}


def test_pool_that_is_declared_no_more_gives_nothing() -> None:
    there = ledger(L4)
    before = there.snapshot()
    there.set_pools(())
    assert there.snapshot() != before
    assert isinstance(fit(gang(), there.snapshot()), Shortfall)


def test_huge_maximum_counts_as_the_bound() -> None:
    there = ledger(PotentialPool("l4", SHAPE, 10**9))
    nodes = there.snapshot().nodes
    assert nodes is not None
    assert [len(rows) for rows in nodes.potential.values()] == [MOST_NODES]
    assert assigned(gang(MOST_NODES), there.snapshot()).trusted == (("l4", MOST_NODES),)
    assert isinstance(fit(gang(MOST_NODES + 1), there.snapshot()), Shortfall)


def test_pool_that_no_pod_fits_delays_no_gang() -> None:
    tiny = PotentialPool("tiny", Node("", Resources({"cpu": 1}), labels={"pool": "tiny"}), 10**9)
    there = ledger(tiny, L4).snapshot()
    assert assigned(gang(2), there).trusted == (("l4", 2),)


# --- policies and trust --------------------------------------------------------------------------------------------


def decide(wanted: Gang, trust: Trust, there: CapacityLedger) -> Outcome:
    snapshot = ClusterSnapshot("hub", there.snapshot().trusting(trust))
    (outcome,) = plan([make_record(gang=wanted)], {"hub": snapshot})
    return outcome


WAIT = Trust(OnPotential.WAIT)
FAILED = Trust(distrusted=(("l4", LATER),))


@pytest.mark.parametrize(
    ("trust", "message"),
    [
        pytest.param(
            WAIT,
            "cluster hub: it needs 2 nodes of pool l4 to come; with onPotential: Wait it is not dispatched before",
            id="wait",
        ),
        pytest.param(
            FAILED,
            "cluster hub: it needs 2 nodes of pool l4 to come; pool l4 is not trusted until 2026-11-23 12:00:00 UTC, "
            "because its nodes did not come",
            id="distrusted",
        ),
    ],
)
def test_pending_reason_of_a_gang_that_may_not_trust_a_pool_names_the_needed_nodes(
    trust: Trust, message: str
) -> None:
    outcome = decide(gang(3), trust, ledger(L4, nodes=1))
    assert isinstance(outcome, Impossible)  # never the head: only nodes that come help
    assert (outcome.pending.reason, outcome.pending.message) == (NEEDS_POTENTIAL, message)


def test_gang_that_others_keep_from_the_nodes_waits_for_these() -> None:
    there = ledger(L4, nodes=1)
    there.set_pod(Pod("p", Resources({GPU: 1}), "n0", PodPhase.RUNNING))
    outcome = decide(gang(1), WAIT, there)
    assert isinstance(outcome, Waiting)
    assert (outcome.pending.reason, outcome.is_head) == (INSUFFICIENT, True)


def test_gang_beyond_nodes_and_potential_nodes_is_larger_than_the_cluster() -> None:
    for trust in (Trust(), WAIT, FAILED):
        assert decide(gang(12), trust, ledger(L4, nodes=1)).pending.reason == LARGER_THAN_CLUSTER  # type: ignore[union-attr]


TEAM_A_FAILED = Trust(in_namespaces=(("team-a", "l4", LATER),))


def test_pool_that_failed_in_one_namespace_is_trusted_by_the_gangs_of_others() -> None:
    there = ClusterSnapshot("hub", ledger(L4).snapshot().trusting(TEAM_A_FAILED))
    teams = [
        make_record(name=name, gang=gang(1, sort=PodSort.of(name, ()) if name else None))
        for name in ("team-a", "team-b", "")
    ]
    found = {outcome.record.name: outcome for outcome in plan(teams, {"hub": there})}
    assert isinstance(found["team-b"], Placed)
    assert found["team-b"].assignment.trusted == (("l4", 1),)
    refused = found["team-a"]
    assert isinstance(refused, Impossible)
    assert refused.pending.message == (
        "cluster hub: it needs 1 node of pool l4 to come; pool l4 is not trusted until 2026-11-23 12:00:00 UTC in "
        "namespace team-a, because its nodes did not come"
    )
    assert isinstance(found[""], Impossible)  # its namespace is not known: it may be that one


def test_gang_whose_pods_are_not_known_has_its_own_namespace() -> None:
    there = ClusterSnapshot("hub", ledger(L4).snapshot().trusting(TEAM_A_FAILED))
    declared = replace(gang(1), namespace="team-b")
    assert declared.namespace == "team-b"
    (found,) = plan([make_record(name="declared", gang=declared)], {"hub": there})
    assert isinstance(found, Placed)
    refused = replace(declared, namespace="team-a")
    (found,) = plan([make_record(name="refused", gang=refused)], {"hub": there})
    assert isinstance(found, Impossible)
    assert "pool l4 is not trusted until" in found.pending.message


def test_gangs_leave_their_class_once_their_namespace_alone_trusts_a_pool_no_more() -> None:
    queue = OneQueue()
    for name in ("team-a", "team-b"):
        queue.put(make_record(name=name, uid=name, gang=gang(1, sort=PodSort.of(name, ()))))

    def placed(trust: Trust) -> list[str]:
        there = {"hub": ClusterSnapshot("hub", ledger(L4).snapshot().trusting(trust))}
        news = queue.plan(there, QueueingStrategy.BEST_EFFORT_FIFO, timedelta(hours=1), NOW)
        return [each.record.name for each in news if isinstance(each, Placed)]

    assert placed(FAILED) == []
    assert placed(TEAM_A_FAILED) == ["team-b"]


def test_trusted_pool_is_used_while_another_is_not() -> None:
    outcome = decide(gang(1, gpus=0), FAILED, ledger(L4, CPU))
    assert isinstance(outcome, Placed)
    assert outcome.assignment.trusted == (("cpu", 1),)


def test_cluster_with_room_is_preferred() -> None:
    snapshots = {
        "growing": ClusterSnapshot("growing", ledger(L4).snapshot()),
        "has-room": ClusterSnapshot("has-room", ledger(nodes=5).snapshot()),
    }
    (outcome,) = plan([make_record(gang=gang(1))], snapshots)
    assert isinstance(outcome, Placed)
    assert outcome.cluster == "has-room"


def test_words() -> None:
    assert (
        in_words((("a", 1), ("b", 2), ("c", 3)))
        == "1 node of pool a, 2 nodes of pool b and 3 nodes of pool c"
    )


# --- nodes of a pool that do not take the pods ---------------------------------------------------------------------


def tainted(number: int) -> Node:
    """A node of the pool l4 with a taint that its shape lacks."""
    return replace(real(number), taints=(Taint("not-set-up", "", "NoSchedule"),))


def test_place_is_no_place_of_a_node_of_the_pool_that_the_pod_may_not_use() -> None:
    there = ledger(PotentialPool("l4", SHAPE, 2))
    there.set_node(tainted(0))
    there.reserve("a", gang(), assigned(gang(), there.snapshot()))
    assert held(there, "a") == {"potential/l4/0": 1}
    assert isinstance(fit(gang(), there.snapshot()), Shortfall)  # the only potential node is held


def test_place_moves_once_the_taint_of_a_new_node_is_gone() -> None:
    there = ledger(PotentialPool("l4", SHAPE, 1))
    there.reserve("a", gang(), assigned(gang(), there.snapshot()))
    there.set_node(tainted(0))
    assert held(there, "a") == {"potential/l4/0": 1}
    there.set_node(real(0))
    assert held(there, "a") == {"n0": 1}
    assert isinstance(fit(gang(), there.snapshot()), Shortfall)


def test_gang_awaits_the_pools_whose_nodes_have_not_come() -> None:
    there = ledger(PotentialPool("l4", SHAPE, 2))
    there.reserve("a", gang(2), assigned(gang(2), there.snapshot()))
    assert there.pools_awaited_by("a") == {"l4"}
    there.set_node(real(0))
    assert there.pools_awaited_by("a") == {"l4"}
    there.set_node(real(1))
    assert there.pools_awaited_by("a") == frozenset()


@pytest.mark.parametrize(
    "pools", [pytest.param((), id="declared-no-more"), pytest.param((CPU,), id="another-pool")]
)
def test_gang_awaits_the_pools_that_it_trusted_while_its_pods_have_no_place(
    pools: tuple[PotentialPool, ...],
) -> None:
    there = ledger(L4)
    there.reserve("a", gang(2), assigned(gang(2), there.snapshot()))
    there.set_pools(pools)
    assert there.pools_awaited_by("a") == {"l4"}


def test_gang_awaits_a_pool_whose_last_node_came_too_small() -> None:
    there = ledger(PotentialPool("l4", SHAPE, 1))
    there.reserve("a", gang(), assigned(gang(), there.snapshot()))
    there.set_node(replace(real(0), allocatable=Resources({"cpu": 8000, GPU: 7})))
    assert held(there, "a") == {}
    assert there.pools_awaited_by("a") == {"l4"}


def test_lower_maximum_of_a_pool_leaves_two_trusting_gangs_the_rest() -> None:
    there = ledger(L4)
    for uid in ("a", "b"):
        there.reserve(uid, gang(2), assigned(gang(2), there.snapshot()))
    there.set_pools((PotentialPool("l4", SHAPE, 3),))
    assert sum({**held(there, "a"), **held(there, "b")}.values()) == 3
    assert there.pools_awaited_by("a") == there.pools_awaited_by("b") == {"l4"}
    assert isinstance(fit(gang(), there.snapshot()), Shortfall)


@pytest.mark.parametrize(
    ("cpu", "reason"),
    [
        pytest.param("0", "no amount is above 0, so no pod fits such a node", id="nothing"),
        pytest.param("1e99", "cpu: '1e99' is too large", id="too-large"),
        pytest.param("abc", "cpu: 'abc' is not a quantity", id="no-quantity"),
    ],
)
def test_amounts_that_are_no_shape_are_refused_with_their_pool(cpu: str, reason: str) -> None:
    declared = PotentialNodes((NodePool("l4", {"cpu": cpu}, LABELS, (), 1),))
    with pytest.raises(QuantityError, match=f"^pool l4: node.allocatable: {reason}"):
        pools_of(declared)
