"""Recent use is read only for queues that order by it, once a minute at most, and stays if it cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import pytest
from structlog.testing import capture_logs

from dispatcher import errors
from dispatcher.controller.upkeep.usage_keeper import UsageKeeper
from dispatcher.core.queues.declared_queues import DeclaredQueues
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Order, Queue, Quota
from dispatcher.core.scheduling.sharing.recent_use import WeightedUse
from tests.builders import at
from tests.unit import workers
from tests.unit.virtual_time import monotonic

BY_USE = Queue("team", resources={"nvidia.com/gpu": Quota(8)}, order=Order.USAGE)
BY_PRIORITY = Queue("team", resources={"nvidia.com/gpu": Quota(8)})


class Bench:
    """A keeper, its queues, and what it has asked of the database."""

    def __init__(self, *queues: Queue) -> None:
        self.declared = DeclaredQueues(Forest.of(queues))
        self.asked: list[tuple[datetime, Mapping[str, Sequence[str]]]] = []
        self.seconds = 0.0
        self.failure: Exception | None = None
        self.keeper = UsageKeeper(self, self, lambda: at(monotonic()), monotonic)

    async def weighted_uses(self, asked: Mapping[str, Sequence[str]], now: datetime) -> list[WeightedUse]:
        self.asked.append((now, asked))
        await asyncio.sleep(self.seconds)  # virtual
        if self.failure is not None:
            raise self.failure
        return [WeightedUse("team", "red", "nvidia.com/gpu", len(self.asked))]

    def change(self, *queues: Queue) -> None:
        self.declared = DeclaredQueues(Forest.of(queues) if queues else Forest.undeclared())
        self.keeper.wake()

    @property
    def times(self) -> list[datetime]:
        return [now for now, _ in self.asked]


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[None]:
    await bench.keeper.refresh()
    async with workers.running(bench.keeper.run()):
        yield


async def test_without_a_queue_that_orders_by_use_nothing_is_asked() -> None:
    bench = Bench(BY_PRIORITY)
    async with running(bench):
        bench.change()
        await asyncio.sleep(3600)  # virtual
    assert (bench.asked, bench.keeper.usage) == ([], {})


async def test_it_is_asked_at_the_start_and_once_a_minute() -> None:
    bench = Bench(BY_USE)
    async with running(bench):
        assert bench.asked == [(at(0), {"team": ("nvidia.com/gpu",)})]
        assert list(bench.keeper.usage) == [("team", "red")]
        for _ in range(150):
            bench.keeper.wake()
            await asyncio.sleep(1)  # virtual
    assert bench.times == [at(0), at(60), at(120)]


async def test_a_queue_that_begins_to_order_by_use_is_asked_for_at_once() -> None:
    bench = Bench(BY_PRIORITY)
    async with running(bench):
        await asyncio.sleep(100)  # virtual
        bench.change(BY_USE)
        await asyncio.sleep(1)  # virtual
        assert bench.times == [at(100)]
        bench.change(BY_PRIORITY)
        await asyncio.sleep(70)  # virtual
        assert bench.keeper.usage == {}
        await asyncio.sleep(1000)  # virtual
    assert bench.times == [at(100)]


async def test_a_slow_reading_is_made_less_often() -> None:
    bench = Bench(BY_USE)
    bench.seconds = 8
    async with running(bench):
        await asyncio.sleep(330)  # virtual
    assert bench.times == [at(0), at(160), at(320)]


@pytest.mark.parametrize(
    ("failure", "event"),
    [
        (errors.StoreUnavailable("canceling statement due to statement timeout"), "recent_use_not_read"),
        (ValueError("no number"), "internal_error"),
    ],
)
async def test_values_stay_if_they_cannot_be_read(failure: Exception, event: str) -> None:
    bench = Bench(BY_USE)
    async with running(bench):
        before = bench.keeper.usage
        bench.failure = failure
        with capture_logs() as logs:
            await asyncio.sleep(61)  # virtual
        assert [entry["event"] for entry in logs] == [event]
        assert (len(bench.asked), bench.keeper.usage) == (2, before)
        bench.failure = None
        await asyncio.sleep(60)  # virtual
        assert bench.keeper.usage != before
