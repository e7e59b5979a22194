"""Where `queue`, `show` and `explain` read: the database if its URL is given, else the AppWrappers of a kubeconfig.

The two sources have options of their own. An option of the other source is refused, because to ignore it would answer
another question.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from dispatcher.cli.options import is_given, namespace_option
from dispatcher.cli.query import TO_NAME_A_DATABASE

if TYPE_CHECKING:
    from dispatcher.cli.user_hub import UserHub

_OF_KUBECONFIG: Final = frozenset({"kubeconfig", "context", "selector"})
"""Parameters that say which hub is read, or which of its AppWrappers."""

THE_DATABASE: Final = "the database"

database_or_hub_option = click.option(
    "--database-url",
    default="",
    envvar="DISPATCHER_DATABASE_URL",
    metavar="URL",
    help="libpq URL of the queue's database, which is then read instead of the hub; '' reads the hub.",
    show_envvar=True,
)
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
def reading_hub(kubeconfig: str, context: str) -> Iterator[UserHub]:
    """The hub; raises `TryAgain` if it does not answer, and `CommandFailed` if it refuses."""
    from dispatcher.cli.user_hub import UserHub, asking

    with UserHub(kubeconfig, context) as hub, asking():
        yield hub
