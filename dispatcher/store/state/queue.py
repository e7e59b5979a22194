"""The queue in Postgres: loaded whole at takeover, written in batches, not read in between.

`commit` is the only way to write. It makes one fenced transaction of any number of changes: a fixed number of
statements, each over the whole batch, each returning the rows it accepted. A change is accepted only if its row still
has the version it was made from; its attempt, objects and events are written with it or not at all.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import TextClause, text

from dispatcher import log
from dispatcher.core.model import incremental
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.record import MOST_GROWTHS_KEPT, Attempt, Change, Record
from dispatcher.errors import DataRefused
from dispatcher.store import rows, tables
from dispatcher.store.database import Database
from dispatcher.store.history import archive, partitions
from dispatcher.store.leadership import Lease
from dispatcher.store.library import AsyncConnection
from dispatcher.store.readers.overdue import end_overdue
from dispatcher.store.tables import listed, recordset

# Types by column, without the columns that the database or the writing statement sets.
NEW_COLUMNS: Final = tables.types(
    tables.appwrapper, "enqueue_seq", "updated_at", "taken_in_at", "first_queued_at", "ended_at", "outcome"
)
STATE_COLUMNS: Final = {name: type_ for name, type_ in NEW_COLUMNS.items() if name not in rows.IDENTITY}
ATTEMPT_COLUMNS: Final = tables.types(tables.attempt, "cluster_uid", "epoch")
OBJECT_COLUMNS: Final = tables.types(tables.attempt_object)
EVENT_COLUMNS: Final = tables.types(tables.event, "id", "recorded_at", "epoch")

ROWS_AT_ONCE: Final = 50
"""Records loaded between two turns of the event loop, so that the lease is renewed and probes are answered.

