"""Two dispatchers on one queue: one leads, and one that was paused past its lease does no more harm.

A paused process is the worst kind of dead: it holds its connections, its locks and its opinions, and goes on
in mid-sentence. Each has wires of its own, so what it sent is known apart from what the other sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import count
from signal import SIGCONT, SIGSTOP

import psycopg
import pytest

from dispatcher.core.model.record import Phase
from dispatcher.errors import Fenced
from dispatcher.store.database import Database
from testbed.processes import Process
from testbed.proxy import Fault, Gate
from testbed.proxy_postgres import Commit
from tests.cluster.wires import (
    QUICK,
    Life,
    Wires,
    assert_whole,
    changes_records,
    gang,
    lives,
    wires_of,
)
from tests.cluster.world import World

LEASE = timedelta(seconds=float(QUICK["lease_seconds"]))


@pytest.fixture
async def pair(world: World) -> AsyncIterator[Pair]:
    """One that leads and one that stands by."""
    async with wires_of(world) as first, wires_of(world) as second:
        pair = Pair(first, second)
        await pair.start()
        yield pair


class Pair:
    """`first` leads until it is paused; then `second` does."""

    def __init__(self, first: Wires, second: Wires) -> None:
        self.first = first
        self.second = second
        self.world = first.world
        self._leader: Process | None = None
        self._paused_at: datetime | None = None

    async def start(self) -> None:
        """Start both; the first leads, as a canary has shown."""
        self._leader = await self.first.start_dispatcher()
        await self.world.create(gang("canary"))
        await self.world.until_state("canary", "Running")
        standby = await self.second.start_dispatcher()

        async def stands_by() -> bool:
            # It has looked for a free lease, and found none.
            return any(
                "FROM leader_lease" in " ".join(each.statements) for each in self.second.postgres.rules.seen
            )

        await self.world.until(stands_by, "the second stands by")
        assert standby.is_running()

    async def pause(self) -> None:
        """Stop the leader where it is."""
        assert self._leader is not None
        self._paused_at = (await self._asked_database())[0]
        self._leader.send(SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self._leader is not None
        self._leader.send(SIGCONT)

    async def takeover(self) -> timedelta:
        """Return how long after the pause the second led, by the database's clock; rounded up to a poll."""

        async def second_leads() -> datetime | None:
            now, epoch = await self._asked_database()
            return now if epoch == 2 else None

        led_at = await self.world.until(second_leads, "the second leads")
        assert self._paused_at is not None
        return led_at - self._paused_at

    async def until_deposed(self) -> None:
        """Return once the first knows that it leads no more."""
        assert self._leader is not None
        log = self._leader.log

        async def deposed() -> bool:
            return "leadership_ended" in log.read_text()

        await self.world.until(deposed, "the first knows that it leads no more")

    async def _asked_database(self) -> tuple[datetime, int]:
        async with await psycopg.AsyncConnection.connect(self.world.database_url) as connection:
            found = await connection.execute("SELECT clock_timestamp(), epoch FROM leader_epoch")
            now, epoch = await found.fetchone() or (None, 0)
            assert isinstance(now, datetime)
            return now, epoch


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
    await pair.world.create(gang("afterwards"))
    await pair.world.until_state("afterwards", "Running")
    assert (len(pair.first.api.writes()), committed(pair.first)) == said
    await told_once(pair, "canary", "late", "afterwards")


@pytest.mark.parametrize(
    "matches", [changes_records, lambda commit: renews(commit)], ids=["change", "renewal"]
)
async def test_leader_paused_in_mid_transaction_gives_way_within_twice_its_lease(
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
        lambda each: each.method == "POST" and each.path.endswith("/jobs"), Fault(before=gate)
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
    await pair.world.create(gang("afterwards"))
    await pair.world.until_state("afterwards", "Running")
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


def committed(wires: Wires) -> int:
    """How many changes were committed over these wires."""
    return sum(each.applied and changes_records(each) for each in wires.postgres.rules.seen)


async def told_once(pair: Pair, *names: str) -> None:
    """Each gang was dispatched once, by one of them, and is whole."""
    known = await lives(pair.world.database_url)
    assert known == {
        name: Life(Phase.RUNNING, ("submitted", "dispatched", "created", "pods-running")) for name in names
    }
    for name in names:
        await assert_whole(pair.world, name)
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
