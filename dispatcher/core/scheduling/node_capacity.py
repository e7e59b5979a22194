"""The capacity of each node of one cluster, for gangs that are placed on nodes.

`NodeLedger` keeps arrays current by events; `CapacityLedger` feeds it. A `NodeSnapshot` is the state at one moment.

The unbound pods of an active AppWrapper hold their places: on the nodes of its assignment as long as they fit there,
else on other nodes. What has no place, because no node takes the pod or because the AppWrapper declares more than its
pods request, is charged to every view of the cluster, like all reservations are where gangs fit by sums.

A pod that is bound takes the place of an unbound pod with the same requests: of one planned for the same node if there
is one. The pods of an AppWrapper that request something else than its pod sets take a place each of the smallest pod
set that covers them.

Growth: an event costs O(resources); a change of a node's labels or taints O(distinct requirements of pods); a snapshot
costs one copy of the arrays, and O(pod sets x nodes) for each AppWrapper whose pods or assignment changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from dispatcher.core.model.gang import ASSIGNED_NOWHERE, Assignment, Constraint, Gang, PodSet
from dispatcher.core.model.nodes import Node, Taint
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.placement import (
    LARGEST,
    UNLIMITED,
    Amounts,
    Mask,
    NodeGroups,
    Placement,
    Room,
    Terrain,
    Unplaceable,
    place,
)

_PODS: Final = "pods"
_MOST_MASKS: Final = 2000
"""Nodes that are compared with constraints at once after a change; beyond that, the nodes of each are found anew."""
_QUESTIONS: Final = 20
"""Questions after a change until nodes are grouped again: grouping costs as much as some of them."""
_WRITTEN_AT_ONCE: Final = 200
"""Changed nodes that are written into the arrays before the next snapshot; each takes some ten microseconds."""
_MOST_EMPTY_FITS: Final = 20_000
"""Distinct pod sets whose placement in the empty cluster is remembered."""


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
        if len(self._masks) * len(changes) < _MOST_MASKS:
            following._masks = {  # its own
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

    def domains(self, label: str) -> Amounts:
        """The number of each node's value of a label; -1 where the node lacks the label."""
        known = self._domains.get(label)
        if known is None:
            numbers: dict[str, int] = {}
            values = [None if node is None else node.labels.get(label) for node in self.nodes]
            found = [-1 if value is None else numbers.setdefault(value, len(numbers)) for value in values]
            known = self._domains[label] = np.array(found, dtype=np.int64)
        return known

    def exclusions(self, gang: Gang) -> Counter[str]:
        """How many nodes no pod of the gang may use, by the reason in words."""
        known = self._exclusions.get(gang.constraints)
        if known is None:
            pod_sets = gang.pod_sets or (_PLAIN,)
            answers = (_why_excluded(pod_sets, node) for node in self.nodes if node is not None)
            known = self._exclusions[gang.constraints] = Counter(filter(None, answers))
        return known

    @property
    def terrain(self) -> Terrain:
        """The nodes as `place` asks for them."""
        return Terrain(self.usable_by, self.domains)

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


class Load(NamedTuple):
    """What the pods of a node take; `permanent` is the part of pods that never end."""

    used: Resources = NOTHING
    pods: int = 0
    permanent: Resources = NOTHING
    permanent_pods: int = 0


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
        self._terrain = traits.terrain
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
        found = place(pod_sets, self.room, self._terrain)
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


@dataclass(slots=True)
class _Share:
    """One AppWrapper: its gang and assignment while it is active, its bound pods by requests and node, its places."""

    gang: Gang | None = None
    assignment: Assignment = ASSIGNED_NOWHERE
    bound: Counter[tuple[Resources, str]] = field(default_factory=Counter)
    held: list[Place] = field(default_factory=list)
    beyond: Resources = NOTHING
    is_unplaced: bool = False


