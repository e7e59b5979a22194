"""A tenant who may create AppWrappers and pods in one namespace tries everything; another tenant notices nothing.

Beside every hostile act canaries are applied in another namespace, one after the other until the act is over. A canary
asks for no resource, so that only the dispatcher itself can hold it up. Hubs with and without queues decide in
different cycles, so the draws are tried on both.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from statistics import median
from typing import Any, Final

import orjson
import pytest

from dispatcher import errors
from dispatcher.api.names import QUEUE_LABEL
from dispatcher.kube.client import MERGE_PATCH, METADATA, METADATA_LIST, ClusterClient
from testbed.plane import Plane
from testbed.processes import Process, Supervisor
from testbed.proxy import ApiProxy, Exchange
from tests.cluster.dispatch_queues import Declare
from tests.cluster.manifests import appwrapper, config_map, item
from tests.cluster.outcomes import epoch
from tests.cluster.world import World
from tests.hostile import POD, VICTIMS_QUEUE, Act, acts, after, against, crowded, known

Json = dict[str, Any]

ACTS: Final = 40
SHARES: Final = 8
"""Tests that try the draws, each every eighth one."""
KNOWN_SHARE: Final = 5
"""Known attacks that one test tries."""
ACTS_BESIDE_QUEUES: Final = 10
ALL_ACTS: Final = 500
BOUND_SECONDS: Final = 1.0
"""How late a canary may be dispatched, whatever the tenant does: each from the moment that the API server told the
dispatcher of it, and 99 in 100 by all that they wait longer than for a bare controller.

A busy API server tells two watches of one write at times that differ, once by three seconds while it aggregated its
OpenAPI. So a proxy on the dispatcher's own wire sees when the dispatcher could know.
"""
SECONDS_BETWEEN_TURNS: Final = 0.05
"""Between what the bare controller writes twice and the next such; else it would keep the API server busy itself."""
CANARY: Final = re.compile(rb'"name":"(canary-\d+)"')
BARE: Final = "bare"
"""The AppWrapper that the bare controller serves."""
DISPATCHED: Final = b'"event": "dispatched"'
SUBMITTED: Final = b'"event": "submitted"'
LONGEST_NAME: Final = 64
"""Bytes of the name of a canary with its key, and more."""
PATCHED: Final = re.compile(rb'"((?:asked|written)-canary-\d+-\d+)"')
AT_ONCE: Final = 16
"""Objects that a tenant creates, changes and deletes at the same time."""
PAGE: Final = 4
"""Objects whose metadata is listed at once. The API server decodes each, which takes it seconds for a megabyte beside
other tests, and ends a request after a minute."""
KINDS: Final = ("AppWrapper", "Job", "Pod", "ConfigMap")
"""What an act may leave behind, each before what it makes."""
ALWAYS_THERE: Final = "kube-root-ca.crt"
"""A ConfigMap that Kubernetes makes in each namespace, again and again."""
RIGHTS: Final = (
    {
        "apiGroups": ["workload.codeflare.dev"],
        "resources": ["appwrappers"],
        "verbs": ["create", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "patch", "delete"]},
)
LARGE_BODIES: Final = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
"""The tenant's own client sends a megabyte at once."""
REFUSALS: Final = (errors.Invalid, errors.Forbidden, errors.NotFound, errors.Conflict, errors.AlreadyExists)


@pytest.fixture
async def tenant(supervisor: Supervisor, plane: Plane, world: World) -> AsyncIterator[World]:
    """The namespace of the hostile tenant, and no more rights than the issue grants."""
    name = f"{world.namespace}-tenant"
    await plane.create_namespace(name)
    kubeconfig = await asyncio.to_thread(plane.service_account_kubeconfig, name, "tenant", RIGHTS)
    async with await ClusterClient.connect(str(kubeconfig), write_timeout=30) as rights:
        yield World(supervisor, plane, rights, name, world.database_url)
    async with await ClusterClient.connect(
        str(plane.kubeconfig), read_timeout=60, write_timeout=30
    ) as patient:
        house = World(supervisor, plane, patient, name, "")
        await clear(house)
        await house.demolish()


