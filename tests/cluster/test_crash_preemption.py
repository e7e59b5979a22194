"""Killed before and after every commit and API write of a preemption: nobody is preempted twice, and all come back.

A seesaw: two small gangs run, a large one of higher priority takes the quota of both, ends, and both run again. The
dispatcher is killed at one point of that, in the next turn at a later one, until there is none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dispatcher.core.model.records.record import Phase
from tests.cluster.dispatch_queues import Declare
from tests.cluster.growing import scale, until_gated, workers
from tests.cluster.manifests import appwrapper, autoscaling, item, job
from tests.cluster.mortal import Mortal, Strike, When, sweep
from tests.cluster.outcomes import rows
from tests.cluster.wires import Life, lives, wires_of
from tests.cluster.world import World

pytestmark = pytest.mark.sweep

THIRDS = pytest.mark.parametrize("first", [1, 2, 3])
"""Each test strikes at every third point, from another one on."""
SMALL = ("first", "second")
RAN = ("dispatched", "created", "pods-running")
GAVE_WAY = ("preempted", "removed")


@pytest.fixture
async def mortal(world: World, declare: Declare) -> AsyncIterator[Mortal]:
    """A dispatcher to be killed, with a quota of which the large gang needs all."""
    quota = {"cpu": {"nominalQuota": 4}}
    await declare("default", resources=quota, preemption={"withinQueue": "LowerPriority"})
    async with wires_of(world) as wires:
        mortal = Mortal(wires)
        await mortal.start()
        yield mortal


class Seesaw:
    """The two small gangs, and one large gang for each turn."""

    def __init__(self, mortal: Mortal) -> None:
        self._mortal = mortal
        self._world = mortal.wires.world
        self._turns = 0

    async def start(self) -> None:
        """Begin with both small gangs."""
        for name in SMALL:
            await self._world.create_until("Running", appwrapper(name, item(job(name, 2, cpu="1"))))

    async def turn(self) -> None:
        """Up and down again, whatever happens to the dispatcher, and check what has become of all."""
        large = f"large-{self._turns:03}"
        await self._world.create_until(
            "Running", appwrapper(large, item(job(large, 2, cpu="2")), priority=10)
        )
        await self._world.until_history(SMALL[0], "removed", self._turns + 1)
        await self._world.until_history(SMALL[1], "removed", self._turns + 1)
        await self._world.delete(large)
        for name in SMALL:
            await self._world.until_history(name, "pods-running", self._turns + 2)
        self._mortal.spare()
        self._turns += 1
        await self._check()

    async def _check(self) -> None:
        """Both gave way once in each turn, for the gang of that turn, which began after their pods were gone."""
        url = self._world.database_url
        known = await lives(url)
        for name in SMALL:
            assert known[name].phase is Phase.RUNNING
            told = [each for each in known[name].steps if each in (*RAN, *GAVE_WAY)]
            assert told == [*RAN, *(*GAVE_WAY, *RAN) * self._turns]
        for name, life in known.items():
            if name not in SMALL:
                assert life == Life(Phase.DELETED, ("submitted", "preempting", *RAN, "deleted", "released"))
        assert await rows(self._world, TOGETHER) == []
        assert await rows(self._world, FOR_WHOM) == [
            {"name": name, "preemptor": f"large-{turn:03}"} for turn in range(self._turns) for name in SMALL
        ]


TOGETHER = """
SELECT small.name, large.name FROM history.attempt_history AS small, history.attempt_history AS large
WHERE small.name IN ('first', 'second') AND large.name LIKE 'large-%'
  AND tstzrange(small.decided_at, small.ended_at) && tstzrange(large.decided_at, large.ended_at)
