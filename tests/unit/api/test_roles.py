"""The roles of people in manifests/base: what is part of Kubernetes' own roles, and what only the dispatcher has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.api.names import MEMBERS_PATH

BASE = Path(__file__).parents[3] / "manifests" / "base"
ROLES: dict[str, dict[str, Any]] = {
    each["metadata"]["name"]: each
    for each in yaml.safe_load_all((BASE / "roles.yaml").read_text())
    if each["kind"] == "ClusterRole"
}
LABEL = "rbac.authorization.k8s.io/aggregate-to-"


def rights(role: str) -> set[tuple[str, str, str]]:
    """Verb, group and resource of each right."""
    return {
        (verb, group, resource)
        for rule in ROLES[role]["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_roles_of_people_are_part_of_kubernetes_own() -> None:
    parts = {name: each["metadata"].get("labels") for name, each in ROLES.items()}
    assert parts == {
        "dispatcher-viewer": {f"{LABEL}view": "true"},
        "dispatcher-user": {f"{LABEL}edit": "true"},
        "dispatcher-queue-admin": {f"{LABEL}admin": "true"},
        "dispatcher-capacity-viewer": None,
        "dispatcher-operator": None,
    }


@pytest.mark.parametrize("role", ["dispatcher-viewer", "dispatcher-user", "dispatcher-queue-admin"])
def test_role_that_is_part_of_another_gives_no_secret_and_no_member(role: str) -> None:
    writes = {(verb, resource) for verb, _, resource in rights(role) if verb not in {"get", "list", "watch"}}
    assert {resource for _, _, resource in rights(role)}.isdisjoint({"secrets", "nodes", "*"})
    assert "memberclusters" not in {resource for _, resource in writes}


def test_nobody_has_the_right_by_which_policies_know_the_dispatcher() -> None:
    group, _, resource = MEMBERS_PATH.split("/")[2:]
    for role in ROLES:
        assert {resource for _, _, resource in rights(role) if "/" in resource} == set(), role
        assert ("patch", group, f"{resource}/status") not in rights(role)
        assert ("delete", "", "pods") not in rights(role), (
            "the policy about devices trusts who has it everywhere"
        )


def test_nobody_may_write_namespaces_whose_labels_policies_and_pod_security_read() -> None:
    for role in ROLES:
        verbs = {verb for verb, _, resource in rights(role) if resource == "namespaces"}
        assert verbs <= {"get", "list", "watch"}, role


def test_base_installs_the_roles() -> None:
    assert "roles.yaml" in yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
