"""The dispatch cycle: who of the queue fits where now, committed in one transaction.

A cycle reads as: order the queue, snapshot the capacity, plan, commit every decision at once, hand the keys
on. It creates nothing (the reconciler does) and asks nobody (memory is current). It is woken by what may
change its answer: an arrival, a release, a node, a pod that went; a slow poll covers a lost wake-up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from dispatcher.controller.cluster import Cluster
from dispatcher.controller.committer import Committer
from dispatcher.controller.roster import Roster
from dispatcher.core import lifecycle
from dispatcher.core.placement import Behind, Impossible, Outcome, Placed, Policy, Waiting, plan
from dispatcher.core.queueing import in_order, next_eligible, starved
from dispatcher.core.record import Change
from dispatcher.probes import Metrics


@dataclass(frozen=True, slots=True)
class Rules:
    """How the queue is served, and how often: cycles are at least `least` seconds apart, at most `most`."""

    policy: Policy = Policy.BEST_EFFORT_FIFO
    starvation_bound: timedelta = timedelta(minutes=10)
    least: float = 0.05
    most: float = 10.0


class Dispatch:
    """Runs cycles by the rules."""

    def __init__(
        self,
        roster: Roster,
        committer: Committer,
        clusters: Mapping[str, Cluster],
        on_decided: Callable[[str], None],
        now: Callable[[], datetime],
        metrics: Metrics,
        rules: Rules,
    ) -> None:
        self._roster = roster
        self._committer = committer
        self._clusters = clusters
        self._on_decided = on_decided
        self._now = now
        self._metrics = metrics
        self._rules = rules
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Have a cycle run soon."""
        self._wake.set()

    async def run(self) -> None:
        """Run cycles until cancelled."""
        while True:
            # Not wait_for: until Python 3.12 it swallows a cancellation that comes with what it waits for.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            self._wake.clear()
            await self.cycle()
            await asyncio.sleep(self._rules.least)

    def _pause(self) -> float:
        """Seconds until a cycle is due even if nothing wakes it."""
        now = self._now()
        eligible = next_eligible(self._roster.queued(), now)
        return min(self._rules.most, (eligible - now).total_seconds()) if eligible else self._rules.most

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
            starving = starved(queue, now, self._rules.starvation_bound)
            outcomes = plan(queue, snapshots, self._rules.policy, starving)
            changes = [change for outcome in outcomes if (change := _change(outcome, now))]
            committed = await self._committer.commit_all(changes)
        for record in committed:
            self._on_decided(record.uid)


def _change(outcome: Outcome, now: datetime) -> Change | None:
    match outcome:
        case Placed(record, cluster):
            return lifecycle.dispatch(record, cluster, now)
        case Waiting(record, pending, is_head):
            return lifecycle.block(record, pending, now, is_head=is_head)
        case Impossible(record, pending):
            return lifecycle.block(record, pending, now)
        case Behind(record, pending):
            return lifecycle.line_up(record, pending, now)
