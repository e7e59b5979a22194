"""Queues are charged for what a gang holds beyond its demand, and a victim frees all that it holds."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from dispatcher.core.lifecycle import removal, run_changes
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.incremental import run
from dispatcher.core.model.records.record import Attempt, Growth, Phase
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Queue
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.core.scheduling.cycle.cycle import QueueCycle, QueueFacts
from dispatcher.core.scheduling.cycle.outcomes import SOME_TIME, Waiting
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.explain.world_facts import RunningGang
from dispatcher.core.scheduling.fit.backfill import Running
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.preemption.account_report import QueueReport
from dispatcher.core.scheduling.queued.queued_gangs import QueuedGangs
from dispatcher.core.scheduling.sharing.gangs import active_gang, set_aside
from tests import sweeps
from tests.builders import at, make_core_node, make_gang, make_record
from tests.unit.core.scheduling.queue_answers import answer_of
from tests.unit.core.scheduling.queue_worlds import random_document


def grown(gang: RunningGang, demand: Resources) -> RunningGang:
    """The gang as it would be if it had begun with a smaller demand and held as much by now."""
    active = gang.active
    assert active is not None
    more = (gang.demand - demand).positive_part()
    attempt = Attempt(1, gang.cluster, SOME_TIME, growth=(Growth(SOME_TIME, more),))
    record = replace(active.record, gang=replace(active.record.gang, demand=demand), attempt=attempt)
    return replace(gang, active=replace(active, record=record))


def half(amounts: Resources) -> Resources:
    return Resources({name: amount // 2 for name, amount in amounts.items()})


def with_running(world: World, *running: RunningGang) -> World:
    return replace(world, running=running)


@pytest.mark.parametrize("seeds", sweeps.spread(range(175), 75))
def test_queues_are_charged_for_the_resources_a_gang_holds(seeds: range) -> None:
    """A victim that is queued again asks for less then, so in few worlds another gang is spared."""
    differing = preempting = 0
    for seed in seeds:
        world = parse_scenario(random_document(Random(seed)))  # noqa: S311 - repeatable
        answer = answer_of(world)
        other = answer_of(with_running(world, *(grown(each, half(each.demand)) for each in world.running)))
        assert other["queues"] == answer["queues"]
        has_victims = any("preempt" in each for each in [*answer["decisions"], *other["decisions"]])
        preempting += has_victims
        if other["decisions"] != answer["decisions"]:
            assert has_victims, seed
            differing += 1
    assert differing < preempting / 10
    assert preempting > 3


@pytest.mark.parametrize(
    ("sharing", "seed"), [("DominantShare", 147), ("DominantShare", 549), ("Division", 1036)]
)
def test_victims_are_chosen_by_the_resources_they_hold(sharing: str, seed: int) -> None:
    """In these worlds other gangs would be preempted if only the demands of victims were given back."""
    world = parse_scenario(random_document(Random(seed), sharing=sharing))  # noqa: S311 - repeatable
    halves = (grown(each, half(each.demand)) for each in world.running)
    assert answer_of(with_running(world, *halves)) == answer_of(world)


TWO_TEAMS = {
    "clusters": [{"name": "hub", "nodes": [{"name": "n", "allocatable": {"gpu": 4}}]}],
    "queues": [
        {"name": "org"},
        {"name": "a", "parent": "org", "resources": {"gpu": {"nominalQuota": 2}}},
        {
            "name": "b",
            "parent": "org",
            "resources": {"gpu": {"nominalQuota": 2}},
            "preemption": {"reclaim": "Any"},
        },
    ],
    "running": [{"name": "ray", "queue": "a", "cluster": "hub", "ran": 50, "demand": {"gpu": 3}}],
    "pending": [{"name": "mine", "queue": "b", "demand": {"gpu": 2}}],
}


def test_a_gang_that_grew_beyond_its_quota_is_preempted_for_the_owner_of_the_quota() -> None:
    """It asks for one GPU, within the quota of two, and holds three."""
    world = parse_scenario(TWO_TEAMS)
    (ray,) = world.running
    world = with_running(world, grown(ray, Resources({"gpu": 1})))
    assert answer_of(world)["decisions"] == [
        {"preempt": ["ray"], "for": "mine", "cluster": "hub", "reasons": {"ray": "QuotaReclaimed"}}
    ]
    active = [each.active for each in world.running if each.active is not None]
    report = QueueReport(world.forest, active, SOME_TIME)
    assert {row.queue: row.used for row in report.accounts(world.pending[0])} == {"b": 0, "org": 3}


def test_a_reservation_expects_all_that_a_gang_holds_once_it_ends() -> None:
    record = make_record(Phase.RUNNING)
    record = run_changes.note_growth(record, record.gang.demand * 3, at(10)).after
    (end,) = run(Running(lambda _: [record]).ends("hub", at(20)))
    assert end.released == record.gang.demand * 3


@pytest.mark.parametrize("pods", [0, 1, 2, 3])
def test_a_gang_frees_the_resources_it_holds_at_the_moment_where_gangs_fit_by_sums(pods: int) -> None:
    """Its record says three GPUs until it is released; while it is removed, fewer and fewer of its pods live."""
    ledger, demand = CapacityLedger(), make_gang(1, gpu=1).demand
    record = make_record(Phase.RUNNING, uid="ray", queue="a", gang=make_gang(1, gpu=1))
    record = removal.delete(run_changes.note_growth(record, demand * 3, at(1)).after, at(2)).after
    ledger.set_node(make_core_node("n", gpu=4))
    ledger.reserve("ray", record.gang)
    for number in range(pods):
        ledger.set_pod(Pod(str(number), demand, "n", PodPhase.RUNNING, owner="ray"))
    ledger.set_pod(Pod("other", demand, "n", PodPhase.RUNNING))
    snapshot = ledger.snapshot()
    assert snapshot.free_for(None) == demand * (3 - max(1, pods))
    pending = make_record(uid="large", name="large", queue="b", gang=make_gang(1, gpu=4))
    active = active_gang(record, is_unreachable=False)
    assert active is not None
    facts = QueueFacts(
        Forest.of([Queue("a"), Queue("b")]),
        QueuedGangs.of([pending], at(3)),
        [active],
        at(3),
    )
    (outcome,) = QueueCycle(facts, {"hub": ClusterSnapshot("hub", snapshot)}).run()
    assert isinstance(outcome, Waiting)
    assert outcome.pending.reason == "InsufficientResources"  # not AwaitingRelease: the other pod stays
    snapshot.charge("ray", demand, -1)
    assert snapshot.free_for(None) == demand * 3


@pytest.mark.parametrize(
    "growth",
    [
        pytest.param((), id="as-dispatched"),
        pytest.param((Growth(SOME_TIME, Resources({"cpu": 3000})),), id="grown"),
        pytest.param((Growth(SOME_TIME, Resources({"cpu": 3000}), count=3),), id="grown-by-pods"),
    ],
)
def test_gang_that_is_set_aside_is_charged_with_at_least_its_charge(growth: tuple[Growth, ...]) -> None:
    gang = make_gang(pods=4, cpu=4000)
    attempt = Attempt(1, "hub", SOME_TIME, growth=growth)
    record = replace(make_record(phase=Phase.RUNNING, gang=gang), attempt=attempt)
    active, aside = active_gang(record, is_unreachable=False), set_aside(record)
    assert active is not None
    assert aside is not None
    assert active.charge["pods"] == 4 + sum(each.count for each in growth)
    assert not active.charge.shortfall(aside.charge)
