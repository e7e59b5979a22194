"""A victim from the decision of a cycle until it is queued again: its objects go, its finished items stay."""

from __future__ import annotations

from dispatcher.controller.reconcile.observer import Observer
from dispatcher.core.lifecycle import queue_changes, run_changes
from dispatcher.core.model.preemption import Reason
from dispatcher.core.model.record import Phase, Record
from tests.builders import attempt_of, make_appwrapper
from tests.unit.controller.wire import job, made, true
from tests.unit.controller.world import World

UID = "uid-of-aw"
WHY = "preempted for default/other (queue b, priority 3): its queue uses more than its fair share"
TRAIN, SERVE = job("train"), job("serve")


async def running(world: World) -> Record:
    """A gang of a Job that has succeeded, which the record does not say yet, and of a Job that runs."""
    world.jobs.has(made(TRAIN, 0, true("Complete")))
    world.jobs.has(made(SERVE, 1))
    record = await world.running(make_appwrapper("aw", TRAIN, SERVE))
    await world.sees(record)
    return record


def observer_of(world: World) -> Observer:
    return world.reconciling.observer


async def preempted(world: World) -> Record:
    record = await running(world)
    finished = await observer_of(world).finished_items(record)
    assert finished == {0}
    change = run_changes.preempt(record, Reason.FAIR_SHARE, WHY, world.now(), "uid-of-other", finished)
    (committed,) = await world.committer.commit_together([change])
    return committed


async def test_finished_items_are_the_finished_objects_in_the_watches(world: World) -> None:
    assert await observer_of(world).finished_items(await running(world)) == {0}


async def test_nothing_is_finished_in_a_cluster_that_is_not_there(world: World) -> None:
    record = await running(world)
    world.clusters.pop("hub")
    assert await observer_of(world).finished_items(record) == frozenset()


async def test_victim_is_removed_except_its_finished_objects_and_is_queued_again(world: World) -> None:
    await preempted(world)
    await world.reconcile(UID)
    assert world.jobs.deletions() == ["serve"]
    world.jobs.loses("serve")
    await world.reconcile_until_answered(UID)

    record = world.record(UID)
    assert (record.phase, attempt_of(record).outcome) == (Phase.QUEUED, "preempted")
    assert (record.requeuings, record.retries) == (0, 0)
    assert world.ledger.free()["cpu"] == 8000
    assert world.dispatch_wakes > 0
    again = queue_changes.dispatch(record, "hub", world.now()).after.attempt
    assert again is not None
    assert [(ref.name, ref.done) for ref in again.objects] == [("train", True)]
    assert world.jobs.deletions() == ["serve"]


async def test_victim_that_its_user_suspends_meanwhile_is_suspended_once_it_is_removed(world: World) -> None:
    await preempted(world)
    world.show(make_appwrapper("aw", TRAIN, SERVE, spec={"suspend": True}))
    await world.reconcile(UID)
    world.jobs.loses("serve")
    await world.reconcile_until_answered(UID)
    await world.reconcile(UID)
    phases = [change.after.phase for change in world.store.changes]
    assert phases[-3:] == [Phase.REQUEUEING, Phase.QUEUED, Phase.SUSPENDED]
    assert world.ledger.free()["cpu"] == 8000
