"""Shared by every command that reads the queue: options, the source, the query itself, and how its result is printed.

`queue`, `show` and `explain` read the database if its URL is given, else the AppWrappers of a kubeconfig. The two
sources have options of their own. An option of the other source is refused, because to ignore it would answer another
question.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from dispatcher.api.spec_errors import one_line
from dispatcher.cli.command_line import Check, NotWritten, Word, duration, is_given, moment, noting_password
from dispatcher.cli.options import HubOptions, Option, namespace_option
from dispatcher.cli.screens.output import (
    Column,
    Shape,
    as_csv,
    as_json,
    as_table,
    put,
    say,
    terminal_width,
    written_as,
)
from dispatcher.cli.screens.tables import folded, width_of
from dispatcher.errors import (
    CommandFailed,
    MissingPackage,
    SettingsError,
    StoreForbidden,
    StoreUnavailable,
    TryAgain,
)
from dispatcher.packages import is_installed, missing
from dispatcher.store.readers.reports import Report, Reports, Window, reports

if TYPE_CHECKING:
    from dispatcher.cli.hub import Hub
    from dispatcher.kube.kept_accesses import KeptAccesses
    from dispatcher.store.snapshot.snapshot_reader import Snapshot

TIMEOUT: Final = timedelta(seconds=30)
SHORTEST_TIMEOUT: Final = timedelta(milliseconds=1)
LONGEST_TIMEOUT: Final = timedelta(days=1)
"""A running query keeps Postgres from vacuuming the rows that the dispatcher has replaced."""

Found = TypeVar("Found")
TO_NAME_A_DATABASE: Final = (
    "set DISPATCHER_DATABASE_URL or --database-url to a libpq URL, such as "
    "postgresql://dispatcher_reader@host:5432/dispatcher"
)
NO_DATABASE: Final = f"no database: {TO_NAME_A_DATABASE}"
TO_GET_A_ROLE: Final = (
    "ask its operator for a role of dispatcher_tenant or dispatcher_reader (docs/history.md)"
)
_URL_HELP: Final = "libpq URL of the queue's database; one of the role dispatcher_reader suffices."
_OF_KUBECONFIG: Final = frozenset({"kubeconfig", "context", "selector"})
"""Parameters that say which hub is read, or which of its AppWrappers."""
THE_DATABASE: Final = "the database"
THE_SNAPSHOT: Final = "the leader's snapshot in the database"


def _checked_url(_context: click.Context, _parameter: click.Parameter, url: str) -> str:
    if not url:
        raise click.BadParameter(NO_DATABASE)
    return url


def check_way(url: str) -> None:
    """Raise `CommandFailed` if a database on another host has no verified TLS and the setting does not allow that."""
    match os.environ.get("DISPATCHER_DATABASE_TLS", "verified"):
        case "unverified":
            return
        case "verified":
            from dispatcher.store.tls import check_verified  # commands without a database need no driver

            try:
                check_verified(url)
            except SettingsError as error:
                raise CommandFailed(str(error)) from error
        case _:
            raise CommandFailed("DISPATCHER_DATABASE_TLS is neither verified nor unverified")


def _checked_timeout(_context: click.Context, _parameter: click.Parameter, written: str) -> str:
    with explained():
        if not SHORTEST_TIMEOUT <= duration(written) <= LONGEST_TIMEOUT:
            raise NotWritten(f"{written!r} is no timeout: from 1 ms to a day")
    return written


def _checked_moment(_context: click.Context, _parameter: click.Parameter, written: str) -> str:
    with explained():
        if written:
            moment(written, datetime.now(UTC))
    return written


def _database(help_: str, check: Check | None = None) -> Option:
    return click.option(
        "--database-url",
        default="",
        envvar="DISPATCHER_DATABASE_URL",
        callback=noting_password(check),
        metavar="URL",
        help=help_,
        show_envvar=True,
    )


database_option = _database(_URL_HELP, _checked_url)
optional_database_option = _database(_URL_HELP)
database_or_hub_option = _database(
    "libpq URL of the queue's database, which is then read instead of the hub; '' reads the hub."
)
shape_option = click.option(
    "--output", "-o", type=Word(Shape), metavar="FORMAT", help="json, yaml, csv, or wide."
)


def namespace_filter_option(command: Callable[..., None]) -> Callable[..., None]:
    """The options -n and -A; the function gets the namespace, which is empty for all."""
    of_namespace = namespace_option("Only AppWrappers of this namespace.  [default: all]", is_eager=True)
    return of_namespace(_all_namespaces_option(command))


def _without_namespace(context: click.Context, _parameter: click.Parameter, everywhere: bool) -> None:
    if everywhere and context.params.get("namespace"):
        raise click.BadParameter("give -n or -A, not both")


_all_namespaces_option = click.option(
    "--all-namespaces",
    "-A",
    is_flag=True,
    expose_value=False,
    callback=_without_namespace,
    help="AppWrappers of all namespaces, which is the default.",
)
user_option = click.option("--user", default="", metavar="NAME", help="Only AppWrappers of this user.")
queue_option = click.option("--queue", default="", metavar="NAME", help="Only AppWrappers of this queue.")
since_option = click.option(
    "--since",
    default="7d",
    show_default=True,
    callback=_checked_moment,
    metavar="WHEN",
    help="Start of the window: 90m, 24h, 7d or 4w ago, or 2026-11-20.",
)
until_option = click.option(
    "--until", default="", callback=_checked_moment, metavar="WHEN", help="End of the window.  [default: now]"
)
query_timeout_option = click.option(
    "--timeout",
    default="30s",
    show_default=True,
    callback=_checked_timeout,
    metavar="DURATION",
    help="Longest time a query may take.",
)


def ask(url: str, question: Callable[[Reports], Awaitable[Found]]) -> Found:
    """Return the database's answer.

    Raises `TryAgain` if it could not be reached or took too long, and `StoreForbidden` if it refuses the account.
    """
    check_way(url)

    async def asked() -> Found:
        async with reports(url, TIMEOUT) as there:
            return await question(there)

    with patience():
        return run_coroutine(asked())


def since_until(since: str, until: str) -> Window:
    """Return the window; `BadParameter` unless its start is before its end."""
    now = datetime.now(UTC)
    window = Window(moment(since, now), moment(until, now) if until else now)
    if window.since >= window.until:
        raise click.BadParameter(f"--since {since} is not before --until {until or 'now'}")
    return window


@contextmanager
def patience() -> Iterator[None]:
    """Raise `TryAgain` for a database that did not answer, and `BadParameter` for text that is not UTF-8."""
    try:
        yield
    except StoreUnavailable as error:
        raise TryAgain(one_line(str(error))) from error
    except UnicodeEncodeError as error:
        raise click.BadParameter("an argument is not UTF-8") from error


@contextmanager
def explained() -> Iterator[None]:
    """Raise `BadParameter` for a duration or moment that cannot be read."""
    try:
        yield
    except NotWritten as error:
        raise click.BadParameter(str(error)) from error


def show_report(
    report: Report,
    output: Shape | None,
    columns: Sequence[Column],
    more: Sequence[Column] = (),
    *,
    nothing: str,
) -> None:
    """Print a report; for an empty table, print the sentence `nothing` on stderr."""
    if report.rows or output in {Shape.JSON, Shape.YAML, Shape.CSV}:
        put(laid_out(report, output, columns, more), output)
    else:
        note(nothing)


def laid_out(
    report: Report,
    output: Shape | None,
    columns: Sequence[Column],
    more: Sequence[Column] = (),
    *,
    nothing: str = "",
) -> str:
    """Return a report as text, with `more` columns in wide output; for an empty table, the sentence `nothing`."""
    match output:
        case Shape.JSON | Shape.YAML:
            return written_as(as_json(report), output)
        case Shape.CSV:
            return _harmless(as_csv(report))
        case _ if not report.rows:
            return nothing
        case Shape.WIDE:
            return as_table(report, [*columns, *more])
    return as_table(report, columns, terminal_width(), report.at)


def note(sentence: str) -> None:
    """Print a sentence on stderr."""
    say(folded(one_line(sentence), width_of(sys.stderr)), err=True)


def _harmless(written: str) -> str:
    """CSV is raw for programs, but not for terminals."""
    return "\n".join(map(one_line, written.split("\n"))) if sys.stdout.isatty() else written


def hub_answers(error: StoreForbidden | MissingPackage) -> None:
    """Say in one line why the hub is read although the URL of a database was given."""
    note(f"{why_not(error)}, so the hub answers.")


def why_not(error: StoreForbidden | MissingPackage) -> str:
    """The beginning of a sentence about a database that is not read."""
    told = one_line(str(error))
    return f"The database refuses it ({told})" if isinstance(error, StoreForbidden) else told


source_namespace_option = namespace_option(
    "Only AppWrappers of this namespace.  [default: that of the context; in the database, all]"
)


def reads_database(command: click.Context, url: str, *only_there: str, needed: str = THE_DATABASE) -> bool:
    """True if the command reads the database, False if it reads the hub.

    Raises `BadParameter` for an option of the other source. `only_there` are the parameters that only the database
    answers; `needed` names in the error the part of the database that they need.
    """
    for parameter in command.command.params:
        name = parameter.name or ""
        if name not in (_OF_KUBECONFIG if url else only_there) or not is_given(command, name):
            continue
        flag = "/".join(sorted(parameter.opts, key=len))
        if url:
            raise click.BadParameter(
                f"{flag} is about a kubeconfig, and the database is read: leave it out, or read the hub with "
                "--database-url ''"
            )
        raise click.BadParameter(needs_database(flag, needed))
    return bool(url)


def needs_database(what: str, needed: str = THE_DATABASE) -> str:
    """The sentence about something that a kubeconfig alone cannot answer."""
    return f"{what} needs {needed}: {TO_NAME_A_DATABASE}"


@contextmanager
def on_hub(
    at: HubOptions,
    *,
    is_dry: bool = False,
    seconds: float | None = None,
    kept: KeptAccesses | None = None,
) -> Iterator[Hub]:
    """The hub; raises `TryAgain` if it does not answer, and `CommandFailed` if it refuses.

    `is_dry` sends every write as a dry run; `seconds` bounds the wait for each answer, 10 s by default; `kept` are the
    accesses of a process that asks again and again.
    """
    from dispatcher.cli.hub import Hub, asking

    with Hub(at, is_dry=is_dry, seconds=seconds, kept=kept) as hub, asking():
        yield hub


def run_coroutine(coroutine: Coroutine[Any, Any, Found]) -> Found:
    """Return the result of a coroutine, in an event loop of its own."""
    import asyncio

    return asyncio.run(coroutine)


def read_leader_snapshot(database_url: str) -> Snapshot:
    """The facts of the next cycle. Raises `CommandFailed` if no leader has written any; a note says if nobody leads.

    Raises `MissingPackage` where only the commands are installed.
    """
    snapshot = leader_snapshot(database_url)
    if not snapshot.has_leader:
        note(NO_LEADER)
    return snapshot


def leader_snapshot(database_url: str) -> Snapshot:
    """As `read_leader_snapshot`, and says nothing."""
    if not is_installed("numpy"):
        raise MissingPackage(missing("numpy"))
    from dispatcher.store.snapshot.snapshot_reader import read_snapshot

    check_way(database_url)
    with patience():
        snapshot = run_coroutine(read_snapshot(database_url, TIMEOUT))
    if snapshot.taken_at is None:
        raise CommandFailed(_NO_SNAPSHOT)
    return snapshot


_NO_SNAPSHOT: Final = (
    "the database has no snapshot of clusters: start a dispatcher of this release with it, "
    "and ask again some seconds later"
)
NO_LEADER: Final = "No dispatcher leads now, so nothing is dispatched: start one, or see its log."
