"""The page on 127.0.0.1: who is let in, what is shown, and that nothing of a tenant is more than text."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import pytest

from dispatcher.cli.operators.queue_tree import QueueList, lines
from dispatcher.cli.options import HubOptions
from dispatcher.errors import CommandFailed
from dispatcher.listener import MOST_CONNECTIONS
from dispatcher.store.readers.reports import Description, Filter, Report, Window
from dispatcher.store.snapshot.snapshot_reader import Snapshot
from dispatcher.web.loopback import HEADERS, serve
from dispatcher.web.node_reading import NodeReading, SeenNodes
from dispatcher.web.pages import MOST_ROWS, queue_page
from dispatcher.web.past import Past
from dispatcher.web.queues_page import QueueReading, QueuesSeen
from dispatcher.web.reading import FRESH_SECONDS, Reading, Seen
from dispatcher.web.site import Sources
from dispatcher.web.why import SnapshotReading
from tests.unit.cli.operators import test_queues
from tests.unit.test_probes import ended
from tests.unit.web.waiting import waiting
from tests.unit.workers import running

Json = dict[str, Any]

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
QUEUES = QueuesSeen(NOW, tuple(lines(QueueList.of(test_queues.ALL))))
HOSTILE = "<script>alert(1)</script>\" onmouseover='x' \u202eevil {{ 7 * 7 }}"
SAFE_TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "link",
        "body",
        "header",
        "nav",
        "main",
        "section",
        "form",
        "label",
        "input",
    ),
    *("h1", "h2", "div", "p", "span", "strong", "time", "code", "pre", "a", "ul", "li"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td", "details", "summary"),
    *("svg", "defs", "pattern", "path", "circle", "rect"),
}

OF_PICTURES = {"figure", "figcaption", "svg", "g", "rect", "ol", "dl", "dt", "dd"}
OF_FORMS = {"select", "option", "button"}


def appwrapper(name: str, namespace: str = "team-a", position: int = 1, **waiting: Any) -> Json:  # noqa: ANN401
    """A queued AppWrapper as an API server has it."""
    outlook = {
        "reason": "InsufficientResources",
        "message": "nvidia.com/gpu: needs 4, 2 free",
        "position": position,
        "queueLength": 9,
        "repair": {"message": "it would be dispatched without team-b/other"},
        **waiting,
    }
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-of-{namespace}-{name}",
            "creationTimestamp": "2026-11-01T11:58:00Z",
        },
        "spec": {"resources": {"GenericItems": []}},
        "status": {
            "state": "Pending",
            "phase": "Queued",
            "queue": "default",
            "user": "ada",
            "gpus": 4,
            "systempriority": 0,
            "waiting": outlook,
        },
    }


def seen_of(*appwrappers: Json) -> Seen:
    named = {(each["metadata"]["namespace"], each["metadata"]["name"]): each for each in appwrappers}
    return Seen(NOW, "", named)


class Told(Reading):
    """A reading that a test gives."""

    def __init__(self, seen: Seen) -> None:
        super().__init__(HubOptions())
        self.seen = seen

    def look(self) -> Seen:
        return self.seen


class ToldNodes(NodeReading):
    """A reading of nodes that a test gives."""

    def __init__(self, seen: SeenNodes) -> None:
        super().__init__(HubOptions())
        self.seen = seen

    def look(self) -> SeenNodes:
        return self.seen


class ToldQueues(QueueReading):
    """Queues that a test gives."""

    def __init__(self, seen: QueuesSeen = QUEUES) -> None:
        super().__init__(HubOptions())
        self.seen = seen

    def look(self) -> QueuesSeen:
        return self.seen


class ToldSnapshot(SnapshotReading):
    """The leader's snapshot of a working day."""

    def __init__(self) -> None:
        super().__init__("postgresql://nobody@localhost/none")

    def look(self) -> Snapshot:
        return waiting()


