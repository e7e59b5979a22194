"""AppWrappers as v1beta2 spells them: pods by their pod sets, v1beta2's words, and who may act on them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.figures import free_in
from tests.cluster.lives import in_the_way, out_of_the_way
from tests.cluster.manifests import (
    component,
    components,
    config_map,
    deployment,
    job,
    pod,
    pod_template,
    raycluster,
    small_job,
)
from tests.cluster.mcad.suite import conditions
from tests.cluster.world import World, example

Json = dict[str, Any]

V1BETA2 = "AppWrapper/v1beta2"
OURS = "workload.codeflare.dev/appwrapper-controller"


def unknown_kind(name: str, cpu: str) -> Json:
    """A kind that holds a pod template, but of whose pods nobody here knows anything."""
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": name},
        "template": pod_template(cpu),
    }


async def play_its_controller(world: World, name: str, count: int) -> None:
    """Make the pods of a PodTemplate, as the controller of an unknown kind would."""
    found = await world.get("PodTemplate", name)
    assert found is not None
    owner = {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "name": name,
        "uid": found["metadata"]["uid"],
        "controller": True,
    }
    template = found["template"]
    for index in range(count):
        metadata = {**template["metadata"], "name": f"{name}-{index}", "ownerReferences": [owner]}
        await world.create({**pod("unused"), "metadata": metadata, "spec": template["spec"]})


async def until_phase(world: World, name: str, phase: str) -> Json:
    """The status of an AppWrapper once v1beta2's `phase` is that."""

    async def look() -> Json | None:
        status: Json = ((await world.get(V1BETA2, name)) or {}).get("status") or {}
        return status if status.get("phase") == phase else None

    return await world.until(look, f"the phase of {name} is {phase}")


async def test_pod_sets_declare_the_demand_of_components_of_known_and_unknown_kinds(world: World) -> None:
    process = await world.start_dispatcher()
    await world.create_until("Running", small_job("canary"))
    free = (await free_in(process))["cpu"]

    await world.create(
        components(
            "both",
            component(deployment("known", replicas=2, cpu="1"), template__spec__template=2),
            component(unknown_kind("unknown", "2"), template__template=3),
        ),
        V1BETA2,
    )

    await world.until_state("both", "Dispatched")

    async def taken() -> bool:
        return (await free_in(process)).get("cpu", 0) == free - 8000

    await world.until(taken, "2 pods of 1 cpu and 3 of 2 are charged")
    await play_its_controller(world, "unknown", 3)
    status = await world.until_state("both", "Running")
    assert conditions(status)["PodsReady"][:2] == ("True", "SufficientPodsReady")
    assert (await free_in(process))["cpu"] == free - 8000


async def test_phases_and_conditions_use_the_words_of_v1beta2(world: World) -> None:
    await world.start_dispatcher()
    await world.create_until("Running", example("aw-raycluster-glue"))
    await in_the_way(world, "input")
    done = job("done", parallelism=3, cpu="8", run_for="3s")
    await world.create(
        components("tells", component(config_map("input")), component(done, template__spec__template=3)),
        V1BETA2,
    )

    waiting = await until_phase(world, "tells", "Suspended")
    await world.delete("raycluster-glue")
    resuming = await until_phase(world, "tells", "Resuming")
    await out_of_the_way(world, "input")
    await until_phase(world, "tells", "Running")
    running = await world.until_state("tells", "Running", V1BETA2)
    succeeded = await until_phase(world, "tells", "Succeeded")

    assert [v1beta2_of(each) for each in (waiting, resuming, running, succeeded)] == [
        {},
        {"QuotaReserved": "True"},
        {"QuotaReserved": "True", "ResourcesDeployed": "True", "PodsReady": "True"},
        {"QuotaReserved": "False", "ResourcesDeployed": "True", "PodsReady": "False"},
    ]
    assert [told_components(each) for each in (waiting, resuming, running, succeeded)] == [
        [],
        [],
        [("v1", "ConfigMap", "input", "True"), ("batch/v1", "Job", "done", "True")],
        [("v1", "ConfigMap", "input", "True"), ("batch/v1", "Job", "done", "True")],
    ]
    assert succeeded["state"] == "Completed"


def v1beta2_of(status: Json) -> dict[str, str]:
    """The conditions that MCAD did not have."""
    wanted = ("QuotaReserved", "ResourcesDeployed", "PodsReady", "Unhealthy", "DeletingResources")
    return {type_: told[0] for type_, told in conditions(status).items() if type_ in wanted}


def told_components(status: Json) -> list[tuple[str, str, str, str]]:
    return [
        (each["apiVersion"], each["kind"], each["name"], each["conditions"][0]["status"])
        for each in status.get("componentStatus", ())
    ]


async def test_phases_of_suspending_and_requeueing_equal_those_of_v1beta2(world: World) -> None:
    await world.start_dispatcher()
    slow = job("slow", terminate_after="3s")
    await world.create(components("goes", component(slow, template__spec__template=1)), V1BETA2)
    await until_phase(world, "goes", "Running")

    await world.merge(V1BETA2, "goes", {"spec": {"suspend": True}})

    suspending = await until_phase(world, "goes", "Suspending")
    suspended = await until_phase(world, "goes", "Suspended")
    assert v1beta2_of(suspending)["DeletingResources"] == "True"
    assert "DeletingResources" not in v1beta2_of(suspended)
    assert v1beta2_of(suspended)["QuotaReserved"] == "False"


async def test_raycluster_without_pod_sets_is_known_by_its_kind(world: World) -> None:
    process = await world.start_dispatcher()
    await world.create_until("Running", small_job("canary"))
    free = (await free_in(process))["cpu"]

    await world.create(components("ray", component(raycluster("ray", cpu="2", workers=2))), V1BETA2)

    await world.until_state("ray", "Running")
    assert (await free_in(process))["cpu"] == free - 6000


@pytest.mark.parametrize("manager", ["kueue.x-k8s.io/multikueue", "somebody.else"])
async def test_appwrapper_of_another_manager_is_left_alone(world: World, manager: str) -> None:
    await world.start_dispatcher()
    theirs = components("theirs", component(job("theirs")), managedBy=manager)
    before = await world.create(theirs, V1BETA2)

    await world.create_until("Running", small_job("canary"))

    assert await world.get(V1BETA2, "theirs") == before
    assert await world.causes("theirs") == []
    assert await world.names("Job") == {"canary"}


async def test_appwrapper_of_our_manager_is_served(world: World) -> None:
    await world.start_dispatcher()

    await world.create(components("ours", component(job("ours")), managedBy=OURS), V1BETA2)

    assert (await until_phase(world, "ours", "Running"))["state"] == "Running"
