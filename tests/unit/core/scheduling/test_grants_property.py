"""Whatever asks for growth: what is granted has room and quota, covers its pods, and a second pass grants no more."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.core.lifecycle.growth import admissible
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.pods import Gate, Pod, PodPhase
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import NOTHING, Resources, sum_of
from dispatcher.core.queues.queue import Elastic, Queue, Quota
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.growth.grants import change_of
from dispatcher.core.scheduling.growth.growing import Grant
from tests.builders import at, make_gang, make_record
from tests.unit.core.scheduling.test_grants import CPU, Hub, waiting
from tests.unit.core.scheduling.test_grants_templates import ZONES, Zones, held, opened

REASONS = ("InsufficientResources", "InsufficientQuota", "AwaitingRelease", "LargerThanCluster", None)
ASKS = st.lists(st.tuples(st.integers(40, 60), st.integers(1, 5)), max_size=5)
"""Pods by age, with their cpus."""


@dataclass(frozen=True)
class Case:
    """Gangs that ask for growth beside gangs that wait, in queues with quotas."""

    hub: Hub
    asks: dict[Record, list[tuple[float, int]]]
    queued: list[Record]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    quotas = draw(st.lists(st.integers(0, 12), min_size=2, max_size=2))
    limits = draw(st.lists(st.sampled_from([0, 2, None]), min_size=2, max_size=2))
    elastic = draw(st.sampled_from(Elastic))
    leaves = [
        Queue(
            name,
            "org",
            {"cpu": Quota(quota * 1000, None if limit is None else limit * 1000)},
            elastic=elastic,
        )
        for name, quota, limit in zip("ab", quotas, limits, strict=True)
    ]
    queues = draw(st.sampled_from([None, (Queue("org"), *leaves)]))
    asks = {}
    for number in range(draw(st.integers(1, 3))):
        record = make_record(
            Phase.RUNNING,
            f"ray{number}",
            gang=make_gang(cpu=1000 * draw(st.integers(1, 3))),
            queue=draw(st.sampled_from("ab")),
            priority=draw(st.integers(0, 1)),
        )
        asks[record] = [(float(seconds), cpu) for seconds, cpu in draw(ASKS)]
    queued = [
        replace(
            waiting(
                draw(st.sampled_from(REASONS)), cpu=draw(st.integers(1, 6)), seconds=draw(st.integers(40, 60))
            ),
            uid=f"uid-of-waits-{number}",
            queue=draw(st.sampled_from("ab")),
            blocked_since=draw(st.sampled_from([None, at(-1000)])),
        )
        for number in range(draw(st.integers(0, 2)))
    ]
    hub = Hub(draw(st.integers(1, 3)), queues, draw(st.sampled_from(FitMode)))
    return Case(hub, asks, queued)


def granted(grants: list[Grant]) -> list[Resources]:
    """The requests of each granted pod."""
    return [pod.requests for each in grants for pod in each.pods]


@given(case=cases())
def test_grants_have_room_and_quota_cover_their_pods_and_are_all(case: Case) -> None:
    grants = case.hub.decide(case.asks, case.queued)
    after: dict[Record, list[tuple[float, int]]] = {}
    for each in grants:
        asked = case.asks[each.record]
        change = change_of(each, at(200))
        record = each.record if change is None else change.after
        assert len(each.pods) + (each.request.pods if each.request else 0) == len(asked)
        assert (record.growth_request is None) == (each.request is None)
        gated = sorted(each.pods, key=lambda pod: (pod.created_at, pod.name))
        assert admissible(record.held, record.gang.demand, gated) == gated
        assert record.held == record.gang.demand + sum_of(pod.requests for pod in each.pods)
        after[record] = asked
    held = sum_of(record.held for record in after)
    before = sum_of(record.gang.demand for record in after)
    total = CPU * (4 * case.hub.nodes)
    assert held.fits_in(total) or not granted(grants) or not before.fits_in(total)
    if case.hub.queues is not None:
        nominal = sum_of(Resources({"cpu": each.resources["cpu"].nominal}) for each in case.hub.queues[1:])
        assert held.fits_in(nominal) or not granted(grants)
    # On nodes, the ledger may give the granted pods other places than the pass, which leaves room for others.
    if case.hub.mode is FitMode.AGGREGATE:
        assert granted(case.hub.decide(after, case.queued)) == []


@st.composite
def zones(draw: st.DrawFn) -> tuple[Zones, list[str]]:
    """Groups with equal requests for two zones, some with slices of hosts, and the zones of the replicas that ask."""
    few = st.integers(0, 5)
    found = Zones(
        {name: draw(few) for name in ZONES},
        base=draw(st.integers(0, 2)),
        hosts={name: draw(st.integers(1, 3)) for name in ZONES},
        is_named=draw(st.booleans()),
    )
    asks = draw(st.lists(st.sampled_from(ZONES), min_size=1, max_size=6))
    return found.ask(*asks), asks


@given(case=zones())
def test_growth_takes_the_room_of_its_own_template_in_whole_slices(case: tuple[Zones, list[str]]) -> None:
    hub, asks = case
    grant = hub.decide()
    change = change_of(grant, at(200))
    record = hub.record if change is None else change.after
    opened_ones = [pod.uid for pod in grant.pods]
    by_zone = Counter(uid.partition("-")[0] for uid in opened_ones)
    for name in ZONES:
        most = min(asks.count(name), hub.free[name] // hub.hosts[name])
        assert by_zone[name] == most * hub.hosts[name]
    # Another leader opens the same pods, and holds their places in their zones.
    assert sorted(opened(hub, record)) == sorted(opened_ones)
    assert held(hub.ledger(record), record) == +by_zone
    assert hub.decide(record).pods == ()


# -----------------------------------------------------------------------------------------------------------
# A grant is charged from its commit on, so that no two grants get the same room; a growth request is not
# charged.


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
