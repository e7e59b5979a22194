"""Two measurements of packing over the core: a cluster that is filled once, and one that gangs come to and leave.

Nothing but the dispatcher's own functions places gangs: one `QueueCycle` fills, a `QueuePlanner` with its backfill
reservations runs the life of a cluster in virtual time. A dispatched gang holds its places until it ends.
"""

from __future__ import annotations

import heapq
import statistics
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Final, TypeVar

from benchmarks.failure import BenchmarkFailed
from benchmarks.figures import percentile
from benchmarks.packing_load import SIZES, Job, gpus_of
from dispatcher.core.model import incremental
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.queues.forest import Forest
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.cycle import Drained, QueueCycle, QueueFacts
from dispatcher.core.scheduling.cycle.news import outcome_of
from dispatcher.core.scheduling.cycle.outcome_changes import change_of
from dispatcher.core.scheduling.cycle.outcomes import Outcome, Placed
from dispatcher.core.scheduling.cycle.queue_planner import QueuePlanner, QueueRules
from dispatcher.core.scheduling.fit.backfill import Backfill, Backfills, Running
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.queued.pending_queue import PendingQueue
from dispatcher.core.scheduling.queued.queued_gangs import QueuedGangs

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
CYCLE_SECONDS: Final = 10.0
"""Seconds between two cycles: what has come and gone meanwhile is one change."""
T = TypeVar("T")

RULES: Final = QueueRules(Forest.undeclared())
"""One queue without limits, with the dispatcher's default settings."""


@dataclass(frozen=True, slots=True)
class Filled:
    """Clusters that one cycle filled.

    `allocated` is the share of their GPUs by the share that had been requested. `left_out` counts the gangs without a
    place by size, of `gangs`. `cpu` is milliseconds for each gang.
    """

    allocated: Mapping[str, float]
    gangs: Mapping[str, int]
    left_out: Mapping[str, int]
    cpu: float


@dataclass(frozen=True, slots=True)
class Waits:
    """The gangs of one size that arrived in the measured span, and the minutes that they waited.

    A gang without a place at the end has waited until then.
    """

    gangs: int
    left_out: int
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Lived:
    """The measured span of a cluster's life.

    `allocated` is the average share of the GPUs. `overtaken` is the number of later gangs that started before a gang
    that waited, on average over the gangs, and `overtaken_p99` its 99th percentile. `cpu` is milliseconds of all cycles
    for each dispatched gang.
    """

    allocated: float
    waits: Mapping[str, Waits]
    overtaken: float
    overtaken_p99: float
    cpu: float


@dataclass(slots=True)
class _Gang:
    """A gang and its record; `started` is the second of its dispatch, infinite before."""

    job: Job
    record: Record
    started: float = inf


@dataclass(slots=True)
class _Life:
    """Clusters with their ledgers, the pending queue, and the ends of running gangs."""

    ledgers: dict[str, CapacityLedger]
    gangs: dict[str, _Gang] = field(default_factory=dict)
    running: dict[str, dict[str, Record]] = field(init=False)
    ends: list[tuple[float, str, str]] = field(default_factory=list)
    queue: PendingQueue = field(default_factory=PendingQueue)
    planner: QueuePlanner = field(init=False)
    allocated: int = 0
    cpu: float = 0.0
    dispatched: int = 0

    def __post_init__(self) -> None:
        self.running = {name: {} for name in self.ledgers}
        running = Running(lambda name: self.running[name].values())
        self.planner = QueuePlanner(Backfills(Backfill(running=running)))

    def arrive(self, gang: _Gang) -> None:
        """Queue a gang."""
        self.gangs[gang.record.uid] = gang
        self.queue.put(gang.record)

    def end_until(self, now: float) -> None:
        """End the gangs that have run for their time."""
        while self.ends and self.ends[0][0] <= now:
            _, uid, cluster = heapq.heappop(self.ends)
            self.ledgers[cluster].release(uid)
            del self.running[cluster][uid]
            self.allocated -= self.gangs[uid].job.gpus

    def cycle(self, now: float) -> None:
        """Run one cycle and commit all of it."""
        began = time.process_time()
        at = START + timedelta(seconds=now)
        outcomes = self._plan(at)
        self.cpu += time.process_time() - began
        for outcome in outcomes:
            change = change_of(outcome, at)
            if change is None:
                continue
            if isinstance(outcome, Placed):
                self._start(change.after, outcome, now)
            else:
                self.queue.put(change.after)

    def _plan(self, at: datetime) -> list[Outcome]:
        changes = self.queue.changes_for(self.planner, at)
        news = self.planner.news_in_steps(changes, RULES, (), snapshots_of(self.ledgers), at)
        return [outcome_of(each) for each in incremental.run(news) if not isinstance(each, Drained)]

    def _start(self, record: Record, placed: Placed, now: float) -> None:
        gang = self.gangs[record.uid]
        gang.started = now
        self.queue.remove(record.uid)
        self.ledgers[placed.cluster].reserve(record.uid, record.gang, placed.assignment)
        self.running[placed.cluster][record.uid] = record
        self.allocated += gang.job.gpus
        self.dispatched += 1
        heapq.heappush(self.ends, (now + gang.job.seconds, record.uid, placed.cluster))


