"""Keeps the leader's last snapshot in the database, so that commands explain decisions from the same facts.

A cluster is written when its facts have changed, and no cluster more often than once in `period`. The work grows with
the nodes and pods of the clusters that changed, and is done beside the event loop.

`states_of` and `facts_in_steps` gather the facts of each cluster from the leader's memory: those that explanations of
its decisions start from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, Protocol

from msgspec import Struct, field

from dispatcher import errors, log
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.planner import Planner
from dispatcher.core.kinds.pods.pod_defaults import DefaultsSurvey
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.core.scheduling.capacity.node_snapshot import Use
from dispatcher.core.scheduling.explain.leader_snapshot import (
    ClusterFacts,
    OwnedPods,
    SchedulingRules,
    count_pods_by_place,
)
from dispatcher.core.scheduling.explain.world_facts import Cluster
from dispatcher.core.scheduling.fit.backfill_reservation import Reservation
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.preemption.surplus import Surplus
from dispatcher.core.scheduling.sharing.quota_reservations import NO_QUOTA_RESERVATIONS, QuotaReservations
from dispatcher.store.snapshot import snapshot_document
from dispatcher.store.snapshot.snapshots import SnapshotStore

NO_SURVEYS: Final[Mapping[str, DefaultsSurvey]] = {}


class Clusters(Protocol):
    """The clusters of the snapshot."""

    @property
    def ledgers(self) -> Mapping[str, CapacityLedger]:
        """The ledger of each connected cluster."""

    def snapshots(self, requirements: Iterable[ClusterRequirements]) -> Mapping[str, ClusterSnapshot]:
        """A snapshot of each cluster, for a cycle over gangs with these requirements."""

    def reserve_of(self, cluster: str) -> Resources:
        """The reserve of a cluster."""


class SchedulingState(Struct, frozen=True):
    """The facts of a cluster at one moment, to be compared with those of another moment.

    `uses` differ where a pod was bound as planned, which frees nothing. `defaults` are those of pods, None where they
    were not surveyed. `surplus` are the surplus pods of gangs there, by the uid of the AppWrapper. `quota` are the
    reservations of quota, which belong to no cluster.
    """

    snapshot: ClusterSnapshot
    reservations: Mapping[str, Reservation]
    uses: Mapping[str, Use]
    rules: SchedulingRules
    defaults: DefaultsSurvey | None = None
    surplus: Mapping[str, Surplus] = field(default_factory=dict)
    quota: QuotaReservations = NO_QUOTA_RESERVATIONS


def states_of(
    cache: Cache,
    clusters: Clusters,
    rules: SchedulingRules,
    surveys: Mapping[str, DefaultsSurvey] = NO_SURVEYS,
) -> dict[str, SchedulingState]:
    """The state of each cluster now, by name; `surveys` are the defaults of pods there."""
    cache.follow_terms()
    snapshots = clusters.snapshots(cache.pending_queue.requirements())
    by_cluster: dict[str, dict[str, Reservation]] = {name: {} for name in snapshots}
    for uid, reservation in cache.backfills.room.reservations.items():
        by_cluster.get(reservation.cluster, {})[uid] = reservation
    quota = QuotaReservations.of(cache.backfills.quota.state)
    surplus: dict[str, dict[str, Surplus]] = {name: {} for name in snapshots}
    for uid, found in cache.surplus().items():
        surplus.get(cache.cluster_of(uid), {})[uid] = found
    return {
        name: SchedulingState(
            each,
            by_cluster[name],
            each.capacity.nodes.uses if each.capacity.nodes else {},
            rules,
            surveys.get(name),
            surplus[name],
            quota,
        )
        for name, each in snapshots.items()
    }


def facts_in_steps(state: SchedulingState, clusters: Clusters, now: datetime) -> Steps[ClusterFacts]:
    """The facts of a cluster; its nodes and pods are those of the call, so the steps read nothing of the ledger."""
    snapshot = state.snapshot
    ledger = clusters.ledgers.get(snapshot.name)
    if ledger is None:
        return _facts_in_steps(state, Cluster.of(snapshot, (), NOTHING), count_pods_by_place(()), now)
    cluster = Cluster.of(snapshot, ledger.nodes(), clusters.reserve_of(snapshot.name))
    counting = count_pods_by_place(ledger.pods(), ledger.concerns_terms)
    return _facts_in_steps(state, cluster, counting, now)


def _facts_in_steps(
    state: SchedulingState, cluster: Cluster, counting: Steps[tuple[OwnedPods, ...]], now: datetime
) -> Steps[ClusterFacts]:
    pods = yield from counting
    return ClusterFacts(
        cluster, pods, state.rules, state.reservations, now, state.defaults, state.surplus, state.quota
    )


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
        self._planner = Planner()
        self._written: dict[str, SchedulingState] | None = None

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

    def _states(self) -> dict[str, SchedulingState]:
        return states_of(self._cache, self._clusters, self._rules(), self._surveys())

    async def _document(self, state: SchedulingState, now: datetime) -> bytes:
        return await self._planner.run(_document_in_steps(facts_in_steps(state, self._clusters, now)))


def _document_in_steps(facts: Steps[ClusterFacts]) -> Steps[bytes]:
    found = yield from facts
    return snapshot_document.document_of(found)
