"""Stores what is known of each cluster: its uid, whether it is declared, cordoned or unreachable, and its events.

Each change is compared with the stored state and written with its events in one fenced transaction. An unchanged state
writes no event, and nothing is written about a cluster whose uid was never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Final

from sqlalchemy import text

from dispatcher.api.names import HUB_CLUSTER
from dispatcher.api.spec_errors import one_line
from dispatcher.core.model.clusters.potential import LONGEST_DISTRUST, PoolFailures
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.scheduling.fit.cluster_filters import LONGEST_MESSAGE
from dispatcher.core.status.clusters import ClusterChange, ClusterEvent, ClusterState, changes
from dispatcher.errors import SettingsError
from dispatcher.store import rows, tables
from dispatcher.store.database import Database
from dispatcher.store.leadership import Lease
from dispatcher.store.library import AsyncConnection
from dispatcher.store.tables import listed, recordset, types


class ClusterStore:
    """The clusters, for the leader; `lease` returns the lease to write under, or raises `Fenced`.

    Each `at` is a time of the database's clock. Calls about one cluster must not overlap.
    """

    def __init__(self, database: Database, lease: Callable[[], Lease]) -> None:
        self._database = database
        self._lease = lease

    async def recognise_cluster(self, name: str, uid: str, at: datetime) -> None:
        """Store the uid of the cluster's kube-system namespace under the cluster's name.

        Raises `SettingsError` if another uid is stored: all objects of running gangs would look deleted in another
        cluster. Raises it, too, if the name is new and the uid is stored for another cluster that is declared: a uid is
        what an API server says of itself, and belongs to the name under which it was seen first.
        """
        # The hub takes gangs before it is declared, so its declaration is an event of its own.
        values = {"name": name, "uid": uid, "is_declared": name != HUB_CLUSTER}
        async with self._fenced() as connection:
            stored = (await connection.execute(_UID, {"name": name})).scalar_one_or_none()
            if stored is None:
                holder = (await connection.execute(_HOLDER, {"uid": uid, "hub": HUB_CLUSTER})).scalar()
                if holder is not None and name != HUB_CLUSTER:  # no member takes the hub's name from it
                    raise SettingsError(
                        f"its API server has the kube-system uid of cluster {holder}: give it the kubeconfig of an own "
                        f"cluster; if {holder} is not that cluster, remove the MemberCluster {holder} first"
                    )
                await connection.execute(_INSERT, values)
                await self._write_events(connection, name, at, [ClusterChange(ClusterEvent.CONNECTED)])
                stored = uid
        if stored != uid:
            remedy = "use a new database" if name == HUB_CLUSTER else "declare it under another name"
            raise SettingsError(
                f"the cluster {name!r} of this database has the kube-system uid {stored}, the cluster of the "
                f"kubeconfig has {uid}: correct the kubeconfig or the database URL; if the cluster was really "
                f"replaced, {remedy}"
            )

    async def unreachable_clusters(self) -> dict[str, datetime]:
        """The time since when each unreachable cluster has not answered, by name, as last stored."""
        async with self._database.reading() as connection:
            found = await connection.execute(_UNREACHABLE)
            return {row.name: row.unreachable_since for row in found}

    async def declared_members(self) -> set[str]:
        """The names of the declared clusters, as last stored, without the hub, which always exists."""
        async with self._database.reading() as connection:
            found = await connection.execute(_DECLARED, {"hub": HUB_CLUSTER})
            return {row.name for row in found}

    async def seen_members(self) -> set[str]:
        """The members that earlier leaders saw, and whose absence had not lasted; the hub, too, if it was declared."""
        async with self._database.reading() as connection:
            return set(await connection.scalar(_SEEN) or ())

    async def note_seen(self, names: Collection[str]) -> None:
        """Store that exactly these members are declared or were lately. Safe to repeat."""
        async with self._fenced() as connection:
            await connection.execute(_NOTE_SEEN, {"names": sorted(names)})

    async def note_unreachable(self, name: str, since: datetime, message: str) -> None:
        """Store since when a cluster does not answer; the next leader counts from that time."""
        event = ClusterChange(ClusterEvent.UNREACHABLE, pending_reasons.UNREACHABLE, message)
        async with self._fenced() as connection:
            if (await connection.execute(_SET_UNREACHABLE, {"name": name, "since": since})).rowcount:
                await self._write_events(connection, name, since, [event])

    async def note_reachable(self, name: str, at: datetime) -> None:
        """Store that a cluster answers again, even if it answers with an error."""
        async with self._fenced() as connection:
            if (await connection.execute(_SET_REACHABLE, {"name": name})).rowcount:
                await self._write_events(connection, name, at, [ClusterChange(ClusterEvent.REACHABLE)])

    async def note_state(self, name: str, state: ClusterState, at: datetime) -> None:
        """Store whether a cluster is declared, cordoned, draining or closed."""
        async with self._fenced() as connection:
            row = (await connection.execute(_STATE, {"name": name})).mappings().first()
            if row is None:
                return
            stored = ClusterState(**_STATE_COLUMNS.arguments(row))
            now = state.following(stored)
            if now != stored:
                # A cluster that is declared again after its removal starts without its old state.
                kept = now if now.is_declared else ClusterState(is_declared=False)
                await connection.execute(_SET_STATE, {"name": name, **_STATE_COLUMNS.row(kept)})
                await self._write_events(connection, name, at, changes(stored, now))

    async def pool_failures(self) -> dict[tuple[str, str, str], PoolFailures]:
        """The failures of the pools whose nodes did not come, by cluster, pool and namespace."""
        async with self._database.reading() as connection:
            found = await connection.execute(_POOL_FAILURES)
            return {
                (row.cluster, row.pool, row.namespace): PoolFailures(
                    row.failures, row.distrusted_until, row.is_confirmed
                )
                for row in found
            }

    async def note_pool(
        self, cluster: str, pool: str, namespace: str, failures: PoolFailures, now: datetime
    ) -> None:
        """Store the failures of a pool in a namespace in place of those stored before.

        Those of the pool that do not count any more are removed, so the table has no rows of the distant past.
        """
        values = {"cluster": cluster, "pool": pool, "namespace": namespace}
        state = {"failures": failures.count, "until": failures.until, "confirmed": failures.confirmed}
        async with self._fenced() as connection:
            old = {"cluster": cluster, "pool": pool, "before": now - LONGEST_DISTRUST}
            await connection.execute(_OLD_POOL_FAILURES, old)
            await connection.execute(_SET_POOL_FAILURES, {**values, **state})

    async def forget_pool(self, cluster: str, pool: str) -> None:
        """Remove all failures of a pool: its nodes have come."""
        async with self._fenced() as connection:
            await connection.execute(_NO_POOL_FAILURES, {"cluster": cluster, "pool": pool})

    async def note_rotation(self, name: str, at: datetime) -> None:
        """Store that the address or the credentials of a cluster changed."""
        async with self._fenced() as connection:
            if (await connection.execute(_UID, {"name": name})).first() is not None:
                await self._write_events(
                    connection, name, at, [ClusterChange(ClusterEvent.CREDENTIALS_ROTATED)]
                )

    def _fenced(self) -> AbstractAsyncContextManager[AsyncConnection]:
        lease = self._lease()
        return self._database.fenced(lease.epoch, lease.holder)

    async def _write_events(
        self, connection: AsyncConnection, name: str, at: datetime, events: Sequence[ClusterChange]
    ) -> None:
        if events:
            document = rows.to_json([_row(name, at, each) for each in events])
            await connection.execute(_WRITE_EVENTS, {"rows": document, "epoch": self._lease().epoch})


def _row(name: str, at: datetime, event: ClusterChange) -> rows.Row:
    message = _short(one_line(event.message))
    return {"at": at, "cluster": name, "event": event.event, "reason": event.reason, "message": message}


def _short(message: str) -> str:
    """The message, cut: a member cluster that fails every other probe writes an event for each."""
    return message if len(message) <= LONGEST_MESSAGE else f"{message[: LONGEST_MESSAGE - 1]}…"


_INSERT: Final = text(
    "INSERT INTO member_cluster (name, cluster_uid, is_declared) VALUES (:name, :uid, :is_declared)"
)
"""The leader alone inserts, one cluster after the other."""
_HOLDER: Final = text(
    "SELECT name FROM member_cluster WHERE cluster_uid = :uid AND (is_declared OR name = :hub) "
    "ORDER BY first_seen_at LIMIT 1"
)
_UID: Final = text("SELECT cluster_uid FROM member_cluster WHERE name = :name")
_UNREACHABLE: Final = text(
    "SELECT name, unreachable_since FROM member_cluster WHERE unreachable_since IS NOT NULL"
)
_DECLARED: Final = text("SELECT name FROM member_cluster WHERE is_declared AND name <> :hub")
_SEEN: Final = text("SELECT members_seen FROM hub")
_NOTE_SEEN: Final = text(
    "UPDATE hub SET members_seen = CAST(:names AS text[]) WHERE members_seen <> CAST(:names AS text[])"
)
_SET_UNREACHABLE: Final = text(
    "UPDATE member_cluster SET unreachable_since = :since WHERE name = :name AND unreachable_since IS NULL"
)
_SET_REACHABLE: Final = text(
    "UPDATE member_cluster SET unreachable_since = NULL WHERE name = :name AND unreachable_since IS NOT NULL"
)
_POOL_FAILURES: Final = text(
    "SELECT cluster, pool, namespace, failures, distrusted_until, is_confirmed FROM namespace_pool_failures"
)
_SET_POOL_FAILURES: Final = text(
    "INSERT INTO namespace_pool_failures (cluster, pool, namespace, failures, distrusted_until, is_confirmed) "
    "VALUES (:cluster, :pool, :namespace, :failures, :until, :confirmed) "
    "ON CONFLICT (cluster, pool, namespace) DO UPDATE SET failures = excluded.failures, "
    "distrusted_until = excluded.distrusted_until, is_confirmed = excluded.is_confirmed"
)
_OLD_POOL_FAILURES: Final = text(
    "DELETE FROM namespace_pool_failures "
    "WHERE cluster = :cluster AND pool = :pool AND distrusted_until <= :before"
)
_NO_POOL_FAILURES: Final = text(
    "DELETE FROM namespace_pool_failures WHERE cluster = :cluster AND pool = :pool"
)
_STATE_COLUMNS: Final = rows.Fields(rows.fields_of(ClusterState, "said", "closed_message"))
_STATE: Final = text(
    f"SELECT {listed(_STATE_COLUMNS.columns)} FROM member_cluster WHERE name = :name FOR UPDATE"
)
_SET_STATE: Final = text(
    f"UPDATE member_cluster SET {listed(f'{name} = :{name}' for name in _STATE_COLUMNS.columns)} WHERE name = :name"
)
_EVENT_COLUMNS: Final = types(tables.cluster_event, "id", "recorded_at", "actor", "epoch")
_WRITE_EVENTS: Final = text(
    f"INSERT INTO cluster_event (epoch, {listed(_EVENT_COLUMNS)}) "
    f"SELECT :epoch, {listed(_EVENT_COLUMNS)} FROM {recordset(_EVENT_COLUMNS)}"
)
