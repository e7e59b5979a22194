"""Whatever JSON a template is, it has a demand or a refusal that can be shown and stored."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.api.appwrapper import (
    AppWrapperSpec,
    DeclaredPodSet,
    Spelling,
    TemplatePodSet,
    WrappedObject,
)
from dispatcher.core.kinds.demand import DemandError, charge_of
from dispatcher.core.kinds.registry import BUILT_IN
from dispatcher.core.model.gang import Gang
from dispatcher.core.model.resources import LARGEST_AMOUNT
from dispatcher.core.scheduling.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.explain import uncounted_claims
from tests.builders import gang_of

CONTAINER = {
    "name": "c",
    "restartPolicy": "Always",
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": 2, "nvidia.com/gpu": 1}},
}
CONDITIONS = {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a100"]}]}
POD_TERMS = [
    {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": "train"}, **CONDITIONS},
        "namespaces": ["default"],
        "namespaceSelector": CONDITIONS,
        "matchLabelKeys": ["app"],
        "mismatchLabelKeys": ["app"],
    }
]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
AFFINITY = {
    "nodeAffinity": {
        REQUIRED: {
            "nodeSelectorTerms": [
                {
                    **CONDITIONS,
                    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}],
                }
            ]
        }
    },
    "podAffinity": {REQUIRED: POD_TERMS},
    "podAntiAffinity": {REQUIRED: POD_TERMS},
}
POD_TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "train", "gpu": "a100"}},
    "spec": {
        "containers": [CONTAINER],
        "initContainers": [CONTAINER],
        "resources": {"requests": {"cpu": 1}, "limits": {"memory": "1Gi"}},
        "overhead": {"cpu": 1},
        "nodeSelector": {"zone": "west"},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
        "affinity": AFFINITY,
        "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}],
    },
}
WORKERS = {"replicas": 2, "minReplicas": 1, "maxReplicas": 3, "numOfHosts": 2, "suspend": False}
REPLICATED = {"replicas": 2, "template": POD_TEMPLATE}
RAY = {
    "headGroupSpec": {"template": POD_TEMPLATE},
    "workerGroupSpecs": [{**WORKERS, "template": POD_TEMPLATE}],
    "enableInTreeAutoscaling": True,
    "autoscalerOptions": {"resources": {"requests": {"cpu": 1}}},
}
OBJECT = {
    "metadata": {"name": "x", "namespace": "default", "labels": {"app": "train", "gpu": "a100"}},
    "spec": {
        **POD_TEMPLATE["spec"],
        "suspend": False,
        "replicas": 2,
        "parallelism": 2,
        "completions": 3,
        "template": POD_TEMPLATE,
        **RAY,
        "rayClusterSpec": RAY,
        "rayClusterConfig": RAY,
        "submissionMode": "K8sJobMode",
        "submitterPodTemplate": POD_TEMPLATE,
        "clusterSelector": {},
        "runPolicy": {"suspend": False},
        "tasks": [REPLICATED],
        "replicatedJobs": [{"replicas": 2, "template": {"spec": {**REPLICATED, "parallelism": 2}}}],
        "leaderWorkerTemplate": {
            "size": 3,
            "leaderTemplate": POD_TEMPLATE,
            "workerTemplate": POD_TEMPLATE,
        },
        **{
            f"{framework}ReplicaSpecs": {"Master": REPLICATED, "Worker": REPLICATED}
            for framework in ("jax", "mpi", "paddle", "pytorch", "tf", "xgb")
        },
    },
}
"""Every field that any kind reads, in one object."""


def paths(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    children: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield from paths(child, (*path, key))


def replaced(path: tuple[str | int, ...], junk: object) -> dict[str, Any]:
    whole: dict[str, Any] = copy.deepcopy(OBJECT)
    parent: Any = whole
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = junk
    return whole


NUMBERS = st.integers() | st.sampled_from([2**31 - 1, 2**62, 2**63, -1, 10**4000]) | st.floats()
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5) | st.sampled_from(["1e999999999", "1Gi", "\0"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
ANY_KIND = st.sampled_from([*BUILT_IN.derivable, ("example.com", "Simulation")])
ANY_OBJECT = st.builds(replaced, st.sampled_from(list(paths(OBJECT))), JSON) | st.dictionaries(
    st.sampled_from(["spec", "metadata", "x"]), JSON
)
QUANTITIES = st.dictionaries(
    st.sampled_from(["cpu", "gpu"]) | st.text(max_size=2), st.integers() | st.text(max_size=3)
)
DECLARED = st.none() | st.lists(
    st.builds(DeclaredPodSet, st.integers(0, 2**31 - 1), QUANTITIES, QUANTITIES), max_size=2
).map(tuple)
PATHS = st.sampled_from(
    ["template", "template.spec.template", "template.spec.tasks[0].template"]
) | st.from_regex(r"template(\.spec|\[0\]|[.\[\]a-z9-]){0,4}", fullmatch=True)
POD_SETS = st.lists(st.builds(TemplatePodSet, PATHS, st.integers(0, 2**31 - 1)), max_size=2).map(tuple)


@settings(max_examples=200)
@given(ANY_KIND, ANY_OBJECT, DECLARED, POD_SETS, st.sampled_from(["v1beta1", "v1beta2"]))
def test_any_template_makes_a_gang_or_a_refusal(
    kind: tuple[str, str],
    template: dict[str, Any],
    declared: tuple[DeclaredPodSet, ...] | None,
    pod_sets: tuple[TemplatePodSet, ...],
    spelling: Spelling,
) -> None:
    group = f"{kind[0]}/v1" if kind[0] else "v1"
    raw = {**template, "apiVersion": group, "kind": kind[1]}
    wrapped = WrappedObject(0, raw, declared, pod_sets=pod_sets)
    gang, message = Gang(), ""
    try:
        gang = charge_of(AppWrapperSpec((wrapped,), spelling=spelling)).gang
        uncounted = uncounted_claims(gang, "hub", CapacitySnapshot())
        message = "" if uncounted is None else uncounted.message
    except DemandError as error:
        message = str(error)
    assert message.isprintable()
    assert len(message) < 1000
    assert all(0 < amount <= LARGEST_AMOUNT for amount in gang.demand.values())
    assert 0 <= gang.pods <= LARGEST_AMOUNT


def test_the_object_that_is_mutilated_is_readable_as_every_kind() -> None:
    for group, kind in BUILT_IN.derivable:
        wrapped = WrappedObject(0, {**OBJECT, "apiVersion": f"{group}/v1".lstrip("/"), "kind": kind})
        assert isinstance(gang_of(AppWrapperSpec((wrapped,))), Gang)
