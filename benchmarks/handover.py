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
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Final, NamedTuple

import psycopg

from benchmarks.arena import Arena, fresh_arena, spread
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

  Some gangs are live before the first change. Then users submit N gangs a second, and all of them fit. Two
  dispatchers run with their default settings. In turns the leader is stopped by SIGTERM and another dispatcher
  is started, as in a rolling restart, and at last the leader is killed by SIGKILL. The pause is the longest
  time between two dispatches, by history, while a gang was waiting; the pause of objects is the longest time
  between the creations of the objects of two gangs. There is no result unless every AppWrapper was dispatched once
  and owns one RayCluster.
"""


@dataclass(frozen=True, slots=True)
class Handover:
    """One change of the leader; seconds."""

    signal: str
    live: int
    """Gangs that were submitted before it; none of them ends."""
    taken_over: float
    """From the signal until the next leader has its lease."""
    pause: float
    """The longest time without a dispatch while a gang was waiting, from the signal on."""
    pause_of_objects: float
    """The longest time in which no gang's objects were created while a gang was waiting for that."""


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
    result = measured(lambda folder: _measure(signals, options, folder))
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
        ("--live", 1000, "live gangs before the first change"),
        ("--room", 3000, "gangs that the cluster can hold"),
    ):
        top.add_argument(
            name, type=int, default=default, metavar="N", help=f"{meaning} (default: %(default)s)"
        )
    top.add_argument("--output", metavar="FILE.json", help="write every figure there as JSON")
    return top


def as_table(result: Result) -> str:
    """A line for each handover."""
    lines = [f"{'':<24}{'live gangs':>12}{'next leader s':>15}{'pause s':>10}{'of objects s':>15}"]
    lines += [
        f"{each.signal:<24}{each.live:>12}{each.taken_over:>15.2f}{each.pause:>10.2f}{each.pause_of_objects:>15.2f}"
        for each in result.handovers
    ]
    lines += [
        f"{'before all of them':<24}{'':>27}{result.undisturbed:>10.2f}",
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


async def _measure(signals: Sequence[signal.Signals], options: argparse.Namespace, folder: Path) -> Result:
    room: int = options.room
    async with fresh_arena(folder, room, CONNECTIONS, _say) as arena:
        with EmbeddedPostgres(arena.supervisor, database="dispatcher") as postgres, ExitStack() as running:
            await asyncio.to_thread(migrate.migrate, postgres.url)
            kubeconfig, numbers = await arena.dispatcher_kubeconfig(), count(1)

            def start() -> Process:
                name = f"dispatcher-{next(numbers)}"
                return running.enter_context(
                    running_dispatcher(arena.supervisor, kubeconfig, postgres.url, "", name=name)
                )

            trial = _Trial(arena, postgres.url, start, make_gangs("gang", room))
            return await trial.run(signals, options.live, 1 / options.rate)


class _Moment(NamedTuple):
    """A signal, the live gangs then, when it was sent, and when the next leader had its lease."""

    signal: str
    live: int
    began: datetime
    taken_over: datetime


class _Times(NamedTuple):
    """When each gang was dispatched, and when its objects were created, by name."""

    dispatched: dict[str, datetime]
    created: dict[str, datetime]


class _Trial:
    def __init__(
        self, arena: Arena, database_url: str, start: Callable[[], Process], gangs: Sequence[Gang]
    ) -> None:
        self._arena = arena
        self._database_url = database_url
        self._start = start
        self._left = iter(gangs)
        self._submitted: dict[str, datetime] = {}
        self._users_began = datetime.now(UTC)

    async def run(self, signals: Sequence[signal.Signals], live: int, pause: float) -> Result:
        """Creates `live` gangs, then replaces the leader for each signal while a gang arrives after each pause."""
        leader = self._start()
        await wait_for_role(leader, "leader")
        await self._fill(live)
        usage = Usage.now(self._arena.supervisor)
        moments: list[_Moment] = []
        async with self._users(pause):
            await self._dispatched_by(1)
            for epoch, number in enumerate(signals, start=2):
                standby = self._start()
                await wait_for_role(standby, "standby")
                began, before = datetime.now(UTC), len(self._submitted)
                leader.send(number)
                moments.append(_Moment(number.name, before, began, await self._taken_over(epoch)))
                await self._dispatched_by(epoch)
                _say(f"{number.name}: another leads")
                leader = standby
        noise = Usage.now(self._arena.supervisor).since(usage).noise
        return self._result(moments, await self._check(), noise)

    def _result(self, moments: Sequence[_Moment], times: _Times, noise: float) -> Result:
        begun = [each.began for each in moments]
        ends = [*begun[1:], max(times.created.values())]

        def pause(of: Mapping[str, datetime], since: datetime, until: datetime) -> float:
            return longest_pause(self._submitted, of, since, until)

        return Result(
            len(times.dispatched),
            pause(times.dispatched, self._users_began, begun[0]),
            tuple(
                Handover(
                    each.signal,
                    each.live,
                    (each.taken_over - each.began).total_seconds(),
                    pause(times.dispatched, each.began, end),
                    pause(times.created, each.began, end),
                )
                for each, end in zip(moments, ends, strict=True)
            ),
            noise,
        )

    async def _fill(self, count: int) -> None:
        """Submits gangs, and returns once the objects of all are created."""

        async def submit(gang: Gang) -> None:
            self._submitted[gang.name] = datetime.now(UTC)
            await self._arena.client.create(APPWRAPPERS, gang.appwrapper)

        await spread(islice(self._left, count), CONNECTIONS, submit)
        await self._until("SELECT count(*) FROM event WHERE cause = 'created'", count)
        _say(f"{count} gangs are live")
        self._users_began = datetime.now(UTC)

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

    async def _check(self) -> _Times:
        """When each gang was dispatched and created; raises `BenchmarkFailed` if one is lost or dispatched twice."""
        async with await psycopg.AsyncConnection.connect(self._database_url) as connection:
            query = "SELECT name, at FROM event WHERE cause = %s"
            rows = await (await connection.execute(query, ["dispatched"])).fetchall()
            created = await (await connection.execute(query, ["created"])).fetchall()
        rayclusters = await self._arena.list(RAYCLUSTERS)
        owners = sorted(each["metadata"]["ownerReferences"][0]["name"] for each in rayclusters)
        if not sorted(self._submitted) == sorted(name for name, _ in rows) == owners:
            raise BenchmarkFailed(
                f"{len(self._submitted)} gangs were submitted, {len(rows)} dispatches committed, "
                f"{len(owners)} RayClusters created"
            )
        return _Times(dict(rows), dict(created))

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
