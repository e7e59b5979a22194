"""The values of `manifests/chart` that take the place of components and files: tenants, roles, kinds, monitoring."""

from __future__ import annotations

import json
import os
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.install.installation import CHART, CHECKOUT, OVERLAYS, Helm
from tests.cluster.install.test_chart_rendered import Json, Key, helm, kustomized, objects, rendered

__all__ = ["helm"]

pytestmark = pytest.mark.exhaustive  # Helm is built for `make test-all` only

TRAINING = {"group": "platform.example.com", "kind": "Training", "resource": "trainings"}
DECLARED = yaml.safe_load((CHECKOUT / "examples" / "own-kind" / "kinds.yaml").read_text())["kinds"]


def with_component(folder: Path, name: str) -> dict[Key, Json]:
    """The objects of the overlay for one cluster with a component."""
    component = OVERLAYS.parent / "components" / name
    written = {
        "resources": [os.path.relpath(OVERLAYS / "single", folder)],
        "components": [os.path.relpath(component, folder)],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(written))
    return kustomized(folder)


def added(found: dict[Key, Json], without: dict[Key, Json]) -> dict[Key, Json]:
    """The objects that only the first has."""
    return {key: each for key, each in found.items() if key not in without}


def environment(found: dict[Key, Json]) -> dict[str, str]:
    """The variables of the dispatcher's container that have a value."""
    pod = found["Deployment", "dispatcher"]["spec"]["template"]["spec"]
    return {each["name"]: each["value"] for each in pod["containers"][0]["env"] if "value" in each}


def test_monitoring_gives_the_objects_of_the_component(helm: Helm, tmp_path: Path) -> None:
    everything = {"serviceMonitor": True, "prometheusRule": True, "dashboard": True}
    found = added(rendered(helm, monitoring=everything), rendered(helm))
    expected = added(with_component(tmp_path, "monitoring"), kustomized(OVERLAYS / "single"))
    # kustomize writes folded texts with other line breaks than it reads.
    rule = OVERLAYS.parent / "components" / "monitoring" / "prometheus-rule.yaml"
    assert found == {**expected, **objects(rule.read_text())}
    assert found.keys() == expected.keys()


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        ("serviceMonitor", {"Service", "ServiceMonitor"}),
        ("prometheusRule", {"PrometheusRule"}),
        ("dashboard", {"ConfigMap"}),
    ],
)
def test_each_part_of_monitoring_is_a_value_of_its_own(helm: Helm, value: str, kinds: set[str]) -> None:
    labels = {"release": "prometheus"}
    found = added(
        rendered(helm, namespace="ours", monitoring={value: True, "labels": labels}),
        rendered(helm, namespace="ours"),
    )
    assert {kind for kind, _ in found} == kinds
    for each in found.values():
        assert each["metadata"]["namespace"] == "ours"
        assert labels.items() <= each["metadata"]["labels"].items()


def template_of(found: dict[Key, Json]) -> Json:
    """The pod template of the dispatcher, with volumes and mounts in the order of their names."""
    template: Json = found["Deployment", "dispatcher"]["spec"]["template"]
    template["spec"]["volumes"].sort(key=itemgetter("name"))
    for container in (*template["spec"]["initContainers"], *template["spec"]["containers"]):
        container["volumeMounts"].sort(key=itemgetter("name"))
    return template


