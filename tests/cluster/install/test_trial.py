"""The commands with kubectl alone of docs/install.md, "A Postgres for a trial", as they stand; and their removal."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from testbed.plane import Plane
from testbed.processes import Supervisor
from tests.cluster.install.installation import CHECKOUT, Kubectl, Pod
from tests.cluster.members.identities import NAMESPACE

pytestmark = pytest.mark.exhaustive

SECTION = (
    (CHECKOUT / "docs/install.md")
    .read_text()
    .partition("### A Postgres for a trial")[2]
    .partition("\n### ")[0]
)


def commands(first: str) -> str:
    """The block of commands that begins so."""
    blocks: list[str] = re.findall(r"```\n(.*?)```", SECTION, re.DOTALL)
    return next(each for each in blocks if each.startswith(first))


def by_hand(plane: Plane, block: str) -> None:
    """Type commands into a shell, in the checkout; each has to succeed."""
    path = f"{plane.kubectl.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "KUBECONFIG": str(plane.kubeconfig), "HOME": str(plane.folder)}
    command = ["bash", "-ec", block]
    ran = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    assert ran.returncode == 0, ran.stderr


def test_commands_with_kubectl_alone_lead_to_the_running_example_and_to_nothing(
    supervisor: Supervisor, fresh: Plane, kubectl: Kubectl, empty_url: str
) -> None:
    by_hand(fresh, commands("kubectl apply --server-side -k manifests/overlays/trial"))

    pod = Pod(supervisor, fresh, kubectl)
    url = pod.environment(pod.container("dispatcher"))["DISPATCHER_DATABASE_URL"]
    assert re.fullmatch(r"postgresql://dispatcher:[0-9a-f]{48}@trial-postgres:5432/dispatcher", url)
    migration = pod.run("migrate", DISPATCHER_DATABASE_URL=empty_url)
    assert migration.wait(60) == 0, migration.log.read_text()
    dispatcher = pod.run("dispatcher", DISPATCHER_DATABASE_URL=empty_url)
    [name] = kubectl("get", "aw", "--output=name").split()
    kubectl("wait", name, "--for=condition=Running", "--timeout=60s")

    by_hand(fresh, "kubectl delete -f examples/aw-job.yaml --timeout=60s")
    by_hand(fresh, "kubectl delete -k manifests/overlays/trial --timeout=100s")
    dispatcher.stop()
    assert kubectl("get", "namespace", NAMESPACE, "--ignore-not-found") == ""
    assert "dispatcher" not in kubectl("get", "crd,clusterrole,clusterrolebinding", "--output=name")
    assert "dispatcher" not in kubectl("get", "validatingadmissionpolicy", "--output=name")
