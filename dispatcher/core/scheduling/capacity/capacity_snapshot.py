"""The capacity of a cluster at one moment, as gangs see it; `capacity_ledger` takes the snapshots.

A gang sees only the nodes whose taints all of its pods tolerate, and every view is charged all reservations. Where
gangs are placed on nodes, `node_snapshot` answers instead, and a gang sees the nodes that at least one of its pods may
use.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from dispatcher.api.clusters.provisioning import ProvisioningClass
from dispatcher.core.model.clusters.nodes import Taint, Toleration
from dispatcher.core.model.clusters.potential import FULL_TRUST, MOST_NODES, PotentialPool, Trust
from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment, Gang, PodSet
from dispatcher.core.model.gangs.growth import SurplusPod
from dispatcher.core.model.gangs.pod_terms import NO_TERMS, TermIndex
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.failures import Failure
from dispatcher.core.model.resources import NOTHING, Resources, is_of_device_class, sum_of
from dispatcher.core.scheduling.capacity.node_snapshot import NodeSnapshot, use_of

NO_POOLS: Final[tuple[tuple[PotentialPool, ...], Trust]] = (), FULL_TRUST

Tolerations = tuple[tuple[Toleration, ...], ...] | None
"""The tolerations of each pod set; None means every usable node."""


def tolerations_of(gang: Gang | None) -> Tolerations:
    """The properties of a gang that decide which nodes it may use; None means every usable node."""
    return None if gang is None else tuple(pod_set.tolerations for pod_set in gang.pod_sets)


class CapacitySnapshot:
    """The capacity of a cluster at one moment; a cycle takes the demand of placed gangs from it.

    `cluster` is its name: a gang may request less there than in others. `nodes` has the free amounts of each node; None
    where gangs fit by sums. `beyond` is what the bound pods of a gang (by uid) request beyond its demand.
    `provisioning` is the class that provides more capacity here on request. `pools` may grow for pending pods; their
    potential nodes count only in a snapshot that is `including` them, and `trust` says for which gangs are dispatched.
    `device_resources` are the extended resources that DeviceClasses of the cluster name.
    """

    __slots__ = (
        "_beyond",
        "_free",
        "_pools",
        "_reservations",
        "_reserve",
        "_views",
        "cluster",
        "device_resources",
        "nodes",
        "pools",
        "provisioning",
        "trust",
    )

    def __init__(
        self,
        pools: Iterable[Pool] = (),
        reserved: Resources = NOTHING,
        reserve: Resources = NOTHING,
        nodes: NodeSnapshot | None = None,
        beyond: Mapping[str, Resources] | None = None,
        provisioning: ProvisioningClass | None = None,
        cluster: str = "",
        potential: tuple[tuple[PotentialPool, ...], Trust] = NO_POOLS,
        device_resources: frozenset[str] = frozenset(),
    ) -> None:
        self.nodes = nodes
        self.pools, self.trust = potential
        self.provisioning = provisioning
        self.cluster = cluster
        self.device_resources = device_resources
        self._beyond = beyond or {}
        self._pools = tuple(pools)
        self._reservations = reserved
        self._reserve = reserve
        # By tolerations: many gangs have few different ones.
        self._views: dict[Tolerations, _View] = {}
        self._free: dict[Tolerations, Resources] = {}

    def __eq__(self, other: object) -> bool:
        """True if both give every gang the same capacity."""
        if not isinstance(other, CapacitySnapshot):
            return NotImplemented
        if (self.provisioning, self.pools, self.trust) != (other.provisioning, other.pools, other.trust):
            return False
        if self.device_resources != other.device_resources:
            return False
        if self.nodes is not None or other.nodes is not None:
            return self.nodes == other.nodes
        mine, theirs = (self._reservations, self._reserve), (other._reservations, other._reserve)
        return mine == theirs and self._pools == other._pools

    __hash__ = None  # type: ignore[assignment]  # `take` changes it

    def free_for(self, gang: Gang | None) -> Resources:
        """The free capacity for `gang` (None: of every usable node); negative amounts are debts."""
        if self.nodes is not None:
            return self.nodes.free_for(gang)
        tolerations = tolerations_of(gang)
        free = self._free.get(tolerations)
        if free is None:
            free = self._free[tolerations] = self._view(gang, tolerations).free - self._reservations
        return free

    def total_for(self, gang: Gang | None) -> Resources:
        """The capacity for `gang` if the cluster had no pods."""
        if self.nodes is not None:
            return self.nodes.total_for(gang)
        return self._view(gang, tolerations_of(gang)).total

    def permanent_for(self, gang: Gang | None) -> Resources:
        """The part of the total that is taken by pods that never end."""
        return self.total_for(gang) - self.attainable_for(gang)

    def attainable_for(self, gang: Gang | None) -> Resources:
        """The capacity for `gang` once all pods that end have ended: the total less the permanent part."""
        if self.nodes is not None:
            return self.nodes.attainable_for(gang)
        return self._view(gang, tolerations_of(gang)).attainable

    def surely_takes_once_empty(self, gang: Gang) -> bool:
        """True if `gang` surely fits once all pods that end have ended; False if that is not known.

        Most gangs do, and a cycle asks it of each gang and cluster: this is the answer of `fit.shortfall_in_empty`
        without the ways that only some gangs need.
        """
        nodes = self.nodes
        if nodes is None or nodes.lasting is not None or gang.smaller:
            return False
        return gang.demand.fits_in(nodes.attainable_for(gang)) and nodes.empty.surely_takes(gang.pod_sets)

    def provisioning_of(self, gang: Gang) -> ProvisioningClass | None:
        """The class from which the capacity of `gang` is requested; None if it must be free here."""
        return None if self.provisioning is None else gang.requested_from([self.provisioning])

    def take(self, gang: Gang, assignment: Assignment = ASSIGNED_NOWHERE) -> None:
        """Charges the demand of `gang` from now on, as the ledger does once it is reserved.

        A gang whose capacity is to be requested takes none that is here.
        """
        if assignment.provisioning is not None:
            return
        gang = gang.in_cluster(self.cluster)
        self._reservations += gang.demand
        self._free.clear()
        if self.nodes is not None:
            self.nodes.take(gang, assignment)

    def charge(self, appwrapper: str, demand: Resources, sign: int) -> None:
        """Charge a gang that held capacity when the snapshot was taken (by uid) again, or no more with the sign -1.

        Where gangs fit by sums, all that it held then is charged, wherever its pods are. The growth in its record may
        be older: it stays while the gang is removed and its pods end.
        """
        if self.nodes is None:
            self._reservations += (demand + self._beyond.get(appwrapper, NOTHING)) * sign
            self._free.clear()
        elif (use := self.nodes.uses.get(appwrapper)) is not None:
            self.nodes.charge(use, sign)

    def split(
        self, surplus: Mapping[str, Mapping[str, tuple[tuple[SurplusPod, ...], Resources]]]
    ) -> Steps[list[Failure]]:
        """Let `charge` take surplus without the rest of its AppWrapper, and that without its surplus.

        `surplus` has its parts by the uid of the AppWrapper, then by the uid to charge each by: its pods, none for what
        no pod uses, with what it frees. In steps of one AppWrapper. An AppWrapper whose surplus raises an exception,
        which is returned, stays whole.
        """
        if self.nodes is not None:
            return (yield from self.nodes.split(surplus))
        self._beyond = dict(self._beyond)
        for appwrapper, parts in surplus.items():
            freed = sum_of(amounts for _, amounts in parts.values())
            self._beyond[appwrapper] = (self._beyond.get(appwrapper, NOTHING) - freed).positive_part()
            yield
        return []

    def take_as(self, appwrapper: str, gang: Gang, assignment: Assignment) -> None:
        """Charges the demand of `gang` as that of an AppWrapper (by uid), so that `charge` can take it back."""
        if self.nodes is not None and assignment.provisioning is None:
            use = use_of(gang.in_cluster(self.cluster), assignment)
            self.nodes.uses = ChainMap({appwrapper: use}, dict(self.nodes.uses))
        self.take(gang, assignment)

    @property
    def searched(self) -> int:
        """The steps of all searches for places in this cluster so far, in this snapshot and in others of it."""
        return 0 if self.nodes is None else self.nodes.free.tally.steps

    @property
    def reserve(self) -> Resources:
        """The amounts that are neither free nor part of the total, for any gang."""
        return self._reserve

    @property
    def taints(self) -> frozenset[tuple[Taint, ...]]:
        """The scheduling taints of its nodes: tolerations can distinguish nothing else here."""
        found = frozenset(pool.taints for pool in self._pools)
        return found.union(each.shape.scheduling_taints for each in self.pools) if self.pools else found

    @property
    def repelling(self) -> TermIndex:
        """The known terms of pod anti-affinity, of pods that are there and of gangs that are compared."""
        there = None if self.nodes is None else self.nodes.there
        return NO_TERMS if there is None else there.repelling

    def beside(self, gang: Gang) -> Gang:
        """The gang as it is in this cluster, with the conditions on its nodes by the pods that are there."""
        gang = self._here(gang)
        return gang if self.nodes is None else self.nodes.beside(gang)

    def domains_of(self, topology: str, nodes: Iterable[str]) -> frozenset[str]:
        """The values of a label of these nodes, of those that have it."""
        return frozenset() if self.nodes is None else self.nodes.domains_of(topology, nodes)

    def beside_lasting(self, gang: Gang) -> Gang:
        """The gang as it is in this cluster, with the conditions on its nodes by the pods that never end."""
        gang = self._here(gang)
        return gang if self.nodes is None else self.nodes.beside_lasting(gang)

    def uncounted_devices(self, pod_sets: Iterable[PodSet]) -> list[str]:
        """The resources of these pods that DeviceClasses back and no node lists, sorted: nothing counts the devices."""
        names = {name for each in pod_sets if each.count for name in each.requests}
        return sorted(
            name
            for name in names
            if is_of_device_class(name, self.device_resources) and not self._is_listed(name)
        )

    def _here(self, gang: Gang) -> Gang:
        """The gang as it is in this cluster, without devices for which a trusted declaration stands."""
        if gang.smaller:
            gang = gang.in_cluster(self.cluster)
        for each in gang.pod_sets:  # without a list for each gang and cluster
            if each.is_trusted:
                break
        else:
            return gang
        devices = self.uncounted_devices(each for each in gang.pod_sets if each.is_trusted)
        return gang.without_resources(devices) if devices else gang

    def _is_listed(self, resource: str) -> bool:
        """True if a node has a resource, usable or not; without nodes, if a usable one has it."""
        if self.nodes is None:
            return any(pool.total[resource] > 0 for pool in self._pools)
        return any(node is not None and node.allocatable[resource] > 0 for node in self.nodes.traits.nodes)

    @property
    def resource_names(self) -> Collection[str]:
        """The resources that a node or a potential node lists, usable or not; without nodes, those of usable nodes."""
        if self.nodes is not None:
            return self.nodes.empty.resource_names
        return {name for pool in self._pools for name in pool.total}

    def copy(self) -> CapacitySnapshot:
        """A copy; taking from it does not change this snapshot."""
        nodes = None if self.nodes is None else self.nodes.copy()
        return self._like(self._reserve, nodes)

    def provided_by(self, provisioning: ProvisioningClass | None) -> CapacitySnapshot:
        """A copy that shares its nodes with this one, and to which that class adds capacity on request."""
        found = self._like(self._reserve, self.nodes)
        found.provisioning = provisioning
        return found

    def backed_by(self, device_resources: frozenset[str]) -> CapacitySnapshot:
        """A copy that shares its nodes with this one, where DeviceClasses name these extended resources."""
        found = self._like(self._reserve, self.nodes)
        found.device_resources = device_resources
        return found

    def trusting(self, trust: Trust) -> CapacitySnapshot:
        """A copy that shares its nodes with this one, with that trust in its pools."""
        found = self._like(self._reserve, self.nodes)
        found.trust = trust
        return found

    def of_nodes(self) -> CapacitySnapshot:
        """A copy that shares its nodes with this one, without pools that may grow."""
        found = self._like(self._reserve, self.nodes)
        found.pools = ()
        return found

    def potential_for(self, gang: Gang, *, is_empty: bool = False) -> dict[str, tuple[int, ...]]:
        """The rows of the potential nodes that can matter to `gang`, by pool, if the cluster were empty or as it is.

        Each pod needs at most one node without places of others, so a pool gives no more of them than it has pods; all
        of them where the sums are less than what the nodes have, or the demand is more than its pods request.
        """
        if not self.pools or self.nodes is None or not gang.pod_sets:
            return {}
        is_sum = self.nodes.beyond or gang.demand != sum_of(each.total for each in gang.pod_sets)
        most = MOST_NODES if is_sum else sum(each.count for each in gang.pod_sets)
        return self.nodes.offered(gang.pod_sets, most, is_empty=is_empty)

    def including(self, rows: Iterable[int]) -> CapacitySnapshot:
        """The capacity with the potential nodes in these rows beside the others; not to be changed."""
        nodes = None if self.nodes is None else self.nodes.including(tuple(rows))
        found = self._like(self._reserve, nodes)
        found.pools = ()
        return found

    def without(self, reserve: Resources) -> CapacitySnapshot:
        """A copy in which `reserve` is neither free nor part of the total, for any gang."""
        nodes = None if self.nodes is None else self.nodes.without(reserve)
        return self._like(self._reserve + reserve, nodes)

    def without_gangs(self, uids: Iterable[str]) -> CapacitySnapshot:
        """A copy as it would be without these AppWrappers; without nodes it still charges them."""
        nodes = None if self.nodes is None else self.nodes.without_gangs(uids)
        return self._like(self._reserve, nodes)

    def _like(self, reserve: Resources, nodes: NodeSnapshot | None) -> CapacitySnapshot:
        return CapacitySnapshot(
            self._pools,
            self._reservations,
            reserve,
            nodes,
            self._beyond,
            self.provisioning,
            self.cluster,
            (self.pools, self.trust),
            self.device_resources,
        )

    def _view(self, gang: Gang | None, tolerations: Tolerations) -> _View:
        """The view of gangs with these tolerations, less the reserve."""
        view = self._views.get(tolerations)
        if view is None:
            pools = [pool for pool in self._pools if _may_use(gang, pool.taints)]
            total = sum_of(pool.total for pool in pools) - self._reserve
            view = self._views[tolerations] = _View(
                free=sum_of(pool.free for pool in pools) - self._reserve,
                total=total,
                attainable=total - sum_of(pool.permanent for pool in pools),
            )
        return view


class Pool(Struct, frozen=True):
    """The usable nodes with the same scheduling taints; `free` is before any reservation.

    `permanent` is the part of the total that is taken by pods that never end.
    """

    taints: tuple[Taint, ...]
    nodes: int = 0
    total: Resources = NOTHING
    free: Resources = NOTHING
    permanent: Resources = NOTHING

    def changed(self, nodes: int, total: Resources, free: Resources, permanent: Resources) -> Pool:
        """The pool with these amounts added."""
        return Pool(
            self.taints,
            self.nodes + nodes,
            self.total + total,
            self.free + free,
            self.permanent + permanent if permanent else self.permanent,
        )


class _View(NamedTuple):
    """The capacity for gangs with the same tolerations; `free` is before any reservation."""

    free: Resources
    total: Resources
    attainable: Resources


def _may_use(gang: Gang | None, taints: tuple[Taint, ...]) -> bool:
    return gang is None or gang.tolerates(taints)
