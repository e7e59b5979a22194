"""Pods that are spread over domains: which counts are found, that they hold, and what counts as a domain."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.core.model.clusters.nodes import Node, NodeRequirements, Taint, Toleration
from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment, Gang, PodSet, Spread
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.fit.fit import Shortfall, fit, fits
from dispatcher.core.scheduling.fit.search_budget import CHEAP
from dispatcher.core.scheduling.placement.node_traits import Traits
from dispatcher.core.scheduling.placement.placement_bounds import MOST_SPREAD, MOST_STEPS_IN_ALL, Work
from dispatcher.core.scheduling.placement.spread import MOST_SINGLE_PODS, Spreading

HOST, ZONE = Spread("host"), Spread("zone")
TAINT = Taint("team", "a", "NoSchedule")
A = NodeRequirements((("zone", "a"),))


def node(at: int, cpu: int, zone: str = "", **labels: str) -> Node:
    zoned = {"zone": zone} if zone else {}
    return Node(f"n{at}", Resources({"cpu": cpu}), labels={"host": f"n{at}", **zoned, **labels})


def in_zones(**cpus: int) -> tuple[Node, ...]:
    """A node in each zone, with so many cpus."""
    return tuple(node(at, cpu, zone) for at, (zone, cpu) in enumerate(cpus.items()))


def pods(count: int, *spread: Spread, cpu: int = 1, **fields: object) -> PodSet:
    return PodSet(count, Resources({"cpu": cpu}), spread=spread, **fields)  # type: ignore[arg-type]


def gang(*pod_sets: PodSet) -> Gang:
    return Gang(sum((each.total for each in pod_sets), start=NOTHING), 0, pod_sets)


def ledger_of(*nodes: Node) -> CapacityLedger:
    ledger = CapacityLedger(FitMode.NODE)
    for each in nodes:
        ledger.set_node(each)
    return ledger


def counted(nodes: tuple[Node, ...], asked: PodSet, label: str) -> dict[str, int] | None:
    """The pods by the values of a label; None if the gang does not fit."""
    found = fit(gang(asked), ledger_of(*nodes).snapshot())
    if isinstance(found, Shortfall):
        return None
    values = {each.name: each.labels.get(label, "") for each in nodes}
    counts = Counter[str]()
    for name, number in found.places[0]:
        counts[values[name]] += number
    return dict(counts)


def cordoned(at: int, zone: str) -> Node:
    return replace(node(at, 9, zone), usable=False)


def tainted(at: int, zone: str) -> Node:
    return replace(node(at, 9, zone), taints=(TAINT,))


@pytest.mark.parametrize(
    ("nodes", "asked", "expected"),
    [
        pytest.param(in_zones(a=9, b=9), pods(4, ZONE), {"a": 2, "b": 2}, id="evenly"),
        pytest.param(in_zones(a=9, b=2), pods(5, ZONE), {"a": 3, "b": 2}, id="one-more"),
        pytest.param(in_zones(a=9, b=2), pods(6, ZONE), None, id="two-more"),
        pytest.param(in_zones(a=9, b=2), pods(6, Spread("zone", 2)), {"a": 4, "b": 2}, id="skew-of-two"),
        pytest.param(in_zones(a=9, b=0), pods(1, ZONE), {"a": 1}, id="a-full-zone-counts-as-none"),
        pytest.param(in_zones(a=9, b=0), pods(2, ZONE), None, id="a-full-zone-counts"),
        pytest.param((node(0, 9, "a"), cordoned(1, "b")), pods(2, ZONE), None, id="a-cordoned-zone-counts"),
        pytest.param((node(0, 9, "a"), tainted(1, "b")), pods(2, ZONE), None, id="a-tainted-zone-counts"),
        pytest.param(
            (node(0, 9, "a"), tainted(1, "b"), cordoned(2, "c")),
            pods(2, Spread("zone", honors_taints=True)),
            {"a": 2},
            id="unless-taints-are-honored",
        ),
        pytest.param(
            (node(0, 9, "a"), tainted(1, "b")),
            pods(2, Spread("zone", honors_taints=True), tolerations=(Toleration("team", "Exists"),)),
            {"a": 1, "b": 1},
            id="a-tolerated-zone-counts",
        ),
        pytest.param(
            in_zones(a=9, b=9), pods(2, ZONE, nodes=A), {"a": 2}, id="a-zone-not-selected-does-not-count"
        ),
        pytest.param(
            in_zones(a=9, b=9),
            pods(2, Spread("zone", ignores_requirements=True), nodes=A),
            None,
            id="unless-requirements-are-ignored",
        ),
        pytest.param((node(0, 9, "a"), node(1, 9)), pods(3, ZONE), {"a": 3}, id="no-label-no-pod"),
        pytest.param((node(0, 9),), pods(1, ZONE), None, id="no-node-has-the-label"),
        pytest.param(
            (node(0, 9, "a"), node(1, 9, "b", rack="1")),
            pods(3, ZONE, Spread("rack")),
            {"b": 3},
            id="a-node-without-one-of-the-labels-counts-for-no-domain",
        ),
        pytest.param(in_zones(a=9, b=9), pods(3, Spread("zone", 1, 3)), None, id="too-few-domains"),
        pytest.param(
            in_zones(a=9, b=9), pods(2, Spread("zone", 1, 3)), {"a": 1, "b": 1}, id="a-skew-from-nothing"
        ),
        pytest.param(
            (node(0, 9, "a"), node(1, 9, "a"), node(2, 9, "b")),
            pods(6, HOST, ZONE),
            None,
            id="hosts-and-zones-contradict",
        ),
        pytest.param(
            (node(0, 9, "a"), node(1, 9, "a"), node(2, 9, "b")),
            pods(3, HOST, ZONE),
            {"a": 2, "b": 1},
            id="hosts-and-zones-agree",
        ),
        pytest.param(
            (*(node(at, 9, "a") for at in range(10)), node(10, 20, "b")),
            pods(22, Spread("host", 10), ZONE),
            {"a": 11, "b": 11},
            id="hosts-have-fewer-than-they-could-for-the-sake-of-zones",
        ),
        pytest.param(
            (node(0, 2, "a", rack="1"), node(1, 1, "a", rack="2"), node(2, 2, "b", rack="1")),
            pods(4, ZONE, Spread("rack")),
            None,
            id="racks-that-cross-zones-contradict",
        ),
        pytest.param(
            (node(0, 2, "a", rack="1"), node(1, 2, "a", rack="2"), node(2, 2, "b", rack="1")),
            pods(3, ZONE, Spread("rack")),
            {"a": 2, "b": 1},
            id="racks-that-cross-zones",
        ),
        pytest.param(
            (*in_zones(a=9, b=9), node(2, 9, "a")),
            pods(2, ZONE, apart=("host",)),
            {"a": 1, "b": 1},
            id="apart-on-hosts-in-zones",
        ),
        pytest.param(
            (node(0, 3, "a"), node(1, 3, "a"), node(2, 9, "b")),
            pods(2, Spread("host", 1), together=("zone",)),
            {"a": 2},
            id="together-in-the-zone-with-two-hosts",
        ),
        pytest.param(
            in_zones(a=9, b=9), pods(2, ZONE, together=("zone",)), None, id="together-and-spread-contradict"
        ),
        pytest.param(
            (node(0, 9, "a", rack="1"), node(1, 1, "a", rack="2"), node(2, 9, "b", rack="1")),
            pods(2, Spread("rack"), apart=("zone",)),
            {"a": 1, "b": 1},
            id="apart-takes-the-node-that-the-spread-needs",
        ),
    ],
)
def test_pods_of_each_zone(nodes: tuple[Node, ...], asked: PodSet, expected: dict[str, int] | None) -> None:
    assert counted(nodes, asked, "zone") == expected


def test_pod_sets_share_nodes_and_each_is_spread() -> None:
    nodes = in_zones(a=4, b=4)
    found = fit(gang(pods(4, ZONE), pods(2, ZONE, cpu=2)), ledger_of(*nodes).snapshot())
    assert isinstance(found, Assignment)
    assert [dict(each) for each in found.places] == [{"n0": 2, "n1": 2}, {"n0": 1, "n1": 1}]


BOTH = replace(ZONE, counts=(1,)), replace(ZONE, counts=(-1,))
"""The spreads of a head and its workers with one constraint, which selects all of them."""


@pytest.mark.parametrize(
    ("cpus", "head", "workers", "expected"),
    [
        pytest.param({"a": 9, "b": 9}, BOTH[:1], BOTH[1:], {"a": 2, "b": 2}, id="evenly"),
        pytest.param({"a": 9, "b": 9}, (), BOTH[1:], {"a": 2, "b": 2}, id="head-without-a-constraint"),
        pytest.param({"a": 9, "b": 2}, BOTH[:1], BOTH[1:], {"a": 2, "b": 2}, id="narrow-zone"),
        pytest.param({"a": 9, "b": 1}, BOTH[:1], BOTH[1:], None, id="no-room-in-a-zone"),
    ],
)
def test_head_counts_for_the_spread_of_its_workers(
    cpus: dict[str, int],
    head: tuple[Spread, ...],
    workers: tuple[Spread, ...],
    expected: dict[str, int] | None,
) -> None:
    nodes = in_zones(**cpus)
    found = fit(gang(pods(1, *head), pods(3, *workers)), ledger_of(*nodes).snapshot())
    if expected is None:
        assert isinstance(found, Shortfall)
        return
    assert isinstance(found, Assignment)
    counts = Counter[str]()
    for places in found.places:
        counts.update(dict(places))
    assert {each.labels["zone"]: counts[each.name] for each in nodes} == expected


def test_bound_pods_of_later_templates_count_too() -> None:
    """The head is made anew beside its workers, of which two are in one zone."""
    ledger, asked = ledger_of(*in_zones(a=9, b=9)), gang(pods(1, BOTH[0]), pods(2, cpu=2))
    ledger.reserve("x", asked, Assignment(((("gone", 1),), (("n0", 2),))))
    for name in ("p", "q"):
        ledger.set_pod(Pod(name, Resources({"cpu": 2}), "n0", PodPhase.RUNNING, owner="x"))
    free = [cpu for cpu in range(1, 10) if fits(gang(pods(1, cpu=cpu, nodes=A)), ledger.snapshot())]
    assert max(free) == 5  # the head's place is in the other zone


def test_nodes_with_the_least_free_are_used_first_in_every_domain() -> None:
    nodes = (*in_zones(a=9, b=9), node(2, 3, "a"), node(3, 3, "b"))
    found = fit(gang(pods(4, ZONE)), ledger_of(*nodes).snapshot())
    assert found == Assignment(((("n2", 2), ("n3", 2)),))


LARGE = tuple(
    node(at, 4 + at % 3, "abc"[at % 3], rack=str(at % 12), pool="xyzuv"[at * 7 % 5]) for at in range(1200)
)


@pytest.mark.parametrize(
    ("spread", "count", "is_placed"),
    [
        pytest.param((HOST,), 1200, True, id="one-on-each-host"),
        pytest.param((HOST,), 5 * 1200 - 400, True, id="as-many-as-the-smallest-host-allows"),
        pytest.param((HOST,), 5 * 1200 - 399, False, id="one-more"),
        pytest.param((HOST, ZONE), 4801, True, id="nested"),
        pytest.param((HOST, ZONE), 4803, False, id="nested-until-the-smallest-zone-is-full"),
        pytest.param((HOST, Spread("rack"), ZONE), 2000, True, id="three-deep"),
        pytest.param((ZONE, Spread("pool")), 100, True, id="crossing"),
        pytest.param((ZONE, Spread("pool")), MOST_SINGLE_PODS + 1, False, id="crossing-beyond-the-bound"),
    ],
)
def test_large_clusters(spread: tuple[Spread, ...], count: int, is_placed: bool) -> None:
    found = fit(gang(pods(count, *spread)), ledger_of(*LARGE).snapshot())
    assert isinstance(found, Assignment) is is_placed
    if isinstance(found, Assignment):
        by_name, places = {each.name: each for each in LARGE}, found.places[0]
        assert sum(number for _, number in places) == count
        for each in spread:
            totals = dict.fromkeys((one.labels[each.topology] for one in LARGE), 0)
            for name, number in places:
                totals[by_name[name].labels[each.topology]] += number
            assert max(totals.values()) - min(totals.values()) <= each.most_skew


def test_pods_that_are_together_by_many_labels_have_one_value_of_each() -> None:
    labels = ("host", "pool", "rack", "zone")
    found = fit(gang(pods(4, together=labels), pods(5, together=labels[1:])), ledger_of(*LARGE).snapshot())
    assert isinstance(found, Assignment)
    by_name = {each.name: each for each in LARGE}
    for places, keys in zip(found.places, (labels, labels[1:]), strict=True):
        assert len({tuple(by_name[name].labels[key] for key in keys) for name, _ in places}) == 1


# --- pods that have a node already ------------------------------------------------------------------------------


B = NodeRequirements((("zone", "b"),))


@pytest.mark.parametrize("is_planned", [True, False])
def test_unbound_pods_hold_places_that_are_spread_with_the_bound_ones(is_planned: bool) -> None:
    ledger, asked = ledger_of(*in_zones(a=4, b=8)), gang(pods(4, ZONE))
    ledger.reserve("x", asked, Assignment(((("n0", 2), ("gone", 2)),)) if is_planned else ASSIGNED_NOWHERE)
    ledger.set_pod(Pod("p", Resources({"cpu": 1}), "n0", PodPhase.RUNNING, owner="x"))
    if not is_planned:
        ledger.set_pod(Pod("q", Resources({"cpu": 1}), "n0", PodPhase.RUNNING, owner="x"))
    free = {
        zone: [cpu for cpu in range(1, 9) if fits(gang(pods(1, cpu=cpu, nodes=nodes)), ledger.snapshot())]
        for zone, nodes in (("a", A), ("b", B))
    }
    assert {zone: max(found) for zone, found in free.items()} == {"a": 2, "b": 6}


AMOUNTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=4)


@settings(max_examples=300)
@given(AMOUNTS, st.integers(1, 8), st.integers(1, 3), st.integers(1, 4))
@example([(4, 0), (0, 3)], 3, 1, 1)
@example([(4, 2), (4, 0)], 2, 1, 3)
def test_one_spread_is_exact_beside_pods_that_are_there(
    zones: list[tuple[int, int]], count: int, skew: int, least: int
) -> None:
    """Each zone is a node for so many more pods, beside so many pods of the set."""
    nodes = [node(at, 0, str(at)) for at in range(len(zones))]
    traits = Traits(tuple(nodes), {each.name: at for at, each in enumerate(nodes)})
    room, present = (np.array(each, dtype=np.int64) for each in zip(*zones, strict=True))
    spreading = Spreading.of(pods(count, Spread("zone", skew, least)), traits, {0: present})
    found = spreading.place(room, count, np.flatnonzero(room), Work(room.size))

    def holds(placed: tuple[int, ...]) -> bool:
        totals = [there + more for there, more in zip(present, placed, strict=True)]
        fewest = 0 if len(zones) < least else min(totals)
        return all(not more or total - fewest <= skew for total, more in zip(totals, placed, strict=True))

    every = product(*(range(most + 1) for most in room))
    valid = {each for each in every if sum(each) == count and holds(each)}
    if found is None:
        assert not valid
        assert spreading.most(room, count) < count
    else:
        assert tuple(found.tolist()) in valid
        assert spreading.most(room, count) == count


CROSSING = tuple(node(at, 1000, zone, type=type_) for at, (zone, type_) in enumerate(product("ab", "xyw")))
ONE_BY_ONE = pods(MOST_SINGLE_PODS, Spread("zone"), Spread("type"))


def steps_of(nodes: tuple[Node, ...], *pod_sets: PodSet) -> tuple[bool, int]:
    """Whether a gang fits, and the steps of the question."""
    ledger = CapacityLedger(FitMode.NODE)
    for each in nodes:
        ledger.set_node(each)
    snapshot = ledger.snapshot()
    return isinstance(fit(gang(*pod_sets), snapshot), Assignment), snapshot.searched


def test_pods_that_are_placed_one_by_one_are_steps() -> None:
    assert steps_of(CROSSING, pods(MOST_SINGLE_PODS, Spread("zone")))[1] < CHEAP
    fits_all, steps = steps_of(CROSSING, ONE_BY_ONE)
    assert fits_all
    assert steps >= MOST_SINGLE_PODS


def test_question_ends_at_its_bound_though_each_of_many_sets_places_many_pods() -> None:
    nodes = tuple(replace(each, allocatable=Resources({"cpu": 10**6})) for each in CROSSING)
    sets = [replace(ONE_BY_ONE, path=str(number)) for number in range(2 * MOST_SPREAD // MOST_SINGLE_PODS)]
    fits_all, steps = steps_of(nodes, *sets)
    assert not fits_all
    assert MOST_SPREAD // 2 < steps < 2 * MOST_SPREAD


def test_first_order_of_many_pods_under_crossing_spreads_is_finished() -> None:
    nodes = tuple(replace(each, allocatable=Resources({"cpu": 10**6})) for each in CROSSING)
    sets = [
        replace(ONE_BY_ONE, path=str(number)) for number in range(2 * MOST_STEPS_IN_ALL // MOST_SINGLE_PODS)
    ]
    assert steps_of(nodes, *sets)[0]
