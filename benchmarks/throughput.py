"""`python -m benchmarks.throughput`: the dispatcher's rate, beside the highest rate of the same API server."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks import report
from benchmarks.arena import Arena, fresh_arena
from benchmarks.declared_queues import declare, generous_trees, leaves, spread_over_queues
from benchmarks.floor import Floor, measure_floor
from benchmarks.gangs import APPWRAPPERS, make_gangs
from benchmarks.report import Round
from benchmarks.runner import measured, progress, write
from benchmarks.subject import Watcher, running_dispatcher, wait_until_ready
from benchmarks.trial import Trial, Trials, Work
from dispatcher.core.scheduling.capacity.capacity_ledger import FitMode
from dispatcher.store import migrate
from testbed.postgres import EmbeddedPostgres

WARM_UP: Final = 32

ABOUT = """\
Measures the dispatcher on a real control plane, beside the bare floor.

  floor       A client that decides nothing writes, for each of N gangs, AppWrapper, RayCluster and
              two status patches itself. No dispatcher could be faster with that many writes; ours
              makes fewer, so its ratio to the floor can exceed 1.
  dispatched  N AppWrappers, each wrapping one RayCluster of two pods, are submitted at once to a
              dispatcher in a process of its own; the clock stops when a watch has shown the last of
              them Dispatched.
  rest        Nothing is submitted; the API server counts what the dispatcher writes. It must be 0.
  latency     One AppWrapper at a time: from sending the create to seeing it Dispatched.

With --queues N the AppWrappers are spread over N declared DispatchQueues, in trees of ten, whose quota
is enough for all. Of several numbers, as in --queues 0,100, each is measured in each round, in turns.
So is each way of --fit, as in --fit aggregate,node: where gangs fit by sums, and by nodes.

Each floor and each dispatcher has a control plane of its own, fresh and come to rest, because an API
server slows down with what it has seen; nothing runs side by side. A floor is measured before and
after each dispatcher; absolute rates depend on the machine, the ratio hardly does. In the end every
AppWrapper must be Dispatched and own exactly one RayCluster, or there is no result.

Writes are counted by the API server until the dispatcher stops writing after the last dispatch. Nobody
makes pods here, so half a minute after its dispatch each AppWrapper gets a note that it lacks them,
which a gang with pods does not get. Notes are left out of the count; rest begins after the last one.

