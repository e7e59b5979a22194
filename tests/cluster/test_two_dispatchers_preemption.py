"""Two dispatchers and a preemption: the leader is paused in its middle, the second ends it, and then the first goes on.

A queue has quota for four small gangs. A large gang of higher priority takes the quota of two of them; the other two
could be its victims as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import count

import pytest

from testbed.proxy import Exchange, Fault, Gate
from testbed.proxy_postgres import Commit
from tests.cluster.dispatch_queues import Declare
from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.outcomes import rows
from tests.cluster.pair import Pair, committed, pair_of
from tests.cluster.test_crash_faults import creates
from tests.cluster.wires import Wires, changes_records, in_order_of, lives
from tests.cluster.world import World

BYSTANDERS, VICTIMS, LARGE = ("one", "two"), ("four", "three"), "large"
RAN = ("dispatched", "created", "pods-running")


@pytest.fixture
async def pair(world: World, declare: Declare) -> AsyncIterator[Pair]:
    """One that leads and one that stands by; four small gangs run, of which the victims began last."""
    async with pair_of(world) as pair:
        await world.delete("canary")
        await world.until_history("canary", "released")
        quota = {"cpu": {"nominalQuota": 8}}
        await declare("default", resources=quota, preemption={"withinQueue": "LowerPriority"})
        for name in (*BYSTANDERS, *VICTIMS):
            await world.create_until("Running", appwrapper(name, item(job(name, 2, cpu="1"))))
        yield pair


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a preemption at which the leader is paused, and whether the preemption is committed by then."""

    hold: Callable[[Wires, Gate], object]
    is_committed: bool


def before_commit(wires: Wires, gate: Gate) -> None:
    wires.postgres.rules.on(second_change(), Fault(before=gate))


def after_commit(wires: Wires, gate: Gate) -> None:
    wires.postgres.rules.on(second_change(), Fault(after=gate))


def between_removals(wires: Wires, gate: Gate) -> None:
    wires.api.rules.on(removes_job, Fault(before=gate), nth=2)


def second_change() -> Callable[[Commit], bool]:
    """True for the second change after now: a gang is first submitted, then others are preempted for it."""
    changes = count(1)
    return lambda commit: changes_records(commit) and next(changes) == 2


def removes_job(exchange: Exchange) -> bool:
    return exchange.method == "DELETE" and "/jobs/" in exchange.path


@pytest.mark.sweep
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(Point(before_commit, is_committed=False), id="before-its-commit"),
        pytest.param(Point(after_commit, is_committed=True), id="before-any-removal"),
        pytest.param(Point(between_removals, is_committed=True), id="between-two-removals"),
    ],
)
async def test_leader_paused_in_a_preemption_and_its_successor_preempt_once(pair: Pair, point: Point) -> None:
    """The first goes on when the victims run again: what it still has on the wire must not harm them."""
    world, gate = pair.world, Gate()
    with_large = beside(pair, LARGE)
    point.hold(pair.first, gate)
    await world.create(appwrapper(LARGE, item(job(LARGE, 2, cpu="2")), priority=10))
    await gate.reached.wait()
    await pair.pause()
    preempted = await in_order_of(world.database_url, "preempted")
    assert sorted(preempted) == (list(VICTIMS) if point.is_committed else [])

    await pair.takeover()
    await world.until_state(LARGE, "Running")
    for name in VICTIMS:
        await world.until_state(name, "Backoff")
    await world.delete(LARGE)
    for name in VICTIMS:
        await world.until_history(name, "pods-running", 2)
    before = committed(pair.first), len(pair.first.api.writes())
    gate.open()
    pair.resume()
    await pair.until_deposed()

    assert (committed(pair.first), len(pair.first.api.writes())) == before
    assert with_large == [{*BYSTANDERS}]
    assert await rows(world, PREEMPTIONS) == [{"name": name, "by_name": LARGE} for name in VICTIMS]
    assert await steps(world) == {
        **dict.fromkeys(BYSTANDERS, ("submitted", *RAN)),
        LARGE: ("submitted", "preempting", *RAN, "deleted", "released"),
        **dict.fromkeys(VICTIMS, ("submitted", *RAN, "preempted", "removed", *RAN)),
    }
    assert await world.names("Job") == {*BYSTANDERS, *VICTIMS}


async def steps(world: World) -> dict[str, tuple[str, ...]]:
    """The steps of each AppWrapper; not why it waited, nor anything of the canary."""
    known = await lives(world.database_url)
    return {
        name: tuple(each for each in life.steps if each != "blocked")
        for name, life in known.items()
        if name != "canary"
    }


def beside(pair: Pair, name: str) -> list[set[str]]:
    """The jobs that have pods whenever the job of a gang is created; to be filled from now on."""
    found: list[set[str]] = []

    async def look() -> None:
        pods = await pair.world.every("Pod")
        found.append({each["metadata"]["labels"]["job-name"] for each in pods})

    for wires in (pair.first, pair.second):
        wires.api.rules.on(creates(name, "jobs"), Fault(before=look))
    return found


PREEMPTIONS = "SELECT name, by_name FROM history.preemptions ORDER BY name"
