"""Cycles over queues and a search for victims, measured: `python -m benchmarks.queues [--profile]`.

The queued gangs are Kueue's baseline: 30 queues of 5 trees, 500 gangs each, of three sizes with priorities of their
own, so 90 classes; or with 30 different memory requests of each size, so 2,700. 1,000 gangs run, and each tree is full.
A leader that knows its queue plans again after nothing, and after one gang ended.
The search is for one gang among 4,000 running gangs on 4 clusters of 500 nodes. The deep trees have 1,000 queues, 2 to
200 deep: 300 leaves have a running gang, and 100 leaves a queued gang that may reclaim its quota.

Source: https://github.com/kubernetes-sigs/kueue/tree/main/test/performance/scheduler
"""

from __future__ import annotations

import cProfile
import gc
import pstats
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from time import process_time

from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet
from dispatcher.core.model.incremental import Steps, run
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Preemption, Queue, Quota, Reclaim, Sharing, WithinQueue
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.cycle import (
    Drained,
    QueueCycle,
    QueueFacts,
    QueueOutcome,
    outcomes_of,
)
from dispatcher.core.scheduling.cycle.outcome_changes import change_of
from dispatcher.core.scheduling.cycle.outcomes import SOME_TIME, Placed, Preempting
from dispatcher.core.scheduling.cycle.queue_planner import QueuePlanner, QueueRules
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.preemption.failed_searches import FailedSearches
from dispatcher.core.scheduling.queued.pending_queue import PendingQueue
from dispatcher.core.scheduling.queued.queued_gangs import QueuedGangs
from dispatcher.core.scheduling.sharing.gangs import ActiveGang

TREES, QUEUES_OF_A_TREE = 5, 6
SIZES = ((350, 1, 50), (100, 5, 100), (50, 20, 200))
"""Gangs of a queue, cpu and priority of each."""
SHAPES = (1, 30)
"""Different memory requests of each size."""
RUNNING = 1000
DEPTHS = (2, 20, 100, 200)
CAUTIOUS = Preemption(WithinQueue.LOWER_PRIORITY, Reclaim.ANY)


def main() -> None:
    """Print the figures of each sharing."""
    for shapes in SHAPES:
        for sharing in Sharing:
            classes = shapes * len(SIZES) * TREES * QUEUES_OF_A_TREE
            name = f"cycle of 15,000 gangs in {classes:,} classes, {sharing}"
            _report(name, partial(_baseline, sharing, shapes))
    for sharing in Sharing:
        _Leader(sharing).report()
    for sharing in Sharing:
        _report(f"search among 4,000 gangs, {sharing}", partial(_search, sharing))
    for depth in DEPTHS:
        for sharing in Sharing:
            _report_deep(f"1,000 queues, {depth} deep, {sharing}", sharing, depth)


def _report(name: str, build: Callable[[], tuple[QueueFacts, Mapping[str, ClusterSnapshot]]]) -> None:
    best, found = None, Counter[str]()
    for _ in range(3):
        facts, snapshots = build()
        began = process_time()
        outcomes = QueueCycle(facts, snapshots, FailedSearches()).run()
        took = process_time() - began
        best = took if best is None else min(best, took)
        found = Counter(map(_kind, outcomes))
    print(f"{name}: {best:.3f} s of CPU; {dict(found.most_common())}")
    if "--profile" in sys.argv:
        facts, snapshots = build()
        with cProfile.Profile() as profile:
            QueueCycle(facts, snapshots, FailedSearches()).run()
        pstats.Stats(profile).sort_stats("cumulative").print_stats(35)


def _report_deep(name: str, sharing: Sharing, depth: int) -> None:
    """Print the cost of a cycle and of its longest step, without garbage, which a leader collects between slices."""
    steps = _cycle_in_steps(*deep_tree(sharing, depth))
    took = list[float]()
    gc.collect()
    gc.disable()
    while True:
        began = process_time()
        try:
            next(steps)
        except StopIteration as end:
            found = Counter(map(_kind, end.value))
            break
        finally:
            took.append(process_time() - began)
    gc.enable()
    longest = 1000 * max(took)
    print(f"{name}: {sum(took):.2f} s of CPU, longest step {longest:.0f} ms; {dict(found.most_common())}")


def _cycle_in_steps(facts: QueueFacts, snapshots: Mapping[str, ClusterSnapshot]) -> Steps[list[QueueOutcome]]:
    cycle = yield from QueueCycle.begin_in_steps(facts, snapshots, FailedSearches())
    return outcomes_of((yield from cycle.news_in_steps()))


