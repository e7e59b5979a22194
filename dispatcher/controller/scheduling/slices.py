"""Long computations share the event loop: they run for a time slice, then yield to other tasks.

Lease renewals, answers to probes and writes to API servers wait for a computation no longer than a slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from dispatcher.controller.scheduling.garbage import collect_after
from dispatcher.core.model.incremental import Steps

T = TypeVar("T")

SLICE_SECONDS: Final = 0.005
"""Long beside the cost of a switch, and short beside every timeout: a timer that is due waits for three slices."""


class Slices:
    """The slices of one computation; `monotonic` is in seconds. `pauses` counts how often it yielded."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._until = monotonic() + SLICE_SECONDS
        self.pauses = 0

    async def give_way(self) -> None:
        """Yield to other tasks if the slice is over."""
        if self._monotonic() >= self._until:
            await self.pause()

    async def pause(self) -> None:
        """Yield to other tasks, before and after the garbage of the slice is collected."""
        self.pauses += 1
        await asyncio.sleep(0)
        collect_after(self.pauses)
        await asyncio.sleep(0)
        self.begin()

    def begin(self) -> None:
        """Begin a slice, after another wait let other tasks run."""
        self._until = self._monotonic() + SLICE_SECONDS

    async def run(self, steps: Steps[T]) -> T:
        """Run the steps of a computation in slices; return its result."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if self._monotonic() >= self._until:
                await self.pause()
