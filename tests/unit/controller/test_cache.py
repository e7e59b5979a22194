"""The cache: records, their order in the queue, and their charges change together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import pytest
from msgspec.structs import replace

from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.slices import SLICE_SECONDS, Slices
from dispatcher.core.lifecycle import first_changes, provisioning, queue_changes, removal, run_changes
from dispatcher.core.model.gangs.pods import Gate, Pod
from dispatcher.core.model.records.record import HOLDING, Change, Phase, Record
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from tests.builders import (
    at,
    make_awaiting,
    make_core_node,
    make_gang,
    make_record,
    make_requested,
    make_submission,
)


def hub() -> tuple[Cache, CapacityLedger]:
    ledger = CapacityLedger()
    ledger.set_node(make_core_node("n1", cpu=8000))
    return Cache({"hub": ledger}), ledger


def each_in_a_slice() -> Slices:
    """Slices that end after each item: then other tasks run."""
    clock = count()
    return Slices(lambda: next(clock) * SLICE_SECONDS)


@pytest.mark.parametrize("phase", Phase)
def test_capacity_is_reserved_exactly_in_the_phases_that_hold_it(phase: Phase) -> None:
    cache, ledger = hub()
    cache.put(make_record(phase))
    assert ledger.free() == Resources({"cpu": 7000 if phase in HOLDING else 8000})


def test_reservation_follows_an_appwrapper_through_its_life() -> None:
    cache, ledger = hub()
    record = make_record()
    free = []
    life: list[Callable[[Record], Change]] = [
        lambda record: queue_changes.dispatch(record, "hub", at(1)),
        lambda record: run_changes.created(record, (), at(2)),
        lambda record: run_changes.mark_running(record, at(3)),
        lambda record: removal.delete(record, at(4)),
        lambda record: removal.release(record, at(5)),
    ]
    for step in life:
        record = step(record).after
        cache.put(record)
        cache.put(record)
        free.append(ledger.free()["cpu"])
    assert free == [7000, 7000, 7000, 7000, 8000]


def test_gang_that_awaits_its_capacity_takes_none_until_it_is_there_and_counts_as_a_holder() -> None:
    cache, ledger = hub()
    free = []
    for record in (
        make_awaiting(),
        make_requested(),
        provisioning.provisioned(make_requested(), "there", at(3)).after,
    ):
        cache.put(record)
        free.append(ledger.free()["cpu"])
    assert free == [8000, 8000, 7000]
    assert cache.count_holders("hub") == 1


def test_reservation_moves_with_the_attempt_to_another_cluster() -> None:
    east, west = CapacityLedger(), CapacityLedger()
    cache = Cache({"east": east, "west": west})
    cache.put(queue_changes.dispatch(make_record(), "east", at(1)).after)
    cache.put(queue_changes.dispatch(make_record(), "west", at(1)).after)
    assert (east.free(), west.free()) == (NOTHING, Resources({"cpu": -1000}))


def test_attempt_on_a_cluster_that_is_not_known_is_charged_nowhere() -> None:
    cache, ledger = hub()
    cache.put(queue_changes.dispatch(make_record(), "elsewhere", at(1)).after)
    cache.put(make_record(Phase.DELETED))
    assert ledger.free() == Resources({"cpu": 8000})


@pytest.mark.parametrize("phase", Phase)
def test_appwrapper_belongs_to_the_cluster_of_its_objects_and_otherwise_to_the_hub(phase: Phase) -> None:
    cache, _ = hub()
    record = queue_changes.dispatch(make_record(), "east", at(1)).after
    cache.put(replace(record, phase=phase))
    assert cache.cluster_of(record.uid) == ("east" if phase in HOLDING else "hub")


def test_kept_objects_of_an_ended_gang_still_belong_to_its_cluster() -> None:
    cache, _ = hub()
    record = queue_changes.dispatch(make_record(), "east", at(1)).after
    cache.put(replace(record, phase=Phase.COMPLETED, kept_until=at(9)))
    assert cache.cluster_of(record.uid) == "east"


def test_unknown_appwrapper_belongs_to_the_hub() -> None:
    assert hub()[0].cluster_of("uid-of-nobody") == "hub"


def names(records: object) -> list[str]:
    return sorted(record.name for record in records)  # type: ignore[attr-defined]


def test_only_queued_records_are_pending_and_deleted_records_leave_the_cache() -> None:
    cache, _ = hub()
    records = {phase: make_record(phase, name=phase.value.lower()) for phase in Phase}
    cache.load(records.values())

    assert names(cache.queued()) == ["queued"]
    assert names(cache.records()) == sorted(
        phase.value.lower() for phase in Phase if phase is not Phase.DELETED
    )
    assert cache.get("uid-of-deleted") is None
    assert cache.get("uid-of-running") == records[Phase.RUNNING]
    assert sorted(cache.uids()) == sorted(f"uid-of-{name}" for name in names(cache.records()))


def test_record_that_leaves_the_queue_is_not_queued_until_it_comes_back() -> None:
    cache, _ = hub()
    records: list[Record] = [make_record(), make_record(Phase.REQUEUEING)]
    records.append(removal.removed(records[-1], at(9)).after)
    waiting = []
    for record in records:
        cache.put(record)
        waiting.append(names(cache.queued()))
    assert waiting == [["aw"], [], ["aw"]]


def test_put_record_replaces_the_cached_one() -> None:
    cache, _ = hub()
    cache.put(make_record(priority=1))
    cache.put(make_record(priority=2))
    known = cache.get("uid-of-aw")
    assert known is not None
    assert known.priority == 2
    assert len(list(cache.queued())) == 1


# --- what was dispatched and not sent yet --------------------------------------------------------------------


def dispatched(record: Record, cluster: str = "east") -> Record:
    return queue_changes.dispatch(record, cluster, at(1)).after


def taken_in(*records: Record) -> Cache:
    cache, _ = hub()
    for record in records:
        cache.put(record)
    return cache


def test_attempt_is_unsent_from_its_dispatch_until_something_may_be_there() -> None:
    queued = make_record()
    first = dispatched(queued)
    cache = taken_in(queued)
    assert not cache.is_unsent(queued)
    assert cache.dispatches == 0
    cache.put(first)
    assert cache.is_unsent(first)
    assert cache.dispatches == 1
    cache.put(run_changes.note_health_issue(first, "ClusterUnreachable", "it is away", at(2)).after)
    assert cache.is_unsent(first)
    cache.note_sent(first.uid)
    assert not cache.is_unsent(first)
    cache.put(run_changes.recover(first, at(3)).after)
    assert not cache.is_unsent(first)


def test_attempt_of_which_this_leader_did_not_see_the_dispatch_may_have_been_sent() -> None:
    adopted = first_changes.adopt(make_submission(), make_gang(), "east", 1, at(1)).after
    cache, _ = hub()
    cache.load([dispatched(make_record())])
    assert not cache.is_unsent(dispatched(make_record()))
    assert not taken_in(adopted).is_unsent(adopted)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda record: run_changes.withdraw(record, "silent", at(9), at(2)), id="withdrawn"),
        pytest.param(lambda record: queue_changes.suspend(record, at(2)), id="suspended"),
        pytest.param(lambda record: removal.delete(record, at(2)), id="deleted"),
    ],
)
def test_attempt_that_is_over_is_not_unsent(step: Callable[[Record], Change]) -> None:
    queued = make_record()
    first = dispatched(queued)
    cache = taken_in(queued, first, step(first).after)
    assert not cache.is_unsent(first)


def test_each_attempt_is_unsent_by_itself() -> None:
    queued = make_record()
    first = dispatched(queued)
    back = run_changes.withdraw(first, "silent", at(9), at(2)).after
    second = dispatched(back)
    cache = taken_in(queued, first, back, second)
    assert (cache.is_unsent(first), cache.is_unsent(second)) == (False, True)


# --- a cluster that comes and goes ---------------------------------------------------------------------------


async def test_ledger_that_is_new_is_charged_with_all_that_is_there_and_no_other() -> None:
    ledgers = {"west": CapacityLedger()}
    cache = Cache(ledgers)
    cache.put(dispatched(make_record(name="a")))
    cache.put(dispatched(make_record(name="b"), "west"))
    cache.put(make_record(name="c"))
    ledgers["east"] = CapacityLedger()
    await cache.charge_anew("east", each_in_a_slice())
    assert {name: ledger.free() for name, ledger in ledgers.items()} == {
        name: Resources({"cpu": -1000}) for name in ("east", "west")
    }
    ledgers["east"] = CapacityLedger()
    await cache.charge_anew("east", each_in_a_slice())
    await cache.charge_anew("east", each_in_a_slice())
    assert ledgers["east"].free() == Resources({"cpu": -1000})


async def test_records_that_are_put_while_a_ledger_is_charged_anew_are_charged_once() -> None:
    ledgers = {"east": CapacityLedger(), "west": CapacityLedger()}
    cache = Cache(ledgers)
    first, second, third, fourth = (dispatched(make_record(name=name)) for name in "abcd")
    cache.load([first, second, third, fourth])
    ledgers["east"] = CapacityLedger()

    async def change() -> None:
        assert ledgers["east"].free() == Resources({"cpu": -1000})  # the first is charged, the others are not
        for each in (first, second):
            cache.put(removal.abandon(each, "it is lost", at(2)).after)
        cache.put(run_changes.created(third, (), at(2)).after)
        back = run_changes.withdraw(fourth, "silent", at(9), at(2)).after
        for each in (back, dispatched(back, "west"), dispatched(make_record(name="new"))):
            cache.put(each)

    changing = asyncio.create_task(change())
    await cache.charge_anew("east", each_in_a_slice())
    assert changing.done()
    await changing
    assert {name: ledger.free() for name, ledger in ledgers.items()} == {
        "east": Resources({"cpu": -2000}),
        "west": Resources({"cpu": -1000}),
    }


async def test_gang_that_ended_while_its_cluster_was_away_is_not_charged_later() -> None:
    ledgers = {"east": CapacityLedger()}
    cache = Cache(ledgers)
    record = dispatched(make_record())
    cache.put(record)
    del ledgers["east"]
    cache.put(removal.abandon(record, "it is lost", at(2)).after)
    ledgers["east"] = CapacityLedger()
    await cache.charge_anew("east", each_in_a_slice())
    assert ledgers["east"].free() == NOTHING


@pytest.mark.parametrize("phase", Phase)
def test_gangs_that_hold_capacity_of_a_cluster_are_counted(phase: Phase) -> None:
    cache, _ = hub()
    for name in ("a", "b"):
        cache.put(make_record(phase, name=name))
        cache.put(make_record(phase, name=name))
    cache.put(dispatched(make_record(name="c")))
    counts = {name: cache.count_holders(name) for name in ("hub", "east", "west")}
    assert counts == {"hub": 2 if phase in HOLDING else 0, "east": 1, "west": 0}
    assert {name: len(list(cache.holders(name))) for name in counts} == counts
    assert [record.name for record in cache.holders("east")] == ["c"]


def test_gangs_of_a_cluster_are_one_value_until_one_of_them_changes() -> None:
    cache = taken_in(make_record(Phase.RUNNING, name="a"), dispatched(make_record(name="b")))
    before = cache.holders("hub")
    cache.put(make_record(name="queued"))
    cache.put(dispatched(make_record(name="c")))
    assert cache.holders("hub") is before
    cache.put(make_record(Phase.DELETED, name="a"))
    assert [names(each) for each in (before, cache.holders("hub"), cache.holders("east"))] == [
        ["a"],
        [],
        ["b", "c"],
    ]


def test_gang_that_goes_elsewhere_or_ends_is_not_counted_there() -> None:
    cache, _ = hub()
    record = dispatched(make_record())
    counts = []
    life: list[Callable[[Record], Change]] = [
        lambda record: run_changes.withdraw(record, "silent", at(9), at(2)),
        lambda record: queue_changes.dispatch(record, "west", at(3)),
        lambda record: removal.delete(record, at(4)),
        lambda record: removal.release(record, at(5)),
    ]
    cache.put(record)
    for step in life:
        record = step(record).after
        cache.put(record)
        counts.append((cache.count_holders("east"), cache.count_holders("west")))
    assert counts == [(0, 0), (0, 1), (0, 1), (0, 0)]


async def test_withheld_record_is_not_queued_until_it_is_released() -> None:
    cache, _ = hub()
    first, second, third = (make_record(uid=f"uid-{number}") for number in range(3))
    cache.load([first, second])
    turns = []
    for withheld in (["uid-0", "uid-2", "uid-of-nobody"], ["uid-1"], []):
        await cache.withhold(withheld, each_in_a_slice())
        cache.put(third)
        turns.append(sorted(record.uid for record in cache.queued()))
    assert turns == [["uid-1"], ["uid-0", "uid-2"], ["uid-0", "uid-1", "uid-2"]]


async def test_records_that_are_put_while_others_are_withheld_or_released_are_queued_correctly() -> None:
    cache, _ = hub()
    records = [make_record(uid=f"uid-{number}") for number in range(4)]
    cache.load(records)
    await cache.withhold(["uid-0", "uid-1", "uid-2"], each_in_a_slice())
    changed = [replace(each, version=9) for each in (*records[1:], make_record(uid="uid-4"))]

    async def change() -> None:
        for each in (replace(records[0], phase=Phase.DELETED), *changed):
            cache.put(each)

    changing = asyncio.create_task(change())
    await cache.withhold(["uid-2", "uid-3"], each_in_a_slice())
    assert changing.done()
    await changing
    assert sorted(cache.queued(), key=lambda each: each.uid) == [changed[0], changed[-1]]


async def test_withheld_record_is_charged_as_any_other() -> None:
    cache, ledger = hub()
    running = make_record(Phase.RUNNING)
    await cache.withhold([running.uid], each_in_a_slice())
    cache.put(running)
    assert ledger.free() == Resources({"cpu": 7000})
    await cache.withhold([], each_in_a_slice())
    assert list(cache.queued()) == []


def test_queued_and_suspended_appwrappers_are_counted_by_namespace() -> None:
    left: list[str] = []
    cache = Cache({}, left.append)
    queued = make_record(namespace="team")
    for record in (queued, make_record(Phase.SUSPENDED, "b", namespace="team"), make_record(name="c")):
        cache.put(record)
    assert [cache.count_undispatched(name) for name in ("team", "default", "none")] == [2, 1, 0]
    cache.put(replace(queued, priority=5))
    assert left == []
    cache.put(queue_changes.dispatch(queued, "hub", at(1)).after)
    cache.put(removal.delete(make_record(name="c"), at(1)).after)
    assert (left, cache.count_undispatched("team"), cache.count_undispatched("default")) == (
        ["team", "default"],
        1,
        0,
    )


@pytest.mark.parametrize("phase", Phase)
def test_only_queued_and_suspended_appwrappers_are_undispatched(phase: Phase) -> None:
    cache, _ = hub()
    for name, namespace in (("a", "team"), ("b", "team"), ("c", "other")):
        cache.put(make_record(phase, name=name, namespace=namespace))
        cache.put(make_record(phase, name=name, namespace=namespace))
    is_undispatched = phase in {Phase.QUEUED, Phase.SUSPENDED}
    assert cache.undispatched("team") == (["uid-of-a", "uid-of-b"] if is_undispatched else [])
    assert cache.undispatched("other") == (["uid-of-c"] if is_undispatched else [])
    assert cache.undispatched("none") == []
    assert sorted(cache.all_undispatched()) == (
        ["uid-of-a", "uid-of-b", "uid-of-c"] if is_undispatched else []
    )
    cache.put(make_record(Phase.RUNNING, name="a", namespace="team"))
    assert cache.undispatched("team") == (["uid-of-b"] if is_undispatched else [])


def test_clusters_that_have_something_of_an_appwrapper_are_occupied() -> None:
    cache, _ = hub()
    cache.put(queue_changes.dispatch(make_record(uid="1"), "east", at(1)).after)
    cache.put(make_record(Phase.QUEUED, uid="2"))
    cache.put(replace(queue_changes.dispatch(make_record(uid="3"), "west", at(1)).after, phase=Phase.FAILED))
    assert cache.occupied() == {"east", "hub"}


async def test_growing_gangs_are_read_while_other_tasks_run() -> None:
    cache, ledger = hub()
    names = [f"ray-{number}" for number in range(5)]
    for name in names:
        cache.put(record := make_record(Phase.RUNNING, name))
        ledger.set_pod(Pod(f"{name}-0", record.gang.demand, owner=record.uid, can_be_gated=True))
        gate = Gate("team-a", f"{name}-1", "2026-01-01T00:00:00Z")
        ledger.set_pod(Pod(f"{name}-1", record.gang.demand, owner=record.uid, gate=gate, can_be_gated=True))

    async def end_one() -> None:
        cache.put(replace(record, phase=Phase.DELETING))

    ending = asyncio.create_task(end_one())
    growing = await cache.growing(lambda record: record.name != "ray-2", each_in_a_slice())
    await ending
    assert [each.record.name for each in growing] == ["ray-0", "ray-1", "ray-3"]
