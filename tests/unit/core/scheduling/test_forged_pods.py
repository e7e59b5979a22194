"""Pods that a tenant makes under its own running gang, with any mark, amount and node: they grant it nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.core.lifecycle import run_changes
from dispatcher.core.lifecycle.growth import admissible, count_of, growth_of, pods_soon, taken_soon
from dispatcher.core.model import incremental
from dispatcher.core.model.gang import Gang, PodSet
from dispatcher.core.model.nodes import Node
from dispatcher.core.model.pods import Gate, Pod, PodPhase
from dispatcher.core.model.record import Growth, Phase, Record
from dispatcher.core.model.resources import NOTHING, Resources, sum_of
from dispatcher.core.scheduling.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.grants import GrantFacts, Growing, decide_in_steps
from dispatcher.core.scheduling.sharing.surplus import surplus_of
from dispatcher.core.scheduling.waiting_gangs import WaitingGangs
from tests.builders import at, attempt_of, make_record

ONE = Resources({"cpu": 1000})
HUGE = Resources({"cpu": 4_000_000, "nvidia.com/gpu": 4000})
TEMPLATE = "0.w"
GATE = Gate("team-a", "forged", "2026-01-01T00:00:00Z")
PENDING = Pod("forged", HUGE, owner="uid-of-ray", can_be_gated=True, template="0.x", admitted_as=GATE)
FORGED = [
    pytest.param([PENDING], id="as-admitted-growth"),
    pytest.param([replace(PENDING, template="")], id="of-no-template"),
    pytest.param([replace(PENDING, template=TEMPLATE)], id="of-the-gangs-template"),
    pytest.param([replace(PENDING, template=TEMPLATE, base_pods=1000)], id="of-a-large-base-gang"),
    pytest.param([replace(PENDING, node="ghost")], id="on-a-node-that-does-not-exist"),
    pytest.param([replace(PENDING, gate=GATE, admitted_as=None, base_pods=1000)], id="as-a-gated-base-pod"),
    pytest.param([replace(PENDING, owner=None, claim="uid-of-ray")], id="by-its-label-alone"),
    pytest.param(
        [replace(PENDING, uid=f"forged-{n}", requests=NOTHING, template=TEMPLATE) for n in range(100)],
        id="many-without-requests",
    ),
    pytest.param(
        [replace(PENDING, uid=f"forged-{n}", hosts=999_999_999, replica=f"r{n}") for n in range(3)],
        id="hosts-of-slices",
    ),
]


def running(*growth: Growth) -> Record:
    """A gang of one pod of one cpu, with this growth."""
    gang = Gang(ONE, 1, (PodSet(1, ONE, path="w"),))
    record = make_record(Phase.RUNNING, name="ray", uid="uid-of-ray", gang=gang)
    return replace(record, attempt=replace(attempt_of(record), cluster="hub", growth=growth))


GROWN = running(Growth(at(0), ONE, pods=((TEMPLATE, 1),), count=1))


def ledger_with(record: Record, *pods: Pod, mode: FitMode = FitMode.NODE) -> CapacityLedger:
    """The ledger of two nodes of 4 cpus; the gang's pod runs on the first one."""
    ledger = CapacityLedger(mode, "hub")
    for name in ("n1", "n2"):
        ledger.set_node(Node(name, ONE * 4))
    own = Pod("base", ONE, "n1", PodPhase.RUNNING, owner=record.uid, can_be_gated=True, base_pods=1)
    for pod in (replace(own, template=TEMPLATE), *pods):
        ledger.set_pod(pod)
    ledger.reserve(record.uid, record.gang, grown=record.grown, granted=record.granted)
    return ledger


