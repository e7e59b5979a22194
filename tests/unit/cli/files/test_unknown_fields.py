"""The fields that a kind has where a field is unknown, by the OpenAPI document of an API server."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.cli.files.unknown_fields import fields_at

Json = dict[str, Any]


def refers_to(name: str) -> Json:
    return {"allOf": [{"$ref": f"#/components/schemas/{name}"}], "default": {}}


def kind(name: str, version: str = "v1", group: str = "batch") -> Json:
    return {"x-kubernetes-group-version-kind": [{"group": group, "version": version, "kind": name}]}


OPENAPI: Json = {
    "components": {
        "schemas": {
            "io.k8s.api.batch.v1.Job": {
                "properties": {"spec": refers_to("JobSpec"), "metadata": {}},
                **kind("Job"),
            },
            "io.k8s.api.batch.v1.JobList": {"properties": {"items": {}}, **kind("JobList")},
            "JobSpec": {"properties": {"parallelism": {}, "template": refers_to("Template")}},
            "Template": {"properties": {"spec": {"$ref": "#/components/schemas/PodSpec"}}},
            "PodSpec": {
                "properties": {
                    "containers": {"type": "array", "items": refers_to("Container")},
                    "overhead": {"type": "object", "additionalProperties": refers_to("Container")},
                }
            },
            "Container": {"properties": {"image": {}, "name": {}}},
            "Loop": {"properties": {"spec": refers_to("Loop"), "a": {}}, **kind("Loop")},
            "Endless": {"allOf": [{"$ref": "#/components/schemas/Endless"}], **kind("Endless")},
            "Odd": {"properties": "none", **kind("Odd")},
        }
    }
}


@pytest.mark.parametrize(
    ("of", "path", "fields"),
    [
        ("Job", "spec.paralellism", ["parallelism", "template"]),
        ("Job", "specs", ["metadata", "spec"]),
        ("Job", "spec.template.spec.containers[0].imagee", ["image", "name"]),
        ("Job", "spec.template.spec.overhead.gpu.nam", ["image", "name"]),
        ("Job", "spec.nothing.here", []),
        ("Loop", "spec.spec.spec.b", ["a", "spec"]),
        ("Endless", "spec.a", []),
        ("Odd", "a", []),
        ("Unknown", "spec.a", []),
        ("Job", "", ["metadata", "spec"]),
    ],
)
def test_fields_beside_an_unknown_one(of: str, path: str, fields: list[str]) -> None:
    assert fields_at(OPENAPI, "batch/v1", of, path) == fields


@pytest.mark.parametrize("openapi", [{}, {"components": []}, {"components": {"schemas": {"a": None}}}])
def test_document_without_schemas_has_no_fields(openapi: Json) -> None:
    assert fields_at(openapi, "batch/v1", "Job", "spec.a") == []


def test_core_group_has_an_empty_name() -> None:
    openapi = {"components": {"schemas": {"Pod": {"properties": {"spec": {}}, **kind("Pod", group="")}}}}
    assert fields_at(openapi, "v1", "Pod", "spek") == ["spec"]
