"""Pods whose owner is still being asked for: never counted beside the demand that was reserved for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.model.gang import Gang
from dispatcher.core.model.nodes import Node
from dispatcher.core.model.pods import Pod, PodPhase
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity_ledger import CapacityLedger
from tests.unit.core.scheduling.capacity_definition import account

NODE = Node("n1", Resources({"cpu": 10}))


def pod(
    uid: str = "p", cpu: int = 3, node: str = "n1", owner: str | None = None, claim: str | None = None
) -> Pod:
    return Pod(uid, Resources({"cpu": cpu}), node, PodPhase.RUNNING, owner, claim)


@pytest.mark.parametrize(
    ("seen", "free"),
    [
        pytest.param([pod(claim="a")], 6, id="claimed-pod-is-covered-by-the-demand"),
        pytest.param([pod(claim="a", node="")], 6, id="unbound"),
        pytest.param([pod(claim="b")], 3, id="claims-one-that-demands-nothing"),
        pytest.param([pod(claim="a"), pod(owner="a")], 6, id="confirmed"),
        pytest.param([pod(claim="a"), pod()], 3, id="denied"),
        pytest.param([pod("p", claim="a"), pod("q", claim="a")], 4, id="more-than-was-demanded"),
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
    ledger.set_pod(pod(claim="a"))

    assert ledger.pod_counts("a").live == 0


pods = st.builds(
    pod,
    st.sampled_from(["p", "q", "r"]),
    st.integers(1, 5),
    st.sampled_from(["n1", "gone", ""]),
    owner=st.sampled_from([None, "a"]),
    claim=st.none(),
) | st.builds(pod, st.sampled_from(["p", "q", "r"]), st.integers(1, 5), claim=st.sampled_from(["a", "b"]))
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