class _Leader:
    """A planner whose decisions are noted in the records; gangs that are dispatched or preempt leave the queue."""

    def __init__(self, sharing: Sharing) -> None:
        facts, self.snapshots = _baseline(sharing, 1)
        self.name = f"90 classes, {sharing}"
        self.rules, self.active = QueueRules(facts.forest), list(facts.active)
        self.line, self.planner = PendingQueue(), QueuePlanner()
        for class_ in facts.queued.classes():
            for _, uid in class_.keys:
                self.line.put(facts.queued.record(uid))

    def report(self) -> None:
        """Print the cost of a cycle after nothing, and after one gang ended, once nothing changes any more."""
        while self._cycle()[1]:
            pass
        print(f"nothing changed, {self.name}: {1000 * min(self._cycle()[0] for _ in range(5)):.2f} ms of CPU")
        took = []
        for _ in range(5):
            self.active = self.active[1:]
            took.append(self._cycle()[0])
        print(f"one gang ended, {self.name}: {1000 * min(took):.1f} ms of CPU")

    def _cycle(self) -> tuple[float, int]:
        """One cycle: its seconds of CPU, and how many outcomes were news."""
        began = process_time()
        changes = self.line.changes_for(self.planner, SOME_TIME)
        news = run(self.planner.news_in_steps(changes, self.rules, self.active, self.snapshots, SOME_TIME))
        took = process_time() - began
        for outcome in outcomes_of(news):
            self._note(outcome)
        return took, len(news)

    def _note(self, outcome: QueueOutcome) -> None:
        if isinstance(outcome, Drained):
            return
        if isinstance(outcome, Placed | Preempting):
            self.line.remove(outcome.record.uid)
        elif (change := change_of(outcome, SOME_TIME)) is not None:
            self.line.put(change.after)
        if isinstance(outcome, Preempting):
            gone = {victim.uid for victim, _ in outcome.victims}
            self.active = [each for each in self.active if each.uid not in gone]


def _kind(outcome: QueueOutcome) -> str:
    pending = getattr(outcome, "pending", None)
    return type(outcome).__name__ if pending is None else f"{type(outcome).__name__} {pending.reason}"


# --- Kueue's baseline ----------------------------------------------------------------------------------------


def _baseline(sharing: Sharing, variants: int) -> tuple[QueueFacts, Mapping[str, ClusterSnapshot]]:
    """Every tree is full of gangs of the smallest size, which run in all of its queues."""
    queues = []
    for tree in range(TREES):
        queues.append(Queue(f"tree-{tree}", sharing=sharing))
        quota = {"cpu": Quota(20_000, borrowing_limit=100_000)}
        queues += [
            Queue(f"queue-{tree}-{number}", f"tree-{tree}", quota, preemption=CAUTIOUS)
            for number in range(QUEUES_OF_A_TREE)
        ]
    leaves = [each.name for each in queues if each.parent]
    shapes = {(cpu, shape): _gang(cpu, shape) for _, cpu, _ in SIZES for shape in range(variants)}
    active = [
        _active(number, leaves[number % len(leaves)], shapes[1, number % variants], 50, "hub")
        for number in range(RUNNING)
    ]
    pending = [
        _pending(f"{leaf}/{cpu}/{number}", index, leaf, shapes[cpu, number % variants], priority)
        for index, leaf in enumerate(leaves)
        for count, cpu, priority in SIZES
        for number in range(count)
    ]
    nodes = [Node(f"n{number}", Resources({"cpu": 64_000, "memory": 1 << 38})) for number in range(100)]
    return QueueFacts(Forest.of(queues), QueuedGangs.of(pending, SOME_TIME), active, SOME_TIME), {
        "hub": _cluster("hub", nodes, active)
    }


# --- a search ------------------------------------------------------------------------------------------------


