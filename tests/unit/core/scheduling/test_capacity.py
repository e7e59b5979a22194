from __future__ import annotations

from collections.abc import Callable

import pytest

from dispatcher.core.model.clusters.nodes import Node, Taint, Toleration
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.gangs.pods import Pod, PodCounts, PodPhase
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from tests.unit.core.scheduling.capacity_definition import account

GPU_TAINT = Taint("gpu", "", "NoSchedule")


def cpus(count: int) -> Resources:
    return Resources({"cpu": count})


def node(name: str = "n1", cpu: int = 10, usable: bool = True, taints: tuple[Taint, ...] = ()) -> Node:
    return Node(name, cpus(cpu), usable, taints)


def pod(
    uid: str = "p1",
    cpu: int = 1,
    node: str = "n1",
    owner: str | None = None,
    phase: PodPhase = PodPhase.RUNNING,
) -> Pod:
    return Pod(uid, cpus(cpu), node, phase, owner)


def tolerant_gang(cpu: int = 1) -> Gang:
    return Gang(cpus(cpu), 1, (PodSet(1, cpus(cpu), (Toleration("gpu", "Exists"),)),))


PLAIN_GANG = Gang(cpus(1), 1, (PodSet(1, cpus(1)),))


def ledger_of(*seen: Node | Pod, **reservations: int) -> CapacityLedger:
    ledger = CapacityLedger()
    for one in seen:
        if isinstance(one, Node):
            ledger.set_node(one)
        else:
            ledger.set_pod(one)
    for appwrapper, cpu in reservations.items():
        ledger.reserve(appwrapper, Gang(cpus(cpu)))
    return ledger


@pytest.mark.parametrize(
    ("ledger", "free"),
    [
        pytest.param(ledger_of(), 0, id="nothing-is-known"),
        pytest.param(ledger_of(node("n1"), node("n2", 5)), 15, id="nodes-add-up"),
        pytest.param(ledger_of(node(), node("n2", 5, usable=False)), 10, id="unusable-node-has-nothing"),
        pytest.param(ledger_of(node(), pod(cpu=3)), 7, id="foreign-pod-takes-its-requests"),
        pytest.param(ledger_of(node(), pod(cpu=12)), 0, id="overcommitted-node-has-nothing"),
        pytest.param(ledger_of(node(), node("n2"), pod(cpu=12)), 10, id="and-takes-nothing-from-others"),
        pytest.param(ledger_of(node(), pod(cpu=3, node="")), 10, id="unbound-foreign-pod-is-free"),
        pytest.param(ledger_of(node(), pod(cpu=3, phase=PodPhase.SUCCEEDED)), 10, id="succeeded-pod-is-over"),
        pytest.param(ledger_of(node(), pod(cpu=3, phase=PodPhase.FAILED)), 10, id="failed-pod-is-over"),
        pytest.param(ledger_of(node(), pod(cpu=3, phase=PodPhase.UNKNOWN)), 7, id="unknown-pod-may-live"),
        pytest.param(
            ledger_of(node(), node("n2", usable=False), pod(cpu=3, node="n2")), 10, id="pod-on-unusable-node"
        ),
        pytest.param(ledger_of(node(), pod(cpu=3, node="gone")), 10, id="pod-on-a-node-that-is-gone"),
        pytest.param(ledger_of(pod(cpu=3), node()), 7, id="pod-seen-before-its-node"),
        pytest.param(ledger_of(node(), a=4), 6, id="reservation-without-pods"),
        pytest.param(ledger_of(node(), a=4, b=5), 1, id="reservations-add-up"),
        pytest.param(ledger_of(node(), a=14), -4, id="reservation-beyond-capacity-is-a-debt"),
        pytest.param(ledger_of(node(), pod(cpu=3, owner="a"), a=4), 6, id="each-appwrapper-counts-once"),
        pytest.param(ledger_of(node(), pod(cpu=6, owner="a"), a=4), 4, id="pods-beyond-demand-count-in-full"),
        pytest.param(ledger_of(node(), pod(cpu=3, owner="a", node=""), a=4), 6, id="unbound-pod-is-covered"),
        pytest.param(ledger_of(node(), pod(cpu=3, owner="a")), 7, id="pods-of-a-released-appwrapper"),
        pytest.param(
            ledger_of(node(), pod(cpu=3, owner="a", phase=PodPhase.SUCCEEDED), a=4),
            6,
            id="finished-pod-leaves-its-demand-outstanding",
        ),
        pytest.param(
            ledger_of(node(), node("n2", usable=False), pod(cpu=3, owner="a", node="n2"), a=4),
            9,
            id="own-pod-on-an-unusable-node-needs-no-usable-one",
        ),
        pytest.param(
            ledger_of(node(), pod(cpu=3, owner="a", node="gone"), a=4), 9, id="own-pod-on-a-node-that-is-gone"
        ),
        pytest.param(
            ledger_of(node(), pod(cpu=9, owner="a"), a=4, b=4),
            -3,
            id="surplus-of-one-is-no-credit-to-another",
        ),
    ],
)
def test_free_counts_every_appwrapper_once(ledger: CapacityLedger, free: int) -> None:
    assert ledger.free() == cpus(free)


