"""MCAD's cluster: two nodes on which its end-to-end numbers are exact."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from dispatcher.kube.client import ClusterClient
from testbed import build
from testbed.kuberay_operator import KubeRay, with_ray_kinds
from testbed.nodes import Shape
from testbed.plane import Plane, Wanted
from testbed.processes import Supervisor
from tests.cluster.conftest import CRDS
from tests.cluster.mcad.suite import AS_MCAD, OFTEN, Suite
from tests.cluster.world import World

MCAD_NODES = Wanted(nodes=2, shape=Shape(cpu="975m", memory="8Gi", gpu=8), crds=CRDS)
"""What was free on MCAD's two-node kind cluster: 1950m in all, and 425m on each node beside a pod of 550m."""


@pytest.fixture(scope="package")
def plane(supervisor: Supervisor) -> Iterator[Plane]:
    """A control plane with MCAD's two nodes and our CRDs, in place of the blog's."""
    plane = Plane(supervisor, build.ensure(), "mcad", with_ray_kinds(MCAD_NODES))
    plane.up()
    yield plane
    plane.down()


@pytest.fixture
async def suite(request: pytest.FixtureRequest, world: World) -> Suite:
    """A running dispatcher, with settings of the test's if it has any, and what MCAD's suite does with it."""
    settings: dict[str, str] = getattr(request, "param", {})
    return Suite(world, await world.start_dispatcher(**OFTEN, **AS_MCAD, **settings))


@pytest.fixture
async def neighbour(
    supervisor: Supervisor, plane: Plane, client: ClusterClient, world: World
) -> AsyncIterator[World]:
    """Another namespace of the same cluster, served by the same dispatcher."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await plane.create_namespace(name)
    neighbour = World(supervisor, plane, client, name, world.database_url)
    yield neighbour
    await neighbour.demolish()


@pytest.fixture
def kuberay(supervisor: Supervisor, plane: Plane) -> Iterator[None]:
    """KubeRay's operator, which the other tests here do without."""
    operator = KubeRay(supervisor, plane, plane.name)
    operator.up()
    yield
    operator.down()