With the rejections of twenty clusters in each, they take about 5 ms.
"""


class Refusal(Struct, frozen=True):
    """A change that the database can never hold, and the reason."""

    uid: str
    message: str


class CommitResult(Struct, frozen=True):
    """The outcome of a batch: each change is in exactly one of the tuples, in the order given.

    `accepted` are the stored records, `stale` the uids whose rows had another version, `refused` the changes that the
    database can never hold.
    """

    accepted: tuple[Record, ...] = ()
    stale: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()

    def __add__(self, other: CommitResult) -> CommitResult:
        return CommitResult(
            self.accepted + other.accepted, self.stale + other.stale, self.refused + other.refused
        )


class _OneIsStale(Exception):  # not an error: a row has changed meanwhile
    """A change of a group was made from another version of its row."""


Templates = tuple[tuple[int, str], ...]
"""The item and the path of each pod set: equal gangs may have other templates."""


class QueueStore:
    """The queue, for the leader; `lease` returns the lease to write under, or raises `Fenced`."""

    def __init__(self, database: Database, lease: Callable[[], Lease]) -> None:
        self._database = database
        self._lease = lease
        # Two concurrent batches could lock common rows in different orders. One after the other, they also give
        # `enqueue_seq` and events the order of the commits.
        self._writing = asyncio.Lock()

    async def hub_id(self) -> UUID:
        """The id of this database, which marks every object that the dispatcher creates."""
        async with self._database.reading() as connection:
            found: UUID = (await connection.execute(text("SELECT id FROM hub"))).scalar_one()
            return found

    async def deleted_among(self, uids: Collection[str]) -> set[str]:
        """The uids among `uids` of AppWrappers that were deleted and confirmed gone."""
        async with self._database.reading() as connection:
            found = await connection.execute(_DELETED, {"uids": list(uids)})
            return {row.uid for row in found}

    async def load_live(self) -> list[Record]:
        """Every record that is not Deleted, with its current attempt, in the order of intake.

        In place of rows that cannot be read there are records that are set aside (logged).
        """
        records, gangs, last = list[Record](), dict[tuple[Gang, Templates], Gang](), ""
        # A page at a time: a transaction has a deadline.
        while page := await self._load_page(last):
            for record in page:
                templates = tuple((each.item, each.path) for each in record.gang.pod_sets)
                shared = gangs.setdefault((record.gang, templates), record.gang)
                records.append(replace(record, gang=shared))
            last = page[-1].uid
        return await _by_age(records)

    async def _load_page(self, after: str) -> list[Record]:
        """The next records in the order of uids, empty after the last; yields to the event loop."""
        async with self._database.reading() as connection:
            live = await _rows(connection, _LIVE, {"after": after, "most": ROWS_AT_ONCE})
            uids = {"uids": [row["uid"] for row in live if row["attempt"] is not None]}
            attempts = await _rows(connection, _LIVE_ATTEMPTS, uids) if uids["uids"] else []
            objects = await _rows(connection, _LIVE_OBJECTS, uids) if uids["uids"] else []
        by_uid: dict[str, list[Mapping[Any, Any]]] = defaultdict(list)
        for row in objects:
            by_uid[row["uid"]].append(row)
        current = {row["uid"]: row for row in attempts}
        await asyncio.sleep(0)
        return [_record_of(row, current.get(row["uid"]), by_uid[row["uid"]]) for row in live]

    async def load_specs(self, hashes: Collection[str]) -> dict[str, bytes]:
        """The specs as submitted, by hash; an unknown hash is left out."""
        if not hashes:
            return {}
        async with self._database.reading() as connection:
            found = await connection.execute(_SPECS, {"hashes": list(hashes)})
            return {row.spec_hash: row.body for row in found}

    async def commit(self, changes: Sequence[Change]) -> CommitResult:
        """Write all changes in one transaction, except those that the database cannot hold, which are refused.

        New AppWrappers get ascending values of `enqueue_seq` in the order given. A batch holds at most one change of a
        uid. Raises `Fenced` if this process no longer leads (nothing is written), and `StoreUnavailable` if the outcome
        is unknown.
        """
        _check_uids(changes)
        if not changes:
            return CommitResult()
        async with self._writing:
            return await self._commit_or_halve(changes)

    async def commit_together(self, changes: Sequence[Change]) -> CommitResult:
        """Write all changes in one transaction, or none of them; raises as `commit` does.

        If one row has another version, all changes are stale; if the database cannot hold one, all are refused. They
        hold at most one change of a uid.
        """
        if not changes:
            return CommitResult()
        _check_uids(changes)
        try:
            async with self._writing:
                return await self._commit_once(changes, is_together=True)
        except _OneIsStale:
            return CommitResult(stale=tuple(change.after.uid for change in changes))
        except DataRefused as error:
            return CommitResult(refused=tuple(Refusal(each.after.uid, str(error)) for each in changes))

    async def next_deleted(
        self, before: datetime, after: tuple[datetime, str], most: int
    ) -> archive.Part | None:
        """The AppWrappers to move to history next, of those that were deleted before `before`: `archive.next_part`."""
        async with self._database.reading() as connection:
            return await archive.next_part(connection, before, after, most)

    async def move_deleted(self, uids: Sequence[str]) -> int:
        """Move these deleted AppWrappers to history; return the number of those that were not moved before."""
        lease = self._lease()
        async with self._writing, self._database.fenced(lease.epoch, lease.holder) as connection:
            return await archive.move_deleted(connection, uids)

    async def ensure_partitions(self, now: datetime) -> list[str]:
        """Make the partitions of history for the coming months; return the names of the new partitions."""
        return await partitions.ensure_partitions(self._database, self._lease(), now)

    async def drop_expired(self, now: datetime, keep: timedelta) -> list[str]:
        """Drop the oldest month of history that ended more than `keep` ago, one a day; return its partitions."""
        return await partitions.drop_expired(self._database, self._lease(), now, keep)

    async def end_overdue_readers(self, longest: timedelta) -> list[str]:
        """End reader sessions that take longer than `longest`; return user and reason of each."""
        return await end_overdue(self._database, longest)

    async def _commit_or_halve(self, changes: Sequence[Change]) -> CommitResult:
        """Find the changes that the database refuses by halving the batch: few transactions even for a large one."""
        try:
            return await self._commit_once(changes)
        except DataRefused as error:
            if len(changes) == 1:
                return CommitResult(refused=(Refusal(changes[0].after.uid, str(error)),))
        middle = len(changes) // 2
        first = await self._commit_or_halve(changes[:middle])
        return first + await self._commit_or_halve(changes[middle:])

    async def _commit_once(self, changes: Sequence[Change], *, is_together: bool = False) -> CommitResult:
        lease = self._lease()
        async with self._database.fenced(lease.epoch, lease.holder) as connection:
            with _mapped():
                await _write_specs(connection, changes)
                accepted = await _write_records(connection, changes)
                if is_together and len(accepted) < len(changes):
                    raise _OneIsStale  # and nothing is written
                written = [change for change in changes if change.after.uid in accepted]
                await _write(connection, _ATTEMPTS, _all(rows.attempt_rows(each) for each in written), lease)
                await _write(connection, _OBJECTS, _all(rows.object_rows(each) for each in written), lease)
                events = _all(map(rows.event_rows, written))
                await _write(connection, _EVENTS, events, lease)
        return CommitResult(
            accepted=tuple(
                replace(each.after, enqueue_seq=accepted[each.after.uid] or each.after.enqueue_seq)
                for each in written
            ),
            stale=tuple(each.after.uid for each in changes if each.after.uid not in accepted),
        )


def _check_uids(changes: Sequence[Change]) -> None:
    if len({change.after.uid for change in changes}) != len(changes):
        raise ValueError("a batch holds at most one change of an AppWrapper")


@contextmanager
def _mapped() -> Iterator[None]:
    """Raises `DataRefused` for a record that cannot be made a row."""
    try:
        yield
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise DataRefused(f"{type(error).__name__}: {error}") from error


# --- writing -----------------------------------------------------------------------------------------


async def _write_specs(connection: AsyncConnection, changes: Sequence[Change]) -> None:
    bodies = {change.after.spec_hash: change.spec for change in changes if change.spec is not None}
    if not bodies:
        return
    lengths = [len(body) for body in bodies.values()]
    values = {
        "hashes": list(bodies),
        "starts": [1, *(1 + end for end in accumulate(lengths[:-1]))],
        "lengths": lengths,
        "bodies": b"".join(bodies.values()),
    }
    await connection.execute(_SPEC_BLOBS, values)


async def _write_records(connection: AsyncConnection, changes: Sequence[Change]) -> dict[str, int]:
    """The uids of the accepted changes, each with its new `enqueue_seq`, or 0 where the row existed."""
    accepted: dict[str, int] = {}
    new = [rows.new_row(change.after) for change in changes if change.before is None]
    if new:
        document = rows.to_json([{"ordinal": ordinal, **row} for ordinal, row in enumerate(new)])
        inserted = await connection.execute(_INSERT, {"rows": document})
        accepted.update((row.uid, row.enqueue_seq) for row in inserted)
    changed = [rows.changed_row(change.before, change.after) for change in changes if change.before]
    if changed:
        updated = await connection.execute(_UPDATE, {"rows": rows.to_json(changed)})
        accepted.update((row.uid, 0) for row in updated)
    return accepted


async def _write(
    connection: AsyncConnection, statement: TextClause, written: list[rows.Row], lease: Lease
) -> None:
    if written:
        await connection.execute(statement, {"rows": rows.to_json(written), "epoch": lease.epoch})


def _all(parts: Iterable[list[rows.Row]]) -> list[rows.Row]:
    return [row for part in parts for row in part]


def _replaced(columns: Iterable[str]) -> str:
    return ", ".join(f"{name} = excluded.{name}" for name in columns)


def _assignment(name: str) -> str:
    return f"{name} = coalesce(t.{name}, a.{name})" if name in rows.KEPT_IF_NULL else f"{name} = t.{name}"


# All bodies as one value, which the server takes apart: an array of them would travel as hexadecimal text.
_SPEC_BLOBS: Final = text(
    "INSERT INTO spec_blob (spec_hash, body) "
    "SELECT hash, substring(CAST(:bodies AS bytea) FROM start FOR length) "
    "FROM unnest(CAST(:hashes AS text[]), CAST(:starts AS int[]), CAST(:lengths AS int[])) "
    "AS t(hash, start, length) ON CONFLICT (spec_hash) DO NOTHING"
)
_DELETED: Final = text(
    "SELECT uid FROM appwrapper WHERE uid = ANY(:uids) AND phase = 'Deleted' "
    "UNION ALL SELECT uid FROM past_appwrapper WHERE uid = ANY(:uids)"
)
_ENDED: Final = "t.phase IN ('Completed', 'Failed', 'Deleted')"
# The times of its first queueing and of its end follow from the phases. They are set here, so no step can omit them.
_INSERT: Final = text(
    f"INSERT INTO appwrapper ({listed(NEW_COLUMNS)}, taken_in_at, first_queued_at, ended_at, outcome) "
    f"SELECT {listed(NEW_COLUMNS)}, t.phase_since, CASE WHEN t.phase = 'Queued' THEN t.phase_since END, "
    f"CASE WHEN {_ENDED} THEN t.phase_since END, CASE WHEN {_ENDED} THEN lower(t.phase) ELSE '' END "
    f"FROM {recordset({'ordinal': 'integer', **NEW_COLUMNS})} "
    "ORDER BY ordinal ON CONFLICT (uid) DO NOTHING RETURNING uid, enqueue_seq"
)
_UPDATE: Final = text(
    f"UPDATE appwrapper AS a SET {', '.join(map(_assignment, STATE_COLUMNS))}, "
    "updated_at = clock_timestamp(), "
    "first_queued_at = coalesce(a.first_queued_at, CASE WHEN t.phase = 'Queued' THEN t.phase_since END), "
    f"ended_at = coalesce(a.ended_at, CASE WHEN {_ENDED} THEN t.phase_since END), "
    f"outcome = CASE WHEN a.outcome = '' AND {_ENDED} THEN lower(t.phase) ELSE a.outcome END "
    f"FROM {recordset({'uid': 'text', 'expected_version': 'integer', **STATE_COLUMNS})} "
    "WHERE a.uid = t.uid AND a.version = t.expected_version RETURNING a.uid"
)
_ATTEMPTS: Final = text(
    f"INSERT INTO attempt (epoch, cluster_uid, {listed(ATTEMPT_COLUMNS)}) "
    "SELECT :epoch, coalesce((SELECT m.cluster_uid FROM member_cluster m WHERE m.name = t.cluster), ''), "
    f"{listed(ATTEMPT_COLUMNS)} FROM {recordset(ATTEMPT_COLUMNS)} "
    "ON CONFLICT (uid, number) DO UPDATE SET "
    + _replaced(("created_at", "started_at", "ended_at", "outcome", "reason", "preempted_by"))
    + ", "
    + _replaced(("assignment", "provisioning", "growth_request", "shrinking"))
    # The queues stay those of its dispatch.
    + ", growth = CASE WHEN excluded.growth IS NULL THEN attempt.growth "
    "ELSE appended_growth(coalesce(attempt.growth, '[]'), excluded.growth) END"
)
_OBJECTS: Final = text(
    f"INSERT INTO attempt_object ({listed(OBJECT_COLUMNS)}) "
    f"SELECT {listed(OBJECT_COLUMNS)} FROM {recordset(OBJECT_COLUMNS)} "
    "ON CONFLICT (uid, attempt, item) DO UPDATE SET "
    + _replaced(name for name in OBJECT_COLUMNS if name not in ("uid", "attempt", "item"))
)
_EVENTS: Final = text(
    f"INSERT INTO event (epoch, {listed(EVENT_COLUMNS)}) "
    f"SELECT :epoch, {listed(EVENT_COLUMNS)} FROM {recordset(EVENT_COLUMNS)}"
)

# --- reading -----------------------------------------------------------------------------------------

_LIVE: Final = text(
    "SELECT * FROM appwrapper WHERE phase <> 'Deleted' AND uid > :after ORDER BY uid LIMIT :most"
)
_LIVE_ATTEMPTS: Final = text(
    f"SELECT {listed(f't.{name}' for name in ATTEMPT_COLUMNS if name != 'growth')}, "
    f"jsonb_path_query_array(t.growth, '$[last - {MOST_GROWTHS_KEPT - 1} to last]') AS growth "
    "FROM appwrapper a JOIN attempt t ON t.uid = a.uid AND t.number = a.attempt "
    "WHERE a.uid = ANY(:uids)"
)
_LIVE_OBJECTS: Final = text(
    "SELECT o.* FROM appwrapper a JOIN attempt_object o ON o.uid = a.uid AND o.attempt = a.attempt "
    "WHERE a.uid = ANY(:uids)"
)
_SPECS: Final = text("SELECT spec_hash, body FROM spec_blob WHERE spec_hash = ANY(:hashes)")


async def _rows(
    connection: AsyncConnection, statement: TextClause, values: Mapping[str, object]
) -> list[Mapping[Any, Any]]:
    return list((await connection.execute(statement, values)).mappings())


async def _by_age(records: list[Record]) -> list[Record]:
    """The records in the order of intake; yields to the event loop while it sorts."""
    sorting = incremental.in_order(records, key=attrgetter("enqueue_seq"))
    try:
        while True:
            next(sorting)
            await asyncio.sleep(0)
    except StopIteration as end:
        in_order: Iterator[Record] = end.value
    found: list[Record] = []
    for part in incremental.in_parts(in_order):
        found += part
        await asyncio.sleep(0)
    return found


def _record_of(
    row: Mapping[Any, Any], attempt: Mapping[Any, Any] | None, objects: Iterable[Mapping[Any, Any]]
) -> Record:
    """The record of these rows; if they cannot be read (logged), one that is set aside.

    A leader that could not load one record could not begin.
    """
    found = None
    try:
        found = rows.attempt_of(attempt, map(rows.object_of, objects)) if attempt else None
        return rows.record_of(row, found)
    except Exception as error:  # noqa: BLE001  # the records of the others have to be loaded
        if found is None and row["attempt"] is not None:
            found = Attempt(row["attempt"], row["cluster"], row["phase_since"])
        record = rows.set_aside_record_of(row, found)
        log.internal_error("takeover", error, appwrapper=record.uid, **_holding(row, record))
        return record


def _holding(row: Mapping[Any, Any], record: Record) -> dict[str, object]:
    """What the log says of the capacity that a record which is set aside holds."""
    if record.attempt is None or not record.holds_capacity:
        return {"holds": "nothing"}
    demand = rows.readable_demand_of(row)
    holds = "unknown" if demand is None else str(record.gang.demand + record.grown)
    return {"cluster": record.attempt.cluster, "holds": holds}
