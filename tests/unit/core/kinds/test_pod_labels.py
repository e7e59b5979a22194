"""The labels that controllers add to pods are in the row of the kind, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import pytest

from dispatcher.core.kinds.built_in import HEADS, LABELS_OF_ONE_OBJECT, LABELS_OF_ONE_POD, ROWS, KnownKind
from dispatcher.core.kinds.fields import Field

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
    ("jobset.x-k8s.io", "JobSet"): (frozenset({"jobset.sigs.k8s.io/jobset-name"}), NONE),
    ("kubeflow.org", "JAXJob"): TRAINING,
    ("kubeflow.org", "MPIJob"): TRAINING,
    ("kubeflow.org", "PaddleJob"): TRAINING,
    ("kubeflow.org", "PyTorchJob"): TRAINING,
    ("kubeflow.org", "TFJob"): TRAINING,
    ("kubeflow.org", "XGBoostJob"): TRAINING,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): (
        frozenset({"leaderworkerset.sigs.k8s.io/name"}),
        NONE,
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
