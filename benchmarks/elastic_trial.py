"""Ray clusters in virtual time, over the dispatcher's core alone: growth that is granted, or charged when it happened.

The core decides all that the dispatcher decides: the cycle over queues dispatches gangs and preempts them, `grants`
lets pods start, the lifecycle's steps charge growth with its pauses. This module plays the others: users, Ray's
autoscalers, KubeRay, kube-scheduler and kubelets. They act at once; only the removal of a preempted gang, or of surplus
pods, takes time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from benchmarks.elastic_load import GPU, HEAD, WORKER, RayCluster
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.controller.scheduling import queue_cycles
from dispatcher.core.lifecycle import removal, run_changes
from dispatcher.core.lifecycle.growth import count_of, growth_due, pods_soon, taken_soon, with_pods
from dispatcher.core.model import incremental
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.growth import PodsByTemplate
from dispatcher.core.model.gangs.pods import Gate, Pod, PodPhase
from dispatcher.core.model.records.pending_reasons import AWAITING_RELEASE
from dispatcher.core.model.records.record import ACTIVE, HOLDING, Phase, Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Quota
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.cycle import Drained, outcomes_of
from dispatcher.core.scheduling.cycle.outcome_changes import change_of, changes_of
from dispatcher.core.scheduling.cycle.outcomes import Placed, Preempting
from dispatcher.core.scheduling.cycle.queue_planner import QueuePlanner, QueueRules
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.growth import grants
from dispatcher.core.scheduling.growth.grant_facts import GrantFacts
from dispatcher.core.scheduling.growth.grants import decide_in_steps
from dispatcher.core.scheduling.growth.growing import Growing
from dispatcher.core.scheduling.growth.waiting_gangs import WaitingGangs
from dispatcher.core.scheduling.preemption.surplus import awaited_growth, in_parts, surplus_of
from dispatcher.core.scheduling.queued.pending_queue import PendingQueue
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, active_gang

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
REMOVAL_SECONDS: Final = 30
"""From the preemption of a gang, or of a surplus pod, to the end of its pods: Kubernetes' default grace."""
LOOK_SECONDS: Final = 10
"""Seconds after which a cycle runs although nothing has changed."""


class Growths(StrEnum):
    """The dispatcher's setting `DISPATCHER_GROWTH`."""

    GRANT = "grant"
    """Pods beyond the demand start once they are granted."""
    CHARGE = "charge"
    """Pods start where a node has room, and are charged then."""


@dataclass(slots=True)
class Outcome:
    """The figures of one life.

    `beyond_quota` counts the seconds in which the pods of some queue, or of all queues together, used more GPUs than
    their quota with all that they may borrow. Amounts are in GPU-seconds: `wanted` by tasks, `served` by workers that
    tasks wanted, `lost` held by attempts that were preempted, `cut` held by `surplus` pods that were. `waits` are the
    seconds from the creation of each worker to its start; `withdrawn` counts the workers that Ray's autoscaler gave up
    before they started. `gang_waits` are the seconds from the arrival of each cluster to its first dispatch.
    """

    beyond_quota: int = 0
    preempted: int = 0
    wanted: int = 0
    served: int = 0
    lost: int = 0
    surplus: int = 0
    cut: int = 0
    waits: list[int] = field(default_factory=list)
    withdrawn: int = 0
    gang_waits: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Worker:
    """A worker pod beyond those of the base gang; `node` is empty until it starts."""

    name: str
    created: int
    node: str = ""
    started: int = 0
    leaves_at: int = 0


@dataclass(slots=True)
class _Cluster:
    """A Ray cluster with its AppWrapper's record; `base` are the pods of its gang with their nodes."""

    ray: RayCluster
    record: Record
    base: dict[str, tuple[Resources, str]] = field(default_factory=dict)
    workers: list[_Worker] = field(default_factory=list)
    made: int = 0
    held: int = 0
    """GPU-seconds of the present attempt."""
    leaves_at: int = 0

    @property
    def gpus(self) -> int:
        """The GPUs of its pods that have nodes."""
        of_base = sum(requests[GPU] for requests, _ in self.base.values())
        return of_base + sum(1 for each in self.workers if each.node)

    @property
    def is_active(self) -> bool:
        """True while its pods run and its autoscaler works."""
        return self.record.phase in ACTIVE


def live(
    rays: Sequence[RayCluster], forest: Forest, nodes: Iterable[Node], growths: Growths, seconds: int
) -> Outcome:
    """The life of Ray clusters on nodes, for so many seconds. They come in the order of the sequence."""
    life = _Life(forest, nodes, growths)
    coming = list(reversed(rays))
    for second in range(seconds):
        life.second = second
        life.end()
        while coming and coming[-1].arrives <= second:
            life.arrive(coming.pop())
        life.scale()
        life.note_growth()
        life.cycle()
        life.admit()
        life.count()
    return life.outcome


