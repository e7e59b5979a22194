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
import re
import secrets
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import urlencode
from weakref import WeakSet

import jinja2
from aiohttp import web
from msgspec import Struct

from dispatcher.cli.command_line import NotWritten
from dispatcher.errors import CommandFailed
from dispatcher.listener import MOST_SECONDS, listening
from dispatcher.web.gpu_map import POD_SIZES, map_page
from dispatcher.web.history import FIELDS, PAGES, Asked, ReportPage, Story, asked_of, story_of
from dispatcher.web.node_reading import NodeReading
from dispatcher.web.pages import PENDING, appwrapper_page, queue_page, similar, uid_of
from dispatcher.web.past import Past
from dispatcher.web.queues_page import QueueReading, queues_page
from dispatcher.web.reading import Reading

if TYPE_CHECKING:
    from dispatcher.web.what_if import Question
    from dispatcher.web.why import SnapshotReading, Why

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
WHAT_IF: Final = "what-if"
AT_ONCE: Final = 3
"""Threads that read the hub, that ask the database, and that draw pages: one kind never waits for another."""
_NUMBER: Final = re.compile("[0-9]{1,3}")
GRACE_SECONDS: Final = 1.0
"""How long Ctrl-C waits for pages that are being made."""
IDLE_SECONDS: Final = 15
"""How long a connection without a request is kept."""

_HERE: Final = Path(__file__).parent
_SILENT: Final = logging.Logger("web")
"""The logger of the server. It drops everything, because its lines about bad requests would fill the terminal."""
_SILENT.addHandler(logging.NullHandler())
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


Value = TypeVar("Value")


class Sources(Struct, frozen=True):
    """What the pages read: the hub, and the database if there is one.

    `no_snapshot` says why the leader's snapshot is not read although there is a database. The pages of the past are
    about the `namespace`, if an address names no other one.
    """

    appwrappers: Reading
    nodes: NodeReading
    queues: QueueReading
    past: Past | None = None
    snapshot: SnapshotReading | None = None
    no_snapshot: str = ""
    namespace: str = ""


