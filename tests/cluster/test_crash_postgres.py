"""Postgres killed under load, or away at the start: what was submitted is dispatched, each once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dispatcher.core.model.records.record import Phase
from dispatcher.store import migrate
from testbed.postgres import EmbeddedPostgres
from testbed.processes import Supervisor
from testbed.proxy import Fault
from tests.cluster.wires import Life, Wires, assert_whole, changes_records, gang, lives, wires_of
from tests.cluster.world import World

LOADS = [12, pytest.param(30, marks=pytest.mark.exhaustive)]
"""So many gangs; four are enough for each killing, as some are taken in when it comes, and some dispatched."""
RAN = Life(Phase.RUNNING, ("submitted", "dispatched", "created", "pods-running"))


@pytest.fixture
async def postgres(supervisor: Supervisor) -> AsyncIterator[EmbeddedPostgres]:
    """A server of our own, to be killed."""
    postgres = EmbeddedPostgres(supervisor)
    await asyncio.to_thread(postgres.start)
    await asyncio.to_thread(migrate.migrate, postgres.url)
    yield postgres
    await asyncio.to_thread(postgres.close)


@pytest.fixture
async def wires(world: World, postgres: EmbeddedPostgres) -> AsyncIterator[Wires]:
    """The wires of a dispatcher on that server."""
    world.database_url = postgres.url
    async with wires_of(world) as wires:
        yield wires


@pytest.mark.parametrize("count", LOADS)
async def test_killed_under_load_it_loses_nothing_and_doubles_nothing(
    wires: Wires, postgres: EmbeddedPostgres, count: int
) -> None:
    """Killed three times in mid-commit: with all of it undone, and with the outcome unknown to the dispatcher."""
    load = names_of(count)

    async def crash() -> None:
        await asyncio.to_thread(postgres.kill)
        await asyncio.to_thread(postgres.start)

    undone, unknown = Fault(before=crash, forward=False), Fault(after=crash, pass_on=False)
    await wires.start_dispatcher()

    for number, fault in enumerate((unknown, undone, unknown)):
        crashed = wires.postgres.rules.on(changes_records, fault, nth=2)
        for name in load[number::3]:
            await wires.world.create(gang(name))
        await crashed.struck.wait()

    await all_ran(wires, load)


@pytest.mark.parametrize("count", LOADS)
async def test_away_at_the_start_it_is_waited_for(
    wires: Wires, postgres: EmbeddedPostgres, count: int
) -> None:
    load = names_of(count)
    await asyncio.to_thread(postgres.kill)
    process = await wires.start_dispatcher()
    for name in load:
        await wires.world.create(gang(name))

    async def waits() -> bool:
        return "store_unavailable" in process.log.read_text()

    await wires.world.until(waits, "the dispatcher waits for the database")
    await asyncio.to_thread(postgres.start)

    await all_ran(wires, load)


def names_of(count: int) -> list[str]:
    """The names of so many gangs."""
    return [f"gang-{number:02}" for number in range(count)]


async def all_ran(wires: Wires, load: list[str]) -> None:
    for name in load:
        await wires.world.until_state(name, "Running")
    await assert_whole(wires.world, *load)
    assert await lives(wires.world.database_url) == dict.fromkeys(load, RAN)
    assert set(wires.created().values()) == {1}
