"""A large gang of an owner under streams of small gangs, in its queue and in others: how long small gangs delay it.

The promise is about a gang of a BestEffortFIFO queue that is the head of the queue from its first cycle on, may be
preempted, and fits the nominal quota of its queue, the limits of the queues above and an empty cluster. Once it has
been the head for the starvation bound of its queue, own or inherited, no gang that is dispatched later delays it. It
is dispatched at the latest in the first cycle after the end of all gangs that held capacity when the bound was over:
within the bound, the longest run and the longest removal of a victim. The promise holds for each sharing and `reclaim`.

The rules of starved gangs promise less in these cases, which the random worlds of this test leave out:
- Starved gangs are decided by rank. A starved gang with a higher priority goes before the large gang, and so does the
  next head of the same queue one bound later. A starved gang for which others were preempted goes first, too; here it
  counts among the gangs that the large gang waits for.
- A starved gang that is not the first by rank in its own queue is still the head there, and the bound of the first by
  rank does not begin before that starved gang is dispatched.
- A starved gang holds back quota while it lacks quota, and keeps a cluster while it lacks room, but never both. A gang
  that lacks each in turn can lose one while it waits for the other.
- For a gang that waits for `OverNominalQuota`, because nobody may preempt it, nothing is held back.
- A gang of a StrictFIFO queue is never starved: no gang of its own queue passes it by, but gangs of other queues do.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from random import Random
from traceback import walk_stack
from typing import Any, TypeVar

import pytest
import yaml
from msgspec.structs import replace

from dispatcher.core.model.incremental import Steps, run
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.cycle import Preempting
from dispatcher.core.scheduling.pending_queue import Changes
from dispatcher.core.scheduling.scenario import parse_scenario
from dispatcher.core.scheduling.sharing.cycle import QueueCycle, QueueOutcome
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, Part
from dispatcher.core.scheduling.sharing.queue_planner import QueuePlanner, QueueRules
from dispatcher.core.scheduling.sharing.search import Search
from dispatcher.core.scheduling.world import KnownSnapshots, World
from tests.unit.core.scheduling.queue_answers import decision_of
from tests.unit.core.scheduling.queue_simulation import STEP
from tests.unit.core.scheduling.queue_streams import HIGHEST, LARGE, PLENTY, Short, Streams, random_streams
from tests.unit.core.scheduling.queue_worlds import RESOURCES, SHARINGS

Json = dict[str, Any]

FEW, MANY = range(60), range(60, 6000)
LONG = 40
"""Steps: several times the longest bound and the longest run."""


def starved(seeds: range, short: Short) -> Counter[str]:
    """How often a large gang waited beyond its bound, by sharing and by `reclaim`; it was in time in all worlds."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        streams = random_streams(seed, short)
        wait = streams.wait(LONG)
        assert wait.is_in_time, f"seed {seed}: {wait}"
        if wait.starved is not None:
            preemption = streams.forest.queues[streams.queue].get("preemption", {})
            counts.update([streams.forest.sharing(streams.queue), preemption.get("reclaim", "Never")])
    return counts


@pytest.mark.parametrize("short", Short)
def test_large_gang_of_an_owner_starts_once_the_gangs_that_ran_at_its_bound_are_gone(short: Short) -> None:
    counts = starved(FEW, short)
    assert all(counts[each] for each in (*SHARINGS, "Never", "LowerPriority", "Any"))


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("short", Short)
def test_large_gang_of_an_owner_starts_in_time_in_many_worlds(short: Short) -> None:
    counts = starved(MANY, short)
    assert all(counts[each] > 25 for each in (*SHARINGS, "Never", "LowerPriority", "Any"))


@pytest.mark.parametrize(
    ("root", "leaf", "steps"),
    [
        pytest.param({}, {}, 3, id="default"),
        pytest.param({"starvationBoundSeconds": STEP}, {}, 1, id="inherited"),
        pytest.param({"starvationBoundSeconds": STEP}, {"starvationBoundSeconds": 5 * STEP}, 5, id="longer"),
        pytest.param({"starvationBoundSeconds": 5 * STEP}, {"starvationBoundSeconds": STEP}, 1, id="shorter"),
    ],
)
def test_small_gangs_start_before_a_large_gang_of_their_queue_until_its_bound(
    root: Json, leaf: Json, steps: int
) -> None:
    """Small gangs start in most steps until the bound of the queue, and never after it."""
    waits = [one_queue(seed, root, leaf).wait(LONG) for seed in range(10)]
    assert max(step for wait in waits for step in wait.passed_by) == steps - 1
    assert all(wait.is_in_time for wait in waits)


