"""RayClusters as KubeRay turns them into pods: totals of its own samples, rebuilt with only what counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dispatcher.api.appwrapper import AppWrapperSpec, DeclaredPodSet, WrappedObject, parse_spec
from dispatcher.core.kinds.demand import DemandError
from dispatcher.core.model.gang import Gang, PodSet
from dispatcher.core.model.resources import Resources
from tests.builders import gang_of
from tests.unit.core.kinds.ray import HEAD, WORKER, group, ray_cluster, template

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
