"""A gang that comes to its end, or near it, while no dispatcher looks."""

from __future__ import annotations

from typing import Any

from tests.cluster.lives import breaking_job, crash
from tests.cluster.manifests import appwrapper, deployment, item, job
from tests.cluster.world import World

Json = dict[str, Any]


async def has_ended(world: World, name: str, condition: str) -> None:
    """Return once a Job says so."""

    async def told() -> bool:
        found = await world.get("Job", name) or {}
        return any(
            each["type"] == condition and each["status"] == "True"
            for each in (found.get("status") or {}).get("conditions") or ()
        )

    await world.until(told, f"Job {name} is {condition}")


async def test_work_that_is_done_while_the_dispatcher_is_away_completes_at_its_return(world: World) -> None:
    process = await world.start_dispatcher()
    await world.create_until(
        "Running", appwrapper("ends", item(job("ends", parallelism=3, cpu="8", run_for="1500ms")))
    )
    await world.create(appwrapper("next", item(job("next", parallelism=3, cpu="8"))))
    await crash(world, process)
    await has_ended(world, "ends", "Complete")

    await world.start_dispatcher()

    await world.until_shown("ends", "Completed")
    await world.until_state("next", "Running")
    assert (await world.causes("ends")).count("dispatched") == 1


async def test_work_that_fails_while_the_dispatcher_is_away_fails_at_its_return(world: World) -> None:
    process = await world.start_dispatcher()
    breaks = breaking_job("breaks", fail_after="1500ms")
    await world.create_until("Running", appwrapper("breaks", item(breaks), item(deployment("other"))))
    await crash(world, process)
    await has_ended(world, "breaks", "Failed")

    await world.start_dispatcher()

    await world.until_shown("breaks", "Failed")
    await world.until_gone("Deployment", "other")
    assert await world.names("Job") == {"breaks"}


async def test_work_that_was_done_and_cleaned_up_counts_as_done_after_a_crash(world: World) -> None:
    process = await world.start_dispatcher()
    first = job("first", run_for="500ms")
    await world.create(appwrapper("both", item(first), item(job("second"))))
    await world.until_shown("both", "RunningHoldCompletion")
    await world.delete("first", "Job")
    await world.until_gone("Job", "first")
    await crash(world, process)

    await world.start_dispatcher()

    for each in await world.every("Pod"):
        await world.merge_status("Pod", each["metadata"]["name"], {"phase": "Succeeded"})
    await world.until_shown("both", "Completed")
    assert (await world.causes("both")).count("dispatched") == 1
