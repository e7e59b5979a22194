"""One cluster: its watches feed the ledger, and its pods are confirmed before they count for anybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dispatcher.controller.cluster import Cluster
from dispatcher.core import lifecycle
from dispatcher.core.capacity import CapacityLedger, PodCounts
from dispatcher.kube.client import ClusterClient
from tests.builders import at, make_metadata, make_node, make_pod, make_record, make_ref
from tests.fakes import FakeApiServer, Reply, answer, never, watch
from tests.unit.virtual_time import until

Json = dict[str, Any]

AW = "uid-of-aw"
RAY = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "ray", "uid": "uid-of-ray"}
RAYCLUSTER = "/apis/ray.io/v1/namespaces/default/rayclusters/ray"


class Observed:
    """A cluster that runs, and what it told."""

    def __init__(self, client: ClusterClient) -> None:
        self.ledger = CapacityLedger()
        self.capacity_changes = 0
        self.pods_of: list[str] = []
        self.cluster = Cluster("hub", client, self.ledger, self._capacity_changed, self.pods_of.append)

    def _capacity_changed(self) -> None:
        self.capacity_changes += 1


def has(server: FakeApiServer, plural: str, *listed: Json, then: list[Json] | None = None) -> None:
    """Script the list of nodes or pods, and what its watch says afterwards."""
    page = answer({"metadata": {"resourceVersion": "10"}, "items": list(listed)})
    watching = watch(*(then or ()), then=never)

    async def reply(request: Any) -> Any:  # noqa: ANN401
        chosen: Reply = watching if "watch" in request.query else page
        return await chosen(request)

    server.on("GET", f"/api/v1/{plural}", reply)


def event(type_: str, raw: Json, version: int) -> Json:
    raw["metadata"]["resourceVersion"] = str(version)
    return {"type": type_, "object": raw}


@asynccontextmanager
async def running(client: ClusterClient) -> AsyncIterator[Observed]:
    observed = Observed(client)
    task = asyncio.create_task(observed.cluster.run())
    try:
        yield observed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_nothing_is_known_before_nodes_and_pods_were_listed(
    server: FakeApiServer, client: ClusterClient
) -> None:
    has(server, "nodes", make_node())
    async with running(client) as it:
        await until(lambda: it.capacity_changes)
        assert not it.cluster.is_known
        has(server, "pods")
        await it.cluster.wait_until_known()
        assert it.cluster.is_known


async def test_free_is_what_nodes_have_less_what_pods_ask_for(
    server: FakeApiServer, client: ClusterClient
) -> None:
    has(server, "nodes", make_node("n1", cpu="8"), make_node("n2", cpu="8", ready="False"))
    has(
        server,
        "pods",
        make_pod("a", cpu="3"),
        make_pod("b", cpu="3", node="n2"),
        make_pod("c", phase="Failed"),
    )
    async with running(client) as it:
        await it.cluster.wait_until_known()
        assert it.ledger.free()["cpu"] == 5000


async def test_pod_that_ends_frees_and_wakes_the_planner_and_a_heartbeat_does_not(
    server: FakeApiServer, client: ClusterClient
) -> None:
    heartbeat = make_node("n1", cpu="8")
    has(server, "nodes", make_node("n1", cpu="8"), then=[event("MODIFIED", heartbeat, 11)])
    has(
        server,
        "pods",
        make_pod("a", cpu="3"),
        then=[event("MODIFIED", make_pod("a", cpu="3", phase="Succeeded"), 11)],
    )
    async with running(client) as it:
        await until(lambda: it.ledger.free()["cpu"] == 8000)
        await asyncio.sleep(1)  # virtual
        assert it.capacity_changes == 2  # the node came, the pod ended


async def test_node_that_is_gone_is_no_capacity(server: FakeApiServer, client: ClusterClient) -> None:
    has(server, "nodes", make_node("n1", cpu="8"), then=[event("DELETED", make_node("n1", cpu="8"), 11)])
    has(server, "pods")
    async with running(client) as it:
        await until(lambda: it.capacity_changes == 2)
        assert it.ledger.free()["cpu"] == 0


async def test_pod_of_an_object_we_created_counts_for_its_appwrapper_at_once(
    server: FakeApiServer, client: ClusterClient
) -> None:
    has(server, "nodes", make_node())
    has(server, "pods", make_pod("a", of=AW, controller=RAY))
    dispatching = lifecycle.dispatch(make_record(), "hub", at(1)).after
    record = lifecycle.created(dispatching, (make_ref(name="ray", uid="uid-of-ray"),), at(2)).after
    async with running(client) as it:
        it.cluster.learn(record)
        await it.cluster.wait_until_known()
        assert it.cluster.pod_counts(AW) == PodCounts(running=1)
        assert it.pods_of == [AW]
    assert server.requests(path=RAYCLUSTER) == []


async def test_pods_of_a_gang_that_is_adopted_count_for_it_though_they_bear_none_of_our_labels(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """MCAD's pods: listed as anyone's, until the AppWrapper whose RayCluster made them is taken in."""
    has(server, "nodes", make_node("n1"))
    has(server, "pods", make_pod("head", controller=RAY))
    dispatching = lifecycle.dispatch(make_record(), "hub", at(1)).after
    record = lifecycle.created(dispatching, (make_ref(name="ray", uid="uid-of-ray"),), at(2)).after
    async with running(client) as it:
        await it.cluster.wait_until_known()
        assert it.cluster.pod_counts(AW) == PodCounts()
        it.cluster.learn(record)
        assert it.cluster.pod_counts(AW) == PodCounts(running=1)
        assert it.pods_of == [AW]


async def test_pod_seen_before_its_owner_is_understood_counts_as_soon_as_it_is(
    server: FakeApiServer, client: ClusterClient
) -> None:
    rayclusters = {"name": "rayclusters", "kind": "RayCluster", "namespaced": True}
    server.on("GET", "/apis/ray.io/v1", answer({"resources": [rayclusters]}))
    owner = {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "name": "aw",
        "uid": AW,
        "controller": True,
    }
    server.on("GET", RAYCLUSTER, answer({"metadata": make_metadata("ray", ownerReferences=[owner])}))
    has(server, "nodes", make_node())
    has(server, "pods", *(make_pod(name, of=AW, controller=RAY) for name in ("a", "b")))
    async with running(client) as it:
        await until(lambda: it.cluster.pod_counts(AW) == PodCounts(running=2))
        assert set(it.pods_of) == {AW}
    assert len(server.requests(path=RAYCLUSTER)) == 1


async def test_pod_that_only_claims_to_be_of_an_appwrapper_counts_as_anyones(
    server: FakeApiServer, client: ClusterClient
) -> None:
    has(server, "nodes", make_node("n1", cpu="8"))
    has(server, "pods", make_pod("forged", cpu="2", of=AW))
    async with running(client) as it:
        it.ledger.reserve(AW, make_record().gang.demand)
        await it.cluster.wait_until_known()
        assert it.cluster.pod_counts(AW) == PodCounts()
        assert it.ledger.free()["cpu"] == 8000 - 2000 - 1000


async def test_pod_that_is_gone_counts_no_longer(server: FakeApiServer, client: ClusterClient) -> None:
    pod = make_pod("a", of=AW, controller={**RAY, "uid": AW})
    has(server, "nodes", make_node())
    has(server, "pods", pod, then=[event("DELETED", make_pod("a", of=AW, controller={**RAY, "uid": AW}), 11)])
    async with running(client) as it:
        await until(lambda: it.pods_of == [AW, AW])
        assert it.cluster.pod_counts(AW) == PodCounts()
