"""Capacity that is requested in members: where it is asked for, and under whose ownership."""

from __future__ import annotations

from dispatcher.api.names import ANCHOR_PREFIX
from tests.cluster.members.fleet import Fleet
from tests.cluster.provisioning import CLASS, GPU, REQUEST, TEMPLATE, answer, gpu_gang, until_requested

PROVISIONING = {"className": CLASS, "managedResources": [GPU]}


async def test_member_that_cannot_provide_gives_way_to_another_and_nothing_is_left_there(
    fleet: Fleet,
) -> None:
    await fleet.declare("east", provisioning=PROVISIONING)
    await fleet.declare("west", provisioning=PROVISIONING)
    await fleet.start_dispatcher()
    await fleet.hub.create(gpu_gang("ray"))

    await until_requested(fleet.members["east"], "ray-provisioning-1")
    await answer(fleet.members["east"], "ray-provisioning-1", Failed="out of stock")
    request = await until_requested(fleet.members["west"], "ray-provisioning-2")
    (owner,) = request["metadata"]["ownerReferences"]
    assert owner["name"].startswith(ANCHOR_PREFIX)
    assert await fleet.objects(REQUEST) == {"west": {"ray-provisioning-2"}}
    assert set(await fleet.objects(TEMPLATE)) == {"west"}

    await answer(fleet.members["west"], "ray-provisioning-2", Provisioned="here they are")
    await fleet.hub.until_history("ray", "created")

    async def is_told() -> bool:
        status = ((await fleet.hub.get("AppWrapper", "ray")) or {})["status"]
        return bool(status.get("cluster") == "west")

    await fleet.hub.until(is_told, "the status names the cluster that provides the capacity")
    await fleet.hub.delete("ray")
    await fleet.hub.until_history("ray", "released")
    assert await fleet.objects(REQUEST) == {}
    assert await fleet.objects(TEMPLATE) == {}
