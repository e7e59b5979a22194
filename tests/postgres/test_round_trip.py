"""Any record, written to a real Postgres and loaded again, is the same."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.core.model.record import Change, Record
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.queue import QueueStore
from tests.drawn import drawn
from tests.postgres.changes import forget_replay
from tests.unit.store.records import attempted_records, records


async def written_and_loaded(url: str, first: list[Record], second: list[Record]) -> list[Record]:
    """Insert the first, turn each into its namesake of the second, and load all."""
    database = Database(url)
    leadership = Leadership(database, "leader")
    assert await leadership.acquire()
    queue = QueueStore(database, lambda: leadership.lease)
    result = await queue.commit([Change(None, record, ()) for record in first])
    assert (result.stale, result.refused) == ((), ())
    changes = [Change(old, new, ()) for old, new in zip(first, second, strict=True)]
    result = await queue.commit(changes)
    assert (result.stale, result.refused) == ((), ())
    loaded = await queue.load_live()
    await leadership.release()
    await database.close()
    return loaded


@pytest.fixture
def empty_url(make_database: Callable[[], str]) -> str:
    url = make_database()
    forget_replay(url)  # what is drawn follows from nothing
    return url


@pytest.mark.parametrize(
    "count", [40, pytest.param(160, marks=[pytest.mark.exhaustive, pytest.mark.timeout(120)])]
)
def test_any_record_survives_insert_and_update(empty_url: str, count: int) -> None:
    pairs = [
        *drawn(st.tuples(records, attempted_records), count // 4),
        *drawn(st.tuples(attempted_records, records), count // 4),
        *drawn(st.tuples(attempted_records, attempted_records), count // 2),
    ]
    first = [as_a_first_record(each) for each, _ in pairs]
    second = [successor(each, of) for (_, each), of in zip(pairs, first, strict=True)]
    loaded = asyncio.run(written_and_loaded(empty_url, first, second))
    assert [replace(record, enqueue_seq=0) for record in loaded] == second
    begun = [new.attempt for old, new in zip(first, second, strict=True) if old.attempt and new.attempt]
    assert any(each.objects for each in begun)
    assert any(each.shrinking for each in begun)


def as_a_first_record(record: Record) -> Record:
    """`record` under a uid of its own, with no attempt that would have to be ended."""
    over = record.attempt and replace(record.attempt, ended_at=record.created_at)
    return replace(record, uid=str(uuid.uuid4()), version=1, attempt=over)


def successor(other: Record, of: Record) -> Record:
    """`other` as a later state of the same AppWrapper."""
    attempt = other.attempt
    if attempt is not None and of.attempt is not None and attempt.number == of.attempt.number:
        attempt = of.attempt
    return replace(
        other,
        uid=of.uid,
        group=of.group,
        namespace=of.namespace,
        name=of.name,
        created_at=of.created_at,
        user=of.user,
        groups=of.groups,
        version=2,
        attempt=attempt,
    )
