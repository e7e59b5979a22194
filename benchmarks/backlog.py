"""One long queue before a full cluster: the dispatcher's own parts on a real Postgres, without an API server.

Each life is a process, so that its memory is measured alone: the first takes in and evaluates everything, the next
loads the database of the first. The parts are composed as in `app`. The ledger gets its events directly instead of from
watches, and nothing is ever written to an API server, so there is none.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any, Final

import orjson
import yaml

from benchmarks.processor import peak_memory
from dispatcher import log
from dispatcher.api.appwrapper import spec_hash
from dispatcher.api.names import HUB_CLUSTER, WORKLOAD_GROUP
from dispatcher.controller.members.member import required_kinds
from dispatcher.controller.reconcile.event_recorder import StepRecorder
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.committer import Committer
from dispatcher.controller.scheduling.garbage import short_collections
from dispatcher.controller.scheduling.scheduler import Basis, Lookups, Rules, Scheduler
from dispatcher.controller.scheduling.slices import Slices
from dispatcher.controller.upkeep.takeover import load
from dispatcher.core.lifecycle import first_changes
from dispatcher.core.lifecycle.first_changes import Submission
from dispatcher.core.model.clusters.nodes import Node, Taint, Toleration
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.records.record import Change
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.news import NewOutcome
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.objects.events import EventRecorder
from dispatcher.probes import Metrics
from dispatcher.store.database import Database
from dispatcher.store.history.partitions import ensure_partitions
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.queue import CommitResult, QueueStore

SHAPES: Final = 300
SIZES: Final = 10
TWENTY: Final = 20
JOB: Final = ("batch/v1", "Job")
ADMITTED_AT_ONCE: Final = 200
TICK_SECONDS: Final = 0.001
CHANGES_PER_SECOND: Final = 10
GI: Final = 2**30
NODE: Final = Resources({"cpu": 64_000, "memory": 256 * GI, "nvidia.com/gpu": 8})
FRAGMENT: Final = Resources({"cpu": 500, "memory": 100 * GI, "nvidia.com/gpu": 8})
CRUMB: Final = Pod("crumb", Resources({"memory": GI}), "node-0", PodPhase.RUNNING)
"""A pod that comes and goes without making room for a gang."""
GPU_TAINT: Final = Taint("nvidia.com/gpu", "present", "NoSchedule")
GPU_TOLERATION: Final = Toleration("nvidia.com/gpu", "Exists")
CREATED: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Mix(StrEnum):
    """The kind of gangs in the queue."""

    SHARED = "300 shapes"
    DISTINCT = "all distinct"
    SLOPED = "300 shapes, all with a slope"
    TWENTY = "20 shapes"
    SIZES = "10 sizes"
    DISTINCT_SLOPED = "all distinct, all with a slope"


class Life(StrEnum):
    """The first life of the dispatcher, or the next."""

    FIRST = "first"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Backlog:
    """The sizes of the queue and of the clusters."""

    queued: int
    nodes: int
    mix: Mix
    repeats: int = 9
    clusters: int = 0
    """The member clusters with the nodes of each; without members, only the hub."""
    namespaces: int = 20


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of wall time and of this process's processor time, and the longest block of the event loop.

    `longest_stretch` is that block in processor time, because wall time includes other processes on the machine.
    """

    wall: float
    cpu: float
    longest_block: float
    longest_stretch: float = 0.0
    """The longest processor time between two turns of the event loop, in seconds."""
    committing: float = 0.0
    """The part of the wall seconds that was spent in waits for the database."""
    deciding: float = 0.0
    """The part of the processor time that the decisions took, without messages and commits."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Seconds from a submission to its pending reason, and of this process's processor time meanwhile."""

    wall: float
    cpu: float


# --- queue and clusters --------------------------------------------------------------------------------


