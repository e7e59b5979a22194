"""The proxies that tests and benchmarks put on a dispatcher's wires: unnoticed, until told to fail."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientPayloadError, ClientSession, ServerDisconnectedError, web

from testbed.proxy import (
    CUT_AFTER_APPLIED,
    DROPPED,
    NO_FAULT,
    ApiProxy,
    Exchange,
    Fault,
    Gate,
    Rules,
    refused,
)
from testbed.proxy_postgres import SSL_REQUEST, Commit, Conversation, PostgresProxy
from tests.fakes import FakeApiServer, answer, never, watch

PATH = "/api/v1/namespaces/a%2Fb/pods"
MORE_THAN_A_BUFFER = 2**18
"""Bytes; a hundred times as many are more than what sockets and their readers hold for a slow caller."""
READY = b"Z\0\0\0\5I"

# --- which exchange a fault befalls ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nth", "times", "struck"),
    [
        pytest.param(1, 1, [2], id="the-first"),
        pytest.param(2, 1, [4], id="the-second"),
        pytest.param(2, 2, [4, 6], id="the-second-and-the-third"),
        pytest.param(4, 1, [], id="one-that-never-comes"),
    ],
)
def test_rule_strikes_by_counting_what_matches(nth: int, times: int, struck: list[int]) -> None:
    rules: Rules[int] = Rules()
    rule = rules.on(lambda number: number % 2 == 0, DROPPED, nth=nth, times=times)

    assert [number for number in range(1, 7) if rules.meet(number) is DROPPED] == struck
    assert rule.struck.is_set() == bool(struck)
    assert (rule.matched, rules.seen) == (3, [1, 2, 3, 4, 5, 6])


def test_of_two_rules_that_strike_the_oldest_does_and_both_count() -> None:
    rules: Rules[int] = Rules()
    rules.on(lambda _: True, DROPPED)
    second = rules.on(lambda _: True, CUT_AFTER_APPLIED, times=2)

    assert [rules.meet(1), rules.meet(2), rules.meet(3)] == [DROPPED, CUT_AFTER_APPLIED, NO_FAULT]
    assert second.matched == 3


# --- the API server ----------------------------------------------------------------------------------


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def proxy(server: FakeApiServer) -> AsyncIterator[ApiProxy]:
    async with ApiProxy(server.url, trust=None, serving=None) as proxy:
        yield proxy


@pytest.fixture
async def session(proxy: ApiProxy) -> AsyncIterator[ClientSession]:
    async with ClientSession(proxy.url) as session:
        yield session


async def post(session: ClientSession) -> tuple[int, object]:
    headers = {"Authorization": "Bearer token", "User-Agent": "somebody"}
    async with session.post(PATH, json={"a": 1}, headers=headers) as response:
        return response.status, await response.json()


async def test_request_and_answer_pass_as_they_are(
    server: FakeApiServer, proxy: ApiProxy, session: ClientSession
) -> None:
    server.on("POST", "/api/v1/namespaces/a/b/pods", answer({"made": True}, status=201))

    assert await post(session) == (201, {"made": True})
    (asked,) = server.asked
    assert (asked.body, asked.headers["Authorization"]) == ({"a": 1}, "Bearer token")
    assert asked.headers["User-Agent"] == "somebody"
    (seen,) = proxy.writes()
    assert seen == Exchange("POST", asked.path, {}, b'{"a": 1}', status=201)


@pytest.mark.parametrize(
    ("fault", "arrives"), [(DROPPED, 0), (CUT_AFTER_APPLIED, 1)], ids=["dropped", "cut-after-applied"]
)
async def test_lost_exchange_looks_the_same_whether_it_arrived_or_not(
    server: FakeApiServer, proxy: ApiProxy, session: ClientSession, fault: Fault, arrives: int
) -> None:
    server.on("POST", "/api/v1/namespaces/a/b/pods", answer({}, status=201))
    proxy.rules.on(lambda each: each.is_write, fault)

    with pytest.raises(ServerDisconnectedError):
        await post(session)

    assert len(server.asked) == arrives
    assert [each.status for each in proxy.writes()] == [201] * arrives or [0]
    assert await post(session) == (201, {})


async def test_proxy_refuses_in_the_words_of_an_api_server(
    server: FakeApiServer, proxy: ApiProxy, session: ClientSession
) -> None:
    proxy.rules.on(lambda each: each.is_write, refused(429, "TooManyRequests", "slow down"))

    async with session.post(PATH) as response:
        said = await response.json()

    assert (response.status, response.headers["Retry-After"]) == (429, "1")
    assert (said["kind"], said["code"], said["reason"]) == ("Status", 429, "TooManyRequests")
    assert server.asked == []


async def test_exchange_is_held_before_and_after_as_long_as_the_test_wants(
    server: FakeApiServer, proxy: ApiProxy, session: ClientSession
) -> None:
    server.on("POST", "/api/v1/namespaces/a/b/pods", answer({}))
    before, after = Gate(), Gate()
    proxy.rules.on(lambda each: each.is_write, Fault(before=before, after=after))

    posting = asyncio.create_task(post(session))
    await before.reached.wait()
    assert server.asked == []
    before.open()
    await after.reached.wait()
    assert len(server.asked) == 1
    assert not posting.done()
    after.open()

    assert await posting == (200, {})


async def test_watch_passes_event_by_event_until_it_is_cut(
    server: FakeApiServer, proxy: ApiProxy, session: ClientSession
) -> None:
    server.on("GET", "/watched", watch({"type": "ADDED"}, then=never))

    async with session.get("/watched?watch=true") as response:
        assert await response.content.readline() == b'{"type":"ADDED"}\n'
        proxy.cut_watches()
        with pytest.raises(ClientPayloadError):
            await response.content.read()


async def reach(server: FakeApiServer, session: ClientSession) -> None:
    """Ask the server itself: whatever the proxy would have passed on at once was passed on by then."""
    async with session.get(f"{server.url}/readyz") as response:
        assert await response.text() == "ok"


async def test_frozen_proxy_takes_what_comes_and_passes_it_on_when_it_thaws(
    server: FakeApiServer, proxy: ApiProxy, session: ClientSession
) -> None:
    server.on("POST", "/api/v1/namespaces/a/b/pods", answer({}))
    came = proxy.rules.on(lambda each: each.is_write)
    proxy.freeze()

    posting = asyncio.create_task(post(session))
    await came.struck.wait()
    await reach(server, session)
    assert (server.requests("POST"), posting.done()) == ([], False)
    proxy.thaw()

    assert await posting == (200, {})


async def test_frozen_proxy_keeps_to_itself_what_a_watch_has_to_tell(
    server: FakeApiServer, proxy: ApiProxy, session: ClientSession
) -> None:
    frozen, told = asyncio.Event(), asyncio.Event()

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"before\n")
        await frozen.wait()
        await response.write(b"meanwhile\n")
        told.set()
        return response

    server.on("GET", "/watched", reply)
    async with session.get("/watched?watch=true") as response:
        assert await response.content.readline() == b"before\n"
        proxy.freeze()
        reading = asyncio.create_task(response.content.readline())
        frozen.set()
        await told.wait()
        await reach(server, session)
        assert not reading.done()
        proxy.thaw()

        assert await reading == b"meanwhile\n"


async def test_proxy_reads_on_and_tells_of_it_while_the_caller_is_slow(server: FakeApiServer) -> None:
    parts: list[bytes] = []
    sent = asyncio.Event()

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b"x" * MORE_THAN_A_BUFFER)
        sent.set()
        return response

    server.on("GET", "/watched", reply)
    async with (
        ApiProxy(server.url, None, None, lambda _, part: parts.append(part)) as proxy,
        ClientSession(proxy.url) as session,
        session.get("/watched?watch=true") as response,
    ):
        await sent.wait()
        read = await response.content.read()

    assert b"".join(parts) == read == b"x" * 100 * MORE_THAN_A_BUFFER


async def test_held_request_does_not_delay_the_end(server: FakeApiServer) -> None:
    gate = Gate()
    async with ClientSession() as session:
        async with ApiProxy(server.url, trust=None, serving=None) as proxy:
            proxy.rules.on(lambda each: each.is_write, Fault(before=gate))
            posting = asyncio.create_task(session.post(f"{proxy.url}/held"))
            await gate.reached.wait()
        with pytest.raises(ServerDisconnectedError):
            await posting


# --- Postgres ----------------------------------------------------------------------------------------


def message(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("!i", len(content) + 4) + content


def said(text: str) -> bytes:
    return message(b"Q", text.encode() + b"\0")


def prepared(name: str, text: str) -> bytes:
    return message(b"P", f"{name}\0{text}\0".encode() + b"\0\0")


def bound(name: str) -> bytes:
    return message(b"B", f"\0{name}\0".encode() + b"\0\0\0\0\0\0")


@pytest.mark.parametrize(
    ("messages", "commits"),
    [
        pytest.param([said("BEGIN"), said("INSERT 1"), said("COMMIT")], [("INSERT 1",)], id="simple"),
        pytest.param([said("commit;")], [()], id="in-small-letters"),
        pytest.param(
            [
                prepared("", "BEGIN"),
                bound(""),
                prepared("", "INSERT 1"),
                bound(""),
                prepared("", "COMMIT"),
                bound(""),
            ],
            [("INSERT 1",)],
            id="extended",
        ),
        pytest.param(
            [prepared("p", "INSERT 1"), bound("p"), said("COMMIT"), bound("p"), said("COMMIT")],
            [("INSERT 1",), ("INSERT 1",)],
            id="prepared-once-used-twice",
        ),
        pytest.param([said("INSERT 1"), said("ROLLBACK")], [], id="rolled-back"),
        pytest.param(
            [said("INSERT 1"), said("ROLLBACK"), said("BEGIN"), said("UPDATE 2"), said("COMMIT")],
            [("UPDATE 2",)],
            id="after-a-rollback",
        ),
        pytest.param([said("COMMENT ON TABLE t IS 'COMMIT'")], [], id="only-its-letters"),
    ],
)
def test_commit_is_heard_with_what_it_commits(messages: list[bytes], commits: list[tuple[str, ...]]) -> None:
    conversation = Conversation()

    heard = [commit for each in messages if (commit := conversation.hear(each))]

    assert heard == [Commit(statements) for statements in commits]


@asynccontextmanager
async def postgres_of(committed: list[str]) -> AsyncIterator[PostgresProxy]:
    """A proxy before the far side of the wire, which says yes to everything."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(9)
        writer.write(READY)
        while head := await reader.read(5):
            text = (await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)).rstrip(b"\0").decode()
            committed.append(text)
            writer.write(message(b"C", text.encode() + b"\0") + READY)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with PostgresProxy(f"postgresql://somebody@127.0.0.1:{port}/queue") as proxy:
        yield proxy
    server.close()


