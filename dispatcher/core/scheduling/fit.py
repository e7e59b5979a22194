"""Whether a gang fits a cluster, and where its pods go. Nothing else compares a demand with capacity.

A gang fits if its demand fits the sums over the nodes that its pods may use and, where gangs are placed on nodes, every
pod has a node. Placing, explaining, reserving and every "what if" ask this question of a `CapacitySnapshot`.
"""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.core.model.gang import ASSIGNED_NOWHERE, Assignment, Gang, PodSet
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity import CapacitySnapshot
from dispatcher.core.scheduling.node_capacity import NodeSnapshot
from dispatcher.core.scheduling.placement import Placement, Unplaceable, is_device


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a gang does not fit a cluster.

    `missing` is what the sums lack. If they lack nothing, the nodes are the reason: of `pod_set`, by its index, only
    `fitting` pods have a node; None if the pods of each pod set have nodes, but not all at once. `resource` is then the
    scarcest on nodes, and `largest` the most of it that one node has for those pods.
    """

    missing: Resources = NOTHING
    pod_set: int | None = None
    fitting: int = 0
    resource: str = ""
    largest: int = 0

    @property
    def is_fragmented(self) -> bool:
        """True if the sums suffice and the nodes do not."""
        return not self.missing


Fit = Assignment | Shortfall


def fit(gang: Gang, capacity: CapacitySnapshot) -> Fit:
    """The assignment of a gang that fits what is free now, or its shortfall."""
    free = capacity.free_for(gang)
    if not gang.demand.fits_in(free):
        return Shortfall(gang.demand.shortfall(free))
    if capacity.nodes is None or not gang.pod_sets:
        return ASSIGNED_NOWHERE
    return _on_nodes(gang, capacity.nodes, capacity.nodes.place(gang), is_empty=False)


def fit_in_empty(gang: Gang, capacity: CapacitySnapshot) -> Fit:
    """The assignment of a gang that fits once all pods that end have ended, or its shortfall."""
    attainable = capacity.attainable_for(gang)
    if not gang.demand.fits_in(attainable):
        return Shortfall(gang.demand.shortfall(attainable))
    if capacity.nodes is None or not gang.pod_sets:
        return ASSIGNED_NOWHERE
    return _on_nodes(gang, capacity.nodes, capacity.nodes.place_in_empty(gang), is_empty=True)


def fits(gang: Gang, capacity: CapacitySnapshot) -> bool:
    """True if a gang fits what is free now."""
    return isinstance(fit(gang, capacity), Assignment)


def fits_in_empty(gang: Gang, capacity: CapacitySnapshot) -> bool:
    """True if a gang fits once all pods that end have ended."""
    return isinstance(fit_in_empty(gang, capacity), Assignment)


def _on_nodes(gang: Gang, nodes: NodeSnapshot, found: Placement | Unplaceable, *, is_empty: bool) -> Fit:
    if not isinstance(found, Unplaceable):
        return nodes.assignment(found)
    pod_set = _hardest(gang) if found.index is None else gang.pod_sets[found.index]
    resource, largest = nodes.scarcest(pod_set, is_empty=is_empty)
    return Shortfall(pod_set=found.index, fitting=found.fitting, resource=resource, largest=largest)


def _hardest(gang: Gang) -> PodSet:
    """The pod set whose pods request the most devices, then the most of any resource."""
    return max(gang.pod_sets, key=_size)


def _size(pod_set: PodSet) -> tuple[int, int]:
    devices = [amount for name, amount in pod_set.requests.items() if is_device(name)]
    return max(devices, default=0), max(pod_set.requests.values(), default=0)
