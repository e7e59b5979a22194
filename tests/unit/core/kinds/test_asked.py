"""What the spec of a wrapped object asks for, by its kind and its JSON."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.api.names import KUEUE_QUEUE_LABEL
from dispatcher.core.kinds.asked import Asked, asked_of, makes_pods_in_order
from dispatcher.core.kinds.registry import BUILT_IN

JOB = ("batch", "Job")
RAY = ("ray.io", "RayCluster")
TEMPLATE = {"spec": {"containers": [{"name": "c"}]}}
WORKERS = {"groupName": "w", "replicas": 3, "minReplicas": 1, "maxReplicas": 5, "template": TEMPLATE}
CLUSTER = {"headGroupSpec": {"template": TEMPLATE}, "workerGroupSpecs": [WORKERS]}


def asked(kind: tuple[str, str], spec: object) -> Asked:
    return asked_of(BUILT_IN.row(*kind), {"spec": spec})


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"parallelism": 3, "template": TEMPLATE}, Asked(3), id="pods-of-a-job"),
        pytest.param({"template": TEMPLATE}, Asked(1), id="one-by-default"),
        pytest.param(
            {"parallelism": 3, "suspend": True, "template": TEMPLATE},
            Asked(0, is_suspended=True),
            id="none-while-suspended",
        ),
        pytest.param({"parallelism": 0, "template": TEMPLATE}, Asked(0), id="scaled-to-zero"),
        pytest.param({"parallelism": "many", "template": TEMPLATE}, Asked(None), id="a-number-that-is-none"),
        pytest.param(
            {"parallelism": 2, "suspend": "yes", "template": TEMPLATE}, Asked(2), id="a-flag-that-is-none"
        ),
        pytest.param(
            {"parallelism": 2, "managedBy": "example.com/other", "template": TEMPLATE},
            Asked(2, manager="example.com/other"),
            id="another-manager",
        ),
        pytest.param(
            {"parallelism": 2, "managedBy": "kubernetes.io/job-controller", "template": TEMPLATE},
            Asked(2),
            id="the-usual-manager-is-none",
        ),
        pytest.param(
            {"parallelism": 2, "managedBy": "m" * 100, "template": TEMPLATE},
            Asked(2, manager="m" * 63),
            id="a-manager-of-bounded-length",
        ),
        pytest.param(
            {"parallelism": 2, "managedBy": 7, "template": TEMPLATE}, Asked(2), id="a-manager-that-is-none"
        ),
    ],
)
def test_job_asks_for_its_parallelism_unless_it_is_suspended(spec: dict[str, Any], expected: Asked) -> None:
    assert asked(JOB, spec) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(CLUSTER, Asked(4), id="head-and-workers"),
        pytest.param(CLUSTER | {"suspend": True}, Asked(0, is_suspended=True), id="suspended"),
        pytest.param(
            CLUSTER | {"enableInTreeAutoscaling": True},
            Asked(4, is_autoscaled=True),
            id="as-many-as-its-autoscaler-asks-for-now",
        ),
        pytest.param(CLUSTER | {"workerGroupSpecs": "none"}, Asked(None), id="groups-that-are-no-list"),
    ],
)
def test_raycluster_asks_for_its_head_and_its_workers(spec: dict[str, Any], expected: Asked) -> None:
    assert asked(RAY, spec) == expected


@pytest.mark.parametrize(
    ("metadata", "suspend", "queue"),
    [
        pytest.param({"labels": {KUEUE_QUEUE_LABEL: "users"}}, True, "users", id="suspended"),
        pytest.param({"labels": {KUEUE_QUEUE_LABEL: "users"}}, False, "", id="admitted"),
        pytest.param({"labels": {"app": "train"}}, True, "", id="of-no-queue"),
        pytest.param({"labels": {KUEUE_QUEUE_LABEL: 7}}, True, "", id="a-name-that-is-none"),
        pytest.param({"labels": "none"}, True, "", id="labels-that-are-none"),
        pytest.param([], True, "", id="metadata-that-is-none"),
    ],
)
def test_suspended_object_with_the_label_of_a_queue_waits_for_kueue(
    metadata: object, suspend: bool, queue: str
) -> None:
    raw = {"metadata": metadata, "spec": {"suspend": suspend, "template": TEMPLATE}}
    assert asked_of(BUILT_IN.row(*JOB), raw).queue_of_kueue == queue


def test_name_of_the_queue_of_kueue_has_a_bounded_length() -> None:
    labels = {KUEUE_QUEUE_LABEL: "q" * 300}
    raw = {"metadata": {"labels": labels}, "spec": {"suspend": True, "template": TEMPLATE}}
    assert len(asked_of(BUILT_IN.row(*JOB), raw).queue_of_kueue) == 253


@pytest.mark.parametrize(
    "raw", [None, [], 7, "text", {}, {"spec": None}, {"spec": [1]}, {"spec": {"template": 1}}]
)
@pytest.mark.parametrize("kind", [JOB, RAY])
def test_object_that_is_none_asks_for_an_unknown_or_a_bounded_number(kind: tuple[str, str], raw: Any) -> None:  # noqa: ANN401
    found = asked_of(BUILT_IN.row(*kind), raw)
    assert found.pods in {None, 0, 1}
    assert (found.is_suspended, found.manager, found.is_autoscaled) == (False, "", False)


@pytest.mark.parametrize("kind", ["MPIJob", "PyTorchJob"])
@pytest.mark.parametrize("manager", ["kubeflow.org/mpi-operator", "kubeflow.org/training-operator"])
def test_each_of_kubeflows_operators_is_the_usual_manager_of_its_own_kinds(kind: str, manager: str) -> None:
    is_usual = (kind == "MPIJob") == (manager == "kubeflow.org/mpi-operator")
    found = asked(("kubeflow.org", kind), {"runPolicy": {"managedBy": manager}})
    assert found.manager == ("" if is_usual else manager)


def test_object_of_a_kind_without_pods_asks_for_none_and_of_an_unknown_kind_for_an_unknown_number() -> None:
    assert asked(("", "ConfigMap"), {}) == Asked(0)
    assert asked(("example.com", "Unknown"), {"replicas": 3}) == Asked(None)


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        pytest.param(("apps", "StatefulSet"), {"template": TEMPLATE}, True, id="statefulset"),
        pytest.param(
            ("apps", "StatefulSet"),
            {"template": TEMPLATE, "podManagementPolicy": "Parallel"},
            False,
            id="parallel-statefulset",
        ),
        pytest.param(("apps", "StatefulSet"), {"podManagementPolicy": 7}, True, id="a-policy-that-is-none"),
        pytest.param(JOB, {"template": TEMPLATE}, False, id="job"),
        pytest.param(("example.com", "Unknown"), {}, True, id="not-known"),
    ],
)
def test_pods_are_made_in_order_unless_the_kind_makes_all_at_once(
    kind: tuple[str, str], spec: dict[str, Any], expected: bool
) -> None:
    assert makes_pods_in_order(BUILT_IN.row(*kind), {"spec": spec}) is expected