async def connected(proxy: PostgresProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(proxy.url.split(":")[-1].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(struct.pack("!ii", 8, SSL_REQUEST))
    assert await reader.readexactly(1) == b"N"
    writer.write(struct.pack("!ii", 9, 196608) + b"\0")
    assert await reader.readexactly(len(READY)) == READY
    return reader, writer


@pytest.mark.parametrize(
    ("fault", "heard"), [(DROPPED, []), (CUT_AFTER_APPLIED, ["COMMIT"])], ids=["dropped", "cut-after-applied"]
)
async def test_lost_commit_looks_the_same_whether_it_was_applied_or_not(
    fault: Fault, heard: list[str]
) -> None:
    committed: list[str] = []
    async with postgres_of(committed) as proxy:
        proxy.rules.on(lambda _: True, fault)
        reader, writer = await connected(proxy)
        writer.write(said("COMMIT"))

        assert await reader.read() == b""
        assert committed == heard
        assert [each.applied for each in proxy.rules.seen] == [bool(heard)]
        writer.close()


async def test_act_at_a_commit_runs_to_its_end_though_the_client_goes() -> None:
    gate, done = Gate(), asyncio.Event()

    async def act() -> None:
        await gate()
        done.set()

    async with postgres_of([]) as proxy:
        proxy.rules.on(lambda _: True, Fault(after=act))
        _, writer = await connected(proxy)
        writer.write(said("COMMIT"))
        await gate.reached.wait()
        writer.transport.abort()
        gate.open()

        await done.wait()
