"""A tree of queues over two members: what a queue borrowed on both comes back to its owner, and then returns.

The gangs of a member that does not answer are charged, and are nobody's victims.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatcher.api.names import CLUSTER_SELECTOR
from tests.cluster.dispatch_queues import Declare
from tests.cluster.manifests import appwrapper, bent, item, job
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.test_members_loss import until_told
from tests.cluster.members.wires import FleetWires, cut_off, wires_of
from tests.cluster.outcomes import rows

Json = dict[str, Any]


def gang(name: str, queue: str, pods: int, cpu: str = "4") -> Json:
    """So many pods of so many cpus each, in a queue."""
    manifest = appwrapper(name, item(job(name, pods, cpu=cpu)))
    manifest["metadata"]["labels"] = {"dispatcher.codeflare.dev/queue": queue}
    return manifest


async def test_borrowed_capacity_comes_back_to_its_owner(fleet: Fleet, declare: Declare) -> None:
    await declare("company")
    quota = {"nominalQuota": 8}
    await declare("owner", parent="company", resources={"cpu": quota}, preemption={"reclaim": "Any"})
    await declare("guest", parent="company", resources={"cpu": {"nominalQuota": 4}})
    await fleet.declare("east", "west")
    await fleet.start_dispatcher()

    for name, cluster in (("first", "east"), ("second", "west"), ("third", "west")):
        await fleet.hub.create(gang(name, "guest", 1))
        assert (await fleet.hub.until_state(name, "Running"))["cluster"] == cluster

    await fleet.hub.create(gang("large", "owner", 2))
    assert (await fleet.hub.until_state("large", "Running"))["cluster"] == "west"
    assert await fleet.objects("Job") == {"east": {"first"}, "west": {"large"}}
    for name in ("second", "third"):
        victim = await fleet.hub.until_state(name, "Backoff")
        (why,) = (each for each in victim["conditions"] if each["type"] == "PreemptCandidate")
        assert why["reason"] == "QuotaReclaimed"

    await fleet.hub.delete("large")
    for name in ("second", "third"):
        assert (await fleet.hub.until_state(name, "Running"))["cluster"] == "west"
    assert await rows(fleet.hub, BEYOND) == []


@pytest.fixture
async def wires(fleet: Fleet) -> AsyncIterator[FleetWires]:
    """A dispatcher on wires that can be cut."""
    async with wires_of(fleet, read_timeout_seconds="4") as wires:
        await wires.start()
        yield wires


async def test_gangs_of_a_silent_member_are_charged_and_no_preemption_waits_for_them(
    wires: FleetWires, declare: Declare
) -> None:
    """`far` runs in east, and `leaving` is suspended there while east is silent: `small` needs the quota of one."""
    hub, east = wires.world, wires.members["east"]
    await declare("company")
    quota = {"cpu": {"nominalQuota": 8}}
    await declare("owner", parent="company", resources=quota, preemption={"reclaim": "Any"})
    await declare("guest", parent="company")
    for name, cluster, cpu in (("near", "west", "4"), ("leaving", "east", "2"), ("far", "east", "2")):
        await hub.create_until(
            "Running", bent(gang(name, "guest", 1, cpu), {CLUSTER_SELECTOR: f"name={cluster}"})
        )
    cut_off(east)
    await until_told(wires.fleet, "east", "ClusterUnreachable")
    await hub.merge("AppWrapper", "leaving", {"spec": {"suspend": True}})
    await hub.until_history("leaving", "suspended")

    await hub.create(gang("large", "owner", 1, "4"))
    assert (await hub.until_state("large", "Running"))["cluster"] == "west"
    assert await rows(hub, VICTIMS) == [{"name": "near", "by_name": "large"}]
    await hub.create(gang("small", "owner", 1, "2"))
    waiting = (await hub.until_state("small", "Backoff"))["waiting"]
    assert waiting["reason"] == "InsufficientQuota"
    account = "quota of owner: cpu: needs 2, 0 available; nominal 8, 4 used; guest borrows 4"
    assert waiting["message"] == account

    east.rules.clear()
    await hub.until_state("small", "Running")  # on the quota of `leaving`
    await hub.create_until("Running", gang("last", "owner", 1, "2"))
    assert await rows(hub, VICTIMS) == [
        {"name": "far", "by_name": "last"},
        {"name": "near", "by_name": "large"},
    ]


VICTIMS = "SELECT name, by_name FROM history.preemptions ORDER BY name"

# The use of the tree at the time of each dispatch, in milli cpu.
BEYOND = """
SELECT t.name FROM history.attempt_history AS t
WHERE (SELECT sum(o.cpu) FROM history.attempt_history AS o
       WHERE o.decided_at <= t.decided_at AND coalesce(o.ended_at, 'infinity') > t.decided_at) > 12
"""
