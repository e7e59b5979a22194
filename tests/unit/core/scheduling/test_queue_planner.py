"""What is kept between cycles over queues changes no decision, whatever happens in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.core.model.incremental import run
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.ordering import is_eligible
from dispatcher.core.queues.queue import StopPolicy
from dispatcher.core.scheduling.cycle.cycle import (
    Drained,
    QueueCycle,
    QueueFacts,
    QueueOutcome,
    outcomes_of,
)
from dispatcher.core.scheduling.cycle.outcome_changes import change_of, changes_of
from dispatcher.core.scheduling.cycle.outcomes import Placed, Preempting
from dispatcher.core.scheduling.cycle.queue_planner import QueuePlanner, QueueRules, next_change
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
from dispatcher.core.scheduling.fit.backfill import Backfills
from dispatcher.core.scheduling.preemption.surplus import in_parts
from dispatcher.core.scheduling.queued.pending_queue import PendingQueue
from dispatcher.core.scheduling.queued.queued_gangs import QueuedGangs
from dispatcher.core.scheduling.sharing.gangs import ActiveGang
from tests.builders import NOW, make_record
from tests.unit.core.scheduling.queue_worlds import add_surplus, random_document

STEPS = 14
PASSES = (0, 0, 1, 200, 700, 90_000)
"""Seconds from one cycle to the next."""


def key(outcome: QueueOutcome) -> tuple[str, ...]:
    """What was decided, without amounts and without the order of gangs that wait."""
    if isinstance(outcome, Drained):
        return "drained", outcome.queue, *sorted(gang.uid for gang in outcome.gangs)
    name, uid = type(outcome).__name__, outcome.record.uid
    if isinstance(outcome, Placed):
        return name, uid, outcome.cluster
    victims = sorted(each.uid for each, _ in outcome.victims) if isinstance(outcome, Preempting) else []
    pending = outcome.pending
    return name, uid, pending.reason, pending.resource, pending.cluster, *victims


class Life:
    """A random world that lives: gangs come, change, go and wait; each cycle is planned by both."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)  # noqa: S311 - repeatable
        document = random_document(self.chance)
        if self.chance.random() < 0.5:
            add_surplus(document, self.chance)
        self.world: World = parse_scenario(document)
        self.forest = self.world.forest
        self.line, self.planner, self.known = PendingQueue(), QueuePlanner(), KnownSnapshots()
        self.backfills = Backfills()
        self.pending: dict[str, Record] = {}
        self.gone: list[Record] = []
        self.active: list[ActiveGang] = in_parts(
            (each.active for each in self.world.running if each.active),
            {each.name: each.surplus for each in self.world.running},
        )
        self.usage: dict[tuple[str, str], Any] = {}
        self.counts: Counter[str] = Counter()
        for record in self.world.pending:
            self.put(record)

    def put(self, record: Record) -> None:
        self.pending[record.uid] = record
        self.line.put(record)

    def take(self, uid: str) -> Record:
        self.line.remove(uid)
        return self.pending.pop(uid)

    def live(self) -> None:
        for _ in range(STEPS):
            if self.chance.random() < 0.6:
                self._happen()
            now = self.world.now + timedelta(seconds=self.chance.choice(PASSES))
            self.world = replace(self.world, now=now, pending=tuple(self.pending.values()))
            self._cycle()

    def _happen(self) -> None:
        match self.chance.randint(0, 6):
            case 0 if self.pending:
                self.gone.append(self.take(self.chance.choice(sorted(self.pending))))
            case 1 if self.gone:
                self.put(replace(self.gone.pop(), eligible_at=self.chance.choice([None, self.world.now])))
            case 2 if self.pending:
                record = self.pending[self.chance.choice(sorted(self.pending))]
                self.put(replace(record, priority=record.priority + self.chance.choice([-1, 1])))
            case 3 if whole := [each for each in self.active if each.part is None]:
                self._set_active(self.chance.choice(whole), None)
            case 4 if self.active:
                gang = self.chance.choice(self.active)
                self._set_active(gang, replace(gang, is_leaving=True))
            case 5 if self.pending:
                record = self.pending[self.chance.choice(sorted(self.pending))]
                later = self.world.now + timedelta(seconds=100)
                self.put(replace(record, eligible_at=later, priority_slope=self.chance.choice([0.0, 0.1])))
            case 6:
                self._declare_anew()
            case _:
                pass

    def _set_active(self, gang: ActiveGang, changed: ActiveGang | None) -> None:
        self.active = [each for each in self.active if each.uid != gang.uid] + ([changed] if changed else [])
        self.active.sort(key=lambda each: (each.dispatched_at, each.uid))
        if gang.part is None:
            running = [
                replace(each, active=changed) if each.name == gang.uid else each
                for each in self.world.running
                if changed or each.name != gang.uid
            ]
            self.world = replace(self.world, running=tuple(running))

    def _declare_anew(self) -> None:
        queues = list(self.world.queues or ())
        number = self.chance.randrange(len(queues))
        policy = self.chance.choice([StopPolicy.NONE, StopPolicy.NONE, StopPolicy.HOLD])
        queues[number] = replace(queues[number], stop_policy=policy)
        self.world = replace(self.world, queues=tuple(queues))
        self.forest = self.world.forest

    def _cycle(self) -> None:
        world, now = self.world, self.world.now
        rules = QueueRules(self.forest, world.namespaces, self.usage).selected
        snapshots = self.known.of(world)
        news = run(
            self.planner.news_in_steps(
                self.line.changes_for(self.planner, now), rules, self.active, snapshots, now
            )
        )
        eligible = [each for each in world.pending if is_eligible(each, now)]
        queued = QueuedGangs.of(eligible, now, self.forest)
        facts = QueueFacts(self.forest, queued, self.active, now, world.namespaces, self.usage)
        cycle = QueueCycle(facts, KnownSnapshots().of(world), backfills=self.backfills)
        kept, scratch = outcomes_of(news), outcomes_of(run(cycle.news_in_steps()))
        assert sorted(map(key, kept)) == sorted(map(key, scratch))
        assert order(kept) == order(scratch)
        self.counts["quiet"] += not kept
        for outcome in kept:
            self._apply(outcome)

    def _apply(self, outcome: QueueOutcome) -> None:
        now = self.world.now
        self.counts[type(outcome).__name__] += 1
        if isinstance(outcome, Placed):
            self.take(outcome.record.uid)
        elif isinstance(outcome, Drained):
            for gang in outcome.gangs:
                self._set_active(gang, replace(gang, is_leaving=True))
        elif isinstance(outcome, Preempting):
            self.put(changes_of(replace(outcome, victims=()), now)[0].after)
            for gang, _ in outcome.victims:
                self._set_active(gang, replace(gang, is_leaving=True))
        else:
            change = change_of(outcome, now)
            if change is not None:
                self.put(change.after)