class Hub(StrEnum):
    """How the hub shares its capacity."""

    WITHOUT_QUEUES = "without-queues"
    WITH_QUEUES = "with-queues"


async def declare_queues(world: World, tenant: World, declare: Declare) -> None:
    """A tree with a queue for each of the two tenants, which serves no other namespace."""
    quota = {"cpu": {"nominalQuota": "8"}, "nvidia.com/gpu": {"nominalQuota": 1}}
    await declare("of-both")
    for name, namespace in ((VICTIMS_QUEUE, world.namespace), ("default", tenant.namespace)):
        selector = f"kubernetes.io/metadata.name={namespace}"
        await declare(name, parent="of-both", resources=quota, namespaceSelector=selector)
    labels = {"metadata": {"labels": {QUEUE_LABEL: VICTIMS_QUEUE}}}
    await world.client.patch(f"/api/v1/namespaces/{world.namespace}", labels, MERGE_PATCH)


async def clear(house: World) -> None:
    """Delete everything that the tenant has made, finalizers or not, and return when it is gone; page after page."""
    for kind in KINDS:
        while first := await some_of(house, kind):
            names = {each["name"] for each in first}

            async def gone(kind: str = kind, names: set[str] = names) -> bool:
                found = [each for each in await some_of(house, kind) if each["name"] in names]
                await asyncio.gather(*(remove(house, kind, each) for each in found))
                return not found

            await house.until(gone, f"{', '.join(sorted(names))} of the tenant are gone")


async def some_of(house: World, kind: str) -> list[Json]:
    """The metadata of some objects, if there are any; parsed whatever it is like, as the dispatcher must not."""
    page = {"limit": str(PAGE)}
    listed = await house.client.get(house.path(kind), page, accept=METADATA_LIST, loads=orjson.loads)
    found = [each["metadata"] for each in listed.get("items") or ()]
    return [each for each in found if each["name"] != ALWAYS_THERE]


async def remove(house: World, kind: str, metadata: Json) -> None:
    path = house.path(kind, metadata["name"])
    if metadata.get("finalizers"):
        patch = {"metadata": {"finalizers": None}}
        await is_let_pass(house.client.patch(path, patch, MERGE_PATCH, accept=METADATA))
    await is_let_pass(house.client.delete(path, metadata["uid"], grace_seconds=0))


