"""Two dispatchers on one queue: one leads, and one that was paused past its lease does no more harm.

A paused process is the worst kind of dead: it holds its connections, its locks and its opinions, and goes on
in mid-sentence. Each has wires of its own, so what it sent is known apart from what the other sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

import pytest

from dispatcher.core.model.records.record import Phase
from dispatcher.errors import Fenced
from dispatcher.store.database import Database
from testbed.proxy import Fault, Gate
from testbed.proxy_postgres import Commit
from tests.cluster.pair import LEASE, Pair, committed, pair_of
from tests.cluster.wires import Life, assert_whole, changes_records, gang, lives
from tests.cluster.world import World


@pytest.fixture
async def pair(world: World) -> AsyncIterator[Pair]:
    """One that leads and one that stands by."""
    async with pair_of(world) as pair:
        yield pair


async def test_leader_paused_past_its_lease_neither_commits_nor_asks_for_anything(pair: Pair) -> None:
    """Paused when its decision is committed and nothing of it is done: it wakes up believing it is to act."""
    gate = Gate()
    pair.first.postgres.rules.on(dispatches("late"), Fault(after=gate))
    await pair.world.create(gang("late"))
    await gate.reached.wait()
    await pair.pause()

    assert await pair.takeover() <= 2 * LEASE
    await pair.world.until_state("late", "Running")
    said = len(pair.first.api.writes()), committed(pair.first)
    gate.open()
    pair.resume()

    await pair.until_deposed()
    await pair.world.create_until("Running", gang("afterwards"))
    assert (len(pair.first.api.writes()), committed(pair.first)) == said
    await told_once(pair, "canary", "late", "afterwards")


@pytest.mark.parametrize(
    "matches", [changes_records, lambda commit: renews(commit)], ids=["change", "renewal"]
)
async def test_leader_paused_in_mid_transaction_is_replaced_within_twice_its_lease(
    pair: Pair, matches: Callable[[Commit], bool]
) -> None:
    """Its connection lives on and holds the very rows that a takeover needs."""
    gate = Gate()
    pair.first.postgres.rules.on(matches, Fault(before=gate))
    await pair.world.create(gang("late"))
    await gate.reached.wait()
    await pair.pause()

    assert await pair.takeover() <= 2 * LEASE
    await pair.world.until_state("late", "Running")
    said = committed(pair.first)
    gate.open()
    pair.resume()

    await pair.until_deposed()
    assert committed(pair.first) == said
    await told_once(pair, "canary", "late")


async def test_write_that_was_on_the_wire_too_long_makes_no_second_object(pair: Pair) -> None:
    """Sent within the lease, applied after the takeover: names and marks settle it."""
    gate = Gate()
    pair.first.api.rules.on(
        lambda each: each.is_write and each.method == "POST" and each.path.endswith("/jobs"),
        Fault(before=gate),
    )
    await pair.world.create(gang("late"))
    await gate.reached.wait()
    await pair.pause()

    await pair.takeover()
    await pair.world.until_state("late", "Running")
    gate.open()
    arrived = pair.first.api.writes()[-1]

    async def answered() -> int:
        return arrived.status

    assert await pair.world.until(answered, "the late write is answered") == 409
    pair.resume()
    await pair.until_deposed()
    await told_once(pair, "canary", "late")


async def test_takeover_is_in_time_while_sixteen_writers_hammer_the_database(pair: Pair) -> None:
    """With the paused leader's own name and epoch, as its own connections would."""
    async with hammering(pair.world.database_url, writers=16) as written:
        await pair.pause()

        assert await pair.takeover() <= 2 * LEASE
        assert written() > 16
    await pair.world.create_until("Running", gang("afterwards"))
    pair.resume()
    await pair.until_deposed()
    await told_once(pair, "canary", "afterwards")


# --- what they said ----------------------------------------------------------------------------------


def renews(commit: Commit) -> bool:
    return any(statement.startswith("UPDATE leader_lease") for statement in commit.statements)


def dispatches(name: str) -> Callable[[Commit], bool]:
    """True for the second change after now: a gang is first submitted, then dispatched."""
    changes = count(1)
    return lambda commit: changes_records(commit) and next(changes) == 2


async def told_once(pair: Pair, *names: str) -> None:
    """Each gang was dispatched once, by one of them, and is whole."""
    known = await lives(pair.world.database_url)
    assert known == {
        name: Life(Phase.RUNNING, ("submitted", "dispatched", "created", "pods-running")) for name in names
    }
    await assert_whole(pair.world, *names)
    assert set((pair.first.created() + pair.second.created()).values()) == {1}


@asynccontextmanager
async def hammering(database_url: str, writers: int) -> AsyncIterator[Callable[[], int]]:
    """Fenced transactions without pause, as the present leader, on so many connections; yields their number."""
    database = Database(database_url, pool_size=writers)
    async with database.reading() as connection:
        found = await connection.exec_driver_sql(
            "SELECT epoch, holder FROM leader_epoch JOIN leader_lease USING (name)"
        )
        leader = found.mappings().one()
    written = 0

    async def write() -> None:
        nonlocal written
        while True:
            try:
                async with database.fenced(**leader) as connection:
                    await connection.exec_driver_sql("SELECT pg_sleep(0.01)")
                    written += 1
            except Fenced:
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(write()) for _ in range(writers)]
        yield lambda: written
        for each in started:
            each.cancel()
    await database.close()
