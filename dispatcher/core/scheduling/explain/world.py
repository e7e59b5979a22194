"""One scheduling cycle over given facts: clusters with their nodes, running gangs and pending gangs, without a hub.

A `World` is a value. `plan` runs one cycle over it and decides as the dispatcher does; the edits return another world,
for the question what would happen if a node were added, a gang removed or a taint taken away.

A world is read from a scenario file (`scenario`) or from the last snapshot of the leader (`leader_snapshot`). A running
gang of a leader's snapshot has `bound` pods on nodes; its other pods hold the places of its assignment. The pods of a
running gang of a file are all on nodes. Where the file does not name the nodes, `bound_pods` chooses them before each
cycle: first the pods with a named node are bound, then the others in order, each to the first node that takes it. So
an edit may move pods whose nodes are not named, exactly as the same edit of a scenario file does.

Gangs are known by their uid; in a scenario file it is the name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.api.names import DEFAULT_QUEUE
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.records.failures import Failure
from dispatcher.core.model.records.pending_reasons import LACKS_QUOTA
from dispatcher.core.model.records.record import RESERVATION, Pending, Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues import ordering
from dispatcher.core.queues.forest import Defaults, Forest
from dispatcher.core.queues.queue import Access, Queue, QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.capacity.node_snapshot import Place
from dispatcher.core.scheduling.capacity.pods_there import FOLLOWS_NONE, FollowedTerms
from dispatcher.core.scheduling.capacity.queued_terms import followed_by
from dispatcher.core.scheduling.cycle.cycle import (
    Drained,
    QueueCycle,
    QueueFacts,
    QueueOutcome,
    QueueShare,
)
from dispatcher.core.scheduling.cycle.outcomes import SOME_TIME, Outcome, Placed, Waiting
from dispatcher.core.scheduling.explain.world_facts import Cluster, NoNode, RunningGang
from dispatcher.core.scheduling.fit.backfill import Backfills
from dispatcher.core.scheduling.fit.backfill_reservation import Bounds, Reservation
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot, effective, rejection
from dispatcher.core.scheduling.preemption.failed_searches import FailedSearches
from dispatcher.core.scheduling.preemption.surplus import in_parts
from dispatcher.core.scheduling.queued.queued_gangs import QueuedGangs
from dispatcher.core.scheduling.sharing.gangs import RecentUse
from dispatcher.core.scheduling.sharing.quota_reservations import (
    NO_QUOTA_RESERVATIONS,
    QuotaReservations,
    is_starved,
)


class World(Struct, frozen=True):
    """The facts of one cycle. `pending` is in the order of arrival; names of gangs, clusters and nodes are unique."""

    clusters: tuple[Cluster, ...] = ()
    running: tuple[RunningGang, ...] = ()
    pending: tuple[Record, ...] = ()
    now: datetime = SOME_TIME
    policy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO
    fit: FitMode = FitMode.NODE
    starvation_bound: timedelta = timedelta(minutes=10)
    reservation_bound: timedelta = Bounds().kept
    """The bound of the backfill reservations of a first round."""
    reservations: Mapping[str, Reservation] | None = None
    """The backfill reservations of capacity by uid; None if each starved gang is to get a new one, also of quota."""
    quota: QuotaReservations = NO_QUOTA_RESERVATIONS
    """Those of quota."""
    queues: tuple[Queue, ...] | None = None
    """The declared queues; None where none is declared."""
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The labels of the namespaces."""
    usage: RecentUse = field(default_factory=dict)
    access: Access = Access.OPEN
    """Which namespaces the queues without a selector serve: in a scenario file all, its `queue` is no label.

    Where queues do not count, whether a gang that names one waits for it.
    """
    has_default: bool = True
    """Whether the queue `default` is there without being among `queues`."""
    charged_in: Mapping[str, str] = field(default_factory=dict)
    """The queue in which the gangs of another one are charged that is not valid any more."""
    held: tuple[Queue, ...] = ()
    """The last valid declarations of queues that take no gang now, and still count for quota."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why queues that are there are not valid, by name."""
    deleted: Mapping[str, datetime | None] = field(default_factory=dict)
    """The queues that were there until lately, with the time of their deletion if it is known."""

    def plan(self, known: KnownSnapshots | None = None) -> tuple[Outcome, ...]:
        """The outcome of each pending gang, in the order in which they are decided. Raises `NoNode`.

        `known` are snapshots of a world that this one was made from, to save time.
        """
        _, decided = self.plan_queues(known)
        return tuple(each for each in decided if not isinstance(each, Drained))

    def plan_queues(
        self,
        known: KnownSnapshots | None = None,
        *,
        remembers: bool = True,
        backfills: Backfills | None = None,
    ) -> tuple[Mapping[str, QueueShare], tuple[QueueOutcome, ...]]:
        """The use of each valid queue before, and all outcomes in the order of the decisions. Raises `NoNode`.

        If it `remembers`, no search for victims is made again after an equal one failed. With `backfills`, a cycle over
        queues renews these reservations instead of those of the world.
        """
        known = known or KnownSnapshots()
        snapshots = known.of(self)
        failed = FailedSearches() if remembers else None
        facts = self.queue_facts()
        cycle = QueueCycle(facts, snapshots, failed, backfills=backfills)
        shares = cycle.shares()
        outcomes = cycle.run()
        known.note(cycle.failures)
        if not facts.forest.is_declared:
            outcomes.sort(key=lambda each: self._turn_in_one_queue(each, facts.forest))
        return shares, tuple(each if isinstance(each, Drained) else _timeless(each) for each in outcomes)

    def kept_from(
        self, record: Record, known: KnownSnapshots | None = None
    ) -> dict[str, tuple[Record, Assignment]]:
        """The gangs for which the next cycle keeps capacity from a pending gang, with their places, by cluster.

        It decides them before this gang. Costs a cycle unless all reservations rest. Raises `NoNode`.
        """
        if self.reservations is not None and all(each.is_resting for each in self.reservations.values()):
            return {}
        known = known or KnownSnapshots()
        cycle = QueueCycle(self.queue_facts(), known.of(self), FailedSearches())
        decided = (each.record.uid for each in cycle.run() if not isinstance(each, Drained))
        before = set(takewhile(lambda uid: uid != record.uid, decided))
        known.note(cycle.failures)
        return {cluster: kept for cluster, kept in cycle.kept.items() if kept[0].uid in before}

    def lacking_approvals(self) -> tuple[Waiting, ...]:
        """The outcomes of the pending gangs that lack approvals, in the order of arrival; no cycle decides them."""
        return tuple(
            Waiting(each, each.pending) for each in self.pending if each.awaits_approval and each.pending
        )

    def queue_facts(self) -> QueueFacts:
        """The facts of a cycle over queues."""
        eligible = (each for each in self.pending if ordering.is_eligible(each, self.now))
        forest = self.forest
        return QueueFacts(
            forest=forest,
            queued=QueuedGangs.of(eligible, self.now, forest),
            active=in_parts(
                (each.active for each in self.running if each.active is not None),
                {each.name: each.surplus for each in self.running},
            ),
            now=self.now,
            namespaces=self.namespaces,
            usage=self.usage,
            reservations=self.reservations,
            quota=self.quota,
        )

    @property
    def has_queues(self) -> bool:
        """True if a queue is declared or named, or a gang leaves: answers name queues then."""
        if self.queues is None:
            return False
        is_named = any(each.leaves != (DEFAULT_QUEUE,) for each in self.pending)
        is_left = any(each.active is not None and each.active.is_leaving for each in self.running)
        return bool(self.queues) or is_named or is_left or not self.has_default

    @property
    def forest(self) -> Forest:
        """The queues in their trees, with the settings of the world where no queue has its own."""
        defaults = Defaults(strategy=self.policy, starvation_bound=self.starvation_bound, access=self.access)
        forest = Forest.of(self.queues or (), defaults, has_default=self.has_default)
        problems = {**forest.problems, **self.problems}
        forest = replace(forest, problems=problems, deleted=self.deleted, is_declared=self.has_queues)
        return forest.charging(self.charged_in, self.held)

    def bound_pods(self) -> dict[str, list[Pod]]:
        """The pods of the running gangs, on nodes, by the name of their cluster. Raises `NoNode`."""
        there = self.running_by_cluster()
        return {cluster.name: bound_pods_of(cluster, there[cluster.name]) for cluster in self.clusters}

    def running_by_cluster(self) -> dict[str, list[tuple[int, RunningGang]]]:
        """The running gangs with their indices, by the name of their cluster."""
        there: dict[str, list[tuple[int, RunningGang]]] = {cluster.name: [] for cluster in self.clusters}
        for index, gang in enumerate(self.running):
            there[gang.cluster].append((index, gang))
        return there

    def accepts(self, cluster: Cluster, record: Record) -> bool:
        """True if the cluster takes the gang but for its capacity. On the hub alone, selectors do not count."""
        requirements = effective(record.requirements, [each.name for each in self.clusters])
        return rejection(requirements, cluster.snapshot(CapacityLedger().snapshot())) is None

    def with_nodes(self, cluster: str, nodes: Iterable[Node]) -> World:
        """The world with more nodes at the end of a cluster's."""
        added = tuple(nodes)
        return self._changed(cluster, lambda each: replace(each, nodes=each.nodes + added))

    def with_quota(self, queue: str, resource: str, amount: int) -> World:
        """The world in which a declared queue has so much more nominal quota of a resource that it names."""
        return replace(
            self,
            queues=tuple(
                _with_quota(each, resource, amount) if each.name == queue else each
                for each in self.queues or ()
            ),
        )

    def without_gangs(self, names: Collection[str]) -> World:
        """The world without these running gangs."""
        return replace(self, running=tuple(each for each in self.running if each.name not in names))

    def without_pending(self, uids: Collection[str]) -> World:
        """The world without these pending gangs."""
        return replace(self, pending=tuple(each for each in self.pending if each.uid not in uids))

    def without_cluster(self, name: str) -> World:
        """The world without a cluster, all that runs there and what is kept there."""
        kept = self.reservations
        return replace(
            self,
            clusters=tuple(each for each in self.clusters if each.name != name),
            running=tuple(each for each in self.running if each.cluster != name),
            reservations=kept and {uid: each for uid, each in kept.items() if each.cluster != name},
        )

    def with_priority(self, uid: str, priority: int) -> World:
        """The world in which a pending gang has this priority."""
        pending = (replace(each, priority=priority) if each.uid == uid else each for each in self.pending)
        return replace(self, pending=tuple(pending))

    def with_pending(self, records: Iterable[Record]) -> World:
        """The world with more pending gangs, behind the others."""
        return replace(self, pending=(*self.pending, *records))

    def without_taints(self, cluster: str, nodes: Collection[str]) -> World:
        """The world in which these nodes of a cluster have no taints."""
        return self._changed(
            cluster,
            lambda each: replace(
                each,
                nodes=tuple(replace(node, taints=()) if node.name in nodes else node for node in each.nodes),
            ),
        )

    def with_open_nodes(self, cluster: str, nodes: Collection[str]) -> World:
        """The world in which these nodes of a cluster are not cordoned; a node that is not ready stays unusable."""
        return self._changed(
            cluster,
            lambda each: replace(
                each,
                nodes=tuple(
                    replace(node, usable=node.ready) if node.name in nodes else node for node in each.nodes
                ),
            ),
        )

    def _turn_in_one_queue(self, outcome: QueueOutcome, forest: Forest) -> tuple[bool, ordering.Rank]:
        """The order of decisions in one queue, those of a class one by one: first the starved gangs, then by rank."""
        assert not isinstance(outcome, Drained)  # noqa: S101  # no queue is stopped
        record = outcome.record
        return not is_starved(record, forest, self.now), ordering.rank(record, self.now)

    def _changed(self, name: str, change: Callable[[Cluster], Cluster]) -> World:
        clusters = tuple(change(each) if each.name == name else each for each in self.clusters)
        return replace(self, clusters=clusters)


