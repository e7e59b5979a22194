"""Two dispatchers on one queue, of which the leader is paused at a point that a test chooses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from signal import SIGCONT, SIGSTOP

import psycopg

from testbed.processes import Process
from tests.cluster.wires import QUICK, Wires, changes_records, gang, wires_of
from tests.cluster.world import World

LEASE = timedelta(seconds=float(QUICK["lease_seconds"]))


@asynccontextmanager
async def pair_of(world: World) -> AsyncIterator[Pair]:
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
        await self.world.create_until("Running", gang("canary"))
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


def committed(wires: Wires) -> int:
    """How many changes were committed over these wires."""
    return sum(each.applied and changes_records(each) for each in wires.postgres.rules.seen)
