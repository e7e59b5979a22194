"""ObjectOwnership turn it is after a gang was taken back or has failed, and from when on its room is another's."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from tests.cluster.figures import cycles_of, free_in
from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.mcad.suite import OFTEN, conditions
from tests.cluster.outcomes import rows
from tests.cluster.world import World

Json = dict[str, Any]

DISPATCHES = "SELECT name FROM history.timeline WHERE cause = 'dispatched' ORDER BY at, id"


def whole_cluster(name: str, scheduling: Json, **life: str) -> Json:
    """An AppWrapper that needs all 24 cpus of the three nodes."""
    return appwrapper(name, item(job(name, parallelism=3, cpu="8", **life)), schedulingSpec=scheduling)


async def kill_pods(world: World) -> None:
    """As `kubectl delete --force`: gone at once, however long they would have taken."""
    for found in await world.every("Pod"):
        path = f"{world.path('Pod', found['metadata']['name'])}?gracePeriodSeconds=0"
        await asyncio.to_thread(world.plane.client.request, "DELETE", path)


async def dispatches(world: World) -> list[str]:
    """Who was dispatched, one after the other, each as often as it was."""
    return [row["name"] for row in await rows(world, DISPATCHES)]


async def test_requeued_gang_is_queued_before_a_younger_pending_gang(world: World) -> None:
    """It makes way once, for the next in line; behind that one its age counts again."""
    await world.start_dispatcher()
    requeuing = {"timeInSeconds": 2, "growthType": "none"}
    never = whole_cluster("oldest", {"minAvailable": 3, "requeuing": requeuing}, never_start="true")
    submitted = (await world.create(never))["metadata"]["creationTimestamp"]
    await world.until_history("oldest", "created")
    for name in ("next", "youngest"):
        await world.create(whole_cluster(name, {}))
    await world.until_state("next", "Running")

    async def both_wait() -> bool:
        return [(each.position, each.name) for each in await world.queue_now()] == [
            (1, "oldest"),
            (2, "youngest"),
        ]

    await world.until(both_wait, "the requeued one stands before the youngest")
    created_at = {each.name: each.created_at for each in await world.queue_now()}
    assert created_at["oldest"] == datetime.fromisoformat(submitted)
    assert await world.get("Job", "oldest") is None
    so_far = await dispatches(world)
    await world.delete("next")

    async def one_more() -> list[str] | None:
        found = await dispatches(world)
        return found if len(found) > len(so_far) else None

    assert (await world.until(one_more, "another is dispatched"))[len(so_far)] == "oldest"


async def test_room_of_a_gang_past_its_limit_is_not_given_before_its_pods_are_gone(world: World) -> None:
    process = await world.start_dispatcher(**OFTEN)
    scheduling = {"dispatchDuration": {"limit": 2}}
    await world.create_until("Running", whole_cluster("limited", scheduling, terminate_after="30s"))
    await world.create_until("Backoff", whole_cluster("next", {}))

    await world.until_gone("Job", "limited")

    looked = await cycles_of(process)

    async def looked_again() -> bool:
        return await cycles_of(process) >= looked + 3

    await world.until(looked_again, "three more cycles")
    pods = await world.every("Pod")
    assert [(each["status"]["phase"], "deletionTimestamp" in each["metadata"]) for each in pods] == [
        ("Running", True)
    ] * 3
    assert (await free_in(process)).get("cpu", 0) == 0
    assert await world.causes("limited") == [
        *("submitted", "dispatched", "created", "pods-running"),
        "run-failed",
    ]
    assert (await world.causes("next"))[-1] == "blocked"
    await kill_pods(world)
    status = await world.until_shown("limited", "Failed")
    said = "Dispatch deadline exceeded. allowed to run for 2 seconds"
    assert conditions(status)["Failed"] == ("True", "DispatchDeadlineExceeded", said)
    await world.until_state("next", "Running")
    owners = {each["metadata"]["labels"]["job-name"] for each in await world.every("Pod")}
    assert owners == {"next"}
