"""A proxy before an API server: forwards everything, records it, and fails where a test says.

The connections are real: TLS on both sides, the caller's own token, streamed watches. A `Fault` is applied to one
exchange; `Rules` choose the exchange by counting. Without a rule the proxy changes nothing. A lost message is a cut
connection, as in a network.

The proxy runs in the event loop of the test, so a fault can hold an exchange until something else has happened (a
process was killed, a lease expired), without guessed delays.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, NoReturn, Self, TypeVar

import aiohttp
import yaml
from aiohttp import web
from yarl import URL

from testbed.plane import Plane, write_private

WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
PASSED_ON: Final = ("Accept", "Authorization", "Content-Type", "User-Agent")
PASSED_BACK: Final = ("Content-Type", "Retry-After")

Act = Callable[[], Awaitable[None]]
"""An action of a test at one moment of an exchange, which waits for it."""
T = TypeVar("T")


# --- faults ------------------------------------------------------------------------------------------


async def nothing() -> None:
    """Does nothing."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer by the proxy itself."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one exchange, in the order of these fields."""

    before: Act = nothing
    """Awaited after the whole request arrived and before any of it is forwarded."""
    reply: Reply | None = None
    """Sent by the proxy, which then does not forward the request."""
    forward: bool = True
    """False: the connection is cut instead of forwarding the request."""
    after: Act = nothing
    """Awaited after the server has answered and before any of the answer is passed on."""
    pass_on: bool = True
    """False: the connection is cut instead of passing on the answer; the server has carried out the request."""


NO_FAULT: Final = Fault()
DROPPED: Final = Fault(forward=False)
CUT_AFTER_APPLIED: Final = Fault(pass_on=False)


class Gate:
    """Holds exchanges until it is open, and shows when one has reached it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def __call__(self) -> None:
        """Waits until it is open."""
        self.reached.set()
        await self._opened.wait()

    def open(self) -> None:
        """Lets all pass from now on."""
        self._opened.set()


def pause(seconds: float) -> Act:
    """An act that only takes time."""

    async def act() -> None:
        await asyncio.sleep(seconds)

    return act


def refused(status: int, reason: str = "", message: str = "the proxy says no") -> Fault:
    """The fault of an API server that answers with a Status and does nothing else."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    said = body | {"code": status, "reason": reason, "message": message}
    headers = {"Content-Type": "application/json"} | ({"Retry-After": "1"} if status == 429 else {})
    return Fault(reply=Reply(status, json.dumps(said).encode(), headers))


class Rule(Generic[T]):
    """A fault for the `nth` exchange that matches, and for the `times - 1` after it."""

    def __init__(self, matches: Callable[[T], bool], fault: Fault, nth: int, times: int) -> None:
        self.fault = fault
        self.matched = 0
        self.struck = asyncio.Event()
        """Set once the rule was applied, before its fault begins."""
        self._matches = matches
        self._due = range(nth, nth + times)

    def meet(self, exchange: T) -> bool:
        """Counts the exchange if it matches; True if the fault applies to it."""
        if not self._matches(exchange):
            return False
        self.matched += 1
        if self.matched not in self._due:
            return False
        self.struck.set()
        return True


class Rules(Generic[T]):
    """The exchanges so far, and the rules for the next ones."""

    def __init__(self) -> None:
        self.seen: list[T] = []
        self._rules: list[Rule[T]] = []

    def on(
        self, matches: Callable[[T], bool], fault: Fault = NO_FAULT, *, nth: int = 1, times: int = 1
    ) -> Rule[T]:
        """Adds a rule; it counts from now on. If several rules apply, the oldest wins."""
        rule = Rule(matches, fault, nth, times)
        self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Removes every rule; exchanges that are held stay held."""
        self._rules.clear()

    def meet(self, exchange: T) -> Fault:
        """Records a new exchange, and returns its fault."""
        self.seen.append(exchange)
        struck = [rule for rule in self._rules if rule.meet(exchange)]
        return struck[0].fault if struck else NO_FAULT


