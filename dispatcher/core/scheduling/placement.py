"""The placement of pod sets on nodes: pure functions of arrays.

A pod set alone is placed exactly: as many pods as fit on each node it may use, until all have one. Several pod sets
compete for nodes, which is bin packing. So `place` tries the pod sets in several orders and with two rules for the
choice of nodes, and then, in a small cluster, searches all placements up to a bound. It may therefore refuse pod sets
that have a placement, but never returns a placement that does not fit.

Arrays have one entry for each node. Amounts are `int64` in base units; `Room` bounds them, so that no sum overflows.

Growth: a pod set costs O(nodes x resources that it requests); several pod sets cost that for each order that is tried,
at most `MOST_ORDERS` times two, then at most `MOST_STEPS` steps of the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, permutations, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.model.gang import PodSet
from dispatcher.core.model.resources import Resources

Amounts = NDArray[np.int64]
Mask = NDArray[np.bool_]

LARGEST: Final = 2**47
"""The largest amount of one resource of one node, in base units (140 TB of memory); a larger one counts as this.

The sum over 2^15 nodes stays below 2^63.
"""
UNLIMITED: Final = 2**31 - 1
"""The free pods of a node that names no limit."""
MOST_ORDERS: Final = 6
"""Orders of the pod sets that are tried."""
MOST_DOMAINS: Final = 64
"""Combinations of domains that are tried for pod sets whose pods must be together."""
MOST_STEPS: Final = 2000
"""Steps of the search for a placement that no order finds; some ten milliseconds."""
MOST_SEARCHED_NODES: Final = 24
"""Nodes that some pod set could use, beyond which there is no search: in a large cluster, orders find placements."""

_PODS: Final = "pods"
"""Every pod takes one from the pods of its node, whether or not it requests that resource."""


@dataclass(slots=True)
class Room:
    """The free amounts by resource and node, and the free pods of each node; `columns` has the row of each resource."""

    columns: Mapping[str, int]
    free: Amounts
    slots: Amounts

    def copy(self) -> Room:
        """A copy; taking from it does not change this room."""
        return Room(self.columns, self.free.copy(), self.slots.copy())

    def equals(self, other: Room) -> bool:
        """True if both have the same amounts."""
        return (
            self.columns == other.columns
            and np.array_equal(self.free, other.free)
            and np.array_equal(self.slots, other.slots)
        )

    def take(self, requests: Resources, pods: Amounts) -> None:
        """Take `pods` pods with these requests from each node; negative pods give back."""
        for name, amount in requests.items():
            row = self.columns.get(name)
            if row is not None:
                self.free[row] -= min(amount, LARGEST) * pods
        self.slots -= pods

    def fitting(self, requests: Resources, most: int) -> Amounts:
        """For each node, how many pods with these requests fit there, from 0 to `most`."""
        pods = np.minimum(self.slots, most)
        for name, amount in requests.items():
            if amount <= 0 or name == _PODS:
                continue
            row = self.columns.get(name)
            if row is None or amount > LARGEST:
                return np.zeros_like(self.slots)
            pods = np.minimum(pods, self.free[row] // amount)
        return np.maximum(pods, 0)


@dataclass(frozen=True, slots=True)
class Terrain:
    """The nodes apart from what is free there: which of them pods may use, and the domain of each node for a label.

    Domains are numbers from 0; -1 marks a node without the label.
    """

    usable_by: Callable[[PodSet], Mask]
    domains: Callable[[str], Amounts]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A pod set to place: `mask` are the nodes that it may use."""

    index: int
    pods: PodSet
    count: int
    mask: Mask


Placement = list[Amounts]
"""For each pod set, the pods of it on each node."""


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """The first pod set that alone has too few nodes, and how many of its pods fit; None if each alone fits."""

    index: int | None = None
    fitting: int = 0


def place(
    pod_sets: Sequence[PodSet], room: Room, terrain: Terrain, counts: Sequence[int] | None = None
) -> Placement | Unplaceable:
    """The nodes for all pods at once, or why there are none; `counts` replaces the counts of the pod sets."""
    sizes = [pod_set.count for pod_set in pod_sets] if counts is None else counts
    wanted = [
        _Wanted(index, pod_set, count, terrain.usable_by(pod_set))
        for index, (pod_set, count) in enumerate(zip(pod_sets, sizes, strict=True))
        if count
    ]
    alone: list[Amounts] = []
    for each in wanted:
        fitting = _allowed(each, room, terrain)
        total = int(fitting.sum())
        if total < each.count:
            return Unplaceable(each.index, total)
        alone.append(fitting)
    found = _placed(wanted, alone, room, terrain)
    if found is None:
        return Unplaceable()
    empty = np.zeros_like(room.slots)
    return [found.get(index, empty) for index in range(len(pod_sets))]


