"""`python -m benchmarks.grants`: the time for which a pod of an autoscaling Ray cluster has the dispatcher's gate."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from benchmarks import figures
from benchmarks.arena import Arena, fresh_arena
from benchmarks.declared_queues import declare, generous_trees, leaves
from benchmarks.failure import BenchmarkFailed
from benchmarks.gangs import APPWRAPPERS, NAMESPACE, RAYCLUSTERS
from benchmarks.members_clusters import MEMBERS, fresh_clusters
from benchmarks.processor import Usage
from benchmarks.runner import measured, progress, write
from benchmarks.subject import (
    STALLED_SECONDS,
    WATCH_SECONDS,
    metrics_of,
    running_dispatcher,
    wait_until_ready,
)
from dispatcher.api.names import GROWTH_GATE, HUB_CLUSTER, QUEUE_LABEL
from dispatcher.kube.client import MERGE_PATCH
from dispatcher.store import migrate
from testbed.kuberay_operator import KubeRay, with_ray_kinds
from testbed.postgres import EmbeddedPostgres

Json = dict[str, Any]

PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
WORKERS: Final = {"labelSelector": "ray.io/node-type=worker"}
METRIC: Final = "dispatcher_growth_grant_seconds"
RAISES: Final = 4
"""How often one Ray cluster is raised, by one worker each time."""
BASE_WORKERS: Final = 4
CONNECTIONS: Final = 8

ABOUT = """\
Measures, on a real control plane of its own, how long a worker pod has the dispatcher's scheduling gate.

  base    RayClusters of one head and four workers, with Ray's autoscaler, are submitted as AppWrappers. Their
          workers belong to the gang: the dispatcher only admits them.
  growth  The worker group of one RayCluster after the other is raised by one worker, as Ray's autoscaler does.
          The scheduler grants the worker, the database has the grant, and then the dispatcher admits it.

KubeRay's operator creates the pods. The time of a pod is from the event of the benchmark's own watch that
shows the pod with the gate, to the event of the same watch that shows it without. Quota and nodes are enough
for all, and each gang names a declared queue. There is no result unless every pod was seen with the gate and
without, and the dispatcher's metric has counted each grant.
"""


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds for which the pods of one kind had the gate."""

    count: int
    p50: float
    p95: float
    longest: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        """The percentiles of these times."""
        p50, p95 = (figures.percentile(seconds, percent) for percent in (50, 95))
        return cls(len(seconds), p50, p95, max(seconds))


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one run; `noise` is the number of cores that other processes used from the first submission on.

    `metric_mean` is the mean of the dispatcher's own metric in seconds. The metric counts from the creation time that
    the API server writes, which has whole seconds, so it is half a second too high on average.
    """

    base: Latency
    growth: Latency
    metric_mean: float
    noise: float


@dataclass(slots=True)
class GateBook:
    """When each pod was seen with the gate for the first time, and without it after that; by uid, in seconds."""

    seen: dict[str, float] = field(default_factory=dict)
    admitted: dict[str, float] = field(default_factory=dict)

    def note(self, pod: Mapping[str, Any], now: float) -> None:
        """Note an event of a pod."""
        uid = pod["metadata"]["uid"]
        if {"name": GROWTH_GATE} in pod["spec"].get("schedulingGates", ()):
            self.seen.setdefault(uid, now)
        elif uid in self.seen:
            self.admitted.setdefault(uid, now)

    def times(self) -> dict[str, float]:
        """The seconds between the two events of each pod that had both."""
        return {uid: at - self.seen[uid] for uid, at in self.admitted.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures by the command line, prints the table, and returns the exit code."""
    options = parser().parse_args(arguments)
    run = _run_in_member if options.member else _run
    result = measured(lambda folder: run(options.gangs, options.rate, folder))
    at = datetime.now(UTC).isoformat(timespec="seconds")
    write(options.output, {"benchmark": "grants", "at": at, **asdict(result)})
    print(as_table(result))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.grants",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument(
        "--gangs", type=int, default=25, metavar="N", help="RayClusters, raised four times each (%(default)s)"
    )
    top.add_argument("--rate", type=float, default=5.0, help="workers a second (%(default)s)")
    top.add_argument("--member", action="store_true", help="let the gangs run in a member of the hub")
    top.add_argument("--output", metavar="FILE.json", help="write every figure there as JSON")
    return top


