"""MemberClusters: what is read of them, what is refused, and that the reader and the CRD agree."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest

from dispatcher.api.clusters.clusterpolicies import AcceptedNamespaces, NamespacePolicy, OnClusterLost
from dispatcher.api.clusters.membercluster import MemberCluster, SecretKey, parse_member_cluster
from dispatcher.api.clusters.potential import NodePool, OnPotential, PotentialNodes, parse_potential
from dispatcher.api.spec_errors import SpecError
from tests.crd_fields import asked_of, beyond, fields, required, sizes, steps_to, takes, type_of, within
from tests.crds import load_crds
from tests.outside_objects import replaced

Schema = dict[str, Any]

CRD = next(crd for crd in load_crds() if crd["spec"]["names"]["kind"] == "MemberCluster")
VERSION = CRD["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
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
        pytest.param("east", 'spec: must be an object, not "east"', id="no-object"),
        pytest.param(
            {"kubeconfigSecretRef": {"key": "a"}},
            "spec.kubeconfigSecretRef.name: is required",
            id="no-secret",
        ),
        pytest.param(
            {"kubeconfigSecretRef": {"name": "../pods"}},
            'spec.kubeconfigSecretRef.name: must be the name of a Secret, not "../pods"',
            id="path-for-a-name",
        ),
        pytest.param(
            {"kubeconfigSecretRef": {"name": "a", "key": "a/b"}},
            "spec.kubeconfigSecretRef.key: must have only letters, digits, '-', '_' and '.', not \"a/b\"",
            id="path-for-a-key",
        ),
        pytest.param(
            {**SECRET, "cordoned": "yes"},
            'spec.cordoned: must be true or false, not "yes"',
            id="yes-is-not-true",
        ),
        pytest.param(
            {**SECRET, "namespacePolicy": "create"},
            'spec.namespacePolicy: must be one of Require, Create, not "create"',
            id="no-such-policy",
        ),
        pytest.param(
            {**SECRET, "onClusterLost": {"policy": "Wait"}},
            'spec.onClusterLost.policy: must be one of wait, requeue, fail, not "Wait"',
            id="no-such-policy-of-loss",
        ),
        pytest.param(
            {**SECRET, "onClusterLost": {"graceSeconds": -1}},
            "spec.onClusterLost.graceSeconds: must be a whole number from 0 to 2147483647, not -1",
            id="negative-grace",
        ),
        pytest.param(
            {**SECRET, "onClusterLost": {"graceSeconds": 2**31}},
            "spec.onClusterLost.graceSeconds: must be a whole number from 0 to 2147483647, not 2147483648",
            id="endless-grace",
        ),
        pytest.param(
            {**SECRET, "onClusterLost": ["wait"]},
            "spec.onClusterLost: must be an object, not a list",
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
            'spec.reserve.cpu: 0.5 must be in quotes. Write "0.5".',
            id="unquoted-half",
        ),
        pytest.param(
            {**SECRET, "reserve": {"cpu": [1]}},
            'spec.reserve.cpu: must be a quantity such as 2, "500m" or "16Gi", not a list',
            id="list-for-a-quantity",
        ),
        pytest.param(
            {**SECRET, "cordonReason": "x" * 1025},
            "spec.cordonReason: must have at most 1024 characters, not 1025",
            id="novel",
        ),
        pytest.param(
            {**SECRET, "potential": [POOL, POOL]},
            'spec.potential[1].name: "l4" names another one, too',
            id="twin-pools",
        ),
        pytest.param(
            {**SECRET, "potential": [{**POOL, "max": 10**10}]},
            "spec.potential[0].max: must be a whole number from 1 to 2147483647, not 10000000000",
            id="huge-pool",
        ),
        pytest.param(
            {**SECRET, "potential": [{**POOL, "node": {"allocatable": {"cpu": 8}, "labels": {}}}]},
            "spec.potential[0].node.labels: at least one label is required: it says which nodes are of the pool",
            id="pool-without-labels",
        ),
        pytest.param(
            {**SECRET, "potential": [{"name": "l4", "max": 10}]},
            "spec.potential[0].node: is required",
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
    for wrong, where in (("{", "document"), ("{}", "pools"), ('{"pools": [{}]}', "pools[0].name")):
        with pytest.raises(SpecError, match=f"^{re.escape(where)}: "):
            parse_potential(wrong)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        pytest.param({"max": 0}, "max", id="no-nodes"),
        pytest.param({"max": -1}, "max", id="fewer"),
        pytest.param({"name": "L 4"}, "name", id="name"),
        pytest.param({"labels": {}}, "node.labels", id="no-labels"),
        pytest.param({"labels": {"": "x"}}, 'node.labels[""]', id="label-without-a-name"),
        pytest.param({"allocatable": {}}, "node.allocatable", id="no-amounts"),
        pytest.param({"allocatable": {"cpu": 0.5}}, "node.allocatable.cpu", id="fraction-without-quotes"),
        pytest.param({"taints": [{"key": "a", "effect": "Never"}]}, "node.taints[0].effect", id="effect"),
        pytest.param({"taints": [{"key": "", "effect": "NoSchedule"}]}, "node.taints[0].key", id="taint"),
    ],
)
def test_setting_of_the_hub_is_checked_without_an_api_server(fields: Schema, where: str) -> None:
    shape = {key: fields[key] for key in fields.keys() & {"labels", "allocatable", "taints"}}
    pool = {**POOL, **fields, "node": {**POOL["node"], **shape}}
    with pytest.raises(SpecError, match=f"^{re.escape(f'pools[0].{where}')}: "):
        parse_potential(json.dumps({"pools": [pool]}))


def test_setting_of_the_hub_has_at_most_16_pools_with_names_of_their_own() -> None:
    for count, name, where in ((17, "p{}", "pools"), (2, "p", "pools[1].name")):
        pools = [{**POOL, "name": name.format(number)} for number in range(count)]
        with pytest.raises(SpecError, match=f"^{re.escape(where)}: "):
            parse_potential(json.dumps({"pools": pools}))


def test_hub_is_not_reached_by_a_kubeconfig() -> None:
    with pytest.raises(SpecError) as caught:
        parsed(SECRET, "hub")
    assert str(caught.value) == (
        "spec.kubeconfigSecretRef: the name hub is reserved for the cluster that AppWrappers are read from, which "
        "needs no kubeconfig. Leave this out, or choose another name."
    )


WRITTEN = fields(SCHEMA["properties"]["spec"])
STATUS = fields(SCHEMA["properties"]["status"], "status")
SPEC: Schema = {
    "kubeconfigSecretRef": {"name": "east", "key": "config"},
    "cordoned": True,
    "cordonReason": "repair",
    "drain": True,
    "namespacePolicy": "Create",
    "acceptedNamespaces": "All",
    "reserve": {"cpu": 2},
    "onClusterLost": {"policy": "requeue", "graceSeconds": 60},
    "provisioning": {
        "className": "queued.example.com",
        "managedResources": ["cpu"],
        "parameters": {"a": "b"},
        "authorParameters": ["c"],
        "acceptWithinSeconds": 60,
        "retry": {"limit": 1, "baseSeconds": 2, "maxSeconds": 3},
    },
    "potential": [
        {**POOL, "node": {**POOL["node"], "taints": [{"key": "a", "value": "b", "effect": "NoExecute"}]}}
    ],
    "onPotential": "Wait",
    "bindWithinSeconds": 60,
}
"""Every field, each with another value than its default."""
BELOW = sorted(WRITTEN.keys() - {"spec"})


def test_reader_asks_for_every_field_of_the_schema_and_for_no_other() -> None:
    named = {path for path in WRITTEN if not path.endswith(("[]", "*"))}
    assert {"spec", *asked_of(parsed, SPEC, WRITTEN)} == named


@pytest.mark.parametrize("path", BELOW)
def test_reader_takes_what_the_schema_just_takes(path: str) -> None:
    assert [each for each in within(WRITTEN[path]) if not takes(parsed, SPEC, path, each)] == []


@pytest.mark.parametrize("path", BELOW)
def test_reader_refuses_what_the_schema_just_refuses(path: str) -> None:
    assert [each for each in beyond(WRITTEN[path]) if takes(parsed, SPEC, path, each)] == []


@pytest.mark.parametrize(
    "path", [path for path in BELOW if {"maxItems", "maxProperties"} & WRITTEN[path].keys()]
)
def test_schema_and_reader_agree_on_the_length_of_lists_and_maps(path: str) -> None:
    value: Any = SPEC
    for step in steps_to(path, SPEC):
        value = value[step]
    largest, larger = sizes(WRITTEN[path], value)
    assert takes(parsed, SPEC, path, largest)
    assert not takes(parsed, SPEC, path, larger)


def test_schema_and_reader_agree_on_what_is_required() -> None:
    named = [path for path in BELOW if not path.endswith(("[]", "*"))]
    by_rule = {"spec.kubeconfigSecretRef"}
    assert {path for path in named if not takes(parsed, SPEC, path, None)} - by_rule == required(
        SCHEMA["properties"]["spec"]
    )


def test_defaults_of_the_schema_are_those_of_the_reader() -> None:
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
    for path, default in defaults.items():
        steps = steps_to(path, SPEC)
        assert parsed(replaced(SPEC, steps, None)) == parsed(replaced(SPEC, steps, default)) != parsed(SPEC)


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
        if (type_of(field) == "array" and "maxItems" not in field)
        or ("additionalProperties" in field and "maxProperties" not in field)
    ] == []


def test_every_text_is_bounded() -> None:
    texts = {path: field for path, field in (WRITTEN | STATUS).items() if type_of(field) == "string"}

    assert [path for path, field in texts.items() if not {"maxLength", "enum", "format"} & field.keys()] == []


def test_every_field_is_described() -> None:
    """Otherwise `kubectl explain` has nothing to say of it."""
    assert [
        path
        for path, field in (WRITTEN | STATUS).items()
        if not path.endswith(("[]", "*")) and not field.get("description")
    ] == []
