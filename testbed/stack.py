"""One whole stack: a hub, perhaps members, Postgres, the dispatcher, operators, and stand-ins for others.

`make demo` starts the default stack, `make demo-hub` one with members, `make demo-queues` one with more GPUs,
`make demo-provisioning` one with an autoscaler, and `make dev` one with users and with all kinds of the docs.
Every part is a process under the caller's supervisor. It gets all its settings explicitly, and sees nothing of the
user's KUBECONFIG or DISPATCHER_… variables.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from testbed import kuberay_operator
from testbed.batch_operators import definitions
from testbed.build import Binaries, chosen
from testbed.built_operators import BuiltOperator, RunningOperator
from testbed.kuberay_operator import KubeRay, with_ray_kinds
from testbed.nodes import Shape
from testbed.plane import COMPONENTS, NotReady, Plane, Wanted, up_all
from testbed.postgres import EmbeddedPostgres, server_binaries
from testbed.processes import Ending, Process, ProcessDied, Supervisor

ROOT: Final = Path(__file__).resolve().parent.parent
CRDS: Final = (*sorted((ROOT / "crds").glob("*.yaml")), *sorted((ROOT / "testbed" / "crds").glob("*.yaml")))
"""Our definitions, and those without an operator; the stack adds KubeRay's."""
POLICIES: Final = tuple(
    ROOT / "manifests" / "policies" / f"{each}-policy.yaml" for each in ("admission", "author")
)
"""The policies that an operator applies on the hub; the API server enforces them some seconds later."""
NAMESPACE: Final = "appwrapper-dispatcher"
"""The dispatcher's own namespace in these policies: it has the kubeconfigs of members, and no AppWrappers."""
NODES: Final = 3
GPU_NODE: Final = Shape(cpu="8", memory="61Gi", gpu=1)
"""One example gang of two GPUs fits on three of these nodes; two gangs do not."""

HUB: Final = "hub"
READY_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.05
PROBE_SECONDS: Final = 2.0
NODE_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
DATABASE: Final = "dispatcher"
COMMANDS: Final = ("dispatcher", "kubectl-aw", "kubectl_complete-aw")

Say = Callable[[str], None]


class Dispatcher:
    """One `dispatcher run`, with probes on a port that the system chooses."""

    def __init__(self, supervisor: Supervisor, environment: Mapping[str, str]) -> None:
        self.process: Process = supervisor.start(
            "dispatcher",
            [sys.executable, "-m", "dispatcher", "run", "--listen-port", "0", "--log-format", "json"],
            env=environment,
            cwd=ROOT,
            ending=Ending(signal.SIGTERM, 10.0),
        )

    @property
    def probes(self) -> str | None:
        """The URL of its probes and metrics; None until it has logged it."""
        for line in self.process.log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if entry.get("event") == "started":
                    return str(entry["probes"])
        return None

    def wait_until_ready(self, timeout: float = READY_SECONDS) -> None:
        """Returns when it leads; raises `ProcessDied` or `NotReady`."""
        deadline = time.monotonic() + timeout
        while not self._is_ready():
            self.process.check()
            if time.monotonic() > deadline:
                raise NotReady(f"the dispatcher is not ready; it logged\n{self.process.log_tail()}")
            time.sleep(POLL_SECONDS)

    def _is_ready(self) -> bool:
        probes = self.probes
        if probes is None:
            return False
        connection = http.client.HTTPConnection(urlsplit(probes).netloc, timeout=PROBE_SECONDS)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class Setting:
    """The parts of a stack; members by name. `settings` are the dispatcher's, by the names of their variables.

    `manifests` are applied on the hub. KubeRay's operator runs everywhere; `operators` run on the hub, and with
    `stand_ins`, stand-ins for others, too. With `autoscaler`, the hub has a node pool for ProvisioningRequests.
    """

    hub: Wanted = field(default_factory=lambda: Wanted(NODES, GPU_NODE, CRDS))
    manifests: Sequence[Path] = POLICIES
    operators: Sequence[BuiltOperator] = ()
    stand_ins: bool = False
    autoscaler: bool = False
    members: Mapping[str, Wanted] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


