"""Mutated AppWrappers, many at once, on a real API server: told why, one by one, and nothing else happens."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from dispatcher import errors
from tests.cluster.manifests import small_job
from tests.cluster.outcomes import SETTLED, delete_all, epoch, reason_of
from tests.cluster.world import World
from tests.mutations import mutants

Json = dict[str, Any]

AT_ONCE = 8
DEFECTS = ("intake_failed", "reconcile_failed", "change_refused", "undecodable_object", "status_refused")
"""Log events that no input may cause."""


async def apply_all(world: World, documents: list[Json]) -> list[str]:
    """Apply them over several connections; the API server's words to those it refused."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def apply(document: Json) -> str:
        async with slots:
            try:
                await world.create(document)
            except errors.Invalid as error:
                return str(error)
        return ""

    return [said for said in await asyncio.gather(*map(apply, documents)) if said]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("count", [150, pytest.param(500, marks=pytest.mark.exhaustive)])
async def test_dispatcher_leads_on_through_mutants_and_tells_each_why(world: World, count: int) -> None:
    process = await world.start_dispatcher()
    await world.create_until("Running", small_job("canary-before"))
    led = await epoch(world)

    refused = await apply_all(world, mutants(count))
    seen: Counter[str] = Counter()

    async def all_told() -> bool:
        seen.clear()
        for found in await world.every("AppWrapper"):
            status = found.get("status") or {}
            seen[str(status.get("queuejobstate")) if reason_of(status) else "untold"] += 1
        return not seen["untold"]

    await world.until(all_told, "every mutant is told why it is where it is")
    await world.create_until("Running", small_job("canary-after"))

    assert len(refused) + seen.total() == count + 1
    dispatched = sum(seen[state] for state in SETTLED)
    assert min(len(refused), seen["Failed"], dispatched) > count // 10, (len(refused), seen)
    assert set(seen) - {"untold"} <= {"Failed", "Backoff", *SETTLED}
    assert (process.is_running(), await epoch(world)) == (True, led)
    assert [event for event in DEFECTS if f'"{event}"' in process.log.read_text()] == []
    await delete_all(world)
