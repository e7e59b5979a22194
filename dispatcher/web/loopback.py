"""The page on 127.0.0.1, for the one browser that opens the printed address.

Other users of the machine reach the port, and so does every page in the person's own browser. So the address has a
token that works once and is exchanged for a cookie; a request needs that cookie, and names this server as its Host,
which a foreign name that leads here does not. A browser sends the cookies of a host to each of its ports: everything is
below a path that nobody else knows, and the cookie is of that path alone. Other ports set cookies, too, so its name has
the port, and any of that name may be the right one. Connections without the cookie are bounded, those of the browser
are kept. Nothing is written, so only GET is served. The page has no script, and its policy allows none.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Final, cast
from urllib.parse import urlencode
from weakref import WeakSet

from aiohttp import web

from dispatcher.listener import MOST_SECONDS, listening
from dispatcher.web.site import Site, Sources

HOST: Final = "127.0.0.1"
LONGEST_LINE: Final = 8190
"""Bytes of a request's line; aiohttp answers 400 to more."""
LONGEST_HEADER: Final = 65_536
"""Bytes of each header: a browser sends the cookies of all ports of this host."""
POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "kubectl-aw",
}
TOKEN: Final = "token"  # noqa: S105  # a name
"""The parameter of the printed address."""
COOKIE: Final = "aw"
"""How the name of the cookie begins; the port follows."""
HTTP: Final = 80
"""The port that browsers leave out of the Host."""
REFUSED: Final = frozenset({400, 403, 421})
"""After these answers the connection is closed."""
GRACE_SECONDS: Final = 1.0
"""How long Ctrl-C waits for pages that are being made."""
IDLE_SECONDS: Final = 15
"""How long a connection without a request is kept."""

_SILENT: Final = logging.Logger("web")
"""The logger of the server. It drops everything, because its lines about bad requests would fill the terminal."""
_SILENT.addHandler(logging.NullHandler())
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Door:
    """Lets one browser in, and no other request."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._token = secrets.token_urlsafe(32)
        self._session = secrets.token_urlsafe(32)
        self._hosts = frozenset[str]()
        self._cookie = ""
        self._known = WeakSet[asyncio.BaseTransport]()
        """The connections that have shown the cookie."""

    def application(self) -> web.Application:
        """The site behind the check of each request."""
        application = web.Application(middlewares=[self._checked])
        application.add_routes(self._site.routes())
        return application

    def address(self, port: int) -> str:
        """The address that lets one browser in; `port` is the one that the page is served at."""
        self._cookie = f"{COOKIE}-{port}"
        names = (HOST, "localhost")
        self._hosts = frozenset(
            {f"{name}:{port}" for name in names} | (set(names) if port == HTTP else set())
        )
        return f"http://{HOST}:{port}/?{urlencode({TOKEN: self._token})}"

    def knows(self, connection: web.RequestHandler) -> bool:
        """True if a connection is of the browser that was let in."""
        return connection.transport in self._known

    @web.middleware
    async def _checked(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            response = await self._answer(request, handler)
        except web.HTTPMethodNotAllowed:
            response = self._site.told(405, "The page only reads", "Use kubectl aw to change anything.")
        except web.HTTPNotFound:
            response = self._site.told(404, "There is no such page", "The queue is a link at the top.")
        except web.HTTPException as error:
            response = self._site.told(error.status, error.reason, "Go back, and try another link.")
        except Exception:  # noqa: BLE001  # the edge: a page never shows the message of an exception
            response = self._site.told(
                500, "The page cannot be shown", "kubectl aw shows the same in a terminal."
            )
        response.headers.update(HEADERS)
        if response.status in REFUSED:
            response.force_close()
        return response

    async def _answer(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if request.host not in self._hosts:
            return self._site.told(
                421, "This is not the address of the page", "Open the address that the command printed."
            )
        if request.path == "/" and TOKEN in request.query:
            return self._let_in(request)
        if not self._is_in(request):
            return self._site.told(
                403,
                "This browser has not opened the printed address",
                "Open it here, or end kubectl aw web and start it again: an address works once.",
            )
        if request.transport is not None:
            self._known.add(request.transport)
        return await handler(request)

    def _is_in(self, request: web.Request) -> bool:
        # Any of them: whoever serves another port of this host can set cookies of the same name.
        return any(_is_same(each, self._session) for each in _cookies(request, self._cookie))

    def _let_in(self, request: web.Request) -> web.StreamResponse:
        """Exchange the token for the cookie, once, with a page of this server that leads on.

        A redirect would not do: a browser that comes from elsewhere does not send the cookie along with it.
        """
        if not (request.method == "GET" and self._token and _is_same(request.query[TOKEN], self._token)):
            return self._site.told(
                403,
                "This address was used already",
                "Go on in the browser that opened it, or end kubectl aw web and start it again.",
            )
        self._token = ""
        response = self._site.shown("enter.html", {})
        response.set_cookie(
            self._cookie, self._session, httponly=True, samesite="Strict", path=f"{self._site.root}/"
        )
        return response


def _cookies(request: web.Request, name: str) -> Iterator[str]:
    """The values of all cookies of a name; unlike those of the library, whatever the others are."""
    for header in request.headers.getall("Cookie", ()):
        for each in header.split(";"):
            key, _, value = each.partition("=")
            if key.strip() == name:
                yield value.strip()


def _is_same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), wanted.encode())


async def serve(
    sources: Sources, port: int, tell: Callable[[str], None], *, most_seconds: float = MOST_SECONDS
) -> None:
    """Serve the page until cancelled; `tell` is called in a thread with its address once it answers.

    Connections without the cookie are bounded in number, and last `most_seconds`.
    """
    # Without descriptors the server says so in a line for each connection, which would fill the terminal.
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    site = Site(sources)
    door = Door(site)
    runner = web.AppRunner(
        door.application(),
        access_log=None,
        logger=_SILENT,
        keepalive_timeout=IDLE_SECONDS,
        shutdown_timeout=GRACE_SECONDS,
        max_line_size=LONGEST_LINE,
        max_field_size=LONGEST_HEADER,
    )
    await runner.setup()
    try:
        server = cast("web.Server", runner.server)  # None only before the setup
        async with listening(server, HOST, port, most_seconds=most_seconds, is_kept=door.knows) as bound:
            await asyncio.to_thread(tell, door.address(bound))  # a browser may take seconds to begin
            await asyncio.Event().wait()
    finally:
        await runner.cleanup()
        site.end()


async def serve_until_interrupted(sources: Sources, port: int, tell: Callable[[str], None]) -> None:
    """As `serve`, until Ctrl-C or SIGTERM."""
    serving = asyncio.ensure_future(serve(sources, port, tell))
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, serving.cancel)
    with suppress(asyncio.CancelledError):
        await serving
