"""The dispatcher's own figures: under load, at rest, and one AppWrapper at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks import figures
from benchmarks.arena import EVENTS, WRITES, Arena, spread
from benchmarks.failure import BenchmarkFailed
from benchmarks.floor import verified_sizes
from benchmarks.gangs import APPWRAPPERS, Gang, Json, lacks_pods
from benchmarks.processor import CALM_CORES, Usage, Used, cpu_seconds, peak_memory, wait_for_calm
from benchmarks.subject import Watcher
from testbed.processes import Process

PROGRESS_SECONDS: Final = 2.0
SETTLE_SECONDS: Final = 3.0
"""Seconds without a write after which the dispatcher has finished: status, counts, Events."""
MOST_SETTLE_SECONDS: Final = 90.0
PAUSE_SECONDS: Final = 0.2
"""Seconds between two single AppWrappers, so that the effects of the first are over."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Load:
    """All gangs at once. Times in seconds.

    Writes are the dispatcher's as the API server counted them, until it stopped writing after the last dispatch: by its
    identity, without Events; and once more by resource for all clients, without nodes and the benchmark's own creates.
    The former leave out the notes of missing pods, which a gang with pods does not get.
    """

    count: int
    submit_seconds: float
    seconds: float
    per_second: float
    wait_p50: float
    wait_p99: float
    writes: int
    events: int
    writes_per_appwrapper: float
    writes_by_resource: dict[str, int]
    used: Used
    object_bytes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Rest:
    """No load; `all_writes` are those of all clients, such as the nodes' leases."""

    seconds: float
    writes: int
    """The dispatcher's writes, Events included."""
    all_writes: dict[str, int]
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Single AppWrappers, in milliseconds to Dispatched in a watch, since the create was sent or answered."""

    count: int
    p50: float
    p99: float
    longest: float
    since_answer_p50: float
    since_answer_p99: float


@dataclass(frozen=True, slots=True)
class Trial:
    """All figures of one dispatcher; memory in bytes."""

    load: Load
    rest: Rest
    latency: Latency
    peak_memory: int
    watch_interruptions: int


@dataclass(frozen=True, slots=True)
class Work:
    """The submitted gangs, and the connections."""

    warm_up: Sequence[Gang]
    load: Sequence[Gang]
    singles: Sequence[Gang]
    connections: int
    rest_seconds: float


class Trials:
    """Measures one dispatcher on one arena, in the order of the methods.

    At rest all processes use less than `calm_cores`; with company they never do.
    """

    def __init__(
        self, arena: Arena, process: Process, watcher: Watcher, say: Say, calm_cores: float = CALM_CORES
    ) -> None:
        self._arena = arena
        self._process = process
        self._watcher = watcher
        self._say = say
        self._calm_cores = calm_cores
        self._submitted: dict[str, tuple[float, float]] = {}

    async def run(self, work: Work) -> Trial:
        """Runs all measurements."""
        await self._submit(work.warm_up, work.connections)
        await self._watcher.wait_for(len(work.warm_up))
        await self._settle()
        load = await self._load(work)
        await self._settle()
        self._say(f"dispatched {load.per_second:.1f}/s; now nothing for {work.rest_seconds:g} s")
        rest = await self._rest(work.rest_seconds)
        self._say(f"{rest.writes} writes at rest; now {len(work.singles)} AppWrappers one at a time")
        latency = await self._latency(work.singles)
        await verified_sizes(self._arena, len(self._submitted))
        return Trial(load, rest, latency, peak_memory(self._process.pid), self._watcher.interruptions)

    async def _load(self, work: Work) -> Load:
        counted = await self._arena.metrics()
        usage = Usage.now(self._arena.supervisor)
        async with self._progress(len(work.load)):
            await self._submit(work.load, work.connections)
            await self._watcher.wait_for(len(self._submitted))
        used = Usage.now(self._arena.supervisor).since(usage)
        sizes = await verified_sizes(self._arena, len(self._submitted))
        await self._until_silent()
        notes = notes_of_missing_pods(work.load, await self._arena.list(APPWRAPPERS))
        return self._loaded(work.load, used, sizes, counted, await self._arena.metrics(), notes)

    def _loaded(
        self,
        load: Sequence[Gang],
        used: Used,
        sizes: dict[str, int],
        before: str,
        after: str,
        notes: int,
    ) -> Load:
        sent = [self._submitted[gang.name] for gang in load]
        seen = [self._watcher.dispatched[gang.name] for gang in load]
        first, last = min(start for start, _ in sent), max(seen)
        waits = [at - start for at, (start, _) in zip(seen, sent, strict=True)]
        written = figures.requests_of_flow(after, WRITES) - figures.requests_of_flow(before, WRITES) - notes
        return Load(
            count=len(load),
            submit_seconds=max(end for _, end in sent) - first,
            seconds=last - first,
            per_second=len(load) / (last - first),
            wait_p50=figures.percentile(waits, 50),
            wait_p99=figures.percentile(waits, 99),
            writes=written,
            events=figures.requests_of_flow(after, EVENTS) - figures.requests_of_flow(before, EVENTS),
            writes_per_appwrapper=written / len(load),
            writes_by_resource=_without_ours(
                figures.difference(figures.writes(after), figures.writes(before)), len(load)
            ),
            used=used,
            object_bytes=sizes,
        )

    async def _rest(self, seconds: float) -> Rest:
        before, used, since = await self._arena.metrics(), cpu_seconds(self._process.pid), time.monotonic()
        await asyncio.sleep(seconds)
        after = await self._arena.metrics()
        return Rest(
            seconds=time.monotonic() - since,
            writes=_of_dispatcher(after) - _of_dispatcher(before),
            all_writes=figures.difference(figures.writes(after), figures.writes(before)),
            cpu_seconds=cpu_seconds(self._process.pid) - used,
        )

    async def _latency(self, singles: Sequence[Gang]) -> Latency:
        since_sent, since_answered = [], []
        for gang in singles:
            await asyncio.sleep(PAUSE_SECONDS)
            await self._create(gang)
            seen = await self._watcher.wait_for_name(gang.name)
            sent, answered = self._submitted[gang.name]
            since_sent.append((seen - sent) * 1000)
            since_answered.append((seen - answered) * 1000)
        return Latency(
            count=len(singles),
            p50=figures.percentile(since_sent, 50),
            p99=figures.percentile(since_sent, 99),
            longest=max(since_sent),
            since_answer_p50=figures.percentile(since_answered, 50),
            since_answer_p99=figures.percentile(since_answered, 99),
        )

    async def _submit(self, load: Sequence[Gang], connections: int) -> None:
        await spread(load, connections, self._create)

    async def _create(self, gang: Gang) -> None:
        sent = time.monotonic()
        await self._arena.client.create(APPWRAPPERS, gang.appwrapper)
        self._submitted[gang.name] = sent, time.monotonic()

    async def _settle(self) -> None:
        """Returns when the dispatcher has noted missing pods, has stopped writing, and all processes are at rest."""
        await self._watcher.wait_until_pods_are_missed()
        await self._until_silent()
        await wait_for_calm(self._arena.supervisor, self._say, self._calm_cores)

    async def _until_silent(self) -> None:
        deadline = time.monotonic() + MOST_SETTLE_SECONDS
        written = -1
        while (now_written := _of_dispatcher(await self._arena.metrics())) != written:
            written = now_written
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"the dispatcher still writes {MOST_SETTLE_SECONDS:g} s after the load")
            await asyncio.sleep(SETTLE_SECONDS)

    @asynccontextmanager
    async def _progress(self, total: int) -> AsyncIterator[None]:
        """Reports the progress now and then."""
        before, started = len(self._watcher.dispatched), time.monotonic()

        async def tell() -> None:
            while True:
                await asyncio.sleep(PROGRESS_SECONDS)
                done = len(self._watcher.dispatched) - before
                seconds = time.monotonic() - started
                self._say(f"{seconds:5.1f} s: {done} of {total} Dispatched")

        task = asyncio.create_task(tell())
        try:
            yield
        finally:
            task.cancel()


def notes_of_missing_pods(load: Sequence[Gang], appwrappers: Sequence[Json]) -> int:
    """How many gangs of the load have the note that they lack pods; each is one patch of a status.

    A load that takes longer than the dispatcher waits for pods has such notes before its end.
    """
    names = {gang.name for gang in load}
    return sum(each["metadata"]["name"] in names and lacks_pods(each) for each in appwrappers)


def _of_dispatcher(metrics: str) -> int:
    return figures.requests_of_flow(metrics, WRITES) + figures.requests_of_flow(metrics, EVENTS)


def _without_ours(grown: dict[str, int], created: int) -> dict[str, int]:
    """The counts without the benchmark's own AppWrappers and without the periodic writes of nodes."""
    left = {**grown, "POST appwrappers": grown["POST appwrappers"] - created}
    return {
        key: value for key, value in left.items() if value and not key.endswith((" leases", " nodes/status"))
    }
