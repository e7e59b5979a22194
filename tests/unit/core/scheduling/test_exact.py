"""The oracle for placements itself: against every placement there is, and at its edges."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core.model.clusters.nodes import Node, NodeRequirements, Taint, Toleration
from dispatcher.core.model.gangs.gang import PodSet, Spread
from dispatcher.core.model.resources import Resources
from tests.unit.core.scheduling.exact import FreeNode, can_place, find_placement, free_node, is_placement

BY_ZONE = (Spread("zone"),)
GPU = Taint("gpu", "", "NoSchedule")


def node(name: str, cpu: int, places: int | None = None, *taints: Taint, **labels: str) -> FreeNode:
    return FreeNode(Node(name, Resources(), taints=taints, labels=labels), Resources({"cpu": cpu}), places)


def pods(count: int, cpu: int, **fields: object) -> PodSet:
    return PodSet(count, Resources({"cpu": cpu}), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "pod_sets", "expected"),
    [
        pytest.param([], [], True, id="nothing"),
        pytest.param([], [pods(1, 0)], False, id="a-pod-needs-a-node"),
        pytest.param([node("a", 3), node("b", 3)], [pods(1, 4)], False, id="a-pod-is-not-divided"),
        pytest.param([node("a", 3), node("b", 3)], [pods(2, 2)], True, id="one-on-each"),
        pytest.param([node("a", 3), node("b", 3)], [pods(3, 2)], False, id="fragments"),
        pytest.param([node("a", 5), node("b", 4)], [pods(1, 3), pods(3, 2)], True, id="not-greedily"),
        pytest.param([node("a", 9, 1)], [pods(2, 1)], False, id="places"),
        pytest.param([node("a", -1)], [pods(1, 0)], True, id="a-debt-of-what-is-not-requested"),
        pytest.param([node("a", 9, None, GPU)], [pods(1, 1)], False, id="taint"),
        pytest.param(
            [node("a", 9, None, GPU)],
            [pods(1, 1, tolerations=(Toleration("gpu", "Exists"),))],
            True,
            id="tolerated",
        ),
        pytest.param(
            [node("a", 9, zone="x")],
            [pods(1, 1, nodes=NodeRequirements((("zone", "y"),)))],
            False,
            id="label",
        ),
        pytest.param(
            [node("a", 9, zone="x"), node("b", 9, zone="x")], [pods(2, 1, apart=("zone",))], False, id="apart"
        ),
        pytest.param([node("a", 9)], [pods(2, 1, apart=("zone",))], True, id="apart-without-the-label"),
        pytest.param(
            [node("a", 1, zone="x"), node("b", 1, zone="y")],
            [pods(2, 1, together=("zone",))],
            False,
            id="together",
        ),
        pytest.param(
            [node("a", 9)], [pods(1, 1, together=("zone",))], False, id="together-without-the-label"
        ),
        pytest.param([], [pods(0, 1, together=("zone",))], True, id="none-together"),
        pytest.param(
            [
                node("a", 1, zone="x", rack="1"),
                node("b", 1, zone="x", rack="2"),
                node("c", 2, zone="y", rack="3"),
            ],
            [pods(1, 2), pods(2, 1, together=("zone",), apart=("rack",))],
            True,
            id="together-and-apart",
        ),
        pytest.param(
            [node("a", 9, zone="x"), node("b", 1, zone="y")], [pods(3, 1, spread=BY_ZONE)], True, id="spread"
        ),
        pytest.param(
            [node("a", 9, zone="x"), node("b", 1, zone="y")], [pods(4, 1, spread=BY_ZONE)], False, id="skew"
        ),
        pytest.param(
            [node("a", 9, zone="x"), node("b", 0, zone="y")],
            [pods(2, 1, spread=BY_ZONE)],
            False,
            id="a-full-domain-counts",
        ),
        pytest.param(
            [node("a", 9, zone="x"), node("b", 9, None, GPU, zone="y")],
            [pods(2, 1, spread=BY_ZONE)],
            False,
            id="a-tainted-domain-counts",
        ),
        pytest.param(
            [node("a", 9, zone="x"), node("b", 9, None, GPU, zone="y")],
            [pods(2, 1, spread=(Spread("zone", honors_taints=True),))],
            True,
            id="unless-taints-are-honored",
        ),
        pytest.param(
            [node("a", 9, zone="x"), node("b", 0, zone="y")],
            [pods(2, 1, spread=BY_ZONE, nodes=NodeRequirements((("zone", "x"),)))],
            True,
            id="a-domain-that-is-not-selected-does-not-count",
        ),
        pytest.param(
            [node("a", 9, zone="x"), node("b", 0, zone="y")],
            [
                pods(
                    2,
                    1,
                    spread=(Spread("zone", ignores_requirements=True),),
                    nodes=NodeRequirements((("zone", "x"),)),
                )
            ],
            False,
            id="unless-requirements-are-ignored",
        ),
        pytest.param([node("a", 9)], [pods(1, 1, spread=BY_ZONE)], False, id="spread-without-the-label"),
        pytest.param(
            [node("a", 9, zone="x"), node("b", 0, zone="y"), node("c", 9, zone="x", rack="1")],
            [pods(2, 1, spread=(Spread("rack", 2), *BY_ZONE))],
            True,
            id="a-node-without-one-label-counts-for-no-domain",
        ),
        pytest.param(
            [node("a", 9, zone="x"), node("b", 9, zone="x")],
            [pods(1, 1, away=(("zone", 1),)), pods(1, 1)],
            False,
            id="away",
        ),
        pytest.param(
            [node("a", 9, zone="x"), node("b", 9)],
            [pods(1, 1, away=(("zone", 2),)), pods(1, 9), pods(1, 1)],
            True,
            id="away-without-the-label",
        ),
        pytest.param(
            [node("a", 2, zone="x"), node("b", 1, zone="y")],
            [pods(1, 1, near=(("zone", (1,)),)), pods(1, 1), pods(1, 1)],
            True,
            id="near",
        ),
        pytest.param(
            [node("a", 1, zone="x"), node("b", 1, zone="y")],
            [pods(1, 1, near=(("zone", (1,)),)), pods(1, 1)],
            False,
            id="not-near",
        ),
        pytest.param(
            [node("a", 9)],
            [pods(1, 1, near=(("zone", (1,)),)), pods(1, 1)],
            False,
            id="near-without-the-label",
        ),
        pytest.param(
            [node("a", 9, zone="x")], [pods(2, 1, spread=(Spread("zone", 1, 2),))], False, id="few-domains"
        ),
        pytest.param(
            [node("a", 9, zone="x")], [pods(2, 1, spread=(Spread("zone", 1, 1),))], True, id="enough-domains"
        ),
    ],
)
def test_edges(nodes: list[FreeNode], pod_sets: list[PodSet], expected: bool) -> None:
    assert can_place(nodes, pod_sets) is expected


def test_a_node_with_pods_has_what_they_leave() -> None:
    bare = Node("a", Resources({"cpu": 4, "pods": 3}))
    left = free_node(bare, Resources({"cpu": 1}), 3)
    assert (left.free["cpu"], left.places) == (3, 0)
    assert free_node(Node("a", Resources({"cpu": 4}))).places is None


_LABELS = st.dictionaries(st.sampled_from(["zone", "rack"]), st.sampled_from("xy"))
_AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "gpu"]), st.integers(0, 4)).map(Resources)
_NODES = st.lists(
    st.builds(
        FreeNode,
        st.builds(
            Node,
            st.just(""),
            st.just(Resources()),
            st.sampled_from([True, True, True, False]),
            st.sampled_from([(), (), (GPU,)]),
            labels=_LABELS,
        ),
        _AMOUNTS,
        st.sampled_from([None, None, 0, 1, 2]),
    ),
    max_size=3,
).map(lambda nodes: [_named(each, f"n{index}") for index, each in enumerate(nodes)])
_KEYS = st.sampled_from([(), (), ("zone",), ("zone", "rack")])
_SPREAD = st.lists(
    st.builds(
        Spread,
        st.sampled_from(["zone", "rack"]),
        st.integers(1, 2),
        st.integers(1, 2),
        st.booleans(),
        st.booleans(),
    ),
    max_size=2,
    unique_by=lambda each: each.topology,
).map(tuple)
_POD_SETS = st.lists(
    st.builds(
        PodSet,
        st.integers(0, 3),
        _AMOUNTS,
        st.sampled_from([(), (Toleration("gpu", "Exists"),)]),
        st.sampled_from([NodeRequirements(), NodeRequirements((("zone", "x"),))]),
        _KEYS,
        _KEYS,
        spread=_SPREAD,
    ),
    max_size=2,
)


def _named(free: FreeNode, name: str) -> FreeNode:
    bare = free.node
    return FreeNode(
        Node(name, bare.allocatable, bare.usable, bare.taints, bare.ready, bare.labels),
        free.free,
        free.places,
    )


@settings(max_examples=200)
@given(_NODES, _POD_SETS)
def test_it_finds_a_placement_exactly_if_there_is_one(nodes: list[FreeNode], pod_sets: list[PodSet]) -> None:
    found = find_placement(nodes, pod_sets)
    if found is None:
        assert not any(is_placement(nodes, pod_sets, each) for each in _all_placements(nodes, pod_sets))
    else:
        assert is_placement(nodes, pod_sets, found)


def _all_placements(nodes: Sequence[FreeNode], pod_sets: Sequence[PodSet]) -> list[list[tuple[str, ...]]]:
    names = [each.node.name for each in nodes]
    of_each = [list(product(names, repeat=pod_set.count)) for pod_set in pod_sets]
    return [list(each) for each in product(*of_each)]


def test_thirteen_pods_on_eight_nodes_that_just_do_not_fit_are_decided() -> None:
    nodes = [node(f"n{index}", 7 + index % 2, zone=str(index % 3)) for index in range(8)]
    fills = [pods(4, 5), pods(8, 4)]
    assert can_place(nodes, fills)
    assert not can_place(nodes, [*fills, pods(1, 3)])
