"""What the stand-in for KubeRay's operator makes from a RayService."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.rayclusters import problem_with
from testbed.rayservices import (
    Clusters,
    cluster_name,
    clusters_of,
    make_cluster,
    make_services,
    make_status,
)

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


def ray(state: str | None, name: str = "") -> Json:
    """The RayCluster that the service wants, or one of another name."""
    return {"metadata": {"name": name or cluster_name(make_service())}, "status": {"state": state}}


def facts(status: Json) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


def test_it_has_one_raycluster_of_its_own() -> None:
    cluster = make_cluster(make_service())

    assert cluster["metadata"]["name"] == cluster_name(make_service())
    assert cluster["metadata"]["labels"]["ray.io/originated-from-cr-name"] == "vllm"
    (owner,) = cluster["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("RayService", "12345-6", True)
    assert cluster["spec"] == CONFIG
    assert problem_with(cluster) is None


def test_its_services_select_the_pods_of_that_raycluster() -> None:
    services = make_services(make_service())

    assert [one["metadata"]["name"] for one in services] == ["vllm-head-svc", "vllm-serve-svc"]
    assert {one["spec"]["selector"]["ray.io/cluster"] for one in services} == {cluster_name(make_service())}


@pytest.mark.parametrize("clusters", [[], [ray(None)]], ids=["no-cluster", "pods-start"])
def test_it_initializes_until_its_raycluster_is_ready(clusters: list[Json]) -> None:
    status = make_status(make_service(), clusters, NOW)

    assert facts(status) == {
        "Ready": ("False", "Initializing"),
        "UpgradeInProgress": ("False", "NoPendingCluster"),
    }
    assert status["serviceStatus"] is None
    assert status["pendingServiceStatus"]["rayClusterName"] == cluster_name(make_service())


def test_it_serves_once_its_raycluster_is_ready_and_from_then_on() -> None:
    before = make_status(make_service(), [], NOW)
    status = make_status(make_service(**before), [ray("ready")], LATER)

    assert facts(status)["Ready"] == ("True", "NonZeroServeEndpoints")
    assert [one["lastTransitionTime"] for one in status["conditions"]] == [LATER, NOW]
    assert (status["serviceStatus"], status["pendingServiceStatus"]) == ("Running", None)
    assert make_status(make_service(**status), [ray(None)], LATER)["serviceStatus"] == "Running"


def changed(**group: object) -> Json:
    """The service with a worker group that has these fields."""
    service = make_service()
    workers = {"groupName": "workers", "replicas": 1, **group}
    return {**service, "spec": {"rayClusterConfig": {**CONFIG, "workerGroupSpecs": [workers]}}}


def test_another_spec_is_another_raycluster_and_other_replicas_are_not() -> None:
    assert cluster_name(changed(template={"spec": {}})) != cluster_name(changed())
    assert cluster_name(changed(replicas=3, minReplicas=2)) == cluster_name(changed())


OLD = ray("ready", "vllm-old")


@pytest.mark.parametrize(
    ("clusters", "expected", "upgrade"),
    [
        pytest.param([OLD], Clusters(active=OLD), False, id="spec-just-changed"),
        pytest.param([OLD, ray(None)], Clusters(OLD, ray(None)), True, id="its-pods-start"),
        pytest.param(
            [OLD, ray(None, "vllm-dropped"), ray(None)],
            Clusters(OLD, ray(None), (ray(None, "vllm-dropped"),)),
            True,
            id="changed-again",
        ),
        pytest.param(
            [OLD, ray("ready")], Clusters(ray("ready"), outdated=(OLD,)), False, id="takes-over-when-ready"
        ),
        pytest.param(
            [ray(None, "vllm-old"), ray(None)],
            Clusters(pending=ray(None), outdated=(ray(None, "vllm-old"),)),
            False,
            id="changed-before-it-served",
        ),
    ],
)
def test_upgrade_goes_over_two_rayclusters(clusters: list[Json], expected: Clusters, upgrade: bool) -> None:
    assert clusters_of(make_service(), clusters) == expected
    status = make_status(make_service(), clusters, NOW)
    assert facts(status)["UpgradeInProgress"][0] == str(upgrade)
    for field, cluster in (
        ("activeServiceStatus", expected.active),
        ("pendingServiceStatus", expected.pending),
    ):
        named = status[field]["rayClusterName"] if status[field] else None
        assert cluster is None or named == cluster["metadata"]["name"]
