"""The quotas of queues over time, for `history.fairness_daily`: a row for each leaf and each time it changed.

A row is valid from the moment at which a leader saw the declaration to the moment at which it saw another one. The
database compares the rows that are valid now, so no leader writes a declaration again that has not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

from sqlalchemy import text

from dispatcher.core.queues.leaf_quota import LeafQuota
from dispatcher.store import mapping
from dispatcher.store.database import Database
from dispatcher.store.leadership import Lease
from dispatcher.store.tables import queue_declaration, recordset, types


class QueueDeclarationStore:
    """The declarations, for the leader; `lease` returns the lease to write under, or raises `Fenced`."""

    def __init__(self, database: Database, lease: Callable[[], Lease]) -> None:
        self._database = database
        self._lease = lease

    async def declare(self, quotas: Sequence[LeafQuota], now: datetime) -> None:
        """Note that exactly these leaves, which have distinct names, are declared from `now` on.

        Safe to repeat. A declaration that was valid for no time leaves no row, and those that ended in a month that
        history has dropped are deleted.
        """
        lease = self._lease()
        values = {"rows": mapping.to_json(list(map(_row, quotas))), "now": now}
        async with self._database.fenced(lease.epoch, lease.holder) as connection:
            for statement in (_FORGET, _WITHDRAW, _END, _BEGIN):
                await connection.execute(statement, values)


def _row(quota: LeafQuota) -> mapping.Row:
    # As text: a weight may have more digits than a double, and an amount more than 64 bits.
    return {
        "queue": quota.queue,
        "weight": str(Decimal(quota.weight.numerator) / quota.weight.denominator),
        "nominal": {name: str(amount) for name, amount in quota.nominal.items()},
    }


_DECLARED: Final = recordset(types(queue_declaration, "valid_from", "valid_to"))
_IS_ANOTHER: Final = (
    "d.valid_to IS NULL AND NOT EXISTS "
    f"(SELECT FROM {_DECLARED} WHERE (t.queue, t.weight, t.nominal) = (d.queue, d.weight, d.nominal))"
)
_FORGET: Final = text(
    "DELETE FROM queue_declaration WHERE valid_to < "
    "(SELECT (to_date(nullif(history_dropped_month, ''), 'YYYY_MM') + interval '1 month') AT TIME ZONE 'UTC' FROM hub)"
)
_WITHDRAW: Final = text(
    f"DELETE FROM queue_declaration AS d WHERE {_IS_ANOTHER} AND d.valid_from >= CAST(:now AS timestamptz)"
)
_END: Final = text(f"UPDATE queue_declaration AS d SET valid_to = :now WHERE {_IS_ANOTHER}")
# After a clock was turned back, the next declaration begins where the last one ended.
_BEGIN: Final = text(
    "INSERT INTO queue_declaration (queue, weight, nominal, valid_from) "
    "SELECT queue, weight, nominal, greatest(CAST(:now AS timestamptz), "
    "(SELECT max(d.valid_to) FROM queue_declaration AS d WHERE d.queue = t.queue)) "
    f"FROM {_DECLARED} WHERE NOT EXISTS "
    "(SELECT FROM queue_declaration AS d WHERE d.queue = t.queue AND d.valid_to IS NULL)"
)
