"""Between cycles over queues, refusals stand as long as nothing changes that they follow from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from datetime import timedelta
from random import Random
from typing import cast

import pytest
from msgspec.structs import replace

from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.incremental import run
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.queues.forest import Defaults, Forest
from dispatcher.core.queues.queue import Order, Preemption, Queue, QueueingStrategy, Quota, WithinQueue
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.core.scheduling.cycle.cycle import (
    Drained,
    QueueCycle,
    QueueFacts,
    QueueOutcome,
    outcomes_of,
)
from dispatcher.core.scheduling.cycle.outcome_changes import change_of
from dispatcher.core.scheduling.cycle.outcomes import Placed, Preempting
from dispatcher.core.scheduling.cycle.queue_planner import QueuePlanner, QueueRules
from dispatcher.core.scheduling.fit.backfill import Backfills
from dispatcher.core.scheduling.fit.cluster_room import ClusterRoom
from dispatcher.core.scheduling.fit.fit import Fit
from dispatcher.core.scheduling.queued.pending_queue import PendingQueue
from dispatcher.core.scheduling.queued.queued_gangs import QueuedGangs
from dispatcher.core.scheduling.sharing.gangs import ActiveGang
from tests.builders import at, make_record
from tests.unit.core.scheduling.test_affected_classes import FullClusters, gang_with, hub, ledger_of, using

NO_QUEUES = Forest.undeclared()
"""One queue `default`, without limits."""
OTHERS = Forest.of(
    [
        Queue("limited", resources={"cpu": Quota(9)}, preemption=Preemption(WithinQueue.LOWER_PRIORITY)),
        Queue("by-use", order=Order.USAGE),
        Queue("strict", strategy=QueueingStrategy.STRICT_FIFO),
        Queue("root"),
        Queue("leaf", "root"),
    ]
)


class FullQueues(FullClusters):
    """Full clusters whose gangs wait in queues, run and leave; a planner and a cycle from scratch decide."""

    def __init__(self, random: Random, forest: Forest) -> None:
        self.forest, self.planner, self.now = forest, QueuePlanner(), at(1)
        self.backfills = Backfills()
        self.dispatched: dict[str, Record] = {}
        self.active: list[ActiveGang] = []
        self.counts = Counter[str]()
        super().__init__(random)

    def put(self, record: Record) -> None:
        if record.uid not in self.records:
            queue = self.random.choice([each.name for each in self.forest.leaves])
            namespace = self.random.choice(["one", "other"])
            record = replace(record, queue=queue, namespace=namespace, priority=self.random.choice([0, 0, 1]))
        super().put(record)

    def something_changes(self) -> None:
        match self.random.randrange(9):
            case 0 if self.active:
                index = self.random.randrange(len(self.active))
                leaving = replace(self.active[index], is_leaving=True)
                self.active = [leaving if at == index else each for at, each in enumerate(self.active)]
            case 1 if self.active:
                self.now += timedelta(seconds=self.random.choice([10, 700]))
            case 2 if self.active:
                gang, *self.active = self.active
                self.ledgers[gang.cluster].release(gang.uid)
            case _:
                super().something_changes()

    def decide(self) -> None:
        changes, rules = self.queue.changes_for(self.planner, self.now), QueueRules(self.forest)
        news = self.planner.news_in_steps(changes, rules, self.active, self.snapshots(), self.now)
        found = outcomes_of(run(news))
        as_before = deepcopy(self.backfills)
        expected = self.from_scratch(self.forest, self.backfills)
        assert in_any_order(found) == in_any_order(expected)
        assert placed(found) == placed(expected)
        if not placed(expected):
            one_by_one = self.from_scratch(None, as_before)
            assert but_for_strict(one_by_one) == but_for_strict(expected)
        for outcome in found:
            self.commit(outcome)

    def from_scratch(self, forest: Forest | None, backfills: Backfills) -> list[QueueOutcome]:
        """The decisions of a cycle; without a forest, no gangs of several namespaces and priorities are one class."""
        queued = QueuedGangs.of(self.records.values(), self.now, forest)
        facts = QueueFacts(self.forest, queued, self.active, self.now)
        cycle = QueueCycle(facts, self.snapshots(), backfills=backfills)
        return outcomes_of(run(cycle.news_in_steps()))

    def commit(self, outcome: QueueOutcome) -> None:
        assert not isinstance(outcome, Drained)
        self.counts[type(outcome).__name__] += 1
        if isinstance(outcome, Placed):
            change = change_of(outcome, self.now)
            assert change is not None
            record = change.after
            del self.records[record.uid]
            self.queue.remove(record.uid)
            running = replace(record, phase=Phase.RUNNING)
            self.active = [*self.active, ActiveGang(running, outcome.cluster, self.now)]
            self.ledgers[outcome.cluster].reserve(record.uid, record.gang, outcome.assignment)
        elif not isinstance(outcome, Preempting):
            change = change_of(outcome, self.now)
            assert change is not None
            self.put(change.after)


def in_any_order(outcomes: Sequence[QueueOutcome]) -> list[str]:
    return sorted(map(repr, outcomes))


def but_for_strict(outcomes: Sequence[QueueOutcome]) -> list[str]:
    """The outcomes in other queues: in a strict one, a gang behind the head may have a refusal of its class."""
    return in_any_order(
        [each for each in outcomes if not isinstance(each, Drained) and each.record.queue != "strict"]
    )


def placed(outcomes: Sequence[QueueOutcome]) -> list[str]:
    return [each.record.uid for each in outcomes if isinstance(each, Placed)]


@pytest.mark.parametrize("forest", [NO_QUEUES, OTHERS], ids=["no-queues", "several-queues"])
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(3), id="some"),
        pytest.param(range(3, 500), id="many", marks=[pytest.mark.exhaustive, pytest.mark.timeout(1200)]),
    ],
)
def test_cycles_after_changes_decide_as_from_scratch(seeds: range, forest: Forest) -> None:
    counts = Counter[str]()
    for seed in seeds:
        clusters = FullQueues(Random(seed), forest)  # noqa: S311  # a test
        for _ in range(40):
            clusters.decide()
            clusters.something_changes()
        counts += clusters.counts
    assert all(counts[each] > 10 for each in ("Placed", "Waiting", "Impossible"))


# --- what is compared again ------------------------------------------------------------------------------------


class Waits:
    """A planner over a hub whose gangs all wait, and the gangs that its next cycles compare with the hub."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, ledger: CapacityLedger, forest: Forest, *gangs: Record
    ) -> None:
        self.ledger, self.forest = ledger, forest
        self.line, self.planner = PendingQueue(), QueuePlanner()
        self.compared: list[Gang] = []
        fit = ClusterRoom.fit

        def noted(room: ClusterRoom, gang: Gang) -> Fit:
            self.compared.append(gang)
            return fit(room, gang)

        monkeypatch.setattr(ClusterRoom, "fit", noted)
        for record in gangs:
            self.line.put(record)
        while self.cycle():
            pass
        self.compared.clear()

    def cycle(self) -> list[str]:
        """The names of the gangs with news in one cycle."""
        changes, rules = self.line.changes_for(self.planner, at(1)), QueueRules(self.forest)
        news = outcomes_of(run(self.planner.news_in_steps(changes, rules, [], hub(self.ledger), at(1))))
        for outcome in news:
            assert not isinstance(outcome, Drained)
            change = change_of(outcome, at(1))
            assert change is not None
            if isinstance(outcome, Placed):
                self.line.remove(outcome.record.uid)
            else:
                self.line.put(change.after)
        return [each.record.name for each in news if not isinstance(each, Drained)]


