"""The pages: what each address reads, and what is drawn of it."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlencode

import jinja2
from aiohttp import web
from msgspec import Struct

from dispatcher.cli.command_line import NotWritten
from dispatcher.errors import CommandFailed
from dispatcher.web.gpu_map import POD_SIZES, map_page
from dispatcher.web.life import Story, story_of
from dispatcher.web.node_reading import NodeReading
from dispatcher.web.pages import PENDING, appwrapper_page, queue_page, similar, uid_of
from dispatcher.web.past import Past
from dispatcher.web.queues_page import QueueReading, queues_page
from dispatcher.web.reading import Reading
from dispatcher.web.reports import FIELDS, PAGES, Asked, ReportPage, asked_of

if TYPE_CHECKING:
    from dispatcher.web.what_if import Question
    from dispatcher.web.why import SnapshotReading, Why

WHAT_IF: Final = "what-if"
AT_ONCE: Final = 3
"""Threads that read the hub, that ask the database, and that draw pages: one kind never waits for another."""
_NUMBER: Final = re.compile("[0-9]{1,3}")
_HERE: Final = Path(__file__).parent

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


class Site:
    """The pages below `root`, a path that is new each time and that only the browser knows that was let in."""

    def __init__(self, sources: Sources) -> None:
        self.root = f"/{secrets.token_urlsafe(32)}"
        self._reading = sources.appwrappers
        self._nodes = sources.nodes
        self._queues = sources.queues
        self._past = sources.past
        self._snapshot = sources.snapshot
        self._no_snapshot = sources.no_snapshot
        self._namespace = sources.namespace
        self._hub, self._database, self._drawing = (ThreadPoolExecutor(AT_ONCE) for _ in range(3))
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def routes(self) -> Iterable[web.RouteDef]:
        """The pages and their files."""
        yield web.get(f"{self.root}/queue", self._queue)
        yield web.get(f"{self.root}/map", self._map)
        yield web.get(f"{self.root}/queues", self._queue_trees)
        yield web.get(f"{self.root}/appwrapper/{{namespace}}/{{name}}", self._appwrapper)
        yield web.get(f"{self.root}/style.css", self._style)
        yield web.get(f"{self.root}/icon.svg", self._icon)
        if self._past is not None:
            for name, page in PAGES.items():
                yield web.get(f"{self.root}/{name}", partial(self._report, self._past, name, page))
        if self._snapshot:
            yield web.get(f"{self.root}/{WHAT_IF}", self._what_if)

    def told(self, status: int, heading: str, advice: str) -> web.Response:
        """A page that says why there is no other one."""
        return self.shown("told.html", {"heading": heading, "advice": advice}, status)

    def shown(self, template: str, values: Mapping[str, Any], status: int = 200) -> web.Response:
        """A page of a template; a large one takes its time."""
        reading = self._reading
        pages = (*(PAGES if self._past else ()), *([WHAT_IF] if self._snapshot else ()))
        common = {
            "at": reading.seen.at,
            "problem": reading.problem,
            "search": "",
            "root": self.root,
            "pages": pages,
        }
        text = self._templates.get_template(template).render({**common, **values})
        return web.Response(text=text, status=status, content_type="text/html")

    def end(self) -> None:
        """Start nothing more; what hangs in a thread is left alone."""
        for each in (self._hub, self._database, self._drawing):
            each.shutdown(wait=False, cancel_futures=True)

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
            return self.told(400, "This gang cannot be asked about", f"{error}.")
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
        return await self._in(self._drawing, self.shown, template, values, status)

    async def _report(
        self, past: Past, name: str, page: Callable[[Past, Asked], ReportPage], request: web.Request
    ) -> web.StreamResponse:
        try:
            asked = asked_of(name, request.query, self._namespace)
            found = await self._in(self._database, page, past, asked)
        except NotWritten as error:
            return self.told(400, "The window or the filter cannot be read", f"{error}.")
        except CommandFailed as error:
            return self.told(503, "The database does not answer this page", f"{error}.")
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
