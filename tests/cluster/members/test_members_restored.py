"""The database is restored while gangs went on in members: each stays where it is, also while its member is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher.api.names import ANCHOR_PREFIX
from testbed.stack import crash, recover
from tests.cluster.lives import crash_all
from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.test_members_choice import anchors, gang
from tests.cluster.members.test_members_loss import until_told
from tests.cluster.provisioning import CLASS, REQUEST, answer, until_requested
from tests.cluster.restored import Backup, attempts, has_said, incarnation

RAN = ["submitted", "dispatched", "created", "pods-running"]
GIVEN_UP_SOON = {"policy": "requeue", "graceSeconds": 1}
GOES_ON = ["found-running", "created", "pods-running"]


@pytest.fixture
def backup(fleet: Fleet, postgres_url: str, tmp_path: Path) -> Backup:
    """A backup that is yet to be taken."""
    return Backup(fleet.hub, postgres_url, tmp_path)


async def causes(fleet: Fleet, name: str) -> list[str]:
    return [each for each in await fleet.hub.causes(name) if each not in {"blocked", "blocked-at-head"}]


def without(name: str, found: dict[str, set[str]]) -> dict[str, set[str]]:
    """The same objects by cluster, less one."""
    return {cluster: rest for cluster, names in found.items() if (rest := names - {name})}


async def test_gangs_that_went_to_members_after_the_backup_are_taken_over_where_they_are(
    fleet: Fleet, backup: Backup
) -> None:
    hub = fleet.hub
    await fleet.declare("east")
    await fleet.start_dispatcher()
    await hub.create(gang("moves", 2))
    await hub.create(gang("stays", 1))
    for name in ("moves", "stays"):
        assert (await hub.until_state(name, "Running"))["cluster"] == "east"
    await hub.create(gang("waits", 4))
    await hub.create(appwrapper("ends", item(job("ends", parallelism=4, cpu="1", run_for="500ms"))))
    for name in ("waits", "ends"):
        await hub.until_state(name, "Backoff")
    await backup.take()

    await fleet.declare("west")
    await hub.until_state("waits", "Running")
    await hub.until_state("ends", "Completed")
    await fleet.change("east", drain=True)
    for name in ("moves", "stays"):
        await hub.until_history(name, "pods-running", times=2)
    await fleet.change("east", drain=False)
    for name in ("new", "leaves"):
        await hub.create_until("Running", gang(name, 1))
    await hub.kill_dispatchers()
    jobs, there = await fleet.objects("Job"), await anchors(fleet)
    leaves = (await hub.get("AppWrapper", "leaves") or {})["metadata"]["uid"]
    await hub.delete("leaves")
    await backup.restore()
    dispatcher = await fleet.start_dispatcher()

    await has_said(hub, dispatcher, "database_restored")
    await hub.until_gone("AppWrapper", "leaves")
    for name in ("moves", "stays"):
        await hub.until_history(name, "pods-running", times=2)
    for name in ("waits", "new"):
        await hub.until_history(name, "pods-running")
    assert {name: await causes(fleet, name) for name in ("moves", "stays", "waits", "ends", "new")} == {
        "moves": [*RAN, "found-ended", *GOES_ON],
        "stays": [*RAN, "found-ended", *GOES_ON],
        "waits": ["submitted", *GOES_ON],
        "ends": ["submitted", "found-running", "found-completed"],
        "new": ["adopted", "created", "pods-running"],
    }
    assert await attempts(hub, "moves") == [(1, "east", "missed"), (2, "west", "")]
    assert await attempts(hub, "ends") == [(1, "west", "completed")]
    assert await causes(fleet, "leaves") == ["adopted", "deleted", "released"]
    assert await fleet.objects("Job") == without("leaves", jobs)
    assert await anchors(fleet) == without(f"{ANCHOR_PREFIX}{leaves}-1", there)
    assert await incarnation(hub) == (2, True)


async def test_gang_that_may_run_in_a_member_that_is_away_goes_nowhere_until_that_was_asked(
    fleet: Fleet, backup: Backup
) -> None:
    hub = fleet.hub
    await fleet.start_dispatcher()
    await fleet.declare("west", cordoned=True)
    await hub.create_until("Backoff", gang("two", 2))
    await backup.take()
    await fleet.change("west", cordoned=False)
    await hub.until_state("two", "Running")
    await fleet.declare("east")
    await until_told(fleet, "east", None)
    west = fleet.members["west"].plane
    await crash(west)
    try:
        await backup.restore()
        dispatcher = await fleet.start_dispatcher()
        await has_said(hub, dispatcher, "database_restored")
        await hub.create(gang("fresh", 1))
        assert (await hub.until_state("fresh", "Running"))["cluster"] == "east"
        assert await causes(fleet, "two") == ["submitted"]
        assert await incarnation(hub) == (2, False)

        # Whoever leads next knows as little.
        await crash_all(hub)
        await fleet.start_dispatcher()
        await hub.create(gang("fresh-too", 1))
        assert (await hub.until_state("fresh-too", "Running"))["cluster"] == "east"
        assert await causes(fleet, "two") == ["submitted"]
    finally:
        await recover(west)

    await hub.until_history("two", "pods-running")
    assert await causes(fleet, "two") == ["submitted", *GOES_ON]
    assert await attempts(hub, "two") == [(1, "west", "")]
    assert await fleet.objects("Job") == {"east": {"fresh", "fresh-too"}, "west": {"two"}}

    async def settled() -> bool:
        return await incarnation(hub) == (2, True)

    await hub.until(settled, "all was asked")


async def test_anchors_unknown_to_the_database_stay_and_anchors_of_ended_attempts_go(
    fleet: Fleet, backup: Backup
) -> None:
    hub = fleet.hub
    await fleet.declare("east")
    await fleet.declare("west", onClusterLost=GIVEN_UP_SOON)
    await fleet.start_dispatcher()
    over = (await hub.create(gang("over", 6)))["metadata"]["uid"]
    await hub.until_state("over", "Running")
    west = fleet.members["west"].plane
    await crash(west)
    try:
        await hub.until_history("over", "abandoned")
        await backup.take()
        missed = (await hub.create(gang("missed", 1)))["metadata"]["uid"]
        assert (await hub.until_state("missed", "Running"))["cluster"] == "east"
        await hub.kill_dispatchers()
        # Its user lost patience: nobody is left who knows of it.
        await hub.merge("AppWrapper", "missed", {"metadata": {"finalizers": None}})
        await hub.delete("missed")
        await hub.until_gone("AppWrapper", "missed")
        await backup.restore()
    finally:
        await recover(west)

    dispatcher = await fleet.start_dispatcher()

    assert f"{missed}-1" in await has_said(hub, dispatcher, "anchors_missed_by_restore")
    await hub.until_history("over", "pods-running", times=2)

    async def is_swept() -> bool:
        return f"{ANCHOR_PREFIX}{over}-1" not in (await anchors(fleet))["west"]

    await hub.until(is_swept, "the attempt that was lost is removed")
    assert await attempts(hub, "over") == [(1, "west", "lost"), (2, "west", "")]
    assert await anchors(fleet) == {
        "east": {f"{ANCHOR_PREFIX}{missed}-1"},
        "west": {f"{ANCHOR_PREFIX}{over}-2"},
    }


async def test_gang_that_waits_for_the_capacity_of_a_member_creates_nothing_before_after_a_restore(
    fleet: Fleet, backup: Backup
) -> None:
    hub, east = fleet.hub, fleet.members["east"]
    await fleet.declare("east", provisioning={"className": CLASS})
    await fleet.start_dispatcher()
    held = gang("held", 1)
    await hub.create({**held, "spec": {**held["spec"], "suspend": True}})
    await hub.until_state("held", "Suspended")
    await backup.take()
    await hub.create(gang("new", 1))
    await hub.merge("AppWrapper", "held", {"spec": {"suspend": False}})
    for name in ("held", "new"):
        await until_requested(east, f"{name}-provisioning-1")

    await backup.restore()
    await fleet.start_dispatcher()
    for name in ("held", "new"):
        await hub.until_history(name, "provisioning")
    assert await fleet.objects("Job") == {}
    assert await fleet.objects(REQUEST) == {"east": {"held-provisioning-1", "new-provisioning-1"}}
    for name in ("held", "new"):
        await answer(east, f"{name}-provisioning-1", Provisioned="here it is")
        await hub.until_history(name, "pods-running")
    await hub.merge("AppWrapper", "held", {"spec": {"suspend": True}})
    await hub.until_history("held", "removed")
    assert await fleet.objects(REQUEST) == {"east": {"new-provisioning-1"}}