class Browser:
    """A browser that has the printed address, and keeps cookies."""

    def __init__(self, client: aiohttp.ClientSession, address: str) -> None:
        self.client = client
        self.address = address
        self.origin = "http://" + urlsplit(address).netloc
        self.root = ""
        """The path that only the browser knows which has opened the address."""

    async def get(self, path: str, **kwargs: Any) -> tuple[int, str]:  # noqa: ANN401
        async with self.client.get(f"{self.origin}{path}", **kwargs) as response:
            assert HEADERS.items() <= dict(response.headers).items()
            return response.status, await response.text()

    async def open(self) -> tuple[int, str]:
        status, text = await self.get(self.address.removeprefix(self.origin))
        if found := re.search(r'content="0; url=(/[\w-]+)/queue"', text):
            self.root = found[1]
        return status, text

    async def page(self, path: str, **kwargs: Any) -> tuple[int, str]:  # noqa: ANN401
        """A page below the path."""
        return await self.get(f"{self.root}{path}", **kwargs)


def new_client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))  # of an address that is no name


class Remembered(Past):
    """A database that a test gives: one AppWrapper in history, and a page of it."""

    def __init__(self) -> None:
        super().__init__("postgresql://nobody@localhost/none")
        self.problem = ""

    def jobs(self, window: Window, of: Filter) -> Report:
        self._answer()
        columns = (
            *("namespace", "name", "user_name", "submitted_at", "state", "outcome", "reason", "last_cluster"),
            *("wait_s", "run_s", "gpu", "gpu_h"),
        )
        times = (1.0, 2.0, 4, 8.0)
        row = (
            "team-a",
            HOSTILE,
            of.user or HOSTILE,
            window.since,
            "Deleted",
            HOSTILE,
            HOSTILE,
            HOSTILE,
            *times,
        )
        return Report(columns, (row,), at=NOW)

    def story(self, namespace: str, name: str, uid: str = "") -> Description | None:
        self._answer()
        if (namespace, name) != ("team-a", "gone") or uid not in {"", "uid-of-gone"}:
            return None
        columns = (
            *("at", "cause", "to_phase", "reason", "message", "termination_message"),
            *("cluster", "attempt", "seconds_in_state"),
        )
        timeline = Report(
            columns,
            (
                (NOW, "submitted", "Queued", None, None, None, "", 0, 60.0),
                (NOW + timedelta(minutes=1), HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, 60.0),
            ),
        )
        return Description(Words(), None, None, Report((), ()), Report((), ()), timeline)

    def _answer(self) -> None:
        if self.problem:
            raise CommandFailed(self.problem)


class Words(dict[str, Any]):
    """A row that has a hostile word in each column of text."""

    def __missing__(self, column: str) -> object:
        return None if column.endswith(("_s", "_h", "_at")) else HOSTILE


@pytest.fixture
def past() -> Remembered:
    return Remembered()


@pytest.fixture
async def with_history(told: Told, nodes: ToldNodes, past: Remembered) -> AsyncIterator[Browser]:
    """A browser of a page that has a database."""
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with (
        running(serve(Sources(told, nodes, ToldQueues(), past, ToldSnapshot()), 0, address.set_result)),
        new_client() as client,
    ):
        found = Browser(client, await address)
        await found.open()
        yield found


@pytest.fixture
async def told() -> Told:
    return Told(
        seen_of(appwrapper("train"), appwrapper("next", position=2), appwrapper("train", "team-b", 3))
    )


@pytest.fixture
async def nodes() -> ToldNodes:
    return ToldNodes(SeenNodes())


@pytest.fixture
async def browser(told: Told, nodes: ToldNodes) -> AsyncIterator[Browser]:
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with (
        running(serve(Sources(told, nodes, ToldQueues()), 0, address.set_result)),
        new_client() as client,
    ):
        yield Browser(client, await address)