async def carry_out(act: Act, tenant: World, house: World) -> bool:
    """Do what the tenant wants; True if the API server let any of it pass."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(body: Json) -> bool:
        async with turns:
            return await carry_out_one(act, body, tenant, house)

    return any(await asyncio.gather(*map(one, act.bodies)))


async def carry_out_one(act: Act, body: Json, tenant: World, house: World) -> bool:
    path = tenant.path(act.kind, body["metadata"]["name"])
    made: list[Json] = []

    async def make() -> Json:
        made.append(await tenant.client.create(tenant.path(act.kind), _placed(body, tenant), accept=METADATA))
        return made[0]

    if not await is_let_pass(make()):
        return False
    for each in act.then if made else ():  # an answer that is too large has no uid
        pod = _placed(after(body, each, made[0]["metadata"]["uid"]), tenant)
        await is_let_pass(tenant.client.create(tenant.path(POD), pod, accept=METADATA))
    for patch in act.patches:
        await is_let_pass(tenant.client.patch(path, patch, MERGE_PATCH, accept=METADATA))
    if act.is_deleted:
        with suppress(errors.NotFound):
            found = await house.client.get(path, accept=METADATA, loads=orjson.loads)
            await is_let_pass(tenant.client.delete(path, found["metadata"]["uid"]))
    return True


def _placed(body: Json, tenant: World) -> Json:
    return {**body, "metadata": {**body["metadata"], "namespace": tenant.namespace}}


async def is_let_pass(call: Awaitable[Json]) -> bool:
    """True if the API server did what the call wants; one that does not answer in time has too much to do."""
    try:
        await call
    except errors.TooLarge:
        return True  # it was done, and the answer shows too much of it
    except (*REFUSALS, errors.Unavailable):
        return False
    return True


class Bare:
    """A controller that decides nothing: it sees an AppWrapper that is asked for, and writes twice for it.

    It sees by a watch of AppWrappers, as the dispatcher does, and so does its user see the second write, as that of a
    dispatch: a busy API server tells of a write seconds after it was made. So it takes as long as the API server does,
    which the tenant keeps busy, and no longer. It serves again and again until the dispatch of the canary is seen: so
    it meets each moment in which the API server is busy. It serves one AppWrapper, which is suspended: the dispatcher
    has nothing to do for it.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[str, asyncio.Event] = {}
        self._dispatched: dict[str, asyncio.Event] = {}

    async def run(self) -> None:
        """Watch the AppWrappers beside the canaries until cancelled; a watch that ends is begun anew."""
        while True:
            with suppress(errors.ClusterError):
                await self._watch()
            await asyncio.sleep(0.1)

    async def _watch(self) -> None:
        """Without a resource version a watch begins with what there is."""
        query = {"watch": "true", "timeoutSeconds": "7200"}
        path = self._world.path(
            "AppWrapper"
        )  # without those of the tenant, which may be too large for a line
        async for line in self._world.client.watch(path, query, idle_timeout=7200):
            for asked_or_written in PATCHED.findall(line):
                self._event(self._seen, asked_or_written.decode()).set()
            if not (found := CANARY.search(line)):
                continue
            if _is_dispatched(orjson.loads(line)["object"]):
                self._event(self._dispatched, found[1].decode()).set()

    async def until_dispatched(self, name: str) -> None:
        """Return once the status of a canary says so; what follows is said at most once a second."""
        async with asyncio.timeout(60):
            await self._event(self._dispatched, name).wait()

    async def longest_service(self, name: str, until: asyncio.Future[float]) -> float:
        """The seconds that it took at most, begun again and again until then; also if it is not done yet."""
        longest, turn = 0.0, itertools.count()
        while not until.done():
            began = time.monotonic()
            served = asyncio.ensure_future(self._serve(f"{name}-{next(turn)}"))
            ends: set[asyncio.Future[Any]] = {served, until}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            longest = max(longest, time.monotonic() - began)
            await served
            await asyncio.wait([until], timeout=SECONDS_BETWEEN_TURNS)
        return longest

    async def _serve(self, asked: str) -> None:
        """Ask for it, see that, write as often as a dispatch does, and return once its user sees that."""
        async with asyncio.timeout(60):
            await self._patch("asked", asked)
            await self._event(self._seen, f"asked-{asked}").wait()
            await self._world.create(config_map(f"plain-{asked}"))
            await self._patch("written", asked)
            await self._event(self._seen, f"written-{asked}").wait()

    async def _patch(self, verb: str, asked: str) -> None:
        patch = {"metadata": {"annotations": {f"example.com/{verb}": f"{verb}-{asked}"}}}
        await self._world.client.patch(self._world.path("AppWrapper", BARE), patch, MERGE_PATCH)

    def _event(self, events: dict[str, asyncio.Event], name: str) -> asyncio.Event:
        return events.setdefault(name, asyncio.Event())


def _is_dispatched(canary: Json) -> bool:
    conditions = (canary.get("status") or {}).get("conditions", ())
    return any(each["type"] == "Dispatched" and each["status"] == "True" for each in conditions)


