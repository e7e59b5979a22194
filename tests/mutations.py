"""AppWrappers with a few random mistakes in them: what tired people, broken templates and hostile users write."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from tests.drawn import drawn

Json = dict[str, Any]

NAME = "subject"
"""In every name of a document, so that names can be made unique afterwards."""

_POD_SPEC = {
    "containers": [
        {
            "name": "main",
            "image": "none",
            "env": [{"name": "A", "value": "b"}],
            "resources": {"requests": {"cpu": "10m", "memory": "1Mi"}, "limits": {"cpu": "20m"}},
        }
    ],
    "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}],
    "restartPolicy": "Never",
}
_LABELS = {"app": NAME}
_JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": NAME, "labels": _LABELS, "annotations": {"a": "b"}},
    "spec": {"parallelism": 1, "completions": 1, "template": {"metadata": {}, "spec": _POD_SPEC}},
}
_DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": NAME},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": _LABELS},
        "template": {"metadata": {"labels": _LABELS}, "spec": {**_POD_SPEC, "restartPolicy": "Always"}},
    },
}
_POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}, "spec": _POD_SPEC}
_CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": {"a": "b"}}
_SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"generateName": f"{NAME}-"},
    "spec": {"selector": _LABELS, "ports": [{"port": 80}]},
}
_RAYCLUSTER = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "metadata": {"name": NAME},
    "spec": {
        "headGroupSpec": {"rayStartParams": {"a": "b"}, "template": {"spec": _POD_SPEC}},
        "workerGroupSpecs": [
            {"groupName": "w", "replicas": 0, "rayStartParams": {}, "template": {"spec": _POD_SPEC}}
        ],
    },
}
_DECLARED = [{"replicas": 1, "requests": {"cpu": "10m", "memory": "1Mi"}, "limits": {"cpu": 1}}]
_SCHEDULING = {
    "minAvailable": 1,
    "requeuing": {"timeInSeconds": 300, "growthType": "linear"},
    "dispatchDuration": {"limit": 60},
}


def _document(**spec: Any) -> Json:  # noqa: ANN401
    metadata = {"name": NAME, "labels": {"a": "b"}, "annotations": {"c": "d"}}
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": metadata,
        "spec": spec,
    }


def _items(*templates: Json, **fields: Any) -> Json:  # noqa: ANN401
    return {"GenericItems": [{"generictemplate": template, **fields} for template in templates]}


DOCUMENTS = (
    _document(resources=_items(_JOB), priority=1, priorityslope=0.5),
    _document(resources=_items(_JOB, custompodresources=_DECLARED), schedulingSpec=_SCHEDULING),
    _document(resources=_items(_DEPLOYMENT, _CONFIG_MAP)),
    _document(resources=_items(_POD, completionstatus="Complete")),
    _document(resources=_items(_CONFIG_MAP, _SERVICE)),
    _document(resources=_items(_RAYCLUSTER)),
    _document(
        components=[{"template": _JOB, "podSets": [{"path": "template.spec.template", "replicas": 1}]}]
    ),
)

# No whole number between 1 and 2^31-1: what is declared is believed, and so many pods would really be made.
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**31, 2**62, 2**63, 0.5, 1e30),
    *("", "\0", "a\0b", "-1", "lots", "1e30", str(2**63), "é", "x y", "x" * 300, "kube-system", "../../x"),
    *([], {}, [None], {"": ""}, {"a\0b": "c"}, {"a": {"b": [{}]}}),
    {"apiVersion": "workload.codeflare.dev/v1beta1", "kind": "AppWrapper", "metadata": {"name": "inner"}},
)
ODD_KEYS = ("", "a\0b", "namespace", "generateName", "ownerReferences", "replicas", "suspend", "x" * 300)

Draw = Callable[[st.SearchStrategy[Any]], Any]
Place = tuple[Any, Any]
"""A list or object, and the index or key of a value in it."""


@st.composite
def mutated(draw: Draw) -> Json:
    """One of `DOCUMENTS` with one to three mistakes, anywhere but in its kind and name."""
    document: Json = json.loads(json.dumps(draw(st.sampled_from(DOCUMENTS))))  # nothing in it is shared
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(list(_places(document))))
        match draw(st.sampled_from(["replace", "replace", "drop", "add", "repeat", "swap"])):
            case "replace":
                container[key] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
            case "drop":
                del container[key]
            case "add" if isinstance(container, dict):
                container[draw(st.sampled_from(ODD_KEYS))] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
            case "repeat" if isinstance(container, list):
                container.append(copy.deepcopy(container[key]))
            case _:
                other, there = draw(st.sampled_from(list(_places(document))))
                container[key] = copy.deepcopy(other[there])
    return document


def mutants(count: int) -> list[Json]:
    """The same `count` documents in every run, each with names of its own."""
    return [
        json.loads(json.dumps(document).replace(NAME, f"mutant-{number}"))
        for number, document in enumerate(drawn(mutated(), count))
    ]


def _places(document: Json) -> Iterator[Place]:
    if "spec" in document:
        yield document, "spec"
        yield from _below(document["spec"])
    for key in sorted(document["metadata"].keys() - {"name"}):
        yield document["metadata"], key
        yield from _below(document["metadata"][key])


def _below(value: object) -> Iterator[Place]:
    entries: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, dict):
        entries = iter(value.items())
    elif isinstance(value, list):
        entries = iter(enumerate(value))
    for key, entry in entries:
        yield value, key
        yield from _below(entry)
