"""What the stand-in for KubeRay's operator makes from a RayService."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.rayclusters import problem_with
from testbed.rayservices import cluster_name, make_cluster, make_services, make_status

Json = dict[str, Any]

NOW = "2026-11-20T09:00:00Z"
LATER = "2026-11-20T09:00:05Z"
CONFIG = {"headGroupSpec": {"template": {"spec": {"containers": [{"name": "head", "image": "ray:2"}]}}}}


def make_service(**status: object) -> Json:
    return {
        "metadata": {"name": "vllm", "namespace": "ns", "uid": "12345-6", "generation": 1},
        "spec": {"serveConfigV2": "applications: []", "rayClusterConfig": CONFIG},
        "status": status,
    }


def ray(state: str | None) -> Json:
    return {"metadata": {"name": "vllm-12345"}, "status": {"state": state}}


def facts(status: Json) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


def test_it_has_one_raycluster_of_its_own() -> None:
    cluster = make_cluster(make_service())

    assert cluster["metadata"]["name"] == cluster_name(make_service()) == "vllm-12345"
    assert cluster["metadata"]["labels"]["ray.io/originated-from-cr-name"] == "vllm"
    (owner,) = cluster["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("RayService", "12345-6", True)
    assert cluster["spec"] == CONFIG
    assert problem_with(cluster) is None


def test_its_services_select_the_pods_of_that_raycluster() -> None:
    services = make_services(make_service())

    assert [one["metadata"]["name"] for one in services] == ["vllm-head-svc", "vllm-serve-svc"]
    assert {one["spec"]["selector"]["ray.io/cluster"] for one in services} == {"vllm-12345"}


@pytest.mark.parametrize("clusters", [[], [ray(None)]], ids=["no-cluster", "pods-start"])
def test_it_initializes_until_its_raycluster_is_ready(clusters: list[Json]) -> None:
    status = make_status(make_service(), clusters, NOW)

    assert facts(status) == {
        "Ready": ("False", "Initializing"),
        "UpgradeInProgress": ("False", "NoPendingCluster"),
    }
    assert status["serviceStatus"] is None
    assert status["pendingServiceStatus"]["rayClusterName"] == "vllm-12345"


def test_it_serves_once_its_raycluster_is_ready_and_from_then_on() -> None:
    before = make_status(make_service(), [], NOW)
    status = make_status(make_service(**before), [ray("ready")], LATER)

    assert facts(status)["Ready"] == ("True", "NonZeroServeEndpoints")
    assert [one["lastTransitionTime"] for one in status["conditions"]] == [LATER, NOW]
    assert (status["serviceStatus"], status["pendingServiceStatus"]) == ("Running", None)
    assert make_status(make_service(**status), [ray(None)], LATER)["serviceStatus"] == "Running"
