"""`python -m benchmarks.baseline`: Kueue's published baseline, 15,000 gangs in 30 queues, on a real control plane."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks import baseline_trial
from benchmarks.baseline_floor import Floor
from benchmarks.baseline_pattern import SIZES
from benchmarks.baseline_trial import Outcome, Settings
from benchmarks.report import NOISE
from benchmarks.runner import measured, progress, write
from benchmarks.subject import DISPATCHER
from benchmarks.throughput import at_least_one

ABOUT = """\
Measures Kueue's baseline pattern on a real control plane and a real Postgres.

15,000 AppWrappers in 30 queues of 5 trees; each wraps one Job of one pod. A leaf has a nominal quota of 20
CPUs, may borrow 100, takes back its own from any gang, and prefers its higher priorities. Into each leaf come

  small    350 gangs of  1 CPU,  0.2 s, priority  50, one every 0.1 s
  medium   100 gangs of  5 CPUs, 0.5 s, priority 100, one every 0.5 s
  large     50 gangs of 20 CPUs, 1 s,   priority 200, one every 1.2 s

so quota is the limit, not room, and the work alone is 66 s. etcd and the API server run, but no controllers, no
scheduler and no pods: a stand-in reports each Job complete once it has existed for its time. The generator of
AppWrappers and the stand-in are processes of their own. The generator catches up when it is late.

At the end no gang may be lost, and by the events in Postgres no queue and no tree may ever have used more than its
limit.

Kueue's own figures for the pattern, on two cores like ours: 385 s, 692 MB, 91 s of CPU.
Source: https://github.com/kubernetes-sigs/kueue/tree/main/test/performance/scheduler
"""

EXAMPLES = """\
examples:
  python -m benchmarks.baseline                              some minutes
  python -m benchmarks.baseline --scale 0.1                  a tenth of the gangs of each queue
  python -m benchmarks.baseline --scale 0.1 --profile out.prof
  python -m benchmarks.baseline --scale 0.1 --floor          first the same writes without a dispatcher
"""

PUBLISHED: Final = {"small": 215.5, "medium": 76.8, "large": 16.5}
"""Kueue's mean seconds from creation to admission, on its own machine."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures by the command line, prints the table, and returns 1 if a gang was lost or quota exceeded."""
    options = parser().parse_args(arguments)
    settings = Settings(options.scale, options.connections, options.profile)
    floor, outcome = measured(lambda folder: _run(folder, settings, with_floor=options.floor))
    write(
        options.output,
        {
            "benchmark": "baseline",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "scale": options.scale,
            **asdict(outcome),
            "floor": floor and asdict(floor),
        },
    )
    print(as_table(outcome, options.scale))
    if floor is not None:
        print(as_floor_table(floor, outcome))
    return 1 if outcome.lost or outcome.excesses else 0


async def _run(folder: Path, settings: Settings, *, with_floor: bool) -> tuple[Floor | None, Outcome]:
    say = progress()
    floor = await baseline_trial.run_floor(folder / "floor", settings, say) if with_floor else None
    return floor, await baseline_trial.run(folder / "trial", settings, say)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.baseline",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument(
        "--scale",
        type=share,
        default=1.0,
        metavar="SHARE",
        help="share of the gangs of each queue, above 0 (default: 1)",
    )
    top.add_argument(
        "--connections",
        type=at_least_one,
        default=16,
        metavar="N",
        help="of the generator (default: %(default)s)",
    )
    top.add_argument(
        "--floor",
        action="store_true",
        help="first time the same writes by a client that decides nothing, on a control plane of its own",
    )
    top.add_argument("--output", metavar="FILE.json", help="write every figure there as JSON")
    top.add_argument(
        "--profile", metavar="FILE", default="", help="run the dispatcher under cProfile, which slows it down"
    )
    return top


def share(text: str) -> float:
    """The number in an argument; rejects numbers that are not in (0, 1]."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and at most 1")
    return value


def as_table(outcome: Outcome, scale: float) -> str:
    """A line for each figure, with what makes it invalid at the end."""
    lines = [f"{name:<52}{value:>20}" for name, value in _rows(outcome, scale)]
    if outcome.lost:
        lines.append(f"LOST: {outcome.lost} gangs are not Completed with one complete Job")
    lines += [f"EXCEEDED: {each}" for each in outcome.excesses]
    if outcome.used.noise > NOISE:
        lines.append(f"Others used more than {NOISE} cores meanwhile: repeat on a quiet machine.")
    return "\n".join(lines)


def as_floor_table(floor: Floor, outcome: Outcome) -> str:
    """The floor, and the quotient of the times."""
    rows = [
        ("floor: all written, s", f"{floor.seconds:.1f}"),
        *((f"floor: {name} CPU, s", f"{value:.1f}") for name, value in floor.used.seconds.items()),
        ("floor: cores used by others", f"{floor.used.noise:.2f}"),
        ("all done, quotient to the floor", f"{outcome.seconds / floor.seconds:.2f}"),
        ("CPU of all, quotient to the floor", f"{outcome.used.ours / floor.used.ours:.2f}"),
    ]
    return "\n".join(f"{name:<52}{value:>20}" for name, value in rows)


def _rows(outcome: Outcome, scale: float) -> list[tuple[str, str]]:
    used, late, jobs = outcome.used, outcome.late, outcome.jobs
    return [
        (f"gangs (scale {scale:g})", str(outcome.gangs)),
        ("all done, s", f"{outcome.seconds:.1f}"),
        ("dispatched/s", f"{outcome.gangs / outcome.seconds:.1f}"),
        ("dispatcher CPU, s", f"{used.seconds[DISPATCHER]:.1f}"),
        ("  per gang, ms", f"{used.seconds[DISPATCHER] * 1000 / outcome.gangs:.2f}"),
        ("dispatcher peak memory, MB", f"{outcome.peak_memory / 10**6:.0f}"),
        *((f"{name} CPU, s", f"{value:.1f}") for name, value in used.seconds.items() if name != DISPATCHER),
        ("cores used by others", f"{used.noise:.2f}"),
        *(
            (f"writes per gang: {name}", f"{count / outcome.gangs:.2f}")
            for name, count in outcome.writes.items()
        ),
        ("Events written in all", str(outcome.events)),
        *(
            (
                f"create to dispatch, {size.name}, mean / p99, s",
                f"{outcome.waits[size.name].mean:.1f} / {outcome.waits[size.name].p99:.1f}",
            )
            for size in SIZES
        ),
        ("preemptions", str(outcome.attempts.get("preempted", 0))),
        ("attempts by outcome", " ".join(f"{name}: {n}" for name, n in sorted(outcome.attempts.items()))),
        ("all submitted after, s", f"{outcome.submit_seconds:.1f}"),
        ("generator late, mean / longest, s", f"{late.mean:.2f} / {late.longest:.2f}"),
        ("stand-in late, mean / p99 / longest, s", f"{jobs.mean:.2f} / {jobs.p99:.2f} / {jobs.longest:.2f}"),
        ("highest use of a tree, CPUs of 120", f"{_highest(outcome, 'tree-') / 1000:g}"),
        ("highest use of a leaf, CPUs of 120", f"{_highest(outcome, 'queue-') / 1000:g}"),
        ("gangs lost", str(outcome.lost)),
    ]


def _highest(outcome: Outcome, prefix: str) -> int:
    return max((value for name, value in outcome.peaks.items() if name.startswith(prefix)), default=0)


if __name__ == "__main__":
    sys.exit(main())
