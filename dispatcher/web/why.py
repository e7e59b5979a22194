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
from dispatcher.cli.people.explanation_report import age_of
from dispatcher.cli.people.node_report import NO_APPWRAPPER
from dispatcher.cli.query import NO_LEADER, TO_GET_A_ROLE, leader_snapshot, why_not
from dispatcher.cli.screens.explanation import Block, Document, would_be_dispatched
from dispatcher.core.model.quantity import in_words
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import PODS
from dispatcher.core.scheduling.cycle.outcomes import Outcome, Placed
from dispatcher.core.scheduling.explain.node_strips import CORES, NodeSeen, Strip, strips
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
from dispatcher.errors import CommandFailed, StoreError, StoreForbidden
from dispatcher.store.snapshot.snapshot_reader import Snapshot
from dispatcher.text import counted, one_line
from dispatcher.web.cells import COLOURS, COUNTED, FREE, MOST_CELLS, OWN, Run, colours_of, css_of, runs
from dispatcher.web.look import Look
from dispatcher.web.what_if import Question, submitted

FRESH_SECONDS: Final = 5.0
"""Seconds for which a snapshot answers all pages; the leader writes one every few seconds."""
MOST_NODES: Final = 200
"""Nodes of a cluster that are drawn: those that take most pods come first."""

FITTING: Final = "Pods that fit"
PLACED: Final = "Its pods"
CORE: Final = 1000
"""The amount that a cell stands for where cores are drawn."""


class NodePicture(Struct, frozen=True):
    """A node of a strip: its cells, and the same in words. `why` says why no pod of the gang may use it.

    `pods` are those of the gang that fit there, or have a place there.
    """

    name: str
    pods: int
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
    """The nodes of a cluster that are drawn, `of_all` in number, with a sentence about them and the largest holders.

    `heading` says what the pods of each node are: those that fit, or those that have a place there.
    """

    cluster: str
    sentence: str
    heading: str
    gangs: tuple[Holder, ...]
    nodes: tuple[NodePicture, ...]
    of_all: int
    has_excluded: bool
    has_places: bool


class Why(Struct, frozen=True):
    """The explanation of a pending AppWrapper, with a strip for each cluster; `note` says what makes it uncertain.

    `changes` are those that would dispatch it, in words. After the change with the number `after` the strips are those
    of the clusters that it goes to; None without a change.
    """

    document: Document
    blocks: tuple[Block, ...]
    """The tables of the document, without the changes."""
    changes: tuple[str, ...]
    strips: tuple[StripPicture, ...]
    after: int | None = None
    note: str = ""
    age: str = ""
    """How old the facts are, in a sentence."""