class Told:
    """When the API server told the dispatcher of each canary, as a proxy on the dispatcher's wire reads it."""

    def __init__(self) -> None:
        self.at: dict[str, datetime] = {}
        self._ends: dict[int, bytes] = {}

    def read(self, exchange: Exchange, part: bytes) -> None:
        """Note the canaries in a part of a list or a watch of AppWrappers; a name may begin in the part before."""
        if exchange.method != "GET" or not exchange.path.endswith("/appwrappers"):
            return
        text = self._ends.get(id(exchange), b"") + part
        self._ends[id(exchange)] = text[-LONGEST_NAME:]
        for name in CANARY.findall(text):
            self.at.setdefault(name.decode(), datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class Wait:
    """What a canary waited for its dispatch: all that a user sees, in seconds, of which the API server has its part."""

    canary: str
    seen: float
    """From the request to create it until a watch tells that it is dispatched."""
    served: float
    """The longest that a bare controller took meanwhile, beside the dispatcher."""

    @property
    def longer(self) -> float:
        """By how much the wait was longer than for a bare controller."""
        return self.seen - self.served


async def wait_of_canary(world: World, bare: Bare, number: int) -> Wait:
    name = f"canary-{number}"

    async def be_dispatched() -> float:
        began = time.monotonic()
        await world.create(appwrapper(name, item(config_map(name), custompodresources=[])))
        await bare.until_dispatched(name)
        return time.monotonic() - began

    dispatched = asyncio.ensure_future(be_dispatched())
    served = await bare.longest_service(name, dispatched)
    await world.delete(name)
    return Wait(name, await dispatched, served)


async def waits_beside(
    carried: asyncio.Task[bool], world: World, bare: Bare, numbers: Iterator[int]
) -> list[Wait]:
    """The waits of canaries, of which the first is applied with the act and the last before it is over."""
    waits = [await wait_of_canary(world, bare, next(numbers))]
    while not carried.done():
        waits.append(await wait_of_canary(world, bare, next(numbers)))
    return waits


@dataclass(frozen=True, slots=True)
class Trial:
    """What an act came to: whether any of it passed, and the waits of the canaries beside it."""

    act: Act
    passed: bool
    waits: list[Wait]


def dispatched_at(process: Process) -> dict[str, datetime]:
    """When the dispatcher had committed the dispatch of each canary, by its own log."""
    return _said_at(process, DISPATCHED)


def taken_in_at(process: Process) -> dict[str, datetime]:
    """When the dispatcher had committed that it took in each canary, by its own log."""
    return _said_at(process, SUBMITTED)


def _said_at(process: Process, event: bytes) -> dict[str, datetime]:
    said = [orjson.loads(line) for line in process.log.read_bytes().splitlines() if event in line]
    return {each["appwrapper"].rpartition("/")[2]: datetime.fromisoformat(each["timestamp"]) for each in said}


@dataclass(frozen=True, slots=True)
class Tried:
    """All trials, and the dispatcher that has led through them, with what it was told."""

    trials: list[Trial]
    process: Process
    told: Told


async def try_all(world: World, tenant: World, tried: list[Act]) -> Tried:
    """Each act, tried beside canaries."""
    told = Told()
    async with ApiProxy.of(world.plane, told.read) as wire:
        process = await world.start_dispatcher(kubeconfig=str(wire.kubeconfig(world.plane)))
        trials = await trials_beside(process, world, tenant, tried)
        await world.stop_dispatcher(process)
    return Tried(trials, process, told)


async def trials_beside(process: Process, world: World, tenant: World, tried: list[Act]) -> list[Trial]:
    """Try one act after the other; raises AssertionError if the dispatcher stops leading meanwhile."""
    victim = await world.create(appwrapper("victim", item(config_map("victim"), custompodresources=[])))
    await world.until_shown("victim", "Running")
    led = await epoch(world)
    await world.create(appwrapper(BARE, item(config_map(BARE), custompodresources=[]), suspend=True))
    bare = Bare(world)
    watching = asyncio.create_task(bare.run())
    trials, numbers = [], itertools.count()
    for act in tried:
        aimed = against(act, victim["metadata"]["uid"])
        async with asyncio.TaskGroup() as both:
            carried = both.create_task(carry_out(aimed, tenant, world))
            waited = both.create_task(waits_beside(carried, world, bare, numbers))
        trials.append(Trial(act, carried.result(), waited.result()))
        assert (process.is_running(), await epoch(world)) == (True, led), (
            f"leadership ended beside {shown(act)}"
        )
    await wait_of_canary(world, bare, next(numbers))
    watching.cancel()
    assert (process.is_running(), await epoch(world)) == (True, led)
    return trials


def shown(act: Act) -> str:
    """An act in one line."""
    return f"{len(act.bodies)} {act.kind}, {len(act.patches)} patches: {str(act.bodies[0])[:300]}"


async def leads_on_beside(world: World, tenant: World, tried: list[Act]) -> list[Trial]:
    """Try the acts; return what each came to, once the dispatcher has led through all without a defect."""
    tried_all = await try_all(world, tenant, tried)
    said = tried_all.process.log.read_text()
    assert [event for event in ('"reconcile_failed"', '"internal_error"') if event in said] == []
    return tried_all.trials


@LARGE_BODIES
@pytest.mark.sweep
@pytest.mark.alone
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, len(known()), KNOWN_SHARE))
async def test_dispatcher_leads_on_through_the_attacks_that_have_worked_once(
    world: World, tenant: World, first: int
) -> None:
    await leads_on_beside(world, tenant, acts(ACTS)[:-ACTS][first : first + KNOWN_SHARE])


