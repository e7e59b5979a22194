"""Capacity that is requested in members: where it is asked for, and under whose ownership."""

from __future__ import annotations

from dispatcher.api.names import ANCHOR_PREFIX
from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.members.fleet import Fleet
from tests.cluster.provisioning import (
    CLASS,
    GPU,
    REQUEST,
    TEMPLATE,
    answer,
    gpu_gang,
    until_requested,
    until_waiting,
)

PROVISIONING = {"className": CLASS, "managedResources": [GPU]}


async def test_gang_leaves_nothing_in_a_member_that_cannot_provision_and_runs_in_another(
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


async def test_capacity_that_a_member_revokes_is_requested_anew_and_nothing_is_left_there(
    fleet: Fleet,
) -> None:
    east = fleet.members["east"]
    await fleet.declare("east", provisioning={**PROVISIONING, "retry": {"baseSeconds": 1}})
    await fleet.start_dispatcher()
    await fleet.hub.create(gpu_gang("ray"))
    await until_requested(east, "ray-provisioning-1")
    await answer(east, "ray-provisioning-1", Provisioned="here they are")
    await fleet.hub.until_history("ray", "created")

    await answer(east, "ray-provisioning-1", Provisioned="yes", CapacityRevoked="maintenance")
    await until_requested(east, "ray-provisioning-2")
    assert await fleet.objects(REQUEST) == {"east": {"ray-provisioning-2"}}
    assert await fleet.objects("RayCluster") == {}
    said = "the capacity was revoked in cluster east: maintenance; retry 1 of 3 in 1 s"
    assert said in await fleet.hub.messages("ray")


async def test_request_of_that_name_that_is_not_ours_sends_the_gang_to_another_member(fleet: Fleet) -> None:
    spec = {
        "provisioningClassName": "another.example.com",
        "podSets": [{"podTemplateRef": {"name": "theirs"}, "count": 1}],
    }
    body = {"apiVersion": "autoscaling.x-k8s.io/v1", "kind": REQUEST, "spec": spec}
    east = fleet.members["east"]
    await east.create({**body, "metadata": {"name": "ray-provisioning-1"}}, REQUEST)
    await fleet.declare("east", provisioning=PROVISIONING)
    await fleet.declare("west", provisioning=PROVISIONING)
    await fleet.start_dispatcher()
    await fleet.hub.create(gpu_gang("ray"))
    await until_requested(fleet.members["west"], "ray-provisioning-2")
    assert await fleet.objects(REQUEST) == {"east": {"ray-provisioning-1"}, "west": {"ray-provisioning-2"}}
    assert set(await fleet.objects(TEMPLATE)) == {"west"}
    await east.delete("ray-provisioning-1", REQUEST)


async def test_gang_trusts_in_nodes_that_a_member_is_to_get(fleet: Fleet) -> None:
    shape = {"allocatable": {"cpu": "16", "memory": "61Gi"}, "labels": {"pool": "large"}}
    pool = {"name": "large", "node": shape, "max": 1}
    await fleet.declare("east", potential=[pool], bindWithinSeconds=10)
    await fleet.start_dispatcher()
    await fleet.hub.create(appwrapper("large", item(job("large", cpu="12"))))
    status = await until_waiting(fleet.hub, "large", "pool large is not trusted until")
    assert status["waiting"]["reason"] == "NeedsPotentialNodes"
    assert "trusts 1 node of pool large in cluster east to come" in " ".join(
        await fleet.hub.messages("large")
    )
    assert "PotentialNodesMissing" in await fleet.hub.reasons("large")
    assert await fleet.objects("Job") == {}
