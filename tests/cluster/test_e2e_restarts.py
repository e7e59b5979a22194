"""A dispatcher is stopped, killed, restarted, doubled, or loses its database: nothing changes, nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dispatcher.store import migrate
from testbed.processes import Process
from tests.cluster.figures import readiness_of
from tests.cluster.manifests import small_job
from tests.cluster.world import World, example
from tests.postgres.changes import forget_replay

Json = dict[str, Any]

SHORT_LEASE = {"lease_seconds": "6", "renew_seconds": "1", "write_timeout_seconds": "3"}


@pytest.fixture
async def first(world: World) -> Process:
    """The dispatcher under which one gang runs and one waits; a short lease, so that a successor comes soon."""
    process = await world.start_dispatcher(**SHORT_LEASE, snapshot_seconds="0.1")
    await world.create_until("Running", example("aw-raycluster-glue"))
    await world.create_until("Backoff", example("aw-raycluster-glue-1"))
    await counted(world)
    return process


async def counted(world: World) -> None:
    async def both() -> bool:
        status = ((await world.get("AppWrapper", "raycluster-glue")) or {})["status"]
        waits = ((await world.get("AppWrapper", "raycluster-glue-1")) or {})["status"]
        return bool(status.get("running") == 2 and "repair" in waits["waiting"])

    await world.until(both, "the statuses count both pods and have the repair")


async def versions(world: World) -> dict[str, str]:
    """The resource version of everything we could have written."""
    found = [*await world.every("AppWrapper"), *await world.every("RayCluster"), *await world.every("Pod")]
    return {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in found}


async def has_done_something(world: World) -> None:
    """Proof that the dispatcher of now is at work and has looked at everything: it dispatches a canary."""
    await world.create_until("Running", small_job("canary"))


async def unchanged(world: World, before: dict[str, str]) -> None:
    after = await versions(world)
    assert {uid: after.get(uid) for uid in before} == before


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_restart_at_a_quiet_moment_changes_nothing(world: World, first: Process, how: str) -> None:
    before = await versions(world)
    history = await world.causes("raycluster-glue"), await world.causes("raycluster-glue-1")

    if how == "stopped":
        assert await world.stop_dispatcher(first) == 0
    else:
        await world.kill_dispatcher(first)
    await world.start_dispatcher()

    await has_done_something(world)
    await unchanged(world, before)
    assert (await world.causes("raycluster-glue"), await world.causes("raycluster-glue-1")) == history


async def test_deletion_while_the_dispatcher_is_away_frees_for_the_next(world: World, first: Process) -> None:
    await world.kill_dispatcher(first)
    await world.delete("raycluster-glue")
    await world.until_gone("RayCluster", "raycluster-glue")

    await world.start_dispatcher()

    await world.until_state("raycluster-glue-1", "Running")


async def test_standby_takes_over_from_a_killed_leader(world: World, first: Process) -> None:
    standby = await world.start_dispatcher(**SHORT_LEASE)
    assert await readiness(world, standby) == (200, "standby\n")
    before = await versions(world)

    await world.kill_dispatcher(first)

    await has_done_something(world)
    await unchanged(world, before)
    assert await readiness(world, standby) == (200, "leader\n")


async def test_gangs_that_run_are_adopted_by_an_empty_database(
    world: World, first: Process, make_database: Callable[[], str]
) -> None:
    await world.stop_dispatcher(first)
    world.database_url = make_database()
    pods = {each["metadata"]["uid"] for each in await world.every("Pod")}

    await world.start_dispatcher()

    await has_done_something(world)
    assert await world.causes("raycluster-glue") == ["adopted", "created", "pods-running"]
    assert (await world.causes("raycluster-glue-1"))[:2] == ["submitted", "blocked"]
    assert {each["metadata"]["uid"] for each in await world.every("Pod")} >= pods


async def test_api_server_restart_is_outlived(world: World, first: Process) -> None:
    before = {each["metadata"]["uid"] for each in await world.every("RayCluster")}

    await world.plane.restart_apiserver()

    await has_done_something(world)
    assert {each["metadata"]["uid"] for each in await world.every("RayCluster")} == before
    await world.delete("raycluster-glue")
    await world.until_state("raycluster-glue-1", "Running")


async def test_database_without_a_schema_is_a_clear_refusal(
    world: World, make_database: Callable[[], str]
) -> None:
    world.database_url = make_database()
    forget_replay(world.database_url)
    migrate.downgrade(world.database_url, "base")

    process = await world.start_dispatcher()

    assert process.wait(30) == 1
    assert "run: dispatcher migrate" in process.log.read_text()
    process.stop()


async def test_creation_that_was_done_but_not_noted_is_done_once(world: World) -> None:
    """What a crash between create and commit leaves behind: an object of ours the record knows nothing of."""
    made = await world.create(small_job("left"))
    job = made["spec"]["resources"]["GenericItems"][0]["generictemplate"]
    owner = {
        "apiVersion": made["apiVersion"],
        "kind": "AppWrapper",
        "name": "left",
        "uid": made["metadata"]["uid"],
        "controller": True,
    }
    existing = await world.create(job | {"metadata": {"name": "left", "ownerReferences": [owner]}})

    await world.start_dispatcher()

    await world.until_state("left", "Running")
    assert [each["metadata"]["uid"] for each in await world.every("Job")] == [existing["metadata"]["uid"]]


async def readiness(world: World, process: Process) -> tuple[int, str]:
    """What `/readyz` answers, once that is yes."""

    async def ready() -> tuple[int, str] | None:
        status, line = await readiness_of(process)
        return (status, line) if status == 200 else None

    return await world.until(ready, "it is ready")
