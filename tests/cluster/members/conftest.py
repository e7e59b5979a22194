"""A hub without nodes and two members, each a control plane of its own."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dispatcher.kube.client import ClusterClient
from testbed import build
from testbed.kuberay_operator import with_ray_kinds
from testbed.nodes import Shape
from testbed.plane import Plane, Wanted
from testbed.processes import Supervisor
from tests.cluster.conftest import CRDS
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.guarded import Guarded, guarding
from tests.cluster.world import World

HUB = Wanted(nodes=0, crds=CRDS)
EAST = Wanted(nodes=1, shape=Shape(cpu="4", memory="16Gi", gpu=0), crds=CRDS)
WEST = Wanted(nodes=1, shape=Shape(cpu="8", memory="16Gi", gpu=0), crds=CRDS)


@pytest.fixture(scope="package")
def planes(supervisor: Supervisor) -> Iterator[dict[str, Plane]]:
    """Three clusters by name; they end with the last test of this folder."""
    binaries = build.ensure()
    wanted = {"members-hub": HUB, "east": EAST, "west": WEST}
    planes = {name: Plane(supervisor, binaries, name, with_ray_kinds(each)) for name, each in wanted.items()}
    with ThreadPoolExecutor() as pool:
        list(pool.map(Plane.up, planes.values()))
    yield planes
    for plane in planes.values():
        plane.down()


@pytest.fixture(scope="package")
def plane(planes: dict[str, Plane]) -> Plane:
    """The hub, in place of the blog's."""
    return planes["members-hub"]


@pytest.fixture
async def fleet(
    supervisor: Supervisor, planes: dict[str, Plane], world: World, client: ClusterClient
) -> AsyncIterator[Fleet]:
    """The hub's world, and the same namespace in each member; no member is declared yet."""
    members: dict[str, World] = {}
    async with AsyncExitStack() as stack:
        for name in ("east", "west"):
            member = await stack.enter_async_context(
                await ClusterClient.connect(str(planes[name].kubeconfig))
            )
            await planes[name].create_namespace(world.namespace)
            members[name] = World(supervisor, planes[name], member, world.namespace, world.database_url)
        fleet = Fleet(world, members)
        own = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": fleet.namespace}}
        await client.create("/api/v1/namespaces", own)
        yield fleet
        world.stop_dispatchers()
        for name in await fleet.declared():
            await fleet.remove(name)
        await remove_finalizers(world)
        for member_world in members.values():
            await member_world.demolish()


@pytest.fixture
async def guarded(fleet: Fleet, tmp_path: Path) -> AsyncIterator[Guarded]:
    """The fleet, in which the dispatcher is who the manifests make it."""
    async with guarding(fleet, tmp_path) as guarded:
        yield guarded


@pytest.fixture
async def elsewhere(supervisor: Supervisor, fleet: Fleet) -> AsyncIterator[World]:
    """Another namespace of the hub, which the members do not have; what is made of it there is cleaned up."""
    hub, name = fleet.hub, f"test-{uuid.uuid4().hex[:8]}"
    await hub.plane.create_namespace(name)
    elsewhere = World(supervisor, hub.plane, hub.client, name, hub.database_url)
    yield elsewhere
    hub.stop_dispatchers()
    await remove_finalizers(elsewhere)
    for member in fleet.members.values():
        there = World(supervisor, member.plane, member.client, name, hub.database_url)
        if await there.every("Job"):
            await there.demolish()
    await elsewhere.demolish()


async def remove_finalizers(world: World) -> None:
    """Remove the finalizers that no dispatcher is left to remove."""
    for kind in ("AppWrapper", "McadAppWrapper"):
        for found in await world.every(kind):
            if found["metadata"].get("finalizers"):
                await world.merge(kind, found["metadata"]["name"], {"metadata": {"finalizers": None}})
