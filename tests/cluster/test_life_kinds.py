"""Kinds that come to an end by themselves, beside Jobs: a bare Pod, and those whose operators say it in a status."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import pytest

from dispatcher import errors
from dispatcher.kube.client import MERGE_PATCH
from testbed.plane import Plane
from testbed.processes import Process
from testbed.stand_in import Api
from tests.cluster.definitions import install
from tests.cluster.figures import free_in
from tests.cluster.manifests import appwrapper, changed, config_map, item, pod, pod_template
from tests.cluster.mcad.suite import conditions
from tests.cluster.world import World

Json = dict[str, Any]

WHOLE_CPU = 24_000
ENDLESS = pod_template("1", run_for="forever")
COMPLETED = ("True", "PodsCompleted", "")
HOLDING = ("True", "SomeItemsCompleted", "")


@dataclass(frozen=True, slots=True)
class Operated:
    """A kind whose objects an operator looks after; `template_at` is where its one pod's template is."""

    api_version: str
    kind: str
    spec: Json
    template_at: str
    done: Json
    failed: Json
    failure: str

    @property
    def plural(self) -> str:
        return f"{self.kind.lower()}s"

    @property
    def definition(self) -> Json:
        """As much of its CRD as it takes to be served: what operators install is checked by nobody here."""
        group, _, version = self.api_version.partition("/")
        anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        served = {
            "name": version,
            "served": True,
            "storage": True,
            "subresources": {"status": {}},
            "schema": {
                "openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}
            },
        }
        names = {"kind": self.kind, "plural": self.plural}
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{group}"},
            "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [served]},
        }

    def wrapped(self, name: str) -> Json:
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "metadata": {"name": name},
            "spec": self.spec,
        }


def said(type_: str, reason: str, message: str = "") -> Json:
    """A status with one condition that is True."""
    return {"conditions": [{"type": type_, "status": "True", "reason": reason, "message": message}]}


