"""Moves deleted AppWrappers from the queue's tables to the partitioned tables of history.

The views `history.job_history`, `history.attempt_history` and `history.node_history` read both places, so their rows
stay the same. The AppWrapper's objects and spec, which history does not show, are deleted.

After a clock was turned back, an attempt or an AppWrapper may have ended before it began. It is stored as having lasted
no time, because the tables of history are indexed by time ranges, which must not end before they begin.

The places of an attempt become numbers: three for each node of a pod template, which are the template, the node and the
pods. The names are stored once for all attempts, in the tables of `partitions.NUMBERED`. No row is written when an
attempt ends: until the move, its row of the queue's tables has its places.

The cost of a move grows in proportion to the attempts and places, because each place is looked up among the names:
about 40,000 in a second. An AppWrapper is moved in one transaction, because the views count its attempts only
where its own row is. Therefore an AppWrapper that is too large for one transaction stays in the queue's tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct
from sqlalchemy import text

from dispatcher.store.library import AsyncConnection

MOST_ROWS: Final = 5000
"""Attempts and places that are moved at once: the queue commits nothing meanwhile, however large the gangs are.

An AppWrapper with more of them is moved alone.
"""
MOST_ROWS_OF_ONE: Final = 100_000
"""Attempts and places of an AppWrapper that is moved at all: about 100 attempts of a gang on 1,000 nodes.

Its move takes two to three seconds.
"""


class Part(Struct, frozen=True):
    """Deleted AppWrappers, by uid, in the order of their deletion.

    `uids` are to be moved together. `too_large`, between them, have more than `MOST_ROWS_OF_ONE` attempts and places,
    and stay. The next part begins `after` the last of both.
    """

    uids: tuple[str, ...]
    too_large: tuple[str, ...]
    after: tuple[datetime, str]


BEGINNING: Final = (datetime.min.replace(tzinfo=UTC), "")
"""The first part begins after it."""


async def next_part(
    connection: AsyncConnection, before: datetime, after: tuple[datetime, str], most: int
) -> Part | None:
    """At most `most` AppWrappers that were deleted before `before`; None if there is none after `after`.

    They have at most `MOST_ROWS` attempts and places; an AppWrapper with more is alone. The count ends with the first
    AppWrapper that does not fit, and counts of each at most one more than `MOST_ROWS_OF_ONE`.
    """
    since, uid = after
    bounds = {"before": before, "since": since, "uid": uid, "most": most}
    found = (
        await connection.execute(_PART, bounds | {"most_rows": MOST_ROWS, "most_of_one": MOST_ROWS_OF_ONE})
    ).all()
    if not found:
        return None
    return Part(
        tuple(row.uid for row in found if not row.is_too_large),
        tuple(row.uid for row in found if row.is_too_large),
        (found[-1].phase_since, found[-1].uid),
    )


async def move_deleted(connection: AsyncConnection, uids: Sequence[str]) -> int:
    """Move a part of the deleted AppWrappers; return the number of those that were not moved before.

    No spec may be written meanwhile: a spec that no AppWrapper refers to is deleted.
    """
    uids = list(await connection.scalars(_DELETED, {"uids": list(uids)}))
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
_OLDEST: Final = (
    "SELECT uid, phase_since FROM appwrapper WHERE phase = 'Deleted' AND phase_since < :before "
    "AND (phase_since, uid) > (:since, :uid) ORDER BY phase_since, uid LIMIT :most"
)
# The places of an attempt are an array for each pod set.
_ROWS_OF: Final = (
    "SELECT count(*) AS own FROM ("
    "  SELECT FROM attempt AS t CROSS JOIN LATERAL ("
    "    SELECT UNION ALL SELECT FROM jsonb_array_elements(t.assignment) AS planned(places) "
    "    CROSS JOIN jsonb_array_elements(planned.places)"
    "  ) AS each WHERE t.uid = oldest.uids[place + 1] LIMIT :most_of_one + 1"
    ") AS counted"
)
# One AppWrapper after the other, so that no more are counted than the part has, but for the one that is too much; and
# one that stays ends a part, because counting hundreds of them in one statement takes longer than a statement may.
_PART: Final = text(
    "WITH RECURSIVE oldest AS ("
    "  SELECT array_agg(uid ORDER BY phase_since, uid) AS uids,"
    "    array_agg(phase_since ORDER BY phase_since, uid) AS times"
    f"  FROM ({_OLDEST}) AS deleted"
    "), counted AS ("
    "  SELECT 0 AS place, CAST(0 AS bigint) AS own, CAST(0 AS bigint) AS with_earlier, CAST(0 AS bigint) AS read"
    "  UNION ALL SELECT place + 1, each.own,"
    "    with_earlier + CASE WHEN each.own > :most_of_one THEN 0 ELSE each.own END, read + each.own"
    f"  FROM counted CROSS JOIN oldest CROSS JOIN LATERAL ({_ROWS_OF}) AS each"
    "  WHERE place < cardinality(oldest.uids) AND with_earlier <= :most_rows AND read <= :most_of_one"
    ") SELECT uids[place] AS uid, times[place] AS phase_since, own > :most_of_one AS is_too_large "
    "FROM counted CROSS JOIN oldest "
    "WHERE place > 0 AND (with_earlier <= :most_rows OR with_earlier = own OR own > :most_of_one) ORDER BY place"
)
_DELETED: Final = text("SELECT uid FROM appwrapper WHERE uid = ANY(:uids) AND phase = 'Deleted' FOR UPDATE")
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
