"""`kubectl aw`, and the same in `dispatcher`: what waits, what became of it, and what was used.

The commands parse, ask the views of schema `history`, and lay out what they were told; none of them writes.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Final

import typer

from dispatcher.cli.asking import (
    DatabaseUrl,
    Namespace,
    Queue,
    Shown,
    Timeout,
    User,
    ask,
    epilog,
    note,
    patience,
    show,
)
from dispatcher.cli.durations import duration
from dispatcher.cli.reporting import as_asked, how_long, known, named, plain
from dispatcher.store.answers import READER, answer
from dispatcher.store.reports import Of

ROWS_ON_TERMINAL: Final = 500
"""More than anybody scrolls through; in a pipe there is no limit."""

QUEUE: Final = (
    plain("POSITION", "position"),
    named(),
    plain("USER", "user_name"),
    plain("PRIORITY", "priority"),
    how_long("WAITED", "waited_s"),
    plain("GPU", "gpu"),
    plain("REASON", "reason"),
    known("EST START", "est_start"),
)
QUEUE_WIDE: Final = (
    plain("QUEUE", "queue"),
    plain("CPU", "cpu"),
    plain("MEMORY GIB", "memory_gib"),
    plain("PODS", "pods"),
    plain("MESSAGE", "message"),
    plain("ADVICE", "advice"),
    plain("BLOCKING CLUSTERS", "blocking_clusters"),
)

commands = typer.Typer()


@commands.command(
    "queue",
    epilog=epilog(
        "kubectl aw queue",
        "kubectl aw queue -n team-a -o wide",
        "kubectl aw queue -o json | jq '.[] | select(.gpu > 0)'",
    ),
)
def show_queue(
    output: Shown = None,
    namespace: Namespace = "",
    user: User = "",
    queue: Queue = "",
    database_url: DatabaseUrl = "",
) -> None:
    """Show what waits, in the order in which it is looked at, and why.

    What may not go yet has no position and stands last. The estimated start is what others like it had to wait lately;
    it is unknown where there were too few.
    """
    found = ask(database_url, lambda reports: reports.queue(Of(namespace, user, queue)))
    show(found, output, QUEUE, QUEUE_WIDE, nothing="Nothing waits.")


@commands.command(
    epilog=epilog(
        "kubectl aw sql 'SELECT user_name, sum(gpu_h) FROM usage_hourly GROUP BY 1 ORDER BY 2 DESC'",
        "kubectl aw sql --timeout 5m -o csv - < report.sql > report.csv",
        "kubectl aw sql 'SELECT DISTINCT viewname FROM pg_views WHERE schemaname = current_schema'",
    )
)
def sql(
    query: Annotated[
        str,
        typer.Argument(metavar="QUERY", help="One SQL query; - reads it from a pipe.", show_default=False),
    ],
    output: Shown = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="ROWS",
            help=f"At most so many rows.  [default: {ROWS_ON_TERMINAL} on a terminal, else all]",
            show_default=False,
        ),
    ] = None,
    timeout: Timeout = "30s",
    database_url: DatabaseUrl = "",
) -> None:
    """Ask a question of your own, in SQL, of the views in schema history.

    It is answered in a transaction that can write nothing, with the rights of the role dispatcher_reader, which can
    read those views and nothing else. It is one query: SELECT, WITH, VALUES or TABLE.
    """
    if query == "-":
        query = sys.stdin.read()
    most = limit or (ROWS_ON_TERMINAL if sys.stdout.isatty() else None)
    with patience():
        found = asyncio.run(answer(database_url, query, duration(timeout), most))
    if found.asked_as:
        note(
            f"There is no role {READER} that {found.asked_as} may use: asked with the rights of {found.asked_as}."
        )
    show(found.report, output, as_asked(found.report), nothing="No rows.")
    if found.report.is_cut:
        note(f"There are more than these {most} rows: ask for more with --limit.")
