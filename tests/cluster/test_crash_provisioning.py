"""Killed before and after every commit and every API write of a gang that requests its capacity: nothing is left."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import count

import pytest

from dispatcher.core.model.record import Phase
from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.mortal import Mortal, Strike, When, sweep
from tests.cluster.provisioning import CLASS, REQUEST, TEMPLATE, answer, until_requested
from tests.cluster.wires import lives, wires_of
from tests.cluster.world import World

pytestmark = pytest.mark.sweep

SETTING = json.dumps({"className": CLASS, "retry": {"limit": 1, "baseSeconds": 1}})


@pytest.fixture
async def mortal(world: World) -> AsyncIterator[Mortal]:
    """A dispatcher to be killed, which requests the capacity of every gang."""
    async with wires_of(world) as wires:
        mortal = Mortal(wires, provisioning=SETTING)
        await mortal.start()
        yield mortal


class Requesting:
    """Gangs whose first request fails, and whose second is provisioned; each is deleted once it runs.

    They go to the cluster of `place`, the hub unless told otherwise.
    """

    def __init__(self, mortal: Mortal, place: World | None = None) -> None:
        self._mortal = mortal
        self._world = mortal.wires.world
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
    mortal: Mortal, when: When
) -> None:
    async def arm(nth: int) -> Strike:
        return mortal.at_change(nth, when)

    # Submitted; two requests; a failure, its removal; provisioned, created, running, deleted, released.
    assert await sweep(arm, Requesting(mortal).step) >= 10


@pytest.mark.parametrize("when", When)
async def test_killed_at_every_write_of_a_gang_that_requests_its_capacity(mortal: Mortal, when: When) -> None:
    async def arm(nth: int) -> Strike:
        return mortal.at_write(nth, when)

    # Template and request, twice; those of the first are deleted; the Job.
    assert await sweep(arm, Requesting(mortal).step) >= 7
