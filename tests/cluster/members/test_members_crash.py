"""Killed before and after every commit and every API write, at the hub and in the member: each gang is there once.

The same story is told again and again: a gang of two objects is submitted, dispatched to a member, runs, is
deleted and goes. Each time the dispatcher is killed at another point, and the next one goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatcher.cli.hub import MEMBERS
from dispatcher.core.record import Phase
from testbed.proxy import ApiProxy, Exchange
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.wires import FleetWires, assert_whole, found_of, point_of, wires_of
from tests.cluster.mortal import Mortal, Strike, When, sweep
from tests.cluster.wires import Life, gang, lives

Json = dict[str, Any]

RAN = ("submitted", "dispatched", "created", "pods-running")
GONE = (*RAN, "deleted", "released")

POINTS = (
    ("hub", "PATCH appwrappers: hold"),
    ("east", "POST configmaps: anchor"),
    ("east", "POST configmaps"),
    ("east", "POST jobs"),
    ("hub", "POST events: Dispatched"),
    ("hub", "PATCH appwrappers/status: Dispatched"),
    ("hub", "POST events: Running"),
    ("hub", "PATCH appwrappers/status: Running"),
    ("hub", "PATCH memberclusters/status"),
    ("east", "DELETE jobs"),
    ("east", "DELETE configmaps"),
    ("east", "DELETE configmaps: anchor"),
    ("hub", "PATCH appwrappers: let go"),
)
"""Every write of that story, each by the cluster it goes to."""

TAKEOVER = ("the lease", "the hub", "three partitions", "", "", "east", "west")
"""The commits with which a term begins."""


@pytest.fixture
async def wires(fleet: Fleet) -> AsyncIterator[FleetWires]:
    """Both members declared; nobody is called lost, however slow the machine."""
    patient = {"probe_seconds": "0.2", "unreachable_seconds": "60", "read_timeout_seconds": "10"}
    async with wires_of(fleet, **patient) as wires:
        await wires.declare("east")
        await wires.declare("west")
        yield wires


@pytest.fixture
async def mortal(wires: FleetWires) -> Mortal:
    """A dispatcher to be killed."""
    mortal = Mortal(wires)
    await mortal.start()
    return mortal


class Story:
    """Told once with each `live`, of another gang."""

    def __init__(self, mortal: Mortal, wires: FleetWires) -> None:
        self._mortal = mortal
        self._wires = wires
        self._world = wires.world
        self._told = 0

    async def live(self) -> None:
        """Tell it, whatever happens to the dispatcher, and check what is there in the middle and at the end."""
        name = f"gang-{self._told:03}"
        self._told += 1
        uid = (await self._world.create(gang(name)))["metadata"]["uid"]
        status = await self._world.until_state(name, "Running")
        await self._until_counted(status["cluster"], 1)
        assert await assert_whole(self._wires.fleet, name) == "east"
        assert (await self._lives())[name] == Life(Phase.RUNNING, RAN)
        await self._world.delete(name)
        await self._world.until_gone("AppWrapper", name)
        self._spare()
        await self._until_counted(status["cluster"], 0)
        assert await found_of(self._wires.fleet, uid) == []
        assert set((await self._lives()).values()) == {Life(Phase.DELETED, GONE)}
        assert set(self._wires.created().values()) == {1}

    async def _lives(self) -> dict[str, Life]:
        return await lives(self._world.database_url)

    async def _until_counted(self, member: str, running: int) -> None:
        """The member's own status tells how many run there, which is one more write."""

        async def counted() -> bool:
            shown = await self._world.client.get(f"{MEMBERS}/{member}")
            return bool((shown.get("status") or {}).get("running") == running)

        await self._world.until(counted, f"{member} shows that {running} run")

    def _spare(self) -> None:
        self._mortal.spare()
        for member in self._wires.members.values():
            member.rules.clear()


@pytest.fixture
def story(mortal: Mortal, wires: FleetWires) -> Story:
    return Story(mortal, wires)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", When)
async def test_killed_at_every_commit_of_a_life_in_a_member(mortal: Mortal, story: Story, when: When) -> None:
    async def arm(nth: int) -> Strike:
        return mortal.at_change(nth, when)

    assert await sweep(arm, story.live) == len(GONE)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", When)
async def test_killed_at_every_write_of_a_life_in_a_member(
    mortal: Mortal, wires: FleetWires, story: Story, when: When
) -> None:
    proxies = {"hub": wires.api, **wires.members}
    await story.live()
    assert written(proxies) == set(POINTS)

    for point in POINTS:
        strike = arm(mortal, proxies, point, when)
        await story.live()
        assert strike.begun.is_set(), point
        await strike.done.wait()

    # Also of what the successors wrote that went on in the middle there is no sort that nobody was killed at.
    assert {sort(point) for point in written(proxies)} == {sort(point) for point in POINTS}


@pytest.mark.parametrize("when", When)
async def test_killed_at_every_commit_of_a_takeover_with_members(
    mortal: Mortal, wires: FleetWires, story: Story, when: When
) -> None:
    """One after the other: each successor comes one commit further than the one before it."""
    await story.live()
    for nth in range(1, len(TAKEOVER) + 1):
        strike = mortal.at_takeover(nth, when)
        if nth == 1:
            await mortal.replace()
        await strike.done.wait()
    await story.live()


Point = tuple[str, str]


def arm(mortal: Mortal, proxies: dict[str, ApiProxy], point: Point, when: When) -> Strike:
    """Have it killed at a write of that name."""
    cluster, name = point

    def matches(each: Exchange) -> bool:
        return each.is_write and point_of(each) == name

    return mortal.at(proxies[cluster].rules, matches, when)


def written(proxies: dict[str, ApiProxy]) -> set[Point]:
    return {(cluster, point_of(each)) for cluster, proxy in proxies.items() for each in proxy.writes()}


def sort(point: Point) -> Point:
    cluster, name = point
    return cluster, name.partition(":")[0]
