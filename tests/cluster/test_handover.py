"""Dispatchers are replaced while users submit gangs: every gang runs once, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from dispatcher.core.model.record import Phase
from tests.cluster.handover import leads, standby, users
from tests.cluster.wires import Life, Wires, lives, wires_of
from tests.cluster.world import World


@pytest.fixture
async def wires(world: World) -> AsyncIterator[Wires]:
    """The proxies through which all dispatchers of a test go."""
    async with wires_of(world) as wires:
        yield wires


async def test_rolling_restart_and_a_killed_leader_under_load_run_every_gang_once(wires: Wires) -> None:
    world = wires.world
    first = await wires.start_dispatcher()
    async with users(world) as submitted:
        await leads(world, 1)
        second = await standby(wires)

        assert await world.stop_dispatcher(first) == 0
        await leads(world, 2)
        third = await standby(wires)
        assert await world.stop_dispatcher(second) == 0
        await leads(world, 3)
        await standby(wires)
        await world.kill_dispatcher(third)
        await leads(world, 4)

    assert await lives(world.database_url) == {
        name: Life(Phase.RUNNING, ("submitted", "dispatched", "created", "pods-running"))
        for name in submitted
    }
    assert wires.created() == Counter(
        f"{world.path(kind)}/{name}" for name in submitted for kind in ("ConfigMap", "Job")
    )
    assert len(await world.every("Pod")) == len(submitted)