class Stack:
    """A dispatcher and everything that it needs. Call `down` even if `up` failed.

    Members run, but are not declared to the hub. The stack owns its supervisor's folder: logs of earlier runs are
    removed.
    """

    def __init__(self, supervisor: Supervisor, binaries: Binaries, setting: Setting | None = None) -> None:
        setting = setting or Setting()
        self.folder = supervisor.folder
        hub = replace(setting.hub, crds=(*setting.hub.crds, *definitions(setting.operators)))
        self.plane = Plane(supervisor, binaries, HUB, with_ray_kinds(hub))
        self.members = {
            name: Plane(supervisor, binaries, name, with_ray_kinds(each))
            for name, each in setting.members.items()
        }
        self.database_url = ""
        self.dispatcher: Dispatcher
        self._settings = setting.settings
        self._manifests = setting.manifests
        self._wanted_operators = setting.operators
        self._has_stand_ins = setting.stand_ins
        self._has_autoscaler = setting.autoscaler
        self._kuberays: dict[str, KubeRay] = {}
        self._supervisor = supervisor
        self._binaries = binaries
        self._parts = contextlib.ExitStack()

    def up(self, say: Say) -> None:
        """Starts everything, reports each part to `say` when it is ready, and returns when the dispatcher leads.

        Raises `NoPostgres`, `ProcessDied`, `NotReady`.
        """
        for log in (self.folder / "logs").glob("*.log"):
            log.unlink()
        self.database_url = self._parts.enter_context(EmbeddedPostgres(self._supervisor, DATABASE)).url
        self._migrate()
        say(f"Postgres, migrated: {self.database_url}")
        planes = [self.plane, *self.members.values()]
        for plane in planes:
            self._parts.callback(plane.down)
        up_all(planes)
        apply(self.plane, self._manifests)
        for plane in planes:
            name = f", {plane.name}" if self.members else ""
            say(f"Kubernetes {chosen().version.removeprefix('v')}{name}: {describe(plane.wanted)}")
        for plane in self.members.values() or planes:
            self._start_kuberay(plane)
        operators = [self._start_operator(each) for each in self._wanted_operators]
        if self._has_stand_ins:
            self._start_stand_in("operators-stand-in", "testbed.operators", self.plane)
            say("stand-ins for the operators of Volcano's Jobs and so on")
        if self._has_autoscaler:
            self._start_stand_in("autoscaler-stand-in", "testbed.autoscaler", self.plane)
            say("a stand-in for an autoscaler: a pool of nodes for ProvisioningRequests")
        self.dispatcher = Dispatcher(self._supervisor, {**self.environment, **self._settings})
        self._parts.callback(self._supervisor.stop, self.dispatcher.process)
        for kuberay in self._kuberays.values():
            kuberay.up()
        version = kuberay_operator.chosen().version
        say(f"KubeRay's operator {version}; Ray's dashboards are played, for no Ray runs")
        for wanted, operator in zip(self._wanted_operators, operators, strict=True):
            operator.up()
            say(f"{wanted.name} {wanted.version}")
        self.dispatcher.wait_until_ready()
        say(f"the dispatcher: {self.dispatcher.probes}/readyz")

    def down(self) -> None:
        """Ends everything, dependent parts first. Safe to repeat."""
        self._parts.close()

    def check(self) -> None:
        """Raises `ProcessDied` if any part has ended unexpectedly."""
        for process in self._supervisor.processes:
            process.check()

    def lose(self, name: str) -> None:
        """Ends a member at once, with the operator that runs there; etcd keeps its data."""
        asyncio.run(crash(self.members[name]))
        self._kuberays.pop(name).down()

    def bring_back(self, name: str) -> None:
        """Undoes `lose`, and returns when the member answers."""
        asyncio.run(recover(self.members[name]))
        self._start_kuberay(self.members[name])

    @property
    def environment(self) -> dict[str, str]:
        """The environment with which the `dispatcher` command uses this stack, without the user's variables."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.folder),
            "DISPATCHER_KUBECONFIG": str(self.plane.kubeconfig),
            "DISPATCHER_DATABASE_URL": self.database_url,
            "DISPATCHER_NAMESPACE": NAMESPACE,
        }

    def write_exports(self) -> Path:
        """Writes a file for a shell to source, and returns its path; `exports` has its contents."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        for name, program in self._programs().items():
            link = folder / name
            link.unlink(missing_ok=True)
            link.symlink_to(program)
        path = self.folder / "env"
        path.write_text("\n".join(self.exports()) + "\n")
        return path

    def exports(self) -> list[str]:
        """Lines that make a shell use this stack; the folder on its PATH has kubectl and psql."""
        own = {
            "DISPATCHER_DATABASE_URL": self.database_url,
            "DISPATCHER_NAMESPACE": NAMESPACE,
            **self._settings,
        }
        values = {**self.plane.environment, **own}
        lines = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
        return [*lines, f'export PATH={shlex.quote(str(self.folder / "bin"))}:"$PATH"']

    def _programs(self) -> dict[str, Path]:
        """By name: the cluster's kubectl, the server's psql, and the dispatcher's commands."""
        found = {
            "kubectl": self._binaries.kubectl,
            "psql": server_binaries() / "psql",
            **{name: Path(sys.executable).parent / name for name in COMMANDS},
        }
        return {name: program for name, program in found.items() if program.exists()}

    def _migrate(self) -> None:
        argv = [sys.executable, "-m", "dispatcher", "migrate"]
        process = self._supervisor.start("migrate", argv, env=self.environment, cwd=ROOT)
        try:
            if process.wait(READY_SECONDS) != 0:
                raise ProcessDied(f"`dispatcher migrate` failed:\n{process.log_tail()}")
        finally:
            self._supervisor.stop(process)

    def _start_kuberay(self, plane: Plane) -> None:
        operator = KubeRay(self._supervisor, plane, plane.name if self.members else "")
        self._kuberays[plane.name] = operator
        self._parts.callback(operator.down)

    def _start_operator(self, wanted: BuiltOperator) -> RunningOperator:
        operator = RunningOperator(self._supervisor, wanted, self.plane.kubeconfig)
        self._parts.callback(operator.down)
        return operator

    def _start_stand_in(self, name: str, module: str, plane: Plane) -> None:
        argv = [sys.executable, "-m", module, "--kubeconfig", str(plane.kubeconfig)]
        process = self._supervisor.start(name, argv, env=self.environment, cwd=ROOT)
        self._parts.callback(self._supervisor.stop, process)


