"""Equivalence classes of pending gangs: gangs of one class are refused alike, so one of them is evaluated for all.

A class is defined by facts that some cluster distinguishes: the demand and the pod sets, also those in clusters where
the gang requests less, the node taints of the clusters that each pod set tolerates, the terms of pod anti-affinity that
select it, the pools that its namespace alone does not trust, and the clusters that reject its requirements, with the
reasons. Thousands of namespaces are one class if every cluster has all of them, and no pool failed for one of them. A
preference matters only among clusters that a gang fits. A closed cluster is closed for every gang, so closures are no
part of a class.

If facts of the clusters change, only the gangs to which they matter change their class.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import reduce
from typing import Final, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.core.model.clusters.nodes import Taint
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.gangs.pod_terms import NO_TERMS, TermIndex
from dispatcher.core.model.incremental import Steps, in_parts
from dispatcher.core.model.records.record import Shape
from dispatcher.core.model.records.requirements import ClusterRequirements, Kind, KindIn, Rejection
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.capacity_snapshot import Tolerations, tolerations_of
from dispatcher.core.scheduling.capacity.pods_there import Repelled, repelled_by
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot, effective, has_members, rejection

Taints = tuple[Taint, ...]
Tolerated = tuple[frozenset[Taints], ...]
"""The present taints that each pod set tolerates."""
Pods = tuple[tuple[object, ...], ...]
"""The pod sets without their tolerations; the last entry has the smaller gangs of clusters, if there are any."""
Distrusted = frozenset[tuple[str, str]]
"""Clusters, each with a pool whose nodes did not come for the gangs of one namespace; empty for most."""
_TRUSTS_ALL: Final[Distrusted] = frozenset()
_UNKNOWN: Final = ""
"""The namespace of a gang whose pods are not known."""
AT_ONCE: Final = 50
"""Requirements that one step compares with every changed cluster."""

ItemT = TypeVar("ItemT", bound=Hashable)


class Clearance:
    """The rejections of a gang's requirements, as if every cluster were open; one object for equal rejections."""

    __slots__ = ("__weakref__", "rejections")

    def __init__(self, rejections: tuple[Rejection, ...]) -> None:
        self.rejections = rejections


class ClassKey(NamedTuple):
    """Gangs with equal keys are refused alike in every cycle."""

    demand: Resources
    pods: Pods
    tolerated: Tolerated
    clearance: Clearance
    repelled: Repelled
    distrusted: Distrusted


class _Facts(NamedTuple):
    """The facts of a cluster that filters compare with requirements, without its closure."""

    labels: Mapping[str, str]
    missing_kinds: frozenset[Kind]
    kind_hints: Mapping[Kind, str]
    forbidden_kinds: frozenset[KindIn]
    missing_namespaces: frozenset[str]
    closed_namespaces: frozenset[str]
    creates_namespaces: bool


class _Requiring(Struct, Generic[ItemT]):
    """The items with equal requirements, and their rejections by cluster."""

    rejections: dict[str, Rejection]
    clearance: Clearance
    items: dict[ItemT, None] = field(default_factory=dict)


class _Tolerating(Struct, Generic[ItemT]):
    """The items with equal tolerations, and the present taints that they tolerate."""

    gang: Gang
    tolerated: Tolerated
    items: dict[ItemT, None] = field(default_factory=dict)


Clearances = WeakValueDictionary[tuple[Rejection, ...], Clearance]


