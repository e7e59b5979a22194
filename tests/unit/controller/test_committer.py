"""Group commit: one transaction for what gathered, and only what was committed is believed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher.api.notifications import Choices, choices_in
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.committer import LARGEST_BATCH, LARGEST_BATCH_BYTES, Committer
from dispatcher.core.lifecycle import first_changes, queue_changes, removal
from dispatcher.core.model.clusters.nodes import Toleration
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.records.record import Change, Record
from dispatcher.core.model.resources import NOTHING
from dispatcher.errors import Fenced
from tests.builders import at, make_gang, make_record, make_submission
from tests.unit import workers
from tests.unit.controller.store import FakeStore


def submitted(name: str) -> Change:
    return first_changes.submit(make_submission(name), make_gang(), at(0))


def nobody(_change: Change, _record: Record) -> None:
    """Is told what was committed."""


def nothing(_uid: str) -> None:
    """No watch shows what an AppWrapper chooses."""


@asynccontextmanager
async def committing(
    store: FakeStore,
    announce: Callable[[Change, Record], None] = nobody,
    choices_of: Callable[[str], Choices | None] = nothing,
) -> AsyncIterator[tuple[Committer, Cache]]:
    cache = Cache({})
    committer = Committer(store, cache, announce, choices_of)
    async with workers.running(committer.run()):
        yield committer, cache


async def test_lone_change_is_committed_at_once_and_then_in_the_cache() -> None:
    store, change = FakeStore(), submitted("aw")
    async with committing(store) as (committer, cache):
        record = await committer.commit(change)
        assert cache.get("uid-of-aw") == record
    assert record == replace(change.after, enqueue_seq=1)
    assert store.batches == [[("aw", "submitted")]]


async def test_changes_that_gather_during_a_transaction_are_the_next_one() -> None:
    store = FakeStore()
    store.gate.clear()
    async with committing(store) as (committer, _):
        first = asyncio.create_task(committer.commit(submitted("first")))
        await asyncio.sleep(1)
        rest = [asyncio.create_task(committer.commit(submitted(name))) for name in ("b", "a", "c")]
        await asyncio.sleep(1)
        store.gate.set()
        await asyncio.gather(first, *rest)

    assert store.batches == [
        [("first", "submitted")],
        [("b", "submitted"), ("a", "submitted"), ("c", "submitted")],
    ]


async def test_second_change_to_one_appwrapper_waits_for_the_next_transaction() -> None:
    store, record = FakeStore(), make_record()
    change, second = queue_changes.dispatch(record, "hub", at(1)), removal.delete(record, at(2))
    async with committing(store) as (committer, _):
        await asyncio.gather(
            committer.commit(change), committer.commit(second), committer.commit(submitted("other"))
        )

    assert store.batches == [
        [("aw", "dispatched"), ("other", "submitted")],
        [("aw", "deleted")],
    ]


async def test_transaction_has_a_largest_size() -> None:
    store = FakeStore()
    async with committing(store) as (committer, _):
        changes = [submitted(f"aw-{index}") for index in range(LARGEST_BATCH + 1)]
        assert len(await committer.commit_all(changes)) == LARGEST_BATCH + 1
    assert [len(batch) for batch in store.batches] == [LARGEST_BATCH, 1]


async def test_record_that_moved_meanwhile_is_none_and_not_in_the_cache() -> None:
    async with committing(FakeStore(lambda _change: "stale"), never_called) as (committer, cache):
        assert await committer.commit(submitted("aw")) is None
        assert cache.get("uid-of-aw") is None


async def test_change_the_database_cannot_hold_is_none_and_logged_and_harms_no_other() -> None:
    store = FakeStore(lambda change: "NUL in a name" if change.after.name == "bad" else "")
    with capture_logs() as logs:
        async with committing(store) as (committer, _):
            records = await committer.commit_all([submitted("good"), submitted("bad")])

    assert [record.name for record in records] == ["good"]
    assert logs == [
        {
            "component": "committer",
            "event": "change_refused",
            "log_level": "error",
            "appwrapper": "uid-of-bad",
            "error": "NUL in a name",
        }
    ]


async def test_failure_of_the_store_cancels_waiting_callers_and_ends_the_committer() -> None:
    store = FakeStore()
    store.gate.clear()
    store.failure = Fenced("another leads")
    cache = Cache({})
    committer = Committer(store, cache, nobody, nothing)
    running = asyncio.create_task(committer.run())
    waiting = [asyncio.create_task(committer.commit(submitted("under-way")))]
    await asyncio.sleep(1)
    waiting.append(asyncio.create_task(committer.commit(submitted("gathered"))))
    await asyncio.sleep(1)
    store.gate.set()

    with pytest.raises(Fenced, match="another leads"):
        await running
    await asyncio.wait(waiting)
    assert [task.cancelled() for task in waiting] == [True, True]
    assert cache.uids() == []


async def test_end_of_the_committer_while_it_announces_cancels_waiting_callers() -> None:
    told: list[str] = []

    def end_after_the_first(_change: Change, record: Record) -> None:
        told.append(record.name)
        running.cancel()

    committer = Committer(
        FakeStore(), cache := Cache({}), end_after_the_first, nothing, monotonic=count(step=1).__next__
    )
    running = asyncio.create_task(committer.run())
    waiting = [asyncio.create_task(committer.commit(submitted(name))) for name in ("first", "second")]
    await asyncio.wait([running, *waiting])
    assert ([task.cancelled() for task in waiting], told) == ([False, True], ["first"])
    assert set(cache.uids()) == {"uid-of-first", "uid-of-second"}


def never_called(change: Change, _record: Record) -> None:
    raise AssertionError(change)


async def test_committed_change_is_announced_once_with_the_record_of_the_store() -> None:
    told: list[tuple[Change, Record]] = []
    change = submitted("aw")
    async with committing(FakeStore(), lambda change, record: told.append((change, record))) as (
        committer,
        _,
    ):
        record = await committer.commit(change)
    assert told == [(change, record)]


async def test_caller_that_gives_up_does_not_undo_its_commit() -> None:
    store = FakeStore()
    store.gate.clear()
    async with committing(store) as (committer, cache):
        impatient = asyncio.create_task(committer.commit(submitted("aw")))
        await asyncio.sleep(1)
        impatient.cancel()
        await asyncio.sleep(0)
        store.gate.set()
        await committer.commit(submitted("other"))
        assert set(cache.uids()) == {"uid-of-aw", "uid-of-other"}


async def test_transaction_has_a_largest_size_in_bytes_too_and_new_appwrappers_keep_their_order() -> None:
    store = FakeStore()
    sizes = [1, 1, 3, 2, 1, 0, 9, 1]  # in quarters of what a transaction may have
    quarter = LARGEST_BATCH_BYTES // 4
    changes = [
        first_changes.submit(
            make_submission(f"aw-{index}", spec=b"x" * quarter * size, spec_hash=str(index)),
            make_gang(),
            at(0),
        )
        for index, size in enumerate(sizes)
    ]
    async with committing(store) as (committer, _):
        records = await committer.commit_all([replace(each, spec=each.spec or None) for each in changes])
    assert [[name for name, _ in batch] for batch in store.batches] == [
        ["aw-0", "aw-1", "aw-5"],
        ["aw-2"],
        ["aw-3", "aw-4"],
        ["aw-6"],
        ["aw-7"],
    ]
    assert sorted(record.name for record in records) == [f"aw-{index}" for index in range(8)]


async def test_transaction_has_a_largest_size_in_tolerations_too() -> None:
    """Each is `{}` in the spec, and a hundred bytes in the row and its event."""
    store = FakeStore()
    pods = PodSet(1, NOTHING, (Toleration(),) * 16_000)
    gang = Gang(pods=1, pod_sets=(pods,))
    changes = [first_changes.submit(make_submission(f"aw-{index}"), gang, at(0)) for index in range(5)]
    async with committing(store) as (committer, _):
        assert len(await committer.commit_all(changes)) == 5
    assert [len(batch) for batch in store.batches] == [2, 2, 1]


# --- changes that belong together ----------------------------------------------------------------------


async def test_changes_that_belong_together_are_one_transaction_of_their_own() -> None:
    store = FakeStore()
    store.gate.clear()
    async with committing(store) as (committer, cache):
        lone = asyncio.create_task(committer.commit(submitted("lone")))
        group = asyncio.create_task(committer.commit_together([submitted("a"), submitted("b")]))
        await asyncio.sleep(1)
        store.gate.set()
        records = await group
        await lone
        assert [record.name for record in records] == ["a", "b"]
        assert [cache.get(record.uid) for record in records] == records
    assert store.groups == [[("a", "submitted"), ("b", "submitted")]]
    assert store.batches == [[("lone", "submitted")]]


async def test_groups_are_committed_in_order_and_let_other_changes_in_between() -> None:
    store = FakeStore()
    order: list[str] = []
    async with committing(store, lambda _change, record: order.append(record.name)) as (committer, _):
        await asyncio.gather(
            committer.commit_together([submitted("a"), submitted("b")]),
            committer.commit_together([submitted("c")]),
            committer.commit_all([submitted("d"), submitted("e")]),
        )
    assert order == ["a", "b", "d", "e", "c"]


async def test_of_a_group_with_one_change_that_is_stale_nothing_is_believed() -> None:
    store = FakeStore(lambda change: "stale" if change.after.name == "b" else "")
    async with committing(store, never_called) as (committer, cache):
        assert await committer.commit_together([submitted("a"), submitted("b")]) == []
        assert cache.uids() == []


async def test_group_that_the_database_cannot_hold_is_logged_change_by_change() -> None:
    store = FakeStore(lambda change: "NUL in a name" if change.after.name == "b" else "")
    with capture_logs() as logs:
        async with committing(store, never_called) as (committer, _):
            assert await committer.commit_together([submitted("a"), submitted("b")]) == []
    assert [(line["event"], line["appwrapper"]) for line in logs] == [
        ("change_refused", "uid-of-a"),
        ("change_refused", "uid-of-b"),
    ]


async def test_group_without_changes_is_no_transaction() -> None:
    store = FakeStore()
    async with committing(store) as (committer, _):
        assert await committer.commit_together([]) == []
    assert store.groups == []


async def test_failure_of_the_store_cancels_callers_that_wait_for_a_group() -> None:
    store = FakeStore()
    store.gate.clear()
    store.failure = Fenced("another leads")
    committer = Committer(store, cache := Cache({}), nobody, nothing)
    running = asyncio.create_task(committer.run())
    waiting = [
        asyncio.create_task(committer.commit_together([submitted("under-way")])),
        asyncio.create_task(committer.commit_together([submitted("next"), submitted("to-it")])),
    ]
    await asyncio.sleep(1)
    store.gate.set()
    with pytest.raises(Fenced, match="another leads"):
        await running
    await asyncio.wait(waiting)
    assert [task.cancelled() for task in waiting] == [True, True]
    assert cache.uids() == []


# --- what AppWrappers choose to be told ------------------------------------------------------------------

CHOICES = choices_in("mail=Failed oops")


@pytest.mark.parametrize(
    "commit",
    [
        pytest.param(lambda committer, change: committer.commit(change), id="alone"),
        pytest.param(lambda committer, change: committer.commit_all([change]), id="with-others"),
        pytest.param(lambda committer, change: committer.commit_together([change]), id="in-a-group"),
    ],
)
async def test_each_way_to_commit_takes_the_latest_choice_of_notifications_along(
    commit: Callable[[Committer, Change], Awaitable[object]],
) -> None:
    store, told = FakeStore(), list[Change]()
    change = queue_changes.dispatch(make_record(), "hub", at(1))
    choices_of = {change.after.uid: CHOICES}.get
    async with committing(store, lambda change, _record: told.append(change), choices_of) as (
        committer,
        cache,
    ):
        await commit(committer, change)
        record = cache.get(change.after.uid)
    assert record is not None
    assert record.notifications == "mail=Failed"
    assert store.changes == told == [queue_changes.with_choice(change, CHOICES)]


async def test_choice_counts_that_is_there_when_the_transaction_begins() -> None:
    store, choices = FakeStore(), dict[str, Choices]()
    store.gate.clear()
    change = queue_changes.dispatch(make_record(), "hub", at(1))
    async with committing(store, choices_of=choices.get) as (committer, _):
        under_way = asyncio.create_task(committer.commit(submitted("other")))
        await asyncio.sleep(1)
        gathered = asyncio.create_task(committer.commit(change))
        await asyncio.sleep(1)
        choices[change.after.uid] = CHOICES
        store.gate.set()
        record = await gathered
        await under_way
    assert record is not None
    assert record.notifications == "mail=Failed"
