"""RayClusters as KubeRay turns them into pods: totals of its own samples, rebuilt with only what counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dispatcher.api.appwrapper import AppWrapperSpec, DeclaredPodSet, WrappedObject, parse_spec
from dispatcher.core.kinds.asked import MOST_NAMED, named_to_delete, owns_rayclusters
from dispatcher.core.kinds.demand import DemandError
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.core.model.resources import Resources
from tests.builders import gang_of
from tests.unit.core.kinds.ray import (
    HEAD,
    WORKER,
    cluster,
    group,
    ray_cluster,
    ray_job,
    ray_service,
    template,
)

GIB = 2**30


def appwrapper(wrapped: Mapping[str, Any], *declared: DeclaredPodSet) -> AppWrapperSpec:
    return AppWrapperSpec((WrappedObject(0, wrapped, declared or None),))


@pytest.mark.parametrize(
    ("cluster", "pods", "demand"),
    [
        pytest.param(
            ray_cluster(template({"cpu": 1, "memory": "5Gi"}), group(WORKER, replicas=1, minReplicas=1)),
            2,
            {"cpu": 2000, "memory": 6442450944},
            id="ray-cluster.sample",
        ),
        pytest.param(
            ray_cluster(HEAD, group(WORKER, replicas=0, minReplicas=0), enableInTreeAutoscaling=True),
            1,
            {"cpu": 1500, "memory": 2684354560},
            id="ray-cluster.autoscaler",
        ),
        pytest.param(
            ray_cluster(template({"cpu": 1, "memory": "2Gi"}, {"cpu": "100m", "memory": "128Mi"})),
            1,
            {"cpu": 1100, "memory": 2281701376},
            id="ray-cluster.fluentbit",
        ),
        pytest.param(
            ray_cluster(HEAD, group(WORKER, replicas=1, minReplicas=0, maxReplicas=10)),
            2,
            {"cpu": 2000, "memory": 3221225472},
            id="ray-cluster.overwrite-command",
        ),
        pytest.param(
            ray_cluster(
                template({"cpu": "8", "ephemeral-storage": "10Gi", "memory": "40G"}),
                group(
                    {"cpu": "1", "ephemeral-storage": "10Gi", "google.com/tpu": "4", "memory": "40G"},
                    replicas=1,
                    minReplicas=1,
                    maxReplicas=1,
                    numOfHosts=2,
                ),
            ),
            3,
            {
                "cpu": 10000,
                "memory": 120000000000,
                "google.com/tpu": 8,
                "ephemeral-storage": 32212254720,
            },
            id="ray-cluster.tpu-v4-multihost",
        ),
    ],
)
def test_ray_cluster_asks_for_the_pods_that_kuberay_makes(
    cluster: Mapping[str, Any], pods: int, demand: Mapping[str, int]
) -> None:
    gang = gang_of(appwrapper(cluster))
    assert (gang.pods, gang.demand) == (pods, Resources(demand))


@pytest.mark.parametrize(
    ("fields", "workers"),
    [
        pytest.param({}, 0, id="nothing-given"),
        pytest.param({"replicas": 3}, 3, id="replicas"),
        pytest.param({"replicas": 1, "minReplicas": 2}, 2, id="raised-to-the-minimum"),
        pytest.param({"minReplicas": 2}, 2, id="minimum-alone"),
        pytest.param({"replicas": 5, "maxReplicas": 4}, 4, id="cut-to-the-maximum"),
        pytest.param({"replicas": 5, "maxReplicas": 0}, 0, id="maximum-of-none"),
        pytest.param({"minReplicas": 3, "maxReplicas": 2}, 2, id="maximum-goes-before-the-minimum"),
        pytest.param({"replicas": 2, "numOfHosts": 4}, 8, id="slices-of-several-hosts"),
        pytest.param({"replicas": 7, "maxReplicas": 2, "numOfHosts": 3}, 6, id="slices-cut-to-the-maximum"),
        pytest.param({"replicas": 2, "numOfHosts": None}, 2, id="null-hosts"),
        pytest.param({"replicas": 2, "suspend": True}, 0, id="suspended-group"),
    ],
)
def test_worker_group_has_as_many_pods_as_kuberay_wants(fields: Mapping[str, Any], workers: int) -> None:
    head, worker = Resources({"cpu": 1000, "memory": 2 * GIB}), Resources({"cpu": 1000, "memory": GIB})
    shapes = (PodSet(1, head), PodSet(workers, worker)) if workers else (PodSet(1, head),)
    gang = gang_of(appwrapper(ray_cluster(HEAD, group(WORKER, **fields))))
    assert gang == Gang(head + worker * workers, 1 + workers, shapes)


def test_suspended_cluster_makes_no_pods() -> None:
    assert gang_of(appwrapper(ray_cluster(HEAD, group(WORKER, replicas=3), suspend=True))) == Gang()


def test_autoscaler_resources_replace_the_default_ones_altogether() -> None:
    own = {"requests": {"cpu": 2}}
    cluster = ray_cluster(HEAD, enableInTreeAutoscaling=True, autoscalerOptions={"resources": own})
    assert gang_of(appwrapper(cluster)).demand == Resources({"cpu": 3000, "memory": 2 * GIB})


def test_autoscaler_with_empty_resources_asks_for_nothing() -> None:
    cluster = ray_cluster(HEAD, enableInTreeAutoscaling=True, autoscalerOptions={"resources": {}})
    assert gang_of(appwrapper(cluster)).demand == Resources({"cpu": 1000, "memory": 2 * GIB})


def test_autoscaler_without_resources_of_its_own_has_the_default_ones() -> None:
    options = {"idleTimeoutSeconds": 60, "resources": None}
    cluster = ray_cluster(HEAD, enableInTreeAutoscaling=True, autoscalerOptions=options)
    assert gang_of(appwrapper(cluster)).demand == Resources({"cpu": 1500, "memory": 2 * GIB + 2**29})


def test_autoscaler_options_cost_nothing_while_the_autoscaler_is_off() -> None:
    cluster = ray_cluster(HEAD, autoscalerOptions={"resources": {"requests": {"cpu": 2}}})
    assert gang_of(appwrapper(cluster)).demand == Resources({"cpu": 1000, "memory": 2 * GIB})


def test_redis_cleanup_costs_nothing_because_it_starts_when_the_cluster_is_gone() -> None:
    cluster = ray_cluster(HEAD, gcsFaultToleranceOptions={"redisAddress": "redis:6379"})
    head = Resources({"cpu": 1000, "memory": 2 * GIB})
    assert gang_of(appwrapper(cluster)) == Gang(head, 1, (PodSet(1, head),))


def test_init_container_of_kuberay_runs_beside_restartable_ones() -> None:
    worker = group({"cpu": "100m"}, replicas=1)
    worker["template"]["spec"]["initContainers"] = [
        {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}
    ]
    assert gang_of(appwrapper(ray_cluster(template({}), worker))).demand == Resources(
        {"cpu": 1200, "memory": 256 * 2**20}
    )


def test_cluster_without_worker_groups_is_its_head() -> None:
    cluster = ray_cluster(HEAD)
    del cluster["spec"]["workerGroupSpecs"]
    assert gang_of(appwrapper(cluster)).pods == 1


def test_v1alpha1_is_read_like_v1() -> None:
    cluster = {**ray_cluster(HEAD, group(WORKER, replicas=1)), "apiVersion": "ray.io/v1alpha1"}
    assert gang_of(appwrapper(cluster)).pods == 2


@pytest.mark.parametrize(
    ("cluster", "problem"),
    [
        (ray_cluster({}), "headGroupSpec.template.spec.containers: must list the containers"),
        (
            ray_cluster(HEAD, group(WORKER, replicas=-1)),
            "workerGroupSpecs[0].replicas: must be between 0 and 2147483647",
        ),
        (
            ray_cluster(HEAD, group(WORKER), group({"cpu": "x"})),
            "workerGroupSpecs[1].template.spec.containers[0].resources.requests.cpu: 'x' is not",
        ),
        (ray_cluster(HEAD, workerGroupSpecs=7), "workerGroupSpecs: must be an object"),
        (ray_cluster(HEAD, enableInTreeAutoscaling="on"), "enableInTreeAutoscaling: must be true or false"),
    ],
)
def test_cluster_we_cannot_read_is_refused_by_field(cluster: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(DemandError) as raised:
        gang_of(appwrapper(cluster))
    assert str(raised.value).startswith(f"spec.resources.GenericItems[0].generictemplate.spec.{problem}")


def test_the_blog_gang_is_two_pods_of_three_cpus_and_a_gpu_each() -> None:
    pod = {"cpu": 3, "memory": "16G", "nvidia.com/gpu": 1}
    cluster = ray_cluster(template(pod), group(pod, replicas=1, minReplicas=1, maxReplicas=1))
    declared = [{"replicas": 2, "requests": pod, "limits": pod}]
    item = {"replicas": 1, "custompodresources": declared, "generictemplate": cluster}
    spec = parse_spec({"priority": 9, "resources": {"GenericItems": [item]}}, namespace="default")
    shape = Resources({"cpu": 3000, "memory": 16_000_000_000, "nvidia.com/gpu": 1})
    assert gang_of(spec) == Gang(shape * 2, 2, (PodSet(1, shape), PodSet(1, shape)))


def test_mcads_own_example_declares_a_gpu_more_than_its_templates_have() -> None:
    cluster = ray_cluster(
        template({"cpu": 2, "memory": "16G", "nvidia.com/gpu": 0}),
        group({"cpu": 4, "memory": "16G", "nvidia.com/gpu": 1}, replicas=1, minReplicas=1, maxReplicas=2),
    )
    declared = DeclaredPodSet(2, {"cpu": 3, "memory": "16G", "nvidia.com/gpu": 1}, {})
    assert gang_of(appwrapper(cluster, declared)) == Gang(
        Resources({"cpu": 6000, "memory": 32_000_000_000, "nvidia.com/gpu": 2}),
        2,
        (
            PodSet(1, Resources({"cpu": 2000, "memory": 16_000_000_000})),
            PodSet(1, Resources({"cpu": 4000, "memory": 16_000_000_000, "nvidia.com/gpu": 1})),
        ),
    )


# --- RayJobs and RayServices: the cluster inside them, and who submits the job -----------------------------


GIBIBYTE, MIB = 2**30, 2**20


def gang(wrapped: Mapping[str, Any], *declared: DeclaredPodSet) -> Gang:
    return gang_of(AppWrapperSpec((WrappedObject(0, wrapped, declared or None),)))


HEAD_POD = PodSet(1, Resources({"cpu": 1000, "memory": 2 * GIBIBYTE}))
WORKER_POD = PodSet(1, Resources({"cpu": 1000, "memory": GIBIBYTE}))
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
    assert found.demand == Resources({"cpu": 2000, "memory": 2 * GIBIBYTE + 512 * MIB + 200 * MIB})


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


# --- The workers that Ray's autoscaler names in a RayCluster, for any JSON ---------------------------------


def raycluster(*named: object) -> dict[str, Any]:
    groups = [{"groupName": "w", "scaleStrategy": {"workersToDelete": each}} for each in named]
    return {"spec": {"workerGroupSpecs": groups}}


@pytest.mark.parametrize(
    ("raw", "names"),
    [
        pytest.param({}, set(), id="nothing"),
        pytest.param({"spec": {"workerGroupSpecs": [{"groupName": "w"}]}}, set(), id="no-strategy"),
        pytest.param(raycluster(["a"], [], ["b", "c"]), {"a", "b", "c"}, id="of-all-groups"),
        pytest.param(raycluster("a", {"b": "c"}, None, [1, ["d"], "e"]), {"e"}, id="malformed"),
        pytest.param(
            {"spec": {"workerGroupSpecs": ["w", None, {"scaleStrategy": 1}]}}, set(), id="no-groups"
        ),
        pytest.param({"spec": {"workerGroupSpecs": "w"}}, set(), id="no-list"),
    ],
)
def test_workers_are_named_in_the_scale_strategies(raw: dict[str, Any], names: set[str]) -> None:
    assert named_to_delete("ray.io", "RayCluster", raw) == names
    assert named_to_delete("example.com", "RayCluster", raw) == set()


def test_as_many_names_are_read_as_one_raycluster_may_need() -> None:
    raw = raycluster([str(number) for number in range(MOST_NAMED + 1)])
    assert len(named_to_delete("ray.io", "RayCluster", raw)) == MOST_NAMED


@pytest.mark.parametrize(
    ("api_version", "kind", "expected"),
    [("ray.io/v1", "RayJob", True), ("ray.io/v1", "RayService", True), ("ray.io/v1", "RayCluster", False)],
)
def test_rayjobs_and_rayservices_own_rayclusters(api_version: str, kind: str, expected: bool) -> None:
    assert owns_rayclusters(ObjectRef(0, api_version, kind, "default", "x")) is expected
    assert not owns_rayclusters(ObjectRef(0, "example.com/v1", kind, "default", "x"))
