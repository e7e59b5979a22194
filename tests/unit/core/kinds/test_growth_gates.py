"""Pod templates of groups that can grow have the dispatcher's scheduling gate; all others are as their author wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dispatcher.api.names import GROWTH_ANNOTATION, GROWTH_GATE
from dispatcher.core.kinds.drift import differences
from dispatcher.core.kinds.manifest import build, with_gates
from dispatcher.core.kinds.pods.pod_rules import Kind
from dispatcher.core.kinds.pods.podsets import growing_templates
from dispatcher.core.kinds.registry import BUILT_IN
from tests.builders import make_owner, make_template, make_wrapped
from tests.unit.core.kinds import ray

Json = dict[str, Any]

GROUP = ray.group(ray.WORKER, minReplicas=1, maxReplicas=3)
OPEN = ray.group(ray.WORKER, minReplicas=1)
WORKERS = "spec.workerGroupSpecs[0].template"
FIXED = ray.group(ray.WORKER, minReplicas=2, maxReplicas=2)


def scaling(*groups: Mapping[str, Any]) -> Json:
    return ray.cluster(ray.HEAD, *groups, enableInTreeAutoscaling=True)


@pytest.mark.parametrize(
    ("wrapped", "paths"),
    [
        pytest.param(ray.ray_cluster(ray.HEAD, GROUP), {}, id="no-autoscaler"),
        pytest.param({"spec": scaling(GROUP)}, {WORKERS: (1, 1)}, id="cluster"),
        pytest.param(
            {"spec": scaling({**GROUP, "replicas": 2, "numOfHosts": 2})}, {WORKERS: (4, 2)}, id="hosts"
        ),
        pytest.param({"spec": scaling(FIXED)}, {}, id="fixed-size"),
        pytest.param(
            {"spec": scaling(FIXED, OPEN)}, {"spec.workerGroupSpecs[1].template": (1, 1)}, id="no-maximum"
        ),
        pytest.param({"spec": scaling()}, {}, id="no-workers"),
        pytest.param({"spec": {**scaling(GROUP), "enableInTreeAutoscaling": 1}}, {}, id="malformed-flag"),
        pytest.param({"spec": scaling({**GROUP, "maxReplicas": "3"})}, {}, id="malformed-maximum"),
    ],
)
def test_groups_that_the_autoscaler_may_enlarge_can_grow(
    wrapped: Json, paths: dict[str, tuple[int, int]]
) -> None:
    assert growing_templates(kind_of("RayCluster"), wrapped) == paths


@pytest.mark.parametrize(
    ("kind", "wrapped", "path"),
    [
        ("RayCluster", {"spec": scaling(GROUP)}, "spec.workerGroupSpecs[0].template"),
        ("RayJob", ray.ray_job(scaling(GROUP)), "spec.rayClusterSpec.workerGroupSpecs[0].template"),
        ("RayService", ray.ray_service(scaling(GROUP)), "spec.rayClusterConfig.workerGroupSpecs[0].template"),
    ],
)
def test_kinds_of_ray_can_grow(kind: str, wrapped: Json, path: str) -> None:
    assert growing_templates(kind_of(kind), wrapped) == {path: (1, 1)}


def test_ray_job_without_a_cluster_of_its_own_cannot_grow() -> None:
    wrapped = ray.ray_job(scaling(GROUP), clusterSelector={"ray.io/cluster": "theirs"})

    assert not growing_templates(kind_of("RayJob"), wrapped)


def test_gate_and_annotation_are_in_growing_templates_only_and_the_users_own_stay() -> None:
    template = {
        **GROUP["template"],
        "metadata": {"annotations": {"a": "b"}},
        "spec": {**GROUP["template"]["spec"], "schedulingGates": [{"name": "theirs"}]},
    }
    wrapped = make_wrapped({"kind": "RayCluster", "spec": scaling({**GROUP, "template": template}, FIXED)})

    growing, fixed = gated(wrapped.template)["workerGroupSpecs"]

    assert growing["template"]["spec"]["schedulingGates"] == [{"name": "theirs"}, {"name": GROWTH_GATE}]
    assert growing["template"]["metadata"]["annotations"] == {"a": "b", GROWTH_ANNOTATION: f"1 0.{WORKERS}"}
    assert fixed == FIXED
    assert gated(wrapped.template)["headGroupSpec"] == {"template": ray.HEAD}
    assert wrapped.template["spec"]["workerGroupSpecs"][0]["template"] == template


def test_annotation_says_how_many_hosts_a_replica_has() -> None:
    spec = gated({"kind": "RayCluster", "spec": scaling({**GROUP, "replicas": 2, "numOfHosts": 4})})
    annotations = spec["workerGroupSpecs"][0]["template"]["metadata"]["annotations"]
    assert annotations == {GROWTH_ANNOTATION: f"8 0.{WORKERS} 4"}


def test_gate_is_written_once() -> None:
    once = gated({"kind": "RayCluster", "spec": scaling(GROUP)})

    assert gated({"kind": "RayCluster", "spec": once}) == once


@pytest.mark.parametrize("broken", [{"metadata": ["x"]}, {"metadata": {"annotations": 1}}])
def test_malformed_metadata_stays_for_the_api_server_to_refuse(broken: Json) -> None:
    spec = scaling({**GROUP, "template": {**GROUP["template"], **broken}})

    assert gated({"kind": "RayCluster", "spec": spec}) == spec


@pytest.mark.parametrize("own", [[], [{"name": "theirs"}]])
def test_gate_is_no_drift_of_an_object_that_was_created_with_or_without_it(own: list[Json]) -> None:
    spec = {**GROUP["template"]["spec"], "schedulingGates": own}
    cluster = ray.ray_cluster(ray.HEAD, {**GROUP, "template": {"spec": spec}}, enableInTreeAutoscaling=True)
    wrapped = make_wrapped(cluster)
    written, found = wrapped, with_gates(kind_of("RayCluster"), wrapped)

    assert found != written
    assert not differences(build(written, make_owner()), build(found, make_owner()))


def test_object_that_cannot_grow_is_the_same() -> None:
    wrapped = make_wrapped(make_template())

    assert with_gates(kind_of("Pod", ""), wrapped) is wrapped


def kind_of(kind: str, group: str = "ray.io") -> Kind:
    found = BUILT_IN.row(group, kind).pods
    assert found is not None
    return found


def gated(template: Mapping[str, Any]) -> Json:
    spec: Json = with_gates(kind_of("RayCluster"), make_wrapped(dict(template))).template["spec"]
    return spec
