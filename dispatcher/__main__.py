"""The console entries: `dispatcher migrate`, `run`, `clusters …`, `queues …`, `queue`, …, and `kubectl aw …`.

The commands parse and then call the modules that do the work.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import sys
from contextlib import contextmanager
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from dispatcher import errors
from dispatcher.cli.command_line import (
    CommandGroup,
    CommandWithSettings,
    WholeNumber,
    complete,
    epilog,
    noting_password,
)
from dispatcher.cli.files.release import version_option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dispatcher.settings import Settings

MODULES: Final[Mapping[str, Sequence[str]]] = {
    "cli.operators.clusters": ("clusters",),
    "cli.operators.queues": ("queues",),
    "cli.people.queue_listing": ("queue",),
    "cli.people.show": ("show",),
    "cli.people.history": ("history", "usage", "waits", "sql"),
    "cli.people.running": ("running", "nodes"),
    "cli.people.verbs": ("hold", "release", "priority", "cancel", "wait", "submit", "logs"),
    "cli.people.explain": ("explain", "would"),
    "web.command": ("web",),
    "cli.files.demand": ("demand",),
    "cli.files.wrap": ("wrap",),
    "cli.files.plan": ("plan",),
    "cli.files.simulate": ("simulate",),
    "cli.files.release": ("crds",),
}
"""The modules of `dispatcher` with commands, in the order of the help, and the names of these commands."""
PLUGIN: Final = (
    "cli.people.queue_listing",
    "cli.people.show",
    "cli.people.history",
    "cli.people.running",
    "cli.people.verbs",
    "cli.operators.clusters",
    "cli.operators.queues",
    "cli.people.explain",
    "web.command",
    "cli.files.demand",
    "cli.files.wrap",
    "cli.files.plan",
    "cli.files.simulate",
)
"""The modules of `kubectl aw`, likewise."""

HELP: Final = {"help_option_names": ["-h", "--help"]}
INTERRUPTED: Final = 130
"""The exit code after Ctrl-C, the usual one of a shell."""
UNWRITABLE: Final = frozenset({errno.EPIPE, errno.ENOSPC})

AUTHORITIES: Final = "SSL_CERT_FILE"
"""The variable that names OpenSSL the file of the certificate authorities to trust by default."""

FEW_COLLECTIONS = 200_000
"""New objects between two collections of garbage in a command: more than the 125,000 that its imports make."""
USUAL_COLLECTIONS = gc.get_threshold()
"""The same of the interpreter, in three generations."""


class Program(CommandGroup):
    """Commands of its own, and those of some modules, each of which is imported once one of its commands is typed.

    The modules of other commands would take 0.03 s of each command. Help needs all.
    """

    def __init__(self, *args: Any, modules: Sequence[str], **settings: Any) -> None:  # noqa: ANN401  # as click has it
        super().__init__(*args, **settings)
        self.modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the help."""
        return [*super().list_commands(ctx), *(name for module in self.modules for name in MODULES[module])]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name; None if there is none."""
        for module in self.modules:
            if cmd_name in MODULES[module]:
                group: click.Group = import_module(f"dispatcher.{module}").commands
                return group.get_command(ctx, cmd_name)
        return super().get_command(ctx, cmd_name)


@click.group(
    "dispatcher",
    cls=Program,
    modules=tuple(MODULES),
    help="Queues AppWrappers in Postgres and creates their wrapped objects only when the whole gang fits.",
    no_args_is_help=True,
    context_settings=HELP,
)
@version_option
def dispatcher_program() -> None:
    """The program `dispatcher`."""


@click.group(
    "kubectl aw",
    cls=Program,
    modules=PLUGIN,
    help="Submits jobs to the queue as AppWrappers, waits for them, holds and cancels them, and shows the pending "
    "queue, running gangs, nodes, history and usage.",
    epilog=epilog(
        "kubectl aw submit ray-job.yaml",
        "kubectl aw wait train --for done && kubectl aw logs train",
        "kubectl aw cancel train",
    ),
    no_args_is_help=True,
    context_settings=HELP,
)
@version_option
def plugin_program() -> None:
    """The program `kubectl aw`."""


database_url_option = click.option(
    "--database-url",
    callback=noting_password(),
    help="libpq URL of the queue's database: postgresql://user@host:5432/name, or "
    "postgresql:///name?host=/socket/folder.  [env: DISPATCHER_DATABASE_URL]",
)
log_level_option = click.option(
    "--log-level", help="debug, info, warning or error.  [env: DISPATCHER_LOG_LEVEL; default: info]"
)
log_format_option = click.option(
    "--log-format", help="json, console or auto.  [env: DISPATCHER_LOG_FORMAT; default: auto]"
)


@dispatcher_program.command()
@database_url_option
@log_level_option
@log_format_option
def migrate(database_url: str | None, log_level: str | None, log_format: str | None) -> None:
    """Migrate the database to the schema of this version. Safe to repeat, and while a dispatcher runs."""
    # Imported here, because other commands do not need it and importing takes most of their time.
    from dispatcher.store import migrate as migrations
    from dispatcher.store import revision

    settings = _settings(database_url=database_url, log_level=log_level, log_format=log_format)
    url = settings.database_url.get_secret_value()
    left = migrations.migrate(url)
    click.echo(f"the database is at revision {revision.current_revision(url)}")
    if left:
        click.echo(
            "This account lacks the rights to set up all reader roles. Run these statements as an account that has "
            "them (docs/history.md, Who may), and then this command again:",
            err=True,
        )
        for statement in left:
            click.echo(f"{statement.strip()};", err=True)


listen_address_option = click.option(
    "--listen-address", help="Address of probes and metrics.  [default: 127.0.0.1]"
)
listen_port_option = click.option(
    "--listen-port",
    type=WholeNumber(min=0, max=65535),
    metavar="NUMBER",
    help="Port of probes and metrics; 0 lets the system choose.  [default: 8081]",
)


@dispatcher_program.command(cls=CommandWithSettings)
@database_url_option
@click.option(
    "--kubeconfig",
    help="Path of a kubeconfig.  [env: DISPATCHER_KUBECONFIG, else KUBECONFIG, else the pod's own account]",
)
@listen_address_option
@listen_port_option
@log_level_option
@log_format_option
def run(
    database_url: str | None,
    kubeconfig: str | None,
    listen_address: str | None,
    listen_port: int | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Run the dispatcher until it is stopped.

    The dispatcher watches AppWrappers, queues them, and creates their wrapped objects once the whole gang fits. Of
    several replicas one leads; another takes over within the lease. Every setting has an environment variable,
    listed below; the settings that people change most often have a flag.

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
    from dispatcher.cli.files.documents import read_kinds  # as in `migrate`

    kinds = read_kinds(settings.kinds_file)
    gc.disable()  # imported objects live on: looking at them for garbage takes a tenth of the start
    import asyncio

    with _authorities_unread():
        from dispatcher import app  # as in `migrate`

    gc.freeze()  # else the first collection looks at all of them
    gc.set_threshold(*USUAL_COLLECTIONS)  # a process that lives on, unlike a command
    gc.enable()
    asyncio.run(app.run(settings, kinds))


@dispatcher_program.command()
@database_url_option
@click.option(
    "--targets",
    envvar="DISPATCHER_NOTIFY_TARGETS",
    required=True,
    metavar="FILE",
    help="YAML file with the targets: their names, addresses and namespaces.  [env: DISPATCHER_NOTIFY_TARGETS]",
)
@click.option("--check", is_flag=True, help="Read the file, list the targets, and end.")
@click.option(
    "--try", "tried", metavar="TARGET", help="Send one message to this target, and end: 1 if it is not taken."
)
@click.option(
    "--keep-hours",
    envvar="DISPATCHER_NOTIFY_KEEP_HOURS",
    type=click.FloatRange(min=0.1, max=24 * 30),
    default=24.0,
    metavar="HOURS",
    help="Hours for which a message is tried; then it is dropped.  "
    "[env: DISPATCHER_NOTIFY_KEEP_HOURS; default: 24]",
)
@click.option(
    "--most-behind",
    envvar="DISPATCHER_NOTIFY_MOST_BEHIND",
    type=WholeNumber(min=1, max=10**6),
    default=10_000,
    metavar="NUMBER",
    help="Messages that may wait for one target; beyond that the oldest are dropped.  "
    "[env: DISPATCHER_NOTIFY_MOST_BEHIND; default: 10000]",
)
@listen_address_option
@listen_port_option
@log_level_option
@log_format_option
def notify(
    database_url: str | None,
    targets: str,
    check: bool,
    tried: str | None,
    keep_hours: float,
    most_behind: int,
    listen_address: str | None,
    listen_port: int | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Send notifications of gangs and queues, until it is stopped.

    Tells people and programs when gangs start, end, fail, are preempted or wait for long. It reads the events in the
    database, and sends each to the targets that its AppWrapper, or the AppWrapper's namespace,
    chooses by the annotation dispatcher.codeflare.dev/notify, such as team-slack=Failed,Completed. A message is sent
    at least once; its id tells a repetition. Of several replicas one sends, and the others stand by.

    Example: dispatcher notify --targets targets.yaml --database-url postgresql:///dispatcher
    """
    import asyncio  # as in `migrate`
    from datetime import timedelta

    from dispatcher.api.document import Entry
    from dispatcher.cli.files.documents import read_document
    from dispatcher.notify import process
    from dispatcher.notify.retry import Bounds

    def read() -> Entry:
        return Entry(read_document(targets), "")

    if check:
        click.echo(process.listing(process.declared(read)), nl=False)
        return
    if tried is not None:
        asyncio.run(process.try_target(process.declared(read), tried))
        click.echo(f"target {tried} has taken the message")
        return
    settings = _settings(
        database_url=database_url,
        listen_address=listen_address,
        listen_port=listen_port,
        log_level=log_level,
        log_format=log_format,
    )
    bounds = Bounds(timedelta(hours=keep_hours), most_behind)
    options = process.NotifierOptions(read, settings.listen_address, settings.listen_port, bounds)
    asyncio.run(process.run(settings.database_url.get_secret_value(), options))


