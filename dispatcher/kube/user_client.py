"""One API server, asked with the rights of the person who runs a command.

The dispatcher's own client (`kube.client`) imports a library that takes longer than most commands; this one is built on
the standard library. A client is for one thread. Errors are those of `dispatcher.errors`.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
    RemoteDisconnected,
)
from typing import TYPE_CHECKING, Final, Self, TypeVar
from urllib.parse import SplitResult, urlencode, urlsplit

import orjson

from dispatcher import errors
from dispatcher.kube import bounds, paths
from dispatcher.kube.api_calls import JSON, JSON_PATCH, Json, delete_options, refusal, warnings_in
from dispatcher.kube.bounds import LARGEST_ANSWER, LARGEST_REFUSAL
from dispatcher.kube.user_kubeconfig import Access, tls_of

if TYPE_CHECKING:
    from dispatcher.kube.kubeconfig import Connection

SECONDS: Final = 10.0
"""Seconds without a byte after which a call fails."""
PAGE: Final = 500
"""Objects in one page of a list."""
MOST_ITEMS: Final = 200_000
"""Objects of one list: more than a cluster has of any kind."""
MOST_PAGES: Final = MOST_ITEMS // 4
"""Pages of one list, most of which may be small."""
LONGEST_ANSWER_SECONDS: Final = 60.0
"""Seconds in which an answer has to end."""
CHUNK: Final = 2**16
SMALLER: Final = 8
"""A page that is too large is asked for again with so many times fewer objects."""

_Answer = TypeVar("_Answer")


def access_to(to: Connection) -> Access:
    """The access of the checked kubeconfig of a member; raises `SettingsError` if TLS rejects its content."""
    return Access(
        to.server,
        "",
        tls_of(to.authorities, to.certificate, to.key),
        to.tls_server_name,
        to.proxy,
        {"Authorization": f"Bearer {to.token}"} if to.token else {},
    )


class UserClient:
    """Calls one API server, one call after the other, on a connection that is kept.

    If it refuses the credentials of an access, a call is made once more with the access that `renew` gives for it.
    """

    def __init__(
        self, access: Access, seconds: float = SECONDS, renew: Callable[[Access], Access] | None = None
    ) -> None:
        self.namespace = access.namespace
        self._access = access
        self._seconds = seconds
        self._renew = renew
        self._url = urlsplit(access.server)
        self._connection: HTTPConnection | None = None
        self._warnings: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later call opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def twin(self) -> UserClient:
        """A client of the same API server for another thread."""
        return UserClient(self._access, self._seconds, self._renew)

    def take_warnings(self) -> list[str]:
        """The warnings in the answers since the last time.

        Source: https://kubernetes.io/docs/reference/using-api/#warnings
        """
        taken, self._warnings = self._warnings, []
        return taken

    def get(self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON) -> Json:
        """Read one object, or a list as one page."""
        return self._call("GET", path, query, accept=accept)

    def items(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[Json]:
        """The objects of a complete list, read in pages; a page that is too large is asked for in smaller ones.

        Raises `TooLarge` for a single object that is, or a list without an end. So nobody hides the list by objects of
        the largest size.
        """
        token, limit, found, pages = "", PAGE, 0, 0
        while True:
            asked = {**(query or {}), "limit": str(limit), **({"continue": token} if token else {})}
            try:
                page = self._call("GET", path, asked)
            except errors.TooLarge:
                self.close()  # the rest of the answer would be in the way of the next one
                if limit == 1:
                    raise
                limit = max(1, limit // SMALLER)
                continue
            items = page.get("items") or ()
            found, pages = found + len(items), pages + 1
            if found > MOST_ITEMS or pages > MOST_PAGES:
                raise errors.TooLarge(f"{self._access.server}: the list of {path} has no end")
            yield from items
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return

    def create(self, path: str, body: Json, query: Mapping[str, str] | None = None) -> Json:
        """POST; raises `AlreadyExists` if the name is taken."""
        return self._call("POST", path, query, body=body)

    def patch(
        self,
        path: str,
        body: Json | list[Json],
        content_type: str = JSON_PATCH,
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """PATCH, by default a JSON patch."""
        return self._call("PATCH", path, query, body=body, content_type=content_type)

    def delete(self, path: str, uid: str, *, is_dry: bool = False) -> Json:
        """DELETE with a uid precondition; raises `Conflict` if another object has the name.

        An API server reads `dryRun` from the query only if a DELETE has no body, so it is an option of the body here.
        """
        dry = {"dryRun": ["All"]} if is_dry else {}
        return self._call("DELETE", path, body=delete_options(uid, **dry))

    def lines(self, path: str, query: Mapping[str, str], idle: float | None) -> Iterator[bytes]:
        """The lines of an answer without an end, such as a watch or a log, until the server ends it.

        Raises `Unavailable` after `idle` seconds of silence; None waits without a bound. The connection is the
        stream's own.
        """
        with self._translated():
            connection = self._connect(idle)
            try:
                response = self._sent(connection, "GET", path, query, None, JSON, f"{JSON}, */*")
                with closing(response):
                    yield from self._lines(response, path)
            finally:
                connection.close()

    def _lines(self, response: HTTPResponse, path: str) -> Iterator[bytes]:
        if response.status != 200:
            raise self._refused("GET", path, response)
        while line := response.readline(LARGEST_ANSWER + 1):
            if len(line) > LARGEST_ANSWER:
                raise errors.TooLarge(f"{self._access.server}: a line is larger than {LARGEST_ANSWER} bytes")
            yield line

    def check_ready(self) -> None:
        """Return if the API server is ready, else raise `Unavailable`."""
        try:
            for _ in self.lines("/readyz", {}, self._seconds):
                pass
        except errors.ClusterError as error:
            raise errors.Unavailable(f"the API server is not ready: {error}") from error

    # --- the wire --------------------------------------------------------------------------------------------

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Json | list[Json] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Json:
        encoded = None if body is None else orjson.dumps(body)
        try:
            return self._call_once(method, path, query, encoded, content_type, accept)
        except errors.Unauthorized:
            if self._renew is None:
                raise
        self._access = self._renew(self._access)
        self._url = urlsplit(self._access.server)
        return self._call_once(method, path, query, encoded, content_type, accept)

    def _call_once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str,
        accept: str,
    ) -> Json:
        with self._translated():
            if self._connection is None:
                self._connection = self._connect(self._seconds)
            response = self._sent(self._connection, method, path, query, body, content_type, accept)
            if not 200 <= response.status <= 299:
                raise self._refused(method, path, response)
            self._warnings += warnings_in(response.headers.get_all("Warning") or ())
            decoded: Json = bounds.loads(self._whole(response))
            return decoded

    def _whole(self, response: HTTPResponse) -> bytes:
        """The body of an answer, which may take `LONGEST_ANSWER_SECONDS` in all, however little comes at a time."""
        parts, size, deadline = list[bytes](), 0, time.monotonic() + LONGEST_ANSWER_SECONDS
        while part := response.read1(CHUNK):
            parts.append(part)
            size += len(part)
            if size > LARGEST_ANSWER:
                raise errors.TooLarge(
                    f"{self._access.server}: the answer is larger than {LARGEST_ANSWER} bytes"
                )
            if time.monotonic() > deadline:
                self.close()
                raise errors.Unavailable(
                    f"{self._access.server} did not end its answer in {LONGEST_ANSWER_SECONDS:g} s"
                )
        if response.length:  # it ended before all that it had announced
            raise IncompleteRead(b"", response.length)
        response.close()  # by itself it would only be once more is asked of it than there is
        return b"".join(parts)

    def _sent(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str,
        accept: str,
    ) -> HTTPResponse:
        headers = {"Accept": accept, "User-Agent": "kubectl-aw", **self._access.headers}
        if body is not None:
            headers["Content-Type"] = content_type
        suffix = f"?{urlencode(query, errors='replace')}" if query else ""
        connection.request(method, f"{self._url.path}{paths.checked(path)}{suffix}", body, headers)
        return connection.getresponse()

    def _refused(self, method: str, path: str, response: HTTPResponse) -> errors.ClusterError:
        body = response.read(LARGEST_REFUSAL)
        response.close()
        self.close()  # the rest of a long answer would be in the way of the next one
        found = refusal((method, path), response.status, response.reason, dict(response.headers), body)
        if type(found) is errors.Unavailable:
            said = str(found).removeprefix(f"{method} {path}: ")
            return errors.Unavailable(f"{self._access.server} answers {said}")
        return found

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except errors.ClusterError:
            raise
        except (OSError, HTTPException, orjson.JSONDecodeError) as error:
            self.close()
            raise errors.Unavailable(self._in_words(error)) from error

    def _in_words(self, error: Exception) -> str:
        """Why the API server gave no answer, for a person who does not know Python."""
        server = self._access.server
        match error:
            case ConnectionRefusedError():
                return f"{server} refuses the connection"
            case socket.gaierror():
                return f"the name of {server} cannot be resolved"
            case ssl.SSLCertVerificationError():
                return f"the certificate of {server} is not valid: {error.verify_message}"
            case TimeoutError():
                return f"{server} was silent for too long"
            case ConnectionError() | IncompleteRead() | RemoteDisconnected():
                return f"{server} closed the connection"
            case orjson.JSONDecodeError():
                return f"{server} answers with something that is no JSON"
            case OSError():
                return f"{server}: {error.strerror or error}"
        return f"{server} does not speak HTTP: {error}"

    def _connect(self, seconds: float | None) -> HTTPConnection:
        to = urlsplit(self._access.proxy or _proxy_for(self._url))
        host, port = self._url.hostname or "", self._url.port
        at, through = ((to.hostname or "", to.port) if to.hostname else (host, port)), bool(to.hostname)
        tls = self._access.tls
        connection: HTTPConnection
        if tls is None:
            connection = HTTPConnection(*at, timeout=seconds)
        else:
            connection = _TlsConnection(*at, timeout=seconds, context=tls)
            connection.server_name = self._access.tls_server_name
        if through:
            connection.set_tunnel(host, port)
        return connection


class _TlsConnection(HTTPSConnection):
    """HTTPS to a server that is verified by another name than its address, if `server_name` is set."""

    server_name = ""

    def connect(self) -> None:
        if not self.server_name:
            super().connect()
            return
        HTTPConnection.connect(self)
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self.server_name)  # type: ignore[attr-defined]


def _proxy_for(server: SplitResult) -> str:
    """The environment's proxy for an API server; empty without one."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return ""
    from urllib.request import getproxies, proxy_bypass  # which takes 20 ms to import

    return "" if proxy_bypass(server.hostname or "") else getproxies().get(server.scheme, "")


class AsyncUserClient:
    """The calls of a `UserClient` as coroutines, for commands that also talk to a `ClusterClient`."""

    def __init__(self, client: UserClient) -> None:
        self._client = client

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON) -> Json:
        """As `UserClient.get`."""
        return await _in_thread(lambda: self._client.get(path, query, accept=accept))

    async def check_ready(self) -> None:
        """As `UserClient.check_ready`."""
        await _in_thread(self._client.check_ready)

    async def create(self, path: str, body: Json) -> Json:
        """As `UserClient.create`."""
        return await _in_thread(lambda: self._client.create(path, body))

    async def patch(self, path: str, body: Json | list[Json], content_type: str = JSON_PATCH) -> Json:
        """As `UserClient.patch`."""
        return await _in_thread(lambda: self._client.patch(path, body, content_type))

    async def delete(self, path: str, uid: str) -> Json:
        """As `UserClient.delete`."""
        return await _in_thread(lambda: self._client.delete(path, uid))


async def _in_thread(call: Callable[[], _Answer]) -> _Answer:
    import asyncio  # most commands call a `UserClient` itself, and need no event loop

    return await asyncio.to_thread(call)
