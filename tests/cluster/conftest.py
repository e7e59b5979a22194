"""One real control plane for all cluster tests, and the world a test lives in on it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dispatcher.kube.client import ClusterClient
from testbed import build
from testbed.kuberay_operator import KubeRay, with_ray_kinds
from testbed.nodes import Shape
from testbed.plane import Plane, Wanted
from testbed.processes import Supervisor
from testbed.stand_in import Api
from tests.cluster.dispatch_queues import Declare, declaring
from tests.cluster.world import World

CHECKOUT = Path(__file__).parents[2]
CRDS = sorted([*CHECKOUT.glob("crds/*.yaml"), *CHECKOUT.glob("testbed/crds/*.yaml")])
"""The definitions of the project; those of KubeRay come with its operator (`with_ray_kinds`)."""
BLOG_NODES = Wanted(nodes=3, shape=Shape(cpu="8", memory="61Gi", gpu=1), crds=CRDS)
"""One example gang of 2 GPUs fits, two do not."""


@pytest.fixture(scope="session")
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    """Starts processes, and ends them all with the session."""
    with Supervisor(tmp_path_factory.mktemp("run")) as supervisor:
        yield supervisor


@pytest.fixture(scope="package")
def plane_without_operators(supervisor: Supervisor) -> Iterator[Plane]:
    """A control plane with the blog's three nodes and our CRDs.

    It ends with the last test of this folder, for it would take processor time from the tests that follow.
    """
    plane = Plane(supervisor, build.ensure(), "hub", with_ray_kinds(BLOG_NODES))
    plane.up()
    yield plane
    plane.down()


@pytest.fixture(scope="package")
def kuberay(supervisor: Supervisor, plane_without_operators: Plane) -> Iterator[KubeRay]:
    """KubeRay's operator, in front of the server that answers it as Ray's dashboards."""
    operator = KubeRay(supervisor, plane_without_operators)
    operator.up()
    yield operator
    operator.down()


@pytest.fixture(scope="package")
def plane(plane_without_operators: Plane, kuberay: KubeRay) -> Plane:
    """The control plane of these tests, while KubeRay's operator runs."""
    kuberay.check()
    return plane_without_operators


@pytest.fixture
async def api(plane: Plane) -> AsyncIterator[Api]:
    """The administrator's way to the API server, on which our definitions are installed from the start."""
    async with Api.connect(plane.kubeconfig) as connected:
        yield connected


@pytest.fixture
async def client(plane: Plane) -> AsyncIterator[ClusterClient]:
    """The administrator's way to the API server."""
    # The dispatcher has a client of its own. This one also deletes a megabyte of labels beside other tests.
    async with await ClusterClient.connect(str(plane.kubeconfig), write_timeout=30) as client:
        yield client


@pytest.fixture
async def namespace(supervisor: Supervisor, plane: Plane, client: ClusterClient) -> AsyncIterator[str]:
    """A fresh namespace, in which pods may be created.

    The test ends when every AppWrapper and pod of it is gone, so that the next one has the whole capacity.
    """
    name = f"test-{uuid.uuid4().hex[:8]}"
    await plane.create_namespace(name)
    yield name
    await World(supervisor, plane, client, name, "").demolish()


@pytest.fixture
async def world(
    supervisor: Supervisor, plane: Plane, client: ClusterClient, namespace: str, database_url: str
) -> AsyncIterator[World]:
    """A namespace, an empty queue, and the means to run dispatchers and look at what they do."""
    world = World(supervisor, plane, client, namespace, database_url)
    yield world
    world.stop_dispatchers()


@pytest.fixture
async def declare(world: World) -> AsyncIterator[Declare]:
    """Create a DispatchQueue in the cluster of this world."""
    async with declaring(world.client) as declare:
        yield declare
