"""One run of the baseline: a control plane without controllers, a dispatcher, a generator, a stand-in for Jobs."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson
import psycopg

from benchmarks import baseline_check, baseline_floor, baseline_generator, figures
from benchmarks.arena import Arena
from benchmarks.baseline_floor import Floor
from benchmarks.baseline_generator import APPWRAPPERS, Submitted
from benchmarks.baseline_jobs import JOBS, Lateness
from benchmarks.baseline_pattern import SIZES, arrivals, dispatch_queues, limits, namespaces, parents
from benchmarks.declared_queues import declare
from benchmarks.failure import BenchmarkFailed
from benchmarks.gangs import CHECKOUT, NAMESPACE
from benchmarks.processor import Usage, Used, peak_memory_of_all, wait_for_calm
from benchmarks.subject import running_dispatcher, wait_until_ready
from dispatcher.kube.client import ClusterClient
from dispatcher.store import migrate
from testbed import build
from testbed.nodes import Shape
from testbed.plane import COMPONENTS, Plane, Wanted
from testbed.postgres import EmbeddedPostgres
from testbed.processes import Ending, Process, Supervisor

NODES: Final = 30
NODE: Final = Shape(cpu="64", memory="256Gi")
"""Three times the quota of all queues, so that a node with 20 free CPUs is always left."""
LOOK_SECONDS: Final = 0.5
REPORT_SECONDS: Final = 10.0
STALLED_SECONDS: Final = 120.0
SEEN_SECONDS: Final = 60.0
EVENTS: Final = " events"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Delays:
    """Mean, 99th percentile and longest of some delays, in seconds."""

    mean: float
    p99: float
    longest: float

    @classmethod
    def of(cls, seconds: list[float]) -> Delays:
        """The figures of these delays; there must be some."""
        return cls(statistics.mean(seconds), figures.percentile(seconds, 99), max(seconds))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one run. Times are in seconds, memory in bytes.

    `seconds` is from the first create until the commit of the last completion. `waits` are from the create of an
    AppWrapper until the dispatcher has created its Job for the first time, by size. `late` is how late the generator
    sent the creates, and `jobs` how late the stand-in was. `peaks` is the highest use of each queue and tree, in
    thousandths of a CPU; `excesses` has a sentence for each that used more than its limit. `writes` are all writes of
    the API server by resource, those of the generator and of the stand-in among them; `events` are Events.
    """

    gangs: int
    seconds: float
    submit_seconds: float
    waits: Mapping[str, Delays]
    late: Delays
    jobs: Lateness
    attempts: Mapping[str, int]
    lost: int
    peaks: Mapping[str, int]
    excesses: list[str]
    used: Used
    peak_memory: int
    writes: Mapping[str, int]
    events: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What is read while the processes still run."""

    used: Used
    peak_memory: int
    lost: int
    writes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of a run; `profile` is the file for cProfile, empty for none."""

    scale: float
    connections: int
    profile: str


async def run_floor(folder: Path, settings: Settings, say: Say) -> Floor:
    """Writes the whole pattern without a dispatcher on a fresh control plane."""
    say("starting a control plane for the floor")
    async with _cluster(folder) as arena:
        for each in COMPONENTS:
            await arena.plane.kill_component(each)
        await wait_for_calm(arena.supervisor, say)
        say("the floor")
        return await baseline_floor.measure(arena, arrivals(settings.scale), settings.connections)


async def run(folder: Path, settings: Settings, say: Say) -> Outcome:
    """Runs the pattern on a fresh control plane and a fresh database."""
    say("starting a control plane, Postgres and the dispatcher")
    async with _cluster(folder) as arena:
        kubeconfig = await arena.dispatcher_kubeconfig()
        for each in COMPONENTS:
            await arena.plane.kill_component(each)
        with EmbeddedPostgres(arena.supervisor, database="dispatcher") as postgres:
            await asyncio.to_thread(migrate.migrate, postgres.url)
            with running_dispatcher(
                arena.supervisor, kubeconfig, postgres.url, settings.profile
            ) as dispatcher:
                await wait_until_ready(dispatcher)
                return await Trial(arena, dispatcher, postgres.url, settings, say).run()


