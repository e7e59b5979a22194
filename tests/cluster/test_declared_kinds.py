"""A kind that an operator declares is charged, placed and completed as the built-in kinds are."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dispatcher import errors
from dispatcher.controller.scheduling.kind_watch import KindLocator
from dispatcher.core.queues.quota_subtrees import API_VERSIONS
from dispatcher.errors import NotFound, Throttled
from dispatcher.kube.client import MERGE_PATCH, ClusterClient
from dispatcher.kube.discovery import Discovery
from testbed.plane import Plane
from testbed.stand_in import Api
from tests.cluster.definitions import install, optional_kinds_of, wait_for
from tests.cluster.manifests import changed, pod, pod_template
from tests.cluster.outcomes import rows
from tests.cluster.world import CHECKOUT, World
from tests.commands import Run, runner

Json = dict[str, Any]

OWN_KIND = CHECKOUT / "examples" / "own-kind"
GROUP, VERSION, PLURAL = "platform.example.com", "v1", "trainings"
ANYTHING: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SCHEMA: Json = {"type": "object", "properties": {"spec": ANYTHING, "status": ANYTHING}}
DEFINITION: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{PLURAL}.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"kind": "Training", "plural": PLURAL},
        "versions": [
            {
                "name": VERSION,
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": SCHEMA},
            }
        ],
    },
}
SPEC = "spec.resources.GenericItems.0.generictemplate.spec"


class Operator:
    """Does for Trainings what the operator of the kind would: makes their pods, and says how they end."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.collection = f"/apis/{GROUP}/{VERSION}/namespaces/{world.namespace}/{PLURAL}"

    async def is_served(self) -> bool:
        """The API server may be a moment behind the definition."""
        try:
            return await self._world.client.get(self.collection) is not None
        except (errors.NotFound, errors.Throttled):
            return False

    async def get(self, name: str) -> Json:
        return await self._world.client.get(f"{self.collection}/{name}")

    async def make_pods(self, name: str) -> None:
        """Make the pods of an object's template, as many as it has replicas."""
        found = await self.get(name)
        owner = {
            **{key: found[key] for key in ("apiVersion", "kind")},
            **{key: found["metadata"][key] for key in ("name", "uid")},
            "controller": True,
        }
        template = found["spec"]["template"]
        for number in range(found["spec"]["replicas"]):
            metadata = {**template["metadata"], "name": f"{name}-{number}", "ownerReferences": [owner]}
            await self._world.create({**pod(name), "metadata": metadata, "spec": template["spec"]})

    async def end(self, name: str, condition: str) -> None:
        """Report a condition, and remove the pods."""
        status = {"conditions": [{"type": condition, "status": "True", "reason": "Ended"}]}
        await self._world.client.patch(f"{self.collection}/{name}/status", {"status": status}, MERGE_PATCH)
        for each in await self._world.every("Pod"):
            await self._world.delete(each["metadata"]["name"], "Pod")


@pytest.fixture
async def operator(plane: Plane, world: World) -> Operator:
    """The operator of Trainings, whose definition is installed for as long as the control plane is."""
    async with Api.connect(plane.kubeconfig) as api:
        await install(api, DEFINITION)
    operator = Operator(world)
    await world.until(operator.is_served, "Trainings are served")
    return operator


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher …` on the queue of this world."""
    monkeypatch.setenv("DISPATCHER_DATABASE_URL", world.database_url)
    return runner(monkeypatch, capsys)


def training(name: str, replicas: int) -> Json:
    """The AppWrapper of the example, under this name and with so many pods of 5 CPUs, which do not end."""
    example = yaml.safe_load((OWN_KIND / "aw-training.yaml").read_text())
    named = changed(changed(example, "metadata.name", name), f"{SPEC}.replicas", replicas)
    lasting = changed(named, f"{SPEC}.template.metadata", pod_template(run_for="forever")["metadata"])
    return changed(lasting, f"{SPEC.removesuffix('.spec')}.metadata.name", name)


def preferred_nodes(template: Json) -> list[str]:
    """The nodes that a pod template prefers."""
    preferred = template["spec"]["affinity"]["nodeAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    return [each["preference"]["matchFields"][0]["values"][0] for each in preferred]


async def test_gang_of_a_declared_kind_is_placed_by_its_templates_and_completes_by_its_condition(
    world: World, operator: Operator, run: Run
) -> None:
    await world.start_dispatcher(kinds_file=str(OWN_KIND / "kinds.yaml"), snapshot_seconds="0.1")
    await world.create_until("Dispatched", training("training", 3))
    (row,) = await rows(world, "SELECT demand, pods FROM appwrapper WHERE name = 'training'")
    assert row == {"demand": {"cpu": 15000, "memory": 12 * 2**30}, "pods": 3}
    planned = preferred_nodes((await operator.get("training"))["spec"]["template"])
    assert len(set(planned)) == 3

    await world.create(training("later", 1))
    waiting = (await world.until_state("later", "Backoff"))["waiting"]
    assert waiting["message"] == "cluster hub: cpu: 9 free, at most 3 on one node, and the pod requests 5"

    would = await run("would", "-f", str(OWN_KIND / "aw-training.yaml"), "-n", world.namespace)
    assert (would.code, would.out.splitlines()[0]) == (
        0,
        f"{world.namespace}/training waits: InsufficientResources",
    )

    await operator.make_pods("training")
    await world.until_state("training", "Running")
    bound = {each["spec"]["nodeName"] for each in await world.every("Pod")}
    assert bound == set(planned)

    await operator.end("training", "Trained")
    await world.until_state("training", "Completed")
    await world.until_state("later", "Dispatched")
    await operator.make_pods("later")
    await world.until_state("later", "Running")
    await operator.end("later", "Aborted")
    failed = await world.until_state("later", "Failed")
    (condition,) = [each for each in failed["conditions"] if each["type"] == "Failed"]
    assert condition["reason"] == "FailedComponent"
    assert condition["message"] == f"Training {world.namespace}/later failed: Ended"


# -----------------------------------------------------------------------------------------------------------
# What a real API server says of a kind whose definition is deleted: it is ready, and does not list the kind.


@pytest.mark.timeout(120)
async def test_kind_is_gone_once_its_definition_is_deleted_and_served_once_it_is_back(
    plane: Plane, client: ClusterClient
) -> None:
    gone: list[bool] = []
    locator = KindLocator(Discovery(client), API_VERSIONS, "QuotaSubtree", lambda: gone.append(True))

    async def is_served() -> bool:
        """As a reflector does: locate, list, and look again after a 404."""
        try:
            await client.get(await locator.locate())
        except NotFound:
            locator.look_again()
            return False
        except Throttled:  # while the storage of a definition begins
            return False
        return True

    async def is_gone() -> bool:
        return not await is_served() and locator.is_gone

    async with optional_kinds_of(plane.kubeconfig):
        await wait_for(is_served)
    await wait_for(is_gone)
    assert gone
    before = len(gone)
    assert await is_gone()
    assert len(gone) == before, "it is called when the kind ends, and not at each look"
    async with optional_kinds_of(plane.kubeconfig):
        await wait_for(is_served)
        assert not locator.is_gone
