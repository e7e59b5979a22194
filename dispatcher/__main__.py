"""The console entries: `dispatcher migrate`, `run`, `clusters …`, `queue`, …, and `kubectl aw …`, which asks only.

They parse, then call what does the work.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dispatcher import errors
from dispatcher.cli import clusters, completion, history
from dispatcher.cli.query import EXIT_CODES
from dispatcher.store.tls import check_verified

if TYPE_CHECKING:
    from dispatcher.settings import Settings

commands = typer.Typer(
    name="dispatcher",
    help="Queues AppWrappers in Postgres and creates their wrapped objects only when the whole gang fits.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # it would take what stands in brackets for markup, and not show it
)
commands.add_typer(clusters.commands)
commands.add_typer(history.commands)

plugin = typer.Typer(
    name="kubectl aw",
    help="Asks the dispatcher's database what waits, what became of it, and what was used.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
plugin.add_typer(history.commands)
plugin.add_typer(clusters.commands)

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        help="libpq URL of the queue's database: postgresql://user:password@host:5432/name, or "
        "postgresql:///name?host=/socket/folder.  [env: DISPATCHER_DATABASE_URL]",
        show_default=False,
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        help="debug, info, warning or error.  [env: DISPATCHER_LOG_LEVEL; default: info]", show_default=False
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        help="json, console or auto.  [env: DISPATCHER_LOG_FORMAT; default: auto]", show_default=False
    ),
]


@commands.command()
def migrate(
    database_url: DatabaseUrl = None, log_level: LogLevel = None, log_format: LogFormat = None
) -> None:
    """Bring the database to the schema this version needs. Safe to repeat, and beside a running dispatcher."""
    # Imported where they are needed: what the commands have in common takes a fifth of the time.
    from dispatcher.store import migrate as migrations
    from dispatcher.store import revision

    settings = _settings(database_url=database_url, log_level=log_level, log_format=log_format)
    url = settings.database_url.get_secret_value()
    left = migrations.migrate(url)
    typer.echo(f"the database is at revision {revision.current_revision(url)}")
    if left:
        typer.echo(
            "This account may not set up all of the readers' roles. An account that may (docs/history.md, Who may) has "
            "to run this first, and then this command again:",
            err=True,
        )
        for statement in left:
            typer.echo(f"{statement.strip()};", err=True)


@commands.command()
def run(
    database_url: DatabaseUrl = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            help="Path of a kubeconfig.  [env: DISPATCHER_KUBECONFIG, else KUBECONFIG, else the pod's own account]",
            show_default=False,
        ),
    ] = None,
    listen_address: Annotated[
        str | None,
        typer.Option(help="Where probes and metrics are served.  [default: 127.0.0.1]", show_default=False),
    ] = None,
    listen_port: Annotated[
        int | None,
        typer.Option(help="Their port; 0 lets the system choose.  [default: 8081]", show_default=False),
    ] = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run the dispatcher until it is stopped.

    It watches AppWrappers, queues them, and creates what they wrap once the whole gang fits. Several may run
    beside each other: one leads, the others take over within the lease. Every setting can be given in the
    environment as DISPATCHER_<NAME>; the flags here are those a person needs.
    """
    settings = _settings(
        database_url=database_url,
        kubeconfig=kubeconfig,
        listen_address=listen_address,
        listen_port=listen_port,
        log_level=log_level,
        log_format=log_format,
    )
    gc.disable()  # what is imported lives on: looking at it for garbage takes 4 % of the start
    from dispatcher import app  # as in `migrate`

    gc.enable()
    asyncio.run(app.run(settings))


def main() -> None:
    """Run a command of `dispatcher`; what went wrong on purpose is one line on stderr and an exit code."""
    _run(commands, "dispatcher")


def kubectl_plugin() -> None:
    """Run a command of `kubectl aw`, as kubectl runs the program `kubectl-aw`."""
    _run(plugin, "kubectl aw")


def complete_kubectl_plugin() -> None:
    """Say what may come next in `kubectl aw`, as kubectl runs the program `kubectl_complete-aw`."""
    completion.complete(plugin, sys.argv[1:])


def _run(program: typer.Typer, name: str) -> None:
    try:
        program(prog_name=name)
    except errors.DispatcherError as error:
        sys.stderr.write(f"{name}: {error}\n")
        raise SystemExit(error.exit_code if isinstance(error, errors.CommandFailed) else 1) from error


def _settings(**flags: str | int | None) -> Settings:
    """Settings from the environment, overridden by the flags that were given."""
    from pydantic import ValidationError  # as in `migrate`

    from dispatcher import log
    from dispatcher.settings import Settings

    given = {name: value for name, value in flags.items() if value is not None}
    try:
        settings = Settings.read(os.environ, given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, problem = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise errors.SettingsError(f"{name}: {problem}" if name else problem) from error
    if not settings.database_url.get_secret_value():
        raise errors.SettingsError(
            "no database: set DISPATCHER_DATABASE_URL or --database-url to a libpq URL, such as "
            "postgresql://user:password@host:5432/dispatcher"
        )
    if settings.database_tls == "verified":
        check_verified(settings.database_url.get_secret_value())
    if settings.log_level not in log.LEVELS:
        raise errors.SettingsError(f"log level {settings.log_level!r}: choose one of {', '.join(log.LEVELS)}")
    log.configure(settings.log_level, settings.log_format)
    return settings


if __name__ == "__main__":
    main()
