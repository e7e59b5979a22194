"""How reports are shown: a table for people, JSON and CSV for programs.

A table has columns of its own, in people's words, and times relative to now; wide output has exact times. JSON and CSV
have the columns of the report, under its names: numbers are numbers, times are ISO 8601, a span of time is its seconds.
Nothing in names and messages can steer a terminal.

A watched report is refreshed until Ctrl-C. Each refresh uses a new connection, so the command survives a restart of the
database. A terminal is cleared and the report cropped to it, because lines that wrap would move the others; in a pipe
one report follows the other.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from math import isfinite
from typing import Any, Final, NoReturn

import click
from msgspec import Struct

from dispatcher.api.spec_errors import one_line
from dispatcher.cli.screens.tables import Heading, folded, relative, span, table, width_of
from dispatcher.core.model.clock import timestamp
from dispatcher.core.model.records.termination import both
from dispatcher.errors import TryAgain
from dispatcher.store.readers.reports import Report, Row
from dispatcher.text import counted, printable

UNKNOWN: Final = "unknown"
EVERY: Final = 2.0
"""Seconds between two refreshes of a screen, by default."""
INTERRUPTED: Final = 130
"""The exit code after Ctrl-C, the usual one of a shell."""
CLEAR: Final = "\x1b[H\x1b[2J"


class Shape(StrEnum):
    """How a report is shown, if not as a table that fits the terminal."""

    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    WIDE = "wide"


class Column(Struct, frozen=True):
    """A column of a table: its heading, and its value for a row."""

    heading: Heading
    of: Callable[[Row], object]


def plain(heading: str, name: str, rank: int = 0) -> Column:
    """A column as it is in the report; those of the highest rank are left out first, those of rank 0 never."""
    return Column(Heading(heading, rank), lambda row: row[name])


def prose(heading: str, name: str) -> Column:
    """A column of text, which wraps."""
    return Column(Heading(heading, wraps=True), lambda row: row[name])


def how_long(heading: str, name: str, rank: int = 0) -> Column:
    """A column of seconds."""
    return Column(Heading(heading, rank), lambda row: _span(row[name]))


def named() -> Column:
    """The AppWrapper, as one word."""
    return Column(Heading("NAME", is_namespaced=True), lambda row: f"{row['namespace']}/{row['name']}")


def known(heading: str, name: str, rank: int = 0) -> Column:
    """A column with `unknown` where the report has nothing."""
    return Column(Heading(heading, rank), lambda row: UNKNOWN if row[name] is None else row[name])


def message_of(row: Row) -> str:
    """The message of a row of the history, and the termination message, if the reader may see it."""
    return both(text(row["message"]), text(row["termination_message"]))


def as_asked(report: Report) -> list[Column]:
    """The columns of a report, as they are and in their order."""
    return [plain(name, name) for name in report.columns]


def as_table(
    report: Report, columns: Sequence[Column], width: int | None = None, now: datetime | None = None
) -> str:
    """A line a row, for a terminal of `width` characters; None is as many as it takes.

    Times are relative to `now`, or exact without it.
    """
    rows = [[text(column.of(row), now) for column in columns] for row in report]
    return table([column.heading for column in columns], rows, width)


def as_json(report: Report) -> str:
    """A list of objects."""
    return dumped([{name: value(each) for name, each in row.items()} for row in report])


def as_csv(report: Report) -> str:
    """A heading and a line a row; what is not there is empty."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(report.columns)
    writer.writerows([_cell(each) for each in row] for row in report.rows)
    return written.getvalue().removesuffix("\n")


def dumped(shown: object) -> str:
    """JSON for people and programs."""
    return json.dumps(shown, indent=2, allow_nan=False)


def shown_as(shown: object, form: str | None) -> str:
    """The value as JSON, or as YAML if the form is `yaml`."""
    return written_as(dumped(shown), form)


def list_as_json(listed: dict[str, Any]) -> str:
    """A list of objects as the API server gave it, without who wrote which field."""
    return dumped({**listed, "items": [without_managers(each) for each in listed.get("items") or ()]})


