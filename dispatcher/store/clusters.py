"""What is known of clusters whoever leads: which one goes by a name, how it stands, and what happened to it.

Each change is written with the events that tell of it, in one fenced transaction, and compared with what was noted
before: noting the same again tells nothing. Of a name that was never recognised nothing is noted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from dispatcher.api.names import HUB_CLUSTER
from dispatcher.api.spec_errors import one_line
from dispatcher.core.scheduling import cluster_filters
from dispatcher.core.scheduling.cluster_filters import LONGEST_MESSAGE
from dispatcher.core.status.cluster_state import ClusterEvent, ClusterNews, Standing, news
from dispatcher.errors import SettingsError
from dispatcher.store import mapping, tables
from dispatcher.store.database import Database
from dispatcher.store.leadership import Lease
from dispatcher.store.tables import listed, recordset, types


class ClusterStore:
    """The clusters, for the leader; `lease` gives the lease to write under, or raises `Fenced`.

    Each `at` is a time of the database's clock. What is noted of one cluster is to be noted one after the other.
    """

    def __init__(self, database: Database, lease: Callable[[], Lease]) -> None:
        self._database = database
        self._lease = lease

    async def recognise_cluster(self, name: str, uid: str, at: datetime) -> None:
        """Note which cluster goes by that name, by the uid of its kube-system namespace.

        Raises `SettingsError` if another one did before: what this database believes to run would all look
        deleted there.
        """
        # The hub takes gangs without being declared, so that it is declared is news.
        values = {"name": name, "uid": uid, "is_declared": name != HUB_CLUSTER}
        async with self._fenced() as connection:
            if (await connection.execute(_MEET, values)).first() is not None:
                await self._tell(connection, name, at, [ClusterNews(ClusterEvent.JOINED)])
            known = (await connection.execute(_UID, {"name": name})).scalar_one()
        if known != uid:
            remedy = "use a new database" if name == HUB_CLUSTER else "declare it under another name"
            raise SettingsError(
                f"the cluster {name!r} of this database has the kube-system uid {known}, the one the kubeconfig "
                f"leads to has {uid}: correct the kubeconfig or the database URL; if the cluster was really "
                f"replaced, {remedy}"
            )

    async def unreachable_clusters(self) -> dict[str, datetime]:
        """Since when each cluster has not answered, of those that did not when that was last noted."""
        async with self._database.reading() as connection:
            found = await connection.execute(_SILENT)
            return {row.name: row.unreachable_since for row in found}

    async def declared_members(self) -> set[str]:
        """Those that were declared when that was last noted; without the hub, which is there in any case."""
        async with self._database.reading() as connection:
            found = await connection.execute(_DECLARED, {"hub": HUB_CLUSTER})
            return {row.name for row in found}

    async def note_unreachable(self, name: str, since: datetime, message: str) -> None:
        """Note since when a cluster does not answer: whoever leads next counts on from there."""
        told = ClusterNews(ClusterEvent.UNREACHABLE, cluster_filters.UNREACHABLE, message)
        async with self._fenced() as connection:
            if (await connection.execute(_FALL_SILENT, {"name": name, "since": since})).rowcount:
                await self._tell(connection, name, since, [told])

    async def note_reachable(self, name: str, at: datetime) -> None:
        """Note that a cluster answers again, whatever it answers."""
        async with self._fenced() as connection:
            if (await connection.execute(_ANSWER, {"name": name})).rowcount:
                await self._tell(connection, name, at, [ClusterNews(ClusterEvent.REACHABLE)])

    async def note_standing(self, name: str, standing: Standing, at: datetime) -> None:
        """Note how a cluster stands now."""
        async with self._fenced() as connection:
            row = (await connection.execute(_STANDING, {"name": name})).mappings().first()
            if row is None:
                return
            known = Standing(**_STANDING_COLUMNS.arguments(row))
            now = standing.following(known)
            if now != known:
                # One that is removed comes back as if nothing had been noted of it.
                kept = now if now.is_declared else Standing(is_declared=False)
                await connection.execute(_NOTE_STANDING, {"name": name, **_STANDING_COLUMNS.row(kept)})
                await self._tell(connection, name, at, news(known, now))

    async def note_rotation(self, name: str, at: datetime) -> None:
        """Note that a cluster is reached elsewhere, or as somebody else, from now on."""
        async with self._fenced() as connection:
            if (await connection.execute(_UID, {"name": name})).first() is not None:
                await self._tell(connection, name, at, [ClusterNews(ClusterEvent.CREDENTIALS_ROTATED)])

    def _fenced(self) -> AbstractAsyncContextManager[AsyncConnection]:
        lease = self._lease()
        return self._database.fenced(lease.epoch, lease.holder)

    async def _tell(
        self, connection: AsyncConnection, name: str, at: datetime, told: Sequence[ClusterNews]
    ) -> None:
        if told:
            document = mapping.to_json([_row(name, at, each) for each in told])
            await connection.execute(_TELL, {"rows": document, "epoch": self._lease().epoch})


def _row(name: str, at: datetime, told: ClusterNews) -> mapping.Row:
    message = _short(one_line(told.message))
    return {"at": at, "cluster": name, "event": told.event, "reason": told.reason, "message": message}


def _short(message: str) -> str:
    """A member that comes and goes with every probe writes an event for each: one of them must not be long."""
    return message if len(message) <= LONGEST_MESSAGE else f"{message[: LONGEST_MESSAGE - 1]}…"


_MEET: Final = text(
    "INSERT INTO member_cluster (name, cluster_uid, is_declared) VALUES (:name, :uid, :is_declared) "
    "ON CONFLICT (name) DO NOTHING RETURNING name"
)
_UID: Final = text("SELECT cluster_uid FROM member_cluster WHERE name = :name")
_SILENT: Final = text(
    "SELECT name, unreachable_since FROM member_cluster WHERE unreachable_since IS NOT NULL"
)
_DECLARED: Final = text("SELECT name FROM member_cluster WHERE is_declared AND name <> :hub")
_FALL_SILENT: Final = text(
    "UPDATE member_cluster SET unreachable_since = :since WHERE name = :name AND unreachable_since IS NULL"
)
_ANSWER: Final = text(
    "UPDATE member_cluster SET unreachable_since = NULL WHERE name = :name AND unreachable_since IS NOT NULL"
)
_STANDING_COLUMNS: Final = mapping.Fields(mapping.same(types(tables.member_cluster), Standing))
_STANDING: Final = text(
    f"SELECT {listed(_STANDING_COLUMNS.columns)} FROM member_cluster WHERE name = :name FOR UPDATE"
)
_NOTE_STANDING: Final = text(
    f"UPDATE member_cluster SET {listed(f'{name} = :{name}' for name in _STANDING_COLUMNS.columns)} WHERE name = :name"
)
_EVENT_COLUMNS: Final = types(tables.cluster_event, "id", "recorded_at", "actor", "epoch")
_TELL: Final = text(
    f"INSERT INTO cluster_event (epoch, {listed(_EVENT_COLUMNS)}) "
    f"SELECT :epoch, {listed(_EVENT_COLUMNS)} FROM {recordset(_EVENT_COLUMNS)}"
)
