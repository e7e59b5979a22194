"""The searches of one cycle have a budget: each namespace has an allowance, and a gang left out is decided later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatcher.core.model import incremental
from dispatcher.core.model.gang import Gang, PodSet
from dispatcher.core.model.nodes import HOSTNAME, Node
from dispatcher.core.model.record import Record
from dispatcher.core.model.resources import Resources, sum_of
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Queue, QueueingStrategy
from dispatcher.core.scheduling.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cluster_filters import CORDONED, Closed, ClusterSnapshot
from dispatcher.core.scheduling.cycle import Placed
from dispatcher.core.scheduling.pending_queue import Changes, PendingQueue
from dispatcher.core.scheduling.search_budget import CHEAP, SearchBudget
from dispatcher.core.scheduling.sharing.cycle import Drained
from dispatcher.core.scheduling.sharing.queue_planner import QueuePlanner, QueueRules
from tests.builders import at, make_record

QUESTION = 100
MOST = 4 * QUESTION


def gang_of(*cpus: int) -> Gang:
    sets = tuple(PodSet(1, Resources({"cpu": cpu}), path=f"{at}") for at, cpu in enumerate(cpus))
    return Gang(sum_of(each.total for each in sets), len(sets), sets)


def record_of(namespace: str, number: int = 0, gang: Gang | None = None, enqueue_seq: int = 0) -> Record:
    record = make_record(name=f"{namespace}-{number}", gang=gang or gang_of(1, 2), enqueue_seq=enqueue_seq)
    return replace(record, namespace=namespace)


def decided(budget: SearchBudget, records: Iterable[Record], steps: int) -> list[str]:
    """The names of the gangs that one cycle decides, in order, if each costs these steps."""
    budget.begin()
    found = []
    for each in records:
        if budget.admits(each):
            budget.settle(each, steps)
            found.append(each.name)
    return found


@pytest.fixture
def budget() -> SearchBudget:
    return SearchBudget(MOST, QUESTION)


def many(namespace: str, gangs: int = 50) -> list[Record]:
    return [record_of(namespace, number) for number in range(gangs)]


def test_all_searches_of_one_namespace_together_are_bounded(budget: SearchBudget) -> None:
    for _ in range(5):
        assert 0 < len(decided(budget, many("tenant"), QUESTION)) * QUESTION <= MOST
        assert budget.has_left_out


def test_gangs_that_were_left_out_are_all_decided_in_following_cycles(budget: SearchBudget) -> None:
    left = many("tenant", 20)
    for _ in range(20):
        names = decided(budget, left, QUESTION)
        left = [each for each in left if each.name not in names]
    assert left == []
    assert decided(budget, [], QUESTION) == []
    assert not budget.has_left_out


def test_costly_gangs_of_one_namespace_leave_room_for_those_of_another(budget: SearchBudget) -> None:
    records = [*many("tenant"), record_of("honest")]
    decided(budget, records, QUESTION)
    assert "honest-0" in decided(budget, records, QUESTION)


def test_namespaces_take_turns_if_the_budget_is_not_enough_for_one_question_of_each(
    budget: SearchBudget,
) -> None:
    namespaces = [f"tenant-{number}" for number in range(9)]
    records = [each for namespace in namespaces for each in many(namespace, 9)]
    found = list[str]()
    for _ in range(6):
        found += decided(budget, records, QUESTION)
    assert {each.rpartition("-")[0] for each in found} == set(namespaces)


def test_gangs_that_need_no_search_or_were_cheap_are_always_decided(budget: SearchBudget) -> None:
    simple = [record_of("honest", number, gang_of(1)) for number in range(50)]
    known = [record_of("honest", 100 + number) for number in range(50)]
    for each in known:
        decided(budget, [each], CHEAP)
    names = decided(budget, [*many("tenant"), *simple], QUESTION)
    assert {each.name for each in simple} <= set(names)
    for each in known:
        assert budget.admits(each)
        budget.settle(each, CHEAP)


def test_cheap_decisions_count_nothing(budget: SearchBudget) -> None:
    assert len(decided(budget, many("honest"), CHEAP)) == 50


def test_gangs_that_were_cheap_and_became_costly_together_are_bounded_as_new_ones(
    budget: SearchBudget,
) -> None:
    records = many("tenant", 200)
    assert len(decided(budget, records, CHEAP)) == 200
    for _ in range(3):
        assert 0 < len(decided(budget, records, QUESTION)) * QUESTION <= MOST + QUESTION


def test_all_gangs_that_became_costly_are_decided_in_following_cycles(budget: SearchBudget) -> None:
    left = many("tenant", 20)
    decided(budget, left, CHEAP)
    for _ in range(20):
        names = decided(budget, left, QUESTION)
        left = [each for each in left if each.name not in names]
    assert left == []


def test_gangs_of_one_namespace_that_became_costly_leave_the_cheap_ones_of_another_decided(
    budget: SearchBudget,
) -> None:
    cheap = many("honest")
    decided(budget, [*cheap, *many("tenant")], CHEAP)
    budget.begin()
    for each in many("tenant"):
        if budget.admits(each):
            budget.settle(each, QUESTION)
    assert all(budget.admits(each) for each in cheap)


def test_gangs_of_many_namespaces_that_became_costly_together_are_bounded(budget: SearchBudget) -> None:
    records = [record_of(f"tenant-{number}", at) for number in range(50) for at in range(3)]
    decided(budget, records, CHEAP)
    for _ in range(3):
        assert 0 < len(decided(budget, records, QUESTION)) * QUESTION <= 2 * MOST + QUESTION


# --- cycles ----------------------------------------------------------------------------------------------------


def snapshots() -> Mapping[str, ClusterSnapshot]:
    """Small nodes of 1 cpu, of which each takes two pods of a costly gang, and a larger one that is nearly full."""
    ledger = CapacityLedger(FitMode.NODE, "hub")
    for number in range(12):
        name = f"n{number:03}"
        ledger.set_node(Node(name, Resources({"cpu": 1000, "pods": 110}), labels={HOSTNAME: name}))
    return {"hub": ClusterSnapshot("hub", ledger.snapshot())}


COSTLY = 4
WAITING = [
    *(
        record_of("tenant", number, gang_of(*(334 + number + at for at in range(25))), enqueue_seq=number + 1)
        for number in range(COSTLY)
    ),
    record_of("honest", gang=gang_of(100, 101), enqueue_seq=99),
]
"""Each gang of the tenant has 25 pods of different size where 24 fit; its search ends at its bounds."""


def in_one_queue(budget: SearchBudget) -> tuple[list[set[str]], list[int]]:
    queue = PendingQueue(budget=budget)
    for each in WAITING:
        queue.put(each)
    told, steps = list[set[str]](), list[int]()
    for _ in range(COSTLY + 2):
        known = snapshots()
        outcomes = queue.plan(known, QueueingStrategy.BEST_EFFORT_FIFO, timedelta(hours=1), at(10))
        told.append({outcome.record.name for outcome in outcomes})
        steps.append(known["hub"].capacity.searched)
        for outcome in outcomes:
            if isinstance(outcome, Placed):
                queue.remove(outcome.record.uid)
    return told, steps


def over_queues(budget: SearchBudget) -> tuple[list[set[str]], list[int]]:
    planner = QueuePlanner(budget=budget)
    rules = QueueRules(Forest.of([Queue("default")]))
    changes = Changes({each.uid: each for each in WAITING}, are_all=True)
    told, steps = list[set[str]](), list[int]()
    for _ in range(COSTLY + 2):
        known = snapshots()
        news = incremental.run(planner.news_in_steps(changes, rules, [], known, at(10)))
        placed = [each.record.uid for each in news if isinstance(each, Placed)]
        told.append({each.record.name for each in news if not isinstance(each, Drained)})
        steps.append(known["hub"].capacity.searched)
        changes = Changes(dict.fromkeys(placed), are_all=False)
    return told, steps


def test_costly_gang_is_not_decided_again_before_all_others_of_its_namespace_are(
    budget: SearchBudget,
) -> None:
    records = many("tenant", 20)
    found = list[str]()
    for _ in range(10):
        found += decided(budget, records, QUESTION)
    assert set(found[:20]) == {each.name for each in records}


@pytest.mark.parametrize("plan", [in_one_queue, over_queues])
def test_cycle_beyond_its_budget_leaves_gangs_to_following_cycles(
    plan: Callable[[SearchBudget], tuple[list[set[str]], list[int]]],
) -> None:
    told, steps = plan(SearchBudget(3_000, 1_500))
    assert "honest-0" in told[0] | told[1]
    assert set().union(*told) == {each.name for each in WAITING}
    assert len([each for each in told if each]) > 1
    everything, (most, *_) = plan(SearchBudget(10**9, 1))
    assert everything[0] == {each.name for each in WAITING}
    assert max(steps) < most


def test_cycle_is_bounded_once_a_cluster_opens_that_took_none_of_many_costly_gangs() -> None:
    queue = PendingQueue(budget=SearchBudget(3_000, 1_500))
    for number in range(20):
        queue.put(record_of("tenant", number, gang_of(*(334 + number + at for at in range(25)))))
    closed = {name: replace(each, closed=Closed(CORDONED, "")) for name, each in snapshots().items()}
    queue.plan(closed, QueueingStrategy.BEST_EFFORT_FIFO, timedelta(hours=1), at(10))
    opened = snapshots()
    queue.plan(opened, QueueingStrategy.BEST_EFFORT_FIFO, timedelta(hours=1), at(20))
    alone, one = snapshots(), PendingQueue()
    one.put(record_of("tenant", 0, gang_of(*(334 + at for at in range(25)))))
    one.plan(alone, QueueingStrategy.BEST_EFFORT_FIFO, timedelta(hours=1), at(20))
    assert opened["hub"].capacity.searched <= 3_000 + 2 * alone["hub"].capacity.searched
