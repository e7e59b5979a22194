"""One dispatcher with its members: started on an empty database, measured, and removed with everything it created."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Final

import psycopg

from benchmarks import figures
from benchmarks.arena import spread
from benchmarks.failure import BenchmarkFailed
from benchmarks.gangs import APPWRAPPERS, Gang, make_gangs
from benchmarks.members_clusters import LABEL, MEMBERS, Clusters, Say, Written, fall_silent
from benchmarks.processor import Usage, Used
from benchmarks.subject import Watcher, running_dispatcher, wait_until_ready
from dispatcher.api.names import CLUSTER_SELECTOR, HUB_CLUSTER
from dispatcher.store import migrate
from testbed.proxy import ApiProxy

WARM_UP: Final = 8
"""Gangs for each cluster before the measurement."""
PAUSE_SECONDS: Final = 0.2
SETTLE_SECONDS: Final = 6.0
"""More than the time between two status reports of a member."""
STALLED_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.1
DECIDED: Final = "SELECT count(*) FROM appwrapper WHERE phase <> 'Queued' OR pending_reason IS NOT NULL"


class Silence(StrEnum):
    """When the last of the declared members stops answering."""

    NEVER = "never"
    AT_THE_LOAD = "at the load"
    BEFORE_ITS_OWN = "before its own gangs are submitted"
    FROM_THE_START = "from the dispatcher's start"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A measurement with `members` declared members and a load for `targets` in turns.

    The last declared member gets `of_its_own` gangs before the load. `singles` are submitted one at a time after it.
    Before it, nothing is submitted for `rest` seconds.
    """

    name: str
    members: int
    targets: tuple[str, ...]
    silence: Silence = Silence.NEVER
    of_its_own: int = 0
    singles: int = 0
    rest: float = 0.0

    @property
    def declared(self) -> tuple[str, ...]:
        """The members by name."""
        return MEMBERS[: self.members]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one trial; times in seconds, `latencies` in milliseconds.

    `first` is from the dispatcher's start until the first gang was seen Dispatched, `pause` the longest time under load
    without a dispatch. `written` are the writes of the load by cluster, `at_rest` the writes of the time of rest.
    """

    scenario: str
    count: int
    first: float
    seconds: float
    per_second: float
    wait_p50: float
    wait_p99: float
    pause: float
    written: dict[str, Written]
    used: Used
    latencies: tuple[float, ...] = ()
    at_rest: dict[str, Written] = field(default_factory=dict)


class Trial:
    """Runs one scenario on clean clusters."""

    def __init__(
        self, clusters: Clusters, scenario: Scenario, database_url: str, connections: int, say: Say
    ) -> None:
        self._clusters = clusters
        self._scenario = scenario
        self._database_url = database_url
        self._connections = connections
        self._say = say
        self._watcher = Watcher(clusters.hub.client)
        self._submitted: dict[str, float] = {}
        self._bound: dict[str, set[str]] = {}

    async def run(self, count: int) -> Outcome:
        """Runs the whole trial with a load of `count` gangs; wipes the clusters at the end."""
        await asyncio.to_thread(migrate.migrate, self._database_url)
        try:
            async with AsyncExitStack() as stack:
                proxy = await self._declare(stack)
                if self._scenario.silence is Silence.FROM_THE_START and proxy:
                    fall_silent(proxy)
                async with self._dispatcher() as started:
                    outcome = await self._measure(count, proxy, started)
        finally:
            await self._clusters.wipe(self._connections)
        await self._clusters.rest(self._say)
        return outcome

    async def _declare(self, stack: AsyncExitStack) -> ApiProxy | None:
        """Declares the members; the last has a proxy before it if it may fall silent."""
        scenario, proxy = self._scenario, None
        for name in scenario.declared:
            if scenario.of_its_own and name == scenario.declared[-1]:
                proxy = await stack.enter_async_context(self._clusters.behind_proxy(name))
            await self._clusters.declare(name, proxy.url if proxy else "")
        return proxy

    @asynccontextmanager
    async def _dispatcher(self) -> AsyncIterator[float]:
        """A dispatcher that leads, and the time of its start."""
        clusters, started = self._clusters, time.monotonic()
        kubeconfig = clusters.kubeconfigs[HUB_CLUSTER]
        with running_dispatcher(clusters.supervisor, kubeconfig, self._database_url, "") as process:
            await wait_until_ready(process)
            version = (await clusters.hub.client.get(APPWRAPPERS))["metadata"]["resourceVersion"]
            watching = asyncio.create_task(self._watcher.run(version))
            try:
                yield started
                process.check()
            finally:
                watching.cancel()
        process.log.unlink()  # otherwise the next dispatcher appends to it, and is mistaken for this one

    async def _measure(self, count: int, proxy: ApiProxy | None, started: float) -> Outcome:
        scenario = self._scenario
        await self._warm_up()
        first = min(self._watcher.dispatched.values()) - started
        at_rest = await self._rest(scenario.rest) if scenario.rest else {}
        if scenario.silence is Silence.BEFORE_ITS_OWN and proxy:
            fall_silent(proxy)
        await self._submit_its_own()
        if scenario.silence is Silence.AT_THE_LOAD and proxy:
            fall_silent(proxy)
        load = spread_over(make_gangs("gang", count), scenario.targets)
        outcome = replace(await self._load(load), first=first, at_rest=at_rest)
        self._say(f"{scenario.name}: {outcome.per_second:.1f} gangs/s")
        latencies = await self._singles()
        await self._verify()
        return replace(outcome, latencies=latencies)

    async def _warm_up(self) -> None:
        names = self._scenario.declared or (HUB_CLUSTER,)
        answering = names[:-1] if self._scenario.silence is Silence.FROM_THE_START else names
        for name in answering:
            await self._submit(bound_for(name, make_gangs(f"warm-up-{name}", WARM_UP)))
        await self._watcher.wait_for(len(self._submitted))

    async def _submit_its_own(self) -> None:
        """Returns when each has a decision, and is created if its member answers."""
        scenario = self._scenario
        if not scenario.of_its_own:
            return
        own = bound_for(scenario.declared[-1], make_gangs("own", scenario.of_its_own))
        await self._submit(own)
        await self._until_decided(len(self._submitted))
        if scenario.silence in {Silence.NEVER, Silence.AT_THE_LOAD}:
            await self._watcher.wait_for(len(self._submitted))

    async def _load(self, load: Sequence[Gang]) -> Outcome:
        before, usage = await self._clusters.written(), Usage.now(self._clusters.supervisor)
        await self._submit(load)
        seen = [await self._watcher.wait_for_name(gang.name) for gang in load]
        used = Usage.now(self._clusters.supervisor).since(usage)
        after = await self._clusters.written()
        sent = [self._submitted[gang.name] for gang in load]
        waits = [at - start for at, start in zip(seen, sent, strict=True)]
        seconds = max(seen) - min(sent)
        return Outcome(
            scenario=self._scenario.name,
            count=len(load),
            first=0.0,
            seconds=seconds,
            per_second=len(load) / seconds,
            wait_p50=figures.percentile(waits, 50),
            wait_p99=figures.percentile(waits, 99),
            pause=longest_pause([min(sent), *seen]),
            written=_grown(before, after),
            used=used,
        )

    async def _rest(self, seconds: float) -> dict[str, Written]:
        """The writes of a time without submissions, once the missing pods of the warm-up are noted."""
        await self._watcher.wait_until_pods_are_missed()
        deadline = time.monotonic() + STALLED_SECONDS
        before = await self._clusters.written()
        while True:
            await asyncio.sleep(SETTLE_SECONDS)
            after = await self._clusters.written()
            if not sum(each.writes + each.events for each in _grown(before, after).values()):
                break
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"the dispatcher still writes {STALLED_SECONDS:g} s after the warm-up")
            before = after
        await asyncio.sleep(seconds)
        return _grown(after, await self._clusters.written())

    async def _singles(self) -> tuple[float, ...]:
        """One AppWrapper at a time: milliseconds from its request to create until it was seen Dispatched."""
        found = []
        for gang in spread_over(make_gangs("single", self._scenario.singles), self._scenario.targets):
            await asyncio.sleep(PAUSE_SECONDS)
            await self._submit([gang])
            seen = await self._watcher.wait_for_name(gang.name)
            found.append((seen - self._submitted[gang.name]) * 1000)
        return tuple(found)

    async def _submit(self, gangs: Sequence[Gang]) -> None:
        await spread(gangs, self._connections, self._create)

    async def _create(self, gang: Gang) -> None:
        self._submitted[gang.name] = time.monotonic()
        self._bound.setdefault(target_of(gang), set()).add(gang.name)
        await self._clusters.hub.client.create(APPWRAPPERS, gang.appwrapper)

    async def _until_decided(self, count: int) -> None:
        deadline = time.monotonic() + STALLED_SECONDS
        async with await psycopg.AsyncConnection.connect(self._database_url, autocommit=True) as connection:
            while True:
                row = await (await connection.execute(DECIDED)).fetchone()
                if row is not None and row[0] == count:
                    return
                if time.monotonic() > deadline:
                    raise BenchmarkFailed(f"{row} of {count} AppWrappers were decided about")
                await asyncio.sleep(POLL_SECONDS)

    async def _verify(self) -> None:
        """Fails unless each gang is once in its target; a silent cluster is not asked."""
        silent = {self._scenario.declared[-1]} if self._scenario.silence is not Silence.NEVER else set()
        made = await self._clusters.gangs_made()
        wrong = {
            name: sorted(there ^ self._bound.get(name, set()))[:5]
            for name, there in made.items()
            if name not in silent and there != self._bound.get(name, set())
        }
        if wrong:
            raise BenchmarkFailed(f"{self._scenario.name}: too many or too few RayClusters, such as {wrong}")


def longest_pause(moments: Sequence[float]) -> float:
    """The longest time between two successive moments, given in any order."""
    ordered = sorted(moments)
    return max(later - earlier for earlier, later in pairwise(ordered))


def spread_over(gangs: Sequence[Gang], targets: Sequence[str]) -> list[Gang]:
    """The gangs, distributed over the targets in turns."""
    bound = [bound_for(name, gangs[start :: len(targets)]) for start, name in enumerate(targets)]
    return [bound[index % len(targets)][index // len(targets)] for index in range(len(gangs))]


def bound_for(cluster: str, gangs: Sequence[Gang]) -> list[Gang]:
    """The gangs, each with a selector for that member; none for the hub."""
    return [each if cluster == HUB_CLUSTER else _bound(each, cluster) for each in gangs]


def target_of(gang: Gang) -> str:
    """The target cluster of a gang."""
    selector = gang.appwrapper["metadata"]["annotations"].get(CLUSTER_SELECTOR)
    return selector.partition("=")[2] if selector else HUB_CLUSTER


def _bound(gang: Gang, cluster: str) -> Gang:
    metadata = gang.appwrapper["metadata"]
    annotations = {**metadata["annotations"], CLUSTER_SELECTOR: f"{LABEL}={cluster}"}
    appwrapper = {**gang.appwrapper, "metadata": {**metadata, "annotations": annotations}}
    return replace(gang, appwrapper=appwrapper)


def _grown(before: dict[str, Written], after: dict[str, Written]) -> dict[str, Written]:
    return {name: each.since(before[name]) for name, each in after.items()}