# --- the proxy ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Exchange:
    """A request and its result; `status` is the server's answer, 0 without one."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes
    status: int = 0

    @property
    def is_write(self) -> bool:
        """True if it may change something; a dry run does not."""
        return self.method in WRITES and "dryRun" not in self.query

    @property
    def is_watch(self) -> bool:
        """True if its answer has no end."""
        return "watch" in self.query

    @property
    def document(self) -> Any:  # noqa: ANN401  # whatever JSON was sent
        """The body as JSON."""
        return json.loads(self.body) if self.body else None


OnRead = Callable[[Exchange, bytes], None]


def ignore(_exchange: Exchange, _part: bytes) -> None:
    """Does nothing with what the server answers."""


class ApiProxy:
    """Use as an async context manager; `kubeconfig` leads through it.

    `on_read` is called with an exchange and each part of the server's answer to it, as soon as that part has come. The
    caller may be slow to read: what the server sent is read at once, and held in memory.
    """

    def __init__(
        self,
        upstream: str,
        trust: ssl.SSLContext | None,
        serving: ssl.SSLContext | None,
        on_read: OnRead = ignore,
    ) -> None:
        self.rules: Rules[Exchange] = Rules()
        self._on_read = on_read
        self._upstream = upstream
        self._trust = trust
        self._serving = serving
        self._running: set[asyncio.Task[Any]] = set()
        self._watches: set[asyncio.Task[Any]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._runner = web.ServerRunner(web.Server(self._handle, access_log=None), shutdown_timeout=0)

    @classmethod
    def of(cls, plane: Plane, on_read: OnRead = ignore) -> Self:
        """A proxy before a plane's API server, with the plane's own serving certificate."""
        made = plane.folder / "certificates"
        serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        serving.load_cert_chain(made / "serving.crt", made / "serving.key")
        trust = ssl.create_default_context(cadata=plane.certificate_authority)
        return cls(plane.url, trust, serving, on_read)

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, ssl=self._trust or True)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=True
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._serving).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        # The server would wait for watches and for held exchanges, and both may take forever.
        end(self._running)
        await self._runner.cleanup()
        await self._session.close()

    @property
    def url(self) -> str:
        """The address of the proxy."""
        scheme = "http" if self._serving is None else "https"
        return f"{scheme}://127.0.0.1:{self._runner.addresses[0][1]}"

    def kubeconfig(self, plane: Plane) -> Path:
        """Writes the plane's kubeconfig with the proxy's address, and returns its path."""
        content = yaml.safe_load(plane.kubeconfig.read_text())
        for each in content["clusters"]:
            each["cluster"]["server"] = self.url
        port = self._runner.addresses[0][1]
        return write_private(plane.folder / f"proxy-{port}.kubeconfig", yaml.safe_dump(content))

    def writes(self) -> list[Exchange]:
        """Every write so far, in the order of arrival."""
        return [each for each in self.rules.seen if each.is_write]

    def cut_watches(self) -> None:
        """Cuts every watch that runs now."""
        end(self._watches)

    def freeze(self) -> None:
        """Receives everything and passes nothing on, in both directions, also for running watches."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Passes on everything that was held since `freeze`, however late."""
        self._flowing.set()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine always runs in a task
        self._running.add(task)
        try:
            return await self._answer(request, task)
        finally:
            self._running.discard(task)
            self._watches.discard(task)

    async def _answer(self, request: web.BaseRequest, task: asyncio.Task[Any]) -> web.StreamResponse:
        exchange = Exchange(request.method, request.path, dict(request.query), await request.read())
        fault = self.rules.meet(exchange)
        await fault.before()
        await self._flowing.wait()
        if fault.reply is not None:
            return web.Response(
                status=fault.reply.status, body=fault.reply.body, headers=dict(fault.reply.headers)
            )
        if not fault.forward:
            cut(request)
        if exchange.is_watch:
            self._watches.add(task)
        try:
            return await self._forward(request, exchange, fault)
        except (aiohttp.ClientError, OSError):
            cut(request)

    async def _forward(
        self, request: web.BaseRequest, exchange: Exchange, fault: Fault
    ) -> web.StreamResponse:
        async with self._session.request(
            request.method,
            URL(f"{self._upstream}{request.raw_path}", encoded=True),
            data=exchange.body or None,
            headers=chosen(request.headers, PASSED_ON),
        ) as answer:
            exchange.status = answer.status
            streamed = exchange.is_watch and answer.status == 200
            body = b"" if streamed else await answer.read()
            self._on_read(exchange, body)
            await fault.after()
            await self._flowing.wait()
            if not fault.pass_on:
                cut(request)
            headers = chosen(answer.headers, PASSED_BACK)
            if streamed:
                return await self._stream(request, exchange, answer, headers)
            return web.Response(status=answer.status, body=body, headers=headers)

    async def _stream(
        self,
        request: web.BaseRequest,
        exchange: Exchange,
        answer: aiohttp.ClientResponse,
        headers: Mapping[str, str],
    ) -> web.StreamResponse:
        """Passes an answer on as it arrives."""
        response = web.StreamResponse(status=answer.status, headers=dict(headers))
        await response.prepare(request)
        parts: asyncio.Queue[bytes] = asyncio.Queue()
        reading = asyncio.create_task(self._read(exchange, answer, parts))
        try:
            while part := await parts.get():
                await self._flowing.wait()
                await response.write(part)
            await reading
        finally:
            reading.cancel()
        return response

    async def _read(
        self, exchange: Exchange, answer: aiohttp.ClientResponse, parts: asyncio.Queue[bytes]
    ) -> None:
        """Reads an answer until it ends or breaks off; then an empty part follows."""
        try:
            async for part in answer.content.iter_any():
                self._on_read(exchange, part)
                parts.put_nowait(part)
        finally:
            parts.put_nowait(b"")


def end(handlers: set[asyncio.Task[Any]]) -> None:
    """Cancels the present exchange and its connection."""
    for handler in tuple(handlers):
        handler.cancel()


def cut(request: web.BaseRequest) -> NoReturn:
    """Cuts the connection; data written to it may be lost."""
    if request.transport is not None:
        request.transport.abort()
    # The only exception for which the server neither logs nor answers.
    raise asyncio.CancelledError


def chosen(headers: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The headers that concern both sides; the others belong to each connection."""
    return {name: headers[name] for name in names if name in headers}
