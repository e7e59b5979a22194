"""Killed at every commit, and at every write to a member, of gangs that request capacity there, or grow there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.cluster.members.fleet import Fleet
from tests.cluster.members.test_members_choice import anchors
from tests.cluster.members.test_members_growth import operator
from tests.cluster.members.wires import PATIENT, FleetWires, wires_of
from tests.cluster.mortal import Mortal, Strike, When, sweep
from tests.cluster.test_crash_growth import SETTING, Growing, Requesting
from tests.cluster.wires import is_write

__all__ = ["operator"]

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(300)]

MEMBER = "west"


@asynccontextmanager
async def mortal_over(fleet: Fleet, **settings: str) -> AsyncIterator[tuple[Mortal, FleetWires]]:
    """A dispatcher to be killed, and its wires; it knows one member."""
    async with wires_of(fleet, **PATIENT, probe_seconds="0.2") as wires:
        await wires.declare(MEMBER)
        mortal = Mortal(wires, **settings)
        await mortal.start()
        yield mortal, wires


Arm = Callable[[Mortal, FleetWires, int], Strike]
"""Prepares the death of the dispatcher at the point of that number."""


def at_commit(when: When) -> Arm:
    return lambda mortal, _, number: mortal.at_change(number, when)


def at_write(when: When) -> Arm:
    return lambda mortal, wires, number: mortal.at(wires.members[MEMBER].rules, is_write, when, number)


async def swept(fleet: Fleet, life: type[Requesting] | type[Growing], prepare: Arm, **settings: str) -> int:
    """Kill the dispatcher at each point of the life of a gang in the member; how many points there are."""
    async with mortal_over(fleet, **settings) as (mortal, wires):

        async def arm(number: int) -> Strike:
            return prepare(mortal, wires, number)

        points = await sweep(arm, life(mortal, fleet.members[MEMBER]).step)
    assert await anchors(fleet) == {}
    return points


@pytest.mark.parametrize("when", When)
async def test_killed_at_every_commit_of_a_gang_that_requests_its_capacity_in_a_member(
    fleet: Fleet, when: When
) -> None:
    # Submitted; two requests; a failure, its removal; provisioned, created, running, deleted, released.
    assert await swept(fleet, Requesting, at_commit(when), provisioning=SETTING) >= 10


@pytest.mark.parametrize("when", When)
async def test_killed_at_every_write_to_the_member_of_a_gang_that_requests_its_capacity_there(
    fleet: Fleet, when: When
) -> None:
    # Anchor, template and request, and their removal, twice; the Job and its removal.
    assert await swept(fleet, Requesting, at_write(when), provisioning=SETTING) >= 12


@pytest.mark.parametrize("when", When)
async def test_killed_at_every_commit_of_a_gang_that_grows_in_a_member(fleet: Fleet, when: When) -> None:
    # Submitted, dispatched, created, running, granted, deleted, released.
    assert await swept(fleet, Growing, at_commit(when)) >= 7


@pytest.mark.parametrize("when", When)
async def test_killed_at_every_write_to_the_member_of_a_gang_that_grows_there(
    fleet: Fleet, when: When
) -> None:
    # The anchor, the RayCluster, the gates of two pods, and the removal of the RayCluster and the anchor.
    assert await swept(fleet, Growing, at_write(when)) >= 6