def _placed(
    wanted: Sequence[_Wanted], alone: Sequence[Amounts], room: Room, terrain: Terrain
) -> dict[int, Amounts] | None:
    for narrowed in islice(_in_domains(wanted, alone, terrain), MOST_DOMAINS):
        found = _by_orders(narrowed, room, terrain)
        if found is None and len(narrowed) > 1:
            found = _search(narrowed, room, terrain)
        if found is not None:
            return found
    return None


def _in_domains(
    wanted: Sequence[_Wanted], alone: Sequence[Amounts], terrain: Terrain
) -> Iterator[Sequence[_Wanted]]:
    """The pod sets with their nodes narrowed to one domain, for each combination of domains that might do."""
    choices = [list(_domains_of(each, fitting, terrain)) for each, fitting in zip(wanted, alone, strict=True)]
    yield from product(*choices)


def _domains_of(each: _Wanted, fitting: Amounts, terrain: Terrain) -> Iterator[_Wanted]:
    """The pod set in each domain that has enough nodes for it, the tightest domain first."""
    masks = [each.mask]
    for key in each.pods.together:
        domains = terrain.domains(key)
        values = np.unique(domains[(domains >= 0) & (fitting > 0)])
        masks = [mask & (domains == value) for mask in masks for value in values]
    if not each.pods.together:
        yield each
        return
    sizes = [(int(fitting[mask].sum()), at) for at, mask in enumerate(masks)]
    for size, at in sorted(sizes):
        if size >= each.count:
            yield _Wanted(each.index, each.pods, each.count, masks[at])


def _by_orders(wanted: Sequence[_Wanted], room: Room, terrain: Terrain) -> dict[int, Amounts] | None:
    """The placement of the first order and rule that places all; one pod set needs only one."""
    if len(wanted) == 1:
        return _in_order(wanted, room, terrain, is_tight=True)
    for order in islice(_orders(wanted, room), MOST_ORDERS):
        for is_tight in (True, False):
            found = _in_order(order, room, terrain, is_tight=is_tight)
            if found is not None:
                return found
    return None


def _orders(wanted: Sequence[_Wanted], room: Room) -> Iterator[Sequence[_Wanted]]:
    """Orders of the pod sets: the largest pods first, then the pod sets with the fewest nodes, then others."""
    by_size = sorted(wanted, key=lambda each: _size(each.pods.requests, room), reverse=True)
    by_nodes = sorted(by_size, key=lambda each: int(each.mask.sum()))
    yield by_nodes
    if by_size != by_nodes:
        yield by_size
    for order in permutations(by_nodes):
        if list(order) not in (by_nodes, by_size):
            yield order


def _size(requests: Resources, room: Room) -> tuple[float, float]:
    """The largest share of what a node has at most: of a device, then of any resource."""
    shares = {
        name: amount / max(1, int(room.free[room.columns[name]].max(initial=1)))
        for name, amount in requests.items()
        if name in room.columns
    }
    devices = [share for name, share in shares.items() if is_device(name)]
    return max(devices, default=0.0), max(shares.values(), default=0.0)


def is_device(resource: str) -> bool:
    """True for a vendor's resource, such as `nvidia.com/gpu`: scarcer than cpu and memory."""
    return "/" in resource


def _in_order(
    wanted: Iterable[_Wanted], room: Room, terrain: Terrain, *, is_tight: bool
) -> dict[int, Amounts] | None:
    """One pod set after the other, on the nodes with the least that stays free, or (not tight) with the most."""
    left, found = room.copy(), dict[int, Amounts]()
    for each in wanted:
        fitting = _allowed(each, left, terrain)
        order = _tightest_first(each.pods.requests, left, fitting)
        ranked = fitting[order if is_tight else order[::-1]]
        before = np.cumsum(ranked) - ranked
        taken = np.clip(each.count - before, 0, ranked)
        if int(taken.sum()) < each.count:
            return None
        pods = np.zeros_like(fitting)
        pods[order if is_tight else order[::-1]] = taken
        left.take(each.pods.requests, pods)
        found[each.index] = pods
    return found


