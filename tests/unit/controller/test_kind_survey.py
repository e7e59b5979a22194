"""Kinds that a cluster serves: registered kinds wait for no others, and invented kinds cost no request of their own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from dispatcher.controller.members.kind_survey import (
    MOST_UNCHECKED,
    OTHERS_SECONDS,
    REGISTERED,
    REGISTERED_SECONDS,
    SURVEY_SECONDS,
    KindSurvey,
)
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Discovery
from tests.fakes import FakeApiServer, Reply, answer, never, refusal, text
from tests.unit import workers
from tests.unit.virtual_time import monotonic, until

Kind = tuple[str, str]

JOB = ("batch/v1", "Job")
RAY = ("ray.io/v1", "RayCluster")
WIDGET = ("widgets.example.com/v1", "Widget")

INVENTIONS: dict[str, Callable[[int], Kind]] = {
    "groups": lambda number: (f"g{number}.example.com/v1", "Thing"),
    "versions": lambda number: (f"ray.io/v0x{number}", "RayCluster"),
    "core-versions": lambda number: (f"v0x{number}", "Pod"),
    "kinds": lambda number: ("ray.io/v1", f"Odd{number}"),
}
"""The ways to invent kinds that are not served."""

ANSWER_SECONDS = 0.02


def serves(*resources: tuple[str, str]) -> Reply:
    return answer(
        {"resources": [{"name": name, "kind": kind, "namespaced": True} for name, kind in resources]}
    )


def groups(*versions: str) -> Reply:
    return answer({"groups": [{"versions": [{"groupVersion": version}]} for version in versions]})


def slowly(reply: Reply) -> Reply:
    async def later(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(ANSWER_SECONDS)  # virtual
        return await reply(request)

    return later


@pytest.fixture(autouse=True)
def cluster(server: FakeApiServer) -> None:
    """A cluster that serves Jobs, RayClusters and Widgets, and answers slowly."""
    server.on("GET", "/apis", slowly(groups("ray.io/v1", "batch/v1", "widgets.example.com/v1")))
    server.on("GET", "/apis/batch/v1", slowly(serves(("jobs", "Job"))))
    server.on("GET", "/apis/ray.io/v1", slowly(serves(("rayclusters", "RayCluster"))))
    server.on("GET", "/apis/widgets.example.com/v1", slowly(serves(("widgets", "Widget"))))


@asynccontextmanager
async def surveying(client: ClusterClient) -> AsyncIterator[tuple[KindSurvey, list[float]]]:
    found: list[float] = []
    survey = KindSurvey(Discovery(client), lambda: found.append(monotonic()))
    async with workers.running(survey.run()):
        yield survey, found


def unknown(way: str = "groups", count: int = 2560) -> frozenset[Kind]:
    """Kinds that are not served, as ten AppWrappers may wrap them."""
    return frozenset(map(INVENTIONS[way], range(count)))


def asked(server: FakeApiServer) -> Counter[str]:
    return Counter(each.path for each in server.requests("GET"))


def test_registered_kinds_are_few_enough_to_ask_for_all() -> None:
    assert {JOB, RAY, ("v1", "Pod")} <= REGISTERED
    assert {("v1", "Job"), ("/v1", "Pod"), ("ray.io", "RayCluster"), *unknown("versions")}.isdisjoint(
        REGISTERED
    )
    assert len({api_version for api_version, _ in REGISTERED}) <= 30


@pytest.mark.parametrize("way", INVENTIONS)
async def test_ten_appwrappers_of_256_unknown_kinds_each_cost_one_request(
    server: FakeApiServer, client: ClusterClient, way: str
) -> None:
    kinds, theirs = unknown(way), {"/apis/ray.io/v1": 1} if way == "kinds" else {}
    async with surveying(client) as (survey, found):
        await survey.ask_for(kinds).wait()
        assert survey.missing(kinds) == kinds
        assert asked(server) == {"/apis": 1, "/readyz": 1, **theirs}
        await asyncio.sleep(29)  # virtual
        assert asked(server) == dict.fromkeys(("/apis", "/readyz", *theirs), 3)
    assert found == []


@pytest.mark.parametrize("kind", [RAY, JOB, WIDGET], ids=lambda kind: kind[1])
@pytest.mark.parametrize("way", INVENTIONS)
async def test_kind_is_found_within_a_round_while_unknown_kinds_are_asked_about(
    server: FakeApiServer, client: ClusterClient, way: str, kind: Kind
) -> None:
    kinds = unknown(way)
    async with surveying(client) as (survey, found):
        survey.missing(kinds)
        await asyncio.sleep(ANSWER_SECONDS / 2)  # virtual
        begun = monotonic()
        await survey.ask_for(kinds | {kind}).wait()
        assert survey.missing(kinds | {kind}) == kinds
        assert monotonic() - begun < 6 * ANSWER_SECONDS
        assert len(server.asked) <= 6
        assert len(found) == 1


@pytest.mark.parametrize("way", INVENTIONS)
@pytest.mark.parametrize(
    "reply",
    [never, refusal(500, "InternalError"), text("no", status=503), answer({"groups": 1})],
    ids=["hangs", "fails", "away", "nonsense"],
)
async def test_only_registered_kinds_are_asked_for_without_a_list_of_versions(
    server: FakeApiServer, client: ClusterClient, reply: Reply, way: str
) -> None:
    server.on("GET", "/apis", reply)
    kinds = unknown(way)
    async with surveying(client) as (survey, _):
        survey.missing(kinds)
        await asyncio.sleep(ANSWER_SECONDS / 2)  # virtual
        begun = monotonic()
        survey.missing(kinds | {RAY})
        await until(lambda: survey.missing(kinds | {RAY}) == kinds)
        assert monotonic() - begun < 3 * ANSWER_SECONDS
        await asyncio.sleep(29)  # virtual
    assert set(asked(server)) == {"/apis", "/apis/ray.io/v1"}
    assert asked(server)["/apis/ray.io/v1"] == 1


@pytest.mark.parametrize("way", ["groups", "versions", "core-versions"])
async def test_unchecked_versions_are_few_if_the_list_of_versions_is_forbidden(
    server: FakeApiServer, client: ClusterClient, way: str
) -> None:
    server.on("GET", "/apis", refusal(403, "Forbidden"))
    kinds = unknown(way)
    async with surveying(client) as (survey, _):
        await survey.ask_for(kinds | {RAY}).wait()
        assert survey.missing(kinds | {RAY}) == kinds
        await asyncio.sleep(1)  # virtual
    assert asked(server)["/apis/ray.io/v1"] == 1
    assert len(server.asked) == 1 + MOST_UNCHECKED + 1 + 1  # the list, the guesses, RayClusters, readiness


@pytest.mark.parametrize(
    ("hanging", "most"),
    [
        (["/apis"], OTHERS_SECONDS),
        (["/apis/ray.io/v1"], REGISTERED_SECONDS + OTHERS_SECONDS),
        (["/apis", "/apis/ray.io/v1"], REGISTERED_SECONDS + OTHERS_SECONDS),
    ],
    ids=["list", "known", "both"],
)
@pytest.mark.parametrize("way", ["groups", "versions", "core-versions"])
async def test_cycles_do_not_wait_for_each_invented_kind(
    server: FakeApiServer, client: ClusterClient, way: str, hanging: list[str], most: float
) -> None:
    for path in hanging:
        server.on("GET", path, never)
    async with surveying(client) as (survey, _):
        begun = monotonic()
        for number in range(100):
            await survey.ask_for(unknown(way, number) | {RAY}).wait()
        assert monotonic() - begun <= most + 3 * ANSWER_SECONDS
        await asyncio.sleep(2 * SURVEY_SECONDS)  # virtual
        begun = monotonic()
        await survey.ask_for(unknown(way, 200)).wait()
        assert monotonic() - begun == pytest.approx(
            OTHERS_SECONDS * ("/apis" in hanging), abs=3 * ANSWER_SECONDS
        )


async def test_registered_kind_does_not_wait_for_a_hanging_group(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", "/apis", never)
    async with surveying(client) as (survey, found):
        survey.ask_for(frozenset({WIDGET}))
        await asyncio.sleep(0.1)  # virtual
        begun = monotonic()
        await survey.ask_for(frozenset({WIDGET, RAY})).wait()
        assert survey.missing(frozenset({WIDGET, RAY})) == {WIDGET}
        assert monotonic() - begun < 0.5
        assert len(found) == 1


async def test_kinds_of_one_group_and_version_cost_one_request(
    server: FakeApiServer, client: ClusterClient
) -> None:
    kinds = frozenset(("widgets.example.com/v1", f"Odd{number}") for number in range(256)) | {WIDGET}
    async with surveying(client) as (survey, _):
        await survey.ask_for(kinds).wait()
        assert survey.missing(kinds) == kinds - {WIDGET}
        assert asked(server)["/apis/widgets.example.com/v1"] == 1


async def test_installed_kind_is_found_when_another_appwrapper_requires_it(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", "/apis/widgets.example.com/v1", serves(), serves(("widgets", "Widget")))
    other = ("widgets.example.com/v1", "Gadget")
    async with surveying(client) as (survey, _):
        await survey.ask_for(frozenset({other})).wait()
        await asyncio.sleep(2)  # virtual
        begun = monotonic()
        await survey.ask_for(frozenset({other, WIDGET})).wait()
        assert survey.missing(frozenset({other, WIDGET})) == {other}
        assert monotonic() - begun < 0.5


async def test_kinds_without_an_appwrapper_are_dropped(server: FakeApiServer, client: ClusterClient) -> None:
    async with surveying(client) as (survey, _):
        await survey.ask_for(unknown()).wait()
        survey.missing(frozenset())
        before = len(server.asked)
        await asyncio.sleep(60)  # virtual
        assert len(server.asked) == before


async def test_a_kind_that_somebody_asked_about_without_waiting_is_not_taken_for_missing(
    server: FakeApiServer, client: ClusterClient
) -> None:
    async with surveying(client) as (survey, _):
        assert survey.missing(frozenset({RAY})) == {RAY}  # as the snapshot for commands asks
        assert not survey.was_awaited(frozenset({RAY}))
        await survey.ask_for(frozenset({RAY})).wait()
        assert survey.missing(frozenset({RAY})) == frozenset()

        await survey.ask_for(frozenset({WIDGET})).wait()
        assert survey.was_awaited(frozenset({RAY, WIDGET}))
        survey.missing(frozenset())
        assert not survey.was_awaited(frozenset({RAY, ("ray.io/v2", "RayCluster")}))


async def test_kind_with_a_removed_definition_is_asked_about_again(
    server: FakeApiServer, client: ClusterClient
) -> None:
    discovery = Discovery(client)
    survey = KindSurvey(discovery, lambda: None)
    async with workers.running(survey.run()):
        await survey.ask_for(frozenset({RAY})).wait()
        discovery.forget(await discovery.find(*RAY))
        assert survey.missing(frozenset({RAY})) == {RAY}
        await until(lambda: not survey.missing(frozenset({RAY})))
