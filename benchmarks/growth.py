"""`python -m benchmarks.growth`: the cost of a long queue, and its growth with the queue and the nodes."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from benchmarks.backlog import Backlog, Life, Mix
from benchmarks.failure import BenchmarkFailed
from benchmarks.gangs import CHECKOUT
from testbed.postgres import EmbeddedPostgres, NoPostgres, clone_template, drop_database, migrated_template
from testbed.processes import ProcessDied

ABOUT = """\
Measures core and store with a long queue, on a real Postgres and without an API server. No gang fits.

  taking in     Every AppWrapper is committed as queued, 200 at a time.
  full plan     A cycle evaluates every AppWrapper for the first time and commits the pending reasons;
                "commit" is the wait for the database in it, "decisions" are without messages and commits.
  restart       A new process loads what is queued, orders it, and runs its first cycle.
  cycle         A cycle that dispatches no gang: the cost of a wake-up. It is woken without any change, by
                changed capacity (no gang fits), or by a new AppWrapper that does not fit; its commit counts.
  block         The longest time for which the event loop ran no other task.
  memory        Resident memory of the restarted process, after its first cycle.

The mixes: 300 distinct gangs, as in a real cluster; the worst case of all distinct; and 300 where every
AppWrapper has a priority slope, so that their order changes with time.

A crowd is the longest queue over 5,000 namespaces in front of 20 full member clusters: 10 sizes of gangs, all
distinct, and all distinct with a slope each. "Longest stretch" is the processor time that passed, at most, between
two turns of a timer of a millisecond, garbage collection included: unlike the block it does not count what others
on the machine take away. The aim is 50 ms: every part of a crowd above it is named below the tables, and the exit code
is 1 if there is one.

Each figure is the processor time of the process, which others on the machine disturb least; where it waits
for the database, time by the wall. Cycles are the median of several. Postgres flushes nothing to disk here.
"""

EXAMPLES = """\
examples:
  python -m benchmarks.growth                                  about nine minutes
  python -m benchmarks.growth --queued 1000 5000 --nodes 100   to try it
  python -m benchmarks.growth --output growth.json
  python -m benchmarks.growth --queued 10000 --nodes 5000 --clusters 4 --mix "20 shapes" "all distinct" --crowd
