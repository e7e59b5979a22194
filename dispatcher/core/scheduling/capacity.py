"""The free capacity of one cluster, with each AppWrapper counted once.

free = sum over usable nodes of (allocatable - requests of the live pods bound there, anyone's)
       - sum over active AppWrappers of max(0, target - requests of its own live bound pods, on any node)

The target of an AppWrapper is its demand. If its pods have, or had, the dispatcher's scheduling gate, it is

target = max(demand + growth of the record, requests of its own live admitted pods, bound or not)

`account` is this formula, computed from scratch. `CapacityLedger` keeps the same value current by events. An
event costs O(resource names). The special cases:

- A pod on a node that is unusable, gone or not seen yet takes nothing from the usable nodes. It is still part of its
  AppWrapper's demand, so it reduces the AppWrapper's reservation.
- While a pod's owner is being resolved, its requests reduce the reservation of the AppWrapper that it claims: otherwise
  every pod of a Deployment would be counted twice for a moment, and other gangs would not fit.
- A pod that is being deleted counts until it is Succeeded, Failed or gone: it still occupies its node.
- An unbound pod does not count: its AppWrapper's target covers it, and a foreign pod may never be bound. So a grant is
  charged from its commit on, and two grants never get the same room.
- A gang sees only nodes whose taints all of its pods tolerate. A reservation has no node yet, so every view is charged
  all of it: until the pods are bound, a gang may seem to use the nodes of another. This delays gangs; it never
  overcommits nodes.
- Pods of DaemonSets and static pods never end, so the `attainable` capacity is the allocatable less their requests.
- Pods are not charged for the node resource `pods`, and no demand is derived for it. A declared demand for `pods` is
  compared with the allocatable of the nodes less the declarations of other AppWrappers.

Amounts are signed: a node whose requests exceed its allocatable is a debt of its pool.

Where gangs are placed on nodes (`FitMode.NODE`), `node_ledger` keeps the free amounts of each node beside these
sums. A gang then sees the nodes that at least one of its pods may use, and a reservation has places on nodes.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from dispatcher.api.provisioning import ProvisioningClass
from dispatcher.core.lifecycle.growth import admissible
from dispatcher.core.model.gang import ASSIGNED_NOWHERE, Assignment, Gang
from dispatcher.core.model.growth import GatedPod, SurplusPod
from dispatcher.core.model.nodes import Node, Taint, Toleration
from dispatcher.core.model.pod_counts import PodCounts
from dispatcher.core.model.pod_terms import NO_TERMS, PodSort, TermIndex
from dispatcher.core.model.potential import FULL_TRUST, MOST_NODES, PotentialPool, Trust, is_potential
from dispatcher.core.model.resources import NOTHING, Resources, sum_of
from dispatcher.core.scheduling.node_ledger import NO_LOAD, Load, NodeLedger
from dispatcher.core.scheduling.node_snapshot import NodeSnapshot, use_of
from dispatcher.core.scheduling.pods_there import FOLLOWS_NONE, FollowedTerms


class PodPhase(StrEnum):
    """The phase of a pod, as Kubernetes spells it."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"
    """The node does not answer. Long deprecated, still in the API; such a pod may be alive."""


class PodReason(StrEnum):
    """Why a pod does not run, or why its node ended it; a pod has at most one reason."""

    NONE = "none"
    STARTING = "starting"
    """Pending on a node, while images are pulled or init containers run."""
    STUCK = "stuck"
    """Pending on a node, and a container cannot start because of its image, its configuration or its crashes."""
    UNSCHEDULABLE = "unschedulable"
    """Pending, because the scheduler found no node for it."""
    GATED = "gated"
    """Pending, because the dispatcher has not admitted it yet."""
    EVICTED = "evicted"
    """Failed, because its node evicted it or went away."""


@dataclass(frozen=True, slots=True)
class Unscheduled:
    """Why the scheduler has no node for a pod, in the scheduler's words; `since` as the API server wrote it."""

    pod: str
    message: str = ""
    since: str = ""


@dataclass(frozen=True, slots=True)
class Gate:
    """The dispatcher's scheduling gate on a pod: where the pod is, and its age as the API server wrote it."""

    namespace: str
    name: str
    created_at: str


