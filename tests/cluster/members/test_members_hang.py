"""A member that takes every request and answers none: those who are there wait, and nobody else."""

from __future__ import annotations

import sys

from dispatcher.api.names import CLUSTER_SELECTOR
from testbed.proxy import ApiProxy, Exchange, Fault, Gate
from tests.cluster.manifests import bent
from tests.cluster.members.fleet import Fleet, Json
from tests.cluster.members.test_members_choice import gang

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
