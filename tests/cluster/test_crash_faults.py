"""Wires that fail while the dispatcher lives: every story still ends with one full set of objects, running.

One dispatcher and one gang for each fault, all at once: what one of them waits for holds up no other.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from dispatcher.core.model.records.record import Phase
from testbed.proxy import (
    CUT_AFTER_APPLIED,
    DROPPED,
    Exchange,
    Fault,
    Gate,
    Reply,
    pause,
    refused,
)
from tests.cluster.wires import QUICK, Life, Wires, assert_whole, gang, lives, wires_of
from tests.cluster.world import World

WRITE_TIMEOUT = float(QUICK["write_timeout_seconds"])
RAN = Life(Phase.RUNNING, ("submitted", "dispatched", "created", "pods-running"))
RAN_AT_THE_SECOND_ATTEMPT = Life(
    Phase.RUNNING,
    ("submitted", "dispatched", "creation-postponed", "removed", "dispatched", "created", "pods-running"),
)


def faults() -> Mapping[str, Fault]:
    """Each by the name of the gang that meets it; late is past the time after which a write is given up."""
    late = pause(WRITE_TIMEOUT + 0.3)
    return {
        "delayed": Fault(before=pause(WRITE_TIMEOUT / 2)),
        "dropped": DROPPED,
        "frozen": Fault(before=Gate()),
        "arrives-late": Fault(before=late),
        "answered-late": Fault(after=late),
        "cut-after-applied": CUT_AFTER_APPLIED,
        "conflict": refused(409, "Conflict"),
        "taken": refused(409, "AlreadyExists"),
        "throttled": refused(429, "TooManyRequests"),
        "broken": refused(500, "InternalError"),
        "unavailable": refused(503, "ServiceUnavailable"),
    }


@pytest.fixture
async def wires(world: World) -> AsyncIterator[Wires]:
    """The wires of a dispatcher that runs."""
    async with wires_of(world) as wires:
        await wires.start_dispatcher()
        yield wires


def creates(name: str, kind: str) -> Callable[[Exchange], bool]:
    return lambda each: (
        each.is_write
        and each.method == "POST"
        and each.path.endswith(f"/{kind}")
        and each.document["metadata"].get("name") == name
    )


def deletes(name: str, kind: str) -> Callable[[Exchange], bool]:
    return lambda each: each.method == "DELETE" and each.path.endswith(f"/{kind}/{name}")


def writes_status(name: str) -> Callable[[Exchange], bool]:
    return lambda each: each.method == "PATCH" and each.path.endswith(f"/appwrappers/{name}/status")


async def test_creation_that_fails_on_the_way_is_done_once(wires: Wires) -> None:
    rules = [wires.api.rules.on(creates(name, "jobs"), fault) for name, fault in faults().items()]

    await all_run(wires.world)

    assert all(rule.struck.is_set() for rule in rules)
    assert await lives(wires.world.database_url) == dict.fromkeys(faults(), RAN)
    assert set(wires.created().values()) == {1}


async def test_status_that_fails_on_the_way_is_written_after_all(wires: Wires) -> None:
    rules = [wires.api.rules.on(writes_status(name), fault, times=2) for name, fault in faults().items()]

    await all_run(wires.world)

    assert all(rule.struck.is_set() for rule in rules)
    assert await lives(wires.world.database_url) == dict.fromkeys(faults(), RAN)
    assert set(wires.created().values()) == {1}


async def test_deletion_that_fails_on_the_way_leaves_nothing_of_the_first_attempt(wires: Wires) -> None:
    """A used-up quota rolls the first attempt back, and only the deletion of what it had made meets a fault."""
    quota = refused(403, "Forbidden", "exceeded quota: tight")
    for name in faults():
        wires.api.rules.on(creates(name, "jobs"), quota)
    rules = [wires.api.rules.on(deletes(name, "configmaps"), fault) for name, fault in faults().items()]

    await all_run(wires.world)

    assert all(rule.struck.is_set() for rule in rules)
    assert await lives(wires.world.database_url) == dict.fromkeys(faults(), RAN_AT_THE_SECOND_ATTEMPT)
    expected = {wires.world.path("ConfigMap", name): 2 for name in faults()}
    expected |= {wires.world.path("Job", name): 1 for name in faults()}
    assert wires.created() == expected


async def all_run(world: World) -> None:
    """Submit a gang for each fault; return when each runs, whole."""
    for name in faults():
        await world.create(gang(name))
    for name in faults():
        await world.until_state(name, "Running")
    await assert_whole(world, *faults())


GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}


@pytest.mark.parametrize(
    "expired",
    [
        pytest.param(refused(410, "Expired").reply, id="refused"),
        pytest.param(
            Reply(200, json.dumps({"type": "ERROR", "object": GONE}).encode() + b"\n"), id="while-watching"
        ),
    ],
)
async def test_expired_watches_miss_no_change(wires: Wires, expired: Reply) -> None:
    world = wires.world
    for name in ("deleted-meanwhile", "stays"):
        await world.create_until("Running", gang(name))
    blind = Gate()
    # AppWrappers of two groups, nodes, pods.
    rule = wires.api.rules.on(lambda each: each.is_watch, Fault(before=blind, reply=expired), times=4)

    wires.api.cut_watches()
    await blind.reached.wait()
    await world.delete("deleted-meanwhile")
    await world.until_gone("Job", "deleted-meanwhile")
    await world.create(gang("created-meanwhile"))
    blind.open()

    await world.until_state("created-meanwhile", "Running")

    async def released() -> bool:
        return (await lives(world.database_url))["deleted-meanwhile"].phase is Phase.DELETED

    await world.until(released, "what was deleted is released")
    assert rule.struck.is_set()
    await assert_whole(world, "stays", "created-meanwhile")
    assert set(wires.created().values()) == {1}


async def test_api_server_that_restarts_in_the_middle_of_a_dispatch(wires: Wires) -> None:
    """Between the first object of a gang and its second."""
    world, gate = wires.world, Gate()
    wires.api.rules.on(creates("halved", "jobs"), Fault(before=gate))
    await world.create(gang("halved"))
    await gate.reached.wait()

    await world.plane.kill_apiserver()
    gate.open()
    await world.plane.start_apiserver()

    await world.until_state("halved", "Running")
    assert await lives(world.database_url) == {"halved": RAN}
    await assert_whole(world, "halved")
    assert set(wires.created().values()) == {1}
