"""After the end: what is kept and for how long, what is never run again, and what a deletion leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dispatcher.api.annotations import (
    DELETION_ON_FAILURE_GRACE,
    RETRY_PAUSE,
)
from tests.cluster.figures import free_in
from tests.cluster.lives import breaking_job, crash, evict
from tests.cluster.manifests import (
    appwrapper,
    bent,
    config_map,
    deployment,
    item,
    job,
    pod,
    raycluster,
    small_job,
)
from tests.cluster.mcad.suite import conditions
from tests.cluster.world import World

Json = dict[str, Any]

INPUT = item(config_map("input"))


def completing(name: str = "ends") -> Json:
    """It is done soon after it runs."""
    return appwrapper(name, item(job("work", run_for="500ms")), INPUT)


def failing(name: str = "ends") -> Json:
    """It fails soon after it runs."""
    return appwrapper(name, item(breaking_job("work")), INPUT)


ENDS = [
    pytest.param(completing(), "Completed", id="completed"),
    pytest.param(failing(), "Failed", id="failed"),
]


async def until_nothing_is_kept(world: World, state: str) -> None:
    """Return once the status, which is written after the history, says that nothing is kept any more."""

    async def look() -> bool:
        return (await world.until_shown("ends", state)).get("keptUntil") is None

    await world.until(look, "the status says that nothing is kept")


async def test_objects_of_a_failed_gang_are_kept_for_as_long_as_its_author_asked(world: World) -> None:
    await world.start_dispatcher()

    await world.create(bent(failing(), {DELETION_ON_FAILURE_GRACE: "1s"}))

    await world.until_history("ends", "expired")
    assert await world.names("Job") == set()
    await until_nothing_is_kept(world, "Failed")


async def test_time_that_runs_out_while_the_dispatcher_is_away_has_run_out_at_its_return(
    world: World,
) -> None:
    process = await world.start_dispatcher(kept_seconds="2")
    await world.create(completing())
    await world.until_shown("ends", "Completed")
    await crash(world, process)

    await world.start_dispatcher(kept_seconds="2")

    await world.until_history("ends", "expired")
    await world.until_gone("Job", "work")


@pytest.mark.parametrize("database", ["the-same", "a-fresh-one"])
@pytest.mark.parametrize(("manifest", "state"), ENDS)
async def test_ended_gang_is_not_run_again_after_a_crash(
    world: World, make_database: Callable[[], str], manifest: Json, state: str, database: str
) -> None:
    process = await world.start_dispatcher()
    await world.create(manifest)
    assert (await world.until_shown("ends", state))["keptUntil"]
    await crash(world, process)
    jobs = await world.every("Job")
    if database == "a-fresh-one":
        world.database_url = make_database()

    await world.start_dispatcher()

    await world.create_until("Running", small_job("canary"))
    status = await world.until_shown("ends", state)
    dispatches = 1 if database == "the-same" else 0
    assert (await world.causes("ends")).count("dispatched") == dispatches
    assert conditions(status)[state][0] == "True"
    assert [each for each in await world.every("Job") if each["metadata"]["name"] == "work"] == jobs
    phases = {
        each["metadata"]["labels"]["job-name"]: each["status"]["phase"] for each in await world.every("Pod")
    }
    assert phases["work"] == {"Completed": "Succeeded", "Failed": "Failed"}[state]


async def test_objects_of_an_ended_gang_are_kept_no_longer_though_the_database_was_lost(
    world: World, make_database: Callable[[], str]
) -> None:
    process = await world.start_dispatcher(kept_seconds="3")
    await world.create(completing())
    await world.until_shown("ends", "Completed")
    await crash(world, process)
    world.database_url = make_database()

    await world.start_dispatcher(kept_seconds="3")

    await world.until_gone("Job", "work")
    assert (await world.until_shown("ends", "Completed"))["state"] == "Completed"


# --- deletion ------------------------------------------------------------------------------------------

SLOWLY = "1500ms"


async def make_requeueing(world: World) -> None:
    await world.create_until(
        "Running",
        bent(
            appwrapper("goes", item(pod("bare")), item(job("slow", cpu="8", terminate_after=SLOWLY))),
            {RETRY_PAUSE: "0s"},
        ),
    )
    await evict(world, "bare")
    await world.until_history("goes", "evicted")


async def make_suspending(world: World) -> None:
    await world.create_until(
        "Running", appwrapper("goes", item(job("slow", cpu="8", terminate_after=SLOWLY)), INPUT)
    )
    await world.merge("AppWrapper", "goes", {"spec": {"suspend": True}})
    await world.until_history("goes", "suspended")


async def make_failing(world: World) -> None:
    slow = raycluster("slow", cpu="8", terminate_after=SLOWLY)
    await world.create(appwrapper("goes", item(breaking_job("breaks")), item(slow), INPUT))
    await world.until_history("goes", "run-failed")


async def make_hold(world: World) -> None:
    work = job("work", run_for="500ms")
    await world.create(appwrapper("goes", item(work), item(deployment("serves", cpu="8")), INPUT))
    await world.until_shown("goes", "RunningHoldCompletion")


async def make_completed(world: World) -> None:
    await world.create(completing("goes"))
    await world.until_shown("goes", "Completed")


async def make_failed(world: World) -> None:
    await world.create(failing("goes"))
    await world.until_shown("goes", "Failed")


async def make_suspended(world: World) -> None:
    await make_suspending(world)
    await world.until_state("goes", "Suspended")


@pytest.mark.parametrize(
    "make",
    [
        make_requeueing,
        make_suspending,
        make_suspended,
        make_failing,
        make_hold,
        make_completed,
        make_failed,
    ],
)
async def test_deletion_at_any_stage_leaves_nothing_and_gives_everything_back(
    world: World, make: Callable[[World], Awaitable[None]]
) -> None:
    process = await world.start_dispatcher()
    await make(world)

    await world.delete("goes")

    await world.until_gone("AppWrapper", "goes")
    await world.create_until("Running", appwrapper("all", item(job("all", parallelism=3, cpu="8"))))
    await world.until_gone("ConfigMap", "input")
    assert (await world.causes("goes"))[-1] in {"deleted", "released"}
    assert await world.names("Job") == {"all"}
    assert {each["metadata"]["labels"].get("job-name") for each in await world.every("Pod")} == {"all"}
    assert (await free_in(process)).get("cpu", 0) == 0


@pytest.mark.parametrize(
    ("make", "state"),
    [(make_requeueing, "Running"), (make_suspending, "Suspended"), (make_failing, "Failed")],
)
async def test_removal_is_carried_on_after_a_crash(
    world: World, make: Callable[[World], Awaitable[None]], state: str
) -> None:
    process = await world.start_dispatcher()
    await make(world)
    await crash(world, process)

    await world.start_dispatcher()

    causes = await world.until_history("goes", "removed")
    await world.until_state("goes", state)
    assert causes.count("removed") == 1
    assert await world.names("RayCluster") == set()


# --- what was committed at submission --------------------------------------------------------------------


async def test_second_attempt_creates_the_objects_committed_at_submission(world: World) -> None:
    """A key that is renamed twice is what the definition's own rules cannot see."""
    await world.start_dispatcher()
    settings, edited = config_map("settings"), {"rate": "2"}
    settings["data"] = {"rate": "1"}
    submitted = appwrapper("edited", item(settings), item(pod("bare")))
    await world.create(bent(submitted, {RETRY_PAUSE: "0s"}))
    await world.until_state("edited", "Running")
    del settings["data"]
    for key in ("payload", "data"):
        items = [item({**settings, key: edited}), item(pod("bare"))]
        await world.merge("AppWrapper", "edited", {"spec": {"resources": {"GenericItems": items}}})

    await evict(world, "bare")

    await world.until_history("edited", "pods-running", 2)
    found = await world.get("AppWrapper", "edited")
    assert found is not None
    assert found["spec"]["resources"]["GenericItems"][0]["generictemplate"]["data"] == edited
    made = await world.get("ConfigMap", "settings")
    assert made is not None
    assert (made["data"], made["metadata"]["labels"]["dispatcher.codeflare.dev/attempt"]) == (
        {"rate": "1"},
        "2",
    )
