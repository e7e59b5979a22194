"""Operators that other projects publish as Go modules: compiled as the control plane is, and run at one API server.

Every operator has a folder with a go.mod and a go.sum of its own, because operators need other releases of Kubernetes'
libraries than the control plane. The go.mod names the operator as a tool at one version, and Go chooses the
requirements by the operator's own go.mod. The definitions of its kinds come with the program, out of the same module.

An operator costs memory and processor time, so it runs only at planes that need it, once for each. Nodes and kubelets
are KWOK's, so an operator sees pods run that have no containers.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from testbed import build
from testbed.certificates import make_webhook_certificate
from testbed.client import Client
from testbed.operator_webhooks import Called, WebhookService, is_defaulted, register
from testbed.plane import GO_MEMORY, NotReady
from testbed.ports import Ports
from testbed.processes import KILL, Process, Supervisor

MODULES: Final = Path(__file__).parent / "operator_modules"
CRDS: Final = "crds"
KIND: Final = "CustomResourceDefinition"
WEBHOOKS: Final = "webhooks"
GENERATED: Final = "manifests.yaml"
"""The file in which controller-gen writes webhooks; the files beside it change it for an installation."""
KUSTOMIZATION: Final = "kustomization.yaml"
"""The file beside definitions that has none."""
ANY_OBJECT: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
MANAGER: Final = """\
health: {{healthProbeBindAddress: "127.0.0.1:{probes}"}}
metrics: {{bindAddress: "0"}}
webhook: {{host: 127.0.0.1, port: {webhook}, certDir: "{folder}/certificates"}}
leaderElection: {{leaderElect: false}}
"""
"""What the configuration files of several operators say of their manager, as a template of `configuration`."""
READY_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.05
PROBE_SECONDS: Final = 2.0
_LOADER: Final = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


@dataclass(frozen=True, slots=True)
class BuiltOperator:
    """One release of an operator, and how it is started.

    `name` is a folder of `operator_modules`, and in it is one folder for each `version`, with go.mod and go.sum.
    `package` is the operator's main package, or that of the main.go beside the go.mod. `crds` and `webhooks` are
    folders of `module` with YAML files; without `webhooks`, the operator has none here. `left_out` are files of `crds`
    whose definitions are not installed. Without `pod_schemas`, the definitions accept any pod template: with six
    schemas of half a megabyte each, an API server starts minutes later.

    `arguments` may contain `{kubeconfig}`, `{folder}` (a folder of the operator alone), and the ports `{probes}` and
    `{webhook}`. The operator answers 200 to `ready` at the port `{probes}` once it works. `environment` is beside
    PATH, HOME and KUBECONFIG.

    `configuration` is the text of the file `{folder}/configuration.yaml`, and may contain the same. An operator with
    webhooks finds its certificate in `{folder}/certificates`. `called` says which webhooks are called. `installed` are
    objects by path that are applied before the operator starts.
    """

    name: str
    module: str
    version: str
    package: str
    crds: str
    arguments: tuple[str, ...]
    webhooks: str = ""
    ready: str = "/readyz"
    environment: Mapping[str, str] = field(default_factory=dict)
    ldflags: str = "-s -w"
    configuration: str = ""
    called: Called = Called()  # noqa: RUF009  # frozen
    left_out: frozenset[str] = frozenset()
    pod_schemas: bool = True
    installed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder with its go.mod and go.sum."""
        return MODULES / self.name / self.version

    @property
    def recipe(self) -> build.Recipe:
        """How it is built: its program, and the folders of its module that come with it."""
        folders = {CRDS: self.crds, WEBHOOKS: self.webhooks}
        copied = tuple(build.Copied(self.module, path, name) for name, path in folders.items() if path)
        title = f"operator {self.name} {self.version}"
        return build.Recipe(title, self.folder, (self.package,), self.ldflags, copied=copied)

    @property
    def program(self) -> str:
        """The name that Go gives the program."""
        return self.package.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class OperatorFiles:
    """The program of a built operator, the definitions of its kinds (`Wanted.crds`), and its webhooks."""

    program: Path
    crds: tuple[Path, ...]
    webhooks: tuple[Path, ...]


def ensure(operator: BuiltOperator, say: build.Say | None = None) -> OperatorFiles:
    """The files of an operator, built first if necessary: one to three minutes on two cores, once.

    Raises `BuildFailed`. `say` gets each change of progress; by default it goes to stderr.
    """
    return _in(operator, build.ensure_built(operator.recipe, say))


def find(operator: BuiltOperator) -> OperatorFiles | None:
    """The files of an operator if it was built; None if not."""
    folder = build.find_built(operator.recipe)
    return _in(operator, folder) if folder else None


