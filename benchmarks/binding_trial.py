"""One run of the binding benchmark: a fresh control plane, its nodes, a dispatcher, and all gangs at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import orjson
import psycopg

from benchmarks.arena import Arena, spread
from benchmarks.binding_book import Book, Counts, Dispatch, Plan
from benchmarks.binding_gangs import Gang, Machine, gpus_of
from benchmarks.failure import BenchmarkFailed
from benchmarks.gangs import APPWRAPPERS, CHECKOUT, NAMESPACE
from benchmarks.subject import WATCH_SECONDS, running_dispatcher, wait_until_ready
from dispatcher.kube.client import ClusterClient
from dispatcher.store import migrate
from testbed import build, nodes
from testbed.kuberay_operator import KubeRay, with_ray_kinds
from testbed.plane import Plane, Wanted
from testbed.postgres import EmbeddedPostgres
from testbed.processes import Process, Supervisor

PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
CONNECTIONS: Final = 8
LOOK_SECONDS: Final = 0.5
REPORT_SECONDS: Final = 15.0
STALLED_SECONDS: Final = 180.0
MOST_EXAMPLES: Final = 20

Json = dict[str, Any]
Say = Callable[[str], None]
Plans = dict[tuple[str, int], Plan]
"""By name of the gang and number of the attempt."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A configuration of the dispatcher: its setting `fit`, and whether pods prefer their assigned nodes."""

    name: str
    fit: str
    has_hints: bool = True