def without_managers(found: dict[str, Any]) -> dict[str, Any]:
    """An object without who wrote which field."""
    metadata = {key: value for key, value in found["metadata"].items() if key != "managedFields"}
    return {**found, "metadata": metadata}


def written_as(text_of_json: str, form: str | None) -> str:
    """JSON as it is, or as YAML if the form is `yaml`."""
    if form != "yaml":
        return text_of_json
    import yaml  # only this form needs it

    return yaml.safe_dump(json.loads(text_of_json), sort_keys=False, allow_unicode=True).removesuffix("\n")


def terminal_width() -> int | None:
    """The columns of the terminal; None if stdout is none."""
    return width_of(sys.stdout)


def replace_line(line: str) -> None:
    """Write a line of progress to stderr, which is a terminal, in place of the last one; an empty one removes it."""
    click.echo(f"\r{one_line(line)}\x1b[K", err=True, nl=False)


def say(shown: str, *, err: bool = False) -> None:
    """Print text on stdout or stderr; the only function of the commands that does.

    What others wrote (names, annotations, messages) must not reach a terminal as control characters. The two exceptions
    are the log of a pod, which is its author's own as with kubectl, and the refresh of a screen.
    """
    click.echo(printable(shown), err=err)


def put(shown: str, form: str | None) -> None:
    """Print what a command shows; a pager scrolls wide output that is wider than the terminal, and text wraps."""
    shown, width = printable(shown), terminal_width()
    if form is None:
        shown = folded(shown, width)
    pager = _pager() if form == Shape.WIDE and width and max(map(len, shown.split("\n"))) > width else []
    if not pager:
        say(shown)
        return
    options = {"LESS": f"{os.environ.get('LESS', '')} -S -+F"}  # -F would end it before anything is scrolled
    with suppress(KeyboardInterrupt):
        subprocess.run(pager, input=f"{shown}\n", text=True, check=False, env=os.environ | options)  # noqa: S603  # as asked


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
    """The text of another look, and the text to draw.

    If the look fails, they are the text that was `seen`, and the same text with the error below it.
    """
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


def _pager() -> list[str]:
    """The command line of the pager; empty if there is none. PAGER names another one than less."""
    command = shlex.split(os.environ.get("PAGER") or "less")
    return command if command and shutil.which(command[0]) else []


def text(found: object, now: datetime | None = None) -> str:
    """A value as it stands in a table; a time is relative to `now`, or exact without it."""
    match found:
        case None:
            return ""
        case bool():
            return "yes" if found else "no"
        case datetime() if now is not None:
            return relative(found, now)
        case datetime():
            return timestamp(found)
        case timedelta():
            return span(found.total_seconds())
        case float() | Decimal():
            return _number(found)
        case dict() | list():
            return json.dumps(value(found))
    return str(value(found))


def value(found: object) -> object:
    """A value as JSON has it."""
    match found:
        case None | bool() | int() | str():
            return found
        case Decimal() if found.is_finite() and found == found.to_integral_value():
            return int(found)
        case float() | Decimal():
            return float(found) if isfinite(found) else str(found)
        case datetime() | date():
            return found.isoformat()
        case timedelta():
            return value(found.total_seconds())
        case dict():
            return {str(key): value(each) for key, each in found.items()}
        case list() | tuple():
            return [value(each) for each in found]
        case bytes():
            return f"\\x{found.hex()}"
    return str(found)


def _cell(found: object) -> object:
    plain_value = value(found)
    return json.dumps(plain_value) if isinstance(plain_value, dict | list | bool) else plain_value


def _number(found: float | Decimal) -> str:
    """At most two places: who wants more asks for JSON."""
    shown = f"{found:.2f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def _span(seconds: object) -> str:
    return span(float(seconds)) if isinstance(seconds, int | float | Decimal) else ""


def as_of(age: timedelta) -> str:
    """The line that ends an answer from the leader's snapshot, which is that old."""
    return f"As of {text(age)} ago: the leader writes clusters and queues some seconds after they change."
