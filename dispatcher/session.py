"""The session of a leader: what it keeps in memory, composed, and the order in which its loops start.

A session first reads the identity of the database and of the hub. It loads the queue, watches until every list is
complete, and only then decides and acts. It ends with leadership, and nothing of it is used again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dispatcher import log
from dispatcher.api.clusters.potential import NO_POTENTIAL, PotentialNodes
from dispatcher.api.clusters.provisioning import ProvisioningClass
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.api.notifications import Choices
from dispatcher.controller.intake.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.intake.attempt_context import AttemptContext, Members
from dispatcher.controller.intake.author_check import AuthorCheck, watch_policy
from dispatcher.controller.intake.intake import Intake, IntakeRules
from dispatcher.controller.intake.limits import LabelResolver, Limits, Namespaces
from dispatcher.controller.intake.priority_class_watch import PriorityClassWatch
from dispatcher.controller.intake.specs import Specs
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.members.cluster_loader import ClusterLoader
from dispatcher.controller.members.connector import Means, Pace
from dispatcher.controller.members.first_lists import missing, wait_for_lists
from dispatcher.controller.members.fleet import Fleet, FleetCallbacks
from dispatcher.controller.members.pod_defaults import PodDefaultsOfClusters
from dispatcher.controller.members.potential_trust import PoolsFailed, PotentialTrust
from dispatcher.controller.reconcile.event_recorder import LoopReport, StepRecorder, event_about
from dispatcher.controller.reconcile.reconciler import Reconciling, Surroundings, compose, lane_of
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.committer import Committer
from dispatcher.controller.scheduling.garbage import look_at_all_again
from dispatcher.controller.scheduling.queue_watch import QueueWatch
from dispatcher.controller.scheduling.scheduler import Lookups, Rules, Scheduler
from dispatcher.controller.scheduling.slices import Slices
from dispatcher.controller.upkeep.declaration_keeper import DeclarationKeeper
from dispatcher.controller.upkeep.field_check import FieldCheck
from dispatcher.controller.upkeep.housekeeping import Housekeeping, Sampler
from dispatcher.controller.upkeep.metrics import Sources, gather
from dispatcher.controller.upkeep.orphan_gc import OrphanCollector
from dispatcher.controller.upkeep.outlook_keeper import OutlookKeeper
from dispatcher.controller.upkeep.queue_status_writer import QueueStatusWriter
from dispatcher.controller.upkeep.restore_recovery import RestoreRecovery
from dispatcher.controller.upkeep.snapshot_keeper import SnapshotKeeper
from dispatcher.controller.upkeep.takeover import ConcernedAppWrappers, FirstPolicies, load
from dispatcher.controller.upkeep.usage_keeper import UsageKeeper
from dispatcher.controller.workqueue import WorkQueue
from dispatcher.core.intake.labels import ChangedClasses
from dispatcher.core.intake.namespace_bounds import Ceiling, QueueBound
from dispatcher.core.kinds.pods.pod_defaults import ChargeRule
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.model.clock import Clock
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.record import Change, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.seals import Seals
from dispatcher.core.queues.access import are_there
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.queue_planner import QueueRules
from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules
from dispatcher.core.scheduling.preemption.loops import Preempted
from dispatcher.core.status.events import grew_beyond_quota
from dispatcher.core.status.outlook import Outlook, outlook_in
from dispatcher.kube.client import ClusterClient, own_namespace
from dispatcher.kube.kubeconfig import Connection
from dispatcher.kube.objects.events import EventRecorder
from dispatcher.kube.questions import is_allowed, is_author_policy_bound
from dispatcher.kube.reflector import Reflector
from dispatcher.probes import Metrics, MetricValues
from dispatcher.session_rules import (
    bounds_of_reservations,
    defaults_of_queues,
    denied_namespaces,
    scheduling_rules,
    with_queues,
    without_queues,
)
from dispatcher.settings import Settings
from dispatcher.store.database import Database
from dispatcher.store.history.preemptions import preemptions_from
from dispatcher.store.history.queue_declarations import QueueDeclarationStore
from dispatcher.store.history.recent_use import RecentUseStore
from dispatcher.store.history.samples import SampleStore
from dispatcher.store.leadership import Leadership, Lease
from dispatcher.store.snapshot.snapshots import SnapshotStore
from dispatcher.store.state import restore_detection
from dispatcher.store.state.clusters import ClusterStore
from dispatcher.store.state.queue import QueueStore
from dispatcher.store.state.restore_detection import Incarnation
from dispatcher.store.state.seal_key import seals_of

_log = log.get("session")


class Process(Struct, frozen=True):
    """What a process keeps from one session to the next."""

    settings: Settings
    client: ClusterClient
    database: Database
    leadership: Leadership
    clock: Clock
    metrics: Metrics
    may_write: Callable[[], bool]
    kinds: Kinds = BUILT_IN
    provisioning: ProvisioningClass | None = None
    potential: PotentialNodes = NO_POTENTIAL


class Identity(Struct, frozen=True):
    """The hub of a session, by its uid; its database, by its id and its seals; and how often that was restored."""

    hub_uid: str
    hub_id: str
    incarnation: Incarnation
    seals: Seals


async def identify(process: Process, hub_uid: str) -> Identity:
    """Read the identity of the database; call it before any other read. Raises `StoreError`."""
    incarnation = await restore_detection.recognise(process.database, process.leadership.lease)
    if incarnation.is_news:
        _log.warning("database_restored", incarnation=incarnation.number)
    store = QueueStore(process.database, lambda: process.leadership.lease)
    seals = await seals_of(process.database, process.leadership.lease)
    return Identity(hub_uid, str(await store.hub_id()), incarnation, seals)


class Session:
    """One term of leadership: everything it keeps in memory, and the loops that work on it."""

    def __init__(self, process: Process, identity: Identity) -> None:
        settings, now = process.settings, process.clock.now
        self._process = process
        self._incarnation = identity.incarnation
        self._store = QueueStore(process.database, self._lease)
        self._cluster_store = ClusterStore(process.database, self._lease)
        self._queue = WorkQueue(time.monotonic, self._lane_of, settings.concurrency)
        self._housekeeping = self._make_housekeeping()
        self._trust = self._make_trust()
        self._cluster = self._make_cluster(HUB_CLUSTER, process.client)
        self._fleet = self._make_fleet(identity.hub_uid)
        self._clusters = self._fleet.clusters
        self._specs = Specs(
            self._store,
            timedelta(seconds=settings.kept_seconds),
            process.kinds,
            timedelta(seconds=settings.kueue_wait_seconds),
        )
        self._cache = Cache(self._fleet.ledgers, self._place_freed, bounds_of_reservations(settings))
        self._cluster_loader = ClusterLoader(
            self._clusters, self._cache, self._queue.add, self._wake_scheduler
        )
        self._recorder = self._cluster.event_recorder
        self._steps = StepRecorder(process.metrics, self._recorder, self._recorder_in, process.kinds)
        self._loop_report = self._make_loop_report()
        self._committer = Committer(self._store, self._cache, self._announce, self._choices_of)
        self._informer = AppWrapperInformer(
            process.client, self._cluster.discovery, self._appwrapper_changed, self._is_taken_in
        )
        self._context = AttemptContext(
            self._informer,
            self._clusters,
            self._specs,
            identity.hub_id,
            now,
            self._class_of,
            identity.seals,
        )
        self._fields = self._make_field_check()
        self._concerned = ConcernedAppWrappers(self._cache, self._informer, self._queue.add)
        self._namespaces = self._make_namespaces()
        self._queues = QueueWatch(
            process.client,
            self._cluster.discovery,
            defaults_of_queues(settings),
            self._queues_changed,
            now,
        )
        self._declaration_store = QueueDeclarationStore(process.database, self._lease)
        self._pod_defaults = PodDefaultsOfClusters(self._cluster, self._fleet.clusters_for, time.monotonic)
        self._usage = UsageKeeper(self._queues, RecentUseStore(process.database), now, time.monotonic)
        self._queue_statuses = self._make_queue_status_writer()
        self._priority_classes = PriorityClassWatch(
            process.client, self._cluster.discovery, self._classes_changed
        )
        self._declarations = DeclarationKeeper(
            self._queues, self._priority_classes, self._declaration_store, now
        )
        self._first_lists = (
            self._cluster,
            self._informer,
            self._namespaces,
            self._queues,
            self._priority_classes,
        )
        self._limits = self._make_limits()
        self._authors = self._make_author_check()
        self._intake = self._make_intake()
        self._orphan_collector = OrphanCollector(
            self._context,
            self._cache,
            self._store.deleted_among,
            restored_at=identity.incarnation.restored_at,
        )
        self._restore_recovery = RestoreRecovery(
            self._context, self._cache, self._committer, self._fleet, self._settle, self._look_and_plan
        )
        self._outlooks = self._make_outlook_keeper()
        self._first_policies = FirstPolicies(self._cache, self._informer, self._specs, self._queue.add)
        self._reconciling = self._make_reconciling()
        self._scheduler = self._make_scheduler()

    # --- its parts ---------------------------------------------------------------------------------------------

    def _make_housekeeping(self) -> Housekeeping:
        process, settings = self._process, self._process.settings
        return Housekeeping(
            self._store,
            process.clock.now,
            timedelta(days=settings.history_days),
            timedelta(seconds=settings.reader_seconds),
        )

    def _make_trust(self) -> PotentialTrust:
        process = self._process
        return PotentialTrust(
            self._cluster_store,
            process.clock.now,
            lambda cluster, pool: process.metrics.potential_failures.labels(cluster, pool).inc(),
        )

    def _make_cluster(self, name: str, client: ClusterClient) -> WatchedCluster:
        settings = self._process.settings
        ledger = CapacityLedger(FitMode(settings.fit), name)
        return WatchedCluster(
            name,
            client,
            ledger,
            on_capacity=self._wake_scheduler,
            on_pods=self._queue.add,
            namespace_of=self._namespace_of,
            kinds=self._process.kinds,
            field_validation=settings.field_validation,
        )

    def _make_fleet(self, hub_uid: str) -> Fleet:
        process, settings = self._process, self._process.settings
        means = Means(
            hub=process.client,
            namespace=own_namespace(settings.namespace),
            connect=self._connect,
            make_cluster=self._make_cluster,
            records=self._cluster_store,
            now=process.clock.now,
            pace=Pace(settings.probe_seconds, settings.unreachable_seconds, settings.unlisted_seconds),
            provisioning=process.provisioning,
            potential=process.potential,
            trust_in=self._trust.trust_in,
        )
        callbacks = FleetCallbacks(self._wake_scheduler, self._member_changed)
        return Fleet(self._cluster, hub_uid, means, callbacks, self._count_running)

    def _bind_within_of(self, cluster: str) -> timedelta:
        return self._fleet.potential_of(cluster).bind_within

    async def _note_pools_failed(self, failed: PoolsFailed) -> None:
        await self._trust.note_failed(failed, self._bind_within_of(failed.cluster))

    def _make_namespaces(self) -> Namespaces:
        process, settings = self._process, self._process.settings
        return Namespaces(
            process.client,
            Ceiling(settings.max_priority, settings.max_priority_slope),
            self._concerned.namespace_changed,
            self._wake_scheduler,
        )

    def _make_queue_status_writer(self) -> QueueStatusWriter:
        process = self._process
        return QueueStatusWriter(
            self._queues,
            self._cache,
            self._fleet,
            process.client,
            process.clock.now,
            process.settings.queue_status_seconds,
            on_beyond_quota=self._tell_beyond_quota,
        )

    def _make_limits(self) -> Limits:
        process, settings = self._process, self._process.settings
        return Limits(
            ChargeRule(settings.declared_demand),
            self._namespaces.ceiling_of,
            QueueBound(settings.queued_per_namespace, self._cache.count_undispatched),
            self._queue.add,
            process.kinds,
            LabelResolver(
                self._namespaces.labels_of,
                lambda: self._queues.declared,
                lambda: self._priority_classes.classes,
            ),
            self._namespaces.expected_of,
            self._namespaces.notify_of,
        )

    def _make_author_check(self) -> AuthorCheck | None:
        """The check of authors' rights by access reviews, if the settings ask for reviews."""
        if self._process.settings.author_check != "review":
            return None
        return AuthorCheck(
            lambda access: is_allowed(self._process.client, access),
            self._clusters,
            self._fleet.is_complete,
            lambda uid: self._informer.view(uid) is not None,
            self._queue.add,
            time.monotonic,
        )

    def _make_field_check(self) -> FieldCheck | None:
        """The check for unknown fields of gangs that wait, unless the settings ignore unknown fields."""
        if self._process.settings.field_validation == "Ignore":
            return None
        return FieldCheck(self._context, self._cache, self._committer, self._accepting)

    def _make_intake(self) -> Intake:
        settings = self._process.settings
        rules = IntakeRules(
            self._limits,
            self._authors,
            believes_stamps=settings.submitter == "annotation",
            denied_namespaces=denied_namespaces(settings),
            takes_secrets=settings.wrapped_secrets == "stored",
            pod_defaults=self._pod_defaults.read,
        )
        return Intake(
            self._context,
            self._cache,
            self._committer,
            lambda record: self._look_and_plan(record.uid),
            self._queue.add_failed,
            self._fleet.is_surely_complete,
            rules,
        )

    def _make_members(self) -> Members:
        return Members(
            is_connecting=self._is_connecting,
            loss_of=self._fleet.loss_of,
            has_no_cluster_left=self._fleet.has_no_cluster_left,
            provides_elsewhere=self._provides_elsewhere,
            note_error=self._fleet.note_error,
            bind_within_of=self._bind_within_of,
            note_pools_failed=self._note_pools_failed,
            note_pools_came=self._trust.note_came,
        )

    def _make_scheduler(self) -> Scheduler:
        process, settings, observer = self._process, self._process.settings, self._reconciling.observer
        return Scheduler(
            self._cache,
            self._committer,
            self._fleet,
            Lookups(observer.is_unchanged, self._queue_rules, observer.finished_items),
            on_decided=self._queue.add,
            now=process.clock.now,
            metrics=process.metrics,
            rules=Rules(least=settings.cycle_seconds, most=settings.poll_seconds),
        )

    def _make_reconciling(self) -> Reconciling:
        settings = self._process.settings
        around = Surroundings(
            wake_scheduler=self._wake_scheduler,
            offer=self._recorder.offer,
            removes=self._orphan_collector.removes,
            is_in_doubt=self._restore_recovery.is_in_doubt,
            has_policy_unread=self._first_policies.is_unread,
            outlook_of=self._outlooks.outlook_of,
            beyond_quota_of=self._queue_statuses.beyond_quota_of,
            unserved_of=self._authors.unserved_of if self._authors else lambda _uid: "",
            denied_namespaces=denied_namespaces(settings),
            gates_growth=settings.growth == "grant",
        )
        return compose(
            self._context,
            self._cache,
            self._committer,
            self._queue,
            self._intake,
            self._limits,
            self._make_members(),
            around,
        )

    def _make_outlook_keeper(self) -> OutlookKeeper:
        process = self._process
        return OutlookKeeper(
            self._cache,
            self._fleet,
            self._scheduling_rules,
            process.clock.now,
            self._shown_outlook,
            self._queue.add,
            timedelta(seconds=process.settings.snapshot_seconds),
        )

    def _make_snapshot_keeper(self) -> SnapshotKeeper:
        process = self._process
        store = SnapshotStore(process.database, self._lease)
        period = process.settings.snapshot_seconds
        return SnapshotKeeper(
            self._cache,
            self._fleet,
            store,
            self._scheduling_rules,
            process.clock.now,
            timedelta(seconds=period),
            lambda: self._pod_defaults.surveys,
        )

    def _make_loop_report(self) -> LoopReport:
        process = self._process

        async def read(victims: Collection[str], since: datetime) -> list[Preempted]:
            return await preemptions_from(process.database, victims, since)

        return LoopReport(read, self._recorder, process.metrics, process.clock.now)

    def _make_sampler(self) -> Sampler:
        process = self._process
        samples = SampleStore(process.database, self._lease)
        period = timedelta(seconds=process.settings.sample_seconds)
        return Sampler(self._cache, self._fleet, samples, process.clock.now, period)

    # --- its life ----------------------------------------------------------------------------------------------

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Load, watch, take in what is there, and only then decide and act."""
        await self._housekeeping.prepare()
        await self._load()
        tasks.create_task(self._committer.run(), name="committer")
        tasks.create_task(self._loop_report.run(), name="preemption-loops")
        await self.watch(tasks)
        self._start_author_check(tasks)
        await self._take_in()
        if not self._incarnation.is_settled:
            await self._restore_recovery.begin()
            tasks.create_task(self._restore_recovery.run(), name="restore-recovery")
        self._first_policies.begin()
        await self._usage.refresh()  # or the first cycle would order gangs as if nobody had used anything
        await Slices(time.monotonic).for_each(self._cache.uids(), self._queue.add)
        tasks.create_task(self._first_policies.read(), name="first-policies")
        tasks.create_task(self._intake.run(), name="intake")
        tasks.create_task(self._scheduler.run(), name="scheduler")
        tasks.create_task(self._orphan_collector.run(), name="orphan-gc")
        tasks.create_task(self._housekeeping.run(), name="housekeeping")
        tasks.create_task(self._housekeeping.run_readers(), name="readers")
        tasks.create_task(self._make_sampler().run(), name="sampler")
        tasks.create_task(self._pod_defaults.run(), name="pod-defaults")
        tasks.create_task(self._make_snapshot_keeper().run(), name="snapshot")
        tasks.create_task(self._outlooks.run(), name="outlooks")
        tasks.create_task(self._queue_statuses.run(), name="queue-status")
        tasks.create_task(self._declarations.run(), name="queue-declarations")
        tasks.create_task(self._usage.run(), name="recent-use")
        if self._fields is not None:
            tasks.create_task(self._fields.run(), name="field-check")
        tasks.create_task(self._reconciling.reconciler.run(), name="reconciler")
        self._wake_scheduler()

    async def watch(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to watch; return once the hub is listed, and its members have answered or had time to.

        Raises `NotListed` after `unlisted_seconds`. The wait for members has a bound of its own, since a member that
        does not answer is no reason to give up leadership; the fleet gives it up when MemberClusters cannot be listed.
        """
        # AppWrappers first: the first dispatch waits for that list, which takes longest.
        tasks.create_task(self._cluster.run(self._informer.wait_until_listed), name="cluster")
        tasks.create_task(self._informer.run(), name="informer")
        tasks.create_task(self._namespaces.run(), name="namespaces")
        tasks.create_task(self._queues.run(), name="queues")
        tasks.create_task(self._priority_classes.run(), name="priority-classes")
        tasks.create_task(self._fleet.run(), name="fleet")
        tasks.create_task(self._cluster_loader.run(), name="cluster-loader")
        await wait_for_lists(self._first_lists, self._process.settings.unlisted_seconds)
        await self._fleet.wait_for_members()
        await self._cluster_loader.wait_until_done()

    async def _load(self) -> None:
        """Take in what the database knows of AppWrappers and members."""
        slices, store = Slices(time.monotonic), self._cluster_store
        await load(self._cache, self._store, slices)
        self._trust.load(await store.pool_failures())
        declarations = self._declaration_store
        self._queues.load(await declarations.seen(), await declarations.last_valid())
        self._priority_classes.load(await declarations.classes())
        self._fleet.load(
            await store.unreachable_clusters(),
            await store.declared_members(),
            self._cache.occupied(),
            await store.seen_members(),
        )
        await slices.for_each(self._cache.records(), self._cluster.track)

    def _start_author_check(self, tasks: asyncio.TaskGroup) -> None:
        if self._authors is not None:
            tasks.create_task(self._authors.run(), name="author-check")
        elif self._process.settings.author_check == "policy":
            client, note = self._process.client, self._process.metrics.author_policy_missing.set
            watch = watch_policy(lambda: is_author_policy_bound(client), note)
            tasks.create_task(watch, name="author-policy")

    async def _take_in(self) -> None:
        """Take in the AppWrappers that the database does not know."""
        new = (view.uid for view in self._informer.views() if not self._is_taken_in(view.uid))
        await Slices(time.monotonic).for_each(new, self._intake.add)
        await self._intake.take_in_all()

    # --- what it shows -----------------------------------------------------------------------------------------

    def metric_values(self) -> MetricValues:
        """The metrics of this moment."""
        sources = Sources(
            self._cache,
            self._clusters,
            self._fleet.reachable,
            self._informer,
            self._watches,
            self._process.client,
            self._queue_statuses.states.values,
        )
        return gather(sources, self._process.clock.now())

    def _watches(self) -> Iterator[tuple[str, Reflector[Any]]]:
        """Every watch, with the name of its cluster; those of the hub's nodes and pods come twice."""
        for each in self._first_lists:
            yield from ((HUB_CLUSTER, watch) for watch, _ in each.first_lists)
        yield HUB_CLUSTER, self._fleet.declared
        for name, cluster in self._clusters.items():
            yield from ((name, watch) for watch in cluster.watches)

    def watches_ready(self) -> bool:
        """True once every watch has its first complete answer."""
        return not missing(self._first_lists)

    def concern(self) -> str:
        """Why the leader cannot work, in a sentence; empty if it can."""
        return self._fleet.problem

    # --- callbacks of its parts --------------------------------------------------------------------------------

    def _lease(self) -> Lease:
        return self._process.leadership.lease

    def _connect(self, connection: Connection) -> ClusterClient:
        settings = self._process.settings
        return ClusterClient.of(
            connection,
            read_timeout=settings.read_timeout_seconds,
            write_timeout=settings.write_timeout_seconds,
            may_write=self._process.may_write,
            writes=self._process.client.writes,
        )

    def _announce(self, change: Change, record: Record) -> None:
        """A change was committed."""
        self._steps.announce(change, record)
        self._loop_report.note(change, record)
        self._outlooks.note(change)
        if self._fields is not None:
            self._fields.note(change)

    def _choices_of(self, uid: str) -> Choices | None:
        """The notifications that an AppWrapper chooses now; None while the watch does not show it."""
        view = self._informer.view(uid)
        return None if view is None else self._limits.notifications(view)

    def _recorder_in(self, cluster: str) -> EventRecorder | None:
        """What writes Events to a cluster; None while it is not connected."""
        found = self._clusters.get(cluster)
        return None if found is None else found.event_recorder

    def _lane_of(self, uid: str) -> str:
        return lane_of(uid, self._cache, self._informer)

    def _namespace_of(self, uid: str) -> str | None:
        """The namespace of an AppWrapper, known as soon as the database or the hub has shown it."""
        known = self._cache.get(uid) or self._informer.view(uid)
        return known.namespace if known else None

    def _is_taken_in(self, uid: str) -> bool:
        return self._cache.get(uid) is not None

    def _tell_beyond_quota(self, record: Record, message: str) -> None:
        """Have the status of a gang say that it grew beyond the quota of its queue; an Event says it once."""
        view = self._informer.view(record.uid)
        if message and view is not None and view.status.get("beyondQuota") != message:
            self._recorder.offer(event_about(record, grew_beyond_quota(message), self._process.clock.now()))
        self._queue.add(record.uid)

    def _shown_outlook(self, uid: str) -> Outlook:
        """The outlook in the status of an AppWrapper, as the watch shows it."""
        view = self._informer.view(uid)
        return {} if view is None else outlook_in(view.status)

    def _class_of(self, gang: Gang, queues: Iterable[str], cluster: str) -> ProvisioningClass | None:
        of_queue = self._queues.declared.forest.class_of(queues, gang)
        return of_queue or gang.requested_from([self._fleet.class_of(cluster)])

    def _provides_elsewhere(self, record: Record, requirements: ClusterRequirements) -> bool:
        forest, gang, leaves = self._queues.declared.forest, record.gang, record.leaves
        selected, asked = forest.clusters_of(leaves), forest.class_of(leaves, gang)
        return self._fleet.provides_elsewhere(gang, requirements, selected, asked)

    def _accepting(self, record: Record) -> list[WatchedCluster]:
        """The connected clusters that a cycle accepts for a gang; none while its queue does not count."""
        forest, leaves = self._queues.declared.forest, record.leaves
        if not are_there(record, forest):
            return []
        selected, asked = forest.clusters_of(leaves), forest.class_of(leaves, record.gang)
        return self._fleet.accepting(record.requirements, selected, asked)

    def _count_running(self, cluster: str) -> int:
        return self._cache.count_holders(cluster)

    def _is_connecting(self, name: str) -> bool:
        """True while a cluster is being connected or taken in: the state of its gangs is not known."""
        return self._fleet.is_connecting(name) or self._cluster_loader.is_loading(name)

    def _appwrapper_changed(self, uid: str) -> None:
        for cluster in self._clusters.values():
            cluster.recount_claims_of(uid)
        self._queue.add(uid)

    def _member_changed(self, name: str) -> None:
        """A member was connected, lost, or marked to be drained: its gangs are to be reconciled."""
        self._cluster_loader.add(name)
        if name not in self._clusters:
            look_at_all_again()
            return
        self._orphan_collector.wake()
        self._restore_recovery.wake()

    def _place_freed(self, namespace: str) -> None:
        """An AppWrapper of a namespace has left the queue: another one may come in."""
        self._intake.recall(namespace)

    def _queue_rules(self) -> QueueRules:
        """The queues, and what cycles over them depend on."""
        return QueueRules(self._queues.declared.forest, self._namespaces.labels, self._usage.usage)

    def _scheduling_rules(self) -> SchedulingRules:
        """All that decisions depend on besides clusters and AppWrappers."""
        rules = scheduling_rules(self._process.settings, self._process.kinds)
        declared = self._queues.declared
        rules = replace(
            rules,
            ceilings=self._namespaces.priorities(),
            expected=self._namespaces.expected,
            last=declared.not_valid_now(self._queues.last),
        )
        queues = self._queue_rules()
        if not queues.forest.is_declared:
            return without_queues(rules, queues.namespaces)
        return with_queues(rules, queues, declared)

    async def _queues_changed(self) -> None:
        """A queue was declared, changed or removed: the next cycle plans with it."""
        self._wake_scheduler()
        self._declarations.wake()
        self._usage.wake()
        await self._concerned.queues_changed(self._queues.declared)

    async def _classes_changed(self, changed: ChangedClasses) -> None:
        """Priority classes were added, changed or removed."""
        self._declarations.wake()
        await self._concerned.classes_changed(changed)

    def _wake_scheduler(self) -> None:
        self._scheduler.wake()

    def _look_and_plan(self, uid: str) -> None:
        self._queue.add(uid)
        self._scheduler.wake()

    async def _settle(self) -> None:
        await restore_detection.settle(self._process.database, self._lease())
