"""The bare floor: the rate of a client that makes no decisions and writes everything itself.

Each gang takes four writes, one after the other as they depend on each other: AppWrapper, RayCluster (which needs the
AppWrapper's uid), and two status patches. The objects are the dispatcher's, over as many connections as the
AppWrappers are submitted over.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from benchmarks import gangs
from benchmarks.arena import Arena, spread
from benchmarks.failure import BenchmarkFailed
from benchmarks.gangs import APPWRAPPERS, RAYCLUSTERS, Gang, Json
from benchmarks.processor import Usage, Used
from dispatcher.kube.client import ClusterClient


@dataclass(frozen=True, slots=True)
class Floor:
    """The result of the bare client; `used` is the processor time of all meanwhile."""

    count: int
    seconds: float
    per_second: float
    used: Used
    object_bytes: dict[str, int]


async def measure_floor(
    arena: Arena, warm_up: Sequence[Gang], measured: Sequence[Gang], connections: int
) -> Floor:
    """Writes all gangs, the warm-up ones before the clock starts, and checks that all exist."""
    writer = Writer(arena.client)
    await spread(warm_up, connections, writer.write)
    usage, started = Usage.now(arena.supervisor), time.monotonic()
    await spread(measured, connections, writer.write)
    seconds = time.monotonic() - started
    used = Usage.now(arena.supervisor).since(usage)
    object_bytes = await verified_sizes(arena, len(warm_up) + len(measured))
    return Floor(len(measured), seconds, len(measured) / seconds, used, object_bytes)


class Writer:
    """Writes the objects of one gang."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._statuses = gangs.statuses()

    async def write(self, gang: Gang) -> None:
        """Four writes, each after the answer to the previous one."""
        made = await self._client.create(APPWRAPPERS, gang.appwrapper)
        uid = made["metadata"]["uid"]
        await self._client.create(RAYCLUSTERS, gang.raycluster(uid))
        for status in self._statuses:
            await self._client.patch(f"{APPWRAPPERS}/{gang.name}/status", _replace_status(uid, status))


async def verified_sizes(arena: Arena, count: int) -> dict[str, int]:
    """The mean size of the objects in bytes; fails unless there are `count` whole gangs.

    A gang is whole if the AppWrapper is Dispatched and owns exactly one RayCluster.
    """
    appwrappers = await arena.list(APPWRAPPERS)
    rayclusters = await arena.list(RAYCLUSTERS)
    waiting = [each["metadata"]["name"] for each in appwrappers if not gangs.is_dispatched(each)]
    owners = sorted(each["metadata"]["ownerReferences"][0]["uid"] for each in rayclusters)
    if len(appwrappers) != count or waiting:
        raise BenchmarkFailed(f"{len(appwrappers)} AppWrappers of {count}; not Dispatched: {waiting[:5]}")
    if owners != sorted(each["metadata"]["uid"] for each in appwrappers):
        raise BenchmarkFailed(f"{len(rayclusters)} RayClusters are not one for each of {count} AppWrappers")
    return {"AppWrapper": _mean_size(appwrappers), "RayCluster": _mean_size(rayclusters)}


def _mean_size(objects: Sequence[Json]) -> int:
    return sum(len(orjson.dumps(each)) for each in objects) // len(objects)


def _replace_status(uid: str, status: Json) -> list[Json]:
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/status", "value": status},
    ]
