"""RayJobs and RayServices: the cluster inside them, and who submits the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dispatcher.api.appwrapper import AppWrapperSpec, DeclaredPodSet, WrappedObject
from dispatcher.core.kinds.demand import DemandError
from dispatcher.core.model.gang import Gang, PodSet
from dispatcher.core.model.resources import Resources
from tests.builders import gang_of
from tests.unit.core.kinds.ray import HEAD, WORKER, cluster, group, ray_job, ray_service, template

GIB, MIB = 2**30, 2**20


def gang(wrapped: Mapping[str, Any], *declared: DeclaredPodSet) -> Gang:
    return gang_of(AppWrapperSpec((WrappedObject(0, wrapped, declared or None),)))


HEAD_POD = PodSet(1, Resources({"cpu": 1000, "memory": 2 * GIB}))
WORKER_POD = PodSet(1, Resources({"cpu": 1000, "memory": GIB}))
SUBMITTER_POD = PodSet(1, Resources({"cpu": 500, "memory": 200 * MIB}))
SMALL = cluster(HEAD, group(WORKER, replicas=1))


@pytest.mark.parametrize(
    ("wrapped", "pods", "members", "demand"),
    [
        pytest.param(
            ray_job(cluster(HEAD, group({"cpu": "200m"}, replicas=1, minReplicas=1, maxReplicas=5))),
            3,
            2,
            {"cpu": 1700, "memory": 2625634304},
            id="ray-job.sample-whose-worker-is-smaller-than-its-init-container",
        ),
        pytest.param(
            ray_job(cluster(HEAD, group(WORKER, replicas=1)), submissionMode="InteractiveMode"),
            2,
            2,
            {"cpu": 2000, "memory": 3221225472},
            id="ray-job.interactive-mode",
        ),
        pytest.param(
            ray_job(
                cluster(
                    template({"cpu": 1, "memory": "4Gi"}),
                    group({"cpu": 3, "memory": "4Gi"}, replicas=2, minReplicas=1, maxReplicas=5),
                )
            ),
            4,
            3,
            {"cpu": 7500, "memory": 13094617088},
            id="ray-job.pytorch-mnist",
        ),
        pytest.param(
            ray_service(
                cluster(
                    template({"cpu": 2, "memory": "8Gi"}),
                    group({"cpu": 24, "memory": "512Gi", "nvidia.com/gpu": 8}, replicas=2),
                )
            ),
            3,
            3,
            {"cpu": 50000, "memory": 1108101562368, "nvidia.com/gpu": 16},
            id="ray-service.deepseek",
        ),
        pytest.param(
            ray_service(cluster(HEAD, group(WORKER), enableInTreeAutoscaling=True)),
            1,
            1,
            {"cpu": 1500, "memory": 2684354560},
            id="ray-service.incremental-upgrade-with-replicas-unset",
        ),
    ],
)
def test_ray_jobs_and_services_ask_for_the_pods_that_kuberay_makes(
    wrapped: Mapping[str, Any], pods: int, members: int, demand: Mapping[str, int]
) -> None:
    found = gang(wrapped)
    counted = sum(pod_set.count for pod_set in found.pod_sets)
    assert (counted, found.pods, found.demand) == (pods, members, Resources(demand))


def test_submitter_needs_room_but_the_gang_runs_without_it() -> None:
    demand = HEAD_POD.requests + WORKER_POD.requests + SUBMITTER_POD.requests
    assert gang(ray_job(SMALL)) == Gang(demand, 2, (HEAD_POD, WORKER_POD, SUBMITTER_POD))
    assert gang(ray_job(SMALL, submissionMode="K8sJobMode")) == gang(ray_job(SMALL))


def test_submitter_may_have_a_template_of_its_own() -> None:
    own = template({"cpu": 2})
    own["spec"]["tolerations"] = [{"operator": "Exists"}]
    submitter = gang(ray_job(SMALL, submitterPodTemplate=own)).pod_sets[-1]
    assert (submitter.requests, len(submitter.tolerations)) == (Resources({"cpu": 2000}), 1)


def test_submitter_beside_the_head_is_one_more_container_of_it() -> None:
    in_head = PodSet(1, HEAD_POD.requests + SUBMITTER_POD.requests)
    found = gang(ray_job(SMALL, submissionMode="SidecarMode", submitterPodTemplate=template({"cpu": 9})))
    assert found == Gang(in_head.requests + WORKER_POD.requests, 2, (in_head, WORKER_POD))


def test_submitter_and_autoscaler_may_both_be_beside_the_head() -> None:
    autoscaled = cluster(HEAD, enableInTreeAutoscaling=True)
    found = gang(ray_job(autoscaled, submissionMode="SidecarMode"))
    assert found.demand == Resources({"cpu": 2000, "memory": 2 * GIB + 512 * MIB + 200 * MIB})


@pytest.mark.parametrize("mode", ["HTTPMode", "InteractiveMode"])
def test_some_ways_to_submit_take_no_pod(mode: str) -> None:
    found = gang(ray_job(SMALL, submissionMode=mode))
    assert found == Gang(HEAD_POD.requests + WORKER_POD.requests, 2, (HEAD_POD, WORKER_POD))


def test_job_on_a_cluster_that_exists_only_needs_its_submitter() -> None:
    selected = ray_job(clusterSelector={"ray.io/cluster": "shared"})
    assert gang(selected) == Gang(SUBMITTER_POD.requests, 0, (SUBMITTER_POD,))
    assert gang(ray_job(clusterSelector={"a": "b"}, submissionMode="HTTPMode")) == Gang()
    assert gang(ray_job(SMALL, clusterSelector={})) == gang(ray_job(SMALL))


def test_suspended_job_makes_no_pods() -> None:
    assert gang(ray_job(SMALL, suspend=True)) == Gang()


def test_larger_declared_demand_of_a_ray_job_is_charged_while_its_submitter_is_not_waited_for() -> None:
    found = gang(ray_job(SMALL), DeclaredPodSet(2, {"cpu": 3, "memory": "2Gi"}, {}))
    declared = Resources({"cpu": 6000, "memory": 4 * 2**30})
    assert found == Gang(declared, 2, (HEAD_POD, WORKER_POD, SUBMITTER_POD))


@pytest.mark.parametrize(
    ("wrapped", "problem"),
    [
        (ray_job(), "rayClusterSpec.headGroupSpec.template.spec.containers: must list the containers"),
        (ray_job(SMALL, submitterPodTemplate={}), "submitterPodTemplate.spec.containers: must list the"),
        (ray_job(SMALL, submissionMode=7), "submissionMode: must be a string"),
        (ray_job(SMALL, clusterSelector="x"), "clusterSelector: must be an object"),
        (ray_job(SMALL, suspend="no"), "suspend: must be true or false"),
        (
            ray_job(cluster(HEAD, group(WORKER, replicas=-1))),
            "rayClusterSpec.workerGroupSpecs[0].replicas: must be between",
        ),
        (ray_service({}), "rayClusterConfig.headGroupSpec.template.spec.containers: must list the"),
        (
            ray_service(cluster(HEAD, enableInTreeAutoscaling="on")),
            "rayClusterConfig.enableInTreeAutoscaling: must be true or false",
        ),
    ],
)
def test_job_we_cannot_read_is_refused_by_field(wrapped: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(DemandError) as raised:
        gang(wrapped)
    assert str(raised.value).startswith(f"spec.resources.GenericItems[0].generictemplate.spec.{problem}")