@dataclass(frozen=True, slots=True)
class Pod:
    """The requests and the state of a pod; `node` is empty until the pod is bound.

    `owner` is the uid of its AppWrapper, confirmed by the owner chain; None means foreign, or not confirmed. `claim` is
    the uid that the pod itself names, until that is confirmed or refuted. `exit_codes` are the nonzero exit codes of a
    Failed pod's containers, ascending. `unscheduled` comes with the reason UNSCHEDULABLE. `never_ends` is true for a
    pod of a DaemonSet and for a static pod: it stays as long as its node, or returns there. `gate` is the dispatcher's
    gate; None once the pod is admitted, and for a pod that never had it. `can_be_gated` is true for a pod whose
    template has that gate, also once the pod is admitted; `template` names the template, and the base gang has
    `base_pods` of its pods. Only such a pod has `admitted_as`, the gate that it had, once it is admitted; and only such
    a pod `is_ending`, once its deletion was requested. `sort` is what terms about pods depend on; None while the pod
    has no node.
    """

    uid: str
    requests: Resources
    node: str = ""
    phase: PodPhase = PodPhase.PENDING
    owner: str | None = None
    claim: str | None = None
    reason: PodReason = PodReason.NONE
    exit_codes: tuple[int, ...] = ()
    unscheduled: Unscheduled | None = None
    never_ends: bool = False
    gate: Gate | None = None
    can_be_gated: bool = False
    template: str = ""
    base_pods: int = 0
    admitted_as: Gate | None = None
    is_ending: bool = False
    sort: PodSort | None = None

    @property
    def live(self) -> bool:
        """True unless the pod is Succeeded or Failed; a pod that is being deleted is live."""
        return self.phase not in {PodPhase.SUCCEEDED, PodPhase.FAILED}

    @property
    def occupies_node(self) -> bool:
        """True while its requests are charged to its node."""
        return bool(self.node) and self.live

    @property
    def is_admitted(self) -> bool:
        """True for a live pod that the dispatcher's gate does not stop, bound or not."""
        return self.live and self.gate is None

    @property
    def is_permanent(self) -> bool:
        """True while no gang can ever have its share of the node; the pods of an AppWrapper end with the AppWrapper."""
        return self.never_ends and self.occupies_node and self.owner is None and self.claim is None


def account(
    nodes: Iterable[Node],
    pods: Collection[Pod],
    reservations: Mapping[str, Resources],
    gang: Gang | None = None,
    growth: Mapping[str, Resources] = MappingProxyType({}),
) -> Resources:
    """The free capacity for `gang` (None: of every usable node), from scratch; the definition.

    `reservations` is the demand of every active AppWrapper by its uid, `growth` its growth in the record.
    """
    open_nodes = _open_to(gang, nodes)
    free = sum_of(open_nodes.values())
    free -= sum_of(pod.requests for pod in pods if pod.occupies_node and pod.node in open_nodes)
    for uid, demand in reservations.items():
        own = [pod for pod in pods if pod.live and uid == (pod.owner or pod.claim)]
        target = demand
        if any(pod.can_be_gated or pod.gate for pod in own):
            admitted = sum_of(pod.requests for pod in own if pod.gate is None)
            target = (demand + growth.get(uid, NOTHING)).highest(admitted)
        free -= (target - sum_of(pod.requests for pod in own if pod.node)).positive_part()
    return free


def attainable(nodes: Iterable[Node], pods: Iterable[Pod], gang: Gang | None = None) -> Resources:
    """The capacity for `gang` (None: of every usable node) once all pods that end have ended; the definition."""
    open_nodes = _open_to(gang, nodes)
    return sum_of(open_nodes.values()) - sum_of(
        pod.requests for pod in pods if pod.is_permanent and pod.node in open_nodes
    )


def _open_to(gang: Gang | None, nodes: Iterable[Node]) -> dict[str, Resources]:
    """The allocatable amounts by the name of the node, of usable nodes with taints that `gang` tolerates."""
    return {node.name: node.allocatable for node in nodes if node.usable and _may_use(gang, node.taints)}


def count_pods(pods: Iterable[Pod], is_down: Callable[[str], bool]) -> PodCounts:
    """The counts of these pods, of any owner, from scratch; `is_down` is true for a known node that is not Ready."""
    tally = _Tally()
    lost = 0
    for pod in pods:
        tally.count(pod, +1)
        lost += pod.occupies_node and is_down(pod.node)
    return tally.pod_counts(lost)


class FitMode(StrEnum):
    """How a gang is compared with a cluster."""

    NODE = "node"
    """Every pod must have a node, and the demand must fit the sums."""
    AGGREGATE = "aggregate"
    """The demand must fit the sums over the nodes, as in MCAD."""


