"""Approvals on a real hub: a gang waits for conditions that somebody else sets, and our status writes keep them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import yaml

from dispatcher import errors
from dispatcher.api.names import APPROVALS
from dispatcher.kube.client import MERGE_PATCH, ClusterClient
from testbed.client import Client
from testbed.plane import Plane
from tests.cluster.dispatch_queues import Declare
from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.world import World

Json = dict[str, Any]

RIGHTS = (
    {"apiGroups": ["workload.codeflare.dev"], "resources": ["appwrappers"], "verbs": ["get", "list"]},
    {"apiGroups": ["workload.codeflare.dev"], "resources": ["appwrappers/status"], "verbs": ["patch"]},
)
"""The Role of docs/provisioning.md."""
BUDGET = {"type": "example.com/budget", "status": "True", "reason": "Granted", "message": "by finance"}
STAGED = {"type": "data-staged", "status": "True", "reason": "Copied", "message": "2 TiB"}


def gated(name: str, approvals: str) -> Json:
    """An AppWrapper of one pod that awaits these approvals."""
    made = appwrapper(name, item(job(name)))
    return {**made, "metadata": {**made["metadata"], "annotations": {APPROVALS: approvals}}}


def of_others(status: Json) -> list[Json]:
    return [each for each in status["conditions"] if each["type"] in (BUDGET["type"], STAGED["type"])]


async def until_message(world: World, name: str, message: str) -> Json:
    """The status of an AppWrapper once its pending reason has this message."""

    async def look() -> Json | None:
        status: Json = ((await world.get("AppWrapper", name)) or {}).get("status") or {}
        return status if (status.get("waiting") or {}).get("message") == message else None

    return await world.until(look, f"{name}: {message}")


def owned_by_dispatcher(appwrapper: Json) -> Json:
    """The fields of the status that the API server notes as written by the dispatcher."""
    (fields,) = (
        each["fieldsV1"]["f:status"]
        for each in appwrapper["metadata"]["managedFields"]
        if each["manager"] == "appwrapper-dispatcher" and each.get("subresource") == "status"
    )
    owned: Json = fields
    return owned


async def test_gang_waits_for_approvals_that_a_user_with_rights_to_the_status_alone_grants(
    world: World, plane: Plane
) -> None:
    await world.start_dispatcher(queue_policy="StrictFIFO")
    await world.create(gated("gated", "data-staged, example.com/budget"))
    both = "it lacks the approvals data-staged, example.com/budget"
    waiting = await until_message(world, "gated", both)
    await world.create_until("Running", appwrapper("later", item(job("later"))))

    assert waiting["waiting"] == {"reason": "AwaitingApproval", "message": both}
    assert (waiting["reason"], waiting["queuejobstate"]) == ("AwaitingApproval", "Queueing")
    assert await world.causes("gated") == ["submitted"]
    assert [(each.name, each.position) for each in await world.queue_now()] == [("gated", None)]
    owned = owned_by_dispatcher(await world.get("AppWrapper", "gated") or {})
    assert (owned["f:waiting"], owned["f:conditions"]['k:{"type":"Queueing"}']) == ({}, {}), "each as a whole"

    kubeconfig = await asyncio.to_thread(
        plane.service_account_kubeconfig, world.namespace, "approver", RIGHTS
    )
    path = world.path("AppWrapper", "gated")
    async with await ClusterClient.connect(str(kubeconfig)) as approver:
        with pytest.raises(errors.Forbidden):
            await approver.patch(path, {"spec": {"priority": 9}}, MERGE_PATCH)
        await approver.patch(
            f"{path}/status", [{"op": "add", "path": "/status/conditions/-", "value": BUDGET}]
        )
    await until_message(world, "gated", "it lacks the approval data-staged")
    token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
    applied = {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": "gated", "namespace": world.namespace},
        "status": {"conditions": [STAGED]},
    }
    await asyncio.to_thread(
        Client(plane.url, token, plane.certificate_authority).apply, f"{path}/status", applied
    )

    status = await world.until_state("gated", "Running")
    assert of_others(status) == [BUDGET, STAGED]
    assert status["conditions"][-1]["type"] == "Running"
    expected = ["submitted", "awaiting-approval", "approved", "dispatched"]
    assert (await world.causes("gated"))[: len(expected)] == expected


async def test_new_leader_reads_the_approvals_of_queue_and_gang_before_it_dispatches(
    world: World, declare: Declare
) -> None:
    first = await world.start_dispatcher()
    await declare("gate", approvals=["window"])
    gang = gated("gated", "data-staged")
    gang["metadata"]["labels"] = {"dispatcher.codeflare.dev/queue": "gate"}
    await world.create(gang)
    await until_message(world, "gated", "it lacks the approvals data-staged, window")
    await world.stop_dispatcher(first)

    path = f"{world.path('AppWrapper', 'gated')}/status"
    staged = {**STAGED, "type": "window"}
    await world.client.patch(path, [{"op": "add", "path": "/status/conditions/-", "value": staged}])
    await world.start_dispatcher()
    status = await until_message(world, "gated", "it lacks the approval data-staged")
    assert staged in status["conditions"]
    await world.client.patch(path, [{"op": "add", "path": "/status/conditions/-", "value": STAGED}])
    await world.until_state("gated", "Running")
