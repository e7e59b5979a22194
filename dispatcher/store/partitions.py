"""The months that history is kept in: made ahead by the leader, and dropped whole when they are old.

Should it ever be late, rows go to the default partition, and the month that takes their place moves them. Nothing
here waits for long: who reads history for minutes must not have the queue wait behind a month that is to be dropped.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from dispatcher.store.database import Database
from dispatcher.store.leadership import Lease

PARTITIONED: Final = {
    "event": "at",
    "cluster_event": "at",
    "capacity_sample": "at",
    "queue_sample": "at",
    "past_appwrapper": "ended_at",
    "past_attempt": "ended_at",
}
"""The time by which each table is partitioned."""

MONTHS_AHEAD: Final = 2
"""Months made beyond the current one: a dispatcher may be down for that long and lose no order."""

MOST_WAIT: Final = text("SET LOCAL lock_timeout = '500ms'")
"""Whoever writes waits behind whoever waits to drop a month."""

_MONTH: Final = re.compile(r"[a-z_]+_(\d{4})_(\d{2})")


async def ensure_partitions(database: Database, lease: Lease, now: datetime) -> list[str]:
    """Make the partitions of this month and the next ones; return the names of those that were missing."""
    wanted = {
        f"{table}_{month:%Y_%m}": (table, month) for table in PARTITIONED for month in _months_from(now)
    }
    async with database.reading() as connection:
        known = {name for table in PARTITIONED for name in await _partitions_of(connection, table)}
    missing = [name for name in wanted if name not in known]
    if missing:
        async with database.fenced(lease.epoch, lease.holder) as connection:
            await connection.execute(MOST_WAIT)
            for name in missing:
                await _make_partition(connection, name, *wanted[name])
    return missing


async def drop_expired(database: Database, lease: Lease, now: datetime, keep: timedelta) -> list[str]:
    """Drop the months that ended longer than `keep` ago; return their names. Raises if one is being read."""
    async with database.reading() as connection:
        known = [name for table in PARTITIONED for name in sorted(await _partitions_of(connection, table))]
    expired = [name for name in known if _is_over(name, now - keep)]
    for name in expired:
        async with database.fenced(lease.epoch, lease.holder) as connection:
            await connection.execute(MOST_WAIT)
            await connection.execute(text(f"DROP TABLE {name}"))
    async with database.fenced(lease.epoch, lease.holder) as connection:
        for table, column in PARTITIONED.items():
            limit = {"limit": _month_of(now - keep)}
            await connection.execute(text(f"DELETE FROM {table}_default WHERE {column} < :limit"), limit)
    return expired


async def _partitions_of(connection: AsyncConnection, table: str) -> list[str]:
    return list(await connection.scalars(_PARTITIONS, {"table": table}))


async def _make_partition(connection: AsyncConnection, name: str, table: str, month: datetime) -> None:
    """Make it beside the table, move in what the default partition took in its stead, then attach it."""
    column = PARTITIONED[table]
    bounds = {"start": month.isoformat(), "end": _next_month(month).isoformat()}
    await connection.execute(text(f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS)"))
    await connection.execute(
        text(
            f"WITH late AS (DELETE FROM {table}_default WHERE {column} >= CAST(:start AS timestamptz) "
            f"AND {column} < CAST(:end AS timestamptz) RETURNING *) INSERT INTO {name} SELECT * FROM late"
        ),
        bounds,
    )
    limits = f"FROM ('{bounds['start']}') TO ('{bounds['end']}')".replace(":", r"\:")
    await connection.execute(text(f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES {limits}"))


def _is_over(name: str, limit: datetime) -> bool:
    month = _MONTH.fullmatch(name)
    return month is not None and _next_month(datetime(int(month[1]), int(month[2]), 1, tzinfo=UTC)) <= limit


def _month_of(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def _months_from(now: datetime) -> list[datetime]:
    months = [_month_of(now)]
    for _ in range(MONTHS_AHEAD):
        months.append(_next_month(months[-1]))
    return months


def _next_month(month: datetime) -> datetime:
    return (month + timedelta(days=32)).replace(day=1)


_PARTITIONS: Final = text(
    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
    "WHERE i.inhparent = to_regclass(:table)"
)
