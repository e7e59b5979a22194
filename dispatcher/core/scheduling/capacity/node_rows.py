"""The nodes of one cluster as rows of arrays: their traits, the load of their pods, and the places held on them.

Potential nodes have rows beside the nodes, in traits of their own. Which pods hold the places is not known here.

Growth: an event costs O(resources); a change of a node's labels or taints O(distinct constraints of pods); the
capacities cost one copy of the arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from dispatcher.core.model.clusters.nodes import UNLIMITED_PODS, Node
from dispatcher.core.model.clusters.potential import is_potential
from dispatcher.core.model.resources import NOTHING, PODS, Resources
from dispatcher.core.scheduling.capacity.node_snapshot import NodeCapacity
from dispatcher.core.scheduling.placement.node_room import LARGEST, Room
from dispatcher.core.scheduling.placement.node_traits import Traits
from dispatcher.core.scheduling.placement.placement_bounds import Tally

_WRITTEN_AT_ONCE: Final = 200
"""Changed nodes that are written into the arrays before the next snapshot; each takes some ten microseconds."""


class Load(NamedTuple):
    """The requests of the pods of a node, and their number; `permanent` is the part of pods that never end."""

    used: Resources = NOTHING
    pods: int = 0
    permanent: Resources = NOTHING
    permanent_pods: int = 0

    def changed(self, used: Resources, pods: int, permanent: Resources, permanent_pods: int) -> Load:
        """The load with these amounts added."""
        return Load(
            self.used + used,
            self.pods + pods,
            self.permanent + permanent,
            self.permanent_pods + permanent_pods,
        )


NO_LOAD: Final = Load()


class NodeState(Struct):
    """One node, the load of its pods, and the places held there for unbound pods."""

    node: Node
    load: Load
    held: Resources = NOTHING
    held_pods: int = 0

    @property
    def free(self) -> Resources:
        """The amounts that neither bound pods nor held places take."""
        return self.node.allocatable - self.load.used - self.held

    @property
    def free_slots(self) -> int:
        """The number of pods that the node takes beside bound pods and held places."""
        return self.node.pod_limit - self.load.pods - self.held_pods

    @property
    def is_crowded(self) -> bool:
        """True if the places that are held on the node are not there: it is unusable or too full."""
        free = self.free
        return not self.node.usable or self.free_slots < 0 or any(free[each] < 0 for each in free)

    def fitting(self, requests: Resources, pods: int) -> int:
        """How many of `pods` pods fit beside all that is there and held."""
        return max(0, min(pods, _most(requests, self.free, self.free_slots))) if self.node.usable else 0

    def fitting_beside_bound(self, requests: Resources) -> int:
        """How many pods with these requests fit if no place is held; negative if bound pods take too much."""
        return _most(requests, self.free + self.held, self.free_slots + self.held_pods)


class NodeRows:
    """The states of the nodes by name, and the same amounts in arrays."""

    def __init__(self) -> None:
        self.states: dict[str, NodeState] = {}
        self.rows: dict[str, int] = {}
        self.traits = Traits()
        self.all_traits = self.traits
        """The traits with potential nodes; the same ones while there was none."""
        self._columns: dict[str, int] = {}
        """The row of each resource that some node lists; they have no gaps."""
        self._listed = Counter[str]()
        """By resource the number of nodes that list it."""
        self._vacant: list[int] = []
        self._free, self._allocatable, self._lasting = NodeTable(), NodeTable(), NodeTable()
        self._tally = Tally()
        self._unwritten: dict[str, None] = {}
        self._retraited: dict[int, Node | None] = {}

    def set(self, node: Node, load: Load) -> None:
        """Add a node or replace its last state."""
        known = self.states.get(node.name)
        self._list_names(NOTHING if known is None else known.node.allocatable, node.allocatable)
        if known is None:
            row = self._vacant.pop() if self._vacant else len(self.rows)
            self.states[node.name], self.rows[node.name] = NodeState(node, load), row
            self._retraited[row] = node
        else:
            before, known.node, known.load = known.node, node, load
            if _traits_of(before) != _traits_of(node):
                self._retraited[self.rows[node.name]] = node
        self._write_later(node.name)

    def load(self, name: str, load: Load) -> bool:
        """Replace the load of a node; False if the node is not known."""
        known = self.states.get(name)
        if known is None:
            return False
        known.load = load
        self._write_later(name)
        return True

    def hold(self, name: str, requests: Resources, pods: int) -> None:
        """Hold places for `pods` more pods on a known node; a negative number gives places back."""
        known = self.states[name]
        known.held += requests * pods
        known.held_pods += pods
        self._write_later(name)

    def remove(self, name: str) -> bool:
        """Remove a node with the places held there; False if it is not known."""
        known = self.states.pop(name, None)
        if known is None:
            return False
        self._list_names(known.node.allocatable, NOTHING)
        row = self.rows.pop(name)
        self._vacant.append(row)
        self._retraited[row] = None
        self._unwritten.pop(name, None)
        for table in self._tables:
            table.write(row, self._columns, NOTHING, 0)
        return True

    def follow_traits(self) -> None:
        """Have `traits` and `all_traits` follow all changes so far; all of them stay due after an exception."""
        changes = self._retraited
        if not changes:
            return
        all_traits = self.all_traits.changed(changes)
        there = {row: None if node and is_potential(node.name) else node for row, node in changes.items()}
        is_same = self.all_traits is self.traits and there == changes
        self.traits, self.all_traits = all_traits if is_same else self.traits.changed(there), all_traits
        self._retraited = {}

    def free_room(self) -> Room:
        """A copy of the free amounts of every row of the traits."""
        self._write()
        return self._free.room(self._columns, len(self.traits.nodes))

    def capacities(self) -> list[NodeCapacity]:
        """The free capacity, the allocatable one, and the one that pods which never end leave."""
        self._write()
        size = len(self.traits.nodes)
        return [
            NodeCapacity(table.room(self._columns, size), self.traits, self.all_traits, self._tally)
            for table in self._tables
        ]

    @property
    def _tables(self) -> tuple[NodeTable, NodeTable, NodeTable]:
        return self._free, self._allocatable, self._lasting

    def _list_names(self, before: Resources, now: Resources) -> None:
        """Give each name that comes a column, and drop the columns that no node needs any more."""
        if before.keys() == now.keys():
            return
        for name in now:
            if name not in before:
                self._listed[name] += 1
                self._columns.setdefault(name, len(self._columns))
        for name in before:
            if name not in now:
                self._listed[name] -= 1
                if not self._listed[name]:
                    del self._listed[name]
                    self._drop_column(name)

    def _drop_column(self, name: str) -> None:
        """Drop a column; the last one takes its row. Costs a copy of one row."""
        last = len(self._columns) - 1
        row = self._columns.pop(name)
        if row != last:
            moved = next(each for each in reversed(self._columns) if self._columns[each] == last)
            self._columns[moved] = row
        for table in self._tables:
            table.drop(row, last)

    def _write_later(self, name: str) -> None:
        self._unwritten[name] = None
        if len(self._unwritten) >= _WRITTEN_AT_ONCE:
            self._write()

    def _write(self) -> None:
        """Write the amounts of changed nodes into the arrays."""
        for name in self._unwritten:
            known, row = self.states[name], self.rows[name]
            allocatable, load = known.node.allocatable, known.load
            self._allocatable.write(row, self._columns, allocatable, known.node.pod_limit)
            lasting = allocatable - load.permanent if load.permanent else allocatable
            self._lasting.write(row, self._columns, lasting, known.node.pod_limit - load.permanent_pods)
            self._free.write(row, self._columns, known.free, known.free_slots)
        self._unwritten.clear()


def _most(requests: Resources, free: Resources, slots: int) -> int:
    """How many pods with these requests fit into free amounts and places for pods; negative if these are owed."""
    asked = [free[name] // amount for name, amount in requests.items() if amount > 0 and name != PODS]
    return min([slots, *asked])


def _traits_of(node: Node) -> tuple[object, ...]:
    return node.name, node.usable, node.taints, node.labels, node.allocatable


class NodeTable:
    """Amounts by resource and node, and pods by node; grows as nodes and resources come."""

    def __init__(self) -> None:
        self._amounts = np.zeros((8, 64), np.int64)
        self._slots = np.zeros(64, np.int64)

    def write(self, row: int, columns: Mapping[str, int], amounts: Resources, slots: int) -> None:
        """Replace the amounts of one node; a resource that no node lists is left out."""
        self._grow(len(columns), row + 1)
        self._amounts[:, row] = 0
        for name, amount in amounts.items():
            column = columns.get(name)
            if column is not None:
                self._amounts[column, row] = max(-LARGEST, min(LARGEST, amount))
        self._slots[row] = max(-UNLIMITED_PODS, min(UNLIMITED_PODS, slots))

    def drop(self, column: int, last: int) -> None:
        """Forget a column; the last one moves into its place."""
        height = self._amounts.shape[0]
        if column < height:
            self._amounts[column] = self._amounts[last] if last < height else 0
        if last < height:
            self._amounts[last] = 0

    def room(self, columns: Mapping[str, int], nodes: int) -> Room:
        """A copy of the amounts of the first `nodes` nodes."""
        self._grow(len(columns), nodes)
        return Room(dict(columns), self._amounts[: len(columns), :nodes].copy(), self._slots[:nodes].copy())

    def _grow(self, columns: int, nodes: int) -> None:
        had = self._amounts.shape
        if columns <= had[0] and nodes <= had[1]:
            return
        size = max(had[0], 2 * columns * (columns > had[0])), max(had[1], 2 * nodes * (nodes > had[1]))
        amounts, slots = np.zeros(size, np.int64), np.zeros(size[1], np.int64)
        amounts[: had[0], : had[1]] = self._amounts
        slots[: had[1]] = self._slots
        self._amounts, self._slots = amounts, slots
