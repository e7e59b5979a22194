"""Some hours reckoned by hand, so that views and oracle cannot be wrong in the same way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from msgspec.structs import replace

from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.first_changes import Submission
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.model.records.pending_reasons import AWAITING_APPROVAL
from dispatcher.core.model.records.record import Change, Pending, Phase, Record
from dispatcher.core.model.records.requirements import Rejection
from dispatcher.core.model.resources import Resources
from dispatcher.store.state.queue import QueueStore
from tests.postgres.changes import LATER, NOW, make_submit, rows_of
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


# --- Why one was overtaken, for every reason there is to wait: a new one is explained, or this fails -------


ROOM = {
    pending_reasons.INSUFFICIENT,
    pending_reasons.RESERVED,
    pending_reasons.LARGER_THAN_CLUSTER,
    pending_reasons.AWAITING_RELEASE,
}
CLUSTERS = {
    pending_reasons.NO_CLUSTER,
    pending_reasons.NOT_SELECTED,
    pending_reasons.NOT_CONNECTED,
    pending_reasons.NOT_REPORTED,
    pending_reasons.UNREACHABLE,
    pending_reasons.CREDENTIALS_REFUSED,
    pending_reasons.ANSWERS_TOO_LARGE,
    pending_reasons.ANOTHER_CLUSTER,
    pending_reasons.CORDONED,
    pending_reasons.DRAINING,
    pending_reasons.KIND_MISSING,
    pending_reasons.NAMESPACE_MISSING,
    pending_reasons.NAMESPACE_NOT_ENABLED,
    pending_reasons.MEMBERS_UNKNOWN,
    pending_reasons.REMOVED,
    pending_reasons.NAME_TAKEN,
    pending_reasons.CLASS_MISSING,
    pending_reasons.PROVISIONING_FAILED,
    pending_reasons.REQUIRED_PODS_MISSING,
}
QUOTA = {
    pending_reasons.INSUFFICIENT_QUOTA,
    pending_reasons.OVER_NOMINAL_QUOTA,
    pending_reasons.LARGER_THAN_QUOTA,
    pending_reasons.PREEMPTED_TOO_OFTEN,
    pending_reasons.QUEUE_NOT_FOUND,
    pending_reasons.QUEUE_NOT_LEAF,
    pending_reasons.NAMESPACE_NOT_ALLOWED,
    pending_reasons.QUEUE_STOPPED,
}
NEITHER = {pending_reasons.NOT_EVALUATED, pending_reasons.CREATION_POSTPONED}


async def test_gang_that_lacks_room_is_backfilled_and_a_rejected_gang_fits_elsewhere(
    queue: QueueStore, database_url: str
) -> None:
    reasons = sorted(ROOM | CLUSTERS | QUOTA | NEITHER | {AWAITING_APPROVAL})
    waiting = (await queue.commit([make_submit(reason) for reason in reasons])).accepted
    told = (queue_changes.block(each, Pending(each.name, "it waits"), LATER) for each in waiting)
    await queue.commit([each for each in told if each])
    await overtake(queue)
    found = dict(rows_of(database_url, "SELECT name, why FROM history.overtakes"))
    assert found == (
        dict.fromkeys(ROOM, "backfill")
        | dict.fromkeys(CLUSTERS, "fits_elsewhere")
        | dict.fromkeys(QUOTA, "quota")
        | dict.fromkeys(NEITHER, "unexplained")
        | {AWAITING_APPROVAL: "not_eligible"}
    )


async def test_rejection_by_that_cluster_counts_before_the_nearest_rejection(
    queue: QueueStore, database_url: str
) -> None:
    (waiting,) = (await queue.commit([make_submit("told")])).accepted
    rejections = (
        Rejection("hub", pending_reasons.NOT_SELECTED, "its labels do not match"),
        Rejection("west", pending_reasons.INSUFFICIENT, "it is full"),
    )
    pending = Pending(pending_reasons.INSUFFICIENT, "it is full", "cpu", "west", rejections)
    blocked = queue_changes.block(waiting, pending, LATER)
    assert blocked is not None
    await queue.commit([blocked])
    await overtake(queue)
    assert rows_of(database_url, "SELECT cluster, why, waited_s FROM history.overtakes") == [
        ("hub", "fits_elsewhere", 3602.0)
    ]


async def overtake(queue: QueueStore) -> None:
    """Have one submitted later, and dispatched to the hub an hour after the others were told."""
    then = NOW + timedelta(seconds=1)
    late = make_submit("late", created_at=then, phase_since=then, last_event_at=then)
    late = replace(late, events=(replace(late.events[0], at=then),))
    (record,) = (await queue.commit([late])).accepted
    assert record.phase is Phase.QUEUED
    await queue.commit([queue_changes.dispatch(record, "hub", LATER + timedelta(hours=1))])
