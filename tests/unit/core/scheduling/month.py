"""A queue, its clusters and their gangs in virtual time: the real planning, and nobody who sleeps."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count

from msgspec.structs import replace

from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.lifecycle import removal
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.outcome_changes import change_of
from dispatcher.core.scheduling.cycle.outcomes import Placed
from dispatcher.core.scheduling.fit.backfill_reservation import Bounds
from tests.builders import at, make_gang, make_record, make_snapshots
from tests.one_queue import Cycles

STARVATION = timedelta(minutes=10)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
FOREVER = timedelta(days=1000)


def cpus(number: float) -> Resources:
    return Resources({"cpu": round(number * 1000)})


def make_cluster(nodes: int, cpu: float, daemons: float = 0.0, foreign: float = 0.0) -> CapacityLedger:
    """So many equal nodes; on each a pod of a DaemonSet, and one of somebody else that may end some day."""
    ledger = CapacityLedger(FitMode.AGGREGATE)
    for number in range(nodes):
        name = f"n{number}"
        ledger.set_node(Node(name, cpus(cpu)))
        if daemons:
            pod = Pod(f"daemon-{number}", cpus(daemons), name, PodPhase.RUNNING, never_ends=True)
            ledger.set_pod(pod)
        if foreign:
            ledger.set_pod(Pod(f"foreign-{number}", cpus(foreign), name, PodPhase.RUNNING))
    return ledger


@dataclass
class World:
    """What is dispatched holds its demand for as long as it runs. A cycle follows whatever happens, at once."""

    clusters: Mapping[str, CapacityLedger]
    bounds: Bounds = field(default_factory=lambda: Bounds(6 * HOUR, STARVATION))
    policy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO
    now: datetime = field(default_factory=lambda: at(0))
    headed: dict[str, datetime] = field(default_factory=dict)
    dispatched: dict[str, tuple[datetime, str]] = field(default_factory=dict)
    told: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cache = Cache(self.clusters, bounds=self.bounds)
        self._cycles = Cycles(self.cache.pending_queue, self.cache.backfills)
        self._numbers = count(1)
        self._events: list[tuple[datetime, int, Record | None]] = []
        self._awaited: set[datetime] = set()
        self._runs: dict[str, timedelta] = {}

    def submit(self, when: datetime, name: str, gang: Gang, run: timedelta) -> None:
        """Have it arrive then; it holds its capacity for `run` once it was dispatched."""
        number = next(self._numbers)
        record = replace(make_record(name=name, gang=gang), created_at=when, enqueue_seq=number)
        self._runs[record.uid] = run
        heapq.heappush(self._events, (when, number, record))

    def run(self, until: datetime) -> Iterator[datetime]:
        """Live until then, stopping after each cycle."""
        while self._events and self._events[0][0] <= until:
            self.now = self._events[0][0]
            while self._events and self._events[0][0] == self.now:
                self._happen(heapq.heappop(self._events)[2])
            self._cycle()
            yield self.now

    def run_out(self, until: datetime) -> None:
        """Live until then."""
        for _ in self.run(until):
            self.check()

    def check(self) -> None:
        """Nothing is given away twice."""
        for ledger in self.clusters.values():
            assert all(amount >= 0 for amount in ledger.free().values())

    def wait_of(self, name: str) -> timedelta:
        """How long it waited after it was first at the head; it was dispatched."""
        return self.dispatched[name][0] - self.headed.get(name, self.dispatched[name][0])

    def free(self, cluster: str) -> float:
        """Free cpus."""
        return self.clusters[cluster].free()["cpu"] / 1000

    def _happen(self, record: Record | None) -> None:
        """One arrives or, if it was dispatched, ends."""
        if record is None:
            return
        known = self.cache.get(record.uid)
        if known is None:
            self.cache.put(record)
            return
        deleting = removal.delete(known, self.now).after
        self.cache.put(deleting)
        self.cache.put(removal.release(deleting, self.now).after)

    def _cycle(self) -> None:
        snapshots = make_snapshots(**{name: ledger.snapshot() for name, ledger in self.clusters.items()})
        self.cache.gather_running(snapshots)
        for outcome in self._cycles.plan(snapshots, self.policy, STARVATION, self.now):
            change = change_of(outcome, self.now)
            if change is None:
                continue
            self.cache.put(change.after)
            self._note(change.after)
            if isinstance(outcome, Placed):
                record = outcome.record
                self.dispatched[record.name] = self.now, outcome.cluster
                self._call_at(self.now + self._runs[record.uid], record)
        for reservation in self.cache.backfills.room.reservations.values():
            self._wake_at(reservation.until)

    def _note(self, record: Record) -> None:
        if record.blocked_since is not None and record.name not in self.headed:
            self.headed[record.name] = record.blocked_since
            self._wake_at(record.blocked_since + STARVATION)
        if record.pending is not None:
            self.told.setdefault(record.name, []).append(record.pending.message)

    def _wake_at(self, when: datetime) -> None:
        """A cycle of its own, as the slow poll brings about."""
        if when not in self._awaited:
            self._awaited.add(when)
            self._call_at(when, None)

    def _call_at(self, when: datetime, record: Record | None) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), record))


def stream(world: World, days: int, every: timedelta, run: timedelta) -> list[str]:
    """Small jobs of one cpu that come regularly; their names."""
    names = [f"small-{number}" for number in range(int(timedelta(days=days) / every))]
    for number, name in enumerate(names):
        world.submit(at(60) + number * every, name, make_gang(cpu=1000), run)
    return names
