"""Long computations share the event loop: they work for a slice of time, then let others have their turn.

The heartbeat of the lease, the answers to probes and the writes to API servers wait for nobody longer than a slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from dispatcher.controller.scheduling.garbage import collect_after
from dispatcher.core.model.incremental import Steps

T = TypeVar("T")

SLICE_SECONDS: Final = 0.005
"""Long beside what a switch costs, and short beside all that waits: a timer that is due waits for three of them."""


class Slices:
    """The slices of one computation; `monotonic` is in seconds. `pauses` is how often others had their turn."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._until = monotonic() + SLICE_SECONDS
        self.pauses = 0

    async def give_way(self) -> None:
        """Let others have their turn if the slice is over."""
        if self._monotonic() >= self._until:
            await self.pause()

    async def pause(self) -> None:
        """Let others have their turn, before and after the garbage of the slice is collected."""
        self.pauses += 1
        await asyncio.sleep(0)
        collect_after(self.pauses)
        await asyncio.sleep(0)
        self.begin()

    def begin(self) -> None:
        """Others had their turn just now: begin a slice."""
        self._until = self._monotonic() + SLICE_SECONDS

    async def run(self, steps: Steps[T]) -> T:
        """Run the steps of a computation; their result."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if self._monotonic() >= self._until:
                await self.pause()
