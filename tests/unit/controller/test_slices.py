"""A long computation lets others have their turn, and a short one does not wait for them."""

from __future__ import annotations

import asyncio
from itertools import count

from dispatcher.controller.scheduling.slices import SLICE_SECONDS, Slices
from dispatcher.core.model.incremental import Steps


def counting(steps: int, seen: list[str]) -> Steps[int]:
    for number in range(steps):
        seen.append(f"step {number}")
        yield
    return steps


async def run_beside_another(slices: Slices, steps: int) -> tuple[int, list[str]]:
    seen: list[str] = []

    async def other() -> None:
        seen.append("other")

    task = asyncio.create_task(other())
    result = await slices.run(counting(steps, seen))
    await task
    return result, seen


async def test_short_computation_ends_before_another_task_has_a_turn() -> None:
    slices = Slices(lambda: 0.0)
    assert await run_beside_another(slices, 2) == (2, ["step 0", "step 1", "other"])
    assert slices.pauses == 0


async def test_others_have_their_turn_once_a_slice_is_over() -> None:
    clock = count()
    slices = Slices(lambda: next(clock) * SLICE_SECONDS / 2)
    result, seen = await run_beside_another(slices, 4)
    assert (result, seen[:3]) == (4, ["step 0", "step 1", "other"])
    assert slices.pauses > 0


async def test_yielding_does_not_pause_before_the_slice_is_over() -> None:
    slices = Slices(lambda: 0.0)
    await slices.give_way()
    assert slices.pauses == 0
    await slices.pause()
    assert slices.pauses == 1