@dataclass(frozen=True, slots=True)
class Load:
    """The nodes and gangs of every run; a gang is stuck if a pod is pending for more than `settling` seconds."""

    machines: Sequence[Machine]
    gangs: Sequence[Gang]
    settling: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one run; each example describes a stuck dispatch as it was when the run found it."""

    setting: str
    counts: Counts
    examples: list[Json]


async def run(folder: Path, setting: Setting, load: Load, say: Say) -> Outcome:
    """Runs the load on a fresh cluster until all gangs have ended."""
    say(f"{setting.name}: starting a control plane, Postgres and the dispatcher")
    async with _cluster(folder, load.machines) as arena:
        with EmbeddedPostgres(arena.supervisor, database="dispatcher") as postgres:
            await asyncio.to_thread(migrate.migrate, postgres.url)
            kubeconfig = await arena.dispatcher_kubeconfig()
            settings = {"DISPATCHER_FIT": setting.fit}
            module = "dispatcher" if setting.has_hints else "benchmarks.unhinted"
            with running_dispatcher(
                arena.supervisor, kubeconfig, postgres.url, "", settings=settings, module=module
            ) as process:
                await wait_until_ready(process)
                return await Trial(arena, process, postgres.url, load, say).run(setting)


class Trial:
    """Submits the gangs, deletes each gang after its run, and notes every event of their pods."""

    def __init__(self, arena: Arena, process: Process, database_url: str, load: Load, say: Say) -> None:
        self._arena = arena
        self._process = process
        self._database_url = database_url
        self._load = load
        self._say = say
        self._book = Book(load.gangs)
        self._uids: dict[str, str] = {}
        self._ended: set[str] = set()
        self._last_event = time.monotonic()
        self._examples: dict[tuple[str, int], Json] = {}

    async def run(self, setting: Setting) -> Outcome:
        """Runs the load; returns when every pod is gone."""
        version = (await self._arena.client.get(PODS))["metadata"]["resourceVersion"]
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch(version, tasks))
            began = time.monotonic()
            await spread(self._load.gangs, CONNECTIONS, self._submit)
            self._say(f"{setting.name}: submitted {len(self._load.gangs)} gangs")
            await self._until_all_ended(setting)
            watching.cancel()
        plans = await asyncio.to_thread(self._plans)
        span = began, self._last_event
        counts = self._book.count(plans, gpus_of(self._load.machines), span, self._load.settling)
        return Outcome(setting.name, counts, list(self._examples.values()))

    async def _submit(self, gang: Gang) -> None:
        made = await self._arena.client.create(APPWRAPPERS, gang.appwrapper())
        self._uids[gang.name] = made["metadata"]["uid"]

    async def _watch(self, version: str, tasks: asyncio.TaskGroup) -> None:
        """Notes every event from a resource version on; renews a watch that the server ends."""
        while True:
            query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
            async for line in self._arena.client.watch(PODS, query, idle_timeout=WATCH_SECONDS):
                event = orjson.loads(line)
                if event["type"] == "ERROR":
                    raise BenchmarkFailed(f"the watch on pods: {line.decode()}")
                version = event["object"]["metadata"]["resourceVersion"]
                self._last_event = time.monotonic()
                whole = self._book.note(event["type"], event["object"], self._last_event)
                if whole:
                    tasks.create_task(self._end(whole.gang))

    async def _end(self, gang: Gang) -> None:
        """Deletes a gang at the end of its run."""
        await asyncio.sleep(gang.seconds)
        if gang.name not in self._ended:
            self._ended.add(gang.name)
            await self._arena.client.delete(f"{APPWRAPPERS}/{gang.name}", self._uids[gang.name])

    async def _until_all_ended(self, setting: Setting) -> None:
        reported = time.monotonic()
        while len(self._ended) < len(self._load.gangs) or not self._book.is_empty():
            await asyncio.sleep(LOOK_SECONDS)
            self._process.check()
            now = time.monotonic()
            await self._note_examples(now)
            if now - self._last_event > STALLED_SECONDS:
                raise BenchmarkFailed(
                    f"{len(self._ended)} gangs ended, and no pod changed for {STALLED_SECONDS:.0f} s"
                )
            if now - reported > REPORT_SECONDS:
                reported = now
                stuck = len(self._book.stuck(now, self._load.settling))
                seen = len(self._book.dispatches)
                self._say(f"{setting.name}: {len(self._ended)} ended, {seen} dispatches, {stuck} stuck")

    async def _note_examples(self, now: float) -> None:
        for dispatch in self._book.stuck(now, self._load.settling):
            place = (dispatch.gang.name, dispatch.number)
            if place not in self._examples and len(self._examples) < MOST_EXAMPLES:
                plans = await asyncio.to_thread(self._plans)
                self._examples[place] = self._example(dispatch, plans, now)

    def _example(self, dispatch: Dispatch, plans: Plans, now: float) -> Json:
        """Describes a stuck dispatch, all dispatches with a living pod, and the pods of each node."""
        place = (dispatch.gang.name, dispatch.number)
        others = [
            self._described(each, plans, now)
            for each in self._book.dispatches.values()
            if any(pod.gone is None for pod in each.pods.values())
        ]
        return {
            "gang": place,
            "since": now - dispatch.seen,
            "shapes": [asdict(each) for each in dispatch.gang.pods],
            "decided": [f"{name}, attempt {number}" for name, number in plans],
            "dispatches": others,
            "nodes": self._book.on_nodes(now),
        }

    def _described(self, dispatch: Dispatch, plans: Plans, now: float) -> Json:
        plan = plans.get((dispatch.gang.name, dispatch.number), ())
        return {
            "gang": dispatch.gang.name,
            "attempt": dispatch.number,
            "first pod seen": now - dispatch.seen,
            "is being deleted": dispatch.gang.name in self._ended,
            "plan": plan,
            "off plan": [each.name for each in dispatch.off_plan(plan)],
            "pods": {
                each.name: f"{each.pod_set} {each.node or each.message}" for each in dispatch.pods.values()
            },
        }

    def _plans(self) -> Plans:
        """The assignment of each attempt in the dispatcher's database, in the order of the decisions."""
        names = {uid: name for name, uid in self._uids.items()}
        with psycopg.connect(self._database_url) as connection:
            query = "SELECT uid, number, assignment FROM attempt ORDER BY decided_at"
            rows = connection.execute(query).fetchall()
        return {
            (names[uid], number): [dict(places) for places in assignment]
            for uid, number, assignment in rows
            if uid in names
        }


@asynccontextmanager
async def _cluster(folder: Path, machines: Sequence[Machine]) -> AsyncIterator[Arena]:
    crds = sorted([*CHECKOUT.glob("crds/*.yaml"), *CHECKOUT.glob("testbed/crds/*.yaml")])
    with Supervisor(folder) as supervisor:
        plane = Plane(supervisor, build.ensure(), "hub", with_ray_kinds(Wanted(nodes=0, crds=crds)))
        await asyncio.to_thread(plane.up)
        for number, machine in enumerate(machines):
            await nodes.add(plane.client, machine.shape(), [number])
        await plane.create_namespace(NAMESPACE)
        operator = KubeRay(supervisor, plane)
        await asyncio.to_thread(operator.up)
        async with await ClusterClient.connect(str(plane.kubeconfig), write_timeout=30) as client:
            yield Arena(supervisor, plane, client)
