"""`python -m benchmarks.handover`: for how long nothing is dispatched while the leader is replaced."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import count, pairwise
from pathlib import Path
from typing import Final

import psycopg

from benchmarks.arena import Arena, fresh_arena
from benchmarks.failure import BenchmarkFailed
from benchmarks.gangs import APPWRAPPERS, RAYCLUSTERS, Gang, make_gangs
from benchmarks.processor import Usage
from benchmarks.runner import measured, progress, write
from benchmarks.subject import running_dispatcher, wait_for_role
from dispatcher.store import migrate
from testbed.postgres import EmbeddedPostgres
from testbed.processes import Process

CONNECTIONS: Final = 4
DISPATCHED_BEFORE: Final = 20
"""Gangs that a leader dispatches before the next handover, so that each pause lies between two dispatches."""
SETTLE_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.05

ABOUT = """\
Measures, on a real control plane and a real Postgres, what a change of the leader costs users.

  Users submit N gangs a second, and all of them fit. Two dispatchers run with their default settings. In turns
  the leader is stopped by SIGTERM and another dispatcher is started, as in a rolling restart, and at last the
  leader is killed by SIGKILL. The pause is the longest time between two dispatches, by history, while a gang
  was waiting. There is no result unless every AppWrapper was dispatched once and owns one RayCluster.
"""


@dataclass(frozen=True, slots=True)
class Handover:
    """One change of the leader; seconds."""

    signal: str
    taken_over: float
    """From the signal until the next leader has its lease."""
    pause: float
    """The longest time without a dispatch while a gang was waiting, from the signal on."""


@dataclass(frozen=True, slots=True)
class Result:
    """All handovers of a run; `noise` is the number of cores that other processes used."""

    gangs: int
    undisturbed: float
    """The longest time without a dispatch before the first handover, in seconds."""
    handovers: tuple[Handover, ...]
    noise: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures by the command line, prints the table, and returns the exit code."""
    options = parser().parse_args(arguments)
    signals = [signal.SIGTERM] * options.stops + [signal.SIGKILL] * options.kills
    result = measured(lambda folder: _measure(signals, options.rate, options.room, folder))
    write(
        options.output,
        {"benchmark": "handover", "at": datetime.now(UTC).isoformat(timespec="seconds"), **asdict(result)},
    )
    print(as_table(result))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.handover",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, default, meaning in (
        ("--rate", 10, "gangs a second"),
        ("--stops", 5, "SIGTERMs"),
        ("--kills", 2, "SIGKILLs"),
        ("--room", 2000, "gangs that the cluster can hold"),
    ):
        top.add_argument(
            name, type=int, default=default, metavar="N", help=f"{meaning} (default: %(default)s)"
        )
    top.add_argument("--output", metavar="FILE.json", help="write every figure there as JSON")
    return top


def as_table(result: Result) -> str:
    """A line for each handover."""
    lines = [f"{'':<24}{'next leader s':>14}{'pause s':>10}"]
    lines += [f"{each.signal:<24}{each.taken_over:>14.2f}{each.pause:>10.2f}" for each in result.handovers]
    lines += [
        f"{'before all of them':<24}{'':>14}{result.undisturbed:>10.2f}",
        f"{result.gangs} gangs, each dispatched once; others used {result.noise:.2f} cores",
    ]
    return "\n".join(lines)


def longest_pause(
    submitted: Mapping[str, datetime], dispatched: Mapping[str, datetime], since: datetime, until: datetime
) -> float:
    """The longest time without a dispatch, in seconds, while a gang was waiting, between two moments.

    Both mappings have a time for each gang; a gang waits from its submission to its dispatch.
    """
    decisions = sorted(at for at in dispatched.values() if since < at < until)
    gaps = pairwise([since, *decisions, until])
    waits = _while_waiting(gaps, submitted, dispatched)
    return max(((end - begin).total_seconds() for begin, end in waits), default=0.0)


def _while_waiting(
    gaps: Iterable[tuple[datetime, datetime]],
    submitted: Mapping[str, datetime],
    dispatched: Mapping[str, datetime],
) -> Iterable[tuple[datetime, datetime]]:
    """The part of each gap in which a gang was waiting: from the first submission to the end of the gap."""
    for begin, end in gaps:
        waiting = [at for name, at in submitted.items() if at < end <= dispatched[name]]
        if waiting:
            yield max(begin, min(waiting)), end


async def _measure(signals: Sequence[signal.Signals], rate: int, room: int, folder: Path) -> Result:
    async with fresh_arena(folder, room, CONNECTIONS, _say) as arena:
        with EmbeddedPostgres(arena.supervisor, database="dispatcher") as postgres, ExitStack() as running:
            await asyncio.to_thread(migrate.migrate, postgres.url)
            kubeconfig, numbers = await arena.dispatcher_kubeconfig(), count(1)

            def start() -> Process:
                name = f"dispatcher-{next(numbers)}"
                return running.enter_context(
                    running_dispatcher(arena.supervisor, kubeconfig, postgres.url, "", name=name)
                )

            return await _Trial(arena, postgres.url, start, make_gangs("gang", room)).run(signals, 1 / rate)