class _Life:
    """The state of one life."""

    def __init__(self, forest: Forest, nodes: Iterable[Node], growths: Growths) -> None:
        self.second = 0
        self.outcome = Outcome()
        self._forest, self._growths = forest, growths
        self._awaited: frozenset[str] = frozenset()
        self._rules, self._planner, self._queue = QueueRules(forest), QueuePlanner(), PendingQueue()
        self._ledger = CapacityLedger(FitMode.NODE, HUB_CLUSTER)
        self._free: dict[str, Resources] = {}
        self._clusters: dict[str, _Cluster] = {}
        self._has_changed = True
        self._nominal = {place.name: _quota(place.queue.resources) for place in forest.places.values()}
        for node in nodes:
            self._ledger.set_node(node)
            self._free[node.name] = node.allocatable

    @property
    def _now(self) -> datetime:
        return START + timedelta(seconds=self.second)

    # --- users, and what is over ---------------------------------------------------------------------------------

    def arrive(self, ray: RayCluster) -> None:
        """Queue the gang of a cluster."""
        uid = f"uid-{ray.number:03}"
        record = Record(
            uid,
            "workload.codeflare.dev",
            "benchmark",
            f"ray-{ray.number:03}",
            self._now,
            Phase.QUEUED,
            self._now,
            queue=ray.queue,
            enqueue_seq=ray.number + 1,
            gang=ray.gang,
        )
        self._clusters[uid] = _Cluster(ray, record)
        self._queue.put(record)
        self._has_changed = True

    def end(self) -> None:
        """Delete the clusters that have run for their time, and queue a preempted one again once its pods are gone."""
        for uid, cluster in list(self._clusters.items()):
            is_leaving = cluster.record.phase is Phase.REQUEUEING
            if cluster.ray.ends <= self.second:
                self._release(cluster)
                self._queue.remove(uid)
                del self._clusters[uid]
            elif is_leaving and cluster.leaves_at <= self.second:
                self._release(cluster)
                cluster.record = removal.removed(cluster.record, self._now).after
                self._queue.put(cluster.record)
            else:
                self._end_surplus(cluster)

    def _end_surplus(self, cluster: _Cluster) -> None:
        """End the surplus pods whose grace is over; KubeRay makes others, which wait for a grant."""
        for worker in [each for each in cluster.workers if 0 < each.leaves_at <= self.second]:
            self.outcome.cut += self.second - worker.started
            self._drop(cluster, worker)

    def _release(self, cluster: _Cluster) -> None:
        self._has_changed = True
        for name, (requests, node) in cluster.base.items():
            self._unbind(name, requests, node)
        cluster.base.clear()
        for worker in cluster.workers:
            self._unbind(worker.name, WORKER, worker.node)
        cluster.workers.clear()
        self._ledger.release(cluster.record.uid)
        if cluster.record.phase is Phase.REQUEUEING:
            self.outcome.lost += cluster.held
        cluster.held = 0

    # --- Ray's autoscalers, KubeRay and kube-scheduler --------------------------------------------------------------

    def scale(self) -> None:
        """Let every autoscaler add and remove workers; without gates they start where a node has room."""
        for cluster in self._active():
            least = cluster.ray.gang.pod_sets[1].count
            missing = cluster.ray.kept(self.second) - least - len(cluster.workers)
            for _ in range(missing):
                self._create(cluster)
            for _ in range(-missing):
                self._remove(cluster)
            if self._growths is Growths.CHARGE:
                for worker in cluster.workers:
                    if not worker.node:
                        self._start(cluster, worker)

    def _create(self, cluster: _Cluster) -> None:
        cluster.made += 1
        worker = _Worker(f"{cluster.record.name}-{cluster.made}", self.second)
        cluster.workers.append(worker)
        self._ledger.set_pod(self._pod(cluster, worker.name, WORKER, gated=self._growths is Growths.GRANT))
        self._has_changed = True

    def _remove(self, cluster: _Cluster) -> None:
        """Remove the newest worker."""
        worker = cluster.workers[-1]
        self.outcome.withdrawn += not worker.node
        self._drop(cluster, worker)

    def _drop(self, cluster: _Cluster, worker: _Worker) -> None:
        cluster.workers.remove(worker)
        self._unbind(worker.name, WORKER, worker.node)
        self._has_changed = True

    def _start(self, cluster: _Cluster, worker: _Worker) -> None:
        """Bind a worker to the fullest node that has room for it, if any has."""
        rooms = [(free[GPU], name) for name, free in self._free.items() if WORKER.fits_in(free)]
        if rooms:
            worker.node, worker.started = min(rooms)[1], self.second
            self._bind(cluster, worker.name, WORKER, worker.node)
            self.outcome.waits.append(self.second - worker.created)

    def _bind(self, cluster: _Cluster, name: str, requests: Resources, node: str) -> None:
        if not requests.fits_in(self._free[node]):
            raise AssertionError(f"{name} was planned for {node}, which has no room for it")
        self._ledger.set_pod(self._pod(cluster, name, requests, node))
        self._free[node] -= requests
        self._has_changed = True

    def _unbind(self, name: str, requests: Resources, node: str) -> None:
        self._ledger.remove_pod(name)
        if node:
            self._free[node] += requests

    def _pod(
        self, cluster: _Cluster, name: str, requests: Resources, node: str = "", *, gated: bool = False
    ) -> Pod:
        at = Gate("benchmark", name, f"{self._now:%Y-%m-%dT%H:%M:%SZ}")
        is_gated_template = self._growths is Growths.GRANT and requests is not HEAD
        return Pod(
            name,
            requests,
            node,
            PodPhase.RUNNING if node else PodPhase.PENDING,
            owner=cluster.record.uid,
            gate=at if gated else None,
            can_be_gated=is_gated_template,
            template="workers" if is_gated_template else "",
            base_pods=cluster.ray.gang.pod_sets[1].count if is_gated_template else 0,
            admitted_as=at if is_gated_template and not gated else None,
        )

    # --- the dispatcher ---------------------------------------------------------------------------------------------

    def note_growth(self) -> None:
        """Charge every gang for what its pods request, where that is due."""
        for cluster in self._active():
            requests, attempt = self._taken(cluster.record), cluster.record.attempt
            growing = Growing.of(cluster.record, self._ledger)
            count = pods_soon(cluster.record, growing.admitted_pods, growing.within)
            is_awaited = cluster.record.uid in self._awaited
            due = growth_due(cluster.record, requests, count, is_awaited=is_awaited)
            if attempt is not None and attempt.shrinking is not None:
                due = None if any(each.leaves_at for each in cluster.workers) else self._now
            if due is not None and due <= self._now:
                pods = self._pods_beyond(cluster.record)
                count = count_of(cluster.record, count)
                self._commit(
                    run_changes.note_growth(cluster.record, requests, self._now, pods, count=count).after
                )

    def _taken(self, record: Record) -> Resources:
        if self._growths is Growths.CHARGE:
            return self._ledger.bound(record.uid)
        growing = Growing.of(record, self._ledger)
        return taken_soon(record.allowed, growing.admitted, growing.within)

    def _pods_beyond(self, record: Record) -> PodsByTemplate | None:
        if self._growths is Growths.CHARGE:
            return None
        growing = Growing.of(record, self._ledger)
        return with_pods(growing.beyond, growing.within)

    def cycle(self) -> None:
        """Plan a cycle over the queues, and commit it."""
        if not (self._has_changed or self.second % LOOK_SECONDS == 0):
            return
        self._has_changed = False
        changes = self._queue.changes_for(self._planner, self._now)
        parts = self._in_parts()
        news = incremental.run(
            self._planner.news_in_steps(changes, self._rules, parts, self._snapshots(), self._now)
        )
        for outcome in outcomes_of(news):
            if isinstance(outcome, Preempting | Drained):
                for change in changes_of(outcome, self._now):
                    self._commit(change.after)
                self._leave(outcome)
            elif (found := change_of(outcome, self._now)) is not None:
                self._commit(found.after)
                if isinstance(outcome, Placed):
                    self._dispatch(self._clusters[outcome.record.uid])
        promised = [each for each in self._queue if each.pending and each.pending.reason == AWAITING_RELEASE]
        self._awaited = awaited_growth(parts, promised, self._forest)
        if self._growths is Growths.GRANT:
            self._grant()

    def _leave(self, outcome: Preempting | Drained) -> None:
        leaving = queue_cycles.leaving(outcome)
        gangs = {victim.uid for victim in leaving if not victim.is_surplus}
        for victim in leaving:
            cluster, part = self._clusters[victim.record.uid], victim.part
            if part is not None and part.pods:
                for pod in part.pods if victim.record.uid not in gangs else ():
                    self._give_up(cluster, pod.uid)
                continue
            cluster.leaves_at = self.second + REMOVAL_SECONDS
            self.outcome.preempted += 1
            for worker in [each for each in cluster.workers if not each.node]:
                cluster.workers.remove(worker)
                self._unbind(worker.name, WORKER, "")

    def _give_up(self, cluster: _Cluster, uid: str) -> None:
        self.outcome.surplus += 1
        for worker in cluster.workers:
            if worker.name == uid:
                worker.leaves_at = self.second + REMOVAL_SECONDS

    def _dispatch(self, cluster: _Cluster) -> None:
        """Create the objects of a gang. Its pods get the nodes of its assignment."""
        record = cluster.record
        if record.attempts == 1:
            self.outcome.gang_waits.append(self.second - cluster.ray.arrives)
        if record.attempt is None:
            raise AssertionError(f"{record.uid} was placed without an attempt")
        assignment = record.attempt.assignment
        self._ledger.reserve(record.uid, record.gang, assignment)
        for pods, places in zip(record.gang.pod_sets, assignment.places, strict=True):
            for node in (node for node, count in places for _ in range(count)):
                cluster.made += 1
                name = f"{record.name}-{cluster.made}"
                cluster.base[name] = pods.requests, node
                self._bind(cluster, name, pods.requests, node)
        self._commit(run_changes.created(record, (), self._now).after)

    def _grant(self) -> None:
        growing = [
            Growing.of(each.record, self._ledger)
            for uid, each in self._clusters.items()
            if uid in self._ledger.with_gated() and each.is_active
        ]
        if not any(each.requested for each in growing):
            return
        waiting = incremental.run(WaitingGangs.of(self._queue, self._forest, self._now))
        facts = GrantFacts(self._forest, self._holders(), waiting, self._now)
        for grant in incremental.run(decide_in_steps(growing, facts, self._snapshots())):
            if (found := grants.change_of(grant, self._now)) is not None:
                self._commit(found.after)

    def admit(self) -> None:
        """Let the gated pods start that are within what their gangs hold."""
        for uid in self._ledger.with_gated():
            cluster = self._clusters[uid]
            names = {each.name for each in Growing.of(cluster.record, self._ledger).within}
            for worker in cluster.workers:
                if worker.name in names:
                    self._start(cluster, worker)

    def _commit(self, record: Record) -> None:
        cluster = self._clusters[record.uid]
        cluster.record = record
        if record.phase is Phase.QUEUED:
            self._queue.put(record)
        else:
            self._queue.remove(record.uid)
        if record.phase in HOLDING and record.attempt is not None:
            shrinking = record.attempt.shrinking
            grown = record.grown if shrinking is None else shrinking.growth
            assignment, granted = record.attempt.assignment, record.granted
            self._ledger.reserve(record.uid, record.gang, assignment, grown, granted)
        self._has_changed = True

    def _active(self) -> Iterator[_Cluster]:
        return (each for each in self._clusters.values() if each.is_active)

    def _holders(self) -> list[ActiveGang]:
        found = (active_gang(each.record, is_unreachable=False) for each in self._clusters.values())
        return [each for each in found if each is not None]

    def _in_parts(self) -> list[ActiveGang]:
        """The gangs that hold capacity, with their surplus pods as parts where growth is granted."""
        surplus = {}
        for cluster in self._active() if self._growths is Growths.GRANT else ():
            if cluster.record.grown:
                surplus[cluster.record.uid] = surplus_of(cluster.record, self._ledger)
        return in_parts(self._holders(), surplus)

    def _snapshots(self) -> Mapping[str, ClusterSnapshot]:
        return {HUB_CLUSTER: ClusterSnapshot(HUB_CLUSTER, self._ledger.snapshot())}

    # --- the figures ------------------------------------------------------------------------------------------------

    def count(self) -> None:
        """Count this second."""
        used = Counter[str]()
        for cluster in self._clusters.values():
            gpus, wanted = cluster.gpus, cluster.ray.wanted(self.second)
            used[cluster.ray.queue] += gpus
            cluster.held += gpus
            self.outcome.wanted += wanted
            self.outcome.served += min(gpus, wanted) if cluster.is_active else 0
        self.outcome.beyond_quota += self._is_beyond(used)

    def _is_beyond(self, used: Mapping[str, int]) -> bool:
        """True if a queue, or all of them, use more than they may."""
        for name, gpus in used.items():
            nominal, borrowed = self._nominal[name]
            if borrowed is not None and gpus > nominal + borrowed:
                return True
        return sum(used.values()) > sum(nominal for nominal, _ in self._nominal.values())


def _quota(resources: Mapping[str, Quota]) -> tuple[int, int | None]:
    """The nominal quota of GPUs, and how many more may be borrowed; None without a limit."""
    quota = resources.get(GPU)
    return (quota.nominal, quota.borrowing_limit) if quota is not None else (0, None)