class Classes(Generic[ItemT]):
    """The class of each added item, a gang or several that are alike, for the clusters of the last `follow`.

    Classes with the same `clearances` can be compared with each other.
    """

    def __init__(self, clearances: Clearances | None = None) -> None:
        self.clearances: Clearances = WeakValueDictionary() if clearances is None else clearances
        self._snapshots: dict[str, ClusterSnapshot] = {}
        self._facts: dict[str, _Facts] = {}
        self._taints: frozenset[Taints] = frozenset()
        self._repelling = NO_TERMS
        self._distrusted: dict[str, Distrusted] = {}
        self._requiring: dict[ClusterRequirements, _Requiring[ItemT]] = {}
        self._tolerating: dict[Tolerations, _Tolerating[ItemT]] = {}

    def add(self, item: ItemT, shape: Shape) -> ClassKey:
        """Add an item of gangs of this shape; returns its class."""
        gang, requirements = shape
        requiring = self._requiring.get(requirements)
        if requiring is None:
            requiring = self._requiring[requirements] = self._compare(requirements)
        requiring.items[item] = None
        tolerations = tolerations_of(gang)
        tolerating = self._tolerating.get(tolerations)
        if tolerating is None:
            tolerating = self._tolerating[tolerations] = _Tolerating(gang, _tolerated(gang, self._taints))
        tolerating.items[item] = None
        return self._key(gang, requiring, tolerating)

    def remove(self, item: ItemT, shape: Shape) -> None:
        """Remove an item that was added with this shape."""
        gang, requirements = shape
        requiring, tolerations = self._requiring[requirements], tolerations_of(gang)
        del requiring.items[item]
        if not requiring.items:
            del self._requiring[requirements]
        tolerating = self._tolerating[tolerations]
        del tolerating.items[item]
        if not tolerating.items:
            del self._tolerating[tolerations]

    def key(self, shape: Shape) -> ClassKey:
        """The class of an item that was added with this shape."""
        gang, requirements = shape
        return self._key(gang, self._requiring[requirements], self._tolerating[tolerations_of(gang)])

    def _key(self, gang: Gang, requiring: _Requiring[ItemT], tolerating: _Tolerating[ItemT]) -> ClassKey:
        repelled = repelled_by(gang, self._repelling)
        distrusted = self._distrusted.get(gang.namespace, _TRUSTS_ALL) if self._distrusted else _TRUSTS_ALL
        return ClassKey(
            gang.demand, _pods(gang), tolerating.tolerated, requiring.clearance, repelled, distrusted
        )

    def follow(
        self, snapshots: Mapping[str, ClusterSnapshot], gangs: Iterable[tuple[ItemT, Gang]]
    ) -> Steps[list[ItemT]]:
        """Updates the classes to these clusters; returns the items whose class changed.

        `gangs` has a gang of each item that was added; it is read only if the known terms of anti-affinity changed, or
        the pools that some namespace alone does not trust.
        """
        facts = {name: _facts(snapshot) for name, snapshot in snapshots.items()}
        yield
        changed = {
            name for name in facts.keys() | self._facts.keys() if facts.get(name) != self._facts.get(name)
        }
        if has_members(snapshots) != has_members(self._snapshots):
            changed |= facts.keys()  # other requirements count on the hub alone
        moved: list[ItemT] = []
        if changed:
            self._facts = facts
            self._snapshots = {name: replace(snapshot, closed=None) for name, snapshot in snapshots.items()}
            yield from self._refresh_rejections(changed, moved)
        taints = _taints(snapshots)
        if taints != self._taints:
            self._taints = taints
            yield from self._refresh_tolerated(moved)
        repelling = known_repelling(snapshots)
        if repelling.terms != self._repelling.terms:
            differing = TermIndex(repelling.terms ^ self._repelling.terms)
            self._repelling = repelling
            yield from self._find_repelled(gangs, differing, moved)
        distrusted = _distrusted(snapshots)
        if distrusted != self._distrusted:
            differing_in = _differing(distrusted, self._distrusted)
            self._distrusted = distrusted
            yield from self._find_in(differing_in, gangs, moved)
        return moved

    def _find_in(
        self, namespaces: frozenset[str], gangs: Iterable[tuple[ItemT, Gang]], moved: list[ItemT]
    ) -> Steps[None]:
        for part in in_parts(gangs):
            moved += (item for item, gang in part if gang.namespace in namespaces)
            yield

    def _find_repelled(
        self, gangs: Iterable[tuple[ItemT, Gang]], differing: TermIndex, moved: list[ItemT]
    ) -> Steps[None]:
        for part in in_parts(gangs):
            moved += (item for item, gang in part if repelled_by(gang, differing))
            yield

    def _refresh_rejections(self, changed: set[str], moved: list[ItemT]) -> Steps[None]:
        for done, (requirements, requiring) in enumerate(self._requiring.items()):
            if done % AT_ONCE == 0:
                yield
            if self._update_rejections(requirements, requiring, changed):
                requiring.clearance = self._clearance(requiring.rejections)
                moved += requiring.items

    def _update_rejections(
        self, requirements: ClusterRequirements, requiring: _Requiring[ItemT], changed: set[str]
    ) -> bool:
        """Updates the rejections by the changed clusters; True if one of them changed."""
        differs, counting = False, effective(requirements, self._snapshots)
        for name in changed:
            snapshot = self._snapshots.get(name)
            answer = rejection(counting, snapshot) if snapshot is not None else None
            if answer != requiring.rejections.get(name):
                differs = True
                if answer is None:
                    del requiring.rejections[name]
                else:
                    requiring.rejections[name] = answer
        return differs

    def _refresh_tolerated(self, moved: list[ItemT]) -> Steps[None]:
        for done, tolerating in enumerate(self._tolerating.values()):
            if done % AT_ONCE == 0:
                yield
            tolerated = _tolerated(tolerating.gang, self._taints)
            if tolerated != tolerating.tolerated:
                tolerating.tolerated = tolerated
                moved += tolerating.items

    def _compare(self, requirements: ClusterRequirements) -> _Requiring[ItemT]:
        counting = effective(requirements, self._snapshots)
        answers = ((name, rejection(counting, snapshot)) for name, snapshot in self._snapshots.items())
        rejections = {name: answer for name, answer in answers if answer is not None}
        return _Requiring(rejections, self._clearance(rejections))

    def _clearance(self, rejections: Mapping[str, Rejection]) -> Clearance:
        by_name = tuple(rejections[name] for name in sorted(rejections))
        known = self.clearances.get(by_name)
        if known is None:
            known = self.clearances[by_name] = Clearance(by_name)
        return known