class Trial:
    """Has all gangs submitted and ended, and reads what became of them."""

    def __init__(
        self, arena: Arena, dispatcher: Process, database_url: str, settings: Settings, say: Say
    ) -> None:
        self._arena = arena
        self._dispatcher = dispatcher
        self._url = database_url
        self._settings = settings
        self._say = say
        self._gangs = len(arrivals(settings.scale))
        self._submitted = arena.supervisor.folder / "submitted.json"
        self._lateness = arena.supervisor.folder / "jobs.json"

    async def run(self) -> Outcome:
        """Runs the whole load; raises `BenchmarkFailed` if it does not end."""
        jobs = self._start("jobs", ["--output", str(self._lateness)])
        await wait_for_calm(self._arena.supervisor, self._say)
        metrics, usage = await self._arena.metrics(), Usage.now(self._arena.supervisor)
        generator = self._start("generator", self._generator_options())
        await self._until_all_completed([self._dispatcher, jobs, generator])
        used = Usage.now(self._arena.supervisor).since(usage)
        memory = peak_memory_of_all(self._dispatcher.pid)
        lost = await self._count_lost()
        written = figures.difference(figures.writes(await self._arena.metrics()), figures.writes(metrics))
        for each in (generator, jobs):
            self._arena.supervisor.stop(each)
        return await asyncio.to_thread(self._outcome, Measured(used, memory, lost, written))

    def _start(self, name: str, options: list[str]) -> Process:
        return self._arena.supervisor.start(
            name,
            [sys.executable, "-m", f"benchmarks.baseline_{name}", *options],
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "KUBECONFIG": str(self._arena.plane.kubeconfig),
            },
            cwd=CHECKOUT,
            ending=Ending(grace=30.0),
        )

    def _generator_options(self) -> list[str]:
        scale, connections = str(self._settings.scale), str(self._settings.connections)
        return ["--scale", scale, "--connections", connections, "--output", str(self._submitted)]

    async def _until_all_completed(self, processes: list[Process]) -> None:
        began = changed = reported = time.monotonic()
        completed = -1
        while completed < self._gangs or not self._submitted.exists():
            await asyncio.sleep(LOOK_SECONDS)
            for each in processes:
                each.check()
            phases = await asyncio.to_thread(_phases, self._url)
            now = time.monotonic()
            if phases.get("Completed", 0) != completed:
                completed, changed = phases.get("Completed", 0), now
            if now - changed > STALLED_SECONDS:
                raise BenchmarkFailed(f"nothing completed for {STALLED_SECONDS:g} s: {phases}")
            if now - reported > REPORT_SECONDS:
                reported = now
                self._say(f"{now - began:5.1f} s: {completed} of {self._gangs} Completed; {phases}")

    async def _count_lost(self) -> int:
        """AppWrappers of the pattern without status Completed, or that do not own exactly one complete Job."""
        deadline = time.monotonic() + SEEN_SECONDS
        while True:
            lost = self._gangs - len(await self._whole())
            if not lost or time.monotonic() > deadline:
                return lost
            await asyncio.sleep(LOOK_SECONDS)

    async def _whole(self) -> set[str]:
        """The uids of Completed AppWrappers that own exactly one Job, which is complete."""
        appwrappers = await self._arena.list(f"{APPWRAPPERS}/appwrappers")
        owners: dict[str, list[bool]] = {}
        for job in await self._arena.list(JOBS):
            is_complete = job["status"].get("succeeded") == 1
            owners.setdefault(job["metadata"]["ownerReferences"][0]["uid"], []).append(is_complete)
        return {
            each["metadata"]["uid"]
            for each in appwrappers
            if each.get("status", {}).get("state") == "Completed"
            and owners.get(each["metadata"]["uid"]) == [True]
        }

    def _outcome(self, measured: Measured) -> Outcome:
        submitted = baseline_generator.read(self._submitted)
        first = min(each.sent for each in submitted.values())
        with psycopg.connect(self._url) as connection:
            highest = baseline_check.peaks(baseline_check.moves(connection), parents())
            last = _last_end(connection)
            attempts = _counts(connection, "SELECT outcome, count(*) FROM attempt GROUP BY outcome")
            waits = _waits(connection, submitted)
        return Outcome(
            gangs=self._gangs,
            seconds=last - first,
            submit_seconds=max(each.answered for each in submitted.values()) - first,
            waits=waits,
            late=Delays.of([each.sent - each.due for each in submitted.values()]),
            jobs=Lateness(**orjson.loads(self._lateness.read_bytes())),
            attempts=attempts,
            lost=measured.lost,
            peaks=highest,
            excesses=baseline_check.excesses(highest, limits()),
            used=measured.used,
            peak_memory=measured.peak_memory,
            writes={name: count for name, count in measured.writes.items() if not name.endswith(EVENTS)},
            events=sum(count for name, count in measured.writes.items() if name.endswith(EVENTS)),
        )


@asynccontextmanager
async def _cluster(folder: Path) -> AsyncIterator[Arena]:
    crds = sorted(CHECKOUT.glob("crds/*.yaml"))
    with Supervisor(folder) as supervisor:
        plane = Plane(supervisor, build.ensure(), "hub", Wanted(nodes=NODES, shape=NODE, crds=crds))
        await asyncio.to_thread(plane.up)
        await plane.create_namespace(NAMESPACE)
        async with await ClusterClient.connect(str(plane.kubeconfig), write_timeout=30) as client:
            for namespace in namespaces():
                await client.create("/api/v1/namespaces", namespace)
            await declare(client, dispatch_queues())
            yield Arena(supervisor, plane, client)


def _phases(url: str) -> dict[str, int]:
    with psycopg.connect(url) as connection:
        return _counts(connection, "SELECT phase, count(*) FROM appwrapper GROUP BY phase")


def _waits(connection: psycopg.Connection, submitted: Mapping[str, Submitted]) -> dict[str, Delays]:
    rows = connection.execute(
        "SELECT name, extract(epoch FROM min(attempt.created_at))::float8"
        " FROM attempt JOIN appwrapper USING (uid) GROUP BY name"
    )
    by_size: dict[str, list[float]] = {}
    for name, created in rows:
        by_size.setdefault(name.split("-")[-2], []).append(created - submitted[name].sent)
    return {size.name: Delays.of(by_size[size.name]) for size in SIZES}


def _last_end(connection: psycopg.Connection) -> float:
    row = connection.execute("SELECT extract(epoch FROM max(ended_at))::float8 FROM appwrapper").fetchone()
    return float(row[0]) if row else 0.0


def _counts(connection: psycopg.Connection, query: str) -> dict[str, int]:
    return {str(name): int(count) for name, count in connection.execute(query.encode())}
