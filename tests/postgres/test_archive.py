"""What was deleted leaves the queue's own tables, and history says of it what it said before."""

from __future__ import annotations

from datetime import timedelta
from typing import LiteralString

import psycopg

from dispatcher.core.lifecycle import queue_changes, removal, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Record
from dispatcher.store.state.queue import QueueStore
from tests.postgres.changes import (
    LATER,
    NOW,
    committed,
    count_of,
    forget_replay,
    make_created,
    make_dispatch,
    make_submit,
    move_deleted,
    rows_of,
)

TOMORROW = NOW + timedelta(days=1)


async def lived(queue: QueueStore, name: str, spec: bytes) -> Record:
    """One that was taken back once, completed, and was deleted."""
    record = await committed(queue, make_submit(name, spec=spec))
    record = await committed(queue, make_dispatch(record))
    record = await committed(queue, make_created(record))
    record = await committed(queue, run_changes.mark_running(record, LATER))
    short = EvictionReason("MinPodsNotRunning", "too few")
    record = await committed(queue, run_changes.evict(record, short, LATER, 60, NOW + timedelta(seconds=10)))
    record = await committed(queue, removal.removed(record, NOW + timedelta(seconds=11)))
    record = await committed(queue, queue_changes.dispatch(record, "east", NOW + timedelta(seconds=20)))
    record = await committed(queue, make_created(record))
    record = await committed(queue, run_changes.mark_running(record, NOW + timedelta(seconds=25)))
    done = run_changes.complete(record, (0,), TOMORROW, NOW + timedelta(seconds=65))
    record = await committed(queue, done)
    return await committed(queue, removal.delete(record, NOW + timedelta(seconds=70)))


def told(url: str) -> list[list[tuple[object, ...]]]:
    """All that the views say."""
    return [
        rows_of(url, "SELECT * FROM history.job_history ORDER BY uid"),
        rows_of(url, "SELECT * FROM history.attempt_history ORDER BY uid, attempt"),
        rows_of(url, "SELECT * FROM history.timeline ORDER BY id"),
        rows_of(url, "SELECT * FROM history.state_intervals ORDER BY uid, entered_at, state"),
    ]


async def test_deleted_appwrapper_is_moved_and_history_says_the_same(
    queue: QueueStore, database_url: str
) -> None:
    gone = await lived(queue, "gone", b"of one that is gone")
    await committed(queue, make_submit("here", spec=b"of one that is here"))
    before = told(database_url)
    assert await move_deleted(queue, NOW, 500) == 0
    assert await move_deleted(queue, TOMORROW, 500) == 1
    # What waits has waited a moment longer: of that the rows that are over say nothing.
    assert [[row for row in rows if row[0] == gone.uid] for rows in told(database_url)[:2]] == [
        [row for row in rows if row[0] == gone.uid] for rows in before[:2]
    ]
    assert told(database_url)[2] == before[2]
    assert count_of(database_url, "past_appwrapper") == 1
    assert count_of(database_url, "past_attempt") == 2
    left = ("appwrapper", "attempt", "attempt_object", "spec_blob")
    assert [count_of(database_url, table) for table in left] == [1, 0, 0, 1]


async def test_preemption_reads_the_same_once_victim_and_preemptor_are_archived(
    queue: QueueStore, database_url: str
) -> None:
    other = await committed(queue, make_submit("other", queue="owners"))
    record = await committed(queue, make_submit("victim", queue="lenders"))
    record = await committed(queue, make_dispatch(record))
    record = await committed(queue, make_created(record))
    record = await committed(queue, run_changes.mark_running(record, LATER))
    preempt = run_changes.preempt(record, Reason.QUOTA_RECLAIMED, "for default/other", LATER, other.uid)
    record = await committed(queue, preempt)
    record = await committed(queue, removal.removed(record, LATER + timedelta(hours=1)))
    query: LiteralString = "SELECT * FROM history.preemptions"
    (told_before,) = rows_of(database_url, query)
    assert told_before == (
        *(LATER + timedelta(hours=1), record.uid, "default", "victim", "lenders"),
        *(other.uid, "other", "owners", "hub", 1, 3600.0, 2.0, "QuotaReclaimed", "default"),
    )
    jobs = "SELECT evictions, requeues, lost_s FROM history.job_history WHERE name = 'victim'"
    assert rows_of(database_url, jobs) == [(0, 0, 3600.0)]
    assert rows_of(database_url, "SELECT * FROM history.failures_daily") == []
    assert rows_of(database_url, "SELECT * FROM history.evictions") == []
    for each in (record, other):
        await committed(queue, removal.delete(each, LATER + timedelta(hours=2)))
    assert await move_deleted(queue, TOMORROW, 500) == 2
    assert rows_of(database_url, query) == [told_before]
    assert rows_of(database_url, jobs) == [(0, 0, 3600.0)]


