"""What never becomes free, and what is given back because it never will be used, by a real scheduler's word."""

from __future__ import annotations

from tests.cluster.manifests import appwrapper, bent, changed, daemonset, item, job, small_job
from tests.cluster.world import World

PREFIX = "workload.codeflare.dev.appwrapper"


async def test_gang_that_needs_capacity_of_a_daemonset_shows_that_and_blocks_no_strict_queue(
    world: World,
) -> None:
    await world.create(daemonset("agent"))

    async def agents_run() -> bool:
        pods = await world.every("Pod")
        return len(pods) == 3 and all(each["status"].get("phase") == "Running" for each in pods)

    await world.until(agents_run, "a pod of the DaemonSet runs on each node")
    await world.start_dispatcher(queue_policy="StrictFIFO")
    told = await world.create_until(
        "Backoff", appwrapper("large", item(job("large", parallelism=3, cpu="8")), priority=100)
    )

    message = "cluster hub: cpu: needs 24, 23700m in all of it (of 24, 300m are taken by DaemonSets and static pods)"
    assert (told["waiting"]["reason"], told["waiting"]["message"]) == ("LargerThanCluster", message)
    await world.create_until("Running", small_job("small"))

    await world.delete("agent", "DaemonSet")
    await world.delete("small")
    await world.until_state("large", "Running")


async def test_gang_of_which_a_pod_can_never_be_scheduled_gives_its_capacity_back(world: World) -> None:
    await world.start_dispatcher(fit="aggregate")  # by nodes, it would not be dispatched
    nowhere = changed(job("nowhere"), "spec.template.spec.nodeSelector", {"rack": "none"})
    gang = appwrapper("gang", item(job("runs")), item(nowhere))
    patience = {"warmupGracePeriodDuration": "1s", "retryPausePeriodDuration": "0s", "retryLimit": "1"}
    await world.create(bent(gang, {f"{PREFIX}/{key}": value for key, value in patience.items()}))

    status = await world.until_state("gang", "Failed")

    assert await world.causes("gang") == [
        *("submitted", "dispatched", "created", "unhealthy", "evicted", "removed"),
        *("dispatched", "created", "unhealthy", "run-failed", "removed"),
    ]
    failed = next(each for each in status["conditions"] if each["type"] == "Failed")
    counts, scheduler = failed["message"].split("; no node for pod nowhere-")
    assert (failed["reason"], counts) == (
        "InsufficientPodsReady",
        "1 of 2 pods run: Pods failed scheduling failed=1, running=1. (requeued so far: 1)",
    )
    assert "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector" in scheduler
    assert await world.get("Job", "runs") is None
