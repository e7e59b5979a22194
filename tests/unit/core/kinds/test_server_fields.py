"""Fields that are the server's to write are told of where they say something, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.api.appwrapper import AppWrapperSpec, WrappedObject, parse_spec
from dispatcher.core.kinds.template_fields import warning
from tests.builders import make_template

Json = dict[str, Any]
TEMPLATE = "spec.resources.GenericItems[0].generictemplate"


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
    expected = ", ".join(f"{TEMPLATE}.{path}" for path in paths)
    assert warning_of(template) == (f"not created: {expected}" if paths else "")


def test_few_of_many_are_named() -> None:
    said = warning_of(*(make_template(name=f"p-{number}", finalizers=["a/b"]) for number in range(30)))
    assert said.count(".metadata.finalizers") == 8
    assert said.endswith(" and 22 more")


def test_path_is_as_its_author_spelled_it() -> None:
    component = {"template": make_template(name="x", finalizers=["a/b"])}
    spec = parse_spec({"components": [component]}, namespace="default")
    assert warning(spec) == "not created: spec.components[0].template.metadata.finalizers"
