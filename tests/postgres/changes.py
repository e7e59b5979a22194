"""Changes as the dispatcher makes them, and a look at the tables from outside."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import psycopg
from msgspec.structs import replace
from psycopg import sql

from dispatcher.api.appwrapper import spec_hash
from dispatcher.core.lifecycle import first_changes, queue_changes, run_changes
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.records.record import Attempt, Change, Event, ObjectRef, Pending, Record
from dispatcher.core.model.resources import Resources
from dispatcher.store.database import Database
from dispatcher.store.history.archive import BEGINNING
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.queue import QueueStore

NOW = datetime(2026, 11, 20, 12, 0, 0, 123456, tzinfo=UTC)
LATER = NOW + timedelta(seconds=2)
GANG = Gang(Resources({"cpu": 1500, "nvidia.com/gpu": 2}), 2, (PodSet(2, Resources({"cpu": 750})),))


def make_submit(name: str = "aw", *, spec: bytes = b'{"resources": {}}', **fields: object) -> Change:
    """A new AppWrapper, queued; `fields` are the record's."""
    submission = first_changes.Submission(
        uid=str(uuid.uuid4()),
        group="workload.codeflare.dev",
        namespace="default",
        name=name,
        created_at=NOW,
        spec=spec,
        spec_hash=spec_hash(spec),
    )
    change = first_changes.submit(submission, GANG, NOW)
    return replace(change, after=replace(change.after, **fields))  # type: ignore[arg-type]  # Record's own fields


def make_dispatch(record: Record, cluster: str = "hub") -> Change:
    """The step from queued to dispatching."""
    return queue_changes.dispatch(record, cluster, LATER)


def make_created(record: Record, count: int = 1) -> Change:
    """The step from dispatching to dispatched, with so many objects."""
    return run_changes.created(record, tuple(make_object(item) for item in range(count)), LATER)


def make_object(item: int = 0, uid: str = "") -> ObjectRef:
    """A wrapped object."""
    uid = uid or f"uid-of-{item}"
    return ObjectRef(item, "ray.io/v1", "RayCluster", "default", f"raycluster-{item}", uid)


def make_block(record: Record) -> Change:
    """The step by which a queued record learns why it waits."""
    change = queue_changes.block(record, Pending("InsufficientResources", "lacks 1 cpu", "cpu", "hub"), LATER)
    assert change is not None
    return change


def make_change(before: Record, events: tuple[Event, ...] = (), **fields: object) -> Change:
    """Any change at all, legal or not."""
    if events:
        fields = {"last_event_at": events[-1].at, **fields}
    return Change(before, replace(before, version=before.version + 1, **fields), events)  # type: ignore[arg-type]  # as above


def make_attempt(number: int = 1, **fields: object) -> Attempt:
    """A live attempt on the hub."""
    return replace(Attempt(number, "hub", NOW), **fields)  # type: ignore[arg-type]  # Attempt's own fields


def forget_replay(url: str) -> None:
    """Take away the tests' own check: for what is no life, or of another schema than the newest."""
    with psycopg.connect(url) as connection:
        connection.execute("DROP FUNCTION check_replay CASCADE")
        connection.execute("DROP FUNCTION replayed")


def rows_of(url: str, query: LiteralString, *values: object) -> list[tuple[Any, ...]]:
    """What another connection sees."""
    with psycopg.connect(url) as connection:
        return connection.execute(query, values).fetchall()


def count_of(url: str, table: str) -> int:
    """How many rows another connection sees."""
    with psycopg.connect(url) as connection:
        statement = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))
        (count,) = connection.execute(statement).fetchone() or (0,)
        return int(count)


async def committed(queue: QueueStore, change: Change) -> Record:
    """The record after a committed step."""
    (record,) = (await queue.commit([change])).accepted
    return record


async def move_deleted(queue: QueueStore, before: datetime, most: int) -> int:
    """The number of AppWrappers that the first part moves to history, at most `most`; 0 if none is left."""
    part = await queue.next_deleted(before, BEGINNING, most)
    return 0 if part is None else await queue.move_deleted(part.uids)


async def take(queue: QueueStore, database_url: str, change: Change) -> Record:
    """The record after a committed step, which the database has as it is."""
    record = await committed(queue, change)
    assert await loaded(database_url) == [record]
    return record


async def loaded(url: str) -> list[Record]:
    """What a leader would begin with."""
    database = Database(url)
    try:
        return await QueueStore(database, lambda: Leadership(database, "nobody").lease).load_live()
    finally:
        await database.close()
