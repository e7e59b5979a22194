"""Fixtures of the folders whose tests talk to a scripted API server on the loopback, in virtual time.

A folder's conftest imports them: virtual time is for those folders, and not for all of `tests/unit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from dispatcher.kube.client import ClusterClient
from tests.fakes import FakeApiServer, client_of
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
