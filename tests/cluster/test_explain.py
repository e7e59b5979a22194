"""`explain` and `would` are true: what they say happens when it is really done, on a real cluster.

A state is some random gangs, of which some run and some wait. Three answers about it are put to the test: a repair by
new nodes, a repair by gangs that go, and what would happen to a gang that is not submitted yet.

A repair is one change. Nodes that come one by one would be taken one by one, also by gangs behind. So the dispatcher is
stopped while a change is made, and its first cycle sees all of it. A smaller change must not suffice: a canary, a gang
that fits any node, shows when that cycle has been.

If several gangs are dispatched at once, kube-scheduler may see their pods in another order than they were placed in,
and use the place of a pod that it has not seen yet (docs/decisions/0008-fit-on-nodes.md). A state with such a pod is
left: explanations are about bound pods. Such states are counted, and have to be few.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import count
from random import Random
from typing import Any

import pytest
import yaml

from dispatcher.store.snapshot.snapshot_reader import Snapshot, read_snapshot
from testbed import nodes
from testbed.nodes import Shape
from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.outcomes import delete_all
from tests.cluster.world import World
from tests.commands import Run, runner

Json = dict[str, Any]
BASE_NODES = 3
FIRST_NODE = 200
SETTINGS = {"snapshot_seconds": "0.1"}
AT_ONCE = {"cycle_seconds": "3"}
"""A new leader releases the capacity of deleted AppWrappers one by one, and its second cycle sees all of them gone."""
DISPATCHED = ("Dispatched", "Running")


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher …` on the queue and the hub of this world."""
    monkeypatch.setenv("DISPATCHER_DATABASE_URL", world.database_url)
    monkeypatch.setenv("KUBECONFIG", str(world.plane.kubeconfig))
    return runner(monkeypatch, capsys)


async def test_explanation_is_that_of_the_cluster(world: World, run: Run) -> None:
    await world.start_dispatcher(**SETTINGS)
    for name in ("one", "two", "three"):
        await world.create_until("Running", appwrapper(name, item(job(name, cpu="5"))))
    await world.create(appwrapper("large", item(job("large", 2, cpu="6"))))
    await world.create_until("Backoff", appwrapper("small", item(job("small", cpu="4"))))
    await until_settled(world, BASE_NODES)

    ran = await run("explain", "small")
    assert ran.code == 0
    lines = [line.split("  ")[0] for line in ran.out.replace(f"{world.namespace}/", "").splitlines()]
    assert lines[-1].startswith("As of ")
    assert lines[:-2] == [
        "small waits: InsufficientResources",
        "",
        "",
        "",
        "",
        "HELD BY",
        "one",
        "",
        "It would be dispatched",
        "",
        "",
    ]
    assert "position 2 of 2 in the queue, after" in ran.out
    assert "estimated start unknown: no end is known for" in ran.out
    assert "cluster hub: cpu: 9 free, at most 3 on one node, and the pod requests 4" in ran.out
    assert "with 1 more node like node-0 in hub (cpu 8, " in ran.out
    assert f"without {world.namespace}/one\n" in ran.out
    assert (await run("explain", "one")).out == f"{world.namespace}/one is Running on hub.\n"


async def test_status_has_position_holders_start_and_a_repair(world: World) -> None:
    await world.start_dispatcher(**SETTINGS)
    lasts = {"dispatchDuration": {"expected": 3600}}
    for name in ("one", "two", "three"):
        await world.create_until("Running", appwrapper(name, item(job(name, cpu="5")), schedulingSpec=lasts))
    await world.create(appwrapper("wide", item(job("wide", 2, cpu="6"))))
    await world.create(appwrapper("small", item(job("small", cpu="4"))))
    wide, small = await until_advised(world, "wide", 2), await until_advised(world, "small", 2)

    assert (wide["position"], small["position"]) == (1, 2)
    assert {each["name"] for each in wide["holders"]} < {"one", "two", "three"}
    assert len(wide["holders"]) == 2
    last = max(datetime.fromisoformat(each["since"]) for each in wide["holders"])
    assert datetime.fromisoformat(wide["estimatedStart"]) == last + timedelta(hours=1)
    assert small["estimatedStart"] >= wide["estimatedStart"]  # it fits only where the third gang is
    added = wide["repair"]["add_nodes"]
    assert (added["cluster"], added["count"]) == ("hub", 2)
    assert "with 2 more nodes in hub (cpu 8, " in wide["repair"]["message"]


