"""What groups of equal nodes tell about pods of one set, compared with each node alone."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from dispatcher.core.model.gangs.gang import PodSet
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.placement.node_room import NodeGroups, Places, Room

Node = tuple[int, int, int]
"""Free cpu and GPUs, and places for pods; what a node owes is negative."""

nodes_strategy = st.lists(
    st.tuples(st.integers(-1, 3), st.integers(-1, 3), st.integers(-1, 3)), min_size=1, max_size=6
)
pod_sets = st.builds(
    lambda count, cpu, gpu, fpga: PodSet(count, Resources({"cpu": cpu, "gpu": gpu, "fpga": fpga})),
    st.integers(1, 6),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from([0, 0, 0, 1]),
)


def groups_of(nodes: list[Node]) -> NodeGroups:
    amounts = np.array(nodes, np.int64)
    room = Room({"cpu": 0, "gpu": 1}, amounts[:, :2].T.copy(), amounts[:, 2].copy())
    return NodeGroups.of(room, np.ones(len(nodes), np.bool_))


def takes(node: Node, pod_set: PodSet, places: int) -> int:
    """How many pods of the set one node takes, if it had so many places for pods."""
    free = {"cpu": node[0], "gpu": node[1]}
    bounds = [free.get(name, 0) // amount for name, amount in pod_set.requests.items()]
    return max(0, min([*bounds, places, pod_set.count]))


@given(nodes_strategy, pod_sets)
@example([(1, 1, 0)], PodSet(1, Resources({"cpu": 1})))
@example([(1, 0, 1), (0, 1, 1)], PodSet(1, Resources({"cpu": 1, "gpu": 1})))
@example([(3, 0, 0), (1, 0, 3)], PodSet(2, Resources({"cpu": 1})))
def test_counts_of_groups_are_those_of_each_node(nodes: list[Node], pod_set: PodSet) -> None:
    groups = groups_of(nodes)
    fitting = sum(takes(node, pod_set, node[2]) for node in nodes)
    by_resources = sum(takes(node, pod_set, pod_set.count) for node in nodes)
    able = [max(0, node[2]) for node in nodes if takes(node, pod_set, pod_set.count)]
    assert groups.fitting(pod_set) == min(fitting, pod_set.count)
    assert groups.taking(pod_set) == sum(takes(node, pod_set, min(1, node[2])) for node in nodes)
    places = Places(sum(able), max(able, default=0))
    is_short = fitting < min(by_resources, pod_set.count)
    names_places = by_resources >= pod_set.count or places.free == fitting
    usable = [takes(node, PodSet(9, pod_set.requests), node[2]) for node in nodes]
    expected = Places(sum(usable), max(usable))
    assert groups.lacking_places(pod_set) == (expected if is_short and names_places else None)


def test_nodes_that_lack_nothing_take_a_pod_each() -> None:
    groups = groups_of([(3, 3, 3), (3, 3, 3), (0, 3, 3), (3, 3, 0)])
    assert groups.fitting(PodSet(2, Resources({"cpu": 3, "gpu": 1}))) == 2
    assert groups.fitting(PodSet(3, Resources({"cpu": 3, "gpu": 1}))) == 2


def test_resources_that_no_node_lists_are_not_remembered() -> None:
    groups = NodeGroups.of(Room({"cpu": 0}, np.array([[1]]), np.array([1])), np.array([True]))

    for at in range(3):
        assert groups.fitting(PodSet(1, Resources({f"invented-{at}": 1}))) == 0
    assert not groups._ascending  # noqa: SLF001  # nothing else shows what is kept
