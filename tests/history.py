"""The timeline of an AppWrapper and the pending queue, from the views of schema `history`.

Reads are unfenced and read-only, so any process may make them beside a running leader.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import text

from dispatcher.core.model import codec
from dispatcher.store.database import Database


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One row of `history.timeline`."""

    namespace: str
    name: str
    uid: str
    at: datetime
    cause: str
    from_phase: str | None
    to_phase: str
    reason: str
    message: str
    cluster: str
    attempt: int
    seconds_since_previous: float | None
    id: int


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One row of `history.queue_now`."""

    queue: str
    position: int | None
    namespace: str
    name: str
    uid: str
    priority: int
    effective_priority: float
    created_at: datetime
    waited: timedelta
    demand: dict[str, int]
    pods: int
    reason: str | None
    message: str | None
    eligible_at: datetime | None


class History:
    """Reads the past and the present of the queue."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def timeline(self, namespace: str, name: str) -> list[TimelineEntry]:
        """Every event of every AppWrapper that ever had this name, oldest first."""
        names = {"namespace": namespace, "name": name}
        async with self._database.reading() as connection:
            # The uid has an index and partitions the view's window: by name the view would read the whole table.
            uids = list(await connection.scalars(_UIDS, names))
            found = await connection.execute(_TIMELINE, {"uids": uids})
            return [TimelineEntry(**row) for row in found.mappings()]

    async def queue_now(self, queue: str | None = None) -> list[QueueEntry]:
        """The pending queue in the order of evaluation; AppWrappers that may not go yet come last."""
        async with self._database.reading() as connection:
            found = await connection.execute(_QUEUE_NOW, {"queue": queue})
            return [
                QueueEntry(**{**row, "demand": codec.load(row["demand"], dict[str, int])})
                for row in found.mappings()
            ]


_UIDS: Final = text("SELECT uid FROM appwrapper WHERE namespace = :namespace AND name = :name")
_TIMELINE: Final = text("SELECT * FROM history.timeline WHERE uid = ANY(:uids) ORDER BY at, id")
_QUEUE_NOW: Final = text(
    f"SELECT {', '.join(each.name for each in fields(QueueEntry))} FROM history.queue_now "
    "WHERE CAST(:queue AS text) IS NULL OR queue = :queue "
    "ORDER BY queue, position NULLS LAST, eligible_at, uid"
)
