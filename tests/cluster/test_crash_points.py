"""Killed before and after every commit and every API write: the next dispatcher goes on as if nothing had been.

The same story is told again and again, and the dispatcher is killed at its first point, then at its second,
until the story has no such point any more. So the points count themselves; each test says how many there are
at the least.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dispatcher.core.model.records.record import Phase
from tests.cluster.manifests import appwrapper, config_map, item, job
from tests.cluster.mortal import Mortal, Strike, When, sweep
from tests.cluster.wires import (
    MORE_THAN_HALF,
    Life,
    assert_whole,
    gang,
    in_order_of,
    lives,
    wires_of,
)
from tests.cluster.world import World

pytestmark = pytest.mark.sweep

PODS = 2
QUEUED = ("submitted", "blocked")
RAN = (*QUEUED, "dispatched", "created", "pods-running")
FAILED = ("submitted", "dispatched", "creation-refused", "removed")


@pytest.fixture
async def mortal(world: World) -> AsyncIterator[Mortal]:
    """A dispatcher to be killed."""
    async with wires_of(world) as wires:
        mortal = Mortal(wires)
        await mortal.start()
        yield mortal


class Belt:
    """Gangs of which one fits at a time: one runs, one waits.

    With each step the one that runs is deleted, the next is dispatched, and a new one queues behind it. So
    every step has all that a dispatch consists of, for some gang, and ends as the next begins.
    """

    def __init__(self, mortal: Mortal) -> None:
        self._mortal = mortal
        self._world = mortal.wires.world
        self._running = 0

    async def start(self) -> None:
        """Begin with one that runs and one that waits."""
        await self._submit(0, "Running")
        await self._submit(1, "Backoff")

    async def step(self) -> None:
        """Move on by one gang, whatever happens to the dispatcher, and check what has become of all."""
        await self._submit(self._running + 2, "Backoff")
        await self._world.delete(name(self._running))
        self._running += 1
        await self._world.until_state(name(self._running), "Running")
        self._mortal.spare()
        await self._check()

    async def _submit(self, number: int, state: str) -> None:
        await self._world.create_until(state, gang(name(number), MORE_THAN_HALF, PODS))

    async def _check(self) -> None:
        """In order, each whole and created once; what was deleted has made room, and what waits has none."""
        url = self._world.database_url
        known = await lives(url)
        running, waiting = name(self._running), name(self._running + 1)
        assert known.pop(running) == Life(Phase.RUNNING, RAN)
        assert known.pop(waiting) == Life(Phase.QUEUED, QUEUED)
        assert {life.phase for life in known.values()} == {Phase.DELETED}
        assert await in_order_of(url, "dispatched") == [name(number) for number in range(self._running + 1)]
        await assert_whole(self._world, running, pods=PODS)
        assert await self._world.get("Job", waiting) is None
        assert set(self._mortal.wires.created().values()) == {1}


@pytest.fixture
async def belt(mortal: Mortal) -> Belt:
    """The belt with its first gang running and its second waiting."""
    belt = Belt(mortal)
    await belt.start()
    return belt


def name(number: int) -> str:
    return f"gang-{number:03}"


@pytest.mark.parametrize("when", When)
async def test_killed_at_every_commit_of_a_dispatch(mortal: Mortal, belt: Belt, when: When) -> None:
    async def arm(nth: int) -> Strike:
        return mortal.at_change(nth, when)

    # Of one gang submitted, blocked; of another deleted, released; of a third dispatched, created, pods-running.
    assert await sweep(arm, belt.step) >= 7


@pytest.mark.parametrize("when", When)
async def test_killed_at_every_write_of_a_dispatch(mortal: Mortal, belt: Belt, when: When) -> None:
    async def arm(nth: int) -> Strike:
        return mortal.at_write(nth, when)

    # Two objects, and the statuses of one that waits, is dispatched, runs.
    assert await sweep(arm, belt.step) >= 5


@pytest.mark.parametrize("when", When)
async def test_killed_at_every_commit_of_a_takeover(mortal: Mortal, belt: Belt, when: When) -> None:
    """One after the other: each successor comes one commit further than the one before it."""
    commits = mortal.takeover_commits()
    # The lease, the cluster's identity, whether the database was restored.
    assert commits >= 3
    strikes = [mortal.at_takeover(nth * (nth + 1) // 2, when) for nth in range(1, commits + 1)]

    await mortal.replace()
    for strike in strikes:
        await strike.done.wait()

    await belt.step()
    assert mortal.takeover_commits() == commits + sum(range(commits + 1)) + commits


class Doomed:
    """Gangs whose second object the API server refuses: the first is created, and rolled back."""

    def __init__(self, mortal: Mortal) -> None:
        self._mortal = mortal
        self._world = mortal.wires.world
        self._number = 0

    async def step(self) -> None:
        """Submit one more, and check that nothing is left of it but the reason."""
        doomed = name(self._number)
        self._number += 1
        refused = job(doomed)
        refused["spec"]["template"]["spec"]["restartPolicy"] = "Always"
        await self._world.create_until("Failed", appwrapper(doomed, item(config_map(doomed)), item(refused)))
        self._mortal.spare()
        known = await lives(self._world.database_url)
        assert known == {name(number): Life(Phase.FAILED, FAILED) for number in range(self._number)}
        assert await self._world.get("ConfigMap", doomed) is None


@pytest.mark.parametrize("when", When)
async def test_killed_at_every_commit_of_a_rollback(mortal: Mortal, when: When) -> None:
    async def arm(nth: int) -> Strike:
        return mortal.at_change(nth, when)

    assert await sweep(arm, Doomed(mortal).step) >= len(FAILED)


@pytest.mark.parametrize("when", When)
async def test_killed_at_every_write_of_a_rollback(mortal: Mortal, when: When) -> None:
    async def arm(nth: int) -> Strike:
        return mortal.at_write(nth, when)

    # One object created, one refused; the first deleted; the status.
    assert await sweep(arm, Doomed(mortal).step) >= 4
