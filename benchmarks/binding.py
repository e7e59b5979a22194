"""`python -m benchmarks.binding`: counts dispatched gangs with a pod that kube-scheduler does not bind."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.binding_book import Counts
from benchmarks.binding_gangs import gpus_of, make_gangs, make_machines
from benchmarks.binding_trial import Load, Outcome, Setting, run
from benchmarks.runner import measured, progress, write
from benchmarks.throughput import at_least_one

WITH_HINTS: Final = Setting("node", "node")
WITHOUT_HINTS: Final = Setting("node, no hints", "node", has_hints=False)
BY_SUMS: Final = Setting("aggregate", "aggregate")

ABOUT = """\
Counts the dispatched gangs with a pod that kube-scheduler leaves Pending. The control plane is real, and the
queue keeps its nodes full.

The nodes have 1 to 8 GPUs of three models, different CPUs and memory, and some are tainted. A gang has 1 to 3 pod sets
of different shapes. They are wrapped as Jobs, as pods or, in 30 % of the gangs, as a RayCluster; KubeRay's
operator makes its pods. Some have a nodeSelector or a toleration. All gangs are submitted at once. A gang is deleted
some seconds after all of its pods are bound; until then its pods run. A gang that does not start within 30 s is
requeued by the dispatcher.

Every setting gets a fresh control plane with the same nodes and the same gangs. A pod counts if it is pending for
longer than the settling time: kube-scheduler retries a pod after 1 to 2 s, and may learn later than the dispatcher
that a pod has ended.

  node            The dispatcher assigns every pod a node, and pods prefer their assigned nodes.
  node, no hints  As above, but pods prefer no nodes (the dispatcher's process is patched).
  aggregate       The dispatcher compares the demand of a gang with sums over the nodes.
"""

EXAMPLES = """\
examples:
  python -m benchmarks.binding                                         about 25 minutes
  python -m benchmarks.binding --gangs 60 --fit node --hints on
  python -m benchmarks.binding --seed 2 --output out.json              also describes stuck gangs
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures by the command line, prints the table, and returns the exit code."""
    options = parser().parse_args(arguments)
    outcomes = measured(lambda folder: _measure(options, folder))
    write(
        options.output,
        {
            "benchmark": "binding",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "options": {name: value for name, value in vars(options).items() if name != "output"},
            "outcomes": [asdict(each) for each in outcomes],
        },
    )
    print(as_table(outcomes))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.binding",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--gangs", type=at_least_one, default=300, metavar="N", help="default: %(default)s")
    top.add_argument("--nodes", type=at_least_one, default=40, metavar="N", help="default: %(default)s")
    top.add_argument(
        "--seed", type=int, default=1, help="seed of the random nodes and gangs (default: %(default)s)"
    )
    top.add_argument("--fit", choices=("node", "aggregate", "both"), default="both", help="default: both")
    top.add_argument(
        "--hints",
        choices=("on", "off", "both"),
        default="both",
        help="with --fit node: preference of pods for their nodes (default: both)",
    )
    top.add_argument(
        "--settling",
        type=float,
        default=5.0,
        help="seconds for which a pod may be pending (default: %(default)s)",
    )
    top.add_argument("--output", metavar="FILE.json", help="write every figure to this file as JSON")
    return top


def settings(fit: str, hints: str) -> list[Setting]:
    """The settings to run, in order."""
    found = []
    if fit != "aggregate":
        found += [WITH_HINTS] if hints != "off" else []
        found += [WITHOUT_HINTS] if hints != "on" else []
    return found + ([BY_SUMS] if fit != "node" else [])


def as_table(outcomes: Sequence[Outcome]) -> str:
    """A column for each setting."""
    lines = [f"{'':48}" + "".join(f"{each.setting:>16}" for each in outcomes)]
    for title, cell in ROWS.items():
        lines.append(f"{title:48}" + "".join(f"{cell(each.counts):>16}" for each in outcomes))
    return "\n".join(lines)


def _off_plan(counts: Counts) -> str:
    return "" if counts.off_plan is None else f"{counts.off_plan} of {counts.pods}"


ROWS: Final[dict[str, Callable[[Counts], str]]] = {
    "gangs": lambda each: str(each.gangs),
    "dispatches": lambda each: str(each.dispatches),
    "  a pod pending beyond the settling time": lambda each: str(each.stuck),
    "  the same in %": lambda each: f"{100 * each.stuck / max(1, each.dispatches):.1f}",
    "  a pod pending at all": lambda each: str(each.hesitant),
    "dispatches of gangs of one pod shape": lambda each: str(each.of_one_shape),
    "  of these, a pod pending beyond that time": lambda each: str(each.stuck_of_one_shape),
    "dispatches of RayClusters": lambda each: str(each.rayclusters),
    "  of these RayClusters, a pod pending": lambda each: str(each.stuck_rayclusters),
    "longest time that a pod was pending, s": lambda each: f"{each.longest_pending:.1f}",
    "pods not on the node of their place": _off_plan,
    "GPUs allocated, %": lambda each: f"{100 * each.allocated:.1f}",
    "GPUs of gangs with all pods bound, %": lambda each: f"{100 * each.working:.1f}",
    "makespan, s": lambda each: f"{each.makespan:.0f}",
}


async def _measure(options: argparse.Namespace, folder: Path) -> list[Outcome]:
    say = progress()
    machines = make_machines(options.nodes, options.seed)
    load = Load(machines, make_gangs(options.gangs, machines, options.seed), options.settling)
    pods = sum(each.size for each in load.gangs)
    say(f"{options.nodes} nodes of {gpus_of(machines)} GPUs; {options.gangs} gangs of {pods} pods")
    chosen = settings(options.fit, options.hints)
    return [await run(folder / str(at), each, load, say) for at, each in enumerate(chosen)]


if __name__ == "__main__":
    sys.exit(main())