def fill(clusters: Mapping[str, Sequence[Node]], jobs: Sequence[Job], marks: Sequence[float]) -> Filled:
    """One cycle over all `jobs` and empty clusters; `marks` are the shares of the GPUs that have been requested."""
    gpus = sum(map(gpus_of, clusters.values()))
    records = [_record(number, job) for number, job in enumerate(jobs)]
    snapshots = snapshots_of(ledgers_of(clusters))
    began = time.process_time()
    facts = QueueFacts(RULES.forest, QueuedGangs.of(records, START, RULES.forest), (), START)
    outcomes = QueueCycle(facts, snapshots).run()
    cpu = time.process_time() - began
    placed = {each.record.uid for each in outcomes if isinstance(each, Placed)}
    is_placed = [record.uid in placed for record in records]
    return Filled(
        allocated={f"{mark:.0%}": share_at(mark, gpus, jobs, is_placed) for mark in marks},
        gangs={size: len(each) for size, each in _by_size(jobs, jobs).items()},
        left_out={
            size: sum(not placed for placed in each) for size, each in _by_size(jobs, is_placed).items()
        },
        cpu=1000 * cpu / len(jobs),
    )


def share_at(mark: float, gpus: int, jobs: Sequence[Job], is_placed: Sequence[bool]) -> float:
    """The share of `gpus` that is allocated once `mark` times `gpus` was requested, in order."""
    requested = allocated = 0
    for job, placed in zip(jobs, is_placed, strict=True):
        if requested >= mark * gpus:
            break
        requested += job.gpus
        allocated += job.gpus * placed
    return allocated / gpus


def live(clusters: Mapping[str, Sequence[Node]], jobs: Sequence[Job], warm_up: float, until: float) -> Lived:
    """The life of clusters that `jobs` come to in order, measured from second `warm_up` to `until`."""
    life = _Life(ledgers_of(clusters))
    gangs = [_Gang(job, _record(number, job)) for number, job in enumerate(jobs)]
    coming = deque(gangs)
    now, allocated = 0.0, list[int]()
    while now < until:
        now += CYCLE_SECONDS
        life.end_until(now)
        while coming and coming[0].job.arrives <= now:
            life.arrive(coming.popleft())
        life.cycle(now)
        if now > warm_up:
            allocated.append(life.allocated)
    gpus = sum(map(gpus_of, clusters.values()))
    overtaken = overtakings([gang.started for gang in gangs])
    measured = [each for each in zip(gangs, overtaken, strict=True) if each[0].job.arrives >= warm_up]
    if not measured or not life.dispatched:
        raise BenchmarkFailed("no gang came to be measured: more --hours, --load or --nodes")
    return Lived(
        allocated=statistics.mean(allocated) / gpus,
        waits=waits_by_size([gang for gang, _ in measured], until),
        overtaken=statistics.mean(count for _, count in measured),
        overtaken_p99=percentile([float(count) for _, count in measured], 99),
        cpu=1000 * life.cpu / life.dispatched,
    )


def waits_by_size(gangs: Sequence[_Gang], until: float) -> dict[str, Waits]:
    """The waits of the gangs of each size up to second `until`; sizes without gangs are left out."""
    found = {}
    for size, each in _by_size([gang.job for gang in gangs], gangs).items():
        minutes = [(min(gang.started, until) - gang.job.arrives) / 60 for gang in each]
        if minutes:
            left_out = sum(gang.started == inf for gang in each)
            found[size] = Waits(len(each), left_out, percentile(minutes, 50), percentile(minutes, 99))
    return found


def overtakings(starts: Sequence[float]) -> list[int]:
    """For each gang, in the order of arrival, how many later gangs started before it; infinity for never."""
    found: list[int] = []
    later: list[float] = []
    for start in reversed(starts):
        found.append(bisect_left(later, start))
        insort(later, start)
    return found[::-1]


def ledgers_of(clusters: Mapping[str, Iterable[Node]]) -> dict[str, CapacityLedger]:
    """A ledger with empty nodes for each cluster."""
    found = {name: CapacityLedger(FitMode.NODE) for name in clusters}
    for name, nodes in clusters.items():
        for node in nodes:
            found[name].set_node(node)
    return found


def snapshots_of(ledgers: Mapping[str, CapacityLedger]) -> dict[str, ClusterSnapshot]:
    """The snapshots of a cycle."""
    return {name: ClusterSnapshot(name, ledger.snapshot()) for name, ledger in ledgers.items()}


def _record(number: int, job: Job) -> Record:
    arrived = START + timedelta(seconds=job.arrives)
    return Record(
        uid=f"uid-{number}",
        group="workload.codeflare.dev",
        namespace="benchmark",
        name=f"gang-{number}",
        created_at=arrived,
        phase=Phase.QUEUED,
        phase_since=arrived,
        enqueue_seq=number + 1,
        gang=job.gang,
    )


def _by_size(jobs: Sequence[Job], values: Sequence[T]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {size: [] for size in SIZES}
    for job, value in zip(jobs, values, strict=True):
        found[job.size].append(value)
    return found
