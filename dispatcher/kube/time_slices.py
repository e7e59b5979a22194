"""Runs long work in short time slices, so that the event loop runs other tasks and the lease is renewed in between."""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_SECONDS: Final = 0.01

LARGEST_INLINE: Final = 2**15
"""Bytes of JSON that are parsed in the event loop, in some milliseconds."""


SWITCH_SECONDS: Final = 0.0005

_ASIDE: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="run_in_thread_if_large")


class TimeSlice:
    """The time since the event loop last ran other tasks; `clock` is in seconds."""

    def __init__(
        self, longest: float = LONGEST_SECONDS, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._longest = longest
        self._clock = clock
        self._began = clock()

    async def pause_if_long(self) -> None:
        """Run other tasks if the slice is over; call it between any two items."""
        if self._clock() - self._began >= self._longest:
            await asyncio.sleep(0)
            self._began = self._clock()


async def run_in_thread_if_large(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `work`, a pure function; run in a thread if `size`, in bytes, is above `LARGEST_INLINE`.

    Threads of Python take turns, so a thread does not finish sooner, but the event loop goes on. There is one such
    thread for all work, so that the event loop gets every second turn, not every seventh.
    """
    if size <= LARGEST_INLINE:
        return work(*args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_ASIDE, functools.partial(work, *args, **kwargs))


def set_switch_interval() -> None:
    """Let the threads of this process take turns of `SWITCH_SECONDS`.

    The event loop gives up its turn whenever it waits for a socket. With Python's default of five milliseconds, each
    step of the loop then waits that long beside a busy thread: a step of 0.5 ms takes 9 ms, with this setting 2 ms.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
