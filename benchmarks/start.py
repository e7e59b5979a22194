"""`python -m benchmarks.start`: the processor time of commands, and of a dispatcher until it may lead."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.arena import fresh_arena
from benchmarks.failure import BenchmarkFailed
from benchmarks.gangs import CHECKOUT
from benchmarks.processor import Usage
from benchmarks.runner import measured, progress, write
from benchmarks.subject import DISPATCHER, running_dispatcher, wait_until_ready
from dispatcher.store import migrate
from testbed.postgres import EmbeddedPostgres
from testbed.processes import Supervisor

COMMANDS: Final = (
    ("--help",),
    ("queue",),
    ("history",),
    ("usage",),
    ("clusters",),
    ("sql", "SELECT * FROM history.queue_now"),
)
INTERPRETER: Final = ("-c", "pass")

ABOUT = """\
Measures what users wait for before anything happens, on a real Postgres and a real control plane.

  commands  Each is run R times, in turns, against an empty queue; what counts is the median of its
            processor time, in user and kernel mode, from start to exit. `python` is the interpreter alone.
  run       A dispatcher is started R times; what counts is the median of its processor time until it leads
            and has seen the cluster.
"""


@dataclass(frozen=True, slots=True)
class Start:
    """Medians in seconds; `cpu` is processor time, `wall` what a user waits."""

    name: str
    cpu: float
    wall: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures by the command line, prints the table, and returns the exit code."""
    options = parser().parse_args(arguments)
    starts = measured(lambda folder: _measure(options.repeat, folder))
    write(
        options.output,
        {
            "benchmark": "start",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "starts": [asdict(each) for each in starts],
        },
    )
    print(as_table(starts))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.start",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--repeat", type=int, default=7, metavar="R", help="(default: %(default)s)")
    top.add_argument("--output", metavar="FILE.json", help="write every figure there as JSON")
    return top


def as_table(starts: Sequence[Start]) -> str:
    """A line for each start."""
    lines = [f"{'':<48}{'CPU s':>8}{'wall s':>8}"]
    lines += [f"{each.name:<48}{each.cpu:>8.2f}{each.wall:>8.2f}" for each in starts]
    return "\n".join(lines)


async def _measure(repeat: int, folder: Path) -> list[Start]:
    async with fresh_arena(folder / "plane", 1, 1, _say) as arena:
        with EmbeddedPostgres(arena.supervisor, database="dispatcher") as postgres:
            await asyncio.to_thread(migrate.migrate, postgres.url)
            _say(f"running {len(COMMANDS)} commands {repeat} times")
            starts = await asyncio.to_thread(_commands, repeat, postgres.url)
            kubeconfig = await arena.dispatcher_kubeconfig()
            _say(f"starting a dispatcher {repeat} times")
            runs = [await _run(folder / f"run-{each}", kubeconfig, postgres.url) for each in range(repeat)]
    return [*starts, _median("dispatcher run, until it leads", runs)]


def _commands(repeat: int, url: str) -> list[Start]:
    dispatcher = ("-m", "dispatcher")
    named = {
        "python": INTERPRETER,
        **{f"dispatcher {' '.join(each)}": (*dispatcher, *each) for each in COMMANDS},
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in named}
    for _ in range(repeat):
        for name, arguments in named.items():
            taken[name].append(_once(arguments, url))
    return [_median(name, each) for name, each in taken.items()]


def _once(arguments: Sequence[str], url: str) -> tuple[float, float]:
    """The processor time and the wall time of one command."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "DISPATCHER_DATABASE_URL": url}
    before, began = os.times(), time.monotonic()
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    wall, after = time.monotonic() - began, os.times()
    if done.returncode:
        raise BenchmarkFailed(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return used, wall


async def _run(folder: Path, kubeconfig: Path, url: str) -> tuple[float, float]:
    """The processor time and the wall time of a dispatcher until it leads; each has its own log."""
    began = time.monotonic()
    with Supervisor(folder) as supervisor, running_dispatcher(supervisor, kubeconfig, url, "") as process:
        await wait_until_ready(process)
        wall = time.monotonic() - began
        return Usage.now(supervisor).seconds[DISPATCHER], wall


def _median(name: str, taken: Sequence[tuple[float, float]]) -> Start:
    cpu, wall = (statistics.median(each) for each in zip(*taken, strict=True))
    return Start(name, cpu, wall)


_say: Final = progress()


if __name__ == "__main__":
    sys.exit(main())
