"""`python -m benchmarks.packing`: whether large gangs still fit, where clusters of mixed nodes are kept full."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from benchmarks.failure import BenchmarkFailed
from benchmarks.packing_load import (
    MIXED,
    NODES_FILE,
    PODS_FILE,
    SIZES,
    Mix,
    gpus_of,
    make_jobs,
    make_nodes,
    make_queue,
    openb,
    split,
)
from benchmarks.packing_trial import Filled, Lived, fill, live
from benchmarks.runner import INTERRUPTED, progress, write
from benchmarks.throughput import at_least_one

MARKS: Final = (1.0, 1.3)
"""The GPUs that the gangs of a fill have requested, as shares of all GPUs."""
WARM_UP_HOURS: Final = 1.0
CONDITIONS: Final = ("trace", "partial", "multi", "nodes", "load", "hours")
"""Options that two runs must share to be compared."""

ABOUT = f"""\
Measures how well the dispatcher packs gangs, by its core alone: no cluster, no database, virtual time.

  fill    The nodes are empty. One cycle places gangs in order until they have requested 130 % of the GPUs. A gang
          that does not fit is skipped, and none ends. The GPUs that are then free have become useless for the
          gangs left out.
  life    Gangs arrive at random times and end. On average they request as many GPUs as there are (--load), for
          an hour of warm-up and the measured hours. A cycle runs every 10 s; a gang blocked at the head for ten
          minutes gets a backfill reservation. A gang without a place at the end counts as left out, and its wait
          until then counts.

Each is measured on one cluster, and on the same nodes dealt to four. Gangs and their times depend on the seed alone, so
two versions of the dispatcher see the same arrivals. Read allocated share, gangs left out and order together: a rule
that skips large gangs allocates more. "Overtaken" is the number of later gangs that start before a gang that waits.

A gang is 1 to 32 equal pods (70 % have one pod) of at most 64 GPUs in all. Number of pods, shape and run time are drawn
independently; a gang runs for one minute to two hours.

By default nodes and pods are a mix of this benchmark. --trace DIR reads openb instead, a mix of 1,523 real nodes and
8,152 pods. Its two files, as published, must be in DIR:
  {NODES_FILE}   sn,cpu_milli,memory_mib,gpu,model
  {PODS_FILE}     name,cpu_milli,memory_mib,num_gpu,gpu_milli,…,deletion_time,scheduled_time (in s)
from https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2023
Pods that request a part of a GPU (gpu_milli) request one GPU here, because the dispatcher counts whole devices;
--partial drop leaves these pods out.
"""

EXAMPLES = """\
examples:
  python -m benchmarks.packing --output before.json                     two or three minutes
  python -m benchmarks.packing --beside before.json                     after a change: ratios for equal seeds
  python -m benchmarks.packing --trace openb --multi 0.5 --seeds 10     pods of 2 or more GPUs request half of the GPUs
  python -m benchmarks.packing --nodes 100 --hours 1 --seeds 2          to try it
"""

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Trial:
    """The figures of one seed on the nodes dealt to `clusters`."""

    clusters: int
    seed: int
    figures: Figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures by the command line, prints the tables, and returns the exit code."""
    options = parser().parse_args(arguments)
    conditions = {name: getattr(options, name) for name in CONDITIONS}
    try:
        before = read_trials(options.beside, conditions) if options.beside else []
        trials = list(measure(options))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BenchmarkFailed as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 1
    write(
        options.output,
        {
            "benchmark": "packing",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "conditions": conditions,
            "trials": [asdict(each) for each in trials],
        },
    )
    print(as_tables(trials, before))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.packing",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--trace", metavar="DIR", help="read the openb trace there (default: the built-in mix)")
    top.add_argument("--partial", choices=("whole", "drop"), default="whole", help="default: %(default)s")
    top.add_argument(
        "--multi", type=float, metavar="SHARE", help="share of the GPUs requested by pods of 2 or more"
    )
    top.add_argument("--nodes", type=at_least_one, default=380, metavar="N", help="default: %(default)s")
    top.add_argument(
        "--clusters", type=at_least_one, nargs="+", default=[1, 4], metavar="N", help="default: 1 4"
    )
    top.add_argument("--load", type=float, default=1.0, help="GPUs requested on average (default: 1.0)")
    top.add_argument("--hours", type=float, default=2.0, help="measured hours of life (default: %(default)s)")
    top.add_argument("--seeds", type=at_least_one, default=5, metavar="N", help="default: %(default)s")
    top.add_argument("--beside", metavar="FILE.json", help="compare with an earlier --output, seed by seed")
    top.add_argument("--output", metavar="FILE.json", help="write every figure there as JSON")
    return top


