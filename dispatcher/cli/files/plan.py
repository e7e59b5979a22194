"""`dispatcher plan` and `kubectl aw plan`: one scheduling cycle over files, or over the leader's snapshot and files.

A file is a scenario, or has Kubernetes objects. This module reads them, and `core.scheduling` decides. A wrong file
ends the command with exit code 2 and one line that names the place.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import click

from dispatcher.cli.command_line import Word, examples, exit_codes, paragraph
from dispatcher.cli.options import files_option, kinds_option
from dispatcher.cli.query import (
    THE_SNAPSHOT,
    needs_database,
    optional_database_option,
    read_leader_snapshot,
    why_not,
)
from dispatcher.cli.screens.output import say, shown_as, terminal_width
from dispatcher.errors import CommandFailed, InvalidFile, StoreForbidden

if TYPE_CHECKING:
    from dispatcher.cli.files.documents import File
    from dispatcher.core.kinds.registry import Kinds
    from dispatcher.core.scheduling.explain.world import World
    from dispatcher.store.snapshot.snapshot_reader import Snapshot

commands = click.Group()

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
_WHO_MAY: Final = (
    "ask its operator for a role of dispatcher_reader; a plan shows the gangs of all (docs/plan.md)"
)
_HELP_END: Final = "\n".join(
    (
        examples(
            "kubectl aw plan scenario.yaml",
            "kubectl aw plan scenario.yaml ray-job.yaml",
            "kubectl aw plan - -o json < scenario.yaml",
            "kubectl aw plan queues.yaml gangs.yaml nodes.yaml",
            "kubectl aw plan queues.yaml --live",
        ),
        paragraph("A scenario", *EXAMPLE),
        exit_codes(
            {
                0: "planned, even if gangs wait",
                1: "a missing package; --live: no snapshot, or a database that refuses it",
                2: "wrong usage, or a wrong file",
                3: "--live: the database did not answer",
            }
        ),
    )
)


class Output(StrEnum):
    """How the plan is shown, if not for people."""

    JSON = "json"
    YAML = "yaml"


@commands.command("plan", epilog=_HELP_END)
@files_option("a scenario, or Kubernetes objects")
@click.option("--output", "-o", type=Word(Output), metavar="FORMAT", help="json, or yaml.")
@click.option(
    "--repairs/--no-repairs",
    default=True,
    show_default=True,
    help="Search for holders and repairs; takes up to a minute for large files.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Plan on the clusters and the queue as they are, changed by the objects of the files.",
)
@click.option(
    "--cluster",
    default="",
    metavar="NAME",
    help="With --live or a scenario, the cluster that gets the Nodes of the files.  [default: the only one]",
)
@kinds_option
@optional_database_option
def plan(
    files: Sequence[str],
    output: Output | None,
    repairs: bool,
    live: bool,
    cluster: str,
    kinds: str,
    database_url: str,
) -> None:
    """Plan one scheduling cycle over files.

    Files of Kubernetes objects have DispatchQueues, Nodes and Namespaces, as kubectl prints them and as they are
    applied, and AppWrappers, jobs and other objects as submit takes them. The AppWrappers are queued, and the Nodes are
    one empty cluster. With --live the leader's snapshot is read from the database, and the objects of the files change
    it: the answer is the next cycle after kubectl apply, and no later one. This needs a login of the role
    dispatcher_reader. An AppWrapper that waits keeps its age, and one that runs is not planned again. The kinds are
    those of the leader, and --kinds is not read. Nothing is written. Without --live neither a cluster nor a database
    is asked.

    A scenario has clusters with their nodes, queues, running gangs and pending gangs. Objects of further files come in
    addition: their gangs are behind those of the scenario. The answer has a decision for
    each pending gang, in the order of the decisions, with the gangs that are preempted for it, and the use of each
    queue before. For each waiting gang it also names holders and repairs. The holders are running gangs: if they were
    gone, the waiting gang would be dispatched. Each repair is a small change of the file that suffices to dispatch
    the waiting gang.
    """
    # Imported here, because other commands do not need it and importing takes most of their time.
    from dispatcher.api.document import DOCUMENT
    from dispatcher.api.spec_errors import SpecError
    from dispatcher.cli.files.documents import read_files, read_kinds, refused
    from dispatcher.cli.files.plan_report import PlanReport
    from dispatcher.core.scheduling.cycle.cycle import Drained
    from dispatcher.core.scheduling.explain.advice import advise
    from dispatcher.core.scheduling.explain.world import KnownSnapshots

    if live and not database_url:
        raise click.BadParameter(needs_database("--live", THE_SNAPSHOT))
    given = read_files(files)
    snapshot = _read_snapshot(database_url) if live else None
    try:
        known_kinds = snapshot.rules.kinds if snapshot else read_kinds(kinds)
        world, names = _world(given, snapshot, cluster, known_kinds)
    except SpecError as error:
        if error.path == DOCUMENT:
            raise refused(given[0].name, error.problem) from error
        raise InvalidFile(str(error)) from error
    known = KnownSnapshots()
    shares, outcomes = world.plan_queues(known)
    decided = [each for each in outcomes if not isinstance(each, Drained)]
    advice = advise(world, decided, known) if repairs else {}
    age = snapshot.age if snapshot else None
    report = PlanReport(world, shares, (*outcomes, *world.lacking_approvals()), advice, names, age)
    if output is not None:
        say(shown_as(report.as_document(), output))
    else:
        say(report.as_text(terminal_width()))


def _read_snapshot(database_url: str) -> Snapshot:
    """The leader's snapshot; raises `CommandFailed` also for an account that may not read it."""
    try:
        return read_leader_snapshot(database_url)
    except StoreForbidden as error:
        raise CommandFailed(f"--live needs {THE_SNAPSHOT}. {why_not(error)}: {_WHO_MAY}") from error


def _world(
    given: Sequence[File], snapshot: Snapshot | None, cluster: str, kinds: Kinds
) -> tuple[World, dict[str, str]]:
    """The world of files, or of a snapshot and files, and the names of its gangs by uid, if these are no names."""
    from dispatcher.cli.files.documents import Objects, read_either, refused
    from dispatcher.cli.files.plan_live import live_world_of
    from dispatcher.cli.files.plan_manifests import read_manifests, with_manifests, world_of
    from dispatcher.core.scheduling.explain.scenario import parse_scenario

    read = list(map(read_either, given))
    of_objects = [each for each in read if isinstance(each, Objects)]
    scenarios = [each for each in read if not isinstance(each, Objects)]
    if scenarios and snapshot is not None:
        raise click.BadParameter("--live takes Kubernetes objects, and a file is a scenario or has no object")
    if len(scenarios) > 1:
        raise refused(scenarios[-1].name, "is a second scenario")
    found = read_manifests(of_objects, kinds, are_kinds_of_leader=snapshot is not None)
    if scenarios:
        [scenario] = scenarios
        return with_manifests(parse_scenario(scenario.document), found, cluster, kinds), {}
    if cluster and snapshot is None:
        raise click.BadParameter("--cluster is one of the clusters of --live, or of a scenario")
    if snapshot is None:
        world = world_of(of_objects[0].name, found, kinds)
        return world, {each.uid: each.key for each in world.pending}
    world = live_world_of(found, snapshot, cluster)
    records = {**snapshot.records, **{each.uid: each for each in world.pending}}
    return world, {uid: each.key for uid, each in records.items()}
