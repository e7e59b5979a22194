"""`manifests/overlays/single` on a fresh API server: applied twice, then its pod template run by hand.

The test runs the containers' arguments and environment as processes, with a token of the pod's ServiceAccount. KWOK
plays the kubelets of the Deployment's own pods, so these prove only that the cluster admits them.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import build
from testbed.nodes import Shape
from testbed.plane import Plane, Wanted, write_private
from testbed.processes import Ending, Process, Supervisor
from tests.cluster.members import identities
from tests.cluster.members.identities import NAMESPACE

Json = dict[str, Any]

CHECKOUT = Path(__file__).parents[2]
OVERLAYS = CHECKOUT / "manifests" / "overlays"
BLOG_NODES = Wanted(
    nodes=3,
    shape=Shape(cpu="8", memory="61Gi", gpu=1),
    crds=sorted(CHECKOUT.glob("testbed/crds/*.yaml")),
)
"""The cluster knows RayClusters, and nothing of the dispatcher."""
NO_GANGS = {
    ("ClusterRole", "appwrapper-dispatcher-gangs"),
    ("ClusterRoleBinding", "appwrapper-dispatcher-gangs"),
}


class Kubectl:
    """The operator's kubectl at one cluster."""

    def __init__(self, plane: Plane) -> None:
        self._program = str(plane.kubectl)

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        ran = subprocess.run(  # noqa: S603
            [self._program, *arguments], input=stdin, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def get(self, *arguments: str) -> Json:
        found: Json = json.loads(self("get", *arguments, "--output", "json"))
        return found


@pytest.fixture(scope="module")
def fresh(supervisor: Supervisor) -> Iterator[Plane]:
    """A cluster on which nothing of the dispatcher was installed, with the stand-in for KubeRay's operator."""
    plane = Plane(supervisor, build.ensure(), "fresh", BLOG_NODES)
    plane.up()
    operator = supervisor.start(
        "kuberay-stand-in-fresh",
        [sys.executable, "-m", "testbed.kuberay", "--kubeconfig", str(plane.kubeconfig)],
        cwd=CHECKOUT,
    )
    yield plane
    supervisor.stop(operator)
    plane.down()


@pytest.fixture(scope="module")
def kubectl(fresh: Plane) -> Kubectl:
    return Kubectl(fresh)


def rendered(kubectl: Kubectl, overlay: str) -> set[tuple[str, str]]:
    """The kinds and names of the objects of an overlay, by its name or path."""
    documents = yaml.safe_load_all(kubectl("kustomize", str(OVERLAYS / overlay)))
    return {(each["kind"], each["metadata"]["name"]) for each in documents}


def apply(kubectl: Kubectl) -> None:
    """Apply the overlay for one cluster as docs/install.md has it."""
    kubectl("apply", "--server-side", "--kustomize", str(OVERLAYS / "single"))


def versions(kubectl: Kubectl) -> dict[str, str]:
    """The version of each object of the overlay, by its uid; where the API server counts them, changes of the spec."""
    found = kubectl.get("--kustomize", str(OVERLAYS / "single"))["items"]
    return {
        each["metadata"]["uid"]: str(each["metadata"].get("generation", each["metadata"]["resourceVersion"]))
        for each in found
    }


def write_secret(kubectl: Kubectl, url: str) -> None:
    """Create or replace the Secret with the database's URL."""
    secret = kubectl(
        *("create", "secret", "generic", "database", "--namespace", NAMESPACE),
        *(f"--from-literal=url={url}", "--dry-run=client", "--output=yaml"),
    )
    kubectl("apply", "--server-side", "-f", "-", stdin=secret)


def run_example(kubectl: Kubectl) -> None:
    """Apply the example, wait until it runs, and delete it."""
    path = str(CHECKOUT / "examples" / "aw-raycluster-glue.yaml")
    kubectl("apply", "-f", path)
    kubectl("wait", "aw/raycluster-glue", "--for=condition=Running", "--timeout=60s")
    kubectl("delete", "-f", path, "--timeout=60s")


class Pod:
    """The pod template of the Deployment, whose containers run on this machine."""

    def __init__(self, supervisor: Supervisor, plane: Plane, kubectl: Kubectl) -> None:
        self.supervisor = supervisor
        self.plane = plane
        self._kubectl = kubectl
        deployment = kubectl.get("deployment", "dispatcher", "--namespace", NAMESPACE)
        self.spec = deployment["spec"]["template"]["spec"]
        account = self.spec["serviceAccountName"]
        self.token = kubectl("create", "token", account, "--namespace", NAMESPACE).strip()

    def container(self, name: str) -> Json:
        """A container of the template, init container or not."""
        containers = (*self.spec["initContainers"], *self.spec["containers"])
        return next(each for each in containers if each["name"] == name)

    def environment(self, container: Json) -> dict[str, str]:
        """The variables of a container, those of Secrets included."""
        return {each["name"]: self._value(each) for each in container["env"]}

    def run(self, name: str) -> Process:
        """Start a container's process; a kubeconfig takes the place of the mounted token and namespace."""
        container = self.container(name)
        content = identities.kubeconfig(self.plane, self.token).decode()
        kubeconfig = write_private(self.plane.folder / "pod.kubeconfig", content)
        environment = {
            **self.environment(container),
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(kubeconfig),
            "DISPATCHER_NAMESPACE": NAMESPACE,
            "DISPATCHER_LISTEN_PORT": "0",  # this machine is not the pod's own
        }
        return self.supervisor.start(
            f"pod-{name}",
            [sys.executable, "-m", "dispatcher", *container["args"]],
            env=environment,
            cwd=CHECKOUT,
            ending=Ending(grace=10),
        )

    def _value(self, variable: Json) -> str:
        if "value" in variable:
            return str(variable["value"])
        source = variable["valueFrom"]["secretKeyRef"]
        secret = self._kubectl.get("secret", source["name"], "--namespace", NAMESPACE)
        return base64.b64decode(secret["data"][source["key"]]).decode()


def test_overlay_of_a_hub_gives_no_rights_to_create_gangs_on_the_hub(kubectl: Kubectl) -> None:
    single = rendered(kubectl, "single")

    assert single >= NO_GANGS
    assert rendered(kubectl, "hub") == single - NO_GANGS


def test_component_for_monitoring_only_adds_its_objects(kubectl: Kubectl, tmp_path: Path) -> None:
    overlay = {
        "resources": [os.path.relpath(OVERLAYS / "single", tmp_path)],
        "components": [os.path.relpath(CHECKOUT / "manifests" / "components" / "monitoring", tmp_path)],
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
