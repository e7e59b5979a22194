"""An installation as docs/install.md has it: the operator's kubectl and Helm, and the pod template run by hand.

The tests run the containers' arguments and environment as processes, with a token of the pod's ServiceAccount. KWOK
plays the kubelets of the Deployment's own pods, so these prove only that the cluster admits them.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from testbed.plane import Plane, write_private
from testbed.processes import Ending, Process, Supervisor
from tests.cluster.members import identities
from tests.cluster.members.identities import NAMESPACE

Json = dict[str, Any]

CHECKOUT = Path(__file__).parents[3]
OVERLAYS = CHECKOUT / "manifests" / "overlays"
CHART = CHECKOUT / "manifests" / "chart"
MOUNTED = Path("/etc/dispatcher/database/ca.crt")
"""The certificate of the database's authority in a pod, as docs/install.md has it."""


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


class Helm:
    """The operator's Helm; its own files are in `folder`. Without a cluster it only renders."""

    def __init__(self, program: Path, folder: Path, plane: Plane | None = None) -> None:
        self._program = str(program)
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            **({"KUBECONFIG": str(plane.kubeconfig)} if plane else {}),
        }

    def run(self, *arguments: str, values: Json | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; `values` are given to it as a file."""
        given = ("--values", "-") if values is not None else ()
        return subprocess.run(  # noqa: S603
            [self._program, *arguments, *given],
            input=json.dumps(values),  # which is YAML
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def __call__(self, *arguments: str, values: Json | None = None) -> str:
        """The output of a command that has to succeed."""
        ran = self.run(*arguments, values=values)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout


def apply(kubectl: Kubectl) -> None:
    """Apply the overlay for one cluster as docs/install.md has it."""
    kubectl("apply", "--server-side", "--kustomize", str(OVERLAYS / "single"))


def write_secret(kubectl: Kubectl, url: str, authority: Path | None = None) -> None:
    """Create or replace the Secret with the database's URL, and with the certificate of its authority."""
    secret = kubectl(
        *("create", "secret", "generic", "database", "--namespace", NAMESPACE),
        *(f"--from-literal=url={url}", "--dry-run=client", "--output=yaml"),
        *([f"--from-file=ca.crt={authority}"] if authority else []),
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

    def mount(self, container: Json) -> dict[str, Path]:
        """A folder with the content of each Secret that a container mounts, by the path in the container."""
        volumes = {each["name"]: each for each in self.spec["volumes"]}
        return {
            mount["mountPath"]: self._write_volume(volumes[mount["name"]])
            for mount in container["volumeMounts"]
            if "secret" in volumes[mount["name"]]
        }

    def run(self, name: str, **variables: str) -> Process:
        """Start a container's process, with a kubeconfig in place of the mounted token and namespace.

        In its variables, folders of this machine take the place of the paths of mounted Secrets; `variables` take the
        place of its own.
        """
        container = self.container(name)
        mounted = self.mount(container)
        content = identities.kubeconfig(self.plane, self.token).decode()
        kubeconfig = write_private(self.plane.folder / "pod.kubeconfig", content)
        environment = {
            **{key: _moved(value, mounted) for key, value in self.environment(container).items()},
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(kubeconfig),
            "DISPATCHER_NAMESPACE": NAMESPACE,
            "DISPATCHER_LISTEN_PORT": "0",  # this machine is not the pod's own
            **variables,
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
        return self._secret(source["name"])[source["key"]]

    def _secret(self, name: str) -> dict[str, str]:
        secret = self._kubectl.get("secret", name, "--namespace", NAMESPACE)
        return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}

    def _write_volume(self, volume: Json) -> Path:
        """The items that the Secret of a volume has; the volume is optional."""
        source, folder = volume["secret"], Path(tempfile.mkdtemp(dir=self.plane.folder))
        folder.chmod(0o755)  # for the user of a container
        content = self._secret(source["secretName"])
        for item in source["items"]:
            if item["key"] in content:
                (folder / item["path"]).write_text(content[item["key"]])
        return folder


def _moved(value: str, mounted: dict[str, Path]) -> str:
    for path, folder in mounted.items():
        value = value.replace(f"{path}/", f"{folder}/")
    return value
