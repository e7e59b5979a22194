"""Keeps the leader's last snapshot in the database, so that commands explain decisions from the same facts.

A cluster is written when its facts have changed, and no cluster more often than once in `period`. The work grows with
the nodes and pods of the clusters that changed; it runs in slices, and the compression in a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from dispatcher import errors, log
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.slices import Slices
from dispatcher.core.model.requirements import ClusterRequirements
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.backfill import Reservation
from dispatcher.core.scheduling.capacity import CapacityLedger
from dispatcher.core.scheduling.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.leader_snapshot import (
    ClusterFacts,
    OwnedPods,
    SchedulingRules,
    count_pods_by_place,
)
from dispatcher.core.scheduling.node_snapshot import Use
from dispatcher.core.scheduling.world import Cluster
from dispatcher.store import snapshot_document
from dispatcher.store.snapshots import SnapshotStore

_log = log.get("snapshot")


class Clusters(Protocol):
    """The clusters of the snapshot."""

    @property
    def ledgers(self) -> Mapping[str, CapacityLedger]:
        """The ledger of each connected cluster."""

    def snapshots(self, requirements: Iterable[ClusterRequirements]) -> Mapping[str, ClusterSnapshot]:
        """A snapshot of each cluster, for a cycle over gangs with these requirements."""

    def reserve_of(self, cluster: str) -> Resources:
        """The reserve of a cluster."""


@dataclass(frozen=True, slots=True)
class _Written:
    """The last written facts of a cluster; `uses` differ where a pod was bound as planned, which frees nothing."""

    snapshot: ClusterSnapshot
    reservations: Mapping[str, Reservation]
    uses: Mapping[str, Use]
    rules: SchedulingRules


class SnapshotKeeper:
    """Writes the snapshot while `run` runs."""

    def __init__(
        self,
        cache: Cache,
        clusters: Clusters,
        store: SnapshotStore,
        rules: Callable[[], SchedulingRules],
        now: Callable[[], datetime],
        period: timedelta,
    ) -> None:
        self._cache = cache
        self._clusters = clusters
        self._store = store
        self._rules = rules
        self._now = now
        self._period = period
        self._written: dict[str, _Written] | None = None

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
        pending = self._cache.pending_queue
        snapshots, now = self._clusters.snapshots(pending.requirements()), self._now()
        rules = self._rules()
        by_cluster: dict[str, dict[str, Reservation]] = {name: {} for name in snapshots}
        for uid, reservation in pending.reservations.items():
            by_cluster.get(reservation.cluster, {})[uid] = reservation
        found = {
            name: _Written(
                each, by_cluster[name], each.capacity.nodes.uses if each.capacity.nodes else {}, rules
            )
            for name, each in snapshots.items()
        }
        if found == self._written:
            return
        written = self._written or {}
        changed = {name: each for name, each in found.items() if written.get(name) != each}
        documents = {}
        for name, each in changed.items():
            documents[name] = await self._document(each, now)
        await self._store.write(documents, found.keys(), now)
        self._written = found

    async def _document(self, written: _Written, now: datetime) -> bytes:
        snapshot, slices = written.snapshot, Slices(time.monotonic)
        ledger = self._clusters.ledgers.get(snapshot.name)
        if ledger is None:
            cluster, pods = Cluster.of(snapshot, (), NOTHING), tuple[OwnedPods, ...]()
        else:
            reserve = self._clusters.reserve_of(snapshot.name)
            cluster = Cluster.of(snapshot, ledger.nodes(), reserve)
            pods = await slices.run(count_pods_by_place(ledger.pods()))
        facts = ClusterFacts(cluster, pods, written.rules, written.reservations, now)
        lines = await slices.run(snapshot_document.lines_of(facts))
        return await asyncio.to_thread(snapshot_document.compressed, lines)
