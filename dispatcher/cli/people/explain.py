"""`explain` and `would`: the decision of the next scheduling cycle on a gang, and its reasons.

Both read the queue and the leader's last snapshot from the database, and decide as the leader does. Without a database
`explain` reads the status of the AppWrapper. They write nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api.names import DEFAULT_NAMESPACE
from dispatcher.cli.command_line import LEAST_PRIORITY, MOST_PRIORITY, WholeNumber, epilog, is_given
from dispatcher.cli.options import (
    DOCUMENTS,
    HubOptions,
    Output,
    all_namespaces_option,
    files_option,
    gathered,
    hub_options,
    namespace_option,
    output_option,
    selector_option,
)
from dispatcher.cli.people.appwrapper_names import (
    find_appwrappers,
    name_in_database,
    optional_name_argument,
    unknown_name,
)
from dispatcher.cli.query import (
    THE_SNAPSHOT,
    database_or_hub_option,
    hub_answers,
    needs_database,
    note,
    optional_database_option,
    read_leader_snapshot,
    reads_database,
    run_coroutine,
    source_namespace_option,
    why_not,
)
from dispatcher.cli.screens.output import put, say, shown_as, terminal_width
from dispatcher.errors import (
    ClusterError,
    CommandFailed,
    InvalidFile,
    MissingPackage,
    SettingsError,
    StoreForbidden,
    TryAgain,
)
from dispatcher.text import one_line

if TYPE_CHECKING:
    from dispatcher.cli.files.documents import Objects
    from dispatcher.cli.people.author import AuthorFacts, HubFacts
    from dispatcher.cli.people.explanation_report import Report
    from dispatcher.cli.screens.explanation import Document
    from dispatcher.core.intake.proposal import Proposal
    from dispatcher.core.intake.wrapping import Beside
    from dispatcher.core.model.records.record import Record
    from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
    from dispatcher.store.snapshot.snapshot_reader import Snapshot

commands = click.Group()

MOST_WORK: Final = 100_000
"""Bounds the search for repairs: a third of `repair.MOST_WORK`, some seconds."""
HUB_SECONDS: Final = 20.0
"""Seconds for all questions to the hub."""


changes_option = click.option(
    "changes",
    "--if",
    multiple=True,
    metavar="CHANGE",
    help="Decide as if: [CLUSTER/]nodes+2:cpu=8,nvidia.com/gpu=1, nodes+2:like=NODE, or untaint:NODE. Repeatable.",
)
gone_option = click.option(
    "gone",
    "--if-gone",
    multiple=True,
    metavar="NAME",
    help="Decide as if this AppWrapper ([NAMESPACE/]NAME) were deleted. Repeatable.",
)
priority_option = click.option(
    "--priority",
    type=WholeNumber(min=LEAST_PRIORITY, max=MOST_PRIORITY),
    metavar="NUMBER",
    help="Decide as if it had this priority.",
)
without_option = click.option(
    "without",
    "--without-cluster",
    multiple=True,
    metavar="CLUSTER",
    help="Decide as if this cluster did not exist. Repeatable.",
)


class WhatIf(Struct, frozen=True):
    """The changes of one question, as written."""

    changes: Sequence[str]
    gone: Sequence[str]
    priority: int | None
    without: Sequence[str]


what_if_options = gathered("asked", WhatIf, changes_option, gone_option, priority_option, without_option)


@commands.command(
    epilog=epilog(
        "kubectl aw explain train-7",
        "kubectl aw explain team-a/train-7 --context hub",
        "kubectl aw explain train-7 -n team-a --if nodes+2:like=gpu-node-3",
        "kubectl aw explain train-7 --if-gone team-b/sweep-4 --priority 9 -o json",
    )
)
@click.pass_context
@optional_name_argument
@source_namespace_option
@all_namespaces_option
@selector_option
@click.option("--uid", is_flag=True, help="NAME is the uid. Needs the database.")
@what_if_options
@output_option
@hub_options
@database_or_hub_option
def explain(
    command: click.Context,
    name: str,
    namespace: str,
    everywhere: bool,
    selector: str,
    uid: bool,
    asked: WhatIf,
    output: Output | None,
    at: HubOptions,
    database_url: str,
) -> None:
    """Explain why an AppWrapper waits, and what would dispatch it. Holders of what it needs are named.

    The answer is the decision of the next scheduling cycle on the queue as it is and on clusters as they were some
    seconds ago; the last line says how many. Each named change suffices by itself, and a smaller one does not: the
    command has tried both.

    Without a database the status of the AppWrapper answers: its reason, and for the first AppWrappers of a queue the
    holders and the smallest change. --if, --if-gone, --priority and --without-cluster need the database.
    """
    asks = WhatIf.__struct_fields__
    reads_database(command, database_url, *asks, needed=THE_SNAPSHOT)
    if not reads_database(command, database_url, "uid"):
        _explain_from_status(at, selector, name, namespace, output, everywhere=everywhere)
        return
    name, namespace = name_in_database(name, namespace, everywhere=everywhere, is_uid=uid)
    try:
        snapshot = read_leader_snapshot(database_url)
    except (StoreForbidden, MissingPackage) as error:
        if any(is_given(command, each) for each in asks):
            raise CommandFailed(f"changes need {THE_SNAPSHOT}. {why_not(error)}") from error
        _explain_without_snapshot(error, database_url, at, name, namespace, output, is_uid=uid)
        return
    try:
        record = _record(snapshot, name, namespace, is_uid=uid)
    except CommandFailed as error:
        raise CommandFailed(_beside_queue(at, name, namespace) or str(error)) from error
    world = snapshot.world
    if all(each.uid != record.uid for each in world.pending):
        _show([_not_pending(record)], output)
        if any(is_given(command, each) for each in asks):
            note(f"Nothing was planned: {record.key} is not pending.")
        return
    world = _changed(snapshot, world, asked, [record.uid])
    _show_reports(explanations(snapshot, world, [record.uid]), output)


def _explain_without_snapshot(
    refused: StoreForbidden | MissingPackage,
    database_url: str,
    at: HubOptions,
    name: str,
    namespace: str,
    output: Output | None,
    *,
    is_uid: bool,
) -> None:
    """Explain by the status on the hub if there is a kubeconfig, else by the views that the role may read."""
    from dispatcher.kube.user_kubeconfig import has_kubeconfig

    if not is_uid and has_kubeconfig(at.kubeconfig):
        hub_answers(refused)
        _explain_from_status(at, "", name, namespace, output, everywhere=False)
        return
    from dispatcher.cli.people.without_snapshot import explained

    _show([explained(database_url, name, namespace, refused, is_uid=is_uid)], output)


def _explain_from_status(
    at: HubOptions, selector: str, name: str, namespace: str, output: Output | None, *, everywhere: bool
) -> None:
    from dispatcher.cli.screens.appwrapper_status import AppWrapperStatus
    from dispatcher.cli.screens.explanation import missing_queue_in, of_status

    try:
        found = find_appwrappers(at, name, selector, namespace, everywhere=everywhere)
    except CommandFailed as error:
        if isinstance(error, TryAgain) or not name:
            raise
        raise CommandFailed(_beside_queue(at, name, namespace) or str(error)) from error
    now, is_wide = datetime.now(UTC), output is Output.WIDE
    statuses = [AppWrapperStatus(each, now) for each in found]
    queues = _queue_names(at) if any(missing_queue_in(each.waiting) for each in statuses) else []
    _show([of_status(each, queues, is_wide=is_wide) for each in statuses], output)


def _queue_names(at: HubOptions) -> list[str]:
    from dispatcher.cli.hub import Hub

    with Hub(at) as hub:
        return hub.queue_names()


def _beside_queue(at: HubOptions, name: str, namespace: str) -> str:
    """The sentence about an object of that name that no AppWrapper wraps; empty if the hub shows none."""
    from dispatcher.cli.people.absent import beside_queue

    return beside_queue(at, name, namespace)


@commands.command(
    epilog=epilog(
        "kubectl aw would ray-job.yaml",
        "kubectl aw would train.yaml -n team-a --priority 9",
        "kubectl aw wrap train.yaml --queue vision | kubectl aw would -",
        "kubectl aw would - -o json < train.yaml | jq '.[].verdict'",
    )
)
@files_option("any objects")
@namespace_option("Namespace of AppWrappers that name none.  [default: that of the kubeconfig, else default]")
@what_if_options
@output_option
@optional_database_option
@hub_options
def would(
    files: Sequence[str],
    namespace: str,
    asked: WhatIf,
    output: Output | None,
    database_url: str,
    at: HubOptions,
) -> None:
    """Say what would happen if a file were submitted now. Nothing is submitted.

    The gangs of the files are decided together, in their order: AppWrappers as they are, and the other objects of a
    file as one gang, as submit wraps them. Objects that are in no gang are listed; those of unknown kinds, which may
    make pods, are refused. With a kubeconfig of the hub, its user is the author: the answer says what the author may
    not create. It counts the defaults of pods that each cluster adds. It ends with the age of the facts about clusters
    and queues. The priority ceiling of the namespace and the bound on its queued AppWrappers are not checked.
    """
    if not database_url:
        raise click.BadParameter(needs_database("would", THE_SNAPSHOT))
    from dispatcher.kube.user_kubeconfig import has_kubeconfig

    if at.context and not has_kubeconfig(at.kubeconfig):
        raise click.BadParameter("--context is one of a kubeconfig: give --kubeconfig or KUBECONFIG, too")
    from dispatcher.cli.files.documents import read_objects
    from dispatcher.core.model.records.record import Phase

    given = read_objects(files)
    try:
        snapshot = read_leader_snapshot(database_url)
    except StoreForbidden as error:
        if asked.changes or asked.gone or asked.without or asked.priority is not None:
            raise CommandFailed(f"changes need {THE_SNAPSHOT}. {why_not(error)}") from error
        _would_without_snapshot(error, given, namespace, output, database_url, at)
        return
    read, others = _proposals(snapshot, given, namespace, _namespace_of(at))
    proposed, facts = _with_facts(snapshot, read, at, asked.without)
    proposals = [each.record for each in proposed]
    queued = [each for each in proposals if each.phase is Phase.QUEUED]
    world = snapshot.world.with_pending(queued)
    world = _changed(snapshot, world, asked, [each.uid for each in proposals])
    for each in proposals:
        if each.phase is not Phase.QUEUED:
            note(f"{each.key} is suspended: it would not be queued before it is resumed.")
            for line in facts[each.uid].lines() if each.uid in facts else ():
                note(f"{each.key}: {line}.")
    reports = explanations(snapshot, world, [each.uid for each in queued])
    told = [replace(each, author=facts.get(each.explanation.record.uid)) for each in reports]
    _show_reports(told, output, others)


def _would_without_snapshot(
    refused: StoreForbidden,
    given: Sequence[Objects],
    namespace: str,
    output: Output | None,
    database_url: str,
    at: HubOptions,
) -> None:
    """Say what is known of the AppWrappers of a file to a role that may not read the leader's snapshot."""
    from dispatcher.cli.people.without_snapshot import NOT_PLANNED, proposed, tell
    from dispatcher.store.snapshot.snapshot_reader import snapshot_of_nothing

    snapshot = snapshot_of_nothing(datetime.now(UTC))
    read, others = _proposals(snapshot, given, namespace, _namespace_of(at))
    proposals, facts = _with_facts(snapshot, read, at, ())
    documents = proposed(database_url, [each.record for each in proposals], facts)
    tell(refused, NOT_PLANNED)
    _show(documents, output, _listed(others), also=[each.as_value() for each in others])


