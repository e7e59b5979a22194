"""Keeps the database in order: creates months of history ahead, moves deleted AppWrappers, drops old months.

None of this is urgent. If a long read of history is in the way, the next try is in an hour; until then events go to the
default partition, so leadership never depends on it. Sessions of readers that take too long are ended every few
seconds.

`Sampler` writes samples of clusters and queues for history. Samples are taken at multiples of the period on the
database's clock: all rows of a sample have the same time, and a new leader does not repeat one. The values are copied
at one moment and counted in parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, groupby
from typing import Final, Protocol

from dispatcher import errors, log
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.status.samples import CapacitySample, LedgerReading, Moment, moment_of
from dispatcher.store.history.archive import BEGINNING, Part
from dispatcher.store.history.samples import SampleStore

FIRST_SECONDS: Final = 60.0
"""Pause of a new leader before the first run, for more urgent work."""
PAUSE_SECONDS: Final = 3600.0
AT_ONCE: Final = 500
BATCH_PAUSE_SECONDS: Final = 0.05
"""Pause between two batches of moved AppWrappers, so that other writers go first."""
READERS_EVERY_SECONDS: Final = 10.0
"""Period of the check of readers' sessions: a session that lifts its own timeouts delays Postgres' vacuum."""
DELETED_FOR: Final = timedelta(days=1)
"""Time before a deleted AppWrapper is moved: an API server may show it for a while."""

_log = log.get("housekeeping")


class Store(Protocol):
    """The operations on the database."""

    async def ensure_partitions(self, now: datetime) -> list[str]:
        """Create the months ahead; return the created ones."""

    async def drop_expired(self, now: datetime, keep: timedelta) -> list[str]:
        """Drop the months that ended more than `keep` ago; return them."""

    async def next_deleted(self, before: datetime, after: tuple[datetime, str], most: int) -> Part | None:
        """At most `most` AppWrappers that were deleted before a time, in order; None if there is none after `after`."""

    async def move_deleted(self, uids: Sequence[str]) -> int:
        """Move these AppWrappers to history; return the number of those that were not moved before."""

    async def end_overdue_readers(self, longest: timedelta) -> list[str]:
        """End readers' sessions with longer transactions; return a user and cause for each."""


class Housekeeping:
    """Does all due work a minute after the start and then once an hour; `run_readers` runs beside it."""

    def __init__(
        self,
        store: Store,
        now: Callable[[], datetime],
        keep: timedelta,
        longest_reading: timedelta = timedelta(minutes=5),
    ) -> None:
        self._store = store
        self._now = now
        self._keep = keep
        self._longest_reading = longest_reading

    async def prepare(self) -> None:
        """Create the months ahead, before the first event is written."""
        await self._postponable("partitions_postponed", self._store.ensure_partitions(self._now()))

    async def run(self) -> None:
        """Do all due work periodically, until cancelled."""
        await asyncio.sleep(FIRST_SECONDS)
        while True:
            await self.run_once()
            await asyncio.sleep(PAUSE_SECONDS)

    async def run_readers(self) -> None:
        """End overdue sessions of readers periodically, until cancelled."""
        while True:
            await self._postponable("reader_check_failed", self._end_readers())
            await asyncio.sleep(READERS_EVERY_SECONDS)

    async def _end_readers(self) -> None:
        for ended in await self._store.end_overdue_readers(self._longest_reading):
            _log.warning("reader_ended", session=ended)

    async def run_once(self) -> None:
        """Do all due work."""
        await self.prepare()
        await self._postponable("move_postponed", self._move())
        await self._postponable("drop_postponed", self._drop())

    async def _move(self) -> None:
        before, moved, after = self._now() - DELETED_FOR, 0, BEGINNING
        while (part := await self._store.next_deleted(before, after, AT_ONCE)) is not None:
            for uid in part.too_large:
                _log.warning("too_large_for_history", appwrapper=uid)
            moved += await self._move_part(part)
            after = part.after
            await asyncio.sleep(BATCH_PAUSE_SECONDS)
        if moved:
            _log.info("moved_to_history", appwrappers=moved)

    async def _move_part(self, part: Part) -> int:
        """Move a part; an AppWrapper that is moved alone, and cannot be, is left for the next hour."""
        try:
            return await self._store.move_deleted(part.uids) if part.uids else 0
        except errors.Fenced:
            raise
        except errors.StoreError as error:
            if len(part.uids) > 1:
                raise  # the database is in trouble: the move of a small part takes little time
            _log.warning("move_postponed", appwrapper=part.uids[0], error=str(error))
            return 0

    async def _drop(self) -> None:
        dropped = await self._store.drop_expired(self._now(), self._keep)
        if dropped:
            _log.info("history_dropped", partitions=dropped)

    async def _postponable(self, event: str, doing: Awaitable[object]) -> None:
        try:
            await doing
        except errors.Fenced:
            raise
        except errors.StoreError as error:
            _log.warning(event, error=str(error))
        except Exception as error:  # noqa: BLE001  # the loop's edge: none of this is urgent
            log.internal_error("housekeeping", error, postponed=event)


class Clusters(Protocol):
    """The clusters to sample."""

    def readings(self) -> Mapping[str, LedgerReading | None]:
        """The current capacity by cluster; None where it is unknown."""


class Sampler:
    """Takes samples while `run` runs."""

    def __init__(
        self,
        cache: Cache,
        clusters: Clusters,
        store: SampleStore,
        now: Callable[[], datetime],
        period: timedelta,
    ) -> None:
        self._cache = cache
        self._clusters = clusters
        self._store = store
        self._now = now
        self._period = period
        self._last: dict[str, Sequence[CapacitySample]] = {}

    async def run(self) -> None:
        """Take a sample whenever one is due, until cancelled; a sample that cannot be written is missing."""
        while True:
            begun = self._now()
            due = moment_of(begun, self._period) + self._period
            await asyncio.sleep((due - begun).total_seconds())
            try:
                # Later than due if the machine slept, or the database's clock leapt ahead.
                await self.sample(max(due, moment_of(self._now(), self._period)))
            except errors.Fenced:
                raise
            except errors.StoreError as error:
                _log.warning("sample_missed", at=due.isoformat(), error=str(error))
            except Exception as error:  # noqa: BLE001  # the loop's edge: history has a gap, no more
                log.internal_error("sampler", error, at=due.isoformat())

    async def sample(self, at: datetime) -> None:
        """Write the current values as the sample of the time `at`."""
        readings = self._clusters.readings()
        connected = {name: each for name, each in readings.items() if each is not None}
        moment = Moment(self._cache.records(), connected)
        for _ in moment.count():
            await asyncio.sleep(0)
        unreachable = {
            name: await self._last_capacity(name, at) for name in readings if name not in connected
        }
        capacities = moment.capacities(chain.from_iterable(unreachable.values()))
        found = {name: list(each) for name, each in groupby(capacities, key=lambda each: each.cluster)}
        self._last = {**unreachable, **found}
        await self._store.sample(at, capacities, moment.queues())

    async def _last_capacity(self, name: str, at: datetime) -> Sequence[CapacitySample]:
        """The last known capacity of a cluster; read from the database only if this leader has none."""
        last = self._last.get(name)
        return await self._store.last_capacity(name, at) if last is None else last
