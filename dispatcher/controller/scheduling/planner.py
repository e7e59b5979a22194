"""Plans run in a thread beside the event loop, one at a time.

A cycle over a long queue plans for seconds. On the loop it would run in slices, and each lease renewal, answer to a
probe and write to an API server would wait for some of them. Beside it, the loop waits for Python's interpreter lock
alone, which the plan gives up often.

A plan reads and changes only values that were gathered for it on the loop, and what is kept from plan to plan, which
nothing else touches meanwhile. So the caller awaits it before it reads any of that again.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from dispatcher import log
from dispatcher.controller.scheduling.garbage import collect_after
from dispatcher.controller.scheduling.slices import SLICE_SECONDS
from dispatcher.core.model.incremental import Steps

T = TypeVar("T")

LONG_SECONDS: Final = 30.0
"""A plan that takes longer is logged, and again each time that it has taken as long once more."""

_log = log.get("planner")


class Planner:
    """A thread for plans."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="planner")

    async def run(self, steps: Steps[T]) -> T:
        """All steps of a plan, in the thread. A cancellation ends the plan after its present step."""
        plan, begun = _Plan(steps), time.monotonic()
        running = asyncio.get_running_loop().run_in_executor(self._thread, plan.run)
        try:
            while not (await asyncio.wait([running], timeout=LONG_SECONDS))[0]:
                _log.warning("long_plan", seconds=round(time.monotonic() - begun))
        except asyncio.CancelledError:
            plan.is_wanted = False
            await asyncio.wait([running])  # afterwards nothing changes any more what the plan works on
            running.exception()
            raise
        (found,) = running.result()
        return found


class _Plan(Generic[T]):
    """The steps of one plan, as long as it is wanted."""

    def __init__(self, steps: Steps[T]) -> None:
        self.is_wanted = True
        self._steps = steps

    def run(self) -> tuple[T, ...]:
        """Run the steps. Returns their result, or nothing if the plan is not wanted any more.

        The garbage of each slice is collected after it, because a later collection would take long.
        """
        slices, until = 0, time.monotonic() + SLICE_SECONDS
        while self.is_wanted:
            try:
                next(self._steps)
            except StopIteration as end:
                return (end.value,)
            if time.monotonic() >= until:
                slices += 1
                collect_after(slices)
                time.sleep(0)  # gives up the interpreter's lock
                until = time.monotonic() + SLICE_SECONDS
        return ()
