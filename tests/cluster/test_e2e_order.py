"""Who goes first, and who is let past: priorities, slopes, the two policies, and the bound on starvation."""

from __future__ import annotations

from typing import Any

from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.world import World

Json = dict[str, Any]


def whole_cluster(name: str, **spec: Any) -> Json:  # noqa: ANN401
    """An AppWrapper that needs all 24 cpus of the three nodes."""
    return appwrapper(name, item(job(name, parallelism=3, cpu="8")), **spec)


async def order_of_dispatch(world: World, names: list[str]) -> list[str]:
    """The names in the order in which they were dispatched, each freed by deleting the one before."""
    order: list[str] = []
    waiting = list(names)
    while waiting:

        async def next_one(left: tuple[str, ...] = tuple(waiting)) -> str | None:
            for name in left:
                if "dispatched" in await world.causes(name):
                    return name
            return None

        name = await world.until(next_one, f"one of {waiting} is dispatched")
        order.append(name)
        waiting.remove(name)
        await world.delete(name)
    return order


async def fill(world: World) -> None:
    await world.create_until("Running", whole_cluster("holder"))


async def test_priority_slope_lets_a_gang_that_has_waited_overtake(world: World) -> None:
    await world.start_dispatcher()
    await fill(world)
    # A priority of 1000 a second: ahead as soon as it has waited, by the API server's clock, a second.
    await world.create(whole_cluster("steady", priority=500))
    await world.create_until("Backoff", whole_cluster("climbs", priority=0, priorityslope=1000))
    await world.until_state("steady", "Backoff")

    async def climbed() -> bool:
        first = (await world.queue_now())[0]
        return first.name == "climbs"

    await world.until(climbed, "the slope has lifted it to the front")
    await world.delete("holder")

    assert await order_of_dispatch(world, ["steady", "climbs"]) == ["climbs", "steady"]


async def test_strict_queue_lets_no_gang_past_its_head_and_shows_that(world: World) -> None:
    await world.start_dispatcher(queue_policy="StrictFIFO")
    await world.create_until("Running", appwrapper("holder", item(job("holder", cpu="8"))))
    await world.create_until("Backoff", whole_cluster("head"))

    status = await world.create_until("Queueing", appwrapper("small", item(job("small"))))
    assert [each["type"] for each in status["conditions"]] == ["Init", "Queueing"]
    assert status["waiting"]["reason"] == "AwaitingHeadOfLine"
    assert await world.get("Job", "small") is None
    await world.delete("head")
    await world.until_state("small", "Running")


async def test_large_gang_starts_within_its_bound_under_a_stream_of_small_ones(world: World) -> None:
    """Small gangs that hold 8 of 24 cpus each come as soon as one ends; the large one needs 20."""
    await world.start_dispatcher(starvation_bound_seconds="2")

    async def arrive(number: int) -> None:
        await world.create(appwrapper(f"small-{number}", item(job(f"small-{number}", cpu="8"))))

    for number in range(3):
        await arrive(number)
        await world.until_state(f"small-{number}", "Running")
    await world.create_until("Backoff", appwrapper("large", item(job("large", parallelism=5, cpu="4"))))
    started = number = 3

    # One always waits behind the large one, so that whatever is freed has a taker.
    await arrive(number)
    while "dispatched" not in await world.causes("large"):
        await free_one(world, number)
        number += 1
        await arrive(number)
        assert number < 200, "it was passed by again and again"

    told = [await world.reasons(f"small-{each}") for each in range(started, number + 1)]
    assert any("ReservedForAnother" in reasons for reasons in told)
    passed = [await world.causes(f"small-{each}") for each in range(started, number + 1)]
    assert any("dispatched" in causes for causes in passed)


async def free_one(world: World, newest: int) -> None:
    """Delete one that runs, and return when its capacity is free again."""
    for number in range(newest + 1):
        if await is_running(world, number):
            await world.delete(f"small-{number}")

            async def released(name: str = f"small-{number}") -> bool:
                return "released" in await world.causes(name)

            await world.until(released, f"small-{number} is released")
            return


async def is_running(world: World, number: int) -> bool:
    found = await world.get("AppWrapper", f"small-{number}")
    return bool(found and (found.get("status") or {}).get("queuejobstate") == "Running")
