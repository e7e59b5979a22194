"""The nodes of a cluster without their amounts: usable or not, taints, labels, and which pods may use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.model.gang import Constraint, PodSet
from dispatcher.core.model.nodes import Node, Taint
from dispatcher.core.model.resources import NOTHING

Amounts = NDArray[np.int64]
Mask = NDArray[np.bool_]
"""Arrays with one entry for each node."""

_MOST_MASKS: Final = 2000
"""Nodes that are compared with constraints at once after a change; beyond that, all nodes are, on the next question."""

PLAIN: Final = PodSet(1, NOTHING)
"""Pods without constraints: they stand for the pods of a gang without pod sets."""


class Traits:
    """The nodes without their free amounts: whether they are usable, their taints and labels; immutable.

    The nodes of each constraint are found once, and carried over to the next traits but for the changed node.
    """

    def __init__(self, nodes: tuple[Node | None, ...] = (), rows: Mapping[str, int] | None = None) -> None:
        self.nodes = nodes
        self.rows = rows or {}
        """The place of each node in the arrays, by name."""
        self._masks: dict[Constraint | None, Mask] = {}
        self._domains: dict[str, Amounts] = {}
        self._order: Amounts | None = None
        self._exclusions: dict[frozenset[Constraint], Counter[str]] = {}

    def changed(self, changes: Mapping[int, Node | None]) -> Traits:
        """The traits with other nodes in these rows."""
        nodes, rows = list(self.nodes), self.rows
        nodes.extend([None] * (max(changes) + 1 - len(nodes)))
        before = {row: nodes[row] for row in changes}
        for row, node in changes.items():
            nodes[row] = node
        if any(_name_of(before[row]) != _name_of(node) for row, node in changes.items()):
            rows = {node.name: row for row, node in enumerate(nodes) if node is not None}
        following = Traits(tuple(nodes), rows)
        if rows is self.rows:
            following._order = self._order
        if len(self._masks) * len(changes) < _MOST_MASKS:
            following._masks = {
                constraint: following._amended(constraint, mask, changes)
                for constraint, mask in self._masks.items()
            }
        return following

    def usable(self) -> Mask:
        """The usable nodes."""
        return self._mask(None)

    def usable_by(self, pod_set: PodSet) -> Mask:
        """The nodes that the pods of a set may use."""
        return self._mask(pod_set.constraint)

    def is_usable(self, node: str) -> bool:
        """True if a node is there, Ready and not cordoned."""
        row = self.rows.get(node)
        return row is not None and bool(self.usable()[row])

    def domains(self, label: str) -> Amounts:
        """The number of each node's value of a label; -1 where the node lacks the label."""
        known = self._domains.get(label)
        if known is None:
            values = [None if node is None else node.labels.get(label) for node in self.nodes]
            distinct = sorted({value for value in values if value is not None})
            numbers = {value: number for number, value in enumerate(distinct)}
            found = [-1 if value is None else numbers[value] for value in values]
            known = self._domains[label] = np.array(found, dtype=np.int64)
        return known

    def exclusions(self, pod_sets: Sequence[PodSet]) -> Counter[str]:
        """How many nodes no pod of these sets may use, by the reason in words."""
        constraints = frozenset(each.constraint for each in pod_sets)
        known = self._exclusions.get(constraints)
        if known is None:
            answers = (_why_excluded(pod_sets or (PLAIN,), node) for node in self.nodes if node is not None)
            known = self._exclusions[constraints] = Counter(filter(None, answers))
        return known

    @property
    def order(self) -> Amounts:
        """The place of each node by name: it decides between equal nodes, whatever the order in which they joined."""
        if self._order is None:
            names = [_name_of(node) for node in self.nodes]
            self._order = np.empty(len(names), np.int64)
            self._order[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        return self._order

    def _mask(self, constraint: Constraint | None) -> Mask:
        known = self._masks.get(constraint)
        if known is None:
            tolerated: dict[tuple[Taint, ...], bool] = {}
            found = (_may_use(node, constraint, tolerated) for node in self.nodes)
            known = self._masks[constraint] = np.fromiter(found, np.bool_, len(self.nodes))
        return known

    def _amended(self, constraint: Constraint | None, mask: Mask, rows: Iterable[int]) -> Mask:
        amended = np.zeros(len(self.nodes), np.bool_)
        amended[: mask.size] = mask
        for row in rows:
            amended[row] = _may_use(self.nodes[row], constraint, {})
        return amended


def _why_excluded(pod_sets: Sequence[PodSet], node: Node) -> str:
    """Why no pod of these sets may use a node; empty if one may."""
    if not node.usable:
        return "cordoned" if node.ready else "not ready"
    answers = [_why_not_for(each, node) for each in pod_sets]
    return answers[0] if all(answers) else ""


def _why_not_for(pod_set: PodSet, node: Node) -> str:
    for taint in node.taints:
        if not pod_set.tolerates((taint,)):
            return f"with taint {taint} not tolerated"
    return "" if pod_set.nodes.matches(node.name, node.labels) else "not selected by its pods"


def _name_of(node: Node | None) -> str:
    return "" if node is None else node.name


def _may_use(
    node: Node | None, constraint: Constraint | None, tolerated: dict[tuple[Taint, ...], bool]
) -> bool:
    if node is None or not node.usable:
        return False
    if constraint is None:
        return True
    tolerations, requirements = constraint
    tolerates = tolerated.get(node.taints)
    if tolerates is None:
        tolerates = tolerated[node.taints] = PodSet(1, NOTHING, tolerations).tolerates(node.taints)
    return tolerates and requirements.matches(node.name, node.labels)
