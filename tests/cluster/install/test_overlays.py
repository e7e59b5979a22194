"""`manifests/overlays` on a fresh API server: `single` applied twice, its pod template run by hand, and removed."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from testbed.plane import Plane
from testbed.processes import Supervisor
from tests.cluster.install.installation import OVERLAYS, Kubectl, Pod, apply, run_example, write_secret
from tests.cluster.members.identities import NAMESPACE

NO_GANGS = {
    ("ClusterRole", "appwrapper-dispatcher-gangs"),
    ("ClusterRoleBinding", "appwrapper-dispatcher-gangs"),
}


def rendered(kubectl: Kubectl, overlay: str) -> set[tuple[str, str]]:
    """The kinds and names of the objects of an overlay, by its name or path."""
    documents = yaml.safe_load_all(kubectl("kustomize", str(OVERLAYS / overlay)))
    return {(each["kind"], each["metadata"]["name"]) for each in documents}


def versions(kubectl: Kubectl) -> dict[str, str]:
    """The version of each object of the overlay, by its uid; where the API server counts them, changes of the spec."""
    found = kubectl.get("--kustomize", str(OVERLAYS / "single"))["items"]
    return {
        each["metadata"]["uid"]: str(each["metadata"].get("generation", each["metadata"]["resourceVersion"]))
        for each in found
    }


def test_overlay_of_a_hub_gives_no_rights_to_create_gangs_on_the_hub(kubectl: Kubectl) -> None:
    single = rendered(kubectl, "single")

    assert single >= NO_GANGS
    assert rendered(kubectl, "hub") == single - NO_GANGS


def test_component_for_monitoring_only_adds_its_objects(kubectl: Kubectl, tmp_path: Path) -> None:
    overlay = {
        "resources": [os.path.relpath(OVERLAYS / "single", tmp_path)],
        "components": [os.path.relpath(OVERLAYS.parent / "components" / "monitoring", tmp_path)],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    assert rendered(kubectl, str(tmp_path)) - rendered(kubectl, "single") == {
        ("Service", "dispatcher-metrics"),
        ("ServiceMonitor", "dispatcher"),
        ("PrometheusRule", "dispatcher"),
        ("ConfigMap", "dispatcher-dashboard"),
    }


def test_overlay_of_a_member_is_its_account_and_its_rights(kubectl: Kubectl) -> None:
    assert rendered(kubectl, "member") == {
        ("Namespace", NAMESPACE),
        ("ServiceAccount", "hub"),
        ("Secret", "hub"),
        ("ClusterRole", "appwrapper-dispatcher-hub"),
        ("ClusterRoleBinding", "appwrapper-dispatcher-hub"),
    }


def test_pod_template_of_a_fresh_installation_dispatches_the_example(
    supervisor: Supervisor, fresh: Plane, kubectl: Kubectl, empty_url: str
) -> None:
    apply(kubectl)
    once = versions(kubectl)
    apply(kubectl)
    assert versions(kubectl) == once
    write_secret(kubectl, empty_url)
    # The namespace enforces the Pod Security level `restricted`.
    kubectl("rollout", "status", "deployment/dispatcher", "--namespace", NAMESPACE, "--timeout=60s")

    pod = Pod(supervisor, fresh, kubectl)
    migration = pod.run("migrate")
    assert migration.wait(60) == 0, migration.log.read_text()
    dispatcher = pod.run("dispatcher")
    run_example(kubectl)
    dispatcher.stop()

    assert dispatcher.exit_code == 0
    log = dispatcher.log.read_text()
    assert '"event": "dispatched"' in log
    assert '"level": "warning"' not in log
    assert '"level": "error"' not in log


def test_removing_the_overlay_leaves_nothing(kubectl: Kubectl) -> None:
    apply(kubectl)

    kubectl("delete", "--kustomize", str(OVERLAYS / "single"), "--timeout=100s")

    left = kubectl("get", "--kustomize", str(OVERLAYS / "single"), "--ignore-not-found", "--output=name")
    assert left == ""
