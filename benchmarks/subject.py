"""The measured dispatcher: its own process, started as by a user, and a watch on its results."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import aiohttp
import orjson

from benchmarks.failure import BenchmarkFailed
from benchmarks.gangs import APPWRAPPERS, CHECKOUT, is_dispatched
from dispatcher.core.lifecycle.health import TOLD_AFTER
from dispatcher.kube.client import ClusterClient
from testbed.processes import Ending, Process, Supervisor

DISPATCHER: Final = "dispatcher"
"""The name of its process."""
READY_SECONDS: Final = 60.0
STALLED_SECONDS: Final = 60.0
WATCH_SECONDS: Final = 3600


@contextmanager
def running_dispatcher(
    supervisor: Supervisor,
    kubeconfig: Path,
    database_url: str,
    profile: str,
    *,
    settings: Mapping[str, str] = {},
    module: str = "dispatcher",
    name: str = DISPATCHER,
) -> Iterator[Process]:
    """A dispatcher that was just started; `profile` is the file for cProfile, empty for none.

    `settings` are further ones, by the names of their variables; `module` is run instead of the dispatcher's own;
    `name` is that of the process, which must differ from those of other running ones.
    """
    profiler = ["-m", "cProfile", "-o", str(Path(profile).absolute())] if profile else []
    process = supervisor.start(
        name,
        [sys.executable, *profiler, "-m", module, "run"],
        env={
            "PATH": os.environ.get("PATH", os.defpath),
            "DISPATCHER_DATABASE_URL": database_url,
            "DISPATCHER_LISTEN_PORT": "0",
            "KUBECONFIG": str(kubeconfig),
            **settings,
        },
        cwd=CHECKOUT,
        ending=Ending(grace=30.0),
    )
    try:
        yield process
    finally:
        supervisor.stop(process)


async def wait_until_ready(process: Process) -> None:
    """Returns when its readiness probe says that it leads and sees the cluster."""
    await wait_for_role(process, "leader")


async def wait_for_role(process: Process, role: str) -> None:
    """Returns when its readiness probe says that it is ready as `leader` or as `standby`."""
    deadline = time.monotonic() + READY_SECONDS
    async with aiohttp.ClientSession() as session:
        while not await _is_ready_as(role, session, process):
            process.check()
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"the dispatcher is not ready; it said:\n{process.log_tail()}")
            await asyncio.sleep(0.1)


async def metrics_of(process: Process) -> str:
    """The dispatcher's own metrics, as text."""
    async with aiohttp.ClientSession() as session, session.get(f"{_probes(process)}/metrics") as response:
        return await response.text()


class Watcher:
    """Records by one watch when each AppWrapper is first seen Dispatched; reads no more than necessary."""

    def __init__(self, client: ClusterClient) -> None:
        self.dispatched: dict[str, float] = {}
        """Times by name, in seconds of the monotonic clock."""
        self.interruptions = 0
        """The times that the API server ended the watch, as it does if the client is too slow."""
        self._client = client
        self._version = ""
        self._news = asyncio.Event()

    async def run(self, version: str) -> None:
        """Watches from a resource version on until cancelled; renews a watch that the server ends."""
        self._version = version
        while True:
            query = {"watch": "true", "resourceVersion": self._version, "timeoutSeconds": str(WATCH_SECONDS)}
            async for line in self._client.watch(APPWRAPPERS, query, idle_timeout=WATCH_SECONDS):
                # Most events are of AppWrappers that are not dispatched yet: to skip them must cost almost nothing.
                if b'"Dispatched"' in line:
                    self._note(line, time.monotonic())
                elif line.startswith(b'{"type":"ERROR"'):
                    raise BenchmarkFailed(f"the watch on AppWrappers: {line.decode()}")
            self.interruptions += 1

    async def wait_for(self, count: int) -> None:
        """Returns when `count` AppWrappers were seen Dispatched in all."""
        while len(self.dispatched) < count:
            await self._wait(f"{len(self.dispatched)} of {count} AppWrappers are Dispatched")

    async def wait_for_name(self, name: str) -> float:
        """The time at which this AppWrapper was seen Dispatched."""
        while name not in self.dispatched:
            await self._wait(f"{name} is not Dispatched")
        return self.dispatched[name]

    async def wait_until_pods_are_missed(self) -> None:
        """Returns when each AppWrapper seen Dispatched is due to be noted for its pods, which nobody makes here."""
        due = max(self.dispatched.values()) + TOLD_AFTER.total_seconds()
        await asyncio.sleep(max(0.0, due - time.monotonic()))

    def _note(self, line: bytes, now: float) -> None:
        seen = orjson.loads(line)["object"]
        self._version, name = seen["metadata"]["resourceVersion"], seen["metadata"]["name"]
        if name not in self.dispatched and is_dispatched(seen):
            self.dispatched[name] = now
            self._news.set()

    async def _wait(self, what: str) -> None:
        self._news.clear()
        try:
            await asyncio.wait_for(self._news.wait(), STALLED_SECONDS)
        except TimeoutError:
            raise BenchmarkFailed(f"{what}, and nothing more within {STALLED_SECONDS:g} s") from None


async def _is_ready_as(role: str, session: aiohttp.ClientSession, process: Process) -> bool:
    address = _probes(process)
    if address is None:
        return False
    async with session.get(f"{address}/readyz") as response:
        return response.status == 200 and (await response.text()).strip() == role


def _probes(process: Process) -> str | None:
    """The address of its probes, from its log."""
    for line in process.log.read_bytes().splitlines():
        if b'"probes"' in line:
            return str(orjson.loads(line)["probes"])
    return None
