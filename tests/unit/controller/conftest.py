"""These tests run the controller's parts in virtual time, against a scripted API server where there is one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dispatcher.kube.client import ClusterClient
from tests.fakes import FakeApiServer
from tests.unit.controller.world import World, world_of
from tests.unit.scripted import client, no_proxies, pytest_asyncio_loop_factories, server

__all__ = ["client", "no_proxies", "pytest_asyncio_loop_factories", "server", "world"]


@pytest.fixture
async def world(server: FakeApiServer, client: ClusterClient) -> AsyncIterator[World]:
    """The controller over a scripted API server."""
    async with world_of(server, client) as world:
        yield world