def as_table(result: Result) -> str:
    """A line for each kind of pod, and the dispatcher's own mean."""
    rows = {"base workers, admitted": result.base, "growth, granted and admitted": result.growth}
    lines = [f"{'seconds with the gate':<30}{'pods':>6}{'p50':>8}{'p95':>8}{'longest':>9}"]
    lines += [
        f"{name:<30}{each.count:>6}{each.p50:>8.3f}{each.p95:>8.3f}{each.longest:>9.3f}"
        for name, each in rows.items()
    ]
    lines.append(f"{METRIC}, mean (whole seconds: about 0.5 too high): {result.metric_mean:.3f}")
    lines.append(f"cores used by others meanwhile: {result.noise:.2f}")
    return "\n".join(lines)


async def _run(gangs: int, rate: float, folder: Path) -> Result:
    async with fresh_arena(folder, _room_for(gangs), CONNECTIONS, _say, with_ray_kinds) as arena:
        return await _measure(arena, arena, await arena.dispatcher_kubeconfig(), gangs, rate)


async def _run_in_member(gangs: int, rate: float, folder: Path) -> Result:
    name = MEMBERS[0]
    room = _room_for(gangs)
    async with fresh_clusters(folder, [name], room, CONNECTIONS, _say, with_ray_kinds) as clusters:
        await clusters.declare(name)
        kubeconfig = clusters.kubeconfigs[HUB_CLUSTER]
        return await _measure(clusters.hub, clusters.member(name), kubeconfig, gangs, rate)


def _room_for(gangs: int) -> int:
    return gangs * (1 + BASE_WORKERS + RAISES)


async def _measure(hub: Arena, where: Arena, kubeconfig: Path, gangs: int, rate: float) -> Result:
    """The figures of gangs that are submitted to the hub and run in the cluster `where`."""
    await declare(hub.client, generous_trees(1))
    operator = KubeRay(hub.supervisor, where.plane)
    await asyncio.to_thread(operator.up)
    with EmbeddedPostgres(hub.supervisor, database="dispatcher") as postgres:
        await asyncio.to_thread(migrate.migrate, postgres.url)
        with running_dispatcher(hub.supervisor, kubeconfig, postgres.url, "") as process:
            await wait_until_ready(process)
            base, growth, noise = await _Trial(hub, where, gangs, rate).run()
            process.check()
            return Result(base, growth, mean_of_metric(await metrics_of(process), growth.count), noise)


