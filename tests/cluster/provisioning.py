"""Who provides nodes, played by a test: it answers the ProvisioningRequests of a world."""

from __future__ import annotations

from typing import Any

from tests.cluster.manifests import appwrapper, changed, item, raycluster
from tests.cluster.world import World

Json = dict[str, Any]

GPU = "nvidia.com/gpu"
CLASS = "queued-provisioning.gke.io"
REQUEST = "ProvisioningRequest"
TEMPLATE = "PodTemplate"


def gpu_gang(name: str, workers: int = 2) -> Json:
    """An AppWrapper of a RayCluster whose workers request a GPU each."""
    wrapped = raycluster(name, workers=workers)
    one = {"limits": {GPU: "1"}, "requests": {"cpu": "100m"}}
    return appwrapper(
        name, item(changed(wrapped, "spec.workerGroupSpecs.0.template.spec.containers.0.resources", one))
    )


async def until_requested(world: World, name: str) -> Json:
    """The request of that name, once there is one."""

    async def look() -> Json | None:
        return await world.get(REQUEST, name)

    return await world.until(look, f"the request {name}")


async def answer(world: World, name: str, **conditions: str) -> None:
    """Make these conditions of a request true, each with its message."""
    now = "2026-11-23T12:00:00Z"
    told = [
        {"type": type_, "status": "True", "reason": type_, "message": message, "lastTransitionTime": now}
        for type_, message in conditions.items()
    ]
    await world.merge_status(REQUEST, name, {"conditions": told})


async def until_waiting(world: World, name: str, said: str) -> Json:
    """The status of an AppWrapper, once the message of its pending reason has these words."""

    async def look() -> Json | None:
        status: Json = ((await world.get("AppWrapper", name)) or {}).get("status") or {}
        return status if said in status.get("waiting", {}).get("message", "") else None

    return await world.until(look, f"{name} waits: {said}")
