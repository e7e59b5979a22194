"""An event loop whose clock stands still while there is work and jumps when there is none.

So code that pauses, backs off or times out is tested as it is, at once: a pause of 30 s costs a few
milliseconds. Sockets on the loopback and threads work: the clock does not jump while an answer is on its way.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

from tests.unit.loopback import Loopback

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

GRACE_SECONDS: Final = 0.003
"""Real time between two looks at what the kernel has on its way, and before each jump."""

MOST_GRACES: Final = 1000
"""Looks until the clock jumps in spite of bytes on their way, so that a wrong answer to that cannot hang a test."""

THREAD_SECONDS: Final = 0.02
"""Real time between two looks at threads that are still at work."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its `time` is in virtual seconds, from 0."""

    def __init__(self) -> None:
        self._now = 0.0
        self._threads: set[asyncio.Future[Any]] = set()
        self._jumping = _JumpingSelector(self)
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        """Let so much time have passed."""
        self._now += seconds

    @property
    def awaits_a_thread(self) -> bool:
        """True while something runs in a thread, which takes real time."""
        return bool(self._threads)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._threads.add(future)
        future.add_done_callback(self._threads.discard)
        return future


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing but what is on its way, and has the loop's clock jump instead."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop
        self._loopback = Loopback()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:  # noqa: ANN401
        key = super().register(fileobj, events, data)
        self._loopback.note(key.fd)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return self._select(timeout)
        if self._loop.awaits_a_thread:
            return self._select(THREAD_SECONDS)
        for _ in range(MOST_GRACES):
            if (ready := self._select(GRACE_SECONDS)) or not self._loopback.is_awaited(self._by_fileno()):
                break
        if not ready:
            self._loop.jump(timeout)
        return ready

    def _by_fileno(self) -> dict[int, selectors.SelectorKey]:
        return {key.fd: key for key in self.get_map().values()}

    def _select(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        found: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        return found


def monotonic() -> float:
    """The running loop's clock, to hand to what wants one."""
    return asyncio.get_running_loop().time()


async def until(holds: Callable[[], object]) -> None:
    """Return once `holds()` is true; fails if it is not within ten virtual minutes."""
    deadline = monotonic() + 600
    step = 0.001
    while not holds():
        assert monotonic() < deadline, "it did not come true"
        await asyncio.sleep(step)
        step = min(1.0, step * 2)
