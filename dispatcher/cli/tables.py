"""Text tables for terminals and pipes: one line per row, columns two spaces apart.

A table that is too wide for the terminal is cut: first the headings, then the longest values. In a pipe nothing is
cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from dispatcher.api.spec_errors import one_line

NOTHING: Final = "-"

_GAP: Final = 2
_NARROWEST: Final = 4
_UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Return rows of text under headings, at most `width` characters wide; None for no limit."""
    shown = [[one_line(cell) or NOTHING for cell in row] for row in rows]
    widths = _widths(headings, shown, width)
    lines = ([_cut(cell, room) for cell, room in zip(row, widths, strict=True)] for row in (headings, *shown))
    return "\n".join((" " * _GAP).join(line).rstrip() for line in lines)


def age(since: datetime, now: datetime) -> str:
    """Return how long ago `since` was, in the format of `span`."""
    return span((now - since) / timedelta(seconds=1))


def span(seconds: float) -> str:
    """Return a duration in the largest unit that gives at least 2: 90s, 5m, 47h, 12d."""
    whole = max(0, int(seconds))
    unit, length = next((each for each in _UNITS if whole >= 2 * each[1]), _UNITS[-1])
    return f"{whole // length}{unit}"


def _widths(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[int]:
    values = [max(map(len, column)) for column in zip(*rows, strict=True)] or [0] * len(headings)
    widths = [max(len(heading), value) for heading, value in zip(headings, values, strict=True)]
    while width is not None and sum(widths) + _GAP * (len(widths) - 1) > width:
        wide = [index for index, each in enumerate(widths) if each > _NARROWEST]
        if not wide:
            break
        roomy = [index for index in wide if widths[index] > values[index]]
        widths[max(roomy or wide, key=widths.__getitem__)] -= 1
    return widths


def _cut(cell: str, room: int) -> str:
    return cell.ljust(room) if len(cell) <= room else f"{cell[: room - 1]}…"
