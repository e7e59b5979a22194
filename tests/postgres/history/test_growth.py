"""A gang that grew is counted with what it held, to the second; by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final, LiteralString

import psycopg
import pytest

from dispatcher.cli.describe import as_text
from dispatcher.core.lifecycle import creation_steps, first_steps, queue_steps, removal_steps, run_steps
from dispatcher.core.model.gang import Gang
from dispatcher.core.model.growth import GrowthRequest, GrowthTrust, PodRef, Shrinking
from dispatcher.core.model.preemption import Reason
from dispatcher.core.model.record import MOST_GROWTHS_KEPT, Growth, Record
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.queue import QueueStore
from dispatcher.store.reports import reports
from tests.builders import attempt_of, make_submission
from tests.postgres.changes import committed, make_object, rows_of
from tests.postgres.history.conftest import MOVE

GPU: Final = "nvidia.com/gpu"
ONE: Final = Resources({"cpu": 500, "memory": 2**30, GPU: 1})
"""The demand, and the requests of each pod."""

ATTEMPT: Final[LiteralString] = "SELECT cpu, gpu, cpu_h, memory_gib_h, gpu_h FROM history.attempt_history"
HOURS: Final[LiteralString] = (
    "SELECT to_char(hour AT TIME ZONE 'UTC', 'HH24'), gpu_h, running_avg FROM history.usage_hourly ORDER BY hour"
)


def clock(hour: int, minute: int = 0) -> datetime:
    return datetime(2020, 2, 28, hour, minute, tzinfo=UTC)


async def dispatched(queue: QueueStore, at: datetime) -> Record:
    record = await committed(queue, first_steps.submit(make_submission(), Gang(ONE, 1), at))
    record = await committed(queue, queue_steps.dispatch(record, "hub", at))
    record = await committed(queue, creation_steps.created(record, (make_object(),), at))
    return await committed(queue, run_steps.mark_running(record, at))


async def gone(queue: QueueStore, record: Record, at: datetime) -> None:
    record = await committed(queue, removal_steps.delete(record, at))
    await committed(queue, removal_steps.release(record, at))


@pytest.mark.parametrize("is_moved", [False, True])
async def test_one_gpu_that_grew_to_three_for_an_hour_and_shrank_to_two(
    queue: QueueStore, database_url: str, is_moved: bool
) -> None:
    record = await dispatched(queue, clock(9))
    record = await committed(queue, run_steps.note_growth(record, ONE * 3, clock(10, 15)))
    record = await committed(queue, run_steps.note_growth(record, ONE * 2, clock(11, 15)))
    await gone(queue, record, clock(12))
    if is_moved:
        with psycopg.connect(database_url) as connection:
            connection.execute(MOVE)
    # 1 GPU for 75 minutes, 3 for 60, 2 for 45.
    gpu_hours = 1.25 + 3 + 1.5
    assert rows_of(database_url, ATTEMPT) == [
        (Decimal("0.5"), Decimal(1), gpu_hours / 2, gpu_hours, gpu_hours)
    ]
    assert rows_of(database_url, HOURS) == [
        ("09", 1.0, 1.0),
        ("10", 0.25 + 2.25, 1.0),
        ("11", 0.75 + 1.5, 1.0),
    ]
    assert rows_of(database_url, "SELECT gpu_h FROM history.job_history") == [(gpu_hours,)]
    told: LiteralString = (
        "SELECT cause, message FROM history.timeline WHERE cause IN ('grew', 'shrank') ORDER BY id"
    )
    assert [cause for cause, _ in rows_of(database_url, told)] == ["grew", "shrank"]


async def test_the_next_leader_counts_on(
    queue: QueueStore, database: Database, leadership: Leadership, database_url: str
) -> None:
    record = await dispatched(queue, clock(9))
    record = await committed(queue, run_steps.note_growth(record, ONE * 3, clock(10)))
    following = QueueStore(database, lambda: leadership.lease)
    (known,) = await following.load_live()
    assert known == record
    assert known.charge == ONE * 3
    known = await committed(following, run_steps.note_growth(known, NOTHING, clock(11)))
    await gone(following, known, clock(12))
    assert rows_of(database_url, "SELECT gpu_h FROM history.attempt_history") == [(1.0 + 3 + 1,)]


async def test_a_gang_that_is_taken_back_as_it_is_large_begins_anew_with_its_demand(
    queue: QueueStore, database_url: str
) -> None:
    record = await dispatched(queue, clock(9))
    record = await committed(queue, run_steps.note_growth(record, ONE * 3, clock(10)))
    record = await committed(queue, removal_steps.abandon(record, "lost", clock(11)))
    record = await committed(queue, queue_steps.dispatch(record, "hub", clock(12)))
    await gone(queue, record, clock(13))
    hours: LiteralString = "SELECT attempt, gpu_h FROM history.attempt_history ORDER BY attempt"
    assert rows_of(database_url, hours) == [(1, 1.0 + 3), (2, 1.0)]


async def test_the_database_has_every_change_and_memory_the_latest(
    queue: QueueStore, database_url: str
) -> None:
    record = await dispatched(queue, clock(9))
    many = MOST_GROWTHS_KEPT + 8
    for number in range(1, many + 1):
        at = clock(10) + timedelta(minutes=number)
        record = await committed(queue, run_steps.note_growth(record, ONE * (1 + number % 2), at))
    assert attempt_of(record).growth[-1] == Growth(clock(10) + timedelta(minutes=many), NOTHING)
    assert [each.attempt for each in await queue.load_live()] == [record.attempt]
    await gone(queue, record, clock(11))
    assert rows_of(database_url, "SELECT jsonb_array_length(growth) FROM attempt") == [(many,)]
    assert rows_of(database_url, "SELECT gpu_h FROM history.attempt_history") == [
        (pytest.approx(2.0 + many / 2 / 60),)
    ]


async def test_growth_that_was_taken_for_another_gang_is_marked(queue: QueueStore) -> None:
    record = await dispatched(queue, clock(9))
    record = await committed(queue, run_steps.grant(record, ONE, None, "1 pod may start", clock(10)))
    given = Shrinking((PodRef("team-a", "ray-1", "uid-1"),), NOTHING, "uid-of-another")
    record = await committed(queue, run_steps.give_up(record, given, Reason.FAIR_SHARE, "for it", clock(11)))
    record = await committed(queue, run_steps.note_growth(record, ONE, clock(12)))
    (loaded,) = await queue.load_live()
    assert attempt_of(loaded).growth == (Growth(clock(10), ONE), Growth(clock(12), NOTHING, is_taken=True))


async def test_growth_keeps_the_nodes_that_it_trusts(queue: QueueStore) -> None:
    record = await dispatched(queue, clock(9))
    nodes = ("potential/l4/0", "potential/l4/1")
    granted = run_steps.grant(record, ONE, None, "1 pod may start", clock(10), trusted=nodes)
    await committed(queue, granted)
    (loaded,) = await queue.load_live()
    assert attempt_of(loaded).growth_trust == GrowthTrust(clock(10), nodes)


async def test_an_attempt_that_never_grew_has_no_growth(queue: QueueStore, database_url: str) -> None:
    await dispatched(queue, clock(9))
    assert rows_of(database_url, "SELECT growth FROM attempt") == [(None,)]


async def test_show_gives_the_resources_that_a_grown_gang_holds(queue: QueueStore, database_url: str) -> None:
    record = await dispatched(queue, clock(9))
    assert "Holds:" not in await shown(database_url)
    record = await committed(queue, run_steps.note_growth(record, ONE * 3, clock(10)))
    lines = [line.strip() for line in (await shown(database_url)).splitlines()]
    assert "Asks for:   0.5 cpu, 1 GiB, 1 gpu, 1 pod" in lines
    assert "Holds:      1.5 cpu, 3 GiB, 3 gpu" in lines
    request = GrowthRequest(2, ONE * 2, clock(10, 5), "InsufficientQuota", "2 more pods wait")
    record = await committed(queue, run_steps.note_growth_request(record, request, clock(10, 5)))
    lines = [line.strip() for line in (await shown(database_url)).splitlines()]
    assert "Growth:     InsufficientQuota: 2 more pods wait" in lines
    granted = run_steps.grant(record, ONE * 3, request, "1 pod may start", clock(10, 6))
    record = await committed(queue, granted)
    lines = [line.strip() for line in (await shown(database_url)).splitlines()]
    assert "Growth:     InsufficientQuota" in lines
    record = await committed(queue, run_steps.grant(record, ONE * 5, None, "2 pods may start", clock(10, 7)))
    assert "Growth:" not in await shown(database_url)
    record = await committed(queue, run_steps.note_growth_request(record, request, clock(10, 8)))
    await gone(queue, record, clock(11))
    assert "Holds:" not in await shown(database_url)
    assert "Growth:" not in await shown(database_url)


async def shown(url: str) -> str:
    async with reports(url, timedelta(seconds=10)) as opened:
        (story,), _ = await opened.descriptions("aw")
    return as_text(story, None)