def _with_quota(queue: Queue, resource: str, amount: int) -> Queue:
    quota = queue.resources[resource]
    more = replace(quota, nominal=quota.nominal + amount)
    return replace(queue, resources={**queue.resources, resource: more})


class KnownSnapshots:
    """The cluster snapshots of worlds that are made from one another by edits, each at the cost of its edits.

    A cluster keeps its ledger from one world to the next, and only nodes, pods and gangs that differ are changed in it.
    `failures` are the exceptions about gangs for which plans over these snapshots refused a class, or that have no
    places in the snapshots for them, by the uid of the gang.
    """

    def __init__(self) -> None:
        self.failures: dict[str, Failure] = {}
        self._filled: dict[str, FilledCluster] = {}
        self._followed: tuple[tuple[Record, ...], FollowedTerms] = (), FOLLOWS_NONE

    def note(self, failures: Iterable[Failure]) -> None:
        """Note the exceptions of a plan; of several about one gang, the first."""
        for each in failures:
            self.failures.setdefault(each.uid, each)

    def of(self, world: World) -> dict[str, ClusterSnapshot]:
        """The cluster snapshots of a world, by name, for one cycle. Raises `NoNode`."""
        there = world.running_by_cluster()
        if self._followed[0] is not world.pending:
            pod_sets = (each for record in world.pending for each in record.gang.pod_sets)
            self._followed = world.pending, followed_by(pod_sets)
        return {each.name: self._snapshot(each, there[each.name], world.fit) for each in world.clusters}

    def _snapshot(
        self, cluster: Cluster, gangs: Sequence[tuple[int, RunningGang]], fit: FitMode
    ) -> ClusterSnapshot:
        filled = self._filled.get(cluster.name)
        if filled is None:
            filled = self._filled[cluster.name] = FilledCluster(fit, cluster.name)
        snapshot = filled.snapshot(cluster, gangs, self._followed[1])
        self.note(filled.take_failures())
        return snapshot