NO_POOLS: Final[tuple[tuple[PotentialPool, ...], Trust]] = (), FULL_TRUST


class CapacitySnapshot:
    """The capacity of a cluster at one moment; a cycle takes the demand of placed gangs from it.

    `cluster` is its name: a gang may request less there than in others. `nodes` has the free amounts of each node; None
    where gangs fit by sums. `beyond` is what the bound pods of a gang (by uid) request beyond its demand.
    `provisioning` is the class that provides more capacity here on request. `pools` may grow for pending pods; their
    potential nodes count only in a snapshot that is `including` them, and `trust` says for which gangs are dispatched.
    """

    __slots__ = (
        "_beyond",
        "_free",
        "_pools",
        "_reservations",
        "_reserve",
        "_views",
        "cluster",
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
    ) -> None:
        self.nodes = nodes
        self.pools, self.trust = potential
        self.provisioning = provisioning
        self.cluster = cluster
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

    def provisioning_of(self, gang: Gang) -> ProvisioningClass | None:
        """The class from which the capacity of `gang` is requested; None if it must be free here."""
        asked = self.provisioning
        return asked if asked is not None and gang.is_managed_by(asked) else None

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

    def split(self, surplus: Mapping[str, Mapping[str, tuple[SurplusPod, Resources]]]) -> None:
        """Let `charge` take surplus pods without the rest of their AppWrappers, and these without their surplus.

        `surplus` has the pods by the uid of the AppWrapper, then by the uid to charge each by, with what it frees.
        """
        if self.nodes is not None:
            self.nodes.split(
                {uid: {part: pod for part, (pod, _) in pods.items()} for uid, pods in surplus.items()}
            )
            return
        self._beyond = dict(self._beyond)
        for appwrapper, pods in surplus.items():
            freed = sum_of(amounts for _, amounts in pods.values())
            self._beyond[appwrapper] = (self._beyond.get(appwrapper, NOTHING) - freed).positive_part()

    def take_as(self, appwrapper: str, gang: Gang, assignment: Assignment) -> None:
        """Charges the demand of `gang` as that of an AppWrapper (by uid), so that `charge` can take it back."""
        if self.nodes is not None and assignment.provisioning is None:
            use = use_of(gang.in_cluster(self.cluster), assignment)
            self.nodes.uses = ChainMap({appwrapper: use}, dict(self.nodes.uses))
        self.take(gang, assignment)

    @property
    def taints(self) -> frozenset[tuple[Taint, ...]]:
        """The scheduling taints of its nodes: tolerations can distinguish nothing else here."""
        found = frozenset(pool.taints for pool in self._pools)
        return found.union(_scheduling_taints(each.shape) for each in self.pools) if self.pools else found

    @property
    def repelling(self) -> TermIndex:
        """The known terms of pod anti-affinity, of pods that are there and of gangs that are compared."""
        there = None if self.nodes is None else self.nodes.there
        return NO_TERMS if there is None else there.repelling

    def beside(self, gang: Gang) -> Gang:
        """The gang as it is in this cluster, with the conditions on its nodes by the pods that are there."""
        gang = gang.in_cluster(self.cluster)
        return gang if self.nodes is None else self.nodes.beside(gang)

    def beside_lasting(self, gang: Gang) -> Gang:
        """The gang as it is in this cluster, with the conditions on its nodes by the pods that never end."""
        gang = gang.in_cluster(self.cluster)
        return gang if self.nodes is None else self.nodes.beside_lasting(gang)

    def copy(self) -> CapacitySnapshot:
        """A copy; taking from it does not change this snapshot."""
        nodes = None if self.nodes is None else self.nodes.copy()
        return self._like(self._reserve, nodes)

    def provided_by(self, provisioning: ProvisioningClass | None) -> CapacitySnapshot:
        """A copy that shares its nodes with this one, and to which that class adds capacity on request."""
        found = self._like(self._reserve, self.nodes)
        found.provisioning = provisioning
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


