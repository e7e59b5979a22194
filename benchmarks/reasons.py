"""`python -m benchmarks.reasons`: the time from a submission to the stated pending reason, behind a long queue."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks import figures
from benchmarks.backlog import Backlog, Mix, Reason, open_bench
from benchmarks.runner import measured, progress, write
from benchmarks.throughput import at_least_one
from dispatcher import log
from dispatcher.controller.scheduling.garbage import short_collections
from testbed.postgres import EmbeddedPostgres, clone_template, migrated_template

ABOUT = """\
Measures how long an AppWrapper that fits nowhere waits for its pending reason while many others are queued. The
core, the scheduler and the store run on a real Postgres, without API servers; all clusters are full.

The queue is taken in and evaluated. Then AppWrappers arrive one after another. Each time is from the submission to
the commit of the reason: the commit of the intake, the pause between cycles, and the cycle with its commit. "CPU" is
the processor time of the process meanwhile, which others on the machine hardly change. The API server's share, an
event of a watch and a status patch, is not in it.

Each mix is measured with unchanged capacity, and while capacity changes ten times a second, which has each cycle
evaluate the queue again.
"""

MIXES: Final = (Mix.SHARED, Mix.DISTINCT)


@dataclass(frozen=True, slots=True)
class Reasons:
    """The times of one setting; `load` is the machine's load average at its end."""

    backlog: Backlog
    is_changing: bool
    taken: list[Reason]
    load: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures by the command line, prints the table, and returns the exit code."""
    options = parser().parse_args(arguments)
    backlogs = [Backlog(options.queued, options.nodes, mix, clusters=options.clusters) for mix in MIXES]
    found = measured(lambda folder: _measure_all(folder, backlogs, options.arrivals))
    write(
        options.output,
        {
            "benchmark": "reasons",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "measured": [asdict(each) for each in found],
        },
    )
    print(as_table(found))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.reasons",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, default, about in (
        ("queued", 10_000, "AppWrappers that wait already"),
        ("clusters", 4, "full member clusters"),
        ("nodes", 5_000, "nodes of each cluster"),
        ("arrivals", 100, "measured AppWrappers of each setting"),
    ):
        top.add_argument(
            f"--{name}",
            type=at_least_one,
            default=default,
            metavar="N",
            help=f"{about} (default: %(default)s)",
        )
    top.add_argument("--output", metavar="FILE.json", help="write every figure there as JSON")
    return top


def as_table(found: Sequence[Reasons]) -> str:
    """A line for each setting: percentiles in milliseconds."""
    titles = "".join(f"{each:>14}" for each in ("wall p50", "wall p99", "wall longest", "CPU p99", "load"))
    lines = [f"{'submission to pending reason, ms':<40}{titles}"]
    for each in found:
        name = f"{each.backlog.mix}, capacity {'changes' if each.is_changing else 'unchanged'}"
        wall, cpu = [one.wall for one in each.taken], [one.cpu for one in each.taken]
        times = (
            figures.percentile(wall, 50),
            figures.percentile(wall, 99),
            max(wall),
            figures.percentile(cpu, 99),
        )
        lines.append(
            f"{name:<40}"
            + "".join(f"{each_time * 1000:>14.0f}" for each_time in times)
            + f"{each.load:>14.1f}"
        )
    return "\n".join(lines)


async def _measure_all(folder: Path, backlogs: Sequence[Backlog], arrivals: int) -> list[Reasons]:
    found, say = [], progress()
    with (
        (folder / "log").open("w") as lines,
        EmbeddedPostgres() as postgres,
        short_collections(time.monotonic),
    ):
        with redirect_stderr(lines):
            log.configure("info", "json")  # log lines cost what they cost a dispatcher
        template = migrated_template(postgres.url)
        for number, backlog in enumerate(backlogs):
            url = clone_template(postgres.url, template, f"reasons_{number}")
            say(f"{backlog.mix}: taking in {backlog.queued} AppWrappers")
            async with open_bench(url, backlog) as bench:
                await bench.first_life()
                for is_changing in (False, True):
                    say(f"{backlog.mix}: {arrivals} arrive")
                    taken = await bench.reasons(arrivals, is_changing=is_changing)
                    found.append(Reasons(backlog, is_changing, taken, os.getloadavg()[0]))
    return found


if __name__ == "__main__":
    sys.exit(main())