@pytest.mark.parametrize(
    ("change", "free"),
    [
        pytest.param(lambda ledger: ledger.set_node(node(cpu=20)), 13, id="node-grows"),
        pytest.param(lambda ledger: ledger.set_node(node(cpu=2)), -2, id="node-shrinks"),
        pytest.param(lambda ledger: ledger.set_node(node(usable=False)), -2, id="node-is-cordoned"),
        pytest.param(lambda ledger: ledger.remove_node("n1"), -2, id="node-goes"),
        pytest.param(lambda ledger: ledger.remove_node("n9"), 3, id="node-goes-that-was-never-there"),
        pytest.param(
            lambda ledger: ledger.set_pod(pod("p1", 3, owner="a")), 5, id="foreign-pod-is-confirmed"
        ),
        pytest.param(lambda ledger: ledger.set_pod(pod("p2", 2)), 1, id="own-pod-turns-out-foreign"),
        pytest.param(lambda ledger: ledger.set_pod(pod("p2", 2, owner="b")), 1, id="own-pod-is-anothers"),
        pytest.param(lambda ledger: ledger.remove_pod("p2"), 3, id="own-pod-goes-but-its-demand-stays"),
        pytest.param(lambda ledger: ledger.remove_pod("p1"), 6, id="foreign-pod-goes"),
        pytest.param(lambda ledger: ledger.remove_pod("p9"), 3, id="pod-goes-that-was-never-there"),
        pytest.param(
            lambda ledger: ledger.set_pod(pod("p1", 3, phase=PodPhase.FAILED)), 6, id="foreign-pod-fails"
        ),
        pytest.param(lambda ledger: ledger.set_pod(pod("p2", 9, owner="a")), 0, id="own-pod-is-resized"),
        pytest.param(lambda ledger: ledger.reserve("a", Gang(cpus(4))), 3, id="reserved-again"),
        pytest.param(lambda ledger: ledger.reserve("a", Gang(cpus(6))), 1, id="more-is-reserved"),
        pytest.param(lambda ledger: ledger.reserve("a", Gang(NOTHING)), 5, id="nothing-is-reserved"),
        pytest.param(lambda ledger: ledger.release("a"), 5, id="released-while-a-pod-lives"),
        pytest.param(lambda ledger: ledger.release("b"), 3, id="released-what-was-never-reserved"),
    ],
)
def test_ledger_follows_what_happens(change: Callable[[CapacityLedger], None], free: int) -> None:
    """Of 10, a foreign pod has 3, and the AppWrapper asks for 4, of which a pod has 2."""
    ledger = ledger_of(node(), pod("p1", 3), pod("p2", 2, owner="a"), a=4)
    assert ledger.free() == cpus(3)
    change(ledger)
    assert ledger.free() == cpus(free)
    change(ledger)
    assert ledger.free() == cpus(free)


def test_resources_are_counted_by_name_and_debts_do_not_mix() -> None:
    ledger = CapacityLedger()
    ledger.set_node(Node("n1", Resources({"cpu": 10, "gpu": 1})))
    ledger.set_pod(Pod("p1", Resources({"cpu": 1, "gpu": 2}), "n1"))
    ledger.reserve("a", Gang(Resources({"cpu": 2, "fpga": 1})))
    assert ledger.free() == Resources({"cpu": 7, "fpga": -1})
    assert ledger.total() == Resources({"cpu": 10, "gpu": 1})


def test_gang_sees_only_nodes_whose_taints_it_tolerates() -> None:
    ledger = ledger_of(node("n1", 10), node("n2", 5, taints=(GPU_TAINT,)), pod(cpu=1, node="n2"))
    assert (ledger.free(PLAIN_GANG), ledger.total(PLAIN_GANG)) == (cpus(10), cpus(10))
    assert (ledger.free(tolerant_gang()), ledger.total(tolerant_gang())) == (cpus(14), cpus(15))
    assert (ledger.free(), ledger.total()) == (cpus(14), cpus(15))


