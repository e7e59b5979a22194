"""`dispatcher simulate` and `kubectl aw simulate`: traces on virtual time, decided by the cycles of the dispatcher.

A file is a scenario as `plan` takes it, with the keys `trace` and `policy`. Each file is one run. This module reads
them and shows progress, and `core.simulation` runs them. All files are read before the first run begins, and nothing is
printed before the last one ends.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from dispatcher.cli.command_line import Number, Word, examples, exit_codes, paragraph
from dispatcher.cli.options import files_option
from dispatcher.cli.query import note
from dispatcher.cli.screens.output import replace_line, say, shown_as, terminal_width
from dispatcher.errors import CommandFailed
from dispatcher.text import one_line

if TYPE_CHECKING:
    from dispatcher.cli.files.documents import File
    from dispatcher.cli.files.simulate_report import Run
    from dispatcher.core.scheduling.explain.world import World
    from dispatcher.core.simulation.job import Job
    from dispatcher.core.simulation.run_file import RunFile
    from dispatcher.core.simulation.simulation import Simulation

commands = click.Group()

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C, once what is done was printed."""
REFRESH: Final = 0.2
"""Seconds between two lines of progress."""
LONGEST_LINE: Final = 65_536
"""Characters of a line of a trace; a longer one is read as several."""
TOO_LATE: Final = "a time lies after the year 9999: state shorter times"
LEAST_SCALE: Final = 0.001
MOST_SCALE: Final = 1000
EXAMPLE: Final = (
    "clusters:",
    "- {name: east, nodes: [{name: node, count: 2, allocatable: {cpu: 64, nvidia.com/gpu: 8}}]}",
    "policy: {name: fifo, queueing: StrictFIFO}     # what differs between the files that are compared",
    "trace:",
    "  format: list                                 # or philly, muri, swf, with file: jobs.csv",
    "  gangs:",
    "  - {name: a, arrival: 0, duration: 3600, pods: [{count: 2, requests: {nvidia.com/gpu: 4}}]}",
    "  - {name: b, arrival: 60, duration: 600, priority: 5, pods: [{count: 2, requests: {nvidia.com/gpu: 8}}]}",
    "  - {name: c, arrival: 90, duration: 600, pods: [{requests: {nvidia.com/gpu: 1}}]}",
)
_HELP_END: Final = "\n".join(
    (
        examples(
            "kubectl aw simulate fifo.yaml",
            "kubectl aw simulate -f fifo.yaml -f backfill.yaml",
            "kubectl aw simulate week.yaml --if east/nodes+8:like=node-0 --scale-arrivals 1.3",
            "kubectl aw simulate hub.yaml separate.yaml -o json | jq '.runs[].wait.mean'",
        ),
        paragraph("A file", *EXAMPLE),
        exit_codes(
            {
                0: "simulated, even if gangs never start",
                1: "a missing package",
                2: "wrong usage, a wrong file, or a wrong line of a trace",
                INTERRUPTED: "Ctrl-C: what was done so far is printed",
            }
        ),
    )
)


class Output(StrEnum):
    """How the runs are shown, if not for people."""

    JSON = "json"
    YAML = "yaml"


@commands.command("simulate", epilog=_HELP_END)
@files_option("a scenario and its trace")
@click.option("--output", "-o", type=Word(Output), metavar="FORMAT", help="json, or yaml.")
@click.option(
    "changes",
    "--if",
    multiple=True,
    metavar="CHANGE",
    help="Simulate as if, in each file: [CLUSTER/]nodes+2:cpu=8,nvidia.com/gpu=1, nodes+2:like=NODE, or "
    "untaint:NODE. Repeatable.",
)
@click.option(
    "quotas",
    "--quota",
    multiple=True,
    metavar="QUOTA",
    help="Simulate as if a queue had this nominal quota: QUEUE:cpu=8,nvidia.com/gpu=4. Repeatable.",
)
@click.option(
    "without",
    "--without-cluster",
    multiple=True,
    metavar="CLUSTER",
    help="Simulate as if this cluster did not exist. Repeatable.",
)
@click.option(
    "--scale-arrivals",
    type=Number(min=LEAST_SCALE, max=MOST_SCALE),
    default=1.0,
    metavar="FACTOR",
    help="Let so many times as many gangs arrive in the same time: 1.3 divides all times of arrival by 1.3.",
)
def simulate(
    files: Sequence[str],
    output: Output | None,
    changes: Sequence[str],
    quotas: Sequence[str],
    without: Sequence[str],
    scale_arrivals: float,
) -> None:
    """Run traces of jobs on virtual time.

    Each file is one run, so that policies can be compared: a scenario as plan takes it, with clusters, queues, running
    and pending gangs, and two keys more. The trace has the gangs that arrive, with the seconds that each one runs: as a
    list in the file, or as a file of its own in the format of Philly, of Muri, or of the Standard Workload Format. The
    policy has what differs between the files that are compared: a name, whether gangs may go to any cluster or only to
    that of the trace, and settings.

    The cycles are those of the dispatcher: the same order, quota, fit, preemption and reservations decide. A preempted
    gang begins anew. No cluster and no database is asked, and nothing is written. The same files give the same answer
    on any machine.

    The answer has the waits from arrival to dispatch, the utilisation up to the last end, and how many gangs are left
    that never started. docs/simulation.md has all keys and measures.
    """
    # Imported here, because other commands do not need it and importing takes most of their time.
    from dispatcher.cli.files.documents import read_files
    from dispatcher.cli.files.simulate_report import SimulationReport

    change = partial(_changed, changes=changes, quotas=quotas, without=without)
    simulations: list[tuple[str, Simulation]] = []
    for file in read_files(files):
        run = _read(file, change)
        if any(name == run.policy.name for name, _ in simulations):
            problem = f"policy.name: another file has a run with the name {run.policy.name}, too"
            raise _refused(file, problem)
        jobs = [each.sooner(scale_arrivals) for each in _jobs(file, run)]
        try:
            simulations.append((run.policy.name, run.simulation(jobs)))
        except OverflowError as error:
            raise _refused(file, TOO_LATE) from error
    runs, is_interrupted = run_all(simulations)
    report = SimulationReport(runs)
    say(report.as_text(terminal_width()) if output is None else shown_as(report.as_document(), output))
    if is_interrupted:
        raise click.exceptions.Exit(INTERRUPTED)


