"""A simulation over scenario documents: decisions are applied, victims take a while to leave, time goes on.

A gang with the key `x-run` ends after so many steps, others never end. The simulation is at rest once nothing is
dispatched, preempted or leaving for so long that every gang which waits has become starved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any

from dispatcher.core.scheduling.cycle.cycle import Drained, QueueOutcome
from dispatcher.core.scheduling.cycle.outcomes import Placed, Preempting
from dispatcher.core.scheduling.explain.scenario import parse_scenario

Json = dict[str, Any]

STEP = 200
"""Seconds of a step."""
QUIET_STEPS = 5
"""Steps without a change until it is at rest: longer than the starvation bound."""
MOST_STEPS = 250
LONGEST_REMOVAL = 3
"""Steps in which a victim still holds capacity, at most."""


@dataclass
class Simulation:
    """A document that lives; `arrivals` come one by one. `preemptions` has the victim and the preemptor of each.

    `outcomes` are those of the last cycle.
    """

    document: Json
    chance: Random
    arrivals: list[Json] = field(default_factory=list)
    preemptions: list[tuple[str, str]] = field(default_factory=list)
    outcomes: tuple[QueueOutcome, ...] = ()
    steps: int = 0
    _leaves_in: dict[str, int] = field(default_factory=dict)

    def comes_to_rest(self) -> bool:
        """Run until nothing changes any more; False if that is never the case."""
        quiet = 0
        while quiet < QUIET_STEPS:
            if self.steps >= MOST_STEPS:
                return False
            quiet = 0 if self.step() else quiet + 1
        return True

    def step(self) -> bool:
        """One cycle; True if something changed."""
        self.steps += 1
        has_changed = bool(self._leaves_in or self.arrivals)
        if self.arrivals and self.chance.random() < 0.5:
            self.document["pending"].append(self.arrivals.pop(0))
        self._end_runs()
        self._release()
        _, self.outcomes = parse_scenario(self.document).plan_queues()
        for outcome in self.outcomes:
            has_changed |= self._apply(outcome)
        for gang in (*self.document["running"], *self.document["pending"]):
            gang["age"] = gang.get("age", 0) + STEP
            for key in ("ran", "blocked"):
                if key in gang:
                    gang[key] += STEP
        return has_changed

    def _end_runs(self) -> None:
        running = self.document["running"]
        running[:] = [each for each in running if each.get("ending") or each["ran"] < _run(each)]

    def _release(self) -> None:
        """The gangs that have left are queued again by their original age."""
        for name in [name for name, left in self._leaves_in.items() if left <= 1]:
            del self._leaves_in[name]
            gang = _take_out(self.document["running"], name)
            for key in ("cluster", "ran", "ending", "preempting", "blocked"):
                gang.pop(key, None)
            for pods in gang["pods"]:
                pods.pop("nodes")
            self.document["pending"].append(gang)
        for name in self._leaves_in:
            self._leaves_in[name] -= 1

    def _apply(self, outcome: QueueOutcome) -> bool:
        match outcome:
            case Drained():
                self._preempt("", [gang.uid for gang in outcome.gangs])
                return True
            case Placed():
                gang = _take_out(self.document["pending"], outcome.record.uid)
                gang |= {"cluster": outcome.cluster, "ran": 0}
                for pods, places in zip(gang["pods"], outcome.assignment.places, strict=True):
                    pods["nodes"] = [node for node, count in places for _ in range(count)]
                self.document["running"].append(gang)
                return True
        gang = _find(self.document["pending"], outcome.record.uid)
        reason = outcome.pending.reason
        if isinstance(outcome, Preempting):
            self._preempt(gang["name"], [victim.uid for victim, _ in outcome.victims])
        gang["preempting"] = isinstance(outcome, Preempting) or (
            gang.get("preempting", False) and reason == "AwaitingRelease"
        )
        if getattr(outcome, "is_head", False):
            gang.setdefault("blocked", 0)
        return isinstance(outcome, Preempting)

    def _preempt(self, preemptor: str, victims: list[str]) -> None:
        for name in victims:
            gang = _find(self.document["running"], name)
            gang["ending"] = True
            gang["preemptions"] = gang.get("preemptions", 0) + 1
            self._leaves_in[name] = self.chance.randint(1, LONGEST_REMOVAL)
            self.preemptions.append((name, preemptor))


def _run(gang: Json) -> float:
    """The seconds that a gang runs."""
    steps: float = gang.get("x-run", inf)
    return steps * STEP


def _find(gangs: list[Json], name: str) -> Json:
    return next(each for each in gangs if each["name"] == name)


def _take_out(gangs: list[Json], name: str) -> Json:
    found = _find(gangs, name)
    gangs.remove(found)
    return found