"""

MIXES: Final = (Mix.SHARED, Mix.DISTINCT, Mix.SLOPED)
CROWDS: Final = (Mix.SIZES, Mix.DISTINCT, Mix.DISTINCT_SLOPED)
CROWD: Final = {"nodes": 50, "clusters": 20, "namespaces": 5000, "repeats": 3}
CYCLES: Final = ("cycle, nothing changed", "cycle, capacity changed", "cycle, one arrived")
CROWD_PARTS: Final = (
    ("first", "taking in"),
    ("first", "full plan"),
    ("restart", "loading"),
    ("restart", "first cycle"),
    *(("restart", name) for name in CYCLES),
)
LONGEST_STRETCH_SECONDS: Final = 0.05
"""The aim: the longest block of the event loop by any part of a crowd, in seconds of processor time."""
LIFE_SECONDS: Final = 900

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """Both lives of one backlog; `load` is the machine's load average at the start."""

    backlog: Backlog
    first: Figures
    restart: Figures
    load: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures by the command line, prints the tables, and returns the exit code."""
    options = parser().parse_args(arguments)
    # Both end in the same way: every started process is ended in order.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    measured: list[Measured] = []
    failed = False
    try:
        with EmbeddedPostgres() as postgres:
            wanted = backlogs(options.queued, options.nodes, options.mix, options.clusters)
            # One by one, so that figures from before a failure are shown.
            wanted += crowds(max(options.queued), options.crowd)
            measured.extend(measure(postgres.url, each) for each in wanted)
    except KeyboardInterrupt:
        return 130
    except (BenchmarkFailed, NoPostgres, ProcessDied) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        failed = True
    if options.output:
        Path(options.output).write_bytes(orjson.dumps(as_json(measured), option=orjson.OPT_INDENT_2))
    print(as_tables(measured))
    too_long = stretches_above(measured)
    if too_long:
        print(f"\nabove {_ms(LONGEST_STRETCH_SECONDS):.0f} ms without a pause:", *too_long, sep="\n  ")
    return 1 if failed or too_long else 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.growth",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument(
        "--queued", type=int, nargs="+", default=[10_000, 50_000], metavar="N", help="(default: 10000 50000)"
    )
    top.add_argument(
        "--nodes", type=int, nargs="+", default=[1_000, 5_000], metavar="N", help="(default: 1000 5000)"
    )
    top.add_argument(
        "--clusters",
        type=int,
        default=0,
        metavar="N",
        help="member clusters with these nodes each (default: the hub alone)",
    )
    top.add_argument(
        "--mix", type=Mix, nargs="*", default=MIXES, help=" | ".join(repr(each.value) for each in Mix)
    )
    top.add_argument(
        "--crowd", type=Mix, nargs="*", default=CROWDS, help="mixes in front of 20 clusters (default: three)"
    )
    top.add_argument("--output", metavar="FILE.json", help="write every figure there as JSON")
    return top


def backlogs(
    queued: Sequence[int], nodes: Sequence[int], mixes: Sequence[Mix], clusters: int = 0
) -> list[Backlog]:
    """Every queue on the fewest nodes, and the longest of the first mix on more: each step changes one thing."""
    few, *more = sorted(nodes)
    sizes = [(each, few) for each in sorted(queued)]
    larger = [(max(queued), each) for each in more]
    return [
        Backlog(each, count, mix, clusters=clusters)
        for mix in mixes
        for each, count in (sizes + larger if mix is mixes[0] else sizes)
    ]


def crowds(queued: int, mixes: Sequence[Mix]) -> list[Backlog]:
    """The longest queue over many namespaces, before many clusters."""
    return [Backlog(queued, mix=mix, **CROWD) for mix in mixes]


def measure(server_url: str, backlog: Backlog) -> Measured:
    """Runs both lives on a new database."""
    name, load = f"growth_{backlog.queued}_{backlog.nodes}", os.getloadavg()[0]
    url = clone_template(server_url, migrated_template(server_url), name)
    try:
        first = _live(url, Life.FIRST, backlog)
        restart = _live(url, Life.RESTART, backlog)
    finally:
        drop_database(server_url, name)
    return Measured(backlog, first, restart, load)


def _live(url: str, life: Life, backlog: Backlog) -> Figures:
    asked = orjson.dumps({"url": url, "life": life, "backlog": asdict(backlog)})
    started = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.backlog"],
        input=asked,
        capture_output=True,
        cwd=CHECKOUT,
        timeout=LIFE_SECONDS,
        check=False,
    )
    if ended.returncode != 0:
        raise BenchmarkFailed(f"{life} of {backlog}:\n{ended.stderr.decode()[-2000:]}")
    before = f"{backlog.clusters} clusters of " if backlog.clusters else ""
    what = f"{backlog.queued} queued, {before}{backlog.nodes} nodes, {backlog.mix}: {life}"
    print(f"{what}: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    figures: Figures = orjson.loads(ended.stdout)
    return figures


# --- output ------------------------------------------------------------------------------------------


def as_json(measured: Sequence[Measured]) -> dict[str, Any]:
    """All figures."""
    return {
        "benchmark": "growth",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "processors": os.cpu_count(),
        "measured": [asdict(each) for each in measured],
    }


def as_tables(measured: Sequence[Measured]) -> str:
    """A table for each mix with a column for each size and their growth from the first."""
    alone = [each for each in measured if not _is_crowd(each.backlog)]
    mixes = list(dict.fromkeys(each.backlog.mix for each in alone))
    tables = [_table(mix, [each for each in alone if each.backlog.mix is mix]) for mix in mixes]
    crowded = [each for each in measured if _is_crowd(each.backlog)]
    return "\n\n".join([*tables, *([crowd_table(crowded)] if crowded else [])])


def crowd_table(measured: Sequence[Measured]) -> str:
    """A column for each mix: the longest stretch and the processor time in all, in milliseconds."""
    first = measured[0].backlog
    about = f"{first.queued} queued, {first.clusters} clusters, {first.namespaces} namespaces"
    lines = [f"{about}: longest stretch ms / CPU ms", _line("", [each.backlog.mix for each in measured])]
    for life, name in CROWD_PARTS:
        taken = [getattr(each, life)["taken"][name] for each in measured]
        lines.append(
            _line(name, [f"{_ms(each['longest_stretch']):.0f} / {_ms(each['cpu']):.0f}" for each in taken])
        )
    lines.append(_line("load average at its start", [f"{each.load:.1f}" for each in measured]))
    return "\n".join(lines)


def stretches_above(measured: Sequence[Measured], bound: float = LONGEST_STRETCH_SECONDS) -> list[str]:
    """A line for each part of a crowd with a stretch longer than `bound`, in seconds."""
    return [
        f"{each.backlog.mix}: {name}: {_ms(stretch):.1f} ms"
        for each in measured
        if _is_crowd(each.backlog)
        for life, name in CROWD_PARTS
        if (stretch := getattr(each, life)["taken"][name]["longest_stretch"]) > bound
    ]


def _is_crowd(backlog: Backlog) -> bool:
    return backlog.namespaces == CROWD["namespaces"]


def _table(mix: Mix, measured: Sequence[Measured]) -> str:
    titles = [_title(each.backlog) for each in measured]
    ratios = [f"ratio {title.split()[0]}/{titles[0].split()[0]}" for title in titles[1:2]]
    lines = [f"{mix}: queued / nodes", _line("", [*titles, *ratios])]
    columns = [rows(each) for each in measured]
    for name in columns[0]:
        values = [column[name] for column in columns]
        grown = [f"{value / values[0]:.1f}" if values[0] else "" for value in values[1:2]]
        lines.append(_line(name, [*(f"{value:.1f}" for value in values), *grown]))
    lines.append(_line("load average at its start", [f"{each.load:.1f}" for each in measured]))
    return "\n".join(lines)


def _title(backlog: Backlog) -> str:
    each_of = f"{backlog.clusters} x " if backlog.clusters else ""
    return f"{backlog.queued} / {each_of}{backlog.nodes}"


def rows(measured: Measured) -> dict[str, float]:
    """The figures of one backlog by name: milliseconds and MiB."""
    first, restart = measured.first["taken"], measured.restart["taken"]
    plan, loading, cycle = first["full plan"], restart["loading"], restart["first cycle"]
    found = {
        "taking in, wall ms": _ms(first["taking in"]["wall"]),
        "full plan, wall ms": _ms(plan["wall"]),
        "  commit, wall ms": _ms(plan["committing"]),
        "  without commit, wall ms": _ms(plan["wall"] - plan["committing"]),
        "  all of it, CPU ms": _ms(plan["cpu"]),
        "  decisions alone, CPU ms": _ms(plan.get("deciding", 0.0)),
        "  longest block ms": _ms(plan["longest_block"]),
        "  longest stretch ms": _ms(plan.get("longest_stretch", 0.0)),
        "restart, wall ms": _ms(loading["wall"] + cycle["wall"]),
        "  loading, CPU ms": _ms(loading["cpu"]),
        "  loading, longest block ms": _ms(loading["longest_block"]),
        "  loading, longest stretch ms": _ms(loading.get("longest_stretch", 0.0)),
        "  first cycle, CPU ms": _ms(cycle["cpu"]),
    }
    for name in CYCLES:
        found |= _cycle(name, restart[name])
    memory = measured.restart["memory"]
    found["memory of the process, MiB"] = memory["loaded"] / 2**20
    found["  KiB for each AppWrapper"] = (
        (memory["loaded"] - memory["at start"]) / measured.backlog.queued / 1024
    )
    return found


def _cycle(name: str, taken: Mapping[str, float]) -> dict[str, float]:
    return {
        f"{name}, CPU ms": _ms(taken["cpu"]),
        "  longest block ms" + " " * len(name): _ms(taken["longest_block"]),
        "  longest stretch ms" + " " * len(name): _ms(taken.get("longest_stretch", 0.0)),
    }


def _ms(seconds: float) -> float:
    return seconds * 1000


def _line(name: str, values: Sequence[str]) -> str:
    return f"{name.rstrip():<34}" + "".join(f"{value:>20}" for value in values)


if __name__ == "__main__":
    sys.exit(main())
