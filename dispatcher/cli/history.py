"""`kubectl aw`, and the same in `dispatcher`: what waits, what became of it, and what was used.

The commands parse, ask the views of schema `history`, and lay out what they were told; none of them writes. Without a
database `queue` and `show` read the statuses of AppWrappers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import click

from dispatcher.cli import coroutines
from dispatcher.cli.appwrapper_names import (
    check_one_of,
    find_appwrappers,
    name_in_database,
    optional_name_argument,
)
from dispatcher.cli.describe import as_text, as_value
from dispatcher.cli.durations import duration
from dispatcher.cli.output import (
    Column,
    Shape,
    as_asked,
    as_csv,
    how_long,
    known,
    named,
    plain,
    prose,
    put,
    shown_as,
    terminal_width,
    text,
)
from dispatcher.cli.parameter_types import WholeNumber, Word
from dispatcher.cli.pending_advice import described, with_true_advice
from dispatcher.cli.pending_starts import described_with_start, with_starts
from dispatcher.cli.query import (
    TO_NAME_A_DATABASE,
    ask,
    check_way,
    database_option,
    epilog,
    laid_out,
    namespace_filter_option,
    note,
    patience,
    query_timeout_option,
    queue_option,
    shape_option,
    show_report,
    since_option,
    since_until,
    until_option,
    user_option,
)
from dispatcher.cli.sources import (
    database_or_hub_option,
    needs_database,
    reading_hub,
    reads_database,
    source_namespace_option,
)
from dispatcher.cli.tables import Heading
from dispatcher.cli.user_options import (
    ALL_NAMESPACES,
    all_namespaces_option,
    context_option,
    kubeconfig_option,
    selector_option,
)
from dispatcher.cli.watching import every_option, is_watched, watch, watch_option
from dispatcher.errors import CommandFailed
from dispatcher.store.reports import COLUMN_OF, Description, Filter, GroupBy, Period, Report, Row, Window

if TYPE_CHECKING:
    from dispatcher.cli.status_description import StatusDescription

ROWS_ON_TERMINAL: Final = 500
"""More than anybody scrolls through; in a pipe there is no limit."""

MOST_ROWS: Final = 1_000_000

NOTHING_WAITS: Final = "Nothing waits."
QUEUE: Final = (
    plain("QUEUE", "queue", 1),
    Column(Heading("POSITION"), lambda row: _position(row)),
    named(),
    plain("USER", "user_name", 3),
    plain("PRIORITY", "priority", 4),
    how_long("AGE", "waited_s"),
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
    plain("BLOCKING CLUSTERS", "blocking_clusters"),
)

HISTORY: Final = (
    named(),
    plain("USER", "user_name", 6),
    plain("SUBMITTED", "submitted_at"),
    plain("STATE", "state"),
    plain("OUTCOME", "outcome", 1),
    plain("REASON", "reason"),
    plain("CLUSTER", "last_cluster", 5),
    how_long("WAITED", "wait_s", 4),
    how_long("RAN", "run_s", 2),
    plain("GPU", "gpu", 3),
    plain("GPU-H", "gpu_h", 7),
)
HISTORY_WIDE: Final = (
    plain("QUEUE", "queue"),
    plain("PRIORITY", "priority"),
    plain("ATTEMPTS", "attempts"),
    how_long("LOST", "lost_s"),
    plain("STARTED", "first_started_at"),
    plain("ENDED", "ended_at"),
    plain("CPU-H", "cpu_h"),
    plain("GIB-H", "memory_gib_h"),
    plain("KINDS", "kinds"),
    plain("UID", "uid"),
    plain("MESSAGE", "message"),
)
WAITS: Final = (
    plain("DAY", "day"),
    plain("QUEUE", "queue"),
    plain("NAMESPACE", "namespace"),
    plain("GPUS", "gpu_class"),
    plain("COUNT", "n"),
    how_long("P50", "p50_s"),
    how_long("P90", "p90_s", 2),
    how_long("P95", "p95_s"),
    how_long("P99", "p99_s", 3),
    how_long("MAX", "max_s", 1),
    plain("STILL WAITING", "still_waiting", 4),
    how_long("OLDEST", "oldest_wait_s", 4),
)
USED: Final = (
    plain("CPU-H", "cpu_h"),
    plain("GIB-H", "memory_gib_h"),
    plain("GPU-H", "gpu_h"),
    plain("GPU %", "gpu_percent"),
)

commands = click.Group()


class Outcome(StrEnum):
    """How an AppWrapper ended first."""

    COMPLETED = "completed"
    FAILED = "failed"
    DELETED = "deleted"


def _states(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The states that begin so, in any case, for completion."""
    from dispatcher.core.model.record import Phase

    return [each for each in Phase if each.lower().startswith(incomplete.lower())]