class CapacityLedger:
    """The capacity of one cluster, by its name, kept current by watch events. Every call is safe to repeat.

    Events may come in any order: pods before their nodes, reservations before or after their pods.
    """

    def __init__(self, fit: FitMode = FitMode.AGGREGATE, cluster: str = "") -> None:
        self._cluster = cluster
        self._by_node = NodeLedger() if fit is FitMode.NODE else None
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, Pod] = {}
        self._loads: dict[str, Load] = {}
        self._owners: dict[str, Counter[str]] = {}
        self._pools: dict[tuple[Taint, ...], Pool] = {}
        self._shares: dict[str, _Share] = {}
        self._beyond: dict[str, Resources] = {}
        self._reserved = NOTHING
        self._with_gated: set[str] = set()
        self._unheld: dict[str, None] = {}
        """AppWrappers that changed since the last snapshot: the places for their growth may be others."""
        self._growing: tuple[PotentialPool, ...] = ()
        self._followed = FOLLOWS_NONE

    def follow(self, followed: FollowedTerms) -> None:
        """Compare gangs with these terms, and no others, with the pods that are there.

        The terms of pods, and of gangs that hold capacity, need no call. While there are none of all these, pods are
        not counted by sort. The first one costs O(pods), once.
        """
        self._followed = followed
        if self._by_node is not None:
            if followed and not self._by_node.counts_sorts:
                self._begin_to_count_sorts(self._by_node)
            self._by_node.follow(followed)

    @property
    def sorts_version(self) -> int:
        """Grows with each change of pods that concerns a known term about pods."""
        return 0 if self._by_node is None else self._by_node.sorts_version

    def concerns_terms(self, sort: PodSort) -> bool:
        """True if a known term about pods concerns pods of this sort."""
        return self._by_node is not None and self._by_node.concerns_terms(sort)

    def _begin_to_count_sorts(self, nodes: NodeLedger) -> None:
        nodes.begin_to_count_sorts()
        nodes.follow(self._followed)
        for pod in self._pods.values():
            if pod.occupies_node:
                self._count_on_nodes(nodes, pod, +1)

    def set_pools(self, pools: tuple[PotentialPool, ...]) -> None:
        """Declare the pools that may grow for pending pods, in place of those declared before."""
        self._growing = pools
        if self._by_node is not None:
            self._by_node.set_pools(pools)

    @property
    def pools(self) -> tuple[PotentialPool, ...]:
        """The pools that may grow for pending pods."""
        return self._growing

    def pools_awaited_by(self, appwrapper: str) -> frozenset[str]:
        """The pools whose nodes an AppWrapper (by uid) on trust still waits for; costs a snapshot."""
        if self._by_node is None:
            return frozenset()
        self._snapshot_nodes(self._by_node)  # a node that has just come may have taken its places
        return self._by_node.pools_awaited_by(appwrapper)

    def nodes_of(self, pool: PotentialPool) -> int:
        """How many nodes of a pool are there."""
        return sum(map(pool.has, self._nodes.values()))

    def set_node(self, node: Node) -> None:
        """Adds a node or replaces its last state."""
        known = self._nodes.get(node.name)
        if known == node or is_potential(node.name):
            return  # no API server allows such a name
        if known is not None:
            self._count_node(known, -1)
        self._nodes[node.name] = node
        self._count_node(node, +1)
        if self._by_node is not None:
            self._by_node.set_node(node, self._loads.get(node.name, NO_LOAD))

    def remove_node(self, name: str) -> None:
        """Removes a node; pods that are bound to it still count for their AppWrappers."""
        known = self._nodes.get(name)
        if known is not None:
            self._count_node(known, -1)
            del self._nodes[name]
            if self._by_node is not None:
                self._by_node.remove_node(name)

    def is_down(self, node: str) -> bool:
        """True if that node is known and not Ready."""
        known = self._nodes.get(node)
        return known is not None and not known.ready

    def owners_on(self, node: str) -> frozenset[str]:
        """The uids of the AppWrappers with confirmed live pods on that node, known or not."""
        return frozenset(self._owners.get(node, ()))

    def set_pod(self, pod: Pod) -> None:
        """Adds a pod or replaces its last state."""
        known = self._pods.get(pod.uid)
        if known == pod:
            return
        if pod.sort is not None and pod.sort.repels:
            self._note_repelling()
        if known is not None:
            self._count_pod(known, -1)
        self._pods[pod.uid] = pod
        self._count_pod(pod, +1)

    def _note_repelling(self) -> None:
        """Count pods by sort from now on: some of them have terms of anti-affinity."""
        if self._by_node is not None and not self._by_node.counts_sorts:
            self._begin_to_count_sorts(self._by_node)

    def admit(self, uid: str) -> None:
        """Counts a pod as admitted once its gate is removed: the watch may show another pod before it shows that.

        Otherwise the amounts that the pod takes would seem to be left, and one more pod would be admitted.
        """
        known = self._pods.get(uid)
        if known is not None and known.gate is not None:
            reason = PodReason.NONE if known.reason is PodReason.GATED else known.reason
            admitted_as = known.gate if known.can_be_gated else None
            self.set_pod(replace(known, gate=None, admitted_as=admitted_as, reason=reason))

    def remove_pod(self, uid: str) -> None:
        """Removes a pod that is gone."""
        known = self._pods.pop(uid, None)
        if known is not None:
            self._count_pod(known, -1)

    def reserve(
        self,
        appwrapper: str,
        gang: Gang,
        assignment: Assignment = ASSIGNED_NOWHERE,
        grown: Resources = NOTHING,
    ) -> None:
        """Charges the demand of an active AppWrapper (by uid), in place of its previous charge.

        `grown` is its growth in the record. It is charged from its grant on if the templates have the dispatcher's
        gate; other pods are charged once they are bound.
        """
        gang = gang.in_cluster(self._cluster)
        if any(each.repels for each in gang.pod_sets):
            self._note_repelling()
        if self._by_node is not None:
            self._by_node.reserve(appwrapper, gang, assignment)
        self._set_demand(appwrapper, gang.demand, grown)

    def release(self, appwrapper: str) -> None:
        """Ends the charge of an AppWrapper; its live pods are then charged like foreign pods."""
        if appwrapper in self._shares:
            self._set_demand(appwrapper, None)
        if self._by_node is not None:
            self._by_node.release(appwrapper)

    def free(self, gang: Gang | None = None) -> Resources:
        """The free capacity for `gang` (None: of every usable node); equals `account`."""
        return self.snapshot().free_for(gang)

    def total(self, gang: Gang | None = None) -> Resources:
        """The capacity of the usable nodes that `gang` tolerates, if they had no pods."""
        return self.snapshot().total_for(gang)

    def snapshot(self) -> CapacitySnapshot:
        """The capacity at this moment; costs O(node pools), and with nodes a copy of their arrays."""
        nodes = None if self._by_node is None else self._snapshot_nodes(self._by_node)
        return CapacitySnapshot(
            self._pools.values(),
            self._reserved,
            nodes=nodes,
            beyond=dict(self._beyond),
            cluster=self._cluster,
            potential=(self._growing, FULL_TRUST) if self._growing else NO_POOLS,
        )

    def _snapshot_nodes(self, nodes: NodeLedger) -> NodeSnapshot:
        """The snapshot of the nodes, with places for the growth of the AppWrappers that changed since the last one."""
        changed, self._unheld = self._unheld, {}
        for uid in changed:
            share = self._shares.get(uid)
            if share is not None and share.demand is not None:
                nodes.hold_growth(uid, (share.target - share.demand).positive_part(), share.starting())
        return nodes.snapshot()

    def pods(self) -> list[Pod]:
        """Every pod that is known at this moment, in no order."""
        return list(self._pods.values())

    def nodes(self) -> list[Node]:
        """Every node that is known at this moment, by name."""
        return [self._nodes[name] for name in sorted(self._nodes)]

    def usable_nodes(self) -> frozenset[str]:
        """The names of the usable nodes."""
        return frozenset(name for name, node in self._nodes.items() if node.usable)

    def pod_counts(self, appwrapper: str) -> PodCounts:
        """The counts of the confirmed pods of an AppWrapper (by uid), bound or not, also while it is not active."""
        share = self._shares.get(appwrapper)
        return PodCounts() if share is None else share.tally.pod_counts(share.lost)

    def bound(self, appwrapper: str) -> Resources:
        """The requests of the live pods of an AppWrapper (by uid) that have nodes, known or not.

        Pods that claim the AppWrapper count while their owners are being resolved, as they do in `account`: otherwise a
        new leader would find a gang of Deployments without pods for a moment.
        """
        share = self._shares.get(appwrapper)
        return NOTHING if share is None else share.bound

    def admitted(self, appwrapper: str) -> Resources:
        """The requests of the live pods of an AppWrapper (by uid) without the dispatcher's gate, bound or not.

        Pods that claim the AppWrapper count like in `bound`.
        """
        share = self._shares.get(appwrapper)
        return NOTHING if share is None else share.admitted

    def taken(self, appwrapper: str) -> Resources:
        """The requests of the live pods for which an AppWrapper (by uid) is charged.

        They are its admitted pods if the templates have the dispatcher's gate, else its bound ones.
        """
        share = self._shares.get(appwrapper)
        if share is None:
            return NOTHING
        return share.admitted if share.of_gated_templates else share.bound

    def gated(self, appwrapper: str) -> list[GatedPod]:
        """The live pods of an AppWrapper (by uid) with the dispatcher's gate, by age and name; claims as in `bound`."""
        share = self._shares.get(appwrapper)
        return [] if share is None else share.gated_by_age()

    def with_gated(self) -> frozenset[str]:
        """The uids of the AppWrappers with live pods that have the dispatcher's gate; claims count as in `bound`."""
        return frozenset(self._with_gated)

    def surplus(self, appwrapper: str, given_up: Collection[str] = ()) -> list[SurplusPod]:
        """The pods that an AppWrapper (by uid) can give up: bound, and beyond the base gang.

        First come those that it has `given_up` (by uid), even if pods of the base gang ended meanwhile. Of each
        template, the base gang keeps the oldest admitted pods. Pods that are ending come first, then the newest. Only
        confirmed pods count. Costs O(pods of the AppWrapper).
        """
        share = self._shares.get(appwrapper)
        return [] if share is None else share.surplus(given_up)

    def is_live(self, uid: str) -> bool:
        """True of a pod that is known, and neither Succeeded nor Failed; one that is being deleted is live."""
        known = self._pods.get(uid)
        return known is not None and known.live

    def is_ending(self, uid: str) -> bool:
        """True of a known pod, made from a template with the gate, whose deletion was requested."""
        known = self._pods.get(uid)
        return known is not None and known.is_ending

    def unscheduled(self, appwrapper: str) -> list[Unscheduled]:
        """The confirmed pods of an AppWrapper (by uid) without a node from the scheduler, sorted by name."""
        share = self._shares.get(appwrapper)
        return [] if share is None else sorted(share.unscheduled.values(), key=lambda each: each.pod)

    def _count_node(self, node: Node, sign: int) -> None:
        if not node.ready:
            for owner, pods in self._owners.get(node.name, {}).items():
                self._shares[owner].lost += pods * sign
        if not node.usable:
            return
        taints = _scheduling_taints(node)
        load = self._loads.get(node.name, NO_LOAD)
        free = node.allocatable - load.used
        pool = self._pools.get(taints, Pool(taints))
        pool = pool.changed(sign, node.allocatable * sign, free * sign, load.permanent * sign)
        if pool.nodes:
            self._pools[taints] = pool
        else:
            del self._pools[taints]

    def _count_pod(self, pod: Pod, sign: int) -> None:
        if pod.occupies_node:
            self._use_node(pod, sign)
        uid = pod.owner or pod.claim
        if uid is None:
            return
        share = self._shares.setdefault(uid, _Share())
        if pod.owner is not None:
            share.count(pod, sign)
        if pod.live:
            share.count_live(pod, sign)
            self._note_gated(uid, share)
        if pod.occupies_node:
            share.bound += pod.requests * sign
            if pod.owner is not None:
                self._count_on_node(pod.node, pod.owner, share, sign)
        self._settle(uid, share)

    def _note_gated(self, uid: str, share: _Share) -> None:
        if share.gated:
            self._with_gated.add(uid)
        else:
            self._with_gated.discard(uid)

    def _count_on_node(self, node: str, owner: str, share: _Share, sign: int) -> None:
        if self.is_down(node):
            share.lost += sign
        owners = self._owners.setdefault(node, Counter())
        _add(owners, owner, sign)
        if not owners:
            del self._owners[node]

    def _use_node(self, pod: Pod, sign: int) -> None:
        taken = pod.requests * sign
        permanent = taken if pod.is_permanent else NOTHING
        load = self._loads.pop(pod.node, NO_LOAD).changed(taken, sign, permanent, sign * pod.is_permanent)
        if load.pods:
            self._loads[pod.node] = load
        if self._by_node is not None:
            self._by_node.load_node(pod.node, load)
            self._count_on_nodes(self._by_node, pod, sign)
        node = self._nodes.get(pod.node)
        if node is not None and node.usable:
            taints = _scheduling_taints(node)
            self._pools[taints] = self._pools[taints].changed(0, NOTHING, taken * -1, permanent)

    def _count_on_nodes(self, nodes: NodeLedger, pod: Pod, sign: int) -> None:
        """Count a bound pod by its AppWrapper, and while a term about pods is known, by its sort."""
        uid = pod.owner or pod.claim
        if uid is not None:
            nodes.count_bound(uid, pod.requests, pod.node, sign, pod.sort)
        if nodes.counts_sorts and pod.sort is not None:
            nodes.count_sort(pod.sort, pod.node, sign, is_permanent=pod.is_permanent)

    def _set_demand(self, appwrapper: str, demand: Resources | None, grown: Resources = NOTHING) -> None:
        share = self._shares.setdefault(appwrapper, _Share())
        share.demand, share.grown = demand, grown
        self._settle(appwrapper, share)

    def _settle(self, appwrapper: str, share: _Share) -> None:
        """Recomputes the reservation of a changed share; drops the share if it is empty."""
        target = share.target
        reservation = NOTHING if share.demand is None else (target - share.bound).positive_part()
        if self._by_node is not None:
            self._unheld[appwrapper] = None
        if reservation != share.reservation:
            self._reserved += reservation - share.reservation
            share.reservation = reservation
        if share.demand is not None and (
            beyond := (target.highest(share.bound) - share.demand).positive_part()
        ):
            self._beyond[appwrapper] = beyond
        else:
            self._beyond.pop(appwrapper, None)
        if share.demand is None and not share.tally.phases and not share.claims_any:
            del self._shares[appwrapper]