_OTHERS: Final = "!others"
"""The pods of no gang, beside those of each gang by its name."""


class FilledCluster:
    """The ledger of one cluster with its running gangs."""

    def __init__(self, fit: FitMode, name: str) -> None:
        self.ledger = CapacityLedger(fit, name)
        self._cluster = Cluster("")
        self._nodes: dict[str, Node] = {}
        self._gangs: dict[str, RunningGang] = {}
        self._pods: dict[str, list[Pod]] = {}

    def snapshot(
        self, cluster: Cluster, gangs: Sequence[tuple[int, RunningGang]], followed: FollowedTerms
    ) -> ClusterSnapshot:
        """The snapshot of the cluster with these gangs, for gangs with these terms.

        Raises `NoNode`, and then keeps the last ones.
        """
        pods = self._pods_of(cluster, gangs)
        if cluster is not self._cluster:
            self.ledger.set_pools(cluster.pools)
            self._set_nodes({each.name: each for each in cluster.nodes})
        self._set_pods(pods)
        self._set_gangs({gang.name: gang for _, gang in gangs})
        self._cluster = cluster
        self.ledger.follow(followed)
        return cluster.snapshot(self.ledger.snapshot())

    def remove(self, gang: str) -> None:
        """Remove a running gang with its pods."""
        for pod in self._pods.pop(gang, ()):
            self.ledger.remove_pod(pod.uid)
        self._gangs.pop(gang, None)
        self.ledger.release(gang)

    def take_failures(self) -> list[Failure]:
        """The exceptions about running gangs, which have no places for them; each once."""
        return self.ledger.take_failures()

    def _pods_of(self, cluster: Cluster, gangs: Sequence[tuple[int, RunningGang]]) -> dict[str, list[Pod]]:
        """The pods by gang, in the same list as before for a gang that is the same."""
        last, there = self._cluster, self._pods
        is_same = cluster.others is last.others and cluster.permanent is last.permanent
        pods = {_OTHERS: there[_OTHERS] if is_same and _OTHERS in there else list(others_of(cluster))}
        if all(gang.is_on_nodes for _, gang in gangs):
            for _, gang in gangs:
                is_same = self._gangs.get(gang.name) is gang
                pods[gang.name] = there[gang.name] if is_same else list(named_pods(gang))
            return pods
        for pod in bound_pods_of(cluster, gangs):
            pods.setdefault(pod.owner or "", []).append(pod)
        return pods

    def _set_nodes(self, nodes: dict[str, Node]) -> None:
        for name in self._nodes.keys() - nodes.keys():
            self.ledger.remove_node(name)
        for name, node in nodes.items():
            if self._nodes.get(name) is not node:
                self.ledger.set_node(node)
        self._nodes = nodes

    def _set_pods(self, pods: dict[str, list[Pod]]) -> None:
        for whose in self._pods.keys() | pods.keys():
            before, after = self._pods.get(whose, []), pods.get(whose, [])
            if before is not after:
                for uid in {each.uid for each in before} - {each.uid for each in after}:
                    self.ledger.remove_pod(uid)
                for pod in after:
                    self.ledger.set_pod(pod)
        self._pods = pods

    def _set_gangs(self, gangs: dict[str, RunningGang]) -> None:
        for name in self._gangs.keys() - gangs.keys():
            self.ledger.release(name)
        for name, gang in gangs.items():
            if self._gangs.get(name) is not gang:
                pod_sets = tuple(each.pods for each in gang.pods)
                takes = Gang() if gang.awaits_capacity else Gang(gang.demand, pod_sets=pod_sets)
                self.ledger.reserve(name, takes, gang.assignment, gang.charged_beyond)
        self._gangs = gangs