class Page:
    """Answers the requests of one browser."""

    def __init__(self, sources: Sources) -> None:
        self._reading = sources.appwrappers
        self._nodes = sources.nodes
        self._queues = sources.queues
        self._past = sources.past
        self._snapshot = sources.snapshot
        self._no_snapshot = sources.no_snapshot
        self._namespace = sources.namespace
        self._hub, self._database, self._drawing = (ThreadPoolExecutor(AT_ONCE) for _ in range(3))
        self._token = secrets.token_urlsafe(32)
        self._session = secrets.token_urlsafe(32)
        self._root = f"/{secrets.token_urlsafe(32)}"
        self._hosts = frozenset[str]()
        self._cookie = ""
        self._known = WeakSet[asyncio.BaseTransport]()
        """The connections that have shown the cookie."""
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
                web.get(f"{self._root}/queue", self._queue),
                web.get(f"{self._root}/map", self._map),
                web.get(f"{self._root}/queues", self._queue_trees),
                web.get(f"{self._root}/appwrapper/{{namespace}}/{{name}}", self._appwrapper),
                web.get(f"{self._root}/style.css", self._style),
                web.get(f"{self._root}/icon.svg", self._icon),
                *(self._routes_of(self._past) if self._past else ()),
                *([web.get(f"{self._root}/{WHAT_IF}", self._what_if)] if self._snapshot else ()),
            ]
        )
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

    def end(self) -> None:
        """Start nothing more; what hangs in a thread is left alone."""
        for each in (self._hub, self._database, self._drawing):
            each.shutdown(wait=False, cancel_futures=True)

    @web.middleware
    async def _checked(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            response = await self._answer(request, handler)
        except web.HTTPMethodNotAllowed:
            response = self._told(405, "The page only reads", "Use kubectl aw to change anything.")
        except web.HTTPNotFound:
            response = self._told(404, "There is no such page", "The queue is a link at the top.")
        except web.HTTPException as error:
            response = self._told(error.status, error.reason, "Go back, and try another link.")
        except Exception:  # noqa: BLE001  # the edge: a page never shows the message of an exception
            response = self._told(500, "The page cannot be shown", "kubectl aw shows the same in a terminal.")
        response.headers.update(HEADERS)
        if response.status in REFUSED:
            response.force_close()
        return response

    async def _answer(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if request.host not in self._hosts:
            return self._told(
                421, "This is not the address of the page", "Open the address that the command printed."
            )
        if request.path == "/" and TOKEN in request.query:
            return self._let_in(request)
        if not self._is_in(request):
            return self._told(
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
            return self._told(
                403,
                "This address was used already",
                "Go on in the browser that opened it, or end kubectl aw web and start it again.",
            )
        self._token = ""
        response = self._shown("enter.html", {})
        response.set_cookie(
            self._cookie, self._session, httponly=True, samesite="Strict", path=f"{self._root}/"
        )
        return response

    # --- pages -------------------------------------------------------------------------------------------------

    async def _queue(self, request: web.Request) -> web.StreamResponse:
        search = request.query.get("q", "").strip()
        seen = await self._in(self._hub, self._reading.look)
        page = await self._in(self._drawing, queue_page, seen, search)
        return await self._drawn("queue.html", {"page": page, "search": search})

    async def _appwrapper(self, request: web.Request) -> web.StreamResponse:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        seen = await self._in(self._hub, self._reading.look)
        status = seen.status(namespace, name)
        uid = request.query.get("uid", "") or (uid_of(status) if status else "")
        if status is not None and uid != uid_of(status):
            status = None  # another AppWrapper has the name now
        story, problem = await self._in(self._database, self._story, namespace, name, uid)
        if status is None and story is None:
            others = similar(seen, name)
            missing = {"namespace": namespace, "name": name, "others": others, "no_history": problem}
            return await self._drawn("missing.html", missing, 404)
        page = await self._in(self._drawing, appwrapper_page, seen, status) if status else None
        why, no_picture = None, ""
        if status is not None and status.phase in PENDING:
            change = _change_in(request)
            why, no_picture = await self._in(self._database, self._why, uid, change)
        is_gone = seen.namespace in {"", namespace} and not self._reading.problem and not seen.unreadable
        found = {
            "key": f"{namespace}/{name}",
            "state": page.state if page else "no longer on the hub" if is_gone else "not read from the hub",
            "here": request.rel_url.raw_path,
            "page": page,
            "why": why,
            "no_picture": no_picture,
            "story": story,
            "no_history": problem,
        }
        return await self._drawn("appwrapper.html", found)

    def _story(self, namespace: str, name: str, uid: str) -> tuple[Story | None, str]:
        """What the database has of an AppWrapper, and why it has nothing, in a sentence."""
        if self._past is None:
            return None, ""
        try:
            found = self._past.story(namespace, name, uid)
            return story_of(found) if found else None, ""
        except CommandFailed as error:
            return None, f"{error}."
        except Exception as error:  # noqa: BLE001  # what history has must not take the status away
            return None, f"The history of this AppWrapper cannot be shown ({type(error).__name__})."

    def _why(self, uid: str, change: int | None) -> tuple[Why | None, str]:
        """The explanation of a pending AppWrapper on the nodes, and why there is none or an old one, in a sentence."""
        if self._snapshot is None:
            return None, self._no_snapshot
        try:
            found = self._snapshot.why(uid, change)
        except Exception as error:  # noqa: BLE001  # as above
            return None, f"The nodes cannot be drawn ({type(error).__name__})."
        return found, self._snapshot.problem

    async def _what_if(self, request: web.Request) -> web.StreamResponse:
        from dispatcher.web.what_if import Question as Asks  # which needs numpy

        question = Asks.of(request.query)
        try:
            why = await self._in(self._database, self._asked, question, request) if request.query else None
        except NotWritten as error:
            return self._told(400, "This gang cannot be asked about", f"{error}.")
        back = f"{request.rel_url.raw_path}?{urlencode(question.parameters)}"
        values = {
            "question": question,
            "why": why,
            "no_picture": self._snapshot.problem if self._snapshot else "",
            "here": f"{back}&",
            "back": back,
        }
        return await self._drawn("what_if.html", values)

    def _asked(self, question: Question, request: web.Request) -> Why | None:
        return self._snapshot.what_if(question, _change_in(request)) if self._snapshot else None

    async def _in(self, threads: ThreadPoolExecutor, work: Callable[..., Value], *arguments: object) -> Value:
        return await asyncio.get_running_loop().run_in_executor(threads, partial(work, *arguments))

    async def _drawn(self, template: str, values: Mapping[str, Any], status: int = 200) -> web.Response:
        """A page; a large one takes its time beside the event loop."""
        return await self._in(self._drawing, self._shown, template, values, status)

    def _routes_of(self, past: Past) -> Iterable[web.RouteDef]:
        """The pages that only the database has."""
        for name, page in PAGES.items():
            yield web.get(f"{self._root}/{name}", partial(self._report, past, name, page))

    async def _report(
        self, past: Past, name: str, page: Callable[[Past, Asked], ReportPage], request: web.Request
    ) -> web.StreamResponse:
        try:
            asked = asked_of(name, request.query, self._namespace)
            found = await self._in(self._database, page, past, asked)
        except NotWritten as error:
            return self._told(400, "The window or the filter cannot be read", f"{error}.")
        except CommandFailed as error:
            return self._told(503, "The database does not answer this page", f"{error}.")
        values = {"page": found, "asked": asked, "fields": FIELDS[name], "at": found.at, "problem": ""}
        return await self._drawn("report.html", values)

    async def _map(self, request: web.Request) -> web.StreamResponse:
        search = request.query.get("q", "").strip()
        nodes = await self._in(self._hub, self._nodes.look)
        page = await self._in(self._drawing, map_page, nodes, self._reading.seen.namespace, search)
        values = {"page": page, "sizes": POD_SIZES, "at": nodes.at, "problem": self._nodes.problem}
        return await self._drawn("map.html", values)

    async def _queue_trees(self, _request: web.Request) -> web.StreamResponse:
        seen = await self._in(self._hub, self._queues.look)
        page = await self._in(self._drawing, queues_page, seen)
        return await self._drawn(
            "queues.html", {"page": page, "at": seen.at, "problem": self._queues.problem}
        )

    async def _style(self, _request: web.Request) -> web.StreamResponse:
        return _static("style.css", "text/css")

    async def _icon(self, _request: web.Request) -> web.StreamResponse:
        return _static("icon.svg", "image/svg+xml")

    def _told(self, status: int, heading: str, advice: str) -> web.Response:
        return self._shown("told.html", {"heading": heading, "advice": advice}, status)

    def _shown(self, template: str, values: Mapping[str, Any], status: int = 200) -> web.Response:
        reading = self._reading
        pages = (*(PAGES if self._past else ()), *([WHAT_IF] if self._snapshot else ()))
        common = {
            "at": reading.seen.at,
            "problem": reading.problem,
            "search": "",
            "root": self._root,
            "pages": pages,
        }
        text = self._templates.get_template(template).render({**common, **values})
        return web.Response(text=text, status=status, content_type="text/html")


@cache
def _content(name: str) -> bytes:
    return (_HERE / "static" / name).read_bytes()


def _static(name: str, content_type: str) -> web.Response:
    """A file of ours, from memory."""
    return web.Response(body=_content(name), content_type=content_type)


def _change_in(request: web.Request) -> int | None:
    """The number of the change that an address asks for; None without one."""
    written = request.query.get("after", "")
    return int(written) if _NUMBER.fullmatch(written) else None


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
    page = Page(sources)
    runner = web.AppRunner(
        page.application(),
        access_log=None,
        logger=_SILENT,
        keepalive_timeout=IDLE_SECONDS,
        shutdown_timeout=GRACE_SECONDS,
        max_line_size=LONGEST_LINE,
        max_field_size=LONGEST_LINE,
    )
    await runner.setup()
    try:
        server = cast("web.Server", runner.server)  # None only before the setup
        async with listening(server, HOST, port, most_seconds=most_seconds, is_kept=page.knows) as bound:
            await asyncio.to_thread(tell, page.address(bound))  # a browser may take seconds to begin
            await asyncio.Event().wait()
    finally:
        await runner.cleanup()
        page.end()


async def serve_until_interrupted(sources: Sources, port: int, tell: Callable[[str], None]) -> None:
    """As `serve`, until Ctrl-C or SIGTERM."""
    serving = asyncio.ensure_future(serve(sources, port, tell))
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, serving.cancel)
    with suppress(asyncio.CancelledError):
        await serving
