"""A gang that comes to its end, or near it, while no dispatcher looks."""

from __future__ import annotations

from typing import Any

from tests.cluster.lives import crash, evict
from tests.cluster.manifests import appwrapper, deployment, item, job, pod
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


# --- What an attempt has finished is not done again by the next: MCAD ran it anew --------------------------


AT_ONCE = {"requeuing": {"pauseTimeInSeconds": 0}}
SUSPEND = {"spec": {"suspend": True}}
RESUME = {"spec": {"suspend": False}}


def prepare(**spec: Any) -> Json:  # noqa: ANN401
    """A Job that is done at once."""
    made = job("prepare", run_for="100ms")
    made["spec"].update(spec)
    return made


async def half_done(world: World, first: Json, goes_on: Json) -> None:
    """Bring about a gang of something that is done and something that goes on."""
    await world.create_until(
        "RunningHoldCompletion", appwrapper("half", item(first), item(goes_on), schedulingSpec=AT_ONCE)
    )


async def uid_of(world: World, kind: str, name: str) -> str:
    found = await world.get(kind, name)
    assert found is not None
    return str(found["metadata"]["uid"])


async def test_job_that_is_done_stays_while_its_gang_is_suspended_and_is_not_run_again(world: World) -> None:
    await world.start_dispatcher()
    await half_done(world, prepare(), deployment("serve"))
    prepared, served = await uid_of(world, "Job", "prepare"), await uid_of(world, "Deployment", "serve")

    await world.merge("AppWrapper", "half", SUSPEND)
    await world.until_history("half", "removed")
    assert (await world.names("Job"), await world.names("Deployment")) == ({"prepare"}, set())
    await world.merge("AppWrapper", "half", RESUME)
    await world.until_history("half", "created", times=2)
    await world.until_state("half", "RunningHoldCompletion")

    assert await uid_of(world, "Job", "prepare") == prepared
    assert await uid_of(world, "Deployment", "serve") != served


async def test_finished_job_is_not_run_again_when_the_rest_is_evicted_without_a_leader(
    world: World,
) -> None:
    process = await world.start_dispatcher()
    await half_done(world, prepare(), pod("serve"))
    prepared, served = await uid_of(world, "Job", "prepare"), await uid_of(world, "Pod", "serve")

    await crash(world, process)
    await evict(world, "serve")
    await world.start_dispatcher()
    await world.until_history("half", "created", times=2)
    await world.until_state("half", "RunningHoldCompletion")

    assert await uid_of(world, "Job", "prepare") == prepared
    assert await uid_of(world, "Pod", "serve") != served


async def test_job_that_was_cleaned_up_once_it_was_done_is_not_run_again(world: World) -> None:
    await world.start_dispatcher()
    await half_done(world, prepare(ttlSecondsAfterFinished=0), deployment("serve"))
    await world.until_gone("Job", "prepare")

    await world.merge("AppWrapper", "half", SUSPEND)
    await world.until_history("half", "removed")
    await world.merge("AppWrapper", "half", RESUME)
    await world.until_history("half", "created", times=2)
    await world.until_state("half", "RunningHoldCompletion")

    assert await world.names("Job") == set()


async def test_item_that_is_called_done_while_it_goes_on_is_created_again(world: World) -> None:
    await world.start_dispatcher()
    serving = appwrapper(
        "half", item(deployment("first"), completionstatus="Available"), item(deployment("serve"))
    )
    await world.create(serving)
    await world.until_state("half", "RunningHoldCompletion")

    await world.merge("AppWrapper", "half", SUSPEND)
    await world.until_history("half", "removed")
    assert await world.names("Deployment") == set()
    await world.merge("AppWrapper", "half", RESUME)
    await world.until_history("half", "created", times=2)
    await world.until_state("half", "RunningHoldCompletion")

    assert await world.names("Deployment") == {"first", "serve"}