def test_declared_kinds_are_mounted_as_by_the_component(helm: Helm, tmp_path: Path) -> None:
    found = rendered(helm, declaredKinds=DECLARED)
    kinds = found.pop(("ConfigMap", "declared-kinds"))
    assert yaml.safe_load(kinds["data"]["kinds.yaml"]) == {"kinds": DECLARED}
    template = template_of(found)
    sums = template["metadata"].pop("annotations")
    assert template == template_of(with_component(tmp_path, "declared-kinds"))
    other = rendered(helm, declaredKinds=[{**DECLARED[0], "kind": "Other"}])
    assert other["Deployment", "dispatcher"]["spec"]["template"]["metadata"]["annotations"] != sums


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(
            {}, {"MAX_PRIORITY": "100", "MAX_PRIORITY_SLOPE": "0", "QUEUE_ACCESS": "selected"}, id="default"
        ),
        pytest.param(
            {"tenants": {"maxPriority": 1_000_000, "maxPrioritySlope": 0.01, "queuedPerNamespace": 200}},
            {"MAX_PRIORITY": "1000000", "MAX_PRIORITY_SLOPE": "0.01", "QUEUED_PER_NAMESPACE": "200"},
            id="bounds",
        ),
        pytest.param({"tenants": {"maxPriority": 0}}, {"MAX_PRIORITY": "0"}, id="no-priority-at-all"),
        pytest.param(
            {"tenants": {"maxPriority": None, "maxPrioritySlope": None}},
            {"MAX_PRIORITY": None, "MAX_PRIORITY_SLOPE": None},
            id="no-bounds",
        ),
        pytest.param({"tenants": {"queueAccess": "open"}}, {"QUEUE_ACCESS": "open"}, id="open-queues"),
        pytest.param(
            {"settings": {"DISPATCHER_MAX_PRIORITY": "7"}}, {"MAX_PRIORITY": "7"}, id="setting-comes-first"
        ),
    ],
)
def test_bounds_of_tenants_are_settings_with_safe_defaults(
    helm: Helm, values: Json, expected: dict[str, str | None]
) -> None:
    found = environment(rendered(helm, **values))
    assert {name: found.get(f"DISPATCHER_{name}") for name in expected} == expected


@pytest.mark.parametrize(
    ("submitter", "file"), [("checked", "submitter-check-policy.yaml"), ("stamped", "submitter-policy.yaml")]
)
def test_submitter_is_believed_where_its_policy_is_installed(helm: Helm, submitter: str, file: str) -> None:
    found = rendered(helm, tenants={"submitter": submitter})
    policies = objects((OVERLAYS.parent / file).read_text())
    assert added(found, rendered(helm)) == policies
    assert environment(found)["DISPATCHER_SUBMITTER"] == "annotation"


LISTS: Json = {
    "deniedNamespaces": ["kube-system", "infra"],
    "devices": {
        "operatorNamespaces": ["drivers"],
        "controllers": ["system:serviceaccount:team-a:kuberay"],
        "notQueued": ["example.com/network", "example.com/tpm"],
        "exemptNamespaces": ["drivers", "kube-system"],
    },
}
LISTED = {
    "['kube-system', 'kube-public', 'kube-node-lease']": "['kube-system', 'infra']",
    "['system:serviceaccounts:kube-system', 'system:serviceaccounts:gpu-operator', "
    "'system:serviceaccounts:nvidia-gpu-operator']": "['system:serviceaccounts:drivers']",
    "['system:kube-controller-manager']": "['system:serviceaccount:team-a:kuberay']",
    "['vpc.amazonaws.com/pod-eni', 'vpc.amazonaws.com/PrivateIPv4Address']": "['example.com/network', "
    "'example.com/tpm']",
    '["kube-system", "kube-public", "kube-node-lease", "gpu-operator", '
    '"nvidia-gpu-operator"]': '["drivers", "kube-system"]',
}
"""What stands in place of each list, in an expression or in JSON."""


def test_lists_of_the_policies_are_values(helm: Helm) -> None:
    def policies(**values: Any) -> str:  # noqa: ANN401
        found = rendered(helm, **values)
        return json.dumps([each for key, each in found.items() if key[0].startswith("ValidatingAdmission")])

    expected = policies()
    for default, other in LISTED.items():
        assert expected.count(default) == 1
        expected = expected.replace(default, other)
    assert policies(policies=LISTS) == expected


def test_lists_about_devices_may_be_empty(helm: Helm) -> None:
    empty: Json = {"operatorNamespaces": [], "controllers": [], "notQueued": []}
    found = rendered(helm, policies={"devices": empty})
    spec = found["ValidatingAdmissionPolicy", "devices.dispatcher.codeflare.dev"]["spec"]
    variables = {each["name"]: each["expression"] for each in spec["variables"]}
    [listed] = [each for each in spec["matchConditions"] if each["name"] == "not-of-an-operator"]
    assert (variables["notQueued"], variables["controllers"]) == ("[]", "[]")
    assert listed["expression"].endswith("group in [])")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param({}, "kube-system,kube-public,kube-node-lease", id="default"),
        pytest.param({"policies": LISTS}, "kube-system,infra", id="listed"),
        pytest.param({"policies": {**LISTS, "enabled": False}}, "kube-system,infra", id="without-policies"),
    ],
)
def test_dispatcher_denies_the_namespaces_that_the_policy_denies(
    helm: Helm, values: Json, expected: str
) -> None:
    assert environment(rendered(helm, **values))["DISPATCHER_DENIED_NAMESPACES"] == expected


