"""A gang whose object Kueue is to admit: the test does for the Job what Kueue does, and writes `suspend`."""

from __future__ import annotations

from typing import Any

from dispatcher.api.annotations import ADMISSION_GRACE
from dispatcher.api.names import KUEUE_QUEUE_LABEL
from tests.cluster.manifests import appwrapper, bent, changed, item, job, small_job
from tests.cluster.world import World

Json = dict[str, Any]

WITHIN_A_SECOND = {ADMISSION_GRACE: "1s"}
"""Without pods the gang is requeued after a second, unless Kueue is to admit it."""


def unhealthy_in(found: Json | None) -> Json | None:
    status: Json = (found or {}).get("status") or {}
    return status.get("unhealthy")


def is_healthy(found: Json | None) -> bool:
    return found is not None and unhealthy_in(found) is None


async def steps_of(world: World) -> list[str]:
    """What happened to the gang, but for what was told of its health: words about it follow a minute later."""
    return [cause for cause in await world.causes("train") if cause != "unhealthy"]


async def test_gang_that_never_ran_keeps_its_place_until_kueue_admits_its_job(world: World) -> None:
    await world.start_dispatcher()
    slow = job("train", 2, "1", never_start="true")
    labelled = changed(slow, "metadata.labels", {KUEUE_QUEUE_LABEL: "users"})
    await world.create_until("Dispatched", bent(appwrapper("train", item(labelled)), WITHIN_A_SECOND))

    await world.merge("Job", "train", {"spec": {"suspend": True}})
    told = await world.until_object("AppWrapper", "train", unhealthy_in, "the wait for Kueue is told")
    waits = f"Job {world.namespace}/train waits until Kueue admits it in queue users"
    assert told["reason"] == "AdmissionAwaited"
    assert told["message"] in {waits, f"no pods, for at most 86400 s: {waits}"}  # its pods may be there still
    before = await steps_of(world)

    async def has_no_pods() -> bool:
        return not await world.names("Pod")

    await world.until(has_no_pods, "its pods are gone")
    await world.create(small_job("other"))
    await world.until_state("other", "Running")
    assert await steps_of(world) == before

    await world.merge("Job", "train", {"spec": {"suspend": False}})
    await world.until_object("AppWrapper", "train", is_healthy, "it waits no more")
    causes = await world.causes("train")
    assert (causes.count("dispatched"), causes.count("evicted")) == (1, 0)


async def test_gang_that_kueue_does_not_admit_in_time_is_requeued(world: World) -> None:
    await world.start_dispatcher(kueue_wait_seconds="2")
    slow = job("train", 2, "1", never_start="true")
    labelled = changed(slow, "metadata.labels", {KUEUE_QUEUE_LABEL: "nobody-serves-it"})
    await world.create_until("Dispatched", appwrapper("train", item(labelled)))

    await world.merge("Job", "train", {"spec": {"suspend": True}})
    await world.until_history("train", "evicted")
    assert "AdmissionAwaited" in await world.reasons("train")
    await world.until_gone("Job", "train")