@contextmanager
def _authorities_unread() -> Iterator[None]:
    """While aiohttp is imported, keep it from reading the system's certificate authorities.

    It reads them twice then, which takes a twentieth of the start, for two TLS contexts: one is for connections without
    a context of their own, and there are none here; the other verifies nothing. Contexts made later read them as ever.
    """
    given = os.environ.get(AUTHORITIES)
    os.environ[AUTHORITIES] = os.devnull
    try:
        yield
    finally:
        if given is None:
            del os.environ[AUTHORITIES]
        else:
            os.environ[AUTHORITIES] = given


def main() -> None:
    """Run a command of `dispatcher`; a `DispatcherError` becomes one line on stderr and an exit code."""
    _run(dispatcher_program, "dispatcher")


def kubectl_plugin() -> None:
    """Run a command of `kubectl aw`, as kubectl runs the program `kubectl-aw`."""
    _run(plugin_program, "kubectl aw")


def complete_kubectl_plugin() -> None:
    """Print completions of `kubectl aw`, as kubectl runs the program `kubectl_complete-aw`."""
    complete(plugin_program, sys.argv[1:])


def _run(program: click.Command, name: str) -> None:
    gc.set_threshold(FEW_COLLECTIONS)  # imported objects live on, and a command ends soon
    # The process ends: to look through all imported objects for garbage once more takes a sixth of its time.
    atexit.register(gc.freeze)
    # Amounts are integers, and numpy multiplies no matrices here: starting threads for that costs 0.06 s of a start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Pydantic reads the metadata of every installed package to look for plugins, and there are none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by the caller
            setattr(sys, stream, _nowhere())
    try:
        code = program.main(prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort:
        raise SystemExit(INTERRUPTED) from None
    except click.ClickException as error:
        shown = StringIO()
        error.show(shown)
        _write(shown.getvalue())
        raise SystemExit(error.exit_code) from error
    except ModuleNotFoundError as error:
        _complain(name, _missing_extra(error))
        raise SystemExit(1) from error
    except errors.DispatcherError as error:
        _complain(name, str(error))
        raise SystemExit(error.exit_code if isinstance(error, errors.CommandFailed) else 1) from error
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        sys.stdout = _nowhere()  # else the interpreter would complain once more when it ends
        if error.errno != errno.EPIPE:  # nobody reads the rest, as in `| head`
            _complain(name, f"the output cannot be written: {error.strerror}")
        raise SystemExit(1) from error
    raise SystemExit(code or 0)


def _missing_extra(error: ModuleNotFoundError) -> str:
    """The sentence about a package of an extra; raises the error again for any other module."""
    from dispatcher.packages import EXTRAS, missing  # only an error needs it

    name = error.name or ""
    if name.partition(".")[0] not in EXTRAS:
        raise error
    return missing(name)


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")  # open as long as the process lives


def _complain(name: str, problem: str) -> None:
    _write(f"{name}: {problem}\n")


def _write(problem: str) -> None:
    from dispatcher.cli.screens.tables import folded, width_of  # only an error needs it

    sys.stderr.write(folded(problem, width_of(sys.stderr)))


def _settings(**flags: str | int | None) -> Settings:
    """Settings from the environment, overridden by the flags that were given."""
    from pydantic import ValidationError  # as in `migrate`

    from dispatcher import log
    from dispatcher.settings import Settings, variable_of

    given = {name: value for name, value in flags.items() if value is not None}
    try:
        settings = Settings.read(os.environ, given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = variable_of(str(first["loc"][0])) if first["loc"] else ""  # several settings name themselves
        problem = first["msg"].removeprefix("Value error, ")
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
        known = ", ".join(log.LEVELS)
        raise errors.SettingsError(
            f"{variable_of('log_level')}: {settings.log_level!r}: choose one of {known}"
        )
    log.configure(settings.log_level, settings.log_format)
    return settings


if __name__ == "__main__":
    main()