async def test_printed_address_lets_one_browser_in_once(browser: Browser) -> None:
    assert (await browser.open())[0] == 200
    status, text = await browser.page("/queue")
    assert (status, "team-a/train" in text) == (200, True)
    async with new_client() as other:
        late = Browser(other, browser.address)
        assert (await late.open())[0] == 403
        late.root = browser.root
        assert (await late.page("/queue"))[0] == 403
        assert (await late.get("/?token=guess"))[0] == 403
    assert (await browser.page("/queue"))[0] == 200


@pytest.mark.parametrize("method", ["HEAD", "POST"])
async def test_token_is_spent_by_a_browser_that_opens_it_alone(browser: Browser, method: str) -> None:
    async with browser.client.request(method, browser.address) as response:
        assert response.status == 403
    assert (await browser.open())[0] == 200


async def test_cookie_is_of_a_path_that_no_other_port_is_asked_for(browser: Browser) -> None:
    await browser.open()
    (cookie,) = browser.client.cookie_jar
    assert cookie["path"] == f"{browser.root}/"
    assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
    assert len(browser.root) > 40


def asked(browser: Browser, cookie: bytes) -> bytes:
    """A request for the queue with this header of cookies."""
    host = urlsplit(browser.origin).netloc
    return f"GET {browser.root}/queue HTTP/1.1\r\nHost: {host}\r\nCookie: ".encode() + cookie + b"\r\n\r\n"


async def connected(browser: Browser) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = urlsplit(browser.origin)
    return await asyncio.open_connection(url.hostname, url.port)


def own_cookie(browser: Browser) -> bytes:
    (cookie,) = browser.client.cookie_jar
    return f"{cookie.key}={cookie.value}".encode()


@pytest.mark.parametrize("value", [b"\xff\xfe", b"", b"x" * 4000])
async def test_odd_cookie_is_refused_like_any_other(browser: Browser, value: bytes) -> None:
    await browser.open()
    name, _, _ = own_cookie(browser).partition(b"=")
    reader, writer = await connected(browser)
    writer.write(asked(browser, name + b"=" + value))
    answer = await reader.read()  # until it is closed
    writer.close()
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"Content-Security-Policy" in answer


@pytest.mark.parametrize("other", [b"aw=theirs", b"{own}=theirs", b'odd="\xff', b"[]=x", b"session"])
async def test_cookies_of_other_ports_lock_nobody_out(browser: Browser, other: bytes) -> None:
    await browser.open()
    own = own_cookie(browser)
    other = other.replace(b"{own}", own.partition(b"=")[0])
    for cookies in ((other, own), (own, other)):
        reader, writer = await connected(browser)
        writer.write(asked(browser, b"; ".join(cookies)))
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_idle_connections_of_others_give_way_and_those_of_the_browser_stay(browser: Browser) -> None:
    await browser.open()
    reader, writer = await connected(browser)
    writer.write(asked(browser, own_cookie(browser)))
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    idle = [await connected(browser) for _ in range(4 * MOST_CONNECTIONS)]
    assert (await browser.page("/queue"))[0] == 200
    for oldest, _ in idle[:-MOST_CONNECTIONS]:
        assert await ended(oldest)
    writer.write(asked(browser, own_cookie(browser)))
    assert (await reader.readuntil(b"HTTP/1.1 200 ")).endswith(b"HTTP/1.1 200 ")
    for _, each in [(reader, writer), *idle]:
        each.close()


@pytest.mark.parametrize("sent", [b"", b"GET /queue HTTP/1.1\r\n"], ids=["nothing", "half-a-header"])
async def test_connection_that_sends_no_whole_request_is_ended(
    told: Told, nodes: ToldNodes, sent: bytes
) -> None:
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    sources = Sources(told, nodes, ToldQueues())
    async with running(serve(sources, 0, address.set_result, most_seconds=0.05)), new_client() as client:
        reader, writer = await connected(Browser(client, await address))
        writer.write(sent)
        assert await ended(reader)
        writer.close()


@pytest.mark.parametrize("path", ["/queue", "/", "/style.css", "/appwrapper/team-a/train", "/no-page"])
async def test_nothing_is_told_without_the_cookie(browser: Browser, path: str) -> None:
    status, text = await browser.get(path)
    assert (status, "train" in text) == (403, False)


