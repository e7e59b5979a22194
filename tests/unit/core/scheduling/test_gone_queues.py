"""A queue that is gone leaves its gangs to the queue above: its siblings reclaim their own quota from them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dispatcher.core.model.preemption import Reason
from dispatcher.core.queues.declared_queues import DeclaredQueues, DispatchQueue, last_valid
from dispatcher.core.scheduling.cycle import Preempting, Waiting
from dispatcher.core.scheduling.sharing.cycle import Drained
from dispatcher.core.scheduling.world import World
from tests.unit.core.scheduling.test_held_queues import (
    GPU,
    RECLAIMING,
    Json,
    gangs,
    owners,
    running,
    world_of,
)


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
