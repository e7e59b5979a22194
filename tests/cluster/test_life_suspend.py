"""`spec.suspend`: an AppWrapper that its user holds back, from the start, in between, and for a while."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.lives import crash, in_the_way, out_of_the_way
from tests.cluster.manifests import appwrapper, config_map, item, job, renamed, small_job
from tests.cluster.mcad.suite import conditions
from tests.cluster.outcomes import rows
from tests.cluster.world import World, example

Json = dict[str, Any]

VERSIONS = ["AppWrapper", "AppWrapper/v1beta2"]
SUSPEND = {"spec": {"suspend": True}}
RESUME = {"spec": {"suspend": False}}


def suspended(manifest: Json) -> Json:
    return {**manifest, "spec": {**manifest["spec"], "suspend": True}}


async def queued(world: World) -> list[str]:
    return [entry.name for entry in await world.queue_now()]


@pytest.mark.parametrize("version", VERSIONS)
async def test_suspended_at_submission_stands_in_no_queue_until_it_is_released(
    world: World, version: str
) -> None:
    await world.start_dispatcher()
    status = await world.create_until("Suspended", suspended(small_job("idle")))
    await world.create_until("Running", small_job("canary"))
    assert status["state"] == "Pending"
    assert conditions(status) == {"Init": ("True", "", ""), "Suspended": ("True", "SuspendedByUser", "")}
    assert await queued(world) == []
    assert await world.names("Job") == {"canary"}

    await world.merge(version, "idle", RESUME)

    await world.until_state("idle", "Running")
    assert await world.causes("idle") == [
        "submitted-suspended",
        "resumed",
        "dispatched",
        "created",
        "pods-running",
    ]


async def test_suspended_while_it_waits_leaves_the_queue_and_comes_back_younger_by_that_time(
    world: World,
) -> None:
    await world.start_dispatcher()
    await world.create_until("Running", example("aw-raycluster-glue"))
    for name in ("first", "second"):
        await world.create_until("Backoff", renamed(example("aw-raycluster-glue"), name))
    assert await queued(world) == ["first", "second"]

    await world.merge("AppWrapper", "first", SUSPEND)

    await world.until_state("first", "Suspended")
    assert await queued(world) == ["second"]
    await world.merge("AppWrapper", "first", RESUME)
    await world.until_state("first", "Backoff")
    ages = {each["name"]: each for each in await rows(world, AGES)}
    assert ages["first"]["begins_at"] > ages["first"]["created_at"]
    assert ages["second"]["begins_at"] == ages["second"]["created_at"]
    assert await queued(world) == sorted(("first", "second"), key=lambda name: ages[name]["begins_at"])


AGES = (
    "SELECT name, created_at, coalesce(aged_from, created_at) AS begins_at FROM appwrapper "
    "WHERE name IN ('first', 'second')"
)


async def test_suspended_while_it_runs_makes_room_and_runs_again_after_the_other(world: World) -> None:
    await world.start_dispatcher()
    await world.create_until("Running", example("aw-raycluster-glue"))
    await world.create_until("Backoff", example("aw-raycluster-glue-1"))

    await world.merge("AppWrapper/v1beta2", "raycluster-glue", SUSPEND)

    await world.until_state("raycluster-glue-1", "Running")
    status = await world.until_state("raycluster-glue", "Suspended")
    assert (status["state"], status.get("cluster"), status.get("running")) == ("Pending", None, None)
    assert await world.names("RayCluster") == {"raycluster-glue-1"}
    await world.merge("AppWrapper", "raycluster-glue", RESUME)
    await world.until_state("raycluster-glue", "Backoff")
    await world.delete("raycluster-glue-1")
    await world.until_state("raycluster-glue", "Running")
    assert [cause for cause in await world.causes("raycluster-glue") if cause != "blocked"] == [
        *("submitted", "dispatched", "created", "pods-running"),
        *("suspended", "removed", "resumed"),
        *("dispatched", "created", "pods-running"),
    ]


async def test_suspended_while_it_is_being_created_leaves_nothing_and_is_created_whole_later(
    world: World,
) -> None:
    await world.start_dispatcher()
    await in_the_way(world, "second-half")
    await world.create(appwrapper("halves", item(job("first-half")), item(config_map("second-half"))))

    async def half_made() -> bool:
        return "first-half" in await world.names("Job")

    await world.until(half_made, "the first half is created")

    await world.merge("AppWrapper", "halves", SUSPEND)

    await world.until_history("halves", "removed")
    await world.until_state("halves", "Suspended")
    assert await world.names("Job") == set()
    assert await world.every("Pod") == []
    await out_of_the_way(world, "second-half")
    await world.until_gone("ConfigMap", "second-half")
    await world.merge("AppWrapper", "halves", RESUME)
    await world.until_state("halves", "Running")
    assert "second-half" in await world.names("ConfigMap")
    assert await world.causes("halves") == [
        *("submitted", "dispatched", "suspended", "removed"),
        *("resumed", "dispatched", "created", "pods-running"),
    ]


async def test_suspended_while_the_dispatcher_is_away_is_removed_at_its_return(world: World) -> None:
    process = await world.start_dispatcher()
    await world.create_until("Running", small_job("runs"))
    await crash(world, process)
    await world.merge("AppWrapper", "runs", SUSPEND)
    assert await world.names("Job") == {"runs"}

    await world.start_dispatcher()

    await world.until_state("runs", "Suspended")
    await world.until_gone("Job", "runs")


async def test_suspended_and_released_at_once_ends_up_running(world: World) -> None:
    await world.start_dispatcher()
    await world.create_until("Running", appwrapper("wavers", item(job("wavers", terminate_after="1s"))))

    await world.merge("AppWrapper", "wavers", SUSPEND)
    await world.until_history("wavers", "suspended")
    await world.merge("AppWrapper", "wavers", RESUME)

    await world.until_history("wavers", "pods-running", 2)
    assert (await world.causes("wavers"))[4:7] == ["suspended", "removed", "resumed"]
