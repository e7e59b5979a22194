"""Wires that fail while members live: every story still ends with one full set of objects, created once.

One gang for each fault, all at once: what one of them waits for holds up no other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dispatcher.core.model.records.record import Phase
from testbed.processes import Supervisor
from testbed.proxy import CUT_AFTER_APPLIED, DROPPED, ApiProxy, Exchange, Fault, Gate, Rule
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.wires import (
    PATIENT,
    FleetWires,
    Matches,
    adds_finalizer,
    assert_whole,
    creates_anchor,
    deletes_anchor,
    found_of,
    lives_but_for,
    makes_namespace,
    pinned,
    removes_finalizer,
    wires_of,
)
from tests.cluster.test_crash_faults import creates, deletes
from tests.cluster.wires import Life, gang
from tests.cluster.world import World

RAN = Life(Phase.RUNNING, ("submitted", "dispatched", "created", "pods-running"))
GONE = Life(Phase.DELETED, (*RAN.steps, "deleted", "released"))


@pytest.fixture
async def wires(fleet: Fleet) -> AsyncIterator[FleetWires]:
    """A dispatcher that runs; nothing that is done to its wires makes a member count as lost."""
    async with wires_of(fleet, **PATIENT) as wires:
        await wires.start()
        yield wires


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
        "finalizer": (wires.api, adds_finalizer(name)),
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
        "finalizer": (wires.api, removes_finalizer(name)),
    }


async def test_creation_with_an_answer_lost_at_any_step_is_done_once(wires: FleetWires) -> None:
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
    assert await lives_but_for(world.database_url, "blocked") == dict.fromkeys(rules, RAN)
    assert {name: await assert_whole(wires.fleet, name) for name in rules} == dict.fromkeys(rules, "east")
    assert set(wires.created().values()) == {1}


async def test_deletion_with_an_answer_lost_at_any_step_leaves_nothing(wires: FleetWires) -> None:
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
    assert await lives_but_for(world.database_url, "blocked") == dict.fromkeys(rules, GONE)
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

    await elsewhere.create_until("Running", gang("new-gang"))

    assert rule.struck.is_set()
    there = {
        name: World(supervisor, member.plane, member.client, namespace, url)
        for name, member in wires.fleet.members.items()
    }
    assert await assert_whole(Fleet(elsewhere, there), "new-gang") == "east"
    assert await lives_but_for(url, "blocked") == {"new-gang": RAN}
    assert wires.created()[f"/api/v1/namespaces/{namespace}"] == 1
    assert set(wires.created().values()) == {1}


async def test_watches_that_are_cut_again_and_again_are_no_loss_of_the_member(
    wires: FleetWires,
) -> None:
    world, east = wires.world, wires.members["east"]
    names = ["steady", *(f"flap-{number}" for number in range(10))]
    await world.create_until("Running", pinned("steady", "east"))

    for name in names[1:]:
        east.cut_watches()
        # That it runs is seen by a watch that was begun anew.
        await world.create_until("Running", pinned(name, "east"))

    assert await lives_but_for(world.database_url, "blocked") == dict.fromkeys(names, RAN)
    where = {name: await assert_whole(wires.fleet, name) for name in names}
    assert where == dict.fromkeys(names, "east")
