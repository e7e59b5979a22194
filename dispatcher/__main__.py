"""The console entries: `dispatcher migrate`, `run`, `clusters …`, `queues …`, `queue`, …, and `kubectl aw …`.

The commands parse and then call the modules that do the work.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from dispatcher import errors
from dispatcher.cli import completion
from dispatcher.cli.examples import EXIT_CODES
from dispatcher.cli.release import Version
from dispatcher.cli.wrong_values import in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dispatcher.settings import Settings

SERVICE: Final = ("migrate", "run")
"""The commands of `dispatcher` that are here."""
MODULES: Final[Mapping[str, Sequence[str]]] = {
    "clusters": ("clusters",),
    "queues": ("queues",),
    "history": ("queue", "show", "history", "usage", "waits", "sql"),
    "running": ("running", "nodes"),
    "verbs": ("hold", "release", "priority", "cancel", "wait", "submit", "logs"),
    "explain": ("explain", "would"),
    "demand": ("demand",),
    "plan": ("plan",),
    "release": ("crds",),
}
"""The modules of `dispatcher.cli` with commands, in the order of the help, and the names of these commands."""
PLUGIN: Final = ("history", "running", "verbs", "clusters", "queues", "explain", "demand", "plan")
"""The modules of `kubectl aw`, likewise."""

FEW_COLLECTIONS = 200_000
"""New objects between two collections of garbage in a command: more than the 125,000 that its imports make."""
USUAL_COLLECTIONS = gc.get_threshold()
"""The same of the interpreter, in three generations."""


class Commands(TyperGroup):
    """The commands, with messages about wrong arguments that do not name the error type of a library."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  # typer's copy of click has no public types
        """Run the command; raises `BadParameter` for a wrong argument."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = in_words(error) or error.message.removeprefix("Value error, ")
            raise


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


def options(version: Version = False) -> None:
    """Parse the options of the program itself; `--version` prints and exits."""


def migrate(
    database_url: DatabaseUrl = None, log_level: LogLevel = None, log_format: LogFormat = None
) -> None:
    """Migrate the database to the schema of this version. Safe to repeat, and while a dispatcher runs."""
    # Imported here, because other commands do not need it and importing takes most of their time.
    from dispatcher.store import migrate as migrations
    from dispatcher.store import revision

    settings = _settings(database_url=database_url, log_level=log_level, log_format=log_format)
    url = settings.database_url.get_secret_value()
    left = migrations.migrate(url)
    typer.echo(f"the database is at revision {revision.current_revision(url)}")
    if left:
        typer.echo(
            "This account lacks the rights to set up all reader roles. Run these statements as an account that has "
            "them (docs/history.md, Who may), and then this command again:",
            err=True,
        )
        for statement in left:
            typer.echo(f"{statement.strip()};", err=True)


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
        typer.Option(help="Address of probes and metrics.  [default: 127.0.0.1]", show_default=False),
    ] = None,
    listen_port: Annotated[
        int | None,
        typer.Option(
            help="Port of probes and metrics; 0 lets the system choose.  [default: 8081]", show_default=False
        ),
    ] = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run the dispatcher until it is stopped.

    The dispatcher watches AppWrappers, queues them, and creates their wrapped objects once the whole gang fits. Of
    several replicas one leads; another takes over within the lease. Every setting has an environment variable
    DISPATCHER_<NAME>; the settings that people change most often have a flag.

    Example: dispatcher run --kubeconfig hub.kubeconfig --database-url postgresql:///dispatcher
    """
    settings = _settings(
        database_url=database_url,
        kubeconfig=kubeconfig,
        listen_address=listen_address,
        listen_port=listen_port,
        log_level=log_level,
        log_format=log_format,
    )
    from dispatcher.cli.kinds_file import read_kinds  # as in `migrate`

    kinds = read_kinds(settings.kinds_file)
    gc.disable()  # imported objects live on: looking at them for garbage takes a tenth of the start
    import asyncio

    from dispatcher import app  # as in `migrate`

    gc.freeze()  # else the first collection looks at all of them
    gc.set_threshold(*USUAL_COLLECTIONS)  # a process that lives on, unlike a command
    gc.enable()
    asyncio.run(app.run(settings, kinds))


def dispatcher_program(words: Sequence[str] = ()) -> typer.Typer:
    """The program `dispatcher`, with the command that is the first of the words, else with all commands."""
    program = typer.Typer(
        name="dispatcher",
        cls=Commands,
        help="Queues AppWrappers in Postgres and creates their wrapped objects only when the whole gang fits.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich would read text in brackets as markup and not show it
    )
    program.callback()(options)
    program.command()(migrate)
    program.command()(run)
    if not (words and words[0] in SERVICE):
        _add_commands(program, tuple(MODULES), words)
    return program


def plugin_program(words: Sequence[str] = ()) -> typer.Typer:
    """The program `kubectl aw`, likewise."""
    program = typer.Typer(
        name="kubectl aw",
        cls=Commands,
        help="Shows AppWrappers: the pending queue, running gangs, nodes, history and usage.",
        epilog=EXIT_CODES,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    program.callback()(options)
    _add_commands(program, PLUGIN, words)
    return program


def _add_commands(program: typer.Typer, modules: Sequence[str], words: Sequence[str]) -> None:
    """Add the commands of the modules, but only those of one module if it has the command that is the first word.

    The modules of other commands would take 0.03 s of each command. Help, and the message about a command that does not
    exist, need all.
    """
    first = words[0] if words else ""
    for each in [name for name in modules if first in MODULES[name]] or modules:
        program.add_typer(import_module(f"dispatcher.cli.{each}").commands)


def main() -> None:
    """Run a command of `dispatcher`; a `DispatcherError` becomes one line on stderr and an exit code."""
    _run(dispatcher_program, "dispatcher")


def kubectl_plugin() -> None:
    """Run a command of `kubectl aw`, as kubectl runs the program `kubectl-aw`."""
    _run(plugin_program, "kubectl aw")


def complete_kubectl_plugin() -> None:
    """Print completions of `kubectl aw`, as kubectl runs the program `kubectl_complete-aw`."""
    words = sys.argv[1:]
    completion.complete(plugin_program(words[:-1]), words)  # the last word is being typed


def _run(program: Callable[[Sequence[str]], typer.Typer], name: str) -> None:
    gc.set_threshold(FEW_COLLECTIONS)  # imported objects live on, and a command ends soon
    # The process ends: to look through all imported objects for garbage once more takes a sixth of its time.
    atexit.register(gc.freeze)
    # Amounts are integers, and numpy multiplies no matrices here: starting threads for that costs 0.06 s of a start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Pydantic reads the metadata of every installed package to look for plugins, and there are none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        program(sys.argv[1:])(prog_name=name)
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
        from dispatcher.store.tls import check_verified

        check_verified(settings.database_url.get_secret_value())
    if settings.log_level not in log.LEVELS:
        raise errors.SettingsError(f"log level {settings.log_level!r}: choose one of {', '.join(log.LEVELS)}")
    log.configure(settings.log_level, settings.log_format)
    return settings


if __name__ == "__main__":
    main()
