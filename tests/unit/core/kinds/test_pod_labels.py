"""The labels that controllers add to pods are in the row of the kind, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pytest

from dispatcher.api.names import GROWTH_ANNOTATION, GROWTH_GATE
from dispatcher.core.kinds.built_in import HEADS, LABELS_OF_ONE_OBJECT, LABELS_OF_ONE_POD, ROWS, KnownKind
from dispatcher.core.kinds.drift import differences
from dispatcher.core.kinds.fields import Field
from dispatcher.core.kinds.manifest import build, with_gates
from dispatcher.core.kinds.pods.pod_rules import Kind
from dispatcher.core.kinds.pods.podsets import growing_templates
from dispatcher.core.kinds.registry import BUILT_IN
from tests.builders import make_owner, make_template, make_wrapped
from tests.unit.core.kinds import ray

NONE: Final = frozenset[str]()
TRAINING: Final = (
    frozenset({"training.kubeflow.org/job-name"}),
    frozenset({"training.kubeflow.org/replica-index"}),
)
RAY: Final = frozenset({"ray.io/cluster", "ray.io/identifier"}), NONE
JOB: Final = frozenset(
    {"batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "controller-uid", "job-name"}
)
LABELS: Final[Mapping[tuple[str, str], tuple[frozenset[str], frozenset[str]]]] = {
    ("", "Pod"): (NONE, NONE),
    ("apps", "Deployment"): (NONE, NONE),
    ("apps", "ReplicaSet"): (NONE, NONE),
    ("apps", "StatefulSet"): (
        NONE,
        frozenset({"apps.kubernetes.io/pod-index", "statefulset.kubernetes.io/pod-name"}),
    ),
    ("batch", "Job"): (JOB, frozenset({"batch.kubernetes.io/job-completion-index"})),
    ("batch.volcano.sh", "Job"): (NONE, NONE),
    ("jobset.x-k8s.io", "JobSet"): (
        frozenset({"jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/jobset-uid"}),
        frozenset(
            f"jobset.sigs.k8s.io/{each}"
            for each in ("job-global-index", "job-group-index", "job-index", "job-key")
        ),
    ),
    ("kubeflow.org", "JAXJob"): TRAINING,
    ("kubeflow.org", "MPIJob"): TRAINING,
    ("kubeflow.org", "PaddleJob"): TRAINING,
    ("kubeflow.org", "PyTorchJob"): TRAINING,
    ("kubeflow.org", "TFJob"): TRAINING,
    ("kubeflow.org", "XGBoostJob"): TRAINING,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): (
        frozenset({"leaderworkerset.sigs.k8s.io/name"}),
        frozenset(
            f"leaderworkerset.sigs.k8s.io/{each}"
            for each in ("group-index", "group-key", "subgroup-index", "subgroup-key", "worker-index")
        )
        | {"controller-revision-hash"},
    ),
    ("ray.io", "RayCluster"): RAY,
    ("ray.io", "RayJob"): RAY,
    ("ray.io", "RayService"): RAY,
}
"""The labels of one object and those of one pod, of each kind that makes pods of templates."""

WITH_PODS: Final = [row for row in ROWS if row.pods is not None and row.pods.rules]


def test_every_kind_with_pods_says_which_labels_its_controller_adds() -> None:
    """A new kind fails here until its labels are looked up, also if there are none."""
    assert {(row.group, row.kind): (row.labels_of_object, row.labels_of_pod) for row in WITH_PODS} == LABELS


@pytest.mark.parametrize("row", WITH_PODS, ids=lambda row: row.kind)
def test_labels_that_carry_the_name_of_the_object_are_those_of_one_object(row: KnownKind) -> None:
    assert row.pods is not None
    root = Field({"kind": row.kind, "metadata": {"name": "the-object"}})
    group = Field({"name": "a", "groupName": "a"}, "spec.groups.Worker", "Worker")
    added = [label for rule in row.pods.rules for label in rule.labels(group, root).items()]
    assert {key for key, value in added if "the-object" in value} <= row.labels_of_object


@pytest.mark.parametrize("row", WITH_PODS, ids=lambda row: row.kind)
def test_head_is_a_label_that_one_template_has(row: KnownKind) -> None:
    assert row.pods is not None
    root = Field({"kind": row.kind, "metadata": {"name": "the-object"}})
    group = Field({"name": "a", "groupName": "a"}, "spec.groups.Worker", "Worker")
    added = [rule.labels(group, root).items() for rule in row.pods.rules]
    assert sum(row.head in set(each) for each in added) == (row.head is not None)


def all_of(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)


def test_what_readers_of_labels_know_is_that_of_all_rows() -> None:
    assert all_of(row.labels_of_object for row in ROWS) == LABELS_OF_ONE_OBJECT
    assert all_of(row.labels_of_pod for row in ROWS) == LABELS_OF_ONE_POD
    assert {row.head for row in ROWS if row.head} == HEADS == {("ray.io/node-type", "head")}


# -----------------------------------------------------------------------------------------------------------
# Pod templates of groups that can grow have the dispatcher's scheduling gate; all others are as their author
# wrote.


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