async def test_an_attempt_stays_in_the_queues_it_was_charged_in(queue: QueueStore, database_url: str) -> None:
    record = await committed(queue, make_submit(queue="first", more_queues=("gold/a",)))
    record = await committed(queue, make_dispatch(record))
    record = await committed(queue, run_changes.withdraw(record, "silent", LATER, LATER))
    record = await committed(queue, queue_changes.move(record, ("second",), LATER))
    record = await committed(queue, queue_changes.dispatch(record, "east", LATER))
    record = await committed(queue, removal.delete(record, LATER))
    await committed(queue, removal.release(record, LATER))
    kept: LiteralString = (
        "SELECT number, queues FROM attempt UNION ALL SELECT attempt, queues FROM past_attempt ORDER BY 1"
    )
    shown: LiteralString = "SELECT attempt, queue FROM history.attempt_history ORDER BY 1"
    for moved in (0, 1):
        assert await move_deleted(queue, TOMORROW, moved) == moved
        assert rows_of(database_url, kept) == [(1, ["first", "gold/a"]), (2, ["second"])]
        assert rows_of(database_url, shown) == [(1, "first"), (2, "second")]


async def test_a_spec_stays_while_an_appwrapper_needs_it(queue: QueueStore, database_url: str) -> None:
    await lived(queue, "gone", b"the same")
    here = await committed(queue, make_submit("here", spec=b"the same"))
    await move_deleted(queue, TOMORROW, 500)
    assert await queue.load_specs([here.spec_hash]) == {here.spec_hash: b"the same"}


async def test_appwrappers_deleted_first_are_moved_first_up_to_the_requested_number(
    queue: QueueStore, database_url: str
) -> None:
    for number in range(3):
        record = await committed(queue, make_submit(f"aw-{number}"))
        await committed(queue, removal.delete(record, NOW + timedelta(seconds=number)))
    assert await move_deleted(queue, TOMORROW, 2) == 2
    assert rows_of(database_url, "SELECT name FROM past_appwrapper ORDER BY name") == [("aw-0",), ("aw-1",)]
    assert await move_deleted(queue, TOMORROW, 2) == 1
    assert await move_deleted(queue, TOMORROW, 2) == 0


async def test_moved_appwrapper_is_still_known_to_be_deleted(queue: QueueStore) -> None:
    gone = await lived(queue, "gone", b"of one that is gone")
    here = await committed(queue, make_submit("here"))
    await move_deleted(queue, TOMORROW, 500)
    assert await queue.deleted_among({gone.uid, here.uid, "unknown"}) == {gone.uid}


async def test_attempt_that_ended_before_it_began_does_not_keep_others_from_being_moved(
    queue: QueueStore, database_url: str
) -> None:
    gone = await lived(queue, "gone", b"turned back")
    other = await lived(queue, "other", b"as it should be")
    forget_replay(database_url)
    with psycopg.connect(database_url) as connection:
        for table in ("attempt", "appwrapper"):
            turned_back = f"UPDATE {table} SET ended_at = '2026-01-01' WHERE uid = %s"
            connection.execute(turned_back.encode(), [gone.uid])
    assert await move_deleted(queue, TOMORROW, 500) == 2
    assert {uid for (uid,) in rows_of(database_url, "SELECT uid FROM past_appwrapper")} == {
        gone.uid,
        other.uid,
    }
    lasted = rows_of(
        database_url, "SELECT DISTINCT ended_at - decided_at FROM past_attempt WHERE uid = %s", gone.uid
    )
    assert lasted == [(timedelta(0),)]
