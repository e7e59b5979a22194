"""One cluster: its watches feed the ledger, and its pods are confirmed before they count for an AppWrapper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatcher.api.names import GROWTH_ANNOTATION, GROWTH_GATE, HUB_ANNOTATION, ITEM_ANNOTATION, UID_LABEL
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.core.kinds.object_status import End
from dispatcher.core.lifecycle import queue_changes, removal, run_changes
from dispatcher.core.model.gangs.pods import PodCounts
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.objects.live_pod_lister import LiveItems
from tests.builders import at, make_metadata, make_node, make_owner, make_pod, make_record, make_ref
from tests.fakes import FakeApiServer, Reply, answer, never, text, watch
from tests.unit import workers
from tests.unit.virtual_time import monotonic, until

Json = dict[str, Any]

AW = "uid-of-aw"
RAY = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "ray", "uid": "uid-of-ray"}
RAYCLUSTER = "/apis/ray.io/v1/namespaces/default/rayclusters/ray"


class Observed:
    """A running cluster and its callbacks."""

    def __init__(self, client: ClusterClient) -> None:
        self.ledger = CapacityLedger()
        self.capacity_changes = 0
        self.pods_of: list[str] = []
        self.on_pods: Callable[[str], object] = lambda _appwrapper: None
        self.homes = {AW: "default"}
        self.cluster = WatchedCluster(
            "hub",
            client,
            self.ledger,
            on_capacity=self._capacity_changed,
            on_pods=self._pods_changed,
            namespace_of=self.homes.get,
        )

    def _capacity_changed(self) -> None:
        self.capacity_changes += 1

    def _pods_changed(self, appwrapper: str) -> None:
        self.pods_of.append(appwrapper)
        self.on_pods(appwrapper)


def has(server: FakeApiServer, plural: str, *listed: Json, then: list[Json] | None = None) -> None:
    """Script the list of nodes or pods, and the events of its watch."""
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
    async with workers.running(observed.cluster.run()):
        yield observed


async def test_cluster_is_not_ready_before_nodes_and_pods_are_listed(
    server: FakeApiServer, client: ClusterClient
) -> None:
    has(server, "nodes", make_node())
    async with running(client) as it:
        await until(lambda: it.capacity_changes)
        assert not it.cluster.is_ready
        has(server, "pods")
        await it.cluster.wait_until_listed()
        assert it.cluster.is_ready


async def test_wrapped_objects_are_listed_after_the_lists_the_first_dispatch_needs(
    server: FakeApiServer, client: ClusterClient
) -> None:
    has(server, "nodes")
    has(server, "pods")
    has(server, "configmaps")
    kinds = [{"name": "configmaps", "kind": "ConfigMap", "namespaced": True}]
    server.on("GET", "/api/v1", answer({"resources": kinds}))
    listed, cluster = asyncio.Event(), Observed(client).cluster

    async def wait() -> None:
        await listed.wait()

    cluster.objects.want("v1", "ConfigMap")
    async with workers.running(cluster.run(wait)):
        await cluster.wait_until_listed()
        await asyncio.sleep(1)  # virtual
        assert server.requests("GET", "/api/v1/configmaps") == []
        listed.set()
        await until(lambda: server.requests("GET", "/api/v1/configmaps"))


async def test_free_capacity_is_that_of_nodes_minus_the_requests_of_pods(
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
        await it.cluster.wait_until_listed()
        assert it.ledger.free()["cpu"] == 5000


async def test_names_of_nodes_beyond_the_bounds_are_logged_once_and_the_others_count(
    server: FakeApiServer, client: ClusterClient
) -> None:
    names: Json = {f"a.b/{number}": "1" for number in range(70)}
    nodes = [make_node(name, **names) for name in ("n1", "n2")]
    has(server, "nodes", *nodes)
    has(server, "pods")
    with capture_logs() as logs:
        async with running(client) as observed:
            await observed.cluster.wait_until_listed()
    told = [each for each in logs if each["event"] == "node_names_left_out"]
    assert [(each["cluster"], each["node"], each["left_out"]) for each in told] == [("hub", "n1", 6)]
    assert (len(observed.ledger.total()), observed.ledger.left_out) == (64, 12)


async def test_ended_pod_frees_capacity_and_wakes_the_scheduler_and_a_heartbeat_does_not(
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


def gated(name: str, *, has_gate: bool = True) -> Json:
    """A pod of the RayCluster without a node, with the dispatcher's gate or admitted."""
    pod = make_pod(name, node="", phase="Pending", of=AW, controller=RAY)
    pod["spec"]["schedulingGates"] = [{"name": GROWTH_GATE}] if has_gate else []
    pod["metadata"].setdefault("annotations", {})[GROWTH_ANNOTATION] = "1 0.w"
    return pod