def _in(operator: BuiltOperator, folder: Path) -> OperatorFiles:
    crds = tuple(
        _as_json(each, operator.pod_schemas)
        for each in sorted((folder / CRDS).glob("*.yaml"))
        if each.name not in {KUSTOMIZATION, *operator.left_out}
    )
    return OperatorFiles(folder / operator.program, crds, tuple((folder / WEBHOOKS).glob(GENERATED)))


def _as_json(path: Path, pod_schemas: bool) -> Path:
    """The definitions of a file as JSON, written once: some have a megabyte, which takes seconds to read as YAML."""
    made = path.with_suffix(".json" if pod_schemas else ".slim.json")
    if not made.exists():
        partial = made.with_suffix(f".{os.getpid()}.partial")
        documents = yaml.load_all(path.read_text(), _LOADER)
        found = [each for each in documents if each and each["kind"] == KIND]
        partial.write_text(json.dumps(found if pod_schemas else without_pod_schemas(found)))
        partial.rename(made)
    return made


def without_pod_schemas(schema: Any) -> Any:  # noqa: ANN401 - any JSON
    """The same schema, or definitions, with any object in place of a pod template."""
    if isinstance(schema, list):
        return [without_pod_schemas(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if _is_pod_template(schema):
        return ANY_OBJECT
    return {key: without_pod_schemas(value) for key, value in schema.items()}


def _is_pod_template(schema: Mapping[str, Any]) -> bool:
    spec = _properties(schema).get("spec")
    return isinstance(spec, dict) and "containers" in _properties(spec)


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


class RunningOperator:
    """One operator at one API server. Its supervisor or `down` ends it; it ends at once, as in a crash.

    `label` tells several of one supervisor apart. `arguments` and `environment` are beside the operator's own.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        operator: BuiltOperator,
        kubeconfig: Path,
        *,
        label: str = "",
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = f"{operator.name}-{label}" if label else operator.name
        self.folder = supervisor.folder / "operators" / self.name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._operator = operator
        self._supervisor = supervisor
        self._client = client_of(kubeconfig)
        self._files = ensure(operator)
        self.ports = Ports("probes", "webhook")
        supervisor.afterwards(self.ports.release)
        values = {
            "kubeconfig": str(kubeconfig),
            "folder": str(self.folder),
            "probes": self.ports["probes"],
            "webhook": self.ports["webhook"],
        }
        self._service = self._certified() if operator.webhooks else None
        for path, manifest in operator.installed.items():
            self._client.apply(path, manifest, manager=operator.name)
        (self.folder / "configuration.yaml").write_text(operator.configuration.format_map(values))
        self.process: Process = supervisor.start(
            self.name,
            [
                self._files.program,
                *(each.format_map(values) for each in (*operator.arguments, *arguments)),
            ],
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(self.folder),
                "KUBECONFIG": str(kubeconfig),
                **{name: os.environ[name] for name in GO_MEMORY if name in os.environ},
                **operator.environment,
                **(environment or {}),
            },
            cwd=self.folder,
            ending=KILL,
        )

    def up(self, timeout: float = READY_SECONDS) -> None:
        """Returns when it is ready, and the API server calls its webhooks.

        Raises `ProcessDied` if it has ended, `NotReady` when the time is up.
        """
        deadline = time.monotonic() + timeout
        self._wait(self._is_ready, deadline)
        if self._service is not None:
            self._register(self._service)
            self._wait(partial(is_defaulted, self._client, self._operator.called), deadline)

    def down(self) -> None:
        """Ends it; the API server then refuses what its webhooks would have seen. Safe to repeat."""
        self._supervisor.stop(self.process)
        self.ports.release()

    def _certified(self) -> WebhookService:
        """Makes the certificate of the webhooks."""
        authority = make_webhook_certificate(self.folder / "certificates")
        return WebhookService(self._operator.name, self.ports["webhook"], authority)

    def _register(self, service: WebhookService) -> None:
        for path in self._files.webhooks:
            register(self._client, path, service, self._operator.called)

    def _wait(self, holds: Callable[[], bool], deadline: float) -> None:
        while not holds():
            self.process.check()
            if time.monotonic() > deadline:
                raise NotReady(f"{self.name} is not ready; it logged\n{self.process.log_tail()}")
            time.sleep(POLL_SECONDS)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["probes"], timeout=PROBE_SECONDS)
        try:
            connection.request("GET", self._operator.ready)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def client_of(kubeconfig: Path) -> Client:
    """A client of the API server of a kubeconfig that a plane wrote."""
    content = yaml.safe_load(kubeconfig.read_text())
    [cluster], [user] = content["clusters"], content["users"]
    authority = b64decode(cluster["cluster"]["certificate-authority-data"]).decode()
    return Client(cluster["cluster"]["server"], user["user"]["token"], authority)
