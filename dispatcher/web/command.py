"""`kubectl aw web`: the page, served to one person on this machine, with the rights of that person's kubeconfig."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import click

from dispatcher.cli.command_line import epilog
from dispatcher.cli.options import HubOptions, hub_options, namespace_option
from dispatcher.cli.query import optional_database_option, run_coroutine
from dispatcher.cli.screens.output import say
from dispatcher.packages import is_installed, missing

if TYPE_CHECKING:
    from dispatcher.web.why import SnapshotReading

commands = click.Group()

_DISPLAYS: Final = ("DISPLAY", "WAYLAND_DISPLAY")
"""On Linux one of these variables is set if there is a screen, on which a browser can open a window."""


@commands.command(
    "web",
    epilog=epilog("kubectl aw web", "kubectl aw web --no-open --port 8080", "kubectl aw web -n team-a"),
)
@namespace_option("Only AppWrappers of this namespace.  [default: all that may be listed]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="PORT",
    help="Port on 127.0.0.1.  [default: a free one]",
)
@click.option("--no-open", is_flag=True, help="Print the address and open no browser.")
@hub_options
@optional_database_option
def web(namespace: str, port: int, no_open: bool, at: HubOptions, database_url: str) -> None:
    """Show the queue and why each AppWrapper waits in a browser.

    The page is served to this machine alone, until Ctrl-C. It shows what the kubeconfig may list: all AppWrappers, or
    those of one namespace, and the GPUs of each node by gang. The printed address has a token that works once: the
    browser that opens it may stay.

    With a database it has history, too: the attempts of each AppWrapper, usage, and waits. A password belongs into
    DISPATCHER_DATABASE_URL or ~/.pgpass, because all users of the machine see the arguments of a command that runs.
    """
    import webbrowser

    from dispatcher.kube.kept_accesses import KeptAccesses
    from dispatcher.web.loopback import serve_until_interrupted
    from dispatcher.web.node_reading import NodeReading
    from dispatcher.web.past import Past
    from dispatcher.web.queues_page import QueueReading
    from dispatcher.web.reading import Reading
    from dispatcher.web.site import Sources

    past = Past(database_url) if database_url else None
    snapshot = _snapshot_of(database_url)
    no_snapshot = f"{missing('numpy')}." if database_url and snapshot is None else ""
    kept = KeptAccesses(at.kubeconfig)
    reading = Reading(at, namespace, kept=kept)
    reading.begin()  # if the hub does not answer, the command fails here, and no page is served

    with TemporaryDirectory(prefix="aw-") as folder:  # which nobody else may read

        def tell(address: str) -> None:
            say(f"The queue is at {address}\nThe address works once. Ctrl-C ends the page.")
            sys.stdout.flush()
            if not no_open and _has_screen():
                # By a file, because everybody on the machine sees the arguments of a browser.
                enter = Path(folder, "enter.html")
                enter.write_text(f'<meta http-equiv="refresh" content="0; url={address}">\n')
                webbrowser.open(enter.as_uri())

        sources = Sources(
            reading,
            NodeReading(at, namespace, kept=kept),
            QueueReading(at, kept=kept),
            past,
            snapshot,
            no_snapshot,
            namespace,
        )
        run_coroutine(serve_until_interrupted(sources, port, tell))
    sys.stdout.flush()
    os._exit(0)  # a thread that an API server or a database keeps waiting must not keep the terminal


def _snapshot_of(database_url: str) -> SnapshotReading | None:
    """The leader's snapshot; None without a database, or without numpy, which planning needs."""
    if not (database_url and is_installed("numpy")):
        return None
    from dispatcher.web.why import SnapshotReading

    return SnapshotReading(database_url)


def _has_screen() -> bool:
    return sys.platform in {"darwin", "win32"} or any(os.environ.get(each) for each in _DISPLAYS)