def test_outstanding_demand_is_charged_to_every_view() -> None:
    ledger = ledger_of(node("n1", 10), node("n2", 5, taints=(GPU_TAINT,)), a=3)
    assert (ledger.free(PLAIN_GANG), ledger.free(tolerant_gang())) == (cpus(7), cpus(12))
    ledger.set_pod(pod(cpu=3, node="n2", owner="a"))
    assert (ledger.free(PLAIN_GANG), ledger.free(tolerant_gang())) == (cpus(10), cpus(12))


def test_taint_with_prefernoschedule_keeps_no_gang_away() -> None:
    ledger = ledger_of(node(taints=(Taint("spot", "", "PreferNoSchedule"),)))
    assert ledger.free(PLAIN_GANG) == cpus(10)


def test_node_that_gets_a_taint_takes_its_pods_along() -> None:
    ledger = ledger_of(node(), node("n2"), pod(cpu=4))
    ledger.set_node(node(taints=(GPU_TAINT,)))
    assert (ledger.free(PLAIN_GANG), ledger.free(tolerant_gang())) == (cpus(10), cpus(16))


def test_pods_of_an_appwrapper_are_counted_by_phase_bound_or_not() -> None:
    ledger = ledger_of(
        node(),
        pod("p1", owner="a", phase=PodPhase.PENDING, node=""),
        pod("p2", owner="a", phase=PodPhase.UNKNOWN),
        pod("p3", owner="a"),
        pod("p4", owner="a", phase=PodPhase.SUCCEEDED),
        pod("p5", owner="a", phase=PodPhase.FAILED),
        pod("p6", owner="b"),
        pod("p7"),
        a=1,
    )
    assert ledger.pod_counts("a") == PodCounts(pending=2, running=1, succeeded=1, failed=1, unbound=1)
    assert ledger.pod_counts("a").live == 3
    assert ledger.pod_counts("c") == PodCounts()


def test_pod_counts_outlive_the_reservation_and_end_with_the_pods() -> None:
    ledger = ledger_of(pod(owner="a"), a=1)
    ledger.release("a")
    assert ledger.pod_counts("a") == PodCounts(running=1)
    ledger.remove_pod("p1")
    assert ledger.pod_counts("a") == PodCounts()


def test_snapshot_is_taken_from_without_touching_the_ledger_or_its_copies() -> None:
    ledger = ledger_of(node(), node("n2", 5, taints=(GPU_TAINT,)), a=3)
    snapshot = ledger.snapshot()
    copy = snapshot.copy()
    snapshot.take(Gang(cpus(4)))
    assert snapshot.free_for(PLAIN_GANG) == cpus(3)
    assert snapshot.free_for(tolerant_gang()) == cpus(8)
    assert snapshot.total_for(tolerant_gang()) == cpus(15)
    assert copy.free_for(PLAIN_GANG) == ledger.free(PLAIN_GANG) == cpus(7)


def test_snapshot_does_not_follow_the_ledger() -> None:
    ledger = ledger_of(node())
    snapshot = ledger.snapshot()
    ledger.set_pod(pod(cpu=4))
    ledger.reserve("a", Gang(cpus(1)))
    assert snapshot.free_for(None) == cpus(10)


def test_demand_taken_from_a_snapshot_equals_the_charge_of_the_ledger() -> None:
    ledger = ledger_of(node(), pod(cpu=1, owner="a"), a=3)
    snapshot = ledger.snapshot()
    snapshot.take(Gang(cpus(5)))
    ledger.reserve("b", Gang(cpus(5)))
    assert snapshot.free_for(None) == ledger.free() == cpus(2)


def test_account_is_the_formula_of_the_design() -> None:
    nodes = [node("n1", 10), node("n2", 10, usable=False), node("n3", 10, taints=(GPU_TAINT,))]
    pods = [pod("p1", 3), pod("p2", 2, owner="a"), pod("p3", 4, node="n2", owner="b"), pod("p4", 9, node="")]
    reservations = {"a": cpus(4), "b": cpus(3)}
    assert account(nodes, pods, reservations) == cpus(20 - 3 - 2 - 2)
    assert account(nodes, pods, reservations, PLAIN_GANG) == cpus(10 - 3 - 2 - 2)
