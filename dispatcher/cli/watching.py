"""Print a report repeatedly until Ctrl-C.

Each report uses a new connection, so the command survives a restart of the database. A terminal is cleared and the
report cropped to it, because lines that wrap would move the others; in a pipe one report follows the other. Ctrl-C ends
the command with exit code 130, the usual one of a shell.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

import click

from dispatcher.api.spec_errors import one_line
from dispatcher.cli.parameter_types import Number
from dispatcher.errors import TryAgain
from dispatcher.text import counted, printable

EVERY: Final = 2.0
INTERRUPTED: Final = 130
CLEAR: Final = "\x1b[H\x1b[2J"

watch_option = click.option(
    "again", "--watch", "-w", is_flag=True, help="Refresh until Ctrl-C, which exits with 130."
)
every_option = click.option(
    "--every",
    type=Number(min=0.1, max=86400.0),
    metavar="SECONDS",
    help=f"Seconds between two refreshes of --watch.  [default: {EVERY:g}]",
)


def watch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options --watch and --every."""
    return watch_option(every_option(command))


def is_watched(again: bool, every: float | None) -> bool:
    """True with --watch; raises `BadParameter` for --every without it, which would be ignored."""
    if every is not None and not again:
        raise click.BadParameter("--every is the pause of --watch: give --watch, too")
    return again


def watch(
    look: Callable[[], str], every: float | None, pause: Callable[[float], None] = time.sleep
) -> NoReturn:
    """Show the text of `look`, refreshed until Ctrl-C; an error that may pass is shown below the last text."""
    try:
        seen = look()
        click.echo(_drawn(seen))
        while True:
            pause(EVERY if every is None else every)
            seen, said = _again(look, seen)
            click.echo(_drawn(said))
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


def _again(look: Callable[[], str], seen: str) -> tuple[str, str]:
    """What is seen now, and what is to be said of it."""
    try:
        now = look()
    except TryAgain as error:
        return seen, f"{seen}\n\n{one_line(str(error))}"
    return now, now


def _drawn(said: str) -> str:
    said = printable(said)
    if not sys.stdout.isatty():
        return said
    width, height = shutil.get_terminal_size()
    return CLEAR + cropped(said, height - 1, width)


def cropped(said: str, room: int, width: int) -> str:
    """At most `room` lines, the last one with the number of further ones, each in at most `width` columns."""
    lines = [line if len(line) <= width else f"{line[: width - 1]}…" for line in said.split("\n")]
    kept = max(1, room - 1)
    left = len(lines) - kept
    more = [] if len(lines) <= room else [f"… and {counted(left, 'more line')}"]
    return "\n".join([*lines[:kept], *more] if more else lines)