def _namespace_of(at: HubOptions) -> str:
    """The namespace of the context; `default` without a kubeconfig that can be read."""
    from dispatcher.kube.user_kubeconfig import read_kubeconfig

    try:
        found = read_kubeconfig(at.kubeconfig)
    except SettingsError:
        return DEFAULT_NAMESPACE  # the note about the hub says why
    return found.namespace(at.context) if found else DEFAULT_NAMESPACE


def _with_facts(
    snapshot: Snapshot, proposals: list[Proposal], at: HubOptions, without: Collection[str]
) -> tuple[list[Proposal], dict[str, AuthorFacts]]:
    """The proposals with the defaults of their pods in each cluster, and the facts about each, by uid."""
    from dispatcher.cli.people.author import AuthorFacts, HubFacts
    from dispatcher.core.intake.proposal import known_defaults, with_pod_defaults

    asked = _ask_hub(proposals, at)
    clusters = [each for each in snapshot.world.clusters if each.name not in without]
    not_asked = HubFacts(defaults=None, unread=("the defaults of pods on the hub are not known",))
    changed, facts, unknown = [], {}, dict[str, None]()
    for proposal in proposals:
        uid = proposal.record.uid
        of_hub = asked.get(uid, not_asked)
        known = known_defaults(proposal, clusters, snapshot.surveys, of_hub.defaults)
        defaulted = with_pod_defaults(proposal, known.defaults, snapshot.rules)
        changed.append(defaulted)
        denied = of_hub.denied if uid in asked else None
        if defaulted is not proposal:
            own = {name: known.defaults.own[name] for name, _ in defaulted.record.gang.smaller}
            facts[uid] = AuthorFacts(denied, known.defaults.largest, own)
        elif denied is not None:
            facts[uid] = AuthorFacts(denied)
        unknown |= dict.fromkeys(of_hub.unknown)
        unknown |= dict.fromkeys(
            f"the defaults of pods in cluster {each} are not known" for each in known.unknown
        )
        if known.lacks_hub:
            unknown |= dict.fromkeys(of_hub.unread)
    for sentence in unknown:
        note(f"{sentence[0].upper()}{sentence[1:]}: this does not count.")
    return changed, facts


