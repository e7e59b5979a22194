"""Which kinds a cluster serves: known ones wait for no others, and invented ones cost no request of their own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dispatcher.controller.kind_survey import KindSurvey
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Discovery
from tests.fakes import FakeApiServer, Reply, answer, never
from tests.unit.virtual_time import monotonic, until

RAY = ("ray.io/v1", "RayCluster")
WIDGET = ("widgets.example.com/v1", "Widget")


def serves(*resources: tuple[str, str]) -> Reply:
    return answer(
        {"resources": [{"name": name, "kind": kind, "namespaced": True} for name, kind in resources]}
    )


def groups(*versions: str) -> Reply:
    return answer({"groups": [{"versions": [{"groupVersion": version}]} for version in versions]})


@pytest.fixture(autouse=True)
def cluster(server: FakeApiServer) -> None:
    """A cluster that serves RayClusters and Widgets."""
    server.on("GET", "/apis", groups("ray.io/v1", "batch/v1", "widgets.example.com/v1"))
    server.on("GET", "/apis/ray.io/v1", serves(("rayclusters", "RayCluster")))
    server.on("GET", "/apis/widgets.example.com/v1", serves(("widgets", "Widget")))


@asynccontextmanager
async def surveying(client: ClusterClient) -> AsyncIterator[tuple[KindSurvey, list[float]]]:
    found: list[float] = []
    survey = KindSurvey(Discovery(client), lambda: found.append(monotonic()))
    task = asyncio.create_task(survey.run())
    try:
        yield survey, found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def unknown(appwrapper: int) -> frozenset[tuple[str, str]]:
    """256 kinds that nobody serves, each of a group of its own, as one AppWrapper may wrap them."""
    return frozenset((f"g{appwrapper}x{number}.example.com/v1", "Thing") for number in range(256))


def asked(server: FakeApiServer) -> Counter[str]:
    return Counter(each.path for each in server.requests("GET"))


async def test_ten_appwrappers_of_256_unknown_kinds_each_cost_one_request(
    server: FakeApiServer, client: ClusterClient
) -> None:
    kinds = frozenset[tuple[str, str]]().union(*map(unknown, range(10)))
    async with surveying(client) as (survey, found):
        await survey.ask_for(kinds).wait()
        assert survey.missing(kinds) == kinds
        assert asked(server) == {"/apis": 1, "/readyz": 1}
        await asyncio.sleep(29)  # virtual
        assert asked(server) == {"/apis": 3, "/readyz": 3}
    assert found == []


@pytest.mark.parametrize("kind", [RAY, WIDGET])
async def test_kind_is_recognised_beside_unknown_ones_at_once(
    server: FakeApiServer, client: ClusterClient, kind: tuple[str, str]
) -> None:
    kinds = frozenset[tuple[str, str]]().union(*map(unknown, range(10)))
    async with surveying(client) as (survey, found):
        await survey.ask_for(kinds).wait()
        begun, before = monotonic(), len(server.asked)
        await survey.ask_for(kinds | {kind}).wait()
        assert survey.missing(kinds | {kind}) == kinds
        assert monotonic() - begun < 0.5
        assert len(server.asked) - before <= 3
        assert len(found) == 1


async def test_known_kind_does_not_wait_for_a_group_that_hangs(
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


async def test_kind_that_is_installed_is_found_when_another_appwrapper_asks_for_it(
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


async def test_kinds_that_nobody_asks_for_any_more_are_forgotten(
    server: FakeApiServer, client: ClusterClient
) -> None:
    async with surveying(client) as (survey, _):
        await survey.ask_for(unknown(1)).wait()
        survey.missing(frozenset())
        before = len(server.asked)
        await asyncio.sleep(60)  # virtual
        assert len(server.asked) == before


async def test_kind_whose_definition_is_removed_is_looked_for_anew(
    server: FakeApiServer, client: ClusterClient
) -> None:
    discovery = Discovery(client)
    survey = KindSurvey(discovery, lambda: None)
    task = asyncio.create_task(survey.run())
    await survey.ask_for(frozenset({RAY})).wait()
    discovery.forget(await discovery.find(*RAY))
    assert survey.missing(frozenset({RAY})) == {RAY}
    await until(lambda: not survey.missing(frozenset({RAY})))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
