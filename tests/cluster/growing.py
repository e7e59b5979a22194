"""RayClusters that grow as Ray's autoscaler has them grow, and the pods that wait for a grant."""

from __future__ import annotations

from typing import Any

from dispatcher.api.names import GROWTH_GATE
from tests.cluster.world import World

Json = dict[str, Any]


async def scale(world: World, name: str, count: int) -> None:
    """Asks for that many workers of a RayCluster, as Ray's autoscaler does: it names those that are to go.

    KubeRay chooses none itself where there is an autoscaler.
    """
    found = await world.get("RayCluster", name)
    assert found is not None
    (group,) = found["spec"]["workerGroupSpecs"]
    present = sorted(
        await workers(world, name), key=lambda pod: (is_gated(pod), pod["metadata"]["creationTimestamp"])
    )
    most = count * group.get("numOfHosts", 1)
    surplus = [each["metadata"]["name"] for each in present[most:]]
    scaled = {**group, "replicas": count, "scaleStrategy": {"workersToDelete": surplus}}
    await world.merge("RayCluster", name, {"spec": {"workerGroupSpecs": [scaled]}})


def is_gated(pod: Json) -> bool:
    """True while the dispatcher's gate stops a pod."""
    return {"name": GROWTH_GATE} in pod["spec"].get("schedulingGates", [])


async def workers(world: World, name: str) -> list[Json]:
    """The worker pods of a RayCluster."""
    pods = await world.every("Pod")
    of_it = [each for each in pods if each["metadata"]["labels"].get("ray.io/cluster") == name]
    return [each for each in of_it if each["metadata"]["labels"]["ray.io/node-type"] == "worker"]


async def until_gated(world: World, name: str, running: int, gated: int) -> None:
    """Returns once so many workers of a RayCluster run and so many others wait for a grant."""

    async def look() -> bool:
        found = await workers(world, name)
        waiting = sum(map(is_gated, found))
        started = sum(each["status"].get("phase") == "Running" for each in found)
        return (started, waiting, len(found)) == (running, gated, running + gated)

    await world.until(look, f"of the workers of {name}, {running} run and {gated} wait")
