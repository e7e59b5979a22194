"""A gang that leaves because its queue is drained is evicted, also where an older release called it preempted."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import LiteralString

import psycopg
import pytest
from msgspec.structs import replace

from dispatcher.core.lifecycle import removal, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.preemption import Reason
from dispatcher.core.model.record import Change, Record
from dispatcher.store import migrate
from dispatcher.store.queue import QueueStore
from tests.builders import attempt_of
from tests.postgres.changes import LATER, committed, make_created, make_dispatch, make_submit, rows_of

HOUR = timedelta(hours=1)
STOPPED = EvictionReason("QueueStopped", "its queue team is stopped and drained")

JOBS: LiteralString = "SELECT name, evictions, requeues, lost_s FROM history.job_history ORDER BY name"
ATTEMPTS: LiteralString = "SELECT name, outcome, error_class FROM history.attempt_history ORDER BY name"
EVICTIONS: LiteralString = "SELECT name, by_uid, ran_s, reason FROM history.evictions ORDER BY name"
PREEMPTIONS: LiteralString = "SELECT name, by_uid, ran_s, reason FROM history.preemptions ORDER BY name"
LEFT: LiteralString = "SELECT name, cause FROM history.timeline WHERE to_phase = 'Requeueing' ORDER BY name"
COMMENTS: LiteralString = """
SELECT objoid::regclass::text, objsubid, description FROM pg_description
WHERE classoid = 'pg_class'::regclass ORDER BY 1, 2
"""


async def running(queue: QueueStore, name: str) -> Record:
    record = await committed(queue, make_submit(name, queue="team"))
    for step in (make_dispatch, make_created):
        record = await committed(queue, step(record))
    return await committed(queue, run_changes.mark_running(record, LATER))


def drain(record: Record) -> Change:
    return run_changes.evict(record, STOPPED, LATER, 0, LATER)


def as_before(change: Change) -> Change:
    """The drain as the release before 0029 recorded it: a preemption without a preemptor."""
    (event,) = change.events
    return replace(change, events=(replace(event, cause="preempted"),))


async def test_drain_is_an_eviction_and_no_preemption(queue: QueueStore, database_url: str) -> None:
    leaving = await committed(queue, drain(await running(queue, "drained")))
    await committed(queue, removal.removed(leaving, LATER + HOUR))
    assert rows_of(database_url, LEFT) == [("drained", "evicted")]
    assert rows_of(database_url, EVICTIONS) == [("drained", None, 3600.0, "QueueStopped")]
    assert rows_of(database_url, PREEMPTIONS) == []
    assert rows_of(database_url, JOBS) == [("drained", 1, 1, 3600.0)]


async def drained_before(queue: QueueStore, name: str) -> Record:
    """A gang that was drained by the release before, and is queued again."""
    leaving = await committed(queue, as_before(drain(await running(queue, name))))
    back = removal.removed(leaving, LATER + HOUR)
    attempt = replace(attempt_of(back.after), outcome="preempted")
    return await committed(queue, replace(back, after=replace(back.after, attempt=attempt)))


async def preempted(queue: QueueStore, name: str, preemptor: Record) -> Record:
    """A gang that was preempted for another one, and is queued again."""
    record = await running(queue, name)
    step = run_changes.preempt(record, Reason.FAIR_SHARE, "preempted for another", LATER, preemptor.uid)
    return await committed(queue, removal.removed(await committed(queue, step), LATER + HOUR))


def told(url: str) -> list[list[tuple[object, ...]]]:
    return [rows_of(url, query) for query in (LEFT, EVICTIONS, PREEMPTIONS, ATTEMPTS, JOBS)]


@pytest.mark.parametrize("is_past", [False, True], ids=["live", "past"])
async def test_drains_of_the_revision_before_become_evictions_and_go_back(
    queue: QueueStore, database_url: str, *, is_past: bool
) -> None:
    newest = rows_of(database_url, COMMENTS)
    # As the revision before wrote it: today's code needs columns that it does not have.
    drained = await drained_before(queue, "drained")
    victim = await preempted(queue, "victim", drained)
    if is_past:
        for each in (drained, victim):
            await committed(queue, removal.delete(each, LATER + 2 * HOUR))
        assert await queue.move_deleted(LATER + 3 * HOUR, 500) == 2
    await asyncio.to_thread(migrate.downgrade, database_url, "0028")
    was_drained, was_preempted = (
        ("drained", None, 3600.0, "QueueStopped"),
        ("victim", drained.uid, 3600.0, "FairShare"),
    )
    before = [
        [("drained", "preempted"), ("victim", "preempted")],
        [],
        [was_drained, was_preempted],
        [("drained", "preempted", "QueueStopped"), ("victim", "preempted", "FairShare")],
        [("drained", 0, 0, 3600.0), ("victim", 0, 0, 3600.0)],
    ]
    assert told(database_url) == before

    await asyncio.to_thread(migrate.migrate, database_url)
    await asyncio.to_thread(migrate.check, database_url)
    assert rows_of(database_url, COMMENTS) == newest
    assert told(database_url) == [
        [("drained", "evicted"), ("victim", "preempted")],
        [was_drained],
        [was_preempted],
        [("drained", "evicted", "QueueStopped"), ("victim", "preempted", "FairShare")],
        [("drained", 1, 1, 3600.0), ("victim", 0, 0, 3600.0)],
    ]
    replay_all(database_url)
    await asyncio.to_thread(migrate.downgrade, database_url, "0028")
    assert told(database_url) == before
    replay_all(database_url)


def replay_all(url: str) -> None:
    """Raises if the events of an AppWrapper do not give its row: an update has each row checked (`replay.sql`)."""
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE appwrapper SET uid = uid")
