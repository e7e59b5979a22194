"""The work queue: every key is looked at, by one at a time, and not more often than needed."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from dispatcher.controller.workqueue import LONGEST_PAUSE, MOST_SUPERSEDED, WorkQueue
from tests.unit.virtual_time import monotonic


@pytest.fixture
def queue() -> WorkQueue:
    """A queue in virtual time."""
    return WorkQueue(monotonic)


async def is_idle(queue: WorkQueue, seconds: float = 1000) -> bool:
    """True if the queue hands out nothing for so long."""
    try:
        await asyncio.wait_for(queue.get(), seconds)
    except TimeoutError:
        return True
    return False


async def test_keys_come_in_the_order_in_which_they_were_added(queue: WorkQueue) -> None:
    for key in ("b", "a", "c"):
        queue.add(key)
    assert [await queue.get() for _ in range(3)] == ["b", "a", "c"]


async def test_key_added_twice_is_handled_once(queue: WorkQueue) -> None:
    queue.add("a")
    queue.add("a")
    assert len(queue) == 1
    assert await queue.get() == "a"
    queue.done("a")
    assert await is_idle(queue)
    assert len(queue) == 0


async def test_key_added_while_it_is_handled_is_handled_once_more_afterwards(queue: WorkQueue) -> None:
    queue.add("a")
    await queue.get()
    queue.add("a")
    queue.add("a")
    assert await is_idle(queue)
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert await is_idle(queue)


async def test_waiting_workers_are_woken_by_added_keys(queue: WorkQueue) -> None:
    workers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    for key in ("a", "b", "c"):
        queue.add(key)
    assert await asyncio.gather(*workers) == ["a", "b", "c"]


async def test_key_added_for_later_comes_then(queue: WorkQueue) -> None:
    queue.add_later("late", 30)
    queue.add_later("early", 5)
    queue.add("now")

    seen = [(await queue.get(), monotonic()) for _ in range(3)]
    assert seen == [("now", 0), ("early", pytest.approx(5)), ("late", pytest.approx(30))]


async def test_of_two_delays_the_shorter_counts(queue: WorkQueue) -> None:
    queue.add_later("a", 30)
    queue.add_later("a", 5)
    queue.add_later("a", 60)
    assert await queue.get() == "a"
    assert monotonic() == pytest.approx(5)
    queue.done("a")
    assert await is_idle(queue)


async def due_before(queue: WorkQueue, seconds: float) -> None:
    queue.add_later("a", seconds)


async def due_at_once_before(queue: WorkQueue, seconds: float) -> None:
    queue.add_later("a", seconds)
    queue.add_later("a", 0)
    queue.done(await queue.get())


@pytest.mark.parametrize("schedule", [due_before, due_at_once_before])
async def test_waits_that_others_have_superseded_take_no_room(
    queue: WorkQueue, schedule: Callable[[WorkQueue, float], Awaitable[None]]
) -> None:
    tracemalloc.start()
    try:
        for turn in range(5000):
            await schedule(queue, 1e6 - turn)
        room, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert room < 300_000


async def test_delayed_key_stays_when_superseded_delays_are_cleared_away(queue: WorkQueue) -> None:
    queue.add_later("late", 4000)
    for turn in range(MOST_SUPERSEDED + 5):
        queue.add_later("early", 3000 - turn)
    for key, due in (("early", 1996), ("late", 4000)):
        assert await queue.get() == key
        assert monotonic() == pytest.approx(due)
        queue.done(key)
    assert await is_idle(queue)


async def test_worker_that_waits_for_a_late_key_is_woken_by_an_earlier_key(queue: WorkQueue) -> None:
    queue.add_later("late", 1000)
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(1)
    queue.add_later("early", 2)
    assert await worker == "early"
    assert monotonic() == pytest.approx(3)


async def test_key_that_comes_due_while_it_is_handled_is_handled_once_more_afterwards(
    queue: WorkQueue,
) -> None:
    queue.add("a")
    await queue.get()
    queue.add_later("a", 1)
    assert await is_idle(queue, 10)
    queue.done("a")
    assert await queue.get() == "a"


async def test_key_that_fails_comes_back_later_each_time_up_to_a_limit(queue: WorkQueue) -> None:
    pauses = []
    for _ in range(12):
        pauses.append(queue.add_failed("a"))
        before = monotonic()
        assert await queue.get() == "a"
        assert monotonic() - before == pytest.approx(pauses[-1])
        queue.done("a")
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, *[LONGEST_PAUSE] * 3]


async def test_success_forgets_the_failures_of_that_key_only(queue: WorkQueue) -> None:
    for key in ("a", "a", "b", "b"):
        queue.add_failed(key)
    queue.succeed("a")
    assert queue.add_failed("a") == 0.1
    assert queue.add_failed("b") == 0.4


async def test_many_failures_are_a_long_pause_and_no_overflow(queue: WorkQueue) -> None:
    for _ in range(5000):
        queue.add_failed("a")
    assert queue.add_failed("a") == LONGEST_PAUSE


async def test_failed_key_may_still_be_looked_at_at_once(queue: WorkQueue) -> None:
    queue.add_failed("a")
    queue.add("a")
    assert await queue.get() == "a"
    assert monotonic() == 0


@pytest.mark.parametrize("turns", range(5))
async def test_cancellation_that_comes_with_a_key_is_not_lost(queue: WorkQueue, turns: int) -> None:
    """A worker that missed its only cancellation would keep the process from ever ending."""

    async def work() -> None:
        while True:
            queue.done(await queue.get())

    queue.add_later("late", 1000)
    worker = asyncio.create_task(work())
    await asyncio.sleep(1)
    queue.add("a")
    for _ in range(turns):
        await asyncio.sleep(0)
    worker.cancel()
    await asyncio.wait([worker], timeout=1)
    lost = not worker.cancelled()
    worker.cancel()
    await asyncio.wait([worker])
    assert not lost


# --- lanes -------------------------------------------------------------------------------------------


@pytest.fixture
def lanes() -> dict[str, str]:
    """In which lane a key is, if not in the one that its first letter names."""
    return {}


@pytest.fixture
def two_at_once(lanes: dict[str, str]) -> WorkQueue:
    """A queue that hands out two of a lane."""
    return WorkQueue(monotonic, lambda key: lanes.get(key, key[0]), 2)


async def taken(queue: WorkQueue) -> list[str]:
    """All that is handed out before anything is given back."""
    found = []
    while True:
        try:
            found.append(await asyncio.wait_for(queue.get(), 1000))
        except TimeoutError:
            return found


async def test_of_a_lane_only_so_many_are_handed_out_however_many_wait_and_others_go_on(
    two_at_once: WorkQueue,
) -> None:
    for key in ("a1", "a2", "a3", "a4", "b1", "c1", "b2", "b3"):
        two_at_once.add(key)
    assert await taken(two_at_once) == ["a1", "a2", "b1", "b2", "c1"]
    assert len(two_at_once) == 8


async def test_next_of_a_lane_comes_when_one_of_it_is_given_back(two_at_once: WorkQueue) -> None:
    for key in ("a1", "a2", "a3", "b1", "b2", "b3"):
        two_at_once.add(key)
    await taken(two_at_once)
    waiting = asyncio.create_task(two_at_once.get())
    await asyncio.sleep(1)
    two_at_once.done("b2")
    assert await waiting == "b3"
    two_at_once.done("a1")
    assert await taken(two_at_once) == ["a3"]


async def test_key_that_is_needed_again_queues_after_the_waiting_keys(two_at_once: WorkQueue) -> None:
    for key in ("a1", "a2", "a3", "a1"):
        two_at_once.add(key)
    assert await taken(two_at_once) == ["a1", "a2"]
    two_at_once.add("a1")
    two_at_once.done("a1")
    assert await two_at_once.get() == "a3"
    two_at_once.done("a2")
    assert await two_at_once.get() == "a1"


async def test_key_that_changed_lanes_while_it_waited_takes_room_in_the_new_one(
    two_at_once: WorkQueue, lanes: dict[str, str]
) -> None:
    for key in ("a1", "a2", "a3", "b1"):
        two_at_once.add(key)
    lanes["a1"] = lanes["a2"] = lanes["a3"] = "b"
    assert sorted(await taken(two_at_once)) == ["a1", "b1"]
    two_at_once.add("a4")
    assert await taken(two_at_once) == ["a4"]


async def test_key_that_changed_lanes_while_it_was_handled_frees_the_one_it_was_taken_from(
    two_at_once: WorkQueue, lanes: dict[str, str]
) -> None:
    for key in ("a1", "a2", "a3"):
        two_at_once.add(key)
    await taken(two_at_once)
    lanes["a1"] = "b"
    two_at_once.add("a1")
    two_at_once.done("a1")
    assert sorted(await taken(two_at_once)) == ["a1", "a3"]
