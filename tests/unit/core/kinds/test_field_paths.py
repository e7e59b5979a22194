"""Templates with the same fields have the same digest, whatever their values."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.api.appwrapper import AppWrapperSpec, WrappedObject, parse_spec
from dispatcher.core.kinds.template_fields import digest_of_paths, fields_alone, warning
from tests.builders import make_template

TEMPLATE = {"kind": "Job", "spec": {"parallelism": 1, "containers": [{"name": "a", "args": ["x"]}]}}


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        pytest.param(TEMPLATE, True, id="itself"),
        pytest.param(
            {"spec": {"containers": [{"args": ["y", "z"], "name": "b"}], "parallelism": 7}, "kind": "Pod"},
            True,
            id="other-values-and-order",
        ),
        pytest.param({**TEMPLATE, "spek": 1}, False, id="a-field-more"),
        pytest.param({"kind": "Job"}, False, id="a-field-less"),
        pytest.param(
            {"kind": "Job", "spec": {"parallelism": 1, "containers": [{"name": "a", "arg": ["x"]}]}},
            False,
            id="another-field-in-a-list",
        ),
        pytest.param(
            {"kind": "Job", "spec": {"parallelism": 1, "containers": [{"name": "a", "args": ["x"]}] * 2}},
            False,
            id="another-length-of-a-list-of-objects",
        ),
    ],
)
def test_digest_depends_on_the_fields_alone(other: object, is_same: bool) -> None:
    assert (digest_of_paths(TEMPLATE) == digest_of_paths(other)) is is_same


def test_place_of_an_object_in_a_list_counts() -> None:
    assert digest_of_paths([{}, 1]) != digest_of_paths([1, {}])


def test_any_depth_and_any_name_is_taken() -> None:
    deep: object = {"\ud800": 1}
    for _ in range(20_000):
        deep = [deep]
    assert len(digest_of_paths(deep)) == 32


def test_fields_alone_have_no_value_of_the_author() -> None:
    container = {
        "name": "secret-name",
        "image": "registry.example.com/secret:7",
        "args": ["secret", "secret"],
        "env": [{"name": "TOKEN", "value": "secret"}, {"name": "MORE", "value": "secret"}],
        "resources": {"limits": {"cpu": "500m", "memory": 1024}},
        "stdin": True,
        "lifecycle": None,
        "replica": 0.25,
    }
    metadata: dict[str, Any] = {
        "name": "secret",
        "annotations": {"key": "secret"},
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    template = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "timeout": "90s",
        "containers": [container],
    }
    assert fields_alone(template, "team-a") == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "field-check",
            "namespace": "team-a",
            "annotations": {"key": "1000"},
            "creationTimestamp": "2000-01-01T00:00:00Z",
        },
        "timeout": "1s",
        "containers": [
            {
                "name": "1000",
                "image": "1000",
                "args": ["1000"],
                "env": [{"name": "1000", "value": "1000"}] * 2,
                "resources": {"limits": {"cpu": "1000", "memory": 1}},
                "stdin": False,
                "lifecycle": None,
                "replica": 0.5,
            }
        ],
    }
    assert digest_of_paths(fields_alone(template, "team-a")["containers"]) == digest_of_paths([container])


def test_fields_of_a_template_of_any_depth_are_found() -> None:
    deep: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod"}
    inner = deep
    for _ in range(20_000):
        inner["spec"] = inner = {}
    assert digest_of_paths(fields_alone(deep, "team-a")["spec"]) == digest_of_paths(deep["spec"])
    while "spec" in deep:  # taken apart from outside: the interpreter ends a deep value by recursion
        deep = deep["spec"]


# --- Fields that are the server's to write are told of where they say something, and nowhere else ----------


Json = dict[str, Any]
SERVERS_TEMPLATE = "spec.resources.GenericItems[0].generictemplate"


def warning_of(*templates: Json) -> str:
    return warning(AppWrapperSpec(tuple(WrappedObject(*each) for each in enumerate(templates))))


def workers(**metadata: object) -> Json:
    """A Ray cluster whose workers have this metadata."""
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "a"}]}}
    spec = {"workerGroupSpecs": [{"template": pod}]}
    return {**make_template("RayCluster", "ray.io/v1"), "spec": spec}


@pytest.mark.parametrize(
    ("template", "paths"),
    [
        pytest.param(make_template(), [], id="nothing-of-the-kind"),
        pytest.param(make_template(name="x", finalizers=["a/b"]), ["metadata.finalizers"], id="finalizer"),
        pytest.param(
            {**make_template(name="x", uid="1", resourceVersion="2"), "status": {"phase": "Running"}},
            ["metadata.uid", "metadata.resourceVersion", "status"],
            id="read-from-a-cluster",
        ),
        pytest.param(
            {
                **make_template(name="x", creationTimestamp=None, finalizers=[], ownerReferences=None),
                "status": {},
            },
            [],
            id="said-nothing",
        ),
        pytest.param(make_template(name="x", generateName="y-"), [], id="name-and-prefix"),
        pytest.param(
            workers(deletionTimestamp="2020-01-01T00:00:00Z", deletionGracePeriodSeconds=9),
            [
                "spec.workerGroupSpecs[0].template.metadata.deletionTimestamp",
                "spec.workerGroupSpecs[0].template.metadata.deletionGracePeriodSeconds",
            ],
            id="in-a-pod-template",
        ),
        pytest.param(
            {
                **make_template("ConfigMap"),
                "data": {"metadata": {"finalizers": ["a/b"]}, "status": {"a": "b"}},
            },
            [],
            id="elsewhere",
        ),
    ],
)
def test_dropped_fields_are_named_by_their_paths(template: Json, paths: list[str]) -> None:
    expected = ", ".join(f"{SERVERS_TEMPLATE}.{path}" for path in paths)
    assert warning_of(template) == (f"not created: {expected}" if paths else "")


def test_few_of_many_are_named() -> None:
    said = warning_of(*(make_template(name=f"p-{number}", finalizers=["a/b"]) for number in range(30)))
    assert said.count(".metadata.finalizers") == 8
    assert said.endswith(" and 22 more")


def test_path_is_as_its_author_spelled_it() -> None:
    component = {"template": make_template(name="x", finalizers=["a/b"])}
    spec = parse_spec({"components": [component]}, namespace="default")
    assert warning(spec) == "not created: spec.components[0].template.metadata.finalizers"
