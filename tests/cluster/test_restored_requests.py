"""The database is restored while gangs wait for requested capacity: each goes on with its request, and none is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.manifests import small_job
from tests.cluster.provisioning import CLASS, REQUEST, TEMPLATE, answer, until_requested, until_waiting
from tests.cluster.restored import Backup, has_said
from tests.cluster.world import World

Json = dict[str, Any]

SETTING = json.dumps({"className": CLASS, "retry": {"limit": 3, "baseSeconds": 1}})
SUSPEND = {"spec": {"suspend": True}}
RESUME = {"spec": {"suspend": False}}


@pytest.fixture
def backup(world: World, postgres_url: str, tmp_path: Path) -> Backup:
    """A backup that is yet to be taken."""
    return Backup(world, postgres_url, tmp_path)


def suspended(name: str) -> Json:
    """A gang that the backup has, and that has not begun then."""
    held = small_job(name)
    return {**held, "spec": {**held["spec"], **SUSPEND["spec"]}}


async def until_second_request(world: World, name: str) -> None:
    """Fail the first request of a gang; it waits for its second when this returns."""
    await until_requested(world, f"{name}-provisioning-1")
    await answer(world, f"{name}-provisioning-1", Failed="out of stock")
    await until_requested(world, f"{name}-provisioning-2")


async def until_runs(world: World, name: str) -> None:
    """Provide the capacity of a gang; it runs, and its booking is over, when this returns."""
    await until_requested(world, f"{name}-provisioning-1")
    await answer(world, f"{name}-provisioning-1", Provisioned="here it is")
    await world.until_state(name, "Running")
    await answer(world, f"{name}-provisioning-1", Provisioned="here it is", BookingExpired="it was used")


async def uids(world: World) -> dict[str, str]:
    """Every Job by its name."""
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in await world.every("Job")}


async def test_gangs_go_on_with_their_requests_and_leave_none(world: World, backup: Backup) -> None:
    await world.start_dispatcher(provisioning=SETTING)
    for name in ("held", "began"):
        await world.create(suspended(name))
        await world.until_state(name, "Suspended")
    await world.create(small_job("asked"))
    await until_requested(world, "asked-provisioning-1")
    await backup.take()
    await world.create(small_job("new"))
    for name in ("held", "began"):
        await world.merge("AppWrapper", name, RESUME)
    for name in ("asked", "began"):
        await until_runs(world, name)
    for name in ("held", "new"):
        await until_second_request(world, name)
        await until_waiting(world, name, "not promised yet")
    jobs, requests = await uids(world), await world.names(REQUEST)

    await backup.restore()
    dispatcher = await world.start_dispatcher(provisioning=SETTING)
    await has_said(world, dispatcher, "database_restored")
    for name in ("asked", "began"):
        await world.until_history(name, "pods-running")
    for name in ("held", "new"):
        await world.until_history(name, "provisioning")
    assert await uids(world) == jobs
    assert await world.names(REQUEST) == requests
    assert set(jobs) == {"asked", "began"}

    for name in ("held", "new"):
        await answer(world, f"{name}-provisioning-2", Provisioned="here it is")
        await world.until_history(name, "pods-running")
    for name in ("asked", "began", "held", "new"):
        await world.merge("AppWrapper", name, SUSPEND)
        await world.until_history(name, "removed")
    assert await world.every(REQUEST) == []
    assert await world.every(TEMPLATE) == []
