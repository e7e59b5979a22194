"""A hub and its members as scripted API servers, for tests of the connector and the fleet."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from aiohttp import web

from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.core.status.clusters import ClusterState
from dispatcher.errors import SettingsError
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.kubeconfig import Connection
from tests.builders import at, make_metadata, make_node
from tests.fakes import FakeApiServer, Reply, answer, client_of, never, watch
from tests.unit.virtual_time import monotonic

HUB_UID: Final = "uid-of-hub"
NAMESPACE: Final = "dispatcher"
SECRETS: Final = f"/api/v1/namespaces/{NAMESPACE}/secrets"
KUBE_SYSTEM: Final = "/api/v1/namespaces/kube-system"
NODES: Final = "/api/v1/nodes"
EXEC: Final = {"exec": {"command": "sh", "apiVersion": "client.authentication.k8s.io/v1"}}


def kubeconfig(name: str, *, user: Json | None = None, cluster: Json | None = None) -> bytes:
    """A kubeconfig of the member with that name, with the token `good` unless `user` is given."""
    server = f"https://{name}.example:6443"
    return orjson.dumps(
        {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": server, **(cluster or {})}}],
            "users": [{"name": "it", "user": user or {"token": "good"}}],
        }
    )


def holds(content: bytes, key: str = "kubeconfig") -> Reply:
    """Replies a Secret with that content under one key."""
    return answer({"data": {key: base64.b64encode(content).decode()}})


def collection(*items: Json) -> Reply:
    """Replies a list of these, and a watch without events."""
    page = answer({"metadata": {"resourceVersion": "10"}, "items": list(items)})
    watching = watch(then=never)

    async def reply(request: web.Request) -> web.StreamResponse:
        return await (watching if "watch" in request.query else page)(request)

    return reply


def is_cluster(server: FakeApiServer, uid: str) -> None:
    """Script the API server of a cluster with one node of 8 cpu and the namespace `default`."""
    server.on("GET", KUBE_SYSTEM, answer({"metadata": {"uid": uid}}))
    server.on("GET", NODES, collection(make_node(cpu="8")))
    server.on("GET", "/api/v1/pods", collection())
    server.on("GET", "/api/v1/namespaces", collection({"metadata": make_metadata("default")}))


class FakeClusterRecords:
    """The records of clusters in memory: `uids` by name, and each recorded change."""

    def __init__(self) -> None:
        self.uids: dict[str, str] = {}
        self.asked: list[str] = []
        self.unreachable_notes: list[tuple[str, datetime | None]] = []
        self.said: list[str] = []
        self.states: list[tuple[str, ClusterState]] = []
        self.rotated: list[str] = []
        self.seen: list[set[str]] = []
        self.times: list[datetime] = []
        self.failure: Exception | None = None

    async def recognise_cluster(self, name: str, uid: str, at: datetime) -> None:
        self.asked.append(name)
        await self._answer(at)
        holders = [other for other, known in self.uids.items() if known == uid]
        if name not in self.uids and holders:
            raise SettingsError(f"its API server has the uid of cluster {holders[0]}")
        if self.uids.setdefault(name, uid) != uid:
            raise SettingsError(f"the cluster {name!r} of this database is another one")

    async def note_unreachable(self, name: str, since: datetime, message: str) -> None:
        await self._answer(since)
        self.unreachable_notes.append((name, since))
        self.said.append(message)

    async def note_reachable(self, name: str, at: datetime) -> None:
        await self._answer(at)
        self.unreachable_notes.append((name, None))

    async def note_state(self, name: str, state: ClusterState, at: datetime) -> None:
        await self._answer(at)
        self.states.append((name, state))

    async def note_rotation(self, name: str, at: datetime) -> None:
        await self._answer(at)
        self.rotated.append(name)

    async def note_seen(self, names: Collection[str]) -> None:
        await self._fail_if_told()
        self.seen.append(set(names))

    async def _answer(self, at: datetime) -> None:
        self.times.append(at)
        await self._fail_if_told()

    async def _fail_if_told(self) -> None:
        await asyncio.sleep(0.01)  # virtual
        if self.failure is not None:
            raise self.failure


class Clusters:
    """The API servers of a hub and its members by name, and each connection to one of them."""

    def __init__(self, hub: FakeApiServer, members: Mapping[str, FakeApiServer]) -> None:
        self.hub = hub
        self.members = members
        self.records = FakeClusterRecords()
        self.clients: list[ClusterClient] = []
        self.tokens: list[str] = []
        self.capacity_changes = 0
        self.on_capacity: Callable[[], object] = lambda: None
        for name, server in members.items():
            is_cluster(server, f"uid-of-{name}")
            hub.on("GET", f"{SECRETS}/cluster-{name}", holds(kubeconfig(name)))

    def now(self) -> datetime:
        return at(monotonic())

    def connect(self, to: Connection) -> ClusterClient:
        """A client of the member that the kubeconfig names; of one that nobody scripted, as it is."""
        name = str(urlsplit(to.server).hostname).partition(".")[0]
        if name not in self.members:
            return ClusterClient.of(to)
        self.tokens.append(to.token)
        self.clients.append(client_of(self.members[name], token=to.token))
        return self.clients[-1]

    def make_cluster(self, name: str, client: ClusterClient) -> WatchedCluster:
        return WatchedCluster(
            name,
            client,
            CapacityLedger(),
            on_capacity=self._capacity_changed,
            on_pods=lambda _appwrapper: None,
        )

    def _capacity_changed(self) -> None:
        self.capacity_changes += 1
        self.on_capacity()


def is_closed(client: ClusterClient) -> bool:
    """True once the connection cannot be used."""
    closed: bool = client._session.closed  # noqa: SLF001  # it does not tell
    return closed


def declaration(name: str, *, labels: Json | None = None, uid: str = "", **spec: Any) -> Json:  # noqa: ANN401
    """A MemberCluster in the API; its kubeconfig is in the Secret `cluster-NAME`, except for the hub."""
    reference = {} if name == "hub" else {"kubeconfigSecretRef": {"name": f"cluster-{name}"}}
    fields = {"uid": uid} if uid else {}
    accepted = {"acceptedNamespaces": "All"}
    return {
        "metadata": make_metadata(name, labels=labels or {}, **fields),
        "spec": {**reference, **accepted, **spec},
    }
