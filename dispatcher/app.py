"""The composition root: settings → clients → store → loops in one TaskGroup, and the order of shutdown.

A process is a candidate first. When it leads it loads the queue into memory, watches, and runs the loops until
it is cancelled or may be behind the database (its lease lost, or the database gone); then everything in memory
is dropped and it is a candidate again. So there is one way to start, and every failure of the database ends in it.

The clock is the database's (`core.model.clock`): read with each renewal, carried on by the monotonic clock in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dispatcher import errors, log
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.controller.intake.author_check import AuthorCheck, watch_policy
from dispatcher.controller.intake.intake import Intake
from dispatcher.controller.intake.limits import Limits, QueueBound
from dispatcher.controller.intake.namespaces import Namespaces
from dispatcher.controller.intake.specs import Specs
from dispatcher.controller.members.arrivals import Arrivals
from dispatcher.controller.members.cluster import Cluster
from dispatcher.controller.members.connector import Pace
from dispatcher.controller.members.first_lists import NotListed, wait_for_lists
from dispatcher.controller.members.fleet import Concerned, Fleet
from dispatcher.controller.members.membership import MembersUnknown
from dispatcher.controller.reconcile.acts import Acts
from dispatcher.controller.reconcile.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.reconcile.attempts import Attempts, Members
from dispatcher.controller.reconcile.committer import Committer
from dispatcher.controller.reconcile.creation import Creator
from dispatcher.controller.reconcile.event_recorder import StepRecorder
from dispatcher.controller.reconcile.observer import Observer
from dispatcher.controller.reconcile.pacing import Pacing
from dispatcher.controller.reconcile.reconciler import Reconciler, lane_of
from dispatcher.controller.reconcile.result import Results
from dispatcher.controller.reconcile.status_writer import StatusWriter
from dispatcher.controller.reconcile.workqueue import WorkQueue
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.garbage import look_at_all_again, short_collections
from dispatcher.controller.scheduling.scheduler import Rules, Scheduler
from dispatcher.controller.scheduling.slices import Slices
from dispatcher.controller.upkeep.housekeeping import Housekeeping
from dispatcher.controller.upkeep.metrics import gather
from dispatcher.controller.upkeep.orphan_gc import OrphanCollector
from dispatcher.controller.upkeep.restore_recovery import RestoreRecovery
from dispatcher.controller.upkeep.sampler import Sampler
from dispatcher.controller.upkeep.takeover import for_each, load
from dispatcher.core.intake.ceilings import Ceiling
from dispatcher.core.kinds.demand import Rule
from dispatcher.core.lifecycle.decision import is_as_asked
from dispatcher.core.model.clock import Clock
from dispatcher.core.model.record import ACTIVE, Record
from dispatcher.core.scheduling.backfill import Bounds
from dispatcher.core.scheduling.capacity import CapacityLedger
from dispatcher.core.scheduling.cycle import Policy
from dispatcher.kube.access_reviews import is_allowed, is_author_policy_bound
from dispatcher.kube.client import POD_NAMESPACE, ClusterClient, own_namespace, pod_namespace
from dispatcher.kube.discovery import cluster_uid
from dispatcher.kube.events import EventRecorder
from dispatcher.kube.kubeconfig import Connection
from dispatcher.kube.stretch import take_short_turns
from dispatcher.probes import Figures, Health, Metrics, Role, serve
from dispatcher.settings import Settings
from dispatcher.store import restore_detection, revision
from dispatcher.store.clusters import ClusterStore
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership, Lease
from dispatcher.store.queue import QueueStore
from dispatcher.store.restore_detection import Incarnation
from dispatcher.store.samples import SampleStore

RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0
"""The longest pause of a replica that gave up leadership because it could not list what a leader has to know."""

_log = log.get("app")


class WriteFence:
    """Whether a write may go to an API server now: only well within the lease."""

    def __init__(self, write_timeout: float, monotonic: Callable[[], float]) -> None:
        self._write_timeout = write_timeout
        self._monotonic = monotonic
        self._until = 0.0

    def extend(self, asked_at: float, lease: timedelta) -> None:
        """A renewal that was asked for at `asked_at` was granted."""
        self._until = asked_at + lease.total_seconds() - self._write_timeout

    def close(self) -> None:
        """No more writes."""
        self._until = 0.0

    def is_open(self) -> bool:
        """True while a write sent now would time out before the lease does."""
        return self._monotonic() < self._until


async def run(settings: Settings) -> None:
    """Run the dispatcher until SIGTERM or SIGINT."""
    main = asyncio.current_task()
    assert main is not None  # noqa: S101  # a coroutine always runs in a task
    loop, application = asyncio.get_running_loop(), Application(settings)
    take_short_turns()

    def stop() -> None:
        application.stop()
        main.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    with contextlib.suppress(asyncio.CancelledError):
        await application.run()
    _log.info("stopped")


class Application:
    """One process: a candidate, sometimes the leader."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopping = False
        self._unlucky_terms = 0
        self._health = Health()
        self._metrics = Metrics()
        self._clock = Clock(time.monotonic, _host_now)
        self._fence = WriteFence(settings.write_timeout_seconds, time.monotonic)
        lease = timedelta(seconds=settings.lease_seconds)
        self._database = Database(settings.database_url.get_secret_value(), idle_timeout=lease)
        self._leadership = Leadership(
            self._database,
            holder=f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
            lease=lease,
        )

    def stop(self) -> None:
        """Begin nothing anew. Who calls this also cancels `run`."""
        self._stopping = True

    async def run(self) -> None:
        """Serve probes, and lead whenever nobody else does."""
        url = self._settings.database_url.get_secret_value()
        client = await ClusterClient.connect(
            self._settings.kubeconfig,
            read_timeout=self._settings.read_timeout_seconds,
            write_timeout=self._settings.write_timeout_seconds,
            may_write=self._fence.is_open,
        )
        address, port = self._settings.listen_address, self._settings.listen_port
        async with client, serve(address, port, self._health, self._metrics) as bound:
            _log.info("started", probes=f"http://{address}:{bound}")
            try:
                await self._check_schema(url)
                while not self._stopping:
                    await self._candidate(client)
            finally:
                await self._step_down()
                await self._database.close()

    async def _check_schema(self, url: str) -> None:
        """Wait for the database, but not for a schema that somebody has to migrate."""
        while True:
            try:
                await asyncio.to_thread(revision.check_revision, url)
            except errors.StoreUnavailable as error:
                self._troubled("store_unavailable", error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _candidate(self, client: ClusterClient) -> None:
        """Lead once, if nobody does; or wait a little."""
        asked_at = time.monotonic()
        try:
            lease = await self._leadership.acquire()
        except errors.StoreError as error:
            self._troubled("store_unavailable", error)
        else:
            if lease is None:
                self._health.role, self._health.problem = Role.STANDBY, ""
            else:
                self._granted(asked_at, lease)
                await self._term(client)
        if not self._stopping:
            await asyncio.sleep(retry_pause(self._unlucky_terms))

    async def _term(self, client: ClusterClient) -> None:
        """Lead until something takes that from us."""

        async def lead() -> None:
            await self._lead(client, await self._recognise(client))

        ended_by = await until_over(lead, lambda: self._stopping)
        if ended_by is not None:
            is_unlucky = isinstance(ended_by, (MembersUnknown, NotListed))
            self._unlucky_terms = self._unlucky_terms + 1 if is_unlucky else 0
            self._troubled("leadership_ended", ended_by)
        await self._step_down()

    async def _recognise(self, client: ClusterClient) -> str:
        """Make sure that the kubeconfig and the database belong together; the uid of the hub."""
        store = ClusterStore(self._database, lambda: self._leadership.lease)
        uid = await cluster_uid(client)
        await store.recognise_cluster(HUB_CLUSTER, uid, self._clock.now())
        return uid

    def _granted(self, asked_at: float, lease: Lease) -> None:
        was_followed = not self._clock.problem
        self._clock.set(lease.database_now)
        self._fence.extend(asked_at, lease.duration)
        self._metrics.clock_off_seconds.set(self._clock.off.total_seconds())
        if self._health.role is Role.LEADER:
            self._health.problem = self._clock.problem
        if was_followed and self._clock.problem:
            _log.warning("clock_not_followed", error=self._clock.problem)
        elif not (was_followed or self._clock.problem):
            _log.info("clock_followed")

    def _troubled(self, event: str, error: BaseException) -> None:
        self._health.problem = str(error)
        _log.warning(event, error=str(error), kind=type(error).__name__)

    async def _step_down(self) -> None:
        self._fence.close()
        self._metrics.leading.set(0)
        self._metrics.figures = Figures
        self._health.role = Role.STANDBY
        try:
            await asyncio.shield(self._leadership.release())
        except errors.StoreError as error:
            _log.info("lease_left_to_expire", error=str(error))

    async def _lead(self, client: ClusterClient, uid: str) -> None:
        _log.info("leading", epoch=self._leadership.lease.epoch)
        self._health.role, self._health.problem = Role.LEADER, self._clock.problem
        self._metrics.leading.set(1)
        session = Session(
            self._settings,
            client,
            uid,
            self._leadership,
            self._database,
            self._clock,
            self._metrics,
            self._fence.is_open,
        )
        self._health.watches_ready, self._health.concern = session.watches_ready, session.concern
        self._metrics.figures = session.figures
        with short_collections(time.monotonic):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._renew(), name="renew")
                await session.start(tasks)

    async def _renew(self) -> None:
        """Renew until cancelled, or until the lease is lost."""
        while True:
            await asyncio.sleep(self._settings.renew_seconds)
            asked_at = time.monotonic()
            try:
                self._granted(asked_at, await self._leadership.renew())
            except errors.StoreUnavailable as error:
                # The lease may well outlive a short absence; the fence closes by itself if it does not.
                _log.warning("renewal_failed", error=str(error))
                if not self._fence.is_open():
                    raise


