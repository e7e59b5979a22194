"""Orphan garbage collection: removes the anchors of ended attempts from members, and their objects with them.

An attempt may end while its cluster is lost; its objects are removed when the member is connected again. The policy
is `core.lifecycle.removal`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import Final

from dispatcher import errors, log
from dispatcher.controller.intake.attempt_context import AttemptContext
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.lifecycle.removal import AnchorState, anchor_state, is_small_share, was_missed
from dispatcher.core.model.records.record import Phase
from dispatcher.kube.objects.anchors import Found

PERIOD_SECONDS: Final = 60.0
LEAST_SECONDS: Final = 1.0
"""Least pause between two collections: each gang that finds a name taken wakes the collector."""
MOST_NAMED: Final = 20
"""The most anchors that one warning names."""

_log = log.get("orphan_gc")


class OrphanCollector:
    """Collects in every member once in a period, and at once when a member is connected again."""

    def __init__(
        self,
        context: AttemptContext,
        cache: Cache,
        deleted_among: Callable[[Collection[str]], Awaitable[set[str]]],
        restored_at: datetime | None = None,
    ) -> None:
        self._clusters = context.clusters
        self._cache = cache
        self._informer = context.informer
        self._hub_id = context.hub_id
        self._deleted_among = deleted_among
        self._restored_at = restored_at
        self._missed: dict[str, frozenset[str]] = {}
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Start a collection at once: a member was connected again."""
        self._wake.set()

    def removes(self, appwrapper: str, attempt: int) -> bool:
        """True if orphan garbage collection removes the member's objects of an attempt, now or soon.

        It is also true of an attempt that the database does not know, although a large share of such attempts stays.
        """
        record, view = self._cache.get(appwrapper), self._informer.view(appwrapper)
        if (record and record.phase is Phase.DELETING) or (view and view.deleting):
            return True
        is_left = self._attempt_state(appwrapper, attempt) is not AnchorState.LIVE
        if is_left:
            self.wake()
        return is_left

    async def run(self) -> None:
        """Collect until cancelled."""
        while True:
            members = [each for each in self._clusters.values() if each.is_member]
            await asyncio.gather(*map(self._collect_safely, members))
            await asyncio.sleep(LEAST_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_SECONDS - LEAST_SECONDS):
                    await self._wake.wait()
            self._wake.clear()

    async def _collect_safely(self, cluster: WatchedCluster) -> None:
        try:
            await self.collect(cluster)
        except (errors.ClusterError, errors.StoreError) as error:
            _log.info("orphan_collection_failed", cluster=cluster.name, error=str(error))
        except Exception:  # noqa: BLE001  # the loop's edge: one member must not end the others
            log.count_internal_error("orphan_gc")
            _log.exception("orphan_collection_failed", cluster=cluster.name)

    async def collect(self, cluster: WatchedCluster) -> None:
        """Remove the orphans of one member; without a complete list nothing is removed."""
        ours = [found async for found in cluster.anchors.all() if self._is_ours(found)]
        judged = [(found, self._state_of(found)) for found in ours if not found.deleting]
        ended = [found for found, each in judged if each is AnchorState.ENDED]
        unknown = [found for found, each in judged if each is AnchorState.UNKNOWN]
        deleted = await self._deleted_among({found.appwrapper for found in unknown}) if unknown else set()
        ended += [found for found in unknown if found.appwrapper in deleted]
        unknown = [found for found in unknown if found.appwrapper not in deleted]
        unknown = self._without_missed(cluster, unknown)
        if not is_small_share(len(unknown), len(ours)):
            _log.warning("too_many_unknown", cluster=cluster.name, unknown=len(unknown), all=len(ours))
            unknown = []
        for found in (*ended, *unknown):
            if self._state_of(found) is AnchorState.LIVE:
                continue  # it was adopted meanwhile: each deletion takes its time
            _log.info("orphan_deleted", cluster=cluster.name, anchor=f"{found.namespace}/{found.name}")
            await cluster.anchors.delete(found)

    def _without_missed(self, cluster: WatchedCluster, unknown: list[Found]) -> list[Found]:
        """The anchors created after a restore; a warning names the others whenever they change."""
        if self._restored_at is None:
            return unknown
        missed = [found for found in unknown if was_missed(found.created_at, self._restored_at)]
        names = frozenset(f"{found.namespace}/{found.name}" for found in missed)
        if names and names != self._missed.get(cluster.name):
            first = sorted(names)[:MOST_NAMED]
            _log.warning("anchors_missed_by_restore", cluster=cluster.name, number=len(names), anchors=first)
        self._missed[cluster.name] = names
        return [found for found in unknown if not was_missed(found.created_at, self._restored_at)]

    def _is_ours(self, found: Found) -> bool:
        """False also of an anchor in another namespace than its AppWrapper: the dispatcher creates none there."""
        record = self._cache.get(found.appwrapper)
        return found.hub_id == self._hub_id and (record is None or record.namespace == found.namespace)

    def _state_of(self, found: Found) -> AnchorState:
        return self._attempt_state(found.appwrapper, found.attempt)

    def _attempt_state(self, appwrapper: str, attempt: int) -> AnchorState:
        is_shown = self._informer.view(appwrapper) is not None
        may_come = is_shown or not self._informer.can_tell_all
        return anchor_state(attempt, self._cache.get(appwrapper), may_come=may_come)
