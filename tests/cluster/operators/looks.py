"""What the tests beside operators look at: the pods of a world, and the health of its AppWrappers."""

from __future__ import annotations

from typing import Any

from tests.cluster.operators.gangs import Gang
from tests.cluster.world import World

Json = dict[str, Any]


async def until_running(world: World, gang: Gang, **lives: str) -> Json:
    """Submit a gang, and return its status once it runs."""
    await world.create(gang.appwrapper(**lives))
    return await world.until_state("train", "Running")


async def pods_of(world: World) -> list[Json]:
    """The pods that are not on their way out."""
    return [each for each in await world.every("Pod") if "deletionTimestamp" not in each["metadata"]]


async def has_pods(world: World, count: int) -> bool:
    """True once so many pods run, and no other is there."""
    phases = [each["status"].get("phase") for each in await pods_of(world)]
    return phases == ["Running"] * count


async def until_pods(world: World, count: int, what: str) -> None:
    """Return once so many pods run, and no other is there."""
    await world.until(lambda: has_pods(world, count), what)


async def until_no_pods(world: World, what: str) -> None:
    """Return once no pod is there, also none on its way out.

    A stopped pod becomes Failed just before it goes. If its object is resumed before that, the operator takes the pod
    for a failed one of the resumed object.
    """

    async def none_is_left() -> bool:
        return not await world.names("Pod")

    await world.until(none_is_left, what)


async def until_unhealthy(world: World, name: str = "train") -> tuple[str, str]:
    """The reason and the message of the health issue of an AppWrapper, once it has one."""
    told = await world.until_object("AppWrapper", name, unhealthy_in, f"a health issue of {name} is told")
    return told["reason"], told["message"]


async def until_healthy(world: World, name: str = "train") -> None:
    """Return once an AppWrapper has no health issue."""
    await world.until_object("AppWrapper", name, _is_healthy, f"{name} is well again")


async def assert_placed_once(world: World, name: str = "train") -> None:
    """Assert that an AppWrapper had one attempt."""
    causes = await world.causes(name)
    assert (causes.count("dispatched"), causes.count("requeued")) == (1, 0)


def unhealthy_in(found: Json | None) -> Json | None:
    """The health issue in an AppWrapper."""
    status: Json = (found or {}).get("status") or {}
    return status.get("unhealthy")


def _is_healthy(found: Json | None) -> bool:
    return found is not None and unhealthy_in(found) is None
