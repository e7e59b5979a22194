"""Members that fall silent: a gang of which nothing was sent goes to another, one of which anything may be there waits.

They are killed, cut off, or frozen, at a point of a dispatch that the test chooses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import psycopg
import pytest

from dispatcher.core.model.records.record import Phase
from testbed.proxy import Fault
from testbed.stack import crash, recover
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.test_members_loss import until_healthy, until_told
from tests.cluster.members.wires import (
    FleetWires,
    assert_whole,
    cut_off,
    lives_but_for,
    looks_for_anchor,
    pinned,
    wires_of,
)
from tests.cluster.test_crash_faults import creates
from tests.cluster.wires import Life, gang, lives

RAN = Life(Phase.RUNNING, ("submitted", "dispatched", "created", "pods-running"))
NOTED = ("blocked", "unhealthy", "recovered")
"""What is only noted: that it waits, that its member does not answer, and that it does."""
MOVED = Life(Phase.RUNNING, ("submitted", "dispatched", "withdrawn", "dispatched", "created", "pods-running"))


@pytest.fixture
async def wires(fleet: Fleet) -> AsyncIterator[FleetWires]:
    """A dispatcher that runs, and soon calls a member lost; east suits small gangs best, west has room, too."""
    async with wires_of(fleet, read_timeout_seconds="4") as wires:
        await wires.start()
        yield wires


Act = Callable[[FleetWires], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Silence:
    """How east falls silent, and how that ends."""

    begin: Act
    end: Act


async def kill(wires: FleetWires) -> None:
    await crash(wires.fleet.members["east"].plane)


async def start_again(wires: FleetWires) -> None:
    await recover(wires.fleet.members["east"].plane)


async def cut(wires: FleetWires) -> None:
    cut_off(wires.members["east"])


async def mend(wires: FleetWires) -> None:
    wires.members["east"].rules.clear()


async def freeze(wires: FleetWires) -> None:
    wires.members["east"].freeze()


async def thaw(wires: FleetWires) -> None:
    wires.members["east"].thaw()


SILENCES = [
    pytest.param(Silence(kill, start_again), id="killed"),
    pytest.param(Silence(cut, mend), id="cut"),
    pytest.param(Silence(freeze, thaw), id="frozen"),
]


@pytest.mark.parametrize("silence", SILENCES)
async def test_gang_goes_to_another_member_if_its_own_falls_silent_before_anything_was_sent(
    wires: FleetWires, silence: Silence
) -> None:
    world = wires.world
    begin = Fault(before=lambda: silence.begin(wires), forward=False)
    wires.members["east"].rules.on(looks_for_anchor, begin)
    await world.create(gang("moved"))
    try:
        await world.until_history("moved", "withdrawn")
        status = await world.until_state("moved", "Running")
        assert status["cluster"] == "west"
        await until_told(wires.fleet, "east", "ClusterUnreachable")
    finally:
        await silence.end(wires)

    await until_told(wires.fleet, "east", None)
    assert await assert_whole(wires.fleet, "moved", attempt=2) == "west"
    assert await lives_but_for(world.database_url, "blocked") == {"moved": MOVED}
    (why,) = await messages(world.database_url, "moved", "withdrawn")
    assert why.startswith("cluster east: ")
    assert set(wires.created().values()) == {1}


@pytest.mark.parametrize("silence", SILENCES)
async def test_gang_waits_for_its_member_if_that_falls_silent_between_two_creations(
    wires: FleetWires, silence: Silence
) -> None:
    world = wires.world
    begin = Fault(before=lambda: silence.begin(wires), forward=False)
    wires.members["east"].rules.on(creates("halved", "jobs"), begin)
    await world.create(gang("halved"))
    try:
        shown = await until_healthy(wires.fleet, "halved", healthy=False)
        assert (shown["cluster"], shown["unhealthy"]["reason"]) == ("east", "ClusterUnreachable")
        await until_told(wires.fleet, "east", "ClusterUnreachable")
        await world.create(gang("meanwhile"))
        assert (await world.until_state("meanwhile", "Running"))["cluster"] == "west"
        assert await wires.fleet.members["west"].names("Job") == {"meanwhile"}
    finally:
        await silence.end(wires)

    await world.until_state("halved", "Running")
    assert await assert_whole(wires.fleet, "halved") == "east"
    known = await lives_but_for(world.database_url, *NOTED)
    assert known == {"halved": RAN, "meanwhile": RAN}
    assert set(wires.created().values()) == {1}


async def test_frozen_member_delays_no_other_member_and_loses_nothing(wires: FleetWires) -> None:
    """It accepts connections and never answers; a creation is on its way to it when that begins."""
    world, east = wires.world, wires.members["east"]
    caught = east.rules.on(creates("caught", "jobs"), Fault(before=lambda: freeze(wires)))
    await world.create(pinned("caught", "east"))
    await caught.struck.wait()

    meanwhile = [f"meanwhile-{number}" for number in range(10)]
    for name in meanwhile:
        await world.create_until("Running", pinned(name, "west"))
    await until_told(wires.fleet, "east", "ClusterUnreachable")
    assert (await lives(world.database_url))["caught"].phase is Phase.DISPATCHING
    east.thaw()

    await until_told(wires.fleet, "east", None)
    await world.until_state("caught", "Running")
    await world.create_until("Running", pinned("afterwards", "east"))
    where = {"caught": "east", "afterwards": "east"} | dict.fromkeys(meanwhile, "west")
    assert {name: await assert_whole(wires.fleet, name) for name in where} == where
    assert await lives_but_for(world.database_url, *NOTED) == dict.fromkeys(where, RAN)
    assert set(wires.created().values()) == {1}


async def messages(database_url: str, name: str, cause: str) -> list[str]:
    """What history says to that cause, in order."""
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        found = await connection.execute(
            "SELECT message FROM event WHERE name = %s AND cause = %s ORDER BY id", [name, cause]
        )
        return [message for (message,) in await found.fetchall()]
