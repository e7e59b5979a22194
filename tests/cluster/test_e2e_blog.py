"""The KubeRay+MCAD blog, on real parts: two equal Ray gangs, GPUs for one."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.status.outlook import FIELDS
from tests.cluster.golden import golden_status, without_additions
from tests.cluster.manifests import never_starting, renamed, small_job
from tests.cluster.world import World, example

Json = dict[str, Any]


@pytest.fixture
async def busy(world: World) -> World:
    """A dispatcher that runs, the first gang Running, the second waiting."""
    await world.start_dispatcher()
    await world.create_until("Running", example("aw-raycluster-glue"))
    await world.create_until("Backoff", example("aw-raycluster-glue-1"))
    return world


async def test_status_of_a_dispatched_gang_equals_that_of_mcad(world: World) -> None:
    await world.start_dispatcher()
    status = await world.create_until("Dispatched", never_starting(example("aw-raycluster-glue")))

    assert without_additions(status) == golden_status("raycluster-glue")
    assert status["cluster"] == "hub"


async def test_status_of_a_pending_gang_equals_that_of_mcad_and_has_the_pending_reason(busy: World) -> None:
    status = await busy.until_state("raycluster-glue-1", "Backoff")

    assert without_additions(status) == golden_status("raycluster-glue-1")
    assert {word: value for word, value in status["waiting"].items() if word not in FIELDS} == {
        "reason": "InsufficientResources",
        "message": "cluster hub: nvidia.com/gpu: needs 2, 1 free",
        "resource": "nvidia.com/gpu",
        "cluster": "hub",
    }


async def test_running_gang_says_so_once_its_pods_run(busy: World) -> None:
    async def all_counted() -> Json | None:
        status: Json = (await busy.get("AppWrapper", "raycluster-glue") or {})["status"]
        return status if status.get("running") == 2 else None

    status = await busy.until(all_counted, "both pods are counted as running")

    assert [condition["type"] for condition in status["conditions"]] == [
        "Init",
        "Queueing",
        "HeadOfLine",
        "Dispatched",
        "Running",
    ]
    assert status["conditions"][-1]["reason"] == "PodsRunning"
    assert (status["state"], status["queuejobstate"]) == ("Running", "Running")


async def test_nothing_of_a_waiting_gang_exists(busy: World) -> None:
    # Three that fit are dispatched one after the other, so three cycles have looked at the waiting one again.
    for number in range(3):
        await busy.create_until("Running", small_job(f"small-{number}"))

    clusters = {each["metadata"]["name"] for each in await busy.every("RayCluster")}
    pods = [each["metadata"]["labels"] for each in await busy.every("Pod")]
    services = [each["metadata"]["name"] for each in await busy.every("Service")]

    assert clusters == {"raycluster-glue"}
    assert [labels for labels in pods if labels.get("ray.io/cluster") == "raycluster-glue-1"] == []
    assert [name for name in services if name.startswith("raycluster-glue-1")] == []


async def test_second_gang_goes_when_the_first_is_deleted(busy: World) -> None:
    await busy.delete("raycluster-glue")

    status = await busy.until_state("raycluster-glue-1", "Running")

    conditions = {condition["type"]: condition["status"] for condition in status["conditions"]}
    assert conditions == {
        "Init": "True",
        "Queueing": "True",
        "HeadOfLine": "True",
        "Backoff": "False",
        "Dispatched": "True",
        "Running": "True",
    }
    assert "waiting" not in status
    assert await busy.get("RayCluster", "raycluster-glue") is None


async def test_gang_of_higher_priority_overtakes_a_pending_gang(busy: World) -> None:
    urgent = renamed(example("aw-raycluster-glue"), "urgent")
    urgent["spec"]["priority"] = 10
    await busy.create(urgent)
    await busy.until_state("urgent", "Backoff")

    await busy.delete("raycluster-glue")

    await busy.until_state("urgent", "Running")
    await busy.until_state("raycluster-glue-1", "Backoff")


async def test_history_tells_the_whole_story_in_order(busy: World) -> None:
    await busy.delete("raycluster-glue")
    await busy.until_state("raycluster-glue-1", "Running")

    assert await busy.causes("raycluster-glue") == [
        "submitted",
        "dispatched",
        "created",
        "pods-running",
        "deleted",
        "released",
    ]
    assert await busy.causes("raycluster-glue-1") == [
        "submitted",
        "blocked",
        "dispatched",
        "created",
        "pods-running",
    ]


async def test_gang_that_was_deleted_and_applied_again_runs_again(busy: World) -> None:
    await busy.delete("raycluster-glue-1")
    await busy.delete("raycluster-glue")
    again = await busy.create(example("aw-raycluster-glue"))

    await busy.until_state("raycluster-glue", "Running")

    clusters = await busy.every("RayCluster")
    owners = [each["metadata"]["ownerReferences"][0]["uid"] for each in clusters]
    assert owners == [again["metadata"]["uid"]]


async def test_old_group_lives_the_same_life(world: World) -> None:
    await world.start_dispatcher()
    manifest = example("aw-raycluster-glue") | {"apiVersion": "mcad.ibm.com/v1beta1"}

    await world.create(manifest, kind="McadAppWrapper")

    status = await world.until_state("raycluster-glue", "Running", kind="McadAppWrapper")
    assert status["state"] == "Running"
    await world.delete("raycluster-glue", kind="McadAppWrapper")
    await world.until_gone("RayCluster", "raycluster-glue")