async def test_pod_of_a_growth_wakes_the_scheduler_when_it_comes_and_goes_without_a_node_too(
    server: FakeApiServer, client: ClusterClient
) -> None:
    has(server, "nodes", make_node())
    events = [
        event("ADDED", gated("a"), 11),
        event("MODIFIED", gated("a"), 12),
        event("ADDED", gated("b"), 13),
        event("MODIFIED", gated("b", has_gate=False), 14),
        event("DELETED", gated("a"), 15),
        event("DELETED", gated("b", has_gate=False), 16),
    ]
    has(server, "pods", then=events)
    server.on("GET", "/apis/ray.io/v1", never)
    dispatching = queue_changes.dispatch(make_record(), "hub", at(1)).after
    record = run_changes.created(dispatching, (make_ref(name="ray", uid="uid-of-ray"),), at(2)).after
    async with running(client) as it:
        it.cluster.track(record)
        await until(lambda: len(it.pods_of) == 6)
        assert it.capacity_changes == 5  # the node, two pods that come, and that go, one of them granted


async def test_removed_node_has_no_capacity(server: FakeApiServer, client: ClusterClient) -> None:
    has(server, "nodes", make_node("n1", cpu="8"), then=[event("DELETED", make_node("n1", cpu="8"), 11)])
    has(server, "pods")
    async with running(client) as it:
        await until(lambda: it.capacity_changes == 2)
        assert it.ledger.free()["cpu"] == 0


async def test_pod_of_a_created_object_counts_for_its_appwrapper_at_once(
    server: FakeApiServer, client: ClusterClient
) -> None:
    has(server, "nodes", make_node())
    has(server, "pods", make_pod("a", of=AW, controller=RAY))
    dispatching = queue_changes.dispatch(make_record(), "hub", at(1)).after
    record = run_changes.created(dispatching, (make_ref(name="ray", uid="uid-of-ray"),), at(2)).after
    async with running(client) as it:
        it.cluster.track(record)
        await it.cluster.wait_until_listed()
        assert it.cluster.pod_counts(AW) == PodCounts(running=1)
        assert it.pods_of == [AW]
    assert server.requests(path=RAYCLUSTER) == []


@pytest.mark.parametrize(
    ("kind", "watched"),
    [
        ("RayCluster", {"raycluster.ray.io"}),
        ("RayJob", {"rayjob.ray.io", "raycluster.ray.io"}),
        ("RayService", {"rayservice.ray.io", "raycluster.ray.io"}),
    ],
)
async def test_rayclusters_are_watched_also_if_another_kind_creates_them(
    client: ClusterClient, kind: str, watched: set[str]
) -> None:
    it = Observed(client)
    it.cluster.track_object(ObjectRef(0, "ray.io/v1", kind, "default", "ray", "uid-of-ray"), AW)
    assert set(it.cluster.objects.reconnects) == watched


