"""The clusters and the running gangs of a world, as a person, a file or the snapshot of a leader describes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Self

from msgspec import Struct, field

from dispatcher.api.clusters.provisioning import ProvisioningClass
from dispatcher.core.model.clusters.cluster_errors import NO_ERRORS, ErrorCounts
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.clusters.potential import FULL_TRUST, PotentialPool, Trust
from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment, PodSet
from dispatcher.core.model.records.requirements import Kind, KindIn
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.capacity.node_snapshot import Place
from dispatcher.core.scheduling.fit.cluster_filters import Closed, ClusterSnapshot
from dispatcher.core.scheduling.preemption.surplus import NO_SURPLUS, Surplus
from dispatcher.core.scheduling.sharing.gangs import ActiveGang


class Cluster(Struct, frozen=True):
    """A cluster with its nodes, in order, and the facts of its `ClusterSnapshot`.

    `others` are the pods of no running gang, `permanent` those of them that never end.
    """

    name: str
    nodes: tuple[Node, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    closed: Closed | None = None
    reserve: Resources = NOTHING
    others: tuple[Place, ...] = ()
    permanent: tuple[Place, ...] = ()
    missing_kinds: frozenset[Kind] = frozenset()
    missing_namespaces: frozenset[str] = frozenset()
    creates_namespaces: bool = False
    closed_namespaces: frozenset[str] = frozenset()
    errors: ErrorCounts = NO_ERRORS
    provisioning: ProvisioningClass | None = None
    pools: tuple[PotentialPool, ...] = ()
    trust: Trust = FULL_TRUST
    device_resources: frozenset[str] = frozenset()
    kind_hints: Mapping[Kind, str] = field(default_factory=dict)
    forbidden_kinds: frozenset[KindIn] = frozenset()

    @classmethod
    def of(cls, snapshot: ClusterSnapshot, nodes: Iterable[Node], reserve: Resources) -> Self:
        """The cluster of a snapshot, without pods; `snapshot` has no nodes and no reserve of its own."""
        return cls(
            name=snapshot.name,
            nodes=tuple(nodes),
            labels=snapshot.labels,
            closed=snapshot.closed,
            reserve=reserve,
            missing_kinds=snapshot.missing_kinds,
            missing_namespaces=snapshot.missing_namespaces,
            creates_namespaces=snapshot.creates_namespaces,
            closed_namespaces=snapshot.closed_namespaces,
            errors=snapshot.errors,
            provisioning=snapshot.capacity.provisioning,
            pools=snapshot.capacity.pools,
            trust=snapshot.capacity.trust,
            device_resources=snapshot.capacity.device_resources,
            kind_hints=snapshot.kind_hints,
            forbidden_kinds=snapshot.forbidden_kinds,
        )

    def snapshot(self, capacity: CapacitySnapshot) -> ClusterSnapshot:
        """The snapshot of the cluster with this capacity, of which the reserve is still a part."""
        return ClusterSnapshot(
            name=self.name,
            capacity=capacity.without(self.reserve)
            .provided_by(self.provisioning)
            .trusting(self.trust)
            .backed_by(self.device_resources),
            labels=self.labels,
            closed=self.closed,
            missing_kinds=self.missing_kinds,
            missing_namespaces=self.missing_namespaces,
            creates_namespaces=self.creates_namespaces,
            closed_namespaces=self.closed_namespaces,
            errors=self.errors,
            kind_hints=self.kind_hints,
            forbidden_kinds=self.forbidden_kinds,
        )


class RunningPods(Struct, frozen=True):
    """The pods of one set of a running gang; `nodes` has the node of each, or is empty if the world chooses them."""

    pods: PodSet
    nodes: tuple[str, ...] = ()


class RunningGang(Struct, frozen=True):
    """A gang that holds capacity of a cluster; its demand beyond its pods is taken from the sum over the nodes.

    `bound` are its pods that have a node; None if all of `pods` have one. `assignment` has the places of the others.
    `active` is the gang as queues see it; None where no queues are declared. `grown` is what it holds beyond its
    demand. While it `awaits_capacity` that it requested, it takes none. `surplus` are its surplus pods.
    """

    name: str
    cluster: str
    demand: Resources
    pods: tuple[RunningPods, ...] = ()
    bound: tuple[Place, ...] | None = None
    assignment: Assignment = ASSIGNED_NOWHERE
    active: ActiveGang | None = None
    grown: Resources = NOTHING
    awaits_capacity: bool = False
    surplus: Surplus = NO_SURPLUS

    @property
    def held(self) -> Resources:
        """The amounts that it holds: its demand, and what its bound pods request beyond it."""
        return self.demand + self.grown

    @property
    def charged_beyond(self) -> Resources:
        """The amounts that its cluster is charged with beyond its demand, whether bound pods take them or not."""
        return (self.surplus.held - self.demand).positive_part()

    @property
    def is_on_nodes(self) -> bool:
        """True if the world names the nodes of all its pods that have one."""
        return self.bound is not None or all(each.nodes for each in self.pods)


class NoNode(ValueError):
    """No node takes a pod of a running gang; `gang` and `pod_set` are the indices of both."""

    def __init__(self, gang: int, pod_set: int) -> None:
        super().__init__(f"no node takes a pod of running gang {gang}, pod set {pod_set}")
        self.gang = gang
        self.pod_set = pod_set
