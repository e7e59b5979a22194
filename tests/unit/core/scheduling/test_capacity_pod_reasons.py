"""The counts of a gang's pods beside their phases: reasons, exit codes, and pods on nodes that went away."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dispatcher.core.model.nodes import Node
from dispatcher.core.model.pods import Pod, PodCounts, PodPhase, PodReason, Unscheduled
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity_ledger import CapacityLedger

AWAY = Node("away", NOTHING, usable=False, ready=False)
CORDONED = Node("cordoned", NOTHING, usable=False, ready=True)


def pod(uid: str = "p", phase: PodPhase = PodPhase.RUNNING, node: str = "n1", owner: str = "a") -> Pod:
    return Pod(uid, Resources({"cpu": 1}), node, phase, owner)


def pending(uid: str, reason: PodReason, node: str = "n1") -> Pod:
    return Pod(uid, NOTHING, node, PodPhase.PENDING, "a", reason=reason)


def failed(uid: str, reason: PodReason = PodReason.NONE, *exit_codes: int) -> Pod:
    return Pod(uid, NOTHING, "n1", PodPhase.FAILED, "a", reason=reason, exit_codes=exit_codes)


def ledger_of(*seen: Node | Pod) -> CapacityLedger:
    ledger = CapacityLedger()
    for one in seen:
        if isinstance(one, Node):
            ledger.set_node(one)
        else:
            ledger.set_pod(one)
    return ledger


@pytest.mark.parametrize(
    ("ledger", "counts"),
    [
        pytest.param(
            ledger_of(pending("p", PodReason.STARTING)), PodCounts(pending=1, starting=1), id="starts"
        ),
        pytest.param(ledger_of(pending("p", PodReason.STUCK)), PodCounts(pending=1), id="is-stuck"),
        pytest.param(
            ledger_of(pending("p", PodReason.UNSCHEDULABLE, node="")),
            PodCounts(pending=1, unschedulable=1, unbound=1),
            id="finds-no-node",
        ),
        pytest.param(
            ledger_of(failed("p", PodReason.EVICTED, 137), failed("q")),
            PodCounts(failed=2, evicted=1, exit_codes=frozenset({137})),
            id="one-of-two-that-failed-was-evicted",
        ),
        pytest.param(
            ledger_of(failed("p", PodReason.NONE, 1, 3), failed("q", PodReason.NONE, 1)),
            PodCounts(failed=2, exit_codes=frozenset({1, 3})),
            id="exit-codes-are-counted-once",
        ),
        pytest.param(ledger_of(AWAY, pod(node="away")), PodCounts(running=1, lost=1), id="node-is-away"),
        pytest.param(ledger_of(pod(node="away"), AWAY), PodCounts(running=1, lost=1), id="pod-seen-first"),
        pytest.param(
            ledger_of(AWAY, pod(node="away", phase=PodPhase.PENDING)),
            PodCounts(pending=1, lost=1),
            id="pod-that-was-to-start-on-a-node-that-is-away",
        ),
        pytest.param(
            ledger_of(AWAY, pod(node="away", phase=PodPhase.SUCCEEDED)),
            PodCounts(succeeded=1),
            id="pod-that-was-done-before-its-node-went",
        ),
        pytest.param(ledger_of(CORDONED, pod(node="cordoned")), PodCounts(running=1), id="node-is-cordoned"),
        pytest.param(ledger_of(pod(node="unheard-of")), PodCounts(running=1), id="node-is-not-known"),
        pytest.param(ledger_of(AWAY, pod(node="")), PodCounts(running=1, unbound=1), id="pod-is-on-no-node"),
    ],
)
def test_pods_of_a_gang_are_counted_by_their_phase_and_reason(
    ledger: CapacityLedger, counts: PodCounts
) -> None:
    assert ledger.pod_counts("a") == counts


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        pytest.param(lambda ledger: ledger.set_node(Node("away", NOTHING)), 0, id="node-is-ready-again"),
        pytest.param(lambda ledger: ledger.remove_node("away"), 0, id="node-is-gone"),
        pytest.param(lambda ledger: ledger.remove_pod("p"), 1, id="pod-is-gone"),
        pytest.param(lambda ledger: ledger.set_pod(pod("p", PodPhase.FAILED, "away")), 1, id="pod-is-over"),
        pytest.param(
            lambda ledger: ledger.set_pod(pod("p", node="away", owner="b")), 1, id="pod-is-anothers"
        ),
        pytest.param(lambda ledger: ledger.set_pod(pod("r", node="away")), 3, id="one-pod-more"),
    ],
)
def test_lost_pods_follow_their_nodes_and_themselves(
    change: Callable[[CapacityLedger], None], lost: int
) -> None:
    ledger = ledger_of(pod("p", node="away"), AWAY, pod("q", node="away"))
    change(ledger)
    assert ledger.pod_counts("a").lost == lost
    change(ledger)
    assert ledger.pod_counts("a").lost == lost


def test_owners_on_a_node_are_listed_once_each_while_their_pods_live() -> None:
    ledger = ledger_of(pod("p"), pod("q"), pod("r", owner="b"), pod("s", PodPhase.FAILED, owner="c"))
    assert ledger.owners_on("n1") == {"a", "b"}
    ledger.remove_pod("p")
    ledger.remove_pod("r")
    assert ledger.owners_on("n1") == {"a"}
    assert ledger.owners_on("n2") == frozenset()


def test_node_that_is_not_known_is_not_down() -> None:
    ledger = ledger_of(AWAY, CORDONED)
    assert [ledger.is_down(name) for name in ("away", "cordoned", "unheard-of")] == [True, False, False]


def test_pods_without_a_node_are_listed_by_name_until_they_have_one() -> None:
    def waiting(uid: str, name: str, message: str = "too big") -> Pod:
        return Pod(uid, NOTHING, owner="a", unscheduled=Unscheduled(name, message))

    ledger = ledger_of(waiting("1", "y"), waiting("2", "x"))
    ledger.set_pod(waiting("1", "y", "still too big"))
    assert ledger.unscheduled("a") == [Unscheduled("x", "too big"), Unscheduled("y", "still too big")]

    ledger.set_pod(pod("2"))
    ledger.remove_pod("1")
    assert ledger.unscheduled("a") == ledger.unscheduled("b") == []