def _checked_state(_context: click.Context, _parameter: click.Parameter, written: str) -> str:
    """The state as all screens spell it, or nothing; raises `BadParameter` for another word."""
    if not written:
        return ""
    from dispatcher.core.model.record import Phase

    for each in Phase:
        if written.lower() == each.lower():
            return each
    raise click.BadParameter(f"{written!r} is not one of {', '.join(map(repr, map(str, Phase)))}")


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
@watch_option
@every_option
@kubeconfig_option
@context_option
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
    kubeconfig: str,
    context: str,
    database_url: str,
) -> None:
    """Show the pending queue in scheduling order, and why each AppWrapper is pending.

    An AppWrapper that may not be dispatched yet, or is larger than its clusters or its quota, has no position and is
    listed last. The estimated start follows order, demand and the durations that AppWrappers state; -o wide says why it
    is unknown.

    Without a database the statuses of the AppWrappers are read with the kubeconfig. They have the first positions of a
    queue exactly; 100+ is a position from 100 to 199.
    """
    is_database = reads_database(command, database_url)
    of = Filter(ALL_NAMESPACES if everywhere else namespace, user, queue)

    def look() -> _Pending:
        if is_database:
            report = with_true_advice(ask(database_url, lambda reports: reports.queue(of)))
            return _Pending(with_starts(report, database_url))
        return _pending_in_statuses(kubeconfig, context, selector, of, everywhere=everywhere)

    if is_watched(again, every):
        watch(lambda: look().laid_out(output), every)
    found = look()
    show_report(found.report, output, QUEUE, QUEUE_WIDE, nothing=found.nothing)
    if found.note:
        note(found.note)


@dataclass(frozen=True, slots=True)
class _Pending:
    """The pending queue, the sentence that is shown if it is empty, and a note about what it does not show."""

    report: Report
    nothing: str = NOTHING_WAITS
    note: str = ""

    def laid_out(self, output: Shape | None) -> str:
        return laid_out(self.report, output, QUEUE, QUEUE_WIDE, nothing=self.nothing)


def _pending_in_statuses(
    kubeconfig: str, context: str, selector: str, of: Filter, *, everywhere: bool
) -> _Pending:
    from dispatcher.cli.status_queue import outside, pending_report

    if "/" in of.queue:
        raise click.BadParameter(needs_database("a node of MCAD's trees (TREE/NODE)"))
    with reading_hub(kubeconfig, context) as hub:
        where = ALL_NAMESPACES if everywhere else of.namespace or hub.namespace
        found = hub.appwrappers(where, selector)
    nothing = f"Nothing waits in namespace {where}." if where else NOTHING_WAITS
    count = outside(found)
    said = f"AppWrappers that are not in the queue yet: {count}; kubectl aw show says why." if count else ""
    return _Pending(pending_report(found, of, datetime.now(UTC)), nothing, said)


def _position(row: Row) -> str:
    """The position; with a plus if it is rounded down, as in statuses."""
    return f"{text(row['position'])}{'+' if row.get('is_position_rounded') else ''}"


@commands.command(
    epilog=epilog(
        "kubectl aw show train-7",
        "kubectl aw show team-a/train-7 --context hub",
        "kubectl aw show train-7 -n team-a --all",
        "kubectl aw show --uid 0b1f6f0e-6d3c-4b7e-9d6f-0a5c7f1c2d3e -o json | jq '.[0].timeline'",
    )
)
@click.pass_context
@optional_name_argument
@shape_option
@source_namespace_option
@all_namespaces_option
@selector_option
@click.option("--uid", is_flag=True, help="NAME is the uid. Needs the database.")
@click.option(
    "all_of_it",
    "--all",
    is_flag=True,
    help="Show every AppWrapper that ever had the name, not only the newest. Needs the database.",
)
@watch_option
@every_option
@kubeconfig_option
@context_option
@database_or_hub_option
def show(
    command: click.Context,
    name: str,
    output: Shape | None,
    namespace: str,
    everywhere: bool,
    selector: str,
    uid: bool,
    all_of_it: bool,
    again: bool,
    every: float | None,
    kubeconfig: str,
    context: str,
    database_url: str,
) -> None:
    """Show an AppWrapper: its state, its attempts and its timeline.

    In the database deleted AppWrappers are found, too. If several had the name, in any namespace, the newest is shown.
    CSV output is the timeline.

    Without a database the AppWrapper itself is read with the kubeconfig: its state, conditions, demand, place and
    components, and why it waits. Its attempts and its timeline are only in the database.
    """
    if not reads_database(command, database_url, "uid", "all_of_it"):
        _show_from_status(
            lambda: _statuses(kubeconfig, context, selector, name, namespace, everywhere=everywhere),
            output,
            every,
            again=again,
        )
        return
    name, namespace = name_in_database(name, namespace, everywhere=everywhere, is_uid=uid)
    most = None if all_of_it else 1

    def look() -> tuple[list[Description], int]:
        found = ask(
            database_url, lambda reports: reports.descriptions(name, namespace, is_uid=uid, most=most)
        )
        if not found[0]:
            raise CommandFailed(_unknown(name, namespace, is_uid=uid))
        return [described_with_start(described(each), database_url) for each in found[0]], found[1]

    if is_watched(again, every):
        watch(lambda: _told(look()[0], output), every)
    found, count = look()
    put(_told(found, output), output)
    if count > len(found):
        limit = "" if namespace or uid else ", -n limits them to one namespace"
        note(f"{count - len(found)} more had that name: --all shows them{limit}.")