@pytest.mark.parametrize("host", ["evil.example.com", "evil.example.com:{port}", "127.0.0.1", ""])
async def test_name_of_another_host_that_leads_here_is_refused(browser: Browser, host: str) -> None:
    await browser.open()
    named = host.format(port=urlsplit(browser.origin).port)
    status, text = await browser.page("/queue", headers={"Host": named})
    assert (status, "train" in text) == (421, False)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_page_only_reads(browser: Browser, method: str) -> None:
    await browser.open()
    async with browser.client.request(method, f"{browser.origin}{browser.root}/queue") as response:
        assert response.status == 405
        assert HEADERS.items() <= dict(response.headers).items()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/no-page", 404),
        ("/appwrapper/team-a/none", 404),
        (f"/appwrapper/team-a/{quote('../../etc/passwd', safe='')}", 404),
        (f"/appwrapper/team-a/{'n' * 5000}", 404),
        ("/static/../command.py", 404),
    ],
)
async def test_what_is_not_there_is_said_in_a_page(browser: Browser, path: str, status: int) -> None:
    await browser.open()
    found, text = await browser.page(path)
    assert (found, "<h1>There is no" in text) == (status, True)


async def test_url_of_100_kilobytes_is_refused(browser: Browser) -> None:
    await browser.open()
    async with browser.client.get(f"{browser.origin}{browser.root}/queue?q={'x' * 100_000}") as response:
        assert response.status == 400


async def test_appwrapper_of_that_name_elsewhere_is_a_link(browser: Browser) -> None:
    await browser.open()
    _, text = await browser.page("/appwrapper/team-c/train")
    assert re.findall(r'<li><a href="(.*)">', text) == [
        f"{browser.root}/appwrapper/{namespace}/train" for namespace in ("team-a", "team-b")
    ]


async def test_page_of_an_appwrapper_says_why_it_waits_in_the_words_of_explain(browser: Browser) -> None:
    await browser.open()
    status, text = await browser.page("/appwrapper/team-a/train")
    assert status == 200
    for words in (
        "team-a/train waits: InsufficientResources",
        "position 1 of 9 in the queue",
        "nvidia.com/gpu: needs 4, 2 free",
        "without team-b/other",
    ):
        assert words in text


async def test_search_finds_names_users_and_reasons_and_says_what_it_left_out(browser: Browser) -> None:
    await browser.open()
    _, text = await browser.page("/queue?q=TEAM-B")
    assert ("team-b/train" in text, "team-a/train" in text) == (True, False)
    assert 'value="TEAM-B"' in text
    _, text = await browser.page("/queue?q=nobody")
    assert "No pending AppWrapper has “nobody”" in text


