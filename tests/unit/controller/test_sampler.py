"""The times and values of samples, and samples that cannot be written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher import errors
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.upkeep.housekeeping import Sampler
from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.model.resources import Resources
from dispatcher.core.status.samples import CapacitySample, LedgerReading, QueueSample
from dispatcher.store.samples import SampleStore
from tests.builders import at, make_record
from tests.unit.virtual_time import monotonic
from tests.unit.workers import running

FULL = LedgerReading(Resources({"cpu": 8000}), Resources({"cpu": 7000}))
EAST = CapacitySample("east", "cpu", 8000, 1000, 0, 7000)
WEST = CapacitySample("west", "cpu", 4000, 2000, 1000, 1000)


class FakeSampleStore(SampleStore):
    """Keeps the written samples, unless it fails; `before` has the samples of an earlier leader."""

    def __init__(self) -> None:
        self.samples: list[tuple[datetime, Sequence[CapacitySample], Sequence[QueueSample]]] = []
        self.before: dict[str, list[CapacitySample]] = {}
        self.asked: list[tuple[str, datetime]] = []
        self.failure: Exception | None = None

    async def sample(
        self, at: datetime, capacities: Sequence[CapacitySample], queues: Sequence[QueueSample]
    ) -> bool:
        if self.failure is not None:
            raise self.failure
        self.samples.append((at, capacities, queues))
        return True

    async def last_capacity(self, cluster: str, now: datetime) -> list[CapacitySample]:
        self.asked.append((cluster, now))
        return self.before.get(cluster, [])


class Bench:
    """A sampler over a queued AppWrapper and one that runs in `east`."""

    def __init__(self) -> None:
        self.cache = Cache({})
        self.cache.load([make_record(), queue_changes.dispatch(make_record(name="b"), "east", at(1)).after])
        self.known: dict[str, LedgerReading | None] = {"east": FULL}
        self.store = FakeSampleStore()
        period = timedelta(minutes=5)
        self.sampler = Sampler(self.cache, self, self.store, lambda: at(monotonic()), period)

    def readings(self) -> dict[str, LedgerReading | None]:
        return self.known

    def times(self) -> list[str]:
        """The times of the samples, on the clock."""
        return [f"{at:%H:%M:%S}" for at, _, _ in self.store.samples]

    def capacities(self) -> list[CapacitySample]:
        """The last written capacities of clusters."""
        return list(self.store.samples[-1][1])


@pytest.fixture
def bench() -> Bench:
    """A sampler without samples."""
    return Bench()


async def test_samples_are_taken_at_multiples_of_the_period(bench: Bench) -> None:
    async with running(bench.sampler.run()):
        await asyncio.sleep(700)  # virtual
    assert bench.store.samples == [
        (datetime(2026, 11, 20, 9, minute, tzinfo=UTC), [EAST], [_default()]) for minute in (0, 5)
    ]


def _default() -> QueueSample:
    one = Resources({"cpu": 1000})
    return QueueSample("default", 1, one, 1, one)


async def test_failed_sample_is_missing_and_the_next_is_taken(bench: Bench) -> None:
    bench.store.failure = errors.StoreUnavailable("no answer")
    async with running(bench.sampler.run()):
        with capture_logs() as logs:
            await asyncio.sleep(300)  # virtual
        bench.store.failure = None
        await asyncio.sleep(300)  # virtual
    assert [(entry["event"], entry["at"]) for entry in logs] == [
        ("sample_missed", "2026-11-20T09:00:00+00:00")
    ]
    assert bench.times() == ["09:05:00"]


async def test_fenced_sampler_ends(bench: Bench) -> None:
    bench.store.failure = errors.Fenced("epoch 1 is over")
    async with running(bench.sampler.run()) as task:
        with pytest.raises(errors.Fenced):
            await task


async def test_unreachable_cluster_has_the_capacity_of_its_last_sample(bench: Bench) -> None:
    bench.known["west"] = LedgerReading(Resources({"cpu": 4000}), Resources({"cpu": 3500}))
    await bench.sampler.sample(at(0))
    bench.known["west"] = None
    for _ in range(2):
        await bench.sampler.sample(at(1))
        gone = CapacitySample("west", "cpu", 4000, 0, 0, 3500, is_reachable=False)
        assert bench.capacities() == [EAST, gone]
    assert bench.store.asked == []


async def test_cluster_unreachable_since_before_this_leader_has_its_recorded_capacity(bench: Bench) -> None:
    bench.store.before = {"west": [WEST]}
    bench.known |= {"west": None, "south": None}
    for _ in range(2):
        await bench.sampler.sample(at(0))
        assert bench.capacities() == [EAST, replace(WEST, held=0, is_reachable=False)]
    assert bench.store.asked == [("west", at(0)), ("south", at(0))]


async def test_removed_cluster_is_not_sampled(bench: Bench) -> None:
    bench.known["west"] = FULL
    await bench.sampler.sample(at(0))
    del bench.known["west"]
    await bench.sampler.sample(at(1))
    assert bench.capacities() == [EAST]
