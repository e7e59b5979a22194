"""Killed before and after every commit and every API write, at the hub and in the member: each gang is there once.

The same story is told again and again: a gang of two objects is submitted, dispatched to a member, runs, is
deleted and goes. Each time the dispatcher is killed at another point, and the next one goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dispatcher.api.names import MEMBERS_PATH, UID_LABEL
from dispatcher.core.model.records.record import Phase
from testbed.proxy import ApiProxy, Exchange
from tests.cluster.manifests import POD_LIFE
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.wires import (
    PATIENT,
    FleetWires,
    assert_whole,
    found_of,
    lives_but_for,
    pinned,
    point_of,
    wires_of,
)
from tests.cluster.mortal import Mortal, Strike, When
from tests.cluster.wires import Life, gang, lives

pytestmark = pytest.mark.sweep

RAN = ("submitted", "dispatched", "created", "pods-running")
GONE = (*RAN, "deleted", "released")
"""Every commit of that story, by its cause."""

Point = tuple[str, str]
"""A write by the cluster it goes to, and what it is."""

POINTS = (
    ("hub", "PATCH appwrappers: add finalizer"),
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
    ("hub", "PATCH appwrappers: remove finalizer"),
)
"""Every write of that story."""

TAKEOVER_COMMITS = 5
"""The lease, the hub's identity, whether it was restored, the identity of each member."""


class Story:
    """Told once with each `live`, of another gang."""

    def __init__(self, mortal: Mortal, wires: FleetWires) -> None:
        self._mortal = mortal
        self._wires = wires
        self._world = wires.world
        self._told = 0

    async def live(self) -> tuple[str, ...]:
        """Tell it, whatever happens to the dispatcher; check what there is in the middle and at the end.

        Returns every cause of its history, also that it was blocked, as it may be while members are joining.
        """
        name = f"gang-{self._told:03}"
        self._told += 1
        # Were its pod to run at once, the status might pass over Dispatched.
        uid = (await self._world.create(gang(name, never_start="true")))["metadata"]["uid"]
        await self._world.until_state(name, "Dispatched")
        await self._let_start(uid)
        await self._world.until_state(name, "Running")
        await self._until_counted(1)
        assert await assert_whole(self._wires.fleet, name) == "east"
        await self._steps(name, Phase.RUNNING, RAN)
        await self._world.delete(name)
        await self._world.until_gone("AppWrapper", name)
        self._mortal.spare()
        await self._until_counted(0)
        assert await found_of(self._wires.fleet, uid) == []
        assert set(self._wires.created().values()) == {1}
        return await self._steps(name, Phase.DELETED, GONE)

    async def _let_start(self, uid: str) -> None:
        """Have the node start the gang's pod, once the pod exists."""
        east = self._wires.fleet.members["east"]

        async def pod() -> str | None:
            found = [each["metadata"] for each in await east.every("Pod")]
            return next((each["name"] for each in found if each["labels"].get(UID_LABEL) == uid), None)

        name = await east.until(pod, f"the pod of {uid} exists in east")
        await east.merge("Pod", name, {"metadata": {"annotations": {f"{POD_LIFE}/never-start": None}}})

    async def _steps(self, name: str, phase: Phase, expected: tuple[str, ...]) -> tuple[str, ...]:
        life = (await lives(self._world.database_url))[name]
        assert (life.phase, tuple(step for step in life.steps if step != "blocked")) == (phase, expected)
        return life.steps

    async def _until_counted(self, running: int) -> None:
        """East's own status tells how many run there, which is one more write."""

        async def counted() -> bool:
            shown = await self._world.client.get(f"{MEMBERS_PATH}/east")
            return bool((shown.get("status") or {}).get("running") == running)

        await self._world.until(counted, f"east shows that {running} run")


@asynccontextmanager
async def told(fleet: Fleet, probe_seconds: str) -> AsyncIterator[tuple[Mortal, FleetWires, Story]]:
    """A dispatcher to be killed, with both members, its wires, and the story of its gangs."""
    async with wires_of(fleet, **PATIENT, probe_seconds=probe_seconds) as wires:
        for name in wires.members:
            await wires.declare(name)
        mortal = Mortal(wires)
        await mortal.start()
        yield mortal, wires, Story(mortal, wires)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", When)
async def test_killed_at_every_commit_of_a_life_in_a_member(fleet: Fleet, when: When) -> None:
    async with told(fleet, "0.2") as (mortal, _, story):
        left = set(GONE)
        while left:
            nth = min(map(GONE.index, left)) + 1
            strike = mortal.at_change(nth, when)
            steps = await story.live()
            await strike.done.wait()
            left.discard(steps[nth - 1])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", When)
async def test_killed_at_every_write_of_a_life_in_a_member(fleet: Fleet, when: When) -> None:
    async with told(fleet, "0.2") as (mortal, wires, story):
        proxies = {"hub": wires.api, **wires.members}
        for point in POINTS:
            strike = at_point(mortal, proxies, point, when)
            await story.live()
            assert strike.begun.is_set(), point
            await strike.done.wait()

        # Also of what the successors wrote there is no sort that nobody was killed at.
        assert {sort(point) for point in written(proxies)} == {sort(point) for point in POINTS}


@pytest.mark.parametrize("when", When)
async def test_killed_at_every_commit_of_a_takeover_with_members(fleet: Fleet, when: When) -> None:
    """One after the other: each successor comes one commit further than the one before it."""
    # With each probe a member is recognised again: it should not be in time to be taken for the other.
    async with told(fleet, "2") as (mortal, wires, _):
        await wires.world.create_until("Running", gang("runs"))
        await wires.world.create_until("Backoff", pinned("waits", "nowhere"))

        await mortal.replace()
        for nth in range(1, TAKEOVER_COMMITS + 1):
            await mortal.at_takeover(nth, when).done.wait()

        await wires.world.create_until("Running", gang("comes"))
        waits = Life(Phase.QUEUED, ("submitted",))
        ran = Life(Phase.RUNNING, RAN)
        known = await lives_but_for(wires.world.database_url, "blocked")
        assert known == {"runs": ran, "waits": waits, "comes": ran}
        assert [await assert_whole(fleet, name) for name in ("runs", "comes")] == ["east", "east"]
        assert set(wires.created().values()) == {1}


def at_point(mortal: Mortal, proxies: dict[str, ApiProxy], point: Point, when: When) -> Strike:
    """Have it killed at that write."""
    cluster, name = point

    def matches(each: Exchange) -> bool:
        return each.is_write and point_of(each) == name

    return mortal.at(proxies[cluster].rules, matches, when)


def written(proxies: dict[str, ApiProxy]) -> set[Point]:
    """Every write so far."""
    return {(cluster, point_of(each)) for cluster, proxy in proxies.items() for each in proxy.writes()}


def sort(point: Point) -> Point:
    """Without what tells one AppWrapper's, or one object's, from another."""
    cluster, name = point
    return cluster, name.partition(":")[0]
