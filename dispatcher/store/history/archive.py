"""Moves deleted AppWrappers from the queue's tables to the partitioned tables of history.

The views `history.job_history`, `history.attempt_history` and `history.node_history` read both places, so their rows
stay the same. The AppWrapper's objects and spec, which history does not show, are deleted.

After a clock was turned back, an attempt or an AppWrapper may have ended before it began. It is stored as having lasted
no time, because the tables of history are indexed by time ranges, which must not end before they begin.

The places of an attempt become numbers: three for each node of a pod template, which are the template, the node and the
pods. The names are stored once for all attempts, in the tables of `partitions.NUMBERED`. No row is written when an
attempt ends: until the move, its row of the queue's tables has its places.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sqlalchemy import text

from dispatcher.store.library import AsyncConnection

MOST_ROWS: Final = 5000
"""Attempts and places that are moved at once: the queue commits nothing meanwhile, however large the gangs are.

An AppWrapper with more of them is moved alone.
"""


async def move_deleted(connection: AsyncConnection, before: datetime, most: int) -> int:
    """Move at most `most` AppWrappers that were deleted before `before`; return their number, 0 if none is left.

    They have at most `MOST_ROWS` attempts and places. No spec may be written meanwhile: a spec that no AppWrapper
    refers to is deleted.
    """
    bounds = {"before": before, "most": most, "most_rows": MOST_ROWS}
    uids = list(await connection.scalars(_DELETED, bounds))
    if not uids:
        return 0
    values = {"uids": uids}
    await connection.execute(_WITHOUT_JIT)
    for statement in (
        _MEND_ATTEMPTS,
        _MEND_APPWRAPPERS,
        _NUMBER_NODES,
        _NUMBER_TEMPLATES,
        _KEEP_ATTEMPTS,
        _KEEP_APPWRAPPERS,
        _REMOVE_OBJECTS,
        _REMOVE_ATTEMPTS,
    ):
        await connection.execute(statement, values)
    hashes = set(await connection.scalars(_REMOVE_APPWRAPPERS, values))
    await connection.execute(_REMOVE_SPECS, {"hashes": list(hashes)})
    return len(uids)


# The planner takes the arrays for long ones: it would compile the statements for longer than they run.
_WITHOUT_JIT: Final = text("SET LOCAL jit = off")
# The places of an attempt are an array for each pod set. The first AppWrapper is moved however many it has.
_PLACES_OF: Final = (
    "SELECT coalesce(sum(jsonb_array_length(planned.places)), 0) "
    "FROM jsonb_array_elements(t.assignment) AS planned(places)"
)
_DELETED: Final = text(
    "WITH oldest AS ("
    "  SELECT uid, phase_since,"
    f"    (SELECT coalesce(sum(1 + ({_PLACES_OF})), 0) FROM attempt AS t WHERE t.uid = a.uid) AS own"
    "  FROM appwrapper AS a WHERE phase = 'Deleted' AND phase_since < :before ORDER BY phase_since LIMIT :most"
    "), counted AS ("
    "  SELECT uid, own, sum(own) OVER (ORDER BY phase_since, uid) AS with_earlier FROM oldest"
    ") SELECT a.uid FROM appwrapper AS a JOIN counted ON counted.uid = a.uid "
    "WHERE with_earlier <= :most_rows OR with_earlier = own FOR UPDATE OF a"
)
_MEND_ATTEMPTS: Final = text(
    "UPDATE attempt SET ended_at = decided_at WHERE uid = ANY(:uids) AND ended_at < decided_at"
)
_MEND_APPWRAPPERS: Final = text(
    "UPDATE appwrapper SET ended_at = least(created_at, taken_in_at) "
    "WHERE uid = ANY(:uids) AND ended_at < least(created_at, taken_in_at)"
)
_PLACES: Final = "places_of(t.assignment, a.pod_sets, t.cluster)"
_PLACED: Final = (
    f"FROM attempt AS t JOIN appwrapper AS a ON a.uid = t.uid CROSS JOIN LATERAL {_PLACES} AS p "
    "WHERE t.uid = ANY(:uids)"
)
_MONTH: Final = "CAST(date_trunc('month', max(t.ended_at) AT TIME ZONE 'UTC') AS date)"
# A digest, because requests may be longer than an index takes.
_DIGEST: Final = "sha256(convert_to(CAST(jsonb_build_array(p.template, p.requests) AS text), 'UTF8'))"
# A row is written again only if the month is a later one: once a month, not with every attempt. Others are left out
# before the insertion, which would draw a number of the column `id` for each of them: these would end within a year.
_NUMBER_NODES: Final = text(
    "INSERT INTO past_node AS known (cluster, name, last_month) SELECT * FROM ("
    f"SELECT t.cluster, p.node, {_MONTH} AS month {_PLACED} GROUP BY t.cluster, p.node) AS placed "
    "WHERE NOT EXISTS (SELECT FROM past_node AS kept WHERE kept.cluster = placed.cluster AND kept.name = placed.node "
    "AND kept.last_month >= placed.month) ORDER BY cluster, node "
    "ON CONFLICT (cluster, name) DO UPDATE SET last_month = greatest(known.last_month, excluded.last_month)"
)
_NUMBER_TEMPLATES: Final = text(
    "INSERT INTO past_template AS known (digest, name, requests, last_month) SELECT * FROM ("
    f"SELECT {_DIGEST} AS digest, p.template, p.requests, {_MONTH} AS month {_PLACED} "
    "GROUP BY p.template, p.requests) AS placed "
    "WHERE NOT EXISTS (SELECT FROM past_template AS kept WHERE kept.digest = placed.digest "
    "AND kept.last_month >= placed.month) ORDER BY template, requests "
    "ON CONFLICT (digest) DO UPDATE SET last_month = greatest(known.last_month, excluded.last_month)"
)
# Joins would read all names for each attempt: the planner knows neither how many places nor how many names there are.
_KEEP_ATTEMPTS: Final = text(
    "INSERT INTO past_attempt SELECT l.*, t.queues, t.growth, t.provisioning, ARRAY("
    "  SELECT ARRAY["
    f"    (SELECT known.id FROM past_template AS known WHERE known.digest = {_DIGEST}),"
    "    (SELECT known.id FROM past_node AS known WHERE known.cluster = t.cluster AND known.name = p.node),"
    f"    p.pods] FROM {_PLACES} AS p"
    ") FROM attempt_live AS l JOIN attempt AS t ON t.uid = l.uid AND t.number = l.attempt "
    "JOIN appwrapper AS a ON a.uid = l.uid WHERE l.uid = ANY(:uids)"
)
_KEEP_APPWRAPPERS: Final = text("INSERT INTO past_appwrapper SELECT * FROM job_live WHERE uid = ANY(:uids)")
_REMOVE_OBJECTS: Final = text("DELETE FROM attempt_object WHERE uid = ANY(:uids)")
_REMOVE_ATTEMPTS: Final = text("DELETE FROM attempt WHERE uid = ANY(:uids)")
_REMOVE_APPWRAPPERS: Final = text("DELETE FROM appwrapper WHERE uid = ANY(:uids) RETURNING spec_hash")
_REMOVE_SPECS: Final = text(
    "DELETE FROM spec_blob AS b WHERE b.spec_hash = ANY(:hashes) "
    "AND NOT EXISTS (SELECT FROM appwrapper AS a WHERE a.spec_hash = b.spec_hash)"
)
