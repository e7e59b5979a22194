"""The floor of the baseline: the same writes and watches by a client that decides nothing and waits for nothing.

For each gang it creates the AppWrapper and its Job, reports the Job complete, and patches the status of the AppWrapper
three times, as the dispatcher does at the least: the gang waits, is dispatched, is completed. Each write follows the
answer to the one before. Meanwhile AppWrappers are watched once and Jobs twice, as by the dispatcher and the stand-in.
So a dispatcher on this machine that tells users as much needs more processor time than the floor.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from benchmarks.arena import Arena, spread
from benchmarks.baseline_generator import APPWRAPPERS
from benchmarks.baseline_jobs import JOBS, complete
from benchmarks.baseline_pattern import Arrival
from benchmarks.failure import BenchmarkFailed
from benchmarks.processor import Usage, Used
from dispatcher.api.appwrapper import parse_spec
from dispatcher.api.names import APPWRAPPER_VERSION, WORKLOAD_GROUP
from dispatcher.core.kinds.demand import charge_of
from dispatcher.core.kinds.manifest import Owner, build
from dispatcher.core.lifecycle import first_changes, queue_changes, run_changes
from dispatcher.core.lifecycle.first_changes import Submission
from dispatcher.core.model.records.pending_reasons import INSUFFICIENT_QUOTA
from dispatcher.core.model.records.record import Pending
from dispatcher.core.status.conditions import project
from dispatcher.kube.client import METADATA, ClusterClient

Json = dict[str, Any]

WATCHES: Final = (f"{APPWRAPPERS}/appwrappers", JOBS, JOBS)
WATCH_SECONDS: Final = 3600
_WAITS: Final = (
    "quota of queue-0-0: cpu: needs 1 CPU, 0 CPUs available; nominal 20 CPUs, 20 CPUs used; "
    "queue-0-1 borrows 5 CPUs, queue-0-2 borrows 5 CPUs, queue-0-3 borrows 5 CPUs"
)


@dataclass(frozen=True, slots=True)
class Floor:
    """The result of the bare client; `used` is the processor time of all processes meanwhile."""

    gangs: int
    seconds: float
    used: Used


async def measure(arena: Arena, load: Sequence[Arrival], connections: int) -> Floor:
    """Writes all gangs, and checks that all are complete."""
    watches = [asyncio.create_task(_read(arena.client, path)) for path in WATCHES]
    try:
        usage, began = Usage.now(arena.supervisor), time.monotonic()
        await spread(load, connections, _Writer(arena.client).write)
        seconds, used = time.monotonic() - began, Usage.now(arena.supervisor).since(usage)
    finally:
        for each in watches:
            each.cancel()
    appwrappers = await arena.list(WATCHES[0])
    completed = sum(each.get("status", {}).get("state") == "Completed" for each in appwrappers)
    if completed < len(load):
        raise BenchmarkFailed(f"{completed} AppWrappers of {len(load)} are Completed")
    return Floor(len(load), seconds, used)


class _Writer:
    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def write(self, arrival: Arrival) -> None:
        """All writes of one gang."""
        appwrapper = arrival.appwrapper()
        path = f"{APPWRAPPERS}/namespaces/{arrival.queue}/appwrappers"
        uid = (await self._client.create(path, appwrapper))["metadata"]["uid"]
        waits, dispatched, completed = statuses(arrival, uid)
        status = f"{path}/{arrival.name}/status"
        await self._client.patch(status, _status(uid, waits), accept=METADATA)
        jobs = f"/apis/batch/v1/namespaces/{arrival.queue}/jobs"
        job = (await self._client.create(jobs, wrapped_job(arrival, uid)))["metadata"]
        await self._client.patch(status, _status(uid, dispatched), accept=METADATA)
        done = complete(job["creationTimestamp"], time.time())
        await self._client.patch(f"{jobs}/{arrival.name}/status", _status(job["uid"], done), accept=METADATA)
        await self._client.patch(status, _status(uid, completed), accept=METADATA)


def statuses(arrival: Arrival, uid: str) -> tuple[Json, ...]:
    """The statuses of a gang that waits, is dispatched, is completed, as the dispatcher's core projects them."""
    now = datetime.now(UTC)
    gang = charge_of(parse_spec(arrival.appwrapper()["spec"], namespace=arrival.queue)).gang
    submission = Submission(
        uid, WORKLOAD_GROUP, arrival.queue, arrival.name, now, b"{}", "", priority=arrival.size.priority
    )
    submitted = first_changes.submit(submission, gang, now).after
    blocked = queue_changes.block(submitted, Pending(INSUFFICIENT_QUOTA, _WAITS, "cpu"), now)
    decided = queue_changes.dispatch(submitted, "hub", now).after
    created = run_changes.created(decided, (), now).after
    completed = run_changes.complete(created, (), now, now).after
    waits = submitted if blocked is None else blocked.after
    return tuple(project(each) for each in (waits, created, completed))


def wrapped_job(arrival: Arrival, uid: str) -> Json:
    """The Job of a gang as the dispatcher creates it for an AppWrapper of that uid."""
    (wrapped,) = parse_spec(arrival.appwrapper()["spec"], namespace=arrival.queue).wrapped
    return build(wrapped, Owner(uid, WORKLOAD_GROUP, APPWRAPPER_VERSION, arrival.queue, arrival.name, 1, uid))


def _status(uid: str, status: Json) -> list[Json]:
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/status", "value": status},
    ]


async def _read(client: ClusterClient, path: str) -> None:
    """Reads a watch until cancelled."""
    version = (await client.get(path))["metadata"]["resourceVersion"]
    while True:
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
        async for _ in client.watch(path, query, idle_timeout=WATCH_SECONDS):
            pass
