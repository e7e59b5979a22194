"""The rows of a trace in a file: lines of text, with the number of each, and errors that name it.

Lines are read one by one, so that a long trace needs no memory but for its jobs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NoReturn

from msgspec import Struct

from dispatcher.api.spec_errors import quoted
from dispatcher.core.simulation.job import LONGEST

MOST_JOBS: Final = 5_000_000
"""Jobs of one trace."""
MOST_DEVICES: Final = 10**6
"""Devices of one job."""


class TraceError(ValueError):
    """A line of a trace cannot be used; the message says which one, and what is wrong."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")


class Row(Struct, frozen=True):
    """The fields of one line by the names of their columns. Each method reads one type, and raises `TraceError`."""

    line: int
    fields: Mapping[str, str]

    def fail(self, problem: str) -> NoReturn:
        """Raise `TraceError` for the line."""
        raise TraceError(self.line, problem)

    def text(self, column: str) -> str:
        """The text of a column, without blanks at its ends."""
        return self.fields[column].strip()

    def number(self, column: str) -> float:
        """A finite number."""
        written = self.text(column)
        try:
            found = float(written)
        except ValueError:
            self.fail(f"{column} must be a number, not {quoted(written)}")
        if not -LONGEST <= found <= LONGEST:
            self.fail(f"{column} is out of range: {written}")
        return found

    def seconds(self, column: str, unit: float = 1) -> float:
        """A time of at least 0, in so many seconds each."""
        found = self.number(column)
        if found < 0:
            self.fail(f"{column} is negative: {self.text(column)}")
        return found * unit

    def count(self, column: str, least: int = 1) -> int:
        """A whole number from `least` on."""
        found = self.number(column)
        if found != int(found) or not least <= found <= MOST_DEVICES:
            self.fail(
                f"{column} must be a whole number from {least} to {MOST_DEVICES}, not {self.text(column)}"
            )
        return int(found)

    def time(self, column: str) -> datetime:
        """A time of ISO 8601, in UTC unless it names another zone."""
        written = self.text(column)
        try:
            found = datetime.fromisoformat(written)
        except ValueError:
            self.fail(f"{column} must be a time such as 2017-10-01 08:30:00, not {quoted(written)}")
        return found if found.tzinfo else found.replace(tzinfo=UTC)


def csv_rows(lines: Iterable[str], columns: Sequence[str]) -> Iterator[Row]:
    """The rows of a CSV file whose first line names its columns, these among them; raises `TraceError`."""
    reader = csv.reader(lines)
    header: list[str] | None = None
    for fields in _read(reader):
        if not fields:
            continue  # an empty line, as at the end of some published files
        if header is None:
            header = [each.strip() for each in fields]
            doubled = next((each for each in header if header.count(each) > 1), None)
            if doubled is not None:
                raise TraceError(reader.line_num, f"two columns are named {quoted(doubled)}")
            missing = [each for each in columns if each not in header]
            if missing:
                raise TraceError(reader.line_num, f"the first line has no column {', '.join(missing)}")
            continue
        if len(fields) != len(header):
            problem = f"has {len(fields)} fields, and the first line {len(header)}: is the file truncated?"
            raise TraceError(reader.line_num, problem)
        yield Row(reader.line_num, dict(zip(header, fields, strict=True)))
    if header is None:
        raise TraceError(1, "the file is empty")


def _read(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    line = 0
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise TraceError(line + 1, f"is no CSV: {error}") from error
        line += 1
        yield fields
