"""The image, run with the security context of the Deployment, dispatches the example; `make test-image` builds it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.plane import Plane
from testbed.ports import Ports
from testbed.postgres import TlsPostgres
from testbed.processes import Ending, Process, Supervisor
from tests.cluster.install.installation import (
    MOUNTED,
    OVERLAYS,
    Kubectl,
    Pod,
    apply,
    run_example,
    write_secret,
)

pytestmark = pytest.mark.exhaustive

VARIABLE = "DISPATCHER_TEST_IMAGE"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
START_SECONDS = 180


@pytest.fixture(scope="module")
def image() -> str:
    """The name of an image of this checkout, in a Docker engine of this machine."""
    name = os.environ.get(VARIABLE, "")
    if not name:
        pytest.skip(f"{VARIABLE} names no image: `make test-image` builds one, and needs a Docker engine")
    return name


def docker(*arguments: str) -> str:
    """The output of a docker command."""
    ran = subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True)  # noqa: S603, S607
    return ran.stdout.strip()


class Containers(Pod):
    """The containers of the Deployment's pod, run by Docker on this machine's network."""

    def __init__(
        self, supervisor: Supervisor, plane: Plane, kubectl: Kubectl, image: str, folder: Path
    ) -> None:
        super().__init__(supervisor, plane, kubectl)
        self._image = image
        self._account = self._write_account(folder / "account")
        self._ports = Ports("probes")
        self.names: list[str] = []
        self._processes: list[Process] = []

    def run(self, name: str, **variables: str) -> Process:
        """Start a container; its account and its Secrets are mounted, as a kubelet mounts them."""
        container = self.container(name)
        self.names.append(f"aw-test-{uuid.uuid4().hex[:8]}")
        command = [
            *("docker", "run", "--rm", "--network=host", f"--name={self.names[-1]}"),
            *self._security(container),
            *(f"--env={key}={value}" for key, value in (self._variables(container) | variables).items()),
            f"--volume={self._account}:{ACCOUNT}:ro",
            *(f"--volume={folder}:{path}:ro" for path, folder in self.mount(container).items()),
            *("--health-interval=1s", self._image, *container["args"]),
        ]
        self._processes.append(self.supervisor.start(f"container-{name}", command, ending=Ending(grace=20)))
        return self._processes[-1]

    def close(self) -> None:
        """Remove all containers, and show the output of each if the test failed."""
        for process in self._processes:
            sys.stdout.write(process.log.read_text())
        for each in self.names:
            subprocess.run(["docker", "rm", "--force", each], check=False, capture_output=True)  # noqa: S603, S607
        self._ports.release()

    def _security(self, container: dict[str, object]) -> list[str]:
        pod = self.spec["securityContext"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        mounts = container["volumeMounts"]
        assert isinstance(mounts, list)
        writable = [f"--tmpfs={each['mountPath']}" for each in mounts if each["name"] == "tmp"]
        user = f"--user={pod['runAsUser']}:{pod['runAsGroup']}"
        return ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", user, *writable]

    def _variables(self, container: dict[str, object]) -> dict[str, str]:
        host, port = self.plane.url.removeprefix("https://").split(":")
        return {
            **self.environment(container),
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "DISPATCHER_LISTEN_PORT": str(self._ports["probes"]),
        }

    def _write_account(self, folder: Path) -> Path:
        folder.mkdir()
        content = {
            "token": self.token,
            "ca.crt": self.plane.certificate_authority,
            "namespace": "appwrapper-dispatcher",
        }
        for name, text in content.items():
            (folder / name).write_text(text)
        return folder


@pytest.fixture
def containers(
    supervisor: Supervisor,
    fresh: Plane,
    kubectl: Kubectl,
    image: str,
    tls_postgres: TlsPostgres,
    tmp_path: Path,
) -> Iterator[Containers]:
    """The pod of an installation, on a database that it reaches by TLS with the mounted certificate."""
    apply(kubectl)
    write_secret(kubectl, tls_postgres.tls_url("127.0.0.1", MOUNTED), tmp_path / "ca.crt")
    containers = Containers(supervisor, fresh, kubectl, image, tmp_path)
    yield containers
    containers.close()
    kubectl("delete", "--kustomize", str(OVERLAYS / "single"), "--timeout=100s")


@pytest.mark.timeout(600)
async def test_image_dispatches_the_example_and_is_healthy(kubectl: Kubectl, containers: Containers) -> None:
    migration = containers.run("migrate")
    assert await asyncio.to_thread(migration.wait, START_SECONDS) == 0, migration.log.read_text()
    dispatcher = containers.run("dispatcher")
    assert await asyncio.to_thread(settled_health, containers.names[-1]) == "healthy"
    await asyncio.to_thread(run_example, kubectl)
    await asyncio.to_thread(dispatcher.stop)

    assert dispatcher.exit_code == 0
    assert '"event": "dispatched"' in dispatcher.log.read_text()


def settled_health(container: str) -> str:
    """The state that Docker derives from the image's HEALTHCHECK, once the container runs and is no longer starting.

    An engine without overlay file systems copies the whole image first, for a minute on a busy machine.
    """
    deadline = time.monotonic() + START_SECONDS
    while True:
        found = docker("ps", f"--filter=name={container}", "--format={{.Status}}")
        if "healthy)" in found or time.monotonic() > deadline:
            return found.rpartition("(")[2].removesuffix(")")
        time.sleep(0.2)


def test_image_has_no_compiler_and_no_download_tool(image: str) -> None:
    search = "for each in gcc cc make curl wget; do command -v $each; done; echo searched"
    assert docker("run", "--rm", "--network=none", "--entrypoint=sh", image, "-c", search) == "searched"