@dataclass(slots=True)
class _OnNode:
    """One node, what its pods take, and what is held there for unbound pods."""

    node: Node
    load: Load
    held: Resources = NOTHING
    held_pods: int = 0

    @property
    def slots(self) -> int:
        """The pods that the node takes."""
        if self.node.most_pods is not None:
            return self.node.most_pods
        return self.node.allocatable[_PODS] or UNLIMITED

    @property
    def free(self) -> Resources:
        """What the node has beside its pods and those that have a place there."""
        return self.node.allocatable - self.load.used - self.held

    @property
    def free_slots(self) -> int:
        """The pods that the node takes beside those that are bound or have a place there."""
        return self.slots - self.load.pods - self.held_pods


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

    def holds(self, uid: str) -> bool:
        """True if the AppWrapper has pods or places here."""
        return uid in self.uses

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
        return refused or place(gang.pod_sets, self._room, self.traits.terrain)

    def place_in_empty(self, gang: Gang) -> Placement | Unplaceable:
        """The nodes for all pods of `gang` once all pods that end have ended."""
        return place(gang.pod_sets, self.empty.room, self.traits.terrain)

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
        for row in rows[np.argsort(spare, kind="stable")]:
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
            return self.traits.usable_by(_PLAIN)
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


_PLAIN: Final = PodSet(1, NOTHING)
_PLAIN_ONLY: Final = frozenset({_PLAIN.constraint})


def _view(gang: Gang | None) -> frozenset[Constraint] | None:
    """The key of the nodes that some pod of a gang may use."""
    return None if gang is None else gang.constraints or _PLAIN_ONLY


