"""A RayService that is upgraded has two RayClusters for a while: the second is charged, told and granted as growth."""

from __future__ import annotations

from dispatcher.api.names import QUEUES_PATH
from dispatcher.kube.client import MERGE_PATCH
from tests.cluster.dispatch_queues import Declare
from tests.cluster.growing import is_gated
from tests.cluster.manifests import appwrapper, autoscaling, item, rayservice
from tests.cluster.test_growth import GPU, Json, run, until_held, until_used
from tests.cluster.world import World
from tests.commands import Run

__all__ = ["run"]


def service(name: str) -> Json:
    """A RayService of one head and one worker with a GPU; Ray's autoscaler may have more workers."""
    wrapped = rayservice(name)
    return {**wrapped, "spec": {**wrapped["spec"], "rayClusterConfig": autoscaling(name, gpu="1")["spec"]}}


async def upgrade(world: World, name: str) -> None:
    """Have the RayService run another release of Ray, without downtime."""
    await world.merge("RayService", name, {"spec": {"rayClusterConfig": {"rayVersion": "2.53.0"}}})


async def until_clusters(world: World, *, running: int, gated: int, clusters: int) -> None:
    """Return once so many pods of so many RayClusters run, and so many others wait for a grant."""

    async def look() -> bool:
        pods = await world.every("Pod")
        started = sum(each["status"].get("phase") == "Running" for each in pods)
        found = len(await world.names("RayCluster")), started, sum(map(is_gated, pods)), len(pods)
        return found == (clusters, running, gated, running + gated)

    await world.until(look, f"{running} pods of {clusters} RayClusters run, and {gated} wait")


async def until_growth_waits(world: World, name: str) -> Json:
    """Wait until the status of an AppWrapper has its growth, and return it. The history is written before."""

    async def look() -> Json | None:
        status: Json = ((await world.get("AppWrapper", name)) or {}).get("status") or {}
        return status.get("growth")

    return await world.until(look, f"the status of {name} says that its growth waits")


async def test_second_raycluster_waits_for_a_grant_and_its_charge_ends_with_the_first(
    world: World, declare: Declare, run: Run
) -> None:
    await declare("default", resources={GPU: {"nominalQuota": 1}})
    await world.start_dispatcher(queue_status_seconds="0.1")
    await world.create_until("Running", appwrapper("vllm", item(service("vllm"))))
    (first,) = await world.names("RayCluster")

    await upgrade(world, "vllm")
    await until_clusters(world, running=3, gated=1, clusters=2)
    status = await until_held(world, "vllm", cpu="600m")  # the second head needs no grant
    assert status["held"][GPU] == "1", status
    await world.until_history("vllm", "growth-waits")
    growth = await until_growth_waits(world, "vllm")
    assert (growth["pods"], growth["reason"], growth["requested"][GPU]) == (1, "InsufficientQuota", "1")
    shown = (await run("show", "vllm", "-n", world.namespace)).out
    assert f"quota of default: {GPU}: needs 1, 0 available" in shown
    await until_used(world, "1")

    await world.client.patch(
        f"{QUEUES_PATH}/default", {"spec": {"resources": {GPU: {"nominalQuota": 2}}}}, MERGE_PATCH
    )
    await until_held(world, "vllm", **{GPU: "2"})
    await until_used(world, "2")
    await until_clusters(world, running=2, gated=0, clusters=1)
    assert first not in await world.names("RayCluster")
    await until_held(world, "vllm")
    await until_used(world, "1")
    causes = [each for each in await world.causes("vllm") if each in {"grew", "granted", "shrank", "evicted"}]
    assert (causes[:2], set(causes[2:])) == (["grew", "granted"], {"shrank"})
