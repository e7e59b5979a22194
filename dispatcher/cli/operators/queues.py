"""`dispatcher queues`: the queues as trees, one queue with its settings and its gangs, and stopping a queue.

The commands parse and print. Queues and their statuses are read from the hub's API, which has both of this moment; the
gangs of one queue come from the database. Every command is safe to repeat.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import replace

from dispatcher import errors
from dispatcher.api.names import QUEUES_PATH
from dispatcher.cli.command_line import CommandGroup, epilog, examples
from dispatcher.cli.options import (
    DOCUMENTS,
    HubOptions,
    Output,
    as_typed,
    check_no_options,
    hub_options,
    is_watched,
    output_option,
    watch_options,
)
from dispatcher.cli.pending import with_starts, with_true_advice
from dispatcher.cli.query import (
    TIMEOUT,
    ask,
    check_way,
    note,
    on_hub,
    optional_database_option,
    patience,
    run_coroutine,
)
from dispatcher.cli.screens.output import (
    as_table,
    how_long,
    known,
    list_as_json,
    named,
    plain,
    prose,
    put,
    say,
    shown_as,
    terminal_width,
    value,
    watch,
    without_managers,
    written_as,
)
from dispatcher.core.queues.queue import StopPolicy
from dispatcher.store.readers.reports import Filter, Report, Reports

if TYPE_CHECKING:
    from dispatcher.cli.hub import Hub
    from dispatcher.cli.operators.queue_tree import QueueList
    from dispatcher.core.status.queue_status import QueueGangs

Json = dict[str, Any]

SHOW: Final = "show"
"""The command that `queues NAME` stands for."""

NOTHING_WAITS: Final = "Nothing waits in it."
GANGS: Final = (
    plain("POSITION", "position"),
    named(),
    plain("USER", "user_name", 2),
    plain("PRIORITY", "priority", 3),
    how_long("WAITED", "waited_s"),
    plain("GPU", "gpu", 1),
    plain("REASON", "reason"),
    prose("MESSAGE", "message"),
)
GANGS_WIDE: Final = (
    plain("CPU", "cpu"),
    plain("MEMORY GIB", "memory_gib"),
    plain("PODS", "pods"),
    plain("ADVICE", "advice"),
    known("EST START", "estimated_start"),
    plain("ESTIMATE UNKNOWN", "estimate_unknown"),
)

_MEANING: Final = {
    StopPolicy.NONE: "open: gangs may be dispatched from it",
    StopPolicy.HOLD: "held: nothing new is dispatched from it, and what runs goes on",
    StopPolicy.HOLD_AND_DRAIN: (
        "being drained: nothing new is dispatched from it, and what runs is evicted and waits in it"
    ),
}


class QueueCommands(CommandGroup):
    """The commands of `queues`, where the name of a queue stands for the command that shows it."""

    def resolve_command(
        self,
        ctx: click.Context,
        args: list[str],
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command to run, with its arguments."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = [SHOW, *args]
        return super().resolve_command(ctx, args)


queue_name_argument = click.argument("name", metavar="NAME", help="The queue's name.")


commands = click.Group()


@commands.group(
    cls=QueueCommands,
    subcommand_metavar="[NAME | COMMAND NAME]",
    invoke_without_command=True,
    epilog=epilog(
        "kubectl aw queues",
        "kubectl aw queues --watch",
        "kubectl aw queues team-a -o wide",
        "kubectl aw queues hold team-a",
        "kubectl aw queues -o json | jq '.items[] | {name: .metadata.name, used: .status.used}'",
    ),
)
@click.pass_context
@output_option
@watch_options
@optional_database_option
@hub_options
def queues(
    command: click.Context,
    output: Output | None,
    again: bool,
    every: float | None,
    database_url: str,
    at: HubOptions,
) -> None:
    """Show the queues as trees; or show, hold, drain and resume one.

    Each line shows the scarcest resource that the tree limits: GPUs, else another device, else cpu. NOMINAL is the
    quota of the queue and all queues below it, BORROWED the use beyond the quota, AVAILABLE the amount that one more
    gang could use. RUNNING and PENDING count the gangs of the queue and all queues below it, without gangs that name
    it in a label and that it does not take. SHARE is the dominant share in thousandths, or under sharing Division the
    fair share of the resource. STATE is Active, or the reason why nothing is dispatched.

    The hub's API is read. STATE is of this moment, as far as it follows from the stop policies; the dispatcher writes
    the numbers every ten seconds, if they have changed. Nodes of MCAD's
    QuotaSubtrees are shown as TREE/NODE; their use is counted from the database, if one is given. JSON has the
    DispatchQueues alone.
    """
    if command.invoked_subcommand:
        check_no_options(command, "queues NAME -o json")
        return

    def look() -> str:
        if output in DOCUMENTS:
            with on_hub(at) as hub:
                return written_as(list_as_json(hub.queues()), output)
        return _shown(_queues(at, database_url), output)

    if is_watched(again, every):
        watch(look, every)
    put(look(), output)


@queues.command(
    SHOW,
    epilog=epilog(
        "kubectl aw queues show team-a",
        "kubectl aw queues team-a",
        "kubectl aw queues team-a -o json | jq '.settings'",
    ),
)
@queue_name_argument
@output_option
@watch_options
@optional_database_option
@hub_options
def show(
    name: str,
    output: Output | None,
    again: bool,
    every: float | None,
    database_url: str,
    at: HubOptions,
) -> None:
    """Show one queue: settings, amounts, and pending gangs in order.

    FROM is the queue that has the setting, itself, default, or dispatcher, which means a setting of the dispatcher.
    The gangs of the queue and of all queues below it are read from the database, with the reason why each is pending.
    Without a database, everything else is shown.
    """

    def look() -> str:
        listed = _queues(at, database_url)
        _check_declared(listed, name)
        gangs = _gangs(database_url, listed.leaves_below(name)) if database_url else None
        return _told(listed, name, gangs, output)

    if is_watched(again, every):
        watch(look, every)
    put(look(), output)
    if not database_url:
        note("Without a database (DISPATCHER_DATABASE_URL or --database-url), its gangs are not shown.")


@queues.command(epilog=examples("kubectl aw queues hold team-a", "kubectl aw queues resume team-a"))
@queue_name_argument
@hub_options
def hold(name: str, at: HubOptions) -> None:
    """Dispatch nothing new from a queue and all queues below it. Gangs that run keep running."""
    _stop(name, StopPolicy.HOLD, at)


@queues.command(
    epilog=examples(
        "kubectl aw queues drain team-a",
        "kubectl aw queues team-a            # Running comes down to 0",
        "kubectl aw queues resume team-a",
    )
)
@queue_name_argument
@hub_options
def drain(name: str, at: HubOptions) -> None:
    """Empty a queue and all queues below it. Nothing new is dispatched, and the gangs that run are evicted.

    The gangs wait in the queue by their age, and are dispatched anew once it is resumed.
    """
    _stop(name, StopPolicy.HOLD_AND_DRAIN, at)


@queues.command(epilog=examples("kubectl aw queues resume team-a"))
@queue_name_argument
@hub_options
def resume(name: str, at: HubOptions) -> None:
    """Dispatch from a queue again, after hold or drain."""
    _stop(name, StopPolicy.NONE, at)


def _stop(name: str, policy: StopPolicy, at: HubOptions) -> None:
    with on_hub(at) as hub:
        listed = _listed(hub.queues())
        if name.count("/") == 1:
            raise errors.CommandFailed(
                f"{name} is not a DispatchQueue. A node of MCAD's trees has no stopPolicy: "
                "give it requests of 0 with hardLimit"
            )
        _check_declared(listed, name)
        found = listed.items[name]
        before = StopPolicy((found.get("spec") or {}).get("stopPolicy") or StopPolicy.NONE)
        if before is not policy:
            _set_stop_policy(hub, found, None if policy is StopPolicy.NONE else policy.value)
    say(f"{name} is {'already ' if before is policy else ''}{_MEANING[policy]}")
    if stopped := _stopped_above(listed, name):
        note(f"{stopped}, which counts for {name}, too.")


def _set_stop_policy(hub: Hub, found: Json, policy: str | None) -> None:
    from dispatcher.kube import paths

    name = found["metadata"]["name"]
    try:
        hub.merge(f"{QUEUES_PATH}/{paths.segment(name)}", found, {"spec": {"stopPolicy": policy}})
    except errors.NotFound as error:
        raise errors.CommandFailed(f"the DispatchQueue {name} was deleted meanwhile") from error


def _stopped_above(listed: QueueList, name: str) -> str:
    """Which queue above another one is stopped, in words; empty if none is."""
    place = listed.forest.places.get(name)
    above = None if place is None or place.parent is None else listed.forest.places[place.parent]
    if above is None or above.stop_policy is StopPolicy.NONE:
        return ""
    return f"Queue {above.stopped_by} above it has the stopPolicy {above.stop_policy.value}"


def _queues(at: HubOptions, database_url: str) -> QueueList:
    """All queues; the use of MCAD's nodes is that of the database, if there is one."""
    from dispatcher.cli.operators.queue_tree import QueueList

    with on_hub(at) as hub:
        listed, subtrees = hub.queues(), quota_subtrees(hub)
    if subtrees is None:
        note("The hub does not allow to list QuotaSubtrees: MCAD's trees are not shown.")
    gangs = _holders(database_url) if subtrees and database_url else None
    return QueueList.of(listed, subtrees or (), gangs)


