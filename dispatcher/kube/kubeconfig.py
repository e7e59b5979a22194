"""Reads the kubeconfigs of member clusters, and refuses what is unsafe in them.

A member's kubeconfig is in a Secret that another person wrote. The hub runs no program it names, reads no file it names
and trusts no server it cannot verify, so a kubeconfig must be self-contained. Exec plugins, auth providers, paths of
files, passwords, impersonation and unverified TLS are refused, with the place in the file and a remedy. Only the
current context is checked.

Errors never quote values. No secret is in any message, any `repr` or any chained error, and no certificate or key is
written to a disk.

The file may be hostile: it is read as strings, lists and maps, without YAML's aliases, tags and types, and only up to a
size that costs milliseconds.

The credentials of the dispatcher itself on its hub come from a kubeconfig that its operator chose, or from the
ServiceAccount of its pod; the library reads both.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias
from urllib.parse import SplitResult, urlsplit

import yaml
from msgspec import Struct
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    Event,
    ScalarEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from dispatcher import errors
from dispatcher.api.spec_errors import quoted
from dispatcher.api.syntax import is_subdomain
from dispatcher.text import mappings_of
from dispatcher.values import shown_without

if TYPE_CHECKING:
    from dispatcher.kube.library import ApiClient, Configuration

LARGEST_FILE: Final = 2**20
"""Bytes; a Secret holds no more."""
MOST_NODES: Final = 10_000
"""Values in the file; a kubeconfig of hundreds of clusters has fewer."""
DEEPEST: Final = 16

_MOST_SHOWN: Final = 10

_SELF_CONTAINED: Final = "Write it with: kubectl config view --minify --flatten --raw"
_SERVICE_ACCOUNT: Final = "Use the token of a ServiceAccount, or a client certificate"
_LOADER: Final = yaml.CBaseLoader if yaml.__with_libyaml__ else yaml.BaseLoader
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_PRINTABLE: Final = re.compile("[!-~]*")

Plain: TypeAlias = "str | list[Plain] | dict[str, Plain] | None"

_REFUSED_OF_CLUSTER: Final = {
    "certificate-authority": ("names a file, and the hub reads none", _SELF_CONTAINED)
}
_REFUSED_OF_USER: Final = {
    "exec": ("would run a program on the hub", _SERVICE_ACCOUNT),
    "auth-provider": ("needs a plugin that the hub does not have", _SERVICE_ACCOUNT),
    "tokenFile": ("names a file, and the hub reads none", "Put the token itself under token"),
    "client-certificate": ("names a file, and the hub reads none", _SELF_CONTAINED),
    "client-key": ("names a file, and the hub reads none", _SELF_CONTAINED),
    "username": ("is of basic authentication, which no API server takes any more", _SERVICE_ACCOUNT),
    "password": ("is of basic authentication, which no API server takes any more", _SERVICE_ACCOUNT),
    **dict.fromkeys(
        ("as", "as-uid", "as-groups", "as-user-extra"),
        ("asks for impersonation, which the hub does not do", "Use the credentials of that user"),
    ),
}

_UNVERIFIED: Final = (
    "its user has an auth-provider, to which the library would send the refresh token without verifying TLS: "
    "use a token, a certificate or an exec plugin"
)


@shown_without("authorities", "token", "certificate", "key")
class Connection(Struct, frozen=True):
    """The address of one API server and the credentials for it; equal if neither has changed.

    `server` is an https URL without a slash at its end, and `proxy` an http URL or empty. `authorities`, `certificate`
    and `key` are PEM; empty `authorities` mean those of the system.
    """

    server: str
    tls_server_name: str = ""
    proxy: str = ""
    authorities: bytes = b""
    token: str = ""
    certificate: bytes = b""
    key: bytes = b""


def connection(kubeconfig: bytes) -> Connection:
    """The connection of a kubeconfig's current context; raises `SettingsError` for anything unsafe."""
    whole = _Part("kubeconfig", _Reader(_text(kubeconfig)).document())
    context = whole.named("contexts", "context", whole.needed("current-context"))
    cluster = whole.named("clusters", "cluster", context.needed("cluster"))
    user = whole.named("users", "user", context.needed("user"))
    _check_verified(cluster)
    cluster.refuse(_REFUSED_OF_CLUSTER)
    user.refuse(_REFUSED_OF_USER)
    certificate, key = _certificate(user)
    return Connection(
        server=_server(cluster),
        tls_server_name=_tls_server_name(cluster),
        proxy=_proxy(cluster),
        authorities=cluster.pem("certificate-authority-data", "CERTIFICATE"),
        token=_token(user, is_needed=not certificate),
        certificate=certificate,
        key=key,
    )


