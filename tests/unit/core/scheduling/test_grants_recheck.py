"""Grants are checked again before their commit: their cluster may have lost the room, or may take nothing any more."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dispatcher.core.model import incremental
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.growth import GatedPod
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.forest import Forest
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.fit.cluster_filters import Closed, ClusterSnapshot
from dispatcher.core.scheduling.growth.grant_facts import GrantFacts
from dispatcher.core.scheduling.growth.grants import decide_in_steps, still_fitting
from dispatcher.core.scheduling.growth.growing import Growing
from dispatcher.core.scheduling.growth.waiting_gangs import WaitingGangs
from tests.builders import at
from tests.unit.core.scheduling.test_grants import CPU, ray

DRAINING = Closed("ClusterDraining", "an operator drains it")


def hub(cpu: int, closed: Closed | None = None) -> dict[str, ClusterSnapshot]:
    """A hub with a free node of so many cpus."""
    ledger = CapacityLedger(FitMode.NODE, "hub")
    ledger.set_node(Node("n1", Resources({"cpu": 1000 * cpu})))
    return {"hub": ClusterSnapshot("hub", ledger.snapshot(), closed=closed)}


def asking(name: str) -> Growing:
    """A gang of two cpus that asks for two more pods of a cpu each."""
    pods = [f"{name}-{number}" for number in range(2)]
    created = f"{at(100):%Y-%m-%dT%H:%M:%SZ}"
    return Growing(
        ray(name), CPU * 2, [GatedPod("team-a", each, f"uid-of-{each}", CPU, created) for each in pods]
    )


@pytest.mark.parametrize(
    ("now", "left"),
    [
        pytest.param(hub(4), ["a", "b"], id="nothing-changed"),
        pytest.param(hub(3), ["a"], id="the-room-of-one-pod-is-gone"),
        pytest.param(hub(1), [], id="the-room-of-both-gangs-is-gone"),
        pytest.param(hub(8), ["a", "b"], id="there-is-more-room"),
        pytest.param(hub(4, DRAINING), [], id="it-takes-nothing-any-more"),
        pytest.param({}, [], id="it-is-gone"),
    ],
)
def test_grant_is_left_out_if_its_room_is_gone_and_one_without_pods_never(
    now: Mapping[str, ClusterSnapshot], left: list[str]
) -> None:
    gangs = [asking(name) for name in ("a", "b", "c")]
    facts = GrantFacts(Forest.undeclared(), [], WaitingGangs(), at(200))
    grants = incremental.run(decide_in_steps(gangs, facts, hub(4)))
    assert [len(each.pods) for each in grants] == [2, 2, 0]
    found = still_fitting(grants, gangs, now, at(201))
    assert [each.record.name for each in found.found] == [*left, "c"]
    assert found.failures == []
