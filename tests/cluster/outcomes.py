"""What became of AppWrappers, as their users and the database say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.rows import dict_row

from dispatcher.kube.client import METADATA_LIST
from tests.cluster.world import World

Json = dict[str, Any]

SETTLED = ("Running", "Dispatched", "RunningHoldCompletion", "Completed", "Suspended")
"""Where `queuejobstate` says by itself why it is where it is."""


def message_of(status: Json, type_: str = "Failed") -> str:
    """The message of one condition."""
    found = next(condition for condition in status["conditions"] if condition["type"] == type_)
    return str(found["message"])


def reason_of(status: Json) -> str:
    """In a word or a sentence why it is where it is; empty as long as it is on its way."""
    state = status.get("queuejobstate")
    if state == "Failed":
        return message_of(status)
    if state == "Backoff":
        return str((status.get("waiting") or {}).get("reason", ""))
    return state if state in SETTLED else ""


async def failures(world: World, manifests: dict[str, Json]) -> dict[str, str]:
    """Apply them all, each under its key, and return how each failed, without what all messages begin with."""
    said = {}
    for name, manifest in manifests.items():
        kind = "AppWrapper/v1beta2" if "components" in manifest["spec"] else "AppWrapper"
        await world.create({**manifest, "metadata": {**manifest["metadata"], "name": name}}, kind)
    for name in manifests:
        said[name] = message_of(await world.until_state(name, "Failed"))
        said[name] = said[name].removeprefix(f"{world.namespace}/{name} creation failure: ")
    return said


async def delete_all(world: World) -> None:
    """Delete every AppWrapper as a user would, and return when API server and database have none of them."""
    for found in await world.every("AppWrapper", METADATA_LIST):
        metadata = found["metadata"]
        await world.client.delete(world.path("AppWrapper", metadata["name"]), metadata["uid"])
    async with _asking(world) as ask:

        async def gone() -> bool:
            # The database is the last to forget, and answers at less cost.
            return await ask(LIVE) == [] and not await world.every("AppWrapper", METADATA_LIST)

        await world.until(gone, "nothing of any AppWrapper is left in API server and database")
        assert await ask(HELD) == []


async def epoch(world: World) -> int:
    """How often leadership has changed hands in this database."""
    found: int = (await rows(world, "SELECT epoch FROM leader_epoch"))[0]["epoch"]
    return found


async def rows(world: World, query: str) -> list[Json]:
    """What a query gives."""
    async with _asking(world) as ask:
        return await ask(query)


@asynccontextmanager
async def _asking(world: World) -> AsyncIterator[Callable[[str], Awaitable[list[Json]]]]:
    """What queries give, over one connection."""
    async with await psycopg.AsyncConnection.connect(
        world.database_url, row_factory=dict_row, autocommit=True
    ) as connection:

        async def ask(query: str) -> list[Json]:
            return await (await connection.execute(query.encode())).fetchall()

        yield ask


LIVE = "SELECT name, phase, message FROM appwrapper WHERE phase <> 'Deleted'"
HELD = "SELECT uid, number FROM attempt WHERE ended_at IS NULL"
