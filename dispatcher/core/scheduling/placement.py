"""The placement of pod sets on nodes: pure functions of arrays.

A pod set alone is placed exactly: as many pods as fit on each node it may use, until all have one. A spread limits the
pods of each node (`core.scheduling.spread`). Several pod sets compete for nodes, which is bin packing. So `place` tries
the pod sets in several orders and with two rules for the choice of nodes, and then, in a small cluster, searches all
placements up to a bound. It may therefore refuse pod sets that have a placement, but never returns a placement that
does not fit.

Growth: a pod set costs O(nodes x resources that it requests); several pod sets cost that for each order that is tried,
at most `MOST_ORDERS` times two, then at most `MOST_STEPS` steps of the search.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import islice, permutations
from operator import and_
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.model.gang import PodSet
from dispatcher.core.model.resources import Resources, is_device
from dispatcher.core.scheduling.node_room import Room
from dispatcher.core.scheduling.node_traits import Amounts, Mask, Traits
from dispatcher.core.scheduling.spread import FewDomains, Spreading

MOST_ORDERS: Final = 6
"""Orders of the pod sets that are tried."""
MOST_DOMAINS: Final = 64
"""Combinations of domains that are tried for pod sets whose pods must be together."""
MOST_COMBINATIONS: Final = 4096
"""Combinations of domains that are looked at; those that contradict themselves are not tried."""
MOST_STEPS: Final = 2000
"""Steps of the search for a placement that no order finds; some ten milliseconds."""
MOST_SEARCHED_NODES: Final = 24
MOST_SEARCHED_PODS: Final = 64
"""Nodes that some pod set could use, and pods, beyond which there is no search: orders then find placements."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A pod set to place: `mask` are the nodes that it may use; `spreading` are the rules of its spread, if any.

    `away` are other pod sets by index, and the domains of nodes that these pods do not share with them. `near` are pod
    sets with which they share domains, and `led` pod sets that share domains with these only, so that these follow if
    those are placed first. `chosen` are the domains, by label, to which the mask was narrowed. `counted_over` are the
    labels over which later sets are spread, counting these pods.
    """

    index: int
    pods: PodSet
    count: int
    mask: Mask
    spreading: Spreading | None = None
    away: tuple[tuple[int, Amounts], ...] = ()
    near: tuple[_Near, ...] = ()
    led: tuple[tuple[int, str, Amounts], ...] = ()
    chosen: Mapping[str, int] = field(default_factory=dict)
    counted_over: frozenset[str] = frozenset()

    def beside(self, placed: Mapping[int, Amounts]) -> _Wanted:
        """The pod set on the nodes that these pods of other sets leave it."""
        mask, spreading = self.mask, self.spreading
        if spreading is not None:
            spreading = spreading.beside({other - self.index: pods for other, pods in placed.items()})
        for other, domains in self.away:
            if other in placed:
                mask = mask & ~_sharing(domains, placed[other] > 0)
        for rule in self.near:
            if rule.is_begun(placed):
                mask = mask & rule.allowed(placed)
        for other, _, domains in self.led:
            if other in placed:
                mask = mask & _sharing(domains, placed[other] > 0)
        if mask is self.mask and spreading is self.spreading:
            return self
        return replace(self, mask=mask, spreading=spreading)

    @property
    def counts_earlier(self) -> bool:
        """True if pods of earlier sets count for the spread of these."""
        return self.spreading is not None and self.spreading.counts_earlier

    @property
    def is_tentative(self) -> bool:
        """True if the pods may be in several of the domains of which one was chosen."""
        return any(label not in self.pods.together for label in self.chosen)

    def is_near(self, placed: Mapping[int, Amounts]) -> bool:
        """True if all pods of the set share domains with the others that they need."""
        nodes = placed[self.index] > 0
        return all(bool(rule.allowed(placed)[nodes].all()) for rule in self.near)


@dataclass(frozen=True, slots=True)
class _Near:
    """The pod sets of which one must have a pod in the same domain; `served` are nodes with one that is there."""

    label: str
    others: tuple[int, ...]
    domains: Amounts
    served: Mask

    def is_begun(self, placed: Mapping[int, Amounts]) -> bool:
        """True if some of their pods have nodes."""
        return any(other in placed for other in self.others) or bool(self.served.any())

    def allowed(self, placed: Mapping[int, Amounts]) -> Mask:
        """The nodes that share a domain with some of their pods."""
        nodes = np.zeros_like(self.served)
        for other in self.others:
            if other in placed:
                nodes |= placed[other] > 0
        return self.served | _sharing(self.domains, nodes)


def _sharing(domains: Amounts, nodes: Mask) -> Mask:
    """The nodes that share a domain with one of `nodes`."""
    used = np.unique(domains[nodes])
    return np.isin(domains, used[used >= 0])


Placement = list[Amounts]
"""For each pod set, the pods of it on each node."""


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """The first pod set that alone has too few nodes, and how many of its pods fit; None if each alone fits."""

    index: int | None = None
    fitting: int = 0


@dataclass(frozen=True, slots=True)
class Rest:
    """The pods of each pod set that are still to be placed, and how many others of it each node has already."""

    counts: Sequence[int]
    present: Sequence[Mapping[int, int]]
    """For each pod set, pods by the row of their node; they count for the spread of the set, and keep others away."""


def place(
    pod_sets: Sequence[PodSet], room: Room, traits: Traits, rest: Rest | None = None
) -> Placement | Unplaceable:
    """The nodes for all pods at once, or why there are none; only for the `rest` of the pods if that is given."""
    sizes = [pod_set.count for pod_set in pod_sets] if rest is None else rest.counts
    there = {} if rest is None else _by_node(rest.present, traits)
    wanted = [
        _wanted(index, pod_set, count, traits, there)
        for index, (pod_set, count) in enumerate(zip(pod_sets, sizes, strict=True))
        if count
    ]
    if any(each.near for each in wanted):
        wanted = _with_led(wanted)
    if any(each.counts_earlier for each in wanted):
        wanted = _with_counted(wanted)
    alone: list[Amounts] = []
    for each in wanted:
        fitting = _allowed(each, room, traits)
        total = _most_alone(each, fitting, room)
        if total < each.count:
            return Unplaceable(each.index, total)
        alone.append(fitting)
    found = _placed(wanted, alone, room, traits) if wanted else {}
    if found is None:
        return Unplaceable()
    empty = np.zeros_like(room.slots)
    return [found.get(index, empty) for index in range(len(pod_sets))]


def _by_node(present: Sequence[Mapping[int, int]], traits: Traits) -> dict[int, Amounts]:
    """The pods on each node, by the index of their pod set."""
    found = {}
    for index, pods in enumerate(present):
        found[index] = np.zeros(len(traits.nodes), np.int64)
        found[index][list(pods)] = list(pods.values())
    return found


def _wanted(index: int, pods: PodSet, count: int, traits: Traits, present: Mapping[int, Amounts]) -> _Wanted:
    wanted = _Wanted(index, pods, count, traits.usable_by(pods))
    if pods.away:
        away = tuple((index + distance, traits.domains(label)) for label, distance in pods.away)
        wanted = replace(wanted, away=away).beside(present)
    if pods.spread:
        spreading = Spreading.of(pods, traits, {one - index: amounts for one, amounts in present.items()})
        wanted = replace(wanted, mask=wanted.mask & spreading.usable, spreading=spreading)
    if pods.near:
        near = tuple(_near(index, label, distances, traits, present) for label, distances in pods.near)
        labelled = reduce(and_, (rule.domains >= 0 for rule in near))
        wanted = replace(wanted, near=near, mask=wanted.mask & labelled)
    return wanted


def _near(
    index: int, label: str, distances: Sequence[int], traits: Traits, present: Mapping[int, Amounts]
) -> _Near:
    others, domains = tuple(index + distance for distance in distances), traits.domains(label)
    nodes = np.zeros(len(traits.nodes), np.bool_)
    for other in others:
        if other in present:
            nodes |= present[other] > 0
    return _Near(label, others, domains, _sharing(domains, nodes))


def _with_led(wanted: Sequence[_Wanted]) -> list[_Wanted]:
    """The pod sets, each with those that it alone must be near to."""
    led: dict[int, list[tuple[int, str, Amounts]]] = {}
    for each in wanted:
        for rule in each.near:
            if len(rule.others) == 1 and not rule.served.any():
                led.setdefault(rule.others[0], []).append((each.index, rule.label, rule.domains))
    return [replace(each, led=tuple(led[each.index])) if each.index in led else each for each in wanted]


def _with_counted(wanted: Sequence[_Wanted]) -> list[_Wanted]:
    """The pod sets, each with the labels over which later sets are spread that count its pods."""
    counted: dict[int, set[str]] = {}
    for each in wanted:
        for spread in each.pods.spread:
            for distance in spread.earlier:
                counted.setdefault(each.index + distance, set()).add(spread.topology)
    return [replace(each, counted_over=frozenset(counted.get(each.index, ()))) for each in wanted]


def _most_alone(each: _Wanted, fitting: Amounts, room: Room) -> int:
    """How many pods of the set have a node under each of its rules; `fitting` is by node, as `apart` leaves it."""
    total = int(fitting.sum())
    if each.spreading is None or total < each.count or each.counts_earlier:
        return total
    if each.pods.apart:  # which leaves one of several nodes that would do
        fitting = room.fitting(each.pods.requests, each.count, each.mask)
    return each.spreading.most(fitting, each.count)


def _placed(
    wanted: Sequence[_Wanted], alone: Sequence[Amounts], room: Room, traits: Traits
) -> dict[int, Amounts] | None:
    for narrowed in islice(_in_domains(wanted, alone, traits), MOST_DOMAINS):
        found = _by_orders(narrowed, room, traits)
        if found is None and not _is_exact(narrowed) and not any(each.is_tentative for each in narrowed):
            found = _search(narrowed, room, traits)
        if found is not None:
            return found
    return None


def _is_exact(wanted: Sequence[_Wanted]) -> bool:
    """True if one order finds every placement."""
    if len(wanted) > 1:
        return False
    return all(each.spreading is None or (each.spreading.is_exact and not each.pods.apart) for each in wanted)


def _in_domains(
    wanted: Sequence[_Wanted], alone: Sequence[Amounts], traits: Traits
) -> Iterator[Sequence[_Wanted]]:
    """The pod sets with their nodes narrowed to one domain, for each combination of domains that might do."""
    choices = [list(_domains_of(each, fitting, traits)) for each, fitting in zip(wanted, alone, strict=True)]
    yield from filter(None, islice(_combined(choices, ()), MOST_COMBINATIONS))


def _combined(
    choices: Sequence[Sequence[_Wanted]], chosen: tuple[_Wanted, ...]
) -> Iterator[tuple[_Wanted, ...]]:
    """The combinations that begin with those chosen; an empty one in the place of those that contradict themselves."""
    if len(chosen) == len(choices):
        yield chosen
        return
    for each in choices[len(chosen)]:
        combined = *chosen, each
        if _may_agree(combined):
            yield from _combined(choices, combined)
        else:
            yield ()


def _may_agree(narrowed: Sequence[_Wanted]) -> bool:
    """False if pod sets that must be near each other, and no others, were narrowed to different domains."""
    chosen = {each.index: each.chosen for each in narrowed}
    for each in narrowed:
        for label, distances in each.pods.near:
            own, others = (
                each.chosen.get(label),
                [chosen.get(each.index + one, {}).get(label) for one in distances],
            )
            if own is not None and None not in others and own not in others:
                return False
    return True


def _domains_of(each: _Wanted, fitting: Amounts, traits: Traits) -> Iterator[_Wanted]:
    """The pod set in each domain that has enough nodes for it, the tightest domain first.

    Pods that keep away from others may be on all nodes, which is tried first: one domain leaves others to the others.
    """
    if each.pods.together:
        found = [each]
        for key in each.pods.together:
            found = [one for before in found for one in _in_each_domain(before, key, fitting, traits)]
    else:
        yield each
        found = [
            one for key in _shared_keys(each, traits) for one in _in_each_domain(each, key, fitting, traits)
        ]
    sizes = [(int(fitting[one.mask].sum()), at) for at, one in enumerate(found)]
    for _, at in sorted(sizes):
        yield found[at]


def _in_each_domain(each: _Wanted, key: str, fitting: Amounts, traits: Traits) -> Iterator[_Wanted]:
    """The pod set in each domain of its nodes that has enough of them."""
    domains = traits.domains(key)
    for value in np.unique(domains[each.mask & (domains >= 0) & (fitting > 0)]):
        mask = each.mask & (domains == value)
        if int(fitting[mask].sum()) >= each.count:
            yield replace(each, mask=mask, chosen={**each.chosen, key: int(value)})


def _shared_keys(each: _Wanted, traits: Traits) -> list[str]:
    """The topologies with domains of several nodes by which the pods are away from others, or near to others."""
    keys = {label for label, _ in (*each.pods.away, *each.pods.near)} | {label for _, label, _ in each.led}
    if each.spreading is None:
        keys |= each.counted_over
    return [key for key in sorted(keys) if int(traits.domains(key).max(initial=-1)) + 1 < len(traits.rows)]


def _by_orders(wanted: Sequence[_Wanted], room: Room, traits: Traits) -> dict[int, Amounts] | None:
    """The placement of the first order and rule that places all; one pod set needs only one."""
    if len(wanted) == 1:
        return _in_order(wanted, room, traits, is_tight=True)
    for order in islice(_orders(wanted, room), MOST_ORDERS):
        for is_tight in (True, False):
            found = _in_order(order, room, traits, is_tight=is_tight)
            if found is not None:
                return found
    return None


def _orders(wanted: Sequence[_Wanted], room: Room) -> Iterator[Sequence[_Wanted]]:
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


def _counted_first(order: Sequence[_Wanted]) -> Sequence[_Wanted]:
    """The order, changed only so far that each set comes after the earlier ones that count for its spread."""
    if not any(each.counts_earlier for each in order):
        return order
    left, found = list(order), list[_Wanted]()
    while left:
        indexes = {each.index for each in left}
        chosen = next(each for each in left if indexes.isdisjoint(_counted_by(each)))
        left.remove(chosen)
        found.append(chosen)
    return found


def _counted_by(each: _Wanted) -> set[int]:
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
    wanted: Sequence[_Wanted], room: Room, traits: Traits, *, is_tight: bool
) -> dict[int, Amounts] | None:
    """One pod set after the other, on the nodes with the least that stays free, or (not tight) with the most."""
    left, found = room.copy(), dict[int, Amounts]()
    for each in (each.beside(found) for each in wanted):
        fitting = _allowed(each, left, traits)
        order = _ranked(each, left, fitting, traits.order, is_tight=is_tight)
        if each.spreading is None:
            pods = _filled(fitting, each.count, order)
        else:
            pods = each.spreading.place(fitting, each.count, order)
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


def _allowed(each: _Wanted, room: Room, traits: Traits) -> Amounts:
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
    each: _Wanted, room: Room, fitting: Amounts, by_name: Amounts, *, is_tight: bool
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


# --- the search over all placements ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Search:
    """A search over all placements of the pod sets on few nodes, in plain numbers; it ends after `steps` steps."""

    wanted: Sequence[_Wanted]
    requests: list[list[tuple[int, int]]]
    may_use: list[list[bool]]
    domains: list[list[list[int]]]
    spread: list[list[FewDomains]]
    away: list[list[tuple[int, list[int]]]]
    near: list[list[tuple[list[int], list[int], list[bool]]]]
    free: list[list[int]]
    slots: list[int]
    taken: list[list[int]]
    failed: set[object]
    steps: int = MOST_STEPS

    def run(self, at: int, node: int, left: int) -> bool:
        """True if the pod sets from `at` on have a placement, `left` pods of the first on the nodes from `node` on."""
        while left == 0:
            if not self._is_spread(at):
                return False
            at += 1
            if at == len(self.wanted):
                return all(map(self._is_near, range(at)))
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
            if self.steps < 0:
                return False
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
        for other, domains in self.away[at]:
            if domains[node] >= 0 and any(
                pods and one == domains[node] for pods, one in zip(self.taken[other], domains, strict=True)
            ):
                return 0
        for rule in self.near[at]:
            if all(other < at for other in rule[0]) and not self._is_shared(node, *rule):
                return 0
        for spread in self.spread[at]:
            most = min(most, spread.left(node, self.taken[at]))
        return max(most, 0)

    def _is_near(self, at: int) -> bool:
        return all(
            not pods or self._is_shared(node, *rule)
            for node, pods in enumerate(self.taken[at])
            for rule in self.near[at]
        )

    def _is_shared(self, node: int, others: list[int], domains: list[int], served: list[bool]) -> bool:
        """True if a pod of one of the other sets is in the domain of a node."""
        return served[node] or any(
            pods and one == domains[node]
            for other in others
            for pods, one in zip(self.taken[other], domains, strict=True)
        )

    def _is_spread(self, at: int) -> bool:
        return all(each.allows(self.taken[at], self.taken) for each in self.spread[at])

    def _take(self, at: int, node: int, pods: int) -> None:
        for row, amount in self.requests[at]:
            self.free[node][row] -= amount * pods
        self.slots[node] -= pods
        self.taken[at][node] += pods

    def _used_domains(self, at: int) -> tuple[object, ...]:
        if any(self.away) or any(self.near) or any(each.beside for spread in self.spread for each in spread):
            return tuple(map(tuple, self.taken))
        return tuple(self.taken[at]) if self.domains[at] or self.spread[at] else ()


def _search(wanted: Sequence[_Wanted], room: Room, traits: Traits) -> dict[int, Amounts] | None:
    """A placement found by search; None if there is none, or the search would be, or was, too long."""
    nodes = _searched(wanted, room, traits)
    if nodes.size > MOST_SEARCHED_NODES or sum(each.count for each in wanted) > MOST_SEARCHED_PODS:
        return None
    ordered = next(_orders(wanted, room))
    position = {each.index: at for at, each in enumerate(ordered)}
    search = _Search(
        ordered,
        requests=[_rows(each.pods.requests, room) for each in ordered],
        may_use=[each.mask[nodes].tolist() for each in ordered],
        domains=[[traits.domains(key)[nodes].tolist() for key in each.pods.apart] for each in ordered],
        away=[
            [(position[other], of_node[nodes].tolist()) for other, of_node in each.away if other in position]
            for each in ordered
        ],
        near=[
            [
                (
                    [position[other] for other in rule.others if other in position],
                    rule.domains[nodes].tolist(),
                    rule.served[nodes].tolist(),
                )
                for rule in each.near
            ]
            for each in ordered
        ],
        spread=[_few_domains(each, room, nodes, position) for each in ordered],
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


def _searched(wanted: Sequence[_Wanted], room: Room, traits: Traits) -> NDArray[np.intp]:
    """The nodes that take pods, by name; where other rules might need them, also those that `apart` passed over."""
    could = np.zeros(room.slots.shape, dtype=np.bool_)
    are_linked = any(each.away or each.near for each in wanted)
    for each in wanted:
        if are_linked or each.spreading is not None:
            could |= room.fitting(each.pods.requests, each.count, each.mask) > 0
        else:
            could |= _allowed(each, room, traits) > 0
    nodes = np.flatnonzero(could)
    return nodes[np.argsort(traits.order[nodes])]


def _few_domains(
    each: _Wanted, room: Room, nodes: NDArray[np.intp], position: Mapping[int, int]
) -> list[FewDomains]:
    """The spreads of a set for the search; `position` has the place of each set in it, by index."""
    if each.spreading is None:
        return []
    levels = each.spreading.levels(room.fitting(each.pods.requests, each.count, each.mask), each.count)
    earlier = ([each.index + distance for distance in spread.earlier] for spread in each.pods.spread)
    return [
        level.on(nodes, [position[one] for one in counted if one in position])
        for level, counted in zip(levels, earlier, strict=True)
    ]


def _rows(requests: Resources, room: Room) -> list[tuple[int, int]]:
    return [
        (room.columns[name], amount)
        for name, amount in requests.items()
        if amount > 0 and name in room.columns
    ]
