"""A work queue of keys, each handled by one worker at a time, as in a Kubernetes controller.

A key that is added twice is handled once. A key that is added while it is handled is handled once more, so no event is
missed. A key that failed comes back after a pause that doubles. A key names an object, never an event.

Keys that may have to wait for the same answers, such as those of one cluster, share a lane. A lane has a bound on the
keys handled at once. So a cluster that does not answer delays the keys of its lane, and no others.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import sys
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 30.0
MOST_SUPERSEDED: Final = 1000
"""Superseded looks that may stay in the schedule, beside one for each key."""


class _Look(NamedTuple):
    due: float
    order: int
    key: str


def _same_lane(_key: str) -> str:
    return ""


class WorkQueue:
    """Unbounded, but holds each key at most once. `monotonic` is in seconds.

    `lane_of` is the current lane of a key, which may change; of each lane at most `width` keys are handed out at once.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        lane_of: Callable[[str], str] = _same_lane,
        width: int = sys.maxsize,
    ) -> None:
        self._monotonic = monotonic
        self._lane_of = lane_of
        self._width = width
        self._ready: dict[str, deque[str]] = {}
        self._queued: set[str] = set()
        self._active: dict[str, str] = {}
        self._busy: Counter[str] = Counter()
        self._again: set[str] = set()
        self._failures: dict[str, int] = {}
        self._due: list[_Look] = []
        self._scheduled: dict[str, _Look] = {}
        self._order = itertools.count()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queued) + len(self._active)

    def add(self, key: str) -> None:
        """Have `key` looked at as soon as there is room in its lane."""
        if key in self._active:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._append(key, self._lane_of(key))
            self._changed.set()

    def add_later(self, key: str, seconds: float) -> None:
        """Have `key` looked at after `seconds`, unless an earlier look is scheduled already."""
        due = self._monotonic() + seconds
        scheduled = self._scheduled.get(key)
        if scheduled is not None and scheduled.due <= due:
            return
        look = _Look(due, next(self._order), key)
        self._scheduled[key] = look
        heapq.heappush(self._due, look)
        self._drop_superseded()
        self._changed.set()

    def add_failed(self, key: str) -> float:
        """Have `key` looked at again after a pause that doubles with each failure; the pause in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures, 20))
        self.add_later(key, pause)
        return pause

    def failures(self, key: str) -> int:
        """How often `key` has failed since it last succeeded."""
        return self._failures.get(key, 0)

    def succeed(self, key: str) -> None:
        """Forget the failures of `key`."""
        self._failures.pop(key, None)

    async def get(self) -> str:
        """The next key; the caller owns it until `done`."""
        while True:
            pause = self._promote()
            key = self._take()
            if key is not None:
                return key
            self._changed.clear()
            # Not wait_for: until Python 3.12 it swallows a cancellation that comes with what it waits for.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()

    def done(self, key: str) -> None:
        """Give `key` back; it is queued again if it was added meanwhile."""
        lane = self._active.pop(key)
        self._busy[lane] -= 1
        if lane in self._ready:
            self._changed.set()
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _take(self) -> str | None:
        """The first key of a lane with room, now active; None if there is none."""
        while (found := next(filter(self._has_room, self._ready), None)) is not None:
            key = self._first_of(found)
            lane = self._lane_of(key)
            if lane == found:
                self._queued.discard(key)
                self._active[key] = lane
                self._busy[lane] += 1
                return key
            self._append(key, lane)  # its lane changed while it was queued
        return None

    def _has_room(self, lane: str) -> bool:
        return self._busy[lane] < self._width

    def _first_of(self, lane: str) -> str:
        keys = self._ready[lane]
        key = keys.popleft()
        if not keys:
            del self._ready[lane]
        return key

    def _append(self, key: str, lane: str) -> None:
        self._ready.setdefault(lane, deque()).append(key)

    def _promote(self) -> float | None:
        """Make due keys ready; return the seconds until the next is due, None if nothing is scheduled."""
        now = self._monotonic()
        while self._due and self._due[0].due <= now:
            look = heapq.heappop(self._due)
            if self._scheduled.get(look.key) is look:
                del self._scheduled[look.key]
                self.add(look.key)
        return self._due[0].due - now if self._due else None

    def _drop_superseded(self) -> None:
        """Rebuild the heap once superseded looks outnumber the others: a look due in a month would stay for a month."""
        if len(self._due) > 2 * len(self._scheduled) + MOST_SUPERSEDED:
            self._due = list(self._scheduled.values())
            heapq.heapify(self._due)