def one_queue(seed: int, root: Json, leaf: Json) -> Streams:
    """A queue whose nominal quota is what its large gang demands, in a tree with another queue, and plenty of room."""
    node = {"name": "n", "allocatable": dict.fromkeys(RESOURCES, PLENTY)}
    quota = {"resources": {each: {"nominalQuota": 12} for each in RESOURCES}}
    document = {
        "clusters": [{"name": "hub", "nodes": [node]}],
        "queues": [
            {"name": "t", **root},
            {"name": "a", "parent": "t", **quota, **leaf},
            {"name": "b", "parent": "t"},
        ],
        "running": [],
        "pending": [],
    }
    pods = [{"count": 12, "requests": dict.fromkeys(RESOURCES, 1)}]
    large = {"name": LARGE, "queue": "a", "priority": HIGHEST, "age": 1, "pods": pods}
    return Streams(document, Random(seed), large)  # noqa: S311 - repeatable


@pytest.mark.parametrize("short", Short)
def test_no_gang_of_its_queue_passes_by_the_head_of_a_strict_queue(short: Short) -> None:
    waits = [random_streams(seed, short, is_strict=True).wait(LONG // 2) for seed in range(30)]
    assert sum(wait.start != 0 for wait in waits) > 5
    assert not any(wait.passed_by for wait in waits)


# -----------------------------------------------------------------------------------------------------------
# A cycle over a tree of 1,000 queues, 200 deep: it decides, without recursion, and in steps that are short.
# The steps are bounded by the calls of functions that they make, not by a clock.


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


# --- A search for victims that failed is not made again, and is made again once it may succeed -------------


CLUSTER = "clusters: [{name: hub, nodes: [{name: n, allocatable: {gpu: 100, memory: 1}}]}]"
ONE_QUEUE = f"""
{CLUSTER}
queues: [{{name: a, resources: {{gpu: {{nominalQuota: 10}}}}, preemption: {{withinQueue: LowerPriority}}}}]
running:
- {{name: low, queue: a, cluster: hub, ran: 40, demand: {{gpu: 4}}}}
- {{name: high, queue: a, cluster: hub, ran: 9, priority: 9, demand: {{gpu: 4}}}}
pending:
- {{name: waits, queue: a, priority: 5, age: 1, demand: {{gpu: 8}}}}
"""
SHIELDED = ONE_QUEUE.replace("{name: a, ", "{name: a, minRuntimeSeconds: 60, ").replace(
    "priority: 9, demand", "demand"
)
DISPATCHING = ONE_QUEUE.replace("- {name: high, queue: a, cluster: hub, ran: 9,", "").replace(
    " priority: 9, demand: {gpu: 4}}\npending:",
    "pending:\n- {name: comes, queue: a, priority: 9, demand: {gpu: 4}}",
)
GROWN = f"""
{CLUSTER}
queues:
- name: a
  minRuntimeSeconds: 600
  resources: {{gpu: {{nominalQuota: 10}}}}
  preemption: {{withinQueue: LowerPriority}}
running:
- {{name: grown, queue: a, cluster: hub, ran: 40, demand: {{gpu: 8}}}}
pending:
- {{name: waits, queue: a, priority: 5, age: 1, demand: {{gpu: 6}}}}
"""
DIVIDED = f"""
{CLUSTER}
queues:
- {{name: org, sharing: Division, resources: {{gpu: {{nominalQuota: 12}}}}}}
- {{name: a, parent: org, preemption: {{reclaim: Any}}}}
- {{name: b, parent: org}}
- {{name: c, parent: org}}
running:
- {{name: r1, queue: b, cluster: hub, ran: 9, demand: {{gpu: 4}}}}
- {{name: r2, queue: b, cluster: hub, ran: 8, demand: {{gpu: 4}}}}
pending:
- {{name: waits, queue: a, demand: {{gpu: 6}}}}
- {{name: too-large, queue: c, demand: {{gpu: 6, memory: 99}}}}
"""


class Leader:
    """One planner in the world of a scenario."""

    def __init__(self, text: str) -> None:
        self.world: World = parse_scenario(yaml.safe_load(text))
        self.rules, self.planner = QueueRules(self.world.forest), QueuePlanner()

    def preempted(self, *absent: str, seconds: float = 0) -> list[str]:
        """The victims of a cycle so long after the first, without some gangs."""
        active = [each.active for each in self.world.running if each.active and each.name not in absent]
        queued = {each.uid: each for each in self.world.pending if each.name not in absent}
        news = run(
            self.planner.news_in_steps(
                Changes(queued, are_all=True),
                self.rules,
                active,
                KnownSnapshots().of(self.world),
                self.world.now + timedelta(seconds=seconds),
            )
        )
        return [gang.record.name for each in news if isinstance(each, Preempting) for gang, _ in each.victims]


@pytest.mark.parametrize(
    ("text", "before", "after", "seconds"),
    [
        pytest.param(ONE_QUEUE, (), ("high",), 0, id="another-gang-ended"),
        pytest.param(DISPATCHING, (), ("comes",), 0, id="a-gang-dispatched-in-that-cycle-is-gone"),
        pytest.param(SHIELDED, (), (), 60, id="a-gang-is-shielded-no-more"),
        pytest.param(DIVIDED, (), ("too-large",), 0, id="another-queue-wants-less"),
    ],
)
def test_a_search_is_made_again_once_it_may_succeed(
    text: str, before: tuple[str, ...], after: tuple[str, ...], seconds: float
) -> None:
    leader = Leader(text)
    assert leader.preempted(*before) == []
    assert leader.preempted(*after, seconds=seconds) == Leader(text).preempted(*after, seconds=seconds) != []


def test_a_search_is_made_again_for_each_gang_that_is_shielded_no_more() -> None:
    """Both gangs are needed; one may go after 20 s, the other after 51 s."""
    leader = Leader(SHIELDED)
    found = [sorted(leader.preempted(seconds=seconds)) for seconds in (0, 20, 50, 51)]
    assert found == [[], [], [], ["high", "low"]]


@pytest.mark.parametrize(
    ("text", "seconds", "leaf"),
    [
        pytest.param(ONE_QUEUE, 0, "a", id="the-same-gangs-run"),
        pytest.param(SHIELDED, 19, "a", id="the-same-gangs-are-shielded"),
        pytest.param(DIVIDED, 0, "a", id="the-same-shares"),
    ],
)
def test_a_search_is_not_made_again_while_nothing_changes(
    monkeypatch: pytest.MonkeyPatch, text: str, seconds: float, leaf: str
) -> None:
    made, search = list[str](), Search.may_be_enough

    def counted(self: Search, gangs: Iterable[ActiveGang]) -> bool:
        made.append(self.leaf)
        return search(self, gangs)

    monkeypatch.setattr(Search, "may_be_enough", counted)
    leader = Leader(text)
    assert [leader.preempted(), leader.preempted(seconds=seconds)] == [[], []]
    assert made == [leaf]


def test_a_search_is_made_again_once_more_of_a_gang_is_surplus() -> None:
    """Pods of a gang end, and its growth is surplus: its record, which has the sum, does not change."""
    leader = Leader(GROWN)

    def preempted(surplus: int, planner: QueuePlanner) -> list[str]:
        (gang,) = (each.active for each in leader.world.running if each.active)
        base, unused = (Resources({"gpu": amount}) for amount in (8 - surplus, surplus))
        parts = [Part(base, base), Part(unused, unused, "unused", unused=unused)]
        active = [replace(gang, part=each) for each in parts]
        queued = Changes({each.uid: each for each in leader.world.pending}, are_all=True)
        snapshots = KnownSnapshots().of(leader.world)
        news = run(planner.news_in_steps(queued, leader.rules, active, snapshots, leader.world.now))
        return [each.uid for new in news if isinstance(new, Preempting) for each, _ in new.victims]

    assert preempted(1, leader.planner) == []
    assert preempted(4, leader.planner) == preempted(4, QueuePlanner()) == ["grown/unused"]