def measure(options: argparse.Namespace) -> Iterator[Trial]:
    """One trial for each seed and number of clusters. Raises `BenchmarkFailed`."""
    say = progress()
    mix = mix_of(options)
    nodes = make_nodes(mix, options.nodes)
    gpus = gpus_of(nodes)
    seconds = (WARM_UP_HOURS + options.hours) * 3600
    say(f"{len(nodes)} nodes of {gpus} GPUs")
    for number in options.clusters:
        clusters = split(nodes, number)
        for seed in range(1, options.seeds + 1):
            filled = fill(clusters, make_queue(mix, int(max(MARKS) * gpus), seed), MARKS)
            jobs = make_jobs(mix, gpus, options.load, seconds, seed)
            lived = live(clusters, jobs, WARM_UP_HOURS * 3600, seconds)
            say(f"{number} clusters, seed {seed}: {len(jobs)} gangs")
            yield Trial(number, seed, figures_of(filled, lived))


def mix_of(options: argparse.Namespace) -> Mix:
    """The mix of the options. Raises `BenchmarkFailed`."""
    mix = openb(Path(options.trace), has_partial=options.partial == "whole") if options.trace else MIXED
    return mix if options.multi is None else mix.with_multi(options.multi)


def figures_of(filled: Filled, lived: Lived) -> Figures:
    """The figures of a trial by their titles, in the order of the table: shares in percent, waits in minutes."""
    found = {f"fill: GPUs allocated at {mark}, %": 100 * share for mark, share in filled.allocated.items()}
    for size in SIZES:
        if filled.gangs[size]:
            left_out = 100 * filled.left_out[size] / filled.gangs[size]
            found[f"fill: left out, {size}, %"] = left_out
    found["life: GPUs allocated, %"] = 100 * lived.allocated
    for size, waits in lived.waits.items():
        found[f"life: left out, {size}, %"] = 100 * waits.left_out / waits.gangs
        found[f"life: wait p50, {size}, min"] = waits.p50
        found[f"life: wait p99, {size}, min"] = waits.p99
    found["life: overtaken by, average"] = lived.overtaken
    found["life: overtaken by, p99"] = lived.overtaken_p99
    found["fill: CPU for each gang, ms"] = filled.cpu
    found["life: CPU for each dispatch, ms"] = lived.cpu
    return found


def read_trials(path: str, conditions: Mapping[str, Any]) -> list[Trial]:
    """The trials that an earlier run wrote. Raises `BenchmarkFailed` if its conditions were others."""
    try:
        known = orjson.loads(Path(path).read_bytes())
        before, trials = known["conditions"], [Trial(**each) for each in known["trials"]]
    except (OSError, KeyError, TypeError, orjson.JSONDecodeError) as error:
        raise BenchmarkFailed(f"{path} is no output of this benchmark: {error}") from error
    for name, value in conditions.items():
        if before.get(name) != value:
            raise BenchmarkFailed(f"{path} has --{name} {before.get(name)}, this run {value}")
    return trials


def as_tables(trials: Sequence[Trial], before: Sequence[Trial] = ()) -> str:
    """A table for each number of clusters: averages over the seeds with their bounds, and ratios to `before`."""
    numbers = dict.fromkeys(each.clusters for each in trials)
    return "\n\n".join(
        as_table([each for each in trials if each.clusters == number], before) for number in numbers
    )


def as_table(trials: Sequence[Trial], before: Sequence[Trial] = ()) -> str:
    """The table of trials on one number of clusters."""
    first = trials[0]
    earlier = {each.seed: each.figures for each in before if each.clusters == first.clusters}
    pairs = [(each.figures, earlier[each.seed]) for each in trials if each.seed in earlier]
    lines = [f"{first.clusters} cluster{'s' * (first.clusters > 1)}, {len(trials)} seeds"]
    lines.append(_line("", ["average", "least", "most", *(["before", "ratio", "up/down"] if pairs else [])]))
    for title in first.figures:
        values = [each.figures[title] for each in trials if title in each.figures]
        cells = [f"{value:.2f}" for value in (statistics.mean(values), min(values), max(values))]
        both = [(new[title], old[title]) for new, old in pairs if title in new and title in old]
        lines.append(_line(title, cells + (compared(both) if both else [])))
    return "\n".join(lines)


def compared(both: Sequence[tuple[float, float]]) -> list[str]:
    """The earlier average, the ratio of the averages, and in how many seeds the figure is higher and lower."""
    new, old = (statistics.mean(each) for each in zip(*both, strict=True))
    higher, lower = sum(now > then for now, then in both), sum(now < then for now, then in both)
    return [f"{old:.2f}", f"{new / old:.3f}" if old else "", f"{higher}/{lower}"]


def _line(title: str, cells: Sequence[str]) -> str:
    return f"{title:<40}" + "".join(f"{cell:>12}" for cell in cells)


if __name__ == "__main__":
    sys.exit(main())
