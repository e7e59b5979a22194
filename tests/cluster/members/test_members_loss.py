"""A member that is away, and comes back: nobody else is held up, and what runs there is left as it is."""

from __future__ import annotations

import sys
from typing import Any

from dispatcher.api.names import CLUSTER_SELECTOR, MEMBERS_PATH
from testbed.proxy import ApiProxy, Exchange, Fault, Gate
from testbed.stack import crash, recover
from tests.cluster.manifests import bent
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.test_members_choice import gang

Json = dict[str, Any]


async def until_told(fleet: Fleet, name: str, reason: str | None) -> Json:
    """The status of a member once its reason is this one; None is no reason."""

    async def look() -> Json | None:
        status: Json = (await fleet.hub.client.get(f"{MEMBERS_PATH}/{name}")).get("status") or {}
        return status if status and status.get("reason") == reason else None

    return await fleet.hub.until(look, f"{name} is {reason}")


async def until_healthy(fleet: Fleet, name: str, *, healthy: bool) -> Json:
    async def look() -> Json | None:
        status: Json | None = (await fleet.hub.get("AppWrapper", name) or {}).get("status")
        return status if status and ("unhealthy" not in status) is healthy else None

    return await fleet.hub.until(look, f"{name} is {'healthy' if healthy else 'not healthy'}")


async def test_status_of_a_member_shows_its_free_capacity_and_that_it_is_reachable(fleet: Fleet) -> None:
    await fleet.declare("west", reserve={"cpu": "1"})
    await fleet.start_dispatcher()
    await fleet.hub.create_until("Running", gang("two", 2))

    async def counted() -> Json | None:
        status = await until_told(fleet, "west", None)
        return status if status["running"] == 1 and status["free"]["cpu"] == "5" else None

    status = await fleet.hub.until(counted, "what runs is counted")

    assert status["allocatable"]["cpu"] == "8"
    assert {each["type"]: each["status"] for each in status["conditions"]} == {
        "Reachable": "True",
        "Authenticated": "True",
    }


async def test_unreachable_member_delays_no_other_gang_and_its_gangs_run_on(fleet: Fleet) -> None:
    await fleet.declare("east", "west")
    await fleet.start_dispatcher()
    await fleet.hub.create_until("Running", gang("six", 6))
    west = fleet.members["west"].plane
    await crash(west)
    try:
        status = await until_told(fleet, "west", "ClusterUnreachable")
        assert "unreachableSince" in status
        shown = await until_healthy(fleet, "six", healthy=False)
        assert (shown["unhealthy"]["reason"], shown["state"]) == ("ClusterUnreachable", "Running")
        await fleet.hub.create(gang("two", 2))
        assert (await fleet.hub.until_state("two", "Running"))["cluster"] == "east"
    finally:
        await recover(west)

    await until_told(fleet, "west", None)
    await until_healthy(fleet, "six", healthy=True)
    assert (await fleet.hub.causes("six")).count("dispatched") == 1
    assert await fleet.objects("Job") == {"east": {"two"}, "west": {"six"}}


async def test_gang_that_is_deleted_while_its_member_is_away_goes_when_it_is_back(fleet: Fleet) -> None:
    await fleet.declare("west")
    await fleet.start_dispatcher()
    await fleet.hub.create_until("Running", gang("two", 2))
    west = fleet.members["west"].plane
    await crash(west)
    try:
        await until_told(fleet, "west", "ClusterUnreachable")
        await fleet.hub.delete("two")
        await fleet.hub.until_history("two", "deleted")
        assert await fleet.hub.get("AppWrapper", "two") is not None
    finally:
        await recover(west)

    await fleet.hub.until_gone("AppWrapper", "two")
    assert await fleet.objects("Job") == {}


