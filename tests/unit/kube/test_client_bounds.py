"""What the client takes of an answer: nothing compressed, and no more than its bounds, whatever a server sends."""

from __future__ import annotations

import asyncio
import gc
import gzip
import tracemalloc
from collections.abc import Awaitable, Callable

import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import errors
from dispatcher.kube.bounds import (
    LARGEST_ANSWER,
    LARGEST_REFUSAL,
    MOST_CONTAINERS,
    MOST_KEPT,
    MOST_MARKS,
    MOST_VALUES,
    Allowance,
    Buffer,
    check_values,
    loads,
    without_strings,
)
from dispatcher.kube.client import ClusterClient
from tests.fakes import FakeApiServer, Reply, answer, never, text
from tests.unit.virtual_time import monotonic

MEBIBYTE = 2**20
FOREVER = 10**9


def sending(
    piece: bytes, times: int = FOREVER, *, status: int = 200, headers: dict[str, str] | None = None
) -> Reply:
    """Replies the same bytes again and again."""

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers=headers)
        await response.prepare(request)
        for _ in range(times):
            await response.write(piece)
        return response

    return reply


async def dripping(request: web.Request) -> web.StreamResponse:
    """Replies a byte every second."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"[")
        await asyncio.sleep(1)


def bomb() -> Reply:
    """Replies 32 MiB as 32 KiB, though nobody asked for that."""
    return sending(gzip.compress(bytes(32 * MEBIBYTE)), 1, headers={"Content-Encoding": "gzip"})


async def read(client: ClusterClient) -> object:
    return await client.get("/x")


async def write(client: ClusterClient) -> object:
    return await client.create("/x", {})


async def watch(client: ClusterClient) -> object:
    return [line async for line in client.watch("/x", {}, idle_timeout=100)]


CALLS = [pytest.param(read, id="read"), pytest.param(write, id="write"), pytest.param(watch, id="watch")]
Call = Callable[[ClusterClient], Awaitable[object]]


def on_every_call(server: FakeApiServer, reply: Reply) -> None:
    server.on("GET", "/x", reply)
    server.on("POST", "/x", reply)


@pytest.mark.parametrize("call", CALLS)
async def test_nothing_is_decompressed(server: FakeApiServer, client: ClusterClient, call: Call) -> None:
    on_every_call(server, bomb())
    tracemalloc.start()
    try:
        with pytest.raises(errors.TooLarge, match="compressed"):
            await call(client)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * MEBIBYTE
    assert server.asked[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("call", CALLS)
async def test_answer_without_end_is_given_up_at_the_bound(
    server: FakeApiServer, client: ClusterClient, call: Call
) -> None:
    on_every_call(server, sending(b" " * MEBIBYTE))
    with pytest.raises(errors.TooLarge, match=r"(GET|POST|WATCH) /x: the answer is larger than 16 MiB"):
        await call(client)


async def test_error_of_a_compressed_refusal_has_its_status_only(
    server: FakeApiServer, client: ClusterClient
) -> None:
    body = gzip.compress(bytes(MEBIBYTE))
    server.on("GET", "/x", sending(body, 1, status=403, headers={"Content-Encoding": "gzip"}))
    with pytest.raises(errors.Forbidden, match=r"^Forbidden$"):
        await client.get("/x")


async def test_error_of_an_endless_refusal_has_its_status_and_beginning(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", "/x", sending(b"no" * LARGEST_REFUSAL, status=403))
    with pytest.raises(errors.Forbidden) as caught:
        await client.get("/x")
    assert str(caught.value) == "no" * 150


async def test_answer_that_drips_is_given_up_after_the_timeout(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", "/x", dripping)
    began = monotonic()
    with pytest.raises(errors.Unavailable, match="TimeoutError"):
        await client.get("/x")
    assert monotonic() - began == pytest.approx(10, abs=0.1)


async def test_lines_are_bounded_one_by_one(server: FakeApiServer, client: ClusterClient) -> None:
    line = b"x" * (9 * MEBIBYTE) + b"\n"
    server.on("GET", "/x", sending(line, 5))
    assert [len(each) async for each in client.watch("/x", {}, idle_timeout=100)] == [len(line)] * 5


async def test_watch_joins_a_line_that_arrives_byte_by_byte(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", "/x", sending(b"y", 3000))
    assert [line async for line in client.watch("/x", {}, idle_timeout=100)] == [b"y" * 3000]


async def test_unfinished_line_is_held_only_while_a_reader_waits_for_it(
    server: FakeApiServer, client: ClusterClient
) -> None:
    async def begun(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x" * (15 * MEBIBYTE))
        return await never(request)

    server.on("GET", "/x", begun)
    for _ in range(10):  # more than all that may be held at once
        with pytest.raises(errors.Unavailable, match="SocketTimeoutError"):
            await watch(client)


async def test_cookies_are_not_kept(server: FakeApiServer, client: ClusterClient) -> None:
    async def biscuit(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"{}", headers={"Set-Cookie": "a=b"})

    server.on("GET", "/x", biscuit)
    await client.get("/x")
    await client.get("/x")
    assert "Cookie" not in server.asked[1].headers


@pytest.mark.parametrize(
    "body",
    ["[" + "[]," * MOST_KEPT + "0]", "[" + "{}," * MOST_KEPT + "0]"],
    ids=["lists", "objects"],
)
async def test_answer_that_would_grow_many_times_when_parsed_is_not_parsed(
    server: FakeApiServer, client: ClusterClient, body: str
) -> None:
    server.on("GET", "/x", text(body, 200))
    with pytest.raises(errors.TooLarge, match="lists and objects"):
        await client.get("/x")


@pytest.mark.parametrize(
    ("raw", "is_refused"),
    [
        pytest.param(b"{}", False, id="small"),
        pytest.param(b"[" + b"[]," * (MOST_CONTAINERS - 2) + b"[]]", False, id="as-many-lists-as-may-be"),
        pytest.param(b"[" + b"[]," * (MOST_CONTAINERS - 1) + b"[]]", True, id="one-more"),
        pytest.param(b"[" + b"1," * MOST_VALUES + b"1]", False, id="as-many-values"),
        pytest.param(b"[" + b"1," * (MOST_VALUES + 1) + b"1]", True, id="one-more-value"),
        pytest.param(b'["' + b"x" * LARGEST_ANSWER + b'"]', False, id="one-long-string"),
        pytest.param(b'["' + b"[" * 2 * MOST_CONTAINERS + b'"]', False, id="brackets-within-a-string"),
        pytest.param(b'["' + b'\\"[{,' * MOST_CONTAINERS + b'"]', False, id="among-quotes-within-a-string"),
        pytest.param(b'["' + b"," * (MOST_VALUES + 1) + b'"]', False, id="commas-within-a-string"),
        pytest.param(b'["' + b"," * (MOST_MARKS + 1) + b'"]', True, id="more-than-anybody-counts"),
        pytest.param(b'["\\\\",' + b"[]," * MOST_CONTAINERS + b"0]", True, id="behind-an-escaped-backslash"),
    ],
)
def test_values_are_counted_before_they_are_parsed(raw: bytes, is_refused: bool) -> None:
    if is_refused:
        with pytest.raises(errors.TooLarge):
            check_values(raw)
    else:
        check_values(raw)


JSON = st.recursive(
    st.none() | st.integers(0, 9) | st.text(alphabet='"\\\\[]{},:ax'),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='"[{,\\\\'), inner, max_size=4)
    ),
)


def marks(value: object) -> int:
    """Lists, objects and the commas between their entries."""
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(0, len(value) - 1) + sum(map(marks, inner))


@given(JSON)
def test_contents_of_strings_are_not_counted(value: object) -> None:
    assert len(without_strings(orjson.dumps(value))) == marks(value)


@pytest.mark.parametrize("is_collected", [True, False], ids=["collecting", "not-collecting"])
def test_no_garbage_is_collected_while_a_large_answer_is_parsed(is_collected: bool) -> None:
    collections = []

    def watch(phase: str, _info: dict[str, int]) -> None:
        collections.append(phase)

    gc.collect()  # none is due
    if not is_collected:
        gc.disable()
    gc.callbacks.append(watch)
    try:
        read = loads(b"[" + b"[]," * 100_000 + b"0]")
        assert gc.isenabled() is is_collected
    finally:
        gc.callbacks.remove(watch)
        gc.enable()
    assert len(read) == 100_001
    assert (
        collections.count("start") <= is_collected
    )  # the one that is due afterwards, not one for each 700 lists


def test_all_that_one_server_has_us_hold_is_bounded_together() -> None:
    allowance = Allowance(100)
    with Buffer(allowance, "GET /x", 60) as first, Buffer(allowance, "GET /y", 60) as second:
        first.add(b"x" * 60)
        second.add(b"y" * 40)
        with pytest.raises(errors.TooLarge, match="GET /y: its answers take more than"):
            second.add(b"y")
        with pytest.raises(errors.TooLarge, match="GET /x: the answer is larger"):
            first.add(b"x")
        assert (first.take(), allowance.left) == (b"x" * 60, 60)
        second.add(b"y")
    assert allowance.left == 100


async def test_answer_as_large_as_may_be_is_read(server: FakeApiServer, client: ClusterClient) -> None:
    long = "x" * (LARGEST_ANSWER - 8)
    server.on("GET", "/x", answer({"a": long}))
    assert await client.get("/x") == {"a": long}
