"""Text for terminals and pipes: it wraps at words; tables have one line per row, and columns two spaces apart.

A table that is too wide for the terminal gives up columns, never parts of names. In this order, until it fits:

1. A namespace that all names share is shown once, above the table.
2. Columns that are equal in all rows are shown once, above the table.
3. Columns of text wrap within their column.
4. Columns are left out by their rank, and named below the table.
5. Rows that are still too long, because of names, continue on a line of their own.

In a pipe and in wide output a table has all columns.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import repeat, zip_longest
from typing import IO, Final

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.api.spec_errors import one_line
from dispatcher.text import name_of, text_of

NARROWEST: Final = 20
"""Characters of a line that text gets in any terminal."""

_WORDS: Final = re.compile(r"\S+\s*")
PARTS: Final = re.compile(r"[^\s./:]+[./:]*\s*|[./:]+\s*")
"""A word that is too long, such as the path of a field, breaks after these characters."""
NOTHING: Final = "-"
_GAP: Final = 2
_COMFORTABLE: Final = 40
"""Characters of a text column for which other columns move above the table."""
_NARROWEST: Final = 24
"""Characters of a text column for which other columns are left out."""
_UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def width_of(stream: IO[str]) -> int | None:
    """The columns of the terminal that a stream is; None if it is none."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def wrapped(text: str, room: int | None, hang: int = 0) -> list[str]:
    """The lines of a text, of at most `room` characters if its words allow that, all but the first `hang` shorter."""
    if room is None or len(text) <= room:
        return [text]
    lines = [""]
    for word in _WORDS.findall(text):
        for part in [word] if len(word.rstrip()) <= room - hang else PARTS.findall(word):
            if lines[-1] and len(lines[-1]) + len(part.rstrip()) > room - hang * (len(lines) > 1):
                lines.append("")
            lines[-1] += part
    return [line.rstrip() for line in lines]


def state_in_words(state: str, cluster: object, reason: object, message: object, mark: str = ": ") -> str:
    """A state with the cluster of a gang that has one, and the reason, such as `Failed on east: PodsFailed: 2 of 4`."""
    where = f" on {name_of(cluster)}" if cluster else ""
    why = ": ".join(filter(None, (text_of(reason), text_of(message))))
    return f"{state}{where}{mark + why if why else ''}"


def folded(text: str, width: int | None) -> str:
    """The lines of a text in `width` columns; a line that continues is indented by two more."""
    return "\n".join(each for line in text.split("\n") for each in _folded(line, width))


def _folded(line: str, width: int | None) -> list[str]:
    if width is None or len(line) <= width:
        return [line]
    said = line.lstrip()
    indent = len(line) - len(said)
    first, *others = wrapped(said, max(NARROWEST, width - indent), hang=2)
    return [f"{'':{indent}}{first}", *(f"{'':{indent + 2}}{each}" for each in others)]


class Heading(Struct, frozen=True):
    """The head of a column, and how the column gives way in a narrow terminal.

    Columns of the highest rank are left out first, those of rank 0 never. A namespaced column has names of AppWrappers
    as NAMESPACE/NAME. A column that wraps has text.
    """

    name: str
    rank: int = 0
    is_namespaced: bool = False
    wraps: bool = False