@pytest.mark.parametrize("mode", FitMode)
@pytest.mark.parametrize("record", [running(), GROWN], ids=["not-grown", "grown"])
@pytest.mark.parametrize("pods", FORGED)
def test_forged_pods_take_no_room_and_no_quota(pods: list[Pod], record: Record, mode: FitMode) -> None:
    ledger = ledger_with(record, *pods, mode=mode)
    assert (ONE * (8 - 1) - record.grown).fits_in(ledger.free())
    assert ledger.charged(record.uid).fits_in(record.held)
    gated = ledger.gated(record.uid)
    within = admissible(record.allowed, ledger.taken(record.uid), gated, record.granted)
    soon = taken_soon(record.allowed, ledger.taken(record.uid), within)
    assert soon.fits_in(record.held)
    assert growth_of(record.placed_gang.demand, soon).fits_in(record.grown)
    taken_pods = ledger.taken_pods(record.uid, record.charged_pods)
    assert pods_soon(record, taken_pods, within) <= record.charged_pods
    assert Growing.of(record, ledger).admitted_pods <= record.charged_pods
    if mode is FitMode.NODE:
        nodes = ledger.snapshot().nodes
        assert nodes is not None
        assert sum_of(each.requests * each.pods for each in nodes.uses[record.uid].held).fits_in(record.grown)


@pytest.mark.parametrize("pods", FORGED)
def test_grant_of_honest_growth_has_the_amounts_of_that_alone(pods: list[Pod]) -> None:
    record = running()
    gate = Gate("team-a", "more", "2026-01-01T00:01:00Z")
    more = Pod("more", ONE, owner=record.uid, gate=gate, can_be_gated=True, template=TEMPLATE, base_pods=1)
    ledger = ledger_with(record, more, *pods)
    waiting = incremental.run(WaitingGangs.of([], None, at(0), {}))
    snapshots = {"hub": ClusterSnapshot("hub", ledger.snapshot())}
    growing = [Growing.of(record, ledger)]
    (grant,) = incremental.run(decide_in_steps(growing, GrantFacts(None, (), waiting, at(0)), snapshots))
    if grant.pods:
        assert grant.amounts == sum_of(each.requests for each in grant.pods)
    assert grant.amounts.fits_in(ONE)
    assert grant.count == len(grant.pods)


@pytest.mark.parametrize("pods", FORGED)
def test_surplus_is_what_other_gangs_would_get(pods: list[Pod]) -> None:
    worker = Pod("worker", ONE, "n2", PodPhase.RUNNING, owner=GROWN.uid, can_be_gated=True, template=TEMPLATE)
    worker = replace(worker, base_pods=1, admitted_as=replace(GATE, name="worker"))
    base = Pod("base", ONE, "n1", PodPhase.RUNNING, owner=GROWN.uid, can_be_gated=True, template=TEMPLATE)
    base = replace(
        base, base_pods=1, admitted_as=replace(GATE, name="base", created_at="2025-01-01T00:00:00Z")
    )
    found = surplus_of(GROWN, ledger_with(GROWN, worker, base, *pods))
    charged = [each for each in found.pods if each.node in {"n1", "n2"}]
    assert [each.name for each in charged] == ["worker"]
    assert sum_of(each.requests for each in found.pods if not each.is_gated).fits_in(GROWN.grown)
    assert found.admitted_pods == 2


@pytest.mark.parametrize("mode", FitMode)
@pytest.mark.parametrize("record", [running(), GROWN], ids=["not-grown", "grown"])
def test_pod_that_only_its_author_says_to_be_on_a_node_takes_no_quota_and_no_room_elsewhere(
    record: Record, mode: FitMode
) -> None:
    ledger = ledger_with(record, replace(PENDING, node="n2", node_by_author=True), mode=mode)
    assert (ONE * (4 - 1) - record.grown).fits_in(ledger.free())
    assert ledger.charged(record.uid).fits_in(record.held)
    assert ledger.taken(record.uid).fits_in(record.held)
    assert surplus_of(record, ledger).pods == ()


