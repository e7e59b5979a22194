"""Pods as capacity counts them: by their owner, by their reasons and exit codes, and on nodes that went away."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.gangs.pods import Pod, PodCounts, PodPhase, PodReason, Unscheduled
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from tests.unit.core.scheduling.capacity_definition import account

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


# -----------------------------------------------------------------------------------------------------------
# Pods whose owner is still being asked for: never counted beside the demand that was reserved for them.


NODE = Node("n1", Resources({"cpu": 10}))


def claiming_pod(
    uid: str = "p", cpu: int = 3, node: str = "n1", owner: str | None = None, claim: str | None = None
) -> Pod:
    return Pod(uid, Resources({"cpu": cpu}), node, PodPhase.RUNNING, owner, claim)


@pytest.mark.parametrize(
    ("seen", "free"),
    [
        pytest.param([claiming_pod(claim="a")], 6, id="claimed-pod-is-covered-by-the-demand"),
        pytest.param([claiming_pod(claim="a", node="")], 6, id="unbound"),
        pytest.param([claiming_pod(claim="b")], 3, id="claims-one-that-demands-nothing"),
        pytest.param([claiming_pod(claim="a"), claiming_pod(owner="a")], 6, id="confirmed"),
        pytest.param([claiming_pod(claim="a"), claiming_pod()], 3, id="denied"),
        pytest.param(
            [claiming_pod("p", claim="a"), claiming_pod("q", claim="a")], 4, id="more-than-was-demanded"
        ),
    ],
)
def test_unresolved_claim_of_a_pod_reduces_the_reservation_it_names(seen: list[Pod], free: int) -> None:
    ledger = CapacityLedger()
    ledger.set_node(NODE)
    ledger.reserve("a", Gang(Resources({"cpu": 4})))

    for each in seen:
        ledger.set_pod(each)

    assert ledger.free()["cpu"] == free


def test_claim_makes_no_pod_of_the_one_it_names() -> None:
    ledger = CapacityLedger()
    ledger.reserve("a", Gang(Resources({"cpu": 4})))
    ledger.set_pod(claiming_pod(claim="a"))

    assert ledger.pod_counts("a").live == 0


pods = st.builds(
    claiming_pod,
    st.sampled_from(["p", "q", "r"]),
    st.integers(1, 5),
    st.sampled_from(["n1", "gone", ""]),
    owner=st.sampled_from([None, "a"]),
    claim=st.none(),
) | st.builds(
    claiming_pod, st.sampled_from(["p", "q", "r"]), st.integers(1, 5), claim=st.sampled_from(["a", "b"])
)
events = st.lists(pods | st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 9) | st.none()) | st.just("p"))


@given(events)
def test_ledger_agrees_with_the_definition(told: list[Pod | tuple[str, int | None] | str]) -> None:
    ledger = CapacityLedger()
    ledger.set_node(NODE)
    seen: dict[str, Pod] = {}
    demands: dict[str, Resources] = {}
    for event in told:
        match event:
            case Pod():
                seen[event.uid] = event
                ledger.set_pod(event)
            case str():
                seen.pop(event, None)
                ledger.remove_pod(event)
            case (name, None):
                demands.pop(name, None)
                ledger.release(name)
            case (name, cpu):
                demands[name] = Resources({"cpu": cpu or 0})
                ledger.reserve(name, Gang(demands[name]))

    assert ledger.free() == account([NODE], list(seen.values()), demands)