@dataclass(frozen=True, slots=True)
class Pool:
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


@dataclass(slots=True)
class _Tally:
    """Counts of pods by phase, reason and exit code, without zeros."""

    phases: Counter[PodPhase] = field(default_factory=Counter)
    reasons: Counter[PodReason] = field(default_factory=Counter)
    exit_codes: Counter[int] = field(default_factory=Counter)
    unbound: int = 0

    def count(self, pod: Pod, sign: int) -> None:
        _add(self.phases, pod.phase, sign)
        self.unbound += sign * (pod.live and pod.gate is None and not pod.node)
        if pod.reason is not PodReason.NONE:
            _add(self.reasons, pod.reason, sign)
        for code in pod.exit_codes:
            _add(self.exit_codes, code, sign)

    def pod_counts(self, lost: int) -> PodCounts:
        return PodCounts(
            pending=self.phases[PodPhase.PENDING] + self.phases[PodPhase.UNKNOWN],
            running=self.phases[PodPhase.RUNNING],
            succeeded=self.phases[PodPhase.SUCCEEDED],
            failed=self.phases[PodPhase.FAILED],
            starting=self.reasons[PodReason.STARTING],
            unschedulable=self.reasons[PodReason.UNSCHEDULABLE],
            gated=self.reasons[PodReason.GATED],
            lost=lost,
            evicted=self.reasons[PodReason.EVICTED],
            unbound=self.unbound,
            exit_codes=frozenset(self.exit_codes),
        )