class _Trial:
    """Gangs are submitted to the hub; their pods are watched, and their RayClusters raised, in the cluster `where`."""

    def __init__(self, hub: Arena, where: Arena, gangs: int, rate: float) -> None:
        self._hub, self._where = hub, where
        self._names = [f"ray-{number:03d}" for number in range(gangs)]
        self._rate = rate
        self._book = GateBook()
        self._news = asyncio.Event()

    async def run(self) -> tuple[Latency, Latency, float]:
        """The latencies of base workers and of growth, and the noise."""
        version = (await self._where.client.get(PODS))["metadata"]["resourceVersion"]
        usage = Usage.now(self._hub.supervisor)
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch(version))
            _say(f"submitting {len(self._names)} RayClusters of {BASE_WORKERS} workers")
            await _paced(self._names, self._rate / BASE_WORKERS, self._submit)
            base = await self._until_admitted(len(self._names) * BASE_WORKERS)
            _say(f"raising each {RAISES} times by one worker, {self._rate:g} a second")
            for number in range(RAISES):
                raised = partial(self._raise, replicas=BASE_WORKERS + number + 1)
                await _paced(self._names, self._rate, raised)
            every = await self._until_admitted(len(self._names) * (BASE_WORKERS + RAISES))
            watching.cancel()
        noise = Usage.now(self._hub.supervisor).since(usage).noise
        growth = [seconds for uid, seconds in every.items() if uid not in base]
        return Latency.of(list(base.values())), Latency.of(growth), noise

    async def _submit(self, name: str) -> None:
        await self._hub.client.create(APPWRAPPERS, elastic_gang(name))

    async def _raise(self, name: str, replicas: int) -> None:
        found = await self._where.client.get(f"{RAYCLUSTERS}/{name}")
        groups = [{**each, "replicas": replicas} for each in found["spec"]["workerGroupSpecs"]]
        patch = {"spec": {"workerGroupSpecs": groups}}
        await self._where.client.patch(f"{RAYCLUSTERS}/{name}", patch, MERGE_PATCH)

    async def _watch(self, version: str) -> None:
        query = {**WORKERS, "watch": "true", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
        async for line in self._where.client.watch(PODS, query, idle_timeout=WATCH_SECONDS):
            now, event = time.monotonic(), orjson.loads(line)
            if event["type"] == "ERROR":
                raise BenchmarkFailed(f"the watch on pods: {line.decode()}")
            self._book.note(event["object"], now)
            self._news.set()
        raise BenchmarkFailed("the API server ended the watch on pods")

    async def _until_admitted(self, count: int) -> dict[str, float]:
        """The times of all pods once `count` of them were admitted."""
        deadline = time.monotonic() + STALLED_SECONDS
        while len(self._book.admitted) < count:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), deadline - time.monotonic())
            except TimeoutError:
                done = f"{len(self._book.admitted)} of {count} pods were admitted"
                raise BenchmarkFailed(f"{done} within {STALLED_SECONDS:g} s") from None
        return self._book.times()


def elastic_gang(name: str) -> Json:
    """An AppWrapper of one RayCluster with Ray's autoscaler, in the generous queue."""
    raycluster = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {
            "enableInTreeAutoscaling": True,
            "headGroupSpec": {"rayStartParams": {}, "template": _template("head")},
            "workerGroupSpecs": [_worker_group(BASE_WORKERS)],
        },
    }
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": name, "labels": {QUEUE_LABEL: leaves(1)[0]}},
        "spec": {"resources": {"GenericItems": [{"generictemplate": raycluster}]}},
    }


def _worker_group(replicas: int) -> Json:
    """A worker group that the autoscaler may raise."""
    return {
        "groupName": "workers",
        "replicas": replicas,
        "minReplicas": BASE_WORKERS,
        "maxReplicas": BASE_WORKERS + RAISES,
        "rayStartParams": {},
        "template": _template("worker", {"nvidia.com/gpu": "1"}),
    }


def _template(name: str, gpus: Mapping[str, str] = {}) -> Json:
    amounts = {"cpu": "1", "memory": "1Gi", **gpus}
    container = {"name": name, "image": "none", "resources": {"requests": amounts, "limits": amounts}}
    return {"spec": {"containers": [container]}}


async def _paced(names: Sequence[str], rate: float, act: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    """Act on each name, `rate` a second, whatever an act takes."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number, name in enumerate(names):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            tasks.create_task(act(name))
        await asyncio.sleep(max(0.0, began + len(names) / rate - time.monotonic()))


def mean_of_metric(metrics: str, grants: int) -> float:
    """The mean of the dispatcher's metric, which must have counted that many grants."""
    values = {name: value for name, _, value in (line.partition(" ") for line in metrics.splitlines())}
    counted = int(float(values[f"{METRIC}_count"]))
    if counted != grants:
        raise BenchmarkFailed(f"{METRIC} has {counted} grants instead of {grants}")
    return float(values[f"{METRIC}_sum"]) / counted


_say: Final = progress()


if __name__ == "__main__":
    sys.exit(main())
