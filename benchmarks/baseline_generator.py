"""The process that submits the AppWrappers of the baseline, each when it arrives: `KUBECONFIG=… python -m …`.

It catches up if it is late. When all are submitted, it writes when each was due, sent and answered, in seconds of the
system clock, and waits for its end: the processor time of a process that has ended is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from benchmarks.arena import spread
from benchmarks.baseline_pattern import Arrival, arrivals
from dispatcher.api.names import APPWRAPPER_VERSION, WORKLOAD_GROUP
from dispatcher.kube.client import ClusterClient

APPWRAPPERS: Final = f"/apis/{WORKLOAD_GROUP}/{APPWRAPPER_VERSION}"
WRITE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Submitted:
    """When an AppWrapper was due, and when its create was sent and answered."""

    due: float
    sent: float
    answered: float


class Generator:
    """Submits AppWrappers in the order of their arrival, over several connections."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self.submitted: dict[str, Submitted] = {}
        """By the name of the AppWrapper."""

    async def run(self, load: Sequence[Arrival], connections: int) -> None:
        """Submits all; an AppWrapper waits for a free connection, and is then late."""
        began = time.time()

        async def submit(arrival: Arrival) -> None:
            due = began + arrival.at
            await asyncio.sleep(max(0.0, due - time.time()))
            sent = time.time()
            path = f"{APPWRAPPERS}/namespaces/{arrival.queue}/appwrappers"
            await self._client.create(path, arrival.appwrapper())
            self.submitted[arrival.name] = Submitted(due, sent, time.time())

        await spread(load, connections, submit)


def read(path: Path) -> dict[str, Submitted]:
    """The times that a generator has written, by the name of the AppWrapper."""
    return {name: Submitted(*times) for name, times in orjson.loads(path.read_bytes()).items()}


async def _generate(scale: float, connections: int, output: Path) -> None:
    async with await ClusterClient.connect(os.environ["KUBECONFIG"], write_timeout=WRITE_SECONDS) as client:
        generator = Generator(client)
        await generator.run(arrivals(scale), connections)
    times = {name: (each.due, each.sent, each.answered) for name, each in generator.submitted.items()}
    partial = output.with_suffix(".partial")
    partial.write_bytes(orjson.dumps(times))
    partial.rename(output)
    await asyncio.Event().wait()


def main() -> None:
    """Submits what the command line names."""
    options = argparse.ArgumentParser()
    options.add_argument("--scale", type=float, required=True)
    options.add_argument("--connections", type=int, required=True)
    options.add_argument("--output", type=Path, required=True)
    given = options.parse_args()
    asyncio.run(_generate(given.scale, given.connections, given.output))


if __name__ == "__main__":
    main()
