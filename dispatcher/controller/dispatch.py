"""The dispatch cycle: who of the queue fits where now, committed in one transaction.

A cycle reads as: order the queue, say what is known of each cluster, plan, commit every decision at once, hand the keys
on. It creates nothing (the reconciler does) and asks nobody (memory is current). It is woken by what may
change its answer: an arrival, a release, a node, a pod that went; a slow poll covers a lost wake-up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from dispatcher.controller.committer import LARGEST_BATCH, Committer
from dispatcher.controller.roster import Roster
from dispatcher.core import lifecycle
from dispatcher.core.choice import Site, Where
from dispatcher.core.placement import Behind, Impossible, Outcome, Placed, Policy, Waiting
from dispatcher.core.record import Change
from dispatcher.probes import Metrics


@dataclass(frozen=True, slots=True)
class Rules:
    """How the queue is served, and how often: cycles are at least `least` seconds apart, at most `most`."""

    policy: Policy = Policy.BEST_EFFORT_FIFO
    starvation_bound: timedelta = timedelta(minutes=10)
    least: float = 0.05
    most: float = 10.0


class Known(Protocol):
    """What is known of the clusters."""

    async def get_ready(self, wheres: Iterable[Where]) -> None:
        """Find out what has to be known for those who require `wheres`: only what nobody asked before, and briefly."""

    def sites(self, wheres: Iterable[Where]) -> Mapping[str, Site]:
        """Each cluster as it is now, for a pass over those who require `wheres`."""


class Dispatch:
    """Runs cycles by the rules."""

    def __init__(
        self,
        roster: Roster,
        committer: Committer,
        known: Known,
        on_decided: Callable[[str], None],
        now: Callable[[], datetime],
        metrics: Metrics,
        rules: Rules,
    ) -> None:
        self._roster = roster
        self._committer = committer
        self._known = known
        self._on_decided = on_decided
        self._now = now
        self._metrics = metrics
        self._rules = rules
        self._wake = asyncio.Event()
        self._planned_at: datetime | None = None

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
        """Seconds until a cycle is due even if nothing wakes it: none if somebody became eligible since the last."""
        now = self._now()
        eligible = self._roster.line.next_eligible(self._planned_at or now)
        seconds = (eligible - now).total_seconds() if eligible else self._rules.most
        return max(0.0, min(self._rules.most, seconds))

    async def cycle(self) -> None:
        """Decide for everything that is queued, once."""
        with self._metrics.cycle_seconds.time():
            line, rules = self._roster.line, self._rules
            await self._known.get_ready(line.wheres())
            now = self._now()  # a gang that arrived while the cycle waited must not be dispatched before that
            sites = self._known.sites(line.wheres())
            outcomes = line.plan(sites, rules.policy, rules.starvation_bound, now)
            self._planned_at = now
            for batch in _batches(outcomes):
                await self._decide(batch, now)
                if self._wake.is_set() and not any(isinstance(each, Placed) for each in batch):
                    return  # there is something new to decide; those not told yet are news to the next cycle

    async def _decide(self, outcomes: Sequence[Outcome], now: datetime) -> None:
        changes = [change for outcome in outcomes if (change := change_of(outcome, now))]
        for record in await self._committer.commit_all(changes):
            self._on_decided(record.uid)


def _batches(outcomes: list[Outcome]) -> Iterator[list[Outcome]]:
    """In queue order; but if one does not hold them all, those to be dispatched go first.

    To make all the changes of a long queue at once would keep everybody else from the event loop for seconds.
    """
    if len(outcomes) > LARGEST_BATCH:
        outcomes = sorted(outcomes, key=lambda outcome: not isinstance(outcome, Placed))
    for start in range(0, len(outcomes), LARGEST_BATCH):
        yield outcomes[start : start + LARGEST_BATCH]


def change_of(outcome: Outcome, now: datetime) -> Change | None:
    """What an outcome makes of its AppWrapper; None if that knows it already."""
    match outcome:
        case Placed(record, cluster, message):
            return lifecycle.dispatch(record, cluster, now, message)
        case Waiting(record, pending, is_head):
            return lifecycle.block(record, pending, now, is_head=is_head)
        case Impossible(record, pending):
            return lifecycle.block(record, pending, now)
        case Behind(record, pending):
            return lifecycle.line_up(record, pending, now)
