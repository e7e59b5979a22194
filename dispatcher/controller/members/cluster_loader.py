"""Loads the gangs of each newly connected cluster: its ledger counts them, and it tracks their objects.

A member may have thousands of gangs, so the loader works in slices. Until a cluster is loaded, nothing is dispatched
to it, and no gang there is judged by its pods, because the pods would seem to be missing. The AppWrappers of a
disconnected cluster, or of a cluster to be drained, are only woken.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from dispatcher import log
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.slices import Slices

AGAIN_SECONDS: Final = 5.0
"""Pause before a failed load is retried."""


class ClusterLoader:
    """Loads clusters while `run` runs; calls `wake` with each AppWrapper there, then `wake_dispatch`.

    The clusters passed to the constructor count as loaded.
    """

    def __init__(
        self,
        clusters: Mapping[str, WatchedCluster],
        cache: Cache,
        wake: Callable[[str], None],
        wake_dispatch: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clusters = clusters
        self._cache = cache
        self._wake = wake
        self._wake_dispatch = wake_dispatch
        self._monotonic = monotonic
        self._loaded = dict(clusters)
        self._names: asyncio.Queue[str] = asyncio.Queue()

    def add(self, name: str) -> None:
        """Queue a cluster that was connected, disconnected or replaced; it gets no gangs until it is loaded."""
        cluster = self._clusters.get(name)
        if cluster is not None and self._loaded.get(name) is not cluster:
            cluster.is_loaded = False
        self._names.put_nowait(name)

    def is_loading(self, name: str) -> bool:
        """True while a connected cluster is not loaded: its objects and pods may not all be observed yet."""
        cluster = self._clusters.get(name)
        return cluster is not None and not cluster.is_loaded

    async def wait_until_done(self) -> None:
        """Return once each added cluster is loaded, or its load has failed."""
        await self._names.join()

    async def run(self) -> None:
        """Load clusters until cancelled, one at a time."""
        while True:
            name = await self._names.get()
            try:
                await self._load(name)
            except Exception as error:  # noqa: BLE001  # the loop's edge: one member must not end the others
                log.internal_error("cluster_loader", error, cluster=name)
                asyncio.get_running_loop().call_later(AGAIN_SECONDS, self.add, name)
            finally:
                self._names.task_done()

    async def _load(self, name: str) -> None:
        slices, cluster = Slices(self._monotonic), self._clusters.get(name)
        if cluster is None:
            self._loaded.pop(name, None)
            await self._cache.charge_anew(name, slices)
        elif self._loaded.get(name) is not cluster:
            await self._cache.charge_anew(name, slices)
            await self._track_gangs(cluster, slices)
            # If the connection was replaced meanwhile, the new cluster is queued, too.
            self._loaded[name] = cluster
            cluster.is_loaded = True
            self._wake_dispatch()
        await slices.for_each([record.uid for record in self._cache.records_in(name)], self._wake)

    async def _track_gangs(self, cluster: WatchedCluster, slices: Slices) -> None:
        """Have the cluster track the current objects of its gangs, and recount the pods of all known AppWrappers."""
        uids = [record.uid for record in self._cache.records_in(cluster.name)]
        await slices.for_each(uids, partial(self._track_safely, cluster))
        cluster.recount_claims()

    def _track_safely(self, cluster: WatchedCluster, uid: str) -> None:
        record = self._cache.get(uid)
        if record is None:
            return
        try:
            cluster.track(record)
        except Exception as error:  # noqa: BLE001  # one AppWrapper must not block the load of the others
            log.internal_error("cluster_loader", error, cluster=cluster.name, appwrapper=uid)