def _search(sharing: Sharing) -> tuple[QueueFacts, Mapping[str, ClusterSnapshot]]:
    """Four clusters of 500 full nodes; a gang of 8 nodes in a queue that may reclaim its quota."""
    names = [f"cluster-{number}" for number in range(4)]
    quotas = [Queue(f"queue-{number}", "org", {"gpu": Quota(800)}) for number in range(19)]
    owner = Queue("owner", "org", {"gpu": Quota(800)}, preemption=CAUTIOUS)
    forest = Forest.of([Queue("org", sharing=sharing), owner, *quotas])
    half = Gang(Resources({"gpu": 4}), 1, (PodSet(1, Resources({"gpu": 4})),))
    active = [
        _active(number, quotas[number % 19].name, half, number % 7, names[number // 1000])
        for number in range(4000)
    ]
    nodes = [Node(f"n{number}", Resources({"gpu": 8})) for number in range(500)]
    clusters = {
        name: _cluster(name, nodes, [each for each in active if each.cluster == name]) for name in names
    }
    large = Gang(Resources({"gpu": 64}), 8, (PodSet(8, Resources({"gpu": 8})),))
    pending = [_pending("large", 0, "owner", large, 9)]
    return QueueFacts(forest, QueuedGangs.of(pending, SOME_TIME), active, SOME_TIME), clusters


# --- a deep tree ---------------------------------------------------------------------------------------------


def deep_tree(sharing: Sharing, depth: int) -> tuple[QueueFacts, Mapping[str, ClusterSnapshot]]:
    """1,000 queues: a chain so deep with the root and the leaf of the last, and leaves at all of its queues in turn.

    300 leaves use three times their quota, and 100 others are short of theirs.
    """
    chain = [Queue("c0", sharing=sharing)]
    chain += [Queue(f"c{number}", f"c{number - 1}") for number in range(1, depth - 1)]
    leaves = [
        Queue(f"l{number}", chain[-1 - number % len(chain)].name, {"cpu": Quota(1)}, preemption=CAUTIOUS)
        for number in range(1000 - len(chain))
    ]
    demands = (Gang(Resources({"cpu": cpu}), 1, (PodSet(1, Resources({"cpu": cpu})),)) for cpu in (1, 3))
    small, large = demands
    active = [_active(number, leaves[number].name, large, number % 5, "hub") for number in range(300)]
    pending = [
        _pending(f"p{number}", number, leaves[300 + number].name, small, number % 7) for number in range(100)
    ]
    nodes = [Node(f"n{number}", Resources({"cpu": 9})) for number in range(100)]
    return QueueFacts(Forest.of([*chain, *leaves]), QueuedGangs.of(pending, SOME_TIME), active, SOME_TIME), {
        "hub": _cluster("hub", nodes, active)
    }


# --- gangs and clusters --------------------------------------------------------------------------------------


def _gang(cpu: int, shape: int) -> Gang:
    requests = Resources({"cpu": cpu * 1000, "memory": (shape + 1) << 20})
    return Gang(requests, 1, (PodSet(1, requests),))


def _record(uid: str, number: int, leaf: str, gang: Gang, priority: int, phase: Phase) -> Record:
    created = SOME_TIME - timedelta(hours=2) + timedelta(milliseconds=number)
    return Record(
        uid,
        "",
        "default",
        uid,
        created,
        phase,
        created,
        gang=gang,
        priority=priority,
        queue=leaf,
        enqueue_seq=number,
    )


def _pending(uid: str, number: int, leaf: str, gang: Gang, priority: int) -> Record:
    return _record(uid, number, leaf, gang, priority, Phase.QUEUED)


def _active(number: int, leaf: str, gang: Gang, priority: int, cluster: str) -> ActiveGang:
    record = _record(f"r{number}", number, leaf, gang, priority, Phase.RUNNING)
    return ActiveGang(record, cluster, SOME_TIME - timedelta(seconds=3600 - number % 600))


def _cluster(name: str, nodes: Sequence[Node], active: Sequence[ActiveGang]) -> ClusterSnapshot:
    """A cluster in which the running gangs are on nodes, one after the other."""
    ledger = CapacityLedger(FitMode.NODE)
    for node in nodes:
        ledger.set_node(node)
    places = iter(_places(nodes, active))
    for gang in active:
        ledger.reserve(gang.uid, gang.record.gang, next(places))
    return ClusterSnapshot(name, ledger.snapshot())


def _places(nodes: Sequence[Node], active: Sequence[ActiveGang]) -> list[Assignment]:
    found, at = [], 0
    free = nodes[0].allocatable
    for gang in active:
        demand = gang.record.gang.demand
        if not demand.fits_in(free):
            at += 1
            free = nodes[at].allocatable
        free -= demand
        found.append(Assignment((((nodes[at].name, 1),),)))
    return found


if __name__ == "__main__":
    main()
