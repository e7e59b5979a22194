"""The far side of notifications: a real web server and a real SMTP server on the loopback, which keep what they get."""

from __future__ import annotations

import asyncio
import email
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.message import Message as Mail
from typing import Any

import orjson
from aiohttp import web
from aiosmtpd.smtp import SMTP, Envelope, Session


@dataclass
class Receiver:
    """A web server that answers as a test says, and keeps what it was sent."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    received: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""
    _more: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The CloudEvents, in the order of their arrival."""
        return [orjson.loads(body) for _, body in self.received]

    async def wait_for(self, count: int) -> list[dict[str, Any]]:
        """The first of each id, once there are so many of them: a message may come twice."""
        async with asyncio.timeout(15), self._more:
            await self._more.wait_for(lambda: len(self._by_id()) >= count)
        return list(self._by_id().values())

    def _by_id(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for each in self.events:
            found.setdefault(each["id"], each)
        return found

    async def take(self, request: web.Request) -> web.Response:
        """Keep a request, and answer it."""
        body = await request.read()
        async with self._more:
            self.received.append((dict(request.headers), body))
            self._more.notify_all()
        return web.Response(status=self.status, headers=self.headers)


@asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """A web server, as long as the block lasts."""
    receiver, application = Receiver(), web.Application()
    application.router.add_route("*", "/{path:.*}", receiver.take)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    receiver.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{runner.addresses[0][1]}/in"
    try:
        yield receiver
    finally:
        await runner.cleanup()


class Mailbox:
    """Keeps mails, and answers each as a test says; `url` is its address as apprise reads it."""

    def __init__(self) -> None:
        self.mails: list[Mail] = []
        self.answer = "250 OK"
        self.url = ""

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802  # its name
        """Keep a mail, as aiosmtpd calls it."""
        content = envelope.content or b""
        self.mails.append(
            email.message_from_bytes(content if isinstance(content, bytes) else content.encode())
        )
        return self.answer


@asynccontextmanager
async def mailbox() -> AsyncIterator[Mailbox]:
    """An SMTP server, as long as the block lasts."""
    box = Mailbox()
    server = await asyncio.get_running_loop().create_server(
        lambda: SMTP(box, hostname="localhost"), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    box.url = f"mailto://127.0.0.1:{port}?from=dispatcher@example.com&to=team@example.com"
    try:
        yield box
    finally:
        server.close()
        await server.wait_closed()


def text_of(mail: Mail) -> str:
    """The plain text of a mail."""
    parts: list[Any] = [part for part in mail.walk() if part.get_content_type() == "text/plain"]
    payload = (parts[0] if parts else mail).get_payload(decode=True)
    return payload.decode() if isinstance(payload, bytes) else str(payload)
