"""The policy that checks who submitted an AppWrapper stands at every door, and speaks of what is read."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.api.test_submitter_policy import ANNOTATIONS, DOORS, KEEPER

POLICY, BINDING = yaml.safe_load_all(
    (Path(__file__).parents[3] / "manifests" / "submitter-check-policy.yaml").read_text()
)


@pytest.mark.parametrize("door", sorted(DOORS), ids="/".join)
def test_policy_stands_at_every_door(door: tuple[str, str, str]) -> None:
    guards: list[dict[str, Any]] = [
        rule
        for rule in POLICY["spec"]["matchConstraints"]["resourceRules"]
        if all(
            {asked, "*"} & set(rule[field])
            for asked, field in zip(door, ("apiGroups", "apiVersions", "resources"), strict=True)
        )
    ]
    assert [rule["operations"] for rule in guards] == [["CREATE", "UPDATE"]]


def test_binding_enforces_the_policy() -> None:
    assert POLICY["spec"]["failurePolicy"] == "Fail"
    assert BINDING["spec"] == {"policyName": POLICY["metadata"]["name"], "validationActions": ["Deny"]}


def test_later_changes_are_refused_as_by_the_policy_that_writes() -> None:
    *of_creation, user, groups = POLICY["spec"]["validations"]
    for mine, theirs in zip((user, groups), KEEPER["spec"]["validations"], strict=True):
        assert mine["message"] == theirs["message"]
        assert mine["expression"] == f"request.operation != 'UPDATE' || {theirs['expression']}"
    assert [
        each["expression"].count(f"[?'{annotation}']")
        for each, annotation in zip(of_creation, ANNOTATIONS, strict=True)
    ] == [1, 1]
