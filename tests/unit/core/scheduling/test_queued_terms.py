"""Terms about pods beyond the bounds of their namespace count for more than they say, never for nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.core.model.clusters.nodes import HOSTNAME, LabelOperator, LabelRequirement, Node
from dispatcher.core.model.gangs.gang import Gang, PodSet, Spread
from dispatcher.core.model.gangs.pod_terms import PodSort, PodTerm, TermIndex
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.gangs.term_bounds import MOST_OF_GANGS, MOST_OF_PODS, Breadth
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.capacity.queued_terms import QueuedTerms, followed_by
from dispatcher.core.scheduling.cycle.outcome_changes import change_of
from dispatcher.core.scheduling.cycle.outcomes import Outcome, Placed
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.queued.queued_gangs import QueueClassKey, QueuedGangs
from tests import sweeps
from tests.builders import NOW, at, make_gang, make_record, make_snapshots
from tests.one_queue import OneQueue
from tests.unit.core.scheduling.queue_worlds import random_document

CPU = Resources({"cpu": 1000})
RACK = "rack"
UNLABELLED = MOST_OF_GANGS[Breadth.UNLABELLED]
OF_PODS = MOST_OF_PODS[Breadth.UNLABELLED]


def without(value: object, topology: str = HOSTNAME, namespace: str | None = None) -> PodTerm:
    """A term about the pods without this value of a label."""
    namespaces = None if namespace is None else frozenset({namespace})
    return PodTerm(topology, namespaces, (LabelRequirement("x", LabelOperator.NOT_IN, (f"{value}",)),))


def pods_with(*terms: PodTerm, namespace: str = "tenant", attracts: tuple[PodTerm, ...] = ()) -> PodSet:
    sort = PodSort.of(namespace, (), terms)
    return PodSet(1, CPU, repels=terms, attracts=attracts, sort=sort)


def gang(pods: PodSet) -> Gang:
    return Gang(pods.total, 1, (pods,))


def ledger_of(nodes: int = 2) -> CapacityLedger:
    ledger = CapacityLedger(FitMode.NODE)
    for number in range(nodes):
        labels = {HOSTNAME: f"n{number}", RACK: f"r{number // 2}"}
        ledger.set_node(Node(f"n{number}", CPU * 1000, labels=labels))
    return ledger


def put(queue: OneQueue, name: str, pods: PodSet, seq: int) -> None:
    queue.put(make_record(name=name, gang=gang(pods), enqueue_seq=seq))


def plan_of(queue: OneQueue, ledger: CapacityLedger) -> dict[str, Outcome]:
    ledger.follow(queue.followed)
    snapshots = make_snapshots(hub=ledger.snapshot())
    found = queue.plan(snapshots, QueueingStrategy.BEST_EFFORT_FIFO, timedelta(days=1), at(1))
    return {each.record.name: each for each in found}


def test_gang_beyond_the_terms_of_its_namespace_waits_until_earlier_ones_leave_the_queue() -> None:
    queue, ledger = OneQueue(), ledger_of()
    for number in range(UNLABELLED):
        pods = replace(pods_with(without(number, namespace="far")), requests=CPU * 2000)
        put(queue, f"aw-{number}", pods, number)
    put(queue, "late", pods_with(without("late", namespace="far")), 100)
    ledger.set_pod(Pod("p", CPU, "n0", PodPhase.RUNNING, sort=PodSort.of("far", [("x", "1")])))
    planned = plan_of(queue, ledger)
    words = "2 of 2 nodes excluded: 2 until its namespace has fewer terms about other pods in the queue"
    assert message(planned["late"]).endswith(words)
    for each in planned.values():
        change = change_of(each, at(1))
        assert change is not None
        queue.put(change.after)
    assert plan_of(queue, ledger) == {}
    queue.remove("uid-of-aw-1")
    placed = plan_of(queue, ledger)["late"]
    assert isinstance(placed, Placed)
    assert placed.assignment.nodes == {"n1"}


def test_gang_beyond_the_terms_of_its_namespace_keeps_no_gang_of_others_waiting() -> None:
    queue, ledger = OneQueue(), ledger_of()
    for number in range(UNLABELLED + 1):
        put(queue, f"aw-{number}", pods_with(without(number, namespace="far")), number)
    put(queue, "other", pods_with(without("other", namespace="far"), namespace="elsewhere"), 101)
    planned = plan_of(queue, ledger)
    waiting = {name for name, each in planned.items() if not isinstance(each, Placed)}
    assert waiting == {f"aw-{UNLABELLED}"}


def message(outcome: Outcome) -> str:
    return "" if isinstance(outcome, Placed) else outcome.pending.message


def test_affinity_and_spread_beyond_the_terms_of_a_namespace_are_not_left_out_either() -> None:
    first = [pods_with(without(number)) for number in range(UNLABELLED)]
    spread = Spread(HOSTNAME, others=without("spread", "", "tenant"))
    sort = PodSort.of("tenant", ())
    beyond = [pods_with(attracts=(without("near"),)), PodSet(1, CPU, spread=(spread,), sort=sort)]
    followed = followed_by([*first, *beyond])
    assert [followed.leaves_out(each) for each in (*first, *beyond)] == [False] * UNLABELLED + [True] * 2
    assert not followed.leaves_out(PodSet(1, CPU, sort=sort))
    assert not followed.leaves_out(pods_with(without("near"), namespace="elsewhere"))


def test_gang_with_a_term_that_others_brought_needs_no_place_among_the_terms() -> None:
    followed = followed_by(
        [*(pods_with(without(number)) for number in range(UNLABELLED)), pods_with(without(0))]
    )
    assert not followed.exceeding


def closed(ledger: CapacityLedger, namespace: str = "honest") -> set[str]:
    """The nodes that take no pod with the label of this namespace."""
    pods = PodSet(1, CPU, sort=PodSort.of(namespace, [("x", "1")]))
    (found,) = ledger.snapshot().beside(gang(pods)).pod_sets
    labels = {f"n{number}": {HOSTNAME: f"n{number}", RACK: f"r{number // 2}"} for number in range(4)}
    return {name for name, there in labels.items() if not found.nodes.matches(name, there)}


def set_repelling(ledger: CapacityLedger, name: str, node: str, *terms: PodTerm) -> None:
    sort = PodSort.of("tenant", (), terms)
    ledger.set_pod(Pod(name, CPU, node, PodPhase.RUNNING, sort=sort))


def selecting_none(value: object, topology: str = HOSTNAME) -> PodTerm:
    """A term that selects no pod of `closed`."""
    return PodTerm(topology, None, (LabelRequirement("x", LabelOperator.NOT_IN, ("1", f"{value}")),))


def test_pod_beyond_the_terms_of_its_namespace_repels_every_pod() -> None:
    ledger = ledger_of(4)
    for number in range(OF_PODS):
        set_repelling(ledger, f"p{number}", "n0", selecting_none(number))
    assert closed(ledger) == set()
    set_repelling(ledger, "beyond", "n2", selecting_none("beyond", RACK))
    assert closed(ledger) == {"n2", "n3"}
    ledger.remove_pod("beyond")
    assert closed(ledger) == set()
    ledger.remove_pod("p0")
    set_repelling(ledger, "again", "n2", selecting_none("again", RACK))
    assert closed(ledger) == set()


def test_pod_beyond_with_terms_about_its_own_namespace_repels_pods_of_that_alone() -> None:
    ledger = ledger_of(4)
    for number in range(OF_PODS):
        set_repelling(ledger, f"p{number}", "n0", selecting_none(number))
    set_repelling(ledger, "beyond", "n2", without(1, RACK, "tenant"))
    assert closed(ledger) == set()
    assert closed(ledger, "tenant") == {"n2", "n3"}


def test_pod_with_ever_new_topologies_beyond_the_bound_keeps_its_own_node() -> None:
    ledger = ledger_of(4)
    for number in range(OF_PODS):
        set_repelling(ledger, f"p{number}", "n0", selecting_none(number))
    for number in range(3 * OF_PODS):
        set_repelling(ledger, f"b{number}", "n3", selecting_none("beyond", f"topology-{number}"))
    assert closed(ledger) == {"n3"}
    assert len(ledger.snapshot().repelling.terms) < 3 * OF_PODS
    for number in range(3 * OF_PODS):
        ledger.remove_pod(f"b{number}")
    assert closed(ledger) == set()


def test_limits_page_has_the_bounds() -> None:
    page = (Path(__file__).parents[4] / "docs" / "limits.md").read_text()
    (table,) = re.findall(r"\| terms of one namespace .*?\n\n", page, re.DOTALL)
    rows = [
        [int(cell.replace(",", "")) for cell in re.findall(r"\| ([\d,]+) ", row)]
        for row in table.split("\n")[2:5]
    ]
    assert rows == [[MOST_OF_GANGS[each], MOST_OF_PODS[each]] for each in Breadth]


terms = st.builds(
    PodTerm,
    st.sampled_from((HOSTNAME, RACK)),
    st.one_of(st.none(), st.frozensets(st.sampled_from("abcdefg"), min_size=1)),
    st.lists(
        st.builds(
            LabelRequirement,
            st.sampled_from("xy"),
            st.sampled_from((LabelOperator.IN, LabelOperator.NOT_IN)),
            st.lists(st.sampled_from("12"), min_size=1, max_size=2, unique=True).map(tuple),
        )
        | st.builds(
            LabelRequirement,
            st.sampled_from("xy"),
            st.sampled_from((LabelOperator.EXISTS, LabelOperator.DOES_NOT_EXIST)),
        ),
        max_size=2,
    ).map(tuple),
    st.booleans(),
)
sorts = st.builds(
    PodSort.of,
    st.sampled_from("abcdefg"),
    st.dictionaries(st.sampled_from("xy"), st.sampled_from("12")).map(dict.items),
    is_ending=st.booleans(),
)


@given(st.lists(terms, max_size=12), st.lists(terms, max_size=12), sorts, st.data())
def test_changed_index_selects_as_the_terms_do(
    first: list[PodTerm], came: list[PodTerm], sort: PodSort, data: st.DataObject
) -> None:
    gone = [each for each in first if data.draw(st.booleans())]
    changed = TermIndex(first).changed(came, gone)
    assert changed.terms == (frozenset(first) - frozenset(gone)) | frozenset(came)
    assert changed.selecting(sort) == {each for each in changed.terms if each.selects(sort)}


@given(st.lists(sorts, max_size=8), st.lists(terms, min_size=1, max_size=4))
def test_term_counts_the_same_pods_whether_it_or_they_came_first(
    there: list[PodSort], asked: list[PodTerm]
) -> None:
    found = []
    for follows_first in (True, False):
        ledger, followed = ledger_of(4), followed_by([pods_with(*asked)])
        ledger.follow(followed_by([pods_with(without(1))]))  # from here on pods are counted by sort
        if follows_first:
            ledger.follow(followed)
        for number, each in enumerate(there):
            ledger.set_pod(Pod(f"p{number}", CPU, f"n{number % 4}", PodPhase.RUNNING, sort=each))
        ledger.follow(followed)
        found.append(ledger.snapshot().beside(gang(pods_with(*asked))))
    assert found[0] == found[1]


@given(st.lists(st.tuples(st.sampled_from("12345"), st.lists(terms, max_size=3)), max_size=12))
def test_terms_of_gangs_that_come_and_go_are_those_from_scratch(
    changes: list[tuple[str, list[PodTerm]]],
) -> None:
    queued, expected = QueuedTerms(), dict[str, PodSet]()
    for uid, found in changes:
        expected.pop(uid, None)
        if found:
            expected[uid] = pods_with(*found)
            queued.put(uid, (expected[uid],))
        else:
            queued.remove(uid)
        assert queued.followed == followed_by(expected.values())


# --- The classes of queued gangs, kept up to date by each change -------------------------------------------


Json = dict[str, Any]


def queued(name: str, **fields: Any) -> Record:  # noqa: ANN401
    return make_record(name=name, **{"gang": make_gang(cpu=1000), "queue": "a", **fields})


def classes(gangs: QueuedGangs) -> dict[QueueClassKey, list[str]]:
    """The uids of each class, in order."""
    return {each.key: [uid for _, uid in each.in_order(NOW)] for each in gangs.classes()}


def groups(*records: Record) -> list[list[str]]:
    names = {record.uid: record.name for record in records}
    return sorted([names[uid] for uid in uids] for uids in classes(QueuedGangs.of(records, NOW)).values())


def test_gangs_that_differ_in_age_alone_are_one_class_in_the_order_of_the_queue() -> None:
    young, old = queued("young", created_at=at(5)), queued("old", created_at=at(1))
    rising = queued("rising", created_at=NOW - timedelta(seconds=1), priority_slope=100.0)
    assert groups(young, old) == [["old", "young"]]
    assert groups(young, rising, old) == [["rising", "old", "young"]]


@pytest.mark.parametrize(
    "other",
    [
        {"queue": "b"},
        {"more_queues": ("tree",)},
        {"namespace": "other"},
        {"priority": 1},
        {"is_preempting": True},
        {"gang": make_gang(cpu=2000)},
        {"preempted_at": (NOW - timedelta(hours=1),)},
    ],
)
def test_gangs_that_differ_in_a_deciding_property_are_of_different_classes(other: Json) -> None:
    assert groups(queued("one"), queued("two", **other)) == [["one"], ["two"]]


def test_a_preemption_counts_for_a_day() -> None:
    gangs = QueuedGangs.of([queued("never"), queued("once", preempted_at=(NOW - timedelta(hours=23),))], NOW)
    assert len(classes(gangs)) == 2
    gangs.move_to(NOW + timedelta(minutes=59))
    assert len(classes(gangs)) == 2
    gangs.move_to(NOW + timedelta(hours=1))
    assert len(classes(gangs)) == 1


CHANGES: list[Callable[[Record, Random], Record]] = [
    lambda record, chance: replace(record, queue=chance.choice("ab")),
    lambda record, chance: replace(record, priority=chance.randint(0, 1)),
    lambda record, chance: replace(record, blocked_since=at(chance.randint(0, 3))),
    lambda record, chance: replace(record, priority_slope=chance.choice([0.0, 0.5])),
    lambda record, chance: replace(record, preempted_at=(NOW - timedelta(hours=chance.randint(22, 26)),)),
]


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_classes_after_any_changes_equal_classes_built_from_scratch(seed: int) -> None:
    chance = Random(seed)  # noqa: S311 - repeatable
    records = {str(number): queued(str(number), created_at=at(number)) for number in range(8)}
    gangs, there = QueuedGangs(), dict[str, Record]()
    for _ in range(40):
        name = chance.choice(sorted(records))
        if name in there and chance.random() < 0.3:
            gangs.remove(there.pop(name).uid)
        else:
            there[name] = records[name] = chance.choice(CHANGES)(records[name], chance)
            gangs.put(there[name], NOW - timedelta(hours=1))
    gangs.move_to(NOW)
    assert classes(gangs) == classes(QueuedGangs.of(there.values(), NOW))
    assert {each.uid for each in there.values() if each.blocked_since} == set(gangs.blocked)
    assert sum(map(len, gangs.classes())) == len(there)


def check_order_in_classes(seed: int) -> None:
    document = random_document(Random(seed), arrivals=6)  # noqa: S311 - repeatable
    document["pending"] = [
        gang | {"name": f"{gang['name']}-{number}", "age": gang["age"] + number}
        for number in range(4)
        for gang in document["pending"]
        if "blocked" not in gang
    ]
    world = parse_scenario(document)
    _, outcomes = world.plan_queues()
    dispatched = {each.record.uid for each in outcomes if isinstance(each, Placed)}
    for class_ in QueuedGangs.of(world.pending, world.now).classes():
        are_dispatched = [uid in dispatched for _, uid in class_.in_order(world.now)]
        assert are_dispatched == sorted(are_dispatched, reverse=True), (
            f"one of {class_.key} overtakes another"
        )


@settings(max_examples=sweeps.examples(60))
@given(st.integers(0, 2**32))
def test_no_gang_is_dispatched_before_an_older_one_of_its_class(seed: int) -> None:
    check_order_in_classes(seed)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@settings(max_examples=3000)
@given(st.integers(0, 2**32))
def test_in_many_cycles_no_gang_is_dispatched_before_an_older_one_of_its_class(seed: int) -> None:
    check_order_in_classes(seed)
