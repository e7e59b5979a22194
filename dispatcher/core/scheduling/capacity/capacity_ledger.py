"""The free capacity of one cluster, with each AppWrapper counted once.

free = sum over usable nodes of max(0, allocatable - requests of the live pods on the node, anyone's)
       - sum over active AppWrappers of max(0, target - requests of its own live bound pods, on any node)

The target of an AppWrapper is its demand. If its pods have, or had, the dispatcher's scheduling gate, it is

target = max(demand + growth of the record, requests of its own live pods that are bound to nodes that exist)

`CapacityLedger` keeps this value current by events. An event costs O(resource names). The special cases:

- A pod on a node that is unusable, gone or not seen yet takes nothing from the usable nodes. It is still part of its
  AppWrapper's demand, so it reduces the AppWrapper's reservation.
- While a pod's owner is being resolved, its requests reduce the reservation of the AppWrapper that it claims: otherwise
  every pod of a Deployment would be counted twice for a moment, and other gangs would not fit.
- A pod that is being deleted counts until it is Succeeded, Failed or gone: it still occupies its node.
- An unbound pod does not count: its AppWrapper's target covers it, and a foreign pod may never be bound. So a grant is
  charged from its commit on, and two grants never get the same room. Nor does a pod on a node that does not exist count
  beyond the record, whatever its marks say: any user may create a pod that names an AppWrapper and a node. For the same
  reason a pod on a node that exists counts only once a scheduler has bound it, or the kubelet has taken it.
- A gang sees only nodes whose taints all of its pods tolerate. A reservation has no node yet, so every view is charged
  all of it: until the pods are bound, a gang may seem to use the nodes of another. This delays gangs; it never
  overcommits nodes.
- Pods of DaemonSets and static pods never end, so the `attainable` capacity is the allocatable less their requests.
- Pods are not charged for the node resource `pods`, and no demand is derived for it. A declared demand for `pods` is
  compared with the allocatable of the nodes less the declarations of other AppWrappers.

A node whose requests exceed its allocatable has nothing left, and takes nothing from the others: whoever may create a
pod can name a node and any amount. Reservations beyond that sum are a debt, a negative amount.

Where gangs are placed on nodes (`FitMode.NODE`), `node_ledger` keeps the free amounts of each node beside these
sums. A gang then sees the nodes that at least one of its pods may use, and a reservation has places on nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum

from msgspec.structs import replace

from dispatcher.core.model.clusters.nodes import Node, Taint
from dispatcher.core.model.clusters.potential import FULL_TRUST, PotentialPool, Trusted, is_potential
from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment, Gang
from dispatcher.core.model.gangs.growth import GatedPod, PodsByTemplate, SurplusPod
from dispatcher.core.model.gangs.pod_terms import PodSort
from dispatcher.core.model.gangs.pods import Pod, PodCounts, PodReason, Unscheduled
from dispatcher.core.model.records.failures import Failure
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.appwrapper_share import AppWrapperShare, add
from dispatcher.core.scheduling.capacity.capacity_snapshot import NO_POOLS, CapacitySnapshot, Pool
from dispatcher.core.scheduling.capacity.node_ledger import NodeLedger
from dispatcher.core.scheduling.capacity.node_rows import NO_LOAD, Load
from dispatcher.core.scheduling.capacity.node_snapshot import NodeSnapshot
from dispatcher.core.scheduling.capacity.pods_there import FOLLOWS_NONE, FollowedTerms
from dispatcher.core.scheduling.capacity.resource_names import PodNames, ResourceNames


class FitMode(StrEnum):
    """How a gang is compared with a cluster."""

    NODE = "node"
    """Every pod must have a node, and the demand must fit the sums."""
    AGGREGATE = "aggregate"
    """The demand must fit the sums over the nodes, as in MCAD."""


class CapacityLedger:
    """The capacity of one cluster, by its name, kept current by watch events. Every call is safe to repeat.

    Events may come in any order: pods before their nodes, reservations before or after their pods.
    """

    def __init__(self, fit: FitMode = FitMode.NODE, cluster: str = "") -> None:
        self._cluster = cluster
        self._by_node = NodeLedger() if fit is FitMode.NODE else None
        self._nodes: dict[str, Node] = {}
        self._names = ResourceNames()
        self._left_out = 0
        self._pod_names = PodNames(self._names)
        self._pods: dict[str, Pod] = {}
        self._whole: dict[str, Resources] = {}
        """The requests of the pods of which some do not count, by uid."""
        self._loads: dict[str, Load] = {}
        self._owners: dict[str, Counter[str]] = {}
        self._pods_on: dict[str, dict[str, Counter[Resources]]] = {}
        """The live pods on each node, known or not, by the uid of their AppWrapper and by their requests."""
        self._pools: dict[tuple[Taint, ...], Pool] = {}
        self._shares: dict[str, AppWrapperShare] = {}
        self._beyond: dict[str, Resources] = {}
        self._reserved = NOTHING
        self._with_gated: set[str] = set()
        self._unheld: dict[str, None] = {}
        """AppWrappers that changed since the last snapshot: the places for their growth may be others."""
        self._growing: tuple[PotentialPool, ...] = ()
        self._followed = FOLLOWS_NONE
        self._unwanted: dict[str, frozenset[tuple[str, str]]] = {}
        self._all_unwanted = frozenset[tuple[str, str]]()

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

    @property
    def concerns_terms(self) -> Callable[[PodSort], bool]:
        """The question whether a term about pods that is known at this moment concerns pods of a sort."""
        known = None if self._by_node is None else self._by_node.known_terms
        return _concerns_none if known is None else known.concern

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
    def counts_pools(self) -> bool:
        """True if potential nodes count: they do only where gangs are placed on nodes."""
        return self._by_node is not None

    @property
    def pools(self) -> tuple[PotentialPool, ...]:
        """The pools that may grow for pending pods."""
        return self._growing

    def pools_awaited_by(self, appwrapper: str, trusted: Trusted = ()) -> frozenset[str]:
        """The pools whose nodes an AppWrapper (by uid) on trust still waits for.

        `trusted` are those of its growth.
        """
        if self._by_node is None:
            return frozenset()
        self._hold_growth(self._by_node)
        self._by_node.settle()  # a node that has just come may have taken its places
        return self._by_node.pools_awaited_by(appwrapper, trusted)

    def nodes_of(self, pool: PotentialPool) -> int:
        """How many nodes of a pool are there."""
        return sum(map(pool.has, self._nodes.values()))

    def set_node(self, node: Node) -> None:
        """Adds a node or replaces its last state."""
        if is_potential(node.name):
            return  # no API server allows such a name
        known = self._nodes.get(node.name)
        node = self._with_counted_names(known, node)
        if known == node:
            return
        if known is not None:
            self._count_node(known, -1)
        self._nodes[node.name] = node
        self._count_node(node, +1)
        if known is None:
            self._count_there(node.name, +1)
        if self._by_node is not None:
            self._by_node.set_node(node, self._loads.get(node.name, NO_LOAD))
        if self._pod_names.left_out:
            self._recount_pods_with(node.allocatable)

    def remove_node(self, name: str) -> None:
        """Removes a node; pods that are bound to it still count for their AppWrappers."""
        known = self._nodes.get(name)
        if known is not None:
            self._count_node(known, -1)
            self._names.remove(known.allocatable)
            self._left_out -= known.left_out
            del self._nodes[name]
            self._count_there(name, -1)
            if self._by_node is not None:
                self._by_node.remove_node(name)

    def _with_counted_names(self, known: Node | None, node: Node) -> Node:
        """The node without the names of resources that do not count in this cluster; see `ResourceNames`."""
        if known is not None and known.allocatable == node.allocatable and known.left_out == node.left_out:
            return node
        before = NOTHING if known is None else known.allocatable
        counted = self._names.replace(before, node.allocatable)
        if counted is not node.allocatable:
            left_out = node.left_out + len(node.allocatable) - len(counted)
            node = replace(node, allocatable=counted, left_out=left_out)
        self._left_out += node.left_out - (0 if known is None else known.left_out)
        return node

    @property
    def left_out(self) -> int:
        """The names, labels and taints of the nodes beyond the bounds, which do not count."""
        return self._left_out

    @property
    def resource_names(self) -> int:
        """How many names of resources count, those of potential nodes aside; at most `MOST_NAMES_OF_CLUSTER`."""
        return len(self._names)

    @property
    def names_of_pods(self) -> int:
        """How many names of resources count because pods on nodes request them."""
        return len(self._pod_names)

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
            if pod.uid in self._whole and replace(known, requests=self._whole[pod.uid]) == pod:
                return
            self._uncount(known)
        if pod.occupies_node:
            pod = self._with_counted_requests(pod)
        self._pods[pod.uid] = pod
        self._count_pod(pod, +1)

    def _with_counted_requests(self, pod: Pod) -> Pod:
        """The pod without the requests that do not count in this cluster; see `PodNames`."""
        counted = self._pod_names.take(pod.uid, pod.requests)
        if counted is pod.requests:
            return pod
        self._whole[pod.uid] = pod.requests
        return replace(pod, requests=counted)

    def _uncount(self, known: Pod) -> None:
        self._count_pod(known, -1)
        whole = self._whole.pop(known.uid, known.requests)
        if known.occupies_node:
            self._pod_names.release(known.uid, whole, known.requests)

    def _recount_pods_with(self, names: Iterable[str]) -> None:
        """Count the pods again that request these names, which a node lists now. Costs O(these pods)."""
        uids = {uid for name in names for uid in self._pod_names.left_out.get(name, ())}
        for uid in sorted(uids):
            known, whole = self._pods[uid], self._whole[uid]
            self._uncount(known)
            self._pods[uid] = self._with_counted_requests(replace(known, requests=whole))
            self._count_pod(self._pods[uid], +1)

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
            self._uncount(known)

    def reserve(
        self,
        appwrapper: str,
        gang: Gang,
        assignment: Assignment = ASSIGNED_NOWHERE,
        grown: Resources = NOTHING,
        granted: PodsByTemplate | None = None,
    ) -> None:
        """Charges the demand of an active AppWrapper (by uid), in place of its previous charge.

        `grown` is its growth in the record, and `granted` are the pods of that, if they are known. It is charged from
        its grant on if the templates have the dispatcher's gate; other pods are charged once they are bound.
        """
        gang = gang.in_cluster(self._cluster)
        if any(each.repels for each in gang.pod_sets):
            self._note_repelling()
        if self._by_node is not None:
            self._by_node.reserve(appwrapper, gang, assignment)
        self._set_demand(appwrapper, gang, grown, granted)

    def release(self, appwrapper: str) -> None:
        """Ends the charge of an AppWrapper; its live pods are then charged like foreign pods."""
        if appwrapper in self._shares:
            self._set_demand(appwrapper, None)
        if self._by_node is not None:
            self._by_node.release(appwrapper)

    def current(self, appwrapper: str) -> Assignment | None:
        """The places of an AppWrapper (by uid) now, as `NodeLedger.current`; None where gangs fit by sums."""
        return None if self._by_node is None else self._by_node.current(appwrapper)

    def ahead_of(self, appwrapper: str) -> frozenset[str]:
        """The uids of the AppWrappers that go first: their pods are to be bound before those of this one are created.

        `NodeLedger.ahead_of` says which they are. There are none where gangs fit by sums.
        """
        return frozenset() if self._by_node is None else self._by_node.ahead_of(appwrapper)

    def free(self, gang: Gang | None = None) -> Resources:
        """The free capacity for `gang` (None: of every usable node)."""
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

    def take_failures(self) -> list[Failure]:
        """The AppWrappers with other places than they should have because of an exception; all are charged."""
        return [] if self._by_node is None else self._by_node.take_failures()

    def begin_round(self) -> None:
        """Renew the steps of searches for places: from now on they are those of all snapshots until the next round."""
        if self._by_node is not None:
            self._by_node.begin_round()

    @property
    def has_untried(self) -> bool:
        """True if a further round has searches for places to make, even if nothing changes until then."""
        return self._by_node is not None and self._by_node.has_untried

    def place_next(self) -> bool:
        """Do a part of what the next snapshot would do about places, for one AppWrapper; False if nothing is left."""
        if self._by_node is None:
            return False
        return self._hold_next_growth(self._by_node) or self._by_node.place_next()

    def _snapshot_nodes(self, nodes: NodeLedger) -> NodeSnapshot:
        """The snapshot of the nodes, with places for the growth of the AppWrappers that changed since the last one."""
        self._hold_growth(nodes)
        return nodes.snapshot()

    def _hold_growth(self, nodes: NodeLedger) -> None:
        while self._hold_next_growth(nodes):
            pass

    def _hold_next_growth(self, nodes: NodeLedger) -> bool:
        """Hold the growth of the next AppWrapper that changed; False if none is left."""
        if not self._unheld:
            return False
        uid = next(iter(self._unheld))
        del self._unheld[uid]
        share = self._shares.get(uid)
        try:
            if share is not None and share.demand is not None:
                nodes.hold_growth(uid, (share.target - share.demand).positive_part(), share.starting())
        except Exception as error:  # noqa: BLE001  # one AppWrapper, which keeps its last charge, must not end it
            nodes.note_failure(uid, error)
        return True

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

        Pods that claim the AppWrapper count while their owners are being resolved, as in the formula: otherwise a
        leader would find a gang of Deployments without pods for a moment.
        """
        share = self._shares.get(appwrapper)
        return NOTHING if share is None else share.bound

    def taken(self, appwrapper: str) -> Resources:
        """The requests of the live pods for which an AppWrapper (by uid) is charged.

        They are its pods on nodes that exist. If the templates have the dispatcher's gate, its other admitted pods
        count too, within what its record holds.
        """
        share = self._shares.get(appwrapper)
        return NOTHING if share is None else share.taken

    def taken_pods(self, appwrapper: str, held: int) -> int:
        """The number of those pods, of an AppWrapper (by uid) whose record holds that many."""
        share = self._shares.get(appwrapper)
        return 0 if share is None else share.taken_pods(held)

    def charged(self, appwrapper: str) -> Resources:
        """The amounts that are charged for an active AppWrapper (by uid): its reservation and its bound pods."""
        share = self._shares.get(appwrapper)
        return NOTHING if share is None else share.target.highest(share.there)

    def gated(self, appwrapper: str) -> list[GatedPod]:
        """The live pods of an AppWrapper (by uid) with the dispatcher's gate, by age and name; claims as in `bound`."""
        share = self._shares.get(appwrapper)
        return [] if share is None else share.gated_by_age()

    def beyond(self, appwrapper: str) -> PodsByTemplate | None:
        """The live pods of an AppWrapper (by uid) that are admitted beyond its base gang; claims as in `bound`.

        None if no live pod of it has, or had, the dispatcher's gate from its template.
        """
        share = self._shares.get(appwrapper)
        return share.beyond() if share is not None and share.of_gated_templates else None

    def nodes_with(self, appwrapper: str) -> dict[str, frozenset[str]]:
        """The nodes with pods of an active AppWrapper (by uid), or with places for them, by template."""
        return {} if self._by_node is None else self._by_node.nodes_with(appwrapper)

    def with_gated(self) -> frozenset[str]:
        """The uids of the AppWrappers with live pods that have the dispatcher's gate; claims count as in `bound`."""
        return frozenset(self._with_gated)

    def surplus(self, appwrapper: str, given_up: Collection[str] = ()) -> list[SurplusPod]:
        """The pods that an AppWrapper (by uid) can give up: admitted or about to be, and beyond the base gang.

        First come those that it has `given_up` (by uid), even if pods of the base gang ended meanwhile. Then come pods
        that are ending, unwanted ones, gated ones, those without a node, and the newest; of each template, the base
        gang keeps the last ones. Only confirmed pods count. Costs O(pods of the AppWrapper).
        """
        share = self._shares.get(appwrapper)
        if share is None:
            return []
        return share.surplus(self._nodes, given_up, self._all_unwanted)

    def surplus_version(self, appwrapper: str) -> tuple[object, object]:
        """The same two objects as long as the pods of an AppWrapper (by uid), and what it can give up, are the same."""
        share = self._shares.get(appwrapper)
        return None if share is None else share.version, self._all_unwanted

    def set_unwanted(self, source: str, pods: frozenset[tuple[str, str]]) -> None:
        """Note the pods (namespace and name) that one source wants to be deleted, in place of those noted before.

        They are given up before others, if they can be given up at all.
        """
        if self._unwanted.get(source, frozenset()) == pods:
            return
        if pods:
            self._unwanted[source] = pods
        else:
            self._unwanted.pop(source, None)
        self._all_unwanted = frozenset[tuple[str, str]]().union(*self._unwanted.values())

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
        taints = node.scheduling_taints
        load = self._loads.get(node.name, NO_LOAD)
        free = _left_on(node, load)
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
        share = self._shares.setdefault(uid, AppWrapperShare())
        if pod.owner is not None:
            share.count(pod, sign)
        if pod.live:
            share.count_live(pod, sign)
            self._note_gated(uid, share)
        if pod.occupies_node:
            share.bound += pod.requests * sign
            self._move(pod, uid, share, sign)
            if pod.owner is not None:
                self._count_on_node(pod.node, pod.owner, share, sign)
        self._settle(uid, share)

    def _note_gated(self, uid: str, share: AppWrapperShare) -> None:
        if share.gated:
            self._with_gated.add(uid)
        else:
            self._with_gated.discard(uid)

    def _count_on_node(self, node: str, owner: str, share: AppWrapperShare, sign: int) -> None:
        if self.is_down(node):
            share.lost += sign
        owners = self._owners.setdefault(node, Counter())
        add(owners, owner, sign)
        if not owners:
            del self._owners[node]

    def _move(self, pod: Pod, uid: str, share: AppWrapperShare, sign: int) -> None:
        """Count a bound pod, or no more with the sign -1, by whether its node exists."""
        if pod.node_by_author:
            share.move(pod.requests, sign, is_there=False)
            return
        share.move(pod.requests, sign, is_there=pod.node in self._nodes)
        on_node = self._pods_on.setdefault(pod.node, {})
        by_requests = on_node.setdefault(uid, Counter())
        add(by_requests, pod.requests, sign)
        if not by_requests:
            del on_node[uid]
        if not on_node:
            del self._pods_on[pod.node]

    def _count_there(self, node: str, sign: int) -> None:
        """Count the pods on a node that came, or went, for their AppWrappers. Costs O(pods on the node)."""
        for uid, by_requests in self._pods_on.get(node, {}).items():
            share = self._shares[uid]
            for requests, pods in by_requests.items():
                share.move(requests, pods * sign, is_there=True)
                share.move(requests, -pods * sign, is_there=False)
            self._settle(uid, share)

    def _use_node(self, pod: Pod, sign: int) -> None:
        taken = pod.requests * sign
        permanent = taken if pod.is_permanent else NOTHING
        before = self._loads.pop(pod.node, NO_LOAD)
        load = before.changed(taken, sign, permanent, sign * pod.is_permanent)
        if load.pods:
            self._loads[pod.node] = load
        if self._by_node is not None:
            self._by_node.load_node(pod.node, load)
            self._count_on_nodes(self._by_node, pod, sign)
        node = self._nodes.get(pod.node)
        if node is not None and node.usable:
            taints = node.scheduling_taints
            freed = _left_on(node, load) - _left_on(node, before)
            self._pools[taints] = self._pools[taints].changed(0, NOTHING, freed, permanent)

    def _count_on_nodes(self, nodes: NodeLedger, pod: Pod, sign: int) -> None:
        """Count a bound pod by its AppWrapper, and while a term about pods is known, by its sort."""
        uid = pod.owner or pod.claim
        if uid is not None:
            nodes.count_bound(uid, pod.requests, pod.node, sign, pod.sort, pod.template)
        if nodes.counts_sorts and pod.sort is not None:
            nodes.count_sort(pod.sort, pod.node, sign, is_permanent=pod.is_permanent)

    def _set_demand(
        self,
        appwrapper: str,
        gang: Gang | None,
        grown: Resources = NOTHING,
        granted: PodsByTemplate | None = None,
    ) -> None:
        share = self._shares.setdefault(appwrapper, AppWrapperShare())
        share.demand = None if gang is None else gang.demand
        share.sets = {} if gang is None else {each.template: each for each in gang.pod_sets}
        share.grown, share.granted = grown, granted
        self._settle(appwrapper, share)

    def _settle(self, appwrapper: str, share: AppWrapperShare) -> None:
        """Recomputes the reservation of a changed share; drops the share if it is empty."""
        share.version = object()
        target = share.target
        reservation = NOTHING if share.demand is None else (target - share.bound).positive_part()
        if self._by_node is not None:
            self._unheld[appwrapper] = None
        if reservation != share.reservation:
            self._reserved += reservation - share.reservation
            share.reservation = reservation
        if share.demand is not None and (
            beyond := (target.highest(share.there) - share.demand).positive_part()
        ):
            self._beyond[appwrapper] = beyond
        else:
            self._beyond.pop(appwrapper, None)
        if share.demand is None and not share.tally.phases and not share.claims_any:
            del self._shares[appwrapper]


def _concerns_none(_sort: PodSort) -> bool:
    return False


def _left_on(node: Node, load: Load) -> Resources:
    """What the pods on a node leave of it: nothing, and no debt for the other nodes to pay, if they request more."""
    return (node.allocatable - load.used).positive_part()
