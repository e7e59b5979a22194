"""What the notifier reads and writes in Postgres, through schema `notify` and one connection.

The connection holds the lock of the one notifier that sends, so a process without the lock can write no cursor: with
its connection it loses both. Each statement is a transaction of its own, and nothing waits for the network within one.

Ids of events are in the order of the commits, because a leader writes one batch at a time and a takeover waits for the
transactions of the former leader. A commit whose answer was lost may still be under way beside the next one, so reading
stops at the first event that is not settled (`is_settled` of the view `notify.events`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, Final, LiteralString

import psycopg
from psycopg.rows import DictRow, dict_row

from dispatcher.core.model import codec
from dispatcher.core.model.notifications import Cursor, QueueNow, ToldEvent, WaitingGang
from dispatcher.errors import StoreUnavailable
from dispatcher.store.connections import (
    LOCK_TIMEOUT,
    STATEMENT_TIMEOUT,
    connection_parameters,
    hang_up,
    leave_json,
    milliseconds,
    translated,
)

DEADLINE: Final = timedelta(seconds=20)
"""Bounds a statement whose server stops answering: such a server enforces no timeout."""

NOTIFIER: Final = "dispatcher notify"
"""The name of the connection at the server."""


class NotifierStore:
    """One connection of the notifier. Every method raises `StoreError`; after one the connection is of no use."""

    def __init__(self, connection: psycopg.AsyncConnection[DictRow]) -> None:
        self._connection = connection
        self._lock = asyncio.Lock()

    async def lead(self) -> bool:
        """True if this connection holds the lock of the notifier that sends. Call it until it does, and not again."""
        (row,) = await self._rows("SELECT notify.lead() AS leads")
        return bool(row["leads"])

    async def hub_id(self) -> str:
        """The id of the hub's database."""
        (row,) = await self._rows("SELECT id::text AS id FROM notify.hub")
        return str(row["id"])

    async def now(self) -> datetime:
        """The database's time."""
        (row,) = await self._rows("SELECT clock_timestamp() AS now")
        found: datetime = row["now"]
        return found

    async def cursor(self, target: str) -> Cursor:
        """How far a target was told; a new one is told what happens from now on."""
        rows = await self._rows(_CURSOR, {"target": target})
        if not rows:
            await self._rows(_NEW_CURSOR, {"target": target})
            rows = await self._rows(_CURSOR, {"target": target})
        (row,) = rows
        return Cursor(**{**row, "alarms": codec.load(row["alarms"], dict[str, datetime])})

    async def save(self, cursor: Cursor) -> None:
        """Write how far a target was told; raises `StoreUnavailable` if the cursor is gone."""
        values = {
            "target": cursor.target,
            "event_id": cursor.event_id,
            "waits_until": cursor.waits_until,
            "waits_uid": cursor.waits_uid,
            "alarms": codec.dump(cursor.alarms).decode(),
            "dropped": cursor.dropped,
        }
        if not await self._rows(_SAVE, values):
            raise StoreUnavailable(f"the cursor of target {cursor.target} is gone")

    async def events(self, after: int, most: int) -> list[ToldEvent]:
        """The next events in the order of the commits, at most `most`, up to the first that is not settled."""
        rows = await self._rows(_EVENTS, {"after": after, "most": most})
        settled = takewhile(lambda row: row.pop("is_settled"), rows)
        return [ToldEvent(**{**row, "from_phase": row["from_phase"] or ""}) for row in settled]

    async def behind(self, after: int, most: int) -> tuple[int, datetime | None]:
        """The number of events after an id, at most `most`, and the time of the first of them."""
        (row,) = await self._rows(_BEHIND, {"after": after, "most": most})
        return row["events"], row["oldest"]

    async def waiting(self, target: str, own: timedelta | None) -> list[WaitingGang]:
        """The queued AppWrappers that choose the target, and all that are queued for longer than `own`."""
        values = {"chosen": f"%{target}=%", "own": own}
        return [WaitingGang(**row) for row in await self._rows(_WAITING, values)]

    async def queues(self) -> list[QueueNow]:
        """All queues that are declared, `default`, and the other queues that AppWrappers name as one."""
        return [QueueNow(**row) for row in await self._rows(_QUEUES)]

    async def _rows(
        self, statement: LiteralString, values: Mapping[str, Any] | None = None
    ) -> Sequence[dict[str, Any]]:
        """The rows of a statement. Several tasks may call this; the deadline does not count the statements before."""
        with translated():
            async with self._lock, self._connection.cursor() as cursor:
                until = DEADLINE.total_seconds()
                cut = asyncio.get_running_loop().call_later(until, hang_up, self._connection)
                try:
                    await cursor.execute(statement, values)
                    return await cursor.fetchall() if cursor.description else []
                finally:
                    cut.cancel()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[NotifierStore]:
    """A connection for the notifier, which is closed at the end of the block."""
    parameters = connection_parameters(
        url,
        statement_timeout=milliseconds(STATEMENT_TIMEOUT),
        lock_timeout=milliseconds(LOCK_TIMEOUT),
        idle_in_transaction_session_timeout=milliseconds(DEADLINE),
    )
    with translated():
        try:
            async with asyncio.timeout(DEADLINE.total_seconds()):
                connection = await psycopg.AsyncConnection.connect(
                    **{**parameters, "application_name": NOTIFIER},  # type: ignore[arg-type]  # libpq's own names
                    autocommit=True,
                    row_factory=dict_row,
                )
        except TimeoutError as error:
            raise StoreUnavailable("the database did not answer in time") from error
    leave_json(connection)
    try:
        yield NotifierStore(connection)
    finally:
        await connection.close()


_CURSOR: Final[LiteralString] = (
    "SELECT target, event_id, waits_until, waits_uid, alarms, dropped FROM notify.cursor WHERE target = %(target)s"
)
_NEW_CURSOR: Final[LiteralString] = (
    "INSERT INTO notify.cursor (target, event_id, waits_until) "
    "SELECT %(target)s, coalesce((SELECT max(id) FROM notify.events), 0), clock_timestamp() "
    "ON CONFLICT (target) DO NOTHING RETURNING target"
)
_SAVE: Final[LiteralString] = (
    "UPDATE notify.cursor SET event_id = %(event_id)s, waits_until = %(waits_until)s, waits_uid = %(waits_uid)s, "
    "alarms = %(alarms)s::jsonb, dropped = %(dropped)s, updated_at = clock_timestamp() "
    "WHERE target = %(target)s RETURNING target"
)
_EVENTS: Final[LiteralString] = (
    "SELECT id, at, uid, namespace, name, queue, cause, from_phase, to_phase, reason, message, cluster, attempt, "
    "started_at, notifications, is_settled FROM notify.events WHERE id > %(after)s ORDER BY id LIMIT %(most)s"
)
_BEHIND: Final[LiteralString] = (
    "SELECT count(*) AS events, min(at) AS oldest FROM ("
    "SELECT at FROM notify.events WHERE id > %(after)s ORDER BY id LIMIT %(most)s) AS next"
)
_WAITING: Final[LiteralString] = (
    "SELECT uid, namespace, name, queue, since, message, advice, notifications FROM notify.waiting "
    "WHERE notifications LIKE %(chosen)s OR since <= clock_timestamp() - CAST(%(own)s AS interval)"
)
_QUEUES: Final[LiteralString] = (
    "SELECT queue, queued, oldest_since, stop_policy FROM notify.queues ORDER BY queue"
)
