"""`queue`: the pending queue, from the database, or without one from the statuses of AppWrappers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import click
from msgspec import Struct

from dispatcher.cli.command_line import epilog
from dispatcher.cli.options import (
    ALL_NAMESPACES,
    HubOptions,
    all_namespaces_option,
    hub_options,
    is_watched,
    selector_option,
    watch_options,
)
from dispatcher.cli.pending import with_starts, with_true_advice
from dispatcher.cli.query import (
    ask,
    database_or_hub_option,
    hub_answers,
    laid_out,
    needs_database,
    note,
    on_hub,
    queue_option,
    reads_database,
    shape_option,
    show_report,
    source_namespace_option,
    user_option,
)
from dispatcher.cli.screens.output import Column, Shape, how_long, known, named, plain, prose, text, watch
from dispatcher.cli.screens.tables import Heading
from dispatcher.errors import StoreForbidden
from dispatcher.store.readers.reports import Filter, Report, Row

NOTHING_WAITS: Final = "Nothing waits."
QUEUE: Final = (
    plain("QUEUE", "queue", 1),
    Column(Heading("POSITION"), lambda row: _position(row)),
    named(),
    plain("USER", "user_name", 3),
    plain("PRIORITY", "priority", 4),
    how_long("WAITED", "waited_s"),
    plain("GPU", "gpu"),
    plain("REASON", "reason"),
    known("EST START", "estimated_start", 2),
)
QUEUE_WIDE: Final = (
    prose("ESTIMATE UNKNOWN", "estimate_unknown"),
    known("CPU", "cpu"),
    known("MEMORY GIB", "memory_gib"),
    known("PODS", "pods"),
    plain("MESSAGE", "message"),
    known("ADVICE", "advice"),
    Column(Heading("BLOCKING CLUSTERS"), lambda row: _blocking(row)),
)

commands = click.Group()


@commands.command(
    "queue",
    epilog=epilog(
        "kubectl aw queue",
        "kubectl aw queue -n team-a -o wide",
        "kubectl aw queue -A --context hub -l app=train",
        "kubectl aw queue --watch",
        "kubectl aw queue -o json | jq '.[] | select(.gpu > 0)'",
    ),
)
@click.pass_context
@shape_option
@source_namespace_option
@all_namespaces_option
@selector_option
@user_option
@queue_option
@watch_options
@hub_options
@database_or_hub_option
def show_queue(
    command: click.Context,
    output: Shape | None,
    namespace: str,
    everywhere: bool,
    selector: str,
    user: str,
    queue: str,
    again: bool,
    every: float | None,
    at: HubOptions,
    database_url: str,
) -> None:
    """Show the pending queue, and why each AppWrapper is pending. The order is that of scheduling.

    An AppWrapper that may not be dispatched yet, is larger than its clusters or its quota, or is not taken by its queue
    has no position and is listed last. WAITED is the time since its creation. The estimated start follows order, demand
    and the durations that AppWrappers state; -o wide says why it is unknown.

    Without a database the statuses of the AppWrappers are read with the kubeconfig. They have the first positions of a
    queue exactly; 100+ is a position from 100 to 199.
    """
    is_database = reads_database(command, database_url)
    of = Filter(ALL_NAMESPACES if everywhere else namespace, user, queue)

    def in_database() -> _Pending:
        report = with_true_advice(ask(database_url, lambda reports: reports.queue(of)))
        return _Pending(with_starts(report, database_url))

    def on_the_hub() -> _Pending:
        return _pending_in_statuses(at, selector, of, everywhere=everywhere)

    is_repeated = is_watched(again, every)
    try:
        _show(in_database if is_database else on_the_hub, output, every, again=is_repeated)
    except StoreForbidden as error:
        hub_answers(error)
        _show(on_the_hub, output, every, again=is_repeated)


def _show(look: Callable[[], _Pending], output: Shape | None, every: float | None, *, again: bool) -> None:
    if again:
        watch(lambda: look().laid_out(output), every)
    found = look()
    show_report(found.report, output, QUEUE, QUEUE_WIDE, nothing=found.nothing)
    if found.note:
        note(found.note)


class _Pending(Struct, frozen=True):
    """The pending queue, the sentence that is shown if it is empty, and a note about what it does not show."""

    report: Report
    nothing: str = NOTHING_WAITS
    note: str = ""

    def laid_out(self, output: Shape | None) -> str:
        return laid_out(self.report, output, QUEUE, QUEUE_WIDE, nothing=self.nothing)


def _pending_in_statuses(at: HubOptions, selector: str, of: Filter, *, everywhere: bool) -> _Pending:
    from dispatcher.cli.screens.appwrapper_status import outside, pending_report

    if "/" in of.queue:
        raise click.BadParameter(needs_database("a node of MCAD's trees (TREE/NODE)"))
    with on_hub(at) as hub:
        where = ALL_NAMESPACES if everywhere else of.namespace or hub.namespace
        found = hub.appwrappers(where, selector)
    nothing = f"Nothing waits in namespace {where}." if where else NOTHING_WAITS
    count = outside(found)
    said = f"AppWrappers that are not in the queue yet: {count}; kubectl aw show says why." if count else ""
    return _Pending(pending_report(found, of, datetime.now(UTC)), nothing, said)


def _blocking(row: Row) -> str:
    """How many clusters reject it, by reason, such as `2 InsufficientResources`."""
    found = row["blocking_clusters"]
    counts = found.items() if isinstance(found, dict) else ()
    return ", ".join(f"{count} {reason}" for reason, count in counts)


def _position(row: Row) -> str:
    """The position; with a plus if it is rounded down, as in statuses."""
    return f"{text(row['position'])}{'+' if row.get('is_position_rounded') else ''}"
