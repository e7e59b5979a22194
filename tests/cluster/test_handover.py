"""Dispatchers are replaced while users submit gangs: every gang runs once, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import psycopg
import pytest

from dispatcher.core.model.record import Phase
from testbed.processes import Process
from tests.cluster.figures import readiness_of
from tests.cluster.wires import Life, Wires, gang, lives, wires_of
from tests.cluster.world import World

USERS = 3


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


@asynccontextmanager
async def users(world: World) -> AsyncIterator[list[str]]:
    """Users who each submit the next gang once the last one runs; yields the names of all gangs.

    On exit each user waits until the last gang runs.
    """
    names: list[str] = []
    numbers, is_over = count(), False

    async def submit() -> None:
        while not is_over:
            names.append(f"gang-{next(numbers)}")
            await world.create(gang(name := names[-1], cpu="10m"))
            await world.until_state(name, "Running")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(USERS):
            tasks.create_task(submit())
        yield names
        is_over = True


async def standby(wires: Wires) -> Process:
    """A new dispatcher, once it has seen that another one leads."""
    process = await wires.start_dispatcher()

    async def stands_by() -> bool:
        return await readiness_of(process) == (200, "standby\n")

    await wires.world.until(stands_by, "a dispatcher stands by")
    return process


async def leads(world: World, epoch: int) -> None:
    """Return once the leader of this epoch has dispatched three gangs."""

    async def dispatched() -> bool:
        async with await psycopg.AsyncConnection.connect(world.database_url) as connection:
            found = await connection.execute(
                "SELECT count(*) >= 3 FROM event WHERE cause = 'dispatched' AND epoch = %s", [epoch]
            )
            return await found.fetchone() == (True,)

    await world.until(dispatched, f"the leader of epoch {epoch} dispatches")
