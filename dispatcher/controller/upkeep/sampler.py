"""Writes samples of clusters and queues for history.

Samples are taken at multiples of the period on the database's clock: all rows of a sample have the same time, and a
new leader does not repeat one. The values are copied at one moment and counted in parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, groupby
from typing import Protocol

from dispatcher import errors, log
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.status.samples import CapacitySample, LedgerReading, Moment, moment_of
from dispatcher.store.samples import SampleStore

_log = log.get("sampler")


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
