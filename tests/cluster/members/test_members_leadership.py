"""Two dispatchers over members: one that was paused in the middle of a dispatch does no more harm there either.

Each has wires of its own, to the hub, to the database and to every member, so what it sent is known apart from what
the other sent: MemberClusters name a Secret, and each dispatcher reads that of its own namespace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from dispatcher.api.names import ANCHOR_PREFIX, UID_LABEL
from dispatcher.core.model.records.record import Phase
from testbed.processes import Process
from testbed.proxy import ApiProxy, Exchange, Fault, Gate
from tests.cluster.members.fleet import OFTEN, Fleet
from tests.cluster.pair import Pair, committed
from tests.cluster.wires import Life, Wires, gang, lives, wires_of
from tests.cluster.world import World

LIVED = Life(Phase.RUNNING, ("submitted", "dispatched", "created", "pods-running"))


@dataclass(frozen=True, slots=True)
class Reach(Wires):
    """All wires of one dispatcher; `namespace` is its own."""

    members: dict[str, ApiProxy]
    namespace: str

    async def start_dispatcher(self, **settings: str) -> Process:
        """Run a dispatcher on these wires."""
        return await Wires.start_dispatcher(self, namespace=self.namespace, **OFTEN, **settings)

    def exchanges(self) -> list[Exchange]:
        """What it asked of any API server."""
        return [each for proxy in (self.api, *self.members.values()) for each in proxy.rules.seen]

    def said(self) -> tuple[int, int]:
        """How many writes it sent to API servers, and how many changes it committed."""
        return sum(each.is_write for each in self.exchanges()), committed(self)

    def made(self) -> Counter[str]:
        """How often each object was created in a member, as the API servers answered."""
        return Counter(
            f"{name}{each.path}/{each.document['metadata']['name']}"
            for name, proxy in self.members.items()
            for each in proxy.writes()
            if each.method == "POST" and each.status == 201
        )


@asynccontextmanager
async def reach_of(fleet: Fleet, namespace: str) -> AsyncIterator[Reach]:
    """Wires for one dispatcher; whoever runs on them is killed before they go."""
    async with AsyncExitStack() as stack:
        members = {
            name: await stack.enter_async_context(ApiProxy.of(member.plane))
            for name, member in fleet.members.items()
        }
        wires = await stack.enter_async_context(wires_of(fleet.hub))
        yield Reach(wires.world, wires.api, wires.postgres, members, namespace)


@dataclass(frozen=True, slots=True)
class Rivals:
    """`first` leads until it is paused; then `second` does."""

    fleet: Fleet
    pair: Pair
    first: Reach
    second: Reach


@pytest.fixture
async def rivals(fleet: Fleet, elsewhere: World) -> AsyncIterator[Rivals]:
    """One that leads and one that stands by; both know both members, each by its own way."""
    async with reach_of(fleet, fleet.namespace) as first, reach_of(fleet, elsewhere.namespace) as second:
        for name in fleet.members:
            await fleet.declare(name, kubeconfig=kubeconfig(fleet, first, name))
            await fleet.create_secret(name, kubeconfig(fleet, second, name), elsewhere.namespace)
        pair = Pair(first, second)
        await pair.start()
        yield Rivals(fleet, pair, first, second)


def kubeconfig(fleet: Fleet, reach: Reach, name: str) -> bytes:
    return reach.members[name].kubeconfig(fleet.members[name].plane).read_bytes()


# --- in the middle of what it is paused --------------------------------------------------------------


def makes_an_anchor(exchange: Exchange) -> bool:
    is_one = exchange.method == "POST" and exchange.path.endswith("/configmaps")
    return is_one and exchange.document["metadata"]["name"].startswith(ANCHOR_PREFIX)


def makes_a_job(exchange: Exchange) -> bool:
    return exchange.method == "POST" and exchange.path.endswith("/jobs")


def removes_a_job(exchange: Exchange) -> bool:
    return exchange.method == "DELETE" and "/jobs/" in exchange.path


Matches = Callable[[Exchange], bool]
Befalls = Callable[[Gate], Fault]


def not_yet(gate: Gate) -> Fault:
    """The write is on the wire, and arrives when the gate is opened."""
    return Fault(before=gate)


def unheard(gate: Gate) -> Fault:
    """It is done, and the answer comes when the gate is opened."""
    return Fault(after=gate)


def gates(reach: Reach, matches: Matches, befalls: Befalls) -> dict[str, Gate]:
    """Hold the next such write to each member."""
    held = {name: Gate() for name in reach.members}
    for name, gate in held.items():
        reach.members[name].rules.on(matches, befalls(gate))
    return held


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("matches", "befalls"),
    [
        pytest.param(makes_an_anchor, not_yet, id="nothing-is-made"),
        pytest.param(makes_an_anchor, unheard, id="anchor-is-made"),
        pytest.param(makes_a_job, not_yet, id="half-is-made"),
        pytest.param(makes_a_job, unheard, id="all-is-made"),
    ],
)
async def test_leader_paused_in_the_middle_of_dispatches_to_two_members_does_nothing_more(
    rivals: Rivals, matches: Matches, befalls: Befalls
) -> None:
    pair, hub = rivals.pair, rivals.fleet.hub
    held = gates(rivals.first, matches, befalls)
    await hub.create(gang("three", cpu="1", pods=3))
    await hub.create(gang("six", cpu="1", pods=6))
    for gate in held.values():
        await gate.reached.wait()
    await pair.pause()

    await pair.takeover()
    await hub.until_state("three", "Running")
    await hub.until_state("six", "Running")
    said = rivals.first.said()
    for gate in held.values():
        gate.open()
    pair.resume()
    await pair.until_deposed()
    await hub.create_until("Running", gang("afterwards"))

    assert rivals.first.said() == said
    assert await lives(hub.database_url) == dict.fromkeys(("canary", "three", "six", "afterwards"), LIVED)
    assert set((rivals.first.made() + rivals.second.made()).values()) == {1}
    assert await objects_of(rivals.fleet, "three") == whole("east", pods=3)
    assert await objects_of(rivals.fleet, "six") == whole("west", pods=6)


async def test_leader_paused_in_the_middle_of_a_deletion_does_not_touch_a_successor(rivals: Rivals) -> None:
    """What it wants to delete is gone when its word arrives, and something new has the name."""
    pair, hub = rivals.pair, rivals.fleet.hub
    await hub.create_until("Running", gang("three", cpu="1", pods=3))
    gate = gates(rivals.first, removes_a_job, not_yet)["east"]
    await hub.delete("three")
    await gate.reached.wait()
    await pair.pause()

    await pair.takeover()
    await hub.until_gone("AppWrapper", "three")
    await hub.create_until("Running", gang("three", cpu="1", pods=3))
    said, late = rivals.first.said(), rivals.first.members["east"].writes()[-1]
    gate.open()

    async def answered() -> int:
        return late.status

    assert await hub.until(answered, "the late deletion is answered") == 409
    pair.resume()
    await pair.until_deposed()
    assert rivals.first.said() == said
    assert await objects_of(rivals.fleet, "three") == whole("east", pods=3)


# --- exactly one full set ----------------------------------------------------------------------------


def whole(member: str, pods: int) -> list[tuple[str, str]]:
    """A gang's objects, each once, in one member."""
    return [(member, kind) for kind in ("ConfigMap", "Job", *["Pod"] * pods, "anchor")]


async def objects_of(fleet: Fleet, name: str) -> list[tuple[str, str]]:
    """What there is of a gang, and in which members."""
    appwrapper = await fleet.hub.get("AppWrapper", name) or {}
    uid = appwrapper["metadata"]["uid"]
    found = [
        (member, "anchor" if each["metadata"]["name"].startswith(ANCHOR_PREFIX) else kind)
        for member, world in fleet.members.items()
        for kind in ("ConfigMap", "Job", "Pod")
        for each in await world.every(kind)
        if (each["metadata"].get("labels") or {}).get(UID_LABEL) == uid
    ]
    return sorted(found)
