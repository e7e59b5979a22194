"""Stores the leader's last snapshot: one document for each cluster, replaced when the cluster has changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Final

from sqlalchemy import text

from dispatcher.store.database import Database
from dispatcher.store.leadership import Lease


class SnapshotStore:
    """The snapshot, for the leader; `lease` returns the lease to write under, or raises `Fenced`."""

    def __init__(self, database: Database, lease: Callable[[], Lease]) -> None:
        self._database = database
        self._lease = lease

    async def write(
        self, documents: Mapping[str, bytes], clusters: Collection[str], taken_at: datetime
    ) -> None:
        """Replace the documents of these clusters, and delete those of all clusters that are not in `clusters`."""
        lease = self._lease()
        async with self._database.fenced(lease.epoch, lease.holder) as connection:
            await connection.execute(_DELETE, {"clusters": list(clusters)})
            for cluster, body in documents.items():
                await connection.execute(_WRITE, {"cluster": cluster, "at": taken_at, "body": body})


_DELETE: Final = text("DELETE FROM cluster_snapshot WHERE cluster <> ALL(:clusters)")
_WRITE: Final = text(
    "INSERT INTO cluster_snapshot (cluster, taken_at, body) VALUES (:cluster, :at, :body) "
    "ON CONFLICT (cluster) DO UPDATE SET taken_at = excluded.taken_at, body = excluded.body"
)
