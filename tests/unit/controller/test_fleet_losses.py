"""Members that do not answer yet or any more: how long a leader waits for them, and when they are lost."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from dispatcher.api.clusterpolicies import OnClusterLost
from dispatcher.api.names import MEMBERS_PATH
from dispatcher.controller.members.membership import MEMBER_REMOVED
from dispatcher.core.lifecycle.step import Loss
from dispatcher.core.model.cluster_errors import NO_ERRORS, ErrorCounts
from dispatcher.core.model.requirements import ANYWHERE
from tests.builders import at
from tests.fakes import never, refusal
from tests.unit.controller.fleet import FAILS, Bench, bench, idle, undeclared
from tests.unit.controller.members import KUBE_SYSTEM, NODES, SECRETS, collection, declaration, is_cluster
from tests.unit.controller.wire import MISSING
from tests.unit.virtual_time import monotonic, until
from tests.unit.workers import running

__all__ = ["bench", "idle"]


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
