"""What each queue used and what it was entitled to, day by day, against a count of every interval of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Final, LiteralString

import psycopg
import pytest

from dispatcher.core.lifecycle import first_changes, queue_changes, removal
from dispatcher.core.lifecycle.first_changes import Submission
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.leaf_quota import LeafQuota
from dispatcher.store.database import Database
from dispatcher.store.history.queue_declarations import QueueDeclarationStore
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.queue import QueueStore
from tests.postgres.changes import committed, rows_of
from tests.postgres.history.attempts import charges, tries
from tests.postgres.history.conftest import MOVE, Declared, Past
from tests.postgres.history.oracle import Lives

# The first to ask for a history has it made.
pytestmark = pytest.mark.timeout(120)

A_DAY: Final = timedelta(days=1)
GPU: Final = "nvidia.com/gpu"
Key = tuple[date, str, str]
Row = tuple[float, float, float | None]
"""Weight, hours used, hours entitled."""


# --- against a count -----------------------------------------------------------------------------------------


def oracle(lives: Lives, declared: list[Declared], now: datetime) -> dict[Key, Row]:
    found: dict[Key, Row] = {}
    for since, until, quota in intervals(declared, now):
        for day, hours in days_of(since, until):
            for resource in devices(quota) or ["cpu"]:
                _, _, before = found.get((day, quota.queue, resource), (0, 0, None))
                entitled = before
                if resource in quota.nominal:
                    entitled = (before or 0) + hours * quota.nominal[resource] / unit(resource)
                found[day, quota.queue, resource] = (float(quota.weight), 0.0, entitled)
    used: dict[Key, float] = defaultdict(float)
    for life in lives.values():
        for each in tries(life):
            for held, begin, end in charges(life, each, now):
                for day, hours in days_of(begin, end):
                    for queue in each.queues:
                        for resource, amount in held.items():
                            used[day, queue, resource] += hours * amount / unit(resource)
    return {key: (weight, used[key], entitled) for key, (weight, _, entitled) in found.items()}


def intervals(declared: list[Declared], now: datetime) -> Iterator[tuple[datetime, datetime, LeafQuota]]:
    """In the order of time, also those that lasted no time."""
    ends = [*(following.at for _, following in pairwise(declared)), now]
    for each, end in zip(declared, ends, strict=True):
        for quota in each.quotas:
            yield each.at, end, quota


def days_of(begin: datetime, end: datetime) -> Iterator[tuple[date, float]]:
    """Each day of it, and how many hours."""
    midnight = begin.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    while midnight < end:
        hours = (min(end, midnight + A_DAY) - max(begin, midnight)) / timedelta(hours=1)
        if hours > 0:
            yield midnight.date(), hours
        midnight += A_DAY


def devices(quota: LeafQuota) -> list[str]:
    return [name for name in quota.nominal if "/" in name]


def unit(resource: str) -> int:
    return 1000 if resource == "cpu" else 1


def amounts(row: Row) -> list[float]:
    """The row as numbers: a queue without a quota is not one with a quota of 0."""
    return [-1 if each is None else each for each in row]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_use_and_quota_of_every_day_sum_up_every_interval(past: Past, zone: str) -> None:
    with psycopg.connect(past.url, options=f"-c timezone={zone}") as connection:
        rows = connection.execute(
            "SELECT statement_timestamp(), day, queue, resource, weight, used_h, entitled_h FROM history.fairness_daily"
        ).fetchall()
    found: dict[Key, Row] = {
        (day, queue, resource): (float(weight), used, entitled)
        for _, day, queue, resource, weight, used, entitled in rows
    }
    assert len(found) == len(rows)
    wanted = oracle(past.lives, past.declared, rows[0][0])
    assert found.keys() == wanted.keys()
    for key, row in found.items():
        assert amounts(row) == pytest.approx(amounts(wanted[key]), rel=1e-9, abs=1e-6), key
    assert any(used > 0 and entitled for _, used, entitled in found.values())
    assert any(entitled is None for _, _, entitled in found.values())
    assert any(len(each.queues) > 1 for life in past.lives.values() for each in tries(life))


def test_reader_role_may_read_it(past: Past) -> None:
    with psycopg.connect(past.url) as connection:
        connection.execute("SET ROLE dispatcher_reader")
        assert connection.execute("SELECT * FROM history.fairness_daily").fetchone() is not None


# --- by hand ------------------------------------------------------------------------------------------------

FOUR_GPUS: Final = Gang(Resources({"cpu": 500, GPU: 4}), 1)
FAIRNESS: Final[LiteralString] = (
    "SELECT day::text, queue, resource, weight, used_h, entitled_h FROM history.fairness_daily "
    "WHERE day < '2020-03-02' ORDER BY 1, 2, 3"
)


def clock(day: int, hour: int) -> datetime:
    return datetime(2020, 2, day, hour, tzinfo=UTC)


@pytest.fixture
def store(database: Database, leadership: Leadership) -> QueueDeclarationStore:
    return QueueDeclarationStore(database, lambda: leadership.lease)


def team(gpus: int, weight: int = 1) -> LeafQuota:
    return LeafQuota("team", Fraction(weight), {GPU: gpus})


@pytest.mark.parametrize("is_moved", [False, True])
async def test_a_quota_that_changed_at_noon_counts_half_and_use_stays_where_it_was_charged(
    queue: QueueStore, store: QueueDeclarationStore, database_url: str, is_moved: bool
) -> None:
    await store.declare([team(8)], clock(28, 18))
    await store.declare([team(16, weight=2)], clock(29, 12))
    await store.declare([], clock(29, 18))
    submission = Submission("aw", "group", "red", "aw", clock(28, 20), b"{}", "hash")
    record = await committed(queue, first_changes.submit(submission, FOUR_GPUS, clock(28, 20)))
    record = await committed(queue, queue_changes.move(record, ("team",), clock(28, 20)))
    record = await committed(queue, queue_changes.dispatch(record, "hub", clock(28, 21)))
    record = await committed(queue, removal.abandon(record, "lost", clock(29, 3)))
    record = await committed(queue, queue_changes.move(record, ("others",), clock(29, 4)))
    record = await committed(queue, queue_changes.dispatch(record, "hub", clock(29, 4)))
    record = await committed(queue, removal.delete(record, clock(29, 5)))
    await committed(queue, removal.release(record, clock(29, 6)))
    if is_moved:
        with psycopg.connect(database_url) as connection:
            connection.execute(MOVE)
    assert rows_of(database_url, FAIRNESS) == [
        ("2020-02-28", "team", GPU, Decimal(1), 12.0, 8.0 * 6),
        ("2020-02-29", "team", GPU, Decimal(2), 12.0, 8.0 * 12 + 16.0 * 6),
    ]


async def test_a_gang_in_two_trees_is_used_in_both_and_a_tree_without_devices_counts_cpu(
    queue: QueueStore, store: QueueDeclarationStore, database_url: str
) -> None:
    cpus = LeafQuota("tree/gold", Fraction(1), {"cpu": 2000, "memory": 2**30})
    await store.declare([team(0), cpus, LeafQuota("free", Fraction(1), {})], clock(28, 0))
    await store.declare([], clock(29, 0))
    submission = Submission("aw", "group", "red", "aw", clock(28, 1), b"{}", "hash")
    record = await committed(queue, first_changes.submit(submission, FOUR_GPUS, clock(28, 1)))
    record = await committed(queue, queue_changes.move(record, ("team", "tree/gold"), clock(28, 1)))
    record = await committed(queue, queue_changes.dispatch(record, "hub", clock(28, 1)))
    await committed(queue, removal.abandon(record, "lost", clock(28, 3)))
    one = Decimal(1)
    assert rows_of(database_url, FAIRNESS) == [
        ("2020-02-28", "free", "cpu", one, 0.0, None),
        ("2020-02-28", "team", GPU, one, 8.0, 0.0),
        ("2020-02-28", "tree/gold", "cpu", one, 1.0, 48.0),
    ]


async def test_today_counts_up_to_now(store: QueueDeclarationStore, database_url: str) -> None:
    begin = datetime.now(UTC) - timedelta(hours=3)
    await store.declare([team(8)], begin)
    query: LiteralString = "SELECT statement_timestamp(), sum(entitled_h) FROM history.fairness_daily"
    ((now, entitled),) = rows_of(database_url, query)
    assert isinstance(now, datetime)
    assert entitled == pytest.approx(8 * ((now - begin) / timedelta(hours=1)))


async def test_days_of_which_history_has_dropped_attempts_are_left_out(
    store: QueueDeclarationStore, database_url: str
) -> None:
    await store.declare([team(8)], clock(27, 12))
    await store.declare([], datetime(2020, 3, 1, 6, tzinfo=UTC))
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE hub SET history_dropped_month = '2020_02'")
    assert rows_of(database_url, FAIRNESS) == [("2020-03-01", "team", GPU, Decimal(1), 0.0, 48.0)]