def order(outcomes: Sequence[QueueOutcome]) -> list[tuple[str, ...]]:
    return [key(each) for each in outcomes if isinstance(each, Placed | Preempting | Drained)]


def lives(seeds: range) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        life = Life(seed)
        life.live()
        counts += life.counts
    return counts


def test_kept_gangs_and_quiet_cycles_change_no_decision() -> None:
    counts = lives(range(40))
    assert counts["quiet"] > 30
    assert all(counts[each] > 3 for each in ("Placed", "Preempting", "Waiting", "Impossible"))


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_in_many_lives_kept_gangs_and_quiet_cycles_change_no_decision() -> None:
    assert lives(range(40, 2500))["quiet"] > 1000


# --- time alone ----------------------------------------------------------------------------------------------


def facts_of(*records: Record, active: Sequence[ActiveGang] = (), **fields: Any) -> QueueFacts:  # noqa: ANN401
    base = parse_scenario({"clusters": [{"name": "c", "nodes": []}]})
    queue = {"name": "a", "resources": {"cpu": {"nominalQuota": 1}}, **fields}
    queues = parse_scenario({"clusters": [{"name": "c", "nodes": []}], "queues": [queue]}).queues
    forest: Forest = replace(base, queues=queues).forest
    return QueueFacts(forest, QueuedGangs.of(records, NOW), active, NOW)


@pytest.mark.parametrize(
    ("facts", "seconds"),
    [
        (facts_of(make_record(queue="a")), None),
        (facts_of(make_record(queue="a", blocked_since=NOW - timedelta(seconds=100))), 500),
        (facts_of(make_record(queue="a", blocked_since=NOW - timedelta(seconds=700))), None),
        (
            facts_of(
                make_record(queue="a", blocked_since=NOW - timedelta(seconds=100)),
                starvationBoundSeconds=150,
            ),
            50,
        ),
        (
            facts_of(
                make_record(queue="a", blocked_since=NOW - timedelta(seconds=100)),
                queueingStrategy="StrictFIFO",
            ),
            500,
        ),
        (facts_of(make_record(queue="a", preempted_at=(NOW - timedelta(hours=23),))), 3600),
    ],
)
def test_time_alone_changes_an_outcome_when_a_bound_is_reached(
    facts: QueueFacts, seconds: float | None
) -> None:
    assert next_change(facts) == (None if seconds is None else NOW + timedelta(seconds=seconds))


def test_a_running_gang_may_be_preempted_from_the_end_of_its_shielded_time() -> None:
    gang = ActiveGang(make_record(Phase.RUNNING, queue="a"), "c", NOW - timedelta(seconds=40))
    assert next_change(facts_of(active=[gang], minRuntimeSeconds=60)) == NOW + timedelta(seconds=20)
    assert next_change(facts_of(active=[gang], minRuntimeSeconds=30)) is None
