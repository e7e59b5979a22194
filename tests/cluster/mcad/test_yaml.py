"""MCAD's own files, applied with kubectl as they are: those of test/yaml, and the examples of its manual.

They name the namespaces `test`, `test1` and `default`, which are kept from one test to the next.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.kube.client import ClusterClient
from testbed import nodes
from testbed.nodes import Shape
from testbed.plane import Plane
from testbed.processes import Supervisor
from tests.cluster.mcad.suite import TRUSTING, Suite
from tests.cluster.world import World

Json = dict[str, Any]

FILES = Path(__file__).parent / "yaml"
NAMESPACES = ("default", "test", "test1")
LARGE_NODE = 91
LARGE = Shape(cpu="32", memory="128Gi", gpu=8)


@dataclass(frozen=True, slots=True)
class Applied:
    """An AppWrapper of a file, in the namespace and the group that the file names."""

    suite: Suite
    manifest: Json

    @property
    def name(self) -> str:
        name: str = self.manifest["metadata"]["name"]
        return name

    @property
    def kind(self) -> str:
        return "McadAppWrapper" if self.manifest["apiVersion"].startswith("mcad.") else "AppWrapper"

    @property
    def labels(self) -> Json | None:
        """As they were written."""
        labels: Json | None = self.manifest["metadata"].get("labels")
        return labels

    async def until_shown(self, state: str) -> Json:
        return await self.suite.world.until_shown(self.name, state, self.kind)

    async def found(self) -> Json:
        found = await self.suite.world.get(self.kind, self.name)
        assert found is not None
        return found


class Shelf:
    """The files, and the namespaces they are applied to."""

    def __init__(self, plane: Plane, suites: dict[str, Suite]) -> None:
        self._plane = plane
        self._suites = suites

    async def apply(self, *files: str) -> list[Applied]:
        """What these files hold, in their order, once kubectl has taken it."""
        assert await kubectl_apply(self._plane, *files) == (0, [])
        documents = [each for file in files for each in yaml.safe_load_all(path_of(file).read_text())]
        return [Applied(self._suites[namespace_of(each)], each) for each in documents]

    async def clear(self) -> None:
        """Delete every AppWrapper, and return when their pods are gone."""
        for suite in self._suites.values():
            await clear(suite.world)


async def kubectl_apply(plane: Plane, *files: str) -> tuple[int, list[str]]:
    """kubectl's exit code, and what it said but for what it created."""
    arguments = [argument for file in files for argument in ("-f", path_of(file))]
    kubectl = await asyncio.create_subprocess_exec(
        plane.kubectl, "apply", *arguments, stdout=PIPE, stderr=STDOUT
    )
    said, _ = await kubectl.communicate()
    return await kubectl.wait(), [
        line for line in said.decode().splitlines() if not line.endswith(" created")
    ]


def path_of(file: str) -> Path:
    return FILES / f"{file}.yaml"


def namespace_of(manifest: Json) -> str:
    namespace: str = manifest["metadata"].get("namespace", "default")
    return namespace


async def clear(world: World) -> None:
    for kind in ("AppWrapper", "McadAppWrapper"):
        for name in await world.names(kind):
            await world.delete(name, kind)

    async def no_pods() -> bool:
        return not await world.every("Pod")

    await world.until(no_pods, f"the pods of {world.namespace} are gone")


@pytest.fixture
async def namespaces(plane: Plane) -> tuple[str, ...]:
    """Those that the files name."""
    for name in NAMESPACES:
        await plane.create_namespace(name)
    return NAMESPACES


@pytest.fixture
async def shelf(
    supervisor: Supervisor, plane: Plane, client: ClusterClient, suite: Suite, namespaces: tuple[str, ...]
) -> AsyncIterator[Shelf]:
    """A dispatcher that runs, and MCAD's files."""
    worlds = [World(supervisor, plane, client, name, suite.world.database_url) for name in namespaces]
    shelf = Shelf(plane, {world.namespace: Suite(world, suite.process) for world in worlds})
    yield shelf
    await shelf.clear()