def test_pod_is_charged_beyond_the_record_once_somebody_else_says_that_it_is_on_its_node() -> None:
    record, pod = running(), replace(PENDING, requests=ONE * 2, node="n2", node_by_author=True)
    ledger = ledger_with(record, pod)
    ledger.set_pod(replace(pod, node_by_author=False))
    assert (ledger.charged(record.uid), ledger.free()) == (ONE * 3, ONE * (8 - 1 - 2))
    ledger.set_pod(pod)
    assert ledger.charged(record.uid) == ONE
    ledger.remove_node("n2")
    ledger.remove_pod(pod.uid)
    assert (ledger.charged(record.uid), ledger.free()) == (ONE, ONE * 3)


def test_pod_on_a_node_that_exists_is_charged_for_what_it_uses() -> None:
    record = running()
    ledger = ledger_with(record, replace(PENDING, requests=ONE * 2, node="n2"))
    assert ledger.free() == ONE * (8 - 1 - 2)
    assert ledger.charged(record.uid) == ledger.taken(record.uid) == ONE * 3


BOUND = replace(PENDING, requests=ONE, node="n2", phase=PodPhase.RUNNING)
TAKEN = replace(PENDING, requests=ONE)


@pytest.mark.parametrize(
    ("record", "pods", "count"),
    [
        pytest.param(running(), [], 0, id="the-gang-alone"),
        pytest.param(running(), [TAKEN], 0, id="pending-and-not-granted"),
        pytest.param(running(), [replace(TAKEN, node="ghost")], 0, id="on-a-node-that-does-not-exist"),
        pytest.param(running(), [replace(BOUND, node_by_author=True)], 0, id="on-a-node-by-its-author"),
        pytest.param(running(), [BOUND], 1, id="on-a-node"),
        pytest.param(running(), [replace(BOUND, requests=NOTHING)], 1, id="on-a-node-without-requests"),
        pytest.param(running(), [replace(BOUND, can_be_gated=False)], 1, id="on-a-node-without-the-gate"),
        pytest.param(running(), [replace(BOUND, phase=PodPhase.SUCCEEDED)], 0, id="ended"),
        pytest.param(GROWN, [TAKEN], 1, id="granted-and-pending"),
        pytest.param(GROWN, [TAKEN, replace(TAKEN, uid="more")], 1, id="pending-beside-a-grant"),
        pytest.param(GROWN, [BOUND, replace(TAKEN, uid="more")], 1, id="pending-beside-a-grant-on-a-node"),
        pytest.param(GROWN, [BOUND, replace(BOUND, uid="more")], 2, id="on-a-node-beside-a-grant"),
        pytest.param(GROWN, [], 0, id="granted-and-gone"),
    ],
)
def test_queue_is_charged_with_the_number_of_granted_pods_and_of_those_on_nodes(
    record: Record, pods: list[Pod], count: int
) -> None:
    ledger = ledger_with(record, *pods)
    taken = ledger.taken_pods(record.uid, record.charged_pods)
    assert count_of(record, pods_soon(record, taken, ())) == count
    noted = run_changes.note_growth(record, ledger.taken(record.uid), at(60), count=count).after
    assert noted.quota_charge["pods"] == noted.charged_pods == 1 + count
    for pod in pods:
        ledger.remove_pod(pod.uid)
    assert ledger.taken_pods(record.uid, noted.charged_pods) == 1


NODES = ("", "n1", "n2", "n3", "ghost")
ANY_PODS = st.lists(
    st.builds(
        Pod,
        uid=st.sampled_from(["p1", "p2", "p3"]),
        requests=st.sampled_from([NOTHING, ONE]),
        node=st.sampled_from(NODES),
        phase=st.sampled_from(PodPhase),
        owner=st.sampled_from([None, "uid-of-ray"]),
        claim=st.just("uid-of-ray"),
        can_be_gated=st.booleans(),
        node_by_author=st.booleans(),
    ),
    max_size=8,
)


