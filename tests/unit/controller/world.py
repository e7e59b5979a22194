"""The controller's parts put together as `app` does it, over a scripted API server and a store that remembers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dispatcher.controller.admission import Admission
from dispatcher.controller.cluster import Cluster
from dispatcher.controller.committer import Committer
from dispatcher.controller.hub import Hub
from dispatcher.controller.reconciler import Parts, Reconciler
from dispatcher.controller.reporter import Reporter
from dispatcher.controller.roster import Roster
from dispatcher.controller.specs import Specs
from dispatcher.controller.workqueue import WorkQueue
from dispatcher.core import lifecycle
from dispatcher.core.capacity import CapacityLedger
from dispatcher.core.record import Record
from dispatcher.kube.appwrappers import AppWrapperView, decode
from dispatcher.kube.client import ClusterClient
from tests.builders import at, make_core_node
from tests.fakes import FakeApiServer, answer
from tests.unit.controller.store import FakeStore
from tests.unit.virtual_time import monotonic

Json = dict[str, Any]

APPWRAPPERS = "/apis/workload.codeflare.dev/v1beta1/namespaces/default/appwrappers"
PODS = "/api/v1/namespaces/default/pods"


@dataclass
class World:
    """One hub cluster; its API server serves pods and AppWrappers and is scripted by the test."""

    server: FakeApiServer
    client: ClusterClient
    store: FakeStore = field(default_factory=FakeStore)
    dispatch_wakes: int = 0

    def __post_init__(self) -> None:
        self.ledger = CapacityLedger()
        self.ledger.set_node(make_core_node("n1", cpu=8000))
        self.queue = WorkQueue(monotonic)
        self.roster = Roster({"hub": self.ledger})
        self.cluster = Cluster("hub", self.client, self.ledger, self.wake_dispatch, self.queue.add)
        self.clusters = {"hub": self.cluster}
        self.hub = Hub(self.client, self.cluster.discovery, self.queue.add)
        self.committer = Committer(self.store, self.roster, lambda _change, _record: None)
        self.specs = Specs(self.store)
        self.admitted: list[str] = []
        self.failed: list[str] = []
        self.admission = Admission(
            self.hub,
            self.roster,
            self.committer,
            self.clusters,
            self.specs,
            "the-hub",
            lambda record: self.admitted.append(record.name),
            self.comes_back,
            self.now,
        )
        self.reporter = Reporter(self.hub, self.roster, self.clusters, self.queue, monotonic)
        self.reconciler = Reconciler(
            Parts(
                hub=self.hub,
                hub_id="the-hub",
                clusters=self.clusters,
                roster=self.roster,
                committer=self.committer,
                admission=self.admission,
                specs=self.specs,
                reporter=self.reporter,
                queue=self.queue,
                wake_dispatch=self.wake_dispatch,
                now=self.now,
            )
        )
        serves = {
            "/api/v1": ("pods", "Pod"),
            "/apis/workload.codeflare.dev/v1beta1": ("appwrappers", "AppWrapper"),
        }
        for path, (name, kind) in serves.items():
            self.server.on(
                "GET", path, answer({"resources": [{"name": name, "kind": kind, "namespaced": True}]})
            )
        self.server.on("GET", "/api/v1/pods", answer({"metadata": {"resourceVersion": "1"}, "items": []}))

    def now(self) -> datetime:
        return at(monotonic())

    def comes_back(self, uid: str) -> None:
        self.failed.append(uid)
        self.queue.add_failed(uid)

    def wake_dispatch(self) -> None:
        self.dispatch_wakes += 1

    def show(self, raw: Json) -> AppWrapperView:
        """Have the watch of the hub show this AppWrapper."""
        view = decode(raw)
        self.hub.reflectors[0].items[view.uid] = view
        self.hub.reflectors[0].synced.set()
        name = view.name
        self.server.on("GET", f"{APPWRAPPERS}/{name}", answer(raw))
        self.server.on(
            "PATCH", f"{APPWRAPPERS}/{name}/status", answer({"metadata": {"resourceVersion": "2"}})
        )
        return view

    def hide(self, uid: str) -> None:
        """Have the watch of the hub say that this AppWrapper is gone."""
        self.hub.reflectors[0].items.pop(uid, None)

    async def admit(self, raw: Json) -> Record:
        """Have an AppWrapper shown and taken in."""
        view = self.show(raw)
        self.admission.add(view.uid)
        await self.admission.admit_all()
        return self.record(view.uid)

    async def dispatched(self, raw: Json) -> Record:
        """Have an AppWrapper taken in and committed to the hub's cluster."""
        record = await self.admit(raw)
        await self.committer.commit(lifecycle.dispatch(record, "hub", self.now()))
        return self.record(record.uid)

    def record(self, uid: str) -> Record:
        found = self.roster.get(uid)
        assert found is not None
        return found

    async def reconcile(self, uid: str, times: int = 1) -> None:
        for _ in range(times):
            await self.reconciler.reconcile(uid)

    def statuses(self) -> list[Json]:
        """The statuses written, in order."""
        return [each.body[1]["value"] for each in self.server.requests("PATCH")]


@asynccontextmanager
async def world_of(server: FakeApiServer, client: ClusterClient) -> AsyncIterator[World]:
    world = World(server, client)
    tasks = [
        asyncio.create_task(world.committer.run()),
        asyncio.create_task(world.cluster.live_pods.run()),
    ]
    try:
        yield world
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
