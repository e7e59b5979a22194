"""Gangs that grow by grants: the base gang starts by itself, and a growth that no quota has room for does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher.api.names import GROWTH_GATE, QUEUES_PATH
from dispatcher.kube.client import MERGE_PATCH
from testbed.proxy import Exchange
from tests.cluster.dispatch_queues import Declare
from tests.cluster.growing import is_gated, scale, until_gated
from tests.cluster.manifests import (
    appwrapper,
    autoscaling,
    changed,
    deployment,
    item,
    job,
    raycluster,
    rayservice,
)
from tests.cluster.mortal import Mortal, When
from tests.cluster.outcomes import rows
from tests.cluster.wires import wires_of
from tests.cluster.world import World
from tests.commands import Run, runner

GPU = "nvidia.com/gpu"


def admits(exchange: Exchange) -> bool:
    """True for the removal of the dispatcher's gate from a pod."""
    return exchange.is_write and "/pods/" in exchange.path and GROWTH_GATE in str(exchange.document)


async def test_base_gang_starts_and_a_growth_beyond_the_quota_neither_starts_nor_is_charged(
    world: World, declare: Declare
) -> None:
    await declare("default", resources={GPU: {"nominalQuota": 1}})
    await world.start_dispatcher()
    await world.create_until("Running", appwrapper("ray", item(autoscaling("ray", gpu="1"))))

    await scale(world, "ray", 3)

    await until_gated(world, "ray", running=1, gated=2)
    status = ((await world.get("AppWrapper", "ray")) or {})["status"]
    assert "held" not in status
    assert not {"grew", "unhealthy", "granted"} & set(await world.causes("ray"))

    await scale(world, "ray", 1)
    await until_gated(world, "ray", running=1, gated=0)


async def test_pods_start_by_themselves_where_growth_is_charged_once_it_has_happened(world: World) -> None:
    await world.start_dispatcher(growth="charge")
    await world.create_until("Running", appwrapper("ray", item(autoscaling("ray"))))

    await scale(world, "ray", 2)

    await until_gated(world, "ray", running=2, gated=0)
    assert "grew" in await world.until_history("ray", "grew")


@pytest.mark.parametrize("when", When)
async def test_granted_pod_is_admitted_by_the_successor_of_a_killed_dispatcher(
    world: World, when: When
) -> None:
    async with wires_of(world) as wires:
        mortal = Mortal(wires)
        await mortal.start()
        await world.create_until("Running", appwrapper("ray", item(autoscaling("ray"))))
        strike = mortal.at(wires.api.rules, admits, when)

        await scale(world, "ray", 2)
        await strike.done.wait()

        await until_gated(world, "ray", running=2, gated=0)
        mortal.spare()
        assert (await world.causes("ray")).count("granted") == 1
        assert "shrank" not in await world.causes("ray")


# --- Gangs that grow while they run: Ray's autoscaler changes `replicas`, or a user scales a Deployment ----


Json = dict[str, Any]
HOURS = (
    "SELECT held_s / 3600 AS demand_h, gpu_h FROM history.attempt_history WHERE name = 'ray' "
    "AND ended_at IS NOT NULL"
)