def quota_subtrees(hub: Hub) -> list[Json] | None:
    """The QuotaSubtrees of all namespaces, each with its apiVersion; None if they may not be listed.

    A version that the hub does not serve has none.
    """
    from dispatcher.core.queues.quota_subtrees import API_VERSIONS
    from dispatcher.kube import paths

    found: list[Json] = []
    for version in API_VERSIONS:
        try:
            listed = hub.client.get(paths.collection(version, "quotasubtrees"))
        except errors.NotFound:
            continue
        except errors.Forbidden:
            return None
        found += ({**each, "apiVersion": version} for each in listed.get("items") or ())
    return found


def _holders(database_url: str) -> QueueGangs | None:
    """The gangs of the database that wait or hold capacity; None if no leader has counted queues in it yet."""
    from dispatcher.core.status.queue_status import QueueGangs
    from dispatcher.store.snapshot.snapshot_reader import read_snapshot

    check_way(database_url)
    with patience():
        snapshot = run_coroutine(read_snapshot(database_url, TIMEOUT))
    if not snapshot.rules.has_queues:
        return None
    active = [each.active for each in snapshot.world.running if each.active is not None]
    return QueueGangs(list(snapshot.records.values()), active, snapshot.world.now)


def _listed(listed: Json) -> QueueList:
    from dispatcher.cli.operators.queue_tree import QueueList

    return QueueList.of(listed)