"""
FOR_WHOM = """
SELECT t.name, a.name AS preemptor FROM history.attempt_history AS t JOIN appwrapper AS a ON a.uid = t.preempted_by
WHERE t.outcome = 'preempted' ORDER BY a.name, t.name
"""


@pytest.fixture
async def seesaw(mortal: Mortal) -> Seesaw:
    """The seesaw with both small gangs running."""
    seesaw = Seesaw(mortal)
    await seesaw.start()
    return seesaw


@THIRDS
@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", When)
async def test_killed_at_every_commit_of_a_preemption(
    mortal: Mortal, seesaw: Seesaw, when: When, first: int
) -> None:
    async def arm(nth: int) -> Strike:
        return mortal.at_change(nth, when)

    # The large gang is submitted, dispatched, created, runs, is deleted and released; the group of the preemption is
    # one commit; each small gang is removed, dispatched, created and runs; some of these may share a commit.
    assert await sweep(arm, seesaw.turn, first, every=3) >= 3


@THIRDS
@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", When)
async def test_killed_at_every_write_of_a_preemption(
    mortal: Mortal, seesaw: Seesaw, when: When, first: int
) -> None:
    async def arm(nth: int) -> Strike:
        return mortal.at_write(nth, when)

    # Two objects are deleted, one is created and deleted, two are created; statuses of all three beside.
    assert await sweep(arm, seesaw.turn, first, every=3) >= 2


# -----------------------------------------------------------------------------------------------------------
# Killed before and after every commit and API write while surplus gives way: one pod goes, and the gang goes
# on.
# A gang has grown by one pod. An urgent gang takes its quota, ends, and the gang grows again. The dispatcher is killed
# at
# one point of that, in the next turn at a later one, until there is none.


HALVES = pytest.mark.parametrize("first", [1, 2])
"""Each test strikes at every second point, from another one on."""
GPU = "nvidia.com/gpu"


@pytest.fixture
async def grown(world: World, declare: Declare) -> AsyncIterator[Mortal]:
    """A dispatcher to be killed, with quota for the gang and one more pod."""
    await declare(
        "default", resources={GPU: {"nominalQuota": 2}}, preemption={"withinQueue": "LowerPriority"}
    )
    async with wires_of(world) as wires:
        grown = Mortal(wires)
        await grown.start()
        yield grown


class Breath:
    """The gang that grows, and one urgent gang for each turn."""

    def __init__(self, grown: Mortal) -> None:
        self._mortal = grown
        self._world = grown.wires.world
        self._turns = 0
        self._workers: set[str] = set()

    async def start(self) -> None:
        """Begin with the gang, and let it grow by one pod."""
        await self._world.create_until("Running", appwrapper("ray", item(autoscaling("ray", gpu="1"))))
        await scale(self._world, "ray", 2)
        await until_gated(self._world, "ray", running=2, gated=0)
        self._workers = await self._uids()

    async def _uids(self) -> set[str]:
        return {each["metadata"]["uid"] for each in await workers(self._world, "ray")}

    async def turn(self) -> None:
        """In and out, whatever happens to the dispatcher, and check what has become of both."""
        urgent = f"urgent-{self._turns:03}"
        wanted = job(urgent)
        wanted["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
        await self._world.create_until("Running", appwrapper(urgent, item(wanted), priority=10))
        await until_gated(self._world, "ray", running=1, gated=1)
        await self._world.delete(urgent)
        await until_gated(self._world, "ray", running=2, gated=0)
        await self._world.until_history(urgent, "released")
        self._mortal.spare()
        self._turns += 1
        await self._check(urgent)

    async def _check(self, urgent: str) -> None:
        """The gang gave up one pod in each turn, and went on with the other."""
        known = await lives(self._world.database_url)
        ray = known["ray"]
        assert (ray.phase, ray.steps.count("surplus-preempted")) == (Phase.RUNNING, self._turns)
        assert not {"grew", "evicted", "preempted"} & set(ray.steps)
        ran = ("dispatched", "created", "pods-running")
        assert known[urgent] == Life(Phase.DELETED, ("submitted", "preempting", *ran, "deleted", "released"))
        before, self._workers = self._workers, await self._uids()
        assert len(before & self._workers) == 1


@pytest.fixture
async def breath(grown: Mortal) -> Breath:
    """The gang after it grew."""
    breath = Breath(grown)
    await breath.start()
    return breath


@HALVES
@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", When)
async def test_killed_at_every_commit_of_a_preemption_of_surplus(
    grown: Mortal, breath: Breath, when: When, first: int
) -> None:
    async def arm(nth: int) -> Strike:
        return grown.at_change(nth, when)

    # The urgent gang is submitted, dispatched, created, runs, is deleted and released; the preemption is one commit;
    # the gang shrinks and is granted the pod again.
    assert await sweep(arm, breath.turn, first, every=2) >= 4


@HALVES
@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", When)
async def test_killed_at_every_write_of_a_preemption_of_surplus(
    grown: Mortal, breath: Breath, when: When, first: int
) -> None:
    async def arm(nth: int) -> Strike:
        return grown.at_write(nth, when)

    # The pod is deleted, the Job created and deleted, a gate removed; statuses and Events between them.
    assert await sweep(arm, breath.turn, first, every=2) >= 2
