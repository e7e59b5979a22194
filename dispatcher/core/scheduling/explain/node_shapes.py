"""Shapes of nodes that could be added for a gang: those that a cluster has, or nodes of the size of its own pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from dispatcher.core.model.gang import Gang
from dispatcher.core.model.nodes import Node
from dispatcher.core.model.resources import Resources, is_device, sum_of

MOST_SHAPES: Final = 16
"""Shapes of one cluster, the most frequent."""


def shapes_of(nodes: Iterable[Node]) -> list[Node]:
    """The different shapes of these nodes, the most frequent first."""
    return [shape for shape, _ in Counter(node.shape for node in nodes).most_common(MOST_SHAPES)]


def has_use_for(gang: Gang, shape: Node) -> bool:
    """True if a node of this shape takes a pod of the gang; for a gang without pods, if it has a demanded resource."""
    if not any(each.count for each in gang.pod_sets):
        return any(name in shape.allocatable for name in gang.demand)
    return shape.pod_limit > 0 and any(
        each.count and each.requests.fits_in(shape.allocatable) and each.may_use(shape)
        for each in gang.pod_sets
    )


def own_shapes(gang: Gang) -> list[Node]:
    """Nodes of the size of the gang's pods: one that takes a pod of any set, then one for each set.

    Without pods, sets that are empty still say which nodes count for the demand.
    """
    pod_sets = [each for each in gang.pod_sets if each.count] or gang.pod_sets
    requested = sum_of(each.total for each in pod_sets)
    beyond = {name: amount for name, amount in gang.demand.items() if name not in requested}
    labels: dict[str, str] = {}
    largest = Resources(beyond)
    for pod_set in pod_sets:
        largest = largest.highest(pod_set.requests)
        labels |= dict(pod_set.nodes.selector)
    each_set = [Node("", each.requests, labels=dict(each.nodes.selector)) for each in pod_sets]
    return list(_distinct([Node("", largest, labels=labels), *each_set]))


def _distinct(shapes: Iterable[Node]) -> Iterator[Node]:
    seen: list[Node] = []
    for each in shapes:
        if each not in seen:
            seen.append(each)
            yield each


def plainness(node: Node) -> tuple[int, int, int]:
    """A measure by which a node without devices, with less cpu and less memory comes first."""
    devices = sum(amount for name, amount in node.allocatable.items() if is_device(name))
    return devices, node.allocatable["cpu"], node.allocatable["memory"]
