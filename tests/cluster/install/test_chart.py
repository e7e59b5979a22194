"""The chart on a fresh API server: installed, upgraded with another kind, removed, and installed again.

Exhaustive, because the daily tests apply the overlay, and compare what the chart renders with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from testbed.plane import Plane
from testbed.processes import Supervisor
from tests.cluster.install.installation import CHART, CHECKOUT, Helm, Kubectl, Pod, run_example, write_secret
from tests.cluster.manifests import small_job
from tests.cluster.members.identities import NAMESPACE

Json = dict[str, Any]

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:dispatcher"
TRAINING = {"group": "platform.example.com", "kind": "Training", "resource": "trainings"}
JOB = {"group": "batch", "kind": "Job", "resource": "jobs"}


@pytest.fixture
def removed(helm: Helm, kubectl: Kubectl) -> Iterator[None]:
    """Remove the release and what it keeps, whatever the test did."""
    yield
    helm.run("uninstall", "dispatcher", "--ignore-not-found", "--wait")
    kubectl("delete", "--ignore-not-found", "--timeout=60s", "-f", str(CHECKOUT / "crds"))


def may_create(kubectl: Kubectl, group: str, resource: str) -> bool:
    """True if the dispatcher's account may create this kind in any namespace."""
    attributes = {"verb": "create", "group": group, "resource": resource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": ACCOUNT, "resourceAttributes": attributes},
    }
    answer = yaml.safe_load(kubectl("create", "-f", "-", "--output=yaml", stdin=yaml.safe_dump(review)))
    return bool(answer["status"]["allowed"])


def until_rights_are(kubectl: Kubectl, expected: dict[tuple[str, str], bool]) -> None:
    """Return once the account may create these kinds, or may not; the API server reads changed roles a moment later."""
    while {each: may_create(kubectl, *each) for each in expected} != expected:
        time.sleep(0.1)


def of_appwrappers(kubectl: Kubectl) -> Json:
    """The metadata of the definition of AppWrappers."""
    metadata: Json = kubectl.get("crd", "appwrappers.workload.codeflare.dev")["metadata"]
    return metadata


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_chart_is_installed_upgraded_removed_and_installed_again(
    supervisor: Supervisor, fresh: Plane, kubectl: Kubectl, helm: Helm, empty_url: str, removed: None
) -> None:
    notes = helm("install", "dispatcher", str(CHART), "--server-side=true")
    assert "create secret generic database" in notes
    write_secret(kubectl, empty_url)
    # The namespace enforces the Pod Security level `restricted`.
    kubectl("rollout", "status", "deployment/dispatcher", "--namespace", NAMESPACE, "--timeout=60s")

    pod = Pod(supervisor, fresh, kubectl)
    migration = pod.run("migrate")
    assert migration.wait(60) == 0, migration.log.read_text()
    dispatcher = pod.run("dispatcher")
    run_example(kubectl)
    dispatcher.stop()
    assert '"level": "warning"' not in dispatcher.log.read_text()

    trainings, statefulsets = ("platform.example.com", "trainings"), ("apps", "statefulsets")
    until_rights_are(kubectl, {trainings: False, statefulsets: True})
    helm("upgrade", "dispatcher", str(CHART), values={"wrappedKinds": [JOB, TRAINING]})
    until_rights_are(kubectl, {trainings: True, statefulsets: False})
    kinds = kubectl.get("configmap", "appwrapper-kinds", "--namespace", NAMESPACE)["data"]
    assert kinds["Training.platform.example.com"] == "trainings"

    kubectl("create", "-f", "-", stdin=yaml.safe_dump(small_job("kept")))
    definition, appwrapper = of_appwrappers(kubectl)["uid"], kubectl.get("aw", "kept")["metadata"]["uid"]
    helm("uninstall", "dispatcher", "--wait")
    assert (
        kubectl("get", "namespace,clusterrole,validatingadmissionpolicy", "--output=name").count("dispatcher")
        == 0
    )
    assert of_appwrappers(kubectl)["uid"] == definition
    assert kubectl.get("aw", "kept")["metadata"]["uid"] == appwrapper

    trial = {"trialPostgres": {"enabled": True}}
    helm("install", "dispatcher", str(CHART), values=trial)
    assert of_appwrappers(kubectl)["uid"] == definition
    assert kubectl.get("aw", "kept")["metadata"]["uid"] == appwrapper
    # The namespace admits the pod of Postgres; the testbed has no volumes, so it gets no node.
    kubectl("wait", "pod/trial-postgres-0", "--for=create", "--namespace", NAMESPACE, "--timeout=60s")
    password = kubectl.get("secret", "database", "--namespace", NAMESPACE)["data"]
    helm("upgrade", "dispatcher", str(CHART), values=trial)
    assert kubectl.get("secret", "database", "--namespace", NAMESPACE)["data"] == password
    assert set(password) == {"url", "password"}
