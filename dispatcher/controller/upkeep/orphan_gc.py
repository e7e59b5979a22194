"""Removes from members what is left of attempts that are over: gangs that were given up while their cluster was lost.

What the database says to be over, or to be deleted, is removed for certain. What it knows nothing of, be it an
AppWrapper or a later attempt, under marks of this very hub, is removed only if it is a small share of what is there:
a database that was mistaken must not empty a cluster. Of one that was restored, all that it does not know and that was
there before stays, however little it is: that it has missed something is known.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from dispatcher import errors, log
from dispatcher.controller.members.cluster import Cluster
from dispatcher.controller.reconcile.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.model.record import Phase
from dispatcher.kube.anchors import Found

SWEEP_SECONDS: Final = 60.0
LARGEST_SHARE: Final = 20
"""In percent of the anchors in a cluster."""
LEAST_SECONDS: Final = 1.0
"""Between two sweeps: gangs that wait for a name wake it again and again."""
FEW: Final = 5
"""So many may always go: a fifth of two would be none."""

MOST_TOLD: Final = 20
"""So many anchors that are left are named in the log."""
CLOCKS_APART: Final = timedelta(minutes=5)
"""So far the clocks of a member and of the database may be apart."""

_log = log.get("orphan_gc")


class Standing(StrEnum):
    """What an anchor stands for now."""

    LIVE = "live"
    OVER = "over"
    UNKNOWN = "unknown"


class OrphanCollector:
    """Looks through the members now and then, and at one that has come back at once."""

    def __init__(
        self,
        clusters: Mapping[str, Cluster],
        cache: Cache,
        hub: AppWrapperInformer,
        hub_id: str,
        deleted_among: Callable[[Collection[str]], Awaitable[set[str]]],
        pause: Callable[[], float] = lambda: SWEEP_SECONDS,
        restored_at: datetime | None = None,
    ) -> None:
        self._clusters = clusters
        self._cache = cache
        self._hub = hub
        self._hub_id = hub_id
        self._deleted_among = deleted_among
        self._pause = pause
        self._spared_until = restored_at + CLOCKS_APART if restored_at else None
        self._spared: dict[str, frozenset[str]] = {}
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """A member has come back: look at once."""
        self._wake.set()

    def removes(self, appwrapper: str, attempt: int) -> bool:
        """True if what an attempt left in a member is going, or will be removed: that is looked for at once.

        Of one that the database does not know it is true as well, though a large share of those is left alone.
        """
        record, view = self._cache.get(appwrapper), self._hub.view(appwrapper)
        if (record and record.phase is Phase.DELETING) or (view and view.deleting):
            return True
        is_left = self._standing(appwrapper, attempt) is not Standing.LIVE
        if is_left:
            self.wake()
        return is_left

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            members = [each for each in self._clusters.values() if each.is_member]
            await asyncio.gather(*map(self._sweep_if_it_answers, members))
            await asyncio.sleep(LEAST_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._pause() - LEAST_SECONDS)):
                    await self._wake.wait()
            self._wake.clear()

    async def _sweep_if_it_answers(self, cluster: Cluster) -> None:
        try:
            await self.sweep(cluster)
        except (errors.ClusterError, errors.StoreError) as error:
            _log.info("sweep_failed", cluster=cluster.name, error=str(error))
        except Exception:  # noqa: BLE001  # the loop's edge: one member must not end the others
            log.count_internal_error("orphan_gc")
            _log.exception("sweep_failed", cluster=cluster.name)

    async def sweep(self, cluster: Cluster) -> None:
        """Remove what is over in one member; the list is complete, or nothing is removed."""
        ours = [found async for found in cluster.anchors.all() if self._is_ours(found)]
        standing = [(found, self._standing_of(found)) for found in ours if not found.deleting]
        over = [found for found, each in standing if each is Standing.OVER]
        unknown = [found for found, each in standing if each is Standing.UNKNOWN]
        deleted = await self._deleted_among({found.appwrapper for found in unknown}) if unknown else set()
        over += [found for found in unknown if found.appwrapper in deleted]
        unknown = [found for found in unknown if found.appwrapper not in deleted]
        unknown = self._without_missed(cluster, unknown)
        if len(unknown) > max(FEW, len(ours) * LARGEST_SHARE // 100):
            _log.warning("too_many_unknown", cluster=cluster.name, unknown=len(unknown), all=len(ours))
            unknown = []
        for found in (*over, *unknown):
            if self._standing_of(found) is Standing.LIVE:
                continue  # since we looked: each deletion takes its time
            _log.info("swept", cluster=cluster.name, anchor=f"{found.namespace}/{found.name}")
            await cluster.anchors.delete(found)

    def _without_missed(self, cluster: Cluster, unknown: list[Found]) -> list[Found]:
        """Those that were made after the restore; of the others it is told when there are other ones."""
        if self._spared_until is None:
            return unknown
        missed = [found for found in unknown if found.created_at <= self._spared_until]
        names = frozenset(f"{found.namespace}/{found.name}" for found in missed)
        if names and names != self._spared.get(cluster.name):
            told = sorted(names)[:MOST_TOLD]
            _log.warning("left_what_was_missed", cluster=cluster.name, number=len(names), anchors=told)
        self._spared[cluster.name] = names
        return [found for found in unknown if found.created_at > self._spared_until]

    def _is_ours(self, found: Found) -> bool:
        """False also of one in another namespace than its AppWrapper: we made none there."""
        record = self._cache.get(found.appwrapper)
        return found.hub_id == self._hub_id and (record is None or record.namespace == found.namespace)

    def _standing_of(self, found: Found) -> Standing:
        return self._standing(found.appwrapper, found.attempt)

    def _standing(self, appwrapper: str, attempt: int) -> Standing:
        record = self._cache.get(appwrapper)
        if record is None:
            # Not taken in yet, or not to be told: the hub's own list is not complete.
            may_come = self._hub.view(appwrapper) is not None or not self._hub.can_tell_all
            return Standing.LIVE if may_come else Standing.UNKNOWN
        if attempt > record.attempts:
            return Standing.UNKNOWN
        # By its number alone: the cluster it was dispatched to may go by another name now.
        if record.attempt is None or record.attempt.number != attempt:
            return Standing.OVER
        return Standing.LIVE if record.holds_capacity or record.kept_until else Standing.OVER