def apply(plane: Plane, manifests: Sequence[Path]) -> None:
    """Applies manifests as an operator does; raises `NotReady` with kubectl's message if it refuses."""
    files = [argument for path in manifests for argument in ("-f", str(path))]
    done = subprocess.run([str(plane.kubectl), "apply", *files], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReady(f"{plane.name}: the manifests were not applied: {done.stderr.strip()}")


async def crash(plane: Plane) -> None:
    """Ends all processes of a cluster but etcd."""
    await plane.kill_apiserver()
    for name in COMPONENTS:
        await plane.kill_component(name)


async def recover(plane: Plane) -> None:
    """Undoes `crash`, and returns when the API server is ready; the rest follows at once."""
    await plane.start_apiserver()
    # A new KWOK manages a node only once the lease of the previous one has expired.
    await asyncio.to_thread(plane.client.request, "DELETE", NODE_LEASES)
    for name in COMPONENTS:
        await asyncio.to_thread(plane.start_component, name)


def describe(wanted: Wanted) -> str:
    """The capacity of a cluster, in words."""
    shape = wanted.shape
    if not wanted.nodes:
        return "no nodes"
    return f"{wanted.nodes} nodes of {shape.cpu} CPU, {shape.memory} and {shape.gpu} GPU each"


def ignore_signals() -> None:
    """Lets no signal interrupt the shutdown."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
