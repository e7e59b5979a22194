"""Surplus pods that a gang gives up are deleted, and its growth is noted once they are gone."""

from __future__ import annotations

from dataclasses import replace

from dispatcher.core.lifecycle import run_steps
from dispatcher.core.model.growth import PodRef, Shrinking
from dispatcher.core.model.pods import Gate, Pod, PodPhase
from dispatcher.core.model.preemption import Reason
from dispatcher.core.model.record import Attempt
from dispatcher.core.model.resources import NOTHING, Resources
from tests.builders import make_appwrapper, make_template
from tests.fakes import answer, refusal
from tests.unit.controller.world import World

POD = "/api/v1/namespaces/default/pods/worker-1"
UID = "uid-of-aw"
CPU = Resources({"cpu": 1000})
FORBIDDEN = refusal(403, "Forbidden")


def worker(number: int) -> Pod:
    at = Gate("default", f"worker-{number}", f"2026-01-01T00:00:0{number}Z")
    return Pod(
        f"uid-{number}",
        CPU,
        "n1",
        PodPhase.RUNNING,
        owner=UID,
        can_be_gated=True,
        template="0.w",
        base_pods=1,
        admitted_as=at,
    )


async def giving_up(world: World) -> None:
    """A running gang of one pod that has grown by one, and is to give that one up."""
    await world.running(make_appwrapper("aw", make_template()))
    for _, synced in world.cluster.first_lists:
        synced.set()
    for number in (0, 1):
        world.ledger.set_pod(worker(number))
    await world.reconcile(UID)
    assert world.record(UID).grown == CPU
    (surplus,) = world.ledger.surplus(UID)
    given = Shrinking((PodRef(surplus.namespace, surplus.name, surplus.uid),), NOTHING, "uid-of-another")
    why = "1 surplus pod preempted for default/another"
    await world.committer.commit(
        run_steps.give_up(world.record(UID), given, Reason.QUOTA_RECLAIMED, why, world.now())
    )


def attempt(world: World) -> Attempt:
    found = world.record(UID).attempt
    assert found is not None
    return found


async def test_pod_is_deleted_once_and_its_growth_is_over_once_it_is_gone(world: World) -> None:
    await giving_up(world)
    world.server.on("DELETE", POD, answer({"metadata": {}}))

    await world.reconcile(UID)
    world.ledger.set_pod(replace(worker(1), is_ending=True))
    await world.reconcile(UID, times=2)
    assert len(world.server.requests("DELETE", POD)) == 1
    assert (attempt(world).shrinking is None, world.record(UID).grown) == (False, CPU)

    world.ledger.remove_pod("uid-1")
    await world.reconcile(UID)
    assert (attempt(world).shrinking is None, world.record(UID).grown) == (True, NOTHING)
    assert len(world.server.requests("DELETE", POD)) == 1


async def test_leader_that_finds_the_pods_gone_only_notes_it(world: World) -> None:
    await giving_up(world)
    world.ledger.set_pod(replace(worker(1), phase=PodPhase.SUCCEEDED))
    await world.reconcile(UID)
    assert not world.server.requests("DELETE", POD)
    assert (attempt(world).shrinking, world.record(UID).grown) == (None, NOTHING)


async def test_refusal_is_told_once_and_tried_again(world: World) -> None:
    await giving_up(world)
    world.server.on("DELETE", POD, FORBIDDEN, FORBIDDEN, FORBIDDEN, FORBIDDEN, answer({"metadata": {}}))

    await world.reconcile(UID)
    await world.forget_wakes()
    assert await world.is_woken_within(1)
    await world.reconcile(UID, times=2)

    (event,) = world.offered
    assert (event.reason, event.uid, event.warning) == ("PodsNotDeleted", UID, True)
    assert len(world.server.requests("DELETE", POD)) == 5


async def test_growth_that_no_pod_uses_is_noted_at_once_while_a_gang_waits_for_it(world: World) -> None:
    await world.running(make_appwrapper("aw", make_template()))
    for _, synced in world.cluster.first_lists:
        synced.set()
    for number in (0, 1):
        world.ledger.set_pod(worker(number))
    await world.reconcile(UID)
    world.ledger.remove_pod("uid-1")
    await world.reconcile(UID)
    assert world.record(UID).grown == CPU
    world.cache.awaited_growth = frozenset({UID})
    await world.reconcile(UID)
    assert world.record(UID).grown == NOTHING
