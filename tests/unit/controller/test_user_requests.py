"""What a user asks for after submission, and whose AppWrappers are not ours to touch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatcher.core.model.records.record import HOLDING, Phase
from tests.builders import make_appwrapper
from tests.unit.controller.wire import job, made
from tests.unit.controller.world import World
from tests.unit.virtual_time import monotonic, until

Json = dict[str, Any]

UID = "uid-of-aw"
TRAIN = job("train")
HELD_BACK = make_appwrapper("aw", TRAIN, spec={"suspend": True})
RELEASED = make_appwrapper("aw", TRAIN)


@pytest.mark.parametrize(
    ("phase", "then"),
    [
        (Phase.QUEUED, Phase.SUSPENDED),
        (Phase.SUSPENDED, Phase.SUSPENDED),
        (Phase.DISPATCHING, Phase.SUSPENDING),
        (Phase.DISPATCHED, Phase.SUSPENDING),
        (Phase.RUNNING, Phase.SUSPENDING),
        (Phase.RUNNING_HOLD_COMPLETION, Phase.SUSPENDING),
        (Phase.REQUEUEING, Phase.REQUEUEING),
        (Phase.SUSPENDING, Phase.SUSPENDING),
        (Phase.FAILING, Phase.FAILING),
        (Phase.FAILED, Phase.FAILED),
        (Phase.COMPLETED, Phase.COMPLETED),
    ],
)
async def test_appwrapper_that_is_suspended_leaves_the_queue_or_its_cluster(
    world: World, phase: Phase, then: Phase
) -> None:
    world.jobs.has(made(TRAIN))
    await world.brought_to(phase, RELEASED)
    world.show(HELD_BACK)
    await world.reconcile(UID)
    assert world.record(UID).phase is then
    assert world.ledger.free()["cpu"] == (7000 if then in HOLDING else 8000)


async def test_suspended_gang_is_removed_and_stays_suspended_until_it_is_released(world: World) -> None:
    world.jobs.has(made(TRAIN))
    await world.running(RELEASED)
    world.show(HELD_BACK)
    await world.reconcile(UID, times=2)
    assert world.jobs.deletions() == ["train"]
    world.jobs.loses("train")
    await world.reconcile_until_answered(UID)
    assert world.record(UID).phase is Phase.SUSPENDED
    assert world.ledger.free()["cpu"] == 8000

    wakes = world.dispatch_wakes
    world.show(RELEASED)
    await asyncio.sleep(1)  # of virtual time: wishes are followed once a second
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.QUEUED
    assert world.dispatch_wakes == wakes + 1


async def test_wish_counts_as_followed_only_when_it_is_committed(world: World) -> None:
    """A cycle during the commit must not take the record's word for it that the gang may go."""
    await world.admit(RELEASED)
    world.show(HELD_BACK)
    world.store.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(world.reconcile(UID))
        await until(lambda: world.store.batches[-1] == [("aw", "suspended")])
        assert not world.reconciling.pacing.had_turn(UID, world.now())
        world.store.gate.set()
    assert world.reconciling.pacing.had_turn(UID, world.now())


async def test_user_request_with_a_refused_commit_is_followed_at_the_next_reconcile(world: World) -> None:
    """As where a cycle tells the gang, in the same moment, why it waits: the row has moved by then."""
    await world.admit(RELEASED)
    world.show(HELD_BACK)
    world.store.verdict = lambda _change: "stale"
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.QUEUED
    assert not world.reconciling.pacing.had_turn(UID, world.now())
    world.store.verdict = lambda _change: ""
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.SUSPENDED


async def test_gang_that_is_released_while_it_is_removed_is_removed_first(world: World) -> None:
    world.jobs.has(made(TRAIN))
    await world.brought_to(Phase.SUSPENDING, RELEASED)
    world.jobs.loses("train")
    await world.reconcile_until_answered(UID)
    await world.reconcile(UID)
    assert [cause for batch in world.store.batches for _, cause in batch][-2:] == ["removed", "resumed"]
    assert world.record(UID).phase is Phase.QUEUED


async def test_gang_that_was_suspended_while_it_was_requeued_is_suspended_then(world: World) -> None:
    world.jobs.has(made(TRAIN))
    await world.brought_to(Phase.REQUEUEING, RELEASED)
    world.show(HELD_BACK)
    world.jobs.loses("train")
    await world.reconcile_until_answered(UID)
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.SUSPENDED


async def test_priority_of_a_suspended_gang_may_change(world: World) -> None:
    await world.admit(HELD_BACK)
    world.show(make_appwrapper("aw", TRAIN, spec={"suspend": True, "priority": 7}))
    await world.reconcile(UID)
    assert (world.record(UID).phase, world.record(UID).priority) == (Phase.SUSPENDED, 7)


@pytest.mark.parametrize("status", [{}, {"canrun": True}, {"state": "Completed"}])
async def test_appwrapper_of_another_manager_is_neither_taken_in_nor_touched(
    world: World, status: Json
) -> None:
    theirs = make_appwrapper("aw", TRAIN, spec={"managedBy": "example.com/another"}, status=status)
    view = world.show(theirs)
    await world.reconcile(UID)
    world.intake.add(view.uid)
    await world.intake.take_in_all()
    assert (world.taken_in, world.store.batches) == ([], [])
    assert [each for each in world.server.asked if each.method != "GET"] == []


async def test_priority_that_is_patched_in_a_loop_is_followed_once_a_second_and_the_last_value_wins(
    world: World,
) -> None:
    await world.admit(RELEASED)
    begun = monotonic()
    for priority in range(1, 101):
        world.show(make_appwrapper("aw", TRAIN, spec={"priority": priority}))
        await world.reconcile(UID)
    causes = [cause for batch in world.store.batches for _, cause in batch]
    assert causes.count("reprioritised") == 1 + int(monotonic() - begun)
    # It comes back by itself once it may be followed, and finds the last value.
    while world.record(UID).priority != 100:
        world.queue.done(await asyncio.wait_for(world.queue.get(), 1.1))
        await world.reconcile(UID)
    assert monotonic() - begun <= 2.2
