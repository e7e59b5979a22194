"""What becomes of a gang that gets only some of its pods, or none, because others refuse, suspend or stop them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatcher.api.annotations import ADMISSION_GRACE, RETRY_LIMIT, RETRY_PAUSE, WARMUP_GRACE
from dispatcher.kube.client import MERGE_PATCH
from tests.cluster.lives import until_drift
from tests.cluster.manifests import appwrapper, bent, item, job, rayjob, statefulset
from tests.cluster.mcad.suite import conditions
from tests.cluster.world import World

Json = dict[str, Any]

POLICIES = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"
TWICE = {ADMISSION_GRACE: "2s", WARMUP_GRACE: "4s", RETRY_LIMIT: "1", RETRY_PAUSE: "0s"}
ONCE = {**TWICE, RETRY_LIMIT: "0"}
PATIENT = {**ONCE, ADMISSION_GRACE: "8s", WARMUP_GRACE: "12s"}
"""KubeRay makes the RayCluster of a RayJob some seconds after it has named it."""


async def limit(world: World, **hard: str) -> None:
    """Return once a ResourceQuota of the namespace is in force."""
    spec = {"hard": {key.replace("_", "."): amount for key, amount in hard.items()}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": spec}
    await world.create(quota)

    async def is_in_force() -> bool:
        found = (await world.get("ResourceQuota", "small")) or {}
        return bool((found.get("status") or {}).get("hard"))

    await world.until(is_in_force, "the quota is in force")


async def why_it_failed(world: World, name: str) -> str:
    return str(conditions(await world.until_shown(name, "Failed"))["Failed"][2])


async def test_job_of_which_a_quota_admits_half_is_taken_back_and_told_in_the_words_of_the_api_server(
    world: World,
) -> None:
    await limit(world, pods="2")
    await world.start_dispatcher()

    await world.create(bent(appwrapper("half", item(job("half", parallelism=4))), TWICE))

    message = await why_it_failed(world, "half")
    where = f"Job {world.namespace}/half: FailedCreate: "
    assert message.startswith("2 of 4 pods run: pods that do not exist: 2 (requeued so far: 1)")
    assert where in message
    assert "exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2" in message
    assert (await world.causes("half")).count("evicted") == 1
    assert await world.every("Pod") == []


async def test_gang_of_nested_objects_is_told_what_the_controller_in_between_says(world: World) -> None:
    await limit(world, limits_cpu="20")
    await world.start_dispatcher()

    await world.create(bent(appwrapper("nested", item(rayjob("serve"))), PATIENT))

    message = await why_it_failed(world, "nested")
    assert message.startswith("0 of 2 pods run: there is none")
    assert f"RayCluster {world.namespace}/serve-" in message
    assert "FailedToCreateHeadPod" in message
    assert "failed quota: small: must specify limits.cpu" in message


@pytest.fixture
async def suspending(world: World) -> AsyncIterator[World]:
    """A world in which another program suspends each Job that is created, as Kueue does."""
    name = f"suspends-{world.namespace}"
    jobs = {
        "apiGroups": ["batch"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["jobs"],
    }
    spec = {
        "matchConstraints": {
            "resourceRules": [jobs],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
        },
        "mutations": [
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {"expression": "Object{spec: Object.spec{suspend: true}}"},
            }
        ],
        "reinvocationPolicy": "Never",
    }
    policy = await world.client.create(POLICIES, {"metadata": {"name": name}, "spec": spec})
    binding = await world.client.create(BINDINGS, {"metadata": {"name": name}, "spec": {"policyName": name}})

    async def works() -> bool:
        path = f"{world.path('Job')}?dryRun=All"
        made = await asyncio.to_thread(world.plane.client.request, "POST", path, job("probe"))
        return made["spec"].get("suspend") is True

    await world.until(works, "the policy is enforced")
    yield world
    await world.client.delete(f"{BINDINGS}/{name}", binding["metadata"]["uid"])
    await world.client.delete(f"{POLICIES}/{name}", policy["metadata"]["uid"])


async def test_job_that_another_program_suspends_is_named_as_suspended(suspending: World) -> None:
    world = suspending
    await world.start_dispatcher()

    await world.create(bent(appwrapper("queued", item(job("train"))), ONCE))

    message = await why_it_failed(world, "queued")
    assert message.startswith(f"0 of 1 pods run: Job {world.namespace}/train is suspended")


async def test_stateful_set_that_its_user_scales_to_zero_stays_there_and_is_not_evicted(world: World) -> None:
    await world.start_dispatcher()
    serve = bent(appwrapper("serve", item(statefulset("serve", replicas=2))), ONCE)
    await world.create_until("Running", serve)
    made = (await world.get("StatefulSet", "serve")) or {}
    scale = f"{world.path('StatefulSet', 'serve')}/scale"

    await world.client.patch(scale, {"spec": {"replicas": 0}}, MERGE_PATCH)

    said = f"StatefulSet {world.namespace}/serve asks for none of its 2 pods"
    await until_reason(world, "serve", ("Drifted", said))

    async def no_pods() -> bool:
        return await world.every("Pod") == []

    await world.until(no_pods, "no pod is left")
    await asyncio.sleep(2 * 2)  # twice the grace of a gang without pods
    assert (await world.until_state("serve", "Running"))["unhealthy"]["message"] == said
    await world.client.patch(scale, {"spec": {"replicas": 2}}, MERGE_PATCH)
    await until_drift(world, "serve", None)

    now = (await world.get("StatefulSet", "serve")) or {}
    assert now["metadata"]["uid"] == made["metadata"]["uid"]
    assert "evicted" not in await world.causes("serve")


async def until_reason(world: World, name: str, wanted: tuple[str, str]) -> None:
    """Return once the status has this health issue."""

    async def shown() -> bool:
        issue = (((await world.get("AppWrapper", name)) or {}).get("status") or {}).get("unhealthy")
        return issue is not None and (issue["reason"], issue["message"]) == wanted

    await world.until(shown, f"{name} is shown with {wanted}")
