"""One client per cluster: raw JSON over kubernetes_asyncio's authentication, TLS and connection pool.

The library's generated calls are not used: they have no timeouts, hide error codes and build models that cost more than
the rest of a call. This client adds little: every call has a total timeout, every answer is either JSON within the
bounds of `kube.bounds` or an error of `dispatcher.errors`, and a write is sent only while `may_write()` holds, tested
when its first byte is written.

A hint is words for a person, without which everything goes on. The Events of a cluster may have an etcd of their own,
or be too many to be searched in time, and a caller that waits for them keeps a place of its cluster in the work queue.
So a hint has little time, and a path whose answer took all of it is not asked again for a while; after several such
paths within a minute none is. One tenant alone makes one path slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlencode
from urllib.request import getproxies, proxy_bypass

import aiohttp
import orjson
from aiohttp import connector
from aiohttp.abc import AbstractStreamWriter
from msgspec import Struct, field
from yarl import URL

from dispatcher import errors
from dispatcher.api.names import DEFAULT_NAMESPACE
from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.core.model.clusters.potential import NAMESPACES_FOR_ALL
from dispatcher.kube import bounds, paths
from dispatcher.kube.api_calls import (
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    METADATA,
    METADATA_LIST,
    Json,
    delete_options,
    refusal,
    warnings_in,
)
from dispatcher.kube.bounds import LARGEST_REFUSAL, Buffer, Purpose
from dispatcher.kube.kubeconfig import Connection, api_client, load_configuration
from dispatcher.kube.library import ApiClient, ConfigException, Configuration

__all__ = ["JSON", "JSON_PATCH", "MERGE_PATCH", "METADATA", "METADATA_LIST", "ClusterClient", "Json"]

_READ_BUFFER: Final = 2**18
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})

POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def own_namespace(given: str) -> str:
    """The namespace of this process: as given, else the pod's, else `default`."""
    return given or pod_namespace() or DEFAULT_NAMESPACE


def pod_namespace(path: Path = POD_NAMESPACE) -> str:
    """The namespace of this process' pod; empty outside of a pod."""
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


class WriteCounts(Struct, frozen=True):
    """Writes to API servers: those sent, by verb and resource, and those that failed, by the error as well.

    `dropped_events` are the Events that were not written, by their reason.

    One value counts the writes of all clients of a process, so no count is lost when a member is connected anew.
    """

    sent: Counter[tuple[str, ...]] = field(default_factory=Counter)
    failed: Counter[tuple[str, ...]] = field(default_factory=Counter)
    dropped_events: Counter[str] = field(default_factory=Counter)


def always() -> bool:
    """The write fence for tests, and for tools that no other process competes with."""
    return True


def _never(_error: errors.Forbidden) -> bool:
    return False


