"""Killed before and after every commit and every API write of a gang that grows: it is granted once, and charged."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import count

import pytest

from dispatcher.core.model.records.record import Phase
from tests.cluster.growing import scale, until_gated
from tests.cluster.manifests import appwrapper, autoscaling, item, job
from tests.cluster.mortal import Mortal, Strike, When, sweep
from tests.cluster.provisioning import CLASS, REQUEST, TEMPLATE, answer, until_requested
from tests.cluster.wires import lives, wires_of
from tests.cluster.world import World

pytestmark = pytest.mark.sweep


@pytest.fixture
async def mortal(world: World) -> AsyncIterator[Mortal]:
    """A dispatcher to be killed."""
    async with wires_of(world) as wires:
        mortal = Mortal(wires)
        await mortal.start()
        yield mortal


class Growing:
    """Gangs that start, grow by one pod, shrink and are deleted.

    They go to the cluster of `place`, the hub unless told otherwise.
    """

    def __init__(self, mortal: Mortal, place: World | None = None) -> None:
        self._mortal = mortal
        self._world = mortal.wires.world
        self._place = place or self._world
        self._numbers = count()

    async def step(self) -> None:
        """Let one more live, and check that its growth was granted once and charged."""
        name, world, place = f"ray-{next(self._numbers)}", self._world, self._place
        await world.create_until("Running", appwrapper(name, item(autoscaling(name))))
        await scale(place, name, 2)
        await until_gated(place, name, running=2, gated=0)
        assert "held" in await self._until_charged(name)
        await scale(place, name, 1)
        await until_gated(place, name, running=1, gated=0)
        await world.delete(name)
        await world.until_history(name, "released")
        self._mortal.spare()
        known = (await lives(world.database_url))[name]
        assert known.phase is Phase.DELETED
        assert known.steps.count("granted") == 1
        assert not {"grew", "evicted"} & set(known.steps)

    async def _until_charged(self, name: str) -> dict[str, object]:
        async def look() -> dict[str, object] | None:
            status: dict[str, object] = ((await self._world.get("AppWrapper", name)) or {}).get(
                "status"
            ) or {}
            return status if "held" in status else None

        return await self._world.until(look, f"{name} holds more than its demand")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", When)
async def test_killed_at_every_commit_of_a_gang_that_grows(mortal: Mortal, when: When) -> None:
    async def arm(nth: int) -> Strike:
        return mortal.at_change(nth, when)

    # Submitted, dispatched, created, running, granted, deleted, released.
    assert await sweep(arm, Growing(mortal).step) >= 7


@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", When)
async def test_killed_at_every_write_of_a_gang_that_grows(mortal: Mortal, when: When) -> None:
    async def arm(nth: int) -> Strike:
        return mortal.at_write(nth, when)

    # The RayCluster, the gates of two pods, and the deletion of the RayCluster; statuses and Events between them.
    assert await sweep(arm, Growing(mortal).step) >= 4


# -----------------------------------------------------------------------------------------------------------
# Killed before and after every commit and every API write of a gang that requests its capacity: nothing is
# left.


SETTING = json.dumps({"className": CLASS, "retry": {"limit": 1, "baseSeconds": 1}})


@pytest.fixture
async def requester(world: World) -> AsyncIterator[Mortal]:
    """A dispatcher to be killed, which requests the capacity of every gang."""
    async with wires_of(world) as wires:
        requester = Mortal(wires, provisioning=SETTING)
        await requester.start()
        yield requester


class Requesting:
    """Gangs whose first request fails, and whose second is provisioned; each is deleted once it runs.

    They go to the cluster of `place`, the hub unless told otherwise.
    """

    def __init__(self, requester: Mortal, place: World | None = None) -> None:
        self._mortal = requester
        self._world = requester.wires.world
        self._place = place or self._world
        self._numbers = count()

    async def step(self) -> None:
        """Let one more live, and check that nothing that requested its capacity is left."""
        name = f"gang-{next(self._numbers)}"
        await self._world.create(appwrapper(name, item(job(name))))
        await self._answer_until_gone(f"{name}-provisioning-1", Failed="no nodes")
        await self._answer_until_gone(f"{name}-provisioning-2", name, Provisioned="there")
        await self._world.until_history(name, "released")
        self._mortal.spare()
        assert await self._place.every(REQUEST) == []
        assert await self._place.every(TEMPLATE) == []
        known = (await lives(self._world.database_url))[name]
        assert known.phase is Phase.DELETED
        asked = [each for each in known.steps if each in {"provisioning-failed", "provisioned", "created"}]
        assert asked == ["provisioning-failed", "provisioned", "created"]

    async def _answer_until_gone(self, request: str, runs: str = "", **conditions: str) -> None:
        await until_requested(self._place, request)
        await answer(self._place, request, **conditions)
        if runs:
            await self._world.until_state(runs, "Running")
            await self._world.delete(runs)
        await self._place.until_gone(REQUEST, request)


@pytest.mark.parametrize("when", When)
async def test_killed_at_every_commit_of_a_gang_that_requests_its_capacity(
    requester: Mortal, when: When
) -> None:
    async def arm(nth: int) -> Strike:
        return requester.at_change(nth, when)

    # Submitted; two requests; a failure, its removal; provisioned, created, running, deleted, released.
    assert await sweep(arm, Requesting(requester).step) >= 10


@pytest.mark.parametrize("when", When)
async def test_killed_at_every_write_of_a_gang_that_requests_its_capacity(
    requester: Mortal, when: When
) -> None:
    async def arm(nth: int) -> Strike:
        return requester.at_write(nth, when)

    # Template and request, twice; those of the first are deleted; the Job.
    assert await sweep(arm, Requesting(requester).step) >= 7
