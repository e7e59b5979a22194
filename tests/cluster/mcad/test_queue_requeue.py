"""MCAD's cases of requeuing: a gang short of pods goes back to the queue, and the number of times has a bound."""

from __future__ import annotations

from typing import Any

from tests.cluster.manifests import appwrapper, item, job, pod
from tests.cluster.mcad.suite import TRUSTING, Suite, conditions, declaring
from tests.cluster.world import World

Json = dict[str, Any]

ATTEMPT_LABEL = "dispatcher.codeflare.dev/attempt"


def three_slow_pods(name: str, requeuing: Json, **life: str) -> Json:
    """MCAD's Job of three pods with a long init container."""
    scheduling = {"minAvailable": 3, "requeuing": requeuing}
    return appwrapper(name, item(job(name, parallelism=3, **life)), schedulingSpec=scheduling)


async def until_taken_back(suite: Suite, name: str) -> Json:
    """Its status, once it was requeued and none of its pods is left."""

    async def taken_back() -> Json | None:
        status = await suite.status(name)
        backoff = conditions(status).get("Backoff") if status else None
        is_back = backoff is not None and backoff[:2] == ("True", "PreemptionTriggered")
        return status if is_back and not await suite.pods(name) else None

    return await suite.world.until(taken_back, f"{name} is taken back")


async def dispatches(world: World, name: str) -> int:
    return (await world.causes(name)).count("dispatched")


async def test_gang_that_is_slow_is_requeued_until_it_is_waited_for_long_enough(suite: Suite) -> None:
    """MCAD CPU Requeuing - Completion After Enough Requeuing Times Test.

    Its pods take three seconds to start, and it is given one, two, four.
    """
    requeuing = {"timeInSeconds": 1, "growthType": "exponential", "maxNumRequeuings": 0}
    await suite.apply(three_slow_pods("aw-slow", requeuing, start_after="3s", run_for="1s"))

    status = await suite.until_shown("aw-slow", "Completed")

    requeuings = status["numberOfRequeueings"]
    assert status["Succeeded"] == 3
    assert requeuings > 0
    assert status["requeueingTimeInSeconds"] == 2**requeuings
    assert await dispatches(suite.world, "aw-slow") == 1 + requeuings
    assert conditions(status)["PreemptCandidate"][1] == "MinPodsNotRunning"


async def test_gang_that_never_starts_fails_after_its_last_requeuing(suite: Suite) -> None:
    """MCAD CPU Requeuing - Deletion After Maximum Requeuing Times Test."""
    requeuing = {"timeInSeconds": 1, "growthType": "none", "maxNumRequeuings": 3}
    slow_to_go = three_slow_pods("aw-never", requeuing, never_start="true", terminate_after="500ms")
    await suite.apply(slow_to_go)
    seen_together: set[frozenset[str]] = set()

    async def failed() -> Json | None:
        pods = await suite.pods("aw-never")
        seen_together.add(frozenset(each["metadata"]["labels"][ATTEMPT_LABEL] for each in pods))
        status = await suite.status("aw-never")
        return status if status.get("state") == "Failed" else None

    status = await suite.world.until(failed, "aw-never has failed")

    assert seen_together == {frozenset(), *(frozenset(number) for number in "1234")}
    assert (status["queuejobstate"], status["numberOfRequeueings"]) == ("Failed", 3)
    assert conditions(status)["PreemptCandidate"][:2] == ("True", "MinPodsNotRunning")
    assert await suite.world.get("Job", "aw-never") is None
    assert await suite.pods("aw-never") == []
    await suite.cycles_pass(20)
    assert (await suite.status("aw-never"))["state"] == "Failed"
    assert await dispatches(suite.world, "aw-never") == 4


async def test_gang_without_a_node_with_room_is_requeued_and_a_gang_that_fits_runs(suite: Suite) -> None:
    """MCAD Scheduling Fail Fast Preemption Test."""
    await suite.fill()
    requeuing = {"timeInSeconds": 1, "growthType": "none"}
    await suite.apply(declaring("aw-ff-deployment-1-850-cpu", 1, "850m", "850m", requeuing=requeuing))
    await suite.until_pods_exist("aw-ff-deployment-1-850-cpu")
    await suite.until_unschedulable("aw-ff-deployment-1-850-cpu", 1)

    await suite.apply(declaring("aw-ff-deployment-2-340-cpu", 2, "340m", "340m"))

    await suite.until_ready("aw-ff-deployment-2-340-cpu", 2)
    status = await suite.stays_without_pods("aw-ff-deployment-1-850-cpu")
    told = conditions(status)
    said = "Insufficient number of Running and Completed pods, minimum=1, running=0, completed=0."
    assert told["PreemptCandidate"][1:] == ("MinPodsNotRunning", said)
    assert told["Backoff"] == ("True", "PreemptionTriggered", said)
    messages = await suite.world.messages("aw-ff-deployment-1-850-cpu")
    assert any(each.startswith(f"{said}; no node for pod aw-ff-deployment-1-850-cpu-") for each in messages)


@TRUSTING
async def test_gang_that_runs_in_part_is_requeued_for_the_pod_that_cannot_be_scheduled(suite: Suite) -> None:
    """The other half of MCAD's check: enough pods run, but not all have a node."""
    await suite.fill()
    declared = [{"replicas": 1, "requests": {"cpu": "425m"}}]
    scheduling = {
        "minAvailable": 1,
        "requeuing": {"timeInSeconds": 4, "growthType": "none", "pauseTimeInSeconds": 3600},
    }
    items = (
        item(pod(name, {"cpu": cpu}), custompodresources=declared)
        for name, cpu in (("has-room", "425m"), ("has-none", "426m"))
    )
    await suite.apply(appwrapper("aw-in-part", *items, schedulingSpec=scheduling))

    status = await until_taken_back(suite, "aw-in-part")

    said = "Pods failed scheduling failed=1, running=1."
    assert conditions(status)["PreemptCandidate"][1:] == ("PodsFailedScheduling", said)
    assert conditions(status)["Backoff"] == ("True", "PreemptionTriggered", said)


async def test_requeued_gang_says_so_while_its_objects_are_removed(suite: Suite) -> None:
    """What MCAD showed between two attempts: Backoff for being preempted, then in the queue again."""
    requeuing = {"timeInSeconds": 1, "growthType": "none", "pauseTimeInSeconds": 3600}
    await suite.apply(three_slow_pods("aw-requeued", requeuing, never_start="true"))

    await until_taken_back(suite, "aw-requeued")
    await suite.cycles_pass(3)

    status = await suite.status("aw-requeued")
    said = "Insufficient number of Running and Completed pods, minimum=3, running=0, completed=0."
    shown = (status["state"], status["queuejobstate"], status["numberOfRequeueings"])
    assert shown == ("Pending", "Backoff", 1)
    assert conditions(status)["Backoff"] == ("True", "PreemptionTriggered", said)
    assert (await suite.world.get("Job", "aw-requeued"), await suite.pods("aw-requeued")) == (None, [])
    await suite.fill()
