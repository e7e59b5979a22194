"""Dispatchers are replaced while users submit gangs: every gang runs once, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import psycopg
import pytest

from dispatcher.core.model.record import Phase
from tests.cluster.handover import leads, standby, users
from tests.cluster.wires import Life, Wires, gang, lives, wires_of
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


async def test_new_leader_dispatches_before_it_has_read_the_specs_of_running_gangs(world: World) -> None:
    first = await world.start_dispatcher()
    await world.create(gang("runs"))
    waits = gang("waits")
    await world.create({**waits, "spec": {**waits["spec"], "suspend": True}})
    await world.until_state("runs", "Running")
    await world.until_state("waits", "Suspended")
    assert await world.stop_dispatcher(first) == 0
    await world.merge("AppWrapper", "waits", {"spec": {"suspend": False}})

    async with await psycopg.AsyncConnection.connect(world.database_url) as connection:
        await connection.execute("LOCK TABLE spec_blob IN ACCESS EXCLUSIVE MODE")
        await world.start_dispatcher()
        await world.until_history("waits", "dispatched")
        await connection.rollback()

    await world.until_state("waits", "Running")
    await world.delete("runs")
    await world.until_gone("Job", "runs")
