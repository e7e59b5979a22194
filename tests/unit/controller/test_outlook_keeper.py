"""The keeper of outlooks: when statuses are written, and when advice is sought."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import timedelta

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.upkeep import outlook_keeper
from dispatcher.controller.upkeep.outlook_keeper import OutlookKeeper
from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.status import outlook
from dispatcher.core.status.outlook import (
    MOST_ADVISED_OF_A_QUEUE,
    MOST_DISPATCHED,
    MOST_EXACT,
    MOST_PASSED,
    Outlook,
)
from tests.builders import WAITS, at, attempt_of, make_core_node, make_gang, make_record
from tests.unit.virtual_time import monotonic


def queued(number: int) -> Record:
    gang = make_gang(cpu=2000)
    return make_record(uid=f"q{number}", name=f"q{number}", created_at=at(number), gang=gang, pending=WAITS)


class Bench:
    """A hub with a node of 4 CPUs, a gang that holds 3 of them, and a keeper of the outlooks in `statuses`."""

    def __init__(self) -> None:
        self.ledger = CapacityLedger()
        self.ledger.set_node(make_core_node("n1", cpu=4000))
        self.ledgers = {"hub": self.ledger}
        self.cache = Cache(self.ledgers)
        self.cache.put(make_record(Phase.RUNNING, uid="holder", name="holder", gang=make_gang(cpu=3000)))
        self.statuses: dict[str, Outlook] = {}
        self.written: list[str] = []
        self.keeper = self.make_keeper()

    def make_keeper(self) -> OutlookKeeper:
        """The keeper of this leader, or of the next one."""
        return OutlookKeeper(
            self.cache,
            self,
            SchedulingRules,
            lambda: at(monotonic()),
            lambda uid: self.statuses.get(uid, {}),
            self.written.append,
            timedelta(seconds=10),
            monotonic,
        )

    def snapshots(self, _requirements: Iterable[ClusterRequirements]) -> Mapping[str, ClusterSnapshot]:
        return {"hub": ClusterSnapshot("hub", self.ledger.snapshot())}

    def reserve_of(self, _cluster: str) -> Resources:
        return NOTHING

    def put(self, *numbers: int) -> None:
        for number in numbers:
            self.cache.put(queued(number))

    def remove(self, number: int) -> None:
        self.cache.put(replace(queued(number), phase=Phase.SUSPENDED))

    def dispatch(self, number: int) -> None:
        """Dispatch so many other gangs."""
        for each in range(number):
            waiting = make_record(uid=f"d{each}", name=f"d{each}", gang=make_gang(cpu=1))
            self.cache.put(waiting)
            self.cache.put(queue_changes.dispatch(waiting, "hub", at(0)).after)

    async def renewed(self) -> list[str]:
        """Run a round; return the AppWrappers whose statuses it has written."""
        self.written.clear()
        await self.keeper.renew()
        for uid in self.written:
            found = self.keeper.outlook_of(uid)
            assert found is not None
            self.statuses[uid] = found
        return list(self.written)


async def test_first_gangs_get_position_holder_and_repair() -> None:
    bench = Bench()
    bench.put(1, 2)
    assert await bench.renewed() == ["q1", "q2"]
    assert bench.statuses["q1"]["holders"][0]["name"] == "holder"
    assert bench.statuses["q1"]["repair"]["add_nodes"]["count"] == 1
    assert [bench.statuses[uid]["position"] for uid in ("q1", "q2")] == [1, 2]


async def test_nothing_is_written_and_nothing_sought_while_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.put(*range(50))
    await bench.renewed()
    monkeypatch.setattr(outlook_keeper, "PAUSE_FACTOR", 0)
    assert await bench.renewed() == []
    monkeypatch.delattr(outlook_keeper, "search_in_steps")  # a search would raise
    assert await bench.renewed() == []


async def test_a_defect_of_the_search_keeps_no_position_from_a_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.put(1, 2)
    monkeypatch.setattr(outlook_keeper, "PAUSE_FACTOR", 0)
    monkeypatch.delattr(outlook_keeper, "search_in_steps")  # whatever a defect may be
    with capture_logs() as logs:
        assert await bench.renewed() == ["q1", "q2"]
        assert await bench.renewed() == []
    assert [each["event"] for each in logs] == ["internal_error"]
    assert bench.statuses["q2"] == {"position": 2, "queueLength": 2}


async def test_new_leader_writes_nothing_where_the_statuses_show_the_same() -> None:
    bench = Bench()
    bench.put(*range(50))
    await bench.renewed()
    bench.keeper = bench.make_keeper()
    assert bench.keeper.outlook_of("q1") is None
    assert await bench.renewed() == []
    assert bench.keeper.outlook_of("q1") == bench.statuses["q1"]


async def test_gang_without_a_position_has_an_empty_outlook_once_positions_are_counted() -> None:
    bench = Bench()
    assert bench.keeper.outlook_of("q1") is None
    await bench.renewed()
    bench.put(1)
    assert bench.keeper.outlook_of("q1") == {}


async def test_round_writes_a_bounded_number_of_statuses_of_late_gangs_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outlook, "MOST_WRITES", 30)
    bench = Bench()
    bench.put(*range(100))
    first, second, third, fourth = [await bench.renewed() for _ in range(4)]
    assert first == [f"q{number}" for number in range(MOST_EXACT + 30)]
    assert second == [f"q{number}" for number in range(50, 80)]
    assert third == [f"q{number}" for number in range(80, 100)]
    assert fourth == []


async def test_queue_that_falls_behind_keeps_its_outlook_until_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.put(*range(10))
    await bench.renewed()
    monkeypatch.setattr(outlook, "MOST_WRITES", 3)
    bench.remove(0)
    assert await bench.renewed() == ["q1", "q2", "q3"]
    behind = bench.keeper.outlook_of("q4")
    assert behind is not None
    assert behind["position"] == 5
    bench.remove(1)  # q2 and q3 change again, but the others have fallen behind before
    assert await bench.renewed() == ["q4", "q5", "q6"]
    assert await bench.renewed() == ["q7", "q8", "q9"]
    assert await bench.renewed() == ["q2", "q3"]


async def test_advice_follows_the_cluster() -> None:
    bench = Bench()
    bench.put(1, 2)
    await bench.renewed()
    bench.cache.put(make_record(Phase.SUSPENDED, uid="holder", name="holder"))
    bench.keeper = bench.make_keeper()
    assert await bench.renewed() == ["q1", "q2"]
    assert bench.statuses == {
        "q1": {"position": 1, "queueLength": 2},
        "q2": {"position": 2, "queueLength": 2},
    }


def holder(**durations: int) -> Record:
    """The gang that holds capacity since `NOW`, with these durations."""
    record = make_record(Phase.RUNNING, uid="holder", name="holder", gang=make_gang(cpu=3000), **durations)
    return replace(record, attempt=replace(attempt_of(record), decided_at=at(0)))


async def test_start_is_estimated_again_once_a_known_end_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlook_keeper, "PAUSE_FACTOR", 0)
    bench, times = Bench(), [0.0]
    monkeypatch.setattr(bench.keeper, "_now", lambda: at(times[-1]))
    bench.cache.put(holder(expected_seconds=100, limit_seconds=1000))
    bench.put(1)
    shown = []
    for seconds in (50, 99, 100, 999, 1000):
        times.append(seconds)
        was_written = bool(await bench.renewed())
        status = bench.statuses["q1"]
        shown.append((was_written, status.get("estimatedStart"), status.get("estimateUnknown")))
    no_end = "no end is known for holder (cpu 3, past its dispatchDuration)"
    assert shown == [
        (True, "2026-11-20T08:59:46Z", None),
        (False, "2026-11-20T08:59:46Z", None),
        (True, "2026-11-20T09:14:46Z", None),
        (False, "2026-11-20T09:14:46Z", None),
        (True, None, no_end),
    ]


async def test_status_is_not_written_for_a_start_that_moves_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlook_keeper, "PAUSE_FACTOR", 0)
    bench = Bench()
    bench.put(1)
    written = []
    for seconds in (1000, 1050, 1100):
        bench.cache.put(holder(expected_seconds=seconds))
        written.append(await bench.renewed())
    assert written == [["q1"], [], []]
    bench.cache.put(holder(expected_seconds=1200))
    assert await bench.renewed() == ["q1"]


async def test_long_search_is_followed_by_a_longer_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(0, 1000, 2))
    bench = Bench()
    bench.put(1)
    keeper = bench.keeper
    monkeypatch.setattr(keeper, "_monotonic", lambda: float(next(seconds)))
    await keeper.renew()
    before = keeper.outlook_of("q1")
    bench.cache.put(make_record(Phase.SUSPENDED, uid="holder", name="holder"))
    await keeper.renew()
    assert keeper.outlook_of("q1") == before


async def test_busy_rounds_are_passed_over_up_to_a_bound() -> None:
    bench = Bench()
    bench.put(*range(50))
    written = []
    for _ in range(2 * (MOST_PASSED + 1)):
        bench.dispatch(MOST_DISPATCHED + 1)
        written.append(await bench.renewed())
    assert [bool(each) for each in written] == 2 * [*MOST_PASSED * [False], True]
    assert bench.keeper.outlook_of("q0") == bench.statuses["q0"]


async def test_round_with_few_dispatches_is_not_busy() -> None:
    bench = Bench()
    bench.put(*range(50))
    bench.dispatch(MOST_DISPATCHED)
    assert len(await bench.renewed()) == 50


async def test_busy_round_writes_the_first_gangs_and_a_few_others_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outlook, "MOST_PASSED", 0)
    monkeypatch.setattr(outlook, "MOST_BUSY_WRITES", 3)
    bench = Bench()
    bench.put(*range(50))
    bench.dispatch(MOST_DISPATCHED + 1)
    assert await bench.renewed() == [f"q{number}" for number in range(MOST_ADVISED_OF_A_QUEUE + 3)]
    bench.remove(0)  # all positions change; q5 is a first gang now, and q6 and q7 are the last to fall behind
    bench.dispatch(MOST_DISPATCHED + 1)
    assert await bench.renewed() == ["q1", "q2", "q3", "q4", "q5", "q8", "q9", "q10"]
    assert len(await bench.renewed()) == 50 - 1 - 5 - 3


# --- gangs that begin to wait ------------------------------------------------------------------------------


def begins_to_wait(bench: Bench, *numbers: int) -> None:
    """Commit that gangs were refused for the first time."""
    for number in numbers:
        before = replace(queued(number), pending=None)
        bench.cache.put(before)
        change = queue_changes.block(before, WAITS, at(number + 1))
        assert change is not None
        bench.cache.put(change.after)
        bench.keeper.note(change)


async def test_gang_that_begins_to_wait_gets_its_position_before_the_next_round() -> None:
    bench = Bench()
    bench.put(1)
    await bench.renewed()
    bench.written.clear()
    begins_to_wait(bench, 2)
    await bench.keeper.place_new()
    assert bench.written == ["q2"]
    assert bench.keeper.outlook_of("q2") == {"position": 2, "queueLength": 2}
    await bench.keeper.place_new()
    assert bench.written == ["q2"]
    assert "q2" in await bench.renewed()  # with the rest of its outlook, and q1 with the new length
    assert bench.statuses["q2"]["position"] == 2


async def test_gang_that_waits_on_is_not_new() -> None:
    bench = Bench()
    waiting = queued(1)
    bench.cache.put(waiting)
    other = replace(WAITS, reason="ReservedForAnother")
    change = queue_changes.block(waiting, other, at(5))
    assert change is not None
    bench.keeper.note(change)
    await bench.keeper.place_new()
    assert bench.written == []


async def test_few_new_gangs_get_their_position_at_once_and_none_in_a_busy_round() -> None:
    bench = Bench()
    await bench.renewed()
    begins_to_wait(bench, *range(30))
    await bench.keeper.place_new()
    assert bench.written == [f"q{number}" for number in range(outlook_keeper.MOST_NEW)]
    bench.written.clear()
    begins_to_wait(bench, 40)
    bench.dispatch(MOST_DISPATCHED + 1)
    await bench.keeper.place_new()
    assert bench.written == []


async def test_keeper_that_runs_places_new_gangs_between_its_rounds() -> None:
    bench = Bench()
    running = asyncio.create_task(bench.keeper.run())
    try:
        await asyncio.sleep(3)
        begins_to_wait(bench, 1)
        await asyncio.sleep(outlook_keeper.NEW_SECONDS / 5)
        first = list(bench.written)
        begins_to_wait(bench, 2)
        await asyncio.sleep(2 * outlook_keeper.NEW_SECONDS)
        assert (first, bench.written) == (["q1"], ["q1", "q2"])
        await asyncio.sleep(10)
        assert "q1" in bench.written[2:]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_round_begins_in_time_after_a_count_for_new_gangs_right_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pause after the count is longer than the time that is left."""
    bench, rounds = Bench(), list[float]()
    count = bench.keeper.place_new

    async def renew() -> None:
        rounds.append(monotonic())

    async def count_slowly() -> None:
        await count()
        await asyncio.sleep(0.4)  # virtual

    monkeypatch.setattr(bench.keeper, "renew", renew)
    monkeypatch.setattr(bench.keeper, "place_new", count_slowly)
    running = asyncio.create_task(bench.keeper.run())
    try:
        await asyncio.sleep(9)  # virtual
        begins_to_wait(bench, 1)
        await asyncio.sleep(12)
        assert [each - rounds[0] for each in rounds] == pytest.approx([0, 10, 20], abs=0.1)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
