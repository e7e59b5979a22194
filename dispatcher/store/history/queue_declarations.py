"""The declared queues over time, for history: a row for each queue and each time that it changed.

`queue_declaration` has the weight and the quota of each leaf, for `history.fairness_daily`. `queue_spec` has the spec
of each valid queue and its position in the order of declaration: with them a decision can be planned again.

`hub` has the queues, and the priority classes with their values, that leaders saw.

A row is valid from the moment at which a leader saw the declaration to the moment at which it saw another one. The
database compares the rows that are valid now, so no leader writes a declaration again that has not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

from msgspec.structs import replace
from sqlalchemy import Table, TextClause, text

from dispatcher.api.selector import stored_selector
from dispatcher.api.spec_errors import SpecError
from dispatcher.core.intake.labels import ClassValue
from dispatcher.core.model import codec
from dispatcher.core.queues.declaration import parse_dispatch_queue, write_queue
from dispatcher.core.queues.leaf_quota import LeafQuota
from dispatcher.core.queues.queue import Queue
from dispatcher.store import rows
from dispatcher.store.database import Database
from dispatcher.store.leadership import Lease
from dispatcher.store.tables import appwrapper, queue_declaration, queue_spec, recordset, types


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
        await self._replace(_QUOTAS, list(map(_row, quotas)), now)

    async def declare_specs(self, queues: Sequence[Queue], now: datetime) -> None:
        """Note that exactly these queues, in the order of declaration, are valid from `now` on; else as `declare`."""
        await self._replace(_SPECS, list(map(_spec_row, enumerate(queues))), now)

    async def note_seen(self, keys: Collection[str]) -> None:
        """Note that exactly these queues and trees are there or were lately. Safe to repeat."""
        lease = self._lease()
        async with self._database.fenced(lease.epoch, lease.holder) as connection:
            await connection.execute(_NOTE_SEEN, {"keys": sorted(keys)})

    async def seen(self) -> frozenset[str]:
        """The queues and trees that earlier leaders saw, and whose absence had not lasted."""
        async with self._database.reading() as connection:
            return frozenset(await connection.scalar(_SEEN) or ())

    async def note_classes(self, classes: Mapping[str, ClassValue]) -> None:
        """Note that exactly these priority classes, by key, are there or were lately. Safe to repeat."""
        lease = self._lease()
        document = codec.dump(classes).decode()
        async with self._database.fenced(lease.epoch, lease.holder) as connection:
            await connection.execute(_NOTE_CLASSES, {"classes": document})

    async def classes(self) -> dict[str, ClassValue] | None:
        """The priority classes that earlier leaders saw, and whose absence had not lasted; None if that is unknown."""
        async with self._database.reading() as connection:
            found = await connection.scalar(_CLASSES)
        return None if found is None else codec.load(found, dict[str, ClassValue])

    async def last_valid(self) -> dict[str, Queue]:
        """The last valid declaration of each queue that history knows, by name.

        Of a declaration by a later release that cannot be read, the parent alone.
        """
        async with self._database.reading() as connection:
            return {
                row.queue: _queue_of(row.queue, row.spec) for row in await connection.execute(_LAST_VALID)
            }

    async def _replace(
        self, statements: Iterable[TextClause], declared: Sequence[rows.Row], now: datetime
    ) -> None:
        lease = self._lease()
        values = {"rows": rows.to_json(declared), "now": now}
        async with self._database.fenced(lease.epoch, lease.holder) as connection:
            for statement in statements:
                await connection.execute(statement, values)


def _row(quota: LeafQuota) -> rows.Row:
    # As text: a weight may have more digits than a double, and an amount more than 64 bits.
    return {
        "queue": quota.queue,
        "weight": str(Decimal(quota.weight.numerator) / quota.weight.denominator),
        "nominal": {name: str(amount) for name, amount in quota.nominal.items()},
    }


def _spec_row(numbered: tuple[int, Queue]) -> rows.Row:
    position, queue = numbered
    return {"queue": queue.name, "position": position, "spec": write_queue(queue)}


def _queue_of(name: str, written: bytes) -> Queue:
    spec = codec.load(written, dict[str, object])
    # Stored selectors may be longer than those that people may write.
    clusters, namespaces = spec.pop("clusterSelector", None), spec.pop("namespaceSelector", None)
    try:
        queue = parse_dispatch_queue({"metadata": {"name": name}, "spec": spec})
        return replace(
            queue,
            cluster_selector=stored_selector(str(clusters or "")),
            namespace_selector=None if namespaces is None else stored_selector(str(namespaces)),
        )
    except SpecError:
        parent = spec.get("parent")
        return Queue(name, parent if isinstance(parent, str) else None)


def _statements(table: Table, *, kept: str = "") -> tuple[TextClause, ...]:
    """Compare the rows of a table that are valid now with those of `:rows`, which become valid at `:now`.

    Old rows are deleted unless they are to be `kept`.
    """
    fields = types(table, "valid_from", "valid_to")
    names, declared = ", ".join(fields), recordset(fields)
    is_another = (
        "d.valid_to IS NULL AND NOT EXISTS "
        f"(SELECT FROM {declared} WHERE ({_of('t', fields)}) = ({_of('d', fields)}))"
    )
    return (
        text(
            f"DELETE FROM {table.name} WHERE valid_to < (SELECT "
            "(to_date(nullif(history_dropped_month, ''), 'YYYY_MM') + interval '1 month') AT TIME ZONE 'UTC' FROM hub)"
            f"{kept and f' AND NOT {kept}'}"
        ),
        text(
            f"DELETE FROM {table.name} AS d WHERE {is_another} AND d.valid_from >= CAST(:now AS timestamptz)"
        ),
        text(f"UPDATE {table.name} AS d SET valid_to = :now WHERE {is_another}"),
        # After a clock was turned back, the next declaration begins where the last one ended.
        text(
            f"INSERT INTO {table.name} ({names}, valid_from) SELECT {names}, "
            "greatest(CAST(:now AS timestamptz), "
            f"(SELECT max(d.valid_to) FROM {table.name} AS d WHERE d.queue = t.queue)) FROM {declared} "
            f"WHERE NOT EXISTS (SELECT FROM {table.name} AS d WHERE d.queue = t.queue AND d.valid_to IS NULL)"
        ),
    )


def _of(alias: str, fields: Iterable[str]) -> str:
    return ", ".join(f"{alias}.{name}" for name in fields)


_QUOTAS: Final = _statements(queue_declaration)
# An AppWrapper may run for longer than history is kept, and is charged by the last valid path of its queues. A queue
# may be malformed for as long, and counts for quota by its last valid declaration. UNION ends circles. The AppWrappers
# are read only if there is a row to delete.
_COUNTED: Final = (
    "WITH RECURSIVE kept (queue) AS ("
    f"SELECT queue FROM {appwrapper.name} "
    f"UNION SELECT jsonb_array_elements_text(more_queues) FROM {appwrapper.name} "
    "UNION SELECT unnest(queues_seen) FROM hub "
    f"UNION SELECT s.spec->>'parent' FROM {queue_spec.name} AS s JOIN kept ON s.queue = kept.queue "
    "WHERE s.spec->>'parent' IS NOT NULL) SELECT queue FROM kept"
)
_SPECS: Final = _statements(queue_spec, kept=f"{queue_spec.name}.queue IN ({_COUNTED})")

_NOTE_SEEN: Final = text(
    "UPDATE hub SET queues_seen = CAST(:keys AS text[]) WHERE queues_seen <> CAST(:keys AS text[])"
)
_SEEN: Final = text("SELECT queues_seen FROM hub")
_NOTE_CLASSES: Final = text(
    "UPDATE hub SET priority_classes_seen = CAST(:classes AS jsonb) "
    "WHERE priority_classes_seen IS DISTINCT FROM CAST(:classes AS jsonb)"
)
_CLASSES: Final = text("SELECT priority_classes_seen FROM hub")
_LAST_VALID: Final = text(
    "SELECT DISTINCT ON (queue) queue, spec FROM queue_spec ORDER BY queue, valid_from DESC"
)
