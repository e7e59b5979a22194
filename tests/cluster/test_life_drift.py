"""What somebody changes of a gang's objects is told, and never reverted; what autoscalers write is theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatcher.kube.client import MERGE_PATCH
from tests.cluster.lives import GROWTH, crash, edit, until_drift
from tests.cluster.manifests import appwrapper, changed, config_map, deployment, item, job, raycluster
from tests.cluster.world import World

Json = dict[str, Any]

HEAD = "spec__headGroupSpec__template__spec__containers__0__image"
WORKERS = "spec__workerGroupSpecs__0__"
IMAGE = "spec__template__spec__containers__0__image"
CPU = "spec__template__spec__containers__0__resources__requests__cpu"
POLICIES = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"


async def pods(world: World, count: int) -> None:
    """Return once so many pods run."""

    async def run() -> bool:
        return [each["status"]["phase"] for each in await world.every("Pod")] == ["Running"] * count

    await world.until(run, f"{count} pods run")


async def told(world: World, name: str) -> list[str]:
    """What history says was wrong with an AppWrapper, or done about it; it may also have grown and shrunk."""
    causes = [cause for cause in await world.causes(name) if cause not in GROWTH]
    assert causes[:4] == ["submitted", "dispatched", "created", "pods-running"]
    return causes[4:]


async def test_raycluster_that_is_scaled_has_not_drifted_and_one_whose_image_is_edited_has(
    world: World,
) -> None:
    await world.start_dispatcher()
    ray = changed(raycluster("ray"), "spec.workerGroupSpecs.0.maxReplicas", 4)
    await world.create_until("Running", appwrapper("gang", item(ray)))
    uid = ((await world.get("RayCluster", "ray")) or {})["metadata"]["uid"]

    # As Ray's autoscaler does: one patch for each of the two fields.
    await edit(world, "RayCluster", "ray", **{f"{WORKERS}replicas": 3})
    await edit(world, "RayCluster", "ray", **{f"{WORKERS}scaleStrategy": {"workersToDelete": ["nobody"]}})
    await pods(world, 4)
    await edit(world, "RayCluster", "ray", **{HEAD: "other", f"{WORKERS}maxReplicas": 5})
    where = f"RayCluster {world.namespace}/ray"
    head, most = HEAD.replace("__0__", "[0].").replace("__", "."), "spec.workerGroupSpecs[0].maxReplicas"
    await until_drift(world, "gang", f"{where}: {head}, {most} were")

    await edit(world, "RayCluster", "ray", **{HEAD: "none"})
    await until_drift(world, "gang", f"{where}: {most} was")
    await edit(world, "RayCluster", "ray", **{f"{WORKERS}maxReplicas": 4})
    await until_drift(world, "gang", None)

    assert await told(world, "gang") == ["unhealthy", "unhealthy", "recovered"]
    now = (await world.get("RayCluster", "ray")) or {}
    assert (now["metadata"]["uid"], now["spec"]["workerGroupSpecs"][0]["replicas"]) == (uid, 3)


async def test_scaled_deployment_and_job_have_not_drifted_and_an_image_and_a_config_map_have(
    world: World,
) -> None:
    await world.start_dispatcher()
    read = {**config_map("input"), "data": {"a": "1"}}
    await world.create_until(
        "Running", appwrapper("gang", item(deployment("serve")), item(job("train")), item(read))
    )

    scale = f"{world.path('Deployment', 'serve')}/scale"
    await world.client.patch(scale, {"spec": {"replicas": 2}}, MERGE_PATCH)
    await edit(world, "Job", "train", spec__parallelism=2)
    await pods(world, 3)
    await edit(world, "Deployment", "serve", **{IMAGE: "other"})
    image = f"Deployment {world.namespace}/serve: spec.template.spec.containers[0].image"
    await until_drift(world, "gang", f"{image} was")

    await edit(world, "ConfigMap", "input", data__a="2", data__b="3")
    await until_drift(world, "gang", f"{image} was changed; ConfigMap {world.namespace}/input: data.a was")
    await edit(world, "Deployment", "serve", **{IMAGE: "none"})
    await edit(world, "ConfigMap", "input", data__a="1")
    await until_drift(world, "gang", None)

    causes = await told(world, "gang")
    assert set(causes) == {"unhealthy", "recovered"}
    assert set(await world.reasons("gang")) == {"", "Drifted"}
    assert ((await world.get("ConfigMap", "input")) or {})["data"] == {"a": "1", "b": "3"}


async def test_edit_without_a_running_dispatcher_is_reported_and_stays_so_over_a_restart(
    world: World,
) -> None:
    process = await world.start_dispatcher()
    await world.create_until("Running", appwrapper("gang", item(deployment("serve"))))
    await crash(world, process)
    await edit(world, "Deployment", "serve", **{IMAGE: "other"})

    process = await world.start_dispatcher()
    image = f"Deployment {world.namespace}/serve: spec.template.spec.containers[0].image"
    await until_drift(world, "gang", f"{image} was")

    await crash(world, process)
    await world.start_dispatcher()
    await edit(world, "Deployment", "serve", **{CPU: "200m"})
    cpu = "spec.template.spec.containers[0].resources.requests.cpu"
    await until_drift(world, "gang", f"{image}, {cpu} were")
    await edit(world, "Deployment", "serve", **{IMAGE: "none", CPU: "0.1"})
    await until_drift(world, "gang", None)
    # While its pods are replaced it may be told that it is short of some, but never that nothing is wrong.
    *before, last = await told(world, "gang")
    assert (set(before), last) == ({"unhealthy"}, "recovered")


@pytest.fixture
async def mirrored(world: World) -> AsyncIterator[World]:
    """A world in which the API server itself has Deployments take their images from a mirror."""
    name = f"mirror-{world.namespace}"
    await world.client.create(POLICIES, policy(name, world.namespace))
    binding = await world.client.create(BINDINGS, {"metadata": {"name": name}, "spec": {"policyName": name}})

    async def works() -> bool:
        path = f"{world.path('Deployment')}?dryRun=All"
        made = await asyncio.to_thread(world.plane.client.request, "POST", path, deployment("probe"))
        image: str = made["spec"]["template"]["spec"]["containers"][0]["image"]
        return image == "mirror/none"

    await world.until(works, "the policy is enforced")
    yield world
    await world.client.delete(f"{BINDINGS}/{name}", binding["metadata"]["uid"])
    found = await world.client.get(f"{POLICIES}/{name}")
    await world.client.delete(f"{POLICIES}/{name}", found["metadata"]["uid"])


def policy(name: str, namespace: str) -> Json:
    """What changes the image of each Deployment that is created in a namespace."""
    path = "/spec/template/spec/containers/0/image"
    patch = f'[JSONPatch{{op: "replace", path: "{path}", value: "mirror/none"}}]'
    deployments = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["deployments"],
    }
    return {
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {
                "resourceRules": [deployments],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            },
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
            "reinvocationPolicy": "Never",
        },
    }


async def test_change_by_a_webhook_at_creation_is_no_drift_until_the_field_changes_again(
    mirrored: World,
) -> None:
    world = mirrored
    await world.start_dispatcher()
    await world.create_until("Running", appwrapper("gang", item(deployment("serve"))))
    serve = (await world.get("Deployment", "serve")) or {}
    assert serve["spec"]["template"]["spec"]["containers"][0]["image"] == "mirror/none"

    await edit(world, "Deployment", "serve", **{CPU: "200m"})
    template = f"Deployment {world.namespace}/serve: spec.template.spec.containers[0]"
    await until_drift(world, "gang", f"{template}.resources.requests.cpu was")

    await edit(world, "Deployment", "serve", **{CPU: "0.1", IMAGE: "mirror/other"})
    await until_drift(world, "gang", f"{template}.image was")
    # Of the webhook's change nothing is told. While its pods are replaced it may be told that it is short of some.
    drifts = dict.fromkeys(each for each in await world.messages("gang") if each.startswith("Deployment "))
    assert list(drifts) == [f"{template}.resources.requests.cpu was changed", f"{template}.image was changed"]
    assert set(await told(world, "gang")) == {"unhealthy"}
