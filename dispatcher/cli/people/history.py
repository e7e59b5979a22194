"""`history`, `usage`, `waits` and `sql`: what became of AppWrappers, what they used, and how long they waited.

The commands ask the views of schema `history` and lay out the answers; none of them writes. `sql` runs a query of the
user on these views.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Final, TypeVar

import click

from dispatcher.cli.command_line import WholeNumber, Word, duration, epilog
from dispatcher.cli.query import (
    TO_GET_A_ROLE,
    ask,
    check_way,
    database_option,
    namespace_filter_option,
    note,
    patience,
    query_timeout_option,
    queue_option,
    run_coroutine,
    shape_option,
    show_report,
    since_option,
    since_until,
    until_option,
    user_option,
    why_not,
)
from dispatcher.cli.screens.output import Column, Shape, as_asked, how_long, message_of, named, plain, text
from dispatcher.cli.screens.tables import Heading
from dispatcher.errors import CommandFailed, StoreForbidden
from dispatcher.store.readers.reports import COLUMN_OF, Filter, GroupBy, Period, Reports, Window

MOST_ROWS: Final = 1_000_000

Answer = TypeVar("Answer")

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
    Column(Heading("MESSAGE"), message_of),
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

ROWS_ON_TERMINAL: Final = 500
"""More than anybody scrolls through; in a pipe there is no limit."""
commands = click.Group()


class Outcome(StrEnum):
    """How an AppWrapper ended first."""

    COMPLETED = "completed"
    FAILED = "failed"
    DELETED = "deleted"


def _states(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The states that begin so, in any case, for completion."""
    from dispatcher.core.model.records.record import Phase

    return [each for each in Phase if each.lower().startswith(incomplete.lower())]


def _checked_state(_context: click.Context, _parameter: click.Parameter, written: str) -> str:
    """The state as all screens spell it, or nothing; raises `BadParameter` for another word."""
    if not written:
        return ""
    from dispatcher.core.model.records.record import Phase

    for each in Phase:
        if written.lower() == each.lower():
            return each
    raise click.BadParameter(f"{written!r} is not one of {', '.join(map(repr, map(str, Phase)))}")


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
    """Show past and present AppWrappers, with their waits and ends. The newest is first.

    Every AppWrapper that existed at some time in the window is listed, also one that still waits or runs.
    """
    window = since_until(since, until)
    of = Filter(namespace, user, queue, state, outcome or "")
    found = _answer(database_url, lambda reports: reports.jobs(window, of, limit))
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
    """Show the use of cores, memory and GPUs in hours. GPU % is the share of the GPU-hours shown.

    Usage counts the capacity that an AppWrapper held, from its dispatch until the capacity was free again; a running
    AppWrapper counts up to now. Hours and days are UTC, and the hour in which the window begins counts as a whole.
    """
    window, keys = since_until(since, until), by or [GroupBy.NAMESPACE]
    found = _answer(
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
    """Show how long AppWrappers waited for their first start.

    There are percentiles for each day, queue, namespace and number of GPUs.

    A wait counts on the UTC day on which it began. A pending AppWrapper counts with its wait so far.
    """
    window = since_until(since, until)
    found = _answer(database_url, lambda reports: reports.waits(window, Filter(namespace, queue=queue)))
    show_report(found, output, WAITS, nothing=f"Nothing was queued {_within(window)}.")


def _answer(database_url: str, question: Callable[[Reports], Awaitable[Answer]]) -> Answer:
    """The answer of the database, the only place that has it; raises `CommandFailed` for an account that it refuses."""
    try:
        return ask(database_url, question)
    except StoreForbidden as error:
        raise CommandFailed(f"{why_not(error)}, and only it has history: {TO_GET_A_ROLE}") from error


def _within(window: Window) -> str:
    return f"from {text(window.since)} to {text(window.until)}"


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
    from dispatcher.store.readers.reader import READER
    from dispatcher.store.readers.sql_console import answer

    if query == "-":
        query = sys.stdin.buffer.read().decode(errors="surrogateescape")
    check_way(database_url)
    most = limit or (ROWS_ON_TERMINAL if sys.stdout.isatty() else None)
    with patience():
        found = run_coroutine(answer(database_url, query, duration(timeout), most))
    if found.asked_as:
        note(
            f"There is no role {READER} that {found.asked_as} may use: asked with the rights of {found.asked_as}."
        )
    show_report(found.report, output, as_asked(found.report), nothing="No rows.")
    if found.report.is_cut:
        note(f"--limit {most} leaves rows out: raise it.")
