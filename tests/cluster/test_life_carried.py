"""What an attempt has finished is not done again by the next: MCAD ran it anew."""

from __future__ import annotations

from typing import Any

from tests.cluster.lives import crash, evict
from tests.cluster.manifests import appwrapper, deployment, item, job, pod
from tests.cluster.world import World

Json = dict[str, Any]

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