def _timeless(outcome: Outcome) -> Outcome:
    """The outcome without the end of a backfill reservation: a world has no calendar."""
    if isinstance(outcome, Placed) or not outcome.pending.reservation:
        return outcome
    pending = outcome.pending
    before, _, told = pending.message.partition(RESERVATION)
    message = f"{before}{RESERVATION}{_without_end(told, pending)}"
    return replace(outcome, pending=replace(pending, message=message))


def _without_end(told: str, pending: Pending) -> str:
    if not told.startswith("keeps "):
        return "can begin later"  # it rests, or waits for its turn
    return (
        "keeps quota for it"
        if pending.reason in LACKS_QUOTA
        else f"keeps capacity for it on {pending.cluster}"
    )


def others_of(cluster: Cluster) -> Iterator[Pod]:
    """The pods of a cluster that belong to no running gang."""
    for pods, never_ends in ((cluster.others, False), (cluster.permanent, True)):
        for uid, place in _one_by_one(f"!{never_ends}", pods):
            yield Pod(
                uid, place.requests, place.node, PodPhase.RUNNING, never_ends=never_ends, sort=place.sort
            )


def _one_by_one(whose: str, places: Iterable[Place]) -> Iterator[tuple[str, Place]]:
    """Each pod of these places, with a uid."""
    for number, place in enumerate(places):
        for index in range(place.pods):
            yield f"{whose}/{number}/{index}", place


