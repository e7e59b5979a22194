"""Places the pod sets of a gang one after the other, in a few orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice, permutations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.model.resources import Resources, is_device
from dispatcher.core.scheduling.placement.node_room import Room
from dispatcher.core.scheduling.placement.node_traits import Amounts, Traits
from dispatcher.core.scheduling.placement.placement_bounds import Work
from dispatcher.core.scheduling.placement.wanted_pods import Wanted

MOST_ORDERS: Final = 6
"""Orders of the pod sets that are tried."""


def placed_by_orders(
    wanted: Sequence[Wanted], room: Room, traits: Traits, work: Work
) -> dict[int, Amounts] | None:
    """The placement of the first order and rule that places all; one pod set needs only one."""
    if len(wanted) == 1:
        return _in_order(wanted, room, traits, work, is_tight=True)
    for order in islice(orders(wanted, room), MOST_ORDERS):
        for is_tight in (True, False):
            if not work.may_order:
                return None
            found = _in_order(order, room, traits, work, is_tight=is_tight)
            if found is not None:
                return found
    return None


def orders(wanted: Sequence[Wanted], room: Room) -> Iterator[Sequence[Wanted]]:
    """Orders of the pod sets: the largest pods first, then the pod sets with the fewest nodes, then others.

    In each a set comes after those whose pods count for its spread.
    """
    by_size = sorted(wanted, key=lambda each: _size(each.pods.requests, room), reverse=True)
    by_nodes = sorted(by_size, key=lambda each: int(each.mask.sum()))
    yield _counted_first(by_nodes)
    if by_size != by_nodes:
        yield _counted_first(by_size)
    for order in permutations(by_nodes):
        if list(order) not in (by_nodes, by_size):
            yield _counted_first(order)


def _counted_first(order: Sequence[Wanted]) -> Sequence[Wanted]:
    """The order, changed only so far that each set comes after the earlier ones that count for its spread.

    Costs O(sets + counted sets), each with the logarithm of a heap.
    """
    if not any(each.counts_earlier for each in order):
        return order
    place = {each.index: at for at, each in enumerate(order)}
    counted = [_counted_by(each) & place.keys() for each in order]
    counting: dict[int, list[int]] = {}
    for at, indexes in enumerate(counted):
        for index in indexes:
            counting.setdefault(index, []).append(at)
    lacking = [len(indexes) for indexes in counted]
    ready = [at for at, number in enumerate(lacking) if not number]
    found = list[Wanted]()
    while ready:
        chosen = order[heappop(ready)]
        found.append(chosen)
        for at in counting.get(chosen.index, ()):
            lacking[at] -= 1
            if not lacking[at]:
                heappush(ready, at)
    return found


def _counted_by(each: Wanted) -> set[int]:
    """The earlier sets, by index, whose pods count for the spread of these."""
    return {each.index + distance for spread in each.pods.spread for distance in spread.earlier}


def _size(requests: Resources, room: Room) -> tuple[float, float]:
    """The largest request as a share of the largest amount on a node: of a device, then of any resource."""
    shares = {
        name: amount / max(1, int(room.free[room.columns[name]].max(initial=1)))
        for name, amount in requests.items()
        if name in room.columns
    }
    devices = [share for name, share in shares.items() if is_device(name)]
    return max(devices, default=0.0), max(shares.values(), default=0.0)


def _in_order(
    wanted: Sequence[Wanted], room: Room, traits: Traits, work: Work, *, is_tight: bool
) -> dict[int, Amounts] | None:
    """One pod set after the other, on the nodes with the least that stays free, or (not tight) with the most."""
    left, found = room.copy(), dict[int, Amounts]()
    for each in (each.beside(found) for each in wanted):
        work.ordered += 1
        fitting = allowed(each, left, traits)
        order = _ranked(each, left, fitting, traits.order, is_tight=is_tight)
        if each.spreading is None:
            pods = _filled(fitting, each.count, order)
        else:
            pods = each.spreading.place(fitting, each.count, order, work)
        if pods is None:
            return None
        left.take(each.pods.requests, pods)
        found[each.index] = pods
    return found if all(each.is_near(found) for each in wanted) else None


def _filled(fitting: Amounts, count: int, order: NDArray[np.intp]) -> Amounts | None:
    """As many pods on each node as fit, in this order; None if they are too few."""
    ranked = fitting[order]
    before = np.cumsum(ranked) - ranked
    taken = np.clip(count - before, 0, ranked)
    if int(taken.sum()) < count:
        return None
    pods = np.zeros_like(fitting)
    pods[order] = taken
    return pods


def allowed(each: Wanted, room: Room, traits: Traits) -> Amounts:
    """For each node, how many pods of the set fit there; `apart` leaves one node of each domain, with one pod."""
    fitting = room.fitting(each.pods.requests, each.count, each.mask)
    for key in each.pods.apart:
        domains = traits.domains(key)
        labelled = np.flatnonzero((fitting > 0) & (domains >= 0))
        if not labelled.size:
            continue
        order = labelled[np.lexsort((traits.order[labelled], -fitting[labelled]))]
        _, first = np.unique(domains[order], return_index=True)
        fitting[labelled] = 0
        fitting[order[first]] = 1
    return fitting


def _ranked(
    each: Wanted, room: Room, fitting: Amounts, by_name: Amounts, *, is_tight: bool
) -> NDArray[np.intp]:
    """The nodes that take pods, as many as could be needed; nodes with the least free first, or with the most.

    First the free devices count, then the shares of other requested resources, then their names. Pods
    without devices so keep off nodes with free devices, and few devices of a node do not stay unused.
    """
    nodes = np.flatnonzero(fitting)
    rank = np.zeros(nodes.size)
    for name, row in room.columns.items():
        free = room.free[row][nodes]
        if is_device(name):
            rank += free * _PER_DEVICE
        elif name in each.pods.requests:
            rank += free / max(1, int(room.free[row].max(initial=1)))
    rank = (rank if is_tight else -rank) + by_name[nodes] * _PER_NODE
    # Each of them takes one pod at least; a spread may need any of them.
    if nodes.size > each.count and each.spreading is None:
        chosen = np.argpartition(rank, each.count)[: each.count]
        nodes, rank = nodes[chosen], rank[chosen]
    return nodes[np.argsort(rank)]


_PER_DEVICE: Final = 16.0
"""More than the sum of all shares of other resources that pods request."""
_PER_NODE: Final = 1e-9
