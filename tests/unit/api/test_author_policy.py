"""The policies about authors and the finalizer stand at every door, and know every kind that the dispatcher knows."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.api.names import FINALIZER, MEMBERS_PATH
from dispatcher.core.kinds.built_in import ROWS
from dispatcher.settings import Settings
from tests.crds import load_crds
from tests.unit.api.test_submitter_policy import DOORS

DOCUMENTS: list[dict[str, Any]] = [
    *yaml.safe_load_all(
        (Path(__file__).parents[3] / "manifests" / "policies" / "author-policy.yaml").read_text()
    )
]
NAMESPACE, LIST, AUTHOR, AUTHORS_BINDING, KEEPER, KEEPERS_BINDING = DOCUMENTS


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
@pytest.mark.parametrize("door", sorted(DOORS), ids="/".join)
@pytest.mark.parametrize("policy", [AUTHOR, KEEPER], ids=["author", "finalizer"])
def test_policy_stands_at_every_door(
    policy: dict[str, Any], operation: str, door: tuple[str, str, str]
) -> None:
    guards = [
        rule
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        if operation in rule["operations"]
        and all(
            {asked, "*"} & set(rule[field])
            for asked, field in zip(door, ("apiGroups", "apiVersions", "resources"), strict=True)
        )
    ]

    assert (len(guards), policy["spec"]["failurePolicy"]) == (1, "Fail")


def test_bindings_enforce_the_policies() -> None:
    assert AUTHORS_BINDING["spec"] == {
        "policyName": AUTHOR["metadata"]["name"],
        "paramRef": {**LIST["metadata"], "parameterNotFoundAction": "Deny"},
        "validationActions": ["Deny"],
    }
    assert KEEPERS_BINDING["spec"] == {
        "policyName": KEEPER["metadata"]["name"],
        "validationActions": ["Deny"],
    }


def test_every_kind_that_the_dispatcher_knows_is_listed() -> None:
    assert set(LIST["data"]) == {f"{row.kind}.{row.group}".rstrip(".") for row in ROWS}


def test_dispatcher_denies_the_namespaces_that_the_policy_denies() -> None:
    denied = ",".join(re.findall("'([^']+)'", AUTHOR["spec"]["validations"][0]["expression"]))
    written = (Path(__file__).parents[3] / "manifests" / "base" / "deployment.yaml").read_text()
    assert f'{{name: DISPATCHER_DENIED_NAMESPACES, value: "{denied}"}}' in written
    assert denied == Settings.model_fields["denied_namespaces"].default


def test_list_is_in_the_namespace_that_the_hub_manifest_gives_the_dispatcher() -> None:
    hub = (Path(__file__).parents[3] / "manifests" / "base" / "hub.yaml").read_text()
    own = next(each for each in yaml.safe_load_all(hub) if each["kind"] == "Namespace")

    assert own == NAMESPACE
    assert LIST["metadata"]["namespace"] == own["metadata"]["name"]


def test_each_kind_that_an_appwrapper_may_wrap_is_asked_about() -> None:
    """An expression cannot repeat itself: there is one for each, and none that no kind can come to."""
    asked = [each for each in AUTHOR["spec"]["validations"] if "authorizer" in each["expression"]]
    (ordered,) = (each for each in AUTHOR["spec"]["variables"] if each["name"] == "asked")
    most = f"variables.positions.size() <= {len(asked)}"

    assert [each["messageExpression"] for each in asked] == [
        f"variables.refusals[{number}]" for number in range(len(asked))
    ]
    assert [each["expression"].count(f"asked[{number}]") for number, each in enumerate(asked)] == [3] * 12
    assert [each["expression"].count(f"size() <= {number} ") for number, each in enumerate(asked)] == [1] * 12
    assert ordered["expression"].startswith(str([*range(len(asked))]))
    assert most in [each["expression"] for each in AUTHOR["spec"]["validations"]]


def test_finalizer_is_the_dispatchers_and_so_is_the_right_that_tells_who_that_is() -> None:
    (condition,) = KEEPER["spec"]["matchConditions"]
    (validation,) = KEEPER["spec"]["validations"]
    group, _, resource = MEMBERS_PATH.split("/")[2:]
    hub = (Path(__file__).parents[3] / "manifests" / "base" / "hub.yaml").read_text()

    assert condition["expression"].count(f"'{FINALIZER}'") == 2
    assert (
        f"group('{group}').resource('{resource}').subresource('status').check('patch')"
        in (validation["expression"])
    )
    assert f"{{apiGroups: [{group}], resources: [{resource}/status], verbs: [patch]}}" in hub


# --- The policy that operators install guards every door that the CRDs open --------------------------------


POLICY, BINDING = yaml.safe_load_all(
    (Path(__file__).parents[3] / "manifests" / "policies" / "admission-policy.yaml").read_text()
)
CRDS = [crd for crd in load_crds() if crd["spec"]["names"]["kind"] == "AppWrapper"]
MCADS_OWN = {"mcad.ibm.com": ["appwrappers"]}
"""Plurals of definitions that are not ours and that the dispatcher watches where they are installed."""


def doors(crd: dict[str, Any]) -> dict[str, Any]:
    """Return what a policy must say to stand at all of a definition's doors."""
    spec = crd["spec"]
    return {
        "apiGroups": [spec["group"]],
        "apiVersions": [version["name"] for version in spec["versions"] if version["served"]],
        "resources": [spec["names"]["plural"], *MCADS_OWN.get(spec["group"], ())],
        "operations": ["UPDATE"],
    }


def test_mcads_policy_stands_at_every_door() -> None:
    rules = POLICY["spec"]["matchConstraints"]["resourceRules"]

    assert sorted(rules, key=str) == sorted(map(doors, CRDS), key=str)


def test_binding_enforces_the_policy() -> None:
    assert BINDING["spec"] == {"policyName": POLICY["metadata"]["name"], "validationActions": ["Deny"]}


def test_admission_policy_agrees_with_the_rules_of_the_definitions() -> None:
    rules = CRDS[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    said = {f"spec{rule['fieldPath']}: {rule['message']}" for rule in rules["x-kubernetes-validations"][:2]}

    assert {validation["message"] for validation in POLICY["spec"]["validations"]} == said