def _ask_hub(proposals: list[Proposal], at: HubOptions) -> dict[str, HubFacts]:
    """The facts of each proposal, by uid; empty, with a note, if no hub is named or the hub does not answer."""
    import asyncio

    from dispatcher.cli.hub import Hub
    from dispatcher.cli.people.author import AuthorClient
    from dispatcher.kube.discovery import Discovery
    from dispatcher.kube.user_client import AsyncUserClient
    from dispatcher.kube.user_kubeconfig import has_kubeconfig

    async def ask() -> dict[str, HubFacts]:
        with Hub(at) as hub:
            calls = AsyncUserClient(hub.client)
            async with asyncio.timeout(HUB_SECONDS):
                author = AuthorClient(calls, Discovery(calls))
                return {each.record.uid: await author.facts_of(each) for each in proposals}

    if not has_kubeconfig(at.kubeconfig):
        note("Without a kubeconfig, rights of the author do not count.")
        return {}
    try:
        return run_coroutine(ask())
    except (ClusterError, SettingsError, TimeoutError) as error:
        why = one_line(str(error)) or "no answer in time"
        note(f"The hub does not say it, so rights of the author do not count: {why}")
        return {}


def _proposals(
    snapshot: Snapshot, given: Sequence[Objects], namespace: str, default: str
) -> tuple[list[Proposal], list[Beside]]:
    """The gangs of files, and the objects that are in none."""
    from dispatcher.api.schema import unknown_fields
    from dispatcher.api.spec_errors import SpecError
    from dispatcher.cli.files.submission import check_any, check_namespace, wrapping_of
    from dispatcher.core.intake.proposal import propose

    wrappings = [
        (each.name, wrapping_of(each, kinds=snapshot.rules.kinds, are_kinds_of_leader=True)) for each in given
    ]
    written = [(file, each) for file, wrapping in wrappings for each in wrapping.appwrappers]
    found: list[Proposal] = []
    for number, (file, each) in enumerate(written):
        try:
            proposal = propose(each.raw, namespace or default, snapshot.rules, snapshot.world.now, number)
            check_namespace(proposal.record.namespace, namespace)
        except SpecError as error:
            raise InvalidFile(one_line(f"{file}: {each.place}: {error}")) from error
        found.append(proposal)
        for sentence in unknown_fields(each.raw["spec"]):
            note(f"{proposal.record.key}: {sentence}")
    check_any(given, found)
    return found, [each for _, wrapping in wrappings for each in wrapping.beside]


