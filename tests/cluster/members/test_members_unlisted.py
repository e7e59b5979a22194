"""The hub no longer lets its dispatcher list the MemberClusters: that does not mean that there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from dispatcher.kube.client import MERGE_PATCH
from testbed.processes import Process
from tests.cluster.figures import readiness_of
from tests.cluster.lives import crash_all
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.guarded import Guarded
from tests.cluster.members.test_members_choice import gang
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
