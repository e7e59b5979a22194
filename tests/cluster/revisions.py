"""What happened to objects in the order of the API server: all kinds of one etcd share its revisions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from tests.cluster.world import World

SILENCE_SECONDS = 120.0


class Deed(NamedTuple):
    """One event of a watch."""

    revision: int
    type: str
    kind: str
    name: str


class Deeds:
    """The creations and deletions of the watched kinds in one namespace."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: list[Deed] = []

    def of(self, type_: str, kind: str, prefix: str) -> list[Deed]:
        """The events of one type about objects of one kind, whose names begin so, in order."""
        return sorted(
            each for each in self._seen if (each.type, each.kind) == (type_, kind) and _is(each, prefix)
        )

    async def until(self, type_: str, kind: str, prefix: str, count: int) -> list[Deed]:
        """The first so many of these events, once they were seen."""

        async def look() -> list[Deed] | None:
            found = self.of(type_, kind, prefix)
            return found[:count] if len(found) >= count else None

        return await self._world.until(look, f"{count} times {type_} {kind} {prefix}")

    async def follow(self, kind: str) -> None:
        """Watch a kind until cancelled."""
        path = self._world.path(kind)
        listed = await self._world.client.get(path)
        query = {"watch": "true", "resourceVersion": listed["metadata"]["resourceVersion"]}
        async for line in self._world.client.watch(path, query, SILENCE_SECONDS):
            event = json.loads(line)
            metadata = event["object"]["metadata"]
            revision = int(metadata["resourceVersion"])
            self._seen.append(Deed(revision, event["type"], kind, metadata["name"]))


@asynccontextmanager
async def recording(world: World, kinds: Sequence[str]) -> AsyncIterator[Deeds]:
    """Records what happens to these kinds in the world's namespace."""
    deeds = Deeds(world)
    tasks = [asyncio.create_task(deeds.follow(kind)) for kind in kinds]
    try:
        yield deeds
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is(deed: Deed, prefix: str) -> bool:
    return deed.name == prefix or deed.name.startswith(f"{prefix}-")
