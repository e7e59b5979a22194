"""A declaration stands for an object with an unreadable template, but not for its readable ones."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.api.appwrapper import AppWrapperSpec, DeclaredPodSet, Spelling, TemplatePodSet, WrappedObject
from dispatcher.core.kinds.demand import Charge, DemandError, charge_of
from dispatcher.core.kinds.pods.pod_defaults import ChargeRule
from dispatcher.core.kinds.registry import BUILT_IN
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.resources import LARGEST_AMOUNT, NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.fit.refused import uncounted_claims
from tests.builders import gang_of
from tests.unit.core.kinds.ray import WORKER, cluster, group, ray_cluster, ray_job, template

AT = "spec.resources.GenericItems[0].custompodresources"
NEGATIVE = template({"cpu": -1})
GIB = 2**30
TWO_WORKERS = group({"cpu": 4, "memory": "1Gi", "gpu": 2}, replicas=2)
WORKERS = PodSet(2, Resources({"cpu": 4000, "memory": GIB, "gpu": 2}))


def charge(
    wrapped: Mapping[str, Any], *declared: DeclaredPodSet, rule: ChargeRule = ChargeRule.LARGER
) -> Charge:
    return charge_of(AppWrapperSpec((WrappedObject(0, wrapped, declared),)), rule)


def pods(replicas: int, **requests: int | str) -> DeclaredPodSet:
    return DeclaredPodSet(replicas, requests, {})


@pytest.mark.parametrize(
    ("declared", "rule", "expected"),
    [
        pytest.param(
            pods(1, cpu=1, memory="2Gi"),
            ChargeRule.LARGER,
            Charge(
                Gang(Resources({"cpu": 8000, "memory": 2 * GIB, "gpu": 4}), 2, (WORKERS,)),
                (
                    f"{AT}: cpu: 1 declared, 8 by the template, gpu: 0 declared, 4 by the template; "
                    "the larger is charged",
                ),
            ),
            id="less-than-the-readable-templates",
        ),
        pytest.param(
            pods(3, cpu=3, memory="1Gi", gpu=2),
            ChargeRule.LARGER,
            Charge(Gang(Resources({"cpu": 9000, "memory": 3 * GIB, "gpu": 6}), 3, (WORKERS,))),
            id="more-than-the-readable-templates",
        ),
        pytest.param(
            pods(3, cpu=1, memory="1Gi"),
            ChargeRule.LARGER,
            Charge(
                Gang(Resources({"cpu": 8000, "memory": 3 * GIB, "gpu": 4}), 3, (WORKERS,)),
                (
                    f"{AT}: cpu: 3 declared, 8 by the template, gpu: 0 declared, 4 by the template; "
                    "the larger is charged",
                ),
            ),
            id="each-resource-by-itself",
        ),
        pytest.param(
            pods(1, cpu=1, memory="2Gi", gpu=4),
            ChargeRule.TRUSTED,
            Charge(
                Gang(Resources({"cpu": 1000, "memory": 2 * GIB, "gpu": 4}), 2, (WORKERS,)),
                (f"{AT}: cpu: 1 declared, 8 by the template; what is declared is charged",),
            ),
            id="trusted",
        ),
    ],
)
def test_readable_templates_count_beside_a_declaration(
    declared: DeclaredPodSet, rule: ChargeRule, expected: Charge
) -> None:
    assert charge(ray_cluster(NEGATIVE, TWO_WORKERS), declared, rule=rule) == expected


@pytest.mark.parametrize(
    "wrapped",
    [
        pytest.param(ray_cluster(NEGATIVE), id="no-other-template"),
        pytest.param(ray_cluster(NEGATIVE, group(WORKER, replicas="2")), id="unreadable-count"),
        pytest.param(ray_cluster(NEGATIVE, group(WORKER, replicas=0)), id="no-pods"),
        pytest.param(ray_cluster(NEGATIVE, workerGroupSpecs=7), id="unreadable-list"),
        pytest.param(ray_cluster(NEGATIVE, TWO_WORKERS, suspend="no"), id="unreadable-flag"),
    ],
)
def test_declaration_alone_is_charged_if_no_template_makes_readable_pods(wrapped: Mapping[str, Any]) -> None:
    shape = Resources({"cpu": 1000})
    assert charge(wrapped, pods(2, cpu=1)) == Charge(Gang(shape * 2, 2, (PodSet(2, shape),)))


@pytest.mark.parametrize(
    "declared",
    [
        pytest.param((pods(0, cpu=1),), id="one"),
        pytest.param((pods(0), pods(0, cpu=1, memory="1Gi")), id="several"),
    ],
)
@pytest.mark.parametrize(
    "wrapped",
    [
        pytest.param(ray_cluster(NEGATIVE), id="no-other-template"),
        pytest.param(ray_cluster(NEGATIVE, TWO_WORKERS), id="beside-a-readable-template"),
    ],
)
def test_declaration_without_pods_does_not_take_the_place_of_an_unreadable_template(
    wrapped: Mapping[str, Any], declared: tuple[DeclaredPodSet, ...]
) -> None:
    messages = []
    for each in (declared, ()):
        with pytest.raises(DemandError) as raised:
            charge(wrapped, *each)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    assert messages[0].startswith(
        "spec.resources.GenericItems[0].generictemplate.spec.headGroupSpec.template"
    )


def test_trusted_declaration_without_pods_charges_nothing() -> None:
    assert charge(ray_cluster(NEGATIVE), pods(0, cpu=1), rule=ChargeRule.TRUSTED) == Charge(Gang())


def test_gang_does_not_wait_for_readable_pods_that_are_no_members() -> None:
    wrapped = ray_job(cluster(NEGATIVE), submitterPodTemplate=template({"cpu": 2}))
    submitter = PodSet(1, Resources({"cpu": 2000}))
    assert charge(wrapped, pods(0, cpu=1), rule=ChargeRule.TRUSTED).gang == Gang(NOTHING, 0, (submitter,))


def test_malformed_constraint_of_another_template_is_refused() -> None:
    worker = group(WORKER, replicas=1)
    worker["template"]["spec"]["nodeSelector"] = {"zone": 7}
    with pytest.raises(DemandError) as raised:
        charge(ray_cluster(NEGATIVE, worker), pods(1, cpu=1))
    assert str(raised.value) == (
        "spec.resources.GenericItems[0].generictemplate.spec.workerGroupSpecs[0].template.spec.nodeSelector"
        ".zone: must be a string. Correct the template."
    )


# --- Whatever JSON a template is, it has a demand or a refusal that can be shown and stored ----------------


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
ANY_WORKERS = {"replicas": 2, "minReplicas": 1, "maxReplicas": 3, "numOfHosts": 2, "suspend": False}
REPLICATED = {"replicas": 2, "template": POD_TEMPLATE}
RAY = {
    "headGroupSpec": {"template": POD_TEMPLATE},
    "workerGroupSpecs": [{**ANY_WORKERS, "template": POD_TEMPLATE}],
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
    api_group = f"{kind[0]}/v1" if kind[0] else "v1"
    raw = {**template, "apiVersion": api_group, "kind": kind[1]}
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
    for api_group, kind in BUILT_IN.derivable:
        wrapped = WrappedObject(0, {**OBJECT, "apiVersion": f"{api_group}/v1".lstrip("/"), "kind": kind})
        assert isinstance(gang_of(AppWrapperSpec((wrapped,))), Gang)
