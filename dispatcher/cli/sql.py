"""`sql`: one query of the user on the views of schema `history`."""

from __future__ import annotations

import sys
from typing import Final

import click

from dispatcher.cli import coroutines
from dispatcher.cli.durations import duration
from dispatcher.cli.output import Shape, as_asked
from dispatcher.cli.parameter_types import WholeNumber
from dispatcher.cli.query import (
    check_way,
    database_option,
    epilog,
    note,
    patience,
    query_timeout_option,
    shape_option,
    show_report,
)

ROWS_ON_TERMINAL: Final = 500
"""More than anybody scrolls through; in a pipe there is no limit."""

commands = click.Group()


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