class SnapshotReading(Look[Snapshot | None]):
    """Reads the leader's snapshot from the database at a libpq URL; None before the first look that it answered."""

    def __init__(self, url: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(None, FRESH_SECONDS, monotonic)
        self._url = url
        self._planning = threading.Lock()

    def why(self, uid: str, after: int | None = None) -> Why | None:
        """Why the AppWrapper waits, or where it goes after a change; None if it is not pending, or nothing was read.

        One is planned at a time.
        """
        snapshot = self.look()
        if snapshot is None:
            return None
        record = next((each for each in snapshot.world.pending if each.uid == uid), None)
        if record is None:
            return None
        with self._planning:
            return why_of(snapshot, snapshot.world, record, after)

    def what_if(self, question: Question, after: int | None = None) -> Why | None:
        """What would happen to a gang that is not submitted, also after a change; None if nothing was read.

        Raises `NotWritten` for what intake would reject. One is planned at a time.
        """
        snapshot = self.look()
        if snapshot is None:
            return None
        world, record = submitted(snapshot, question)
        with self._planning:
            return why_of(snapshot, world, record, after)

    def _read(self) -> Snapshot:
        try:
            return leader_snapshot(self._url)
        except StoreForbidden as error:
            raise CommandFailed(f"{why_not(error)}: {TO_GET_A_ROLE}") from error
        except StoreError as error:
            raise CommandFailed(one_line(str(error))) from error


def why_of(snapshot: Snapshot, world: World, record: Record, after: int | None = None) -> Why:
    """The explanation of a pending AppWrapper of a world, and the nodes of each cluster as it meets them.

    The world was made from the snapshot. If the next cycle dispatches the AppWrapper, or would after the change with
    the number `after`, the nodes are those of its cluster, with its pods on them.
    """
    known, names = KnownSnapshots(), {uid: each.key for uid, each in snapshot.records.items()}
    names |= {each.uid: f"kept for {each.key}" for each in world.pending}
    (report,) = explanations(snapshot, world, [record.uid], known)
    changes, document = report.changes(), report.document()
    told = would_be_dispatched([each.words for each in changes])
    notes = [] if snapshot.has_leader else [NO_LEADER]
    if after is not None and after >= len(changes):
        notes.append("The change of this address is not among those that would dispatch it any more.")
        after = None
    if after is None:
        pictures = _where_it_goes(world, names, known, report.explanation.outcome) or _pictures(
            world, record, names, {}, known
        )
    else:
        pictures = _after(changes[after].after(world), record, names)
        if not pictures:
            notes.append("After this change others are preempted for it first: no place is known yet.")
    return Why(
        document,
        tuple(each for each in document.blocks if each != told),
        tuple(each.words for each in changes),
        pictures,
        after,
        " ".join(notes),
        age_of([report]),
    )


def _after(world: World, record: Record, names: Mapping[str, str]) -> tuple[StripPicture, ...]:
    """Where the next cycle sends the gang in a changed world."""
    known = KnownSnapshots()
    outcome = next((each for each in world.plan(known) if each.record.uid == record.uid), None)
    return _where_it_goes(world, names, known, outcome)


def _where_it_goes(
    world: World, names: Mapping[str, str], known: KnownSnapshots, outcome: Outcome | None
) -> tuple[StripPicture, ...]:
    """The nodes of the cluster that a cycle sends the gang to; nothing if it sends it to none yet."""
    if not isinstance(outcome, Placed):
        return ()
    placed = {outcome.cluster: _placed(outcome)}
    pictures = _pictures(world, outcome.record, names, placed, known)
    return tuple(each for each in pictures if each.cluster == outcome.cluster)


def _placed(outcome: Placed) -> dict[str, Counter[str]]:
    """The pods of a placed gang on each node, and what they request of each resource."""
    gang = outcome.record.gang.in_cluster(outcome.cluster)
    found: dict[str, Counter[str]] = {}
    for pod_set, places in zip(gang.pod_sets, outcome.assignment.places, strict=False):
        for node, pods in places:
            there = found.setdefault(node, Counter())
            there[PODS] += pods
            there.update({name: amount * pods for name, amount in pod_set.requests.items() if name != PODS})
    return found


def _pictures(
    world: World,
    record: Record,
    names: Mapping[str, str],
    placed: Mapping[str, Mapping[str, Counter[str]]],
    known: KnownSnapshots,
) -> tuple[StripPicture, ...]:
    met = strips(world, record, known)
    colours = colours_of(_held(met, names))
    return tuple(_picture(each, names, colours, placed.get(each.cluster)) for each in met)


def _picture(
    strip: Strip,
    names: Mapping[str, str],
    colours: Mapping[str, int],
    placed: Mapping[str, Counter[str]] | None,
) -> StripPicture:
    nodes = [_node(each, strip, names, colours, placed) for each in strip.nodes]
    if placed is not None:
        nodes.sort(key=lambda each: -each.pods)
    largest = sorted(_held([strip], names).items(), key=lambda each: (-each[1], each[0]))[:COLOURS]
    return StripPicture(
        strip.cluster,
        _about(strip) if placed is None else _about_places(placed),
        FITTING if placed is None else PLACED,
        tuple(Holder(key, in_words(strip.resource, held), css_of(key, colours)) for key, held in largest),
        tuple(nodes[:MOST_NODES]),
        len(nodes),
        any(each.why for each in nodes),
        placed is not None,
    )


def _unit(strip: Strip) -> int:
    """What a cell stands for: a GPU or a core, or as many as it takes for the largest node to have all its cells."""
    one = CORE if strip.resource == CORES else 1
    largest = max((each.allocatable for each in strip.nodes), default=0)
    return one * max(1, -(-largest // (one * MOST_CELLS)))


def _about(strip: Strip) -> str:
    each_asks = f"each asks for {in_words(strip.resource, strip.requests)} {strip.resource}"
    alone = f" without its {counted(strip.others, 'other pod')}" if strip.others else ""
    fitting = f"{strip.fitting} of {counted(strip.pods, 'pod')} would fit now{alone}, {each_asks}"
    excluded = sum(1 for each in strip.nodes if each.why)
    closed = f"; {excluded} of {counted(len(strip.nodes), 'node')} excluded" if excluded else ""
    return f"{fitting}{closed}"


def _about_places(placed: Mapping[str, Counter[str]]) -> str:
    pods = sum(each[PODS] for each in placed.values())
    return f"{counted(pods, 'pod')} on {counted(len(placed), 'node')}"


def _node(
    seen: NodeSeen,
    strip: Strip,
    names: Mapping[str, str],
    colours: Mapping[str, int],
    placed: Mapping[str, Counter[str]] | None,
) -> NodePicture:
    unit = _unit(strip)
    own = (placed or {}).get(seen.name, Counter())
    held = sorted(_by_name(seen, names).items(), key=lambda each: (-each[1], each[0]))
    others = max(0, seen.allocatable - max(seen.free, 0) - sum(seen.holders.values()))
    free = seen.free - own[strip.resource]
    is_counted = placed is None and seen.fits and not seen.why
    amounts = [*held, (NO_APPWRAPPER, others), (OWN, own[strip.resource])]
    cells = tuple(
        runs(
            seen.name,
            [
                *((key, -(-amount // unit)) for key, amount in amounts),
                (COUNTED if is_counted else FREE, max(free, 0) // unit),
            ],
            colours,
        )
    )
    return NodePicture(
        seen.name,
        seen.fits if placed is None else own[PODS],
        in_words(strip.resource, free),
        ", ".join(f"{key} {in_words(strip.resource, amount)}" for key, amount in amounts if amount),
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