def _allowed(each: _Wanted, room: Room, terrain: Terrain) -> Amounts:
    """For each node, how many pods of the set fit there; `apart` leaves one node of each domain, with one pod."""
    fitting = np.where(each.mask, room.fitting(each.pods.requests, each.count), 0)
    for key in each.pods.apart:
        domains = terrain.domains(key)
        labelled = np.flatnonzero((fitting > 0) & (domains >= 0))
        if not labelled.size:
            continue
        order = labelled[np.argsort(-fitting[labelled], kind="stable")]
        _, first = np.unique(domains[order], return_index=True)
        fitting[labelled] = 0
        fitting[order[first]] = 1
    return fitting


def _tightest_first(requests: Resources, room: Room, fitting: Amounts) -> NDArray[np.intp]:
    """The nodes that take pods, those with the fewest free devices first, then those with the least other free amounts.

    Pods without devices so keep off nodes with free devices, and few devices of a node do not stay unused.
    """
    nodes = np.flatnonzero(fitting)
    devices = np.zeros(nodes.size, dtype=np.int64)
    scarcest = np.zeros(nodes.size)
    for name, row in room.columns.items():
        free = room.free[row][nodes]
        if is_device(name):
            devices += free
        elif name in requests:
            scarcest += free / max(1, int(room.free[row].max(initial=1)))
    return nodes[np.lexsort((nodes, scarcest, devices))]


# --- the search over all placements ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Search:
    """A search over all placements of the pod sets on few nodes, in plain numbers; it ends after `steps` steps."""

    wanted: Sequence[_Wanted]
    requests: list[list[tuple[int, int]]]
    may_use: list[list[bool]]
    domains: list[list[list[int]]]
    free: list[list[int]]
    slots: list[int]
    taken: list[list[int]]
    failed: set[object]
    steps: int = MOST_STEPS

    def run(self, at: int, node: int, left: int) -> bool:
        """True if the pod sets from `at` on have a placement, `left` pods of the first on the nodes from `node` on."""
        while left == 0:
            at += 1
            if at == len(self.wanted):
                return True
            node, left = 0, self.wanted[at].count
        if node == len(self.slots):
            return False
        state = at, node, left, tuple(map(tuple, self.free)), tuple(self.slots), self._used_domains(at)
        if state in self.failed:
            return False
        self.steps -= 1
        if self.steps < 0:
            return False
        for pods in range(min(left, self._most(at, node)), -1, -1):
            self._take(at, node, pods)
            if self.run(at, node + 1, left - pods):
                return True
            self._take(at, node, -pods)
        self.failed.add(state)
        return False

    def _most(self, at: int, node: int) -> int:
        if not self.may_use[at][node]:
            return 0
        most = self.slots[node]
        for row, amount in self.requests[at]:
            most = min(most, self.free[node][row] // amount)
        for domains in self.domains[at]:
            if domains[node] >= 0:
                others = (
                    pods for pods, one in zip(self.taken[at], domains, strict=True) if one == domains[node]
                )
                most = min(most, 1 - sum(others))
        return max(most, 0)

    def _take(self, at: int, node: int, pods: int) -> None:
        for row, amount in self.requests[at]:
            self.free[node][row] -= amount * pods
        self.slots[node] -= pods
        self.taken[at][node] += pods

    def _used_domains(self, at: int) -> tuple[int, ...]:
        return tuple(self.taken[at]) if self.domains[at] else ()


def _search(wanted: Sequence[_Wanted], room: Room, terrain: Terrain) -> dict[int, Amounts] | None:
    """A placement found by search; None if there is none, or the search would be, or was, too long."""
    could = np.zeros(room.slots.shape, dtype=np.bool_)
    for each in wanted:
        could |= _allowed(each, room, terrain) > 0
    nodes = np.flatnonzero(could)
    if nodes.size > MOST_SEARCHED_NODES:
        return None
    ordered = next(_orders(wanted, room))
    search = _Search(
        ordered,
        requests=[_rows(each.pods.requests, room) for each in ordered],
        may_use=[each.mask[nodes].tolist() for each in ordered],
        domains=[[terrain.domains(key)[nodes].tolist() for key in each.pods.apart] for each in ordered],
        free=room.free[:, nodes].T.tolist(),
        slots=room.slots[nodes].tolist(),
        taken=[[0] * nodes.size for _ in ordered],
        failed=set(),
    )
    if not search.run(0, 0, ordered[0].count):
        return None
    found = dict[int, Amounts]()
    for each, taken in zip(ordered, search.taken, strict=True):
        pods = np.zeros_like(room.slots)
        pods[nodes] = taken
        found[each.index] = pods
    return found


def _rows(requests: Resources, room: Room) -> list[tuple[int, int]]:
    return [
        (room.columns[name], amount)
        for name, amount in requests.items()
        if amount > 0 and name in room.columns
    ]
