"""What the dispatcher says is free equals what the API server's lists come to, whatever happens."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import psycopg
import pytest

from testbed import nodes
from testbed.client import STRATEGIC_PATCH
from testbed.nodes import Shape, name_of
from testbed.processes import Process
from tests.cluster.figures import free_in
from tests.cluster.lives import crash
from tests.cluster.manifests import appwrapper, deployment, item, job, never_starting, pod, renamed
from tests.cluster.outcomes import delete_all, reason_of
from tests.cluster.world import World, example

Json = dict[str, Any]
Amounts = Counter[str]

OWNING_KINDS = ("AppWrapper", "RayCluster", "Deployment", "Job")
SUFFIXES = {"m": Fraction(1, 1000), "": Fraction(1), "k": Fraction(10**3)}
SUFFIXES |= {"M": Fraction(10**6), "G": Fraction(10**9)}
SUFFIXES |= {f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGT", start=1)}


@dataclass(frozen=True, slots=True)
class Lists:
    """What the API server has at about one moment."""

    nodes: list[Json]
    pods: list[Json]
    appwrappers: list[Json]

    @property
    def versions(self) -> frozenset[tuple[str, str]]:
        """Tells one state of affairs from another, but for heartbeats of nodes."""
        return frozenset(
            (each["metadata"]["uid"], each["metadata"]["resourceVersion"])
            for each in (*self.pods, *self.appwrappers)
        )


class Accounts:
    """Follows the objects of one world; `demands` are by AppWrapper uid, in base units."""

    def __init__(self, world: World) -> None:
        self.demands: dict[str, Amounts] = {}
        self._world = world
        self._above: dict[str, str] = {}

    async def look(self) -> Lists:
        """The lists of now; learns who controls whom."""
        get = self._world.client.get
        found = await asyncio.gather(
            get("/api/v1/nodes"),
            get("/api/v1/pods"),
            *(get(self._world.path(kind)) for kind in OWNING_KINDS),
            get(f"/apis/apps/v1/namespaces/{self._world.namespace}/replicasets"),
        )
        nodes, pods, appwrappers, *others = (page.get("items") or [] for page in found)
        for each in (*pods, *appwrappers, *(one for page in others for one in page)):
            for reference in each["metadata"].get("ownerReferences") or ():
                if reference.get("controller"):
                    self._above[each["metadata"]["uid"]] = reference["uid"]
        return Lists(nodes, pods, appwrappers)

    def free(self, lists: Lists) -> Amounts:
        """By resource; what is 0 is left out."""
        live = [live_pod for live_pod in lists.pods if is_live_and_bound(live_pod)]
        free: Amounts = Counter()
        usable = {node["metadata"]["name"]: node for node in lists.nodes if is_usable(node)}
        for node in usable.values():
            free.update(amounts(node["status"]["allocatable"]))
        for live_pod in live:
            if live_pod["spec"]["nodeName"] in usable:
                free.subtract(requests(live_pod))
        for uid in self._active(lists):
            outstanding = Counter(self.demands[uid])
            for live_pod in live:
                if self._root(live_pod["metadata"]["uid"]) == uid:
                    outstanding.subtract(requests(live_pod))
            free.subtract(+outstanding)
        return Counter({name: amount for name, amount in free.items() if amount})

    def _active(self, lists: Lists) -> set[str]:
        """Those that were dispatched, and those deleted of which a live_pod is left that is not over."""
        existing = {each["metadata"]["uid"] for each in lists.appwrappers}
        dispatched = {
            each["metadata"]["uid"]
            for each in lists.appwrappers
            if _is_dispatched(each.get("status") or {}) and "deletionTimestamp" not in each["metadata"]
        }
        ending = {self._root(live_pod["metadata"]["uid"]) for live_pod in lists.pods if is_live(live_pod)}
        return dispatched | ((ending & self.demands.keys()) - existing)

    def _root(self, uid: str) -> str:
        while uid in self._above:
            uid = self._above[uid]
        return uid


def _is_dispatched(status: Json) -> bool:
    """It has a cluster, and has not ended there."""
    return bool(status.get("cluster")) and status.get("state") not in {"Completed", "Failed"}


def is_usable(node: Json) -> bool:
    """Ready and not cordoned."""
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"])
    return ready and not node["spec"].get("unschedulable")


def is_live(live_pod: Json) -> bool:
    """Neither Succeeded nor Failed; one that is being deleted is."""
    return live_pod["status"].get("phase") not in ("Succeeded", "Failed")


def is_live_and_bound(live_pod: Json) -> bool:
    """It takes its requests from a node."""
    return is_live(live_pod) and bool(live_pod["spec"].get("nodeName"))


def requests(live_pod: Json) -> Amounts:
    """The larger of what its containers ask for together and what any init container asks for."""
    total: Amounts = Counter()
    for container in live_pod["spec"]["containers"]:
        total.update(amounts((container.get("resources") or {}).get("requests") or {}))
    for container in live_pod["spec"].get("initContainers") or ():
        total |= amounts((container.get("resources") or {}).get("requests") or {})
    return total


def amounts(written: Json) -> Amounts:
    """A ResourceList in base units: thousandths of a cpu, one of everything else."""
    return Counter({name: in_base_units(name, str(value)) for name, value in written.items()})


def in_base_units(resource: str, written: str) -> int:
    """One quantity, rounded up."""
    digits = written.rstrip("mkMGTKi")
    exact = Fraction(digits) * SUFFIXES[written[len(digits) :]] * (1000 if resource == "cpu" else 1)
    return -(-exact.numerator // exact.denominator)


# --- the tests -------------------------------------------------------------------------------------------


DEAD_NODE = "node-dead"
STEPS = 60
RAY_DEMAND = {"cpu": 6000, "memory": 32 * 10**9, "nvidia.com/gpu": 2}
BETWEEN_LOOKS = 0.01
"""Seconds between two looks of a test that looks all the time, so that the dispatcher has time for its work, too."""
HOLDING = (
    "SELECT demand FROM appwrapper WHERE phase IN "
    "('Dispatching', 'Dispatched', 'Running', 'Requeueing', 'Failing', 'Deleting')"
)


async def until_equal(world: World, process: Process, accounts: Accounts, what: str) -> None:
    """Return once the figure and the lists agree while nothing moves."""
    last: list[object] = []
    before = await accounts.look()

    async def agree() -> bool:
        nonlocal before
        said = await free_in(process)
        after = await accounts.look()
        last[:] = [dict(accounts.free(after)), said]
        has_moved, before = before.versions != after.versions, after
        return not has_moved and accounts.free(after) == Counter(said)

    try:
        await world.until(agree, what)
    except AssertionError as error:
        raise AssertionError(
            f"after {what}: the lists come to {last[0]}, the dispatcher says {last[1]}"
        ) from error


@asynccontextmanager
async def dead_node(world: World) -> AsyncIterator[None]:
    """A machine that nobody looks after: it can be said to be Ready or not, and its pods end only by force."""
    client = world.plane.client
    taint = {"key": "example.com/dead", "effect": "NoSchedule"}
    made = nodes.make_node(DEAD_NODE, Shape(cpu="4", memory="8Gi", taints=[taint]), datetime.now(UTC))
    made["metadata"]["annotations"] = dict.fromkeys(nodes.MANAGED, "no")
    await asyncio.to_thread(client.request, "POST", nodes.NODES, made)
    try:
        yield
    finally:
        for found in await world.every("AppWrapper"):
            await world.delete(found["metadata"]["name"])
        for found in await world.every("Pod"):
            if found["spec"].get("nodeName") == DEAD_NODE:
                await kill_pod(world, found["metadata"]["name"])
        await nodes.remove(client, DEAD_NODE)


@asynccontextmanager
async def nodes_as_they_were(world: World) -> AsyncIterator[None]:
    """Cordons and sizes are undone afterwards."""
    before = (await world.client.get("/api/v1/nodes"))["items"]
    try:
        yield
    finally:
        for node in before:
            name = node["metadata"]["name"]
            await nodes.uncordon(world.plane.client, name)
            await nodes.resize(world.plane.client, name, node["status"]["allocatable"])


async def kill_pod(world: World, name: str) -> None:
    """As `kubectl delete --force`: gone at once, wherever it ran."""
    path = f"{world.path('Pod', name)}?gracePeriodSeconds=0"
    await asyncio.to_thread(world.plane.client.request, "DELETE", path)


async def say_ready(world: World, ready: str) -> None:
    """Set the Ready condition of the dead node."""
    patch = {"status": {"conditions": [{"type": "Ready", "status": ready, "reason": "Test"}]}}
    path = f"{nodes.NODES}/{DEAD_NODE}/status"
    await asyncio.to_thread(world.plane.client.request, "PATCH", path, patch, STRATEGIC_PATCH)


def bound_to_dead_node(name: str, cpu: str) -> Json:
    return pod(name, {"cpu": cpu}, nodeName=DEAD_NODE, tolerations=[{"operator": "Exists"}])


def unbound(manifest: Json) -> Json:
    """The same Job, none of whose pods is ever bound."""
    other: Json = json.loads(json.dumps(manifest))
    other["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "example.com/never"}]
    return other


class Run:
    """A random life of one namespace: gangs, foreign pods and nodes that come, go and change."""

    def __init__(self, world: World, accounts: Accounts, chance: random.Random) -> None:
        self._world = world
        self._accounts = accounts
        self._chance = chance
        self._gangs: list[str] = []
        self._foreign: list[tuple[str, str]] = []
        self._made = 0

    async def step(self) -> str:
        """Do one thing; in a word, what."""
        actions: list[Callable[[], Awaitable[None]]] = [
            *[self.submit] * 5,
            *[self.delete] * 3,
            *[self.add_foreign] * 2,
            self.remove_foreign,
            self.cordon,
            self.uncordon,
            self.resize,
            self.change_dead_node,
        ]
        action = self._chance.choice(actions)
        await action()
        return action.__name__

    async def submit(self) -> None:
        name = self._name("gang")
        manifest, demand = self._gang(name)
        made = await self._world.create(manifest)
        self._accounts.demands[made["metadata"]["uid"]] = demand
        self._gangs.append(name)

        async def told() -> bool:
            found = await self._world.get("AppWrapper", name)
            return bool(found and reason_of(found.get("status") or {}))

        await self._world.until(told, f"{name} is dispatched or waits")

    async def delete(self) -> None:
        if self._gangs:
            name = self._gangs.pop(self._chance.randrange(len(self._gangs)))
            await self._world.delete(name)

    async def add_foreign(self) -> None:
        name = self._name("foreign")
        cpu = f"{self._chance.randint(1, 20) * 100}m"
        somebodys = self._chance.choice(list(self._accounts.demands) or ["nobody"])
        forged = pod(name, {"cpu": cpu})
        forged["metadata"]["labels"] = {"dispatcher.codeflare.dev/appwrapper-uid": somebodys}
        gated = pod(name, {"cpu": cpu}, schedulingGates=[{"name": "example.com/never"}])
        made = self._chance.choice(
            [
                deployment(name, replicas=2, cpu=cpu),
                pod(name, {"cpu": cpu, "memory": "1Gi"}),
                bound_to_dead_node(name, cpu),
                forged,
                gated,
            ]
        )
        await self._world.create(made)
        self._foreign.append((made["kind"], name))

    async def remove_foreign(self) -> None:
        if self._foreign:
            kind, name = self._foreign.pop(self._chance.randrange(len(self._foreign)))
            await self._world.delete(name, kind)

    async def cordon(self) -> None:
        await nodes.cordon(self._world.plane.client, self._node())

    async def uncordon(self) -> None:
        for index in range(3):
            await nodes.uncordon(self._world.plane.client, name_of(index))

    async def resize(self) -> None:
        cpu, memory = self._chance.choice(["4", "8", "8500m", "12"]), self._chance.choice(["61Gi", "20G"])
        await nodes.resize(self._world.plane.client, self._node(), {"cpu": cpu, "memory": memory})

    async def change_dead_node(self) -> None:
        await say_ready(self._world, self._chance.choice(["True", "False", "Unknown"]))

    def _gang(self, name: str) -> tuple[Json, Amounts]:
        """An AppWrapper and what it demands, worked out by hand."""
        count, cpu = self._chance.randint(1, 3), self._chance.randint(1, 15) * 100
        pods = job(name, count, f"{cpu}m", terminate_after=self._chance.choice(["100ms", "1s", "2s"]))
        derived = Counter({"cpu": count * cpu})
        ray = renamed(example("aw-raycluster-glue"), name)
        over = [{"replicas": count, "requests": {"cpu": f"{cpu}m", "memory": "1Gi"}}]
        under = [{"replicas": 1, "requests": {"cpu": "50m"}}]
        never = job(name, count, f"{cpu}m", never_start="true")
        short = job(name, count, f"{cpu}m", run_for="1s")
        half = appwrapper(name, item(pods), item(unbound(job(f"{name}-b", count, f"{cpu}m"))))
        choices: list[tuple[Json, Amounts]] = [
            (appwrapper(name, item(pods)), derived),
            (appwrapper(name, item(short)), derived),
            (appwrapper(name, item(never)), derived),
            (half, derived + derived),
            (appwrapper(name, item(deployment(name, count, f"{cpu}m"))), derived),
            (
                appwrapper(name, item(pods, custompodresources=over)),
                derived + Counter(memory=count * 1024**3),
            ),
            (appwrapper(name, item(pods, custompodresources=under)), Counter(cpu=max(50, count * cpu))),
            (appwrapper(name, item(bound_to_dead_node(name, f"{cpu}m"))), Counter(cpu=cpu)),
            (ray, Counter(RAY_DEMAND)),
            (never_starting(ray), Counter(RAY_DEMAND)),
        ]
        return self._chance.choice(choices)

    def _node(self) -> str:
        return name_of(self._chance.randrange(3))

    def _name(self, kind: str) -> str:
        self._made += 1
        return f"{kind}-{self._made}"


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
async def test_free_capacity_equals_the_sum_of_the_lists_at_every_quiet_step(world: World, seed: int) -> None:
    process = await world.start_dispatcher()
    accounts = Accounts(world)
    run = Run(world, accounts, random.Random(seed))  # noqa: S311  # the same run every time
    async with dead_node(world), nodes_as_they_were(world):
        await until_equal(world, process, accounts, "the start")
        for number in range(STEPS):
            done = await run.step()
            await until_equal(world, process, accounts, f"step {number}, {done}")
    assert process.is_running()


async def test_restarted_dispatcher_counts_as_before(world: World) -> None:
    process = await world.start_dispatcher()
    accounts = Accounts(world)
    chance = random.Random(3)  # noqa: S311  # the same run every time
    run = Run(world, accounts, chance)
    async with dead_node(world), nodes_as_they_were(world):
        for _ in range(15):
            await run.step()
        await until_equal(world, process, accounts, "fifteen steps at once")
        await crash(world, process)
        process = await world.start_dispatcher()
        await until_equal(world, process, accounts, "a restart")


def gang_of(kind: str, name: str) -> Json:
    """A gang whose pods ask for exactly what it demands."""
    match kind:
        case "Job":
            return appwrapper(name, item(job(name, 10, "700m", terminate_after="500ms")))
        case "Deployment":
            return appwrapper(name, item(deployment(name, 10, "700m")))
        case _:
            return renamed(example("aw-raycluster-glue"), name)


@pytest.mark.parametrize("kind", ["Job", "Deployment", "RayCluster"])
async def test_gang_is_counted_exactly_once_while_its_pods_appear_and_go(world: World, kind: str) -> None:
    """Its pods ask for what it demands: so at every moment either all of its demand is taken, or nothing."""
    process = await world.start_dispatcher()
    await until_equal(world, process, Accounts(world), "the start")
    empty = await free_in(process)
    seen: list[dict[str, int]] = []

    async def is_empty() -> bool:
        return await free_in(process) == empty

    async def watch() -> None:
        while True:
            seen.append(await free_in(process))
            await asyncio.sleep(BETWEEN_LOOKS)

    watching = asyncio.create_task(watch())
    try:
        for number in range(3):
            name = f"gang-{number}"
            await world.create(gang_of(kind, name))
            await world.until_state(name, "Running")
            await world.delete(name)
            await world.until(is_empty, f"all of {name} is free again")
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    taken = {tuple(sorted((Counter(empty) - Counter(each)).items())) for each in seen}
    demand = RAY_DEMAND if kind == "RayCluster" else {"cpu": 7000}
    assert taken == {(), tuple(sorted(demand.items()))}


async def test_demand_of_dispatched_gangs_never_exceeds_capacity(world: World) -> None:
    """Gangs that compete, end slowly and are deleted at any moment; the capacity does not change meanwhile."""
    process = await world.start_dispatcher()
    listed = (await world.client.get("/api/v1/nodes"))["items"]
    capacity: Amounts = Counter()
    for node in filter(is_usable, listed):
        capacity.update(amounts(node["status"]["allocatable"]))
    await until_equal(world, process, Accounts(world), "the start")
    chance = random.Random(4)  # noqa: S311  # the same run every time
    most: Amounts = Counter()

    async def watch() -> None:
        async with await psycopg.AsyncConnection.connect(world.database_url, autocommit=True) as connection:
            while True:
                held: Amounts = Counter()
                for (demand,) in await (await connection.execute(HOLDING)).fetchall():
                    held.update(demand)
                most.update(held - most)
                assert held <= capacity, f"{held} of {capacity} is held"
                assert min((await free_in(process)).values()) >= 0
                await asyncio.sleep(BETWEEN_LOOKS)

    async def there_is_competition() -> bool:
        return watching.done() or most["cpu"] > capacity["cpu"] // 2

    watching = asyncio.create_task(watch())
    try:
        for number in range(60):
            name = f"gang-{number}"
            gang = job(name, chance.randint(1, 3), f"{chance.randint(5, 50)}00m", terminate_after="300ms")
            await world.create(appwrapper(name, item(gang), priority=chance.randint(0, 5)))
            if number % 3 == 2:
                await world.delete(f"gang-{chance.randrange(number - 2, number)}")
            assert not watching.done()
        await world.until(there_is_competition, "more than half of the capacity is held")
        await delete_all(world)
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    if not watching.cancelled():
        watching.result()