async def test_would_names_missing_rights_and_counts_defaults_of_pods(world: World, run: Run) -> None:
    """The author may create AppWrappers, and no Jobs; a container without requests gets those of the LimitRange."""
    await world.start_dispatcher(**SETTINGS)
    await until_settled(world, BASE_NODES)
    limit = {"type": "Container", "defaultRequest": {"cpu": "9"}}
    body = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "large"},
        "spec": {"limits": [limit]},
    }
    await world.client.create(f"/api/v1/namespaces/{world.namespace}/limitranges", body)
    rules = [
        {"apiGroups": ["workload.codeflare.dev"], "resources": ["appwrappers"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["limitranges"], "verbs": ["list"]},
    ]
    author = await asyncio.to_thread(world.plane.service_account_kubeconfig, world.namespace, "author", rules)
    plain = job("plain")
    plain["spec"]["template"]["spec"]["containers"][0]["resources"] = {}
    manifest = appwrapper("plain", item(plain))
    asked = ["would", "-f", "-", "-n", world.namespace, "-o", "json", "--kubeconfig", str(author)]

    ran = await run(*asked, stdin=yaml.safe_dump(manifest))

    assert (ran.code, ran.err) == (0, "")
    (said,) = json.loads(ran.out)
    assert said["denied"] == [f"you may not create jobs.batch in namespace {world.namespace}"]
    assert said["podDefaults"] == {"requests": {"cpu": "9"}, "overheads": {}, "clusters": {}}
    assert (said["verdict"], said["reason"]) == ("DoesNotFit", "LargerThanCluster")
    assert await world.names("AppWrapper") == set()

    await world.create(manifest)
    status = await world.until_state("plain", "Backoff")
    assert status["waiting"]["reason"] == "LargerThanCluster"


async def until_advised(world: World, name: str, length: int) -> Json:
    """The `waiting` of an AppWrapper in a queue of that length, once it has a repair."""

    async def look() -> Json | None:
        status = (await world.get("AppWrapper", name) or {}).get("status") or {}
        waiting: Json = status.get("waiting") or {}
        return waiting if "repair" in waiting and waiting["queueLength"] == length else None

    return await world.until(look, f"the status of {name} has a repair")


def shape_of(has: Json) -> Shape:
    """The shape of a node with this allocatable."""
    return Shape(has["cpu"], has["memory"], int(has.get("nvidia.com/gpu", 0)), int(has["pods"]))


@pytest.mark.parametrize("seed", range(3))
async def test_explanation_comes_true(world: World, run: Run, seed: int) -> None:
    await check_answers(world, run, count(seed, 1000), answers=1)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
async def test_each_of_two_hundred_explanations_comes_true(world: World, run: Run) -> None:
    await check_answers(world, run, count(100), answers=200)


async def check_answers(world: World, run: Run, seeds: Iterator[int], answers: int) -> None:
    """Check all answers about random states until that many were checked."""
    checked, states, left = 0, 0, 0
    while checked < answers:
        states += 1
        try:
            checked += await State(world, run, Random(next(seeds))).check()  # noqa: S311  # a test
        except PodWithoutNode:
            left += 1
    assert left <= 1 + states // 25, f"kube-scheduler left a pod pending in {left} of {states} states"


class PodWithoutNode(Exception):
    """kube-scheduler has used the place of a pod for another one, and the pod is pending."""


async def until_settled(world: World, expected_nodes: int) -> Snapshot:
    """The snapshot in the database once it has these nodes, and every pod of the gangs that hold capacity."""

    seen: list[Snapshot] = []

    async def look() -> Snapshot | None:
        found = await read_snapshot(world.database_url, timedelta(seconds=10))
        seen[:] = [found]
        is_bound = all(
            sum(place.pods for place in gang.bound or ()) == sum(each.pods.count for each in gang.pods)
            for gang in found.world.running
        )
        there = sum(len(each.nodes) for each in found.world.clusters)
        return found if is_bound and there == expected_nodes else None

    try:
        return await world.until(look, f"the snapshot has {expected_nodes} nodes and all pods")
    except AssertionError as error:
        pending = await unschedulable_pods(world)
        if pending and len(seen[0].world.clusters[0].nodes) == expected_nodes:
            raise PodWithoutNode(pending) from error
        error.add_note(f"the last snapshot: {seen[0].world if seen else None}")
        raise


async def unschedulable_pods(world: World) -> list[str]:
    """The names of the pods for which kube-scheduler has no node."""
    return [
        each["metadata"]["name"]
        for each in await world.every("Pod")
        if any(found.get("reason") == "Unschedulable" for found in each["status"].get("conditions", ()))
    ]


class State:
    """A random state of the queue and the answers about it."""

    def __init__(self, world: World, run: Run, random: Random) -> None:
        self.world = world
        self.run = run
        self.random = random
        self.added: list[int] = []
        self.names = (f"{prefix}{number}" for number in count() for prefix in ("gang-",))

    async def check(self) -> int:
        """Make the state, check what is said about it, and clear up; how many answers were put to the test."""
        self.dispatcher = await self.world.start_dispatcher(**SETTINGS)
        try:
            for _ in range(7):
                await self._submit(self._gang(next(self.names)))
            return await self._check_would() + await self._check_removal() + await self._check_nodes()
        finally:
            await delete_all(self.world)
            await self.world.stop_dispatcher(self.dispatcher)
            for index in self.added:
                await nodes.remove(self.world.plane.client, nodes.name_of(index))

    def _gang(self, name: str) -> Json:
        pods, cpu = self.random.choice(((1, 2), (1, 5), (1, 8), (2, 3), (2, 6), (4, 2)))
        return appwrapper(name, item(job(name, pods, cpu=str(cpu))), priority=self.random.randrange(3))

    async def _submit(self, manifest: Json) -> str:
        """Submit an AppWrapper and return the state that it gets to, with its pods bound if it is dispatched."""
        name = manifest["metadata"]["name"]
        await self.world.create(manifest)
        state = await self._decided(name)
        if state in DISPATCHED:
            await until_settled(self.world, BASE_NODES + len(self.added))
        return state

    async def _decided(self, name: str) -> str:
        async def look() -> str | None:
            found = (await self.world.get("AppWrapper", name) or {}).get("status", {}).get("queuejobstate")
            return found if found in (*DISPATCHED, "Backoff") else None

        return await self.world.until(look, f"{name} is decided on")

    async def _waiting(self) -> list[str]:
        """The names of the waiting gangs, once the snapshot has everything that was done."""
        snapshot = await until_settled(self.world, BASE_NODES + len(self.added))
        return [each.name for each in snapshot.world.pending]

    async def _explain(self, name: str) -> Json:
        ran = await self.run("explain", name, "-o", "json")
        assert ran.code == 0, ran.err
        (found,) = json.loads(ran.out)
        return dict(found)

    # --- the answers -------------------------------------------------------------------------------------

    async def _check_would(self) -> int:
        """A gang that is submitted gets the verdict that `would` gave before."""
        await self._waiting()
        manifest = self._gang(next(self.names))
        in_file = {**manifest, "metadata": {**manifest["metadata"], "namespace": self.world.namespace}}
        ran = await self.run("would", "-f", "-", "-o", "json", stdin=yaml.safe_dump(in_file))
        assert ran.code == 0, ran.err
        (said,) = json.loads(ran.out)
        state = await self._submit(manifest)
        assert (said["verdict"] == "Dispatch") == (state in DISPATCHED), (said, state)
        return 1

    async def _check_removal(self) -> int:
        """A gang goes once its holders are deleted, and not while one of them is left."""
        for name in await self._waiting():
            said = await self._explain(name)
            assert said["verdict"] in ("Waits", "DoesNotFit")
            if said["holders"]:
                return await self._check_change(
                    name, [each["name"] for each in said["holders"]], self._delete
                )
        return 0

    async def _check_nodes(self) -> int:
        """A gang goes once the nodes of its repair are there, and not while one of them is missing."""
        for name in await self._waiting():
            for repair in (await self._explain(name))["repair"]:
                if "add_nodes" in repair:
                    added = repair["add_nodes"]
                    return await self._check_change(
                        name, [added["allocatable"]] * added["count"], self._add_nodes
                    )
        return 0

    async def _check_change(
        self, name: str, parts: list[Any], make: Callable[[list[Any]], Awaitable[None]]
    ) -> int:
        """Make the smaller change or the whole one, and see that the gang still waits, or goes."""
        is_smaller = len(parts) > 1 and self.random.random() < 0.5
        async with self._stopped(**(AT_ONCE if make == self._delete else {})):
            await make(parts[1:] if is_smaller else parts)
        if is_smaller:
            canary = f"canary-{next(self.names)}"
            await self._submit(appwrapper(canary, item(job(canary, cpu="1m"))))
            assert not await self._is_dispatched(name), parts
        else:
            await self.world.until(lambda: self._is_dispatched(name), f"{name} goes with {parts}")
        return 1

    # --- what is done ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _stopped(self, **settings: str) -> AsyncIterator[None]:
        """Without a dispatcher, so that one cycle afterwards sees all that was done meanwhile."""
        await self.world.stop_dispatcher(self.dispatcher)
        yield
        self.dispatcher = await self.world.start_dispatcher(**SETTINGS, **settings)

    async def _delete(self, names: list[str]) -> None:
        for name in names:
            await self.world.delete(name)

        async def gone() -> bool:
            owners = [each["metadata"].get("labels") or {} for each in await self.world.every("Pod")]
            return not set(names) & {each.get("batch.kubernetes.io/job-name") for each in owners}

        await self.world.until(gone, f"{names} have no pods")

    async def _add_nodes(self, parts: list[Json]) -> None:
        for has in parts:
            index = FIRST_NODE + len(self.added)
            self.added.append(index)
            await nodes.add(self.world.plane.client, shape_of(has), [index])
        await self.world.until(self._nodes_are_usable, "the control plane trusts the nodes")

    async def _nodes_are_usable(self) -> bool:
        """A new node has a taint until its controller has seen it; nodes that lose it one by one come one by one."""
        listed = await asyncio.to_thread(self.world.plane.client.get, nodes.NODES)
        usable = {each["metadata"]["name"] for each in listed["items"] if nodes.is_usable(each)}
        return usable >= {nodes.name_of(index) for index in self.added}

    async def _is_dispatched(self, name: str) -> bool:
        return await self._decided(name) in DISPATCHED