@asynccontextmanager
async def large_node(plane: Plane, shelf: Shelf) -> AsyncIterator[None]:
    """One more node, on which all of the examples with Ray have room."""
    await nodes.add(plane.client, LARGE, [LARGE_NODE])
    try:
        yield
    finally:
        await shelf.clear()
        await nodes.remove(plane.client, nodes.name_of(LARGE_NODE))


READY = {"0001-aw-generic-deployment-3": 3, "aw-01": 2, "aw-02": 2}
"""How many pods run."""
SUCCEEDED = {"0006-aw-init-containers": 3, "0008-aw-default": 1}
"""How many pods have succeeded in the end, whether or not completionstatus waits for them."""


@TRUSTING
async def test_deployments_run_and_jobs_complete_beside_them(shelf: Shelf) -> None:
    """READY and SUCCEEDED, at once: what they declare is 1650m of 1950m, and what their pods ask for 2650m."""
    running, ending = await shelf.apply(*READY), await shelf.apply(*SUCCEEDED)

    for each, pods in zip(running, READY.values(), strict=True):
        await each.suite.until_ready(each.name, pods)
        await each.until_shown("Running")
    for each, pods in zip(ending, SUCCEEDED.values(), strict=True):
        status = await each.until_shown("Completed")
        assert (status["Succeeded"], status.get("numberOfRequeueings", 0)) == (pods, 0)


async def test_job_that_declares_one_of_its_three_pods_completes_where_there_is_room_for_all(
    shelf: Shelf,
) -> None:
    (each,) = await shelf.apply("0006-aw-init-containers")

    status = await each.until_shown("Completed")
    assert (status["Succeeded"], status.get("numberOfRequeueings", 0)) == (3, 0)


async def test_jobs_complete_whatever_quota_they_name_and_beside_a_job_that_is_too_large(
    shelf: Shelf,
) -> None:
    """Four Jobs of 900m, and one of 3000m on a cluster of 1950m."""
    (large,) = await shelf.apply("0004-aw-large-job-no-quota")
    jobs = await shelf.apply("0002-aw-job-quota", "0003-aw-job-no-quota", "0005-aw-two-quota-jobs")

    for each in jobs:
        status = await each.until_shown("Completed")
        assert status["Succeeded"] == 1
        assert (await each.found())["metadata"].get("labels") == each.labels
    waiting = (await large.suite.stays_without_pods(large.name))["waiting"]
    assert (waiting["reason"], waiting["message"]) == (
        "LargerThanCluster",
        "cluster hub: cpu: needs 3, 1950m in all of it",
    )


RAY = {
    "aw-raycluster": "cpu: needs 3, 1950m in all of it",
    "aw-raycluster-1": "cpu: needs 10, 1950m in all of it",
    "aw-kuberay-glue": "cpu: needs 6, 1950m in all of it; memory: needs 32G, 16Gi in all of it",
}
"""What MCAD's two nodes are too small for."""


@pytest.mark.usefixtures("kuberay")
async def test_rayclusters_wait_with_nothing_created_for_a_node_that_is_large_enough(
    plane: Plane, shelf: Shelf
) -> None:
    applied = await shelf.apply(*RAY)
    for each, message in zip(applied, RAY.values(), strict=True):
        status = await each.suite.stays_without_pods(each.name)
        assert status["waiting"]["message"] == f"cluster hub: {message}"
    assert await applied[0].suite.world.every("RayCluster") == []

    async with large_node(plane, shelf):
        for each in applied:
            await each.suite.until_ready(each.name, 2)
            status = await each.suite.world.until_state(each.name, "Running")
            assert status["state"] == "Running"


MOVE_THEM = "spec.resources.Items: Invalid value: Items is no longer used: move its entries to GenericItems"
REFUSED = {
    "aw-1-k8s-job1": 'strict decoding error: unknown field "spec.resources.GenericItems.generictemplate"',
    "aw-1-k8s-job2": MOVE_THEM,
    "aw-1-k8s-job3": MOVE_THEM,
}
"""What kubectl says to whoever applies it."""


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("file", REFUSED)
async def test_file_whose_list_of_objects_cannot_be_read_is_refused_at_the_door(
    plane: Plane, file: str
) -> None:
    code, (said,) = await kubectl_apply(plane, file)

    assert (code, REFUSED[file] in said) == (1, True), said