class Tags(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags = set[str]()
        self.attributes = set[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)


async def test_words_of_a_tenant_are_text_on_every_page(browser: Browser, told: Told) -> None:
    evil = appwrapper("evil", message=HOSTILE, reason=HOSTILE, repair={"message": HOSTILE})
    evil["status"] |= {
        "queue": HOSTILE,
        "user": HOSTILE,
        "conditions": [{"type": HOSTILE, "message": HOSTILE}],
    }
    told.seen = seen_of(evil)
    told.problem = HOSTILE
    await browser.open()
    for path in (
        "/queue",
        f"/queue?q={quote(HOSTILE)}",
        "/appwrapper/team-a/evil",
        f"/appwrapper/a/{quote(HOSTILE, '')}",
    ):
        _, text = await browser.page(path)
        tags = Tags()
        tags.feed(text)
        assert tags.tags <= SAFE_TAGS
        assert not [each for each in tags.attributes if each.startswith("on") or each == "style"]
        assert "49" not in text.partition("evil {{")[2][:8]


async def test_exception_shows_no_words_of_its_own(browser: Browser, told: Told) -> None:
    await browser.open()

    def fail() -> Seen:
        raise ValueError("a secret")

    told.look = fail  # type: ignore[method-assign]
    status, text = await browser.page("/queue")
    assert (status, "a secret" in text, "cannot be shown" in text) == (500, False, True)


async def test_old_data_stays_with_its_age_while_the_hub_does_not_answer(
    browser: Browser, told: Told
) -> None:
    await browser.open()
    told.problem = "the hub does not answer: refused"
    _, text = await browser.page("/queue")
    assert "team-a/train" in text
    assert "the hub does not answer: refused" in text
    assert "2026-11-01 12:00:00 UTC" in text


def test_gpus_ahead_are_those_before_it_in_its_queue_where_all_are_read() -> None:
    rows = queue_page(
        seen_of(appwrapper("a"), appwrapper("b", position=2), appwrapper("d", position=4)), ""
    ).rows
    assert [(row.name, row.ahead) for row in rows] == [("a", "0"), ("b", "4"), ("d", "")]


def test_long_queue_is_cut_and_counted() -> None:
    gangs = [appwrapper(f"aw-{number}", position=number + 1) for number in range(MOST_ROWS + 1)]
    page = queue_page(seen_of(*gangs), "")
    assert (len(page.rows), page.of_all) == (MOST_ROWS, MOST_ROWS + 1)
    assert [row.name for row in queue_page(seen_of(*gangs), f"aw-{MOST_ROWS}").rows] == [f"aw-{MOST_ROWS}"]


def test_hub_is_asked_at_most_once_in_a_while_and_an_old_answer_stays() -> None:
    clock, looks = [0.0], list[Seen | Exception]()

    class Scripted(Reading):
        def _read(self) -> Seen:
            found = looks.pop(0)
            if isinstance(found, Exception):
                raise found
            return found

    from dispatcher.errors import TryAgain

    first, second = seen_of(appwrapper("first")), seen_of(appwrapper("second"))
    looks += [first, TryAgain("the hub does not answer"), second]
    reading = Scripted(HubOptions(), monotonic=lambda: clock[0])
    assert [reading.look() for _ in range(3)] == [first] * 3
    clock[0] += FRESH_SECONDS
    assert (reading.look(), reading.problem) == (first, "the hub does not answer")
    clock[0] += FRESH_SECONDS
    assert (reading.look(), reading.problem) == (second, "")


async def test_pages_of_history_are_there_with_a_database_alone(
    browser: Browser, with_history: Browser
) -> None:
    await browser.open()
    status, text = await browser.page("/history")
    assert (status, "/history" in text) == (404, False)
    status, text = await with_history.page("/history?since=24h&user=ada")
    assert status == 200
    assert 'name="user" value="ada"' in text
    assert f'<a href="{with_history.root}/usage">Usage</a>' in text


async def test_appwrapper_that_is_gone_from_the_hub_is_shown_from_history(with_history: Browser) -> None:
    status, text = await with_history.page("/appwrapper/team-a/gone")
    assert (status, "no longer on the hub" in text, "<svg" in text) == (200, True, True)
    status, text = await with_history.page("/appwrapper/team-a/train")
    assert (status, "waits: InsufficientResources" in text) == (200, True)
    assert (await with_history.page("/appwrapper/team-a/none"))[0] == 404


async def test_words_of_history_are_text(with_history: Browser) -> None:
    for path in ("/appwrapper/team-a/gone", "/history", f"/history?user={quote(HOSTILE)}"):
        _, text = await with_history.page(path)
        tags = Tags()
        tags.feed(text)
        assert tags.tags <= SAFE_TAGS | OF_PICTURES | OF_FORMS
        assert not [each for each in tags.attributes if each.startswith("on") or each == "style"]


async def test_database_that_does_not_answer_leaves_the_pages_of_the_hub(
    with_history: Browser, past: Remembered
) -> None:
    past.problem = "the database did not answer: refused"
    status, text = await with_history.page("/appwrapper/team-a/train")
    assert (status, past.problem in text, "waits: InsufficientResources" in text) == (200, True, True)
    status, text = await with_history.page("/history")
    assert (status, past.problem in text) == (503, True)


@pytest.mark.parametrize("query", ["since=yesterday", "since=1h&until=2h", "outcome=<script>", "resource=x"])
async def test_address_that_cannot_be_read_is_said(with_history: Browser, query: str) -> None:
    status, text = await with_history.page(f"/history?{query}")
    assert (status, "cannot be read" in text, "<script>" in text) == (400, True, False)


async def test_queues_are_rows_below_their_parents(browser: Browser) -> None:
    await browser.open()
    status, text = await browser.page("/queues")
    assert status == 200
    rows = re.findall(r'<th scope="row" class="depth-(\d+)">(.*?)</th>', text)
    assert rows == [(str(each.depth), each.name) for each in QUEUES.lines]


async def test_what_if_asks_first_and_then_says_where_a_gang_would_go(with_history: Browser) -> None:
    status, text = await with_history.page("/what-if")
    assert (status, "Nothing is submitted." in text, "<svg" in text) == (200, True, False)
    status, text = await with_history.page("/what-if?pods=3&gpus=8&after=0")
    assert (status, 'aria-current="true"' in text) == (200, True)
    links = re.findall(r'<a href="([^"]*after=\d+)">', text)
    assert links
    assert all(link.startswith(f"{with_history.root}/what-if?pods=3&amp;gpus=8&amp;") for link in links)


@pytest.mark.parametrize("query", ["pods=many", "gpus=-1", "queue=%3Cscript%3E", "namespace=..%2F.."])
async def test_gang_that_cannot_be_asked_about_is_said(with_history: Browser, query: str) -> None:
    status, text = await with_history.page(f"/what-if?{query}")
    assert (status, "cannot be asked about" in text, "<script>" in text) == (400, True, False)


async def test_change_of_an_address_is_a_small_number(with_history: Browser, told: Told) -> None:
    told.seen = seen_of(appwrapper("pretrain-7b", "nlp"))
    for after, is_drawn in (("0", True), ("99", False), ("-1", False), ("9" * 100, False), ("x", False)):
        status, text = await with_history.page(f"/appwrapper/nlp/pretrain-7b?after={after}")
        assert (status, 'aria-current="true"' in text) == (200, is_drawn)


async def test_appwrapper_of_an_earlier_uid_is_not_the_one_on_the_hub(
    with_history: Browser, told: Told
) -> None:
    told.seen = seen_of(appwrapper("gone"))
    status, text = await with_history.page("/appwrapper/team-a/gone?uid=uid-of-gone")
    assert (status, "no longer on the hub" in text, "waits:" in text) == (200, True, False)
    status, text = await with_history.page("/appwrapper/team-a/gone")
    assert (status, "waits:" in text, "Attempts" in text) == (200, True, False)


async def test_what_was_only_not_read_is_not_called_gone(with_history: Browser, told: Told) -> None:
    told.seen = Seen(NOW, "team-b", told.seen.appwrappers)
    _, text = await with_history.page("/appwrapper/team-a/gone")
    assert ("not read from the hub" in text, "no longer on the hub" in text) == (True, False)


async def test_exception_in_history_or_picture_leaves_the_status(
    with_history: Browser, told: Told, past: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a secret")

    told.seen = seen_of(appwrapper("pretrain-7b", "nlp"))
    monkeypatch.setattr(past, "story", fail)
    monkeypatch.setattr(ToldSnapshot, "look", fail)
    status, text = await with_history.page("/appwrapper/nlp/pretrain-7b")
    assert (status, "a secret" in text, "waits: InsufficientResources" in text) == (200, False, True)
    assert "The nodes cannot be drawn (KeyError)." in text
    assert "The history of this AppWrapper cannot be shown (KeyError)." in text


def test_page_is_imported_without_numpy_which_only_the_picture_needs() -> None:
    script = "import sys; sys.modules['numpy'] = None; import dispatcher.web.loopback, dispatcher.web.past"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)  # noqa: S603  # ours
