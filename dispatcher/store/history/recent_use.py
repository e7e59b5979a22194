"""Adds up what namespaces used of late in queues, for `order: Usage`, from all attempts that ended not too long ago.

The work grows with the attempts that ended within `REMEMBERED` and those that run, in all queues: 0.45 s for 200,000 of
them. Months of history that are older are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import text

from dispatcher.core.scheduling.sharing.recent_use import HALF_LIFE, REMEMBERED, WeightedUse
from dispatcher.store import rows
from dispatcher.store.database import Database


class RecentUseStore:
    """Reads past use; unfenced and read-only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def weighted_uses(self, asked: Mapping[str, Sequence[str]], now: datetime) -> list[WeightedUse]:
        """The use up to `now` of each namespace in these queues, of the resources of each queue.

        Raises `StoreUnavailable` after the timeout of a statement.
        """
        leaves = [
            {"queue": queue, "resource": resource} for queue, names in asked.items() for resource in names
        ]
        values = {
            "rows": rows.to_json(leaves),
            "now": now,
            "since": now - REMEMBERED,
            "half_life": HALF_LIFE.total_seconds(),
        }
        async with self._database.reading() as connection:
            return [WeightedUse(*row) for row in await connection.execute(_WEIGHTED, values)]


# A clock that was turned back leaves times after `now`, which count as `now`. The exponent is bounded, because Postgres
# fails where a power is too small for a double; a weight is 0 long before.
_WEIGHT: Final = (
    "power(0.5, least(1000, greatest(0, extract(epoch FROM CAST(:now AS timestamptz) - {}) / :half_life)))"
    "::double precision"
).replace("::", r"\:\:")
_WEIGHTED: Final = text(
    "SELECT queue, namespace, resource, "
    "sum(CAST(demand ->> resource AS double precision) "
    f"* ({_WEIGHT.format('ended_at')} - {_WEIGHT.format('decided_at')})) AS weighted "
    "FROM ("
    "SELECT a.namespace, coalesce(t.queues, jsonb_build_array(a.queue) || a.more_queues) AS queues, t.demand, "
    "t.decided_at, coalesce(t.ended_at, CAST(:now AS timestamptz)) AS ended_at "
    "FROM attempt AS t JOIN appwrapper AS a USING (uid) "
    "WHERE coalesce(t.ended_at, CAST(:now AS timestamptz)) > CAST(:since AS timestamptz) "
    "UNION ALL "
    "SELECT namespace, coalesce(queues, jsonb_build_array(queue)), demand, decided_at, ended_at "
    "FROM past_attempt WHERE ended_at > CAST(:since AS timestamptz) "
    "UNION ALL "
    "SELECT a.namespace, coalesce(t.queues, jsonb_build_array(a.queue) || a.more_queues), amounts, since, until "
    "FROM attempt AS t JOIN appwrapper AS a USING (uid) "
    "CROSS JOIN LATERAL growth_spans(t.growth, coalesce(t.ended_at, CAST(:now AS timestamptz))) "
    "WHERE t.growth IS NOT NULL AND until > CAST(:since AS timestamptz) "
    "UNION ALL "
    "SELECT namespace, coalesce(queues, jsonb_build_array(queue)), amounts, since, until "
    "FROM past_attempt CROSS JOIN LATERAL growth_spans(growth, ended_at) "
    "WHERE growth IS NOT NULL AND ended_at > CAST(:since AS timestamptz)"
    ") AS held CROSS JOIN LATERAL jsonb_array_elements_text(queues) AS leaf "
    "JOIN json_to_recordset(CAST(:rows AS json)) AS asked(queue text, resource text) ON asked.queue = leaf "
    "WHERE demand ->> resource IS NOT NULL GROUP BY 1, 2, 3"
)
