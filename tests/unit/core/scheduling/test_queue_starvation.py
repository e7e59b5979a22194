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
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from itertools import count
from random import Random
from traceback import walk_stack
from typing import Any, Final, TypeVar

import pytest
import yaml
from msgspec.structs import replace

from dispatcher.core.model.incremental import Steps, run
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.cycle.cycle import QueueCycle, QueueOutcome, outcomes_of
from dispatcher.core.scheduling.cycle.outcomes import Placed, Preempting
from dispatcher.core.scheduling.cycle.queue_planner import QueuePlanner, QueueRules
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
from dispatcher.core.scheduling.queued.pending_queue import Changes
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, Part
from dispatcher.core.scheduling.sharing.search import Search
from tests.unit.core.queues.naive_quota import NaiveForest
from tests.unit.core.scheduling.queue_answers import decision_of
from tests.unit.core.scheduling.queue_simulation import STEP, Simulation
from tests.unit.core.scheduling.queue_worlds import (
    GPU,
    RESOURCES,
    SHARINGS,
    demand_of,
    free_amounts,
    have_places,
    leaves_of,
    random_document,
)

Json = dict[str, Any]

LARGE: Final = "large"
HIGHEST: Final = 3
"""The priority of the large gang."""
LONGEST_RUN: Final = 6
"""Steps that a small gang runs, at most."""
MOST_PENDING: Final = 3
"""Small gangs that wait in one queue at a time."""
BOUNDS: Final = (STEP, 2 * STEP, 3 * STEP, 5 * STEP)
PLENTY: Final = 1000
"""More than all small gangs together ever use."""


class Short(Enum):
    """What the large gang is short of; there is plenty of the other."""

    QUOTA = "quota"
    ROOM = "room"


def random_streams(seed: int, short: Short, *, is_strict: bool = False) -> Streams:
    """A random forest whose streams have begun; the large gang, of a StrictFIFO queue if `is_strict`, has just come."""
    chance = Random(seed)  # noqa: S311 - repeatable
    while True:
        document = _document(chance)
        forest = NaiveForest(document["queues"])
        leaves = [each for each in leaves_of(document["queues"]) if _is_strict(forest, each) == is_strict]
        large = _large(chance, forest, chance.choice(leaves)) if leaves else None
        if large is not None and _is_owner(large, forest, document):
            break
    _add_plenty(document, forest, large["queue"], short)
    return Streams(document, chance, large)


def _document(chance: Random) -> Json:
    """Queues with bounds and strategies of their own or inherited, and empty clusters."""
    document = random_document(chance)
    document["running"], document["pending"] = [], []
    for queue in document["queues"]:
        queue.pop("stopPolicy", None)
        if chance.random() < 0.5:
            queue["starvationBoundSeconds"] = chance.choice(BOUNDS)
        if chance.random() < 0.2:
            queue["queueingStrategy"] = chance.choice(["StrictFIFO", "BestEffortFIFO"])
    return document


def _is_strict(forest: NaiveForest, leaf: str) -> bool:
    return bool(forest.setting(leaf, "queueingStrategy", "BestEffortFIFO") == "StrictFIFO")


