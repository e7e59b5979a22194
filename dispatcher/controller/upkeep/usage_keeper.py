"""Keeps the recent use of namespaces for queues with `order: Usage`, from the attempts that the database has.

It is read at the start of a session, so it outlasts restarts, and then at most once a minute; less often where the
reading takes long, so that it never takes more than a twentieth of the time. While no queue orders by use, nothing is
read. If a reading fails, the values of the last one stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, Protocol

from dispatcher import errors, log
from dispatcher.core.queues.declared_queues import DeclaredQueues
from dispatcher.core.scheduling.sharing.gangs import RecentUse
from dispatcher.core.scheduling.sharing.recent_use import WeightedUse, counted_resources, recent_use

PERIOD_SECONDS: Final = 60.0
LARGEST_SHARE: Final = 0.05
"""The part of the time, at most, that readings take."""

_log = log.get("recent-use")


class Queues(Protocol):
    """The declared queues."""

    @property
    def declared(self) -> DeclaredQueues:
        """All declared queues; the same value until one of them changes."""


class Store(Protocol):
    """The operations on the database."""

    async def weighted_uses(self, asked: Mapping[str, Sequence[str]], now: datetime) -> list[WeightedUse]:
        """The use up to `now` of each namespace in these queues, of the resources of each queue."""


class UsageKeeper:
    """Reads the recent use while `run` runs; `usage` is that of the last reading."""

    def __init__(
        self, queues: Queues, store: Store, now: Callable[[], datetime], monotonic: Callable[[], float]
    ) -> None:
        self.usage: RecentUse = {}
        self._queues = queues
        self._store = store
        self._now = now
        self._monotonic = monotonic
        self._changed = asyncio.Event()
        self._due = 0.0

    def wake(self) -> None:
        """Have the declared queues looked at: one of them may order by use now."""
        self._changed.set()

    async def run(self) -> None:
        """Read again whenever it is due, until cancelled."""
        while True:
            self._changed.clear()
            if self._asked():
                await asyncio.sleep(max(0.0, self._due - self._monotonic()))
                await self.refresh()
            else:
                self.usage = {}
                await self._changed.wait()

    async def refresh(self) -> None:
        """Read the recent use, unless no queue orders by it."""
        asked, begun = self._asked(), self._monotonic()
        if not asked:
            return
        try:
            self.usage = recent_use(await self._store.weighted_uses(asked, self._now()))
        except errors.StoreError as error:
            _log.warning("recent_use_not_read", error=str(error))
        except Exception as error:  # noqa: BLE001  # the loop's edge: queues order by older use, no more
            log.internal_error("recent-use", error)
        ended = self._monotonic()
        self._due = begun + max(PERIOD_SECONDS, (ended - begun) / LARGEST_SHARE)

    def _asked(self) -> Mapping[str, Sequence[str]]:
        return counted_resources(self._queues.declared.forest)
