"""Pods with the dispatcher's gate start within what their gang holds; a cluster that forbids it is reported."""

from __future__ import annotations

from dispatcher.core.model.pods import Gate, Pod
from dispatcher.core.model.resources import Resources
from tests.builders import make_appwrapper, make_template
from tests.fakes import answer, refusal
from tests.unit.controller.world import World

POD = "/api/v1/namespaces/default/pods/worker"
UID = "uid-of-aw"
FORBIDDEN = refusal(403, "Forbidden")


async def with_gated_pod(world: World, cpu: int) -> None:
    """A running gang of one cpu, which has no pod but a gated one."""
    await world.running(make_appwrapper("aw", make_template()))
    for _, synced in world.cluster.first_lists:
        synced.set()
    requests, gate = Resources({"cpu": cpu}), Gate("default", "worker", "2026-01-01T00:00:00Z")
    world.ledger.set_pod(Pod("uid-of-worker", requests, owner=UID, gate=gate, can_be_gated=True))


async def test_pod_within_the_demand_is_admitted(world: World) -> None:
    await with_gated_pod(world, cpu=1000)
    world.server.on("PATCH", POD, answer({"metadata": {}}))

    await world.reconcile(UID)

    assert len(world.server.requests("PATCH", POD)) == 1


async def test_pod_that_comes_before_the_watch_shows_an_admission_does_not_take_its_place(
    world: World,
) -> None:
    """KubeRay makes several pods within the second of their creationTimestamp, with names in no order."""
    await with_gated_pod(world, cpu=1000)
    world.server.on("PATCH", POD, answer({"metadata": {}}))
    await world.reconcile(UID)

    gate = Gate("default", "another", "2026-01-01T00:00:00Z")
    world.ledger.set_pod(
        Pod("uid-of-another", Resources({"cpu": 1000}), owner=UID, gate=gate, can_be_gated=True)
    )
    await world.reconcile(UID, times=2)

    assert len(world.server.requests("PATCH", POD)) == 1
    assert not world.server.requests("PATCH", POD.replace("worker", "another"))


async def test_nothing_is_written_for_a_growth_request(world: World) -> None:
    await with_gated_pod(world, cpu=1001)
    await world.reconcile(UID)
    version = world.record(UID).version

    await world.reconcile(UID, times=2)

    assert not world.server.requests("PATCH", POD)
    assert world.record(UID).version == version


async def test_refused_pod_admission_makes_one_event_and_is_tried_again(world: World) -> None:
    await with_gated_pod(world, cpu=1000)
    world.server.on("PATCH", POD, FORBIDDEN, FORBIDDEN, FORBIDDEN, FORBIDDEN, answer({"metadata": {}}))

    await world.reconcile(UID)
    await world.forget_wakes()
    assert await world.is_woken_within(1)
    await world.reconcile(UID, times=2)

    (event,) = world.offered
    assert (event.reason, event.uid, event.warning) == ("PodsNotAdmitted", UID, True)
    assert len(world.server.requests("PATCH", POD)) == 5
