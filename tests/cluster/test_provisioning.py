"""Capacity that is requested before the objects of a gang are created, on a real API server."""

from __future__ import annotations

import json

from dispatcher.api.names import APPROVALS, UID_LABEL
from tests.cluster.dispatch_queues import Declare
from tests.cluster.manifests import appwrapper, item, job
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
from tests.cluster.world import World

SETTING = json.dumps(
    {
        "className": CLASS,
        "managedResources": [GPU],
        "parameters": {"maxRunDurationSeconds": "3600"},
        "authorParameters": ["zone"],
        "retry": {"limit": 1, "baseSeconds": 1},
    }
)


async def test_gang_is_created_once_its_request_is_provisioned_and_all_of_it_goes_with_the_gang(
    world: World,
) -> None:
    await world.start_dispatcher(provisioning=SETTING)
    gang = gpu_gang("ray")
    gang["metadata"]["annotations"] = {
        "provreq.kueue.x-k8s.io/zone": "b",
        "provreq.kueue.x-k8s.io/maxRunDurationSeconds": "9999999",
    }
    await world.create(gang)
    request = await until_requested(world, "ray-provisioning-1")
    (template,) = await world.every(TEMPLATE)
    assert request["spec"] == {
        "provisioningClassName": CLASS,
        "podSets": [{"podTemplateRef": {"name": template["metadata"]["name"]}, "count": 2}],
        "parameters": {"maxRunDurationSeconds": "3600", "zone": "b"},
    }
    await world.create(appwrapper("other", item(job("other"))))
    await world.until_state("other", "Running")  # it needs no request, and waits for none
    status = await until_waiting(world, "ray", "not let authors set: maxRunDurationSeconds")
    assert status["waiting"]["reason"] == "AwaitingProvisioning"
    assert await world.get("RayCluster", "ray") is None

    await lose_label(world, "ray-provisioning-1")
    await answer(world, "ray-provisioning-1", Accepted="nodes in 5 minutes")
    await until_waiting(world, "ray", "nodes in 5 minutes")
    await answer(world, "ray-provisioning-1", Accepted="yes", Provisioned="here they are")
    status = await world.until_state("ray", "Running")
    assert "waiting" not in status
    pods = [each for each in await world.every("Pod") if each["metadata"]["name"].startswith("ray")]
    assert len(pods) == 3
    for pod in pods:
        annotations = pod["metadata"]["annotations"]
        assert annotations["autoscaling.x-k8s.io/consume-provisioning-request"] == "ray-provisioning-1"
        assert annotations["autoscaling.x-k8s.io/provisioning-class-name"] == CLASS
    await answer(world, "ray-provisioning-1", Provisioned="yes", BookingExpired="used in time")

    await world.delete("ray")
    for kind, name in ((REQUEST, "ray-provisioning-1"), (TEMPLATE, template["metadata"]["name"])):
        await world.until_gone(kind, name)
    causes = await world.until_history("ray", "released")
    assert [each for each in causes if each.startswith("provision")] == [
        "provisioning",
        "provisioning",
        "provisioned",
    ]


async def lose_label(world: World, request: str) -> None:
    """Take from a request the label by which it is watched, and return once the dispatcher has put it on again."""

    async def look() -> bool:
        found = await world.get(REQUEST, request)
        return found is not None and UID_LABEL in found["metadata"]["labels"]

    await world.merge(REQUEST, request, {"metadata": {"labels": {UID_LABEL: None}}})
    await world.until(look, f"{request} is marked again")


async def test_request_goes_when_its_gang_is_complete_and_the_objects_stay_for_their_logs(
    world: World,
) -> None:
    await world.start_dispatcher(provisioning=json.dumps({"className": CLASS}))
    await world.create(appwrapper("short", item(job("short", run_for="1s"))))
    await until_requested(world, "short-provisioning-1")
    await answer(world, "short-provisioning-1", Provisioned="here they are")
    await world.until_state("short", "Completed")
    assert await world.every(REQUEST) == []
    assert await world.every(TEMPLATE) == []
    assert await world.names("Job") == {"short"}


async def test_capacity_that_does_not_come_is_requested_again_and_then_fails_in_the_words_of_the_class(
    world: World,
) -> None:
    await world.start_dispatcher(provisioning=SETTING)
    await world.create(gpu_gang("ray"))
    for number in (1, 2):
        await until_requested(world, f"ray-provisioning-{number}")
        await answer(world, f"ray-provisioning-{number}", Failed="out of stock in zone b")
        await world.until_gone(REQUEST, f"ray-provisioning-{number}")
    status = await world.until_state("ray", "Failed")
    assert status["reason"] == "ProvisioningFailed"
    assert "out of stock in zone b" in json.dumps(status["conditions"])
    assert await world.every(REQUEST) == []
    assert await world.every(TEMPLATE) == []


