"""MCAD's cases of accounting: what fits goes, what does not has no pod, and whoever fits may pass it."""

from __future__ import annotations

from tests.cluster.manifests import appwrapper, changed, item, job, pod
from tests.cluster.mcad.suite import TRUSTING, Suite, conditions, declaring, two_deployed


async def test_capacity_left_beside_a_gang_is_given_to_the_next(suite: Suite) -> None:
    """MCAD CPU Accounting Test."""
    await suite.fill()

    await suite.apply(two_deployed("aw-deployment-2-350cpu", "350m"))

    await suite.until_ready("aw-deployment-2-350cpu", 2)


async def test_one_milli_too_many_has_no_pod_and_is_passed_by_what_fits(suite: Suite) -> None:
    """MCAD CPU Preemption Test."""
    await suite.fill()
    await suite.apply(two_deployed("aw-deployment-2-426cpu", "426m"))
    await suite.stays_without_pods("aw-deployment-2-426cpu")

    await suite.apply(two_deployed("aw-deployment-2-425cpu", "425m"))

    await suite.until_ready("aw-deployment-2-425cpu", 2)
    assert await suite.pods("aw-deployment-2-426cpu") == []


async def test_pending_reason_of_a_gang_one_milli_too_large_gives_the_amounts(suite: Suite) -> None:
    """MCAD CPU Accounting Queuing Test."""
    await suite.fill()

    await suite.apply(two_deployed("aw-deployment-2-426cpu", "426m"))

    status = await suite.stays_without_pods("aw-deployment-2-426cpu")
    assert status["waiting"]["message"] == "cluster hub: cpu: needs 852m, 850m free"
    backoff = next(each for each in status["conditions"] if each["type"] == "Backoff")
    assert (backoff["reason"], backoff["message"]) == (
        "AppWrapperNotRunnable.",
        "Insufficient resources to dispatch AppWrapper.",
    )


async def test_declared_pods_that_agree_with_the_template_run(suite: Suite) -> None:
    """MCAD Custom Pod Resources Test."""
    await suite.apply(declaring("aw-deployment-2-550-vs-550-cpu", 2, "550m", "550m"))

    await suite.until_pods_exist("aw-deployment-2-550-vs-550-cpu")
    await suite.until_ready("aw-deployment-2-550-vs-550-cpu", 2)


@TRUSTING
async def test_declaring_too_little_lets_pods_be_made_that_no_node_has_room_for(suite: Suite) -> None:
    """MCAD Bad Custom Pod Resources vs. Deployment Pod Resource Not Queuing Test."""
    await suite.fill()

    await suite.apply(declaring("aw-deployment-2-425-vs-426-cpu", 2, "425m", "426m"))

    await suite.until_unschedulable("aw-deployment-2-425-vs-426-cpu", 2)
    phases = [each["status"]["phase"] for each in await suite.pods("aw-deployment-2-425-vs-426-cpu")]
    assert phases == ["Pending", "Pending"]


async def test_gang_that_declares_too_little_waits_for_the_requests_of_its_pods_and_shows_both(
    suite: Suite,
) -> None:
    """The same case by default."""
    name = "aw-deployment-2-425-vs-426-cpu"
    await suite.fill()

    await suite.apply(declaring(name, 2, "425m", "426m"))

    status = await suite.stays_without_pods(name)
    assert status["waiting"]["message"] == "cluster hub: cpu: needs 852m, 850m free"
    said = (
        "spec.resources.GenericItems[0].custompodresources: cpu: 850m declared, 852m by the template; "
        "the larger is charged"
    )
    told = await suite.world.event(name, "SpecAdjusted")
    assert (told["type"], told["message"]) == ("Warning", said)
    assert (await suite.world.messages(name))[0] == said
    assert conditions(status)["DemandDiffers"] == ("True", "DeclarationDiffers", said)


async def test_declaring_too_much_waits_though_its_pods_would_have_room(suite: Suite) -> None:
    """MCAD Bad Custom Pod Resources vs. Deployment Pod Resource Queuing Test 2."""
    await suite.fill()

    await suite.apply(declaring("aw-deployment-2-4270-vs-425-cpu", 2, "4270m", "425m"))

    status = await suite.stays_without_pods("aw-deployment-2-4270-vs-425-cpu")
    assert status["waiting"]["reason"] == "LargerThanCluster"


async def test_gang_larger_than_every_cluster_stays_pending_and_blocks_no_other(suite: Suite) -> None:
    """Create AppWrapper - Generic Pod Too Big - 1 Pod; MCAD Job Large Compute Requirement Test."""
    too_big = pod("aw-generic-big-pod-1", {"cpu": "100", "memory": "150Mi"})
    containers = "spec.template.spec.containers.0"
    requests = {"cpu": "100", "nvidia.com/gpu": "100"}
    large = changed(job("aw-test-large-compute-1"), f"{containers}.resources.requests", requests)
    for template in (too_big, large):
        name = template["metadata"]["name"]
        await suite.apply(appwrapper(name, item(template), schedulingSpec={"minAvailable": 1}))

    for template in (too_big, large):
        await suite.stays_without_pods(template["metadata"]["name"])

    await suite.fill()