@LARGE_BODIES
@pytest.mark.sweep
@pytest.mark.alone
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(SHARES))
async def test_dispatcher_leads_on_whatever_a_tenant_tries(world: World, tenant: World, first: int) -> None:
    trials = await leads_on_beside(world, tenant, acts(ACTS)[-ACTS:][first::SHARES])
    assert sum(trial.passed for trial in trials) > ACTS // SHARES // 4


@LARGE_BODIES
@pytest.mark.sweep
@pytest.mark.alone
@pytest.mark.timeout(300)
async def test_dispatcher_of_a_hub_with_queues_leads_on_whatever_a_tenant_tries(
    world: World, tenant: World, declare: Declare
) -> None:
    await declare_queues(world, tenant, declare)
    trials = await leads_on_beside(world, tenant, crowded(ACTS_BESIDE_QUEUES))
    assert sum(trial.passed for trial in trials) > ACTS_BESIDE_QUEUES // 2
    assert not {"preempted", "evicted", "unhealthy"} & set(await world.causes("victim"))


@LARGE_BODIES
@pytest.mark.exhaustive
@pytest.mark.alone
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("hub", Hub)
async def test_no_canary_waits_a_second_longer_for_a_hostile_tenant(
    world: World, tenant: World, declare: Declare, hub: Hub
) -> None:
    if hub is Hub.WITH_QUEUES:
        await declare_queues(world, tenant, declare)
    # The tenant keeps the API server busy with all processors that it can have: in life those are not the dispatcher's.
    world.plane.give_way()
    tried = await try_all(world, tenant, acts(ALL_ACTS))
    trials, told = tried.trials, tried.told.at
    taken_in, decided = taken_in_at(tried.process), dispatched_at(tried.process)
    waits = [wait for trial in trials for wait in trial.waits]
    own = {each.canary: (decided[each.canary] - told[each.canary]).total_seconds() for each in waits}
    passed = sum(trial.passed for trial in trials[-ALL_ACTS:])
    say(f"canaries beside {len(trials)} acts ({passed} of the drawn passed): {len(waits)}")
    show("from taken in to dispatched", [(decided[each] - taken_in[each]).total_seconds() for each in own])
    show("from told to dispatched, the dispatcher's own part", list(own.values()))
    show("seen by their user", [wait.seen for wait in waits])
    show("served by a bare controller, the longest meanwhile", [wait.served for wait in waits])
    longer = show("longer than for a bare controller", [wait.longer for wait in waits])
    for trial in sorted(trials, key=lambda each: -max(own[wait.canary] for wait in each.waits))[:5]:
        worst = max(trial.waits, key=lambda each: own[each.canary])
        say(f"{own[worst.canary]:.3f} s own, {worst.longer:.3f} s longer, beside {shown(trial.act)}")
    assert len(trials) == len(known()) + ALL_ACTS
    assert passed > ALL_ACTS // 4
    assert max(own.values()) <= BOUND_SECONDS
    assert longer[len(longer) * 99 // 100] <= BOUND_SECONDS


def show(what: str, seconds: list[float]) -> list[float]:
    """Print the median, the 99th percentile and the longest; returns all, the shortest first."""
    ordered = sorted(seconds)
    p99 = ordered[len(ordered) * 99 // 100]
    say(f"{what}: median {median(ordered):.3f} s, p99 {p99:.3f} s, longest {ordered[-1]:.3f} s")
    return ordered


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
