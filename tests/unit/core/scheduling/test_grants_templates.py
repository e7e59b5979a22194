"""Templates with equal requests may need different nodes: each pod is granted and held by its own template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.core.model import incremental
from dispatcher.core.model.clusters.nodes import (
    LabelOperator,
    LabelRequirement,
    Node,
    NodeRequirements,
    NodeTerm,
)
from dispatcher.core.model.gangs.gang import Constraint, Gang, PodSet
from dispatcher.core.model.gangs.pods import Gate, Pod
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import Resources, sum_of
from dispatcher.core.queues.forest import Forest
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.growth.grant_facts import GrantFacts
from dispatcher.core.scheduling.growth.grants import change_of, decide_in_steps
from dispatcher.core.scheduling.growth.growing import Grant, Growing
from dispatcher.core.scheduling.growth.waiting_gangs import WaitingGangs
from tests.builders import at, attempt_of, make_record

CPU = Resources({"cpu": 1000})
ZONES = ("east", "west")
CREATED = f"{at(100):%Y-%m-%dT%H:%M:%SZ}"


def zone(name: str) -> Constraint:
    """The conditions of a pod that may only be in one zone."""
    return (), NodeRequirements((), (NodeTerm((LabelRequirement("zone", LabelOperator.IN, (name,)),), ()),))


def template(name: str) -> str:
    """The name of the template of the group of a zone."""
    return f"0.spec.workerGroupSpecs[{ZONES.index(name)}].template"


@dataclass
class Zones:
    """A gang with a group of `base` replicas in each of two zones, whose nodes have that many cpus `free`.

    Each replica is one worker, or in some zones a slice of several `hosts`, which name their replica if it `is_named`.
    """

    free: Mapping[str, int]
    base: int = 1
    hosts: Mapping[str, int] = field(default_factory=dict)
    is_named: bool = True
    gated: list[Pod] = field(default_factory=list)

    def ask(self, *zones: str) -> Zones:
        """One more replica of each of these groups waits, the oldest first."""
        for zone_of in zones:
            replica = len(self.gated)
            for _ in range(self.hosts.get(zone_of, 1)):
                name = f"{zone_of}-{len(self.gated)}"
                gate = Gate("team-a", name, f"{at(100 + len(self.gated)):%Y-%m-%dT%H:%M:%SZ}")
                self.gated.append(self._worker(name, zone_of, f"{zone_of}-{replica}", gate=gate))
        return self

    def _worker(self, name: str, zone_of: str, replica: str, node: str = "", gate: Gate | None = None) -> Pod:
        hosts = self.hosts.get(zone_of, 1)
        return Pod(
            name,
            CPU,
            node,
            owner=self.record.uid,
            can_be_gated=True,
            template=template(zone_of),
            base_pods=self.base * hosts,
            hosts=hosts,
            replica=replica if hosts > 1 and self.is_named else "",
            gate=gate,
            admitted_as=None if gate else Gate("team-a", name, CREATED),
            constraint=None if node else zone(zone_of),
        )

    @property
    def record(self) -> Record:
        """The gang before its growth: a head without conditions, and the workers."""
        workers = [
            PodSet(
                self.base * self.hosts.get(name, 1),
                CPU,
                nodes=zone(name)[1],
                path=template(name).removeprefix("0."),
            )
            for name in ZONES
            if self.base
        ]
        sets = (PodSet(1, CPU, path="spec.headGroupSpec.template"), *workers)
        gang = Gang(sum_of(each.total for each in sets), sum(each.count for each in sets), sets)
        return make_record(Phase.RUNNING, "ray", gang=gang)

    def ledger(self, record: Record) -> CapacityLedger:
        """The ledger of a leader that has this record."""
        found = CapacityLedger(FitMode.NODE, "hub")
        for name in ZONES:
            hosts = self.hosts.get(name, 1)
            found.set_node(Node(name, CPU * (self.free[name] + self.base * hosts), labels={"zone": name}))
            for number in range(self.base * hosts):
                replica = f"{name}-base-{number // hosts}"
                found.set_pod(self._worker(f"{name}-base-{number}", name, replica, name))
        found.set_node(Node("for-the-head", CPU, labels={"zone": "none"}))
        found.set_pod(Pod("head", CPU, "for-the-head", owner=record.uid))
        for pod in self.gated:
            found.set_pod(pod)
        found.reserve(record.uid, record.gang, attempt_of(record).assignment, record.grown, record.granted)
        return found

    def decide(self, record: Record | None = None) -> Grant:
        """The decision of a pass; without a record, of the first one."""
        record = record or self.record
        ledger = self.ledger(record)
        growing = Growing.of(record, ledger)
        snapshots = {"hub": ClusterSnapshot("hub", ledger.snapshot())}
        facts = GrantFacts(Forest.undeclared(), [], WaitingGangs(), at(200))
        (grant,) = incremental.run(decide_in_steps([growing], facts, snapshots))
        return grant


def opened(zones: Zones, record: Record) -> list[str]:
    """The pods that a leader with this record admits."""
    return [each.uid for each in Growing.of(record, zones.ledger(record)).within]


def held(ledger: CapacityLedger, record: Record) -> dict[str, int]:
    """The places that a ledger holds for a gang, by node."""
    nodes = ledger.snapshot().nodes
    assert nodes is not None
    return {each.node: each.pods for each in nodes.uses[record.uid].held}


@pytest.mark.parametrize("base", [pytest.param(1, id="with-a-base"), pytest.param(0, id="from-zero")])
@pytest.mark.parametrize(
    ("free", "asks", "granted"),
    [
        pytest.param({"east": 1, "west": 0}, ["east"], ["east-0"], id="room-in-the-first-zone"),
        pytest.param({"east": 0, "west": 1}, ["east"], [], id="room-in-the-other-zone"),
        pytest.param({"east": 1, "west": 0}, ["west"], [], id="no-room-in-the-last-zone"),
        pytest.param({"east": 0, "west": 1}, ["west"], ["west-0"], id="room-in-the-last-zone"),
        pytest.param({"east": 0, "west": 1}, ["east", "west"], ["west-1"], id="younger-of-another-template"),
        pytest.param({"east": 1, "west": 0}, ["west", "west", "east"], ["east-2"], id="youngest-of-three"),
        pytest.param(
            {"east": 1, "west": 1}, ["east", "east", "west"], ["east-0", "west-2"], id="one-of-each"
        ),
    ],
)
def test_pod_is_granted_opened_and_held_by_its_own_template(
    free: Mapping[str, int], asks: list[str], granted: list[str], base: int
) -> None:
    zones = Zones(free, base).ask(*asks)
    grant = zones.decide()
    assert [each.uid for each in grant.pods] == granted
    assert (grant.request.pods if grant.request else 0) == len(asks) - len(granted)
    change = change_of(grant, at(200))
    assert change is not None
    assert opened(zones, change.after) == granted
    places = held(zones.ledger(change.after), change.after)
    assert places == {name.partition("-")[0]: 1 for name in granted}


def test_reason_of_one_template_is_not_that_of_another() -> None:
    zones = Zones({"east": 0, "west": 1}).ask("east", "west", "west")
    grant = zones.decide()
    assert grant.request is not None
    assert grant.request.message == (
        "2 more pods wait (cpu 2): cluster hub: cpu: needs 1, 0 free; "
        "2 of 3 nodes excluded: 2 not selected by its pods"
    )
    assert grant.beyond == ((template("west"), 1),)


def test_worker_that_takes_the_place_of_another_is_of_the_same_template() -> None:
    """The granted worker of the west died before it was noted: only a worker of the west needs no other grant."""
    granted = change_of(Zones({"east": 0, "west": 1}).ask("west").decide(), at(200))
    assert granted is not None
    assert opened(Zones({"east": 0, "west": 1}).ask("east", "east"), granted.after) == []
    assert opened(Zones({"east": 0, "west": 1}).ask("east", "west", "west"), granted.after) == ["west-1"]


def test_growth_does_not_take_the_place_of_a_base_worker_of_another_template() -> None:
    zones = Zones({"east": 0, "west": 0}).ask("east")
    ledger = zones.ledger(zones.record)
    ledger.remove_pod("west-base-0")
    assert Growing.of(zones.record, ledger).within == []


def test_bound_pod_takes_the_place_of_its_own_template() -> None:
    """The worker of the west is bound, that of the east is not: the gang holds a place in the east."""
    zones = Zones({"east": 1, "west": 1})
    ledger = zones.ledger(zones.record)
    ledger.remove_pod("east-base-0")
    assert held(ledger, zones.record) == {"east": 1}


# --- Growth goes to nodes where its pod affinity and anti-affinity to the pods of its own gang let it be ---


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
        facts = GrantFacts(Forest.undeclared(), [], WaitingGangs(), at(200))
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
