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


def test_overlay_of_the_page_needs_no_program_but_kubectl(kubectl: Kubectl, tmp_path: Path) -> None:
    for folder in ("manifests", "crds"):
        shutil.copytree(CHECKOUT / folder, tmp_path / folder, symlinks=True)
    blocks: list[str] = re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    block = next(each for each in blocks if "manifests/overlays/ours" in each)
    assert "kustomize " not in block
    written = block.replace("NAME", "registry.example/dispatcher")
    subprocess.run(["bash", "-ec", written], cwd=tmp_path, check=True, env={"PATH": os.defpath})  # noqa: S603, S607
    ours = tmp_path / "manifests" / "overlays" / "ours"
    assert rendered(kubectl, str(ours)) == rendered(kubectl, "single")
    assert "image: registry.example/dispatcher:0.1.0\n" in kubectl("kustomize", str(ours))


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
