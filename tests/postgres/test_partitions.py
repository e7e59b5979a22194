"""The months that history is kept in: made ahead, filled late, dropped when they are old, and in nobody's way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from msgspec.structs import replace

from dispatcher.core.model.records.record import Change
from dispatcher.errors import Fenced, StoreUnavailable
from dispatcher.store.database import Database
from dispatcher.store.history.partitions import PARTITIONED, drop_expired, ensure_partitions
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.queue import QueueStore
from tests.postgres.changes import NOW, make_submit, rows_of

YEAR = timedelta(days=400)


def at(moment: datetime, number: int) -> Change:
    """A new AppWrapper whose only event was then."""
    change = make_submit(f"aw-{number}", phase_since=moment, last_event_at=moment)
    return replace(change, events=(replace(change.events[0], at=moment),))


def partitions_of(url: str) -> dict[str, int]:
    """How many events each partition holds."""
    return dict(rows_of(url, "SELECT tableoid::regclass::text, count(*) FROM event GROUP BY 1"))


async def test_events_go_to_the_partition_of_their_month(
    queue: QueueStore, database: Database, leadership: Leadership, database_url: str
) -> None:
    made = await ensure_partitions(database, leadership.lease, datetime(2026, 11, 30, 23, 59, tzinfo=UTC))
    assert made == [f"{each}_{month}" for each in PARTITIONED for month in ("2026_11", "2026_12", "2027_01")]
    assert await ensure_partitions(database, leadership.lease, NOW) == []
    moments = [
        datetime(2026, 11, 1, tzinfo=UTC),
        datetime(2026, 11, 30, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2026, 12, 1, tzinfo=UTC),
        datetime(2031, 1, 1, tzinfo=UTC),
    ]
    await queue.commit([at(moment, number) for number, moment in enumerate(moments)])
    assert partitions_of(database_url) == {"event_2026_11": 2, "event_2026_12": 1, "event_default": 1}


async def test_a_partition_made_late_takes_over_rows_of_the_default_partition(
    queue: QueueStore, database: Database, leadership: Leadership, database_url: str
) -> None:
    await queue.commit([at(NOW, 0), at(NOW + timedelta(days=30), 1), at(NOW + timedelta(days=300), 2)])
    assert partitions_of(database_url) == {"event_default": 3}
    before = rows_of(database_url, "SELECT * FROM event ORDER BY id")
    await ensure_partitions(database, leadership.lease, NOW)
    assert partitions_of(database_url) == {"event_2026_11": 1, "event_2026_12": 1, "event_default": 1}
    assert rows_of(database_url, "SELECT * FROM event ORDER BY id") == before
    await queue.commit([at(NOW, 3)])
    assert partitions_of(database_url)["event_2026_11"] == 2


async def test_partitions_have_the_indexes_of_their_table(
    database: Database, leadership: Leadership, database_url: str
) -> None:
    await ensure_partitions(database, leadership.lease, NOW)
    found = rows_of(database_url, "SELECT count(*) FROM pg_indexes WHERE tablename = 'event_2026_12'")
    assert found == [(4,)]


async def test_only_the_leader_makes_partitions(database: Database, leadership: Leadership) -> None:
    stale = replace(leadership.lease, epoch=leadership.lease.epoch - 1)
    with pytest.raises(Fenced):
        await ensure_partitions(database, stale, NOW)


def partitions_in(url: str, table: str) -> list[str]:
    """The names of a table's partitions."""
    query = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = to_regclass(%s) ORDER BY 1"
    return [name for (name,) in rows_of(url, query, table)]


async def test_every_table_of_history_has_months(
    database: Database, leadership: Leadership, database_url: str
) -> None:
    await ensure_partitions(database, leadership.lease, NOW)
    partitioned = rows_of(
        database_url, "SELECT partrelid::regclass::text FROM pg_partitioned_table ORDER BY 1"
    )
    assert {name for (name,) in partitioned} == set(PARTITIONED)
    for (table,) in partitioned:
        months = [f"{table}_2026_11", f"{table}_2026_12", f"{table}_2027_01", f"{table}_default"]
        assert partitions_in(database_url, table) == months