class _Trial:
    def __init__(
        self, arena: Arena, database_url: str, start: Callable[[], Process], gangs: Sequence[Gang]
    ) -> None:
        self._arena = arena
        self._database_url = database_url
        self._start = start
        self._left = iter(gangs)
        self._submitted: dict[str, datetime] = {}

    async def run(self, signals: Sequence[signal.Signals], pause: float) -> Result:
        """Replaces the leader once for each signal while a gang arrives after each pause."""
        leader = self._start()
        await wait_for_role(leader, "leader")
        usage = Usage.now(self._arena.supervisor)
        moments: list[tuple[str, datetime, datetime]] = []
        async with self._users(pause):
            await self._dispatched_by(1)
            for epoch, number in enumerate(signals, start=2):
                standby = self._start()
                await wait_for_role(standby, "standby")
                began = datetime.now(UTC)
                leader.send(number)
                moments.append((number.name, began, await self._taken_over(epoch)))
                await self._dispatched_by(epoch)
                _say(f"{number.name}: another leads")
                leader = standby
        noise = Usage.now(self._arena.supervisor).since(usage).noise
        return self._result(moments, await self._check(), noise)

    def _result(
        self,
        moments: Sequence[tuple[str, datetime, datetime]],
        dispatched: Mapping[str, datetime],
        noise: float,
    ) -> Result:
        begun = [began for _, began, _ in moments]
        ends = [*begun[1:], max(dispatched.values())]

        def pause(since: datetime, until: datetime) -> float:
            return longest_pause(self._submitted, dispatched, since, until)

        return Result(
            len(dispatched),
            pause(min(dispatched.values()), begun[0]),
            tuple(
                Handover(name, (taken - began).total_seconds(), pause(began, end))
                for (name, began, taken), end in zip(moments, ends, strict=True)
            ),
            noise,
        )

    @asynccontextmanager
    async def _users(self, pause: float) -> AsyncIterator[None]:
        """Submits a gang after each pause; at the end waits until the objects of the last one are created."""
        submitting = asyncio.create_task(self._submit(pause))
        try:
            yield
        finally:
            submitting.cancel()
        await self._until("SELECT count(*) FROM event WHERE cause = 'created'", len(self._submitted))

    async def _submit(self, pause: float) -> None:
        due = time.monotonic()
        for gang in self._left:
            self._submitted[gang.name] = datetime.now(UTC)
            # A gang that was counted is also created.
            await asyncio.shield(self._arena.client.create(APPWRAPPERS, gang.appwrapper))
            due += pause
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _taken_over(self, epoch: int) -> datetime:
        """The time at which the leader of an epoch was seen first."""
        await self._until("SELECT max(epoch) FROM leader_epoch", epoch)
        return datetime.now(UTC)

    async def _dispatched_by(self, epoch: int) -> None:
        """Returns once the leader of an epoch has dispatched some gangs."""
        query = f"SELECT count(*) FROM event WHERE cause = 'dispatched' AND epoch = {epoch}"
        await self._until(query, DISPATCHED_BEFORE)

    async def _check(self) -> dict[str, datetime]:
        """The time of each dispatch; raises `BenchmarkFailed` if a gang is lost or was dispatched twice."""
        async with await psycopg.AsyncConnection.connect(self._database_url) as connection:
            found = await connection.execute("SELECT name, at FROM event WHERE cause = 'dispatched'")
            rows = await found.fetchall()
        dispatched: dict[str, datetime] = dict(rows)
        rayclusters = await self._arena.list(RAYCLUSTERS)
        owners = sorted(each["metadata"]["ownerReferences"][0]["name"] for each in rayclusters)
        if not sorted(self._submitted) == sorted(name for name, _ in rows) == owners:
            raise BenchmarkFailed(
                f"{len(self._submitted)} gangs were submitted, {len(rows)} dispatches committed, "
                f"{len(owners)} RayClusters created"
            )
        return dispatched

    async def _until(self, query: str, least: int) -> None:
        """Returns once the query gives at least so many."""
        deadline = time.monotonic() + SETTLE_SECONDS
        async with await psycopg.AsyncConnection.connect(self._database_url, autocommit=True) as connection:
            while True:
                row = await (await connection.execute(query.encode())).fetchone()
                if row is not None and row[0] is not None and row[0] >= least:
                    return
                if time.monotonic() > deadline:
                    raise BenchmarkFailed(f"{query}: {row} and not {least} after {SETTLE_SECONDS:g} s")
                await asyncio.sleep(POLL_SECONDS)


_say: Final = progress()


if __name__ == "__main__":
    sys.exit(main())
