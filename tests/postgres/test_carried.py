"""What an attempt has finished is the next one's, also for a leader that knows no more than the database."""

from __future__ import annotations

from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.record import Phase, Record
from dispatcher.store.queue import QueueStore
from tests.builders import at, attempt_of, make_record, make_ref, make_submission
from tests.postgres.changes import committed


async def test_next_attempt_in_the_same_cluster_begins_with_its_finished_objects(queue: QueueStore) -> None:
    submitted = first_changes.submit(make_submission(), make_record(Phase.QUEUED).gang, at(0))
    record = await committed(queue, submitted)
    record = await committed(queue, queue_changes.dispatch(record, "hub", at(1)))
    record = await committed(queue, run_changes.created(record, (make_ref(0), make_ref(1)), at(2)))
    record = await committed(queue, run_changes.complete_some(record, (0,), at(3)))
    taken = run_changes.evict(
        record, EvictionReason("InsufficientPodsReady", "1 of 2"), at(4), 60, at(4), (0,)
    )
    record = await committed(queue, taken)
    await committed(queue, removal.removed(record, at(5)))

    (loaded,) = [each for each in await queue.load_live() if each.uid == record.uid]
    again = await committed(queue, queue_changes.dispatch(loaded, "hub", at(6)))
    (loaded,) = [each for each in await queue.load_live() if each.uid == record.uid]

    assert loaded.attempt == again.attempt
    assert [(ref.item, ref.done) for ref in attempt_of(again).objects] == [(0, True)]
    elsewhere = queue_changes.dispatch(await _back(queue, again), "east", at(9)).after
    assert attempt_of(elsewhere).objects == ()


async def _back(queue: QueueStore, record: Record) -> Record:
    """Held back while it is being created, and released: what is done stays done."""
    held = await committed(queue, queue_changes.suspend(record, at(7), (0,)))
    gone = await committed(queue, removal.removed(held, at(7)))
    return await committed(queue, queue_changes.resume(gone, at(8)))