def with_autoscaler(name: str) -> Json:
    """A RayCluster of one worker with a GPU, which its autoscaler may give two more."""
    one = {"limits": {GPU: "1"}, "requests": {GPU: "1", "cpu": "100m"}}
    wrapped = changed(raycluster(name), "spec.workerGroupSpecs.0.maxReplicas", 3)
    return changed(wrapped, "spec.workerGroupSpecs.0.template.spec.containers.0.resources", one)


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher …` on the hub of this world."""
    monkeypatch.setenv("KUBECONFIG", str(world.plane.kubeconfig))
    return runner(monkeypatch, capsys)


async def until_held(world: World, name: str, **held: str) -> Json:
    """The status of an AppWrapper once `held` has these amounts; without any, once it is absent."""

    async def look() -> Json | None:
        status: Json = ((await world.get("AppWrapper", name)) or {}).get("status") or {}
        found = status.get("held") or {}
        return status if (held.items() <= found.items() if held else not found) else None

    return await world.until(look, f"{name} holds {held or 'its demand'}")


async def until_used(world: World, amount: str) -> Json:
    """The status of the queue once it has that use of GPUs."""

    async def look() -> Json | None:
        status: Json = (await world.client.get(f"{QUEUES_PATH}/default")).get("status") or {}
        return status if status.get("used", {}).get(GPU) == amount else None

    return await world.until(look, f"the queue uses {amount} GPUs")


async def test_gang_grown_by_its_autoscaler_is_charged_shown_and_counted_with_its_held_resources(
    world: World, declare: Declare, run: Run
) -> None:
    await declare("default", resources={GPU: {"nominalQuota": 2}})
    await world.start_dispatcher(queue_status_seconds="0.1")
    await world.create(appwrapper("ray", item(with_autoscaler("ray"))))
    await world.create(appwrapper("web", item(deployment("web", 1))))
    for name in ("ray", "web"):
        assert "held" not in await world.until_state(name, "Running")
    assert (await until_used(world, "1"))["running"] == 2

    groups = (await world.get("RayCluster", "ray") or {})["spec"]["workerGroupSpecs"]
    await world.merge("RayCluster", "ray", {"spec": {"workerGroupSpecs": [{**groups[0], "replicas": 3}]}})
    await world.merge("Deployment", "web", {"spec": {"replicas": 4}})
    status = await until_held(world, "ray", **{GPU: "3", "cpu": "700m"})
    assert (status["gpus"], status["queuejobstate"]) == (3, "Running")
    await until_held(world, "web", cpu="400m")
    await until_used(world, "3")

    async def is_told() -> bool:
        found = await world.client.get(f"/api/v1/namespaces/{world.namespace}/events")
        status = ((await world.get("AppWrapper", "ray")) or {})["status"]
        return "beyondQuota" in status and "GrewBeyondQuota" in {each["reason"] for each in found["items"]}

    await world.until(is_told, "ray is told that it grew beyond the quota of its queue")
    listed = json.loads((await run("running", "-n", world.namespace, "-o", "json")).out)
    shown = {
        each["name"]: (each["gpus"]["held"], each["held"]["cpu"], each["demand"]["cpu"]) for each in listed
    }
    assert shown == {"ray": (3, 700, 300), "web": (0, 400, 100)}

    await world.merge("RayCluster", "ray", {"spec": {"workerGroupSpecs": [{**groups[0], "replicas": 1}]}})
    await world.merge("Deployment", "web", {"spec": {"replicas": 1}})
    for name in ("ray", "web"):
        await until_held(world, name)
        assert "beyondQuota" not in ((await world.get("AppWrapper", name)) or {})["status"]
        changes = [cause for cause in await world.causes(name) if cause in {"grew", "shrank"}]
        assert (changes[0], changes[-1]) == ("grew", "shrank")
    await until_used(world, "1")

    await world.delete("ray")
    await world.until_history("ray", "released")
    (hours,) = await rows(world, HOURS)
    assert hours["gpu_h"] > hours["demand_h"]


async def test_job_whose_parallelism_is_raised_is_charged_told_and_no_drift(
    world: World, declare: Declare, run: Run
) -> None:
    await declare("default", resources={GPU: {"nominalQuota": 2}})
    await world.start_dispatcher(queue_status_seconds="0.1")
    one = {"limits": {GPU: "1"}, "requests": {GPU: "1", "cpu": "100m"}}
    wrapped = changed(job("train", 1), "spec.template.spec.containers.0.resources", one)
    wrapped["spec"]["completions"] = 4
    await world.create_until("Running", appwrapper("train", item(wrapped)))
    await until_used(world, "1")

    await world.merge("Job", "train", {"spec": {"parallelism": 3}})
    status = await until_held(world, "train", **{GPU: "3", "cpu": "300m"})
    assert (status["gpus"], status["queuejobstate"]) == (3, "Running")
    await until_used(world, "3")
    await world.event("train", "GrewBeyondQuota")
    shown = (await run("show", "train", "-n", world.namespace)).out
    assert "Holds:      0.3 cpu, 0 GiB, 3 gpu\n" in shown

    await world.merge("Job", "train", {"spec": {"parallelism": 1}})
    await until_held(world, "train")
    await until_used(world, "1")
    told = [each for each in await world.causes("train") if each not in {"blocked", "blocked-at-head"}]
    assert list(dict.fromkeys(told)) == [
        "submitted",
        "dispatched",
        "created",
        "pods-running",
        "grew",
        "shrank",
    ]


# -----------------------------------------------------------------------------------------------------------
# A RayService that is upgraded has two RayClusters for a while: the second is charged, told and granted as
# growth.


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
