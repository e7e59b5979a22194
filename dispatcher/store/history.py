"""What happened, for people: read from the views in schema `history`, and kept in monthly partitions.

Reading is unfenced and read-only, so anybody may do it beside a running leader. Partitions are made ahead by
the leader, at takeover and daily. Should it ever be late, events go to the default partition, and the month
that takes their place moves them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from dispatcher.store.database import Database
from dispatcher.store.leadership import Lease

MONTHS_AHEAD: Final = 2
"""Months made beyond the current one: a dispatcher may be down for that long and lose no order."""


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
    """Answers about past and present of the queue."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def timeline(self, namespace: str, name: str) -> list[TimelineEntry]:
        """Every event of every AppWrapper that ever had this name, the oldest first."""
        names = {"namespace": namespace, "name": name}
        async with self._database.reading() as connection:
            # By uid, which has an index and partitions the view's window: the view alone would read it all.
            uids = list(await connection.scalars(_UIDS, names))
            found = await connection.execute(_TIMELINE, {"uids": uids})
            return [TimelineEntry(**row) for row in found.mappings()]

    async def queue_now(self, queue: str | None = None) -> list[QueueEntry]:
        """Who waits, in the order in which they are looked at; last those that may not go yet."""
        async with self._database.reading() as connection:
            found = await connection.execute(_QUEUE_NOW, {"queue": queue})
            return [QueueEntry(**row) for row in found.mappings()]


async def ensure_partitions(database: Database, lease: Lease, now: datetime) -> list[str]:
    """Make the partitions of this month and the next ones; return the names of those that were missing."""
    missing = []
    for month in _months_from(now):
        name = f"event_{month:%Y_%m}"
        async with database.fenced(lease.epoch, lease.holder) as connection:
            if await _is_absent(connection, name):
                await _make_partition(connection, name, month, _next_month(month))
                missing.append(name)
    return missing


async def _is_absent(connection: AsyncConnection, name: str) -> bool:
    found = await connection.execute(text("SELECT to_regclass(:name) IS NULL"), {"name": name})
    return bool(found.scalar_one())


async def _make_partition(connection: AsyncConnection, name: str, start: datetime, end: datetime) -> None:
    """Make it beside the table, move in what the default partition took in its stead, then attach it."""
    bounds = {"start": start.isoformat(), "end": end.isoformat()}
    await connection.execute(text(f"CREATE TABLE {name} (LIKE event INCLUDING DEFAULTS)"))
    await connection.execute(
        text(
            "WITH late AS (DELETE FROM event_default WHERE at >= CAST(:start AS timestamptz) "
            f"AND at < CAST(:end AS timestamptz) RETURNING *) INSERT INTO {name} SELECT * FROM late"
        ),
        bounds,
    )
    limits = f"FROM ('{bounds['start']}') TO ('{bounds['end']}')".replace(":", r"\:")
    await connection.execute(text(f"ALTER TABLE event ATTACH PARTITION {name} FOR VALUES {limits}"))


def _months_from(now: datetime) -> list[datetime]:
    month = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    months = [month]
    for _ in range(MONTHS_AHEAD):
        months.append(_next_month(months[-1]))
    return months


def _next_month(month: datetime) -> datetime:
    return (month + timedelta(days=32)).replace(day=1)


_UIDS: Final = text("SELECT uid FROM appwrapper WHERE namespace = :namespace AND name = :name")
_TIMELINE: Final = text("SELECT * FROM history.timeline WHERE uid = ANY(:uids) ORDER BY at, id")
_QUEUE_NOW: Final = text(
    "SELECT * FROM history.queue_now WHERE CAST(:queue AS text) IS NULL OR queue = :queue "
    "ORDER BY queue, position NULLS LAST, eligible_at, uid"
)