def _pods(gang: Gang) -> Pods:
    pods: Pods = tuple(
        (
            each.count,
            each.requests,
            each.nodes,
            each.apart,
            each.together,
            each.claims,
            each.is_trusted,
            each.spread,
            each.away,
            each.near,
            *((each.repels, each.attracts, each.sort) if each.has_terms else ()),
        )
        for each in gang.pod_sets
    )
    return (*pods, gang.smaller) if gang.smaller else pods


def _tolerated(gang: Gang, taints: frozenset[Taints]) -> Tolerated:
    return tuple(frozenset(filter(pod_set.tolerates, taints)) for pod_set in gang.pod_sets)


def _taints(snapshots: Mapping[str, ClusterSnapshot]) -> frozenset[Taints]:
    return frozenset[Taints]().union(*(snapshot.capacity.taints for snapshot in snapshots.values()))


def _distrusted(snapshots: Mapping[str, ClusterSnapshot]) -> dict[str, Distrusted]:
    """The pools that one namespace does not trust and others do, by that; all of them for an unknown namespace."""
    found: dict[str, set[tuple[str, str]]] = {}
    for name, snapshot in snapshots.items():
        for namespace, pool in snapshot.capacity.trust.kept_from:
            for each in (namespace, _UNKNOWN):
                found.setdefault(each, set()).add((name, pool))
    return {namespace: frozenset(pools) for namespace, pools in found.items()}


def _differing(one: Mapping[str, Distrusted], other: Mapping[str, Distrusted]) -> frozenset[str]:
    return frozenset(each for each in one.keys() | other.keys() if one.get(each) != other.get(each))


def known_repelling(snapshots: Mapping[str, ClusterSnapshot]) -> TermIndex:
    """The known terms of pod anti-affinity in all clusters."""
    known = [each for snapshot in snapshots.values() if (each := snapshot.capacity.repelling).terms]
    return reduce(TermIndex.union, known) if known else NO_TERMS


def _facts(snapshot: ClusterSnapshot) -> _Facts:
    return _Facts(
        snapshot.labels,
        snapshot.missing_kinds,
        snapshot.kind_hints,
        snapshot.forbidden_kinds,
        snapshot.missing_namespaces,
        snapshot.closed_namespaces,
        snapshot.creates_namespaces,
    )


class DistinctRequirements:
    """The distinct pairs of namespace and kinds that the pending gangs require, as requirements."""

    def __init__(self) -> None:
        self._counts: dict[ClusterRequirements, int] = {}

    def __iter__(self) -> Iterator[ClusterRequirements]:
        return iter(self._counts)

    def add(self, requirements: ClusterRequirements) -> None:
        """Counts the requirements of one more gang."""
        pair = _namespace_and_kinds(requirements)
        self._counts[pair] = self._counts.get(pair, 0) + 1

    def remove(self, requirements: ClusterRequirements) -> None:
        """Uncounts the requirements of one gang."""
        pair = _namespace_and_kinds(requirements)
        self._counts[pair] -= 1
        if not self._counts[pair]:
            del self._counts[pair]


def _namespace_and_kinds(requirements: ClusterRequirements) -> ClusterRequirements:
    return ClusterRequirements(namespace=requirements.namespace, kinds=requirements.kinds)
