"""The dispatch cycle: who of the queue fits where now, committed in one transaction.

A cycle reads as: order the queue, snapshot the capacity, plan, commit every decision at once, hand the keys
on. It creates nothing (the reconciler does) and asks nobody (memory is current). It is woken by what may
change its answer: an arrival, a release, a node, a pod that went; a slow poll covers a lost wake-up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from datetime import datetime

from dispatcher import log
from dispatcher.controller.cluster import Cluster
from dispatcher.controller.committer import Committer
from dispatcher.controller.roster import Roster
from dispatcher.core import lifecycle
from dispatcher.core.placement import Impossible, Outcome, Placed, Waiting, plan
from dispatcher.core.queueing import in_order, next_eligible
from dispatcher.core.record import Change, Record
from dispatcher.probes import Metrics

_log = log.get("dispatch")


class Dispatch:
    """Runs cycles: at least `least` seconds apart, at most `most`."""

    def __init__(
        self,
        roster: Roster,
        committer: Committer,
        clusters: Mapping[str, Cluster],
        on_decided: Callable[[str], None],
        now: Callable[[], datetime],
        metrics: Metrics,
        least: float,
        most: float,
    ) -> None:
        self._roster = roster
        self._committer = committer
        self._clusters = clusters
        self._on_decided = on_decided
        self._now = now
        self._metrics = metrics
        self._least = least
        self._most = most
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Have a cycle run soon."""
        self._wake.set()

    async def run(self) -> None:
        """Run cycles until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._pause())
            self._wake.clear()
            await self.cycle()
            await asyncio.sleep(self._least)

    def _pause(self) -> float:
        """Seconds until a cycle is due even if nothing wakes it."""
        now = self._now()
        eligible = next_eligible(self._roster.queued(), now)
        return min(self._most, (eligible - now).total_seconds()) if eligible else self._most

    async def cycle(self) -> None:
        """Decide for everything that is queued, once."""
        with self._metrics.cycle_seconds.time():
            now = self._now()
            queue = in_order(self._roster.queued(), now)
            if not queue:
                return
            snapshots = {
                name: cluster.ledger.snapshot()
                for name, cluster in self._clusters.items()
                if cluster.is_known
            }
            outcomes = plan(queue, snapshots)
            changes = [change for outcome in outcomes if (change := _change(outcome, now))]
            committed = await self._committer.commit_all(changes)
        for record in committed:
            _log_decision(record, now)
            self._on_decided(record.uid)


def _change(outcome: Outcome, now: datetime) -> Change | None:
    match outcome:
        case Placed(record, cluster):
            return lifecycle.dispatch(record, cluster, now)
        case Waiting(record, pending) | Impossible(record, pending):
            return lifecycle.block(record, pending, now)


def _log_decision(record: Record, now: datetime) -> None:
    if record.pending is None and record.attempt is not None:
        waited = round((now - record.created_at).total_seconds(), 3)
        cluster = record.attempt.cluster
        _log.info("dispatched", appwrapper=record.key, uid=record.uid, cluster=cluster, waited=waited)
    elif record.pending is not None:
        reason, detail = record.pending.reason, record.pending.message
        _log.info("waits", appwrapper=record.key, uid=record.uid, reason=reason, detail=detail)
