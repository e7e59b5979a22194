"""`manifests/chart` gives what the overlays of kustomize give, and refuses values that it does not know."""

from __future__ import annotations

import copy
import os
import re
import subprocess
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import build
from tests.cluster.install.installation import CHART, OVERLAYS, Helm
from tests.cluster.members.identities import HUB, MEMBER, NAMESPACE

pytestmark = pytest.mark.exhaustive  # Helm is built for `make test-all` only

Json = dict[str, Any]
Key = tuple[str, str]

KEPT = {"helm.sh/resource-policy": "keep"}
"""The only difference: this annotation of each CustomResourceDefinition."""


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm without a cluster."""
    return Helm(build.ensure_helm(), tmp_path_factory.mktemp("helm"))


def rendered(helm: Helm, *arguments: str, **values: Any) -> dict[Key, Json]:  # noqa: ANN401
    """The objects of the chart by kind and name, as `comparable` has them."""
    return objects(helm("template", "dispatcher", str(CHART), *arguments, values=values))


def objects(text: str) -> dict[Key, Json]:
    """Objects by kind and name, as `comparable` has them."""
    found = [each for each in yaml.safe_load_all(text) if each]
    named = {(each["kind"], each["metadata"]["name"]): comparable(each) for each in found}
    assert len(named) == len(found)
    return named


def comparable(manifest: Json) -> Json:
    """A role with a set of rights in place of rules, and containers with their variables in order of the names.

    Rules may spread the same rights differently, and no variable refers to another one.
    """
    if "rules" in manifest:
        return {**manifest, "rules": rights(manifest["rules"])}
    if manifest["kind"] == "Deployment":
        pod = manifest["spec"]["template"]["spec"]
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            container["env"].sort(key=itemgetter("name"))
    return manifest


def rights(rules: list[Json]) -> set[tuple[str, ...]]:
    """Verb, group, resource and names of each right."""
    return {
        (verb, group, resource, *rule.get("resourceNames", []))
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def without_helms_own(found: dict[Key, Json]) -> dict[Key, Json]:
    """The same objects without the annotation that keeps definitions."""
    bare = copy.deepcopy(found)
    for (kind, _), each in bare.items():
        if kind == "CustomResourceDefinition":
            assert each["metadata"].pop("annotations") == KEPT
    return bare


def kustomized(folder: Path) -> dict[Key, Json]:
    """The objects of a kustomization."""
    command = [str(build.ensure().kubectl), "kustomize", str(folder)]
    return objects(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # noqa: S603


@pytest.mark.parametrize(
    ("overlay", "values"),
    [
        pytest.param("single", {"mode": "single"}, id="single"),
        pytest.param("hub", {"mode": "hub"}, id="hub"),
        pytest.param("member", {"mode": "member"}, id="member"),
        pytest.param("trial", {"trialPostgres": {"enabled": True, "createSecret": False}}, id="trial"),
    ],
)
def test_chart_gives_the_objects_of_the_overlay(
    helm: Helm, tmp_path: Path, overlay: str, values: Json
) -> None:
    # Through kustomize, too, because it writes a folded text with other line breaks than it reads.
    text = helm("template", "dispatcher", str(CHART), values=values)
    (tmp_path / "chart.yaml").write_text(text)
    (tmp_path / "kustomization.yaml").write_text("resources: [chart.yaml]")
    chart = without_helms_own(kustomized(tmp_path))

    expected = kustomized(OVERLAYS / overlay)
    assert set(chart) == set(expected)
    assert {key: chart[key] for key in expected if chart[key] != expected[key]} == {}


def test_notifier_of_the_chart_is_that_of_the_component(helm: Helm, tmp_path: Path) -> None:
    component = os.path.relpath(OVERLAYS.parent / "components" / "notify", tmp_path)
    (tmp_path / "kustomization.yaml").write_text(f"components: [{component}]")

    without, found = rendered(helm), rendered(helm, notify={"enabled": True})
    assert {key: each for key, each in found.items() if key not in without} == kustomized(tmp_path)
    assert {key: each for key, each in found.items() if key in without} == without


def test_release_in_the_namespace_of_the_dispatcher_does_not_create_it(helm: Helm) -> None:
    elsewhere = rendered(helm)
    inside = rendered(helm, "--namespace", NAMESPACE)

    assert {key for key in elsewhere if key not in inside} == {("Namespace", NAMESPACE)}


@pytest.mark.parametrize("mode", ["single", "hub", "member"])
def test_another_namespace_is_used_everywhere(helm: Helm, mode: str) -> None:
    text = helm("template", "dispatcher", str(CHART), values={"mode": mode, "namespace": "ours"})

    named = [line for line in text.splitlines() if re.search(r"\bnamespace: .*appwrapper-dispatcher", line)]
    assert named == []
    assert ("Namespace", "ours") in objects(text)


def test_wrapped_kind_becomes_a_right_and_may_be_submitted(helm: Helm) -> None:
    training = {"group": "platform.example.com", "kind": "Training", "resource": "trainings"}
    found = rendered(helm, wrappedKinds=[training])

    given = found["ClusterRole", "appwrapper-dispatcher-gangs"]["rules"]
    assert {right for right in given if right[0] == "create"} == {
        ("create", "platform.example.com", "trainings")
    }
    assert ("patch", "", "pods") in given, "gates are removed from pods, whatever kind is wrapped"
    kinds = found["ConfigMap", "appwrapper-kinds"]["data"]
    assert kinds["Training.platform.example.com"] == "trainings"
    assert kinds["Pod"] == "pods"


@pytest.mark.parametrize(
    ("mode", "manifest", "values"),
    [
        pytest.param(
            "single",
            HUB,
            {
                "rights": {
                    "subjectAccessReviews": True,
                    "mcadAppWrappers": True,
                    "provisioning": True,
                    "ownerReferences": True,
                }
            },
            id="hub",
        ),
        pytest.param(
            "member",
            MEMBER,
            {"rights": {"createNamespaces": True, "provisioning": True, "ownerReferences": True}},
            id="member",
        ),
    ],
)
def test_rights_for_special_cases_equal_the_commented_rights_of_the_manifests(
    helm: Helm, mode: str, manifest: Path, values: Json
) -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())["wrappedKinds"]
    added = [
        {"group": "platform.example.com", "kind": "Training", "resource": "trainings"},
        {"group": "", "kind": "Secret", "resource": "secrets"},
    ]
    chart = rendered(helm, mode=mode, wrappedKinds=defaults + added, **values)

    uncommented = objects(
        re.sub(r"^# (?=- \{?apiGroups|  (resources|verbs): )", "", manifest.read_text(), flags=re.M)
    )
    roles = {key: each["rules"] for key, each in uncommented.items() if key[0] == "ClusterRole"}
    assert {key: chart[key]["rules"] for key in roles} == roles


def test_member_without_the_secret_of_a_token_is_the_overlay_with_the_component(
    helm: Helm, tmp_path: Path
) -> None:
    (tmp_path / "manifests").symlink_to(OVERLAYS.parent)
    written = {
        "resources": ["manifests/overlays/member"],
        "components": ["manifests/components/short-lived-token"],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(written))

    expected = kustomized(tmp_path)
    assert rendered(helm, mode="member", memberTokenSecret=False) == expected
    assert {kind for kind, _ in expected} == {
        "Namespace",
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
    }


def test_settings_reach_both_containers_and_replace_defaults(helm: Helm) -> None:
    settings = {"DISPATCHER_DATABASE_TLS": "unverified", "DISPATCHER_LOG_FORMAT": "console"}
    pod = rendered(helm, settings=settings)["Deployment", "dispatcher"]["spec"]["template"]["spec"]

    for container in (*pod["initContainers"], *pod["containers"]):
        names = [each["name"] for each in container["env"]]
        assert len(names) == len(set(names))
        given = {each["name"]: each.get("value") for each in container["env"]}
        assert {name: given[name] for name in settings} == settings


def test_pods_take_image_nodes_and_secrets_from_the_values(helm: Helm) -> None:
    image = {
        "name": "registry.example/dispatcher",
        "tag": "1.2",
        "pullPolicy": "Always",
        "pullSecrets": ["pull"],
    }
    taint = {"key": "control", "operator": "Exists"}
    found = rendered(
        helm,
        image=image,
        replicas=3,
        database={"secretName": "ours"},
        nodeSelector={"role": "control"},
        tolerations=[taint],
        resources={"requests": {"cpu": 1}},
    )["Deployment", "dispatcher"]["spec"]

    pod = found["template"]["spec"]
    assert found["replicas"] == 3
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert (pod["nodeSelector"], pod["tolerations"]) == ({"role": "control"}, [taint])
    assert pod["containers"][0]["resources"]["requests"] == {"cpu": 1, "memory": "512Mi"}
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["image"] == "registry.example/dispatcher:1.2"
        assert container["imagePullPolicy"] == "Always"
        [url] = [each["valueFrom"] for each in container["env"] if each["name"] == "DISPATCHER_DATABASE_URL"]
        assert url == {"secretKeyRef": {"name": "ours", "key": "url"}}


@pytest.mark.parametrize(
    ("values", "left"),
    [
        pytest.param({"networkPolicy": {"enabled": False}}, {"NetworkPolicy"}, id="network"),
        pytest.param({"crds": {"enabled": False}}, {"CustomResourceDefinition"}, id="definitions"),
        pytest.param(
            {"policies": {"enabled": False}},
            {"ConfigMap", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"},
            id="policies",
        ),
    ],
)
def test_parts_can_be_left_out(helm: Helm, values: Json, left: set[str]) -> None:
    whole, part = rendered(helm), rendered(helm, **values)

    assert {kind for kind, name in whole if (kind, name) not in part} == left
    assert {kind for kind, _ in part} & left == set()


def test_trial_postgres_and_its_secret_take_the_values(helm: Helm) -> None:
    wanted = {
        "enabled": True,
        "image": "mirror.example/postgres:17",
        "storage": "5Gi",
        "storageClass": "fast",
    }
    found = rendered(helm, trialPostgres=wanted, database={"secretName": "ours"}, namespace="trial")

    postgres = found["StatefulSet", "trial-postgres"]["spec"]
    [container] = postgres["template"]["spec"]["containers"]
    [claim] = postgres["volumeClaimTemplates"]
    assert container["image"] == "mirror.example/postgres:17"
    assert claim["spec"]["resources"] == {"requests": {"storage": "5Gi"}}
    assert claim["spec"]["storageClassName"] == "fast"
    [password] = [each["valueFrom"] for each in container["env"] if "valueFrom" in each]
    assert password == {"secretKeyRef": {"name": "ours", "key": "password"}}
    secret = found["Secret", "ours"]["stringData"]
    assert secret["url"] == f"postgresql://dispatcher:{secret['password']}@trial-postgres:5432/dispatcher"
    assert re.fullmatch("[A-Za-z0-9]{32}", secret["password"])
    assert {each["metadata"]["namespace"] for key, each in found.items() if key[1] == "trial-postgres"} == {
        "trial"
    }


@pytest.mark.parametrize("mode", ["single", "hub", "member"])
def test_chart_passes_lint(helm: Helm, mode: str) -> None:
    helm("lint", str(CHART), "--strict", "--set", f"mode={mode}")


POD = {"group": "", "kind": "Pod", "resource": "pods"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        pytest.param({"replica": 2}, "additional properties 'replica' not allowed", id="unknown-key"),
        pytest.param(
            {"image": {"repository": "x"}}, "additional properties 'repository'", id="unknown-key-inside"
        ),
        pytest.param(
            {"mode": "cluster"}, "/mode': value must be one of 'single', 'hub', 'member'", id="mode"
        ),
        pytest.param({"namespace": ""}, "/namespace': minLength", id="no-namespace"),
        pytest.param({"namespace": "Ours"}, "/namespace'", id="namespace-in-capitals"),
        pytest.param({"image": {"name": ""}}, "/image/name': minLength", id="no-image"),
        pytest.param({"image": {"tag": 1.2}}, "/image/tag': got number, want string", id="tag-is-a-number"),
        pytest.param({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy'", id="pull-policy"),
        pytest.param({"replicas": "2"}, "/replicas': got string, want integer", id="replicas-are-a-string"),
        pytest.param({"replicas": -1}, "/replicas': minimum", id="replicas-below-zero"),
        pytest.param({"database": {"secretName": ""}}, "/database/secretName': minLength", id="no-secret"),
        pytest.param({"database": {"secretName": None}}, "secretName", id="secret-is-null"),
        pytest.param({"settings": {"DISPATCHER_FITS": "node"}}, "DISPATCHER_FITS", id="unknown-setting"),
        pytest.param({"settings": {"DISPATCHER_DATABASE_URL": "x"}}, "DATABASE_URL", id="url-among-settings"),
        pytest.param({"settings": {"DISPATCHER_POLL_SECONDS": 5}}, "got number, want string", id="number"),
        pytest.param({"networkPolicy": {"databasePort": 0}}, "/networkPolicy/databasePort'", id="port"),
        pytest.param(
            {"networkPolicy": {"apiServerPorts": []}}, "/networkPolicy/apiServerPorts'", id="no-ports"
        ),
        pytest.param(
            {"crds": {"enabled": "no"}}, "/crds/enabled': got string, want boolean", id="not-boolean"
        ),
        pytest.param(
            {"wrappedKinds": ["pods"]}, "/wrappedKinds/0': got string, want object", id="kind-is-a-string"
        ),
        pytest.param({"wrappedKinds": [{"kind": "Pod"}]}, "missing properties", id="kind-without-plural"),
        pytest.param(
            {"wrappedKinds": [POD, POD]}, "/wrappedKinds': items at 0 and 1 are equal", id="kind-twice"
        ),
        pytest.param(
            {"wrappedKinds": [{**POD, "resource": "*"}]}, "/wrappedKinds/0/resource'", id="all-kinds"
        ),
        pytest.param({"wrappedKinds": [{**POD, "group": "*"}]}, "/wrappedKinds/0/group'", id="all-groups"),
        pytest.param({"rights": {"everything": True}}, "'everything' not allowed", id="unknown-right"),
    ],
)
def test_schema_refuses(helm: Helm, values: Json, said: str) -> None:
    ran = helm.run("template", "dispatcher", str(CHART), values=values)

    assert ran.returncode == 1
    assert said in ran.stderr