@given(pods=ANY_PODS, gone=st.sampled_from(NODES), held=st.integers(0, 4))
def test_number_of_pods_is_that_of_those_on_nodes_and_within_what_is_held(
    pods: list[Pod], gone: str, held: int
) -> None:
    ledger, last = CapacityLedger(), {pod.uid: pod for pod in pods}
    for name in ("n1", "n2"):
        ledger.set_node(Node(name, ONE))
    for pod in pods:
        ledger.set_pod(pod)
    ledger.set_node(Node("n3", ONE))
    ledger.remove_node(gone)
    live = [pod for pod in last.values() if pod.live]
    there = sum(pod.node in {"n1", "n2", "n3"} - {gone} and not pod.node_by_author for pod in live)
    elsewhere = len(live) - there if any(pod.can_be_gated for pod in live) else 0
    assert ledger.taken_pods("uid-of-ray", held) == max(there, min(there + elsewhere, held))
    for uid in last:
        ledger.remove_pod(uid)
    assert ledger._shares == {}  # noqa: SLF001  # nothing else shows what is kept


def test_amounts_move_with_the_nodes_that_come_and_go() -> None:
    record, pod = running(), replace(PENDING, requests=ONE * 2, node="n3")
    ledger = ledger_with(record, pod)
    assert (ledger.taken(record.uid), ledger.taken_pods(record.uid, 1)) == (ONE, 1)
    ledger.set_node(Node("n3", ONE * 4))
    assert (ledger.taken(record.uid), ledger.free()) == (ONE * 3, ONE * (12 - 1 - 2))
    assert ledger.taken_pods(record.uid, 1) == 2
    ledger.set_node(Node("n3", ONE * 5))
    assert ledger.taken(record.uid) == ONE * 3
    ledger.remove_node("n3")
    assert (ledger.taken(record.uid), ledger.free()) == (ONE, ONE * 7)
    ledger.remove_pod(pod.uid)
    ledger.set_node(Node("n3", ONE * 4))
    assert ledger.taken(record.uid) == ONE


def test_growth_stays_charged_while_its_node_is_gone_and_its_pod_is_not() -> None:
    worker = Pod("worker", ONE, "n2", PodPhase.RUNNING, owner=GROWN.uid, can_be_gated=True, template=TEMPLATE)
    ledger = ledger_with(GROWN, replace(worker, base_pods=1))
    ledger.remove_node("n2")
    assert ledger.taken(GROWN.uid) == ONE * 2
    ledger.remove_pod("worker")
    assert ledger.taken(GROWN.uid) == ONE


def test_pod_without_requests_leaves_nothing_behind() -> None:
    ledger = CapacityLedger()
    pod = Pod("p", NOTHING, "n1", claim="uid-of-ray")
    ledger.set_node(Node("n1", ONE))
    ledger.set_pod(pod)
    ledger.remove_node("n1")
    ledger.set_node(Node("n1", ONE))
    assert ledger.taken_pods("uid-of-ray", 0) == 1
    ledger.remove_pod("p")
    assert (ledger._shares, ledger._pods_on) == ({}, {})  # noqa: SLF001  # nothing else shows what is kept


def test_growth_is_charged_once_from_grant_to_end_and_after_a_restart() -> None:
    """Granted, admitted, bound, gone; a new leader's ledger has the same amounts at each step."""
    gate = Gate("team-a", "more", "2026-01-01T00:01:00Z")
    gated = Pod("more", ONE, owner=GROWN.uid, gate=gate, can_be_gated=True, template=TEMPLATE, base_pods=1)
    admitted = replace(gated, gate=None, admitted_as=gate)
    bound = replace(admitted, node="n2", phase=PodPhase.RUNNING)
    ledger = ledger_with(GROWN)
    for pod in (gated, admitted, bound):
        ledger.set_pod(pod)
        anew = ledger_with(GROWN, pod)
        for each in (ledger, anew):
            assert (each.free(), each.charged(GROWN.uid)) == (ONE * 6, ONE * 2)
    ledger.remove_pod("more")
    assert ledger.taken(GROWN.uid) == ONE
    ledger.reserve(GROWN.uid, GROWN.gang)
    assert (ledger.free(), ledger.charged(GROWN.uid)) == (ONE * 7, ONE)
