"""Gangs that grow while they run: Ray's autoscaler changes `replicas`, or a user scales a Deployment."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher.api.names import QUEUES_PATH
from tests.cluster.dispatch_queues import Declare
from tests.cluster.manifests import appwrapper, changed, deployment, item, job, raycluster
from tests.cluster.outcomes import rows
from tests.cluster.world import World
from tests.commands import Run, runner

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
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
