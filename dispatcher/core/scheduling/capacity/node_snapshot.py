"""The capacity of each node of one cluster at one moment, for gangs that are placed on nodes.

A cycle takes the places of dispatched gangs from a snapshot. A copy without some AppWrappers costs their pods.

Growth: a fit costs O(groups of equal nodes) while nothing is taken, and O(nodes) soon after something is taken.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import islice
from operator import or_
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.core.model.bounded_dict import remember
from dispatcher.core.model.clusters.nodes import UNLIMITED_PODS, Node
from dispatcher.core.model.gangs.gang import Assignment, Constraint, Gang, PodSet
from dispatcher.core.model.gangs.growth import SurplusPod
from dispatcher.core.model.gangs.pod_terms import PodSort
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.failures import Failure
from dispatcher.core.model.resources import NOTHING, Resources, sum_of
from dispatcher.core.scheduling.capacity.pods_there import PodsThere
from dispatcher.core.scheduling.placement.node_room import NodeGroups, Room
from dispatcher.core.scheduling.placement.node_traits import PLAIN, Amounts, Mask, Traits, values_of
from dispatcher.core.scheduling.placement.placement import Unplaceable, place
from dispatcher.core.scheduling.placement.placement_bounds import Tally

_QUESTIONS: Final = 20
"""Questions after a change until nodes are grouped again: grouping costs as much as some of them."""
_MOST_REFUSALS: Final = 20_000
"""Distinct pod sets of gangs for which `find_unplaceable` remembers its result."""
_MOST_SUMS: Final = 2000
"""Distinct sets of constraints whose sums are remembered."""
_MOST_GROUPS: Final = 256
"""Distinct constraints whose groups of nodes are remembered, each with the amounts of up to all nodes."""
_UNKNOWN: Final = Unplaceable(None, -1)
"""No result; with it a remembered one costs a single look-up, because the hash of pod sets takes microseconds."""
_PLAIN_ONLY: Final = frozenset({PLAIN.constraint})


class Place(NamedTuple):
    """Pods with equal requests and of one sort on one node; `sort` is None where it is not known or does not matter."""

    node: str
    requests: Resources
    pods: int
    sort: PodSort | None = None


class Use(NamedTuple):
    """The use of a cluster by one AppWrapper: bound pods, places held for unbound pods, and demand without a place."""

    bound: tuple[Place, ...] = ()
    held: tuple[Place, ...] = ()
    beyond: Resources = NOTHING


PotentialRows = Mapping[str, tuple[int, ...]]
"""The rows of potential nodes by pool, in the order of their numbers."""


class ChangedNode(NamedTuple):
    """The free amounts of one node by resource, before a change and now; a debt is negative."""

    before: Mapping[str, int]
    now: Mapping[str, int]


class NodeCapacity:
    """The amounts of each node that are free now, or allocatable, or free once all pods that end have ended.

    Groups of equal nodes, sums and refusals are made once for many questions. A change makes them wrong. New groups are
    made after `_QUESTIONS` questions, or as soon as one needs them.
    """

    def __init__(
        self, room: Room, traits: Traits, all_traits: Traits | None = None, tally: Tally | None = None
    ) -> None:
        self.traits = traits
        self.tally = Tally() if tally is None else tally
        """The steps of the questions, with those of copies and of the capacity that this is a copy of."""
        self._all_traits = traits if all_traits is None else all_traits
        """The traits with potential nodes, which `traits` lack."""
        self._room = room
        self._groups: dict[Constraint, NodeGroups] = {}
        self._sums: dict[tuple[frozenset[Constraint] | None, Resources], Resources] = {}
        self._refusals: dict[tuple[PodSet, ...], Unplaceable | None] = {}
        self._questions = _QUESTIONS
        self._version = 0
        """Grows with every change."""
        self._lowest: tuple[NodeCapacity, int, NodeCapacity] | None = None
        """The last answer of `lowest`, with the other capacity and its version; wrong after a change of this one."""

    @property
    def all_traits(self) -> Traits:
        """The traits with potential nodes."""
        return self._all_traits

    @property
    def resource_names(self) -> Collection[str]:
        """The resources that some node lists; each is a column of the arrays."""
        return self._room.columns.keys()

    def equals(self, other: NodeCapacity) -> bool:
        """True if both have the same amounts on the same nodes."""
        is_of_same_nodes = self.traits is other.traits and self._all_traits is other._all_traits
        return is_of_same_nodes and self._room.equals(other._room)

    def changes_since(self, before: NodeCapacity, most: int) -> list[ChangedNode] | None:
        """The nodes with other amounts or places than `before`; None if nodes differ otherwise, or more than `most`."""
        old, new = before._room, self._room
        is_of_same_nodes = self.traits is before.traits and self._all_traits is before._all_traits
        if not is_of_same_nodes or old.columns != new.columns:
            return None
        differs = (old.free != new.free).any(axis=0) | (old.slots != new.slots)
        rows = np.flatnonzero(differs).tolist()
        if len(rows) > most:
            return None
        return [ChangedNode(old.amounts_of(row), new.amounts_of(row)) for row in rows]

    def copy(self) -> NodeCapacity:
        """A copy; taking from it does not change this capacity."""
        return NodeCapacity(self._room.copy(), self.traits, self._all_traits, self.tally)

    def including(self, rows: tuple[int, ...]) -> NodeCapacity:
        """The same amounts with the potential nodes in these rows; not to be changed."""
        traits = self.traits.including(rows, self._all_traits)
        return NodeCapacity(self._room, traits, self._all_traits, self.tally)

    def in_use(self, rows: tuple[int, ...], empty: NodeCapacity) -> frozenset[int]:
        """The rows of these where the amounts are not those of `empty`."""
        mine, theirs, at = self._room, empty._room, list(rows)
        differs = (mine.free[:, at] != theirs.free[:, at]).any(axis=0) | (mine.slots[at] != theirs.slots[at])
        return frozenset(row for row, is_used in zip(rows, differs, strict=True) if is_used)

    def taking(self, rows: tuple[int, ...], pod_sets: Sequence[PodSet]) -> tuple[int, ...]:
        """The rows of these that have the amounts for some pod of these sets, whether it may use the node or not."""
        at = list(rows)
        part = Room(self._room.columns, self._room.free[:, at], self._room.slots[at])
        takes = reduce(
            or_, (part.fitting(requests, 1) > 0 for requests in {each.requests for each in pod_sets})
        )
        return tuple(row for row, does_take in zip(rows, takes, strict=True) if does_take)

    def take(self, node: str, requests: Resources, pods: int) -> None:
        """Take pods with these requests from a node, also a potential one, if it is there; negative pods give back."""
        row = self._all_traits.rows.get(node)
        if row is None:
            return
        self._room.take(requests, pods, row)
        for known in (self._groups, self._sums, self._refusals):
            known.clear()
        self._questions = 0
        self._version += 1
        self._lowest = None

    def lowest(self, other: NodeCapacity) -> NodeCapacity:
        """For each node the lower of the two amounts, not to be changed; both have the same nodes and resources.

        The same value as long as neither changes: it remembers groups of nodes for the next gang.
        """
        if self._lowest is not None:
            before, version, found = self._lowest
            if before is other and version == other._version:
                return found
        found = NodeCapacity(self._room.lowest(other._room), self.traits, self._all_traits, self.tally)
        self._lowest = other, other._version, found
        return found

    def sum_for(self, gang: Gang | None, less: Resources) -> Resources:
        """The amounts of all nodes that some pod of `gang` may use (None: of every usable node), less `less`.

        A node that owes something has nothing, and takes nothing from the others.
        """
        key = None if gang is None else gang.constraints or _PLAIN_ONLY, less
        known = self._sums.get(key)
        if known is None:
            known = Resources(self._room.sums(self._nodes_of(gang))) - less
            remember(self._sums, _MOST_SUMS, key, known)
        return known

    def assign(self, gang: Gang) -> Assignment | Unplaceable:
        """The places of all pods; for each pod set, first the nodes that take no more of its pods."""
        found = self._unplaceable_alone(gang.pod_sets) or place(
            gang.pod_sets, self._room, self.traits, tally=self.tally
        )
        if isinstance(found, Unplaceable):
            return found
        named = zip(gang.pod_sets, found, strict=True)
        return Assignment(tuple(tuple(self._named(pod_set, pods)) for pod_set, pods in named))

    def takes(self, gang: Gang) -> bool:
        """True if `assign` has places for all pods; cheaper for a gang of one pod set without rules."""
        pod_sets = gang.pod_sets
        if len(pod_sets) != 1 or pod_sets[0].has_rules:
            return not isinstance(self.assign(gang), Unplaceable)
        (pod_set,) = pod_sets
        if self._unplaceable_alone(pod_sets) is not None:
            return False
        if pod_set.constraint in self._groups:
            return True
        fitting = self._room.fitting(pod_set.requests, pod_set.count, self.traits.usable_by(pod_set))
        return int(fitting.sum()) >= pod_set.count

    def surely_takes(self, pod_sets: tuple[PodSet, ...]) -> bool:
        """True if all pods have nodes; False if they have not, or if it is not one pod set without rules."""
        if len(pod_sets) != 1 or pod_sets[0].has_rules:
            return False
        (pod_set,) = pod_sets
        return self.groups(pod_set).fitting(pod_set) == pod_set.count

    def find_unplaceable(self, gang: Gang) -> Unplaceable | None:
        """Why there are no nodes for all pods; None if there are. Remembered for gangs with equal pod sets."""
        if self.surely_takes(gang.pod_sets):
            return None  # without the hash of the pod sets
        known = self._refusals.get(gang.pod_sets, _UNKNOWN)
        if known is _UNKNOWN:
            known = self._find_unplaceable(gang.pod_sets)
            remember(self._refusals, _MOST_REFUSALS, gang.pod_sets, known)
        return known

    def groups(self, pod_set: PodSet) -> NodeGroups:
        """The groups of the nodes that the pods of a set may use."""
        known = self._groups.get(pod_set.constraint)
        if known is None:
            known = NodeGroups.of(self._room, self.traits.usable_by(pod_set))
            remember(self._groups, _MOST_GROUPS, pod_set.constraint, known)
        return known

    def of_each_node(self, pod_set: PodSet, resource: str) -> Iterator[tuple[Node, int, int]]:
        """Each node with its free amount of a resource, and how many pods of the set fit there, each node alone.

        Rules about other pods do not count. Costs O(nodes), and nothing is kept.
        """
        fitting = self._room.fitting(pod_set.requests, pod_set.count, self.traits.usable_by(pod_set))
        column = self._room.columns.get(resource)
        for row, node in enumerate(self.traits.nodes):
            if node is not None:
                free = 0 if column is None else int(self._room.free[column, row])
                yield node, free, int(fitting[row])

    def _unplaceable_alone(self, pod_sets: tuple[PodSet, ...]) -> Unplaceable | None:
        """The first pod set that has too few nodes, even without its rules about other pods; None if it is not known.

        Soon after a change this is not known.
        """
        for index, pod_set in enumerate(pod_sets):
            if pod_set.has_rules:
                continue
            self._questions += 1
            if self._questions < _QUESTIONS and pod_set.constraint not in self._groups:
                continue
            fitting = self.groups(pod_set).fitting(pod_set)
            if fitting < pod_set.count:
                return Unplaceable(index, fitting)
        return None

    def _find_unplaceable(self, pod_sets: tuple[PodSet, ...]) -> Unplaceable | None:
        refused = self._unplaceable_alone(pod_sets)
        if refused is not None or self._is_surely_placed(pod_sets):
            return refused
        found = place(pod_sets, self._room, self.traits, tally=self.tally)
        return found if isinstance(found, Unplaceable) else None

    def _is_surely_placed(self, pod_sets: tuple[PodSet, ...]) -> bool:
        """True if each pod has a node of its own, or the only pod set fits; False if that is not known.

        The pod set with the fewest nodes chooses first; the pods before it took at most a node each.
        """
        if any(each.has_rules for each in pod_sets):
            return False
        if len(pod_sets) == 1:
            return True
        pods = 0
        for taking, count in sorted((self.groups(each).taking(each), each.count) for each in pod_sets):
            pods += count
            if pods > taking:
                return False
        return True

    def _named(self, pod_set: PodSet, pods: Amounts) -> Iterator[tuple[str, int]]:
        rows = pods.nonzero()[0]
        if rows.size > 1:
            spare = self._room.fitting(pod_set.requests, UNLIMITED_PODS, pods > 0)[rows] - pods[rows]
            rows = rows[np.lexsort((self.traits.order[rows], spare))]
        for row in rows:
            node = self.traits.nodes[row]
            if node is not None:
                yield node.name, int(pods[row])

    def _nodes_of(self, gang: Gang | None) -> Mask:
        if gang is None:
            return self.traits.usable()
        return reduce(or_, map(self.traits.usable_by, gang.pod_sets or (PLAIN,)))


class NodeSnapshot(Struct):
    """The capacity of each node at one moment; a cycle takes the places of placed gangs from it.

    `beyond` is not free either, for any gang: the demand without a place, and `reserve`, which the totals do not have.
    `uses` is by the uid of the AppWrapper. Snapshots of one `generation` and reserve have the same capacity.
    `potential` has the rows of the potential nodes of each pool, which count only in a snapshot that is `including`
    them. `there` are the pods that terms about pods can select, `lasting` those of them that never end; None while no
    such term is known.
    """

    free: NodeCapacity
    allocatable: NodeCapacity
    empty: NodeCapacity
    beyond: Resources = NOTHING
    uses: Mapping[str, Use] = field(default_factory=dict)
    reserve: Resources = NOTHING
    generation: object = field(default_factory=object)
    potential: PotentialRows = field(default_factory=dict)
    there: PodsThere | None = None
    lasting: PodsThere | None = None

    def __eq__(self, other: object) -> bool:
        """True if both are of one generation, so that they give every gang the same capacity."""
        if not isinstance(other, NodeSnapshot):
            return NotImplemented
        return (self.generation, self.reserve) == (other.generation, other.reserve)

    __hash__ = None  # type: ignore[assignment]  # `take` changes it

    @property
    def traits(self) -> Traits:
        """The nodes without their amounts."""
        return self.free.traits

    def changes_since(self, before: NodeSnapshot, most: int) -> list[ChangedNode] | None:
        """The nodes with other free amounts than `before`; None if they differ otherwise, or more than `most` do.

        The demand without a place may differ, too: it changes the sums alone.
        """
        if self.empty is not before.empty or self.reserve != before.reserve:
            return None
        return self.free.changes_since(before.free, most)

    def copy(self) -> NodeSnapshot:
        """A copy; taking from it does not change this snapshot."""
        there = self.there
        return replace(self, free=self.free.copy(), there=there.copy() if there is not None else None)

    def beside(self, gang: Gang) -> Gang:
        """The gang with the conditions on its nodes by the pods that are there; the same one if there are none."""
        there = self.there
        return gang if there is None else there.beside(gang, self.free.all_traits)

    def domains_of(self, topology: str, nodes: Iterable[str]) -> frozenset[str]:
        """The values of a label of these nodes, of those that have it."""
        traits = self.free.all_traits
        rows = (traits.rows.get(name) for name in nodes)
        there = (traits.nodes[row] for row in rows if row is not None)
        return values_of(topology, (node for node in there if node is not None))

    def beside_lasting(self, gang: Gang) -> Gang:
        """The gang with the conditions on its nodes by the pods that never end; the same one if there are none."""
        lasting = self.lasting
        return gang if lasting is None else lasting.beside(gang, self.free.all_traits, lasts=True)

    def including(self, rows: tuple[int, ...]) -> NodeSnapshot:
        """The same capacity with the potential nodes in these rows; not to be changed."""
        views = {name: getattr(self, name).including(rows) for name in ("free", "allocatable", "empty")}
        return replace(self, **views)

    def offered(self, pod_sets: Sequence[PodSet], most: int, *, is_empty: bool) -> dict[str, tuple[int, ...]]:
        """The rows of potential nodes with room for these pods, by pool: those with places of gangs, and `most` others.

        If the cluster `is_empty`, no potential node has places.
        """
        found = {}
        for pool, all_rows in self.potential.items():
            rows = (self.empty if is_empty else self.free).taking(all_rows, pod_sets)
            used = frozenset[int]() if is_empty or not rows else self.free.in_use(rows, self.empty)
            others = (row for row in rows if row not in used)
            found[pool] = (*(row for row in rows if row in used), *islice(others, most))
        return {pool: rows for pool, rows in found.items() if rows}

    def without(self, reserve: Resources) -> NodeSnapshot:
        """A copy in which `reserve` is neither free nor part of the total, for any gang."""
        found = self.copy()
        found.reserve += reserve
        found.beyond += reserve
        return found

    def without_gangs(self, uids: Iterable[str]) -> NodeSnapshot:
        """A copy as it would be without these AppWrappers: their pods are gone, their places free."""
        found = self.copy()
        found.generation = object()
        for use in filter(None, map(self.uses.get, uids)):
            found.charge(use, -1)
        return found

    def charge(self, use: Use, sign: int = 1) -> None:
        """Charge the use of an AppWrapper from now on; with the sign -1 it is charged no more."""
        for node, requests, pods, sort in (*use.bound, *use.held):
            self.free.take(node, requests, sign * pods)
            if self.there is not None and sort is not None:
                self.there.count(sort, node, sign * pods)
        self.beyond += use.beyond * sign
        self.generation = object()

    def split(
        self, surplus: Mapping[str, Mapping[str, tuple[tuple[SurplusPod, ...], Resources]]]
    ) -> Steps[list[Failure]]:
        """Let surplus have uses of its own: by the uid of the AppWrapper, then by the uid of the new use.

        A part without pods is what no pod uses, with its amounts. In steps of one AppWrapper; the uses are as before
        until the last one. The use of an AppWrapper for which that raises an exception, which is returned, stays whole.
        """
        found: dict[str, Use] = {}
        failures: list[Failure] = []
        for appwrapper, parts in surplus.items():
            try:
                found |= _uses_of_parts(appwrapper, self.uses.get(appwrapper, Use()), parts)
            except Exception as error:  # noqa: BLE001  # one gang must not end the cycle of the others
                failures.append(Failure.of(appwrapper, error))
            yield
        self.uses = ChainMap(found, dict(self.uses))
        return failures

    def free_for(self, gang: Gang | None) -> Resources:
        """The free amounts of all nodes that some pod of `gang` may use (None: of every usable node)."""
        return self.free.sum_for(gang, self.beyond)

    def total_for(self, gang: Gang | None) -> Resources:
        """The amounts of these nodes if the cluster had no pods."""
        return self.allocatable.sum_for(gang, self.reserve)

    def attainable_for(self, gang: Gang | None) -> Resources:
        """The amounts of these nodes once all pods that end have ended."""
        return self.empty.sum_for(gang, self.reserve)

    def take(self, gang: Gang, assignment: Assignment) -> None:
        """Take the places of a gang, and its demand beyond the requests of its pods, from now on."""
        self.charge(use_of(gang, assignment))


def _uses_of_parts(
    appwrapper: str, whole: Use, parts: Mapping[str, tuple[tuple[SurplusPod, ...], Resources]]
) -> dict[str, Use]:
    """The uses of the parts of an AppWrapper by their uids, and of the rest by that of the AppWrapper."""
    found: dict[str, Use] = {}
    rest = _RestOfUse(whole)
    for uid, (pods, amounts) in parts.items():
        use = rest.without_pods(pods, amounts) if pods else rest.without_unused(amounts)
        if use != Use():
            found[uid] = use
    found[appwrapper] = rest.use()
    return found


class _RestOfUse:
    """What is left of the use of an AppWrapper while the uses of its surplus are taken from it."""

    def __init__(self, whole: Use) -> None:
        self._bound = Counter[tuple[str, Resources]]()
        for each in whole.bound:
            self._bound[each.node, each.requests] += each.pods
        self._held: dict[Resources, list[Place]] = {}
        for each in whole.held:
            self._held.setdefault(each.requests, []).append(each)
        self._beyond = whole.beyond

    def use(self) -> Use:
        """What is left."""
        bound = tuple(Place(*key, pods) for key, pods in self._bound.items() if pods)
        held = (each for places in self._held.values() for each in places)
        return Use(bound, tuple(held), self._beyond)

    def without_pods(self, pods: Sequence[SurplusPod], amounts: Resources) -> Use:
        """The use of more pods: their nodes, or places that are held for them, or as much without a place.

        Empty for bound pods that the snapshot does not have. Pods without a place use at most these amounts.
        """
        bound = [Place(pod.node, pod.requests, 1) for pod in pods if pod.node and self._takes_bound(pod)]
        unbound = [pod for pod in pods if not pod.node]
        held = [place for pod in unbound if (place := self._taken_place(pod.requests)) is not None]
        without = sum_of(pod.requests for pod in unbound) - sum_of(place.requests for place in held)
        unplaced = self.without_unused(amounts - (amounts - without).positive_part())
        return Use(tuple(bound), tuple(held), unplaced.beyond)

    def _takes_bound(self, pod: SurplusPod) -> bool:
        """True if the snapshot has that bound pod, which is taken then."""
        key = pod.node, pod.requests
        is_there = self._bound[key] > 0
        self._bound[key] -= is_there
        return is_there

    def _taken_place(self, requests: Resources) -> Place | None:
        """A place that is held for a pod, which is taken then; None if there is none."""
        places = self._held.get(requests)
        if not places:
            return None
        last = places.pop()
        if last.pods > 1:
            places.append(last._replace(pods=last.pods - 1))
        return last._replace(pods=1)

    def without_unused(self, amounts: Resources) -> Use:
        """The use of demand without a place, at most these amounts."""
        kept = (self._beyond - amounts).positive_part()
        self._beyond, used = kept, self._beyond - kept
        return Use(beyond=used)


def use_of(gang: Gang, assignment: Assignment) -> Use:
    """The use of a cluster by a gang that holds the places of an assignment."""
    held = (
        Place(node, pod_set.requests, pods, pod_set.sort)
        for pod_set, places in zip(gang.pod_sets, assignment.places, strict=False)
        for node, pods in places
    )
    return Use((), tuple(held), (gang.demand - assignment.requests(gang)).positive_part())