def _record(snapshot: Snapshot, name: str, namespace: str, *, is_uid: bool) -> Record:
    """The newest AppWrapper of that name, or the one of that uid."""
    found = [
        each
        for each in snapshot.records.values()
        if (each.uid == name if is_uid else _has_name(each, name, namespace))
    ]
    if not found:
        show = f"show --uid {name}" if is_uid else f"show {namespace}/{name}" if namespace else f"show {name}"
        remedy = f"if there was one, `kubectl aw {show}` has its history"
        if is_uid:
            raise CommandFailed(f"there is no AppWrapper of the uid {name}: {remedy}")
        raise CommandFailed(unknown_name(name, namespace, _names(snapshot, namespace), f": {remedy}"))
    newest = max(found, key=lambda each: each.created_at)
    if len(found) > 1:
        other = "--uid" if namespace else "-n"
        note(f"{len(found)} AppWrappers have that name: this is {newest.key}; {other} chooses another.")
    if newest.is_set_aside:
        raise CommandFailed(
            f"the row of {newest.key} cannot be read: it is set aside; the dispatcher's log has the error"
        )
    return newest


def _names(snapshot: Snapshot, namespace: str) -> list[str]:
    return [each.name for each in snapshot.records.values() if namespace in ("", each.namespace)]


def _has_name(record: Record, name: str, namespace: str) -> bool:
    return record.name == name and namespace in ("", record.namespace)


