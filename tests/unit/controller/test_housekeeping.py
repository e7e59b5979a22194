"""Housekeeping is done once an hour, and a failure only postpones it; samples are taken at multiples of the period."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher import errors
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.upkeep.housekeeping import AT_ONCE, READERS_EVERY_SECONDS, Housekeeping, Sampler
from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.model.resources import Resources
from dispatcher.core.status.samples import CapacitySample, LedgerReading, QueueSample
from dispatcher.store.history.archive import BEGINNING, Part
from dispatcher.store.history.samples import SampleStore
from tests.builders import NOW, at, make_record
from tests.unit import workers
from tests.unit.virtual_time import monotonic, until
from tests.unit.workers import running

KEEP = timedelta(days=400)
DAY = timedelta(days=1)


class Database:
    """Records its calls; the calls in `fails` fail."""

    def __init__(self, deleted: int = 0, fails: dict[str, errors.StoreError] | None = None) -> None:
        self.deleted = deleted
        self.moved: list[str] = []
        self.fails = fails or {}
        self.asked: list[tuple[object, ...]] = []

    async def ensure_partitions(self, now: datetime) -> list[str]:
        self._note("make", now)
        return []

    async def next_deleted(self, before: datetime, after: tuple[datetime, str], most: int) -> Part | None:
        self._note("read", before, after, most)
        begin = int(after[1] or 0)
        uids = tuple(map(str, range(begin + 1, min(begin + most, self.deleted) + 1)))
        return Part(uids, (), (before, uids[-1])) if uids else None

    async def move_deleted(self, uids: Sequence[str]) -> int:
        self._note("move", *uids)
        self.moved += uids
        return len(uids)

    async def drop_expired(self, now: datetime, keep: timedelta) -> list[str]:
        self._note("drop", now, keep)
        return []

    async def end_overdue_readers(self, longest: timedelta) -> list[str]:
        self._note("end", longest)
        return ["ada: advisory locks"]

    def _note(self, what: str, *how: object) -> None:
        self.asked.append((what, *how))
        if what in self.fails:
            raise self.fails[what]


async def kept(database: Database) -> list[tuple[object, ...]]:
    await Housekeeping(database, lambda: NOW, KEEP).run_once()
    return database.asked


async def test_months_are_created_and_dropped_and_deleted_appwrappers_moved() -> None:
    asked = await kept(Database())
    assert asked == [("make", NOW), ("read", NOW - DAY, BEGINNING, AT_ONCE), ("drop", NOW, KEEP)]


async def test_many_deleted_appwrappers_are_moved_in_batches() -> None:
    database = Database(deleted=2 * AT_ONCE + 1)
    asked = await kept(database)
    assert [what for what, *_ in asked] == ["make", *3 * ["read", "move"], "read", "drop"]
    assert database.moved == [str(number + 1) for number in range(2 * AT_ONCE + 1)]


@pytest.mark.parametrize("what", ["make", "move", "drop"])
async def test_failed_work_is_left_to_the_next_hour_and_delays_no_other_work(what: str) -> None:
    asked = await kept(Database(deleted=2, fails={what: errors.StoreUnavailable("lock timeout")}))
    assert [each for each, *_ in asked if each != "read"] == ["make", "move", "drop"]


@pytest.mark.parametrize("what", ["make", "move", "drop"])
async def test_fenced_leader_does_no_housekeeping(what: str) -> None:
    with pytest.raises(errors.Fenced):
        await kept(Database(deleted=1, fails={what: errors.Fenced("epoch 1 is over")}))


async def test_readers_are_checked_periodically_also_after_a_failure() -> None:
    database = Database(fails={"end": errors.StoreUnavailable("gone")})
    async with workers.running(
        Housekeeping(database, lambda: NOW, KEEP, timedelta(seconds=40)).run_readers()
    ):
        await until(lambda: len(database.asked) == 2)
        database.fails = {}
        await until(lambda: len(database.asked) == 4)
    assert set(database.asked) == {("end", timedelta(seconds=40))}
    assert monotonic() >= 3 * READERS_EVERY_SECONDS


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
