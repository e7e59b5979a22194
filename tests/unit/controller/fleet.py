"""A hub with its fleet and two members, over scripted API servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest

from dispatcher.api.clusters.clusterpolicies import OnClusterLost
from dispatcher.api.names import MEMBERS_PATH
from dispatcher.controller.members.connector import Means, Pace
from dispatcher.controller.members.fleet import Fleet, FleetCallbacks
from dispatcher.core.lifecycle.step import Loss
from dispatcher.core.model.records.requirements import ANYWHERE, ClusterRequirements
from dispatcher.core.scheduling.fit.cluster_filters import Closed
from dispatcher.kube.client import ClusterClient
from tests.builders import make_node
from tests.fakes import FakeApiServer, answer, refusal
from tests.unit.controller.members import (
    HUB_UID,
    KUBE_SYSTEM,
    NAMESPACE,
    NODES,
    Clusters,
    collection,
    declaration,
)
from tests.unit.controller.wire import Watched
from tests.unit.virtual_time import until
from tests.unit.workers import running

Json = dict[str, Any]

FAILS = refusal(500, "InternalError")


def status_path(name: str) -> str:
    return f"{MEMBERS_PATH}/{name}/status"


class Bench(Clusters):
    """A hub with one node of 4 cpu, its fleet, and the callbacks of the fleet."""

    def __init__(self, hub: FakeApiServer, client: ClusterClient, members: dict[str, FakeApiServer]) -> None:
        super().__init__(hub, members)
        self.woken: list[str] = []
        self.running: dict[str, int] = {}
        self.declared = Watched(hub, "/apis/dispatcher.codeflare.dev/v1alpha1", "memberclusters")
        hub.on("GET", NODES, collection(make_node(cpu="4")))
        hub.on("GET", "/api/v1/pods", collection())
        for name in ("hub", *members):
            hub.on("PATCH", status_path(name), answer({}))
        self.itself = self.make_cluster("hub", client)
        self.fleet = Fleet(
            self.itself,
            HUB_UID,
            Means(
                hub=client,
                namespace=NAMESPACE,
                connect=self.connect,
                make_cluster=self.make_cluster,
                records=self.records,
                now=self.now,
                pace=Pace(probe=5, unreachable=15),
            ),
            FleetCallbacks(self._capacity_changed, self.woken.append),
            lambda name: self.running.get(name, 0),
        )

    def has(self, name: str, **fields: Any) -> None:  # noqa: ANN401
        """Declare a member, or change its declaration."""
        self.declared.has(declaration(name, **fields))

    async def connected(self, name: str, **fields: Any) -> None:  # noqa: ANN401
        """Declare a member, and return once it is connected."""
        self.has(name, **fields)
        await until(lambda: name in self.fleet.clusters)

    async def lost(self, name: str = "east", **fields: Any) -> datetime:  # noqa: ANN401
        """Have a member connected and lost; returns since when it is unreachable."""
        await self.connected(name, **fields)
        self.members[name].on("GET", KUBE_SYSTEM, FAILS)
        await until(lambda: name not in self.fleet.clusters)
        since = dict(self.records.unreachable_notes)[name]
        assert since is not None
        return since

    def statuses(self, name: str = "east") -> list[Json]:
        """The statuses written of a member, in order."""
        return [each.body[1]["value"] for each in self.hub.requests("PATCH", status_path(name))]

    def closed(self, name: str, where: ClusterRequirements = ANYWHERE) -> Closed | None:
        return self.fleet.snapshots([where])[name].closed


@asynccontextmanager
async def benching(hub: FakeApiServer, client: ClusterClient) -> AsyncIterator[Bench]:
    async with FakeApiServer() as east, FakeApiServer() as west:
        yield Bench(hub, client, {"east": east, "west": west})


@pytest.fixture
async def idle(server: FakeApiServer, client: ClusterClient) -> AsyncIterator[Bench]:
    """A hub and two members, without a running fleet."""
    async with benching(server, client) as bench:
        yield bench


@pytest.fixture
async def bench(idle: Bench) -> AsyncIterator[Bench]:
    """A hub and two members that are not declared."""
    hub = asyncio.create_task(idle.itself.run())
    async with running(idle.fleet.run()):
        await idle.itself.wait_until_listed()
        await idle.fleet.wait_for_members()
        yield idle
    hub.cancel()
    await asyncio.gather(hub, return_exceptions=True)


def undeclared(bench: Bench, name: str = "east") -> Loss:
    message = f"cluster {name} is not declared any more; what runs there may go on"
    return Loss(OnClusterLost.WAIT, bench.now(), message, is_undeclared=True)