def minified(kubeconfig: bytes, context: str = "") -> bytes:
    """The kubeconfig reduced to one context, by default its current one, which becomes the current one.

    The context's entries are kept as written and not checked; `connection` checks them. Kubeconfigs with equal entries
    become equal bytes.
    """
    whole = _Part("kubeconfig", _Reader(_text(kubeconfig)).document())
    chosen = _chosen(whole, context or whole.text("current-context"))
    through = whole.named("contexts", "context", chosen)
    cluster, user = through.needed("cluster"), through.needed("user")
    kept = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": chosen,
        "contexts": [{"name": chosen, "context": {"cluster": cluster, "user": user}}],
        "clusters": [{"name": cluster, "cluster": whole.named("clusters", "cluster", cluster).content}],
        "users": [{"name": user, "user": whole.named("users", "user", user).content}],
    }
    return yaml.safe_dump(kept).encode()


def api_client(to: Connection) -> ApiClient:
    """The library's client for a connection, in a running loop; raises `SettingsError` if TLS rejects its content."""
    from dispatcher.kube.library import ApiClient, Configuration  # commands have a client of their own

    configuration = Configuration(host=to.server)
    configuration.proxy = to.proxy or None
    configuration.tls_server_name = to.tls_server_name or None
    if to.token:
        configuration.api_key = {"BearerToken": to.token}
        configuration.api_key_prefix = {"BearerToken": "Bearer"}
    with (
        _in_memory(to.authorities) as authorities,
        _in_memory(to.certificate) as certificate,
        _in_memory(to.key) as key,
    ):
        configuration.ssl_ca_cert = authorities
        configuration.cert_file = certificate
        configuration.key_file = key
        try:
            return ApiClient(configuration=configuration)
        except ssl.SSLError as error:
            reason = error.reason or "not well-formed"
    parts = "certificate-authority-data, client-certificate-data or client-key-data"
    raise _refused("kubeconfig", f"cannot be used ({reason}): {parts}", _SELF_CONTAINED)


async def load_configuration(kubeconfig: str) -> Configuration:
    """The library's configuration of a kubeconfig, else of the pod; raises `SettingsError` if there is none to use.

    Several files may be named, as in `KUBECONFIG`. A token that a plugin renews is written back, as kubectl does.
    """
    from dispatcher.kube.library import ConfigException, Configuration, config

    configuration = Configuration()
    try:
        if kubeconfig:
            await _load_kubeconfig(kubeconfig, configuration)
        else:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError, KeyError, ValueError) as error:
        where = kubeconfig or "the pod's own ServiceAccount"
        raise errors.SettingsError(
            f"no Kubernetes credentials from {where}: {error}; set KUBECONFIG or run inside a cluster"
        ) from error
    except (TypeError, AttributeError, yaml.YAMLError) as error:
        # The library assumes a well-formed kubeconfig; YAML's own message quotes the file.
        raise errors.SettingsError(
            f"no Kubernetes credentials from {kubeconfig}: it is no kubeconfig"
        ) from error
    return configuration