@dataclass(slots=True)
class _Share:
    """One AppWrapper's demand while it is active, its confirmed pods, and the requests of all pods that claim it.

    `grown` is its growth in the record. `unbound` are the admitted pods without a node, by their requests;
    `admitted_of` counts the admitted pods by template, and `growing` are the confirmed ones of them. Without pods
    `of_gated_templates` its growth is that of its bound pods, and unbound pods beyond the demand do not count.
    """

    demand: Resources | None = None
    bound: Resources = NOTHING
    admitted: Resources = NOTHING
    reservation: Resources = NOTHING
    lost: int = 0
    tally: _Tally = field(default_factory=_Tally)
    unscheduled: dict[str, Unscheduled] = field(default_factory=dict)
    gated: dict[str, Pod] = field(default_factory=dict)
    admitted_of: Counter[str] = field(default_factory=Counter)
    growing: dict[str, Pod] = field(default_factory=dict)
    grown: Resources = NOTHING
    unbound: Counter[Resources] = field(default_factory=Counter)
    of_gated_templates: int = 0

    def count(self, pod: Pod, sign: int) -> None:
        self.tally.count(pod, sign)
        if sign < 0:
            self.unscheduled.pop(pod.uid, None)
        elif pod.unscheduled is not None:
            self.unscheduled[pod.uid] = pod.unscheduled

    def count_live(self, pod: Pod, sign: int) -> None:
        """Count a live pod by its gate; pods that only claim the AppWrapper count too."""
        self.of_gated_templates += sign * (pod.can_be_gated or pod.gate is not None)
        if pod.is_admitted:
            self.admitted += pod.requests * sign
            if pod.template:
                _add(self.admitted_of, pod.template, sign)
                if pod.owner is not None and pod.admitted_as is not None:
                    self._note_growing(pod, sign)
            if not pod.node:
                _add(self.unbound, pod.requests, sign)
        elif sign < 0:
            self.gated.pop(pod.uid, None)
        else:
            self.gated[pod.uid] = pod

    def _note_growing(self, pod: Pod, sign: int) -> None:
        if sign < 0:
            self.growing.pop(pod.uid, None)
        else:
            self.growing[pod.uid] = pod

    def surplus(self, given_up: Collection[str] = ()) -> list[SurplusPod]:
        """The bound pods that were given up, then those beyond the base gang: first ending ones, then the newest."""
        found = []
        beyond: Counter[str] = Counter()
        base: Counter[str] = Counter()
        for pod in self.growing.values():
            beyond[pod.template] += 1
            base[pod.template] = max(base[pod.template], pod.base_pods)
        beyond.subtract(base)
        admitted = [(pod.admitted_as, pod) for pod in self.growing.values() if pod.admitted_as is not None]
        admitted.sort(key=_surplus_order, reverse=True)
        admitted.sort(key=lambda each: each[1].uid not in given_up)
        for at, pod in admitted:
            if pod.uid in given_up or beyond[pod.template] > 0:
                beyond[pod.template] -= 1
                if pod.node:
                    found.append(_surplus_pod(at, pod))
        return found

    def gated_by_age(self) -> list[GatedPod]:
        """The gated pods, the oldest first; of each template, those that the base gang lacks belong to it."""
        found, counted = [], self.admitted_of.copy()
        gates = [(each.gate, each) for each in self.gated.values() if each.gate is not None]
        for gate, pod in sorted(gates, key=lambda each: (each[0].created_at, each[0].name)):
            is_base = bool(pod.template) and counted[pod.template] < pod.base_pods
            counted[pod.template] += 1
            found.append(
                GatedPod(gate.namespace, gate.name, pod.uid, pod.requests, gate.created_at, is_base=is_base)
            )
        return found

    @property
    def claims_any(self) -> bool:
        """True while live pods are known whose requests or gate count."""
        return bool(self.admitted or self.gated or self.of_gated_templates)

    @property
    def target(self) -> Resources:
        """The amounts that an active AppWrapper is to have room for, with those that its bound pods take."""
        demand = self.demand or NOTHING
        return (demand + self.grown).highest(self.admitted) if self.of_gated_templates else demand

    def starting(self) -> Counter[Resources]:
        """The admitted pods without a node, and the gated ones that may be admitted, by their requests."""
        if self.demand is None or not self.of_gated_templates:
            return Counter()
        within = admissible(self.demand + self.grown, self.admitted, self.gated_by_age())
        return self.unbound + Counter(each.requests for each in within)


