"""An AppWrapper is deleted while its member is away, and applied again: the second waits until the first has gone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from testbed.proxy import DROPPED
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.test_members_loss import until_told
from tests.cluster.members.wires import FleetWires, assert_whole, cut_off, deletes_anchor, pinned, wires_of


@pytest.fixture
async def wires(fleet: Fleet) -> AsyncIterator[FleetWires]:
    """A dispatcher that runs, and soon gives up what is on a member that does not answer."""
    async with wires_of(fleet, read_timeout_seconds="4", unreachable_seconds="2") as wires:
        await wires.start()
        await fleet.change("east", onClusterLost={"policy": "requeue", "graceSeconds": 1})
        yield wires


async def test_successor_of_the_same_name_runs_once_the_leftovers_of_a_deleted_appwrapper_are_gone(
    wires: FleetWires,
) -> None:
    fleet, hub, east = wires.fleet, wires.fleet.hub, wires.members["east"]
    await hub.create_until("Running", pinned("again", "east"))
    first = (await hub.get("AppWrapper", "again") or {})["metadata"]["uid"]
    cut_off(east)
    await until_told(fleet, "east", "ClusterUnreachable")
    await hub.delete("again")
    await hub.until_gone("AppWrapper", "again")
    await hub.create(pinned("again", "east"))

    east.rules.clear()
    east.rules.on(deletes_anchor(first), DROPPED, times=3)  # so that the second comes before they are gone

    await hub.until_state("again", "Running")
    assert await assert_whole(fleet, "again") == "east"
    second = (await hub.get("AppWrapper", "again") or {})["metadata"]["uid"]
    assert second != first
