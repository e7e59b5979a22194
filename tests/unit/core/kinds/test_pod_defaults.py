"""What the API server adds to pods at their creation: into which templates, and which not."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.api.appwrapper import AppWrapperSpec, WrappedObject
from dispatcher.core.kinds.demand import DemandError
from dispatcher.core.kinds.pods.pod_defaults import (
    MOST_RESOURCES,
    NO_DEFAULTS,
    PodDefaults,
    default_requests,
    largest,
    overhead,
    runtime_classes,
    with_defaults,
)
from dispatcher.core.model.resources import Resources
from tests.builders import gang_of

Json = dict[str, Any]
DEFAULTS = PodDefaults({"cpu": "500m", "memory": "1Gi"}, {"kata": {"cpu": "250m", "memory": "128Mi"}})
GI = 2**30


def container(**resources: Json) -> Json:
    return {"name": "main", "resources": resources}


def job(*containers: object, count: int = 1, **spec: object) -> AppWrapperSpec:
    template = {"spec": {"containers": list(containers), **spec}}
    return wrapped(
        {"apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": count, "template": template}}
    )


def wrapped(template: Json) -> AppWrapperSpec:
    return AppWrapperSpec((WrappedObject(0, {"metadata": {"name": "x"}, **template}),))


def demand(spec: AppWrapperSpec, defaults: PodDefaults = DEFAULTS) -> Resources:
    return gang_of(with_defaults(spec, defaults)).demand


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(job(container()), {"cpu": 500, "memory": GI}, id="nothing-is-requested"),
        pytest.param(job({"name": "main"}, count=3), {"cpu": 1500, "memory": 3 * GI}, id="no-resources"),
        pytest.param(
            job(container(requests={"cpu": "2"})), {"cpu": 2000, "memory": GI}, id="a-request-stays"
        ),
        pytest.param(
            job(container(limits={"memory": "3Gi"})),
            {"cpu": 500, "memory": 3 * GI},
            id="a-limit-is-the-request",
        ),
        pytest.param(job(container(requests={"cpu": 0})), {"memory": GI}, id="a-request-of-zero-stays"),
        pytest.param(
            job(container(requests={"cpu": None})), {"cpu": 500, "memory": GI}, id="a-null-is-no-request"
        ),
        pytest.param(
            job(container(), container()), {"cpu": 1000, "memory": 2 * GI}, id="each-container-gets-them"
        ),
        pytest.param(
            job(container(requests={"cpu": "100m", "memory": "1"}), initContainers=[container()]),
            {"cpu": 500, "memory": GI},
            id="init-containers-get-them",
        ),
        pytest.param(
            job(container(), runtimeClassName="kata"),
            {"cpu": 750, "memory": GI + 2**27},
            id="a-runtime-class-adds-its-overhead",
        ),
        pytest.param(
            job(container(), runtimeClassName="kata", overhead={"cpu": "1"}),
            {"cpu": 1500, "memory": GI},
            id="an-overhead-in-the-template-stays",
        ),
        pytest.param(
            job(container(), runtimeClassName="runc"), {"cpu": 500, "memory": GI}, id="another-runtime-class"
        ),
        pytest.param(
            wrapped({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container()]}}),
            {"cpu": 500, "memory": GI},
            id="a-bare-pod",
        ),
    ],
)
def test_templates_request_what_their_pods_will(spec: AppWrapperSpec, expected: dict[str, int]) -> None:
    assert demand(spec) == Resources(expected)


def test_every_pod_template_of_a_kind_gets_the_defaults() -> None:
    template = {"spec": {"containers": [container()]}}
    workers = [{"groupName": name, "replicas": 2, "template": template} for name in ("a", "b")]
    cluster = wrapped(
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "spec": {"headGroupSpec": {"template": template}, "workerGroupSpecs": workers},
        }
    )
    assert demand(cluster)["cpu"] == 5 * 500


def test_nothing_else_changes() -> None:
    spec = job(container(requests={"cpu": "1", "memory": "1Gi"}))
    assert with_defaults(spec, NO_DEFAULTS) is spec
    assert with_defaults(spec, DEFAULTS).wrapped[0].template is spec.wrapped[0].template
    before = job(container())
    template = before.wrapped[0].template
    with_defaults(before, DEFAULTS)
    assert template == job(container()).wrapped[0].template


@pytest.mark.parametrize(
    "malformed", ["text", {"resources": []}, {"resources": {"requests": 7}}, {"resources": {"limits": "8"}}]
)
def test_a_malformed_container_is_refused_as_without_defaults(malformed: object) -> None:
    spec = job(malformed)
    with pytest.raises(DemandError) as without:
        gang_of(spec)
    with pytest.raises(DemandError) as refused:
        demand(spec)
    assert str(refused.value) == str(without.value)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ([{"type": "Container", "defaultRequest": {"cpu": "1"}, "default": {"cpu": "2"}}], {"cpu": "1"}),
        ([{"type": "Pod", "defaultRequest": {"cpu": "1"}}], {}),
        ([{"type": "Container", "defaultRequest": None}, None, "text"], {}),
        ([{"type": "Container", "defaultRequest": {"cpu": "a lot", "memory": "1Gi"}}], {"memory": "1Gi"}),
        (None, {}),
    ],
)
def test_defaults_are_those_of_containers(limits: object, expected: Json) -> None:
    assert default_requests([{"spec": {"limits": limits}}]) == expected


def test_of_several_limit_ranges_the_largest_default_counts() -> None:
    ranges = [
        {"spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": quantity}}]}}
        for quantity in ("900m", "1", "0.5")
    ]
    assert default_requests([*ranges, {"spec": None}, {}]) == {"cpu": "1"}


@pytest.mark.parametrize(
    ("runtime_class", "expected"),
    [
        ({"overhead": {"podFixed": {"cpu": "250m", "memory": "1Gi"}}}, {"cpu": "250m", "memory": "1Gi"}),
        ({"overhead": {"podFixed": {"cpu": "a lot", "a b": "1", "memory": "-1"}}}, {}),
        ({"overhead": {"podFixed": "text"}}, {}),
        ({"overhead": None}, {}),
        ({}, {}),
    ],
)
def test_overhead_is_the_readable_part(runtime_class: Json, expected: Json) -> None:
    assert overhead(runtime_class) == expected


def test_few_resources_of_a_cluster_count() -> None:
    many = {f"resource-{number}": "1" for number in range(MOST_RESOURCES + 1)}
    assert len(overhead({"overhead": {"podFixed": many}})) == MOST_RESOURCES
    limits = [{"type": "Container", "defaultRequest": many}]
    assert len(default_requests([{"spec": {"limits": limits}}])) == MOST_RESOURCES


@pytest.mark.parametrize(
    ("each_cluster", "expected"),
    [
        ((), NO_DEFAULTS),
        ((DEFAULTS, NO_DEFAULTS), DEFAULTS),
        (
            (PodDefaults({"cpu": "900m", "memory": "1Gi"}), PodDefaults({"cpu": "1", "memory": "1Ki"})),
            PodDefaults({"cpu": "1", "memory": "1Gi"}),
        ),
        (
            (
                PodDefaults(overheads={"kata": {"cpu": "1"}}),
                PodDefaults(overheads={"kata": {"cpu": "2", "memory": "1Gi"}, "runc": {"cpu": "1m"}}),
            ),
            PodDefaults(overheads={"kata": {"cpu": "2", "memory": "1Gi"}, "runc": {"cpu": "1m"}}),
        ),
    ],
)
def test_of_several_clusters_the_largest_defaults_count(
    each_cluster: tuple[PodDefaults, ...], expected: PodDefaults
) -> None:
    assert largest(each_cluster) == expected
    assert largest(reversed(each_cluster)) == expected


def test_runtime_classes_are_those_without_an_overhead_in_the_template() -> None:
    assert runtime_classes(job(container(), runtimeClassName="kata")) == {"kata"}
    assert not runtime_classes(job(container(), runtimeClassName="kata", overhead={"cpu": 1}))
    assert not runtime_classes(job(container(), runtimeClassName=7))
    assert not runtime_classes(job(container()))
