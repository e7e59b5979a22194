"""Growth goes to nodes where its pod affinity and anti-affinity to the pods of its own gang let it be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.core.model import incremental
from dispatcher.core.model.gang import Gang, PodSet
from dispatcher.core.model.nodes import Node, NodeRequirements
from dispatcher.core.model.pods import Gate, Pod
from dispatcher.core.model.record import Phase, Record
from dispatcher.core.model.resources import Resources, sum_of
from dispatcher.core.scheduling.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.grants import Grant, GrantFacts, Growing, change_of, decide_in_steps
from dispatcher.core.scheduling.waiting_gangs import WaitingGangs
from tests.builders import at, attempt_of, make_record

CPU = Resources({"cpu": 1000})
HEAD, WORKER = "spec.headGroupSpec.template", "spec.workerGroupSpecs[0].template"
HOST, ZONE = "kubernetes.io/hostname", "zone"
NODES = {"n1": "a", "n2": "a", "n3": "b", "n4": "b"}
"""Nodes of 8 cpus each, by zone. The head is on n1, and the worker of the base gang on n2."""


@dataclass
class Ray:
    """A gang of a head and `base` workers; some more wait for a grant, as slices of so many hosts.

    Without workers in the base gang, each worker says itself what keeps it apart.
    """

    rules: dict[str, Any]
    asked: int
    hosts: int = 1
    base: int = 1

    @property
    def record(self) -> Record:
        workers = [PodSet(self.base * self.hosts, CPU, path=WORKER, **self.rules)] if self.base else []
        sets = (PodSet(1, CPU, path=HEAD), *workers)
        gang = Gang(sum_of(each.total for each in sets), sum(each.count for each in sets), sets)
        return make_record(Phase.RUNNING, "ray", gang=gang)

    def ledger(self, record: Record) -> CapacityLedger:
        found = CapacityLedger(FitMode.NODE, "hub")
        for name, zone in NODES.items():
            found.set_node(Node(name, CPU * 8, labels={HOST: name, ZONE: zone}))
        found.set_pod(Pod("head", CPU, "n1", owner=record.uid))
        for number in range(self.base * self.hosts):
            found.set_pod(self._worker(f"base-{number}", "base", "n2"))
        for number in range(self.asked):
            for host in range(self.hosts):
                name = f"w{number}-{host}"
                gate = Gate("team-a", name, f"{at(100 + number):%Y-%m-%dT%H:%M:%SZ}")
                found.set_pod(replace(self._worker(name, f"w{number}"), gate=gate, admitted_as=None))
        found.reserve(record.uid, record.gang, attempt_of(record).assignment, record.grown, record.granted)
        found.snapshot()
        return found

    def _worker(self, name: str, replica: str, node: str = "") -> Pod:
        return Pod(
            name,
            CPU,
            node,
            owner="uid-of-ray",
            can_be_gated=True,
            template=f"0.{WORKER}",
            base_pods=self.base * self.hosts,
            hosts=self.hosts,
            replica=replica if self.hosts > 1 else "",
            admitted_as=Gate("team-a", name, f"{at(0):%Y-%m-%dT%H:%M:%SZ}"),
            constraint=None if node else ((), NodeRequirements()),
            apart=() if node else self.rules.get("apart", ()),
        )

    def decide(self, record: Record | None = None) -> Grant:
        record = record or self.record
        ledger = self.ledger(record)
        snapshots = {"hub": ClusterSnapshot("hub", ledger.snapshot())}
        facts = GrantFacts(None, [], WaitingGangs(), at(200))
        (grant,) = incremental.run(decide_in_steps([Growing.of(record, ledger)], facts, snapshots))
        return grant


@pytest.mark.parametrize(
    ("rules", "granted"),
    [
        pytest.param({}, 7, id="none"),
        pytest.param({"apart": (HOST,)}, 3, id="one-worker-per-node"),
        pytest.param({"apart": (ZONE,)}, 1, id="one-worker-per-zone"),
        pytest.param({"away": ((ZONE, -1),)}, 7, id="not-in-the-zone-of-the-head"),
        pytest.param({"apart": (HOST,), "away": ((HOST, -1),)}, 2, id="nor-on-the-node-of-the-head"),
        pytest.param({"apart": (HOST,), "together": (ZONE,)}, 1, id="in-the-zone-of-the-worker"),
        pytest.param({"apart": (HOST,), "near": ((ZONE, (-1,)),)}, 1, id="in-the-zone-of-the-head"),
    ],
)
def test_growth_goes_where_the_rules_of_its_template_let_it_be(rules: dict[str, Any], granted: int) -> None:
    check_both_passes(Ray(rules, 7), granted)


@pytest.mark.parametrize(("rules", "granted"), [({}, 7), ({"apart": (HOST,)}, 4), ({"apart": (ZONE,)}, 2)])
def test_workers_of_a_group_without_any_in_the_base_gang_are_apart(
    rules: dict[str, Any], granted: int
) -> None:
    check_both_passes(Ray(rules, 7, base=0), granted)


def check_both_passes(ray: Ray, granted: int) -> None:
    grant = ray.decide()
    assert len(grant.pods) == granted
    change = change_of(grant, at(200))
    assert change is not None
    # The places of the granted pods, which have no node yet, count in the next pass.
    assert ray.decide(change.after).pods == ()


def test_waiting_growth_says_that_its_own_pods_keep_it_off() -> None:
    request = Ray({"apart": (HOST,)}, 4).decide().request
    assert request is not None
    assert request.reason == "InsufficientResources"
    assert request.message.endswith("4 of 4 nodes excluded: 4 by its anti-affinity to other pods")


@pytest.mark.parametrize(
    ("rules", "granted"),
    [
        pytest.param({"apart": (HOST,)}, 2, id="hosts-apart"),
        pytest.param({"together": (HOST,)}, 6, id="all-on-one-node"),
    ],
)
def test_hosts_of_a_slice_keep_the_rules_among_themselves(rules: dict[str, Any], granted: int) -> None:
    """A slice has two hosts. Without rules two would go."""
    assert len(Ray(rules, 3, hosts=2).decide().pods) == granted
