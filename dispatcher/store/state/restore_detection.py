"""Detects that this database was restored from a backup, and therefore lacks recent changes.

A database stores a fingerprint of the place where it lives: the server, the timeline of its log, its own oid and the
oid of a table. A dump that is restored has other oids. A backup that is recovered has another timeline, as has a
promoted replica, which may lack the last commits. A disk snapshot that is put back cannot be told from a restart.

Parts that this account may not read are left out of the comparison.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import psycopg
from msgspec import Struct
from sqlalchemy import Row, TextClause, text
from sqlalchemy.exc import DBAPIError

from dispatcher.api.names import HUB_CLUSTER
from dispatcher.store.database import Database
from dispatcher.store.leadership import Lease
from dispatcher.store.library import AsyncConnection

UNREADABLE: Final = "-"
"""Stands for a part of the fingerprint that this account may not read."""

_PARTS: Final = (
    text("SELECT CAST(system_identifier AS text) FROM pg_control_system()"),
    # The timeline that is written now: the control file has a promotion only after the next checkpoint.
    text("SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"),
    text("SELECT CAST(oid AS text) FROM pg_database WHERE datname = current_database()"),
    text("SELECT CAST(CAST(CAST('hub' AS regclass) AS oid) AS text)"),
)
_REFUSALS: Final = ("42501", "42883", "0A000", "55000")
"""SQLSTATEs of a managed server that refuses such a query: not allowed, not there, not supported, not now."""

_COLUMNS: Final = (
    "incarnation, fingerprint, restored_at, restored_at IS NULL OR settled_at IS NOT NULL AS is_settled"
)
_HUB: Final = text(f"SELECT {_COLUMNS} FROM hub")
_NOTE: Final = text("UPDATE hub SET fingerprint = :here")
_BEGIN_ANEW: Final = text(
    "UPDATE hub SET fingerprint = :here, incarnation = incarnation + 1, restored_at = clock_timestamp(), "
    f"settled_at = NULL RETURNING {_COLUMNS}"
)
_WRITE_EVENT: Final = text(
    "INSERT INTO cluster_event (at, cluster, event, message, epoch) "
    "VALUES (clock_timestamp(), :cluster, 'restored', :message, :epoch)"
)
_SETTLE: Final = text("UPDATE hub SET settled_at = clock_timestamp() WHERE settled_at IS NULL")


class Incarnation(Struct, frozen=True):
    """Counts from 1 how often this database began anew; `restored_at` is when the latest restore was detected.

    `is_settled` is false until all clusters were searched for what the database lacks. `is_news` is true only for the
    leader that detected the restore.
    """

    number: int = 1
    restored_at: datetime | None = None
    is_settled: bool = True
    is_news: bool = False


async def recognise(database: Database, lease: Lease) -> Incarnation:
    """Detect whether the database was restored since the last leader, and store the result; safe to repeat."""
    async with database.fenced(lease.epoch, lease.holder) as connection:
        here = [await _ask(connection, part) for part in _PARTS]
        hub = (await connection.execute(_HUB)).one()
        stored = hub.fingerprint.split("/") if hub.fingerprint else here
        if not _is_same(stored, here):
            hub = (await connection.execute(_BEGIN_ANEW, {"here": "/".join(here)})).one()
            event = {
                "cluster": HUB_CLUSTER,
                "epoch": lease.epoch,
                "message": f"incarnation {hub.incarnation}",
            }
            await connection.execute(_WRITE_EVENT, event)
            return _incarnation(hub, is_news=True)
        fingerprint = "/".join(_merged(stored, here))
        if fingerprint != hub.fingerprint:
            await connection.execute(_NOTE, {"here": fingerprint})
        return _incarnation(hub)


async def settle(database: Database, lease: Lease) -> None:
    """Store that all clusters were searched for what the restored database lacked."""
    async with database.fenced(lease.epoch, lease.holder) as connection:
        await connection.execute(_SETTLE)


async def _ask(connection: AsyncConnection, part: TextClause) -> str:
    try:
        async with connection.begin_nested():
            return str((await connection.execute(part)).scalar_one())
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.Error) and error.orig.sqlstate in _REFUSALS:
            return UNREADABLE
        raise


def _is_same(stored: list[str], here: list[str]) -> bool:
    return len(stored) == len(here) and all(
        UNREADABLE in pair or pair[0] == pair[1] for pair in zip(stored, here, strict=True)
    )


def _merged(stored: list[str], here: list[str]) -> list[str]:
    """The fingerprint to store: a part that is unreadable now keeps its stored value."""
    return [before if now == UNREADABLE else now for before, now in zip(stored, here, strict=True)]


def _incarnation(hub: Row[Any], *, is_news: bool = False) -> Incarnation:
    return Incarnation(hub.incarnation, hub.restored_at, hub.is_settled, is_news)
