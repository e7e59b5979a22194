"""`manifests/overlays` on a fresh API server: `single` applied twice, its pod template run by hand, and removed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest
import yaml

from testbed.certificates import make_certificates
from testbed.plane import Plane
from testbed.postgres import TlsPostgres
from testbed.processes import Supervisor
from tests.cluster.install.installation import (
    CHECKOUT,
    MOUNTED,
    OVERLAYS,
    Kubectl,
    Pod,
    apply,
    run_example,
    write_secret,
)
from tests.cluster.members.identities import NAMESPACE

PAGE = (CHECKOUT / "docs" / "install.md").read_text(encoding="utf-8")
BLOCKS: list[str] = re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
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


def checkout_with_ours(folder: Path) -> Path:
    """The overlay that the page has the operator write, in a copy of the manifests."""
    for name in ("manifests", "crds"):
        shutil.copytree(CHECKOUT / name, folder / name, symlinks=True)
    block = next(each for each in BLOCKS if "manifests/overlays/ours" in each)
    assert "kustomize " not in block
    typed(block.replace("NAME", "registry.example/dispatcher"), folder)
    return folder / "manifests" / "overlays" / "ours"


def typed(block: str, folder: Path) -> None:
    """Type commands into a shell without kubectl; each has to succeed."""
    subprocess.run(["bash", "-ec", block], cwd=folder, check=True, env={"PATH": os.defpath})  # noqa: S603, S607


def test_overlay_of_a_hub_gives_no_rights_to_create_gangs_on_the_hub(kubectl: Kubectl) -> None:
    single = rendered(kubectl, "single")

    assert single >= NO_GANGS
    assert rendered(kubectl, "hub") == single - NO_GANGS


def test_overlay_of_the_page_needs_no_program_but_kubectl(kubectl: Kubectl, tmp_path: Path) -> None:
    ours = checkout_with_ours(tmp_path)
    assert rendered(kubectl, str(ours)) == rendered(kubectl, "single")
    assert "image: registry.example/dispatcher:0.1.0\n" in kubectl("kustomize", str(ours))


def test_patches_of_the_page_change_what_they_say(kubectl: Kubectl, tmp_path: Path) -> None:
    ours = checkout_with_ours(tmp_path)
    added = ours / "kustomization.yaml"
    added.write_text(added.read_text().replace("components: []", "components: [../../components/monitoring]"))
    [patches] = [each for each in BLOCKS if "cat >>manifests/overlays/ours" in each]
    typed(patches, tmp_path)
    found = {
        (each["kind"], each["metadata"]["name"]): each
        for each in yaml.safe_load_all(kubectl("kustomize", str(ours)))
    }
    pod = found["Deployment", "dispatcher"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    for each in (container, *pod["initContainers"]):
        assert {"name": "DISPATCHER_LOG_FORMAT", "value": "console"} in each["env"]
    assert {"name": "DISPATCHER_HISTORY_DAYS", "value": "800"} in container["env"]
    assert container["resources"]["limits"] == {"memory": "4Gi"}
    network = found["NetworkPolicy", "dispatcher"]["spec"]
    assert [each["port"] for each in network["egress"][0]["ports"]] == [53, 53, 5433, 443, 6443]
    [prometheus] = network["ingress"][0]["from"]
    assert prometheus["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "prometheus"}
    for kind in ("ServiceMonitor", "PrometheusRule"):
        assert found[kind, "dispatcher"]["metadata"]["labels"]["release"] == "prometheus"


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


@pytest.mark.exhaustive
def test_pod_template_reaches_the_database_by_tls_with_the_mounted_certificate(
    supervisor: Supervisor, fresh: Plane, kubectl: Kubectl, tls_postgres: TlsPostgres, tmp_path: Path
) -> None:
    apply(kubectl)
    write_secret(kubectl, tls_postgres.tls_url("127.0.0.1", MOUNTED), tmp_path / "ca.crt")
    pod = Pod(supervisor, fresh, kubectl)
    migration = pod.run("migrate")
    assert migration.wait(60) == 0, migration.log.read_text()
    dispatcher = pod.run("dispatcher")
    run_example(kubectl)
    with psycopg.connect(tls_postgres.url) as connection:
        found = connection.execute(
            "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'dispatcher'"
        )
        assert found.fetchall() == [(True,)]
    dispatcher.stop()
    assert dispatcher.exit_code == 0


@pytest.mark.exhaustive
def test_migration_refuses_a_certificate_of_another_authority_and_of_another_name(
    supervisor: Supervisor, fresh: Plane, kubectl: Kubectl, tls_postgres: TlsPostgres, tmp_path: Path
) -> None:
    apply(kubectl)
    other = make_certificates(tmp_path / "other").ca
    elsewhere = f"{tls_postgres.tls_url('database.example.org', MOUNTED)}&hostaddr=127.0.0.1"
    for url, authority, error in (
        (tls_postgres.tls_url("127.0.0.1", MOUNTED), other, "certificate verify failed"),
        (elsewhere, tmp_path / "ca.crt", 'does not match host name "database.example.org"'),
    ):
        write_secret(kubectl, url, authority)
        migration = Pod(supervisor, fresh, kubectl).run("migrate")
        assert migration.wait(60) != 0
        assert error in migration.log.read_text()


def test_removing_the_overlay_leaves_nothing(kubectl: Kubectl) -> None:
    apply(kubectl)

    kubectl("delete", "--kustomize", str(OVERLAYS / "single"), "--timeout=100s")

    left = kubectl("get", "--kustomize", str(OVERLAYS / "single"), "--ignore-not-found", "--output=name")
    assert left == ""
