"""Reads a person's own kubeconfig, as kubectl does: files named in it are read, and its exec plugin is run.

`kube.kubeconfig` reads the kubeconfigs of members, which other people wrote, and refuses all that. This module serves
commands that start often, so it imports little. Without a kubeconfig the account of the pod counts.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import Struct, field

from dispatcher.api.names import DEFAULT_NAMESPACE
from dispatcher.core.model.clock import time_in
from dispatcher.errors import SettingsError
from dispatcher.text import name_of, one_line
from dispatcher.values import shown_without

POD_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PLUGIN_SECONDS: Final = 60.0
"""Seconds that an exec plugin may take: it may open a browser for a login."""

_EXPIRES: Final = "expirationTimestamp"
_LOADER: Final = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_SHOWN: Final = 10

Json = dict[str, Any]


@shown_without("headers")
class Access(Struct, frozen=True):
    """One API server, and how to call it; `headers` hold the credentials, or `tls` does.

    The credentials end at `expires`, if an exec plugin says so. `files` are those that it was made of, beside the
    kubeconfig.
    """

    server: str
    namespace: str
    tls: ssl.SSLContext | None
    tls_server_name: str = ""
    proxy: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    expires: datetime | None = None
    files: tuple[str, ...] = ()


@shown_without("users")
class UserKubeconfig(Struct, frozen=True):
    """The merged content of the files of a kubeconfig: of each name the first entry counts, as for kubectl."""

    where: str
    current: str
    contexts: Mapping[str, Json]
    clusters: Mapping[str, Json]
    users: Mapping[str, Json]

    def access(self, context: str = "") -> Access:
        """The access of a context, by default of the current one; raises `SettingsError` if it cannot work."""
        chosen = context or self.current
        through = self.contexts.get(chosen)
        if through is None:
            raise SettingsError(self._no_context(chosen))
        cluster, user = self._part("clusters", through, "cluster"), self._part("users", through, "user")
        server = str(cluster.get("server") or "").rstrip("/")
        if not server:
            raise SettingsError(one_line(f"{self.where}: the cluster of context {chosen!r} has no server"))
        try:
            given = _with_plugin(user, self.where)
            headers, certificate = _credentials(given)
            return Access(
                server,
                self.namespace(chosen),
                _tls(cluster, certificate) if server.startswith("https:") else None,
                str(cluster.get("tls-server-name") or ""),
                str(cluster.get("proxy-url") or ""),
                headers,
                _expiry(given.get(_EXPIRES)),
                tuple(str(part[key]) for part in (cluster, user) for key in _PATHS if part.get(key)),
            )
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise SettingsError(one_line(f"{self.where}: context {chosen!r}: {why}")) from error

    def namespace(self, context: str = "") -> str:
        """The namespace of a context, by default of the current one; `default` if none is named."""
        through = self.contexts.get(context or self.current) or {}
        return str(through.get("namespace") or DEFAULT_NAMESPACE)

    def _part(self, plural: str, through: Json, singular: str) -> Json:
        name = str(through.get(singular) or "")
        found: Mapping[str, Json] = getattr(self, plural)
        if name not in found:
            raise SettingsError(
                one_line(f"{self.where}: a context names the {singular} {name!r}, which is missing")
            )
        return found[name]

    def _no_context(self, context: str) -> str:
        if not self.contexts:
            return one_line(f"{self.where} has no context: set KUBECONFIG to another kubeconfig")
        names = ", ".join([*self.contexts][:_SHOWN])
        problem = f"has no context {context!r}" if context else "has no current context"
        return one_line(f"{self.where} {problem}: choose one with --context, of: {names}")


def read_kubeconfig(path: str = "") -> UserKubeconfig | None:
    """The kubeconfig at `path`, by default of KUBECONFIG or ~/.kube/config; None in a pod without one.

    `path` may be a list of files, as KUBECONFIG is. Raises `SettingsError` for files that cannot be read.
    """
    written = _written(path)
    there = [each for each in map(Path, files_of(path)) if each.exists()]
    if not there:
        if not path and (POD_ACCOUNT / "token").exists():
            return None
        raise SettingsError(
            one_line(
                f"no Kubernetes credentials: there is no kubeconfig {written}; name one with --kubeconfig or "
                "KUBECONFIG, or run inside a cluster"
            )
        )
    documents = [_document(each) for each in there]
    return UserKubeconfig(
        written,
        next((str(each["current-context"]) for each in documents if each.get("current-context")), ""),
        _named(documents, "contexts", "context"),
        _named(documents, "clusters", "cluster"),
        _named(documents, "users", "user"),
    )


def files_of(path: str = "") -> list[str]:
    """The files that `read_kubeconfig` reads, as far as they are there."""
    return [each for each in _written(path).split(os.pathsep) if each]


def _written(path: str) -> str:
    return path or os.environ.get("KUBECONFIG", "") or str(_home())


def has_kubeconfig(path: str = "") -> bool:
    """True if a kubeconfig is named, by `path` or KUBECONFIG, or is in the home folder."""
    return bool(path or os.environ.get("KUBECONFIG", "")) or _home().exists()


def _home() -> Path:
    return Path.home() / ".kube" / "config"


def access_of(path: str = "", context: str = "") -> Access:
    """The access of a kubeconfig and a context, or of the pod's account; raises `SettingsError`."""
    found = read_kubeconfig(path)
    if found is not None:
        return found.access(context)
    if context:
        raise SettingsError("a pod's account has no contexts: set KUBECONFIG")
    return _of_pod()


