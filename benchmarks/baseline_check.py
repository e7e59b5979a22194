"""Whether quota was ever exceeded, by the history in the dispatcher's database.

A gang is charged from the commit of its dispatch to the commit of its release. The events are taken in the order of
their commits, because times of two commits may be equal; after each of them every queue and every tree must be within
its limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psycopg

from benchmarks.baseline_pattern import Limit
from dispatcher.core.model.records.record import HOLDING


@dataclass(frozen=True, slots=True)
class Move:
    """A committed step of a gang: its queue, its demand in thousandths of a CPU, and whether it is charged then."""

    uid: str
    queue: str
    millis: int
    is_held: bool


def peaks(moves: Iterable[Move], parents: Mapping[str, str]) -> dict[str, int]:
    """The highest use of each queue and of each root, in thousandths of a CPU; unused ones are left out.

    `parents` is the root of each leaf. A charged gang is charged in the queue of its dispatch until its release.
    """
    held: dict[str, Move] = {}
    used: dict[str, int] = defaultdict(int)
    found: dict[str, int] = {}
    for move in moves:
        if move.is_held == (move.uid in held):
            continue
        charged = held.setdefault(move.uid, move) if move.is_held else held.pop(move.uid)
        for queue in (charged.queue, parents[charged.queue]):
            used[queue] += charged.millis if move.is_held else -charged.millis
            found[queue] = max(found.get(queue, 0), used[queue])
    return found


def excesses(highest: Mapping[str, int], limits: Sequence[Limit]) -> list[str]:
    """A sentence for each queue or tree that used more than its limit at some instant."""
    return [
        f"{each.queue} used {highest[each.queue] / 1000:g} CPUs of {each.cpu}"
        for each in limits
        if highest.get(each.queue, 0) > each.cpu * 1000
    ]


def moves(connection: psycopg.Connection) -> list[Move]:
    """Every step of every gang, in the order of the commits."""
    rows = connection.execute(
        "SELECT event.uid, event.queue, coalesce((attempt.demand ->> 'cpu')::bigint, 0), event.to_phase"
        " FROM event LEFT JOIN attempt ON attempt.uid = event.uid AND attempt.number = event.attempt"
        " ORDER BY event.id"
    )
    return [Move(uid, queue, millis, phase in HOLDING) for uid, queue, millis, phase in rows]
