"""The page on 127.0.0.1, for the one browser that opens the printed address.

Other users of the machine reach the port, and so does every page in the person's own browser. So the address has a
token that works once and is exchanged for a cookie; a request needs that cookie, and names this server as its Host,
which a foreign name that leads here does not. Nothing is written, so only GET is served. The page has no script, and
its policy allows none.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from aiohttp import web

from dispatcher.web.pages import appwrapper_page, queue_page, similar
from dispatcher.web.reading import Reading

HOST: Final = "127.0.0.1"
LONGEST_LINE: Final = 8190
"""Bytes of a request's line and of each header; aiohttp answers 400 to more."""
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
}
TOKEN: Final = "token"  # noqa: S105  # a name
"""The parameter of the printed address."""

_HERE: Final = Path(__file__).parent
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Page:
    """Answers the requests of one browser."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._token = secrets.token_urlsafe(32)
        self._session = secrets.token_urlsafe(32)
        self._port = 0
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def application(self) -> web.Application:
        """The routes behind the check of each request."""
        application = web.Application(middlewares=[self._checked])
        application.add_routes(
            [
                web.get("/", self._start),
                web.get("/queue", self._queue),
                web.get("/appwrapper/{namespace}/{name}", self._appwrapper),
                web.get("/style.css", self._style),
            ]
        )
        return application

    def address(self, port: int) -> str:
        """The address that lets one browser in; `port` is the one that the page is served at."""
        self._port = port
        return f"http://{HOST}:{port}/?{urlencode({TOKEN: self._token})}"

    @property
    def _cookie(self) -> str:
        # Cookies of one host are sent to each of its ports.
        return f"aw-{self._port}"

    @web.middleware
    async def _checked(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        response = await self._answer(request, handler)
        response.headers.update(HEADERS)
        return response

    async def _answer(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if request.host not in {f"{HOST}:{self._port}", f"localhost:{self._port}"}:
            return self._told(
                421, "This is not the address of the page", "Open the address that the command printed."
            )
        if TOKEN in request.query:
            return self._let_in(request)
        if not hmac.compare_digest(request.cookies.get(self._cookie, "").encode(), self._session.encode()):
            return self._told(
                403,
                "This browser has not opened the printed address",
                "Open it here, or end kubectl aw web and start it again: an address works once.",
            )
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed:
            return self._told(405, "The page only reads", "Use kubectl aw to change anything.")
        except web.HTTPNotFound:
            return self._told(404, "There is no such page", "The queue is a link at the top.")

    def _let_in(self, request: web.Request) -> web.StreamResponse:
        """Exchange the token for the cookie, once; the address without the token follows."""
        is_right = hmac.compare_digest(request.query[TOKEN].encode(), self._token.encode())
        if not (is_right and self._token):
            return self._told(
                403,
                "This address was used already",
                "End kubectl aw web and start it again: an address works once.",
            )
        self._token = ""
        response = _to_queue()
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="Strict", path="/")
        return response

    # --- pages -------------------------------------------------------------------------------------------------

    async def _start(self, _request: web.Request) -> web.StreamResponse:
        return _to_queue()

    async def _queue(self, request: web.Request) -> web.StreamResponse:
        search = request.query.get("q", "").strip()
        seen = await asyncio.to_thread(self._reading.look)
        page = await asyncio.to_thread(queue_page, seen, search)
        return self._shown("queue.html", {"page": page})

    async def _appwrapper(self, request: web.Request) -> web.StreamResponse:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        seen = await asyncio.to_thread(self._reading.look)
        status = seen.status(namespace, name)
        if status is None:
            others = similar(seen, name)
            return self._shown("missing.html", {"namespace": namespace, "name": name, "others": others}, 404)
        page = await asyncio.to_thread(appwrapper_page, seen, status)
        return self._shown("appwrapper.html", {"page": page})

    async def _style(self, _request: web.Request) -> web.StreamResponse:
        return web.FileResponse(_HERE / "static" / "style.css")

    def _told(self, status: int, heading: str, advice: str) -> web.Response:
        return self._shown("told.html", {"heading": heading, "advice": advice}, status)

    def _shown(self, template: str, values: Mapping[str, Any], status: int = 200) -> web.Response:
        reading = self._reading
        common = {"at": reading.seen.at, "problem": reading.problem, "search": ""}
        text = self._templates.get_template(template).render({**common, **values})
        return web.Response(text=text, status=status, content_type="text/html")


def _to_queue() -> web.Response:
    return web.Response(status=303, headers={"Location": "/queue"})


async def serve(reading: Reading, port: int, tell: Callable[[str], None]) -> None:
    """Serve the page until cancelled; `tell` is called with its address once it answers."""
    page = Page(reading)
    runner = web.AppRunner(
        page.application(), access_log=None, max_line_size=LONGEST_LINE, max_field_size=LONGEST_LINE
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, port).start()
        tell(page.address(runner.addresses[0][1]))
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


async def serve_until_interrupted(reading: Reading, port: int, tell: Callable[[str], None]) -> None:
    """As `serve`, until Ctrl-C or SIGTERM."""
    serving = asyncio.ensure_future(serve(reading, port, tell))
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, serving.cancel)
    with suppress(asyncio.CancelledError):
        await serving
