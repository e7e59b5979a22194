"""Against the stand-in that runs beside every plane of these tests; a second one would make pods twice."""

import asyncio
import copy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.kuberay import Api
from testbed.plane import Plane

pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).parents[2]
GLUE = yaml.safe_load((ROOT / "examples/aw-raycluster-glue.yaml").read_text())
TEMPLATE = GLUE["spec"]["resources"]["GenericItems"][0]["generictemplate"]

Json = dict[str, Any]


class Ray:
    """One RayCluster in one namespace, and what became of it."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.path = f"/apis/ray.io/v1/namespaces/{namespace}/rayclusters"
        self.core = f"/api/v1/namespaces/{namespace}"

    async def create(self, *, workers: int = 1) -> Json:
        return await self.api.request("POST", self.path, make_raycluster(workers))

    async def patch(self, **spec: object) -> None:
        await self.api.request("PATCH", f"{self.path}/raycluster-glue", {"spec": spec})

    async def scale(self, workers: int) -> None:
        await self.patch(workerGroupSpecs=make_raycluster(workers)["spec"]["workerGroupSpecs"])

    async def status(self) -> Json:
        cluster = await self.api.request("GET", f"{self.path}/raycluster-glue")
        status: Json = cluster.get("status", {})
        return status

    async def pods(self) -> list[Json]:
        answer = await self.api.request("GET", f"{self.core}/pods")
        items: list[Json] = answer["items"]
        return items

    async def fail(self, pod: Json) -> None:
        """Make a pod fail, as the kubelet would report it."""
        path = f"{self.core}/pods/{pod['metadata']['name']}/status"
        await self.api.request("PATCH", path, {"status": {"phase": "Failed"}})

    async def until_pods(self, is_so: Callable[[list[Json]], bool]) -> list[Json]:
        while True:
            pods = await self.pods()
            if is_so(pods):
                return pods
            await asyncio.sleep(0.02)

    async def until_status(self, is_so: Callable[[Json], bool]) -> Json:
        while True:
            status = await self.status()
            if is_so(status):
                return status
            await asyncio.sleep(0.02)


@pytest.fixture
def ray(api: Api, namespace: str) -> Ray:
    return Ray(api, namespace)


def make_raycluster(workers: int = 1, **spec: object) -> Json:
    """Build the example's RayCluster with pods that fit anywhere: who makes them is tested, not where they go."""
    cluster: Json = copy.deepcopy(TEMPLATE)
    cluster["spec"] |= spec
    groups = cluster["spec"]["workerGroupSpecs"]
    groups[0] |= {"replicas": workers, "minReplicas": 0, "maxReplicas": 9}
    for group in (cluster["spec"]["headGroupSpec"], *groups):
        for container in group["template"]["spec"]["containers"]:
            container.pop("resources")
    return cluster


def uids(pods: list[Json]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def alive(count: int) -> Callable[[list[Json]], bool]:
    return lambda pods: [running(pod) for pod in pods] == [True] * count


def running(pod: Json) -> bool:
    return pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]


def is_ready(status: Json) -> bool:
    return status.get("state") == "ready"


async def test_raycluster_becomes_pods_a_service_and_a_status(ray: Ray) -> None:
    cluster = await ray.create()

    status = await ray.until_status(is_ready)
    pods = await ray.pods()
    services = await ray.api.request("GET", f"{ray.core}/services")

    assert sorted(pod["metadata"]["labels"]["ray.io/node-type"] for pod in pods) == ["head", "worker"]
    assert {owner["uid"] for pod in pods for owner in pod["metadata"]["ownerReferences"]} == {
        cluster["metadata"]["uid"]
    }
    assert [service["metadata"]["name"] for service in services["items"]] == ["raycluster-glue-head-svc"]
    assert (status["desiredWorkerReplicas"], status["readyWorkerReplicas"]) == (1, 1)
    assert status["observedGeneration"] == 1
    assert {one["type"]: one["status"] for one in status["conditions"]} == {
        "HeadPodReady": "True",
        "RayClusterProvisioned": "True",
    }


async def test_failed_worker_is_replaced(ray: Ray) -> None:
    await ray.create(workers=2)
    await ray.until_status(is_ready)
    before = await ray.until_pods(alive(3))
    failed = next(pod for pod in before if pod["metadata"]["labels"]["ray.io/node-type"] == "worker")

    await ray.fail(failed)
    after = await ray.until_pods(lambda pods: alive(3)(pods) and failed["metadata"]["uid"] not in uids(pods))

    assert len(uids(after) & uids(before)) == 2


async def test_raycluster_is_scaled_suspended_and_resumed(ray: Ray) -> None:
    await ray.create(workers=3)
    await ray.until_status(is_ready)

    await ray.scale(1)
    await ray.until_pods(alive(2))
    await ray.patch(suspend=True)
    await ray.until_status(lambda status: status.get("state") == "suspended")
    suspended = await ray.pods()
    await ray.patch(suspend=False)
    await ray.until_status(is_ready)

    assert suspended == []
    assert len(await ray.pods()) == 2


async def test_quota_shows_as_replica_failure_and_heals(ray: Ray) -> None:
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    await ray.api.request("POST", f"{ray.core}/resourcequotas", quota)
    await ray.create()

    await ray.until_status(lambda status: failure_of(status) == "True")
    await ray.api.request("DELETE", f"{ray.core}/resourcequotas/none")
    status = await ray.until_status(is_ready)

    assert failure_of(status) == "False"


def failure_of(status: Json) -> str | None:
    found = {one["type"]: one["status"] for one in status.get("conditions", [])}
    return found.get("ReplicaFailure")


async def test_older_version_is_read_back_as_the_newer_one(api: Api, namespace: str) -> None:
    cluster = {**make_raycluster(), "apiVersion": "ray.io/v1alpha1"}
    older = f"/apis/ray.io/v1alpha1/namespaces/{namespace}/rayclusters"
    await api.request("POST", older, cluster)

    stored = await api.request("GET", f"/apis/ray.io/v1/namespaces/{namespace}/rayclusters/raycluster-glue")

    assert stored["apiVersion"] == "ray.io/v1"
    assert stored["spec"]["workerGroupSpecs"][0]["numOfHosts"] == 1


async def test_it_goes_on_after_the_api_server_was_restarted(plane: Plane, ray: Ray) -> None:
    await ray.create()
    await ray.until_status(is_ready)
    before = await ray.pods()

    await plane.restart_apiserver()
    await ray.scale(3)
    after = await ray.until_pods(alive(4))

    assert uids(before) < uids(after)


async def test_stand_in_for_kuberay_names_itself_and_ends_at_a_signal(plane: Plane) -> None:
    arguments = ("-m", "testbed.kuberay", "--kubeconfig", str(plane.kubeconfig))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    said = await process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    rest = await process.stderr.read()

    assert await process.wait() == 0
    assert b"this is a stand-in for KubeRay's operator" in said
    assert b"Traceback" not in rest
