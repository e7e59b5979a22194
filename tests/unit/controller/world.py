"""The controller's parts put together as `app` does it, over a scripted API server and a store that remembers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from dispatcher.api.clusters.potential import BIND_WITHIN
from dispatcher.api.notifications import Choices
from dispatcher.controller.intake.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.intake.attempt_context import AttemptContext, Members
from dispatcher.controller.intake.author_check import AuthorCheck
from dispatcher.controller.intake.intake import Intake, IntakeRules
from dispatcher.controller.intake.limits import LabelResolver, Limits
from dispatcher.controller.intake.specs import Specs
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.members.potential_trust import PoolsFailed
from dispatcher.controller.reconcile.reconciler import Reconciling, Surroundings, compose, lane_of
from dispatcher.controller.reconcile.result import Result
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.committer import Committer
from dispatcher.controller.workqueue import WorkQueue
from dispatcher.core.intake.labels import PriorityClasses
from dispatcher.core.intake.namespace_bounds import NO_CEILING, Ceiling, QueueBound
from dispatcher.core.kinds.pods.pod_defaults import ChargeRule, ClusterDefaults
from dispatcher.core.kinds.registry import BUILT_IN
from dispatcher.core.lifecycle import queue_changes, removal, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.records.record import ACTIVE, Change, Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.seals import Seals
from dispatcher.core.queues.declared_queues import DeclaredQueues
from dispatcher.core.queues.forest import Forest
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.status.outlook import Outlook
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.objects.appwrappers import AppWrapperView, decode
from dispatcher.kube.objects.events import EventAbout
from tests.builders import at, attempt_of, make_core_node
from tests.fakes import FakeApiServer, answer
from tests.unit import workers
from tests.unit.controller.store import FakeStore
from tests.unit.controller.wire import ALL_PODS, APPWRAPPERS, PODS, Watched, pods
from tests.unit.virtual_time import monotonic, until

Json = dict[str, Any]

KEPT_FOR = timedelta(minutes=2)
"""For so long `brought_to` has things kept after an end."""
SEALS_OF_A_NEW_DATABASE = Seals(b"key", at(0))
"""Those of a database that was made when the tests begin, after all their AppWrappers."""
AT_ONCE = 4
"""How many AppWrappers of one cluster are reconciled at once."""
SERVES = {
    "/api/v1": {"pods": "Pod", "secrets": "Secret", "configmaps": "ConfigMap"},
    "/apis/batch/v1": {"jobs": "Job"},
    "/apis/workload.codeflare.dev/v1beta1": {"appwrappers": "AppWrapper"},
}


def members_without_any(
    has_no_cluster_left: Callable[[ClusterRequirements], bool] = lambda _requirements: True,
    note_error: Callable[[str, str], None] = lambda _cluster, _namespace: None,
) -> Members:
    """The answers about the fleet of a hub without members."""
    return Members(
        is_connecting=lambda _cluster: False,
        loss_of=lambda _cluster: None,
        has_no_cluster_left=has_no_cluster_left,
        note_error=note_error,
        provides_elsewhere=lambda _record, _requirements: False,
        bind_within_of=lambda _cluster: BIND_WITHIN,
        note_pools_failed=_note_no_failure,
        note_pools_came=_note_nothing,
    )


async def _note_nothing(_cluster: str, _pools: Collection[str]) -> None:
    """Does nothing."""


async def _note_no_failure(_failed: PoolsFailed) -> None:
    """Does nothing."""


async def _adds_nothing(_requirements: ClusterRequirements, _classes: frozenset[str]) -> ClusterDefaults:
    return ClusterDefaults()


@dataclass
class World:
    """One hub cluster; its API server serves pods and AppWrappers and is scripted by the test."""

    server: FakeApiServer
    client: ClusterClient
    store: FakeStore = field(default_factory=FakeStore)
    dispatch_wakes: int = 0
    fit: FitMode = FitMode.AGGREGATE
    seals: Seals = SEALS_OF_A_NEW_DATABASE

    def __post_init__(self) -> None:
        self.ledger = CapacityLedger(self.fit)
        self.ledger.set_node(make_core_node("n1", cpu=8000))
        self.queue = WorkQueue(monotonic, lambda uid: lane_of(uid, self.cache, self.hub), AT_ONCE)
        self.cache = Cache({"hub": self.ledger}, lambda namespace: self.intake.recall(namespace))
        self.ceilings: dict[str, Ceiling] = {}
        self.bound = QueueBound(5000, self.cache.count_undispatched)
        self.namespace_labels: dict[str, dict[str, str]] = {}
        self.namespace_notify: dict[str, str] = {}
        self.trees: tuple[str, ...] = ()
        self.queue_names: frozenset[str] = frozenset()
        self.classes = PriorityClasses()
        self.forest = Forest.undeclared()
        self.limits = Limits(
            rule=ChargeRule.LARGER,
            ceiling_of=lambda name: self.ceilings.get(name, NO_CEILING),
            bound=self.bound,
            on_deferred=self.queue.add,
            kinds=BUILT_IN,
            labels=LabelResolver(
                lambda name: self.namespace_labels.get(name, {}),
                lambda: DeclaredQueues(self.forest, trees=self.trees, names=self.queue_names),
                lambda: self.classes,
            ),
            notify_of=lambda name: self.namespace_notify.get(name, ""),
        )
        self.cluster = self.make_cluster("hub", self.client, self.ledger)
        self.clusters = {"hub": self.cluster}
        self.hub = AppWrapperInformer(self.client, self.cluster.discovery, self.queue.add, lambda _uid: False)
        self.committer = Committer(self.store, self.cache, lambda _change, _record: None, self.choices_of)
        self.specs = Specs(self.store)
        self.context = AttemptContext(
            self.hub,
            self.clusters,
            self.specs,
            "the-hub",
            self.now,
            lambda _gang, _queues, _cluster: None,
            self.seals,
        )
        self.members = members_without_any()
        self.jobs = Watched(self.server, "/apis/batch/v1", "jobs")
        self.secrets = Watched(self.server, "/api/v1", "secrets")
        self.config_maps = Watched(self.server, "/api/v1", "configmaps")
        self.woken: list[str] = []
        self.taken_in: list[str] = []
        self.failed: list[str] = []
        self.offered: list[EventAbout] = []
        self.intake = self.make_intake()
        self.outlooks: dict[str, Outlook] = {}
        self.beyond_quota: dict[str, str] = {}
        self.unserved_of: Callable[[str], str] = lambda _uid: ""
        self.reconciling = self.compose()
        self.reconciler = self.reconciling.reconciler
        for path, kinds in SERVES.items():
            resources = [{"name": name, "kind": kind, "namespaced": True} for name, kind in kinds.items()]
            self.server.on("GET", path, answer({"resources": resources}))
        self.server.on("GET", ALL_PODS, answer(pods()))
        self.server.on("GET", PODS, answer(pods()))

    def make_cluster(
        self, name: str, client: ClusterClient, ledger: CapacityLedger | None = None
    ) -> WatchedCluster:
        """A cluster that wakes what the hub wakes."""
        return WatchedCluster(
            name,
            client,
            ledger or CapacityLedger(),
            on_capacity=self.wake_dispatch,
            on_pods=self.wake,
            namespace_of=self.namespace_of,
        )

    def make_intake(
        self,
        *,
        believes_stamps: bool = False,
        denied_namespaces: frozenset[str] = frozenset(),
        authors: AuthorCheck | None = None,
        takes_secrets: bool = False,
        is_complete: Callable[[], bool] = lambda: True,
        pod_defaults: Callable[
            [ClusterRequirements, frozenset[str]], Awaitable[ClusterDefaults]
        ] = _adds_nothing,
    ) -> Intake:
        """Who takes new AppWrappers in."""
        rules = IntakeRules(
            self.limits, authors, believes_stamps, denied_namespaces, takes_secrets, pod_defaults
        )
        return Intake(
            self.context,
            self.cache,
            self.committer,
            lambda record: self.taken_in.append(record.name),
            self.comes_back,
            is_complete,
            rules,
        )

    def compose(
        self,
        specs: Specs | None = None,
        is_in_doubt: Callable[[str], bool] = lambda _uid: False,
        has_policy_unread: Callable[[str], bool] = lambda _uid: False,
    ) -> Reconciling:
        """What reconciles for this leader, or with other `specs` for one after it."""
        around = Surroundings(
            wake_scheduler=self.wake_dispatch,
            offer=self.offered.append,
            removes=lambda _appwrapper, _attempt: False,
            is_in_doubt=is_in_doubt,
            has_policy_unread=has_policy_unread,
            outlook_of=self.outlooks.get,
            beyond_quota_of=self.beyond_quota.get,
            unserved_of=lambda uid: self.unserved_of(uid),
            monotonic=monotonic,
        )
        return compose(
            replace(self.context, specs=specs or self.specs),
            self.cache,
            self.committer,
            self.queue,
            self.intake,
            self.limits,
            self.members,
            around,
        )

    def now(self) -> datetime:
        return at(monotonic())

    def namespace_of(self, uid: str) -> str | None:
        """The namespace of an AppWrapper that the database or the hub knows."""
        known = self.cache.get(uid) or self.hub.view(uid)
        return known.namespace if known else None

    def choices_of(self, uid: str) -> Choices | None:
        """The notifications that an AppWrapper chooses, as the watch of the hub shows it."""
        view = self.hub.view(uid)
        return None if view is None else self.limits.notifications(view)

    def comes_back(self, uid: str) -> None:
        self.failed.append(uid)
        self.queue.add_failed(uid)

    def wake(self, uid: str) -> None:
        """What the cluster does when it has news of an AppWrapper."""
        self.woken.append(uid)
        self.queue.add(uid)

    def wake_dispatch(self) -> None:
        self.dispatch_wakes += 1

    def show(self, raw: Json) -> AppWrapperView:
        """Have the watch of the hub show this AppWrapper."""
        view = decode(raw)
        self.hub.reflectors[0].items[view.uid] = view
        self.hub.reflectors[0].synced.set()
        name = view.name
        self.server.on("GET", f"{APPWRAPPERS}/{name}", answer(raw))
        self.server.on(
            "PATCH", f"{APPWRAPPERS}/{name}/status", answer({"metadata": {"resourceVersion": "2"}})
        )
        return view

    def hide(self, uid: str) -> None:
        """Have the watch of the hub say that this AppWrapper is gone."""
        self.hub.reflectors[0].items.pop(uid, None)

    async def admit(self, raw: Json) -> Record:
        """Have an AppWrapper shown and taken in."""
        view = self.show(raw)
        self.intake.add(view.uid)
        await self.intake.take_in_all()
        return self.record(view.uid)

    async def dispatched(self, raw: Json, cluster: str = "hub") -> Record:
        """Have an AppWrapper taken in and committed to a cluster."""
        record = await self.admit(raw)
        await self.committer.commit(queue_changes.dispatch(record, cluster, self.now()))
        return self.record(record.uid)

    async def created(self, raw: Json) -> Record:
        """Have an AppWrapper dispatched, and every object it wraps created."""
        record = await self.dispatched(raw)
        refs = [replace(ref, uid=f"uid-of-{ref.name}") for ref in await self.context.refs(record)]
        return await self.commit(run_changes.created(record, tuple(refs), self.now()))

    async def running(self, raw: Json) -> Record:
        """Have an AppWrapper created, and its pods run."""
        return await self.commit(run_changes.mark_running(await self.created(raw), self.now()))

    async def brought_to(self, phase: Phase, raw: Json) -> Record:
        """Have an AppWrapper come to that phase, which is not what the test is about."""
        before, step = _LIVES[phase]
        if step is None:
            return await before(self, raw)
        return await self.commit(step(await before(self, raw), self.now()))

    async def commit(self, change: Change) -> Record:
        """Commit a step that is not what the test is about."""
        await self.reconciling.results.apply(change.after.uid, Result(change))
        return self.record(change.after.uid)

    async def sees(self, record: Record) -> None:
        """Return once the watches have shown every object of the attempt."""
        for ref in attempt_of(record).objects:
            await until(lambda ref=ref: self.cluster.objects.state(ref) is not None)  # type: ignore[misc]

    def record(self, uid: str) -> Record:
        found = self.cache.get(uid)
        assert found is not None
        return found

    async def reconcile(self, uid: str, times: int = 1) -> None:
        for _ in range(times):
            await self.reconciler.reconcile(uid)

    async def forget_wakes(self) -> None:
        """Have nothing to look at but what becomes due from now on."""
        while len(self.queue):
            self.queue.done(await self.queue.get())

    async def is_woken_within(self, seconds: float) -> bool:
        """True if an AppWrapper is due for a look before so much time has passed."""
        try:
            self.queue.done(await asyncio.wait_for(self.queue.get(), seconds))
        except TimeoutError:
            return False
        return True

    async def reconcile_until_answered(self, uid: str) -> None:
        """Look until it is asked which pods live, and once more with the answer; a removal is committed before."""
        asked, version = len(self.server.requests("GET", ALL_PODS)), self.record(uid).version
        await self.reconcile(uid)
        if self.record(uid).version > version and self.record(uid).phase not in ACTIVE:
            await self.reconcile(uid)
        await until(lambda: len(self.server.requests("GET", ALL_PODS)) > asked)
        await asyncio.sleep(0.5)  # virtual: the answer is on its way
        await self.reconcile(uid)

    def statuses(self) -> list[Json]:
        """The statuses written, in order."""
        return [each.body[1]["value"] for each in self.server.requests("PATCH")]


async def _failing(world: World, raw: Json) -> Record:
    return await world.brought_to(Phase.FAILING, raw)


_Begin = Callable[[World, Json], Awaitable[Record]]
_Step = Callable[[Record, datetime], Change]
_LIVES: Final[dict[Phase, tuple[_Begin, _Step | None]]] = {
    Phase.QUEUED: (World.admit, None),
    Phase.SUSPENDED: (World.admit, queue_changes.suspend),
    Phase.DISPATCHING: (World.dispatched, None),
    Phase.DISPATCHED: (World.created, None),
    Phase.RUNNING: (World.running, None),
    Phase.RUNNING_HOLD_COMPLETION: (
        World.running,
        lambda record, now: run_changes.complete_some(record, (0,), now),
    ),
    Phase.COMPLETED: (
        World.running,
        lambda record, now: run_changes.complete(record, (0,), now + KEPT_FOR, now),
    ),
    Phase.REQUEUEING: (
        World.running,
        lambda record, now: run_changes.evict(
            record, EvictionReason("MinPodsNotRunning", "too few"), now, 60, now
        ),
    ),
    Phase.SUSPENDING: (World.running, queue_changes.suspend),
    Phase.FAILING: (
        World.running,
        lambda record, now: run_changes.fail(record, EvictionReason("FailedComponent", "it failed"), now),
    ),
    Phase.FAILED: (_failing, lambda record, now: removal.removed(record, now, now + KEPT_FOR)),
}


@asynccontextmanager
async def world_of(
    server: FakeApiServer,
    client: ClusterClient,
    fit: FitMode = FitMode.AGGREGATE,
) -> AsyncIterator[World]:
    world = World(server, client, fit=fit)
    async with workers.running(
        world.committer.run(),
        world.cluster.live_pods.run(),
        world.cluster.objects.run(),
        world.cluster.drift_checker.run(),
    ):
        yield world
