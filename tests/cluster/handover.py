"""Users who submit gangs while the dispatchers under them are replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import psycopg

from testbed.processes import Process
from tests.cluster.figures import readiness_of
from tests.cluster.wires import Wires, gang
from tests.cluster.world import World

USERS = 3


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


async def leads(world: World, epoch: int, *, more: bool = False) -> None:
    """Return once the leader of this epoch has dispatched three gangs; three more than now, if `more`."""
    least = (await _dispatched_by(world, epoch) if more else 0) + 3

    async def dispatched() -> bool:
        return await _dispatched_by(world, epoch) >= least

    await world.until(dispatched, f"the leader of epoch {epoch} dispatches")


async def _dispatched_by(world: World, epoch: int) -> int:
    async with await psycopg.AsyncConnection.connect(world.database_url) as connection:
        found = await connection.execute(
            "SELECT count(*) FROM event WHERE cause = 'dispatched' AND epoch = %s", [epoch]
        )
        (number,) = await found.fetchone() or (0,)
        return int(number)
