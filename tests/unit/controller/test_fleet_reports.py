"""The state of each member is recorded, sampled and written to its status, once for each change."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from structlog.testing import capture_logs

from dispatcher.api.names import MEMBERS_PATH
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.status.clusters import ClusterState
from tests.fakes import answer, refusal
from tests.unit.controller.fleet import FAILS, Bench, bench, idle, status_path
from tests.unit.controller.members import (
    KUBE_SYSTEM,
    SECRETS,
    collection,
    declaration,
    holds,
    is_cluster,
    kubeconfig,
)
from tests.unit.controller.wire import MISSING
from tests.unit.virtual_time import until
from tests.unit.workers import running

__all__ = ["bench", "idle"]


async def test_state_of_each_member_is_recorded_once(bench: Bench) -> None:
    await bench.connected("east")
    bench.has("hub", drain=True)
    bench.has("west", cordoned=True, cordonReason="new switches")
    bench.hub.on("GET", f"{SECRETS}/cluster-west", MISSING)
    await asyncio.sleep(60)  # virtual
    recorded = dict(bench.records.states)
    assert recorded == {
        "east": ClusterState(),
        "hub": ClusterState(is_draining=True),
        "west": ClusterState(is_cordoned=True, closed_reason=pending_reasons.NOT_CONNECTED),
    }
    west = recorded["west"]
    assert (west.said, west.closed_message) == ("new switches", "there is no Secret dispatcher/cluster-west")
    count = len(bench.records.states)
    bench.has("west", cordoned=True, cordonReason="old switches")
    await asyncio.sleep(60)  # virtual
    assert len(bench.records.states) == count


async def test_changed_declaration_is_recorded_with_its_time(bench: Bench) -> None:
    await bench.connected("east")
    await until(lambda: bench.records.states[-1] == ("east", ClusterState()))
    bench.records.states.clear()
    changes: list[dict[str, bool]] = [{"cordoned": True}, {"cordoned": True, "drain": True}, {}]
    for spec in changes:
        bench.has("east", **spec)
        await asyncio.sleep(10)  # virtual
    assert bench.records.states == [
        ("east", ClusterState(is_cordoned=True)),
        ("east", ClusterState(is_cordoned=True, is_draining=True)),
        ("east", ClusterState()),
    ]
    assert bench.now() - timedelta(seconds=11) < bench.records.times[-1] < bench.now() - timedelta(seconds=9)


async def test_cordon_of_an_unreachable_member_is_recorded_as_nothing_else(bench: Bench) -> None:
    await bench.lost()
    bench.records.states.clear()
    bench.has("east", cordoned=True)
    await until(lambda: bench.records.states)
    is_cluster(bench.members["east"], "uid-of-east")
    await until(lambda: "east" in bench.fleet.clusters)
    await asyncio.sleep(10)  # virtual
    assert set(bench.records.states) == {("east", ClusterState(is_cordoned=True))}


async def test_undeclared_members_are_recorded_as_removed_also_by_a_later_leader(
    idle: Bench,
) -> None:
    idle.fleet.load({}, {"south"})
    idle.has("east")
    async with running(idle.fleet.run()):
        await until(lambda: ("south", ClusterState(is_declared=False)) in idle.records.states)
        await until(lambda: "east" in idle.fleet.clusters)
        idle.declared.loses("east")
        await asyncio.sleep(10)  # virtual
        idle.has("east")
        await asyncio.sleep(10)  # virtual
    removed = [name for name, state in idle.records.states if not state.is_declared]
    assert removed == ["south", "east"]
    assert idle.records.states[-1] == ("east", ClusterState())


async def test_invalid_or_unlisted_member_is_not_recorded_as_removed(
    idle: Bench,
) -> None:
    idle.fleet.load({}, {"east", "west"})
    idle.hub.on("GET", MEMBERS_PATH, FAILS)
    async with running(idle.fleet.run()):
        await asyncio.sleep(30)  # virtual
        assert idle.records.states == []
        idle.hub.on(
            "GET",
            MEMBERS_PATH,
            collection(declaration("east"), declaration("west", kubeconfigSecretRef=None)),
        )
        await until(lambda: "east" in idle.fleet.clusters)
        await asyncio.sleep(60)  # virtual
    assert {name for name, _ in idle.records.states} == {"east"}


async def test_kubeconfig_in_another_secret_is_recorded_if_it_differs(bench: Bench) -> None:
    await bench.connected("east")
    first = bench.fleet.clusters["east"]
    bench.hub.on("GET", f"{SECRETS}/moved", holds(kubeconfig("east")))
    bench.has("east", kubeconfigSecretRef={"name": "moved"})
    await until(lambda: bench.fleet.clusters.get("east") not in (None, first))
    assert bench.records.rotated == []
    second = bench.fleet.clusters["east"]
    bench.hub.on("GET", f"{SECRETS}/another", holds(kubeconfig("east", user={"token": "new"})))
    bench.has("east", kubeconfigSecretRef={"name": "another"})
    await until(lambda: bench.fleet.clusters.get("east") not in (None, second))
    assert bench.records.rotated == ["east"]


async def test_each_cluster_that_takes_gangs_has_a_reading(bench: Bench) -> None:
    def readings() -> dict[str, tuple[int, bool] | None]:
        found = bench.fleet.readings()
        return {
            name: (each.total["cpu"], each.is_reachable) if each else None for name, each in found.items()
        }

    assert readings() == {"hub": (4000, True)}
    await bench.connected("east", reserve={"cpu": "2"})
    bench.has("west", kubeconfigSecretRef=None)
    await until(lambda: "west" in bench.fleet.readings())
    assert readings() == {"east": (8000, True), "west": None}
    bench.running["hub"] = 1
    assert readings() == {"hub": (4000, True), "east": (8000, True), "west": None}
    bench.running.clear()
    bench.members["east"].on("GET", KUBE_SYSTEM, FAILS)
    await until(lambda: bench.records.unreachable_notes)
    assert readings() == {"east": (8000, False), "west": None}
    await until(lambda: "east" not in bench.fleet.clusters)
    assert readings() == {"east": None, "west": None}


async def test_hub_that_is_not_ready_has_no_reading(idle: Bench) -> None:
    assert idle.fleet.readings() == {"hub": None}


async def test_status_is_written_once_per_change(bench: Bench) -> None:
    await bench.connected("east")
    await asyncio.sleep(60)  # virtual
    joined = {
        "conditions": [
            {"type": type_, "status": "True", "lastTransitionTime": "2026-11-20T08:58:06Z"}
            for type_ in ("Reachable", "Authenticated")
        ],
        "running": 0,
        "clusterUID": "uid-of-east",
        "allocatable": {"cpu": "8"},
        "free": {"cpu": "8"},
    }
    assert bench.statuses() == [joined]
    bench.running["east"] = 2
    await asyncio.sleep(60)  # virtual
    assert bench.statuses() == [joined, {**joined, "running": 2}]
    (written, _) = bench.hub.requests("PATCH", status_path("east"))
    assert written.body[0] == {"op": "test", "path": "/metadata/uid", "value": "uid-of-east"}


async def test_status_has_the_time_from_which_a_member_is_unreachable(bench: Bench) -> None:
    await bench.lost()
    await asyncio.sleep(60)  # virtual
    last = bench.statuses()[-1]
    assert (last["conditions"][0]["status"], last["reason"]) == ("False", pending_reasons.UNREACHABLE)
    assert last["unreachableSince"] == f"{bench.records.unreachable_notes[0][1]:%Y-%m-%dT%H:%M:%SZ}"


async def test_failed_status_write_is_retried_and_delays_no_other(bench: Bench) -> None:
    bench.hub.on("PATCH", status_path("east"), refusal(422, "Invalid", "test failed"))
    await bench.connected("east")
    await bench.connected("west")
    with capture_logs() as logs:
        await asyncio.sleep(11)  # virtual
    said = [entry["cluster"] for entry in logs if entry["event"] == "member_status_not_written"]
    assert said == ["east", "east"]
    assert len(bench.statuses("west")) == 1
    bench.hub.on("PATCH", status_path("east"), answer({}))
    await asyncio.sleep(30)  # virtual
    assert len(bench.statuses("east")) == 3


async def test_member_that_was_deleted_and_declared_again_gets_a_status_of_its_own(bench: Bench) -> None:
    await bench.connected("east")
    await until(bench.statuses)
    bench.declared.loses("east")
    bench.has("east", uid="another")
    await asyncio.sleep(30)  # virtual
    tests = [each.body[0]["value"] for each in bench.hub.requests("PATCH", status_path("east"))]
    assert tests[-1] == "another"
    assert bench.statuses()[-1]["clusterUID"] == "uid-of-east"


async def test_own_status_write_wakes_nothing(bench: Bench) -> None:
    await bench.connected("east")
    changes = bench.capacity_changes
    bench.declared.has({**declaration("east"), "status": {"running": 2}})
    await asyncio.sleep(30)  # virtual
    assert bench.capacity_changes == changes
