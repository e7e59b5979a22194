"""A pod counts for an AppWrapper only in its namespace, from the first moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatcher.api.names import HUB_ANNOTATION, UID_LABEL
from dispatcher.controller.members.cluster import Cluster
from dispatcher.core.model.pods import PodCounts
from dispatcher.core.scheduling.capacity_ledger import CapacityLedger
from dispatcher.kube.client import ClusterClient
from tests.builders import make_metadata, make_node, make_owner, make_pod, make_record
from tests.fakes import FakeApiServer, answer, never
from tests.unit import workers
from tests.unit.controller.test_cluster import AW, event, has, running
from tests.unit.virtual_time import until

Json = dict[str, Any]

APPWRAPPER = {"apiVersion": "workload.codeflare.dev/v1beta1", "kind": "AppWrapper", "name": "aw", "uid": AW}
REPLICASET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "uid-of-web"}
ANCHOR = {"apiVersion": "v1", "kind": "ConfigMap", "name": f"appwrapper-{AW}-1", "uid": "uid-of-anchor"}


@pytest.mark.parametrize("controller", [APPWRAPPER, REPLICASET])
async def test_pod_of_another_namespace_does_not_count_for_an_appwrapper_or_wake_it_or_reduce_its_demand(
    server: FakeApiServer, client: ClusterClient, controller: Json
) -> None:
    """The leader has created and resolved nothing yet that shows the namespace of the AppWrapper."""
    server.on("GET", "/apis/apps/v1", never)
    has(server, "nodes", make_node("n1", cpu="8"))
    has(server, "pods", make_pod("forged", cpu="1", of=AW, controller=controller, namespace="evil"))
    async with running(client) as it:
        it.ledger.reserve(AW, make_record().gang)
        await it.cluster.wait_until_listed()
        await asyncio.sleep(1)  # virtual
        assert it.cluster.pod_counts(AW) == PodCounts()
        assert it.pods_of == []
        assert it.ledger.free()["cpu"] == 8000 - 1000 - 1000
    assert server.requests("GET", "/apis/apps/v1") == []


async def test_pod_in_the_namespace_reduces_the_demand_while_its_owner_is_resolved(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", "/apis/apps/v1", never)
    has(server, "nodes", make_node("n1", cpu="8"))
    has(server, "pods", make_pod("fine", cpu="1", of=AW, controller=REPLICASET))
    async with running(client) as it:
        it.ledger.reserve(AW, make_record().gang)
        await it.cluster.wait_until_listed()
        assert it.ledger.free()["cpu"] == 8000 - 1000


async def test_pod_of_another_namespace_does_not_reduce_the_demand_while_another_owner_is_resolved(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", "/apis/apps/v1", never)
    has(server, "nodes", make_node("n1", cpu="8"))
    fine = make_pod("fine", cpu="1", node="", of=AW, controller=REPLICASET)
    forged = make_pod("forged", cpu="1", of=AW, controller=REPLICASET, namespace="evil")
    has(server, "pods", fine, forged)
    async with running(client) as it:
        it.ledger.reserve(AW, make_record().gang)
        await it.cluster.wait_until_listed()
        assert it.ledger.free()["cpu"] == 8000 - 1000 - 1000


@pytest.mark.parametrize("claim", [AW, None])
async def test_pods_of_an_appwrapper_that_becomes_known_later_count_from_then_on(
    server: FakeApiServer, client: ClusterClient, claim: str | None
) -> None:
    has(server, "nodes", make_node("n1", cpu="8"))
    forged = make_pod("forged", of=claim or "", controller=APPWRAPPER, namespace="evil")
    has(server, "pods", make_pod("fine", of=claim or "", controller=APPWRAPPER), forged)
    async with running(client) as it:
        it.homes.clear()
        await it.cluster.wait_until_listed()
        assert (it.cluster.pod_counts(AW), it.pods_of) == (PodCounts(), [])
        it.homes[AW] = "default"
        it.cluster.recount_claims()
        assert (it.cluster.pod_counts(AW), it.pods_of) == (PodCounts(running=1), [AW])
        it.cluster.recount_claims_of(AW)
        assert it.pods_of == [AW]


async def test_pod_with_an_often_rewritten_claim_is_noted_once(
    server: FakeApiServer, client: ClusterClient
) -> None:
    rewritten = [
        event("MODIFIED", make_pod("p", of=f"made-up-{n}", controller={**REPLICASET, "uid": f"rs-{n}"}), n)
        for n in range(11, 61)
    ]
    has(server, "nodes", make_node("n1", cpu="8"))
    has(server, "pods", make_pod("p", of="made-up", controller=REPLICASET), then=rewritten)
    async with running(client) as it:
        cluster = it.cluster
        await until(lambda: "made-up-60" in cluster._unknown_claims)  # noqa: SLF001  # nothing tells what is kept
        assert len(cluster._unknown_claims) == len(cluster._unresolved_pods) == 1  # noqa: SLF001


async def test_wrapped_pod_in_a_member_counts_by_the_uid_of_its_anchor_and_not_by_its_name(
    server: FakeApiServer, client: ClusterClient
) -> None:
    configmaps = {"name": "configmaps", "kind": "ConfigMap", "namespaced": True}
    server.on("GET", "/api/v1", answer({"resources": [configmaps]}))
    there = make_metadata(
        ANCHOR["name"], uid=ANCHOR["uid"], labels={UID_LABEL: AW}, annotations={HUB_ANNOTATION: "the-hub"}
    )
    server.on("POST", "/api/v1/namespaces/default/configmaps", answer({"metadata": there}))
    server.on("GET", f"/api/v1/namespaces/default/configmaps/{ANCHOR['name']}", answer({"metadata": there}))
    has(server, "namespaces")
    has(server, "nodes", make_node("n1", cpu="8"))
    by_name = make_pod("forged", of=AW, controller={**ANCHOR, "uid": "made-up"})
    by_kind = make_pod("also-forged", of=AW, controller=APPWRAPPER)
    has(server, "pods", make_pod("fine", of=AW, controller=ANCHOR), by_name, by_kind)
    told: list[str] = []
    home = {AW: "default"}.get
    cluster = Cluster(
        "east", client, CapacityLedger(), on_capacity=lambda: None, on_pods=told.append, namespace_of=home
    )
    async with workers.running(cluster.run()):
        await cluster.wait_until_listed()
        await cluster.anchors.ensure(make_owner())
        await until(lambda: cluster.pod_counts(AW) == PodCounts(running=1))
        await asyncio.sleep(1)  # virtual
        assert cluster.pod_counts(AW) == PodCounts(running=1)
