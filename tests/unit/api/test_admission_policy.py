"""The policy that operators install guards every door that the CRDs open."""

from pathlib import Path
from typing import Any

import yaml

from tests.crds import load_crds

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


def test_policy_stands_at_every_door() -> None:
    rules = POLICY["spec"]["matchConstraints"]["resourceRules"]

    assert sorted(rules, key=str) == sorted(map(doors, CRDS), key=str)


def test_binding_enforces_the_policy() -> None:
    assert BINDING["spec"] == {"policyName": POLICY["metadata"]["name"], "validationActions": ["Deny"]}


def test_admission_policy_agrees_with_the_rules_of_the_definitions() -> None:
    rules = CRDS[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    said = {f"spec{rule['fieldPath']}: {rule['message']}" for rule in rules["x-kubernetes-validations"][:2]}

    assert {validation["message"] for validation in POLICY["spec"]["validations"]} == said