class NodeLedger:
    """The capacity of each node, kept current by events; `CapacityLedger` says what is used on a node."""

    def __init__(self) -> None:
        self._traits = Traits()
        self._columns: dict[str, int] = {}
        self._on_nodes: dict[str, _OnNode] = {}
        self._rows: dict[str, int] = {}
        self._vacant: list[int] = []
        self._free, self._allocatable, self._lasting = _Table(), _Table(), _Table()
        self._shares: dict[str, _Share] = {}
        self._holders: dict[str, dict[str, None]] = {}
        self._uses: dict[str, Use] = {}
        self._beyond = NOTHING
        # Since the last snapshot: AppWrappers whose use may have changed, changed nodes, rows with other traits.
        self._unsettled: dict[str, None] = {}
        self._touched: dict[str, None] = {}
        self._unwritten: dict[str, None] = {}
        self._retraited: dict[int, Node | None] = {}
        self._has_changed = True
        self._last: NodeSnapshot | None = None

    # --- events ------------------------------------------------------------------------------------------------

    def set_node(self, node: Node, load: Load) -> None:
        """Add a node or replace its last state; `load` is what its pods take."""
        for name in node.allocatable:
            self._columns.setdefault(name, len(self._columns))
        known = self._on_nodes.get(node.name)
        if known is None:
            row = self._vacant.pop() if self._vacant else len(self._rows)
            self._on_nodes[node.name], self._rows[node.name] = _OnNode(node, load), row
            self._retraited[row] = node
        else:
            before, known.node, known.load = known.node, node, load
            if _traits_of(before) != _traits_of(node):
                self._retraited[self._rows[node.name]] = node
        self._touch(node.name)

    def remove_node(self, name: str) -> None:
        """Remove a node; the pods that hold a place there get another one."""
        if self._on_nodes.pop(name, None) is None:
            return
        row = self._rows.pop(name)
        self._vacant.append(row)
        self._retraited[row] = None
        self._touched.pop(name, None)
        self._unwritten.pop(name, None)
        for table in (self._free, self._allocatable, self._lasting):
            table.write(row, self._columns, NOTHING, 0)
        for uid in self._holders.pop(name, {}):
            share = self._shares[uid]
            share.held = [each for each in share.held if each.node != name]
            self._unsettle(uid)
        self._has_changed = True

    def load_node(self, name: str, load: Load) -> None:
        """Replace what the pods of a node take; safe for a node that is not known."""
        known = self._on_nodes.get(name)
        if known is not None:
            known.load = load
            self._touch(name)

    def count_bound(self, appwrapper: str, requests: Resources, node: str, sign: int) -> None:
        """Count one bound pod of an AppWrapper, or uncount it."""
        bound = self._shares.setdefault(appwrapper, _Share()).bound
        bound[requests, node] += sign
        if not bound[requests, node]:
            del bound[requests, node]
        self._unsettle(appwrapper)

    def reserve(self, appwrapper: str, gang: Gang, assignment: Assignment) -> None:
        """Hold places for the unbound pods of an active AppWrapper; those of its assignment, where they fit."""
        share = self._shares.setdefault(appwrapper, _Share())
        share.gang, share.assignment = gang, assignment
        self._unsettle(appwrapper)

    def release(self, appwrapper: str) -> None:
        """Hold no places for an AppWrapper any more."""
        share = self._shares.get(appwrapper)
        if share is not None:
            share.gang, share.assignment = None, ASSIGNED_NOWHERE
            self._unsettle(appwrapper)

    # --- the snapshot ------------------------------------------------------------------------------------------

    def snapshot(self) -> NodeSnapshot:
        """The capacity at this moment, of the generation of the last one if nothing differs."""
        if self._last is None or self._has_changed:
            if self._retraited:
                self._traits = self._traits.changed(self._retraited)
                self._retraited = {}
            self._settle()
            self._write()
            self._last = self._following(self._last)
            self._has_changed = False
        return self._last.without(NOTHING)

    def _following(self, last: NodeSnapshot | None) -> NodeSnapshot:
        size = len(self._traits.nodes)
        found = NodeSnapshot(
            self._traits,
            self._free.room(self._columns, size),
            self._allocatable.room(self._columns, size),
            self._empty_cluster(size, last),
            self._beyond,
            dict(self._uses),
            object(),
        )
        if last is not None and found.is_like(last):
            found.generation = last.generation
        return found

    def _empty_cluster(self, size: int, last: NodeSnapshot | None) -> EmptyCluster:
        """The empty cluster; that of the last snapshot as long as it is the same, because it remembers placements."""
        lasting = self._lasting.room(self._columns, size)
        if last is not None and last.traits is self._traits and last.empty.room.equals(lasting):
            return last.empty
        return EmptyCluster(lasting, self._traits)

    # --- places ------------------------------------------------------------------------------------------------

    def _unsettle(self, appwrapper: str) -> None:
        self._unsettled[appwrapper] = None
        self._has_changed = True

    def _settle(self) -> None:
        """Give the unbound pods their places: planned ones first, then, where these do not fit, any."""
        for name in self._touched:
            if name in self._holders and self._is_crowded(name):
                self._unsettled.update(self._holders[name])
        self._unsettled.update({uid: None for uid, share in self._shares.items() if share.is_unplaced})
        self._touched.clear()
        changed, self._unsettled = self._unsettled, {}
        for uid in changed:
            self._release_places(uid)
        # Plans first, for all: a gang that needs other places must not take those of a plan.
        missing = {uid: self._hold_planned(uid, gang) for uid in changed if (gang := self._shares[uid].gang)}
        for uid, counts in missing.items():
            self._hold_elsewhere(uid, counts)
        for uid in changed:
            self._note_use(uid, self._shares[uid])

    def _is_crowded(self, name: str) -> bool:
        """True if the places that are held on a node are not there: it is unusable or too full."""
        known = self._on_nodes[name]
        free = known.free
        return not known.node.usable or known.free_slots < 0 or any(free[each] < 0 for each in free)

    def _hold_planned(self, uid: str, gang: Gang) -> list[int]:
        """Hold the planned places that are there; return how many pods of each pod set have none."""
        missing, planned = _unbound(gang, self._shares[uid])
        for index, (pod_set, plan) in enumerate(zip(gang.pod_sets, planned, strict=True)):
            for node, pods in plan:
                found = self._fitting(node, pod_set.requests, pods)
                if found:
                    self._hold(uid, Place(node, pod_set.requests, found))
                    missing[index] -= found
        return missing

    def _hold_elsewhere(self, uid: str, missing: Sequence[int]) -> None:
        """Hold places on any nodes for the pods without a planned one, if they all fit."""
        share = self._shares[uid]
        share.is_unplaced = False
        if share.gang is not None and any(missing):
            others = self._anywhere(share.gang, missing)
            share.is_unplaced = not others
            for each in others:
                self._hold(uid, each)

    def _fitting(self, node: str, requests: Resources, pods: int) -> int:
        """How many of `pods` pods fit on a node beside all that is there and held."""
        known = self._on_nodes.get(node)
        if known is None or not known.node.usable:
            return 0
        free = known.free
        most = [free[name] // amount for name, amount in requests.items() if amount > 0 and name != _PODS]
        return max(0, min(pods, known.free_slots, *most))

    def _anywhere(self, gang: Gang, missing: Sequence[int]) -> list[Place]:
        """Places for the pods that are missing; none if they do not all fit."""
        self._write()
        room = self._free.room(self._columns, len(self._traits.nodes))
        found = place(gang.pod_sets, room, self._traits.terrain, missing)
        if isinstance(found, Unplaceable):
            return []
        return [
            Place(node.name, pod_set.requests, int(pods[row]))
            for pod_set, pods in zip(gang.pod_sets, found, strict=True)
            for row in np.flatnonzero(pods)
            if (node := self._traits.nodes[row]) is not None
        ]

    def _hold(self, uid: str, each: Place) -> None:
        """Hold one more place for an AppWrapper."""
        self._shares[uid].held.append(each)
        self._holders.setdefault(each.node, {})[uid] = None
        self._count_place(each, +1)

    def _release_places(self, uid: str) -> None:
        """Hold no places for an AppWrapper."""
        share = self._shares[uid]
        for each in share.held:
            self._holders.get(each.node, {}).pop(uid, None)
            self._count_place(each, -1)
        share.held = []

    def _count_place(self, each: Place, sign: int) -> None:
        known = self._on_nodes[each.node]  # the places on a node are dropped with it
        known.held += each.requests * (each.pods * sign)
        known.held_pods += each.pods * sign
        self._touch(each.node)

    def _note_use(self, uid: str, share: _Share) -> None:
        """Keep the use of an AppWrapper for snapshots, and its demand that has no place."""
        self._beyond -= share.beyond
        share.beyond = NOTHING
        bound = tuple(Place(node, requests, pods) for (requests, node), pods in share.bound.items())
        if share.gang is not None:
            share.beyond = (share.gang.demand - _total(bound) - _total(share.held)).positive_part()
            self._beyond += share.beyond
        if share.gang is None and not bound:
            del self._shares[uid]
            self._uses.pop(uid, None)
        else:
            self._uses[uid] = Use(bound, tuple(share.held), share.beyond)

    def _touch(self, name: str) -> None:
        self._touched[name] = self._unwritten[name] = None
        self._has_changed = True
        if len(self._unwritten) >= _WRITTEN_AT_ONCE:
            self._write()

    def _write(self) -> None:
        """Write the amounts of changed nodes into the arrays."""
        for name in self._unwritten:
            known, row = self._on_nodes[name], self._rows[name]
            allocatable, load = known.node.allocatable, known.load
            self._allocatable.write(row, self._columns, allocatable, known.slots)
            lasting = allocatable - load.permanent if load.permanent else allocatable
            self._lasting.write(row, self._columns, lasting, known.slots - load.permanent_pods)
            self._free.write(row, self._columns, known.free, known.free_slots)
        self._unwritten.clear()


def _unbound(gang: Gang, share: _Share) -> tuple[list[int], list[list[tuple[str, int]]]]:
    """How many pods of each pod set are not bound, and the planned places that are left to them.

    A bound pod takes the place of a pod with equal requests, planned for its node if there is one, else for another
    node; a pod that equals none takes one of the first pod set with places left.
    """
    left = [pod_set.count for pod_set in gang.pod_sets]
    plans = [dict(places) for places in share.assignment.places] or [{} for _ in left]
    by_requests: dict[Resources, list[int]] = {}
    for index, pod_set in enumerate(gang.pod_sets):
        by_requests.setdefault(pod_set.requests, []).append(index)
    for (requests, node), pods in sorted(share.bound.items(), key=lambda each: each[0][1]):
        for index in (*by_requests.get(requests, ()), *range(len(left))):
            taken = min(pods, left[index])
            left[index] -= taken
            pods -= taken
            here = min(taken, plans[index].get(node, 0))
            if here:
                plans[index][node] -= here
    for count, plan in zip(left, plans, strict=True):
        spare = sum(plan.values()) - count
        for node in sorted(plan, reverse=True):
            if spare <= 0:
                break
            cut = min(spare, plan[node])
            plan[node] -= cut
            spare -= cut
    return left, [list(plan.items()) for plan in plans]


def _total(places: Iterable[Place]) -> Resources:
    total = NOTHING
    for each in places:
        total += each.requests * each.pods
    return total


def _traits_of(node: Node) -> tuple[object, ...]:
    return node.name, node.usable, node.taints, node.labels


class _Table:
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
        self._slots[row] = max(-UNLIMITED, min(UNLIMITED, slots))

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
