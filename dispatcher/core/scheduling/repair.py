"""Advice for a waiting gang: the running gangs that hold its capacity, and the smallest changes that place it.

A repair is one change of a `World`: more nodes of one shape, fewer running gangs, or nodes without their taints. The
search knows no rule of scheduling. It applies a change, plans the world again and looks whether the gang is placed, so
it is right for every rule, and for gangs ahead that take the added capacity. For each returned repair it has seen that
the repair alone suffices, and that one node, gang or taint less does not.

How the search grows: one plan serves all waiting gangs. For each of at most `MOST_CLUSTERS` clusters and `MOST_SHAPES`
shapes of nodes that take a pod of the gang, it makes O(log k) plans to find that k nodes are needed; the gangs share
many of them. Sets of gangs or of tainted nodes are tried by size while there are at most `MOST_SETS` (fewer in a large
world), so the smallest is found. Beyond that, some orders are cut where they begin to help, and members that are not
needed are left out, in O(set) plans or a few times as many: a minimal set, maybe not the smallest. Each search makes at
most `MOST_PLANS` plans. `MOST_WORK` bounds the plans of all searches of one kind, for the gangs decided first.
A search that is cut short returns nothing, and the advice says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import comb
from typing import Any, Final, TypeVar

from dispatcher.core.model.gang import Gang
from dispatcher.core.model.nodes import Node, Taint
from dispatcher.core.model.record import Record
from dispatcher.core.model.resources import Resources, is_device, sum_of
from dispatcher.core.scheduling.cycle import Outcome, Placed
from dispatcher.core.scheduling.scenario import MOST, write_amounts
from dispatcher.core.scheduling.world import Cluster, KnownSnapshots, NoNode, RunningGang, World

MOST_REPAIRS: Final = 5
"""Repairs of one gang."""

MOST_CLUSTERS: Final = 8
MOST_SHAPES: Final = 16
MOST_SETS: Final = 1024
MOST_PLANS: Final = 1024
MOST_WORK: Final = 300_000
"""The cost of all plans of the searches of one kind, in nodes: about ten seconds."""
MOST_WORK_ON_SETS: Final = 50_000
"""The same, over the plans of all sets by size."""
MOST_ORDERS: Final = 2
"""Orders whose beginnings are made minimal: the orders with the shortest beginnings."""

_NAMES: Final = ("!added", "~added")
"""Names of added nodes that come before and after nearly every other: a repair must not depend on the name."""

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class AddNodes:
    """So many more nodes like `node`, whose name does not count, in a cluster."""

    cluster: str
    count: int
    node: Node

    @property
    def changes(self) -> int:
        """The number of things that change."""
        return self.count

    def as_document(self) -> dict[str, Any]:
        """The repair in the terms of a scenario file."""
        nodes: dict[str, Any] = {"cluster": self.cluster, "count": self.count}
        nodes["allocatable"] = write_amounts(self.node.allocatable)
        if self.node.labels:
            nodes["labels"] = dict(self.node.labels)
        if self.node.taints:
            nodes["taints"] = [_taint(each) for each in self.node.taints]
        return {"add_nodes": nodes}


@dataclass(frozen=True, slots=True)
class RemoveGangs:
    """These running gangs less."""

    gangs: tuple[str, ...]

    @property
    def changes(self) -> int:
        """The number of things that change."""
        return len(self.gangs)

    def as_document(self) -> dict[str, Any]:
        """The repair in the terms of a scenario file."""
        return {"remove": list(self.gangs)}


@dataclass(frozen=True, slots=True)
class RemoveTaints:
    """No taints on these nodes of a cluster."""

    cluster: str
    nodes: tuple[str, ...]

    @property
    def changes(self) -> int:
        """The number of things that change."""
        return len(self.nodes)

    def as_document(self) -> dict[str, Any]:
        """The repair in the terms of a scenario file."""
        return {"untaint": {"cluster": self.cluster, "nodes": list(self.nodes)}}


Repair = AddNodes | RemoveGangs | RemoveTaints


@dataclass(frozen=True, slots=True)
class Advice:
    """The holders and the repairs for one waiting gang.

    `holders` are running gangs without which it would go, all of them needed; empty if that does not help. `repairs`
    are alternatives, the fewest changes first; of equals, taints before nodes before gangs. If there is none,
    `message` says why; it is empty if no cluster accepts the gang, because the pending reason then says why.
    """

    holders: tuple[str, ...] = ()
    repairs: tuple[Repair, ...] = ()
    message: str = ""


NO_ADVICE: Final = Advice()


def advise(
    world: World, outcomes: Sequence[Outcome], known: KnownSnapshots | None = None
) -> dict[str, Advice]:
    """The advice for each waiting gang, by its uid; `outcomes` are those of `world.plan(known)`."""
    waiting = [index for index, each in enumerate(outcomes) if not isinstance(each, Placed)]
    return _advise(world, outcomes, waiting, MOST_WORK, known)


def advise_one(
    world: World,
    outcomes: Sequence[Outcome],
    uid: str,
    most_work: int = MOST_WORK,
    known: KnownSnapshots | None = None,
) -> Advice:
    """The advice for one waiting gang; `outcomes` are those of `world.plan(known)`, and `most_work` bounds the search.

    The gangs that are decided after it cannot change its outcome, so the search leaves them out.
    """
    index = next(index for index, each in enumerate(outcomes) if each.record.uid == uid)
    served = outcomes[: index + 1]
    smaller = replace(world, pending=tuple(each.record for each in served))
    return _advise(smaller, served, [index], most_work, known)[uid]


def _advise(
    world: World,
    outcomes: Sequence[Outcome],
    waiting: Iterable[int],
    most_work: int,
    known: KnownSnapshots | None,
) -> dict[str, Advice]:
    """The advice for the gangs with these indices."""
    trials = _Trials(world, most_work, known or KnownSnapshots())
    records = [each.record for each in outcomes]
    searches = [
        _Search(trials, records[: index + 1], outcome.pending.cluster)
        for index in waiting
        if not isinstance(outcome := outcomes[index], Placed)
    ]
    for search_in in (_Search.add_nodes, _Search.remove_taints):
        trials.begin_kind()
        for turn in range(MOST_CLUSTERS):  # every gang in its nearest cluster first
            for search in searches:
                for cluster in search.clusters[turn : turn + 1]:
                    search_in(search, cluster)
    trials.begin_kind()
    for search in searches:
        search.remove_gangs()
    return {search.record.uid: search.advice() for search in searches}


def apply(world: World, repair: Repair, name: str = _NAMES[0]) -> World:
    """The world after a repair; added nodes are named `name` and a number."""
    match repair:
        case AddNodes(cluster, count, node):
            nodes = [replace(node, name=f"{name}-{number}") for number in range(count)]
            return world.with_nodes(cluster, nodes)
        case RemoveGangs(gangs):
            return world.without_gangs(frozenset(gangs))
        case RemoveTaints(cluster, names):
            return world.without_taints(cluster, frozenset(names))


class _Spent(Exception):  # not an error: the bound of a search is reached
    """A search has made as many plans as it may."""


class _Trials:
    """Plans of the world after one repair each, remembered for all gangs."""

    def __init__(self, world: World, most_work: int, known: KnownSnapshots) -> None:
        self.world = world
        self._most_work = most_work
        self._known = known
        self._counts: dict[tuple[str, Node], set[int]] = {}
        self._placed: dict[tuple[Repair, str], frozenset[str]] = {}
        self._work = 0
        self._plans = 0

    @property
    def size(self) -> int:
        """The size of the world: a plan costs about so much."""
        return _size(self.world)

    def begin_kind(self) -> None:
        """Allows plans of the most work from now on."""
        self._work = 0

    def begin(self) -> None:
        """Allows `MOST_PLANS` new plans from now on."""
        self._plans = 0

    def counts_of(self, cluster: str, shape: Node) -> list[int]:
        """The numbers of nodes of a shape that were added to a cluster in some plan, ascending."""
        return sorted(self._counts.get((cluster, shape), ()))

    def goes(self, gang: str, repair: Repair, name: str = _NAMES[0]) -> bool:
        """True if the gang is placed after the repair. Raises `_Spent`."""
        placed = self._placed.get((repair, name))
        if placed is None:
            placed = self._placed[repair, name] = self._plan(apply(self.world, repair, name))
            if isinstance(repair, AddNodes):
                self._counts.setdefault((repair.cluster, repair.node), set()).add(repair.count)
        return gang in placed

    def _plan(self, world: World) -> frozenset[str]:
        self._plans += 1
        self._work += _size(world)
        if self._plans > MOST_PLANS or self._work > self._most_work:
            raise _Spent
        try:
            return frozenset(each.record.uid for each in world.plan(self._known) if isinstance(each, Placed))
        except NoNode:
            return frozenset()  # without named nodes, the pods of another running gang would have no place


def _size(world: World) -> int:
    """The cost of a plan: a snapshot copies its nodes, and a gang is compared with the nodes, group by group."""
    return sum(len(cluster.nodes) for cluster in world.clusters) + _GANG * len(world.pending)


_GANG: Final = 10
"""The cost of one pending gang, in nodes."""


class _Search:
    """The searches for one waiting gang."""

    def __init__(self, trials: _Trials, served: Sequence[Record], nearest: str) -> None:
        self.record = served[-1]
        self._served = served
        self._trials = trials
        self._world = trials.world
        accepting = [each for each in self._world.clusters if self._world.accepts(each, self.record)]
        accepting.sort(key=lambda each: each.name != nearest)
        self.clusters = accepting[:MOST_CLUSTERS]
        self._is_cut_short = len(accepting) > MOST_CLUSTERS
        self._repairs: list[Repair] = []
        self._holders: tuple[str, ...] = ()

    def advice(self) -> Advice:
        """The result of the searches so far."""
        repairs = sorted(self._repairs, key=lambda repair: (repair.changes, _KINDS.index(type(repair))))
        message = "" if repairs or not self.clusters else _NO_REPAIR
        if self._is_cut_short and not (repairs and self._holders):
            message = _CUT_SHORT
        return Advice(self._holders, tuple(repairs[:MOST_REPAIRS]), message)

    def add_nodes(self, cluster: Cluster) -> None:
        """Searches for nodes to add to a cluster, of the shape that needs the fewest nodes."""
        shapes = [each for each in _shapes(cluster.nodes) if _has_use_for(self.record.gang, each)]
        known = self._fewest_of(cluster, shapes)
        own = known or self._fewest_of(cluster, _own_shapes(self.record.gang))
        self._repairs += own[:1]

    def remove_taints(self, cluster: Cluster) -> None:
        """Searches for nodes of a cluster to take the taints from."""
        nodes = [node.name for node in cluster.nodes if self._is_kept_from(node)]
        found = self._smallest(nodes, [nodes], partial(RemoveTaints, cluster.name))
        self._repairs += [RemoveTaints(cluster.name, found)] if found else []

    def remove_gangs(self) -> None:
        """Searches for running gangs to remove."""
        if not self.clusters:
            return
        gangs = [each.name for each in self._world.running]
        found = self._smallest(gangs, list(self._orders()), RemoveGangs)
        self._holders = found
        self._repairs += [RemoveGangs(found)] if found else []

    def _is_kept_from(self, node: Node) -> bool:
        if not any(taint.keeps_away for taint in node.taints):
            return False
        pod_sets = self.record.gang.pod_sets
        return not pod_sets or not all(each.tolerates(node.taints) for each in pod_sets)

    def _fewest_of(self, cluster: Cluster, shapes: Iterable[Node]) -> list[AddNodes]:
        """The verified additions to a cluster, the fewest and then the plainest nodes first."""
        found = [self._bounded(self._fewest, cluster, shape) for shape in shapes]
        return sorted(filter(None, found), key=lambda each: (each.count, _plainness(each.node)))

    def _fewest(self, cluster: Cluster, shape: Node) -> AddNodes | None:
        """A number of nodes that suffices where one less does not; None if none is found."""

        def goes(count: int, name: str = _NAMES[0]) -> bool:
            return self._goes(AddNodes(cluster.name, count, shape), name)

        most = self._most_needed(cluster, shape)
        bounds = _first_that_goes(most, goes)
        if bounds is None:
            return None
        fails, suffices = _boundary(*bounds, goes, self._trials.counts_of(cluster.name, shape))
        is_the_same = goes(suffices, _NAMES[1]) and not (fails and goes(fails, _NAMES[1]))
        return AddNodes(cluster.name, suffices, shape) if is_the_same else None

    def _most_needed(self, cluster: Cluster, shape: Node) -> int:
        """A number of nodes with room for it and all gangs ahead, one pod on each, and for all that is owed."""
        pods = sum(each.gang.pods for each in self._served)
        there = sum_of(gang.demand for gang in self._world.running if gang.cluster == cluster.name)
        owed = cluster.reserve + there + sum_of(record.gang.demand for record in self._served)
        by_amount = [-(-owed[name] // amount) for name, amount in shape.allocatable.items() if amount > 0]
        most = MOST - sum(len(each.nodes) for each in self._world.clusters)
        return max(1, min(most, pods + max(by_amount, default=0)))

    def _orders(self) -> Iterator[list[str]]:
        """Orders of running gangs in which the first may be holders: by cluster the largest, and node by node."""
        bound = self._world.bound_pods()
        for cluster in self.clusters:
            there = [each for each in self._world.running if each.cluster == cluster.name]
            others = [each.name for each in self._world.running if each.cluster != cluster.name]
            by_size = sorted(there, key=lambda each: -self._share_of(each))
            yield [*(each.name for each in by_size), *others]
            nodes: dict[str, list[str]] = {node.name: [] for node in cluster.nodes}
            for pod in bound[cluster.name]:
                owners = nodes.get(pod.node)  # None for a node that is gone, whose pods are still listed
                if owners is not None and pod.owner is not None and pod.owner not in owners:
                    owners.append(pod.owner)
            node_by_node = [name for each in sorted(nodes.values(), key=len) for name in each]
            yield list(dict.fromkeys([*node_by_node, *(each.name for each in there), *others]))

    def _share_of(self, running: RunningGang) -> int:
        """The largest share of the gang's demand, of any resource, that a running gang has, in millionths."""
        demand = self.record.gang.demand
        return max((running.demand[name] * 10**6 // amount for name, amount in demand.items()), default=0)

    def _smallest(
        self,
        items: Sequence[str],
        orders: Sequence[Sequence[str]],
        change: Callable[[tuple[str, ...]], Repair],
    ) -> tuple[str, ...]:
        """The smallest set that is found to suffice, minimal and in the order of `items`; empty if there is none."""
        place = {name: index for index, name in enumerate(items)}

        def goes(names: Iterable[str]) -> bool:
            return self._goes(change(tuple(sorted(names, key=place.__getitem__))))

        most = min(MOST_SETS, MOST_WORK_ON_SETS // max(1, self._trials.size))
        size, found = self._bounded(_smallest_by_size, items, goes, most) or (0, ())
        if found or size == len(items):
            return found
        begun = [self._bounded(_beginning, order, goes) for order in orders]
        shortest = sorted(filter(None, begun), key=len)[:MOST_ORDERS]
        minimal = [self._bounded(_minimal, each, goes) for each in shortest]
        least = min(filter(None, minimal), key=len, default=())
        return tuple(sorted(least, key=place.__getitem__))

    def _goes(self, repair: Repair, name: str = _NAMES[0]) -> bool:
        return self._trials.goes(self.record.uid, repair, name)

    def _bounded(self, search: Callable[..., Found], *arguments: Any) -> Found | None:  # noqa: ANN401
        """The result of a search; None if it is cut short."""
        self._trials.begin()
        try:
            return search(*arguments)
        except _Spent:
            self._is_cut_short = True
            return None


_KINDS: Final = (RemoveTaints, AddNodes, RemoveGangs)
_NO_REPAIR: Final = (
    "no repair was found: no more nodes of one shape, no fewer taints and no fewer gangs let it go"
)
_CUT_SHORT: Final = "the search for repairs was cut short, because the scenario is large"


# --- searches over numbers and sets ---------------------------------------------------------------------------


def _first_that_goes(most: int, goes: Callable[[int], bool]) -> tuple[int, int] | None:
    """The last number tried that fails and the first that goes, of 1, 2, 4 and so on up to `most`; 0 fails."""
    low, high = 0, 1
    while not goes(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    return low, high


def _boundary(
    low: int, high: int, goes: Callable[[int], bool], cheap: Collection[int] = ()
) -> tuple[int, int]:
    """Two neighbours from `low`, which fails, to `high`, which goes: the first fails and the second goes.

    The numbers in `cheap` are tried first, because their plans are known.
    """
    while high - low > 1:
        half = (low + high) // 2
        within = [each for each in cheap if low < each < high]
        middle = min(within, key=lambda each: abs(2 * each - low - high), default=half)
        low, high = (low, middle) if goes(middle) else (middle, high)
    return low, high


def _smallest_by_size(
    items: Sequence[str], goes: Callable[[Iterable[str]], bool], most: int
) -> tuple[int, tuple[str, ...]]:
    """The size up to which all sets were tried, and the first of them that goes; empty if none does.

    At most `most` sets are tried.
    """
    tried = 0
    for size in range(1, len(items) + 1):
        tried += comb(len(items), size)
        if tried > most:
            return size - 1, ()
        for each in combinations(items, size):
            if goes(each):
                return size, each
    return len(items), ()


def _beginning(order: Sequence[str], goes: Callable[[Iterable[str]], bool]) -> list[str]:
    """A beginning of the order that goes where one item less does not; empty if none is found."""
    bounds = _first_that_goes(len(order), lambda count: goes(order[:count])) if order else None
    if bounds is None:
        return []
    _, length = _boundary(*bounds, lambda count: goes(order[:count]))
    return list(order[:length])


def _minimal(items: Sequence[str], goes: Callable[[Iterable[str]], bool]) -> list[str]:
    """A minimal part of a set that goes: the part goes, and without any one of its items it does not."""
    left, index, needed = list(items), 0, 0
    while needed < len(left):
        fewer = [*left[:index], *left[index + 1 :]]
        if fewer and goes(fewer):
            left, needed = fewer, 0
        else:
            index, needed = index + 1, needed + 1
        index %= len(left)
    return left


# --- shapes of nodes ------------------------------------------------------------------------------------------


def _shapes(nodes: Iterable[Node]) -> list[Node]:
    """The different shapes of these nodes, the most frequent first."""
    return [shape for shape, _ in Counter(node.shape for node in nodes).most_common(MOST_SHAPES)]


def _has_use_for(gang: Gang, shape: Node) -> bool:
    """True if a node of this shape takes a pod of the gang; for a gang without pods, if it has a demanded resource."""
    if not any(each.count for each in gang.pod_sets):
        return any(name in shape.allocatable for name in gang.demand)
    return any(
        each.count and each.requests.fits_in(shape.allocatable) and each.may_use(shape)
        for each in gang.pod_sets
    )


def _own_shapes(gang: Gang) -> list[Node]:
    """Nodes of the size of the gang's pods: one that takes a pod of any set, then one for each set."""
    pod_sets = [each for each in gang.pod_sets if each.count]
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


def _plainness(node: Node) -> tuple[int, int, int]:
    """A measure by which a node without devices, with less cpu and less memory comes first."""
    devices = sum(amount for name, amount in node.allocatable.items() if is_device(name))
    return devices, node.allocatable["cpu"], node.allocatable["memory"]


def _taint(taint: Taint) -> dict[str, str]:
    written = {"key": taint.key, "value": taint.value, "effect": taint.effect}
    return {field: text for field, text in written.items() if text}
