"""An operator who backs the database up, and restores it after a while in which life has gone on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg

from testbed import backup
from testbed.processes import Process
from tests.cluster.wires import expire_lease
from tests.cluster.world import World


class Backup:
    """One backup of the database of a world, and how to go back to it."""

    def __init__(self, world: World, server_url: str, folder: Path) -> None:
        self._world = world
        self._server_url = server_url
        self._file = folder / "backup"

    async def take(self) -> None:
        """Dump it as it is, while the dispatcher works."""
        await asyncio.to_thread(backup.dump, self._world.database_url, self._file)

    async def restore(self) -> None:
        """End every dispatcher, and have the database be again what it was."""
        await self._world.kill_dispatchers()
        name = self._world.database_url.partition("?")[0].rpartition("/")[2]
        url = await asyncio.to_thread(backup.restore, self._server_url, name, self._file)
        assert url == self._world.database_url
        await expire_lease(url)  # the backup holds the lease of a dispatcher that is dead


async def has_said(world: World, process: Process, event: str) -> str:
    """The line of its log in which a dispatcher tells of that."""

    async def look() -> str | None:
        lines = (await asyncio.to_thread(process.log.read_text)).splitlines()
        return next((line for line in lines if event in line), None)

    return await world.until(look, f"the dispatcher says {event}")


async def attempts(world: World, name: str) -> list[tuple[int, str, str]]:
    """Number, cluster and outcome of every attempt of an AppWrapper."""
    async with await psycopg.AsyncConnection.connect(world.database_url) as connection:
        found = await connection.execute(
            "SELECT t.number, t.cluster, t.outcome FROM attempt t JOIN appwrapper a USING (uid) "
            "WHERE a.namespace = %s AND a.name = %s ORDER BY t.number",
            [world.namespace, name],
        )
        return await found.fetchall()


async def incarnation(world: World) -> tuple[int, bool]:
    """How often the database was found to be another, and whether it was settled since."""
    async with await psycopg.AsyncConnection.connect(world.database_url) as connection:
        found = await connection.execute("SELECT incarnation, settled_at IS NOT NULL FROM hub")
        ((number, is_settled),) = await found.fetchall()
        return number, is_settled


async def is_told_in_order(world: World) -> bool:
    """True if what was recorded later has a greater id, also what was recorded since the restore."""
    async with await psycopg.AsyncConnection.connect(world.database_url) as connection:
        found = await connection.execute(
            "SELECT array_agg(id ORDER BY recorded_at, id) = array_agg(id ORDER BY id) FROM event"
        )
        ((is_so,),) = await found.fetchall()
        return bool(is_so)