def _large(chance: Random, forest: NaiveForest, leaf: str) -> Json | None:
    """A gang of half of the nominal quota of a queue or more; None if that is too little."""
    gpus, memory = (forest.own(leaf, each) if each in forest.limited(leaf) else 8 for each in (GPU, "memory"))
    if gpus < 3:
        return None
    amount = chance.randint(max(3, gpus // 2), gpus)
    size = chance.choice([1, 1, 2, amount])
    requests, pods = {GPU: size}, amount // size
    if memory >= pods and chance.random() < 0.4:
        requests["memory"] = chance.randint(1, memory // pods)
    return {
        "name": LARGE,
        "queue": leaf,
        "priority": HIGHEST,
        "age": 1,
        "pods": [{"count": pods, "requests": requests}],
    }


def _is_owner(gang: Json, forest: NaiveForest, document: Json) -> bool:
    """True if nothing but other gangs can keep a gang from its queue's own quota, and it may be preempted."""
    leaf, demand = gang["queue"], demand_of(gang)
    return (
        all(demand[each] <= forest.own(leaf, each) for each in forest.limited(leaf))
        and not forest.missing(leaf, demand, [])
        and not forest.is_firm(leaf, HIGHEST)
        and any(
            have_places([gang], cluster, free_amounts(document)[cluster["name"]])
            for cluster in document["clusters"]
        )
    )


def _add_plenty(document: Json, forest: NaiveForest, leaf: str, short: Short) -> None:
    if short is Short.QUOTA:
        for cluster in document["clusters"]:
            plenty = dict.fromkeys(RESOURCES, PLENTY)
            cluster["nodes"].append({"name": "plenty", "count": 1, "allocatable": plenty})
        return
    for name in forest.path(leaf):
        for quota in forest.queues[name]["resources"].values():
            quota["nominalQuota"] += PLENTY


@dataclass(frozen=True, slots=True)
class Wait:
    """How a large gang waited, in steps since its arrival; None for a step that was not reached.

    In `starved` its starvation bound was over, and in `released` the gangs were gone that it waits for: those that held
    capacity at its bound, and starved gangs that go before it. `passed_by` has the step of each small gang of its own
    queue that was dispatched before it.
    """

    start: int | None
    starved: int | None
    released: int | None
    passed_by: list[int]

    @property
    def is_in_time(self) -> bool:
        """True if it started no later than the gangs were gone that it waits for."""
        return self.start is not None and (self.released is None or self.start <= self.released)


class Streams:
    """Small gangs keep arriving in every queue; they have for `LONGEST_RUN` steps when the large gang arrives."""

    def __init__(self, document: Json, chance: Random, large: Json) -> None:
        self.forest = NaiveForest(document["queues"])
        self.queue: str = large["queue"]
        self._document, self._chance, self._large = document, chance, large
        self._simulation = Simulation(document, chance)
        self._rates = {leaf: chance.choice([0.5, 0.9, 1]) for leaf in self.forest.leaves()}
        self._numbers = count()
        for _ in range(LONGEST_RUN):
            self._step(HIGHEST - 1)
        document["pending"][:] = [large]

    def wait(self, most_steps: int) -> Wait:
        """Go on until the large gang starts, or for so many steps."""
        starved, released = None, None
        waited_for: set[str] = set()
        passed_by: list[int] = []
        for step in range(most_steps):
            is_starved, marked = self._is_starved(self._large), self._marked()
            placed = self._step(HIGHEST)
            before = {each["name"] for each in self._document["running"]} - placed.keys()
            if is_starved:
                waited_for = (before if starved is None else waited_for & before) | marked
                starved = step if starved is None else starved
                released = step if released is None and not waited_for else released
            if LARGE in placed:
                return Wait(step, starved, released, passed_by)
            assert self._large["blocked"] == (step + 1) * STEP, "it is the head from its first cycle on"
            passed_by += [step] * list(placed.values()).count(self.queue)
        return Wait(None, starved, released, passed_by)

    def _is_starved(self, gang: Json) -> bool:
        bound: int = self.forest.setting(gang["queue"], "starvationBoundSeconds", 600)
        return bool(gang.get("blocked", -1) >= bound)

    def _marked(self) -> set[str]:
        """The starved small gangs for which others were preempted: they go before the large gang."""
        return {
            each["name"]
            for each in self._document["pending"]
            if each.get("preempting") and self._is_starved(each) and each["name"] != LARGE
        }

    def _step(self, highest: int) -> dict[str, str]:
        """Let gangs of at most this priority arrive; return the queue of each gang that is dispatched then."""
        for leaf, rate in self._rates.items():
            waiting = [each["name"] for each in self._document["pending"] if each["queue"] == leaf]
            if len(set(waiting) - {LARGE}) < MOST_PENDING and self._chance.random() < rate:
                self._document["pending"].append(self._small(leaf, highest))
        self._simulation.step()
        placed = (each.record for each in self._simulation.outcomes if isinstance(each, Placed))
        return {record.name: record.queue for record in placed}

    def _small(self, leaf: str, highest: int) -> Json:
        requests = {GPU: self._chance.choice([0, 1, 1, 1, 2]), "memory": self._chance.choice([0, 0, 1, 2])}
        return {
            "name": f"s{next(self._numbers)}",
            "queue": leaf,
            "priority": self._chance.randint(0, highest),
            "age": 0,
            "x-run": self._chance.randint(1, LONGEST_RUN),
            "pods": [{"count": 1, "requests": {each: n for each, n in requests.items() if n} or {GPU: 1}}],
        }


# --- the tests -------------------------------------------------------------------------------------------


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
        return outcomes_of((yield from cycle.news_in_steps()))

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