async def test_unusable_kubeconfig_is_reported_and_can_be_repaired_without_a_restart(
    fleet: Fleet,
) -> None:
    await fleet.declare("west")
    await fleet.spoil_kubeconfig("west")
    await fleet.start_dispatcher()
    status = await until_told(fleet, "west", "ClusterNotConnected")
    assert "exec" in status["message"]

    await fleet.write_kubeconfig("west")
    await until_told(fleet, "west", None)


async def test_kubeconfig_that_leads_to_another_cluster_closes_the_member(fleet: Fleet) -> None:
    await fleet.declare("east", "west")
    await fleet.start_dispatcher()
    await until_told(fleet, "east", None)
    await until_told(fleet, "west", None)

    await fleet.write_kubeconfig("east", of="west")

    await until_told(fleet, "east", "ClusterIsAnother")
    await fleet.write_kubeconfig("east")
    await until_told(fleet, "east", None)


async def test_gang_of_a_lost_member_runs_elsewhere_if_its_operator_says_so_and_once_when_that_is_back(
    fleet: Fleet,
) -> None:
    await fleet.declare("east")
    await fleet.declare("west", onClusterLost={"policy": "requeue", "graceSeconds": 1})
    await fleet.start_dispatcher()
    await fleet.change("east", cordoned=True)
    status = await fleet.hub.create_until("Running", gang("three", 3))
    assert status["cluster"] == "west"
    await fleet.change("east", cordoned=False)
    west = fleet.members["west"].plane
    await crash(west)
    try:
        await fleet.hub.until_history("three", "abandoned")
        await fleet.hub.until_history("three", "created", times=2)
        assert (await fleet.hub.until_state("three", "Running"))["cluster"] == "east"
    finally:
        await recover(west)

    await until_told(fleet, "west", None)

    async def once() -> bool:
        return "three" not in (await fleet.objects("Job")).get("west", set())

    await fleet.hub.until(once, "the attempt that was given up is removed")
    assert "three" in (await fleet.objects("Job"))["east"]


# --- A member that takes every request and answers none: those who are there wait, and nobody else ---------


AT_ONCE = 2
PATIENT = {
    "concurrency": str(AT_ONCE),
    "write_timeout_seconds": "60",
    "lease_seconds": "120",
    "read_timeout_seconds": "300",
}
"""Who hangs, hangs for longer than a test takes."""


def bound_for(member: str, name: str) -> Json:
    return bent(gang(name, 1, "100m"), {CLUSTER_SELECTOR: f"at={member}"})


def asks_for_an_anchor(exchange: Exchange) -> bool:
    return exchange.method == "GET" and "/configmaps/" in exchange.path


async def test_gangs_that_hang_in_one_member_delay_no_gang_of_other_members(fleet: Fleet) -> None:
    await fleet.declare("east", labels={"at": "east"})
    async with ApiProxy.of(fleet.members["west"].plane) as wire:
        kubeconfig = wire.kubeconfig(fleet.members["west"].plane).read_bytes()
        await fleet.declare("west", labels={"at": "west"}, kubeconfig=kubeconfig)
        await fleet.hub.start_dispatcher(namespace=fleet.namespace, **PATIENT)
        await fleet.hub.create(bound_for("west", "first"))
        await fleet.hub.until_state("first", "Running")
        hanging = wire.rules.on(lambda _: True, Fault(before=Gate()), times=sys.maxsize)
        for number in range(AT_ONCE + 1):
            await fleet.hub.create(bound_for("west", f"stuck-{number}"))

        async def all_hang() -> bool:
            return sum(map(asks_for_an_anchor, wire.rules.seen)) == 1 + AT_ONCE

        await fleet.hub.until(all_hang, "as many hang in the member as may at once")
        await fleet.hub.create(bound_for("east", "other"))

        assert (await fleet.hub.until_state("other", "Running"))["cluster"] == "east"
        assert hanging.struck.is_set()
        assert sum(map(asks_for_an_anchor, wire.rules.seen)) == 1 + AT_ONCE
        fleet.hub.stop_dispatchers()
    assert await fleet.objects("Job") == {"east": {"other"}, "west": {"first"}}
