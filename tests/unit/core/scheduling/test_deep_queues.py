"""A cycle over a tree of 1,000 queues, 200 deep: it decides, without recursion, and in steps that are short.

The steps are bounded by the calls of functions that they make, not by a clock.
"""

from __future__ import annotations

import sys
from traceback import walk_stack
from typing import Any, TypeVar

import pytest

from dispatcher.core.model.incremental import Steps
from dispatcher.core.scheduling.scenario import parse_scenario
from dispatcher.core.scheduling.sharing.cycle import QueueCycle, QueueOutcome
from dispatcher.core.scheduling.world import KnownSnapshots, World
from tests.unit.core.scheduling.queue_answers import decision_of
from tests.unit.core.scheduling.queue_worlds import SHARINGS

Json = dict[str, Any]
T = TypeVar("T")

DEPTH = 200
QUEUES = 1000


def deep_world(sharing: str, *, queued: int, total: int) -> World:
    """Leaves hang at each queue of a chain. 300 of them use three times their quota, others have a queued gang."""
    chain: list[Json] = [
        {"name": "c0", "sharing": sharing, "resources": {"gpu": {"nominalQuota": total}}},
    ]
    chain += [{"name": f"c{number}", "parent": f"c{number - 1}"} for number in range(1, DEPTH - 1)]
    leaves: list[Json] = [
        {
            "name": f"l{number}",
            "parent": chain[-1 - number % len(chain)]["name"],
            "resources": {"gpu": {"nominalQuota": 1}},
            "preemption": {"withinQueue": "LowerPriority", "reclaim": "Any"},
        }
        for number in range(QUEUES - len(chain))
    ]
    return parse_scenario(
        {
            "clusters": [{"name": "hub", "nodes": [{"name": "n", "allocatable": {"gpu": 900}}]}],
            "queues": [*chain, *leaves],
            "running": [
                {
                    "name": f"r{number}",
                    "queue": f"l{number}",
                    "cluster": "hub",
                    "ran": 60,
                    "demand": {"gpu": 3},
                }
                for number in range(300)
            ],
            "pending": [
                {"name": f"p{number}", "queue": f"l{300 + number}", "demand": {"gpu": 1 + number % 2}}
                for number in range(queued)
            ],
        }
    )


@pytest.mark.parametrize(
    ("sharing", "decided"),
    [
        ("Priority", [("r0", "p0"), ("", "p2"), ("", "p3"), ("", "p1")]),
        ("DominantShare", [("r1", "p3"), ("", "p2"), ("r203", "p1"), ("", "p0")]),
        ("Division", [("r201", "p3"), ("", "p2"), ("r204", "p1"), ("", "p0")]),
    ],
)
def test_a_tree_of_a_thousand_queues_two_hundred_deep_is_served(
    sharing: str, decided: list[tuple[str, str]]
) -> None:
    """All of 900 GPUs are used. A victim gives three, which are promised to the next gang, too, if it fits."""
    world = deep_world(sharing, queued=4, total=900)
    deepest = sys.getrecursionlimit()
    sys.setrecursionlimit(sum(1 for _ in walk_stack(None)) + 100)  # less than the depth of the tree
    try:
        _, outcomes = world.plan_queues()
    finally:
        sys.setrecursionlimit(deepest)
    found = [
        ("".join(each.get("preempt", [])), each.get("for") or each["waiting"])
        for each in map(decision_of, outcomes)
    ]
    assert found == decided


@pytest.mark.parametrize("sharing", SHARINGS)
def test_no_step_of_a_cycle_over_such_a_tree_is_long(sharing: str) -> None:
    """A victim is needed: 900 GPUs are used, and there is quota for 898."""
    world = deep_world(sharing, queued=1, total=898)
    facts, snapshots = world.queue_facts(), KnownSnapshots().of(world)

    def steps() -> Steps[list[QueueOutcome]]:
        cycle = yield from QueueCycle.begin_in_steps(facts, snapshots)
        return (yield from cycle.news_in_steps())

    costs, outcomes = calls_of_steps(steps())
    assert max(costs) < MOST_CALLS
    (outcome,) = map(decision_of, outcomes)
    assert len(outcome["preempt"]) == 1


MOST_CALLS = 30_000
"""Calls of functions in a step, some ten milliseconds."""


def calls_of_steps(steps: Steps[T]) -> tuple[list[int], T]:
    """How many functions each step calls, and the result."""
    costs = list[int]()

    def count(_frame: object, event: str, _argument: object) -> None:
        costs[-1] += event in {"call", "c_call"}

    before = sys.getprofile()
    while True:
        costs.append(0)
        sys.setprofile(count)
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return costs, result
        finally:
            sys.setprofile(before)
