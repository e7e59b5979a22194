"""Samples of clusters and queues for history: written once for each moment, all of them or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import text

from dispatcher.core.status.samples import CapacitySample, QueueSample
from dispatcher.store import rows, tables
from dispatcher.store.database import Database
from dispatcher.store.leadership import Lease
from dispatcher.store.tables import listed, recordset, types

REMEMBERED: Final = timedelta(days=7)
"""How far back the newest sample of a cluster is looked for. A leader samples continuously."""


class SampleStore:
    """The samples, for the leader; `lease` returns the lease to write under, or raises `Fenced`."""

    def __init__(self, database: Database, lease: Callable[[], Lease]) -> None:
        self._database = database
        self._lease = lease

    async def sample(
        self, at: datetime, capacities: Sequence[CapacitySample], queues: Sequence[QueueSample]
    ) -> bool:
        """Write the samples of a moment; False, with nothing written, if a queue has one of that moment."""
        lease = self._lease()
        async with self._database.fenced(lease.epoch, lease.holder) as connection:
            names = [each.queue for each in queues]
            found = await connection.execute(_IS_KNOWN, {"at": at, "queues": names})
            if found.scalar_one():
                return False
            written = {"at": at, "rows": rows.to_json(capacities)}
            await connection.execute(_CAPACITIES, written)
            written = {"at": at, "rows": rows.to_json(queues)}
            await connection.execute(_QUEUES, written)
        return True

    async def last_capacity(self, cluster: str, now: datetime) -> list[CapacitySample]:
        """The newest samples of a cluster, by resource; empty if it has none of the last `REMEMBERED`."""
        values = {"cluster": cluster, "since": now - REMEMBERED}
        async with self._database.reading() as connection:
            found = await connection.execute(_LAST, values)
            return [_sample_of(row) for row in found.mappings()]


def _sample_of(row: Mapping[Any, Any]) -> CapacitySample:
    return CapacitySample(**{**_CAPACITY.arguments(row), **{name: int(row[name]) for name in _AMOUNTS}})


_AMOUNTS: Final = ("capacity", "held", "other", "free")
_CAPACITY: Final = rows.Fields(rows.fields_of(CapacitySample))
_COLUMNS: Final = listed(_CAPACITY.columns)
_IS_KNOWN: Final = text(
    "SELECT EXISTS (SELECT FROM queue_sample WHERE queue = ANY(:queues) AND at = CAST(:at AS timestamptz))"
)
_CAPACITIES: Final = text(
    f"INSERT INTO capacity_sample (at, {_COLUMNS}) SELECT CAST(:at AS timestamptz), {_COLUMNS} "
    f"FROM {recordset(types(tables.capacity_sample, 'at'))}"
)
_QUEUES: Final = text(
    "INSERT INTO queue_sample (at, queue, queued, queued_cpu, queued_memory, queued_gpu, "
    "running, running_cpu, running_memory, running_gpu) "
    "SELECT CAST(:at AS timestamptz), queue, "
    "queued, cores(queued_demand), gibibytes(queued_demand), gpus(queued_demand), "
    "running, cores(running_demand), gibibytes(running_demand), gpus(running_demand) "
    "FROM json_to_recordset(CAST(:rows AS json)) "
    "AS t(queue text, queued integer, queued_demand jsonb, running integer, running_demand jsonb)"
)
_LAST: Final = text(
    f"SELECT {_COLUMNS} FROM capacity_sample "
    "WHERE cluster = :cluster AND at = (SELECT max(at) FROM capacity_sample "
    "WHERE cluster = :cluster AND at >= CAST(:since AS timestamptz)) ORDER BY resource"
)