def _check_declared(listed: QueueList, name: str) -> None:
    if listed.is_shown(name):
        return
    if name in listed.forest.places:
        raise errors.CommandFailed(
            f"the queue {name} is not declared: it exists without a DispatchQueue, and has no limits. "
            "Declare it with kubectl apply to give it settings"
        )
    raise errors.CommandFailed(
        f"there is no DispatchQueue {name}. See those there are with: {as_typed('queues')}"
    )


def _shown(queues: QueueList, output: Output | None) -> str:
    from dispatcher.cli.operators.queue_tree import as_tree, as_wide_tree

    return as_wide_tree(queues) if output is Output.WIDE else as_tree(queues, terminal_width())


def _gangs(database_url: str, leaves: Sequence[str]) -> Report:
    """The gangs that wait in these queues, in turn. A gang in several trees is listed under the queue of its turn."""
    return with_starts(with_true_advice(_waiting(database_url, leaves)), database_url)


def _waiting(database_url: str, leaves: Sequence[str]) -> Report:
    if "/" in leaves[0]:
        reports = [ask(database_url, _waiting_in(leaf)) for leaf in leaves]
        return replace(reports[0], rows=tuple(row for each in reports for row in each.rows))
    if len(leaves) == 1:
        return ask(database_url, _waiting_in(leaves[0]))
    found = ask(database_url, _waiting_in(""))
    queue, wanted = found.columns.index("queue"), set(leaves)
    return replace(found, rows=tuple(row for row in found.rows if row[queue] in wanted))


def _waiting_in(leaf: str) -> Callable[[Reports], Awaitable[Report]]:
    return lambda reports: reports.queue(Filter(queue=leaf))


def _told(listed: QueueList, name: str, gangs: Report | None, output: Output | None) -> str:
    from dispatcher.cli.operators.queue_tree import as_text, settings_of

    if output in DOCUMENTS:
        is_valid = name in listed.forest.places
        return shown_as(
            {
                "queue": without_managers(listed.items[name]) if name in listed.items else None,
                "settings": [each._asdict() for each in settings_of(listed, name)] if is_valid else None,
                "gangs": None if gangs is None else value(list(gangs)),
            },
            output,
        )
    width = None if output is Output.WIDE else terminal_width()
    blocks = [as_text(listed, name, width)]
    if gangs is not None:
        of_each = [] if listed.leaves_below(name) == [name] else [plain("QUEUE", "queue")]
        columns = [*of_each, *GANGS, *(GANGS_WIDE if output is Output.WIDE else ())]
        blocks.append(
            f"Gangs:\n{as_table(gangs, columns, width, gangs.at)}"
            if gangs.rows
            else f"Gangs:\n{NOTHING_WAITS}"
        )
    return "\n\n".join(blocks)