async def until_over(
    lead: Callable[[], Awaitable[None]], is_stopping: Callable[[], bool]
) -> BaseException | None:
    """Run a term to its end; return the error of a store or cluster that has ended it, if one has.

    A task group that fails already takes a cancellation for its own and, on Python 3.11, tells nobody. Nor can the task
    be asked: on Python 3.11 it counts as cancelled after any task group that failed while it was waited for. So who
    cancels it has `is_stopping` say so.
    """
    ended = None
    try:
        await lead()
    except* (errors.StoreError, errors.ClusterError) as group:
        ended = _innermost(group)
    if is_stopping():
        raise asyncio.CancelledError
    return ended


class Session:
    """One term of leadership: everything it keeps in memory, and the loops that work on it."""

    def __init__(
        self,
        settings: Settings,
        client: ClusterClient,
        hub_uid: str,
        leadership: Leadership,
        database: Database,
        clock: Clock,
        metrics: Metrics,
        may_write: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._client = client
        self._leadership = leadership
        self._database = database
        self._clock = clock
        self._metrics = metrics
        self._store = QueueStore(database, lambda: leadership.lease)
        self._known_clusters = ClusterStore(database, lambda: leadership.lease)
        self._queue = WorkQueue(time.monotonic, self._lane_of, settings.concurrency)
        self._housekeeping = Housekeeping(
            self._store,
            clock.now,
            timedelta(days=settings.history_days),
            timedelta(seconds=settings.reader_seconds),
        )
        self._may_write = may_write
        self._cluster = self._make_cluster(HUB_CLUSTER, client)
        self._fleet = Fleet(
            self._cluster,
            hub_uid,
            client,
            own_namespace(settings.namespace),
            self._connect,
            self._make_cluster,
            self._known_clusters,
            Concerned(self._wake_dispatch, self._member_changed),
            self._count_running,
            clock.now,
            Pace(settings.probe_seconds, settings.unreachable_seconds, settings.unlisted_seconds),
        )
        self._clusters = self._fleet.clusters
        self._specs = Specs(self._store, timedelta(seconds=settings.kept_seconds))
        self._cache = Cache(
            self._fleet.ledgers, self._place_freed, bounds_of_reservations(settings), self._specs.limit_of
        )
        self._arrivals = Arrivals(self._clusters, self._cache, self._queue.add, self._wake_dispatch)
        self._recorder = EventRecorder(client, time.monotonic)
        self._committer = Committer(self._store, self._cache, StepRecorder(metrics, self._recorder).announce)
        self._hub = AppWrapperInformer(
            client, self._cluster.discovery, self._appwrapper_changed, self._is_taken_in
        )
        self._intake: Intake | None = None
        default = Ceiling(settings.max_priority, settings.max_priority_slope)
        self._namespaces = Namespaces(client, default, self._ceiling_changed)
        self._first_lists = (self._cluster, self._hub, self._namespaces)
        self._limits = Limits(
            Rule(settings.declared_demand),
            self._namespaces.ceiling_of,
            QueueBound(settings.queued_per_namespace, self._cache.count_standing, self._queue.add),
        )
        self._denied_namespaces = denied_namespaces(settings)
        self._pacing = Pacing()
        self._orphan_collector: OrphanCollector | None = None
        self._restore_recovery: RestoreRecovery | None = None
        self._scheduler = Scheduler(
            self._cache,
            self._committer,
            self._fleet,
            self._queue.add,
            self._is_as_asked,
            clock.now,
            metrics,
            Rules(
                policy=Policy(settings.queue_policy),
                starvation_bound=timedelta(seconds=settings.starvation_bound_seconds),
                least=settings.cycle_seconds,
                most=settings.poll_seconds,
            ),
        )

    def _make_cluster(self, name: str, client: ClusterClient) -> Cluster:
        return Cluster(name, client, CapacityLedger(), self._wake_dispatch, self._queue.add, self._home_of)

    def _home_of(self, uid: str) -> str | None:
        """The namespace of an AppWrapper, known as soon as the database or the hub has shown it."""
        known = self._cache.get(uid) or self._hub.view(uid)
        return known.namespace if known else None

    def _appwrapper_changed(self, uid: str) -> None:
        for cluster in self._clusters.values():
            cluster.introduce(uid)
        self._queue.add(uid)

    def _connect(self, to: Connection) -> ClusterClient:
        return ClusterClient.of(
            to,
            read_timeout=self._settings.read_timeout_seconds,
            write_timeout=self._settings.write_timeout_seconds,
            may_write=self._may_write,
        )

    def _lane_of(self, uid: str) -> str:
        return lane_of(uid, self._cache, self._hub)

    def _is_as_asked(self, record: Record) -> bool:
        """True unless the watch shows that the user of a queued gang wants something else by now.

        The reconciler follows the changes of a user once a second (`controller.reconcile.pacing`). Within that second
        the record counts: else a user who changes a gang in a loop would keep capacity from others in each cycle.
        """
        view = self._hub.view(record.uid)
        if view is None:
            return not self._hub.can_tell(record.group)
        asked = None if self._pacing.had_turn(record.uid, self._clock.now()) else view.asked
        return is_as_asked(record, not view.deleting, asked)

    def _is_taken_in(self, uid: str) -> bool:
        return self._cache.get(uid) is not None

    def _count_running(self, cluster: str) -> int:
        return self._cache.count_holders(cluster)

    def _member_changed(self, name: str) -> None:
        """A member has come, or come back, or gone, or is to be emptied: its gangs are to be looked at."""
        self._arrivals.add(name)
        if name not in self._clusters:
            look_at_all_again()
            return
        if self._orphan_collector is not None:
            self._orphan_collector.wake()
        if self._restore_recovery is not None:
            self._restore_recovery.wake()

    def _is_joining(self, name: str) -> bool:
        """True while nobody can tell how the gangs of a cluster are, because it is being connected or taken in."""
        return self._fleet.is_joining(name) or self._arrivals.is_under_way(name)

    def figures(self) -> Figures:
        """What it knows now, for a scrape."""
        return gather(self._cache, self._clusters, self._hub, self._client, self._recorder)

    def watches_ready(self) -> bool:
        """True once every watch has its first complete answer."""
        return not any(each.missing for each in self._first_lists)

    def concern(self) -> str:
        """Why the leader cannot work, in a sentence; empty if it can."""
        return self._fleet.problem

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Load, watch, take in what is there, and only then decide and act."""
        await self._housekeeping.prepare()
        life = await self._recognise_database()
        hub_id = str(await self._store.hub_id())
        slices = Slices(time.monotonic)
        await load(self._cache, self._store, slices)
        known = self._known_clusters
        self._fleet.remember(
            await known.unreachable_clusters(), await known.declared_members(), self._cache.occupied()
        )
        await for_each(self._cache.records(), self._cluster.learn, slices)
        tasks.create_task(self._committer.run(), name="committer")
        tasks.create_task(self._recorder.run(), name="events")
        await self.watch(tasks)
        await self._work(tasks, hub_id, life)

    async def watch(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to watch; return once the hub is listed, and its members have answered or had time to.

        Raises `NotListed` after `unlisted_seconds`. The wait for members has a bound of its own, since a member that
        does not answer is no reason to give up leadership; the fleet gives it up when MemberClusters cannot be listed.
        """
        tasks.create_task(self._cluster.run(), name="cluster")
        tasks.create_task(self._hub.run(), name="hub")
        tasks.create_task(self._namespaces.run(), name="namespaces")
        tasks.create_task(self._fleet.run(), name="fleet")
        tasks.create_task(self._arrivals.run(), name="arrivals")
        await wait_for_lists(self._first_lists, self._settings.unlisted_seconds)
        await self._fleet.wait_until_answered()
        await self._arrivals.wait_until_done()

    async def _recognise_database(self) -> Incarnation:
        """Whether what it says may be out of date: to be known before anything of it is believed."""
        life = await restore_detection.recognise(self._database, self._leadership.lease)
        if life.is_news:
            _log.warning("database_restored", incarnation=life.number)
        return life

    async def _work(self, tasks: asyncio.TaskGroup, hub_id: str, life: Incarnation) -> None:
        specs = self._specs
        self._intake = intake = Intake(
            self._hub,
            self._cache,
            self._committer,
            self._clusters,
            specs,
            hub_id,
            self._admitted,
            self._queue.add_failed,
            self._clock.now,
            self._fleet.is_surely_complete,
            believes_stamps=self._settings.submitter == "annotation",
            denied_namespaces=self._denied_namespaces,
            authors=self._check_authors(tasks),
            limits=self._limits,
            takes_secrets=self._settings.wrapped_secrets == "stored",
        )
        unknown = (view.uid for view in self._hub.views() if self._cache.get(view.uid) is None)
        await for_each(unknown, intake.add, Slices(time.monotonic))
        await intake.admit_all()
        self._restore_recovery = RestoreRecovery(
            self._hub,
            hub_id,
            self._cache,
            self._committer,
            self._clusters,
            specs,
            self._fleet.is_complete,
            self._settle,
            self._look_and_plan,
            self._clock.now,
            self._fleet.is_certain,
        )
        if not life.is_settled:
            await self._restore_recovery.begin()
            tasks.create_task(self._restore_recovery.run(), name="restoration")
        status_writer = StatusWriter(
            self._hub, self._cache, self._clusters, self._queue, time.monotonic, self._limits.bound
        )
        self._orphan_collector = OrphanCollector(
            self._clusters,
            self._cache,
            self._hub,
            hub_id,
            self._store.deleted_among,
            restored_at=life.restored_at,
        )
        attempts = Attempts(self._hub, self._clusters, specs, hub_id, self._clock.now)
        members = Members(
            is_connecting=self._is_joining,
            loss_of=self._fleet.loss_of,
            leads_nowhere=self._fleet.leads_nowhere,
            note_mishap=self._fleet.note_mishap,
        )
        creator = Creator(
            attempts,
            self._cache,
            self._queue.failures,
            members,
            self._orphan_collector.removes,
            self._denied_namespaces,
        )
        reconciler = Reconciler(
            Observer(attempts, self._cache, self._limits, members, self._restore_recovery.is_left_alone),
            Acts(attempts, intake, creator, self._limits, self._pacing),
            Results(
                self._committer,
                self._hub,
                self._clusters,
                self._queue,
                self._pacing,
                self._wake_dispatch,
                self._clock.now,
            ),
            status_writer,
            self._queue,
        )
        await self._prepare_terms(specs)
        await for_each(self._cache.uids(), self._queue.add, Slices(time.monotonic))
        tasks.create_task(intake.run(), name="admission")
        tasks.create_task(self._scheduler.run(), name="dispatch")
        tasks.create_task(self._orphan_collector.run(), name="sweep")
        tasks.create_task(self._housekeeping.run(), name="housekeeping")
        tasks.create_task(self._housekeeping.run_readers(), name="readers")
        tasks.create_task(self._make_sampler().run(), name="samples")
        tasks.create_task(reconciler.run(), name="reconciler")
        self._wake_dispatch()

    def _check_authors(self, tasks: asyncio.TaskGroup) -> AuthorCheck | None:
        """Have it made sure that authors may create what they wrap, by whom the settings name."""
        match self._settings.author_check:
            case "review":
                authors = AuthorCheck(
                    lambda access: is_allowed(self._client, access),
                    self._clusters,
                    self._fleet.is_complete,
                    lambda uid: self._hub.view(uid) is not None,
                    self._queue.add,
                    time.monotonic,
                )
                tasks.create_task(authors.run(), name="author-check")
                return authors
            case "policy":
                note = self._metrics.author_policy_missing.set
                bound = is_author_policy_bound
                tasks.create_task(watch_policy(lambda: bound(self._client), note), name="author-policy")
        return None

    async def _prepare_terms(self, specs: Specs) -> None:
        """Every gang that runs is looked at first of all, and each look needs its terms."""
        active = [record for record in self._cache.records() if record.phase in ACTIVE]
        views = {record.uid: self._hub.view(record.uid) for record in active}
        await specs.prepare({uid: view.tolerance for uid, view in views.items() if view}, active)

    def _make_sampler(self) -> Sampler:
        chronicle = SampleStore(self._database, lambda: self._leadership.lease)
        period = timedelta(seconds=self._settings.sample_seconds)
        return Sampler(self._cache, self._fleet, chronicle, self._clock.now, period)

    def _wake_dispatch(self) -> None:
        self._scheduler.wake()

    def _place_freed(self, namespace: str) -> None:
        """One of a namespace has left the queue: another one may come in."""
        if self._intake is not None:
            self._intake.recall(namespace)

    def _ceiling_changed(self, namespace: str) -> None:
        """The ceilings of a namespace have changed: reconcile each queued or suspended AppWrapper in it."""
        for uid in self._cache.standing(namespace):
            self._queue.add(uid)

    async def _settle(self) -> None:
        await restore_detection.settle(self._database, self._leadership.lease)

    def _admitted(self, record: Record) -> None:
        self._look_and_plan(record.uid)

    def _look_and_plan(self, uid: str) -> None:
        self._queue.add(uid)
        self._scheduler.wake()


def denied_namespaces(settings: Settings, pod: Path = POD_NAMESPACE) -> frozenset[str]:
    """Where nothing is dispatched: where Kubernetes runs, where members' kubeconfigs are, and where this pod is.

    The pod's namespace has its ServiceAccount and the database's URL. `default` is not meant if it only stands for a
    namespace that nobody named.
    """
    named = {each.strip() for each in settings.denied_namespaces.split(",")}
    return frozenset({*named, settings.namespace, pod_namespace(pod)} - {""})


def bounds_of_reservations(settings: Settings) -> Bounds:
    """How long backfill reservations may take, and the least pause after one: as long as a gang starves before."""
    return Bounds(
        kept=timedelta(seconds=settings.reservation_bound_seconds),
        rest=timedelta(seconds=settings.starvation_bound_seconds),
    )


def retry_pause(unlucky_terms: int) -> float:
    """Seconds before this replica tries to lead again, after so many terms in a row that it had to give up.

    In the pause another replica takes the lease, if there is one.
    """
    return min(LONGEST_RETRY_SECONDS, RETRY_SECONDS * 2.0 ** min(unlucky_terms, 10))


def _host_now() -> datetime:
    """The host's own time, which is held against the database's."""
    return datetime.now(UTC)


def _innermost(error: BaseException) -> BaseException:
    """The first error behind the groups that tasks wrap it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
