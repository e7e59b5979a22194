"""Writes the status of each DispatchQueue, and keeps the state of all queues for metrics.

Once in each period, all states are counted anew from the cache, beside the event loop, and the status of each queue is
compared with what the API server has: an idle dispatcher writes nothing. A status that cannot be written is
written in a later round; the failure is logged once, until a round succeeds or fails otherwise.

Each round also finds the gangs that grew beyond what their queues may use, so that their AppWrappers say so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct

from dispatcher import errors, log
from dispatcher.api.names import QUEUES_PATH
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.planner import Planner
from dispatcher.controller.scheduling.queue_cycles import active_gangs
from dispatcher.controller.scheduling.slices import Slices
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.queues.declared_queues import DeclaredQueues, DispatchQueue
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Sharing
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.sharing import division
from dispatcher.core.scheduling.sharing.gangs import ActiveGang
from dispatcher.core.status.queue_status import (
    QueueCounter,
    QueueGangs,
    QueueState,
    QueueStatuses,
    beyond_quota,
)
from dispatcher.kube import paths
from dispatcher.kube.client import ClusterClient

_log = log.get("queue-status")


class Queues(Protocol):
    """The declared queues."""

    @property
    def declared(self) -> DeclaredQueues:
        """All declared queues; the same value until one of them changes."""

    @property
    def dispatch_queues(self) -> Iterable[DispatchQueue]:
        """The DispatchQueues in no order, also malformed ones, each with its status of now."""


class Clusters(Protocol):
    """The clusters of the gangs."""

    def snapshots(self, requirements: Iterable[ClusterRequirements]) -> Mapping[str, ClusterSnapshot]:
        """A snapshot of each cluster, for a cycle over gangs with these requirements."""


class _Written(Struct, frozen=True):
    """A status that was written, and the queue as the watch showed it then."""

    seen: DispatchQueue
    status: dict[str, Any]


class QueueStatusWriter:
    """Writes statuses while `run` runs, with `period` seconds between two rounds."""

    def __init__(
        self,
        queues: Queues,
        cache: Cache,
        clusters: Clusters,
        client: ClusterClient,
        now: Callable[[], datetime],
        period: float,
        monotonic: Callable[[], float] = time.monotonic,
        on_beyond_quota: Callable[[Record, str], None] = lambda _record, _message: None,
    ) -> None:
        """`on_beyond_quota` is called with a record and its message once the message has changed.

        In the first round it is called for every gang that has grown, because the message of an earlier leader is not
        known.
        """
        self.states: Mapping[str, QueueState] = {}
        """The state of each declared queue by name, as of the last round; empty if none is declared."""
        self._queues = queues
        self._cache = cache
        self._clusters = clusters
        self._client = client
        self._now = now
        self._period = period
        self._monotonic = monotonic
        self._planner = Planner()
        self._counter = QueueCounter(Forest())
        self._counted: Forest | None = None
        self._written: dict[str, _Written] = {}
        self._last_error: type[errors.ClusterError] | None = None
        self._on_beyond_quota = on_beyond_quota
        self._active: Sequence[ActiveGang] = ()
        self._beyond_quota: dict[str, str] | None = None

    def beyond_quota_of(self, uid: str) -> str | None:
        """Why a gang, by uid, holds more than its queue may use; empty if it does not, None before the first round."""
        return None if self._beyond_quota is None else self._beyond_quota.get(uid, "")

    async def run(self) -> None:
        """Write what has changed once in each period, until cancelled."""
        while True:
            try:
                await self.write()
            except errors.StoreError:
                raise
            except Exception as error:  # noqa: BLE001  # the loop's edge: statuses are old, no more
                log.internal_error("queue-status", error)
            await asyncio.sleep(self._period)

    async def write(self) -> None:
        """Count all queues and write the statuses that differ."""
        declared, queues = self._queues.declared, list(self._queues.dispatch_queues)
        self._active = ()
        self.states = await self._count(declared) if declared.is_declared else {}
        self._find_beyond_quota()
        self._written = {each.uid: self._written[each.uid] for each in queues if each.uid in self._written}
        statuses, slices = QueueStatuses(declared, queues), Slices(self._monotonic)
        first_error: errors.ClusterError | None = None
        for queue in queues:
            state = self.states.get(queue.queue.name)
            if state is not None:  # else it was declared while the states were counted
                try:
                    await self._write(queue, statuses, state)
                except errors.ClusterError as error:
                    first_error = first_error or error
                    if not isinstance(error, errors.NotFound | errors.Conflict | errors.Invalid):
                        break  # the others fare no better
            await slices.give_way()
        self._report(first_error)

    async def _count(self, declared: DeclaredQueues) -> Mapping[str, QueueState]:
        if self._counted is not declared.forest:
            self._counter, self._counted = QueueCounter(declared.forest), declared.forest
        snapshots = self._clusters.snapshots(())
        capacities = {
            root: division.capacity_of(declared.forest.places[root], snapshots)
            for root, tree in declared.forest.trees.items()
            if tree.sharing is Sharing.DIVISION
        }
        records = list(self._cache.records())
        active = self._active = await self._planner.run(active_gangs(records, snapshots))
        gangs = QueueGangs(records, active, self._now(), capacities)
        return await self._planner.run(self._counter.count_in_steps(gangs))

    def _find_beyond_quota(self) -> None:
        before = self._beyond_quota
        grown = {gang.uid: gang.record for gang in self._active if gang.record.growth_charge}
        told = {uid: self._beyond_quota_safely(record) for uid, record in grown.items()}
        self._beyond_quota = {uid: each for uid, each in told.items() if each}
        for uid in {**grown, **(before or {})}:
            record, message = self._cache.get(uid), told.get(uid, "")
            # A status from before the first round may have the sentence of an earlier leader.
            if record is not None and (before is None or message != before.get(uid, "")):
                self._on_beyond_quota(record, message)

    def _beyond_quota_safely(self, record: Record) -> str:
        """The message of a gang; empty if it raises an exception, which must not end the statuses (logged)."""
        try:
            return beyond_quota(record, self.states)
        except Exception as error:  # noqa: BLE001  # as above
            log.internal_error("queue-status", error, appwrapper=record.uid)
            return ""

    async def _write(self, queue: DispatchQueue, statuses: QueueStatuses, state: QueueState) -> None:
        """Write the status of a queue if it differs from what the API server has, as far as this is known."""
        written = self._written.get(queue.uid)
        # The watch may not have shown the last written status yet; that status is not written again.
        present = written.status if written is not None and written.seen is queue else queue.status
        status = statuses.status_of(state, present, self._now())
        if status == present:
            return
        path = f"{QUEUES_PATH}/{paths.segment(queue.queue.name)}/status"
        test = {"op": "test", "path": "/metadata/uid", "value": queue.uid}
        # Replaced as a whole: a merge would keep the amounts of resources that are not limited any more.
        await self._client.patch(path, [test, {"op": "add", "path": "/status", "value": status}])
        self._written[queue.uid] = _Written(queue, status)

    def _report(self, error: errors.ClusterError | None) -> None:
        """Log the failure of a round, unless the last round failed in the same way."""
        kind = None if error is None else type(error)
        if error is not None and kind is not self._last_error:
            _log.warning("queue_status_not_written", error=str(error))
        self._last_error = kind
