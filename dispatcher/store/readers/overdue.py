"""Ends reader sessions that take too long or are too many.

Readers can lift their own timeouts, and roles made by an operator have no limits of their own. So the leader ends them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqlalchemy import text

from dispatcher.store.database import Database
from dispatcher.store.readers.reader import (
    IDLE_SECONDS,
    IDLE_SESSION_SECONDS,
    MOST_CONNECTIONS,
    MOST_NOTIFICATIONS,
    READER,
    TENANT,
)


async def end_overdue(database: Database, longest: timedelta) -> list[str]:
    """End overdue sessions of the reader roles; return user and reason of each.

    Sessions beyond `MOST_CONNECTIONS` of one user end, the newest first, as do sessions that hold an advisory lock.
    An open transaction keeps notifications from being removed; it ends at once while there are many of them.
    A session ends only if this account may end sessions of its user. This account and all users with its rights are
    members of the reader roles as well; their sessions stay.
    """
    values = {
        "readers": [READER, TENANT],
        "longest": longest,
        "idle": timedelta(seconds=IDLE_SECONDS),
        "idle_session": timedelta(seconds=IDLE_SESSION_SECONDS),
        "most": MOST_CONNECTIONS,
        "notifications": MOST_NOTIFICATIONS,
    }
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
    "    WHEN a.state = 'idle' AND a.state_change < clock_timestamp() - CAST(:idle_session AS interval)"
    "      THEN 'idle for long'"
    "    WHEN a.xact_start IS NOT NULL AND pg_notification_queue_usage() > :notifications"
    "      THEN 'an open transaction beside many notifications'"
    "    WHEN row_number() OVER (PARTITION BY a.usesysid ORDER BY a.backend_start, a.pid) > :most"
    "      THEN 'more connections than a reader may have'"
    "  END AS why"
    "  FROM pg_stat_activity AS a JOIN pg_roles AS r ON r.oid = a.usesysid"
    "  WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND NOT r.rolsuper"
    "    AND NOT pg_has_role(r.oid, current_user, 'MEMBER')"
    "    AND EXISTS (SELECT FROM pg_roles AS g WHERE g.rolname = ANY(:readers) AND pg_has_role(r.oid, g.oid, 'MEMBER'))"
    "    AND (pg_has_role(current_user, r.oid, 'USAGE') OR pg_has_role(current_user, 'pg_signal_backend', 'USAGE'))"
    "  OFFSET 0"
    ") AS overdue WHERE why IS NOT NULL"
)
