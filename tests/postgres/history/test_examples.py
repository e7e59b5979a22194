"""Some hours reckoned by hand, so that views and oracle cannot be wrong in the same way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.first_changes import Submission
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.gang import Gang
from dispatcher.core.model.record import Change, Record
from dispatcher.core.model.resources import Resources
from dispatcher.store.queue import QueueStore
from tests.postgres.changes import rows_of
from tests.postgres.history.conftest import MOVE

TWO_GPUS = Gang(Resources({"cpu": 500, "memory": 2**32, "nvidia.com/gpu": 2}), 1)


def clock(hour: int, minute: int, second: int = 0) -> datetime:
    return datetime(2020, 2, 29, hour, minute, second, tzinfo=UTC)


class Told:
    """Commits one change after the other of one AppWrapper."""

    def __init__(self, queue: QueueStore, name: str = "aw") -> None:
        self._queue, self.name = queue, name

    async def begins(self, now: datetime, created_at: datetime) -> Record:
        submission = Submission(self.name, "group", "red", self.name, created_at, b"{}", "hash")
        return await self.goes_on(first_changes.submit(submission, TWO_GPUS, now))

    async def goes_on(self, change: Change) -> Record:
        (record,) = (await self._queue.commit([change])).accepted
        return record

    async def runs(self, record: Record, cluster: str, times: tuple[datetime, ...]) -> Record:
        """Dispatch, create and start it."""
        decided, created, started = times
        record = await self.goes_on(queue_changes.dispatch(record, cluster, decided))
        record = await self.goes_on(run_changes.created(record, (), created))
        return await self.goes_on(run_changes.mark_running(record, started))


async def requeued(queue: QueueStore) -> None:
    """Half an hour on west, lost with it; from 11:15 to 13:00 on east, then completed, deleted and moved."""
    told = Told(queue)
    record = await told.begins(clock(10, 10), created_at=clock(10, 0))
    record = await told.runs(record, "west", (clock(10, 30), clock(10, 31), clock(10, 32)))
    record = await told.goes_on(removal.abandon(record, "west is lost", clock(11, 0)))
    record = await told.runs(record, "east", (clock(11, 15), clock(11, 15, 30), clock(11, 30)))
    record = await told.goes_on(run_changes.complete(record, (), clock(13, 0), clock(13, 0)))
    await told.goes_on(removal.delete(record, clock(14, 0)))


USAGE = (
    "SELECT hour, cluster, cpu_h, memory_gib_h, gpu_h, running_avg FROM history.usage_hourly ORDER BY 1, 2"
)
JOB = (
    "SELECT eligible_at, wait_s, queue_s, startup_s, run_s, lost_s, gpu_h, attempts, requeues, evictions, outcome "
    "FROM history.job_history"
)


@pytest.mark.parametrize("is_moved", [False, True])
async def test_hours_count_the_time_for_which_capacity_was_held(
    queue: QueueStore, database_url: str, is_moved: bool
) -> None:
    await requeued(queue)
    if is_moved:
        with psycopg.connect(database_url) as connection:
            connection.execute(MOVE)
    assert rows_of(database_url, USAGE) == [
        (clock(10, 0), "west", 0.25, 2.0, 1.0, 0.5),
        (clock(11, 0), "east", 0.375, 3.0, 1.5, 0.75),
        (clock(12, 0), "east", 0.5, 4.0, 2.0, 1.0),
    ]
    assert rows_of(database_url, JOB) == [
        (clock(10, 0), 1920.0, 1800.0, 120.0, 1680.0 + 5400.0, 1800.0, 4.5, 2, 1, 0, "completed")
    ]


async def test_gang_that_never_starts_counts_with_its_wait_so_far(
    queue: QueueStore, database_url: str
) -> None:
    gone, held = Told(queue, "gone"), Told(queue, "held")
    record = await gone.begins(clock(10, 0), created_at=clock(9, 0))
    await gone.goes_on(removal.delete(record, clock(11, 0)))
    record = await held.begins(clock(10, 0), created_at=clock(10, 0))
    await held.goes_on(queue_changes.suspend(record, clock(14, 0)))
    refused = Submission("no", "group", "red", "no", clock(10, 0), b"{}", "hash")
    await gone.goes_on(first_changes.reject(refused, "it is no AppWrapper", clock(20, 0)))
    stats = "SELECT day::text, gpu_class, n, p50_s, max_s, still_waiting, oldest_wait_s FROM history.wait_stats_daily"
    assert rows_of(database_url, stats) == [("2020-02-29", "2", 2, 10800.0, 14400.0, 0, None)]


async def test_gang_that_was_suspended_at_first_waits_from_the_day_of_its_release(
    queue: QueueStore, database_url: str
) -> None:
    told = Told(queue)
    created_at = clock(0, 0) - timedelta(hours=1)
    submission = Submission("aw", "group", "red", "aw", created_at, b"{}", "hash", suspended=True)
    record = await told.goes_on(first_changes.submit(submission, TWO_GPUS, created_at))
    record = await told.goes_on(queue_changes.resume(record, clock(8, 0)))
    await told.goes_on(removal.delete(record, clock(9, 0)))
    stats = "SELECT day::text, n, p50_s FROM history.wait_stats_daily"
    assert rows_of(database_url, stats) == [("2020-02-29", 1, 3600.0)]


async def test_a_failure_wastes_the_capacity_held_until_its_pods_were_gone(
    queue: QueueStore, database_url: str
) -> None:
    told = Told(queue)
    record = await told.begins(clock(10, 0), created_at=clock(10, 0))
    record = await told.runs(record, "east", (clock(10, 0), clock(10, 0), clock(10, 0)))
    record = await told.goes_on(
        run_changes.fail(record, EvictionReason("FailedComponent", "it failed"), clock(11, 0))
    )
    await told.goes_on(removal.removed(record, clock(12, 30)))
    query = "SELECT day::text, cluster, error_class, n, gpu_h_wasted FROM history.failures_daily"
    assert rows_of(database_url, query) == [("2020-02-29", "east", "FailedComponent", 1, 5.0)]