async def test_queue_requests_the_capacity_of_its_gangs_within_its_quota(
    world: World, declare: Declare
) -> None:
    await declare(
        "default",
        resources={GPU: {"nominalQuota": 2}},
        preemption={"withinQueue": "LowerPriority"},
        provisioning={"className": CLASS, "managedResources": [GPU]},
    )
    await world.start_dispatcher()
    await world.create(gpu_gang("first"))
    await until_requested(world, "first-provisioning-1")
    await world.create(gpu_gang("second"))
    status = await until_waiting(world, "second", "quota")
    assert status["waiting"]["reason"] == "InsufficientQuota"
    assert await world.names(REQUEST) == {"first-provisioning-1"}
    urgent = gpu_gang("urgent")
    urgent["spec"]["priority"] = 9
    await world.create(urgent)
    await until_requested(world, "urgent-provisioning-1")
    assert await world.names(REQUEST) == {"urgent-provisioning-1"}
    assert await world.names(TEMPLATE) == {"ppt-urgent-provisioning-1-0"}
    await until_waiting(world, "first", "quota")  # the pause after its preemption has ended
    await world.delete("urgent")
    await until_requested(world, "first-provisioning-2")
    await world.delete("first")
    await until_requested(world, "second-provisioning-1")


async def test_capacity_that_is_revoked_takes_the_gang_back_and_a_new_dispatcher_goes_on_with_its_request(
    world: World,
) -> None:
    process = await world.start_dispatcher(provisioning=SETTING)
    await world.create(gpu_gang("ray"))
    await until_requested(world, "ray-provisioning-1")
    await world.kill_dispatcher(process)
    await answer(world, "ray-provisioning-1", Provisioned="here they are")
    await world.start_dispatcher(provisioning=SETTING)
    await world.until_state("ray", "Running")

    await answer(world, "ray-provisioning-1", Provisioned="yes", CapacityRevoked="maintenance")
    await until_requested(world, "ray-provisioning-2")
    assert await world.get(REQUEST, "ray-provisioning-1") is None
    assert await world.get("RayCluster", "ray") is None
    assert "maintenance" in " ".join(await world.messages("ray"))


async def test_request_of_that_name_that_is_not_ours_fails_the_gang_and_stays(world: World) -> None:
    spec = {
        "provisioningClassName": "another.example.com",
        "podSets": [{"podTemplateRef": {"name": "theirs"}, "count": 1}],
    }
    body = {"apiVersion": "autoscaling.x-k8s.io/v1", "kind": REQUEST, "spec": spec}
    theirs = await world.create({**body, "metadata": {"name": "ray-provisioning-1"}}, REQUEST)
    await world.start_dispatcher(provisioning=SETTING)
    status = await world.create_until("Failed", gpu_gang("ray"))
    assert "ray-provisioning-1" in json.dumps(status["conditions"])
    (left,) = await world.every(REQUEST)
    assert (left["metadata"]["uid"], left["spec"]) == (theirs["metadata"]["uid"], spec)
    assert await world.every(TEMPLATE) == []
    assert await world.get("RayCluster", "ray") is None
    await world.delete("ray-provisioning-1", REQUEST)


async def test_nothing_is_written_while_gangs_wait_for_an_answer_and_for_an_approval(world: World) -> None:
    await world.start_dispatcher(provisioning=SETTING)
    await world.create(gpu_gang("ray"))
    held = appwrapper("held", item(job("held")))
    held["metadata"]["annotations"] = {APPROVALS: "data-staged"}
    await world.create(held)
    await until_waiting(world, "ray", "not promised yet")
    await until_waiting(world, "held", "it lacks the approval data-staged")
    before = await versions(world)
    await world.create(appwrapper("other", item(job("other", run_for="1s"))))
    await world.until_state("other", "Completed")  # it goes on, and has looked at all meanwhile
    assert await versions(world) == before


async def versions(world: World) -> list[object]:
    """What history says of the gangs that wait, and the versions of their AppWrappers and of the request."""
    named = (("AppWrapper", "ray"), (REQUEST, "ray-provisioning-1"), ("AppWrapper", "held"))
    found = [await world.get(kind, name) for kind, name in named]
    written = [each["metadata"]["resourceVersion"] for each in found if each is not None]
    assert len(written) == len(named)
    return [await world.causes("ray"), await world.causes("held"), *written]