async def _load_kubeconfig(kubeconfig: str, configuration: Configuration) -> None:
    from dispatcher.kube.library import ConfigException, config

    files = config.kube_config.KubeConfigMerger(kubeconfig)
    loader = config.kube_config.KubeConfigLoader(
        config_dict=files.config, config_base_path=None, config_persister=files.save_changes
    )
    if loader.provider:
        raise ConfigException(_UNVERIFIED)
    await loader.load_and_set(configuration)


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str | None]:
    """Yields a path at which OpenSSL, which reads only files, can read the content; it is on no disk.

    No other user can open it, it works on a read-only root file system, and a killed process leaves nothing.
    """
    if not content:
        yield None
        return
    with os.fdopen(os.memfd_create("kubeconfig"), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _chosen(whole: _Part, context: str) -> str:
    names = whole.names("contexts")
    if context in names:
        return context
    problem = f"has no {quoted(context)}" if context else "none is the current one"
    listed = ", ".join(map(quoted, names[:_MOST_SHOWN])) or "there is none"
    raise _refused("kubeconfig.contexts", problem, f"Choose one of: {listed}")


def _check_verified(cluster: _Part) -> None:
    if cluster.text("insecure-skip-tls-verify") not in ("", "false"):
        remedy = "Remove it, and put the authority of the API server under certificate-authority-data"
        raise cluster.refusal("insecure-skip-tls-verify", "switches off the verification of TLS", remedy)


def _server(cluster: _Part) -> str:
    url = _url(cluster, "server", cluster.needed("server"))
    if url.scheme != "https":
        raise cluster.refusal(
            "server", "must begin with https://", "Name the address where the API server speaks TLS"
        )
    return url.geturl().rstrip("/")


def _proxy(cluster: _Part) -> str:
    """The proxy to tunnel through; it sees only TLS between the hub and the API server.

    TLS to a proxy would be verified against the cluster's authorities, and would show the proxy our client certificate.
    """
    if not cluster.text("proxy-url"):
        return ""
    url = _url(cluster, "proxy-url", cluster.text("proxy-url"))
    if url.scheme != "http" or url.path.strip("/"):
        remedy = (
            "Name a proxy that takes CONNECT, such as http://proxy:3128; what passes it is TLS all the same"
        )
        raise cluster.refusal("proxy-url", "must begin with http:// and have no path", remedy)
    return url.geturl()


def _url(part: _Part, key: str, text: str) -> SplitResult:
    """The parts of a URL; errors do not quote it, because it may hold a password."""
    try:
        url = urlsplit(text)
        is_address = _is_host(url.hostname or "") and url.port != 0
    except ValueError:
        is_address = False
    if not is_address or not _PRINTABLE.fullmatch(text):
        raise part.refusal(key, "is not a URL", "Write it as https://host:port")
    if "@" in url.netloc or url.query or url.fragment:
        raise part.refusal(key, "holds more than an address", "Leave out user, password, query and fragment")
    return url


def _tls_server_name(cluster: _Part) -> str:
    name = cluster.text("tls-server-name")
    if name and not _is_host(name):
        raise cluster.refusal(
            "tls-server-name", "is no host name", "Write a name of the server's certificate"
        )
    return name


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return is_subdomain(text.lower())
    return True


def _certificate(user: _Part) -> tuple[bytes, bytes]:
    """The client's certificate and its key, or neither."""
    certificate = user.pem("client-certificate-data", "CERTIFICATE")
    key = user.pem("client-key-data", "PRIVATE KEY")
    if bool(certificate) != bool(key):
        missing = "client-key-data" if certificate else "client-certificate-data"
        raise user.refusal(missing, "is missing", "Give the certificate and its key, or neither")
    return certificate, key


def _token(user: _Part, *, is_needed: bool) -> str:
    token = user.text("token")
    if is_needed and not token:
        raise user.refusal("token", "is missing, and so is a client certificate", _SERVICE_ACCOUNT)
    if not _PRINTABLE.fullmatch(token):
        raise user.refusal("token", "holds white space or no ASCII", "Write the token in one piece, decoded")
    return token


@shown_without("content")
class _Part(Struct, frozen=True):
    """A map within the file, with its path; reading refuses values of other types."""

    path: str
    content: Plain

    def text(self, key: str) -> str:
        """The text at a key; empty if there is none."""
        found = self._entries().get(key)
        if found is None:
            return ""
        if not isinstance(found, str):
            raise self.refusal(key, "must be text", "Correct it")
        return found

    def needed(self, key: str) -> str:
        """The text at a key, which must not be empty."""
        found = self.text(key)
        if not found:
            raise self.refusal(key, "is missing", _SELF_CONTAINED)
        return found

    def named(self, plural: str, singular: str, name: str) -> _Part:
        """The one entry of that name in a list of named entries."""
        found = [each for each in mappings_of(self._entries().get(plural)) if each.get("name") == name]
        if len(found) != 1:
            problem = f"must have one entry named {quoted(name)}, and has {len(found) or 'none'}"
            raise self.refusal(plural, problem, _SELF_CONTAINED)
        return _Part(f"{self.path}.{plural}[{quoted(name)}].{singular}", found[0].get(singular))

    def names(self, plural: str) -> list[str]:
        """The names in a list of named entries."""
        found = (each.get("name") for each in mappings_of(self._entries().get(plural)))
        return [name for name in found if isinstance(name, str)]

    def pem(self, key: str, label: str) -> bytes:
        """The decoded PEM of that label; empty if there is none."""
        text = self.text(key)
        if not text:
            return b""
        try:
            decoded = base64.b64decode("".join(text.split()), validate=True)
        except ValueError:
            decoded = b""
        if f"{label}-----".encode() not in decoded:
            raise self.refusal(key, f"is not the base64 of a PEM file with a {label}", _SELF_CONTAINED)
        if b"ENCRYPTED" in decoded:  # OpenSSL would ask for the passphrase at a terminal, and wait
            raise self.refusal(key, "is encrypted", "Decrypt it: the hub knows no passphrase")
        return decoded

    def refuse(self, unwanted: Mapping[str, tuple[str, str]]) -> None:
        """Refuse the first of these keys that has a value."""
        for key, (problem, remedy) in unwanted.items():
            if self._entries().get(key):
                raise self.refusal(key, problem, remedy)

    def refusal(self, key: str, problem: str, remedy: str) -> errors.SettingsError:
        """The error for a key."""
        return _refused(f"{self.path}.{key}", problem, remedy)

    def _entries(self) -> dict[str, Plain]:
        if not isinstance(self.content, dict):
            raise _refused(self.path, "is missing or no map", _SELF_CONTAINED)
        return self.content


class _Reader:
    """Reads YAML as strings, lists and maps, from its events, and stops at the first event of another kind."""

    def __init__(self, text: str) -> None:
        self._events = yaml.parse(text, Loader=_LOADER)
        self._nodes = 0

    def document(self) -> Plain:
        """The only document; None if there is none."""
        self._next()
        if isinstance(self._next(), StreamEndEvent):
            return None
        content = self._value(self._next(), DEEPEST)
        self._next()
        if not isinstance(self._next(), StreamEndEvent):
            raise _refused("kubeconfig", "holds a second document", "Keep one")
        return content

    def _value(self, event: Event, room: int) -> Plain:
        self._check(event, room)
        if isinstance(event, ScalarEvent):
            return None if event.implicit[0] and event.value in _NULLS else event.value
        if isinstance(event, SequenceStartEvent):
            return [self._value(each, room - 1) for each in self._until_end()]
        return dict(self._pairs(room - 1))

    def _pairs(self, room: int) -> Iterator[tuple[str, Plain]]:
        seen = set[str]()
        for event in self._until_end():
            key = self._value(event, room)
            if not isinstance(key, str):
                self._refuse(event, "has a key that is no text")
            if key in seen:
                self._refuse(event, "says something twice")
            seen.add(key)
            yield key, self._value(self._next(), room)

    def _until_end(self) -> Iterator[Event]:
        while not isinstance(event := self._next(), CollectionEndEvent):
            yield event

    def _check(self, event: Event, room: int) -> None:
        self._nodes += 1
        if self._nodes > MOST_NODES or not room:
            self._refuse(event, "is too large or too deep for a kubeconfig")
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None):
            self._refuse(event, "has an alias, an anchor or a tag")
        if isinstance(event, ScalarEvent) and "\0" in event.value:
            self._refuse(event, "holds a NUL")

    def _next(self) -> Event:
        try:
            return next(self._events)
        except (yaml.YAMLError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
        # The parser's own message quotes the file, so it must not be chained.
        where = f" (line {mark.line + 1})" if mark else ""
        raise _refused("kubeconfig", f"is not YAML{where}", _SELF_CONTAINED)

    def _refuse(self, event: Event, problem: str) -> NoReturn:
        line = event.start_mark.line + 1 if event.start_mark else 1
        raise _refused("kubeconfig", f"line {line} {problem}", _SELF_CONTAINED)


def _text(kubeconfig: bytes) -> str:
    if len(kubeconfig) > LARGEST_FILE:
        raise _refused("kubeconfig", f"has more than {LARGEST_FILE} bytes", _SELF_CONTAINED)
    with contextlib.suppress(UnicodeDecodeError):
        return kubeconfig.decode()
    raise _refused("kubeconfig", "is not UTF-8", _SELF_CONTAINED)


def _refused(path: str, problem: str, remedy: str) -> errors.SettingsError:
    return errors.SettingsError(f"{path}: {problem}. {remedy}.")