def test_users_may_create_what_appwrappers_wrap_and_nothing_of_kubernetes_itself(helm: Helm) -> None:
    kinds = [
        TRAINING,
        {"group": "", "kind": "Secret", "resource": "secrets"},
        {"group": "rbac.authorization.k8s.io", "kind": "Role", "resource": "roles"},
        {"group": "jobset.x-k8s.io", "kind": "JobSet", "resource": "jobsets"},
    ]
    given = rendered(helm, wrappedKinds=kinds)["ClusterRole", "dispatcher-user"]["rules"]
    assert {(group, resource) for verb, group, resource in given if verb == "create"} == {
        ("workload.codeflare.dev", "appwrappers"),
        ("mcad.ibm.com", "mcadappwrappers"),
        ("mcad.ibm.com", "appwrappers"),
        ("platform.example.com", "trainings"),
        ("jobset.x-k8s.io", "jobsets"),
    }


AGGREGATED = {"dispatcher-viewer": "view", "dispatcher-user": "edit", "dispatcher-queue-admin": "admin"}


def test_roles_of_people_need_not_be_part_of_kubernetes_own(helm: Helm) -> None:
    for name, role in AGGREGATED.items():
        label = {f"rbac.authorization.k8s.io/aggregate-to-{role}": "true"}
        assert rendered(helm)["ClusterRole", name]["metadata"]["labels"] == label
        bare = rendered(helm, roles={"aggregated": False})["ClusterRole", name]
        assert "labels" not in bare["metadata"]
    without = rendered(helm, roles={"enabled": False})
    assert [
        key for key in without if key[1] in {*AGGREGATED, "dispatcher-operator", "dispatcher-capacity-viewer"}
    ] == []


def test_no_role_of_people_may_write_what_only_the_dispatcher_writes(helm: Helm) -> None:
    given: Any = [
        right
        for (kind, name), each in rendered(helm).items()
        if kind == "ClusterRole" and name.startswith("dispatcher-")
        for right in each["rules"]
    ]
    assert [right for right in given if "/status" in right[2] or right[0] == "*" or right[2] == "*"] == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        pytest.param({"tenants": {"maxPriority": "high"}}, "/tenants/maxPriority'", id="priority"),
        pytest.param({"tenants": {"maxPrioritySlope": -1}}, "/tenants/maxPrioritySlope'", id="slope"),
        pytest.param({"tenants": {"queuedPerNamespace": 0}}, "/tenants/queuedPerNamespace'", id="bound"),
        pytest.param({"tenants": {"queueAccess": "all"}}, "/tenants/queueAccess'", id="access"),
        pytest.param({"tenants": {"submitter": "webhook"}}, "/tenants/submitter'", id="submitter"),
        pytest.param({"declaredKinds": [{"kind": "Training"}]}, "/declaredKinds/0'", id="kind-without-group"),
        pytest.param({"monitoring": {"enabled": True}}, "'enabled' not allowed", id="monitoring"),
        pytest.param({"policies": {"deniedNamespaces": []}}, "/policies/deniedNamespaces'", id="none-denied"),
        pytest.param({"policies": {"devices": {"pods": []}}}, "'pods' not allowed", id="unknown-list"),
        pytest.param(
            {"policies": {"devices": {"exemptNamespaces": []}}}, "exemptNamespaces'", id="selector-of-nothing"
        ),
        *(
            pytest.param({"policies": {"devices": {name: ["a'] + ['b"]}}}, f"{name}/0'", id=f"quote-{name}")
            for name in LISTS["devices"]
        ),
        pytest.param({"roles": {"operator": True}}, "'operator' not allowed", id="role"),
    ],
)
def test_schema_refuses(helm: Helm, values: Json, said: str) -> None:
    ran = helm.run("template", "dispatcher", str(CHART), values=values)
    assert ran.returncode == 1
    assert said in ran.stderr
