"""What MCAD's users asked for and its own suite does not show."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from testbed import nodes
from testbed.nodes import Shape
from tests.cluster.figures import writes_of
from tests.cluster.manifests import appwrapper, changed, deployment, item, job, pod_template, service
from tests.cluster.mcad.suite import TRUSTING, Suite, declaring, two_deployed
from tests.cluster.outcomes import delete_all
from tests.cluster.world import World

Json = dict[str, Any]

TAINTED_NODE = 90
NO_ENTRY = {"key": "example.com/reserved", "effect": "NoSchedule"}


def raycluster(name: str, workers: int, cpu: str) -> Json:
    spec = {
        "headGroupSpec": {"rayStartParams": {}, "template": pod_template("1")},
        "workerGroupSpecs": [
            {"groupName": "w", "replicas": workers, "rayStartParams": {}, "template": pod_template(cpu)}
        ],
    }
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name}, "spec": spec}


@asynccontextmanager
async def tainted_node(world: World) -> AsyncIterator[None]:
    """One more node, of 4 cpu, for those who tolerate its taint."""
    await nodes.add(world.plane.client, Shape(cpu="4", memory="8Gi", taints=[NO_ENTRY]), [TAINTED_NODE])
    try:
        yield
    finally:
        await delete_all(world)
        await nodes.remove(world.plane.client, nodes.name_of(TAINTED_NODE))


async def test_demand_of_every_pod_is_derived_where_none_is_declared(suite: Suite) -> None:
    derived = {
        "replicas": (deployment("replicas", 2, "550m"), "cpu: needs 1100m, 850m free"),
        "parallelism": (job("parallelism", 3, "500m"), "cpu: needs 1500m, 850m free"),
        "head-and-workers": (raycluster("head-and-workers", 2, "2"), "cpu: needs 5, 1950m in all of it"),
    }
    await suite.fill()

    await suite.apply(*(appwrapper(name, item(template)) for name, (template, _) in derived.items()))

    for name, (_, message) in derived.items():
        status = await suite.stays_without_pods(name)
        assert status["waiting"]["message"] == f"cluster hub: {message}"


async def test_cordoned_node_is_not_counted_until_it_is_back(suite: Suite) -> None:
    async with nodes.cordoned(suite.world.plane.client, "node-1"):
        await suite.apply(two_deployed("two-nodes", "550m"))
        status = await suite.stays_without_pods("two-nodes")

    assert status["waiting"]["message"] == "cluster hub: cpu: needs 1100m, 975m in all of it"
    await suite.until_ready("two-nodes", 2)


async def test_tainted_node_takes_gangs_that_tolerate_its_taint(suite: Suite) -> None:
    tolerant = job("tolerant", cpu="2")
    tolerant["spec"]["template"]["spec"]["tolerations"] = [{"key": NO_ENTRY["key"], "operator": "Exists"}]
    async with tainted_node(suite.world):
        await suite.apply(appwrapper("intolerant", item(job("intolerant", cpu="2"))))
        await suite.stays_without_pods("intolerant")

        await suite.apply(appwrapper("tolerant", item(tolerant)))

        await suite.until_ready("tolerant", 1)
        assert await suite.pods("intolerant") == []


async def test_full_cluster_stays_responsive_and_wakes_pending_gangs(suite: Suite) -> None:
    await suite.apply(two_deployed("all-of-it", "975m"))
    await suite.until_ready("all-of-it", 2)
    await suite.apply(two_deployed("small", "5m"))
    await suite.stays_without_pods("small")

    await suite.apply(appwrapper("needs-nothing", item(service("needs-nothing"))))
    await suite.until_shown("needs-nothing", "Running")
    await suite.world.delete("all-of-it")

    await suite.until_ready("small", 2)


async def test_same_names_in_two_namespaces_never_meet(suite: Suite, neighbour: World) -> None:
    twin = two_deployed("twin", "200m")
    await suite.apply(twin)
    await neighbour.create(twin)
    await suite.until_ready("twin", 2)

    async def counted() -> Json | None:
        status: Json = ((await neighbour.get("AppWrapper", "twin")) or {}).get("status") or {}
        return status if (status.get("queuejobstate"), status.get("running")) == ("Running", 2) else None

    there = await neighbour.until(counted, "the neighbour's twin runs, both of its pods")

    await suite.world.delete("twin")

    await suite.world.until_gone("Deployment", "twin")
    await suite.cycles_pass(3)
    theirs = await neighbour.get("AppWrapper", "twin")
    assert theirs is not None
    assert theirs["status"] == there
    assert [each["status"]["phase"] for each in await neighbour.every("Pod")] == ["Running"] * 2


async def test_failed_appwrapper_gives_its_capacity_back(suite: Suite) -> None:
    broken = job("breaks", parallelism=2, cpu="900m", fail_after="500ms")
    broken["spec"]["backoffLimit"] = 0
    await suite.apply(appwrapper("breaks", item(broken)), two_deployed("next", "900m"))
    await suite.until_shown("breaks", "Failed")

    await suite.until_ready("next", 2)


@TRUSTING
async def test_nothing_is_written_while_nothing_changes(suite: Suite) -> None:
    broken = changed(job("fails", fail_after="500ms"), "spec.backoffLimit", 0)
    never_fits = {"requeuing": {"timeInSeconds": 1, "growthType": "none", "pauseTimeInSeconds": 3600}}
    gangs = {
        "runs": (two_deployed("runs", "10m"), "Running"),
        "holds": (
            appwrapper("holds", item(deployment("holds"), completionstatus="Progressing")),
            "RunningHoldCompletion",
        ),
        "completes": (appwrapper("completes", item(job("completes", run_for="1s"))), "Completed"),
        "fails": (appwrapper("fails", item(broken)), "Failed"),
        "waits": (two_deployed("waits", "30"), "Backoff"),
        "idle": (two_deployed("idle", "10m", suspend=True), "Suspended"),
        "pauses": (declaring("pauses", 1, "10m", "30", **never_fits), "Backoff"),
    }
    await suite.apply(*(manifest for manifest, _ in gangs.values()))
    for name, (_, state) in gangs.items():
        await suite.world.until_state(name, state)

    async def taken_back() -> bool:
        return "removed" in await suite.world.causes("pauses")

    await suite.world.until(taken_back, "the one that cannot be scheduled is taken back")

    async def is_quiet() -> bool:
        writes = await writes_of(suite.process)
        await suite.cycles_pass(50)
        return await writes_of(suite.process) == writes

    await suite.world.until(is_quiet, "fifty cycles without a write")
