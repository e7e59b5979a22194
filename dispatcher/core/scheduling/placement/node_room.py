"""The free amounts of the nodes of a cluster as arrays, and the nodes grouped by equal amounts.

Arrays have one entry for each node. Amounts are `int64` in base units, of at most `LARGEST`, far from an overflow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from dispatcher.core.model.gangs.gang import PodSet
from dispatcher.core.model.resources import NOTHING, PODS, Resources, is_device
from dispatcher.core.scheduling.placement.node_traits import Amounts, Mask

LARGEST: Final = 2**52
"""The largest amount of one resource of one node, in base units (4 PiB of memory); a larger one counts as this.

Many of them together may be more than 2^63: `Room.sums`.
"""


class Room(Struct):
    """The free amounts by resource and node, and the free pods of each node; `columns` has the row of each resource."""

    columns: Mapping[str, int]
    free: Amounts
    slots: Amounts

    def copy(self) -> Room:
        """A copy; taking from it does not change this room."""
        return Room(self.columns, self.free.copy(), self.slots.copy())

    def amounts_of(self, row: int) -> dict[str, int]:
        """The free amounts of one node, by resource."""
        return dict(zip(self.columns, self.free[list(self.columns.values()), row].tolist(), strict=True))

    def equals(self, other: Room) -> bool:
        """True if both have the same amounts."""
        return (
            self.columns == other.columns
            and np.array_equal(self.free, other.free)
            and np.array_equal(self.slots, other.slots)
        )

    def sums(self, nodes: Mask) -> dict[str, int]:
        """The free amounts of these nodes together, exact; a node that owes something has nothing."""
        free = np.maximum(self.free[:, nodes], 0)
        if int(free.max(initial=0)) * free.shape[1] < 2**63:
            sums = free.sum(axis=1).tolist()
        else:
            sums = [sum(amounts) for amounts in free.tolist()]
        return {name: sums[row] for name, row in self.columns.items()}

    def lowest(self, other: Room) -> Room:
        """For each node the lower of the two amounts; both have the same nodes and resources."""
        return Room(self.columns, np.minimum(self.free, other.free), np.minimum(self.slots, other.slots))

    def take(self, requests: Resources, pods: Amounts | int, at: int | slice = slice(None)) -> None:
        """Take pods with these requests from each node, or from the node in row `at`; negative pods give back."""
        for name, amount in requests.items():
            row = self.columns.get(name)
            if row is not None:
                self.free[row, at] -= _at_most_largest(amount, pods)
        self.slots[at] -= pods

    def fitting(self, requests: Resources, most: int, mask: Mask | None = None) -> Amounts:
        """For each node (of the mask), how many pods with these requests fit there, from 0 to `most`; 0 elsewhere."""
        asked = _asked(requests)
        if any(name not in self.columns or amount > LARGEST for name, amount in asked):
            return np.zeros_like(self.slots)
        # Comparing is far faster than dividing, and in a full cluster few nodes take a pod.
        could = self.slots > 0
        if mask is not None:
            could &= mask
        for name, amount in asked:
            could &= self.free[self.columns[name]] >= amount
        found = could.astype(np.int64)
        if most == 1:
            return found
        nodes = could.nonzero()[0]
        pods = np.minimum(self.slots[nodes], most)
        for name, amount in asked:
            np.minimum(pods, self.free[self.columns[name]][nodes] // amount, out=pods)
        found[nodes] = pods
        return found


_MULTIPLIERS: Final = np.array(
    [pow(0x9E3779B97F4A7C15, power, 2**64) for power in range(1, 65)], dtype=np.uint64
)
"""Odd numbers without a pattern; equal digests of different amounts cost time, not truth."""


class _Ascending(NamedTuple):
    """The groups by what they have of one resource, the least first: amounts, indices, and the nodes from there on."""

    amounts: list[int]
    groups: Amounts
    nodes: list[int]


_UNLISTED: Final = _Ascending([], np.arange(0), [0])
"""For each resource that no node lists: anyone may invent such."""


class Places(NamedTuple):
    """How many more pods nodes take by the number of their pods: all of the nodes, and one of them at most."""

    free: int
    most: int


class NodeGroups:
    """Nodes grouped by equal free amounts, for pods that repel and attract no others; `counts` are nodes of a group.

    In a full cluster few groups have enough of the scarcest resource, so a question costs O(log groups) and these few.
    """

    __slots__ = ("_all", "_ascending", "_full", "_nodes", "counts", "room")

    def __init__(self, room: Room, counts: Amounts) -> None:
        self.room = room
        self.counts = counts
        self._all = np.arange(counts.size)
        self._nodes = int(counts.sum())
        self._full = int(counts[room.slots <= 0].sum())
        """The nodes that take no more pods."""
        self._ascending: dict[str, _Ascending] = {}

    @classmethod
    def of(cls, room: Room, mask: Mask) -> NodeGroups:
        """The groups of the nodes of the mask; costs a sort of them."""
        nodes = np.flatnonzero(mask)
        free, slots = room.free[:, nodes], room.slots[nodes]
        # Sorting one number of each node is ten times as fast as sorting all of its amounts.
        digests = slots.view(np.uint64).copy()
        for row, amounts in enumerate(free):
            digests += amounts.view(np.uint64) * _MULTIPLIERS[row % _MULTIPLIERS.size]
        _, first, alike, counts = np.unique(
            digests, return_index=True, return_inverse=True, return_counts=True
        )
        of_group = Room(room.columns, free[:, first], slots[first])
        if not (
            np.array_equal(of_group.free[:, alike], free) and np.array_equal(of_group.slots[alike], slots)
        ):
            return cls(Room(room.columns, free, slots), np.ones_like(slots))  # two groups have one digest
        return cls(of_group, counts)

    def fitting(self, pod_set: PodSet) -> int:
        """How many pods of the set fit, each of them alone: at most all of them.

        Counts of nodes often answer: at most as many nodes lack something as lack each of the resources, added up.
        """
        count, nodes = pod_set.count, self._nodes
        left, fewest, groups = nodes - self._full, self.counts.size, self._all
        # One loop, without the list of `_asked`: a cycle asks this of each gang and cluster.
        for name, amount in pod_set.requests.items():
            if amount > 0 and name != PODS:
                by = self._ascending.get(name) or self._by(name)
                start = bisect_left(by.amounts, amount)
                left -= nodes - by.nodes[start]
                if len(by.amounts) - start < fewest:
                    fewest, groups = len(by.amounts) - start, by.groups[start:]
        if count <= left:
            return count
        return min(count, self._fitting(pod_set.requests, count, groups)) if fewest else 0

    def taking(self, pod_set: PodSet) -> int:
        """How many nodes take a pod of the set."""
        return self._fitting(pod_set.requests, 1, self._having_scarcest(pod_set.requests))

    def places(self, requests: Resources = NOTHING) -> Places:
        """The places for pods on the nodes that have `requests` free."""
        groups = self._having_all(requests)
        slots = np.maximum(self.room.slots[groups], 0)
        return Places(int(slots @ self.counts[groups]), int(slots.max(initial=0)))

    def lacking_places(self, pod_set: PodSet) -> Places | None:
        """The places for pods of the set, if more of them would fit with more places; None if resources bound them.

        If both bound them, on different nodes, resources are the bound unless they would suffice.
        """
        if not self._having_scarcest(pod_set.requests).size:
            return None
        fitting = self.fitting(pod_set)
        by_resources = self._fitting_by_resources(pod_set.requests, pod_set.count)
        if fitting >= min(by_resources, pod_set.count):
            return None
        if by_resources < pod_set.count and self.places(pod_set.requests).free != fitting:
            return None
        return self._usable_places(pod_set)

    def _usable_places(self, pod_set: PodSet) -> Places:
        """The places to which the resources of their node allow a pod of the set."""
        groups = self._having_all(pod_set.requests)
        pods = np.maximum(self.room.slots[groups], 0)
        for name, amount in _asked(pod_set.requests):
            pods = np.minimum(pods, self.room.free[self.room.columns[name]][groups] // amount)
        return Places(int(pods @ self.counts[groups]), int(pods.max(initial=0)))

    def scarcest(self, pod_set: PodSet) -> tuple[str, int]:
        """The resource that the fewest nodes have enough of for a pod of the set, and the most of it on one node."""
        found = [
            (self._having(name, amount), not is_device(name), name)
            for name, amount in _asked(pod_set.requests)
        ]
        if not found:
            return "", 0
        _, _, resource = min(found)
        amounts = self._by(resource).amounts
        return resource, max(0, amounts[-1]) if amounts else 0

    def _fitting(self, requests: Resources, most: int, groups: Amounts) -> int:
        """How many pods with these requests fit on the nodes of these groups, at most `most` on each."""
        return self._bounded_by(requests, groups, np.minimum(self.room.slots[groups], most))

    def _fitting_by_resources(self, requests: Resources, most: int) -> int:
        """How many pods would fit, at most `most` on each node, if nodes took any number of pods."""
        groups = self._having_scarcest(requests)
        return self._bounded_by(requests, groups, np.full_like(groups, most))

    def _bounded_by(self, requests: Resources, groups: Amounts, pods: Amounts) -> int:
        """How many pods fit on all nodes of these groups: at most `pods` on a node, each with these requests."""
        if not groups.size:
            return 0
        for name, amount in _asked(requests):
            pods = np.minimum(pods, self.room.free[self.room.columns[name]][groups] // amount)
        return int(np.maximum(pods, 0) @ self.counts[groups])

    def _having_all(self, requests: Resources) -> Amounts:
        """The groups with enough of all that is requested."""
        groups = self._having_scarcest(requests)
        if not groups.size:
            return groups
        columns, free = self.room.columns, self.room.free
        enough = [free[columns[name]][groups] >= amount for name, amount in _asked(requests)]
        return groups[np.all(enough, axis=0)] if enough else groups

    def _having_scarcest(self, requests: Resources) -> Amounts:
        """The groups with enough of the resource that the fewest groups have enough of; all if nothing is requested."""
        fewest, found = self.counts.size, self._all
        for name, amount in requests.items():  # as in `fitting`
            if amount > 0 and name != PODS:
                by = self._ascending.get(name) or self._by(name)
                start = bisect_left(by.amounts, amount)
                if len(by.amounts) - start < fewest:
                    fewest, found = len(by.amounts) - start, by.groups[start:]
        return found

    def _having(self, resource: str, amount: int) -> int:
        """How many nodes have that amount of a resource free."""
        by = self._by(resource)
        return by.nodes[bisect_left(by.amounts, amount)]

    def _by(self, resource: str) -> _Ascending:
        """The groups by their free amount of a resource; none if no node lists it."""
        row = self.room.columns.get(resource)
        if row is None:
            return _UNLISTED
        known = self._ascending.get(resource)
        if known is None:
            known = self._ascending[resource] = self._sorted_by(row)
        return known

    def _sorted_by(self, row: int) -> _Ascending:
        groups = np.argsort(self.room.free[row], kind="stable")
        nodes = np.cumsum(self.counts[groups][::-1])[::-1].tolist()
        return _Ascending(self.room.free[row][groups].tolist(), groups, [*nodes, 0])


def _at_most_largest(amount: int, pods: Amounts | int) -> Amounts | int:
    """The amount of so many pods; of more than a node can have, as much as it can have."""
    if isinstance(pods, int):
        return max(-LARGEST, min(LARGEST, amount * pods))
    return min(amount, LARGEST) * pods  # placed pods, which have no more than their node


def _asked(requests: Resources) -> list[tuple[str, int]]:
    """The requested amounts that nodes must have free; places for pods are counted apart."""
    return [(name, amount) for name, amount in requests.items() if amount > 0 and name != PODS]
