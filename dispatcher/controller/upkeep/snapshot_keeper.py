"""Keeps the leader's last snapshot in the database, so that commands explain decisions from the same facts.

A cluster is written when its facts have changed, and no cluster more often than once in `period`. The work grows with
the nodes and pods of the clusters that changed; it runs in slices, and the compression in a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from dispatcher import errors, log
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.slices import Slices
from dispatcher.controller.upkeep.cluster_facts import Clusters, ClusterState, facts_of, states_of
from dispatcher.core.kinds.cluster_defaults import DefaultsSurvey
from dispatcher.core.scheduling.leader_snapshot import SchedulingRules
from dispatcher.store import snapshot_document
from dispatcher.store.snapshots import SnapshotStore

_log = log.get("snapshot")


class SnapshotKeeper:
    """Writes the snapshot while `run` runs; `surveys` are the defaults of pods in connected clusters."""

    def __init__(
        self,
        cache: Cache,
        clusters: Clusters,
        store: SnapshotStore,
        rules: Callable[[], SchedulingRules],
        now: Callable[[], datetime],
        period: timedelta,
        surveys: Callable[[], Mapping[str, DefaultsSurvey]],
    ) -> None:
        self._cache = cache
        self._clusters = clusters
        self._store = store
        self._rules = rules
        self._now = now
        self._period = period
        self._surveys = surveys
        self._written: dict[str, ClusterState] | None = None

    async def run(self) -> None:
        """Write what has changed once in each period, until cancelled; a failed write is made up for by the next."""
        while True:
            try:
                await self.write()
            except errors.Fenced:
                raise
            except errors.StoreError as error:
                self._written = None
                _log.warning("snapshot_not_written", error=str(error))
            except Exception as error:  # noqa: BLE001  # the loop's edge: commands explain older facts, no more
                self._written = None
                log.internal_error("snapshot", error)
            await asyncio.sleep(self._period.total_seconds())

    async def write(self) -> None:
        """Write the clusters that have changed since the last call, and delete those that are gone."""
        found, now = self._states(), self._now()
        if found == self._written:
            return
        written = self._written or {}
        changed = {name: each for name, each in found.items() if written.get(name) != each}
        documents = {}
        for name, each in changed.items():
            documents[name] = await self._document(each, now)
        await self._store.write(documents, found.keys(), now)
        self._written = found

    def _states(self) -> dict[str, ClusterState]:
        return states_of(self._cache, self._clusters, self._rules(), self._surveys())

    async def _document(self, state: ClusterState, now: datetime) -> bytes:
        slices = Slices(time.monotonic)
        facts = await facts_of(state, self._clusters, now, slices)
        lines = await slices.run(snapshot_document.lines_of(facts))
        return await asyncio.to_thread(snapshot_document.compressed, lines)
