"""The kinds that the dispatcher's own account may not create: who says so, and when they may be created again."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from dispatcher import errors
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Kind
from dispatcher.kube.objects.create_rights import MOST_ASKED, RECHECK_SECONDS, CreateRights
from dispatcher.kube.questions import SELF_PATH
from tests.fakes import FakeApiServer, Reply, answer, hang_up, refusal
from tests.unit import workers
from tests.unit.virtual_time import monotonic

RAY = Kind("ray.io/v1", "RayCluster", "rayclusters", namespaced=True)
NAMED = "ray.io/v1", "RayCluster"
DENIED = answer({"status": {"allowed": False}}, 201)
ALLOWED = answer({"status": {"allowed": True}}, 201)


async def denied_in(rights: CreateRights, server: FakeApiServer, *namespaces: str) -> None:
    server.on("POST", SELF_PATH, DENIED)
    for each in namespaces:
        assert await rights.is_denied(RAY, each)


async def test_api_server_says_whether_the_kind_may_be_created_in_the_namespace(
    server: FakeApiServer, client: ClusterClient
) -> None:
    rights = CreateRights(client)
    await denied_in(rights, server, "team-a")
    (asked,) = server.requests("POST")
    assert asked.body["spec"] == {
        "resourceAttributes": {
            "namespace": "team-a",
            "group": "ray.io",
            "resource": "rayclusters",
            "verb": "create",
        }
    }
    assert rights.denied == {("team-a", NAMED)}
    server.on("POST", SELF_PATH, ALLOWED)
    assert not await rights.is_denied(RAY, "team-b")
    assert rights.denied == {("team-a", NAMED)}


async def test_denial_that_is_known_costs_no_request(server: FakeApiServer, client: ClusterClient) -> None:
    rights = CreateRights(client)
    await denied_in(rights, server, *["team-a"] * 3)
    assert len(server.requests("POST")) == 1


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(refusal(403, "Forbidden"), id="may-not-ask"),
        pytest.param(refusal(404, "NotFound"), id="cannot-be-asked"),
    ],
)
async def test_kind_counts_as_allowed_where_nobody_says_otherwise(
    server: FakeApiServer, client: ClusterClient, reply: Reply
) -> None:
    rights = CreateRights(client)
    server.on("POST", SELF_PATH, reply)
    assert not await rights.is_denied(RAY, "team-a")
    assert rights.denied == frozenset()


@pytest.mark.parametrize(
    ("reply", "error"),
    [(hang_up, errors.Unavailable), (refusal(401, "Unauthorized"), errors.Unauthorized)],
    ids=["no-answer", "credentials-expired"],
)
async def test_question_without_an_answer_raises(
    server: FakeApiServer, client: ClusterClient, reply: Reply, error: type[Exception]
) -> None:
    server.on("POST", SELF_PATH, reply)
    with pytest.raises(error):
        await CreateRights(client).is_denied(RAY, "team-a")


@pytest.mark.parametrize(
    ("replies", "rounds"),
    [
        pytest.param([ALLOWED], 1, id="at-once"),
        pytest.param([DENIED, DENIED, ALLOWED], 3, id="later"),
        pytest.param([hang_up, refusal(401, "Unauthorized"), ALLOWED], 3, id="after-no-answer"),
    ],
)
async def test_right_that_is_granted_is_found_within_a_round(
    server: FakeApiServer, client: ClusterClient, replies: list[Reply], rounds: int
) -> None:
    rights, granted_at = CreateRights(client), list[float]()
    await denied_in(rights, server, "team-a")
    begun = monotonic()
    server.on("POST", SELF_PATH, *replies)
    async with workers.running(rights.run(lambda: granted_at.append(monotonic() - begun))):
        await asyncio.sleep(RECHECK_SECONDS * 5)  # virtual
    assert len(granted_at) == 1
    assert rounds * RECHECK_SECONDS <= granted_at[0] < (rounds + 0.5) * RECHECK_SECONDS
    assert rights.denied == frozenset()


async def test_question_that_fails_hides_no_other_right(server: FakeApiServer, client: ClusterClient) -> None:
    rights = CreateRights(client)
    await denied_in(rights, server, "team-a", "team-b", "team-c")

    async def answers(request: web.Request) -> web.StreamResponse:
        attributes = (await request.json())["spec"]["resourceAttributes"]
        return await (refusal(500, "InternalError") if attributes["namespace"] == "team-a" else ALLOWED)(
            request
        )

    server.on("POST", SELF_PATH, answers)
    async with workers.running(rights.run(lambda: None)):
        await asyncio.sleep(RECHECK_SECONDS * 1.5)  # virtual
    assert rights.denied == {("team-a", NAMED)}


async def test_denial_stays_while_the_account_may_not_ask(
    server: FakeApiServer, client: ClusterClient
) -> None:
    rights = CreateRights(client)
    await denied_in(rights, server, "team-a")
    server.on("POST", SELF_PATH, refusal(403, "Forbidden"))
    async with workers.running(rights.run(lambda: None)):
        await asyncio.sleep(RECHECK_SECONDS * 1.5)  # virtual
    assert rights.denied == {("team-a", NAMED)}


async def test_many_denials_cost_few_requests_and_each_is_asked_about_again(
    server: FakeApiServer, client: ClusterClient
) -> None:
    rights, asked = CreateRights(client), list[str]()
    await denied_in(rights, server, *(f"team-{number}" for number in range(2 * MOST_ASKED)))

    async def denies(request: web.Request) -> web.StreamResponse:
        asked.append((await request.json())["spec"]["resourceAttributes"]["namespace"])
        return await DENIED(request)

    server.on("POST", SELF_PATH, denies)
    async with workers.running(rights.run(lambda: None)):
        await asyncio.sleep(RECHECK_SECONDS * 1.5)  # virtual
        assert len(asked) == MOST_ASKED
        await asyncio.sleep(RECHECK_SECONDS)  # virtual
    assert len(set(asked)) == len(asked) == 2 * MOST_ASKED