Neither etcd nor (unless you name one) Postgres flushes to disk here: what is measured is software.
"""

EXAMPLES = """\
examples:
  python -m benchmarks.throughput                              about two and a half minutes
  python -m benchmarks.throughput --repeat 3 --output out.json
  python -m benchmarks.throughput --database-url postgresql://user:password@host/an_empty_database
  python -m benchmarks.throughput --queues 0,100 --repeat 3    what declared queues cost
  python -m benchmarks.throughput --fit aggregate,node --repeat 3   what places on nodes cost
  python -m benchmarks.throughput --profile out.prof           then: python -m pstats out.prof
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures by the command line, prints the table, and returns the exit code."""
    options = parser().parse_args(arguments)
    if options.database_url and options.repeat * len(options.queues) * len(options.fit) > 1:
        print(
            "benchmark: a database of yours is empty only once: leave out --repeat, and give one number of --queues "
            "and one way of --fit",
            file=sys.stderr,
        )
        return 2
    rounds, conditions = measured(lambda folder: Benchmark(options, folder).run())
    write(options.output, report.as_json(rounds, conditions))
    print(report.as_table(rounds))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.throughput",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument(
        "--count", type=at_least_one, default=1000, metavar="N", help="AppWrappers (default: %(default)s)"
    )
    top.add_argument(
        "--connections",
        type=int,
        default=32,
        help="of the submitter, and of the floor (default: %(default)s)",
    )
    top.add_argument(
        "--repeat", type=at_least_one, default=1, help="rounds; the median counts (default: %(default)s)"
    )
    top.add_argument(
        "--singles", type=at_least_one, default=100, help="AppWrappers one at a time (default: %(default)s)"
    )
    top.add_argument(
        "--queues",
        type=queue_counts,
        default=(0,),
        metavar="N[,N]",
        help="declared queues over which the AppWrappers are spread (default: 0)",
    )
    top.add_argument(
        "--fit",
        type=fit_modes,
        default=(FitMode.NODE,),
        metavar="WAY[,WAY]",
        help="node, aggregate, or both: DISPATCHER_FIT of the dispatcher (default: node)",
    )
    top.add_argument("--rest", type=float, default=20.0, help="seconds of rest (default: %(default)s)")
    top.add_argument("--output", metavar="FILE.json", help="write every figure there as JSON")
    top.add_argument(
        "--database-url",
        metavar="URL",
        default="",
        help="an empty database to use; default: an embedded Postgres",
    )
    top.add_argument(
        "--profile", metavar="FILE", default="", help="run the dispatcher under cProfile, which slows it down"
    )
    return top


def at_least_one(text: str) -> int:
    """The number in an argument; rejects numbers below 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def queue_counts(text: str) -> tuple[int, ...]:
    """The different numbers in an argument, as in `0,100`."""
    parts = text.split(",")
    if not all(each.isdecimal() for each in parts) or len({int(each) for each in parts}) < len(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of different numbers")
    return tuple(int(each) for each in parts)


def fit_modes(text: str) -> tuple[FitMode, ...]:
    """The different ways of fit in an argument, as in `aggregate,node`."""
    parts = text.split(",")
    if not set(parts) <= set(FitMode) or len(set(parts)) < len(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of different ways: {', '.join(FitMode)}")
    return tuple(map(FitMode, parts))


class Benchmark:
    """Rounds: a floor, then a dispatcher and a floor in turns."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._say = progress()
        self._conditions: dict[str, Any] = {
            "count": options.count,
            "connections": options.connections,
            "queues": options.queues,
            "fit": options.fit,
            "warm_up": WARM_UP,
            "etcd": "--unsafe-no-fsync",
        }

    async def run(self) -> tuple[list[Round], dict[str, Any]]:
        """Every round, and the conditions of the measurement."""
        floor, rounds = await self._floor("floor-0"), []
        options = self._options
        turns = [*product(options.queues, options.fit)] * options.repeat
        for number, (queues, fit) in enumerate(turns, start=1):
            trial = await self._trial(f"dispatcher-{number}", queues, fit)
            following = await self._floor(f"floor-{number}")
            rounds.append(Round(floor, trial, following, queues, fit))
            floor = following
        return rounds, self._conditions

    async def _floor(self, name: str) -> Floor:
        self._say(f"{name}: starting a control plane")
        count, connections = self._options.count, self._options.connections
        warm_up, measured = make_gangs("warm-up", WARM_UP), make_gangs("gang", count)
        async with fresh_arena(self._folder / name, count, connections, self._say) as arena:
            self._say(f"{name}: writing {count} gangs")
            floor = await measure_floor(arena, warm_up, measured, connections)
        self._say(f"{name}: {floor.per_second:.1f} gangs/s")
        return floor

    async def _trial(self, name: str, queues: int, fit: FitMode) -> Trial:
        self._say(
            f"{name}: starting a control plane, Postgres and the dispatcher; {queues} queues, fit {fit}"
        )
        work = self._work(queues)
        room_for = len(work.warm_up) + len(work.load) + len(work.singles)
        async with fresh_arena(self._folder / name, room_for, work.connections, self._say) as arena:
            await declare(arena.client, generous_trees(queues))
            if self._options.database_url:
                return await self._measure(arena, self._options.database_url, work, fit)
            with EmbeddedPostgres(arena.supervisor, database="dispatcher") as postgres:
                return await self._measure(arena, postgres.url, work, fit)

    async def _measure(self, arena: Arena, database_url: str, work: Work, fit: FitMode) -> Trial:
        await asyncio.to_thread(migrate.migrate, database_url)
        self._conditions["postgres"] = await asyncio.to_thread(_durability, database_url)
        self._conditions["kubernetes"] = (await arena.client.get("/version"))["gitVersion"]
        kubeconfig = await arena.dispatcher_kubeconfig()
        profile, settings = self._options.profile, {"DISPATCHER_FIT": fit}
        with running_dispatcher(
            arena.supervisor, kubeconfig, database_url, profile, settings=settings
        ) as process:
            await wait_until_ready(process)
            watcher = Watcher(arena.client)
            version = (await arena.client.get(APPWRAPPERS))["metadata"]["resourceVersion"]
            self._say(f"submitting {len(work.load)} AppWrappers")
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(watcher.run(version))
                trial = await Trials(arena, process, watcher, self._say).run(work)
                watching.cancel()
        return trial

    def _work(self, queues: int) -> Work:
        names = leaves(queues)
        return Work(
            warm_up=spread_over_queues(make_gangs("warm-up", WARM_UP), names),
            load=spread_over_queues(make_gangs("gang", self._options.count), names),
            singles=spread_over_queues(make_gangs("single", self._options.singles), names),
            connections=self._options.connections,
            rest_seconds=self._options.rest,
        )


def _durability(database_url: str) -> dict[str, str]:
    """The server's durability settings; an embedded server's are laxer than those of production."""
    settings = ("server_version", "fsync", "synchronous_commit", "full_page_writes")
    with psycopg.connect(database_url) as connection:
        rows = [connection.execute(f"SHOW {each}").fetchone() for each in settings]
    return {name: str(row[0]) for name, row in zip(settings, rows, strict=True) if row}


if __name__ == "__main__":
    sys.exit(main())
