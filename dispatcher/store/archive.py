"""Moves deleted AppWrappers from the queue's tables to the partitioned tables of history.

The views `history.job_history` and `history.attempt_history` read both places, so their rows stay the same. The
AppWrapper's objects and spec, which history does not show, are deleted.

After a clock was turned back, an attempt or an AppWrapper may have ended before it began. It is stored as having lasted
no time, because the tables of history are indexed by time ranges, which must not end before they begin.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sqlalchemy import text

from dispatcher.store.library import AsyncConnection


async def move_deleted(connection: AsyncConnection, before: datetime, most: int) -> int:
    """Move at most `most` AppWrappers that were deleted before `before`; return their number.

    No spec may be written meanwhile: a spec that no AppWrapper refers to is deleted.
    """
    uids = list(await connection.scalars(_DELETED, {"before": before, "most": most}))
    if not uids:
        return 0
    values = {"uids": uids}
    for statement in (
        _MEND_ATTEMPTS,
        _MEND_APPWRAPPERS,
        _KEEP_ATTEMPTS,
        _KEEP_APPWRAPPERS,
        _REMOVE_OBJECTS,
        _REMOVE_ATTEMPTS,
    ):
        await connection.execute(statement, values)
    hashes = set(await connection.scalars(_REMOVE_APPWRAPPERS, values))
    await connection.execute(_REMOVE_SPECS, {"hashes": list(hashes)})
    return len(uids)


_DELETED: Final = text(
    "SELECT uid FROM appwrapper WHERE phase = 'Deleted' AND phase_since < :before "
    "ORDER BY phase_since LIMIT :most FOR UPDATE"
)
_MEND_ATTEMPTS: Final = text(
    "UPDATE attempt SET ended_at = decided_at WHERE uid = ANY(:uids) AND ended_at < decided_at"
)
_MEND_APPWRAPPERS: Final = text(
    "UPDATE appwrapper SET ended_at = least(created_at, taken_in_at) "
    "WHERE uid = ANY(:uids) AND ended_at < least(created_at, taken_in_at)"
)
_KEEP_ATTEMPTS: Final = text(
    "INSERT INTO past_attempt SELECT l.*, t.queues, t.growth, t.provisioning FROM attempt_live AS l "
    "JOIN attempt AS t ON t.uid = l.uid AND t.number = l.attempt WHERE l.uid = ANY(:uids)"
)
_KEEP_APPWRAPPERS: Final = text("INSERT INTO past_appwrapper SELECT * FROM job_live WHERE uid = ANY(:uids)")
_REMOVE_OBJECTS: Final = text("DELETE FROM attempt_object WHERE uid = ANY(:uids)")
_REMOVE_ATTEMPTS: Final = text("DELETE FROM attempt WHERE uid = ANY(:uids)")
_REMOVE_APPWRAPPERS: Final = text("DELETE FROM appwrapper WHERE uid = ANY(:uids) RETURNING spec_hash")
_REMOVE_SPECS: Final = text(
    "DELETE FROM spec_blob AS b WHERE b.spec_hash = ANY(:hashes) "
    "AND NOT EXISTS (SELECT FROM appwrapper AS a WHERE a.spec_hash = b.spec_hash)"
)
