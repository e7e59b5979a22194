"""A replica of several hosts is a slice: its pods are granted, admitted and given up together, or none of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from dispatcher.core.lifecycle import run_changes
from dispatcher.core.lifecycle.growth import lacking_hosts
from dispatcher.core.model import incremental
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.gangs.growth import GrowthRequest
from dispatcher.core.model.gangs.pods import Gate, Pod
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.forest import Forest
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.growth.grant_facts import GrantFacts
from dispatcher.core.scheduling.growth.grants import change_of, decide_in_steps
from dispatcher.core.scheduling.growth.growing import Grant, Growing
from dispatcher.core.scheduling.growth.waiting_gangs import WaitingGangs
from dispatcher.core.scheduling.preemption.surplus import given_up, in_parts, surplus_of
from dispatcher.core.scheduling.sharing.gangs import ActiveGang
from tests.builders import at, attempt_of, make_record

CPU = Resources({"cpu": 1000})
HOSTS = 4
TEMPLATE = "0.spec.workerGroupSpecs[0].template"


@dataclass
class Slices:
    """Gangs with a slice of four hosts each, on single-cpu nodes, beside which that many nodes are `free`."""

    free: int
    gangs: Sequence[str] = ("one",)
    gated: list[Pod] = field(default_factory=list)
    admitted: list[Pod] = field(default_factory=list)

    def ask(self, gang: str, hosts: str = "0123", replica: str = "", since: int = 100) -> Slices:
        """Hosts of one more slice wait, the first the oldest; those of one gang every second second."""
        for number, host in enumerate(hosts):
            name = f"{gang}{replica}{host}"
            gate = Gate("team-a", name, f"{at(since + 2 * number):%Y-%m-%dT%H:%M:%SZ}")
            self.gated.append(self._host(gang, name, replica, gate=gate))
        return self

    def _host(self, gang: str, name: str, replica: str = "", node: str = "", gate: Gate | None = None) -> Pod:
        admitted_as = None if gate else Gate("team-a", name, f"{at(0):%Y-%m-%dT%H:%M:%SZ}")
        return Pod(
            name,
            CPU,
            node,
            owner=f"uid-of-{gang}",
            gate=gate,
            can_be_gated=True,
            template=TEMPLATE,
            base_pods=HOSTS,
            hosts=HOSTS,
            replica=replica,
            admitted_as=admitted_as,
        )

    def record(self, gang: str) -> Record:
        """A gang before its growth."""
        path = TEMPLATE.removeprefix("0.")
        return make_record(
            Phase.RUNNING,
            gang,
            uid=f"uid-of-{gang}",
            gang=Gang(CPU * HOSTS, HOSTS, (PodSet(HOSTS, CPU, path=path),)),
        )

    def ledger(self, records: Sequence[Record], base: int = HOSTS) -> CapacityLedger:
        """The ledger of a leader that has these records."""
        found = CapacityLedger(FitMode.NODE, "hub")
        for number in range(self.free):
            found.set_node(Node(f"free-{number}", CPU))
        for record in records:
            for number in range(base):
                name = f"{record.name}-base-{number}"
                found.set_node(Node(name, CPU))
                replica = f"{record.name}-base" if self.gated[0].replica else ""
                found.set_pod(self._host(record.name, name, replica, name))
            assignment = attempt_of(record).assignment
            found.reserve(record.uid, record.gang, assignment, record.grown, record.granted)
        for pod in (*self.gated, *self.admitted):
            found.set_pod(pod)
        return found

    def decide(self) -> dict[str, Grant]:
        """The decisions of a pass, by the name of the gang."""
        records = [self.record(each) for each in self.gangs]
        ledger = self.ledger(records)
        growing = [Growing.of(each, ledger) for each in records]
        snapshots = {"hub": ClusterSnapshot("hub", ledger.snapshot())}
        facts = GrantFacts(Forest.undeclared(), [], WaitingGangs(), at(200))
        grants = incremental.run(decide_in_steps(growing, facts, snapshots))
        return {each.record.name: each for each in grants}

    def granted(self) -> Record:
        """The record of the first gang once its grant is committed."""
        change = change_of(self.decide()[self.gangs[0]], at(200))
        assert change is not None
        return change.after

    def opened(self, record: Record, base: int = HOSTS) -> list[str]:
        """The pods that a leader with this record admits."""
        return [each.uid for each in Growing.of(record, self.ledger([record], base)).within]


REPLICAS = pytest.mark.parametrize("replicas", ["ab", ("", "")], ids=["by-replica", "by-age"])


@REPLICAS
@pytest.mark.parametrize(("free", "pods"), [(3, 0), (4, 4), (7, 4), (8, 8)])
def test_slice_is_granted_whole_or_not_at_all(free: int, pods: int, replicas: Sequence[str]) -> None:
    first, second = replicas
    slices = Slices(free).ask("one", replica=first).ask("one", "4567", second, since=110)
    grant = slices.decide()["one"]
    assert (len(grant.pods), grant.request.pods if grant.request else 0) == (pods, 8 - pods)
    assert len({(pod.slice, pod.missing) for pod in grant.pods}) == pods // HOSTS
    if pods:
        assert slices.opened(slices.granted()) == [pod.uid for pod in grant.pods]


@REPLICAS
def test_two_gangs_do_not_get_half_a_slice_each(replicas: Sequence[str]) -> None:
    """Their hosts are of alternating ages, and there is room for six of eight."""
    one, two = replicas
    slices = Slices(6, ("one", "two")).ask("one", replica=one).ask("two", replica=two, since=101)
    grants = slices.decide()
    assert {name: len(each.pods) for name, each in grants.items()} == {"one": 4, "two": 0}
    request = grants["two"].request
    assert request is not None
    assert request.message.startswith("4 more pods wait (cpu 4): cluster hub: cpu: needs 4, 2 free")


@REPLICAS
@pytest.mark.parametrize(
    ("since", "said"),
    [
        pytest.param(187, None, id="the-next-host-may-come"),
        pytest.param(186, "3 more pods wait (cpu 3): its slice has 3 of 4 hosts", id="it-does-not-come"),
    ],
)
def test_slice_asks_once_all_its_hosts_are_there_and_says_that_some_do_not_come(
    replicas: Sequence[str], since: int, said: str | None
) -> None:
    grant = Slices(8).ask("one", "012", replicas[0], since).decide()["one"]
    expected = None if said is None else GrowthRequest(3, CPU * 3, at(200), "SliceIncomplete", said)
    assert (grant.pods, grant.request) == ((), expected)


@REPLICAS
def test_reason_of_a_whole_slice_is_told_before_that_of_one_without_all_hosts(
    replicas: Sequence[str],
) -> None:
    first, second = replicas
    slices = Slices(3).ask("one", replica=first).ask("one", "45", second, since=110)
    request = slices.decide()["one"].request
    assert request is not None
    assert request.message.startswith("4 more pods wait (cpu 4): cluster hub: cpu: needs 4, 3 free")


def test_slice_that_lost_a_gated_host_counts_the_admitted_ones() -> None:
    slices = Slices(4).ask("one", replica="a")
    record = slices.granted()
    slices.admitted = [replace(pod, gate=None, admitted_as=pod.gate) for pod in slices.gated[:2]]
    slices.gated = slices.gated[2:3]
    growing = Growing.of(record, slices.ledger([record]))
    assert (growing.has_waiting, [hosts[0].missing for hosts in lacking_hosts(growing.gated, at(200))]) == (
        True,
        [2],
    )
    assert slices.decide()["one"].request == GrowthRequest(
        1, CPU, at(200), "SliceIncomplete", "1 more pod waits (cpu 1): its slice has 3 of 4 hosts"
    )


def test_hosts_of_two_replicas_of_the_same_age_are_not_mixed() -> None:
    slices = Slices(4)
    for number in "0123":
        slices.ask("one", number, "a").ask("one", number, "b")
    assert slices.opened(slices.granted()) == ["onea0", "onea1", "onea2", "onea3"]


@REPLICAS
def test_admission_that_stopped_midway_goes_on_with_the_same_slice(replicas: Sequence[str]) -> None:
    first, second = replicas
    slices = Slices(4).ask("one", replica=first).ask("one", "4567", second, since=110)
    record = slices.granted()
    for pod in slices.gated[:2]:
        slices.admitted.append(replace(pod, gate=None, admitted_as=pod.gate))
    slices.gated = slices.gated[2:]
    assert slices.opened(record) == [f"one{first}2", f"one{first}3"]


@REPLICAS
def test_slice_of_the_base_gang_needs_no_grant_and_all_its_places(replicas: Sequence[str]) -> None:
    slices = Slices(0).ask("one", "01", replicas[0])
    # Two hosts of the base gang are still there: the slice that takes its place waits until they are gone.
    assert slices.opened(slices.record("one"), base=0) == [f"one{replicas[0]}0", f"one{replicas[0]}1"]
    if replicas[0]:
        assert slices.opened(slices.record("one"), base=2) == []


def test_slice_is_given_up_whole() -> None:
    slices = Slices(8).ask("one", replica="a").ask("one", "4567", "b", since=110)
    record = slices.granted()
    ledger = slices.ledger([record])
    for number, pod in enumerate(slices.gated):
        ledger.set_pod(replace(pod, gate=None, admitted_as=pod.gate, node=f"free-{number}"))
    gang = ActiveGang(record, "hub", at(0))
    parts = in_parts([gang], {gang.uid: surplus_of(record, ledger)})
    assert [len(each.part.pods) for each in parts if each.part] == [4, 4, 0]
    assert [each.charge for each in parts] == [CPU * 4 + {"pods": 4}] * 3

    given = given_up(record, parts[:1])
    assert [pod.name for pod in given.pods] == ["oneb4", "oneb5", "oneb6", "oneb7"]
    assert given.growth == CPU * 4


def test_growth_of_a_slice_shrinks_as_its_pods_do() -> None:
    record = Slices(8).ask("one", replica="a").granted()
    assert (record.grown, record.granted) == (CPU * 4, ((TEMPLATE, 4),))
    gone = run_changes.note_growth(record, CPU * 4, at(300), ())
    assert (gone.after.grown, gone.after.granted) == (Resources({}), ())
