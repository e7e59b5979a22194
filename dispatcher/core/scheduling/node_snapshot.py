"""The capacity of each node of one cluster at one moment, for gangs that are placed on nodes.

A cycle takes the places of dispatched gangs from a snapshot. A copy without some AppWrappers costs their pods.

Growth: a fit costs O(groups of equal nodes) while nothing is taken, and O(nodes) for the questions soon after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from dispatcher.core.model.gang import Assignment, Constraint, Gang, PodSet
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.node_traits import PLAIN, Amounts, Mask, Traits
from dispatcher.core.scheduling.placement import (
    LARGEST,
    UNLIMITED,
    NodeGroups,
    Placement,
    Room,
    Unplaceable,
    place,
)

_QUESTIONS: Final = 20
"""Questions after a change until nodes are grouped again: grouping costs as much as some of them."""
_MOST_EMPTY_FITS: Final = 20_000
"""Distinct pod sets whose placement in the empty cluster is remembered."""


class Place(NamedTuple):
    """Pods with equal requests on one node."""

    node: str
    requests: Resources
    pods: int


class Use(NamedTuple):
    """What one AppWrapper uses of a cluster: its bound pods, the places held for others, and demand without a place."""

    bound: tuple[Place, ...] = ()
    held: tuple[Place, ...] = ()
    beyond: Resources = NOTHING


class _Grouped:
    """The nodes of each constraint, grouped by what is free on them; groups are made once for many questions.

    After a change the groups are wrong. New ones are made once `_QUESTIONS` questions have come, or one needs them.
    """

    def __init__(self, room: Room, traits: Traits) -> None:
        self._room = room
        self._traits = traits
        self._groups: dict[Constraint, NodeGroups] = {}
        self._questions = _QUESTIONS

    def forget(self) -> None:
        """The free amounts have changed."""
        self._groups.clear()
        self._questions = 0

    def of(self, pod_set: PodSet) -> NodeGroups | None:
        """The groups of the nodes that the pods of a set may use; None soon after a change."""
        self._questions += 1
        if self._questions < _QUESTIONS and pod_set.constraint not in self._groups:
            return None
        return self.surely_of(pod_set)

    def surely_of(self, pod_set: PodSet) -> NodeGroups:
        """The groups of the nodes that the pods of a set may use."""
        known = self._groups.get(pod_set.constraint)
        if known is None:
            known = NodeGroups.of(self._room, self._traits.usable_by(pod_set))
            self._groups[pod_set.constraint] = known
        return known


class EmptyCluster:
    """The nodes once all pods that end have ended, and the pod sets that were placed there."""

    def __init__(self, room: Room, traits: Traits) -> None:
        self.room = room
        self.grouped = _Grouped(room, traits)
        self._traits = traits
        self._known: dict[tuple[PodSet, ...], Unplaceable | None] = {}

    def find_unplaceable(self, gang: Gang) -> Unplaceable | None:
        """Why there are no nodes for all pods of `gang`; None if there are."""
        if gang.pod_sets not in self._known:
            if len(self._known) >= _MOST_EMPTY_FITS:
                self._known.clear()
            self._known[gang.pod_sets] = self._find(gang.pod_sets)
        return self._known[gang.pod_sets]

    def _find(self, pod_sets: tuple[PodSet, ...]) -> Unplaceable | None:
        refused = _unplaceable_alone(pod_sets, self.grouped)
        if refused is not None or self._is_surely_placed(pod_sets):
            return refused
        found = place(pod_sets, self.room, self._traits)
        return found if isinstance(found, Unplaceable) else None

    def _is_surely_placed(self, pod_sets: tuple[PodSet, ...]) -> bool:
        """True if each pod has a node of its own, or the only pod set fits; False if that is not known.

        The pod set with the fewest nodes chooses first; the pods before it took at most a node each.
        """
        if any(each.apart or each.together for each in pod_sets):
            return False
        if len(pod_sets) == 1:
            return True
        pods = 0
        nodes = [(self.grouped.surely_of(each).taking(each), each.count) for each in pod_sets]
        for taking, count in sorted(nodes):
            pods += count
            if pods > taking:
                return False
        return True


def _unplaceable_alone(pod_sets: Sequence[PodSet], grouped: _Grouped) -> Unplaceable | None:
    """The first pod set that has too few nodes, even without its rules about other pods; None if it is not known."""
    for index, pod_set in enumerate(pod_sets):
        groups = None if pod_set.apart or pod_set.together else grouped.of(pod_set)
        if groups is not None and (fitting := groups.fitting(pod_set)) < pod_set.count:
            return Unplaceable(index, fitting)
    return None


class NodeSnapshot:
    """The free amounts of each node at one moment; a cycle takes the places of placed gangs from it."""

    def __init__(
        self,
        traits: Traits,
        room: Room,
        allocatable: Room,
        empty: EmptyCluster,
        beyond: Resources,
        uses: Mapping[str, Use],
        generation: object,
        reserve: Resources = NOTHING,
    ) -> None:
        self.traits = traits
        self.generation = generation
        self.beyond = beyond
        self._room = room
        self._allocatable = allocatable
        self.empty = empty
        self._grouped = _Grouped(room, traits)
        self.uses = uses
        self._reserve = reserve
        self._free: dict[frozenset[Constraint] | None, Resources] = {}
        self._totals: dict[frozenset[Constraint] | None, Resources] = {}
        self._attainable: dict[frozenset[Constraint] | None, Resources] = {}

    def __eq__(self, other: object) -> bool:
        """True if both are of one generation, so that they give every gang the same capacity."""
        if not isinstance(other, NodeSnapshot):
            return NotImplemented
        return (self.generation, self._reserve) == (other.generation, other._reserve)

    __hash__ = None  # type: ignore[assignment]  # `take` changes it

    def is_like(self, other: NodeSnapshot) -> bool:
        """True if both give every gang the same capacity, by content."""
        return (
            self.traits is other.traits
            and self.beyond == other.beyond
            and self._room.equals(other._room)
            and self._allocatable.equals(other._allocatable)
            and self.empty.room.equals(other.empty.room)
        )

    def copy(self) -> NodeSnapshot:
        """A copy; taking from it does not change this snapshot, which it no longer equals."""
        return self._with(self._room.copy(), object(), self._reserve)

    def without(self, reserve: Resources) -> NodeSnapshot:
        """A copy in which `reserve` is neither free nor part of the total, for any gang."""
        return self._with(self._room.copy(), self.generation, self._reserve + reserve)

    def without_gangs(self, uids: Iterable[str]) -> NodeSnapshot:
        """A copy as it would be without these AppWrappers: their pods are gone, their places free."""
        found = self.copy()
        for uid in uids:
            use = self.uses.get(uid)
            if use is None:
                continue
            for node, requests, pods in (*use.bound, *use.held):
                found._take_on(node, requests, -pods)  # noqa: SLF001  # its own
            found.beyond -= use.beyond
        return found

    def free_for(self, gang: Gang | None) -> Resources:
        """The free amounts of all nodes that some pod of `gang` may use (None: of every usable node).

        A node that owes something has nothing free, and takes nothing from the others. Demand without a place does.
        """
        key = _view(gang)
        known = self._free.get(key)
        if known is None:
            known = self._free[key] = self._sum(self._room, gang) - self.beyond - self._reserve
        return known

    def total_for(self, gang: Gang | None) -> Resources:
        """The amounts of all nodes that some pod of `gang` may use, if the cluster had no pods."""
        key = _view(gang)
        known = self._totals.get(key)
        if known is None:
            known = self._totals[key] = self._sum(self._allocatable, gang) - self._reserve
        return known

    def attainable_for(self, gang: Gang | None) -> Resources:
        """The amounts of those nodes once all pods that end have ended."""
        key = _view(gang)
        known = self._attainable.get(key)
        if known is None:
            known = self._attainable[key] = self._sum(self.empty.room, gang) - self._reserve
        return known

    def place(self, gang: Gang) -> Placement | Unplaceable:
        """The nodes for all pods of `gang` now."""
        refused = _unplaceable_alone(gang.pod_sets, self._grouped)
        return refused or place(gang.pod_sets, self._room, self.traits)

    def place_in_empty(self, gang: Gang) -> Placement | Unplaceable:
        """The nodes for all pods of `gang` once all pods that end have ended."""
        return place(gang.pod_sets, self.empty.room, self.traits)

    def is_usable(self, node: str) -> bool:
        """True if a node is there, Ready and not cordoned."""
        row = self.traits.rows.get(node)
        return row is not None and bool(self.traits.usable()[row])

    def find_unplaceable_in_empty(self, gang: Gang) -> Unplaceable | None:
        """Why there are no nodes for all pods of `gang` once all pods that end have ended; None if there are."""
        return self.empty.find_unplaceable(gang)

    def take(self, gang: Gang, assignment: Assignment) -> None:
        """Take the places of a gang, and its demand beyond the requests of its pods, from now on."""
        for pod_set, places in zip(gang.pod_sets, assignment.places, strict=False):
            for node, pods in places:
                self._take_on(node, pod_set.requests, pods)
        self.beyond += (gang.demand - assignment.requests(gang)).positive_part()
        self._free.clear()
        self._grouped.forget()
        self.generation = object()

    def groups(self, pod_set: PodSet, *, is_empty: bool) -> NodeGroups:
        """The nodes that the pods of a set may use, now or once all pods that end have ended."""
        return (self.empty.grouped if is_empty else self._grouped).surely_of(pod_set)

    def assignment(self, gang: Gang, placement: Placement) -> Assignment:
        """A placement by the names of nodes; for each pod set, first the nodes that take no more of its pods."""
        return Assignment(
            tuple(
                tuple(self._named(pod_set, pods))
                for pod_set, pods in zip(gang.pod_sets, placement, strict=True)
            )
        )

    def _named(self, pod_set: PodSet, pods: Amounts) -> Iterator[tuple[str, int]]:
        rows = np.flatnonzero(pods)
        mask = np.zeros(pods.size, np.bool_)
        mask[rows] = True
        spare = self._room.fitting(pod_set.requests, UNLIMITED, mask)[rows] - pods[rows]
        for row in rows[np.lexsort((self.traits.order[rows], spare))]:
            node = self.traits.nodes[row]
            if node is not None:
                yield node.name, int(pods[row])

    def _take_on(self, name: str, requests: Resources, pods: int) -> None:
        row = self.traits.rows.get(name)
        if row is None:
            return
        for resource, amount in requests.items():
            column = self._room.columns.get(resource)
            if column is not None:
                self._room.free[column][row] -= min(amount, LARGEST) * pods
        self._room.slots[row] -= pods

    def _sum(self, room: Room, gang: Gang | None) -> Resources:
        mask = self._nodes_of(gang)
        sums = np.maximum(room.free[:, mask], 0).sum(axis=1)  # what one node owes, no other has to give
        return Resources({name: int(sums[row]) for name, row in room.columns.items()})

    def _nodes_of(self, gang: Gang | None) -> Mask:
        if gang is None:
            return self.traits.usable()
        if not gang.pod_sets:
            return self.traits.usable_by(PLAIN)
        found = self.traits.usable_by(gang.pod_sets[0])
        for pod_set in gang.pod_sets[1:]:
            found = found | self.traits.usable_by(pod_set)
        return found

    def _with(self, room: Room, generation: object, reserve: Resources) -> NodeSnapshot:
        return NodeSnapshot(
            self.traits,
            room,
            self._allocatable,
            self.empty,
            self.beyond,
            self.uses,
            generation,
            reserve,
        )


_PLAIN_ONLY: Final = frozenset({PLAIN.constraint})


def _view(gang: Gang | None) -> frozenset[Constraint] | None:
    """The key of the nodes that some pod of a gang may use."""
    return None if gang is None else gang.constraints or _PLAIN_ONLY
