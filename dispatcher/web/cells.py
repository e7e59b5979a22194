"""How the GPUs of nodes are drawn: a row of cells for each node, coloured by gang.

A cell is a GPU, but a count and no device: an API server knows how many GPUs of a node are requested, not which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from zlib import crc32

from msgspec import Struct

from dispatcher.cli.people.node_report import NO_APPWRAPPER
from dispatcher.cli.screens.output import UNKNOWN

COLOURS: Final = 12
"""Gangs with a colour of their own; smaller ones are grey."""
MOST_CELLS: Final = 64
"""Cells of one node; the words beside them have all of its GPUs."""
CELL: Final = 14
"""Width of a cell in pixels."""
FREE: Final = "free"
COUNTED: Final = "free for its pods"
OWN: Final = "this AppWrapper"
CLASSES: Final = {
    NO_APPWRAPPER: "no-appwrapper",
    UNKNOWN: "unknown",
    FREE: "free",
    COUNTED: "counted",
    OWN: "own",
}
"""The classes of cells that no running gang holds, by the word for their holder."""


class Run(Struct, frozen=True):
    """Adjacent cells with one holder; `x` and `width` in pixels, `css` is its class."""

    title: str
    css: str
    x: int
    width: int


def runs(node: str, holders: Iterable[tuple[str, int]], colours: Mapping[str, int]) -> Iterator[Run]:
    """The cells of a node by holder, in their order; `node` is said with each."""
    at = 0
    for key, count in holders:
        shown = min(count, MOST_CELLS - at)
        if shown > 0:
            yield Run(f"{node}: {key} {count}", css_of(key, colours), at * CELL, shown * CELL)
            at += shown


def colours_of(held: Mapping[str, int]) -> dict[str, int]:
    """A colour from 0 to 11 for each of the largest gangs, by their GPUs.

    The colour depends on the gang's key, so it stays the same from look to look; if a larger gang has that colour, the
    next one that is left.
    """
    left = list(range(COLOURS))
    found = {}
    for key in sorted(held, key=lambda key: (-held[key], key))[:COLOURS]:
        first = crc32(key.encode()) % COLOURS
        found[key] = next(each for at in range(COLOURS) if (each := (first + at) % COLOURS) in left)
        left.remove(found[key])
    return found


def css_of(key: str, colours: Mapping[str, int]) -> str:
    """The class of the cells of a holder."""
    return CLASSES.get(key) or (f"gang-{colours[key]}" if key in colours else "gang-more")