async def test_a_month_is_dropped_once_all_of_it_is_too_old_and_so_is_what_no_month_had(
    queue: QueueStore, database: Database, leadership: Leadership, database_url: str
) -> None:
    then = datetime(2025, 9, 10, tzinfo=UTC)
    await ensure_partitions(database, leadership.lease, then)
    long_ago = then - timedelta(days=90)
    moments = [long_ago, then, then + timedelta(days=30), NOW]
    await queue.commit([at(moment, number) for number, moment in enumerate(moments)])
    kept_until_then = datetime(2025, 9, 30, 23, 59, 59, tzinfo=UTC)
    assert await drop_expired(database, leadership.lease, kept_until_then + YEAR, YEAR) == []
    assert partitions_of(database_url) == {"event_2025_09": 1, "event_2025_10": 1, "event_default": 1}
    # A day after the turn that the row of no month took.
    dropped = await drop_expired(database, leadership.lease, datetime(2025, 10, 2, tzinfo=UTC) + YEAR, YEAR)
    assert dropped == [f"{table}_2025_09" for table in PARTITIONED]
    assert partitions_of(database_url) == {"event_2025_10": 1, "event_default": 1}


async def test_reader_of_a_month_keeps_it_and_delays_writers_only_for_a_moment(
    queue: QueueStore, database: Database, leadership: Leadership, database_url: str
) -> None:
    await ensure_partitions(database, leadership.lease, NOW - YEAR)
    with psycopg.connect(database_url) as reader:
        reader.execute("SELECT count(*) FROM event")
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            await drop_expired(database, leadership.lease, NOW + YEAR, YEAR)
        assert (await queue.commit([make_submit()])).refused == ()
    assert "event_2025_10" in await drop_expired(database, leadership.lease, NOW + YEAR, YEAR)


async def test_a_clock_far_ahead_costs_one_month_a_day_however_often_it_is_asked(
    database: Database, leadership: Leadership, database_url: str
) -> None:
    await ensure_partitions(database, leadership.lease, NOW)
    ahead = NOW + timedelta(days=20 * 365)
    dropped = [await drop_expired(database, leadership.lease, ahead, YEAR) for _ in range(3)]
    assert dropped == [[f"{table}_2026_11" for table in PARTITIONED], [], []]


async def test_a_turn_that_was_taken_while_the_clock_was_ahead_ends_in_a_day_all_the_same(
    database: Database, leadership: Leadership, database_url: str
) -> None:
    then = datetime(2025, 1, 5, tzinfo=UTC)
    await ensure_partitions(database, leadership.lease, then)
    assert await drop_expired(database, leadership.lease, NOW + 20 * YEAR, YEAR) != []
    for hours, is_dropped in ((0, False), (23, False), (24, True)):
        dropped = await drop_expired(database, leadership.lease, NOW + timedelta(hours=hours), YEAR)
        assert bool(dropped) == is_dropped


async def test_a_month_a_day_is_dropped_until_none_is_over(
    queue: QueueStore, database: Database, leadership: Leadership, database_url: str
) -> None:
    await ensure_partitions(database, leadership.lease, datetime(2025, 1, 5, tzinfo=UTC))
    now = datetime(2026, 11, 1, tzinfo=UTC)
    dropped = [
        await drop_expired(database, leadership.lease, now + timedelta(days=day), YEAR) for day in range(4)
    ]
    assert [[name for name in names if name.startswith("event_")] for names in dropped] == [
        ["event_2025_01"],
        ["event_2025_02"],
        ["event_2025_03"],
        [],
    ]


async def test_only_the_leader_drops_months(database: Database, leadership: Leadership) -> None:
    stale = replace(leadership.lease, epoch=leadership.lease.epoch - 1)
    with pytest.raises(Fenced):
        await drop_expired(database, stale, NOW, YEAR)


async def test_a_partition_under_a_foreign_name_is_never_dropped(
    database: Database, leadership: Leadership, database_url: str
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "CREATE TABLE old_events PARTITION OF event FOR VALUES FROM ('2020-01-01') TO ('2020-02-01')"
        )
    assert await drop_expired(database, leadership.lease, NOW, YEAR) == []
    assert partitions_in(database_url, "event") == ["event_default", "old_events"]