def waiting(number: int, gang: Gang, namespace: str = "default", queue: str = "default") -> Record:
    return make_record(
        name=f"aw-{number}", gang=gang, enqueue_seq=10 * number, namespace=namespace, queue=queue
    )


LARGE = gang_with((1, 8))
SMALL = [gang_with((1, cpu)) for cpu in range(3, 7)]


def test_after_an_arrival_only_the_new_gang_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    gangs = [waiting(number, gang) for number, gang in enumerate([LARGE, *SMALL])]
    waits = Waits(monkeypatch, ledger_of(a=2, b=2), NO_QUEUES, *gangs)
    waits.line.put(waiting(9, gang_with((1, 7))))
    assert waits.cycle() == ["aw-9"]
    assert waits.compared == [gang_with((1, 7))]


def test_after_a_change_of_a_node_the_head_and_the_gangs_to_which_it_matters_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = ledger_of(**{f"n{number}": 2 for number in range(20)})
    many = gang_with((30, 1), (1, 3))
    gangs = [waiting(number, gang) for number, gang in enumerate([LARGE, *SMALL, many])]
    waits = Waits(monkeypatch, ledger, NO_QUEUES, *gangs)
    ledger.set_pod(using("n0", 7))
    assert waits.cycle() == []
    assert waits.compared == [LARGE, many]


def test_once_a_gang_takes_room_those_behind_it_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    gangs = [waiting(number, gang) for number, gang in enumerate([LARGE, *SMALL])]
    waits = Waits(monkeypatch, ledger_of(a=2, b=2), NO_QUEUES, *gangs)
    waits.line.put(replace(waiting(9, gang_with((1, 2))), enqueue_seq=25))
    assert waits.cycle() == ["aw-9"]
    assert waits.compared == [gang_with((1, 2)), *SMALL[2:]]


def test_clusters_answer_once_for_namespaces_and_queues_that_they_do_not_tell_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forest = Forest.of([Queue("a", resources={"cpu": Quota(99)}), Queue("b")], Defaults())
    gangs = [
        waiting(2 * number + part, LARGE, namespace, "ab"[part])
        for number, namespace in enumerate(("one", "other", "third"))
        for part in range(2)
    ]
    waits = Waits(monkeypatch, ledger_of(a=2), forest, *gangs)
    ledger = waits.ledger
    ledger.set_pod(using("a", 5))
    assert waits.cycle() == []
    assert waits.compared == [LARGE]


class OnlySeen:
    """A running gang of which a cycle may ask only whether it leaves, and whether it is there in parts."""

    is_leaving = False
    part = None


def test_where_no_queue_counts_running_gangs_a_cycle_looks_at_none_of_them_twice() -> None:
    queued = QueuedGangs.of([waiting(1, LARGE)], at(1))
    running = cast("list[ActiveGang]", [OnlySeen()])
    facts = QueueFacts(NO_QUEUES, queued, running, at(1))
    (outcome,) = QueueCycle(facts, hub(ledger_of(a=8))).run()
    assert isinstance(outcome, Placed)
