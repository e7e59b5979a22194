"""A queue that is replaced, or is not valid for now, takes no gang, and nobody gets its quota meanwhile.

Its last valid declaration still counts for quota, so each other gang of its tree is decided as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import pytest
from msgspec.structs import replace

from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.queues.declared_queues import (
    DeclaredQueues,
    DispatchQueue,
    last_valid,
    read_dispatch_queue,
)
from dispatcher.core.queues.queue import Queue
from dispatcher.core.scheduling.cycle.cycle import Drained
from dispatcher.core.scheduling.cycle.outcomes import Impossible, Placed, Preempting, Waiting
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import World
from tests import sweeps
from tests.unit.core.scheduling.queue_answers import answer_of
from tests.unit.core.scheduling.queue_worlds import random_document

GPU: Final = "nvidia.com/gpu"
Json = dict[str, Any]
Change = Callable[[Queue], DispatchQueue | None]
"""The DispatchQueue that is there after a change of this one; None if there is none for the moment."""


def replaced(_: Queue) -> DispatchQueue | None:
    return None


def malformed(queue: Queue) -> DispatchQueue | None:
    spec = {"parent": queue.parent, "resources": {GPU: {"nominalQuota": "8x"}}}
    return read_dispatch_queue({"metadata": {"name": queue.name}, "spec": spec}, queue.name, "u", "")


def misspelt(queue: Queue) -> DispatchQueue | None:
    return DispatchQueue(replace(queue, parent=f"{queue.parent}g"))


def in_a_circle(queue: Queue) -> DispatchQueue | None:
    return DispatchQueue(replace(queue, parent=queue.name))


CHANGES = pytest.mark.parametrize("change", [replaced, malformed, misspelt, in_a_circle])


def changed(world: World, name: str, change: Change) -> World:
    """The world of a leader for which that queue has changed so."""
    queues = world.queues or ()
    there = [change(each) if each.name == name else DispatchQueue(each) for each in queues]
    lingering = {name} if None in there else set[str]()
    declared = DeclaredQueues.of(
        [each for each in there if each is not None], (), lingering=lingering, last=last_valid([queues])
    )
    forest = declared.forest
    return replace(
        world,
        queues=declared.valid,
        held=forest.held,
        charged_in=forest.charged_in,
        has_default=False,
    )


def gangs(queue: str, count: int, gpus: int = 1, **more: object) -> list[Json]:
    pods = [{"count": gpus, "requests": {GPU: 1}}]
    return [{"name": f"{queue}{each}", "queue": queue, "pods": pods, **more} for each in range(count)]


def running(queue: str, count: int, gpus: int = 1) -> list[Json]:
    there = gangs(queue, count, gpus, cluster="hub", ran=600)
    return [each | {"name": f"running-{each['name']}"} for each in there]


def world_of(queues: Sequence[Json], there: Sequence[Json], pending: Sequence[Json]) -> World:
    nodes = [{"name": "n", "count": 10, "allocatable": {"cpu": 64, GPU: 8}}]
    return parse_scenario(
        {
            "clusters": [{"name": "hub", "nodes": nodes}],
            "queues": list(queues),
            "running": list(there),
            "pending": list(pending),
        }
    )


def decided(world: World) -> dict[str, type]:
    return {each.record.uid: type(each) for each in world.plan()}


def placed(world: World) -> int:
    return sum(kind is Placed for kind in decided(world).values())


COHORT: Final[list[Json]] = [
    {"name": "org"},
    {"name": "pool", "parent": "org", "resources": {GPU: {"nominalQuota": 8}}},
    {"name": "team", "parent": "org"},
]
"""A pool with all GPUs, and a team that borrows them."""


@CHANGES
@pytest.mark.parametrize("sharing", ["Priority", "DominantShare"])
@pytest.mark.parametrize("used", [0, 5, 8])
def test_siblings_of_the_only_queue_that_names_a_resource_get_no_more_of_it(
    change: Change, sharing: str, used: int
) -> None:
    queues = [COHORT[0] | {"sharing": sharing}, *COHORT[1:]]
    world = world_of(queues, running("team", used), gangs("team", 20, age=60))
    assert placed(world) == 8 - used
    assert answer_of(changed(world, "pool", change))["decisions"] == answer_of(world)["decisions"]


@CHANGES
def test_siblings_do_not_get_quota_that_is_not_lent(change: Change) -> None:
    queues = [
        {"name": "org", "resources": {GPU: {"nominalQuota": 16}}},
        {"name": "a", "parent": "org", "resources": {GPU: {"nominalQuota": 8, "lendingLimit": 0}}},
        {"name": "b", "parent": "org", "resources": {GPU: {"nominalQuota": 8}}},
    ]
    world = world_of(queues, (), gangs("b", 20, age=60))
    assert placed(world) == placed(changed(world, "a", change)) == 8


RECLAIMING: Final = {"withinQueue": "LowerPriority", "reclaim": "Any"}


def owners(sharing: str) -> list[Json]:
    return [
        {"name": "org", "sharing": sharing},
        {"name": "a", "parent": "org", "resources": {GPU: {"nominalQuota": 4}}, "preemption": RECLAIMING},
        {"name": "b", "parent": "org", "resources": {GPU: {"nominalQuota": 8}}, "preemption": RECLAIMING},
    ]


@CHANGES
@pytest.mark.parametrize("sharing", ["Priority", "DominantShare"])
def test_an_owner_reclaims_its_quota_from_the_gangs_that_borrow_it(change: Change, sharing: str) -> None:
    world = world_of(owners(sharing), running("a", 3, 4), gangs("b", 1, 8, age=60))
    (before,) = world.plan()
    (after,) = changed(world, "a", change).plan()
    assert isinstance(before, Preempting)
    assert isinstance(after, Preempting)
    assert [victim.uid for victim, _ in after.victims] == [victim.uid for victim, _ in before.victims]


@CHANGES
def test_gangs_within_their_own_quota_are_not_preempted(change: Change) -> None:
    world = world_of(owners("Priority"), running("a", 1, 4), gangs("b", 3, 4, age=60))
    assert decided(changed(world, "a", change)) == {"b0": Placed, "b1": Placed, "b2": Waiting}


@CHANGES
def test_gangs_of_the_queue_itself_wait(change: Change) -> None:
    world = world_of(owners("Priority"), (), gangs("a", 1, age=60))
    (outcome,) = changed(world, "a", change).plan()
    assert isinstance(outcome, Impossible)
    assert outcome.pending.reason == "QueueNotFound"


@CHANGES
def test_gangs_below_it_wait(change: Change) -> None:
    queues = [*COHORT, {"name": "part", "parent": "pool"}]
    (outcome,) = changed(world_of(queues, (), gangs("part", 1)), "pool", change).plan()
    assert isinstance(outcome, Impossible)
    assert outcome.pending.reason == "QueueNotFound"


@CHANGES
def test_drain_of_the_queue_above_drains_it(change: Change) -> None:
    queues = owners("Priority")
    queues[0] |= {"stopPolicy": "HoldAndDrain"}
    _, outcomes = changed(world_of(queues, running("a", 2), ()), "a", change).plan_queues()
    assert [len(each.gangs) for each in outcomes if isinstance(each, Drained)] == [2]


@pytest.mark.parametrize("seeds", sweeps.spread(range(100), 50))
def test_decisions_of_random_worlds_are_as_before_for_all_other_queues(seeds: range) -> None:
    compared = 0
    for seed in seeds:
        chance = Random(seed)  # noqa: S311 - repeatable
        world = parse_scenario(random_document(chance, in_two_trees=seed % 2 * 0.5))
        names = [each.name for each in world.queues or () if each.parent]
        if not names:
            continue
        after = changed(world, chance.choice(names), replaced)
        leaves = {each.name for each in after.forest.leaves} & {each.name for each in world.forest.leaves}
        others = tuple(each for each in world.pending if leaves.issuperset(each.leaves))
        before = replace(world, pending=others).plan()
        assert decided(replace(after, pending=others)) == {each.record.uid: type(each) for each in before}
        compared += len(others)
    assert compared > 50


# -----------------------------------------------------------------------------------------------------------
# A queue that is gone leaves its gangs to the queue above: its siblings reclaim their own quota from them.


def gone(world: World, *names: str) -> World:
    """The world of a leader since these queues are surely gone."""
    queues = world.queues or ()
    left = [DispatchQueue(each) for each in queues if each.name not in names]
    declared = DeclaredQueues.of(left, (), last=last_valid([queues]))
    charged_in = declared.forest.charged_in
    return replace(world, queues=declared.valid, charged_in=charged_in, has_default=False)


SHARINGS = pytest.mark.parametrize("sharing", ["Priority", "DominantShare", "Division"])


def limited(queues: list[Json], gpus: int | None) -> list[Json]:
    """These queues with a quota of the root."""
    root, *others = queues
    return [root if gpus is None else root | {"resources": {GPU: {"nominalQuota": gpus}}}, *others]


@SHARINGS
@pytest.mark.parametrize("total", [12, 16])
def test_a_sibling_reclaims_its_own_quota_from_the_gangs_that_a_queue_left(sharing: str, total: int) -> None:
    queues = limited(owners(sharing), total)
    world = world_of(queues, running("a", total // 4, 4), gangs("b", 1, 8, age=60))
    (outcome,) = gone(world, "a").plan()
    assert isinstance(outcome, Preempting)
    assert {reason for _, reason in outcome.victims} == {Reason.QUOTA_RECLAIMED}
    assert len(outcome.victims) == 2


def test_a_sibling_reclaims_where_only_the_queues_below_the_root_name_quota() -> None:
    world = world_of(owners("Priority"), running("a", 3, 4), gangs("b", 1, 8, age=60))
    (outcome,) = gone(world, "a").plan()
    assert isinstance(outcome, Preempting)


@SHARINGS
def test_a_sibling_that_would_borrow_does_not_reclaim(sharing: str) -> None:
    queues = [
        *limited(owners(sharing), 12),
        {"name": "c", "parent": "org", "resources": {GPU: {"nominalQuota": 0}}, "preemption": RECLAIMING},
    ]
    world = world_of(queues, running("a", 3, 4), gangs("c", 1, 4, age=60))
    (outcome,) = gone(world, "a").plan()
    assert isinstance(outcome, Waiting) is (sharing != "Division")  # which shares by weight


@SHARINGS
def test_a_sibling_below_another_queue_reclaims(sharing: str) -> None:
    root, a, b = limited(owners(sharing), 12)
    group = {"name": "group", "parent": "org", "resources": {GPU: {"nominalQuota": 12}}}
    queues = [root, group, a | {"parent": "group"}, b | {"parent": "group"}]
    world = world_of(queues, running("a", 3, 4), gangs("b", 1, 8, age=60))
    (outcome,) = gone(world, "a").plan()
    assert isinstance(outcome, Preempting)


def test_gangs_that_fit_beside_what_is_left_preempt_nobody() -> None:
    world = world_of(limited(owners("Priority"), 16), running("a", 1, 4), gangs("b", 1, 8, age=60))
    (outcome,) = gone(world, "a").plan()
    assert not isinstance(outcome, Waiting | Preempting)


def never(queues: list[Json]) -> list[Json]:
    """These queues, none of which reclaims."""
    return [{key: value for key, value in each.items() if key != "preemption"} for each in queues]


@SHARINGS
def test_a_gang_that_waits_for_quota_is_told_of_the_queues_that_are_gone(sharing: str) -> None:
    queues = [
        *never(limited(owners(sharing), 16)),
        {"name": "c", "parent": "org"},
    ]
    there = [*running("a", 2, 4), *running("c", 1, 4)]
    world = world_of(queues, there, gangs("b", 1, 8, age=60))
    (waiting,) = gone(world, "a").plan()
    assert isinstance(waiting, Waiting)
    assert "gangs of queue a, which is gone, use 8" in waiting.pending.message
    (both,) = gone(world, "a", "c").plan()
    assert isinstance(both, Waiting)
    assert "gangs of queues a, c, which are gone, use 12" in both.pending.message
    (declared,) = world.plan()
    assert isinstance(declared, Waiting)
    assert "gone" not in declared.pending.message


def test_drain_of_the_queue_above_drains_what_a_gone_queue_left() -> None:
    root, *others = owners("Priority")
    world = world_of([root | {"stopPolicy": "HoldAndDrain"}, *others], running("a", 2), ())
    _, outcomes = gone(world, "a").plan_queues()
    assert [(each.queue, len(each.gangs)) for each in outcomes if isinstance(each, Drained)] == [("org", 2)]
