"""The only MemberCluster is deleted and created again: the hub takes no gang in its place meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.lives import crash_all
from tests.cluster.manifests import appwrapper, item
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.test_members_choice import gang
from tests.cluster.members.test_members_unlisted import RAN, waiting

Json = dict[str, Any]


def podless(name: str) -> Json:
    """A gang that fits the hub, which has no nodes."""
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    return appwrapper(name, item(config_map))


@pytest.mark.timeout(180)
async def test_hub_takes_no_gang_while_its_only_member_is_replaced(fleet: Fleet) -> None:
    """Also under a leader that begins while there is no member: it knows of the member from the database."""
    hub = fleet.hub
    await fleet.declare("east")
    await fleet.start_dispatcher()
    await hub.create(gang("runs", 1))
    await hub.until_state("runs", "Running")

    await fleet.remove("east")
    await hub.create(podless("comes"))
    told = await waiting(fleet, "comes", "ClusterRemoved")
    assert (told["cluster"], "dispatcher clusters add hub" in told["message"]) == ("east", True)
    await crash_all(hub)
    await fleet.start_dispatcher()
    await hub.create(podless("comes-later"))
    await waiting(fleet, "comes-later", "ClusterRemoved")

    await fleet.declare_again("east")
    for name in ("comes", "comes-later"):
        assert (await hub.until_state(name, "Running"))["cluster"] == "east"
    assert await hub.names("ConfigMap") & {"comes", "comes-later"} == set()
    assert await hub.causes("runs") == [*RAN, "unhealthy", "recovered"]


async def test_hub_takes_gangs_at_once_when_it_is_declared_in_place_of_its_only_member(fleet: Fleet) -> None:
    await fleet.declare("east")
    await fleet.start_dispatcher()
    await fleet.hub.create(gang("runs", 1))
    await fleet.hub.until_state("runs", "Running")
    await fleet.remove("east")
    await fleet.hub.create(podless("comes"))
    await waiting(fleet, "comes", "ClusterRemoved")
    await fleet.declare_hub()
    assert (await fleet.hub.until_state("comes", "Running"))["cluster"] == "hub"