def _surplus_order(admitted: tuple[Gate, Pod]) -> tuple[bool, str, str]:
    """The key of an admitted pod: the pods with the greatest keys are given up first."""
    at, pod = admitted
    return pod.is_ending, at.created_at, at.name


def _surplus_pod(at: Gate, pod: Pod) -> SurplusPod:
    return SurplusPod(at.namespace, at.name, pod.uid, pod.requests, pod.node, at.created_at, pod.is_ending)


_Key = TypeVar("_Key")
Tolerations = tuple[tuple[Toleration, ...], ...] | None
"""The tolerations of each pod set; None means every usable node."""


def tolerations_of(gang: Gang | None) -> Tolerations:
    """The properties of a gang that decide which nodes it may use; None means every usable node."""
    return None if gang is None else tuple(pod_set.tolerations for pod_set in gang.pod_sets)


def _may_use(gang: Gang | None, taints: tuple[Taint, ...]) -> bool:
    return gang is None or gang.tolerates(taints)


def _scheduling_taints(node: Node) -> tuple[Taint, ...]:
    """The taints that keep pods away, sorted, so that equal nodes share a pool."""
    if not node.taints:
        return ()
    keeping_away = {taint for taint in node.taints if taint.keeps_away}
    return tuple(sorted(keeping_away, key=lambda taint: (taint.key, taint.value, taint.effect)))


def _add(counter: Counter[_Key], key: _Key, sign: int) -> None:
    """Counts one more or one less; drops a zero."""
    counter[key] += sign
    if not counter[key]:
        del counter[key]