def bound_pods_of(cluster: Cluster, gangs: Sequence[tuple[int, RunningGang]]) -> list[Pod]:
    """The pods of the running gangs of one cluster, on nodes."""
    nodes = _FreeNodes(cluster.nodes)
    pods: list[Pod] = []
    for _, gang in gangs:
        for place in gang.bound or ():
            nodes.take(place.node, place.requests, place.pods)
        for running in gang.pods if gang.bound is None else ():
            for name in running.nodes:
                nodes.take(name, running.pods.requests)
        pods += named_pods(gang)
    for index, gang in gangs:
        for number, running in enumerate(gang.pods if gang.bound is None else ()):
            if not running.nodes:
                found = nodes.first_for(running.pods)
                if found is None:
                    raise NoNode(index, number)
                pods += _pods(gang, number, running.pods, found)
    return pods


def named_pods(gang: RunningGang) -> Iterator[Pod]:
    """The pods of a gang on nodes that the world names."""
    if gang.bound is not None:
        for uid, place in _one_by_one(gang.name, gang.bound):
            yield _pod(gang, uid, place)
        return
    for number, running in enumerate(gang.pods):
        yield from _pods(gang, number, running.pods, running.nodes)


def _pods(gang: RunningGang, number: int, pods: PodSet, nodes: Sequence[str]) -> Iterator[Pod]:
    for index, node in enumerate(nodes):
        place = Place(node, pods.requests, 1, pods.sort)
        yield _pod(gang, f"{gang.name}/{number}/{index}", place)


def _pod(gang: RunningGang, uid: str, place: Place) -> Pod:
    """A pod of a running gang; the growth that its cluster is charged with is that of a gang that grows by grants."""
    return Pod(
        uid,
        place.requests,
        place.node,
        PodPhase.RUNNING,
        owner=gang.name,
        can_be_gated=bool(gang.charged_beyond),
        sort=place.sort,
    )


class _FreeNodes:
    """The free amounts of the nodes of one cluster while pods are bound to them."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._index = {node.name: index for index, node in enumerate(nodes)}
        self._free = [node.allocatable for node in nodes]
        self._places = [node.pod_limit for node in nodes]
        # Nodes only fill up, so a node that did not take a pod of a shape never will.
        self._starts: dict[PodSet, int] = {}

    def take(self, node: str, requests: Resources, pods: int = 1) -> None:
        """Binds pods to a node, whether they fit or not; nothing if the node is not there."""
        index = self._index.get(node)
        if index is not None:
            self._take(index, requests, pods)

    def first_for(self, pods: PodSet) -> list[str] | None:
        """Binds each pod to the first node that takes it, and returns the nodes; None if no node takes one."""
        shape = replace(pods, count=1)
        index = self._starts.get(shape, 0)
        found: list[str] = []
        while len(found) < pods.count:
            while index < len(self._nodes) and not self._takes(index, pods):
                index += 1
            if index == len(self._nodes):
                return None
            self._take(index, pods.requests)
            found.append(self._nodes[index].name)
        self._starts[shape] = index
        return found

    def _takes(self, index: int, pods: PodSet) -> bool:
        has_place = self._places[index] > 0 and pods.may_use(self._nodes[index])
        return has_place and pods.requests.fits_in(self._free[index])

    def _take(self, index: int, requests: Resources, pods: int = 1) -> None:
        self._free[index] -= requests * pods
        self._places[index] -= pods
