"""The reflector: its store is what the API server has, whatever becomes of its connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count, pairwise
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from dispatcher import errors
from dispatcher.kube import reflector
from dispatcher.kube.bounds import MOST_CONTAINERS
from dispatcher.kube.client import METADATA, METADATA_LIST, ClusterClient
from dispatcher.kube.paging import FIRST_PAGE
from dispatcher.kube.reflector import EVERYTHING, RESTS, Extent, Pace, Reflector
from dispatcher.kube.time_slices import TimeSlice
from tests.fakes import FakeApiServer, answer, hang_up, never, refusal, text, watch
from tests.unit import workers
from tests.unit.virtual_time import monotonic, until

Json = dict[str, Any]
Seen = tuple[str, str | None, str | None]

PATH = "/api/v1/things"


def thing(name: str, version: int = 1, value: str = "a") -> Json:
    return {"metadata": {"uid": name, "name": name, "resourceVersion": str(version)}, "value": value}


def page(version: int, *things: Json, token: str = "") -> Json:
    return {"metadata": {"resourceVersion": str(version), "continue": token}, "items": list(things)}


def event(type_: str, raw: Json) -> Json:
    return {"type": type_, "object": raw}


def bookmark(version: int) -> Json:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


def gone() -> Json:
    return event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})


class Watched:
    """A reflector of things, and what its handler was told."""

    def __init__(self, client: ClusterClient, locate: Callable[[], Awaitable[str]], extent: Extent) -> None:
        self.told: list[Seen] = []
        self.lists: list[dict[str, str]] = []
        self.reflector: Reflector[str] = Reflector(
            "things",
            client,
            locate,
            lambda raw: str(raw["value"]),
            self._notify,
            pace=Pace(jitter=lambda: 1.0),
            extent=extent,
            on_listed=lambda: self.lists.append(dict(self.items)),
        )

    @property
    def items(self) -> dict[str, str]:
        return self.reflector.items

    def _notify(self, uid: str, old: str | None, new: str | None) -> None:
        self.told.append((uid, old, new))


async def at_path() -> str:
    return PATH


@asynccontextmanager
async def watched(
    client: ClusterClient, locate: Callable[[], Awaitable[str]] = at_path, extent: Extent = EVERYTHING
) -> AsyncIterator[Watched]:
    it = Watched(client, locate, extent)
    async with workers.running(it.reflector.run()) as task:
        yield it
    assert task.cancelled()


def script(server: FakeApiServer, *, lists: list[Any], watches: list[Any]) -> None:
    """Script lists and watches apart, though they share a path."""
    left = {"list": list(lists), "watch": list(watches)}

    async def reply(request: Any) -> Any:  # noqa: ANN401
        replies = left["watch" if "watch" in request.query else "list"]
        return await (replies.pop(0) if len(replies) > 1 else replies[0])(request)

    server.on("GET", PATH, reply)


def watches_of(server: FakeApiServer) -> list[str]:
    """The resource version each watch began at."""
    return [each.query["resourceVersion"] for each in server.requests() if "watch" in each.query]


def lists_of(server: FakeApiServer) -> list[dict[str, str]]:
    return [dict(each.query) for each in server.requests(path=PATH) if "watch" not in each.query]


async def test_list_then_watch_from_there(server: FakeApiServer, client: ClusterClient) -> None:
    events = (
        event("ADDED", thing("b", 11)),
        event("MODIFIED", thing("a", 12, "A")),
        event("DELETED", thing("b", 13)),
    )
    script(server, lists=[answer(page(10, thing("a")))], watches=[watch(*events, then=never)])
    async with watched(client) as it:
        await until(lambda: len(it.told) == 4)

    assert it.told == [("a", None, "a"), ("b", None, "a"), ("a", "a", "A"), ("b", "a", None)]
    assert it.items == {"a": "A"}
    assert lists_of(server) == [{"limit": str(FIRST_PAGE)}]
    assert dict(server.requests()[1].query) == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "10",
        "timeoutSeconds": "600",
    }


async def test_long_list_is_read_page_by_page_before_the_reflector_is_synced(
    server: FakeApiServer, client: ClusterClient
) -> None:
    pages = [page(10, thing("a"), token="t1"), page(10, thing("b"), token="t2"), page(10, thing("c"))]
    script(server, lists=[*map(answer, pages)], watches=[never])
    async with watched(client) as it:
        await it.reflector.synced.wait()

    assert it.items == {"a": "a", "b": "a", "c": "a"}
    assert [query.get("continue") for query in lists_of(server)] == [None, "t1", "t2"]
    assert watches_of(server) in ([], ["10"])


async def test_part_of_a_collection_is_asked_for_in_every_list_and_watch(
    server: FakeApiServer, client: ClusterClient
) -> None:
    lists = [answer(page(10, thing("a"), token="t1")), answer(page(10)), answer(page(20))]
    script(server, lists=lists, watches=[watch(gone()), never])
    async with watched(client, extent=Extent("example.com/mine", contents=False)):
        await until(lambda: len(watches_of(server)) == 2)

    asked = server.requests(path=PATH)
    assert {each.query["labelSelector"] for each in asked} == {"example.com/mine"}
    assert [(each.query.get("continue"), each.headers["Accept"]) for each in asked] == [
        (None, METADATA_LIST),
        ("t1", METADATA_LIST),
        (None, METADATA),
        (None, METADATA_LIST),
        (None, METADATA),
    ]


async def test_page_that_has_expired_starts_the_list_anew(
    server: FakeApiServer, client: ClusterClient
) -> None:
    expired = refusal(410, "Expired", "The provided continue parameter is too old")
    lists = [answer(page(10, thing("a"), token="t1")), expired, answer(page(20, thing("b")))]
    script(server, lists=lists, watches=[never])
    async with watched(client) as it:
        await it.reflector.synced.wait()

    assert it.told == [("b", None, "a")]
    assert [query.get("continue") for query in lists_of(server)] == [None, "t1", None]


@pytest.mark.parametrize(
    "expired",
    [
        pytest.param(watch(gone()), id="within-the-watch"),
        pytest.param(refusal(410, "Expired"), id="as-an-answer"),
    ],
)
async def test_expired_watch_is_replaced_by_a_list_and_its_differences_are_reported(
    server: FakeApiServer,
    client: ClusterClient,
    expired: Any,  # noqa: ANN401
) -> None:
    before = page(10, thing("stays", 1), thing("changes", 2), thing("goes", 3))
    after = page(90, thing("stays", 1), thing("changes", 80, "new"), thing("comes", 85))
    script(server, lists=[answer(before), answer(after)], watches=[expired, never])
    async with watched(client) as it:
        await until(lambda: len(it.told) == 6)
        await until(lambda: len(watches_of(server)) == 2)

    assert it.told[3:] == [("goes", "a", None), ("changes", "a", "new"), ("comes", None, "a")]
    assert it.items == {"stays": "a", "changes": "new", "comes": "a"}
    assert it.lists == [{"stays": "a", "changes": "a", "goes": "a"}, it.items]
    assert watches_of(server) == ["10", "90"]


async def test_watch_that_ends_is_resumed_from_the_version_it_reached(
    server: FakeApiServer, client: ClusterClient
) -> None:
    script(
        server,
        lists=[answer(page(10))],
        watches=[watch(event("ADDED", thing("a", 11))), watch(bookmark(50)), never],
    )
    async with watched(client):
        await until(lambda: len(watches_of(server)) == 3)

    assert watches_of(server) == ["10", "11", "50"]
    assert len(lists_of(server)) == 1


async def test_watch_that_ends_at_once_does_not_become_a_busy_loop(
    server: FakeApiServer, client: ClusterClient
) -> None:
    script(server, lists=[answer(page(10))], watches=[watch()])
    async with watched(client):
        await asyncio.sleep(10)  # virtual

    assert 9 <= len(watches_of(server)) <= 11
    assert set(watches_of(server)) == {"10"}
    assert len(lists_of(server)) == 1


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(watch(event("ADDED", thing("a", 11)), b'{"type":"ADDED","obj'), id="in-a-line"),
        pytest.param(watch(event("ADDED", thing("a", 11)), then=hang_up), id="between-lines"),
        pytest.param(
            watch(event("ADDED", thing("a", 11)), event("ERROR", {"code": 500, "message": "etcd is away"})),
            id="by-an-error-of-the-server",
        ),
    ],
)
async def test_watch_that_is_cut_goes_on_where_it_was(
    server: FakeApiServer,
    client: ClusterClient,
    cut: Any,  # noqa: ANN401
) -> None:
    script(server, lists=[answer(page(10))], watches=[cut, watch(event("ADDED", thing("b", 12)), then=never)])
    async with watched(client) as it:
        await until(lambda: len(it.told) == 2)

    assert it.told == [("a", None, "a"), ("b", None, "a")]
    assert watches_of(server) == ["10", "11"]
    assert len(lists_of(server)) == 1
    assert it.reflector.reconnects == 1


async def test_watch_fails_from_a_cut_until_it_is_resumed(
    server: FakeApiServer, client: ClusterClient
) -> None:
    cut, away = watch(then=hang_up), refusal(503, "Away")
    script(server, lists=[answer(page(10))], watches=[cut, away, away, away, away, away])
    async with watched(client) as it:
        await until(lambda: it.reflector.reconnects > 1)
        assert it.reflector.is_failing
        script(server, lists=[], watches=[watch(event("ADDED", thing("a", 11)), then=never)])
        await until(lambda: bool(it.told))
        assert not it.reflector.is_failing


async def test_refused_list_is_a_failing_watch_and_a_kind_that_is_not_served_is_none(
    server: FakeApiServer, client: ClusterClient
) -> None:
    script(server, lists=[refusal(403, "Forbidden")], watches=[never])
    async with watched(client) as it:
        await it.reflector.heard.wait()
        assert it.reflector.is_failing
    script(server, lists=[text("404 page not found", 404)], watches=[never])
    async with watched(client) as it:
        await it.reflector.answered.wait()
        assert not it.reflector.is_failing


async def test_watch_that_is_cut_again_and_again_but_gets_on_is_resumed_soon_each_time(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """It would otherwise be blind for half a minute each time, as one whose server is away."""
    times: list[float] = []

    async def some_news(request: Any) -> Any:  # noqa: ANN401
        times.append(monotonic())
        version = 10 + len(times)
        return await watch(event("ADDED", thing("a", version)), then=hang_up)(request)

    script(server, lists=[answer(page(10))], watches=[some_news])
    async with watched(client):
        await until(lambda: len(times) > 10)

    assert {round(later - earlier, 1) for earlier, later in pairwise(times)} == {0.4}


async def test_watch_that_is_refused_is_not_tried_in_a_rush(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """Who may list but not watch must not list everything several times a second."""
    script(server, lists=[answer(page(10))], watches=[refusal(403, "Forbidden")])
    async with watched(client):
        await asyncio.sleep(120)  # virtual

    assert len(lists_of(server)) < 15


async def test_watch_that_has_always_expired_is_not_tried_in_a_rush(
    server: FakeApiServer, client: ClusterClient
) -> None:
    script(server, lists=[answer(page(10))], watches=[refusal(410, "Expired")])
    async with watched(client):
        await asyncio.sleep(120)  # virtual

    assert len(lists_of(server)) < 15


async def test_same_resource_version_seen_again_is_not_reported_again(
    server: FakeApiServer, client: ClusterClient
) -> None:
    events = event("MODIFIED", thing("a", 10)), event("ADDED", thing("b", 11))
    script(server, lists=[answer(page(10, thing("a", 10)))], watches=[watch(*events, then=never)])
    async with watched(client) as it:
        await until(lambda: len(it.told) == 2)
    assert it.told == [("a", None, "a"), ("b", None, "a")]


@pytest.mark.parametrize("version", [10, 11])
async def test_object_that_cannot_be_read_is_left_out_and_nothing_else_is(
    server: FakeApiServer, client: ClusterClient, version: int
) -> None:
    unreadable = {"metadata": {"uid": "x", "name": "x", "resourceVersion": str(version)}}
    events = event("ADDED", unreadable), event("MODIFIED", {**thing("a", 12), "value": "A"})
    listed = page(10, thing("a"), *([unreadable] if version == 10 else []))
    script(server, lists=[answer(listed)], watches=[watch(*events, then=never)])
    async with watched(client) as it:
        await until(lambda: len(it.told) == 2)
    assert it.items == {"a": "A"}


async def test_object_that_can_no_longer_be_read_is_reported_as_gone(
    server: FakeApiServer, client: ClusterClient
) -> None:
    spoilt = {"metadata": {"uid": "a", "name": "a", "resourceVersion": "11"}}
    script(
        server, lists=[answer(page(10, thing("a")))], watches=[watch(event("MODIFIED", spoilt), then=never)]
    )
    async with watched(client) as it:
        await until(lambda: len(it.told) == 2)
    assert it.told == [("a", None, "a"), ("a", "a", None)]


async def test_kind_that_is_not_served_is_an_answer_but_no_list(
    server: FakeApiServer, client: ClusterClient
) -> None:
    async with watched(client) as it:
        await it.reflector.answered.wait()
        assert not it.reflector.synced.is_set()
        script(server, lists=[answer(page(10, thing("a")))], watches=[never])
        await it.reflector.synced.wait()
        assert it.items == {"a": "a"}


async def test_nothing_is_forgotten_while_the_kind_is_not_served(
    server: FakeApiServer, client: ClusterClient
) -> None:
    script(
        server,
        lists=[answer(page(10, thing("a"))), text("404 page not found", 404), answer(page(20, thing("a")))],
        watches=[watch(gone()), never],
    )
    async with watched(client) as it:
        await until(lambda: len(lists_of(server)) == 3)
        await until(lambda: len(watches_of(server)) == 2)
    assert it.told == [("a", None, "a")]


async def test_path_is_looked_up_again_for_each_list(server: FakeApiServer, client: ClusterClient) -> None:
    asked = 0

    async def locate() -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise errors.NotFound("no such kind")
        return PATH

    script(server, lists=[answer(page(10, thing("a")))], watches=[never])
    async with watched(client, locate) as it:
        await it.reflector.synced.wait()
    assert asked == 2


async def test_server_that_is_away_is_asked_with_growing_pauses(
    server: FakeApiServer, client: ClusterClient
) -> None:
    times: list[float] = []
    asked_often = asyncio.Event()

    async def away(request: Any) -> Any:  # noqa: ANN401
        times.append(monotonic())
        if len(times) == 11:
            asked_often.set()
        return await refusal(503, "ServiceUnavailable")(request)

    server.on("GET", PATH, away)
    async with watched(client) as it:
        await asked_often.wait()
        assert not it.reflector.answered.is_set()

    pauses = [round(later - earlier, 1) for earlier, later in pairwise(times)]
    assert pauses == [0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0]


NONSENSE = [
    pytest.param([answer([])], [never], id="a-list-that-is-none"),
    pytest.param([answer({"items": []})], [never], id="a-list-without-a-version"),
    pytest.param([answer(page(10, {"metadata": {"name": "x"}}))], [never], id="an-object-without-a-uid"),
    pytest.param([answer(page(10))], [watch([])], id="an-event-that-is-none"),
    pytest.param([answer(page(10))], [watch(event("ADDED", {"metadata": {"name": "x"}}))], id="no-version"),
    pytest.param([answer(page(10))], [watch({"type": "ADDED"})], id="an-event-without-an-object"),
]


@pytest.mark.parametrize(("lists", "watches"), NONSENSE)
async def test_nonsense_is_as_good_as_no_answer(
    server: FakeApiServer, client: ClusterClient, lists: list[Any], watches: list[Any]
) -> None:
    script(server, lists=lists, watches=watches)
    async with watched(client) as it:
        await asyncio.sleep(120)  # virtual
        assert len(server.asked) < 30
        good = watch(event("ADDED", thing("a", 11)), then=never)
        script(server, lists=[answer(page(10))], watches=[good])
        await until(lambda: it.items == {"a": "a"})


# --- what is logged ------------------------------------------------------------------------------------


def words(entry: Any) -> tuple[str, str]:  # noqa: ANN401
    return entry["log_level"], entry["event"]


@pytest.mark.parametrize(
    ("lists", "watches", "said"),
    [
        pytest.param([refusal(403, "Forbidden")], [never], ("warning", "list_failed"), id="list-forbidden"),
        pytest.param(
            [answer(page(10))], [refusal(403, "Forbidden")], ("warning", "list_failed"), id="watch-forbidden"
        ),
        pytest.param([text("404 page not found", 404)], [never], ("info", "not_served"), id="not-served"),
        pytest.param([refusal(503, "Away")], [never], ("warning", "list_failed"), id="away"),
    ],
)
async def test_watch_failure_is_logged_at_its_begin_and_end_but_not_at_every_try(
    server: FakeApiServer,
    client: ClusterClient,
    lists: list[Any],
    watches: list[Any],
    said: tuple[str, str],
) -> None:
    script(server, lists=lists, watches=watches)
    with capture_logs() as logged:
        async with watched(client) as it:
            await asyncio.sleep(300)  # virtual
            works = watch(event("ADDED", thing("a", 11)), then=never)
            script(server, lists=[answer(page(10))], watches=[works])
            await until(lambda: it.items)
    assert [words(entry) for entry in logged if entry["log_level"] != "debug"] == [
        said,
        ("info", "watch_works_again"),
    ]


async def test_watch_failure_of_another_sort_is_logged_again(
    server: FakeApiServer, client: ClusterClient
) -> None:
    away, forbidden = refusal(503, "Away"), refusal(403, "Forbidden")
    script(server, lists=[away, away, forbidden, forbidden], watches=[never])
    with capture_logs() as logged:
        async with watched(client):
            await asyncio.sleep(300)  # virtual
    assert [words(entry)[0] for entry in logged][:4] == ["warning", "debug", "warning", "debug"]


# --- bounds ----------------------------------------------------------------------------------------------


INTRICATE = b"[" + b"[]," * MOST_CONTAINERS + b"0]"


async def test_object_too_large_to_be_read_keeps_no_other_from_being_seen(
    server: FakeApiServer, client: ClusterClient
) -> None:
    giant = {**thing("giant"), "lists": [[] for _ in range(MOST_CONTAINERS)]}
    lists = [
        *[answer(page(10, thing("a"), giant, thing("b")))] * 3,  # 500, 62, 7
        answer(page(10, thing("a"), token="t1")),
        answer(page(10, giant, token="t2")),
        answer(page(10, {"metadata": giant["metadata"]}, token="t2")),
        answer(page(10, thing("b"))),
    ]
    script(server, lists=lists, watches=[watch(then=never)])
    async with watched(client) as it:
        await it.reflector.synced.wait()
        assert (it.items, it.reflector.excess) == ({"a": "a", "b": "a"}, "")


async def test_brackets_in_a_string_make_no_object_too_large(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """Annotations may have 256 KiB, labels are bounded by etcd alone: whoever may write a pod may write these."""
    annotations = {"a": "[" * 250_000}
    labels = {f"{number:04}": '"[{' * 20 for number in range(10_000)}
    odd = thing("odd", 11) | {"metadata": {**thing("odd", 11)["metadata"], "annotations": annotations}}
    odd["metadata"]["labels"] = labels
    lists = [answer(page(10, thing("a"), odd))]
    later = {**odd, "metadata": {**odd["metadata"], "resourceVersion": "12"}, "value": "b"}
    lines = [event("MODIFIED", later), event("ADDED", thing("c", 13))]
    script(server, lists=lists, watches=[watch(*lines, then=never)])
    async with watched(client) as it:
        await until(lambda: "c" in it.items)
    assert it.items == {"a": "a", "odd": "b", "c": "a"}
    assert (len(it.lists), it.reflector.excess) == (1, "")


async def test_watch_pauses_after_each_line_that_took_long_so_that_others_have_their_turn(
    server: FakeApiServer, client: ClusterClient
) -> None:
    lines = [event("ADDED", thing(name, 11)) for name in "abc"]
    script(server, lists=[answer(page(10))], watches=[watch(*lines, then=never)])
    processor, seen = count(), dict[str, float]()
    it: Reflector[str] = Reflector(
        "things",
        client,
        at_path,
        lambda raw: str(raw["value"]),
        lambda uid, *_: seen.update({uid: monotonic()}),
        pace=Pace(processor_time=lambda: next(processor) * 0.1),
    )
    task = asyncio.create_task(it.run())
    await until(lambda: "c" in seen)
    task.cancel()
    pauses = [after - before for before, after in pairwise(seen.values())]
    assert pauses == [pytest.approx(0.1 * RESTS, abs=0.05)] * 2


async def test_object_that_grew_too_large_stays_as_it_was_last_seen(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """What cannot be read is still there: it must not be taken for deleted."""
    giant = {**thing("a", 20), "lists": [[] for _ in range(MOST_CONTAINERS)]}
    lists = [
        answer(page(10, thing("a"))),
        *[answer(page(20, giant))] * 4,
        answer(page(20, {"metadata": giant["metadata"]})),
    ]
    script(server, lists=lists, watches=[watch(gone()), watch(then=never)])
    async with watched(client) as it:
        await until(lambda: len(it.lists) == 2)
    assert it.told == [("a", None, "a")]
    assert it.items == {"a": "a"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param(b"x" * (2**24 + 1), "larger than 16 MiB", id="line-without-end"),
        pytest.param(
            b'{"type":"ADDED","object":{"lists":' + INTRICATE + b"}}\n",
            "lists and objects",
            id="intricate-line",
        ),
        pytest.param(
            orjson.dumps(event("ADDED", thing("u" * 300, 11))) + b"\n", "of 300 characters", id="long-uid"
        ),
    ],
)
async def test_watch_beyond_its_bounds_is_reported_until_a_new_list_and_watch_keep_to_them(
    server: FakeApiServer, client: ClusterClient, line: bytes, said: str
) -> None:
    lists = [answer(page(10, thing("a"))), answer(page(20, thing("b")))]
    script(server, lists=lists, watches=[watch(line, then=never), watch(bookmark(21), then=never)])
    async with watched(client) as it:
        await until(lambda: it.reflector.excess)
        assert said in it.reflector.excess
        await until(lambda: "b" in it.items and not it.reflector.excess)
    assert it.items == {"b": "a"}


async def test_watch_may_add_no_more_objects_than_a_list_may_have(
    server: FakeApiServer, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "MOST_LISTED", 3)
    events = [event("ADDED", thing(f"t{number}", number)) for number in range(11, 20)]
    script(server, lists=[answer(page(10, thing("a")))], watches=[watch(*events, then=never)])
    async with watched(client) as it:
        await until(lambda: it.reflector.excess)
        assert "more than 3 objects" in it.reflector.excess
        assert len(it.items) <= 3


async def test_others_have_their_turn_while_a_list_is_read(
    server: FakeApiServer, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "TimeSlice", lambda: TimeSlice(0.0))
    things = [thing(f"t{number}") for number in range(300)]
    script(server, lists=[answer(page(10, *things))], watches=[never])
    turns: list[int] = []

    async def other() -> None:
        while True:
            turns.append(len(it.told))
            await asyncio.sleep(0)

    async with watched(client) as it:
        task = asyncio.create_task(other())
        await it.reflector.synced.wait()
        task.cancel()
    seen = sorted(set(turns))
    assert max(after - before for before, after in pairwise(seen)) <= 2
