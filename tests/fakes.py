"""The far side of a wire, scripted to fail: an API server that answers what a test tells it to."""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import orjson
from aiohttp import web

from dispatcher.kube.client import ClusterClient, always
from dispatcher.kube.library import ApiClient, Configuration

NOBODYS_CA = Path(__file__).parent / "golden" / "nobodys-ca.pem"
"""Read in place of the system's authorities, which would take longer than most tests."""

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it arrived."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


class FakeApiServer:
    """Gives each request the next reply scripted for its method and path, the last one again and again.

    What is not scripted is a path the server does not know, and `/readyz` says yes. With `tls` it speaks nothing else.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.asked: list[Asked] = []
        self._replies: dict[tuple[str, str], deque[Reply]] = defaultdict(deque)
        self._runner = web.ServerRunner(
            web.Server(self._answer, handler_cancellation=True),
            shutdown_timeout=0,
        )
        self.on("GET", "/readyz", text("ok", status=200))

    def on(self, method: str, path: str, *replies: Reply) -> None:
        """Script the replies to a method and path, in place of what was scripted before."""
        self._replies[method, path] = deque(replies)

    def requests(self, method: str = "", path: str = "") -> list[Asked]:
        """What was asked so far of that method and path (empty: any)."""
        return [each for each in self.asked if method in ("", each.method) and path in ("", each.path)]

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        """Where it listens."""
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        sent = orjson.loads(body) if body else None
        self.asked.append(Asked(request.method, request.path, request.query, request.headers, sent))
        replies = self._replies[request.method, request.path]
        if not replies:
            return web.Response(status=404, text="404 page not found\n")
        reply = replies.popleft() if len(replies) > 1 else replies[0]
        return await reply(request)  # type: ignore[arg-type]  # a low-level server makes base requests


def client_of(
    server: FakeApiServer,
    *,
    token: str = "",
    pool: int = 100,
    write_timeout: float = 5.0,
    may_write: Callable[[], bool] = always,
) -> ClusterClient:
    """A client of the scripted server, with so many connections."""
    configuration = Configuration(host=server.url)
    configuration.connection_pool_maxsize = pool
    configuration.ssl_ca_cert = str(NOBODYS_CA)
    if token:
        configuration.api_key = {"BearerToken": token}
        configuration.api_key_prefix = {"BearerToken": "Bearer"}
    api = ApiClient(configuration=configuration)
    return ClusterClient(api, write_timeout=write_timeout, may_write=may_write)


def answer(body: object, status: int = 200, warning: str = "") -> Reply:
    """Replies JSON, with a `Warning` header if there is a warning."""
    headers = {"Warning": f'299 - "{warning}"'} if warning else None

    async def reply(_request: web.Request) -> web.StreamResponse:
        return web.Response(
            status=status, body=orjson.dumps(body), content_type="application/json", headers=headers
        )

    return reply


def refusal(code: int, reason: str, message: str = "no", warning: str = "") -> Reply:
    """Replies the Status object of an API server that says no."""
    status = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return answer(status, code, warning)


def text(body: str, status: int, headers: Mapping[str, str] | None = None) -> Reply:
    """Replies plain text, as proxies do, and API servers for paths they do not know."""

    async def reply(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body, headers=headers)

    return reply


async def never(_request: web.Request) -> web.StreamResponse:
    """Never replies."""
    await asyncio.Event().wait()
    raise AssertionError


async def hang_up(request: web.Request) -> web.StreamResponse:
    """Cuts the connection before any answer."""
    assert request.transport is not None
    request.transport.abort()
    raise asyncio.CancelledError


def watch(*events: object, then: Reply | None = None) -> Reply:
    """Replies these events (bytes go as they are), then ends the watch, or goes on as `then` does."""

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events:
            await response.write(event if isinstance(event, bytes) else orjson.dumps(event) + b"\n")
        if then is not None:
            await then(request)
        return response

    return reply
