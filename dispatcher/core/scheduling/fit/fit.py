"""Whether a gang fits a cluster, and where its pods go. Nothing else compares a demand with capacity.

A gang fits if its demand fits the sums over the nodes that its pods may use and, where gangs are placed on nodes, every
pod has a node. Placing, explaining, reserving and every "what if" ask this question of a `CapacitySnapshot`. The gang
counts as its pods would be made in that cluster.

Where a class provides capacity on request, a gang that it manages fits without room: the request is the question.

Nodes that are there come first. A gang that does not fit them is compared with nodes and potential nodes together,
first those of trusted pools; with others, it does not fit, and its shortfall says which it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.model.clusters.potential import Trusted, pool_of
from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment, Gang, PodSet
from dispatcher.core.model.resources import NOTHING, PODS, Resources, is_device
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.capacity.node_snapshot import NodeCapacity
from dispatcher.core.scheduling.placement.node_room import NodeGroups, Places
from dispatcher.core.scheduling.placement.placement import Unplaceable
from dispatcher.values import equal_without, shown_without


# A cycle makes one for each gang and cluster; none of its fields leads back to it, so collections need not look at it.
@equal_without("groups", "available", "compared")
@shown_without("groups", "compared")
class Shortfall(Struct, frozen=True, gc=False):
    """Why a gang does not fit the `available` capacity of a cluster, which is a sum over its nodes.

    The methods take the gang as it is in that cluster.

    `missing` are the amounts that the sums lack. If they lack nothing, the nodes are the reason: only `fitting` pods of
    the pod set with index `pod_set` have a node. If `pod_set` is None, the pods of each pod set have nodes, but not all
    at once; with `undecided` steps, it is not known whether they have, because the search ended at that bound.
    `groups` are then the nodes for the pods of that pod set, or of the one with the largest pods.
    """

    missing: Resources = NOTHING
    pod_set: int | None = None
    fitting: int = 0
    groups: NodeGroups | None = None
    available: Resources = NOTHING
    needs: Trusted = ()
    compared: Gang | None = None
    undecided: int = 0

    def scarcest(self, gang: Gang) -> tuple[str, int]:
        """The scarcest resource; for a shortfall on nodes, also the largest amount on one of `groups`.

        It is `pods` if the nodes take too few pods.
        """
        if self.groups is None:
            missing = sorted(self.missing)
            return max(
                missing, key=lambda name: self.missing[name] * 10**6 // gang.demand[name], default=""
            ), 0
        places = self.lacking_places(gang)
        return (PODS, places.most) if places else self.groups.scarcest(_subject(gang, self.pod_set))

    def lacking_places(self, gang: Gang) -> Places | None:
        """The places for its pods on `groups`, if the nodes take too few pods for it; None if that is not the reason.

        Pods of different pod sets are counted together only where all of them may use the same nodes.
        """
        if self.groups is None:
            return None
        if self.pod_set is not None:
            return self.groups.lacking_places(gang.pod_sets[self.pod_set])
        if len({each.constraint for each in gang.pod_sets}) > 1:
            return None
        places = self.groups.places()
        return places if places.free < sum(each.count for each in gang.pod_sets) else None


Fit = Assignment | Shortfall


def fit(gang: Gang, capacity: CapacitySnapshot) -> Fit:
    """The assignment of a gang that fits the free capacity, or its shortfall."""
    if (asked := capacity.provisioning_of(gang)) is not None:
        return Assignment(provisioning=asked)
    gang = capacity.beside(gang)
    found = _fit_free(gang, capacity)
    if isinstance(found, Assignment) or not capacity.pools:
        return found
    return _fit_on_trust(gang, capacity, found, lambda rows: _fit_free(gang, capacity.including(rows)))


def fit_in_both(gang: Gang, one: CapacitySnapshot, other: CapacitySnapshot) -> Fit:
    """The assignment of a gang that fits the free capacity of both, each pod on the same node; else its shortfall.

    Both are of one cluster with the same nodes.
    """
    if (asked := one.provisioning_of(gang)) is not None:
        return Assignment(provisioning=asked)
    gang = other.beside(one.beside(gang))
    found = _fit_free_in_both(gang, one, other)
    if isinstance(found, Assignment) or not one.pools:
        return found
    return _fit_on_trust(
        gang, one, found, lambda rows: _fit_free_in_both(gang, one.including(rows), other.including(rows))
    )


def shortfall_in_empty(gang: Gang, capacity: CapacitySnapshot) -> Shortfall | None:
    """Why a gang does not fit even once all pods that end have ended; None if it then fits."""
    if capacity.surely_takes_once_empty(gang):
        return None
    found = _fit_in_empty(gang, capacity, NodeCapacity.find_unplaceable)
    return found if isinstance(found, Shortfall) else None


def assignment_in_empty(gang: Gang, capacity: CapacitySnapshot) -> Assignment:
    """The places of a gang once all pods that end have ended; no places if it does not fit even then."""
    found = _fit_in_empty(gang, capacity, NodeCapacity.assign)
    return found if isinstance(found, Assignment) else ASSIGNED_NOWHERE


def fits(gang: Gang, capacity: CapacitySnapshot) -> bool:
    """True if a gang fits the free capacity; cheaper than `fit`, which explains a shortfall by groups of nodes."""
    if capacity.provisioning_of(gang) is not None:
        return True
    gang = capacity.beside(gang)
    if _takes(gang, capacity):
        return True
    if not capacity.pools:
        return False
    offered = _trusted(gang, capacity, capacity.potential_for(gang))
    on_trust = any_of(gang, offered, lambda rows: _assigned(_fit_free(gang, capacity.including(rows))))
    return on_trust is not None


def fits_in_empty(gang: Gang, capacity: CapacitySnapshot) -> bool:
    """True if a gang fits once all pods that end have ended."""
    return shortfall_in_empty(gang, capacity) is None


_Assign = Callable[[NodeCapacity, Gang], Assignment | Unplaceable | None]
"""Places the pods of a gang; None if they have places, but it does not matter which."""


def _fit_in_empty(gang: Gang, capacity: CapacitySnapshot, assign: _Assign) -> Fit:
    if (asked := capacity.provisioning_of(gang)) is not None:
        return Assignment(provisioning=asked)
    gang = capacity.beside_lasting(gang)
    found = _fit_empty(gang, capacity, assign)
    if isinstance(found, Assignment) or not capacity.pools:
        return found
    offered = capacity.potential_for(gang, is_empty=True)
    with_potential = any_of(
        gang, offered, lambda rows: _assigned(_fit_empty(gang, capacity.including(rows), assign))
    )
    if with_potential is not None or not offered:
        return with_potential or found
    everything = capacity.including(row for rows in offered.values() for row in rows)
    return _fit_empty(gang, everything, assign)


def _fit_on_trust(
    gang: Gang,
    capacity: CapacitySnapshot,
    found: Shortfall,
    attempt: Callable[[tuple[int, ...]], Fit],
) -> Fit:
    """The assignment of a gang with potential nodes of trusted pools; else `found`, with the nodes that it needs."""
    offered = capacity.potential_for(gang)
    trusted = _trusted(gang, capacity, offered)
    on_trust = fewest(gang, trusted, lambda rows: _assigned(attempt(rows)))
    if on_trust is not None or trusted == offered:
        return on_trust or found
    needing = fewest(gang, offered, lambda rows: _assigned(attempt(rows)))
    return found if needing is None else replace(found, needs=needing.trusted)


def _trusted(gang: Gang, capacity: CapacitySnapshot, offered: Offered) -> Offered:
    trust, namespace = capacity.trust, gang.namespace
    return {pool: rows for pool, rows in offered.items() if trust.has(pool, namespace)}


def _assigned(found: Fit) -> Assignment | None:
    return found if isinstance(found, Assignment) else None


def _takes(gang: Gang, capacity: CapacitySnapshot) -> bool:
    if not gang.demand.fits_in(capacity.free_for(gang)):
        return False
    if capacity.nodes is None or not gang.pod_sets:
        return True
    return capacity.nodes.free.takes(gang)


def _fit_free(gang: Gang, capacity: CapacitySnapshot) -> Fit:
    nodes = None if capacity.nodes is None else capacity.nodes.free
    return _fit(gang, capacity.free_for(gang), nodes, NodeCapacity.assign)


def _fit_free_in_both(gang: Gang, one: CapacitySnapshot, other: CapacitySnapshot) -> Fit:
    mine, theirs = one.free_for(gang), other.free_for(gang)
    available = Resources({name: min(mine[name], theirs[name]) for name in {*mine, *theirs}})
    nodes = None
    if one.nodes is not None and other.nodes is not None:
        nodes = one.nodes.free.lowest(other.nodes.free)
    return _fit(gang, available, nodes, NodeCapacity.assign)


def _fit_empty(gang: Gang, capacity: CapacitySnapshot, assign: _Assign) -> Fit:
    nodes = None if capacity.nodes is None else capacity.nodes.empty
    return _fit(gang, capacity.attainable_for(gang), nodes, assign)


def _fit(gang: Gang, available: Resources, nodes: NodeCapacity | None, assign: _Assign) -> Fit:
    if not gang.demand.fits_in(available):
        return Shortfall(gang.demand.shortfall(available), available=available, compared=gang)
    if nodes is None or not gang.pod_sets:
        return ASSIGNED_NOWHERE
    found = assign(nodes, gang)
    if isinstance(found, Unplaceable):
        groups = nodes.groups(_subject(gang, found.index))
        return Shortfall(
            NOTHING,
            found.index,
            found.fitting,
            groups,
            available,
            compared=gang,
            undecided=found.undecided,
        )
    return found or ASSIGNED_NOWHERE


def _subject(gang: Gang, index: int | None) -> PodSet:
    """The pod set that a shortfall on nodes is about."""
    return _hardest(gang) if index is None else gang.pod_sets[index]


def _hardest(gang: Gang) -> PodSet:
    """The pod set whose pods request the most devices, then the most of any resource."""
    return max(gang.pod_sets, key=_size)


def _size(pod_set: PodSet) -> tuple[int, int]:
    devices = [amount for name, amount in pod_set.requests.items() if is_device(name)]
    return max(devices, default=0), max(pod_set.requests.values(), default=0)


Offered = Mapping[str, tuple[int, ...]]
"""The potential nodes by pool, as rows of the nodes of the cluster, the best first."""
Attempt = Callable[[tuple[int, ...]], Assignment | None]
"""The assignment of a gang with the potential nodes in these rows; None if it does not fit."""


def fewest(gang: Gang, offered: Offered, attempt: Attempt) -> Assignment | None:
    """The assignment of a gang with as few potential nodes as the search finds; None if it does not fit."""
    found = _first(gang, offered, attempt)
    if found is None:
        return None
    counts, assignment = found
    for pool in reversed(list(offered)):
        is_used = any(pool_of(node) == pool for node in assignment.nodes)
        least, most = 0, counts[pool] if is_used else min(1, counts[pool])
        while least < most:
            middle = (least + most) // 2
            fewer = attempt(_rows(offered, {**counts, pool: middle}))
            if fewer is None:
                least = middle + 1
            else:
                assignment, most = fewer, middle
                counts[pool] = middle
    return assignment


def any_of(gang: Gang, offered: Offered, attempt: Attempt) -> Assignment | None:
    """The assignment of a gang with any number of these potential nodes; None if it does not fit."""
    found = _first(gang, offered, attempt)
    return None if found is None else found[1]


def _first(gang: Gang, offered: Offered, attempt: Attempt) -> tuple[dict[str, int], Assignment] | None:
    for counts in _ladder(gang, offered):
        found = attempt(_rows(offered, counts))
        if found is not None:
            return counts, found
    return None


def _ladder(gang: Gang, offered: Offered) -> Iterator[dict[str, int]]:
    """The numbers of nodes to try: all of them, or for pods with a spread ever more of them."""
    largest = max(map(len, offered.values()), default=0)
    most = 1 if any(each.spread for each in gang.pod_sets) else largest
    while largest:
        yield {pool: min(len(rows), most) for pool, rows in offered.items()}
        if most >= largest:
            return
        most *= 2


def _rows(offered: Offered, counts: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(row for pool, rows in offered.items() for row in rows[: counts[pool]])
