"""These tests run the controller's parts in virtual time, against a scripted API server where there is one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from dispatcher.kube.client import ClusterClient
from tests.fakes import FakeApiServer, client_of
from tests.unit.controller.world import World, world_of
from tests.unit.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualTimeLoop}


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted server is reached directly, whatever the environment says."""
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    """A scripted API server."""
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[ClusterClient]:
    """A client of the scripted API server."""
    async with client_of(server) as client:
        yield client


@pytest.fixture
async def world(server: FakeApiServer, client: ClusterClient) -> AsyncIterator[World]:
    """The controller over a scripted API server."""
    async with world_of(server, client) as world:
        yield world
