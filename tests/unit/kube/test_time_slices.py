"""Long work in short stretches: others have their turn."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from dispatcher.kube.time_slices import (
    LARGEST_INLINE,
    SWITCH_SECONDS,
    TimeSlice,
    run_in_thread_if_large,
    set_switch_interval,
)


async def test_others_have_their_turn_once_it_was_long() -> None:
    times = iter([0, 9, 10, 11, 12, 22, 23, 30])
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    time_slice = TimeSlice(longest=10, clock=lambda: next(times))
    seen = []
    for _ in range(5):
        await time_slice.pause_if_long()
        seen.append(turns)
    task.cancel()
    # Asked at 9, at 10 (and begun anew at 11), at 12, at 22 (and begun anew at 23), at 30.
    assert seen == [0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("size", "is_aside"), [(0, False), (LARGEST_INLINE, False), (LARGEST_INLINE + 1, True)]
)
async def test_large_work_is_done_in_a_thread(size: int, is_aside: bool) -> None:
    where = await run_in_thread_if_large(size, threading.current_thread)
    assert (where is not threading.main_thread()) is is_aside


async def test_many_large_works_are_done_one_after_the_other_so_that_the_loop_has_every_second_turn() -> None:
    where = await asyncio.gather(
        *(run_in_thread_if_large(LARGEST_INLINE + 1, threading.get_ident) for _ in range(8))
    )
    assert len(set(where)) == 1


def test_threads_take_short_turns() -> None:
    before = sys.getswitchinterval()
    try:
        set_switch_interval()
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    finally:
        sys.setswitchinterval(before)


async def test_error_of_work_aside_is_its_error() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await run_in_thread_if_large(LARGEST_INLINE + 1, int, "x")
