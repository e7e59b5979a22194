"""The surplus pods that a gang gives up are read back as they were written, and are lost in the revision before."""

from __future__ import annotations

from dispatcher.core.lifecycle import queue_changes, removal, run_changes
from dispatcher.core.model.growth import PodRef, Shrinking
from dispatcher.core.model.preemption import Reason
from dispatcher.core.model.record import Record
from dispatcher.core.model.resources import Resources
from dispatcher.store.queue import QueueStore
from tests.builders import at, attempt_of, make_ref
from tests.postgres.changes import make_submit, rows_of, take

ONE = Resources({"cpu": 500, "nvidia.com/gpu": 1})
PODS = (PodRef("team-a", "w-1", "uid-1"), PodRef("team-a", "w-2", "uid-2"))
WHY = "2 surplus pods preempted for team-b/other: its queue takes back its quota"
GIVES_UP = Shrinking(PODS, ONE, "uid-of-the-other")


async def shrinking(queue: QueueStore, database_url: str) -> Record:
    """A gang that runs, has grown, and gives up pods."""
    record = await take(queue, database_url, make_submit())
    record = await take(queue, database_url, queue_changes.dispatch(record, "hub", at(10)))
    record = await take(queue, database_url, run_changes.created(record, (make_ref(),), at(20)))
    record = await take(queue, database_url, run_changes.grant(record, ONE * 3, None, "3 more pods", at(30)))
    gives_up = run_changes.give_up(record, GIVES_UP, Reason.QUOTA_RECLAIMED, WHY, at(40))
    return await take(queue, database_url, gives_up)


async def test_life_with_pods_that_are_given_up_is_stored_step_by_step(
    database_url: str, queue: QueueStore
) -> None:
    record = await shrinking(queue, database_url)
    assert (record.allowed, record.grown) == (record.gang.demand + ONE, ONE * 3)
    record = await take(queue, database_url, run_changes.mark_running(record, at(50)))
    assert attempt_of(record).shrinking == GIVES_UP
    gone = run_changes.note_growth(record, record.gang.demand + ONE, at(60))
    record = await take(queue, database_url, gone)
    assert record.attempt is not None
    assert (attempt_of(record).shrinking, record.grown) == (None, ONE)
    told = rows_of(database_url, "SELECT reason, message FROM event WHERE cause = 'surplus-preempted'")
    assert told == [("QuotaReclaimed", WHY)]


async def test_removed_gang_gives_up_nothing_more(database_url: str, queue: QueueStore) -> None:
    record = await shrinking(queue, database_url)
    await take(queue, database_url, removal.delete(record, at(50)))
    assert rows_of(database_url, "SELECT shrinking, growth IS NULL FROM attempt") == [(None, False)]
