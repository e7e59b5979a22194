"""All clusters: which of them take gangs, and how members are declared, connected and removed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher import errors
from dispatcher.api.clusters.clusterpolicies import OnClusterLost
from dispatcher.api.names import MEMBERS_PATH
from dispatcher.api.selector import EVERYTHING, parse_selector
from dispatcher.controller.members.kind_survey import OTHERS_SECONDS, REGISTERED_SECONDS
from dispatcher.controller.members.membership import MEMBER_REMOVED
from dispatcher.core.lifecycle.step import Loss
from dispatcher.core.model.clusters.cluster_errors import NO_ERRORS, ErrorCounts
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.model.records.requirements import ANYWHERE, ClusterRequirements
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.fit.cluster_filters import Closed
from dispatcher.kube.discovery import Kind
from dispatcher.kube.questions import SELF_PATH
from tests.builders import QUEUED_CLASS, at
from tests.fakes import answer, never, refusal
from tests.unit.controller.fleet import FAILS, Bench, bench, idle, undeclared
from tests.unit.controller.members import (
    KUBE_SYSTEM,
    NODES,
    SECRETS,
    collection,
    declaration,
    holds,
    is_closed,
    is_cluster,
    kubeconfig,
)
from tests.unit.controller.wire import MISSING
from tests.unit.virtual_time import monotonic, until
from tests.unit.workers import running

__all__ = ["bench", "idle"]

Json = dict[str, Any]

INVALID = (
    "spec.kubeconfigSecretRef: every cluster but hub needs a kubeconfig. "
    "Put one into a Secret in the dispatcher's namespace and name that Secret here."
)

RAYCLUSTERS = ClusterRequirements(kinds=frozenset({("ray.io/v1", "RayCluster")}))


async def test_hub_takes_all_gangs_without_declared_members(bench: Bench) -> None:
    snapshots = bench.fleet.snapshots([ANYWHERE])
    assert {name: snapshot.capacity.free_for(None)["cpu"] for name, snapshot in snapshots.items()} == {
        "hub": 4000
    }
    assert (snapshots["hub"].closed, bench.fleet.has_members, list(bench.fleet.clusters)) == (
        None,
        False,
        ["hub"],
    )


async def test_nothing_is_dispatched_to_a_hub_that_is_not_ready(idle: Bench) -> None:
    assert idle.fleet.snapshots([ANYWHERE]) == {}


async def test_declared_members_take_gangs_instead_of_the_hub(bench: Bench) -> None:
    bench.has("west", cordoned=True, cordonReason="new switches")
    await bench.connected("east", labels={"gpu": "a100"}, reserve={"cpu": "2"}, namespacePolicy="Create")
    await until(lambda: "west" in bench.fleet.clusters)
    snapshots = bench.fleet.snapshots([ANYWHERE])
    assert {name: snapshot.capacity.free_for(None)["cpu"] for name, snapshot in snapshots.items()} == {
        "east": 6000,
        "west": 8000,
    }
    assert (snapshots["east"].labels, snapshots["east"].creates_namespaces) == ({"gpu": "a100"}, True)
    assert (snapshots["east"].closed, snapshots["west"].closed) == (
        None,
        Closed(pending_reasons.CORDONED, "it takes nothing new: new switches"),
    )
    assert (sorted(bench.fleet.clusters), bench.fleet.has_members) == (["east", "hub", "west"], True)
    assert {name: cluster.ledger for name, cluster in bench.fleet.clusters.items()} == bench.fleet.ledgers
    assert sorted(bench.woken) == ["east", "west"]


async def test_declared_hub_takes_gangs_beside_the_members(bench: Bench) -> None:
    bench.has("hub", labels={"at": "home"}, reserve={"cpu": "1"})
    await bench.connected("east")
    snapshots = bench.fleet.snapshots([ANYWHERE])
    assert {name: snapshot.capacity.free_for(None)["cpu"] for name, snapshot in snapshots.items()} == {
        "hub": 3000,
        "east": 8000,
    }
    assert (snapshots["hub"].labels, snapshots["hub"].closed) == ({"at": "home"}, None)
    assert bench.fleet.clusters["hub"] is bench.itself


@pytest.mark.parametrize(
    ("requirements", "queues", "west", "is_found"),
    [
        pytest.param(ANYWHERE, "", {}, True, id="another-cluster"),
        pytest.param(ANYWHERE, "gpu", {}, False, id="not-selected-by-the-queue"),
        pytest.param(RAYCLUSTERS, "", {}, False, id="kind-missing"),
        pytest.param(
            ClusterRequirements(namespace="team"),
            "",
            {"namespacePolicy": "Require"},
            False,
            id="namespace-missing",
        ),
        pytest.param(ANYWHERE, "", {"provisioning": {"className": "another"}}, True, id="another-class"),
        pytest.param(ANYWHERE, "", {"cordoned": True}, False, id="cordoned"),
        pytest.param(ANYWHERE.unprovisioned_in("west", "no nodes"), "", {}, False, id="failed-too"),
    ],
)
async def test_capacity_is_requested_only_in_clusters_that_take_the_gang(
    bench: Bench, requirements: ClusterRequirements, queues: str, west: Json, is_found: bool
) -> None:
    provisioning = {"provisioning": {"className": QUEUED_CLASS.name}, "namespacePolicy": "Create"}
    await bench.connected("east", labels={"gpu": "a100"}, **provisioning)
    await bench.connected("west", **{**provisioning, **west})
    bench.fleet.snapshots([requirements])
    await until(bench.fleet.is_complete)
    gang = Gang(pods=1, pod_sets=(PodSet(1, Resources({"cpu": 1})),))
    asked = requirements.unprovisioned_in("east", "no nodes")
    selected = parse_selector(queues, "spec.clusterSelector")
    assert bench.fleet.provides_elsewhere(gang, asked, selected, None) is is_found


@pytest.mark.parametrize(
    ("west", "is_found"), [(None, True), ("queued-provisioning.gke.io", True), ("another", False)]
)
async def test_class_of_a_queue_may_be_in_any_cluster_that_declares_no_other(
    bench: Bench, west: str | None, is_found: bool
) -> None:
    declared = {"provisioning": {"className": west}} if west else {}
    await bench.connected("east", namespacePolicy="Create")
    await bench.connected("west", namespacePolicy="Create", **declared)
    asked = ANYWHERE.unprovisioned_in("east", "no nodes")
    assert bench.fleet.provides_elsewhere(Gang(), asked, EVERYTHING, QUEUED_CLASS) is is_found


async def test_changed_declaration_is_no_new_connection(bench: Bench) -> None:
    await bench.connected("east")
    bench.has("east", labels={"zone": "b"}, cordoned=True, namespacePolicy="Create")
    await until(lambda: bench.closed("east"))
    snapshot = bench.fleet.snapshots([ANYWHERE])["east"]
    assert (snapshot.labels, snapshot.creates_namespaces) == ({"zone": "b"}, True)
    assert bench.fleet.clusters["east"].may_create_namespaces
    assert (len(bench.clients), bench.woken) == (1, ["east"])


async def test_kubeconfig_in_another_secret_is_a_new_connection(bench: Bench) -> None:
    await bench.connected("east")
    first = bench.fleet.clusters["east"]
    bench.hub.on("GET", f"{SECRETS}/another", holds(kubeconfig("east", user={"token": "new"})))
    bench.has("east", kubeconfigSecretRef={"name": "another"})
    await until(lambda: bench.fleet.clusters.get("east") not in (None, first))
    assert bench.tokens == ["good", "new"]
    await until(lambda: is_closed(bench.clients[0]))
    assert not is_closed(bench.clients[1])


async def test_undeclared_member_is_disconnected_at_once(bench: Bench) -> None:
    await bench.connected("east")
    changes = bench.capacity_changes
    bench.declared.loses("east")
    await until(lambda: "east" not in bench.fleet.clusters)
    assert (list(bench.fleet.clusters), list(bench.fleet.ledgers)) == (["hub"], ["hub"])
    assert (bench.fleet.has_members, bench.closed("east")) == (True, MEMBER_REMOVED)
    assert "east" in bench.woken[1:]
    assert bench.capacity_changes > changes
    await until(lambda: is_closed(bench.clients[0]))


async def test_invalid_member_takes_no_gangs_and_has_a_reason(bench: Bench) -> None:
    await bench.connected("east")
    bench.has("east", kubeconfigSecretRef=None)
    await until(lambda: "east" not in bench.fleet.clusters)
    assert bench.closed("east") == Closed(pending_reasons.NOT_REPORTED, INVALID)
    assert bench.fleet.has_members
    assert (bench.fleet.loss_of("east"), bench.fleet.is_connecting("east")) == (None, False)
    await bench.connected("east")
    assert bench.closed("east") is None


async def test_member_with_a_pool_of_unreadable_amounts_is_invalid(bench: Bench) -> None:
    await bench.connected("east")
    shape = {"allocatable": {"cpu": "1e99"}, "labels": {"pool": "l4"}}
    bench.has("east", potential=[{"name": "l4", "max": 1, "node": shape}])
    await until(lambda: "east" not in bench.fleet.clusters)
    closed = bench.closed("east")
    assert closed is not None
    assert "spec.potential: pool l4: node.allocatable: cpu: '1e99' is too large" in closed.message


async def test_deletion_of_an_invalid_member_wakes_its_gangs(bench: Bench) -> None:
    bench.has("east", kubeconfigSecretRef=None)
    await until(lambda: bench.fleet.has_members)
    await asyncio.sleep(1)  # virtual
    assert bench.woken == []
    bench.declared.loses("east")
    await until(lambda: bench.woken)
    assert bench.woken == ["east"]
    assert bench.fleet.loss_of("east") == undeclared(bench)


@pytest.mark.parametrize("name", ["east", "hub"])
async def test_drain_wakes_the_gangs_of_the_cluster_and_can_be_undone(bench: Bench, name: str) -> None:
    await bench.connected(name)
    cluster = bench.fleet.clusters[name]
    bench.woken.clear()
    bench.has(name, drain=True, cordonReason="it moves")
    await until(lambda: cluster.draining)
    assert (cluster.draining, bench.woken) == (f"cluster {name}: it is being emptied: it moves", [name])
    assert bench.closed(name) == Closed(pending_reasons.DRAINING, "it is being emptied: it moves")
    bench.has(name, drain=True, cordonReason="it moved")
    await until(lambda: cluster.draining.endswith("moved"))
    bench.has(name)
    await until(lambda: not cluster.draining)
    assert (bench.woken, bench.closed(name)) == ([name], None)


async def test_undeclared_hub_is_not_drained(bench: Bench) -> None:
    bench.has("hub", drain=True)
    await until(lambda: bench.itself.draining)
    bench.declared.loses("hub")
    await until(lambda: not bench.itself.draining)
    assert list(bench.fleet.clusters) == ["hub"]


async def test_drain_holds_from_the_connection_of_the_member(bench: Bench) -> None:
    await bench.connected("east", drain=True)
    assert bench.fleet.clusters["east"].draining == "cluster east: it is being emptied"


async def test_database_that_fails_ends_the_whole_fleet(idle: Bench) -> None:
    idle.records.failure = errors.StoreUnavailable("no answer")
    idle.has("east")
    async with running(idle.fleet.run()) as task:
        await asyncio.wait([task])
        found = task.exception()
        assert isinstance(found, ExceptionGroup)
        assert set(map(type, found.exceptions)) == {errors.StoreUnavailable}


@pytest.mark.parametrize(
    ("selector", "ruled_out", "expected"),
    [
        pytest.param("", (), False, id="anywhere"),
        pytest.param("gpu=a100", (), False, id="one-is-selected"),
        pytest.param("gpu=h100", (), True, id="none-is-selected"),
        pytest.param("", ("east",), False, id="one-is-left"),
        pytest.param("gpu=a100", ("east",), True, id="that-one-is-ruled-out"),
        pytest.param("", ("east", "west"), True, id="all-are-ruled-out"),
        pytest.param("", ("hub",), False, id="the-hub-is-none-of-them"),
    ],
)
async def test_gang_leads_nowhere_if_no_declared_cluster_will_ever_take_it(
    bench: Bench, selector: str, ruled_out: tuple[str, ...], expected: bool
) -> None:
    await bench.connected("east", labels={"gpu": "a100"})
    await bench.connected("west", cordoned=True)
    taken = frozenset((name, "it is taken") for name in ruled_out)
    where = ClusterRequirements(selector=parse_selector(selector, "selector"), ruled_out=taken)
    assert bench.fleet.has_no_cluster_left(where) is expected


async def test_hub_alone_leads_nowhere_as_soon_as_it_is_ruled_out(bench: Bench) -> None:
    taken = frozenset({("hub", "it is taken")})
    assert not bench.fleet.has_no_cluster_left(ANYWHERE)
    assert bench.fleet.has_no_cluster_left(replace(ANYWHERE, ruled_out=taken))


@pytest.mark.parametrize(
    ("requirements", "queues", "west"),
    [
        pytest.param(ClusterRequirements(parse_selector("gpu", "")), "", {}, id="selector-of-the-gang"),
        pytest.param(ANYWHERE, "gpu", {}, id="selector-of-its-queue"),
        pytest.param(ANYWHERE, "", {"cordoned": True}, id="cordoned"),
        pytest.param(
            ClusterRequirements(namespace="team"), "", {"namespacePolicy": "Require"}, id="namespace-missing"
        ),
        pytest.param(ANYWHERE, "", {"provisioning": {"className": "another"}}, id="another-class"),
        pytest.param(ANYWHERE.without("west", "a name is taken"), "", {}, id="name-taken"),
    ],
)
async def test_member_that_no_cycle_accepts_is_not_asked_about_a_gang(
    bench: Bench, requirements: ClusterRequirements, queues: str, west: Json
) -> None:
    await bench.connected("east", labels={"gpu": "a100"}, namespacePolicy="Create")
    await bench.connected("west", **{"namespacePolicy": "Create", **west})
    bench.fleet.snapshots([requirements])
    await until(bench.fleet.is_complete)
    selected = parse_selector(queues, "spec.clusterSelector")
    accepting = bench.fleet.accepting(requirements, selected, QUEUED_CLASS)
    assert [each.name for each in accepting] == ["east"]


async def test_clusters_for_a_gang_are_the_connected_clusters_that_its_selector_allows(bench: Bench) -> None:
    zone_a = ClusterRequirements(selector=parse_selector("zone=a", "selector"))

    def found(requirements: ClusterRequirements) -> list[str]:
        return [each.name for each in bench.fleet.clusters_for(requirements)]

    assert (found(ANYWHERE), found(zone_a)) == (["hub"], ["hub"])
    await bench.connected("east", labels={"zone": "a"})
    await bench.connected("west", labels={"zone": "b"})
    assert (found(ANYWHERE), found(zone_a)) == (["east", "west"], ["east"])
    bench.members["east"].on("GET", KUBE_SYSTEM, FAILS)
    await until(lambda: "east" not in bench.fleet.clusters)
    assert (found(ANYWHERE), found(zone_a)) == (["west"], [])
    bench.has("hub", labels={"zone": "a"})
    await until(lambda: len(found(ANYWHERE)) == 2)
    assert found(zone_a) == ["hub"]


async def test_kinds_are_asked_for_before_a_cycle_without_waiting_for_a_hanging_member(bench: Bench) -> None:
    jobs = {"resources": [{"name": "jobs", "kind": "Job", "namespaced": True}]}
    bench.members["east"].on("GET", "/apis/batch/v1", answer(jobs))
    bench.members["west"].on("GET", "/apis/batch/v1", never)
    await bench.connected("east")
    await bench.connected("west")
    where = ClusterRequirements(kinds=frozenset({("batch/v1", "Job")}))
    begun = monotonic()
    await bench.fleet.get_ready([where])
    assert 1 <= monotonic() - begun < 1.1
    assert {name: snapshot.missing_kinds for name, snapshot in bench.fleet.snapshots([where]).items()} == {
        "east": frozenset(),
        "west": where.kinds,
    }


async def test_cycles_do_not_wait_for_each_invented_version(bench: Bench) -> None:
    for path in ("/apis", "/apis/batch/v1"):
        bench.members["west"].on("GET", path, never)
    await bench.connected("east")
    await bench.connected("west")
    begun = monotonic()
    for number in range(100):
        kinds = frozenset({("batch/v1", "Job"), (f"batch/v0x{number}", "Job")})
        await bench.fleet.get_ready([ClusterRequirements(kinds=kinds)])
    assert monotonic() - begun <= REGISTERED_SECONDS + OTHERS_SECONDS + 0.1


async def test_fleet_is_complete_only_if_each_member_is_connected(bench: Bench) -> None:
    assert bench.fleet.is_complete()
    bench.has("hub")
    await bench.connected("east")
    assert bench.fleet.is_complete()
    bench.hub.on("GET", f"{SECRETS}/cluster-west", MISSING)
    bench.has("west")
    await until(lambda: "west" in bench.fleet.snapshots([ANYWHERE]))
    assert not bench.fleet.is_complete()
    bench.has("west", kubeconfigSecretRef=None)
    await until(lambda: bench.closed("west") == Closed(pending_reasons.NOT_REPORTED, INVALID))
    assert not bench.fleet.is_complete()


async def test_hub_alone_says_which_kinds_it_does_not_serve_and_finds_them_once_they_are_installed(
    bench: Bench,
) -> None:
    ray = ("ray.io/v1", "RayCluster")
    asked = [ClusterRequirements(kinds=frozenset({ray}))]
    await bench.fleet.get_ready(asked)
    assert bench.fleet.snapshots(asked)["hub"].missing_kinds == {ray}
    resource = {"name": "rayclusters", "kind": "RayCluster", "namespaced": True}
    bench.hub.on("GET", "/apis/ray.io/v1", answer({"resources": [resource]}))
    await until(lambda: not bench.fleet.snapshots(asked)["hub"].missing_kinds)


async def test_hub_alone_says_which_kinds_the_dispatcher_may_not_create_until_it_may(bench: Bench) -> None:
    job = Kind("batch/v1", "Job", "jobs", namespaced=True)
    bench.hub.on("POST", SELF_PATH, answer({"status": {"allowed": False}}, 201))
    assert await bench.itself.object_client.rights.is_denied(job, "default")
    forbidden = {("default", ("batch/v1", "Job"))}
    assert bench.fleet.snapshots([ANYWHERE])["hub"].forbidden_kinds == forbidden
    wakes = bench.capacity_changes
    bench.hub.on("POST", SELF_PATH, answer({"status": {"allowed": True}}, 201))
    await until(lambda: not bench.fleet.snapshots([ANYWHERE])["hub"].forbidden_kinds)
    await until(lambda: bench.capacity_changes > wakes)


# -----------------------------------------------------------------------------------------------------------
# Members that do not answer yet or any more: how long a leader waits for them, and when they are lost.


async def wait(bench: Bench) -> float:
    """The seconds until the fleet no longer waits for its members."""
    begun = monotonic()
    await bench.fleet.wait_for_members()
    return monotonic() - begun


async def test_new_leader_waits_until_each_member_is_connected_or_closed(idle: Bench) -> None:
    idle.has("east")
    idle.has("west")
    idle.hub.on("GET", f"{SECRETS}/cluster-west", MISSING)
    async with running(idle.fleet.run()):
        assert await wait(idle) < 1
        assert "east" in idle.fleet.clusters
        assert not any(map(idle.fleet.is_connecting, ("hub", "east", "west")))


async def test_new_leader_waits_ten_seconds_at_most_for_a_member_that_hangs(idle: Bench) -> None:
    idle.has("east")
    idle.has("west")
    idle.members["west"].on("GET", NODES, never)
    async with running(idle.fleet.run()):
        assert 10 <= await wait(idle) < 11
        assert (list(idle.fleet.clusters), idle.fleet.is_connecting("west")) == (["hub", "east"], True)


async def test_any_cluster_may_be_a_member_until_the_members_are_known(idle: Bench) -> None:
    idle.hub.on("GET", MEMBERS_PATH, FAILS)
    async with running(idle.fleet.run()):
        await asyncio.sleep(20)  # virtual
        assert (idle.fleet.is_connecting("east"), idle.fleet.loss_of("east")) == (True, None)
        assert (idle.fleet.is_connecting("hub"), idle.fleet.loss_of("hub")) == (False, None)
        assert await wait(idle) == pytest.approx(10, abs=0.5)
        assert idle.fleet.is_connecting("east")
        idle.hub.on("GET", MEMBERS_PATH, collection(declaration("east")))
        await until(lambda: "east" in idle.fleet.clusters)
        assert (idle.fleet.is_connecting("west"), idle.fleet.loss_of("west")) == (
            False,
            undeclared(idle, "west"),
        )


async def test_hub_without_the_crd_has_no_members(idle: Bench) -> None:
    idle.hub.on("GET", MEMBERS_PATH, MISSING)
    async with running(idle.fleet.run()):
        assert await wait(idle) < 1
        assert (idle.fleet.is_connecting("east"), idle.fleet.has_members) == (False, False)
        assert idle.fleet.loss_of("east") == undeclared(idle)


async def test_hub_without_the_right_to_list_members_has_none_and_leads_on(idle: Bench) -> None:
    idle.hub.on("GET", MEMBERS_PATH, refusal(403, "Forbidden"))
    async with running(idle.fleet.run()):
        assert await wait(idle) < 1
        assert (idle.fleet.is_connecting("east"), idle.fleet.has_members) == (False, False)
        assert idle.fleet.loss_of("east") is None


async def test_connected_or_connecting_member_is_not_lost(bench: Bench) -> None:
    bench.members["west"].on("GET", NODES, never)
    bench.has("west")
    await bench.connected("east")
    assert [bench.fleet.loss_of(name) for name in ("hub", "east", "west")] == [None, None, None]


async def test_member_is_reachable_while_its_connection_is_open(bench: Bench) -> None:
    bench.members["west"].on("GET", NODES, never)
    bench.has("west")
    await bench.connected("east")
    assert bench.fleet.reachable() == {"hub": True, "east": True, "west": False}
    bench.members["east"].on("GET", KUBE_SYSTEM, FAILS)
    await until(lambda: not bench.fleet.reachable()["east"])
    assert bench.fleet.reachable() == {"hub": True, "east": False, "west": False}


async def test_unreachable_member_is_lost_after_the_declared_grace(bench: Bench) -> None:
    since = await bench.lost(onClusterLost={"policy": "requeue", "graceSeconds": 60})
    said = f"cluster east has not answered since {since:%Y-%m-%d %H:%M:%S} UTC"
    assert bench.fleet.loss_of("east") == Loss(OnClusterLost.REQUEUE, since + timedelta(seconds=60), said)
    is_cluster(bench.members["east"], "uid-of-east")
    await until(lambda: "east" in bench.fleet.clusters)
    assert bench.fleet.loss_of("east") is None


async def test_unreachable_time_goes_on_for_a_member_declared_anew(bench: Bench) -> None:
    since = await bench.lost()
    bench.declared.loses("east")
    await until(lambda: bench.closed("east") == MEMBER_REMOVED)
    assert bench.fleet.loss_of("east") == undeclared(bench)
    bench.has("east", uid="another")
    await until(lambda: bench.fleet.loss_of("east") not in (None, undeclared(bench)))
    assert bench.fleet.loss_of("east") == Loss(
        OnClusterLost.WAIT,
        since + timedelta(seconds=600),
        f"cluster east has not answered since {since:%Y-%m-%d %H:%M:%S} UTC",
    )


async def test_unreachable_time_recorded_by_another_leader_counts(idle: Bench) -> None:
    idle.fleet.load({"east": at(-500)})
    idle.has("east", onClusterLost={"policy": "fail"})
    idle.members["east"].on("GET", KUBE_SYSTEM, FAILS)
    async with running(idle.fleet.run()):
        await until(lambda: idle.fleet.loss_of("east") and not idle.fleet.is_connecting("east"))
        loss = idle.fleet.loss_of("east")
        assert loss is not None
        assert (loss.policy, loss.due) == (OnClusterLost.FAIL, at(100))
        assert idle.records.unreachable_notes == []


async def test_gangs_of_a_lost_member_are_woken_once(bench: Bench) -> None:
    since = await bench.lost(onClusterLost={"policy": "requeue", "graceSeconds": 60})
    bench.woken.clear()
    await asyncio.sleep((since + timedelta(seconds=59) - bench.now()).total_seconds())
    assert bench.woken == []
    await asyncio.sleep(120)  # virtual
    assert bench.woken == ["east"]


async def test_gangs_of_a_lost_member_are_woken_again_when_its_policy_changes(
    bench: Bench,
) -> None:
    await bench.lost(onClusterLost={"policy": "wait", "graceSeconds": 60})
    await asyncio.sleep(100)  # virtual
    bench.woken.clear()
    bench.has("east", onClusterLost={"policy": "requeue", "graceSeconds": 60})
    await asyncio.sleep(20)  # virtual
    assert bench.woken == ["east"]


async def test_errors_count_for_ten_minutes(bench: Bench) -> None:
    await bench.connected("east")
    bench.fleet.note_error("east", "tenant")
    await asyncio.sleep(300)  # virtual
    bench.fleet.note_error("east", "tenant")
    bench.fleet.note_error("nobody", "tenant")
    counts = []
    for seconds in (299, 2, 300):
        await asyncio.sleep(seconds)  # virtual
        counts.append(bench.fleet.snapshots([ANYWHERE])["east"].errors)
    assert counts == [ErrorCounts(0, {"tenant": 2}), ErrorCounts(0, {"tenant": 1}), NO_ERRORS]


async def test_becoming_unreachable_is_an_error(bench: Bench) -> None:
    await bench.lost()
    is_cluster(bench.members["east"], "uid-of-east")
    await until(lambda: "east" in bench.fleet.clusters)
    assert bench.fleet.snapshots([ANYWHERE])["east"].errors == ErrorCounts(1)
