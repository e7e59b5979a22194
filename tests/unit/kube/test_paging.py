"""Lists page by page: complete, whatever is in them, and bounded in bytes."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from dispatcher import errors
from dispatcher.kube import paging
from dispatcher.kube.bounds import LARGEST_ANSWER, MOST_CONTAINERS
from dispatcher.kube.client import METADATA_LIST, ClusterClient
from dispatcher.kube.paging import (
    AIM,
    AIM_CONTAINERS,
    FIRST_PAGE,
    MOST_SHARES,
    PAGE,
    Page,
    no_other_way,
    pages,
)
from tests.fakes import FakeApiServer, Reply, answer, refusal

Json = dict[str, Any]
PATH = "/api/v1/things"
INTRICATE: list[Any] = [[] for _ in range(MOST_CONTAINERS)]


def thing(name: str, content: object = "") -> Json:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "content": content}


def listing(*things: Json, refused: int | None = None) -> Reply:
    """Lists as an API server does: so many as are asked for, from where the token says."""

    async def reply(request: web.Request) -> web.StreamResponse:
        start, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        if start == refused:
            return await refusal(410, "Expired", "it took too long")(request)
        part: list[Json] = list(things[start : start + limit])
        if request.headers["Accept"] == METADATA_LIST:
            part = [{"metadata": each["metadata"]} for each in part]
        end = start + limit
        token = str(end) if end < len(things) else ""
        return await answer({"metadata": {"resourceVersion": "7", "continue": token}, "items": part})(request)

    return reply


def limits(server: FakeApiServer) -> list[int]:
    return [int(each.query["limit"]) for each in server.requests(path=PATH)]


def names_of(listed: list[Page]) -> list[str]:
    return [each["metadata"]["name"] for page in listed for each in page.items]


async def test_small_objects_come_as_many_at_once_as_may_be(
    server: FakeApiServer, client: ClusterClient
) -> None:
    things = [thing(f"t{number}") for number in range(1200)]
    server.on("GET", PATH, listing(*things))
    listed = [page async for page in pages(client, PATH, {"labelSelector": "a"})]
    assert [each for page in listed for each in page.items] == things
    assert {page.version for page in listed} == {"7"}
    assert limits(server) == [FIRST_PAGE, PAGE, PAGE]
    assert {each.query["labelSelector"] for each in server.requests(path=PATH)} == {"a"}


async def test_no_page_of_usual_objects_is_requested_twice(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", PATH, listing(*[thing(f"t{number}", "x" * 2**12) for number in range(600)]))
    assert len(names_of([page async for page in pages(client, PATH, {})])) == 600
    tokens = [each.query.get("continue") for each in server.requests(path=PATH)]
    assert len(tokens) == len(set(tokens))


async def test_large_objects_come_in_pages_of_a_bounded_size(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """A page of 500 AppWrappers of 1.5 MB would be 750 MB."""
    things = [thing(f"t{number}", "x" * 2**20) for number in range(12)]
    server.on("GET", PATH, listing(*things))
    assert names_of([page async for page in pages(client, PATH, {})]) == [f"t{n}" for n in range(12)]
    # The first two were cut off, and three were not parsed.
    assert limits(server) == [FIRST_PAGE, FIRST_PAGE // 8, FIRST_PAGE // 64, *[1] * 12]


async def test_page_of_too_many_lists_and_objects_is_not_parsed_but_asked_for_in_parts(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """They take many times their bytes: a page of 4 MiB held up everybody for 0.1 s."""
    intricate: list[Json] = [{} for _ in range(AIM_CONTAINERS // 4)]
    things = [thing(f"t{number}", intricate) for number in range(20)]
    server.on("GET", PATH, listing(*things))
    listed = [page async for page in pages(client, PATH, {})]
    assert names_of(listed) == [f"t{n}" for n in range(20)]
    most = MOST_SHARES * AIM_CONTAINERS
    assert max(sum(len(each["content"]) for each in page.items) for page in listed) <= most


async def test_page_slightly_over_its_limit_is_taken(server: FakeApiServer, client: ClusterClient) -> None:
    things = [thing(f"t{number}", "x" * (AIM * 2 // 5)) for number in range(3)]
    server.on("GET", PATH, listing(*things))
    assert names_of([page async for page in pages(client, PATH, {})]) == ["t0", "t1", "t2"]
    assert limits(server) == [FIRST_PAGE]


async def test_pages_grow_again_after_the_large_objects(server: FakeApiServer, client: ClusterClient) -> None:
    large = [thing(f"large-{number}", "x" * 2**20) for number in range(20)]
    small = [thing(f"small-{number}") for number in range(2000)]
    server.on("GET", PATH, listing(*large, *small))
    listed = [page async for page in pages(client, PATH, {})]
    assert names_of(listed) == [each["metadata"]["name"] for each in [*large, *small]]
    assert limits(server)[-1] == PAGE


@pytest.mark.parametrize(
    "content", ["x" * LARGEST_ANSWER, INTRICATE], ids=["too-many-bytes", "too-many-values"]
)
async def test_object_too_large_by_itself_is_read_in_another_way(
    server: FakeApiServer, client: ClusterClient, content: object
) -> None:
    things = [thing("before"), thing("giant", content), thing("after")]
    server.on("GET", PATH, listing(*things))

    async def read_alone(metadata: Json) -> Json:
        return {**metadata, "content": "read alone"}

    listed = [page async for page in pages(client, PATH, {}, read_alone=read_alone)]
    assert [each for page in listed for each in page.items] == [
        thing("before"),
        thing("giant", "read alone"),
        thing("after"),
    ]


@pytest.mark.parametrize("is_told", [True, False], ids=["there-is-no-other-way", "that-is-too-large-as-well"])
async def test_object_too_large_to_read_is_left_out_of_the_list_and_logged(
    server: FakeApiServer, client: ClusterClient, is_told: bool
) -> None:
    async def too_large(_metadata: Json) -> Json:
        raise errors.TooLarge("GET it: the answer is larger than 16 MiB")

    things = [thing("before"), thing("giant", INTRICATE), thing("after")]
    server.on("GET", PATH, listing(*things))
    with capture_logs() as logs:
        listed = [
            page async for page in pages(client, PATH, {}, read_alone=no_other_way if is_told else too_large)
        ]
    assert names_of(listed) == ["before", "after"]
    assert [each["metadata"]["name"] for page in listed for each in page.left_out] == ["giant"]
    assert [(each["event"], each["name"]) for each in logs] == [("object_too_large", "giant")]


async def test_object_that_went_before_it_was_read_alone_is_no_part_of_the_list(
    server: FakeApiServer, client: ClusterClient
) -> None:
    async def gone(_metadata: Json) -> Json:
        raise errors.NotFound("no such thing", "NotFound")

    server.on("GET", PATH, listing(thing("giant", INTRICATE), thing("after")))
    listed = [page async for page in pages(client, PATH, {}, read_alone=gone)]
    assert (names_of(listed), [page.left_out for page in listed]) == (["after"], [(), ()])


async def test_list_that_is_a_proof_leaves_nothing_out(server: FakeApiServer, client: ClusterClient) -> None:
    """Who gives capacity back asks whether there are live pods: one that cannot be read may be."""
    server.on("GET", PATH, listing(thing("before"), thing("giant", INTRICATE)))
    with pytest.raises(errors.TooLarge):
        [page async for page in pages(client, PATH, {})]


async def test_metadata_too_large_by_itself_is_an_error(server: FakeApiServer, client: ClusterClient) -> None:
    giant = {"metadata": {"name": "giant", "labels": {"a": "x" * LARGEST_ANSWER}}}
    server.on("GET", PATH, answer({"metadata": {"resourceVersion": "7"}, "items": [giant]}))
    with pytest.raises(errors.TooLarge):
        [page async for page in pages(client, PATH, {}, accept=METADATA_LIST, read_alone=no_other_way)]
    with pytest.raises(errors.TooLarge):
        [page async for page in pages(client, PATH, {}, read_alone=no_other_way)]


@pytest.mark.parametrize("items", [[thing("again")], []], ids=["the-same-again", "empty-pages"])
async def test_list_without_end_is_given_up(
    server: FakeApiServer, client: ClusterClient, monkeypatch: pytest.MonkeyPatch, items: list[Json]
) -> None:
    monkeypatch.setattr(paging, "MOST_LISTED", 10)
    server.on("GET", PATH, answer({"metadata": {"resourceVersion": "7", "continue": "more"}, "items": items}))
    with pytest.raises(errors.TooLarge, match="more than 10 objects"):
        [page async for page in pages(client, PATH, {})]
    assert len(server.requests(path=PATH)) == 11


async def test_list_that_breaks_off_is_an_error(server: FakeApiServer, client: ClusterClient) -> None:
    things = [thing(f"t{number}") for number in range(600)]
    server.on("GET", PATH, listing(*things, refused=FIRST_PAGE))
    with pytest.raises(errors.Expired):
        [page async for page in pages(client, PATH, {})]


@pytest.mark.parametrize(
    "page", [{"items": []}, {"metadata": [], "items": []}, [], 3, {"metadata": {}, "items": 3}]
)
async def test_page_that_makes_no_sense_is_no_answer(
    server: FakeApiServer, client: ClusterClient, page: object
) -> None:
    server.on("GET", PATH, answer(page))
    with pytest.raises(errors.Unavailable, match="makes no sense"):
        [each async for each in pages(client, PATH, {})]
