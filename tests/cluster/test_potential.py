"""Pools that grow for pending pods: a test adds their nodes as an autoscaler would, on a real API server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from testbed import nodes
from testbed.nodes import Shape
from tests.cluster.growing import scale, until_gated
from tests.cluster.manifests import appwrapper, autoscaling, changed, item, job
from tests.cluster.outcomes import delete_all
from tests.cluster.provisioning import until_waiting
from tests.cluster.world import World

Json = dict[str, Any]

NEW_NODE = 91
LABELS = {"pool": "large"}
POOL = {"name": "large", "node": {"allocatable": {"cpu": "16", "memory": "61Gi"}, "labels": LABELS}, "max": 2}


def setting(**fields: object) -> str:
    return json.dumps({"pools": [POOL], **fields})


@asynccontextmanager
async def node_of_the_pool(world: World) -> AsyncIterator[str]:
    """A node of the pool that has come; its pods are deleted before it goes."""
    await nodes.add(world.plane.client, Shape(cpu="16", memory="61Gi", labels=LABELS), [NEW_NODE])
    try:
        yield nodes.name_of(NEW_NODE)
    finally:
        await delete_all(world)
        await nodes.remove(world.plane.client, nodes.name_of(NEW_NODE))


async def until_unschedulable(world: World, name: str) -> None:
    """Return once the status of an AppWrapper lists a pod without a node."""

    async def look() -> bool:
        status: Json = ((await world.get("AppWrapper", name)) or {}).get("status") or {}
        return bool(status.get("pendingpodconditions"))

    await world.until(look, f"{name} has pods without nodes")


async def trusts_of(world: World, name: str) -> list[Json] | None:
    """The nodes that an AppWrapper trusts to come, by its status."""
    status: Json = ((await world.get("AppWrapper", name)) or {}).get("status") or {}
    return status.get("trusts")


async def test_gang_on_trust_runs_once_its_nodes_have_come(world: World) -> None:
    await world.start_dispatcher(potential=setting())
    await world.create(appwrapper("large", item(job("large", cpu="12"))))
    await world.create(appwrapper("larger", item(job("larger", 3, cpu="12"))))
    await until_unschedulable(world, "large")
    assert (await world.until_state("larger", "Backoff"))["waiting"]["reason"] == "LargerThanCluster"
    assert "trusts 1 node of pool large in cluster hub to come" in await world.messages("large")
    assert await trusts_of(world, "large") == [{"pool": "large", "nodes": 1}]
    async with node_of_the_pool(world) as node:
        await world.until_state("large", "Running")
        assert await trusts_of(world, "large") is None
        pods = [each for each in await world.every("Pod") if each["metadata"]["name"].startswith("large-")]
        assert [each["spec"]["nodeName"] for each in pods] == [node]


async def test_gang_without_its_potential_nodes_is_requeued_and_dispatched_once_they_join(
    world: World,
) -> None:
    await world.start_dispatcher(potential=setting(bindWithinSeconds=10))
    await world.create(appwrapper("large", item(job("large", cpu="12"))))
    status = await until_waiting(
        world, "large", "it needs 1 node of pool large to come; pool large is not trusted"
    )
    assert status["waiting"]["reason"] == "NeedsPotentialNodes"
    assert "PotentialNodesMissing" in await world.reasons("large")
    async with node_of_the_pool(world):
        await world.until_state("large", "Running")


async def test_growth_whose_nodes_do_not_come_is_taken_back_and_granted_once_they_are_there(
    world: World,
) -> None:
    await world.start_dispatcher(potential=setting(bindWithinSeconds=10))
    wrapped = changed(autoscaling("ray"), "spec.workerGroupSpecs.0.minReplicas", 0)
    wrapped = changed(wrapped, "spec.workerGroupSpecs.0.replicas", 0)
    resources = {"requests": {"cpu": "12"}, "limits": {"cpu": "12"}}
    wrapped = changed(wrapped, "spec.workerGroupSpecs.0.template.spec.containers.0.resources", resources)
    await world.create_until("Running", appwrapper("ray", item(wrapped)))

    await scale(world, "ray", 1)
    message = await until_growth_needs_nodes(world, "ray")
    assert "it needs 1 node of pool large to come; pool large is not trusted until" in message
    told = await world.messages("ray")
    assert "1 pod may start: cpu 12, memory 256Mi; trusts 1 node of pool large in cluster hub to come" in told
    assert (
        "granted pods without a node 10 s after the grant: 1; it trusted 1 node of pool large to come" in told
    )
    await until_gated(world, "ray", running=0, gated=1)  # the one that KubeRay made in its place
    assert await trusts_of(world, "ray") is None
    async with node_of_the_pool(world):
        await until_gated(world, "ray", running=1, gated=0)


async def until_growth_needs_nodes(world: World, name: str) -> str:
    """The message about the growth of an AppWrapper, once it waits for potential nodes."""

    async def look() -> str:
        status: Json = ((await world.get("AppWrapper", name)) or {}).get("status") or {}
        growth: Json = status.get("growth") or {}
        return str(growth["message"]) if growth.get("reason") == "NeedsPotentialNodes" else ""

    return await world.until(look, f"the growth of {name} waits for potential nodes")