@commands.command(
    epilog=epilog(
        "kubectl aw history --since 24h --outcome failed",
        "kubectl aw history --since 2026-11-01 --until 2026-12-01 --user alice -o csv > november.csv",
    )
)
@since_option
@until_option
@shape_option
@namespace_filter_option
@user_option
@queue_option
@click.option(
    "--state",
    default="",
    callback=_checked_state,
    metavar="STATE",
    help="Only AppWrappers in this state, such as Queued.",
    shell_complete=_states,
)
@click.option("--outcome", type=Word(Outcome), help="Only AppWrappers with this outcome.")
@click.option(
    "--limit",
    type=WholeNumber(min=1, max=MOST_ROWS),
    default=50,
    show_default=True,
    metavar="ROWS",
    help="Most AppWrappers to show, newest first.",
)
@database_option
def history(
    since: str,
    until: str,
    output: Shape | None,
    namespace: str,
    user: str,
    queue: str,
    state: str,
    outcome: Outcome | None,
    limit: int,
    database_url: str,
) -> None:
    """Show AppWrappers, newest first: state, outcome, and how long each waited and ran.

    Every AppWrapper that existed at some time in the window is listed, also one that still waits or runs.
    """
    window = since_until(since, until)
    of = Filter(namespace, user, queue, state, outcome or "")
    found = ask(database_url, lambda reports: reports.jobs(window, of, limit))
    show_report(found, output, HISTORY, HISTORY_WIDE, nothing=f"There was none {_within(window)}.")
    if found.is_cut:
        note(f"--limit {limit} leaves AppWrappers out: raise it, or narrow the window.")


@commands.command(
    epilog=epilog(
        "kubectl aw usage --since 4w --by user",
        "kubectl aw usage --by queue --by cluster --per day",
        "kubectl aw usage --since 2026-11-01 --until 2026-12-01 --by namespace -o csv > november.csv",
    )
)
@since_option
@until_option
@click.option(
    "--by", type=Word(GroupBy), multiple=True, help="Group by this; repeatable.  [default: namespace]"
)
@click.option(
    "--per", type=Word(Period), default=Period.TOTAL.value, show_default=True, help="Aggregation period."
)
@shape_option
@namespace_filter_option
@user_option
@queue_option
@database_option
def usage(
    since: str,
    until: str,
    by: Sequence[GroupBy],
    per: Period,
    output: Shape | None,
    namespace: str,
    user: str,
    queue: str,
    database_url: str,
) -> None:
    """Show usage: core-, GiB- and GPU-hours, and each row's share of the GPU-hours shown.

    Usage counts the capacity that an AppWrapper held, from its dispatch until the capacity was free again; a running
    AppWrapper counts up to now. Hours and days are UTC, and the hour in which the window begins counts as a whole.
    """
    window, keys = since_until(since, until), by or [GroupBy.NAMESPACE]
    found = ask(
        database_url, lambda reports: reports.usage(window, keys, per, Filter(namespace, user, queue))
    )
    told_apart = [
        plain(COLUMN_OF[each].removesuffix("_name").upper(), COLUMN_OF[each]) for each in dict.fromkeys(keys)
    ]
    period = [] if per is Period.TOTAL else [plain(per.value.upper(), per.value)]
    show_report(found, output, [*period, *told_apart, *USED], nothing=f"Nothing was used {_within(window)}.")


