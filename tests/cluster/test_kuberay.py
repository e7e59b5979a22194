"""Ray's kinds under the dispatcher, by KubeRay's own operator: pods, states, ends, retries and upgrades.

`make test-versions` runs them with the oldest and the newest release of KubeRay that the dispatcher supports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from dispatcher.api.appwrapper import parse_spec
from dispatcher.core.kinds.pods.pod_requests import pod_requests
from testbed.processes import Process
from tests.builders import gang_of
from tests.cluster.figures import free_in
from tests.cluster.manifests import (
    appwrapper,
    autoscaling,
    changed,
    item,
    lives,
    pod_template,
    raycluster,
    rayjob,
    rayservice,
)
from tests.cluster.mcad.suite import conditions
from tests.cluster.world import World

Json = dict[str, Any]

WHOLE_CPU = 24_000
FAILURE = "AppFailed: Job entrypoint command failed with exit code 1."
CLUSTER = "ray.io/cluster"


def submitter(**words: str) -> Json:
    """The template of the pod that submits a job; the pod lives so."""
    template = pod_template("100m", **words)
    return {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}


def job_of(mode: str, succeeds: bool) -> Json:
    """A RayJob of this mode, whose job runs for a second and ends so."""
    ends = {"run_for": "1s"} if succeeds else {"fail_after": "1s"}
    match mode:
        case "HTTPMode":
            return rayjob("train", mode=mode, **ends)
        case "K8sJobMode":
            found = changed(rayjob("train", mode=mode), "spec.submitterPodTemplate", submitter(**ends))
            return changed(found, "spec.submitterConfig", {"backoffLimit": 0})
        case _:
            exits = {"job_run_for": "1s", "job_exit_code": "0" if succeeds else "1"}
            path = "spec.rayClusterSpec.headGroupSpec.template.metadata.annotations"
            return changed(rayjob("train", mode=mode), path, lives(exits))


MODES = ["HTTPMode", "K8sJobMode", "SidecarMode"]


async def until_free(world: World, process: Process, cpu: int) -> None:
    async def free() -> bool:
        return (await free_in(process)).get("cpu") == cpu

    await world.until(free, f"{cpu}m of cpu are free")


async def total_of(world: World) -> dict[str, int]:
    """What all pods of the namespace request."""
    total: Counter[str] = Counter()
    for each in await world.every("Pod"):
        total.update(dict(pod_requests(each["spec"], limits_are_defaults=False).items()))
    return dict(total)


def charged(manifest: Json) -> dict[str, int]:
    """What the dispatcher charges for an AppWrapper."""
    demand = dict(gang_of(parse_spec(manifest["spec"], namespace="any")).demand.items())
    return {name: amount for name, amount in demand.items() if name != "pods"}


# --- RayClusters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrapped",
    [
        pytest.param(raycluster("ray", workers=2), id="plain"),
        pytest.param(autoscaling("ray", gpu="1"), id="autoscaling"),
        pytest.param(changed(raycluster("ray"), "spec.workerGroupSpecs.0.numOfHosts", 2), id="two-hosts"),
    ],
)
async def test_pods_of_a_raycluster_request_what_is_charged_for_it(world: World, wrapped: Json) -> None:
    await world.start_dispatcher()
    manifest = appwrapper("ray", item(wrapped))
    await world.create_until("Running", manifest)

    assert await total_of(world) == charged(manifest)
    labels = [each["metadata"]["labels"] for each in await world.every("Pod")]
    assert {each[CLUSTER] for each in labels} == {"ray"}
    assert {each["ray.io/group"] for each in labels} == {"headgroup", "workers"}


async def test_lost_head_is_made_again_and_the_gang_stays(world: World) -> None:
    await world.start_dispatcher()
    await world.create_until("Running", appwrapper("ray", item(raycluster("ray"))))
    heads = await until_head(world, frozenset())

    (name,) = [each["metadata"]["name"] for each in await world.every("Pod") if is_head(each)]
    await world.delete(name, "Pod")

    await until_head(world, heads)
    assert (await world.causes("ray")).count("dispatched") == 1
    await world.until_state("ray", "Running")


def is_head(pod: Json) -> bool:
    return bool(pod["metadata"]["labels"].get("ray.io/node-type") == "head")


async def until_head(world: World, gone: frozenset[str]) -> frozenset[str]:
    """The uid of the head once it runs and is none of those."""

    async def look() -> frozenset[str]:
        pods = [each for each in await world.every("Pod") if is_head(each)]
        running = [each for each in pods if each["status"].get("phase") == "Running"]
        return frozenset(each["metadata"]["uid"] for each in running) - gone

    return await world.until(look, "a head runs")


async def test_gang_is_suspended_and_resumed(world: World) -> None:
    process = await world.start_dispatcher()
    await world.create_until("Running", appwrapper("ray", item(raycluster("ray"))))

    await world.merge("AppWrapper", "ray", {"spec": {"suspend": True}})
    await until_free(world, process, WHOLE_CPU)
    assert (await world.names("Pod"), await world.names("RayCluster")) == (set(), set())

    await world.merge("AppWrapper", "ray", {"spec": {"suspend": False}})
    await world.until_state("ray", "Running")


# --- RayJobs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_rayjob_that_succeeds_completes_its_appwrapper(world: World, mode: str) -> None:
    process = await world.start_dispatcher()
    wrapped = changed(job_of(mode, succeeds=True), "spec.shutdownAfterJobFinishes", True)
    await world.create(appwrapper("trains", item(wrapped)))

    status = await world.until_shown("trains", "Completed")

    assert conditions(status)["Completed"] == ("True", "PodsCompleted", "")
    assert (await world.causes("trains")).count("dispatched") == 1
    found = (await world.get("RayJob", "train") or {})["status"]
    assert (found["jobDeploymentStatus"], found["jobStatus"]) == ("Complete", "SUCCEEDED")
    await until_free(world, process, WHOLE_CPU)


async def test_rayjob_that_keeps_its_cluster_holds_what_its_pods_take(world: World) -> None:
    """KubeRay keeps the RayCluster of an ended RayJob unless it is told otherwise."""
    process = await world.start_dispatcher()
    await world.create(appwrapper("trains", item(job_of("HTTPMode", succeeds=True))))

    held = await world.until_shown("trains", "RunningHoldCompletion")

    assert conditions(held)["RunningHoldCompletion"] == ("True", "SomeItemsCompleted", "")
    await until_free(world, process, WHOLE_CPU - 300)
    (cluster,) = await world.names("RayCluster")
    await world.delete(cluster, "RayCluster")
    await world.until_shown("trains", "Completed")
    await until_free(world, process, WHOLE_CPU)


@pytest.mark.parametrize("mode", MODES)
async def test_rayjob_that_fails_fails_its_appwrapper_in_kuberays_words(world: World, mode: str) -> None:
    await world.start_dispatcher()
    await world.create(appwrapper("trains", item(job_of(mode, succeeds=False))))

    status = await world.until_shown("trains", "Failed")

    told, reason, message = conditions(status)["Failed"]
    assert (told, reason) == ("True", "FailedComponent")
    assert message.startswith(f"RayJob {world.namespace}/train failed: ")
    if (
        mode == "HTTPMode"
    ):  # by a submitter, it depends on whether the job or the submitter was seen to fail first
        assert message == f"RayJob {world.namespace}/train failed: {FAILURE}"


async def test_rayjob_is_tried_again_within_its_reservation(world: World) -> None:
    """A retry is a new RayCluster of the same size; the AppWrapper goes on until the last one has failed."""
    process = await world.start_dispatcher()
    wrapped = changed(job_of("HTTPMode", succeeds=False), "spec.backoffLimit", 1)
    await world.create(appwrapper("trains", item(wrapped)))
    clusters: set[str] = set()

    async def tried_again() -> bool:
        clusters.update(await world.names("RayCluster"))
        return len(clusters) == 2

    await world.until(tried_again, "there is a second RayCluster")
    assert (await free_in(process))["cpu"] <= WHOLE_CPU - 300
    await world.until_shown("trains", "Failed")
    assert (await world.causes("trains")).count("dispatched") == 1
    assert "evicted" not in await world.causes("trains")


async def test_rayjob_frees_its_pods_when_its_time_to_live_is_over(world: World) -> None:
    process = await world.start_dispatcher()
    wrapped = changed(job_of("HTTPMode", succeeds=True), "spec.shutdownAfterJobFinishes", True)
    await world.create(appwrapper("trains", item(changed(wrapped, "spec.ttlSecondsAfterFinished", 3))))

    await world.until_shown("trains", "RunningHoldCompletion")
    await world.until_shown("trains", "Completed")
    await until_free(world, process, WHOLE_CPU)
    assert await world.names("RayCluster") == set()


async def test_deleted_appwrapper_takes_a_running_rayjob_with_it(world: World) -> None:
    """KubeRay's finalizer stops the job first."""
    process = await world.start_dispatcher()
    wrapped = rayjob("train", run_for="forever")
    await world.create_until("Running", appwrapper("trains", item(wrapped)))

    await world.delete("trains")

    await world.until_gone("RayJob", "train")
    await until_free(world, process, WHOLE_CPU)
    assert await world.names("Pod") == set()


# --- RayServices -------------------------------------------------------------------------------------


def serves(found: Json | None) -> bool:
    """True while a RayService serves, and is not being upgraded."""
    status = (found or {}).get("status") or {}
    told = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    return told.get("Ready") == "True" and not status.get("pendingServiceStatus", {}).get("rayClusterName")


async def test_rayservice_runs_and_is_upgraded_without_a_break(world: World) -> None:
    process = await world.start_dispatcher()
    manifest = appwrapper("llm", item(rayservice("llm")))
    await world.create_until("Running", manifest)
    await world.until_object("RayService", "llm", serves, "it serves")
    (first,) = await world.names("RayCluster")
    assert await total_of(world) == charged(manifest)

    await world.merge("RayService", "llm", {"spec": {"rayClusterConfig": {"rayVersion": "2.53.0"}}})

    async def is_upgraded() -> bool:
        names = await world.names("RayCluster")
        return len(names) == 1 and first not in names and serves(await world.get("RayService", "llm"))

    await world.until(is_upgraded, "another RayCluster serves")
    await until_free(world, process, WHOLE_CPU - 300)
    causes: Mapping[str, int] = Counter(await world.causes("llm"))
    assert (causes["dispatched"], causes["evicted"]) == (1, 0)
