"""The database is restored from a backup while the hub has gone on: nothing runs twice, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lives import crash_all
from tests.cluster.manifests import appwrapper, item, job, small_job
from tests.cluster.provisioning import CLASS, REQUEST, TEMPLATE, answer, until_requested, until_waiting
from tests.cluster.restored import Backup, attempts, has_said, incarnation, is_told_in_order
from tests.cluster.world import World

Json = dict[str, Any]

SUSPEND = {"spec": {"suspend": True}}
RESUME = {"spec": {"suspend": False}}
RAN = ["submitted", "dispatched", "created", "pods-running"]
GOES_ON = ["found-running", "created", "pods-running"]


@pytest.fixture
def backup(world: World, postgres_url: str, tmp_path: Path) -> Backup:
    """A backup that is yet to be taken."""
    return Backup(world, postgres_url, tmp_path)


def sized(name: str, cpu: str, **life: str) -> Json:
    """Three pods, one for each node."""
    return appwrapper(name, item(job(name, parallelism=3, cpu=cpu, **life)))


async def uids(world: World) -> dict[str, str]:
    """Every Job by its name."""
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in await world.every("Job")}


async def has_done_something(world: World, name: str) -> None:
    """Proof that the dispatcher has looked at everything: it dispatches a canary, and that runs."""
    await world.create_until("Running", small_job(name))


async def before_the_backup(world: World) -> None:
    await world.create(sized("big", "7"))
    for name in ("runs", "moves", "rests", "goes"):
        await world.create(small_job(name))
    for name in ("big", "runs", "moves", "rests", "goes"):
        await world.until_state(name, "Running")
    held = small_job("held")
    await world.create({**held, "spec": {**held["spec"], "suspend": True}})
    await world.until_state("held", "Suspended")
    await world.create(sized("waits", "4"))
    await world.create(sized("ends", "2", run_for="500ms"))
    for name in ("waits", "ends"):
        await world.until_state(name, "Backoff")


async def after_the_backup(world: World) -> None:
    await world.merge("AppWrapper", "moves", SUSPEND)
    await world.until_state("moves", "Suspended")
    await world.merge("AppWrapper", "moves", RESUME)
    await world.until_history("moves", "pods-running", times=2)
    await world.merge("AppWrapper", "rests", SUSPEND)
    await world.until_state("rests", "Suspended")
    await world.merge("AppWrapper", "held", RESUME)
    await world.delete("goes")
    await world.delete("big")
    await world.create(small_job("new"))
    for name in ("held", "waits", "new"):
        await world.until_state(name, "Running")
    await world.until_state("ends", "Completed")
    for name in ("big", "goes"):
        await world.until_gone("Job", name)


async def test_hub_that_went_on_after_the_backup_is_taken_over_as_it_is(world: World, backup: Backup) -> None:
    await world.start_dispatcher()
    await before_the_backup(world)
    await backup.take()
    await after_the_backup(world)
    jobs = await uids(world)

    await backup.restore()
    dispatcher = await world.start_dispatcher()

    await has_said(world, dispatcher, "database_restored")
    await has_done_something(world, "canary")
    for name in ("moves", "held", "waits", "new"):
        await world.until_state(name, "Running")
        await world.until_history(name, "pods-running", times=2 if name == "moves" else 1)
    await world.until_history("rests", "suspended")
    for name in ("big", "goes"):
        await world.until_history(name, "released")
    assert {name: uid for name, uid in (await uids(world)).items() if name != "canary"} == jobs
    causes = {
        name: [each for each in await world.causes(name) if each not in {"blocked", "blocked-at-head"}]
        for name in ("runs", "moves", "rests", "held", "waits", "ends", "goes", "big", "new")
    }
    assert causes == {
        "runs": RAN,
        "moves": [*RAN, "found-ended", *GOES_ON],
        "rests": [*RAN, "found-ended", "suspended"],
        "held": ["submitted-suspended", *GOES_ON],
        "waits": ["submitted", *GOES_ON],
        "ends": ["submitted", "found-running", "found-completed"],
        "goes": [*RAN, "deleted", "released"],
        "big": [*RAN, "deleted", "released"],
        "new": ["adopted", "created", "pods-running"],
    }
    assert await attempts(world, "moves") == [(1, "hub", "missed"), (2, "hub", "")]
    assert await attempts(world, "ends") == [(1, "hub", "completed")]
    assert await incarnation(world) == (2, True)
    assert await is_told_in_order(world)


async def test_restore_is_noticed_once_and_attempts_continue_after_the_found_attempts(
    world: World, backup: Backup
) -> None:
    await world.start_dispatcher()
    await world.create_until("Running", small_job("moves"))
    await backup.take()
    for times in (2, 3):
        await world.merge("AppWrapper", "moves", SUSPEND)
        await world.until_state("moves", "Suspended")
        await world.merge("AppWrapper", "moves", RESUME)
        await world.until_history("moves", "pods-running", times=times)
        await world.until_state("moves", "Running")  # status follows history: it may still say Suspended

    await backup.restore()
    await world.start_dispatcher()
    await world.until_history("moves", "pods-running", times=2)
    await crash_all(world)
    await world.start_dispatcher()
    await world.merge("AppWrapper", "moves", SUSPEND)
    await world.until_state("moves", "Suspended")
    await world.merge("AppWrapper", "moves", RESUME)
    await world.until_history("moves", "pods-running", times=3)

    assert await attempts(world, "moves") == [
        (1, "hub", "missed"),
        (3, "hub", "suspended"),
        (4, "hub", ""),
    ]
    assert await incarnation(world) == (2, True)


# -----------------------------------------------------------------------------------------------------------
# The database is restored while gangs wait for requested capacity: each goes on with its request, and none
# is left.


SETTING = json.dumps({"className": CLASS, "retry": {"limit": 3, "baseSeconds": 1}})


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
