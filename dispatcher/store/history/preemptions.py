"""Reads the preemptions of the last time from history, from a gang to the gangs that it was preempted for, and on."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final

from sqlalchemy import text

from dispatcher.core.scheduling.preemption.loops import Preempted
from dispatcher.store.database import Database

MOST_GANGS: Final = 1_000
"""Gangs that are followed from all victims of one question."""
MOST_PREEMPTIONS: Final = 5_000
"""Preemptions in one answer."""


async def preemptions_from(database: Database, victims: Collection[str], since: datetime) -> list[Preempted]:
    """The preemptions after `since` of these gangs, of the gangs that they were preempted for, and so on.

    Each pair is named once. Beyond the bounds above the answer is not complete. Raises `StoreError`.
    """
    values = {
        "victims": list(victims),
        "since": since,
        "gangs": MOST_GANGS,
        "preemptions": MOST_PREEMPTIONS,
    }
    async with database.reading() as connection:
        found = await connection.execute(_PREEMPTIONS, values)
        return [Preempted(row.victim, row.preemptor, f"{row.namespace}/{row.name}") for row in found]


_STEP: Final = (
    "JOIN event AS e ON e.uid = g.uid AND e.cause = 'preempted' AND e.at > :since "
    "JOIN attempt AS t ON t.uid = e.uid AND t.number = e.attempt AND t.preempted_by <> ''"
)
# Postgres follows no further than the limit of `some_gangs` asks for.
_PREEMPTIONS: Final = text(
    "WITH RECURSIVE gangs(uid) AS ("
    "SELECT unnest(CAST(:victims AS text[])) "
    f"UNION SELECT t.preempted_by FROM gangs AS g {_STEP}"
    "), some_gangs AS (SELECT uid FROM gangs LIMIT :gangs) "
    "SELECT DISTINCT e.uid AS victim, t.preempted_by AS preemptor, e.namespace, e.name "
    f"FROM some_gangs AS g {_STEP} ORDER BY victim, preemptor LIMIT :preemptions"
)
