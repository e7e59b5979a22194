"""A connected member is loaded in slices before it takes gangs; the gangs of a disconnected one are woken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.members.cluster_loader import AGAIN_SECONDS, ClusterLoader
from dispatcher.controller.scheduling import slices
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.slices import SLICE_SECONDS
from dispatcher.core.lifecycle import queue_changes, removal
from dispatcher.core.model.records.record import ObjectRef, Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.kube.client import ClusterClient
from tests.builders import at, attempt_of, make_record
from tests.unit import workers
from tests.unit.virtual_time import monotonic, until

GANGS = 450


def gang(number: int) -> Record:
    """A gang that runs in `east`, with an object."""
    record = queue_changes.dispatch(make_record(name=f"gang-{number}"), "east", at(1)).after
    job = ObjectRef(0, "batch/v1", "Job", "default", record.name, f"job-{number}")
    return replace(record, attempt=replace(attempt_of(record), objects=(job,)))


class Bench:
    """A hub without members, gangs that run in `east`, and a cluster loader; each step takes a slice."""

    def __init__(self, client: ClusterClient) -> None:
        self.client = client
        self.ledgers: dict[str, CapacityLedger] = {}
        self.clusters: dict[str, WatchedCluster] = {}
        self.hub = self.comes("hub")
        self.cache = Cache(self.ledgers)
        self.cache.load(map(gang, range(GANGS)))
        self.woken: list[str] = []
        self.wakes = 0
        self.turns = 0
        self.is_over = False
        self.on_turn: Callable[[], object] = lambda: None
        clock = count()
        self.loader = ClusterLoader(
            self.clusters,
            self.cache,
            self.woken.append,
            self.wake_dispatch,
            lambda: next(clock) * 2 * SLICE_SECONDS,
        )

    def comes(self, name: str) -> WatchedCluster:
        """A listed cluster."""
        ledger = CapacityLedger()
        cluster = WatchedCluster(
            name, self.client, ledger, on_capacity=lambda: None, on_pods=lambda _appwrapper: None
        )
        for each in cluster._needed:  # noqa: SLF001  # as if they were listed
            each.synced.set()
        self.clusters[name], self.ledgers[name] = cluster, ledger
        return cluster

    def goes(self, name: str) -> None:
        del self.clusters[name], self.ledgers[name]

    def wake_dispatch(self) -> None:
        self.wakes += 1

    def charged(self, name: str = "east") -> int:
        """The number of gangs counted in the ledger of a cluster without nodes."""
        return -self.ledgers[name].free()["cpu"] // 1000

    async def take_turns(self) -> None:
        while not self.is_over:
            self.turns += 1
            self.on_turn()
            await asyncio.sleep(0)


@pytest.fixture
async def bench(client: ClusterClient, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(slices, "collect_after", lambda _slices: None)  # so many slices, so many collections
    bench = Bench(client)
    async with running(bench):
        yield bench


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[None]:
    async with workers.running(bench.loader.run(), bench.take_turns()):
        yield


def fails() -> None:
    raise RuntimeError("nobody thought of this")


def uids(numbers: range = range(GANGS)) -> list[str]:
    return [f"uid-of-gang-{number}" for number in numbers]


async def test_member_gets_no_gangs_and_nothing_is_woken_until_it_is_loaded(
    bench: Bench,
) -> None:
    east = bench.comes("east")
    bench.loader.add("east")
    seen: list[tuple[bool, bool, int, int, int]] = []

    def look() -> None:
        is_loading = bench.loader.is_loading("east")
        seen.append((is_loading, east.is_ready, bench.charged(), bench.wakes, len(bench.woken)))

    bench.on_turn = look
    await bench.loader.wait_until_done()
    before = [each for each in seen if each[0]]
    assert {(is_ready, wakes, woken) for _, is_ready, _, wakes, woken in before} == {(False, 0, 0)}
    assert {charged for _, _, charged, _, _ in before} == set(range(GANGS + 1))
    assert {each[1:4] for each in seen if not each[0]} == {(True, GANGS, 1)}
    assert bench.turns > 2 * GANGS
    assert sorted(bench.woken) == sorted(uids())
    assert east.owners._roots == {f"job-{n}": f"uid-of-gang-{n}" for n in range(GANGS)}  # noqa: SLF001


async def test_gang_that_ends_during_the_load_of_its_member_is_not_counted(bench: Bench) -> None:
    bench.comes("east")
    bench.loader.add("east")
    ends: Iterator[int] = iter(range(GANGS))

    def end_one() -> None:
        number = next(ends, None)
        if number is not None and number % 2:
            bench.cache.put(removal.abandon(gang(number), "it is lost", at(2)).after)

    bench.on_turn = end_one
    await bench.loader.wait_until_done()
    assert next(ends, None) is None
    assert bench.charged() == bench.cache.count_holders("east") == GANGS // 2


async def test_gangs_of_a_disconnected_member_are_woken_and_counted_again_when_it_is_connected(
    bench: Bench,
) -> None:
    for step in (bench.comes, bench.goes, bench.comes):
        step("east")
        bench.woken.clear()
        bench.loader.add("east")
        await bench.loader.wait_until_done()
        assert sorted(bench.woken) == sorted(uids())
    assert (bench.charged(), bench.wakes) == (GANGS, 2)


async def test_member_that_is_replaced_during_its_load_is_loaded_again(
    bench: Bench,
) -> None:
    bench.comes("east")
    bench.loader.add("east")
    charged = asyncio.Event()
    bench.on_turn = lambda: charged.set() if bench.charged() else None
    await charged.wait()
    bench.on_turn = lambda: None
    bench.goes("east")
    bench.loader.add("east")
    other = bench.comes("east")
    bench.loader.add("east")
    assert not other.is_ready
    await bench.loader.wait_until_done()
    assert (other.is_ready, bench.charged(), bench.loader.is_loading("east")) == (True, GANGS, False)


async def test_drained_member_is_not_loaded_again_and_its_gangs_are_woken(
    bench: Bench,
) -> None:
    bench.cache.put(queue_changes.dispatch(make_record(name="here"), "hub", at(1)).after)
    bench.loader.add("hub")
    assert bench.hub.is_ready
    await bench.loader.wait_until_done()
    assert (bench.woken, bench.wakes) == (["uid-of-here"], 0)


async def test_failed_load_blocks_no_other_member_and_is_retried(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    east, west = bench.comes("east"), bench.comes("west")
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(east, "recount_claims", fails)
        bench.loader.add("east")
        bench.loader.add("west")
        await bench.loader.wait_until_done()
    assert (east.is_ready, west.is_ready) == (False, True)
    assert [each["cluster"] for each in logs if each["event"] == "internal_error"] == ["east"]
    bench.is_over = True
    await until(lambda: east.is_ready)
    assert monotonic() == pytest.approx(AGAIN_SECONDS, abs=1)
    assert bench.charged() == GANGS


async def test_gang_that_cannot_be_tracked_blocks_no_other_gang(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    east = bench.comes("east")
    learn = east.track

    def learn_others(record: Record) -> None:
        if record.name == "gang-7":
            raise RuntimeError("nobody thought of this")
        learn(record)

    monkeypatch.setattr(east, "track", learn_others)
    bench.loader.add("east")
    with capture_logs() as logs:
        await bench.loader.wait_until_done()
    assert (east.is_ready, len(east.owners._roots)) == (True, GANGS - 1)  # noqa: SLF001
    assert [each["appwrapper"] for each in logs if each["event"] == "internal_error"] == ["uid-of-gang-7"]


def test_charge_is_that_of_a_gang() -> None:
    """The value that `charged` divides by."""
    assert gang(0).gang.demand == Resources({"cpu": 1000})
