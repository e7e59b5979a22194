"""A gang that grew is counted with what it held, to the second; by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Final, LiteralString

import psycopg
import pytest
from psycopg.types.json import Jsonb

from dispatcher.cli.screens.describe import as_text
from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.gangs.growth import GrowthRequest, GrowthTrust, PodRef, Shrinking
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import MOST_GROWTHS_KEPT, Growth, Record
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.readers.reports import reports
from dispatcher.store.state.queue import QueueStore
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
    record = await committed(queue, first_changes.submit(make_submission(), Gang(ONE, 1), at))
    record = await committed(queue, queue_changes.dispatch(record, "hub", at))
    record = await committed(queue, run_changes.created(record, (make_object(),), at))
    return await committed(queue, run_changes.mark_running(record, at))


async def gone(queue: QueueStore, record: Record, at: datetime) -> None:
    record = await committed(queue, removal.delete(record, at))
    await committed(queue, removal.release(record, at))


@pytest.mark.parametrize("is_moved", [False, True])
async def test_one_gpu_that_grew_to_three_for_an_hour_and_shrank_to_two(
    queue: QueueStore, database_url: str, is_moved: bool
) -> None:
    record = await dispatched(queue, clock(9))
    record = await committed(queue, run_changes.note_growth(record, ONE * 3, clock(10, 15)))
    record = await committed(queue, run_changes.note_growth(record, ONE * 2, clock(11, 15)))
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
    record = await committed(queue, run_changes.note_growth(record, ONE * 3, clock(10)))
    following = QueueStore(database, lambda: leadership.lease)
    (known,) = await following.load_live()
    assert known == record
    assert known.charge == ONE * 3
    known = await committed(following, run_changes.note_growth(known, NOTHING, clock(11)))
    await gone(following, known, clock(12))
    assert rows_of(database_url, "SELECT gpu_h FROM history.attempt_history") == [(1.0 + 3 + 1,)]


async def test_a_gang_that_is_taken_back_as_it_is_large_begins_anew_with_its_demand(
    queue: QueueStore, database_url: str
) -> None:
    record = await dispatched(queue, clock(9))
    record = await committed(queue, run_changes.note_growth(record, ONE * 3, clock(10)))
    record = await committed(queue, removal.abandon(record, "lost", clock(11)))
    record = await committed(queue, queue_changes.dispatch(record, "hub", clock(12)))
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
        record = await committed(queue, run_changes.note_growth(record, ONE * (1 + number % 2), at))
    assert attempt_of(record).growth[-1] == Growth(clock(10) + timedelta(minutes=many), NOTHING)
    assert [each.attempt for each in await queue.load_live()] == [record.attempt]
    await gone(queue, record, clock(11))
    assert rows_of(database_url, "SELECT jsonb_array_length(growth) FROM attempt") == [(many,)]
    assert rows_of(database_url, "SELECT gpu_h FROM history.attempt_history") == [
        (pytest.approx(2.0 + many / 2 / 60),)
    ]


async def test_growths_at_one_time_are_all_stored(queue: QueueStore) -> None:
    """After a failover to a server whose clock is behind, all steps have the time of the last one before."""
    record = await dispatched(queue, clock(10))
    for pods in (2, 1, 2):
        granted = run_changes.grant(record, ONE * pods, None, "more", clock(9), (("0.w", pods),))
        record = await committed(queue, granted)
    (loaded,) = await queue.load_live()
    assert (loaded.grown, loaded.granted) == (ONE * 2, (("0.w", 2),))
    assert loaded.attempt == record.attempt


SPANS: LiteralString = (
    "SELECT at.hour, sum(amount::numeric * extract(epoch FROM least(until, at.hour + interval '1 hour') "
    "- greatest(since, at.hour))) FROM attempt CROSS JOIN LATERAL growth_spans(growth, %s) "
    "CROSS JOIN LATERAL jsonb_each_text(amounts) AS each(resource, amount) "
    "CROSS JOIN LATERAL generate_series(date_trunc(%s, since, 'UTC'), until, '1 hour') AS at(hour) "
    "WHERE least(until, at.hour + interval '1 hour') > greatest(since, at.hour) GROUP BY 1 ORDER BY 1"
)
MOST_STORED: Final = 400
APPEND: LiteralString = "UPDATE attempt SET growth = appended_growth(coalesce(growth, '[]'), %s::jsonb)"


def changes(pause: timedelta, count: int) -> list[dict[str, object]]:
    """So many growths, each some minutes after the other, of amounts that differ."""
    at = clock(9, 7)
    return [
        {
            "at": (at + pause * number).isoformat(),
            "amounts": {"cpu": 1000 + 7 * (number % 5)} if number % 3 else {},
        }
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("pause", "count", "unit"),
    [
        pytest.param(timedelta(seconds=30), 401, "hour", id="of-some-hours"),
        pytest.param(timedelta(minutes=7), 401, "hour", id="of-a-day"),
        pytest.param(timedelta(minutes=95), 401, "day", id="of-two-weeks"),
        pytest.param(timedelta(hours=30), 401, "month", id="of-months"),
        pytest.param(timedelta(minutes=2), 20_000, "day", id="of-a-release-that-kept-all"),
    ],
)
async def test_growths_beyond_the_bound_are_averaged_and_no_amount_is_lost(
    queue: QueueStore, database_url: str, pause: timedelta, count: int, unit: str
) -> None:
    await dispatched(queue, clock(9))
    *before, last = changes(pause, count)
    until = clock(9, 7) + pause * count
    with psycopg.connect(database_url) as connection:
        connection.execute("SET TimeZone = 'Europe/Berlin'")
        connection.execute("UPDATE attempt SET growth = %s", [Jsonb([*before, last])])
        whole = connection.execute(SPANS, (until, unit)).fetchall()
        connection.execute("UPDATE attempt SET growth = %s", [Jsonb(before)])
        connection.execute(APPEND, [Jsonb([last])])
        (stored,) = connection.execute("SELECT growth FROM attempt").fetchone() or ((),)
        assert stored[-200:] == [*before, last][-200:]
        assert 200 < len(stored) < 300
        found = connection.execute(SPANS, (until, unit)).fetchall()
    assert by_part(found, unit) == pytest.approx(by_part(whole, unit), rel=1e-8)


def by_part(amounts: list[tuple[datetime, Decimal]], unit: str) -> dict[str, float]:
    """Amounts times seconds by hours, days or months in UTC."""
    characters = {"hour": 13, "day": 10, "month": 7}[unit]
    found: dict[str, float] = {}
    for hour, amount in amounts:
        part = hour.astimezone(UTC).isoformat()[:characters]
        found[part] = found.get(part, 0.0) + float(amount)
    return found


async def test_stored_growths_are_bounded_however_often_a_gang_grows(
    queue: QueueStore, database_url: str
) -> None:
    await dispatched(queue, clock(9))
    lengths: list[int] = []
    with psycopg.connect(database_url) as connection:
        for each in changes(timedelta(minutes=11), 1500):
            connection.execute(APPEND, [Jsonb([each])])
            lengths += connection.execute("SELECT jsonb_array_length(growth) FROM attempt").fetchone() or ()
    assert max(lengths) == MOST_STORED
    shortened = sum(later < earlier for earlier, later in pairwise(lengths))
    assert shortened <= (len(lengths) - MOST_STORED) // 100 + 1


async def test_growths_without_any_time_between_them_are_dropped_but_for_the_latest(
    queue: QueueStore, database_url: str
) -> None:
    await dispatched(queue, clock(9))
    many = changes(timedelta(), 401)
    with psycopg.connect(database_url) as connection:
        connection.execute(APPEND, [Jsonb(many)])
        assert connection.execute("SELECT growth FROM attempt").fetchone() == (many[-200:],)


async def test_growth_that_was_taken_for_another_gang_is_marked(queue: QueueStore) -> None:
    record = await dispatched(queue, clock(9))
    record = await committed(queue, run_changes.grant(record, ONE, None, "1 pod may start", clock(10)))
    given = Shrinking((PodRef("team-a", "ray-1", "uid-1"),), NOTHING, "uid-of-another")
    record = await committed(
        queue, run_changes.give_up(record, given, Reason.FAIR_SHARE, "for it", clock(11))
    )
    record = await committed(queue, run_changes.note_growth(record, ONE, clock(12)))
    (loaded,) = await queue.load_live()
    assert attempt_of(loaded).growth == (Growth(clock(10), ONE), Growth(clock(12), NOTHING, is_taken=True))


async def test_growth_keeps_the_nodes_that_it_trusts(queue: QueueStore) -> None:
    record = await dispatched(queue, clock(9))
    nodes = ("potential/l4/0", "potential/l4/1")
    granted = run_changes.grant(record, ONE, None, "1 pod may start", clock(10), trusted=nodes)
    await committed(queue, granted)
    (loaded,) = await queue.load_live()
    assert attempt_of(loaded).growth_trust == GrowthTrust(clock(10), nodes)


async def test_an_attempt_that_never_grew_has_no_growth(queue: QueueStore, database_url: str) -> None:
    await dispatched(queue, clock(9))
    assert rows_of(database_url, "SELECT growth FROM attempt") == [(None,)]


async def test_show_gives_the_resources_that_a_grown_gang_holds(queue: QueueStore, database_url: str) -> None:
    record = await dispatched(queue, clock(9))
    assert "Holds:" not in await shown(database_url)
    record = await committed(queue, run_changes.note_growth(record, ONE * 3, clock(10)))
    lines = [line.strip() for line in (await shown(database_url)).splitlines()]
    assert "Asks for:   0.5 cpu, 1 GiB, 1 gpu, 1 pod" in lines
    assert "Holds:      1.5 cpu, 3 GiB, 3 gpu" in lines
    request = GrowthRequest(2, ONE * 2, clock(10, 5), "InsufficientQuota", "2 more pods wait")
    record = await committed(queue, run_changes.note_growth_request(record, request, clock(10, 5)))
    lines = [line.strip() for line in (await shown(database_url)).splitlines()]
    assert "Growth:     InsufficientQuota: 2 more pods wait" in lines
    granted = run_changes.grant(record, ONE * 3, request, "1 pod may start", clock(10, 6))
    record = await committed(queue, granted)
    lines = [line.strip() for line in (await shown(database_url)).splitlines()]
    assert "Growth:     InsufficientQuota" in lines
    record = await committed(
        queue, run_changes.grant(record, ONE * 5, None, "2 pods may start", clock(10, 7))
    )
    assert "Growth:" not in await shown(database_url)
    record = await committed(queue, run_changes.note_growth_request(record, request, clock(10, 8)))
    await gone(queue, record, clock(11))
    assert "Holds:" not in await shown(database_url)
    assert "Growth:" not in await shown(database_url)


async def shown(url: str) -> str:
    async with reports(url, timedelta(seconds=10)) as opened:
        (story,), _ = await opened.descriptions("aw")
    return as_text(story, None)
