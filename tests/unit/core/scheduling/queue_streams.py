"""Random forests with streams of small gangs, which run for a while, and one large gang of an owner, which waits.

The large gang fits the nominal quota of its queue and an empty cluster, may be preempted, and is short of one thing
only, of quota or of room. No other gang has a higher priority, and those of equal priority are younger.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import count
from random import Random
from typing import Any, Final

from dispatcher.core.scheduling.cycle import Placed
from tests.unit.core.queues.naive_quota import NaiveForest
from tests.unit.core.scheduling.queue_simulation import STEP, Simulation
from tests.unit.core.scheduling.queue_worlds import (
    GPU,
    RESOURCES,
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
