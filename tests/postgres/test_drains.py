"""A gang that leaves because its queue is drained is evicted."""

from __future__ import annotations

from datetime import timedelta
from typing import LiteralString

from dispatcher.core.lifecycle import removal, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.record import Change, Record
from dispatcher.store.queue import QueueStore
from tests.postgres.changes import LATER, committed, make_created, make_dispatch, make_submit, rows_of

HOUR = timedelta(hours=1)
STOPPED = EvictionReason("QueueStopped", "its queue team is stopped and drained")

JOBS: LiteralString = "SELECT name, evictions, requeues, lost_s FROM history.job_history ORDER BY name"
EVICTIONS: LiteralString = "SELECT name, by_uid, ran_s, reason FROM history.evictions ORDER BY name"
PREEMPTIONS: LiteralString = "SELECT name, by_uid, ran_s, reason FROM history.preemptions ORDER BY name"
LEFT: LiteralString = "SELECT name, cause FROM history.timeline WHERE to_phase = 'Requeueing' ORDER BY name"


async def running(queue: QueueStore, name: str) -> Record:
    record = await committed(queue, make_submit(name, queue="team"))
    for step in (make_dispatch, make_created):
        record = await committed(queue, step(record))
    return await committed(queue, run_changes.mark_running(record, LATER))


def drain(record: Record) -> Change:
    return run_changes.evict(record, STOPPED, LATER, 0, LATER)


async def test_drain_is_an_eviction_and_no_preemption(queue: QueueStore, database_url: str) -> None:
    leaving = await committed(queue, drain(await running(queue, "drained")))
    await committed(queue, removal.removed(leaving, LATER + HOUR))
    assert rows_of(database_url, LEFT) == [("drained", "evicted")]
    assert rows_of(database_url, EVICTIONS) == [("drained", None, 3600.0, "QueueStopped")]
    assert rows_of(database_url, PREEMPTIONS) == []
    assert rows_of(database_url, JOBS) == [("drained", 1, 1, 3600.0)]
