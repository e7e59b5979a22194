"""MemberClusters: what is read of them, what is refused, and that the models and the CRD agree."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest

from dispatcher.api.clusterpolicies import AcceptedNamespaces, NamespacePolicy, OnClusterLost
from dispatcher.api.membercluster import MemberCluster, SecretKey, WrittenMemberCluster, parse_member_cluster
from dispatcher.api.potential import NodePool, OnPotential, PotentialNodes
from dispatcher.api.potential_schema import parse_potential
from dispatcher.api.spec_errors import SpecError
from tests.crds import load_crds

Schema = dict[str, Any]

CRD = next(crd for crd in load_crds() if crd["spec"]["names"]["kind"] == "MemberCluster")
VERSION = CRD["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
MODEL = WrittenMemberCluster.model_json_schema()
SECRET = {"kubeconfigSecretRef": {"name": "east"}}

POOL: dict[str, Any] = {
    "name": "l4",
    "node": {
        "allocatable": {"cpu": 8, "nvidia.com/gpu": "1"},
        "labels": {"pool": "l4"},
        "taints": [{"key": "gpu", "effect": "NoSchedule"}],
    },
    "max": 10,
}
READ_POOL = NodePool(
    "l4", {"cpu": 8, "nvidia.com/gpu": "1"}, {"pool": "l4"}, (("gpu", "", "NoSchedule"),), 10
)


def parsed(spec: object, name: str = "east", **metadata: object) -> MemberCluster:
    return parse_member_cluster({"metadata": {"name": name, "uid": "u", **metadata}, "spec": spec})


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(
            SECRET, MemberCluster("east", "u", kubeconfig=SecretKey("east", "kubeconfig")), id="short"
        ),
        pytest.param(
            {
                "kubeconfigSecretRef": {"name": "keys.of.east", "key": "admin_2"},
                "cordoned": True,
                "cordonReason": "rack 3\nmoves",
                "drain": True,
                "namespacePolicy": "Create",
                "acceptedNamespaces": "All",
                "reserve": {"cpu": 2, "memory": "1.5Gi", "nvidia.com/gpu": "1"},
                "onClusterLost": {"policy": "requeue", "graceSeconds": 0},
                "potential": [POOL],
                "onPotential": "Wait",
                "bindWithinSeconds": 10,
            },
            MemberCluster(
                "east",
                "u",
                kubeconfig=SecretKey("keys.of.east", "admin_2"),
                cordoned=True,
                cordon_reason="rack 3\\nmoves",
                drain=True,
                namespace_policy=NamespacePolicy.CREATE,
                accepted_namespaces=AcceptedNamespaces.ALL,
                reserve={"cpu": 2, "memory": "1.5Gi", "nvidia.com/gpu": "1"},
                on_lost=OnClusterLost.REQUEUE,
                grace=timedelta(0),
                potential=PotentialNodes((READ_POOL,), OnPotential.WAIT, timedelta(seconds=10)),
            ),
            id="everything",
        ),
        pytest.param(
            {
                "kubeconfigSecretRef": {"name": "east", "key": None},
                "cordoned": None,
                "reserve": None,
                "onClusterLost": None,
                "colour": "red",
            },
            MemberCluster("east", "u", kubeconfig=SecretKey("east")),
            id="null-is-absent-and-the-unknown-ignored",
        ),
    ],
)
def test_cluster_is_read_as_written(spec: Schema, expected: MemberCluster) -> None:
    assert parsed(spec) == expected


@pytest.mark.parametrize("spec", [None, {}, {"kubeconfigSecretRef": None}])
def test_hub_needs_nothing_said(spec: Schema | None) -> None:
    assert parsed(spec, "hub") == MemberCluster("hub", "u")


def test_labels_are_those_of_the_object() -> None:
    assert parsed(SECRET, labels={"region": "east"}).labels == {"region": "east"}
    assert parsed(SECRET, labels=None).labels == {}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            {},
            "spec.kubeconfigSecretRef: every cluster but hub needs a kubeconfig. "
            "Put one into a Secret in the dispatcher's namespace and name that Secret here.",
            id="no-kubeconfig",
        ),
        pytest.param("east", 'spec: must be an object, not "east". Change the value.', id="no-object"),
        pytest.param(
            {"kubeconfigSecretRef": {"key": "a"}},
            "spec.kubeconfigSecretRef.name: is missing. Add it.",
            id="no-secret",
        ),
        pytest.param(
            {"kubeconfigSecretRef": {"name": "../pods"}},
            'spec.kubeconfigSecretRef.name: must be the name of a Secret, not "../pods". Change the value.',
            id="path-for-a-name",
        ),
        pytest.param(
            {"kubeconfigSecretRef": {"name": "a", "key": "a/b"}},
            "spec.kubeconfigSecretRef.key: must match pattern '^[-._a-zA-Z0-9]+$', not \"a/b\". Change the value.",
            id="path-for-a-key",
        ),
        pytest.param(
            {**SECRET, "cordoned": "yes"},
            'spec.cordoned: must be a valid boolean, not "yes". Change the value.',
            id="yes-is-not-true",
        ),
        pytest.param(
            {**SECRET, "namespacePolicy": "create"},
            "spec.namespacePolicy: must be 'Require' or 'Create', not \"create\". Change the value.",
            id="no-such-policy",
        ),
        pytest.param(
            {**SECRET, "onClusterLost": {"policy": "Wait"}},
            "spec.onClusterLost.policy: must be 'wait', 'requeue' or 'fail', not \"Wait\". Change the value.",
            id="no-such-policy-of-loss",
        ),
        pytest.param(
            {**SECRET, "onClusterLost": {"graceSeconds": -1}},
            "spec.onClusterLost.graceSeconds: must be greater than or equal to 0, not -1. Change the value.",
            id="negative-grace",
        ),
        pytest.param(
            {**SECRET, "onClusterLost": {"graceSeconds": 2**31}},
            "spec.onClusterLost.graceSeconds: must be less than or equal to 2147483647, not 2147483648. "
            "Change the value.",
            id="endless-grace",
        ),
        pytest.param(
            {**SECRET, "onClusterLost": ["wait"]},
            "spec.onClusterLost: must be an object, not a list. Change the value.",
            id="list-for-an-object",
        ),
        pytest.param(
            {**SECRET, "reserve": {"a\0": 1}},
            'spec.reserve["a\\u0000"]: is not a resource name such as cpu, memory or nvidia.com/gpu. '
            "Correct the name.",
            id="nul-in-a-resource",
        ),
        pytest.param(
            {**SECRET, "reserve": {"cpu": 0.5}},
            "spec.reserve.cpu: must be written in quotes, not 0.5. Change the value.",
            id="unquoted-half",
        ),
        pytest.param(
            {**SECRET, "reserve": {"cpu": [1]}},
            'spec.reserve.cpu: must be a quantity such as 2, "500m" or "16Gi", not a list. Change the value.',
            id="list-for-a-quantity",
        ),
        pytest.param(
            {**SECRET, "cordonReason": "x" * 1025},
            f'spec.cordonReason: must have at most 1024 characters, not "{"x" * 76}.... Change the value.',
            id="novel",
        ),
        pytest.param(
            {**SECRET, "potential": [POOL, POOL]},
            "spec.potential: must have unique names, not a list. Change the value.",
            id="twin-pools",
        ),
        pytest.param(
            {**SECRET, "potential": [{**POOL, "max": 10**10}]},
            "spec.potential[0].max: must be less than or equal to 2147483647, not 10000000000. Change the value.",
            id="huge-pool",
        ),
        pytest.param(
            {**SECRET, "potential": [{**POOL, "node": {"allocatable": {"cpu": 8}, "labels": {}}}]},
            "spec.potential[0].node.labels: must not be empty. Add an entry.",
            id="pool-without-labels",
        ),
        pytest.param(
            {**SECRET, "potential": [{"name": "l4", "max": 10}]},
            "spec.potential[0].node: is missing. Add it.",
            id="pool-without-a-node",
        ),
        pytest.param(
            {**SECRET, "potential": [{**POOL, "node": {"allocatable": {"cpu": 8}, "labels": {"a b": ""}}}]},
            'spec.potential[0].node.labels["a b"]: is not the name of a label such as node.example.com/pool. '
            "Correct the name.",
            id="pool-with-a-label-that-no-node-has",
        ),
    ],
)
def test_error_in_a_member_cluster_names_the_field_and_the_remedy(spec: object, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parsed(spec)
    assert str(caught.value) == message


def test_setting_of_the_hub_has_the_same_fields() -> None:
    text = json.dumps({"pools": [POOL], "onPotential": "Wait", "bindWithinSeconds": 10})
    assert parse_potential(text) == PotentialNodes((READ_POOL,), OnPotential.WAIT, timedelta(seconds=10))
    assert parse_potential("") == parse_potential('{"pools": []}') == PotentialNodes()
    for wrong, where in (("{", "the value"), ("{}", "pools"), ('{"pools": [{}]}', "pools.0.name")):
        with pytest.raises(ValueError, match=f"^{where}: "):
            parse_potential(wrong)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        pytest.param({"max": 0}, "max", id="no-nodes"),
        pytest.param({"max": -1}, "max", id="fewer"),
        pytest.param({"name": "L 4"}, "name", id="name"),
        pytest.param({"labels": {}}, "node.labels", id="no-labels"),
        pytest.param({"labels": {"": "x"}}, "node.labels.", id="label-without-a-name"),
        pytest.param({"allocatable": {}}, "node.allocatable", id="no-amounts"),
        pytest.param({"allocatable": {"cpu": 0.5}}, "node.allocatable.cpu", id="fraction-without-quotes"),
        pytest.param({"taints": [{"key": "a", "effect": "Never"}]}, "node.taints.0.effect", id="effect"),
        pytest.param({"taints": [{"key": "", "effect": "NoSchedule"}]}, "node.taints.0.key", id="taint"),
    ],
)
def test_setting_of_the_hub_is_checked_without_an_api_server(fields: Schema, where: str) -> None:
    shape = {key: fields[key] for key in fields.keys() & {"labels", "allocatable", "taints"}}
    pool = {**POOL, **fields, "node": {**POOL["node"], **shape}}
    with pytest.raises(ValueError, match=f"^{re.escape(f'pools.0.{where}')}: "):
        parse_potential(json.dumps({"pools": [pool]}))


def test_setting_of_the_hub_has_at_most_16_pools_with_names_of_their_own() -> None:
    for count, name in ((17, "p{}"), (2, "p")):
        pools = [{**POOL, "name": name.format(number)} for number in range(count)]
        with pytest.raises(ValueError, match=r"^pools: "):
            parse_potential(json.dumps({"pools": pools}))


def test_hub_is_not_reached_by_a_kubeconfig() -> None:
    with pytest.raises(SpecError) as caught:
        parsed(SECRET, "hub")
    assert str(caught.value) == (
        "spec.kubeconfigSecretRef: the name hub is reserved for the cluster that AppWrappers are read from, which "
        "needs no kubeconfig. Leave this out, or choose another name."
    )


def fields(schema: Schema, path: str = "spec") -> dict[str, Schema]:
    """List the fields by path, those of the models with their references followed and null taken out."""
    for step in (schema, *schema.get("anyOf", [])):
        if "$ref" in step:
            schema = schema | MODEL["$defs"][step["$ref"].rpartition("/")[2]]
    found = {path: schema}
    for name, field in schema.get("properties", {}).items():
        found |= fields(field, f"{path}.{name}")
    return found


WRITTEN = fields(SCHEMA["properties"]["spec"])
STATUS = fields(SCHEMA["properties"]["status"], "status")
READ = fields(MODEL)
BOUNDS = ("enum", "minimum", "minLength", "maxLength")


def test_models_read_every_field_of_the_schema_and_no_other() -> None:
    assert set(READ) == set(WRITTEN)


def test_schema_and_models_agree_on_types() -> None:
    assert {path: field["type"] for path, field in READ.items()} == {
        path: field["type"] for path, field in WRITTEN.items()
    }


def test_schema_and_models_agree_on_bounds() -> None:
    assert {path: [field.get(bound) for bound in BOUNDS] for path, field in READ.items()} == {
        path: [field.get(bound) for bound in BOUNDS] for path, field in WRITTEN.items()
    }


def test_schema_and_models_agree_on_what_is_required() -> None:
    assert {path: field.get("required", []) for path, field in READ.items()} == {
        path: field.get("required", []) for path, field in WRITTEN.items()
    }


def test_defaults_of_the_schema_are_those_of_the_models() -> None:
    defaults = {path: field["default"] for path, field in WRITTEN.items() if field.get("default")}

    assert defaults == {
        "spec.kubeconfigSecretRef.key": "kubeconfig",
        "spec.namespacePolicy": "Require",
        "spec.acceptedNamespaces": "Labelled",
        "spec.onClusterLost.policy": "wait",
        "spec.onClusterLost.graceSeconds": 600,
        "spec.provisioning.acceptWithinSeconds": 1800,
        "spec.provisioning.retry.limit": 3,
        "spec.provisioning.retry.baseSeconds": 60,
        "spec.provisioning.retry.maxSeconds": 1800,
        "spec.onPotential": "Dispatch",
        "spec.bindWithinSeconds": 900,
    }
    assert defaults == {path: READ[path]["default"] for path in defaults}


def test_rules_of_the_schema_say_what_the_parser_says() -> None:
    said = []
    for name, spec in (("hub", SECRET), ("east", {})):
        with pytest.raises(SpecError) as caught:
            parsed(spec, name)
        said.append(f"{caught.value.problem}: {caught.value.remedy[0].lower()}{caught.value.remedy[1:]}")

    assert [rule["message"] for rule in SCHEMA["x-kubernetes-validations"]] == said


def test_reserve_takes_the_quantities_that_appwrappers_take() -> None:
    appwrapper = next(
        crd for crd in load_crds() if crd["metadata"]["name"] == "appwrappers.workload.codeflare.dev"
    )
    schema = appwrapper["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    item = schema["properties"]["resources"]["properties"]["GenericItems"]["items"]
    pod_set = item["properties"]["custompodresources"]["items"]["properties"]

    assert WRITTEN["spec.reserve"]["additionalProperties"] == pod_set["requests"]["additionalProperties"]


def test_every_list_and_map_is_bounded() -> None:
    assert [
        path
        for path, field in (WRITTEN | STATUS).items()
        if (field["type"] == "array" and "maxItems" not in field)
        or ("additionalProperties" in field and "maxProperties" not in field)
    ] == []


def test_every_text_is_bounded() -> None:
    texts = {path: field for path, field in (WRITTEN | STATUS).items() if field["type"] == "string"}

    assert [path for path, field in texts.items() if not {"maxLength", "enum", "format"} & field.keys()] == []


def test_every_field_is_described() -> None:
    """Otherwise `kubectl explain` has nothing to say of it."""
    assert [path for path, field in (WRITTEN | STATUS).items() if not field.get("description")] == []