def table(headings: Sequence[Heading | str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Return rows of text under headings, in `width` characters if names allow that; None for no limit."""
    shown = [[one_line(cell) or NOTHING for cell in row] for row in rows]
    cells = zip(*shown, strict=True) if shown else repeat(())
    heads = (each if isinstance(each, Heading) else Heading(each) for each in headings)
    whole = _Table(tuple(map(_Column, heads, cells)))
    if width is None:
        return "\n".join(whole.lines())
    lines = "\n".join(_narrowed(whole, width).lines(width))
    return folded(lines, width) if max(map(len, lines.split())) <= width else lines


def age(since: datetime, now: datetime) -> str:
    """Return how long ago `since` was, in the format of `span`."""
    return span((now - since) / timedelta(seconds=1))


def relative(moment: datetime, now: datetime) -> str:
    """Return how long ago a moment was, such as `3h`, or in how long it will be, such as `in 20m`."""
    return f"in {age(now, moment)}" if moment > now else age(moment, now)


def span(seconds: float) -> str:
    """Return a duration in the largest unit that gives at least 2: 90s, 5m, 47h, 12d."""
    whole = max(0, int(seconds))
    unit, length = next((each for each in _UNITS if whole >= 2 * each[1]), _UNITS[-1])
    return f"{whole // length}{unit}"


class _Column(Struct, frozen=True):
    heading: Heading
    cells: tuple[str, ...]

    @property
    def width(self) -> int:
        return max(map(len, (self.heading.name, *self.cells)))

    @property
    def namespace(self) -> str:
        """The namespace of all names; empty if they have several, or none."""
        found = {cell.partition("/")[0] if "/" in cell else "" for cell in self.cells}
        return found.pop() if self.heading.is_namespaced and len(found) == 1 else ""

    @property
    def is_equal(self) -> bool:
        """True if all rows have the same."""
        return len(set(self.cells)) == 1

    def without_namespace(self) -> _Column:
        return replace(self, cells=tuple(cell.partition("/")[2] for cell in self.cells))

    def least(self, room: int) -> int:
        """The width of the column if its text wraps at `room` characters."""
        if not self.heading.wraps:
            return self.width
        parts = (part for cell in (self.heading.name, *self.cells) for part in PARTS.findall(cell))
        return min(self.width, max(room, *(len(part.rstrip()) for part in parts)))


class _Table(Struct, frozen=True):
    columns: tuple[_Column, ...]
    above: tuple[str, ...] = field(default_factory=tuple)
    left_out: tuple[str, ...] = field(default_factory=tuple)

    def least(self, room: int) -> int:
        """The width of the table if text wraps at `room` characters."""
        return sum(each.least(room) for each in self.columns) + _GAP * (len(self.columns) - 1)

    def without(self, *columns: _Column) -> _Table:
        kept = (each for each in self.columns if not any(each is column for column in columns))
        return replace(self, columns=tuple(kept))

    def stays(self, column: _Column) -> bool:
        """True for the column that names the rows."""
        names = [each for each in self.columns if each.heading.is_namespaced]
        return column in (names or self.columns[:1])

    def lines(self, width: int | None = None) -> Iterator[str]:
        if self.above:
            yield from wrapped(f"In all rows: {', '.join(self.above)}", width)
        yield from _drawn(self.columns, self._widths(width))
        if self.left_out:
            yield from wrapped(f"No room for: {', '.join(self.left_out)} (-o wide shows all)", width)

    def _widths(self, width: int | None) -> list[int]:
        widths = [each.width for each in self.columns]
        least = [each.least(_NARROWEST) for each in self.columns]
        while width is not None and sum(widths) + _GAP * (len(widths) - 1) > width:
            roomy = [index for index, each in enumerate(widths) if each > least[index]]
            if not roomy:
                break
            widths[max(roomy, key=widths.__getitem__)] -= 1
        return widths


def _narrowed(whole: _Table, width: int) -> _Table:
    """The table as it is shown in a terminal of `width` characters."""
    shown = whole
    for column in _by_rank(each for each in whole.columns if each.namespace):
        if shown.least(_COMFORTABLE) <= width:
            return shown
        columns = tuple(each.without_namespace() if each is column else each for each in shown.columns)
        shown = replace(shown, columns=columns, above=(*shown.above, f"NAMESPACE {column.namespace}"))
    for column in _by_rank(each for each in shown.columns if each.is_equal and not shown.stays(each)):
        if shown.least(_COMFORTABLE) <= width:
            return shown
        said = f"{column.heading.name} {column.cells[0]}"
        shown = replace(shown.without(column), above=(*shown.above, said))
    left_out: list[_Column] = []
    for column in _by_rank(each for each in shown.columns if each.heading.rank):
        if shown.without(*left_out).least(_NARROWEST) <= width:
            break
        left_out.append(column)
    for column in reversed(left_out):  # the last ones may have left more room than was needed
        fewer = [each for each in left_out if each is not column]
        if shown.without(*fewer).least(_NARROWEST) <= width:
            left_out = fewer
    return replace(shown.without(*left_out), left_out=tuple(each.heading.name for each in left_out))


def _by_rank(columns: Iterable[_Column]) -> list[_Column]:
    return sorted(columns, key=lambda each: -each.heading.rank)


def _drawn(columns: Sequence[_Column], widths: Sequence[int]) -> Iterator[str]:
    for row in zip(*((each.heading.name, *each.cells) for each in columns), strict=True):
        cells = [wrapped(cell, room) for cell, room in zip(row, widths, strict=True)]
        for line in zip_longest(*cells, fillvalue=""):
            yield (
                (" " * _GAP).join(f"{cell:{room}}" for cell, room in zip(line, widths, strict=True)).rstrip()
            )