async def test_pods_of_an_adopted_gang_count_for_it_without_our_labels(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """Pods of MCAD count for no AppWrapper until the AppWrapper of their RayCluster is taken in."""
    has(server, "nodes", make_node("n1"))
    has(server, "pods", make_pod("head", controller=RAY))
    dispatching = queue_changes.dispatch(make_record(), "hub", at(1)).after
    record = run_changes.created(dispatching, (make_ref(name="ray", uid="uid-of-ray"),), at(2)).after
    async with running(client) as it:
        await it.cluster.wait_until_listed()
        assert it.cluster.pod_counts(AW) == PodCounts()
        it.cluster.track(record)
        assert it.cluster.pod_counts(AW) == PodCounts(running=1)
        assert it.pods_of == [AW]


async def test_pod_counts_for_its_appwrapper_once_its_owner_is_resolved(
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


async def test_pod_with_a_false_claim_counts_for_no_appwrapper(
    server: FakeApiServer, client: ClusterClient
) -> None:
    has(server, "nodes", make_node("n1", cpu="8"))
    has(server, "pods", make_pod("forged", cpu="2", of=AW))
    async with running(client) as it:
        it.ledger.reserve(AW, make_record().gang)
        await it.cluster.wait_until_listed()
        assert it.cluster.pod_counts(AW) == PodCounts()
        assert it.ledger.free()["cpu"] == 8000 - 2000 - 1000


async def test_removed_pod_does_not_count(server: FakeApiServer, client: ClusterClient) -> None:
    pod = make_pod("a", of=AW, controller={**RAY, "uid": AW})
    has(server, "nodes", make_node())
    has(server, "pods", pod, then=[event("DELETED", make_pod("a", of=AW, controller={**RAY, "uid": AW}), 11)])
    async with running(client) as it:
        await until(lambda: it.pods_of == [AW, AW])
        assert it.cluster.pod_counts(AW) == PodCounts()


APPWRAPPER = {"apiVersion": "workload.codeflare.dev/v1beta1", "kind": "AppWrapper", "name": "aw", "uid": AW}


def bound(name: str, node: str) -> Json:
    return make_pod(name, node=node, of=AW, controller=APPWRAPPER)


async def test_owners_of_the_pods_on_a_node_are_woken_when_it_becomes_unready_and_ready(
    server: FakeApiServer, client: ClusterClient
) -> None:
    heartbeat, silent, back = make_node("n1"), make_node("n1", ready="Unknown"), make_node("n1")
    changes = [("MODIFIED", heartbeat), ("MODIFIED", silent), ("MODIFIED", back)]
    told = asyncio.Event()

    async def nodes(request: Any) -> Any:  # noqa: ANN401
        if "watch" not in request.query:
            return await answer({"metadata": {"resourceVersion": "10"}, "items": [make_node("n1")]})(request)
        await told.wait()
        events = [event(type_, raw, 11 + number) for number, (type_, raw) in enumerate(changes)]
        return await watch(*events, then=never)(request)

    server.on("GET", "/api/v1/nodes", nodes)
    has(server, "pods", bound("a", "n1"), bound("b", "n1"), bound("c", "n2"))
    async with running(client) as it:
        await it.cluster.wait_until_listed()
        it.pods_of.clear()
        lost: list[int] = []
        it.on_pods = lambda appwrapper: lost.append(it.cluster.pod_counts(appwrapper).lost)
        told.set()
        await until(lambda: len(it.pods_of) == 2)
        await asyncio.sleep(1)  # virtual
        assert it.pods_of == [AW, AW]
        assert lost == [2, 0]


async def test_owners_are_woken_when_an_unready_node_is_removed(
    server: FakeApiServer, client: ClusterClient
) -> None:
    gone = event("DELETED", make_node("n1", ready="Unknown"), 11)
    has(server, "pods", bound("a", "n1"))
    async with running(client) as it:
        await until(lambda: it.pods_of == [AW])
        has(server, "nodes", make_node("n1", ready="Unknown"), then=[gone])
        await until(lambda: it.pods_of == [AW, AW, AW])
        assert it.cluster.pod_counts(AW) == PodCounts(running=1)


async def test_pods_of_a_deployment_created_by_mcad_count_for_its_appwrapper(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """The pods have MCAD's label and none of ours, and a ReplicaSet is their controller."""
    replicaset = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "uid-of-web-1"}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "uid-of-web"}
    kinds = {"replicasets": "ReplicaSet", "deployments": "Deployment"}
    resources = [{"name": name, "kind": kind, "namespaced": True} for name, kind in kinds.items()]
    server.on("GET", "/apis/apps/v1", answer({"resources": resources}))
    for plural, name, owner in (("replicasets", "web-1", deployment), ("deployments", "web", APPWRAPPER)):
        metadata = make_metadata(name, ownerReferences=[{**owner, "controller": True}])
        server.on("GET", f"/apis/apps/v1/namespaces/default/{plural}/{name}", answer({"metadata": metadata}))
    pod = make_pod("web-1-x", controller=replicaset)
    pod["metadata"]["labels"] = {"appwrapper.mcad.ibm.com": "aw"}
    has(server, "nodes", make_node())
    has(server, "pods", pod)
    async with running(client) as it:
        await until(lambda: it.pods_of)
        assert it.pods_of == [AW]
        assert it.cluster.pod_counts(AW) == PodCounts(running=1)


async def test_at_most_ten_pending_pods_are_listed_in_the_form_of_mcad(
    server: FakeApiServer, client: ClusterClient
) -> None:
    since, message = "2026-11-20T08:58:06Z", "0/1 nodes are available: 1 Insufficient cpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    told = {**condition, "message": message, "lastTransitionTime": since}

    def unscheduled(number: int, said: Json) -> Json:
        status = {"phase": "Pending", "conditions": [{**said, "lastProbeTime": None}]}
        return {**bound(f"p{number:02}", ""), "status": status}

    has(server, "nodes", make_node())
    has(
        server,
        "pods",
        *(unscheduled(number, told if number else condition) for number in reversed(range(12))),
    )
    async with running(client) as it:
        await it.cluster.wait_until_listed()
        assert it.cluster.pod_counts(AW) == PodCounts(pending=12, unschedulable=12, unbound=12)
        assert it.cluster.pending_pods(AW) == [
            {"podname": "p00", "conditions": [condition]},
            *({"podname": f"p{number:02}", "conditions": [told]} for number in range(1, 10)),
        ]
        assert it.cluster.pending_pods("another") == []


async def test_answer_about_live_pods_wakes_the_appwrapper(
    server: FakeApiServer, client: ClusterClient
) -> None:
    has(server, "nodes", make_node())
    has(server, "pods")
    async with running(client) as it:
        assert it.cluster.live_pods.ask(("default", AW), 1) is None
        await until(lambda: it.pods_of == [AW])
        assert it.cluster.live_pods.ask(("default", AW), 1) == LiveItems()


async def test_appwrapper_with_an_object_removed_before_its_watch_is_woken_during_its_attempt(
    server: FakeApiServer, client: ClusterClient
) -> None:
    secrets = {"name": "secrets", "kind": "Secret", "namespaced": True}
    server.on("GET", "/api/v1", answer({"resources": [secrets]}))
    has(server, "secrets")

    def learns(cluster: WatchedCluster, uid: str, *, on: str = "hub", until_deleted: bool = False) -> None:
        dispatching = queue_changes.dispatch(make_record(uid=uid), on, at(1)).after
        token = make_ref(api_version="v1", kind="Secret", name="token", uid=f"token-of-{uid}")
        record = run_changes.created(dispatching, (token,), at(2)).after
        cluster.track(record)
        if until_deleted:
            cluster.track(removal.release(removal.delete(record, at(3)).after, at(4)).after)

    async with running(client) as it:
        learns(it.cluster, "over", until_deleted=True)
        learns(it.cluster, "elsewhere", on="member")
        learns(it.cluster, AW)
        await until(lambda: it.pods_of)
        await asyncio.sleep(1)  # virtual
        assert it.pods_of == [AW]


async def test_objects_of_a_tracked_attempt_are_watched(server: FakeApiServer, client: ClusterClient) -> None:
    rayclusters = {"name": "rayclusters", "kind": "RayCluster", "namespaced": True}
    server.on("GET", "/apis/ray.io/v1", answer({"resources": [rayclusters]}))
    failed = {"conditions": [{"type": "Failed", "status": "True", "reason": "Broken"}]}
    marks = {"labels": {UID_LABEL: AW}, "annotations": {ITEM_ANNOTATION: "0"}}
    ray = {"metadata": make_metadata("ray", **marks), "status": failed}
    page = answer({"metadata": {"resourceVersion": "10"}, "items": [ray]})

    async def reply(request: Any) -> Any:  # noqa: ANN401
        return await (watch(then=never) if "watch" in request.query else page)(request)

    server.on("GET", "/apis/ray.io/v1/rayclusters", reply)
    ref = make_ref(name="ray", uid="uid-of-ray")
    async with running(client) as it:
        it.cluster.track_object(ref, AW)
        await until(lambda: it.pods_of)
        assert it.pods_of == [AW]
        state = it.cluster.objects.state(ref)
        assert state is not None
        assert state.end is End.FAILED
        assert it.cluster.reconnects == {"nodes": 0, "pods": 0, "raycluster.ray.io": 0}


@pytest.mark.parametrize(
    ("first", "seconds"),
    [
        pytest.param(text("not installed yet", 503), 1, id="it-only-just-started"),
        pytest.param(answer({"resources": []}), 10, id="it-does-not-serve-it"),
    ],
)
async def test_unserved_kind_is_asked_about_again_sooner_after_no_answer(
    server: FakeApiServer, client: ClusterClient, first: Reply, seconds: int
) -> None:
    served = answer({"resources": [{"name": "rayclusters", "kind": "RayCluster", "namespaced": True}]})
    server.on("GET", "/apis/ray.io/v1", first, served)
    wanted = frozenset({("ray.io/v1", "RayCluster")})
    member = WatchedCluster(
        "east", client, CapacityLedger(), on_capacity=lambda: None, on_pods=lambda _appwrapper: None
    )
    async with workers.running(member.run()):
        await member.ask_for_kinds(wanted).wait()
        asked_at = monotonic()
        assert member.missing_kinds(wanted) == wanted
        await until(lambda: not member.missing_kinds(wanted))
    assert seconds <= monotonic() - asked_at < seconds + 0.5


# --- A pod counts for an AppWrapper only in its namespace, from the first moment ---------------------------


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
    cluster = WatchedCluster(
        "east", client, CapacityLedger(), on_capacity=lambda: None, on_pods=told.append, namespace_of=home
    )
    async with workers.running(cluster.run()):
        await cluster.wait_until_listed()
        await cluster.anchors.ensure(make_owner())
        await until(lambda: cluster.pod_counts(AW) == PodCounts(running=1))
        await asyncio.sleep(1)  # virtual
        assert cluster.pod_counts(AW) == PodCounts(running=1)
