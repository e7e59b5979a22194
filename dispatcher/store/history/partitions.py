"""The monthly partitions of history: made ahead by the leader, dropped whole when they expire.

If a partition is missing, its rows go to the default partition, and the partition takes them from there when it is
made. Every statement here has a short lock timeout: a reader of history must not block the queue through a partition
that is to be dropped.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import text

from dispatcher.store.database import Database
from dispatcher.store.leadership import Lease
from dispatcher.store.library import AsyncConnection

PARTITIONED: Final = {
    "event": "at",
    "cluster_event": "at",
    "capacity_sample": "at",
    "queue_sample": "at",
    "past_appwrapper": "ended_at",
    "past_attempt": "ended_at",
}
"""The time column by which each table is partitioned."""

NUMBERED: Final = ("past_node", "past_template")
"""The tables of names that past attempts refer to by number.

`last_month` is the last month in which an attempt that refers to the name ended.
"""

MONTHS_AHEAD: Final = 2
"""Partitions made beyond the current month: a dispatcher may be down for as many months without using the default
partition."""

MOST_WAIT: Final = text("SET LOCAL lock_timeout = '500ms'")
"""Longest wait for a table's lock: every writer waits behind the statement that waits for it."""

A_DAY: Final = timedelta(days=1)

_MONTH: Final = re.compile(r"[a-z_]+_(\d{4})_(\d{2})")


async def ensure_partitions(database: Database, lease: Lease, now: datetime) -> list[str]:
    """Make the partitions of this month and the next ones; return the names of the new partitions."""
    wanted = {
        f"{table}_{month:%Y_%m}": (table, month) for table in PARTITIONED for month in _months_from(now)
    }
    async with database.reading() as connection:
        existing = {name for table in PARTITIONED for name in await _partitions_of(connection, table)}
    missing = [name for name in wanted if name not in existing]
    if missing:
        async with database.fenced(lease.epoch, lease.holder) as connection:
            await connection.execute(MOST_WAIT)
            for name in missing:
                await _make_partition(connection, name, *wanted[name])
    return missing


async def drop_expired(database: Database, lease: Lease, now: datetime, keep: timedelta) -> list[str]:
    """Drop the oldest month that ended more than `keep` ago; return the names of its partitions.

    Raises if a reader uses a partition. Drops at most one month a day, also across restarts: a clock that is wrong for
    a moment costs one month of history.
    """
    limit = _month_of(now - keep)
    async with database.reading() as connection:
        existing = [name for table in PARTITIONED for name in sorted(await _partitions_of(connection, table))]
        over = [month for name in existing if (month := _month_in(name)) and month < limit]
        for table, column in PARTITIONED.items():
            oldest = text(f"SELECT min({column}) FROM {table}_default WHERE {column} < :limit")
            late: datetime | None = await connection.scalar(oldest, {"limit": limit})
            over += [_month_of(late)] if late else []
    month = min(over, default=None)
    is_due = await _may_drop(database, lease, now, month)
    return await _drop_month(database, lease, month, existing) if month and is_due else []


async def _may_drop(database: Database, lease: Lease, now: datetime, month: datetime | None) -> bool:
    """True if that month may be dropped now; stored, so that a failed drop may be repeated until it succeeds."""
    async with database.fenced(lease.epoch, lease.holder) as connection:
        await connection.execute(_CLEAR_FUTURE_DROP, {"now": now})
        if month is None:
            return False
        values = {"month": f"{month:%Y_%m}", "now": now, "day": A_DAY}
        return (await connection.execute(_NOTE_DROP, values)).first() is not None


async def _drop_month(database: Database, lease: Lease, month: datetime, existing: list[str]) -> list[str]:
    expired = [name for name in existing if _month_in(name) == month]
    for name in expired:
        async with database.fenced(lease.epoch, lease.holder) as connection:
            await connection.execute(MOST_WAIT)
            await connection.execute(text(f"DROP TABLE {name}"))
    async with database.fenced(lease.epoch, lease.holder) as connection:
        for table, column in PARTITIONED.items():
            limit = {"limit": _next_month(month)}
            await connection.execute(text(f"DELETE FROM {table}_default WHERE {column} < :limit"), limit)
        for table in NUMBERED:
            expired_month = {"month": month.date()}
            await connection.execute(text(f"DELETE FROM {table} WHERE last_month <= :month"), expired_month)
    return expired


async def _partitions_of(connection: AsyncConnection, table: str) -> list[str]:
    return list(await connection.scalars(_PARTITIONS, {"table": table}))


async def _make_partition(connection: AsyncConnection, name: str, table: str, month: datetime) -> None:
    """Make the partition beside the table, move its rows there from the default partition, then attach it."""
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


def _month_in(name: str) -> datetime | None:
    """The month of a partition; None if the dispatcher did not name it."""
    month = _MONTH.fullmatch(name)
    return datetime(int(month[1]), int(month[2]), 1, tzinfo=UTC) if month else None


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
# A drop that was stored while the clock was ahead counts as made now, so that the next drop is due in a day.
_CLEAR_FUTURE_DROP: Final = text(
    "UPDATE hub SET history_dropped_at = :now WHERE history_dropped_at > CAST(:now AS timestamptz)"
)
_NOTE_DROP: Final = text(
    "UPDATE hub SET history_dropped_month = :month, "
    "history_dropped_at = CASE WHEN history_dropped_month = :month THEN history_dropped_at ELSE :now END "
    "WHERE history_dropped_month = :month OR history_dropped_at IS NULL "
    "OR history_dropped_at <= CAST(:now AS timestamptz) - CAST(:day AS interval) RETURNING singleton"
)