def _of_pod() -> Access:
    host, port = (
        os.environ.get("KUBERNETES_SERVICE_HOST", ""),
        os.environ.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    if not host:
        raise SettingsError("KUBERNETES_SERVICE_HOST is not set: set KUBECONFIG")
    authority = f"[{host}]" if ":" in host else host
    files = tuple(str(POD_ACCOUNT / name) for name in ("token", "namespace", "ca.crt"))
    try:
        token = (POD_ACCOUNT / "token").read_text().strip()
        namespace = (POD_ACCOUNT / "namespace").read_text().strip()
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.load_verify_locations(cafile=str(POD_ACCOUNT / "ca.crt"))
    except OSError as error:
        raise SettingsError(one_line(f"the pod's account cannot be read: {error}")) from error
    headers = {"Authorization": f"Bearer {token}"}
    return Access(f"https://{authority}:{port}", namespace, tls, headers=headers, files=files)


def _document(path: Path) -> Json:
    """The content of one file, with the paths in it made absolute."""
    try:
        content = yaml.load(path.read_bytes(), Loader=_LOADER)  # noqa: S506  # a safe loader
    except OSError as error:
        raise SettingsError(one_line(f"{path}: {error.strerror or error}")) from error
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(one_line(f"{path} is no kubeconfig: it is no YAML")) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(one_line(f"{path} is no kubeconfig: it is no object"))
    for plural, singular in (("clusters", "cluster"), ("users", "user")):
        for entry in _entries(content, plural):
            part = entry.get(singular)
            if isinstance(part, dict):
                _make_absolute(part, path.parent)
    return content


_PATHS: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


def _make_absolute(part: Json, folder: Path) -> None:
    for key in _PATHS:
        if isinstance(part.get(key), str) and part[key]:
            part[key] = str(folder / part[key])
    plugin = part.get("exec")
    # As for kubectl: a command with a slash is a path, another one is searched in PATH.
    if isinstance(plugin, dict) and "/" in str(plugin.get("command")):
        plugin["command"] = str(folder / plugin["command"])


def _entries(content: Json, plural: str) -> list[Json]:
    listed = content.get(plural)
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _named(documents: Sequence[Json], plural: str, singular: str) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for document in documents:
        for entry in _entries(document, plural):
            part = entry.get(singular)
            found.setdefault(str(entry.get("name")), part if isinstance(part, dict) else {})
    return found


def _tls(cluster: Json, certificate: tuple[str, str] | None) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    data, file = cluster.get("certificate-authority-data"), cluster.get("certificate-authority")
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    elif data:
        tls.load_verify_locations(cadata=base64.b64decode(data).decode())
    elif file:
        tls.load_verify_locations(cafile=file)
    else:
        tls.load_default_certs()
    if certificate is not None:
        with _file(certificate[0]) as chain, _file(certificate[1]) as key:
            tls.load_cert_chain(chain, key, password=_no_passphrase)
    return tls


def tls_of(authorities: bytes, certificate: bytes, key: bytes) -> ssl.SSLContext:
    """The TLS of a client from PEM; without `authorities` those of the system count.

    Raises `SettingsError` for wrong PEM, without chaining an error that may hold it.
    """
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if authorities:
            tls.load_verify_locations(cadata=authorities.decode("ascii", "replace"))
        else:
            tls.load_default_certs()
        if certificate:
            with (
                _file(certificate.decode("ascii", "replace")) as chain,
                _file(key.decode("ascii", "replace")) as private,
            ):
                tls.load_cert_chain(chain, private, password=_no_passphrase)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "not well-formed"
    else:
        return tls
    parts = "certificate-authority-data, client-certificate-data or client-key-data"
    raise SettingsError(f"kubeconfig: cannot be used ({reason}): {parts}")


def _no_passphrase() -> str:
    """OpenSSL would ask for it at the terminal."""
    raise ValueError("the client's key is encrypted, and no passphrase can be given")


@contextmanager
def _file(pem: str) -> Iterator[str]:
    """A path with this PEM, which only this user can read, until the context ends: OpenSSL reads only files."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(pem)
        file.flush()
        yield file.name


def _with_plugin(user: Json, where: str) -> Json:
    """The user with the credentials of its exec plugin, if it has one."""
    if user.get("auth-provider"):
        raise ValueError("its auth-provider is not supported: use an exec plugin or a token")
    return {**user, **_of_plugin(user["exec"], where)} if user.get("exec") else user


def _expiry(written: object) -> datetime | None:
    """When the credentials of a plugin end; None if it does not say. A time that cannot be read is long ago."""
    return (time_in(written) or datetime.min.replace(tzinfo=UTC)) if written else None


def _credentials(user: Json) -> tuple[dict[str, str], tuple[str, str] | None]:
    """The headers of each request, and the client's certificate with its key."""
    headers = _impersonation(user)
    token = user.get("token") or (
        Path(user["tokenFile"]).read_text().strip() if user.get("tokenFile") else ""
    )
    if token:
        headers["Authorization"] = f"Bearer {token}"
    elif user.get("username"):
        both = f"{user['username']}:{user.get('password') or ''}"
        headers["Authorization"] = f"Basic {base64.b64encode(both.encode()).decode()}"
    chain = _pem(user, "client-certificate")
    return headers, (chain, _pem(user, "client-key")) if chain else None


def _impersonation(user: Json) -> dict[str, str]:
    if user.get("as-groups") or user.get("as-user-extra"):
        raise ValueError(
            "its impersonation of groups is not supported: leave out as-groups and as-user-extra"
        )
    return {"Impersonate-User": str(user["as"])} if user.get("as") else {}


def _pem(user: Json, key: str) -> str:
    data, file = user.get(f"{key}-data"), user.get(key)
    if data:
        return base64.b64decode(data).decode()
    return Path(file).read_text() if file else ""


def _of_plugin(plugin: Json, where: str) -> Json:
    """The credentials that an exec plugin prints, under the names of a kubeconfig.

    Source: https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
    """
    command = [str(plugin.get("command") or ""), *map(str, plugin.get("args") or ())]
    version = str(plugin.get("apiVersion") or "client.authentication.k8s.io/v1")
    asked = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    given = {str(each.get("name")): str(each.get("value")) for each in plugin.get("env") or ()}
    environment = {**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
    try:
        ran = subprocess.run(  # noqa: S603  # the command that the kubeconfig names
            command, stdout=subprocess.PIPE, text=True, env=environment, timeout=PLUGIN_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise ValueError(
            f"the plugin {command[0]} is not installed. {name_of(plugin.get('installHint'))}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"the plugin {command[0]} took longer than {PLUGIN_SECONDS:.0f} s") from error
    if ran.returncode:
        raise ValueError(f"the plugin {command[0]} failed with exit code {ran.returncode}")
    try:
        status = json.loads(ran.stdout)["status"]
        token, chain, key = (status.get(each) for each in ("token", "clientCertificateData", "clientKeyData"))
        expires = status.get(_EXPIRES)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the plugin {command[0]} of {where} printed no credentials") from error
    encoded = {
        name: base64.b64encode(str(pem).encode()).decode()
        for name, pem in (("client-certificate-data", chain), ("client-key-data", key))
        if pem
    }
    return {**({"token": token} if token else {}), **encoded, _EXPIRES: expires}
