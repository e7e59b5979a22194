"""What one namespace may have, shown by a dispatcher that runs: of the queue, and of priority."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from dispatcher.api.names import MAX_PRIORITY
from dispatcher.kube.client import MERGE_PATCH
from tests.cluster.manifests import appwrapper, item, pod
from tests.cluster.world import World

Json = dict[str, Any]

FULL = "NamespaceQueueFull"


def waiting(name: str, **spec: Any) -> Json:  # noqa: ANN401
    """What no node has room for, and therefore stays in the queue."""
    return appwrapper(name, item(pod(name, {"cpu": "1000"})), **spec)


async def until_waiting_for(world: World, name: str, reason: str) -> Json:
    """The AppWrapper, once it is told that it waits for that reason."""

    async def look() -> Json | None:
        found = await world.get("AppWrapper", name)
        assert found is not None
        return found if found.get("status", {}).get("waiting", {}).get("reason") == reason else None

    return await world.until(look, f"{name} waits: {reason}")


async def second_after(world: World, created: Json) -> None:
    """Return once a new object is younger: ages are in whole seconds."""

    async def is_over() -> bool:
        return bool(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}" > created["metadata"]["creationTimestamp"])

    await world.until(is_over, "the second is over")


async def test_appwrappers_beyond_the_bound_of_their_namespace_enter_by_age(
    world: World,
) -> None:
    process = await world.start_dispatcher(queued_per_namespace="2")
    for number in range(1, 6):
        created = await world.create(waiting(f"aw-{number}"))
        if number == 3:
            await second_after(world, created)
    for number in (1, 2):
        await until_waiting_for(world, f"aw-{number}", "LargerThanCluster")
    told = {number: await until_waiting_for(world, f"aw-{number}", FULL) for number in (3, 4, 5)}
    assert {each.name for each in await world.queue_now()} == {"aw-1", "aw-2"}
    assert await world.causes("aw-3") == []

    assert await world.stop_dispatcher(process) == 0
    await world.start_dispatcher(queued_per_namespace="2")
    await world.delete("aw-4")
    await world.until_gone("AppWrapper", "aw-4")
    await world.delete("aw-1")

    await until_waiting_for(world, "aw-3", "LargerThanCluster")
    assert {each.name for each in await world.queue_now()} == {"aw-2", "aw-3"}
    last = await world.get("AppWrapper", "aw-5")
    assert last is not None
    assert last["metadata"]["resourceVersion"] == told[5]["metadata"]["resourceVersion"], "told once"


async def test_priority_counts_up_to_the_ceiling_of_the_namespace(world: World) -> None:
    path = f"/api/v1/namespaces/{world.namespace}"

    async def allow(priority: str) -> None:
        patch = {"metadata": {"annotations": {MAX_PRIORITY: priority}}}
        await world.client.patch(path, patch, MERGE_PATCH)

    async def until_counted_as(priority: int) -> None:
        async def look() -> bool:
            found = await world.get("AppWrapper", "urgent")
            return bool(found and found.get("status", {}).get("systempriority") == priority)

        await world.until(look, f"its priority counts as {priority}")

    await allow("10")
    await world.start_dispatcher()
    await world.create(waiting("urgent", priority=900))
    await until_counted_as(10)
    told = await world.event("urgent", "SpecAdjusted")
    said = f"priority 900 counts as 10, the ceiling of namespace {world.namespace}"
    assert (told["type"], told["message"]) == ("Warning", said)

    await allow("20")
    await until_counted_as(20)
    assert (
        f"priority 10 → 20, slope 0 → 0: priority 900 counts as 20, the ceiling of namespace {world.namespace}"
        in (await world.messages("urgent"))
    )
