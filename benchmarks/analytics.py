"""`python -m benchmarks.analytics`: the speed of queries on history, and their cost for dispatch."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks import past
from benchmarks.analytics_report import answers_table, costs, dispatch_table, spread_alone
from benchmarks.answers import Answered, ask_commands, ask_questions, subject_of
from benchmarks.arena import Arena, fresh_arena
from benchmarks.beside import WARM_UP, Beside, Phase, Size, clear
from benchmarks.floor import measure_floor
from benchmarks.gangs import make_gangs
from benchmarks.past import Past
from benchmarks.questions import COMMANDS, FILTERED, UNFILTERED
from benchmarks.runner import measured, progress, write
from benchmarks.subject import running_dispatcher, wait_until_ready
from benchmarks.throughput import at_least_one
from dispatcher.store import migrate
from testbed.postgres import EmbeddedPostgres

ABOUT = """\
Measures history beside dispatch, on a database with a generated past of many AppWrappers.

  dispatch  One dispatcher dispatches N AppWrappers, the same as in `python -m benchmarks.throughput`, four times:
            alone; beside three analysts, which repeat long queries over all of history, each in one transaction
            and as the role dispatcher_reader without its limits; beside three processes that use as much processor
            time as the analysts and no database; and alone again. After each load come single AppWrappers. The
            difference between the second and the third time is the cost of the database's work.
  answers   How long each command takes to ask, some questions of one's own, and each view read whole, as
            dispatcher_reader, with AppWrappers waiting and running; and which tables are read by an index or
            whole, counted in partitions. More than that role's 30 seconds is marked by "!".

The floor, a client that writes the same by itself, is measured before and after. Neither etcd nor Postgres flushes to
disk here: what is measured is software.
"""

EXAMPLES = """\
examples:
  python -m benchmarks.analytics                               a million AppWrappers, about 25 minutes
  python -m benchmarks.analytics --appwrappers 20000 --count 200 --singles 20 --rounds 1
  python -m benchmarks.analytics --only answers --output out.json
"""

DISPATCH: Final = "dispatch"
ANSWERS: Final = "answers"


@dataclass(slots=True)
class Results:
    """The measured figures; floors in gangs per second."""

    generating: float = 0.0
    """Seconds in which the past was written."""
    floors: list[float] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    answers: list[Answered] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures by the command line, prints the tables, and returns the exit code."""
    options = parser().parse_args(arguments)
    results = measured(lambda folder: Benchmark(options, folder).run())
    write(options.output, as_json(results, options))
    print(as_text(results))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.analytics",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    numbers = {
        "--appwrappers": (1_000_000, "of the past"),
        "--days": (400, "the past is long"),
        "--count": (1000, "AppWrappers submitted at once"),
        "--singles": (100, "AppWrappers one at a time"),
        "--rounds": (3, "of analysts and strangers"),
        "--connections": (32, "of the submitter"),
        "--waiting": (10_000, "AppWrappers that wait while questions are answered"),
        "--running": (1000, "AppWrappers that run meanwhile"),
    }
    for name, (default, about) in numbers.items():
        top.add_argument(
            name, type=at_least_one, default=default, metavar="N", help=f"{about} (default: {default})"
        )
    top.add_argument("--only", choices=(DISPATCH, ANSWERS), help="one of the two parts; default: both")
    top.add_argument("--output", metavar="FILE.json", help="write every figure there as JSON")
    return top


def as_json(results: Results, options: argparse.Namespace) -> dict[str, object]:
    """All figures and their conditions."""
    return {
        "benchmark": "analytics",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "processors": os.cpu_count(),
        "conditions": {name: value for name, value in vars(options).items() if name != "output"},
        **asdict(results),
        "costs": [asdict(each) for each in costs(results.phases)],
        "spread_alone": spread_alone(results.phases) if results.phases else None,
    }


def as_text(results: Results) -> str:
    """The tables, as far as they were measured."""
    lines = [f"the past was written within {results.generating:.0f} s"]
    if results.phases:
        lines += ["", dispatch_table(results.phases, results.floors)]
    if results.answers:
        lines += ["", answers_table(results.answers)]
    return "\n".join(lines)


class Benchmark:
    """Both parts, on one database."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._say = progress()
        self._size = Size(options.count, options.singles, options.connections)
        self._results = Results()

    async def run(self) -> Results:
        """Runs the requested measurements."""
        if self._options.only == ANSWERS:
            with EmbeddedPostgres(database="dispatcher") as postgres:
                await self._with_past(postgres.url)
                await self._answers(postgres.url)
            return self._results
        room_for, connections = self._size.in_all, self._size.connections
        async with fresh_arena(self._folder / "arena", room_for, connections, self._say) as arena:
            await self._floor(arena)
            with EmbeddedPostgres(arena.supervisor, database="dispatcher") as postgres:
                await self._with_past(postgres.url)
                await self._dispatch(arena, postgres.url)
                await self._floor(arena)
                if self._options.only != DISPATCH:
                    await self._answers(postgres.url)
        return self._results

    async def _with_past(self, url: str) -> None:
        await asyncio.to_thread(migrate.migrate, url)
        started = time.monotonic()
        wanted = Past(self._options.appwrappers, self._options.days)
        await asyncio.to_thread(past.write_past, url, wanted, self._say)
        self._results.generating = time.monotonic() - started

    async def _dispatch(self, arena: Arena, url: str) -> None:
        kubeconfig = await arena.dispatcher_kubeconfig()
        with running_dispatcher(arena.supervisor, kubeconfig, url, "") as process:
            await wait_until_ready(process)
            beside = Beside(arena, process, url, self._size, self._say)
            self._results.phases = await beside.run(self._options.rounds)

    async def _floor(self, arena: Arena) -> None:
        mark = len(self._results.floors)
        warm_up = make_gangs(f"warm-up-of-floor-{mark}", WARM_UP)
        measured = make_gangs(f"floor-{mark}", self._size.count)
        floor = await measure_floor(arena, warm_up, measured, self._size.connections)
        self._say(f"floor: {floor.per_second:.1f} gangs/s")
        self._results.floors.append(floor.per_second)
        await clear(arena, self._size.connections)

    async def _answers(self, url: str) -> None:
        self._say(f"adding {self._options.waiting} that wait and {self._options.running} that run")
        await asyncio.to_thread(past.write_present, url, self._options.waiting, self._options.running)
        subject, questions = subject_of(url), (*FILTERED, *UNFILTERED)
        self._results.answers = [
            *await ask_commands(url, COMMANDS, subject, self._say),
            *await asyncio.to_thread(ask_questions, url, questions, subject, self._say),
        ]


if __name__ == "__main__":
    sys.exit(main())
