"""Growth that waits for a grant is read back as it was written, and is lost in the revision before."""

from __future__ import annotations

from msgspec.structs import replace

from dispatcher.core.lifecycle import queue_changes, removal, run_changes
from dispatcher.core.model.growth import GrowthRequest
from dispatcher.core.model.record import Record
from dispatcher.core.model.resources import Resources
from dispatcher.store.queue import QueueStore
from tests.builders import at, make_ref
from tests.postgres.changes import make_submit, rows_of, take

ONE = Resources({"cpu": 500, "nvidia.com/gpu": 1})
WAITS = GrowthRequest(2, ONE * 2, at(40), "InsufficientQuota", "2 more pods wait: quota of team")


async def running(queue: QueueStore, database_url: str) -> Record:
    """A gang that runs."""
    record = await take(queue, database_url, make_submit())
    record = await take(queue, database_url, queue_changes.dispatch(record, "hub", at(10)))
    record = await take(queue, database_url, run_changes.created(record, (make_ref(),), at(20)))
    return await take(queue, database_url, run_changes.mark_running(record, at(30)))


async def test_life_with_growth_that_waits_is_stored_step_by_step(
    database_url: str, queue: QueueStore
) -> None:
    record = await running(queue, database_url)
    record = await take(queue, database_url, run_changes.note_growth_request(record, WAITS, at(40)))
    left = replace(WAITS, pods=1, amounts=ONE)
    granted = run_changes.grant(record, ONE, left, "1 more pod: 0.5 cpu, 1 gpu", at(50), (("0.a", 1),))
    record = await take(queue, database_url, granted)
    assert (record.growth_request, record.granted) == (left, (("0.a", 1),))
    record = await take(queue, database_url, run_changes.grant(record, ONE * 2, None, "1 more pod", at(60)))
    assert (record.growth_request, record.granted) == (None, None)
    record = await take(queue, database_url, run_changes.note_growth_request(record, WAITS, at(70)))
    await take(queue, database_url, removal.delete(record, at(80)))
    told = rows_of(
        database_url, "SELECT cause, reason, message FROM event WHERE cause ~ 'grant|growth' ORDER BY id"
    )
    assert told == [
        ("growth-waits", "InsufficientQuota", WAITS.message),
        ("granted", "InsufficientQuota", "1 more pod: 0.5 cpu, 1 gpu"),
        ("granted", "", "1 more pod"),
        ("growth-waits", "InsufficientQuota", WAITS.message),
    ]
