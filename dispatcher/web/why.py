"""Why a pending AppWrapper waits, drawn on the nodes: the explanation from the leader's snapshot, and each node in it.

The snapshot is read at most once in `FRESH_SECONDS`. An explanation costs what `kubectl aw explain` costs. Names may be
a tenant's. Values are plain text; the templates escape all of them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct

from dispatcher.cli.people.explain import explanations
from dispatcher.cli.people.node_report import NO_APPWRAPPER
from dispatcher.cli.query import NO_LEADER, TO_GET_A_ROLE, leader_snapshot, why_not
from dispatcher.cli.screens.explanation import Document
from dispatcher.core.model.quantity import in_words
from dispatcher.core.model.records.record import Record
from dispatcher.core.scheduling.explain.node_strips import CORES, NodeSeen, Strip, strips
from dispatcher.core.scheduling.explain.world import KnownSnapshots
from dispatcher.errors import CommandFailed, StoreError, StoreForbidden
from dispatcher.store.snapshot.snapshot_reader import Snapshot
from dispatcher.text import counted, one_line
from dispatcher.web.cells import COLOURS, COUNTED, FREE, Run, colours_of, css_of, runs
from dispatcher.web.look import Look

FRESH_SECONDS: Final = 5.0
"""Seconds for which a snapshot answers all pages; the leader writes one every few seconds."""
MOST_NODES: Final = 200
"""Nodes of a cluster that are drawn: those that take most pods come first."""

CORE: Final = 1000
"""The amount that a cell stands for where cores are drawn."""


class NodePicture(Struct, frozen=True):
    """A node of a strip: its cells, and the same in words. `why` says why no pod of the gang may use it."""

    name: str
    fits: int
    free: str
    holders: str
    why: str
    cells: tuple[Run, ...]
    width: int


class Holder(Struct, frozen=True):
    """A gang of the legend, with the amount that it holds on all nodes of a cluster."""

    key: str
    amount: str
    css: str


class StripPicture(Struct, frozen=True):
    """The nodes of a cluster that are drawn, `of_all` in number, with a sentence about them and the largest holders."""

    cluster: str
    sentence: str
    gangs: tuple[Holder, ...]
    nodes: tuple[NodePicture, ...]
    of_all: int
    has_excluded: bool


class Why(Struct, frozen=True):
    """The explanation of a pending AppWrapper, with a strip for each cluster; `note` says what makes it uncertain."""

    document: Document
    strips: tuple[StripPicture, ...]
    note: str = ""


class SnapshotReading(Look[Snapshot | None]):
    """Reads the leader's snapshot from the database at a libpq URL; None before the first look that it answered."""

    def __init__(self, url: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(None, FRESH_SECONDS, monotonic)
        self._url = url
        self._planning = threading.Lock()

    def why(self, namespace: str, name: str) -> Why | None:
        """Why the AppWrapper waits; None if it is not pending, or nothing could be read. One is planned at a time."""
        snapshot = self.look()
        if snapshot is None:
            return None
        record = next((each for each in snapshot.world.pending if each.key == f"{namespace}/{name}"), None)
        if record is None:
            return None
        with self._planning:
            return why_of(snapshot, record)

    def _read(self) -> Snapshot:
        try:
            return leader_snapshot(self._url)
        except StoreForbidden as error:
            raise CommandFailed(f"{why_not(error)}: {TO_GET_A_ROLE}") from error
        except StoreError as error:
            raise CommandFailed(one_line(str(error))) from error


def why_of(snapshot: Snapshot, record: Record) -> Why:
    """The explanation of a pending AppWrapper of the snapshot, and the nodes of each cluster as it meets them."""
    known = KnownSnapshots()
    (report,) = explanations(snapshot, snapshot.world, [record.uid], known)
    met = strips(snapshot.world, record, known)
    names = {uid: each.key for uid, each in snapshot.records.items()}
    colours = colours_of(_held(met, names))
    pictures = tuple(_picture(each, names, colours) for each in met)
    return Why(report.document(), pictures, "" if snapshot.has_leader else NO_LEADER)


def _picture(strip: Strip, names: Mapping[str, str], colours: Mapping[str, int]) -> StripPicture:
    each_asks = f"each asks for {in_words(strip.resource, strip.requests)} {strip.resource}"
    fitting = f"{strip.fitting} of {counted(strip.pods, 'pod')} would fit now, {each_asks}"
    excluded = sum(1 for each in strip.nodes if each.why)
    closed = f"; {excluded} of {counted(len(strip.nodes), 'node')} excluded" if excluded else ""
    nodes = tuple(_node(each, strip, names, colours) for each in strip.nodes[:MOST_NODES])
    largest = sorted(_held([strip], names).items(), key=lambda each: (-each[1], each[0]))[:COLOURS]
    gangs = tuple(Holder(key, in_words(strip.resource, held), css_of(key, colours)) for key, held in largest)
    return StripPicture(strip.cluster, f"{fitting}{closed}", gangs, nodes, len(strip.nodes), bool(excluded))


def _node(seen: NodeSeen, strip: Strip, names: Mapping[str, str], colours: Mapping[str, int]) -> NodePicture:
    held = sorted(_by_name(seen, names).items(), key=lambda each: (-each[1], each[0]))
    unit = CORE if strip.resource == CORES else 1
    others = max(0, seen.allocatable - max(seen.free, 0) - sum(seen.holders.values()))
    free = FREE if seen.why or not seen.fits else COUNTED
    cells = tuple(
        runs(
            seen.name,
            [
                *((key, -(-amount // unit)) for key, amount in held),
                (NO_APPWRAPPER, others // unit),
                (free, max(seen.free, 0) // unit),
            ],
            colours,
        )
    )
    said = [
        f"{key} {in_words(strip.resource, amount)}"
        for key, amount in (*held, (NO_APPWRAPPER, others))
        if amount
    ]
    return NodePicture(
        seen.name,
        seen.fits,
        in_words(strip.resource, seen.free),
        ", ".join(said),
        seen.why,
        cells,
        sum(each.width for each in cells),
    )


def _held(met: Iterable[Strip], names: Mapping[str, str]) -> Counter[str]:
    """What each gang holds of the resources of all strips, by its namespace and name."""
    held = Counter[str]()
    for strip in met:
        for each in strip.nodes:
            held.update(_by_name(each, names))
    return held


def _by_name(seen: NodeSeen, names: Mapping[str, str]) -> Counter[str]:
    held = Counter[str]()
    for uid, amount in seen.holders.items():
        held[names.get(uid, uid)] += amount
    return held
