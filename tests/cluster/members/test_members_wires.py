"""Members whose wires fail while the dispatcher lives: a gang is where it was sent, whole, once, or goes elsewhere.

What can be known decides. A gang of which nothing was sent may go to another member; one of which anything may be
there waits until its member can be asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import psycopg
import pytest

from dispatcher.api.names import CLUSTER_SELECTOR
from dispatcher.core.record import Phase
from testbed.processes import Supervisor
from testbed.proxy import CUT_AFTER_APPLIED, DROPPED, ApiProxy, Exchange, Fault, Gate, Rule
from tests.cluster.manifests import bent
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.test_members_loss import until_healthy, until_told
from tests.cluster.members.wires import (
    FleetWires,
    Json,
    Matches,
    assert_whole,
    creates_anchor,
    cut_off,
    deletes_anchor,
    found_of,
    holds,
    lets_go,
    makes_namespace,
    wires_of,
)
from tests.cluster.test_crash_faults import creates, deletes
from tests.cluster.wires import Life, changes_records, gang, lives
from tests.cluster.world import World

RAN = Life(Phase.RUNNING, ("submitted", "dispatched", "created", "pods-running"))
GONE = Life(Phase.DELETED, (*RAN.steps, "deleted", "released"))
MOVED = Life(Phase.RUNNING, ("submitted", "dispatched", "withdrawn", "dispatched", "created", "pods-running"))
WAITED = Life(Phase.RUNNING, ("submitted", "dispatched", "unhealthy", "recovered", "created", "pods-running"))


@pytest.fixture
async def wires(fleet: Fleet) -> AsyncIterator[FleetWires]:
    """The wires of a dispatcher that runs; east suits small gangs best, and west has room, too."""
    async with wires_of(fleet) as wires:
        await start(wires)
        yield wires


async def start(wires: FleetWires) -> None:
    for name in wires.members:
        await wires.declare(name, labels={"name": name})
    await wires.start_dispatcher()
    for name in wires.members:
        await until_told(wires.fleet, name, None)


def pinned(name: str, cluster: str) -> Json:
    return bent(gang(name), {CLUSTER_SELECTOR: f"name={cluster}"})


# --- a member that falls silent ----------------------------------------------------------------------

Act = Callable[[FleetWires], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Silence:
    """How east falls silent, and how that ends."""

    begin: Act
    end: Act


async def kill(wires: FleetWires) -> None:
    await wires.fleet.members["east"].plane.kill_apiserver()


async def start_again(wires: FleetWires) -> None:
    await wires.fleet.members["east"].plane.start_apiserver()


async def cut(wires: FleetWires) -> None:
    cut_off(wires.members["east"])


async def mend(wires: FleetWires) -> None:
    wires.members["east"].rules.clear()


async def freeze(wires: FleetWires) -> None:
    wires.members["east"].freeze()


async def thaw(wires: FleetWires) -> None:
    wires.members["east"].thaw()


SILENCES = [
    pytest.param(Silence(kill, start_again), id="killed"),
    pytest.param(Silence(cut, mend), id="cut"),
    pytest.param(Silence(freeze, thaw), id="frozen"),
]


@pytest.mark.parametrize("silence", SILENCES)
async def test_gang_goes_to_another_member_if_its_own_falls_silent_before_anything_was_sent(
    wires: FleetWires, silence: Silence
) -> None:
    world = wires.world

    async def begin() -> None:
        await silence.begin(wires)

    # It is submitted, then dispatched; the dispatcher learns of that when east is silent already.
    wires.postgres.rules.on(changes_records, Fault(after=begin), nth=2)
    await world.create(gang("moved"))
    try:
        await world.until_history("moved", "withdrawn")
        status = await world.until_state("moved", "Running")
        assert status["cluster"] == "west"
        await until_told(wires.fleet, "east", "ClusterUnreachable")
    finally:
        await silence.end(wires)

    await until_told(wires.fleet, "east", None)
    assert await assert_whole(wires.fleet, "moved", attempt=2) == "west"
    assert await lives(world.database_url) == {"moved": MOVED}
    (why,) = await messages(world.database_url, "moved", "withdrawn")
    assert why.startswith("cluster east: ")
    assert set(wires.created().values()) == {1}


@pytest.mark.parametrize("silence", SILENCES)
async def test_gang_waits_for_its_member_if_that_falls_silent_between_two_creations(
    wires: FleetWires, silence: Silence
) -> None:
    world = wires.world

    async def begin() -> None:
        await silence.begin(wires)

    wires.members["east"].rules.on(creates("halved", "jobs"), Fault(before=begin, forward=False))
    await world.create(gang("halved"))
    try:
        shown = await until_healthy(wires.fleet, "halved", healthy=False)
        assert (shown["cluster"], shown["unhealthy"]["reason"]) == ("east", "ClusterUnreachable")
        await until_told(wires.fleet, "east", "ClusterUnreachable")
        await world.create(gang("meanwhile"))
        assert (await world.until_state("meanwhile", "Running"))["cluster"] == "west"
        assert await wires.fleet.members["west"].names("Job") == {"meanwhile"}
    finally:
        await silence.end(wires)

    await world.until_state("halved", "Running")
    assert await assert_whole(wires.fleet, "halved") == "east"
    assert await lives(world.database_url) == {"halved": WAITED, "meanwhile": RAN}
    assert set(wires.created().values()) == {1}


async def test_member_that_is_frozen_holds_up_no_other_and_loses_nothing(wires: FleetWires) -> None:
    """It accepts connections and never answers; a creation is on its way to it when that begins."""
    world, east = wires.world, wires.members["east"]
    caught = east.rules.on(creates("caught", "jobs"), Fault(before=freezing(east)))
    await world.create(pinned("caught", "east"))
    await caught.struck.wait()

    meanwhile = [f"meanwhile-{number}" for number in range(10)]
    for name in meanwhile:
        await world.create(pinned(name, "west"))
        await world.until_state(name, "Running")
    await until_told(wires.fleet, "east", "ClusterUnreachable")
    assert (await lives(world.database_url))["caught"].phase is Phase.DISPATCHING
    east.thaw()

    await until_told(wires.fleet, "east", None)
    await world.until_state("caught", "Running")
    await world.create(pinned("afterwards", "east"))
    await world.until_state("afterwards", "Running")
    where = {"caught": "east", "afterwards": "east"} | dict.fromkeys(meanwhile, "west")
    assert {name: await assert_whole(wires.fleet, name) for name in where} == where
    assert (await lives(world.database_url))["caught"] == WAITED
    assert set(wires.created().values()) == {1}


async def test_watches_that_are_cut_again_and_again_are_no_loss_of_the_member(fleet: Fleet) -> None:
    async with wires_of(fleet, unreachable_seconds="60", read_timeout_seconds="10") as wires:
        await start(wires)
        world, east = wires.world, wires.members["east"]
        names = ["steady", *(f"flap-{number}" for number in range(10))]
        await world.create(pinned("steady", "east"))
        await world.until_state("steady", "Running")

        for name in names[1:]:
            east.cut_watches()
            # That it runs is seen by a watch that was begun anew.
            await world.create(pinned(name, "east"))
            await world.until_state(name, "Running")

        assert await lives(world.database_url) == dict.fromkeys(names, RAN)
        assert {name: await assert_whole(fleet, name) for name in names} == dict.fromkeys(names, "east")


# --- answers that are lost ---------------------------------------------------------------------------


def lost() -> dict[str, Fault]:
    """The ways to lose the answer to a call; the last until whoever waits for it gives up."""
    return {
        "dropped": DROPPED,
        "cut-after-applied": CUT_AFTER_APPLIED,
        "frozen": Fault(before=Gate()),
    }


Step = tuple[ApiProxy, Matches]
"""One call of an attempt, and the proxy it passes."""


def steps_of_a_creation(wires: FleetWires, name: str) -> dict[str, Step]:
    east = wires.members["east"]
    return {
        "finalizer": (wires.api, holds(name)),
        "anchor": (east, creates_anchor(name)),
        "first-object": (east, creates(name, "configmaps")),
        "second-object": (east, creates(name, "jobs")),
    }


def steps_of_a_deletion(wires: FleetWires, name: str, uid: str) -> dict[str, Step]:
    east = wires.members["east"]
    return {
        "second-object": (east, deletes(name, "jobs")),
        "first-object": (east, deletes(name, "configmaps")),
        "anchor": (east, deletes_anchor(uid)),
        "finalizer": (wires.api, lets_go(name)),
    }


async def test_creation_whose_answer_is_lost_at_any_step_is_done_once(wires: FleetWires) -> None:
    world, rules = wires.world, dict[str, Rule[Exchange]]()
    for kind, fault in lost().items():
        for step in ("finalizer", "anchor", "first-object", "second-object"):
            name = f"{step}-{kind}"
            proxy, matches = steps_of_a_creation(wires, name)[step]
            rules[name] = proxy.rules.on(matches, fault)
            await world.create(pinned(name, "east"))
    for name in rules:
        await world.until_state(name, "Running")

    assert [name for name, rule in rules.items() if not rule.struck.is_set()] == []
    assert await lives(world.database_url) == dict.fromkeys(rules, RAN)
    assert {name: await assert_whole(wires.fleet, name) for name in rules} == dict.fromkeys(rules, "east")
    assert set(wires.created().values()) == {1}


async def test_deletion_whose_answer_is_lost_at_any_step_leaves_nothing(wires: FleetWires) -> None:
    world, uids, rules = wires.world, dict[str, str](), dict[str, Rule[Exchange]]()
    for kind, fault in lost().items():
        for step in ("second-object", "first-object", "anchor", "finalizer"):
            name = f"{step}-{kind}"
            uids[name] = (await world.create(pinned(name, "east")))["metadata"]["uid"]
            proxy, matches = steps_of_a_deletion(wires, name, uids[name])[step]
            rules[name] = proxy.rules.on(matches, fault)
    for name in rules:
        await world.until_state(name, "Running")

    for name in rules:
        await world.delete(name)
    for name in rules:
        await world.until_gone("AppWrapper", name)

    assert [name for name, rule in rules.items() if not rule.struck.is_set()] == []
    assert await lives(world.database_url) == dict.fromkeys(rules, GONE)
    assert {name: await found_of(wires.fleet, uid) for name, uid in uids.items()} == {
        name: [] for name in uids
    }


@pytest.mark.parametrize("kind", lost())
async def test_namespace_is_made_once_though_the_answer_is_lost(
    supervisor: Supervisor, elsewhere: World, wires: FleetWires, kind: str
) -> None:
    await wires.fleet.change("east", namespacePolicy="Create")
    namespace, url = elsewhere.namespace, elsewhere.database_url
    rule = wires.members["east"].rules.on(makes_namespace(namespace), lost()[kind])

    await elsewhere.create(gang("newcomer"))
    await elsewhere.until_state("newcomer", "Running")

    assert rule.struck.is_set()
    there = {
        name: World(supervisor, member.plane, member.client, namespace, url)
        for name, member in wires.fleet.members.items()
    }
    assert await assert_whole(Fleet(elsewhere, there), "newcomer") == "east"
    assert (await lives(url))["newcomer"].steps.count("dispatched") == 1
    assert wires.created()[f"/api/v1/namespaces/{namespace}"] == 1
    assert set(wires.created().values()) == {1}


def freezing(proxy: ApiProxy) -> Callable[[], Awaitable[None]]:
    async def act() -> None:
        proxy.freeze()

    return act


async def messages(database_url: str, name: str, cause: str) -> list[str]:
    """What history says to that cause, in order."""
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        found = await connection.execute(
            "SELECT message FROM event WHERE name = %s AND cause = %s ORDER BY id", [name, cause]
        )
        return [message for (message,) in await found.fetchall()]
