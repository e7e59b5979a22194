"""One running cluster: etcd, the API server, the controller manager, the scheduler, and KWOK for the nodes.

Everything is real except the kubelets. A plane has its own folder (certificates, kubeconfig, etcd's data) and its own
ports, so several run side by side. All of it is deleted at the end, so nothing is flushed to disk, and every process
ends with SIGKILL: on SIGTERM an API server drains its watches for a minute.

A plane never reads the KUBECONFIG or the home folder of its user.
"""

import asyncio
import json
import os
import secrets
import shlex
import shutil
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from testbed.build import Binaries
from testbed.certificates import make_certificates
from testbed.client import ApiError, Client
from testbed.nodes import KUBELET, NODES, Shape, create, is_usable
from testbed.ports import Ports
from testbed.processes import KILL, Process, Supervisor

STAGES = Path(__file__).parent / "stages"
POD_SUCCEEDS = "pod-succeed.yaml"
COMPONENTS = ("kube-controller-manager", "kube-scheduler", "kwok")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
USERS = "testbed:users"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
GO_MEMORY = ("GOGC", "GOMEMLIMIT")
"""How Go collects garbage: the only variables that a plane takes over from its user."""
READY_SECONDS = 120.0
DEFINITION_SECONDS = 60.0
"""How long an API server may take for one definition: those of KubeRay have a megabyte."""
POLL_SECONDS = 0.05


class NotReady(Exception):
    """The cluster did not reach the expected state in time."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The contents of a plane once it is up.

    CRDs given here are served before the controller manager starts. Its garbage collector and its quota controller see
    later ones only after up to 30 seconds; until then owner references to them collect nothing.

    `work_seconds` is how long the pod of a job runs that does not say it (`stages/README.md`). `users` are namespaces
    by the name of the user. `flags` are further flags of the API server. `log` is the line that
    every container logs; without it, no log can be read.
    """

    nodes: int = 4
    shape: Shape = field(default_factory=Shape)
    crds: Sequence[Path] = ()
    work_seconds: int = 1
    users: Mapping[str, str] = field(default_factory=dict)
    flags: Sequence[str] = ()
    log: str = ""


