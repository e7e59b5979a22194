"""How to reach an API server and as whom: through a kubeconfig, or as the pod this process runs in.

A kubeconfig that carries everything in itself is read by `kube.kubeconfig`. Any other (exec plugins, auth providers,
names of files, several files) is left to kubernetes_asyncio, which is imported only then: its 850 modules take a sixth
of the start of a dispatcher and 60 MB.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from dispatcher import errors
from dispatcher.kube import kubeconfig
from dispatcher.kube.kubeconfig import Connection

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

MOST_CONNECTIONS: Final = 100
TOKEN_SECONDS: Final = 60.0
"""Seconds after which a pod's token is read again; a kubelet renews it minutes before it expires."""
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


async def _anonymous() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One API server: `server` is its URL, `proxy` an http URL, and `authorization` returns a header, or nothing.

    `authorization` is called before every request and raises `OSError` or `Unavailable` if there is no token now.
    """

    server: str
    tls: ssl.SSLContext = field(default_factory=ssl.create_default_context)
    tls_server_name: str | None = None
    proxy: str | None = None
    authorization: Callable[[], Awaitable[str]] = _anonymous
    most_connections: int = MOST_CONNECTIONS


def of_connection(to: Connection) -> Endpoint:
    """Return the endpoint of a connection; `SettingsError` if TLS cannot use what it holds."""
    return Endpoint(
        server=to.server,
        tls=kubeconfig.tls_context(to),
        tls_server_name=to.tls_server_name or None,
        proxy=to.proxy or None,
        authorization=fixed(f"Bearer {to.token}" if to.token else ""),
    )


async def of_kubeconfig(path: str) -> Endpoint:
    """Return the endpoint of a kubeconfig's current context; `SettingsError` if it cannot be read."""
    return _self_contained(Path(path)) or await _by_the_library(path)


def of_pod(
    account: Path = SERVICE_ACCOUNT,
    environment: Mapping[str, str] = os.environ,
    monotonic: Callable[[], float] = time.monotonic,
) -> Endpoint:
    """Return the endpoint that every pod is given; `SettingsError` outside a cluster.

    Source: https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/#directly-accessing-the-rest-api
    """
    host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not port:
        raise _no_credentials("the pod's own ServiceAccount", "this is no pod")
    token = _PodToken(account / "token", monotonic)
    try:
        token.read()
        tls = ssl.create_default_context(cafile=account / "ca.crt")
    except (OSError, ValueError) as error:
        raise _no_credentials("the pod's own ServiceAccount", str(error)) from error
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Endpoint(server, tls, authorization=token.authorization)


class _PodToken:
    """A token in a file that a kubelet renews."""

    def __init__(self, path: Path, monotonic: Callable[[], float]) -> None:
        self._path = path
        self._monotonic = monotonic
        self._authorization = ""
        self._due = 0.0

    async def authorization(self) -> str:
        if self._monotonic() >= self._due:
            self.read()
        return self._authorization

    def read(self) -> None:
        token = self._path.read_text(encoding="utf-8").strip()
        if not token:
            raise OSError(f"{self._path} is empty")
        self._authorization = f"Bearer {token}"
        self._due = self._monotonic() + TOKEN_SECONDS


def fixed(authorization: str) -> Callable[[], Awaitable[str]]:
    """Return the `authorization` of an endpoint whose header never changes."""

    async def answer() -> str:
        return authorization

    return answer


def _self_contained(path: Path) -> Endpoint | None:
    with contextlib.suppress(errors.SettingsError, OSError):
        return of_connection(kubeconfig.connection(path.read_bytes()))
    return None


async def _by_the_library(path: str) -> Endpoint:
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config import ConfigException, load_kube_config

    configuration = Configuration()
    try:
        await load_kube_config(config_file=path, client_configuration=configuration)
        tls = _tls_of(configuration)
    except (ConfigException, OSError, KeyError, ValueError) as error:
        raise _no_credentials(path, str(error)) from error
    except (TypeError, AttributeError, yaml.YAMLError) as error:
        # The library takes it for granted that a kubeconfig is well formed; YAML's own words quote the file.
        raise errors.SettingsError(f"no Kubernetes credentials from {path}: it is no kubeconfig") from error
    return Endpoint(
        server=str(configuration.host),
        tls=tls,
        tls_server_name=configuration.tls_server_name,
        proxy=configuration.proxy,
        authorization=library_authorization(configuration),
    )


def library_authorization(configuration: Configuration) -> Callable[[], Awaitable[str]]:
    """Return the `authorization` of the library, which renews the tokens of exec plugins and of OIDC when due."""
    from kubernetes_asyncio.config import ConfigException

    async def ask() -> str:
        try:
            settings = await configuration.auth_settings()
        except ConfigException as error:
            raise errors.Unavailable(f"no token: {error}") from error
        return str(settings.get("BearerToken", {}).get("value") or "")

    return ask


def _tls_of(configuration: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _no_credentials(where: str, problem: str) -> errors.SettingsError:
    return errors.SettingsError(
        f"no Kubernetes credentials from {where}: {problem}; set KUBECONFIG or run inside a cluster"
    )
