"""Whether a gang fits a cluster, and where its pods go. Nothing else compares a demand with capacity.

A gang fits if its demand fits the sums over the nodes that its pods may use and, where gangs are placed on nodes, every
pod has a node. Placing, explaining, reserving and every "what if" ask this question of a `CapacitySnapshot`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dispatcher.core.model.gang import ASSIGNED_NOWHERE, Assignment, Gang, PodSet
from dispatcher.core.model.resources import NOTHING, Resources, is_device
from dispatcher.core.scheduling.capacity import CapacitySnapshot
from dispatcher.core.scheduling.node_snapshot import NodeSnapshot
from dispatcher.core.scheduling.placement import NodeGroups, Unplaceable


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a gang does not fit a cluster.

    `missing` is what the sums lack. If they lack nothing, the nodes are the reason: of `pod_set`, by its index, only
    `fitting` pods have a node; None if the pods of each pod set have nodes, but not all at once. `groups` are then the
    nodes of that pod set, or of the one with the largest pods.
    """

    missing: Resources = NOTHING
    pod_set: int | None = None
    fitting: int = 0
    groups: NodeGroups | None = field(default=None, compare=False, repr=False)

    def scarcest(self, gang: Gang) -> tuple[str, int]:
        """The scarcest resource; for a shortfall on nodes, also the most of it that one node has for those pods."""
        if self.groups is None:
            missing = sorted(self.missing)
            return max(
                missing, key=lambda name: self.missing[name] * 10**6 // gang.demand[name], default=""
            ), 0
        return self.groups.scarcest(_subject(gang, self.pod_set))


Fit = Assignment | Shortfall


def fit(gang: Gang, capacity: CapacitySnapshot) -> Fit:
    """The assignment of a gang that fits what is free now, or its shortfall."""
    free = capacity.free_for(gang)
    if not gang.demand.fits_in(free):
        return Shortfall(gang.demand.shortfall(free))
    if capacity.nodes is None or not gang.pod_sets:
        return ASSIGNED_NOWHERE
    found = capacity.nodes.place(gang)
    if isinstance(found, Unplaceable):
        return _shortfall(gang, capacity.nodes, found, is_empty=False)
    return capacity.nodes.assignment(gang, found)


def shortfall_in_empty(gang: Gang, capacity: CapacitySnapshot) -> Shortfall | None:
    """Why a gang does not fit even once all pods that end have ended; None if it then fits."""
    attainable = capacity.attainable_for(gang)
    if not gang.demand.fits_in(attainable):
        return Shortfall(gang.demand.shortfall(attainable))
    if capacity.nodes is None or not gang.pod_sets:
        return None
    found = capacity.nodes.find_unplaceable_in_empty(gang)
    return None if found is None else _shortfall(gang, capacity.nodes, found, is_empty=True)


def fits(gang: Gang, capacity: CapacitySnapshot) -> bool:
    """True if a gang fits what is free now."""
    return isinstance(fit(gang, capacity), Assignment)


def fits_in_empty(gang: Gang, capacity: CapacitySnapshot) -> bool:
    """True if a gang fits once all pods that end have ended."""
    return shortfall_in_empty(gang, capacity) is None


def _shortfall(gang: Gang, nodes: NodeSnapshot, found: Unplaceable, *, is_empty: bool) -> Shortfall:
    groups = nodes.groups(_subject(gang, found.index), is_empty=is_empty)
    return Shortfall(pod_set=found.index, fitting=found.fitting, groups=groups)


def _subject(gang: Gang, index: int | None) -> PodSet:
    """The pod set that a shortfall on nodes is about."""
    return _hardest(gang) if index is None else gang.pod_sets[index]


def _hardest(gang: Gang) -> PodSet:
    """The pod set whose pods request the most devices, then the most of any resource."""
    return max(gang.pod_sets, key=_size)


def _size(pod_set: PodSet) -> tuple[int, int]:
    devices = [amount for name, amount in pod_set.requests.items() if is_device(name)]
    return max(devices, default=0), max(pod_set.requests.values(), default=0)
