"""What became of each cluster's capacity, hour by hour, as bars; from the view `utilisation_hourly`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import Final

from msgspec import Struct

from dispatcher.cli.screens.output import text
from dispatcher.store.readers.reports import Row

WIDTH: Final = 1000
"""Units from the first hour to the last."""
HEIGHT: Final = 100
PARTS: Final = ("allocated", "reserved", "other", "idle")
"""What a bar consists of, from the bottom on; together they are the capacity."""


class Part(Struct, frozen=True):
    """A part of a bar, from `y` on; `css` is its class."""

    css: str
    x: float
    y: float
    width: float
    height: float
    title: str


class Chart(Struct, frozen=True):
    """A cluster and one of its resources: the parts of all hours, and a sentence about the whole window."""

    name: str
    sentence: str
    parts: tuple[Part, ...]
    first: str
    last: str


def charts(rows: Sequence[Row]) -> tuple[Chart, ...]:
    """A chart for each cluster and resource of rows that are sorted by these, and then by hour; all of one scale."""
    hours = sorted({each["hour"] for each in rows if isinstance(each["hour"], datetime)})
    if not hours:
        return ()
    at = {hour: index for index, hour in enumerate(hours)}
    scale: dict[object, float] = {}
    for each in rows:
        scale[each["resource"]] = max(scale.get(each["resource"], 0.0), _number(each, "capacity"))
    found = []
    for (cluster, resource), group in groupby(rows, key=lambda each: (each["cluster"], each["resource"])):
        of_cluster = list(group)
        parts = tuple(
            part
            for each in of_cluster
            for part in _parts(each, at[each["hour"]], len(hours), scale[resource])  # type: ignore[index]
        )
        name = f"{cluster}, {resource}"
        found.append(Chart(name, _sentence(of_cluster), parts, text(hours[0]), text(hours[-1])))
    return tuple(found)


def _parts(row: Row, index: int, hours: int, scale: float) -> Iterator[Part]:
    """The parts of one hour; while the cluster could not be reached, what is not held is down."""
    width, bottom = WIDTH / hours, float(HEIGHT)
    down = _number(row, "down")
    for name in PARTS:
        amount = _number(row, name)
        height = HEIGHT * amount / scale if scale else 0.0
        if height <= 0:
            continue
        bottom -= height
        css = "down" if name == "idle" and down >= amount else name
        title = f"{text(row['hour'])}: {css} {text(amount)} of {text(_number(row, 'capacity'))}"
        yield Part(css, round(index * width, 2), round(bottom, 2), round(width, 2), round(height, 2), title)


def _sentence(rows: Sequence[Row]) -> str:
    capacity = sum(_number(each, "capacity") for each in rows)
    if not capacity:
        return "no capacity"
    shares = ((name, 100 * sum(_number(each, name) for each in rows) / capacity) for name in (*PARTS, "down"))
    return ", ".join(f"{share:.0f} % {name}" for name, share in shares if share >= 0.5)


def _number(row: Row, name: str) -> float:
    found = row[f"{name}_h"]
    return float(found) if isinstance(found, int | float) else 0.0
