"""What MCAD left behind when it was stopped: docs/from-mcad.md says what becomes of it."""

from __future__ import annotations

from typing import Any

from tests.cluster.golden import COMPLETED_BY_MCAD, RECORDED_BY_MCAD, as_mcad_created
from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.world import World, example

Json = dict[str, Any]


async def test_gangs_of_mcad_keep_their_pods_and_waiting_gangs_go_on_waiting(world: World) -> None:
    made = await left_by_mcad(world, example("aw-raycluster-glue"), RECORDED_BY_MCAD["raycluster-glue"])
    await left_by_mcad(
        world,
        example("aw-raycluster-glue-1"),
        RECORDED_BY_MCAD["raycluster-glue-1"],
        is_dispatched=False,
    )
    await left_by_mcad(world, appwrapper("done", item(job("done"))), COMPLETED_BY_MCAD, is_dispatched=False)

    async def pods() -> set[str]:
        found = await world.every("Pod")
        bound = {each["metadata"]["uid"] for each in found if each["spec"].get("nodeName")}
        return bound if len(bound) == 2 else set()

    running = await world.until(pods, "both pods of the gang are bound")

    await world.start_dispatcher()

    await world.until_state("raycluster-glue", "Running")
    await world.until_state("raycluster-glue-1", "Backoff")
    assert await world.causes("raycluster-glue") == ["adopted", "created", "pods-running"]
    assert (await world.causes("raycluster-glue-1"))[:2] == ["submitted", "blocked"]
    assert {each["metadata"]["uid"] for each in await world.every("RayCluster")} == made
    assert {each["metadata"]["uid"] for each in await world.every("Pod")} == running
    await world.delete("raycluster-glue")
    await world.until_state("raycluster-glue-1", "Running")
    await world.until_state("done", "Completed")
    assert await world.every("Job") == []


async def left_by_mcad(world: World, manifest: Json, status: Json, *, is_dispatched: bool = True) -> set[str]:
    """An AppWrapper with MCAD's status; if it was dispatched, with its objects as MCAD created them. Their uids."""
    name = manifest["metadata"]["name"]
    uid = (await world.create(manifest))["metadata"]["uid"]
    await world.merge_status("AppWrapper", name, status)
    items = manifest["spec"]["resources"]["GenericItems"] if is_dispatched else []
    return {
        (await world.create(as_mcad_created(each["generictemplate"], name, uid)))["metadata"]["uid"]
        for each in items
    }
