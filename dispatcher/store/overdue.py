"""Ends reader sessions that take too long: readers can lift their own timeouts, so the leader ends their sessions."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqlalchemy import text

from dispatcher.store.database import Database
from dispatcher.store.reader import IDLE_SECONDS, READER, TENANT


async def end_overdue(database: Database, longest: timedelta) -> list[str]:
    """End overdue sessions of the reader roles, and those that hold an advisory lock; return user and reason of each.

    A session ends only if this account may end sessions of its user. This account and all users with its rights are
    members of the reader roles as well; their sessions stay.
    """
    values = {"readers": [READER, TENANT], "longest": longest, "idle": timedelta(seconds=IDLE_SECONDS)}
    async with database.reading() as connection:
        found = await connection.execute(_OVERDUE, values)
        return [f"{row.usename}: {row.why}" for row in found if row.is_ended]


_OVERDUE: Final = text(
    "SELECT usename, why, pg_terminate_backend(pid) AS is_ended FROM ("
    "  SELECT a.pid, a.usename, CASE"
    "    WHEN a.state LIKE 'idle in transaction%' AND a.state_change < clock_timestamp() - CAST(:idle AS interval)"
    "      THEN 'idle in a transaction'"
    "    WHEN a.xact_start < clock_timestamp() - CAST(:longest AS interval) THEN 'a transaction that takes too long'"
    "    WHEN EXISTS (SELECT FROM pg_locks AS l WHERE l.pid = a.pid AND l.locktype = 'advisory') THEN 'advisory locks'"
    "  END AS why"
    "  FROM pg_stat_activity AS a JOIN pg_roles AS r ON r.oid = a.usesysid"
    "  WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND NOT r.rolsuper"
    "    AND NOT pg_has_role(r.oid, current_user, 'MEMBER')"
    "    AND EXISTS (SELECT FROM pg_roles AS g WHERE g.rolname = ANY(:readers) AND pg_has_role(r.oid, g.oid, 'MEMBER'))"
    "    AND (pg_has_role(current_user, r.oid, 'USAGE') OR pg_has_role(current_user, 'pg_signal_backend', 'USAGE'))"
    "  OFFSET 0"
    ") AS overdue WHERE why IS NOT NULL"
)
