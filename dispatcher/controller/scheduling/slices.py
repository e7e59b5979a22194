"""Long loops over the leader's memory share the event loop: they run for a time slice, then yield to other tasks.

Only work on what the loop itself changes is done so: the cache, the ledgers, the work queue. Lease renewals, answers to
probes and writes to API servers wait for such a loop no longer than a slice. Work on values is a plan, which runs
beside the loop (`planner`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from dispatcher.controller.scheduling.garbage import collect_after

T = TypeVar("T")

SLICE_SECONDS: Final = 0.005
"""Long beside the cost of a switch, and short beside every timeout: a timer that is due waits for three slices."""

CHECK_SECONDS: Final = 0.02
"""The time of a check before a commit: longer than a slice, because a transaction follows each."""


class Slices:
    """The slices of one loop; `monotonic` is in seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._until = monotonic() + SLICE_SECONDS
        self._ended = 0

    async def give_way(self) -> None:
        """Yield to other tasks if the slice is over, before and after the garbage of the slice is collected."""
        if self._monotonic() < self._until:
            return
        self._ended += 1
        await asyncio.sleep(0)
        collect_after(self._ended)
        await asyncio.sleep(0)
        self._until = self._monotonic() + SLICE_SECONDS

    async def for_each(self, items: Iterable[T], act: Callable[[T], object]) -> None:
        """Call `act` with each of the items of this moment."""
        for item in list(items):
            act(item)
            await self.give_way()

    def take_for_check(self, items: deque[T]) -> Iterator[T]:
        """Take items from the left, at least one, until the time of a check is over; no other task runs meanwhile.

        What is checked and its commit must be about the same moment, so the commit begins before the next items.
        """
        until = self._monotonic() + CHECK_SECONDS
        while items:
            yield items.popleft()
            if self._monotonic() >= until:
                return
