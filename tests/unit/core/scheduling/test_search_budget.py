"""The searches of one cycle have a budget: each namespace has an allowance, and a gang left out is decided later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import pytest
from msgspec.structs import replace

from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.model import incremental
from dispatcher.core.model.clusters.nodes import (
    HOSTNAME,
    LabelOperator,
    LabelRequirement,
    Node,
    NodeRequirements,
    NodeTerm,
)
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet
from dispatcher.core.model.gangs.growth import GatedPod
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import Resources, sum_of
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Preemption, Queue, QueueingStrategy, Quota, Reclaim
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.cycle import Drained, QueueOutcome, outcomes_of
from dispatcher.core.scheduling.cycle.outcomes import Impossible, NotEvaluated, Placed, Preempting, Waiting
from dispatcher.core.scheduling.cycle.queue_planner import QueuePlanner, QueueRules
from dispatcher.core.scheduling.fit import search_budget
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.fit.search_budget import (
    CHEAP,
    MOST_STEPS_OF_CYCLE,
    STEPS_OF_SHARE,
    SearchBudget,
    SearchShares,
)
from dispatcher.core.scheduling.growth.grant_facts import GrantFacts
from dispatcher.core.scheduling.growth.grants import decide_in_steps
from dispatcher.core.scheduling.growth.growing import Growing
from dispatcher.core.scheduling.growth.waiting_gangs import WaitingGangs
from dispatcher.core.scheduling.preemption.surplus import UNUSED, awaited_room
from dispatcher.core.scheduling.queued.pending_queue import Changes
from dispatcher.core.scheduling.queued.queued_gangs import QueuedGangs
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, Part, active_gang
from tests.builders import at, attempt_of, make_record
from tests.one_queue import OneQueue
from tests.unit.core.scheduling.test_grants import CPU, ray

QUESTION = 100
MOST = 4 * QUESTION


def gang_of(*cpus: int) -> Gang:
    sets = tuple(PodSet(1, Resources({"cpu": cpu}), path=f"{at}") for at, cpu in enumerate(cpus))
    return Gang(sum_of(each.total for each in sets), len(sets), sets)


def record_of(namespace: str, number: int = 0, gang: Gang | None = None, enqueue_seq: int = 0) -> Record:
    record = make_record(name=f"{namespace}-{number}", gang=gang or gang_of(1, 2), enqueue_seq=enqueue_seq)
    return replace(record, namespace=namespace)


def decided(budget: SearchBudget, records: Iterable[Record], steps: int) -> list[str]:
    """The names of the gangs that one cycle decides, in order, if each that needs a search costs these steps."""
    budget.begin()
    found = []
    for each in records:
        if budget.admits(each):
            budget.settle(each, steps if budget.needs_search(each) else 0)
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


def test_gangs_whose_conditions_take_long_to_compare_are_counted_though_they_need_no_search(
    budget: SearchBudget,
) -> None:
    labels = tuple(LabelRequirement(f"label-{number}", LabelOperator.DOES_NOT_EXIST) for number in range(256))
    picky = PodSet(1, Resources({"cpu": 1}), nodes=NodeRequirements((), (NodeTerm(labels),)))
    gang = Gang(picky.total, 1, (picky,))
    records = [record_of("tenant", number, gang) for number in range(50)]
    plain = record_of("tenant", 50, gang_of(1))
    found = decided(budget, [*records, plain], 0)
    assert 0 < len(found) - 1 < 10
    assert found[-1] == plain.name
    left = [each for each in records if each.name not in found]
    for _ in range(20):
        names = decided(budget, left, 0)
        left = [each for each in left if each.name not in names]
    assert left == []
    shares, admitted = SearchShares(), 0
    for each in records * 10:
        if shares.admits(each):
            shares.spend(each, 0)
            admitted += 1
    assert 0 < admitted < 100
    assert shares.admits(plain)


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


def test_gangs_that_need_no_search_or_are_cheap_are_always_decided(budget: SearchBudget) -> None:
    simple = [record_of("honest", number, gang_of(1)) for number in range(50)]
    known = [record_of("honest", 100 + number) for number in range(50)]
    decided(budget, known, CHEAP)
    names = decided(budget, [*many("tenant"), *simple], QUESTION)
    assert {each.name for each in simple} <= set(names)
    assert budget.has_left_out
    assert len([each for each in known if budget.admits(each)]) == len(known)


def test_cheap_decisions_count_nothing(budget: SearchBudget) -> None:
    assert len(decided(budget, many("honest"), CHEAP)) == 50


def test_gangs_that_were_cheap_and_are_costly_now_are_bounded(budget: SearchBudget) -> None:
    decided(budget, many("tenant"), CHEAP)
    for _ in range(5):
        assert 0 < len(decided(budget, many("tenant"), QUESTION)) * QUESTION <= MOST + QUESTION
        assert budget.has_left_out


def test_gangs_of_many_namespaces_that_were_cheap_and_are_costly_now_are_bounded(
    budget: SearchBudget,
) -> None:
    records = [record_of(f"tenant-{number}") for number in range(50)]
    decided(budget, records, CHEAP)
    found = decided(budget, records, QUESTION)
    assert len(found) * QUESTION <= 2 * MOST + QUESTION
    for _ in range(50):
        found += decided(budget, [each for each in records if each.name not in found], QUESTION)
    assert set(found) == {each.name for each in records}


def test_gangs_that_stay_cheap_are_decided_beside_those_that_became_costly(budget: SearchBudget) -> None:
    tenants, honest = many("tenant"), many("honest")
    decided(budget, [*tenants, *honest], CHEAP)
    budget.begin()
    found = set()
    for each in [*tenants, *honest]:
        if budget.admits(each):
            budget.settle(each, QUESTION if each.namespace == "tenant" else CHEAP)
            found.add(each.name)
    assert {each.name for each in honest} <= found


def test_gangs_of_one_namespace_that_stay_cheap_are_decided_beside_one_that_became_costly(
    budget: SearchBudget,
) -> None:
    records = many("honest")
    decided(budget, records, CHEAP)
    budget.begin()
    found = set()
    for each in records:
        if budget.admits(each):
            budget.settle(each, QUESTION if each is records[0] else CHEAP)
            found.add(each.name)
    assert found == {each.name for each in records}


def test_gangs_that_need_a_search_for_victims_alone_are_bounded_too(budget: SearchBudget) -> None:
    left = [record_of("tenant", number, gang_of(1)) for number in range(50)]
    most = 0
    for _ in range(50):
        budget.begin()
        admitted = []
        for each in left:
            if budget.admits(each):
                budget.settle(each, QUESTION)
                admitted.append(each)
        most = max(most, len(admitted))
        left = [each for each in left if each not in admitted]
    assert left == []
    assert most * QUESTION <= MOST + QUESTION


def test_gang_that_is_asked_about_without_a_decision_costs_the_steps_of_the_question(
    budget: SearchBudget,
) -> None:
    def asked(steps: int) -> int:
        """The number of gangs of one namespace that are asked about."""
        budget.begin()
        found = 0
        for each in many("tenant"):
            if budget.admits(each):
                budget.note(each, steps)
                budget.close(each)
                found += 1
        return found

    assert asked(CHEAP) == 50
    assert not budget.has_left_out
    assert asked(QUESTION) * QUESTION == MOST


# --- cycles ----------------------------------------------------------------------------------------------------


def snapshots(nodes: int = 12) -> Mapping[str, ClusterSnapshot]:
    """Small nodes of 1 cpu, of which each takes two pods of a costly gang."""
    ledger = CapacityLedger(FitMode.NODE, "hub")
    for number in range(nodes):
        name = f"n{number:03}"
        ledger.set_node(Node(name, Resources({"cpu": 1000, "pods": 110}), labels={HOSTNAME: name}))
    return {"hub": ClusterSnapshot("hub", ledger.snapshot())}


COSTLY = 4
EACH = (12,) * (COSTLY + 2)
"""The nodes of the cluster in each cycle."""
WAITING = [
    *(
        record_of("tenant", number, gang_of(*(334 + number + at for at in range(25))), enqueue_seq=number + 1)
        for number in range(COSTLY)
    ),
    record_of("honest", gang=gang_of(100, 101), enqueue_seq=99),
]
"""Each gang of the tenant has 25 pods of different size where 24 fit; its search ends at its bounds."""


Told = tuple[list[set[str]], list[int]]
"""The names of the gangs that each cycle has news of, and the steps of its searches."""
Plan = Callable[..., Told]


def told_of(outcome: QueueOutcome) -> Record | None:
    """The record once the outcome is committed; None if the gang is dispatched."""
    match outcome:
        case Placed():
            return None
        case Waiting(record, pending, is_head):
            change = queue_changes.block(record, pending, at(10), is_head=is_head)
        case Impossible(record, pending):
            change = queue_changes.block(record, pending, at(10))
        case NotEvaluated(record, pending):
            change = queue_changes.note_not_evaluated(record, pending, at(10))
        case Drained() | Preempting():
            raise AssertionError(outcome)
    assert change is not None
    return change.after


BEST_EFFORT: Final = QueueingStrategy.BEST_EFFORT_FIFO


def in_one_queue(
    budget: SearchBudget,
    nodes: Iterable[int] = EACH,
    waiting: Iterable[Record] = WAITING,
    policy: QueueingStrategy = BEST_EFFORT,
) -> Told:
    queue = OneQueue(budget=budget)
    for each in waiting:
        queue.put(each)
    told, steps = list[set[str]](), list[int]()
    for count in nodes:
        known = snapshots(count)
        outcomes = queue.plan(known, policy, timedelta(hours=1), at(10))
        told.append({outcome.record.name for outcome in outcomes})
        steps.append(known["hub"].capacity.searched)
        for outcome in outcomes:
            after = told_of(outcome)
            if after is None:
                queue.remove(outcome.record.uid)
            else:
                queue.put(after)
    return told, steps


def over_queues(
    budget: SearchBudget,
    nodes: Iterable[int] = EACH,
    waiting: Iterable[Record] = WAITING,
    policy: QueueingStrategy = BEST_EFFORT,
) -> Told:
    return planned_over([Queue("default", strategy=policy)], budget, nodes, waiting)


def planned_over(
    queues: Sequence[Queue], budget: SearchBudget, nodes: Iterable[int], waiting: Iterable[Record]
) -> Told:
    planner = QueuePlanner(budget=budget)
    rules = QueueRules(Forest.of(queues))
    changes = Changes({each.uid: each for each in waiting}, are_all=True)
    told, steps = list[set[str]](), list[int]()
    for count in nodes:
        known = snapshots(count)
        news = incremental.run(planner.news_in_steps(changes, rules, [], known, at(10)))
        outcomes = [each for each in outcomes_of(news) if not isinstance(each, Drained)]
        told.append({each.record.name for each in outcomes})
        steps.append(known["hub"].capacity.searched)
        changes = Changes({each.record.uid: told_of(each) for each in outcomes}, are_all=False)
    return told, steps


NO_BOUND = 10**9


def test_costly_gang_is_not_decided_again_before_all_others_of_its_namespace_are(
    budget: SearchBudget,
) -> None:
    records = many("tenant", 20)
    found = list[str]()
    for _ in range(10):
        found += decided(budget, records, QUESTION)
    assert set(found[:20]) == {each.name for each in records}


@pytest.mark.parametrize("plan", [in_one_queue, over_queues])
@pytest.mark.parametrize("policy", QueueingStrategy)
def test_cycle_beyond_its_budget_leaves_gangs_to_following_cycles(
    plan: Plan, policy: QueueingStrategy
) -> None:
    told, steps = plan(SearchBudget(3_000, 1_500), policy=policy)
    assert set().union(*told) == {each.name for each in WAITING}
    assert len([each for each in told if each]) > 1
    everything, (most,) = plan(SearchBudget(NO_BOUND, 1), [12], policy=policy)
    assert everything[0] == {each.name for each in WAITING}
    assert max(steps) < most
    if policy is QueueingStrategy.BEST_EFFORT_FIFO:
        assert "honest-0" in told[0] | told[1]
    else:  # it stops at a gang that is left out; those that fit no cluster stop it only until they are decided
        order = dict.fromkeys(each.name for cycle in told for each in WAITING if each.name in cycle)
        assert list(order) == [each.name for each in WAITING]


def test_strict_queue_passes_all_gangs_of_a_class_of_which_one_search_says_that_they_fit_nowhere() -> None:
    alike = [record_of("tenant", number, WAITING[0].gang, number + 1) for number in range(20)]
    (told,), _ = in_one_queue(SearchBudget(3_000, 1_500), [12], alike, QueueingStrategy.STRICT_FIFO)
    assert told == {each.name for each in alike}


@pytest.mark.parametrize("plan", [in_one_queue, over_queues])
def test_former_heads_of_a_strict_queue_cost_the_head_nothing(plan: Plan) -> None:
    """They have been the head for longer than the starvation bound, until a gang of higher priority came that fits."""
    former = [replace(each, blocked_since=at(-7200)) for each in WAITING[:COSTLY]]
    head = replace(record_of("tenant", 50, gang_of(100, 101), enqueue_seq=98), priority=5)
    budget = SearchBudget(3_000, 1_500)
    told, _ = plan(budget, [12], [*former, head], policy=QueueingStrategy.STRICT_FIFO)
    assert head.name in told[0]


def test_other_queue_does_not_pay_for_the_searches_of_a_strict_one() -> None:
    """A costly gang of another queue and namespace is decided in the first cycles nevertheless."""
    queues = [Queue("default", strategy=QueueingStrategy.STRICT_FIFO), Queue("calm")]
    other = replace(record_of("calm", gang=WAITING[0].gang, enqueue_seq=100), queue="calm")
    told, steps = planned_over(queues, SearchBudget(3_000, 1_500), EACH, [*WAITING, other])
    assert "calm-0" in told[0] | told[1]
    _, (most,) = planned_over(queues, SearchBudget(NO_BOUND, 1), [12], [*WAITING, other])
    assert max(steps) < most


@pytest.mark.parametrize("blocked_at", [None, at(-7200)], ids=["new", "starved"])
@pytest.mark.parametrize("plan", [in_one_queue, over_queues])
def test_cycle_over_gangs_that_are_costly_once_a_full_cluster_has_room_is_bounded(
    plan: Plan, blocked_at: datetime | None
) -> None:
    waiting = [
        replace(
            record_of("tenant", number, gang_of(*(334 + number + at for at in range(25))), number + 1),
            blocked_since=blocked_at,
        )
        for number in range(6)
    ]
    _, (full, at_once) = plan(SearchBudget(NO_BOUND, 1), (1, 12), waiting)
    _, (_, *steps) = plan(SearchBudget(at_once // 3, at_once // 6), (1, 12, 12, 12), waiting)
    assert full < CHEAP * len(waiting)
    assert max(steps) <= at_once * 2 // 3


def one_pod(cpu: int) -> Gang:
    return Gang(Resources({"cpu": cpu}), 1, (PodSet(1, Resources({"cpu": cpu})),))


RECLAIMING = Forest.of(
    [
        Queue("root", resources={"cpu": Quota(10**6)}),
        Queue(
            "claims",
            parent="root",
            preemption=Preemption(reclaim=Reclaim.ANY),
            resources={"cpu": Quota(10**6)},
        ),
        Queue("gives", parent="root"),
        Queue("stays", parent="root", preemptible_below=5),
        Queue("honest", parent="root", resources={"cpu": Quota(10**6)}),
    ]
)


def full_nodes(nodes: int = 12) -> tuple[list[ActiveGang], CapacityLedger]:
    """Nodes with one gang that gives way and one that does not, and an empty one that is small."""
    ledger, active = CapacityLedger(FitMode.NODE, "hub"), []
    ledger.set_node(Node("small", Resources({"cpu": 1000, "pods": 110}), labels={HOSTNAME: "small"}))
    for number in range(nodes):
        node = f"n{number:03}"
        ledger.set_node(Node(node, Resources({"cpu": 4000, "pods": 110}), labels={HOSTNAME: node}))
        for queue, priority in (("gives", 0), ("stays", 9)):
            there = Assignment(places=(((node, 1),),))
            record = make_record(
                Phase.RUNNING, f"{queue}-{number}", gang=one_pod(2000), queue=queue, priority=priority
            )
            record = replace(record, attempt=replace(attempt_of(record), cluster="hub", assignment=there))
            ledger.reserve(record.uid, record.gang, there)
            found = active_gang(record, is_unreachable=False)
            assert found is not None
            active.append(found)
    return active, ledger


def test_searches_for_victims_of_many_gangs_are_left_to_following_cycles() -> None:
    active, ledger = full_nodes()
    vain = [
        replace(record_of("tenant", number, one_pod(3000 + number), number + 1), queue="claims", priority=3)
        for number in range(40)
    ]
    waits = replace(record_of("honest", gang=one_pod(500), enqueue_seq=99), queue="honest")
    planner, rules = QueuePlanner(budget=SearchBudget(1_000, 500)), QueueRules(RECLAIMING)
    changes, told = Changes({each.uid: each for each in (*vain, waits)}, are_all=True), list[list[str]]()
    for _ in range(40):
        known = {"hub": ClusterSnapshot("hub", ledger.snapshot())}
        news = incremental.run(planner.news_in_steps(changes, rules, active, known, at(10)))
        told.append([each.record.name for each in news if not isinstance(each, Drained)])
        changes = Changes({waits.uid: None}, are_all=False)
    assert "honest-0" in told[0]
    assert len(told[0]) < len(vain)
    assert set().union(*told) == {each.name for each in (*vain, waits)}


@pytest.mark.parametrize(("cpus", "classes"), [((1,), 1), ((1, 2), 2)], ids=["no-search", "a-search"])
def test_gangs_that_need_a_search_are_in_a_class_of_their_namespace(
    cpus: tuple[int, ...], classes: int
) -> None:
    """A gang that is left out takes its class along: else one namespace would keep the gangs of others from a turn."""
    records = [record_of("tenant", gang=gang_of(*cpus)), record_of("honest", gang=gang_of(*cpus))]
    queued = QueuedGangs.of(records, at(0), Forest.undeclared())
    incremental.run(queued.follow({}, at(0)))
    assert len(list(queued.classes())) == classes


# --- passes beside the cycle -------------------------------------------------------------------------------------


FLOOD: Final = 40
"""Gangs of one tenant whose searches together take many times the steps of its share."""


def flood() -> list[Record]:
    """Gangs of pods of which no three fit on one node, 49 on 24 nodes: that needs a search each."""
    sizes = range(334, 334 + 48)
    return [
        record_of("tenant", number, gang_of(*sizes, 334 + number), enqueue_seq=number + 1)
        for number in range(FLOOD)
    ]


def of_24_nodes() -> dict[str, ClusterSnapshot]:
    ledger = CapacityLedger(FitMode.NODE)
    for number in range(24):
        name = f"n{number}"
        ledger.set_node(Node(name, Resources({"cpu": 1000}), labels={HOSTNAME: name}))
    return {"hub": ClusterSnapshot("hub", ledger.snapshot())}


def test_namespace_has_a_share_of_the_steps_of_a_pass_beside_the_cycle() -> None:
    shares, (costly, other, *_) = SearchShares(), flood()
    assert shares.admits(costly)
    shares.spend(costly, STEPS_OF_SHARE)
    assert not shares.admits(other)
    assert shares.admits(record_of("tenant", gang=gang_of(1)))
    assert shares.admits(record_of("team-b", gang=other.gang))
    for number in range(MOST_STEPS_OF_CYCLE // STEPS_OF_SHARE):
        shares.spend(record_of(f"team-{number}"), STEPS_OF_SHARE)
    assert not shares.admits(record_of("team-c", gang=other.gang))


def test_costly_gangs_of_one_namespace_do_not_keep_unused_growth_from_a_gang_of_another() -> None:
    unused = ActiveGang(
        make_record(phase=Phase.RUNNING, name="grown"),
        "hub",
        at(1),
        part=Part(Resources(), Resources({"cpu": 1}), UNUSED),
        is_leaving=True,
    )
    snapshots = of_24_nodes()
    assert incremental.run(awaited_room([unused], flood(), snapshots)) == frozenset()
    assert snapshots["hub"].capacity.searched <= STEPS_OF_SHARE + search_budget.QUESTION
    honest = record_of("team-b", gang=gang_of(1000), enqueue_seq=FLOOD + 1)
    found = incremental.run(awaited_room([unused], [*flood(), honest], of_24_nodes()))
    assert found == {unused.record.uid}


def test_costly_gangs_of_one_namespace_do_not_hide_an_old_gang_of_another_from_growth() -> None:
    created = f"{at(100):%Y-%m-%dT%H:%M:%SZ}"
    growing = Growing(
        replace(ray("a"), queue="of-ray"), CPU * 2, [GatedPod("default", "p", "u", CPU, created)]
    )
    honest = record_of("team-b", gang=gang_of(*[1000] * 24), enqueue_seq=FLOOD + 1)

    def granted(waiting: list[Record], snapshots: dict[str, ClusterSnapshot]) -> int:
        forest = Forest.of([Queue("default"), Queue("of-ray")])
        found = incremental.run(WaitingGangs.of(waiting, forest, at(200)))
        assert len(found.for_room) == len(waiting)
        facts = GrantFacts(forest, (), found, at(200))
        return sum(len(each.pods) for each in incremental.run(decide_in_steps([growing], facts, snapshots)))

    snapshots = of_24_nodes()
    assert granted(flood(), snapshots) == 1
    assert snapshots["hub"].capacity.searched <= STEPS_OF_SHARE + search_budget.QUESTION
    assert granted([*flood(), honest], of_24_nodes()) == 0