class Plane:
    """One cluster. Create it, `up()` it, use it; its supervisor or `down()` ends it."""

    def __init__(
        self, supervisor: Supervisor, binaries: Binaries, name: str = "hub", wanted: Wanted | None = None
    ) -> None:
        self.name = name
        self.wanted = wanted or Wanted()
        self.folder = supervisor.folder / "clusters" / name
        self.kubeconfig = self.folder / "kubeconfig"
        self.kubectl = self.folder / "kubectl"
        self.admin_token = secrets.token_hex(16)
        self._supervisor = supervisor
        self._binaries = binaries
        self._ports = Ports("apiserver", "etcd", "etcd-peers", "kubelet")
        supervisor.afterwards(self._ports.release)
        self._processes: dict[str, Process] = {}
        self._abandoned = threading.Event()
        self._certificates = make_certificates(fresh(self.folder) / "certificates")
        self.url = f"https://127.0.0.1:{self._ports['apiserver']}"
        self.certificate_authority = self._certificates.ca.read_text()
        self.ca_data = b64encode(self.certificate_authority.encode()).decode()
        self.client = Client(self.url, self.admin_token, self.certificate_authority)

    @property
    def environment(self) -> dict[str, str]:
        """The environment with which kubectl uses this cluster.

        The discovery cache is the cluster's own, because ports are reused. The user's kubectl preferences (kuberc) are
        off.
        """
        cache = self.folder / "kubectl-cache"
        return {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(cache), "KUBERC": "off"}

    def kubeconfig_of(self, user: str) -> Path:
        """The kubeconfig of one of `wanted.users`; the group `testbed:users` has all of them."""
        return self.folder / f"{user}.kubeconfig"

    def up(self, timeout: float = READY_SECONDS) -> None:
        """Starts everything and returns when the cluster is ready: nodes usable, `default` able to hold pods.

        Raises `ProcessDied` with the end of its log if a component ends, `NotReady` when the time is up.
        """
        self._write_files()
        self._start("etcd", [self._binaries.kcp, "etcd", *self._etcd_flags()])
        self._start_apiserver()
        deadline = time.monotonic() + timeout
        self._wait("the API server answers", self._is_serving, deadline)
        for path in self.wanted.crds:
            self._install(path, deadline)
        # On a busy machine this may take longer than ten seconds, after which the controller manager exits.
        self._wait("the API server is ready", self._is_ready, deadline)
        for name in COMPONENTS:
            self.start_component(name)
        create(self.client, self.wanted.shape, range(self.wanted.nodes))
        self._wait("pods may be created in default", partial(self._has_service_account, "default"), deadline)
        self._wait("every node is usable", self._has_usable_nodes, deadline)

    def abandon(self) -> None:
        """Makes `up`, which runs in another thread, raise `NotReady` now."""
        self._abandoned.set()

    def down(self) -> None:
        """Ends everything and releases the ports. Safe to repeat."""
        while self._processes:
            self._supervisor.stop(self._processes.popitem()[1])
        self._ports.release()

    def check(self) -> None:
        """Raises `ProcessDied` if a component has ended unexpectedly."""
        for process in tuple(self._processes.values()):
            process.check()

    def give_way(self) -> None:
        """Leaves the processor to whoever else wants it: in life a control plane has machines of its own."""
        for process in self._processes.values():
            process.give_way()

    async def kill_apiserver(self) -> None:
        """Ends the API server like a crash; its data and its port are kept."""
        await asyncio.to_thread(self._stop, "kube-apiserver")

    async def start_apiserver(self) -> None:
        """Starts the API server again and returns when it is ready."""
        await asyncio.to_thread(self._start_apiserver)
        deadline = time.monotonic() + READY_SECONDS
        await asyncio.to_thread(self._wait, "the API server is ready", self._is_ready, deadline)

    async def restart_apiserver(self) -> None:
        """Kills the API server and starts it again: every watch breaks, no data is lost."""
        await self.kill_apiserver()
        await self.start_apiserver()

    async def kill_component(self, name: str) -> None:
        """Ends one of `COMPONENTS`; without `kwok`, node leases expire and pods keep their state."""
        await asyncio.to_thread(self._stop, name)

    def start_component(self, name: str) -> None:
        """Starts one of `COMPONENTS`, without waiting for it."""
        flags: Mapping[str, Callable[[], list[str]]] = {
            "kube-controller-manager": self._controller_manager_flags,
            "kube-scheduler": self._scheduler_flags,
            "kwok": self._kwok_flags,
        }
        program = [self._binaries.kwok] if name == "kwok" else [self._binaries.kcp, name]
        self._start(name, [*program, *flags[name]()])

    async def create_namespace(self, name: str) -> None:
        """Creates a namespace and returns when pods can be created in it: its service account exists."""
        await asyncio.to_thread(
            self.client.apply, f"/api/v1/namespaces/{name}", named("v1", "Namespace", name)
        )
        deadline = time.monotonic() + READY_SECONDS
        is_ready = partial(self._has_service_account, name)
        await asyncio.to_thread(self._wait, f"pods may be created in {name}", is_ready, deadline)

    def service_account_kubeconfig(
        self,
        namespace: str,
        name: str,
        rules: Sequence[Mapping[str, Any]],
        valid_for: timedelta = timedelta(hours=24),
    ) -> Path:
        """A kubeconfig with the rights of these RBAC rules, cluster-wide, and no others.

        The namespace must exist. A repeat with other rules changes the rights of the identity; deletion of the
        ServiceAccount revokes them.
        """
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}"
        role = f"testbed:{namespace}:{name}"
        self.client.apply(path, named("v1", "ServiceAccount", name, namespace))
        for kind, resource, content in (
            ("ClusterRole", "clusterroles", {"rules": list(rules)}),
            ("ClusterRoleBinding", "clusterrolebindings", binding(role, namespace, name)),
        ):
            body = named("rbac.authorization.k8s.io/v1", kind, role) | content
            self.client.apply(f"{RBAC}/{resource}/{role}", body)
        request = {"spec": {"expirationSeconds": int(valid_for.total_seconds())}}
        token = self.client.request("POST", f"{path}/token", request)["status"]["token"]
        return self._write_kubeconfig(f"{namespace}-{name}.kubeconfig", name, token)

    def _etcd_flags(self) -> list[str]:
        client, peers = (f"http://127.0.0.1:{self._ports[each]}" for each in ("etcd", "etcd-peers"))
        return [
            "--name=etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=etcd={peers}",
            "--unsafe-no-fsync",
            f"--quota-backend-bytes={8 << 30}",
            "--log-level=warn",
        ]

    def _apiserver_flags(self) -> list[str]:
        made = self._certificates
        return [
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._ports['apiserver']}",
            f"--cert-dir={self.folder / 'certificates'}",
            f"--tls-cert-file={made.serving}",
            f"--tls-private-key-file={made.serving_key}",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={made.service_account_key}",
            f"--service-account-signing-key-file={made.service_account_key}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--endpoint-reconciler-type=none",
            "--allow-privileged",
            *self.wanted.flags,
            *self._kubelet_flags(),
        ]

    def _kubelet_flags(self) -> list[str]:
        """Where the API server finds KWOK as the kubelet of each node."""
        if not self.wanted.log:
            return []
        return [
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-port={self._ports['kubelet']}",
        ]

    def _controller_manager_flags(self) -> list[str]:
        return [
            f"--kubeconfig={self.folder / 'kube-controller-manager.kubeconfig'}",
            "--leader-elect=false",
            "--secure-port=0",
            # The API server creates this folder; the default is a system folder.
            f"--flex-volume-plugin-dir={self.folder / 'flexvolumes'}",
            f"--root-ca-file={self._certificates.ca}",
            f"--service-account-private-key-file={self._certificates.service_account_key}",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
        ]

    def _scheduler_flags(self) -> list[str]:
        return [f"--config={self.folder / 'scheduler.yaml'}", "--secure-port=0"]

    def _kwok_flags(self) -> list[str]:
        own = {POD_SUCCEEDS: self.folder / POD_SUCCEEDS}
        stages = (f"--config={own.get(each.name, each)}" for each in sorted(STAGES.glob("*.yaml")))
        logs = [
            f"--config={self.folder / 'logs.yaml'}",
            f"--server-address={KUBELET}:{self._ports['kubelet']}",
        ]
        return [
            f"--kubeconfig={self.folder / 'kwok.kubeconfig'}",
            *stages,
            *(logs if self.wanted.log else ()),
            "--v=WARN",
        ]

    def _write_files(self) -> None:
        tokens = {each: secrets.token_hex(16) for each in COMPONENTS} | {"admin": self.admin_token}
        # Different names show in managedFields; all have full rights, even before RBAC has its roles.
        lines = [f'{token},{user},{user},"system:masters"\n' for user, token in tokens.items()]
        tokens |= {user: secrets.token_hex(16) for user in self.wanted.users}
        lines += [f'{tokens[user]},{user},{user},"{USERS}"\n' for user in self.wanted.users]
        write_private(self.folder / "tokens.csv", "".join(lines))
        for each in COMPONENTS:
            self._write_kubeconfig(f"{each}.kubeconfig", each, tokens[each])
        self._write_kubeconfig(self.kubeconfig.name, "admin", self.admin_token)
        for user, namespace in self.wanted.users.items():
            self._write_kubeconfig(self.kubeconfig_of(user).name, user, tokens[user], namespace)
        succeeds = yaml.safe_load((STAGES / POD_SUCCEEDS).read_text())
        succeeds["spec"]["delay"]["durationMilliseconds"] = self.wanted.work_seconds * 1000
        write_private(self.folder / POD_SUCCEEDS, yaml.safe_dump(succeeds))
        # As container runtimes write it; KWOK reads no other form.
        line = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ} stdout F {self.wanted.log}\n"
        write_private(self.folder / "container.log", line)
        write_private(
            self.folder / "logs.yaml", yaml.safe_dump(logs_configuration(self.folder / "container.log"))
        )
        scheduler = scheduler_configuration(self.folder / "kube-scheduler.kubeconfig")
        write_private(self.folder / "scheduler.yaml", yaml.safe_dump(scheduler))
        self.kubectl.write_text(kubectl_script(self.environment, self._binaries.kubectl))
        self.kubectl.chmod(0o755)

    def _write_kubeconfig(self, file: str, user: str, token: str, namespace: str = "default") -> Path:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": self.name,
            "clusters": [
                {
                    "name": self.name,
                    "cluster": {"server": self.url, "certificate-authority-data": self.ca_data},
                }
            ],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [
                {
                    "name": self.name,
                    "context": {"cluster": self.name, "user": user, "namespace": namespace},
                }
            ],
        }
        return write_private(self.folder / file, yaml.safe_dump(content, sort_keys=False))

    def _start(self, name: str, argv: Sequence[str | Path]) -> None:
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.folder),
            "KWOK_WORKDIR": str(self.folder / "kwok"),
            **{name: os.environ[name] for name in GO_MEMORY if name in os.environ},
        }
        self._processes[name] = self._supervisor.start(
            f"{self.name}-{name}", argv, env=environment, cwd=self.folder, ending=KILL
        )

    def _start_apiserver(self) -> None:
        self._start("kube-apiserver", [self._binaries.kcp, "kube-apiserver", *self._apiserver_flags()])

    def _stop(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            self._supervisor.stop(process)

    def _install(self, path: Path, deadline: float) -> None:
        for document in documents_of(path):
            crd = f"{CRDS}/{document['metadata']['name']}"
            self.client.apply(crd, document, DEFINITION_SECONDS)
            self._wait(f"{crd} is established", partial(self._is_established, crd), deadline)

    def _wait(self, what: str, is_so: Callable[[], bool], deadline: float) -> None:
        while not self._holds(is_so):
            self.check()
            if self._abandoned.wait(POLL_SECONDS) or time.monotonic() > deadline:
                raise NotReady(f"{self.name}: not yet: {what}; logs: {self._supervisor.folder / 'logs'}")

    def _holds(self, is_so: Callable[[], bool]) -> bool:
        try:
            return is_so()
        except (ApiError, OSError):
            return False

    def _is_serving(self) -> bool:
        # Of the parts that a write needs, admission is ready last.
        return "metadata" in self.client.request("POST", f"{NODES}?dryRun=All", probe_node())

    def _is_ready(self) -> bool:
        return self.client.get("/readyz") == {"text": "ok"}

    def _is_established(self, crd: str) -> bool:
        conditions = self.client.get(crd).get("status", {}).get("conditions") or ()
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    def _has_service_account(self, namespace: str) -> bool:
        return "metadata" in self.client.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")

    def _has_usable_nodes(self) -> bool:
        found = self.client.get(NODES)["items"]
        return len(found) == self.wanted.nodes and all(map(is_usable, found))


def up_all(planes: Sequence[Plane]) -> None:
    """Starts several planes at once and returns when all are ready; raises the first error."""
    with ThreadPoolExecutor(max(1, len(planes))) as pool:
        starting = [pool.submit(each.up) for each in planes]
        try:
            for started in as_completed(starting):
                started.result()
        except BaseException:
            # The pool waits for its threads, but Ctrl-C must end at once.
            for each in planes:
                each.abandon()
            raise


def documents_of(path: Path) -> Iterable[dict[str, Any]]:
    """The objects in a file of YAML, or in a list of JSON."""
    text = path.read_text()
    documents: Iterable[dict[str, Any]] = (
        json.loads(text) if path.suffix == ".json" else yaml.safe_load_all(text)
    )
    return documents


def named(version: str, kind: str, name: str, namespace: str | None = None) -> dict[str, Any]:
    """An object that has only a name."""
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def probe_node() -> dict[str, Any]:
    """A node that is only posted as a dry run."""
    return named("v1", "Node", "probe")


def binding(role: str, namespace: str, name: str) -> dict[str, Any]:
    """The body of a binding of a cluster role to a service account."""
    return {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }


def scheduler_configuration(kubeconfig: Path) -> dict[str, Any]:
    """A scheduler that retries pods that did not fit within 2 s, so that tests do not wait."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 2000},
        "leaderElection": {"leaderElect": False},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 2,
    }


def logs_configuration(file: Path) -> dict[str, Any]:
    """KWOK answers with this file when somebody reads the log of a container."""
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "ClusterLogs",
        "metadata": {"name": "every-container"},
        "spec": {"logs": [{"logsFile": str(file)}]},
    }


def kubectl_script(environment: Mapping[str, str], kubectl: Path) -> str:
    """A kubectl for one cluster."""
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    return f'#!/bin/sh\nexport {settings}\nexec {shlex.quote(str(kubectl))} "$@"\n'


def fresh(folder: Path) -> Path:
    """The folder, emptied: this cluster would otherwise serve the data of an earlier run."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    return folder


def write_private(path: Path, text: str) -> Path:
    """Writes a file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(text)
    return path