class ClusterClient:
    """Talks to one API server; safe to use from many tasks at once. Paths are absolute, without the host."""

    def __init__(
        self,
        api: ApiClient,
        *,
        read_timeout: float = 10.0,
        write_timeout: float = 5.0,
        may_write: Callable[[], bool] = always,
        writes: WriteCounts | None = None,
    ) -> None:
        self._api = api
        self._read_timeout = read_timeout
        self._write_timeout = write_timeout
        self._base = str(api.configuration.host).rstrip("/")
        self._tls_server_name: str | None = api.configuration.tls_server_name
        self.writes = writes or WriteCounts()
        self._is_closed = False
        self._allowances = bounds.allowances()
        self._silent_hints = SilentHints()
        self._session = _session(api, may_write, self.writes.sent)

    @classmethod
    async def connect(
        cls,
        kubeconfig: str = "",
        *,
        read_timeout: float = 10.0,
        write_timeout: float = 5.0,
        may_write: Callable[[], bool] = always,
    ) -> Self:
        """A client for the current context of a kubeconfig, else of `KUBECONFIG`, else for the pod this runs in."""
        configuration = await load_configuration(kubeconfig or os.environ.get("KUBECONFIG", ""))
        api = ApiClient(configuration=configuration)
        return cls(api, read_timeout=read_timeout, write_timeout=write_timeout, may_write=may_write)

    @classmethod
    def of(
        cls,
        connection: Connection,
        *,
        read_timeout: float = 10.0,
        write_timeout: float = 5.0,
        may_write: Callable[[], bool] = always,
        writes: WriteCounts | None = None,
    ) -> Self:
        """A client for a member, in a running loop; raises `SettingsError` if its certificates cannot be used."""
        return cls(
            api_client(connection),
            read_timeout=read_timeout,
            write_timeout=write_timeout,
            may_write=may_write,
            writes=writes,
        )

    async def close(self) -> None:
        """Close every connection without waiting for the server, which may be gone."""
        self._is_closed = True
        pool = self._api.rest_client.pool_manager.connector
        if pool is not None:
            await pool.close(abort_ssl=True)
        await self._session.close()
        await self._api.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def get(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        accept: str = JSON,
        loads: Callable[[bytes], Any] = bounds.loads_one,
        purpose: Purpose = Purpose.OBJECT,
    ) -> Json:
        """Read one object, or a page of a list; raises `TooLarge` past a bound, also one of `loads`.

        The `purpose` decides which bounds hold while the answer arrives. A hint is not asked for, and `Unavailable` is
        raised at once, for some time after it had no answer in time.
        """
        is_hint, begun = purpose is Purpose.HINT, asyncio.get_running_loop().time()
        if is_hint and self._silent_hints.is_silent(path, begun):
            raise errors.Unavailable(f"GET {path}: not asked, because it had no answer in time a moment ago")
        seconds = min(HINT_SECONDS, self._read_timeout) if is_hint else self._read_timeout
        try:
            found = await self._call(
                "GET", path, query=query, accept=accept, timeout=seconds, loads=loads, purpose=purpose
            )
        except errors.Unavailable:
            now = asyncio.get_running_loop().time()
            if is_hint and now - begun >= seconds:
                self._silent_hints.note(path, now)
            raise
        if is_hint:
            self._silent_hints.note_answer(path)
        return found

    async def check_ready(self) -> None:
        """Return if the API server is ready, else raise `Unavailable`."""
        with self._translated("GET /readyz"):
            async with self._session.get(
                self._url("/readyz", None),
                headers=await self._headers(),
                timeout=aiohttp.ClientTimeout(total=self._read_timeout),
                server_hostname=self._tls_server_name,
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    raise errors.Unavailable(f"the API server is not ready: {response.status}")

    async def retry_forbidden(
        self, call: Callable[[], Awaitable[Json]], unless: Callable[[errors.Forbidden], bool] = _never
    ) -> Json:
        """Run a call; on 403, wait for /readyz and retry once, except where `unless` is true of the error.

        An API server that has just started may not have read its roles yet, and forbids what it allows a moment later.
        """
        try:
            return await call()
        except errors.Forbidden as error:
            if unless(error):
                raise
            await self.check_ready()
            return await call()

    async def create(
        self,
        path: str,
        body: Json,
        *,
        query: Mapping[str, str] | None = None,
        accept: str = JSON,
        warnings: list[str] | None = None,
    ) -> Json:
        """POST; raises `AlreadyExists` if the name is taken.

        `warnings` gets the warnings of the answer in place of its items, also those of a refusal.
        """
        return await self._call(
            "POST",
            path,
            query=query,
            body=body,
            timeout=self._write_timeout,
            accept=accept,
            warnings=warnings,
        )

    async def patch(
        self,
        path: str,
        body: Json | list[Json],
        content_type: str = JSON_PATCH,
        *,
        accept: str = JSON,
        timeout: float | None = None,
    ) -> Json:
        """PATCH, by default a JSON patch; raises `Invalid` if a `test` in it fails.

        For an object that may be large, accept its metadata only: an answer that is too large is an error. A `timeout`
        in seconds replaces that of writes, for a patch that changes nothing any more once another leader has written.
        """
        seconds = self._write_timeout if timeout is None else max(timeout, self._write_timeout)
        return await self._call(
            "PATCH", path, body=body, content_type=content_type, timeout=seconds, accept=accept
        )

    async def delete(self, path: str, uid: str, *, grace_seconds: int | None = None) -> Json:
        """DELETE with a uid precondition; raises `Conflict` if another object has the name.

        `grace_seconds` replaces the object's own grace period; 0 does not wait for the node.
        """
        grace = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        options = delete_options(uid, **grace)
        return await self._call("DELETE", path, body=options, timeout=self._write_timeout)

    async def watch(
        self, path: str, query: Mapping[str, str], idle_timeout: float, *, accept: str = JSON
    ) -> AsyncGenerator[bytes, None]:
        """The lines of a watch until the server ends it; raises `Unavailable` after `idle_timeout` seconds of silence.

        Raises `TooLarge` for a line above the bound of an answer.
        """
        timeout = aiohttp.ClientTimeout(total=None, connect=self._read_timeout, sock_read=idle_timeout)
        what = f"WATCH {path}"
        with self._translated(what), Buffer(self._allowances[Purpose.CLUSTER], what) as buffer:
            async with self._session.get(
                self._url(path, query),
                headers=await self._headers(accept),
                timeout=timeout,
                server_hostname=self._tls_server_name,
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    raise _refusal(("WATCH", path), response, await self._refusal_of(response, what))
                _check_plain(response, what)
                async for line in _lines(response.content, buffer):
                    yield line

    async def _call(
        self,
        method: str,
        path: str,
        *,
        timeout: float,
        query: Mapping[str, str] | None = None,
        body: Json | list[Json] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        loads: Callable[[bytes], Any] = bounds.loads_one,
        warnings: list[str] | None = None,
        purpose: Purpose = Purpose.OBJECT,
    ) -> Json:
        encoded = None if body is None else orjson.dumps(body)
        what = f"{method} {path}"
        with self._failures_counted(method, path), self._translated(what):
            headers = await self._headers(accept)
            if encoded is not None:
                headers["Content-Type"] = content_type
            async with self._session.request(
                method,
                self._url(path, query),
                data=encoded,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout),
                server_hostname=self._tls_server_name,
                allow_redirects=False,
            ) as response:
                if warnings is not None:
                    warnings[:] = warnings_in(response.headers.getall("Warning", ()))
                if not 200 <= response.status <= 299:
                    raise _refusal((method, path), response, await self._refusal_of(response, what))
                answer = await self._body(response, what, purpose)
            decoded: Json = loads(answer)
            return decoded

    async def _body(self, response: aiohttp.ClientResponse, what: str, purpose: Purpose) -> bytes:
        """The whole answer, bounded while it arrives, so that one that is too large is never in memory."""
        _check_plain(response, what)
        with Buffer(self._allowances[purpose], what) as buffer:
            async for chunk in response.content.iter_any():
                buffer.add(chunk)
            return buffer.take()

    async def _refusal_of(self, response: aiohttp.ClientResponse, what: str) -> bytes:
        """The first bytes of an error's body: its status has most of the information."""
        with Buffer(self._allowances[Purpose.OBJECT], what, 2 * LARGEST_REFUSAL) as buffer:
            left = 0 if _encoding(response) else LARGEST_REFUSAL
            while left > 0 and (chunk := await response.content.readany()):
                buffer.add(chunk[:left])
                left -= len(chunk)
            return buffer.take()

    @contextlib.contextmanager
    def _failures_counted(self, method: str, path: str) -> Iterator[None]:
        """Counts a write that fails; the fence of a process that no longer leads is no failure."""
        try:
            yield
        except errors.WriteForbiddenByFence:
            raise
        except errors.ClusterError as error:
            if method in _WRITES:
                self.writes.failed[method.lower(), resource_of(path), type(error).__name__] += 1
            raise

    @contextlib.contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Raises every failure as an error of ours, also if another task closes the client.

        Closing the pool cancels the tasks that wait for a connection; they get `Unavailable`, not a cancellation.
        """
        try:
            yield
        except (TimeoutError, aiohttp.ClientError, OSError, ConfigException, orjson.JSONDecodeError) as error:
            # A failure to get a token, or an answer that is no JSON (a proxy's page), counts as no answer.
            raise errors.Unavailable(f"{what}: {type(error).__name__}: {error}".rstrip(": ")) from error
        except (asyncio.CancelledError, RuntimeError) as error:
            if not self._is_closed or _is_cancelled():
                raise
            raise errors.Unavailable(f"{what}: the connection was closed") from error

    def _url(self, path: str, query: Mapping[str, str] | None) -> URL:
        # `encoded=True`: `kube.paths` has quoted the path, and quoting by yarl would take longer than the rest of the
        # call.
        suffix = f"?{urlencode(query, errors='replace')}" if query else ""
        return URL(f"{self._base}{paths.checked(path)}{suffix}", encoded=True)

    async def _headers(self, accept: str = JSON) -> dict[str, str]:
        """The headers of one request: the library re-reads a pod's token and an OIDC token when they are due."""
        headers = {
            "Accept": accept,
            # 1.5 MB of a compressed answer can be 3 GiB.
            "Accept-Encoding": "identity",
            "User-Agent": "appwrapper-dispatcher",
        }
        settings = await self._api.configuration.auth_settings()
        bearer = settings.get("BearerToken")
        if bearer and bearer["value"]:
            headers["Authorization"] = bearer["value"]
        return headers


def _session(
    api: ApiClient, may_write: Callable[[], bool], writes: Counter[tuple[str, ...]]
) -> aiohttp.ClientSession:
    """A session over the library's connector (its TLS and its pool) whose requests pass the write fence."""

    class FencedRequest(aiohttp.ClientRequest):
        async def send(self, conn: connector.Connection) -> aiohttp.ClientResponse:
            # Nothing was written, so the connection can be reused.
            if self.method in _WRITES and not may_write():
                raise self._stopped()
            return await super().send(conn)

        async def write_bytes(
            self, writer: AbstractStreamWriter, conn: connector.Connection, content_length: int | None = None
        ) -> None:
            """Write headers and body, which aiohttp sends together: every write of ours has a body.

            On Python 3.11 aiohttp runs this in a task of its own, which waits for its turn. Nothing is awaited between
            this test and the first byte.
            """
            if self.method in _WRITES:
                if not may_write():
                    # Raised in the task that waits for the answer, since this task may have no waiter.
                    assert conn.protocol is not None  # noqa: S101  # it was made for this
                    conn.protocol.set_exception(self._stopped())
                    return
                writes[self.method.lower(), resource_of(self.url.raw_path)] += 1
            await super().write_bytes(writer, conn, content_length)

        def _stopped(self) -> errors.WriteForbiddenByFence:
            return errors.WriteForbiddenByFence(f"{self.method} {self.url.path} was not sent")

    pool = api.rest_client.pool_manager
    return aiohttp.ClientSession(
        connector=pool.connector,
        connector_owner=False,
        # With `trust_env` aiohttp would look for ~/.netrc in a thread for every request, which costs more than the
        # request, and would refuse to send our token if ~/.netrc has an entry for the host.
        proxy=_proxy(api.configuration),
        read_bufsize=_READ_BUFFER,
        auto_decompress=False,
        # No cookies are needed, and a jar has no bound.
        cookie_jar=aiohttp.DummyCookieJar(),
        request_class=FencedRequest,
    )


def _proxy(configuration: Configuration) -> str | None:
    """The kubeconfig's proxy, else the environment's for this API server."""
    server = URL(str(configuration.host))
    if configuration.proxy:
        return str(configuration.proxy)
    if not server.host or proxy_bypass(server.host):
        return None
    return getproxies().get(server.scheme)


def resource_of(path: str) -> str:
    """The plural that a path is about, with the subresource if there is one: `rayclusters`, `appwrappers/status`."""
    found = _RESOURCE.search(path)
    return "/".join(filter(None, found.groups())) if found else ""


_RESOURCE: Final = re.compile(
    r"/(?:api|apis/[^/]+)/v[^/]+(?:/namespaces/[^/]+(?=/[^/]))?/([^/]+)(?:/[^/]+(?:/([^/]+))?)?$"
)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _lines(content: aiohttp.StreamReader, buffer: Buffer) -> AsyncIterator[bytes]:
    """The lines of a watch. aiohttp's own lines end at twice its buffer, which an object can exceed."""
    async for chunk in content.iter_any():
        start = 0
        while end := chunk.find(b"\n", start) + 1:
            buffer.add(chunk[start:end])
            yield buffer.take()
            start = end
        buffer.add(chunk[start:])
    if rest := buffer.take():
        yield rest


def _encoding(response: aiohttp.ClientResponse) -> str:
    """The compression of an answer; empty without one."""
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    return "" if encoding == "identity" else encoding


def _check_plain(response: aiohttp.ClientResponse, what: str) -> None:
    if _encoding(response):
        raise errors.TooLarge(f"{what}: the answer is compressed, which was not asked for")


def _refusal(request: tuple[str, str], response: aiohttp.ClientResponse, body: bytes) -> errors.ClusterError:
    return refusal(request, response.status, response.reason or "", response.headers, body)


HINT_SECONDS: Final = 3.0
"""The time of one hint."""
FIRST_SILENT_SECONDS: Final = 5.0
"""How long a path without an answer in that time is not asked; a server that was busy for a moment costs no more."""
SILENT_SECONDS: Final = 60.0
"""The longest time: it doubles each time that there is no answer again."""
MOST_PATHS: Final = 1_000
"""Paths without an answer that are remembered."""


class _Silence(NamedTuple):
    begun: float
    seconds: float


class SilentHints:
    """The paths of one API server whose hints had no answer in time. Times are in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._silences: BoundedDict[str, _Silence] = BoundedDict(MOST_PATHS)

    def is_silent(self, path: str, now: float) -> bool:
        """True if a hint at that path is not to be asked for now. Costs a step for each path that was silent."""
        own = self._silences.get(path)
        if own is not None and now < own.begun + own.seconds:
            return True
        late = sum(now < each.begun + SILENT_SECONDS for each in self._silences.values())
        return late >= NAMESPACES_FOR_ALL

    def note(self, path: str, now: float) -> None:
        """Note that a hint had no answer in time."""
        before = self._silences.get(path)
        seconds = FIRST_SILENT_SECONDS if before is None else min(SILENT_SECONDS, 2 * before.seconds)
        self._silences[path] = _Silence(now, seconds)

    def note_answer(self, path: str) -> None:
        """Note that a hint had an answer in time."""
        self._silences.pop(path, None)