JOB_SET = Operated(
    "jobset.x-k8s.io/v1alpha2",
    "JobSet",
    {"replicatedJobs": [{"name": "workers", "template": {"spec": {"template": ENDLESS}}}]},
    "spec.replicatedJobs.0.template.spec.template",
    said("Completed", "AllJobsCompleted", "jobset completed successfully"),
    said("Failed", "FailedJobs", "jobset failed due to one or more job failures"),
    "FailedJobs: jobset failed due to one or more job failures",
)
PYTORCH_JOB = Operated(
    "kubeflow.org/v1",
    "PyTorchJob",
    {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": ENDLESS}}},
    "spec.pytorchReplicaSpecs.Master.template",
    said("Succeeded", "PyTorchJobSucceeded", "PyTorchJob train is successfully completed."),
    said("Failed", "PyTorchJobFailed", "PyTorchJob train is failed because 1 Master replica(s) failed."),
    "PyTorchJobFailed: PyTorchJob train is failed because 1 Master replica(s) failed.",
)
OPERATED = [pytest.param(each, id=each.kind) for each in (JOB_SET, PYTORCH_JOB)]


class Operator:
    """Does for one object what the operator of its kind would: makes its pod, and says how it goes."""

    def __init__(self, world: World, operated: Operated, name: str) -> None:
        self.world = world
        self.operated = operated
        root = f"/apis/{operated.api_version}/namespaces/{world.namespace}"
        self.path = f"{root}/{operated.plural}/{name}"

    async def is_served(self) -> bool:
        """The API server may be a moment behind the definition."""
        try:
            return await self.world.client.get(self.path.rpartition("/")[0]) is not None
        except (errors.NotFound, errors.Throttled):
            return False

    async def run_its_pod(self) -> None:
        """Make the pod of its template, which runs until it is told otherwise."""
        found = await self.world.client.get(self.path)
        template = reduce(step_into, self.operated.template_at.split("."), found)
        owner = {
            **{key: found[key] for key in ("apiVersion", "kind")},
            **{key: found["metadata"][key] for key in ("name", "uid")},
            "controller": True,
        }
        metadata = {**template["metadata"], "name": "made", "ownerReferences": [owner]}
        await self.world.create({**pod("made"), "metadata": metadata, "spec": template["spec"]})

    async def end_its_pod(self) -> None:
        await self.world.delete("made", "Pod")

    async def fail_its_pod(self) -> None:
        """As a kubelet tells it; nobody removes it."""
        await self.world.merge_status("Pod", "made", {"phase": "Failed"})

    async def say(self, status: Json) -> None:
        await self.world.client.patch(f"{self.path}/status", {"status": status}, MERGE_PATCH)


def step_into(at: Any, step: str) -> Any:  # noqa: ANN401  # any JSON
    return at[int(step) if step.isdecimal() else step]


@pytest.fixture
async def operator(request: pytest.FixtureRequest, plane: Plane, world: World) -> Operator:
    """The operator of a kind that is installed from now on, for as long as the control plane is."""
    operated: Operated = request.param
    async with Api.connect(plane.kubeconfig) as api:
        await install(api, operated.definition)
    operator = Operator(world, operated, "train")
    await world.until(operator.is_served, f"{operated.kind} is served")
    return operator


async def until_free(world: World, process: Process, cpu: int) -> None:
    async def free() -> bool:
        return (await free_in(process)).get("cpu") == cpu

    await world.until(free, f"{cpu}m of cpu are free")


async def until_running(world: World, operator: Operator) -> None:
    """Submit an AppWrapper of one object, and play its operator until it runs."""
    await world.create_until(
        "Dispatched",
        appwrapper("trains", item(operator.operated.wrapped("train")), item(config_map("input"))),
    )
    await operator.run_its_pod()
    await world.until_state("trains", "Running")


async def test_bare_pod_that_succeeds_completes_its_appwrapper(world: World) -> None:
    process = await world.start_dispatcher()
    short = changed(pod("short", {"cpu": "1"}), "metadata", pod_template(run_for="1s")["metadata"])
    await world.create(appwrapper("ends", item(changed(short, "metadata.name", "short"))))

    status = await world.until_shown("ends", "Completed")

    assert (status["queuejobstate"], conditions(status)["Completed"]) == ("Completed", COMPLETED)
    assert [(each["metadata"]["name"], each["status"]["phase"]) for each in await world.every("Pod")] == [
        ("short", "Succeeded")
    ]
    assert (await world.causes("ends")).count("dispatched") == 1
    await until_free(world, process, WHOLE_CPU)


@pytest.mark.parametrize("operator", OPERATED, indirect=True)
async def test_object_whose_operator_says_it_succeeded_completes_once_its_pods_are_gone(
    world: World, operator: Operator
) -> None:
    process = await world.start_dispatcher()
    await until_running(world, operator)

    await operator.say(operator.operated.done)

    held = await world.until_shown("trains", "RunningHoldCompletion")
    assert conditions(held)["RunningHoldCompletion"] == HOLDING
    await until_free(world, process, WHOLE_CPU - 1000)
    await operator.end_its_pod()
    status = await world.until_shown("trains", "Completed")
    assert (status["queuejobstate"], conditions(status)["Completed"]) == ("Completed", COMPLETED)
    await until_free(world, process, WHOLE_CPU)
    assert (await world.causes("trains")).count("dispatched") == 1


async def until_failed_pods_are_shown(world: World, count: int) -> None:
    async def shown() -> bool:
        return (await world.until_shown("trains", "Running")).get("failed") == count

    await world.until(shown, f"{count} pods are shown as failed")


@pytest.mark.parametrize("operator", OPERATED, indirect=True)
async def test_object_whose_operator_says_it_failed_fails_in_its_words_and_is_kept(
    world: World, operator: Operator
) -> None:
    process = await world.start_dispatcher()
    await until_running(world, operator)

    await operator.fail_its_pod()
    await until_failed_pods_are_shown(world, 1)
    await operator.say(operator.operated.failed)

    status = await world.until_shown("trains", "Failed")
    said = f"{operator.operated.kind} {world.namespace}/train failed: {operator.operated.failure}"
    message = f"{said}; failed first: pod made, Failed"
    assert (status["queuejobstate"], conditions(status)["Failed"]) == (
        "Failed",
        ("True", "FailedComponent", message),
    )
    assert "input" in await world.names("ConfigMap")
    assert (await world.client.get(operator.path))["status"] == operator.operated.failed
    assert await world.names("Pod") == {"made"}
    await until_free(world, process, WHOLE_CPU)
