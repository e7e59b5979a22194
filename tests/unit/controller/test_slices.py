"""A long loop lets others have their turn, and a short one does not wait for them."""

from __future__ import annotations

import asyncio
from itertools import count

from dispatcher.controller.scheduling.slices import SLICE_SECONDS, Slices
from tests.unit import workers


async def run_beside_another(slices: Slices, items: list[int]) -> list[object]:
    """What happened in order: an item, or `other` for a turn of another task."""
    seen = list[object]()

    async def other() -> None:
        seen.append("other")

    def act(item: int) -> None:
        seen.append(item)
        items.clear()  # it is called with the items of the first moment

    task = asyncio.create_task(other())
    await slices.for_each(items, act)
    await task
    return seen


async def test_short_loop_ends_before_another_task_has_a_turn() -> None:
    assert await run_beside_another(Slices(lambda: 0.0), [1, 2]) == [1, 2, "other"]


async def test_others_have_their_turn_once_a_slice_is_over() -> None:
    clock = count()
    slices = Slices(lambda: next(clock) * SLICE_SECONDS / 2)
    assert await run_beside_another(slices, [1, 2, 3, 4]) == [1, 2, "other", 3, 4]


async def test_a_loop_gives_way_once_for_each_slice() -> None:
    """A clock that goes on between two calls, as while other tasks ran, begins a slice anew."""
    now, turns = 0.0, 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    slices = Slices(lambda: now)
    async with workers.running(other()):
        before = turns
        await slices.give_way()
        assert turns == before
        now = SLICE_SECONDS
        await slices.give_way()
        after = turns
        await slices.give_way()
        assert turns == after > before
