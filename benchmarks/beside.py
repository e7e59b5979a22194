"""Dispatch beside other load on the same machine: none, analysts in its database, or equally busy strangers.

One dispatcher works through the same load again and again, on one control plane that is emptied in between and one
database that is not: its history and its dead rows grow, as in production. Every trial in company is between two trials
alone.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import psycopg

from benchmarks.arena import Arena, spread
from benchmarks.company import Asked, analysts, strangers
from benchmarks.failure import BenchmarkFailed
from benchmarks.gangs import APPWRAPPERS, RAYCLUSTERS, Json, make_gangs
from benchmarks.processor import CALM_CORES
from benchmarks.questions import LONG
from benchmarks.subject import Watcher
from benchmarks.trial import Say, Trial, Trials, Work
from testbed.processes import Process

WARM_UP: Final = 16
CLEAR_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.2
POSTGRES: Final = "postgres"
HOT: Final = ("appwrapper", "attempt", "attempt_object", "spec_blob", "leader_lease", "leader_epoch")


class Company(StrEnum):
    """The other load on the machine."""

    NOBODY = "nobody"
    ANALYSTS = "analysts"
    STRANGERS = "strangers"


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of the queue after a trial: dead rows that vacuum could not remove yet, and bytes."""

    dead_rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Phase:
    """One trial in that company, which used `cores` cores while the load was dispatched."""

    company: Company
    trial: Trial
    cores: float
    asked: tuple[Asked, ...]
    tables: Tables

    @property
    def per_second(self) -> float:
        """Dispatches per second under load."""
        return self.trial.load.per_second


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a trial."""

    count: int
    singles: int
    connections: int

    @property
    def in_all(self) -> int:
        """AppWrappers of one trial."""
        return self.count + self.singles + WARM_UP


class Beside:
    """Measures one dispatcher, phase by phase."""

    def __init__(self, arena: Arena, process: Process, database_url: str, size: Size, say: Say) -> None:
        self._arena = arena
        self._process = process
        self._database_url = database_url
        self._size = size
        self._say = say
        self._phases: list[Phase] = []

    async def run(self, rounds: int) -> list[Phase]:
        """Alone, with analysts and with strangers in turns; at the end alone."""
        alone = await self._alone()
        for _ in range(rounds):
            observed = await self._with_analysts(alone)
            await self._with_strangers(observed.cores)
            alone = await self._alone()
        return self._phases

    async def _alone(self) -> Phase:
        trial, tables = await self._trial(CALM_CORES)
        return await self._ended(Phase(Company.NOBODY, trial, 0.0, (), tables))

    async def _with_analysts(self, alone: Phase) -> Phase:
        async with analysts(self._database_url, LONG) as asked:
            trial, tables = await self._trial(float("inf"))
        # The processor time of Postgres for the load alone is not the analysts'.
        theirs = trial.load.used.seconds[POSTGRES] - alone.trial.load.used.seconds[POSTGRES]
        cores = max(0.0, theirs / trial.load.used.elapsed)
        return await self._ended(Phase(Company.ANALYSTS, trial, cores, tuple(asked), tables))

    async def _with_strangers(self, cores: float) -> Phase:
        async with strangers(self._arena.supervisor, len(LONG), cores) as names:
            trial, tables = await self._trial(float("inf"))
        used = trial.load.used
        theirs = sum(used.seconds[each] for each in names) / used.elapsed
        return await self._ended(Phase(Company.STRANGERS, trial, theirs, (), tables))

    async def _ended(self, phase: Phase) -> Phase:
        self._phases.append(phase)
        self._say(f"in the company of {phase.company}: {phase.per_second:.1f}/s; clearing up")
        await self._clear()
        return phase

    async def _trial(self, calm_cores: float) -> tuple[Trial, Tables]:
        watcher, mark = Watcher(self._arena.client), len(self._phases)
        version = (await self._arena.client.get(APPWRAPPERS))["metadata"]["resourceVersion"]
        work = Work(
            warm_up=make_gangs(f"warm-up-{mark}", WARM_UP),
            load=make_gangs(f"gang-{mark}", self._size.count),
            singles=make_gangs(f"single-{mark}", self._size.singles),
            connections=self._size.connections,
            rest_seconds=0.0,
        )
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watcher.run(version))
            trial = await Trials(self._arena, self._process, watcher, self._say, calm_cores).run(work)
            watching.cancel()
        return trial, await asyncio.to_thread(_tables, self._database_url)

    async def _clear(self) -> None:
        """Deletes every AppWrapper, and returns when nothing of them is left, also for the dispatcher."""
        await clear(self._arena, self._size.connections)
        deadline = time.monotonic() + CLEAR_SECONDS
        while await asyncio.to_thread(_count, self._database_url, _LIVE):
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"AppWrappers are not forgotten within {CLEAR_SECONDS:g} s")
            await asyncio.sleep(POLL_SECONDS)


async def clear(arena: Arena, connections: int) -> None:
    """Deletes every AppWrapper, and returns when the API server has neither them nor their RayClusters."""

    async def delete(metadata: Json) -> None:
        await arena.client.delete(f"{APPWRAPPERS}/{metadata['name']}", metadata["uid"])

    await spread([each["metadata"] for each in await arena.list(APPWRAPPERS)], connections, delete)
    deadline = time.monotonic() + CLEAR_SECONDS
    while await arena.list(APPWRAPPERS) or await arena.list(RAYCLUSTERS):
        if time.monotonic() > deadline:
            raise BenchmarkFailed(
                f"there are AppWrappers or RayClusters {CLEAR_SECONDS:g} s after their deletion"
            )
        await asyncio.sleep(POLL_SECONDS)


def _tables(url: str) -> Tables:
    return Tables(dead_rows=_count(url, _DEAD), bytes=_count(url, _BYTES))


def _count(url: str, query: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute(query.encode(), {"hot": list(HOT)}).fetchone()
    return int(found[0]) if found else 0


_LIVE: Final = "SELECT count(*) FROM appwrapper WHERE phase <> 'Deleted'"
_DEAD: Final = "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables WHERE relname = ANY(%(hot)s)"
_BYTES: Final = "SELECT sum(pg_total_relation_size(each::regclass)) FROM unnest(%(hot)s::text[]) AS each"