def _read(file: File, change: Callable[[World], World]) -> RunFile:
    from dispatcher.api.spec_errors import SpecError
    from dispatcher.cli.files.documents import read_document
    from dispatcher.core.scheduling.explain.what_if import ChangeError
    from dispatcher.core.simulation.run_file import read_run

    try:
        return read_run(read_document(file.name, BytesIO(file.content)), Path(file.name).stem, change)
    except SpecError as error:
        raise _refused(file, str(error)) from error
    except ChangeError as error:
        raise click.BadParameter(one_line(str(error))) from error


def _refused(file: File, problem: str) -> Exception:
    from dispatcher.cli.files.documents import refused

    return refused(file.name, problem)


def _changed(world: World, changes: Sequence[str], quotas: Sequence[str], without: Sequence[str]) -> World:
    """The world after the changes of the command line. Raises `ChangeError`."""
    from dispatcher.core.scheduling.explain.repair import apply
    from dispatcher.core.scheduling.explain.what_if import check_cluster, parse_change, with_quota

    for cluster in without:
        check_cluster(world, cluster)
        world = world.without_cluster(cluster)
    for index, written in enumerate(changes):
        world = apply(world, parse_change(written, world), f"added-{index}")
    for written in quotas:
        world = with_quota(written, world)
    return world


def _jobs(file: File, run: RunFile) -> list[Job]:
    """The jobs of the trace; its file is named from the folder of the file that names it."""
    from dispatcher.api.spec_errors import SpecError
    from dispatcher.cli.files.documents import refused
    from dispatcher.core.simulation.traces.rows import TraceError

    if not run.trace.file:
        return run.jobs()
    path = Path(file.name).parent / run.trace.file
    try:
        with path.open(encoding="utf-8-sig", newline="") as opened:
            return run.jobs(iter(partial(opened.readline, LONGEST_LINE), ""))
    except OSError as error:
        raise refused(str(path), error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise refused(str(path), f"is no text in UTF-8: {error.reason}") from error
    except TraceError as error:
        raise refused(str(path), str(error)) from error
    except SpecError as error:
        raise _refused(file, str(error)) from error


# --- the runs ------------------------------------------------------------------------------------------------


def run_all(simulations: Sequence[tuple[str, Simulation]]) -> tuple[list[Run], bool]:
    """Run the simulations, and return what each came to; with Ctrl-C up to there, and True."""
    from dispatcher.cli.files.simulate_report import Run

    runs: list[Run] = []
    for name, simulation in simulations:
        is_over = _run(name, simulation)
        runs.append(Run(name, simulation.resource, simulation.measured()))
        if not is_over:
            gangs = f"{simulation.arrived} of {simulation.gangs} gangs of {name} had arrived"
            note(f"interrupted: {gangs}, and the measures are of these")
            return runs, True
    return runs, False


def _run(name: str, simulation: Simulation) -> bool:
    """Run one simulation; False if Ctrl-C ended it."""
    with _progress(name, simulation) as show:
        try:
            while simulation.advance():
                show()
        except KeyboardInterrupt:
            return False
        except OverflowError as error:
            raise CommandFailed(f"{name}: {TOO_LATE}") from error
    return True


@contextmanager
def _progress(name: str, simulation: Simulation) -> Iterator[Callable[[], None]]:
    """A line of progress on stderr, refreshed by calls and removed at the end; none if stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    shown_at = 0.0

    def show() -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= REFRESH:
            shown_at = time.monotonic()
            share = simulation.arrived * 100 // max(1, simulation.gangs)
            replace_line(
                f"{name}: {share:3} % of {simulation.gangs} gangs have arrived, day {simulation.day}"
            )

    try:
        yield show
    finally:
        replace_line("")
