"""`python -m benchmarks.elastic`: what autoscaling Ray clusters get and lose, if growth is granted or only charged."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

from benchmarks.elastic_load import GPU, LEAST, MOST, make_clusters, make_nodes
from benchmarks.elastic_trial import Growths, Outcome, live
from benchmarks.figures import percentile
from benchmarks.runner import INTERRUPTED, progress, write
from benchmarks.throughput import at_least_one
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Preemption, Queue, Quota, Reclaim, WithinQueue

RECLAIMING: Final = Preemption(WithinQueue.LOWER_PRIORITY, Reclaim.ANY)
HOUR: Final = 3600

ABOUT = f"""\
Plays Ray clusters with autoscalers in queues of one tree, by the dispatcher's core alone: no cluster, no database,
virtual time. Each has {LEAST} to {MOST} workers of one GPU. They come at random times, and bursts of tasks let them
grow at once; a worker that was idle for a minute is removed. Every queue takes back the GPUs that it lends.

  grant   Pods beyond the demand start once they are granted (DISPATCHER_GROWTH=grant, the default). A queue that takes
          back what it lent takes such pods before gangs.
  charge  Pods start where a node has room, and are charged then (DISPATCHER_GROWTH=charge). A gang that is preempted
          loses all that its attempt has held.

Both see the same demand, which depends on the seed alone: once with queues that borrow nothing, once with queues that
borrow all that others leave idle. The program ends with 1 if granted growth exceeded a quota.
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """The figures of one seed, by their titles; hours are GPU-hours, waits seconds."""

    growths: str
    has_borrowing: bool
    seed: int
    figures: dict[str, float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures by the command line, prints the table, and returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        trials = list(measure(options))
    except KeyboardInterrupt:
        return INTERRUPTED
    conditions = {name: value for name, value in vars(options).items() if name != "output"}
    write(
        options.output,
        {
            "benchmark": "elastic",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "conditions": conditions,
            "trials": [asdict(each) for each in trials],
        },
    )
    print(as_table(trials))
    return int(any(each.figures[BEYOND] for each in trials if each.growths == Growths.GRANT))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.elastic",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    numbers = {
        "--clusters": (50, "Ray clusters"),
        "--queues": (5, "queues, to which the clusters are dealt"),
        "--nominal": (30, "GPUs of each queue's nominal quota"),
        "--nodes": (25, "nodes of 8 GPUs; those beyond the quotas are free for others"),
        "--minutes": (120, "simulated time"),
        "--seeds": (5, "runs with other demands"),
    }
    for name, (default, about) in numbers.items():
        top.add_argument(
            name, type=at_least_one, default=default, metavar="N", help=f"{about} (default: %(default)s)"
        )
    top.add_argument("--output", metavar="FILE.json", help="write every figure there as JSON")
    return top


def measure(options: argparse.Namespace) -> Iterator[Trial]:
    """One trial for each seed, with and without borrowing, with growth that is granted and that is charged."""
    say = progress()
    seconds = options.minutes * 60
    names = [f"team-{number}" for number in range(options.queues)]
    for has_borrowing in (False, True):
        forest = forest_of(names, options.nominal, has_borrowing=has_borrowing)
        for growths in Growths:
            for seed in range(1, options.seeds + 1):
                rays = make_clusters(options.clusters, names, seconds, seed)
                outcome = live(rays, forest, make_nodes(options.nodes), growths, seconds)
                say(f"{growths}{', with borrowing' * has_borrowing}, seed {seed}")
                yield Trial(growths, has_borrowing, seed, figures_of(outcome))


def forest_of(names: Sequence[str], nominal: int, *, has_borrowing: bool) -> Forest:
    """One tree of queues with that nominal quota of GPUs each, which take back what they lend."""
    quota = {GPU: Quota(nominal, None if has_borrowing else 0)}
    return Forest.of([Queue("org"), *(Queue(name, "org", quota, preemption=RECLAIMING) for name in names)])


BEYOND: Final = "seconds beyond quota"


def figures_of(outcome: Outcome) -> dict[str, float]:
    """The figures of a life by their titles, in the order of the table."""
    waits, gang_waits = outcome.waits or [0], outcome.gang_waits or [0]
    return {
        BEYOND: outcome.beyond_quota,
        "gangs preempted": outcome.preempted,
        "GPU-hours lost to preemption": outcome.lost / HOUR,
        "surplus pods preempted": outcome.surplus,
        "GPU-hours that they had run": outcome.cut / HOUR,
        "GPU-hours that tasks wanted": outcome.wanted / HOUR,
        "GPU-hours that they got": outcome.served / HOUR,
        "workers started": len(outcome.waits),
        "  given up before they started": outcome.withdrawn,
        "wait of a worker, p50, s": percentile(waits, 50),
        "wait of a worker, p99, s": percentile(waits, 99),
        "wait of a gang, p50, s": percentile(gang_waits, 50),
        "wait of a gang, longest, s": max(gang_waits),
    }


def as_table(trials: Sequence[Trial]) -> str:
    """The averages over the seeds, one column for each way."""
    columns: dict[str, list[Trial]] = {}
    for each in trials:
        columns.setdefault(f"{each.growths}{', borrowing' * each.has_borrowing}", []).append(each)
    lines = [_line(f"averages of {len({each.seed for each in trials})} seeds", columns)]
    for title in trials[0].figures:
        means = (statistics.mean(each.figures[title] for each in column) for column in columns.values())
        lines.append(_line(title, [f"{mean:.1f}" for mean in means]))
    return "\n".join(lines)


def _line(title: str, cells: Iterable[str]) -> str:
    return f"{title:<32}" + "".join(f"{cell:>20}" for cell in cells)


if __name__ == "__main__":
    sys.exit(main())
