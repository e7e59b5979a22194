"""`dispatcher plan` and `kubectl aw plan`: one scheduling cycle over a scenario file, without a cluster and a database.

This module reads the file, and `core.scheduling` decides. A wrong file ends the command with exit code 2 and one line
that names the place.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Final

import click

from dispatcher.cli.command_line import Word, examples, exit_codes, paragraph
from dispatcher.cli.screens.output import say, shown_as, terminal_width
from dispatcher.errors import InvalidFile

commands = click.Group()

STDIN: Final = "-"

EXAMPLE: Final = (
    "clusters:",
    "- name: east",
    "  labels: {gpu: a100}",
    "  nodes:",
    "  - {name: node, count: 2, allocatable: {cpu: 8, nvidia.com/gpu: 4}}",
    "queues:",
    "- {name: research}",
    "- {name: vision, parent: research, resources: {nvidia.com/gpu: {nominalQuota: 4}},",
    "   preemption: {reclaim: Any}}",
    "- {name: speech, parent: research, resources: {nvidia.com/gpu: {nominalQuota: 4, borrowingLimit: 2}}}",
    "running:",
    "- {name: r, queue: speech, cluster: east, ran: 60, pods: [{requests: {nvidia.com/gpu: 4}}]}",
    "- {name: s, queue: speech, cluster: east, ran: 30, pods: [{requests: {nvidia.com/gpu: 2}}]}",
    "pending:",
    "- {name: p, queue: vision, pods: [{count: 2, requests: {cpu: 1, nvidia.com/gpu: 2}}]}",
    "- {name: q, queue: speech, age: 60, clusterSelector: gpu=a100, demand: {nvidia.com/gpu: 1}}",
)
_HELP_END: Final = "\n".join(
    (
        examples("kubectl aw plan -f scenario.yaml", "kubectl aw plan -f - -o json < scenario.yaml"),
        paragraph("A scenario", *EXAMPLE),
        exit_codes({0: "planned, even if gangs wait", 2: "wrong usage, or a wrong file"}),
    )
)


class Output(StrEnum):
    """How the plan is shown, if not for people."""

    JSON = "json"
    YAML = "yaml"


@commands.command("plan", epilog=_HELP_END)
@click.option(
    "file",
    "--filename",
    "--file",
    "-f",
    type=click.Path(allow_dash=True),
    required=True,
    metavar="FILE",
    help="Scenario in YAML or JSON; - reads it from stdin.",
)
@click.option("--output", "-o", type=Word(Output), metavar="FORMAT", help="json, or yaml.")
@click.option(
    "--repairs/--no-repairs",
    default=True,
    show_default=True,
    help="Search for holders and repairs; takes up to a minute for large files.",
)
def plan(file: str, output: Output | None, repairs: bool) -> None:
    """Plan one scheduling cycle over a file. Neither a cluster nor a database is asked.

    The file has clusters with their nodes, queues, running gangs and pending gangs. The answer has a decision for
    each pending gang, in the order of the decisions, with the gangs that are preempted for it, and the use of each
    queue before. For each waiting gang it also names holders and repairs. The holders are running gangs: if they were
    gone, the waiting gang would be dispatched. Each repair is a small change of the file that suffices to dispatch
    the waiting gang.
    """
    # Imported here, because other commands do not need it and importing takes most of their time.
    from dispatcher.api.document import DOCUMENT
    from dispatcher.api.spec_errors import SpecError
    from dispatcher.cli.files.documents import read_document, refused
    from dispatcher.cli.files.plan_report import PlanReport
    from dispatcher.core.scheduling.explain.advice import advise
    from dispatcher.core.scheduling.explain.scenario import parse_scenario
    from dispatcher.core.scheduling.explain.world import KnownSnapshots
    from dispatcher.core.scheduling.sharing.cycle import Drained

    try:
        world = parse_scenario(read_document(file, sys.stdin.buffer if file == STDIN else None))
    except SpecError as error:
        raise refused(file, error.problem) if error.path == DOCUMENT else InvalidFile(str(error)) from error
    known = KnownSnapshots()
    shares, outcomes = world.plan_queues(known)
    decided = [each for each in outcomes if not isinstance(each, Drained)]
    advice = advise(world, decided, known) if repairs else {}
    report = PlanReport(world, shares, (*outcomes, *world.lacking_approvals()), advice)
    if output is not None:
        say(shown_as(report.as_document(), output))
    else:
        say(report.as_text(terminal_width()))
