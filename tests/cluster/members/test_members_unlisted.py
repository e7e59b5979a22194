"""The hub no longer lets its dispatcher list the MemberClusters: that does not mean that there are none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest

from dispatcher.kube.client import MERGE_PATCH
from testbed.processes import Process
from testbed.proxy import DROPPED
from tests.cluster.figures import readiness_of
from tests.cluster.lives import crash_all
from tests.cluster.manifests import appwrapper, item
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.guarded import Guarded
from tests.cluster.members.test_members_choice import gang
from tests.cluster.members.test_members_loss import until_told
from tests.cluster.members.wires import FleetWires, assert_whole, cut_off, deletes_anchor, pinned, wires_of
from tests.cluster.restored import has_said

Json = dict[str, Any]
ROLE: Final = "/apis/rbac.authorization.k8s.io/v1/clusterroles/appwrapper-dispatcher"
IMPATIENT: Final = {"unlisted_seconds": "13"}
"""Three seconds more than a new leader waits for its members."""

RAN: Final = ["submitted", "dispatched", "created", "pods-running"]


async def forbid_members(fleet: Fleet) -> None:
    """Take the right to look at MemberClusters from the dispatcher."""
    role = await fleet.hub.client.get(ROLE)
    rules = [rule for rule in role["rules"] if "memberclusters" not in rule["resources"]]
    assert len(rules) < len(role["rules"])
    await fleet.hub.client.patch(ROLE, {"rules": rules}, MERGE_PATCH)


async def allow_members(fleet: Fleet) -> None:
    role = await fleet.hub.client.get(ROLE)
    rule = {"apiGroups": ["dispatcher.codeflare.dev"], "resources": ["memberclusters"]}
    rules = [*role["rules"], {**rule, "verbs": ["get", "list", "watch"]}]
    await fleet.hub.client.patch(ROLE, {"rules": rules}, MERGE_PATCH)


async def waiting(fleet: Fleet, name: str, reason: str) -> Json:
    """Why an AppWrapper waits, once that is the reason."""

    async def look() -> Json | None:
        status = (await fleet.hub.get("AppWrapper", name) or {}).get("status") or {}
        told: Json = status.get("waiting") or {}
        return told if told.get("reason") == reason else None

    return await fleet.hub.until(look, f"{name} waits: {reason}")


async def has_said_that_it_is_not_ready(fleet: Fleet, dispatcher: Process) -> None:
    """Return once the leader answers that it is not ready because of the MemberClusters."""

    async def look() -> bool:
        status, line = await readiness_of(dispatcher)
        return status == 503 and line.startswith("leader: the MemberClusters cannot be listed: ")

    await fleet.hub.until(look, "the leader is not ready")


async def is_ready(dispatcher: Process) -> bool:
    return await readiness_of(dispatcher) == (200, "leader\n")


@pytest.mark.timeout(180)
async def test_gangs_on_members_run_once_though_the_members_could_not_be_listed(guarded: Guarded) -> None:
    fleet, hub = guarded.fleet, guarded.hub
    await guarded.declare("east")
    await guarded.start_dispatcher()
    await hub.create(gang("runs", 1))
    assert (await hub.until_state("runs", "Running"))["cluster"] == "east"
    await crash_all(hub)
    before = await fleet.objects("Job")
    await forbid_members(fleet)

    dispatcher = await guarded.start_dispatcher(**IMPATIENT)
    await has_said_that_it_is_not_ready(fleet, dispatcher)
    await hub.create(gang("comes", 1))

    told = await waiting(fleet, "comes", "MembersUnknown")
    assert "cannot be listed" in told["message"]
    await has_said(hub, dispatcher, "leadership_ended")
    assert (await fleet.objects("Job"), await hub.names("Job")) == (before, set())

    await allow_members(fleet)
    await fleet.hub.until(lambda: is_ready(dispatcher), "the leader is ready")
    assert (await hub.until_state("comes", "Running"))["cluster"] == "east"
    assert await hub.causes("runs") == RAN
    causes = [cause for cause in await hub.causes("comes") if cause != "blocked"]
    assert causes == RAN


@pytest.mark.timeout(180)
async def test_gang_on_a_member_runs_once_though_the_database_was_lost_and_knows_no_member(
    guarded: Guarded, make_database: Callable[[], str]
) -> None:
    fleet, hub = guarded.fleet, guarded.hub
    await guarded.declare("east")
    await guarded.start_dispatcher()
    await hub.create(gang("runs", 1))
    assert (await hub.until_state("runs", "Running"))["cluster"] == "east"
    await hub.kill_dispatchers()
    before = await fleet.objects("Job")
    await forbid_members(fleet)
    hub.database_url = make_database()

    dispatcher = await guarded.start_dispatcher()
    assert "not every member is known" in await has_said(hub, dispatcher, "intake_failed")
    assert (await fleet.objects("Job"), await hub.names("Job")) == (before, set())

    await allow_members(fleet)

    async def is_adopted() -> bool:
        return await hub.causes("runs") == ["adopted", "created", "pods-running"]

    await hub.until(is_adopted, "the gang is adopted where it runs")
    assert await fleet.objects("Job") == before


# --- The only MemberCluster is deleted and created again: the hub takes no gang in its place meanwhile -----


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


# -----------------------------------------------------------------------------------------------------------
# An AppWrapper is deleted while its member is away, and applied again: the second waits until the first has
# gone.


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
