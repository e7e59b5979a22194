"""A grant is charged from its commit on, so that no two grants get the same room; a growth request is not charged."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dispatcher.core.model.nodes import Node
from dispatcher.core.model.pods import Gate, Pod, PodPhase
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity_ledger import CapacityLedger, FitMode
from tests.builders import make_gang

RAY = make_gang(1, cpu=3)
EACH = Resources({"cpu": 3})
BASE = Pod("base", EACH, "n1", PodPhase.RUNNING, owner="ray", can_be_gated=True)
GATE = Gate("team-a", "more", "2026-01-01T00:00:00Z")
GATED = Pod("more", EACH, owner="ray", gate=GATE, can_be_gated=True)
ADMITTED = Pod("more", EACH, owner="ray", can_be_gated=True)
BOUND = Pod("more", EACH, "n2", PodPhase.RUNNING, owner="ray", can_be_gated=True)
HUGE = Resources({"cpu": 4000})
GHOST = Pod("ghost", HUGE, "ghost", owner="ray", can_be_gated=True, template="0.x", admitted_as=GATE)
FORGED = Pod("forged", HUGE, owner="ray", gate=GATE, can_be_gated=True, template="0.x", base_pods=1000)
SIDE_CAR = Pod("more", EACH + {"cpu": 1}, owner="ray", gate=GATE, can_be_gated=True)
NO_GATE = Pod("more", EACH, owner="ray")


@pytest.mark.parametrize("mode", FitMode)
@pytest.mark.parametrize(
    ("pods", "grown", "free"),
    [
        pytest.param([BASE], NOTHING, 13, id="base-gang"),
        pytest.param([BASE, GATED], NOTHING, 13, id="growth-request"),
        pytest.param([BASE, GATED], EACH, 10, id="granted"),
        pytest.param([BASE, ADMITTED], EACH, 10, id="admitted"),
        pytest.param([BASE, ADMITTED], NOTHING, 13, id="admitted-by-nobody"),
        pytest.param([BASE, GHOST], NOTHING, 13, id="on-a-node-that-does-not-exist"),
        pytest.param([BASE, FORGED], NOTHING, 13, id="forged-as-one-of-a-large-base-gang"),
        pytest.param([BASE, replace(FORGED, gate=None)], EACH, 10, id="forged-beside-a-grant"),
        pytest.param([BASE, BOUND], EACH, 10, id="bound"),
        pytest.param([BASE, BOUND], NOTHING, 10, id="bound-before-its-growth-is-committed"),
        pytest.param([BASE], EACH, 10, id="pod-gone-and-growth-still-committed"),
        pytest.param([BASE, SIDE_CAR], EACH + {"cpu": 1}, 9, id="requests-of-no-pod-set"),
        pytest.param([NO_GATE], NOTHING, 13, id="unbound-pod-of-a-template-without-the-gate"),
    ],
)
def test_grant_takes_room_from_its_commit_on(
    mode: FitMode, pods: list[Pod], grown: Resources, free: int
) -> None:
    ledger = make_ledger(mode)
    for pod in pods:
        ledger.set_pod(pod)
    ledger.reserve("ray", RAY, grown=grown)

    assert ledger.free()["cpu"] == free
    ledger.release("ray")
    assert ledger.free()["cpu"] == 16 - sum(pod.requests["cpu"] for pod in pods if pod.node in {"n1", "n2"})


@pytest.mark.parametrize(("grown", "places"), [(NOTHING, 0), (EACH, 1)])
def test_granted_pod_holds_a_place_on_a_node(grown: Resources, places: int) -> None:
    ledger = make_ledger(FitMode.NODE)
    ledger.set_pod(BASE)
    ledger.set_pod(GATED)
    ledger.reserve("ray", RAY, grown=grown)

    nodes = ledger.snapshot().nodes
    assert nodes is not None
    use = nodes.uses["ray"]
    assert (sum(place.pods for place in use.held), use.beyond) == (places, NOTHING)


def make_ledger(mode: FitMode) -> CapacityLedger:
    ledger = CapacityLedger(mode)
    for name in ("n1", "n2"):
        ledger.set_node(Node(name, Resources({"cpu": 8})))
    return ledger
