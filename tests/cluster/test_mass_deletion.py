"""Many AppWrappers that fit nowhere are deleted at once: all are forgotten, and whoever comes next is served."""

from __future__ import annotations

import asyncio

import pytest

from tests.cluster.manifests import appwrapper, item, job, small_job
from tests.cluster.outcomes import LIVE, epoch, rows
from tests.cluster.world import World

COUNT = 150
DELETED = "SELECT count(*) AS deleted FROM appwrapper WHERE phase = 'Deleted'"
HELD = "SELECT name FROM attempt JOIN appwrapper USING (uid) WHERE attempt.ended_at IS NULL"
COUNT_BLOCKED = (
    "SELECT count(*) AS blocked FROM appwrapper WHERE phase = 'Queued' AND pending_reason IS NOT NULL"
)


def doomed(number: int) -> str:
    return f"doomed-{number}"


@pytest.mark.timeout(120)
async def test_after_a_mass_deletion_nothing_is_held_and_a_canary_runs(world: World) -> None:
    process = await world.start_dispatcher()
    await world.create_until("Running", appwrapper("busy", item(job("busy", cpu="4"))))
    for number in range(COUNT):
        # Half of them could never run on these 24 cpus; the others wait for the 4 that are taken.
        cpu, name = ("100" if number % 2 else "21"), doomed(number)
        await world.create(appwrapper(name, item(job(name, cpu=cpu)), priority=number % 3))

    async def all_told() -> bool:
        return await rows(world, COUNT_BLOCKED) == [{"blocked": COUNT}]

    await world.until(all_told, "each was told that it must wait")
    leadership = await epoch(world)

    await asyncio.gather(*(world.delete(doomed(number)) for number in range(COUNT)))
    await world.create_until("Running", small_job("canary"))

    async def all_forgotten() -> bool:
        return await rows(world, DELETED) == [{"deleted": COUNT}]

    await world.until(all_forgotten, "every row is Deleted")
    assert sorted(row["name"] for row in await rows(world, LIVE)) == ["busy", "canary"]
    assert sorted(row["name"] for row in await rows(world, HELD)) == ["busy", "canary"]
    assert process.is_running()
    assert await epoch(world) == leadership
