"""The stand-in for pods and for the Job controller: `KUBECONFIG=… python -m benchmarks.baseline_jobs --output FILE`.

It watches Jobs and reports each complete, as the Job controller does, once the Job has existed for the seconds that its
annotation names. A Job that was deleted before, or has the name of one that was, is left alone. On SIGTERM it writes
how late its reports were.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from benchmarks import figures
from benchmarks.baseline_pattern import RUN_SECONDS
from dispatcher import errors
from dispatcher.kube.client import METADATA, ClusterClient

JOBS: Final = "/apis/batch/v1/jobs"
WATCH_SECONDS: Final = 3600
WRITE_SECONDS: Final = 60.0
CONCURRENCY: Final = 8
NONE: Final = 0.0

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lateness:
    """How long after its end a Job was reported complete, in seconds; `count` Jobs were."""

    count: int
    mean: float
    p99: float
    longest: float

    @classmethod
    def of(cls, seconds: list[float]) -> Lateness:
        """The figures of these delays."""
        if not seconds:
            return cls(0, NONE, NONE, NONE)
        mean = sum(seconds) / len(seconds)
        return cls(len(seconds), mean, figures.percentile(seconds, 99), max(seconds))


class Jobs:
    """Ends Jobs; at most `CONCURRENCY` writes at once."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._due: asyncio.Queue[tuple[float, Json]] = asyncio.Queue()
        self.late: list[float] = []
        """Seconds by which each report was late."""

    async def run(self) -> None:
        """Ends Jobs until cancelled."""
        listed = await self._client.get(JOBS)
        for job in listed["items"]:
            self._begin(job)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONCURRENCY):
                tasks.create_task(self._work())
            await self._watch(listed["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> None:
        while True:
            query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
            async for line in self._client.watch(JOBS, query, idle_timeout=WATCH_SECONDS):
                # Most events are of Jobs that are known already: to skip them must cost almost nothing.
                if line.startswith(b'{"type":"ADDED"'):
                    job = orjson.loads(line)["object"]
                    version = job["metadata"]["resourceVersion"]
                    self._begin(job)
                elif line.startswith(b'{"type":"ERROR"'):
                    raise RuntimeError(line.decode())

    def _begin(self, job: Json) -> None:
        """Notes that a Job begins to run now: `creationTimestamp` has whole seconds."""
        seconds = float(job["metadata"]["annotations"][RUN_SECONDS])
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, self._due.put_nowait, (loop.time() + seconds, job["metadata"]))

    async def _work(self) -> None:
        while True:
            due, metadata = await self._due.get()
            try:
                await self._end(metadata)
            except (errors.NotFound, errors.Invalid):
                continue  # it was deleted, and what has its name now is another
            self.late.append(asyncio.get_running_loop().time() - due)

    async def _end(self, metadata: Mapping[str, Any]) -> None:
        path = f"/apis/batch/v1/namespaces/{metadata['namespace']}/jobs/{metadata['name']}/status"
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
            {"op": "add", "path": "/status", "value": complete(metadata["creationTimestamp"], time.time())},
        ]
        await self._client.patch(path, patch, accept=METADATA)


def complete(began: str, now: float) -> Json:
    """The status of a Job whose one pod has succeeded; `began` is when it started, `now` in seconds of the clock."""
    ended = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": "CompletionsReached",
            "message": "Reached expected number of succeeded pods",
            "lastProbeTime": ended,
            "lastTransitionTime": ended,
        }
        for kind in ("SuccessCriteriaMet", "Complete")
    ]
    return {
        "conditions": conditions,
        "startTime": began,
        "completionTime": ended,
        "succeeded": 1,
        "ready": 0,
        "terminating": 0,
        "uncountedTerminatedPods": {},
    }


async def _stand_in() -> Lateness:
    """How late the reports were; returns on SIGTERM."""
    async with await ClusterClient.connect(os.environ["KUBECONFIG"], write_timeout=WRITE_SECONDS) as client:
        jobs = Jobs(client)
        running = asyncio.create_task(jobs.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        await asyncio.wait([running])
        if not running.cancelled():
            await running
    return Lateness.of(jobs.late)


def main() -> None:
    """Runs until SIGTERM."""
    options = argparse.ArgumentParser()
    options.add_argument("--output", type=Path, required=True)
    given = options.parse_args()
    given.output.write_bytes(orjson.dumps(asdict(asyncio.run(_stand_in()))))


if __name__ == "__main__":
    main()
