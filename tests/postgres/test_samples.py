"""Samples: exact, all of a moment or none, and no moment twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from dispatcher.core.model.resources import Resources
from dispatcher.core.status.samples import CapacitySample, QueueSample
from dispatcher.errors import DataRefused, Fenced
from dispatcher.store.database import Database
from dispatcher.store.history.samples import REMEMBERED, SampleStore
from dispatcher.store.leadership import Leadership
from tests.postgres.changes import rows_of

AT = datetime(2026, 11, 20, 12, 5, tzinfo=UTC)
NEXT = AT + timedelta(minutes=5)
CPU = CapacitySample("east", "cpu", 8000, 3000, 1000, -500)
MEMORY = CapacitySample("east", "memory", 2**70, 1, 0, 2**70 - 1)
WEST = CapacitySample("west", "cpu", 4000, 0, 0, 4000, is_reachable=False)
DEMAND = Resources({"cpu": 1500, "memory": 3 * 2**29, "nvidia.com/gpu": 2, "nvidia.com/mig-1g.5gb": 7})
QUEUE = QueueSample("default", 3, DEMAND, 1, Resources({"memory": 2**80}))


@pytest.fixture
def samples(database: Database, leadership: Leadership) -> SampleStore:
    """What the leader writes down."""
    return SampleStore(database, lambda: leadership.lease)


async def test_samples_are_kept_as_they_are(samples: SampleStore, database_url: str) -> None:
    assert await samples.sample(AT, [CPU, MEMORY, WEST], [QUEUE, QueueSample("empty")])
    assert rows_of(database_url, "SELECT * FROM capacity_sample ORDER BY cluster, resource") == [
        (AT, "east", "cpu", 8000, 3000, 1000, -500, True),
        (AT, "east", "memory", 2**70, 1, 0, 2**70 - 1, True),
        (AT, "west", "cpu", 4000, 0, 0, 4000, False),
    ]
    assert rows_of(database_url, "SELECT * FROM queue_sample ORDER BY queue") == [
        (AT, "default", 3, Decimal("1.5"), Decimal("1.5"), 2, 1, 0, 2**50, 0),
        (AT, "empty", 0, 0, 0, 0, 0, 0, 0, 0),
    ]


async def test_known_moment_is_not_written_again_by_another_leader(
    samples: SampleStore, database_url: str
) -> None:
    assert await samples.sample(AT, [CPU], [QUEUE])
    assert not await samples.sample(AT, [WEST], [QueueSample("another"), replace(QUEUE, queued=9)])
    assert await samples.sample(NEXT, [], [QUEUE])
    assert rows_of(database_url, "SELECT at, cluster FROM capacity_sample") == [(AT, "east")]
    found = rows_of(database_url, "SELECT at, queue, queued FROM queue_sample ORDER BY at")
    assert found == [(AT, "default", 3), (NEXT, "default", 3)]


async def test_last_capacity_is_the_newest_of_that_cluster(samples: SampleStore) -> None:
    await samples.sample(AT, [CPU, MEMORY], [QUEUE])
    newest = replace(CPU, held=7, is_reachable=False)
    await samples.sample(NEXT, [newest, WEST], [QUEUE])
    assert await samples.last_capacity("east", NEXT) == [newest]
    assert await samples.last_capacity("west", NEXT + REMEMBERED) == [WEST]
    assert await samples.last_capacity("west", NEXT + REMEMBERED + timedelta(seconds=1)) == []
    assert await samples.last_capacity("south", NEXT) == []


async def test_all_of_a_moment_is_written_or_none(samples: SampleStore, database_url: str) -> None:
    with pytest.raises(DataRefused):
        await samples.sample(AT, [CPU], [replace(QUEUE, queued=2**31)])
    assert rows_of(database_url, "SELECT * FROM capacity_sample") == []


async def test_former_leader_samples_nothing(
    database: Database, leadership: Leadership, database_url: str
) -> None:
    stale = replace(leadership.lease, epoch=leadership.lease.epoch - 1)
    with pytest.raises(Fenced):
        await SampleStore(database, lambda: stale).sample(AT, [CPU], [QUEUE])
    assert rows_of(database_url, "SELECT * FROM queue_sample") == []
