"""What the notifier reads and writes in Postgres, through schema `notify` and one connection.

The connection holds the lock of the one notifier that sends, so a process without the lock can write nothing: with its
connection it loses both. Each statement is a transaction of its own, and nothing waits for the network within one.

The outbox has the messages that targets have not taken yet. A cursor moves over events in the statement that puts their
messages there, so a crash loses none; a message is taken out once its target has taken it, so a crash may repeat one.

Ids of events are in the order of the commits, because a leader writes one batch at a time and a takeover waits for the
transactions of the former leader. A commit whose answer was lost may still be under way beside the next one, so reading
stops at the first event that is not settled (`is_settled` of the view `notify.events`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, Final, LiteralString

import psycopg
from msgspec.structs import asdict
from psycopg.rows import DictRow, dict_row

from dispatcher.api.notifications import WAITING
from dispatcher.core.model import codec
from dispatcher.core.model.notifications import (
    Alarm,
    Backlog,
    Cursor,
    Outgoing,
    QueueNow,
    ToldEvent,
    WaitingGang,
)
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

    async def begin(self, targets: Collection[str]) -> list[Cursor]:
        """The cursors of the targets; a new target is told what happens from now on."""
        await self._rows(_NEW_CURSORS, {"targets": list(targets)})
        rows = await self._rows(_CURSORS, {"targets": list(targets)})
        return [Cursor(**row) for row in rows]

    async def events(self, after: int, most: int) -> list[ToldEvent]:
        """The next events in the order of the commits, at most `most`, up to the first that is not settled."""
        rows = await self._rows(_EVENTS, {"after": after, "most": most})
        settled = takewhile(lambda row: row.pop("is_settled"), rows)
        return [ToldEvent(**{**row, "from_phase": row["from_phase"] or ""}) for row in settled]

    async def take_in(self, targets: Collection[str], event_id: int, messages: Sequence[Outgoing]) -> None:
        """Put the messages of all events up to an id in the outbox, and move the cursors there.

        Raises `StoreUnavailable` if a cursor is gone.
        """
        values = {"targets": list(targets), "event_id": event_id, "messages": _document(messages)}
        moved = {row["target"] for row in await self._rows(_TAKE_IN, values)}
        if gone := sorted({*targets} - moved):
            raise StoreUnavailable(f"the cursor of target {gone[0]} is gone")

    async def waits(
        self,
        cursor: Cursor,
        open_to: Sequence[str],
        subscribed: Sequence[str],
        longer_than: timedelta | None,
        most: int,
    ) -> list[WaitingGang]:
        """What waits for longer than a target is to be told, and it was not: at most `most`, namespaces in turn.

        That is what the AppWrapper chooses, of the namespaces that the target is open to; and `longer_than`, of those
        that it is subscribed to, if that time is over since the target is declared. A name of a namespace may end in
        `*`.
        """
        values = {
            "target": cursor.target,
            "chosen": f" {cursor.target}=(?:[^ ]*,)?{WAITING}:([0-9]{{1,6}}[mhd])(?: |$)",
            "own": longer_than,
            "declared": cursor.since,
            "open": _whole(open_to),
            "open_begins": _begins(open_to),
            "subscribed": _whole(subscribed),
            "subscribed_begins": _begins(subscribed),
            "most": most,
        }
        return [WaitingGang(**row) for row in await self._rows(_WAITS, values)]

    async def note_waits(
        self, target: str, waits: Sequence[WaitingGang], messages: Sequence[Outgoing]
    ) -> None:
        """Put messages about waits in the outbox, and note that the target is told of these."""
        noted = [
            {"uid": gang.uid, "since": gang.since, "seconds": gang.longer_than.total_seconds()}
            for gang in waits
        ]
        values = {"target": target, "waits": _document(noted), "messages": _document(messages)}
        await self._rows(_NOTE_WAITS, values)

    async def queues(self) -> list[QueueNow]:
        """All queues that are declared, `default`, and the other queues that AppWrappers name as one."""
        return [QueueNow(**row) for row in await self._rows(_QUEUES)]

    async def alarms(self, target: str) -> list[Alarm]:
        """The alarms whose begin a target was told, and whose end it was not."""
        return [Alarm(**row) for row in await self._rows(_ALARMS, {"target": target})]

    async def begin_alarm(self, alarm: Alarm, message: Outgoing) -> None:
        """Put the message that an alarm begins in the outbox, and note the alarm."""
        await self._rows(_BEGIN_ALARM, {**asdict(alarm), "messages": _document([message])})

    async def end_alarm(self, alarm: Alarm, message: Outgoing) -> None:
        """Put the message that an alarm is over in the outbox, and forget the alarm."""
        await self._rows(_END_ALARM, {**asdict(alarm), "messages": _document([message])})

    async def outgoing(
        self, target: str, resting_lanes: Collection[str], resting: Collection[str], most: int
    ) -> list[Outgoing]:
        """The next messages of a target, at most `most`: the first of each lane, then the second, and so on.

        Lanes and messages (by id) that rest are left out.
        """
        values = {"target": target, "lanes": list(resting_lanes), "ids": list(resting), "most": most}
        return [Outgoing(**row) for row in await self._rows(_OUTGOING, values)]

    async def done(self, message: Outgoing) -> None:
        """Take a message out of the outbox: its target has taken it, or it is given up."""
        await self._rows(_DONE, {"target": message.target, "id": message.id})

    async def backlogs(self) -> dict[str, Backlog]:
        """What is in the outbox, by target; a target that has taken all is left out."""
        rows = await self._rows(_BACKLOGS)
        return {row["target"]: Backlog(row["count"], row["age"]) for row in rows}

    async def unread(self, after: int, most: int) -> Backlog:
        """The events after an id that somebody may be told of, settled or not, at most `most`."""
        (row,) = await self._rows(_UNREAD, {"after": after, "most": most})
        return Backlog(row["count"], row["age"])

    async def trim(self, target: str, beyond: int) -> int:
        """Take so many messages out of the outbox: the oldest of the lanes with most messages."""
        return len(await self._rows(_TRIM, {"target": target, "beyond": beyond}))

    async def prune(self, targets: Collection[str], keep: timedelta) -> None:
        """Forget waits that are over; and of targets that are not declared alarms, and messages older than `keep`."""
        await self._rows(_PRUNE_WAITS)
        await self._rows(_PRUNE_OUTBOX, {"targets": list(targets), "keep": keep})
        await self._rows(_PRUNE_ALARMS, {"targets": list(targets)})

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


def _document(values: Sequence[object]) -> str:
    return codec.dump(values).decode()


def _whole(names: Iterable[str]) -> list[str]:
    """The names that stand for themselves."""
    return [name for name in names if not name.endswith("*")]


def _begins(names: Iterable[str]) -> list[str]:
    """What names begin with that end in `*`."""
    return [name[:-1] for name in names if name.endswith("*")]


_NEW_CURSORS: Final[LiteralString] = (
    "INSERT INTO notify.cursor (target, event_id) "
    "SELECT target, coalesce((SELECT max(id) FROM notify.events), 0) "
    "FROM unnest(CAST(%(targets)s AS text[])) AS target "
    "ON CONFLICT (target) DO NOTHING"
)
_CURSORS: Final[LiteralString] = (
    "SELECT target, event_id, since FROM notify.cursor WHERE target = ANY(CAST(%(targets)s AS text[]))"
)
_EVENTS: Final[LiteralString] = (
    "SELECT id, at, recorded_at, uid, namespace, name, queue, cause, from_phase, to_phase, reason, message, cluster, "
    "attempt, started_at, notifications, is_settled, termination_message "
    "FROM notify.events WHERE id > %(after)s ORDER BY id LIMIT %(most)s"
)
_ADD: Final[LiteralString] = (
    "INSERT INTO notify.outbox (target, id, lane, since, message) "
    "SELECT target, id, lane, since, message FROM json_to_recordset(CAST(%(messages)s AS json)) "
    "AS added(target text, id text, lane text, since timestamptz, message text)"
)
_ONCE: Final[LiteralString] = " ON CONFLICT (target, id) DO NOTHING"
_TAKE_IN: Final[LiteralString] = (
    "WITH moved AS (UPDATE notify.cursor SET event_id = %(event_id)s, "
    "updated_at = clock_timestamp() WHERE target = ANY(CAST(%(targets)s AS text[])) RETURNING target), "
    f"added AS ({_ADD}{_ONCE}) SELECT target FROM moved"
)
_OPEN: Final[LiteralString] = (
    "gang.namespace = ANY(CAST(%(open)s AS text[])) OR gang.namespace ^@ ANY(CAST(%(open_begins)s AS text[]))"
)
_SUBSCRIBED: Final[LiteralString] = (
    "(gang.namespace = ANY(CAST(%(subscribed)s AS text[])) "
    "OR gang.namespace ^@ ANY(CAST(%(subscribed_begins)s AS text[]))) "
    "AND gang.since + CAST(%(own)s AS interval) > %(declared)s"
)
_WAITS: Final[LiteralString] = (
    "SELECT uid, namespace, name, queue, since, message, advice, longer_than FROM ("
    "SELECT gang.*, told.longer_than, gang.since + told.longer_than AS due, row_number() OVER ("
    "PARTITION BY gang.namespace ORDER BY gang.since + told.longer_than, gang.uid) AS place "
    "FROM notify.waiting AS gang CROSS JOIN LATERAL (VALUES "
    f"(CASE WHEN {_OPEN} THEN "
    "CAST(substring(' ' || gang.notifications, CAST(%(chosen)s AS text)) AS interval) END), "
    f"(CASE WHEN {_SUBSCRIBED} THEN CAST(%(own)s AS interval) END)) AS told(longer_than) "
    "WHERE gang.since + told.longer_than <= statement_timestamp() AND NOT EXISTS ("
    "SELECT FROM notify.told_wait AS known WHERE known.target = %(target)s AND known.uid = gang.uid "
    "AND known.since = gang.since AND known.longer_than = told.longer_than)) AS waits "
    "ORDER BY place, due, uid LIMIT %(most)s"
)
_NOTE_WAITS: Final[LiteralString] = (
    "WITH noted AS (INSERT INTO notify.told_wait (target, uid, since, longer_than) "
    "SELECT CAST(%(target)s AS text), uid, since, make_interval(secs => seconds) "
    "FROM json_to_recordset(CAST(%(waits)s AS json)) "
    f"AS noted(uid text, since timestamptz, seconds double precision) ON CONFLICT DO NOTHING) {_ADD}{_ONCE}"
)
_QUEUES: Final[LiteralString] = (
    "SELECT queue, queued, oldest_since, stop_policy FROM notify.queues ORDER BY queue"
)
_ALARMS: Final[LiteralString] = (
    "SELECT target, alarm, queue, began_at FROM notify.alarm WHERE target = %(target)s"
)
_BEGIN_ALARM: Final[LiteralString] = (
    "WITH begun AS (INSERT INTO notify.alarm (target, alarm, queue, began_at) "
    "VALUES (%(target)s, %(alarm)s, %(queue)s, %(began_at)s) ON CONFLICT DO NOTHING) "
    f"{_ADD}{_ONCE}"
)
_END_ALARM: Final[LiteralString] = (
    "WITH ended AS (DELETE FROM notify.alarm "
    "WHERE target = %(target)s AND alarm = %(alarm)s AND queue = %(queue)s AND began_at = %(began_at)s) "
    f"{_ADD}{_ONCE}"
)
_OUTGOING: Final[LiteralString] = (
    "SELECT target, id, lane, since, message FROM (SELECT target, number, place FROM ("
    "SELECT target, number, row_number() OVER (PARTITION BY lane ORDER BY number) AS place FROM notify.outbox "
    "WHERE target = %(target)s AND lane <> ALL(CAST(%(lanes)s AS text[])) AND id <> ALL(CAST(%(ids)s AS text[]))"
    ") AS placed ORDER BY place, number LIMIT %(most)s) AS turn JOIN notify.outbox USING (target, number) "
    "ORDER BY place, number"
)
_DONE: Final[LiteralString] = "DELETE FROM notify.outbox WHERE target = %(target)s AND id = %(id)s"
_BACKLOGS: Final[LiteralString] = (
    "SELECT target, count(*) AS count, greatest(clock_timestamp() - min(since), interval '0') AS age "
    "FROM notify.outbox GROUP BY target"
)
_UNREAD: Final[LiteralString] = (
    "SELECT count(*) AS count, greatest(clock_timestamp() - min(recorded_at), interval '0') AS age FROM ("
    "SELECT recorded_at FROM notify.events WHERE id > %(after)s ORDER BY id LIMIT %(most)s) AS unread"
)
_TRIM: Final[LiteralString] = (
    "DELETE FROM notify.outbox WHERE target = %(target)s AND number IN (SELECT number FROM ("
    "SELECT number, row_number() OVER (PARTITION BY lane ORDER BY number DESC) AS place FROM notify.outbox "
    "WHERE target = %(target)s) AS placed ORDER BY place DESC, number LIMIT %(beyond)s) RETURNING number"
)
_PRUNE_WAITS: Final[LiteralString] = (
    "DELETE FROM notify.told_wait AS told WHERE NOT EXISTS ("
    "SELECT FROM notify.waiting AS gang WHERE gang.uid = told.uid AND gang.since = told.since)"
)
_PRUNE_OUTBOX: Final[LiteralString] = (
    "DELETE FROM notify.outbox WHERE target <> ALL(CAST(%(targets)s AS text[])) "
    "AND since < clock_timestamp() - CAST(%(keep)s AS interval)"
)
_PRUNE_ALARMS: Final[LiteralString] = (
    "DELETE FROM notify.alarm WHERE target <> ALL(CAST(%(targets)s AS text[]))"
)