@commands.command(
    epilog=epilog("kubectl aw waits", "kubectl aw waits --since 4w --queue default -o csv > waits.csv")
)
@since_option
@until_option
@shape_option
@namespace_filter_option
@queue_option
@database_option
def waits(
    since: str, until: str, output: Shape | None, namespace: str, queue: str, database_url: str
) -> None:
    """Show the wait until the first start: percentiles for each day, queue, namespace and number of GPUs.

    A wait counts on the UTC day on which it began. A pending AppWrapper counts with its wait so far.
    """
    window = since_until(since, until)
    found = ask(database_url, lambda reports: reports.waits(window, Filter(namespace, queue=queue)))
    show_report(found, output, WAITS, nothing=f"Nothing was queued {_within(window)}.")


@commands.command(
    epilog=epilog(
        "kubectl aw sql 'SELECT user_name, sum(gpu_h) FROM usage_hourly GROUP BY 1 ORDER BY 2 DESC'",
        "kubectl aw sql --timeout 5m -o csv - < report.sql > report.csv",
        "kubectl aw sql 'SELECT DISTINCT viewname FROM pg_views WHERE schemaname = current_schema'",
    )
)
@click.argument("query", metavar="QUERY", help="One SQL query; - reads it from stdin.")
@shape_option
@click.option(
    "--limit",
    type=WholeNumber(min=1),
    metavar="ROWS",
    help=f"Most rows to show.  [default: {ROWS_ON_TERMINAL} on a terminal, else all]",
)
@query_timeout_option
@database_option
def sql(query: str, output: Shape | None, limit: int | None, timeout: str, database_url: str) -> None:
    """Run an SQL query on the views of schema history.

    The query is one SELECT, WITH, VALUES or TABLE. It runs in a read-only transaction as the role dispatcher_reader,
    which can read these views and nothing else.
    """
    from dispatcher.store.reader import READER
    from dispatcher.store.sql_console import answer

    if query == "-":
        query = sys.stdin.buffer.read().decode(errors="surrogateescape")
    check_way(database_url)
    most = limit or (ROWS_ON_TERMINAL if sys.stdout.isatty() else None)
    with patience():
        found = coroutines.run(answer(database_url, query, duration(timeout), most))
    if found.asked_as:
        note(
            f"There is no role {READER} that {found.asked_as} may use: asked with the rights of {found.asked_as}."
        )
    show_report(found.report, output, as_asked(found.report), nothing="No rows.")
    if found.report.is_cut:
        note(f"--limit {most} leaves rows out: raise it.")


def _statuses(
    kubeconfig: str, context: str, selector: str, name: str, namespace: str, *, everywhere: bool
) -> list[StatusDescription]:
    from dispatcher.cli.status_description import StatusDescription

    check_one_of(name, selector)
    with reading_hub(kubeconfig, context) as hub:
        found = find_appwrappers(hub, name, selector, namespace, everywhere=everywhere)
    return [StatusDescription(each, datetime.now(UTC)) for each in found]


def _show_from_status(
    look: Callable[[], list[StatusDescription]], output: Shape | None, every: float | None, *, again: bool
) -> None:
    if output is Shape.CSV:
        raise click.BadParameter(needs_database("csv, which is the timeline,"))

    def told() -> str:
        if output in {Shape.JSON, Shape.YAML}:
            return shown_as([each.as_value() for each in look()], output)
        is_wide = output is Shape.WIDE
        width = None if is_wide else terminal_width()
        return "\n\n".join(each.as_text(width, is_wide=is_wide) for each in look())

    if is_watched(again, every):
        watch(told, every)
    put(told(), output)
    note(f"Attempts and timeline are only in the database: {TO_NAME_A_DATABASE}.")


def _told(found: Sequence[Description], output: Shape | None) -> str:
    match output:
        case Shape.JSON | Shape.YAML:
            return shown_as([as_value(story) for story in found], output)
        case Shape.CSV:
            rows = tuple(row for story in found for row in story.timeline.rows)
            return as_csv(Report(found[0].timeline.columns, rows))
        case Shape.WIDE:
            return "\n\n".join(as_text(story, None, is_wide=True) for story in found)
    width = terminal_width()
    return "\n\n".join(as_text(story, width) for story in found)


def _unknown(name: str, namespace: str, *, is_uid: bool) -> str:
    if is_uid:
        return f"history knows no AppWrapper of the uid {name!r}"
    where = f" in the namespace {namespace!r}" if namespace else ""
    return f"history knows no AppWrapper {name!r}{where}"


def _within(window: Window) -> str:
    return f"from {text(window.since)} to {text(window.until)}"