def shape(number: int, mix: Mix) -> Gang:
    """The gang of the AppWrapper of that number; every third requests GPUs. None fits a full cluster."""
    kind = number * 7919 % {Mix.SIZES: SIZES, Mix.TWENTY: TWENTY}.get(mix, SHAPES)
    if mix in {Mix.DISTINCT, Mix.DISTINCT_SLOPED}:
        kind = number
    pods, cpu, gpu = 1 + kind % 8, 1000 * (1 + kind // 8 % 16), (kind % 3 == 0) * (1 + kind % 4)
    each = Resources({"cpu": cpu, "memory": GI + kind * 2**20, "nvidia.com/gpu": gpu})
    return Gang(each * pods, pods, (PodSet(pods, each, (GPU_TOLERATION,) if gpu else ()),))


def submitted(number: int, mix: Mix, now: datetime, namespaces: int = 20) -> Change:
    """A valid AppWrapper; priorities are from 0 to 9, and one is created each second."""
    spec = b'{"shape": %d}' % number
    namespace = f"team-{number % namespaces}"
    submission = Submission(
        uid=f"00000000-0000-4000-8000-{number:012d}",
        group=WORKLOAD_GROUP,
        namespace=namespace,
        name=f"gang-{number}",
        created_at=CREATED + timedelta(seconds=number),
        spec=spec,
        spec_hash=spec_hash(spec),
        priority=number * 31 % 10,
        priority_slope=0.001 * (1 + number % 7) if mix in {Mix.SLOPED, Mix.DISTINCT_SLOPED} else 0.0,
        requirements=ClusterRequirements(namespace=namespace, kinds=frozenset({JOB})),
    )
    return first_changes.submit(submission, shape(number, mix), now)


def full_cluster(nodes: int) -> CapacityLedger:
    """A cluster in which no pod has a node; every fourth node has GPUs for gangs that tolerate its taint.

    Each node has half a CPU free and much of the rest, so with many nodes the gangs fit by sums, and nodes decide.
    """
    ledger = CapacityLedger(FitMode.NODE)
    for number in range(nodes):
        name, gpus = f"node-{number}", number % 4 == 0
        ledger.set_node(Node(name, NODE, taints=(GPU_TAINT,) if gpus else ()))
        used = NODE - FRAGMENT - (CRUMB.requests if number == 0 else NOTHING)
        ledger.set_pod(Pod(f"pod-{number}", used, name, PodPhase.RUNNING))
    ledger.set_pod(CRUMB)
    return ledger


class HubAlone:
    """The clusters without members; the hub was listed."""

    def __init__(self, ledger: CapacityLedger) -> None:
        self._ledger = ledger

    async def get_ready(self, _wheres: Iterable[ClusterRequirements]) -> bool:
        """Does nothing: no request is needed."""
        return True

    def snapshots(self, _wheres: Iterable[ClusterRequirements]) -> Mapping[str, ClusterSnapshot]:
        """The hub at this moment."""
        return {HUB_CLUSTER: ClusterSnapshot(HUB_CLUSTER, self._ledger.snapshot())}


class Members:
    """Listed members, each with all namespaces; only the API servers are missing."""

    def __init__(self, ledgers: Mapping[str, CapacityLedger], namespaces: int) -> None:
        self._ledgers = ledgers
        self._namespaces = {name: {f"team-{each}" for each in range(namespaces)} for name in ledgers}

    async def get_ready(self, requirements: Iterable[ClusterRequirements]) -> bool:
        """Does nothing: every kind is known already."""
        required_kinds(set(requirements))
        return True

    def snapshots(self, requirements: Iterable[ClusterRequirements]) -> Mapping[str, ClusterSnapshot]:
        """Each member at this moment."""
        asked = set(requirements)
        kinds, namespaces = required_kinds(asked), frozenset(each.namespace for each in asked)
        return {
            name: ClusterSnapshot(
                name,
                ledger.snapshot().without(NOTHING),
                {"name": name},
                missing_kinds=kinds - {JOB},
                missing_namespaces=namespaces - self._namespaces[name],
            )
            for name, ledger in self._ledgers.items()
        }


# --- measuring ---------------------------------------------------------------------------------------


class TimedStore(QueueStore):
    """Measures the time of its calls."""

    committing = 0.0

    async def commit(self, changes: Sequence[Change]) -> CommitResult:
        """Commits as the store does."""
        started = time.perf_counter()
        try:
            return await super().commit(changes)
        finally:
            self.committing += time.perf_counter() - started


class TimedScheduler(Scheduler):
    """Measures the processor time of its decisions."""

    deciding = 0.0

    async def _plan_without_culprits(self, now: datetime) -> tuple[deque[list[NewOutcome]], Basis]:
        started = time.process_time()
        try:
            return await super()._plan_without_culprits(now)
        finally:
            self.deciding += time.process_time() - started


class Meter:
    """Measures an awaitable, while a ticker records the longest block of the event loop."""

    def __init__(self, store: TimedStore) -> None:
        self._store = store
        self.scheduler: TimedScheduler | None = None
        self._longest = 0.0
        self._longest_stretch = 0.0

    async def measure(self, work: Awaitable[object]) -> Taken:
        """Awaits it and returns its time."""
        self._longest = self._longest_stretch = 0.0
        ticker = asyncio.create_task(self._tick())
        await asyncio.sleep(2 * TICK_SECONDS)
        wall, cpu, committing = time.perf_counter(), time.process_time(), self._store.committing
        deciding = self._deciding()
        await work
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        await asyncio.sleep(2 * TICK_SECONDS)
        ticker.cancel()
        with suppress(asyncio.CancelledError):
            await ticker
        return Taken(
            wall,
            cpu,
            self._longest,
            self._longest_stretch,
            self._store.committing - committing,
            self._deciding() - deciding,
        )

    def _deciding(self) -> float:
        return 0.0 if self.scheduler is None else self.scheduler.deciding

    async def _tick(self) -> None:
        while True:
            before, used = time.perf_counter(), time.thread_time()
            await asyncio.sleep(TICK_SECONDS)
            self._longest = max(self._longest, time.perf_counter() - before - TICK_SECONDS)
            self._longest_stretch = max(self._longest_stretch, time.thread_time() - used)


def median(taken: Sequence[Taken]) -> Taken:
    """The median by processor time, with the longest block of all."""
    middle = sorted(taken, key=lambda each: each.cpu)[len(taken) // 2]
    return replace(
        middle,
        longest_block=max(each.longest_block for each in taken),
        longest_stretch=max(each.longest_stretch for each in taken),
    )


def memory() -> int:
    """Resident memory of this process now, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# --- one life ----------------------------------------------------------------------------------------


class Bench:
    """The composed parts."""

    def __init__(self, client: ClusterClient, store: TimedStore, backlog: Backlog) -> None:
        self._backlog = backlog
        self._store = store
        self._meter = Meter(store)
        names = [f"member-{number:02}" for number in range(backlog.clusters)] or [HUB_CLUSTER]
        ledgers = {name: full_cluster(backlog.nodes) for name in names}
        self._ledger = ledgers[names[0]]
        self._cache = Cache(ledgers)
        metrics, recorder = Metrics(), EventRecorder(client, time.monotonic)
        announce = StepRecorder(metrics, recorder, lambda _: recorder).announce
        self.committer = Committer(store, self._cache, announce, lambda _uid: None)
        self._decided: dict[str, asyncio.Event] = {}
        known = Members(ledgers, backlog.namespaces) if backlog.clusters else HubAlone(self._ledger)
        self._dispatch = TimedScheduler(
            self._cache,
            self.committer,
            known,
            Lookups(lambda _record: True),
            on_decided=self._note_decided,
            now=_now,
            metrics=metrics,
            rules=Rules(),
        )
        self._meter.scheduler = self._dispatch

    async def first_life(self) -> dict[str, Taken]:
        """Takes in and evaluates everything for the first time."""
        return {
            "taking in": await self._meter.measure(self._take_in(range(self._backlog.queued))),
            "full plan": await self._meter.measure(self._dispatch.cycle()),
        }

    async def restart(self) -> dict[str, Taken]:
        """Loads the records of the earlier life, and evaluates them."""
        figures = {
            "loading": await self._meter.measure(self._load()),
            "first cycle": await self._meter.measure(self._dispatch.cycle()),
        }
        if len(list(self._cache.queued())) != self._backlog.queued:
            raise AssertionError("not everything was queued before")
        return figures

    async def cycles(self) -> dict[str, Taken]:
        """Cycles in which no gang fits, by the event that woke them."""
        return {
            "cycle, nothing changed": await self._repeat(lambda _: None),
            "cycle, capacity changed": await self._repeat(self._touch_capacity),
            "cycle, one arrived": await self._repeat_arrivals(),
        }

    async def reasons(self, arrivals: int, *, is_changing: bool) -> list[Reason]:
        """The times from the submission of one more AppWrapper to the commit of its pending reason.

        The scheduler runs, and they arrive one after another. With `is_changing`, capacity changes `CHANGES_PER_SECOND`
        times a second meanwhile.
        """
        tasks = [asyncio.create_task(self._dispatch.run())]
        tasks += [asyncio.create_task(self._keep_changing())] if is_changing else []
        first = len(list(self._cache.queued()))
        taken = [await self._reason_of(number) for number in range(first, first + arrivals)]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return taken

    async def _reason_of(self, number: int) -> Reason:
        change, wall, cpu = self._submitted(number), time.perf_counter(), time.process_time()
        decided = self._decided[change.after.uid] = asyncio.Event()
        await self.committer.commit_all([change])
        self._dispatch.wake()
        await decided.wait()
        return Reason(time.perf_counter() - wall, time.process_time() - cpu)

    async def _keep_changing(self) -> None:
        for number in count():
            self._touch_capacity(number)
            self._dispatch.wake()
            await asyncio.sleep(1 / CHANGES_PER_SECOND)

    def _note_decided(self, uid: str) -> None:
        if uid in self._decided:
            self._decided[uid].set()

    async def _take_in(self, numbers: Sequence[int]) -> None:
        for start in range(0, len(numbers), ADMITTED_AT_ONCE):
            batch = numbers[start : start + ADMITTED_AT_ONCE]
            changes, slices = [], Slices(time.monotonic)
            for each in batch:  # the controller makes each one separately
                changes.append(self._submitted(each))
                await slices.give_way()
            await self.committer.commit_all(changes)

    def _submitted(self, number: int) -> Change:
        return submitted(number, self._backlog.mix, _now(), self._backlog.namespaces)

    async def _load(self) -> None:
        await load(self._cache, self._store, Slices(time.monotonic))

    async def _repeat(self, before: Callable[[int], None]) -> Taken:
        taken = []
        for number in range(self._backlog.repeats):
            before(number)
            taken.append(await self._meter.measure(self._dispatch.cycle()))
        if any(each.committing for each in taken):
            raise AssertionError("something was new to a cycle that was to find nothing")
        return median(taken)

    async def _repeat_arrivals(self) -> Taken:
        taken = []
        for number in range(self._backlog.repeats):
            await self._take_in(range(self._backlog.queued + number, self._backlog.queued + number + 1))
            taken.append(await self._meter.measure(self._dispatch.cycle()))
        return median(taken)

    def _touch_capacity(self, number: int) -> None:
        if number % 2:
            self._ledger.set_pod(CRUMB)
        else:
            self._ledger.remove_pod(CRUMB.uid)


async def live(url: str, life: Life, backlog: Backlog) -> dict[str, Any]:
    """Runs one life on that database; returns its figures."""
    before = memory()
    with short_collections(time.monotonic):
        return await _measured(url, life, backlog, before)


async def _measured(url: str, life: Life, backlog: Backlog, before: int) -> dict[str, Any]:
    async with open_bench(url, backlog) as bench:
        figures = await (bench.first_life() if life is Life.FIRST else bench.restart())
        loaded = memory()
        figures |= await bench.cycles() if life is Life.RESTART else {}
    return {
        "taken": {name: asdict(taken) for name, taken in figures.items()},
        "memory": {"at start": before, "loaded": loaded, "peak": peak_memory(os.getpid())},
    }


@asynccontextmanager
async def open_bench(url: str, backlog: Backlog) -> AsyncIterator[Bench]:
    """The composed parts on that database, as its leader."""
    database = Database(url)
    leadership = Leadership(database, holder=f"bench-{os.getpid()}", lease=timedelta(hours=1))
    lease = await leadership.acquire()
    if lease is None:
        raise AssertionError("somebody else leads")
    await ensure_partitions(database, lease, _now())
    store = TimedStore(database, lambda: leadership.lease)
    with _nowhere() as kubeconfig:
        async with await ClusterClient.connect(kubeconfig) as client:
            bench = Bench(client, store, backlog)
            committing = asyncio.create_task(bench.committer.run())
            yield bench
            committing.cancel()
            with suppress(asyncio.CancelledError):
                await committing
    await leadership.release()
    await database.close()


@contextmanager
def _nowhere() -> Iterator[str]:
    """A kubeconfig that leads to no API server."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kubeconfig"
        path.write_text(yaml.safe_dump(_KUBECONFIG))
        yield str(path)


_KUBECONFIG: Final = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "nowhere",
    "contexts": [{"name": "nowhere", "context": {"cluster": "nowhere", "user": "nobody"}}],
    "clusters": [{"name": "nowhere", "cluster": {"server": "http://127.0.0.1:9"}}],
    "users": [{"name": "nobody", "user": {}}],
}


def _now() -> datetime:
    return datetime.now(UTC)


def main() -> None:
    """Runs the life that standard input describes; writes figures to standard output, the log to standard error."""
    asked = orjson.loads(sys.stdin.buffer.read())
    log.configure("info", "json")
    backlog = Backlog(**{**asked["backlog"], "mix": Mix(asked["backlog"]["mix"])})
    figures = asyncio.run(live(asked["url"], Life(asked["life"]), backlog))
    sys.stdout.buffer.write(orjson.dumps(figures))


if __name__ == "__main__":
    main()