def _changed(snapshot: Snapshot, world: World, asked: WhatIf, uids: Collection[str]) -> World:
    """The world after the changes of a question about the pending gangs `uids`."""
    from dispatcher.core.scheduling.explain.repair import apply
    from dispatcher.core.scheduling.explain.what_if import ChangeError, check_cluster, parse_change

    try:
        for cluster in asked.without:
            check_cluster(world, cluster)
            world = world.without_cluster(cluster)
        for written in asked.gone:
            gone = {each.uid for each in _named(snapshot, written)}
            if not gone.isdisjoint(uids):
                raise click.BadParameter(f"{written!r} is the AppWrapper to explain: name another one")
            world = world.without_gangs(gone).without_pending(gone)
        for index, written in enumerate(asked.changes):
            world = apply(world, parse_change(written, world), f"added-{index}")
    except ChangeError as error:
        raise click.BadParameter(one_line(str(error))) from error
    if asked.priority is not None:
        for uid in uids:
            world = world.with_priority(uid, asked.priority)
    return world


def _named(snapshot: Snapshot, written: str) -> list[Record]:
    namespace, _, name = written.rpartition("/")
    found = [each for each in snapshot.records.values() if _has_name(each, name, namespace)]
    if not found:
        raise click.BadParameter(unknown_name(name, namespace, _names(snapshot, namespace)))
    if len({each.namespace for each in found}) > 1:
        raise click.BadParameter(f"several AppWrappers are named {written!r}: write NAMESPACE/NAME")
    return found


def explanations(
    snapshot: Snapshot, world: World, uids: Sequence[str], known: KnownSnapshots | None = None
) -> list[Report]:
    """The explanations of pending gangs of a world that was made from the snapshot. Raises `NoNode`."""
    from dispatcher.cli.people.explanation_report import Report
    from dispatcher.core.scheduling.explain.estimates import estimated_starts
    from dispatcher.core.scheduling.explain.explanation import explain as explained
    from dispatcher.core.scheduling.explain.world import KnownSnapshots as NewSnapshots

    records = {**snapshot.records, **{each.uid: each for each in world.pending}}
    estimates = estimated_starts(world, records, uids).starts
    known = known or NewSnapshots()
    return [
        Report(
            explained(world, uid, MOST_WORK, known, snapshot.rules.ceiling_of(records[uid].namespace)),
            world,
            records,
            snapshot.taken_at,
            estimate=estimates[uid],
        )
        for uid in uids
    ]


def _show_reports(reports: Sequence[Report], output: Output | None, others: Sequence[Beside] = ()) -> None:
    """Print the reports, and after them the objects of a file about which nothing was decided."""
    from dispatcher.cli.people.explanation_report import age_of

    documents = [each.document(is_wide=output is Output.WIDE) for each in reports]
    _show(documents, output, age_of(reports), _listed(others), also=[each.as_value() for each in others])


def _listed(others: Sequence[Beside]) -> str:
    return "\n".join(f"{each} {each.why}: nothing is decided about it." for each in others)


def _show(
    documents: Iterable[Document], output: Output | None, *more: str, also: Iterable[Mapping[str, Any]] = ()
) -> None:
    """Print explanations, and after them more paragraphs for people, or more documents for programs."""
    from dispatcher.cli.screens.explanation import render

    if output in DOCUMENTS:
        say(shown_as([*(each.value for each in documents), *also], output))
        return
    width = None if output is Output.WIDE else terminal_width()
    if shown := "\n\n".join(filter(None, (*(render(each, width) for each in documents), *more))):
        put(shown, output)


def _not_pending(record: Record) -> Document:
    """The answer about an AppWrapper that is not in the queue."""
    from dispatcher.cli.screens.explanation import not_pending

    known = {"name": record.name, "namespace": record.namespace, "uid": record.uid, "state": record.phase}
    cluster = record.attempt.cluster if record.attempt and record.has_objects else ""
    growth = record.growth_request
    why = growth if growth and not record.reason else record
    return not_pending(known, cluster, why.reason, why.message)
