"""Long work in short stretches: others have their turn in between, and nobody's lease runs out meanwhile."""

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
"""Bytes of JSON that are understood without a pause, in some milliseconds."""


SWITCH_SECONDS: Final = 0.0005

_ASIDE: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="run_in_thread_if_large")


class TimeSlice:
    """Work that others need not wait for; `clock` is in seconds."""

    def __init__(
        self, longest: float = LONGEST_SECONDS, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._longest = longest
        self._clock = clock
        self._began = clock()

    async def pause_if_long(self) -> None:
        """Let others have their turn if this one has lasted long enough; between any two items."""
        if self._clock() - self._began >= self._longest:
            await asyncio.sleep(0)
            self._began = self._clock()


async def run_in_thread_if_large(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` comes to, a function of values; on one of that many bytes in a thread, if they are many.

    Threads of Python take turns: it is not done sooner, but others go on. There is one such thread, whatever comes at
    once: the event loop has every second turn, not every seventh.
    """
    if size <= LARGEST_INLINE:
        return work(*args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_ASIDE, functools.partial(work, *args, **kwargs))


def set_switch_interval() -> None:
    """Have the threads of this process take turns of `SWITCH_SECONDS`.

    The event loop gives its turn away whenever it waits for a socket. With Python's default of five milliseconds each
    step of the loop takes as long beside a busy thread: 9 ms for one that takes 0.5; with this, 2 ms.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
