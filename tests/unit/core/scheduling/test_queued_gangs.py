"""The classes of queued gangs, kept up to date by each change."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.core.model.record import Record
from dispatcher.core.scheduling.cycle import Placed
from dispatcher.core.scheduling.scenario import parse_scenario
from dispatcher.core.scheduling.sharing.queued_gangs import QueueClassKey, QueuedGangs
from tests.builders import NOW, at, make_gang, make_record
from tests.unit.core.scheduling.queue_worlds import random_document

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
    assert len(gangs) == len(there)


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


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_no_gang_is_dispatched_before_an_older_one_of_its_class(seed: int) -> None:
    check_order_in_classes(seed)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@settings(max_examples=3000)
@given(st.integers(0, 2**32))
def test_in_many_cycles_no_gang_is_dispatched_before_an_older_one_of_its_class(seed: int) -> None:
    check_order_in_classes(seed)
