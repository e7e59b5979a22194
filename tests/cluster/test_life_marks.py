"""How what belongs to an AppWrapper is told from what does not: labels, names, groups, namespaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from dispatcher.api.names import (
    ATTEMPT_LABEL,
    GROWTH_ANNOTATION,
    GROWTH_GATE,
    LEGACY_GROUP,
    MCAD_NAME_LABEL,
    NAME_LABEL,
    QUEUE_LABEL,
    UID_LABEL,
)
from dispatcher.core.model.seals import CLOCKS_DIFFER
from testbed.nodes import NODES
from tests.cluster.dispatch_queues import Declare
from tests.cluster.lives import breaking_job
from tests.cluster.manifests import appwrapper, changed, config_map, item, job, pod, raycluster, small_job
from tests.cluster.world import World
from tests.hostile import marked_pod

Json = dict[str, Any]

LONGEST_NAME = "n" * 63 + "." + "a" * 63 + "." + "m" * 63 + "." + "e" * 61


def labels_of(manifest: Json) -> tuple[str | None, str | None]:
    labels = manifest["metadata"].get("labels", {})
    return labels.get(NAME_LABEL), labels.get(MCAD_NAME_LABEL)


async def test_both_names_of_the_label_the_uid_and_the_attempt_reach_objects_and_every_pod(
    world: World,
) -> None:
    await world.start_dispatcher()
    made = await world.create(appwrapper("marked", item(raycluster("ray", workers=2)), item(job("job"))))
    await world.until_state("marked", "Running")

    found = [*await world.every("RayCluster"), *await world.every("Job"), *await world.every("Pod")]

    assert [labels_of(each) for each in found] == [("marked", "marked")] * 6
    ours = {UID_LABEL: made["metadata"]["uid"], ATTEMPT_LABEL: "1"}
    assert all(each["metadata"]["labels"].items() >= ours.items() for each in found)


async def test_labels_of_their_author_are_kept(world: World) -> None:
    await world.start_dispatcher()
    named = changed(job("job"), "metadata.labels", {MCAD_NAME_LABEL: "theirs", "team": "blue"})
    theirs = changed(named, "spec.template.metadata.labels", {NAME_LABEL: "also-theirs"})
    await world.create_until("Running", appwrapper("marked", item(theirs)))

    made, *_ = await world.every("Job")
    pod, *_ = await world.every("Pod")

    assert (labels_of(made), made["metadata"]["labels"]["team"]) == (("marked", "theirs"), "blue")
    assert labels_of(pod) == ("also-theirs", "marked")


async def test_longest_name_there_is_runs_and_goes(world: World) -> None:
    await world.start_dispatcher()
    assert len(LONGEST_NAME) == 253
    status = await world.create_until(
        "Running", appwrapper(LONGEST_NAME, item(raycluster("ray")), item(config_map("input")))
    )

    async def counted() -> bool:
        found = await world.get("AppWrapper", LONGEST_NAME)
        return bool(found and found["status"].get("running") == 2)

    await world.until(counted, "both pods are counted")
    pods = [labels_of(each) for each in await world.every("Pod")]
    assert (len(pods), len(set(pods)), status["state"]) == (2, 1, "Running")
    assert pods[0][0] == pods[0][1]
    await world.merge("AppWrapper", LONGEST_NAME, {"spec": {"suspend": True}})
    await world.until_state(LONGEST_NAME, "Suspended")
    await world.delete(LONGEST_NAME)
    await world.until_gone("AppWrapper", LONGEST_NAME)
    assert await world.until_history(LONGEST_NAME, "deleted")


async def test_twin_of_the_other_group_fails_and_goes_alone(world: World) -> None:
    await world.start_dispatcher()
    await world.create(appwrapper("twin", item(job("runs"))))
    legacy = {**appwrapper("twin", item(breaking_job("breaks"))), "apiVersion": f"{LEGACY_GROUP}/v1beta1"}
    await world.create(legacy, "McadAppWrapper")

    await world.until_shown("twin", "Failed", "McadAppWrapper")
    running = await world.until_state("twin", "Running")
    await world.delete("twin", "McadAppWrapper")
    await world.until_gone("Job", "breaks")

    assert running["state"] == "Running"
    assert await world.names("Job") == {"runs"}
    await world.until(lambda: only_pod_runs(world), "the pod of the Job is gone, too")


async def only_pod_runs(world: World) -> bool:
    return [each["status"]["phase"] for each in await world.every("Pod")] == ["Running"]


# -----------------------------------------------------------------------------------------------------------
# Pods that a tenant makes under its own AppWrapper, with marks that the dispatcher makes: they grant it
# nothing.


GPU = "nvidia.com/gpu"
DOWN = "down"
"""A node whose kubelet never answers: it refuses no pod, whatever the pod asks for."""
LARGE = 30
"""AppWrappers that keep intake busy for a moment."""
CLAIMS = {
    "of-a-gate": ("", GROWTH_GATE),
    "without-a-node": ("",),
    "on-a-node-that-does-not-exist": ("ghost",),
    "on-a-node-that-is-down": (DOWN,),
}


def in_queue(queue: str, manifest: Json) -> Json:
    return changed(manifest, "metadata.labels", {QUEUE_LABEL: queue})


async def forge(world: World, owner: Json, claim: tuple[str, ...]) -> None:
    """Make a pod of the AppWrapper that claims to be growth of thousands of GPUs, or of its base gang."""
    node, *gates = claim
    uid = owner["metadata"]["uid"]
    marks = {GROWTH_ANNOTATION: f"{9 if gates else 0} 0.w"}
    body = marked_pod({UID_LABEL: uid}, marks, {GPU: "4000"}, *gates, node=node, uid=uid)
    await world.create(changed(body, "metadata.name", "forged"))


@pytest.fixture
async def node_that_is_down(world: World) -> AsyncIterator[None]:
    """A node that exists, and is not Ready. The forged pod goes with it: no kubelet would end it."""
    made = await world.client.create(
        NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": DOWN}, "spec": {}}
    )
    yield
    forged = await world.get("Pod", "forged")
    if forged is not None:
        await world.client.delete(world.path("Pod", "forged"), forged["metadata"]["uid"], grace_seconds=0)
    await world.client.delete(f"{NODES}/{DOWN}", made["metadata"]["uid"])


@pytest.mark.usefixtures("node_that_is_down")
@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
async def test_forged_growth_is_charged_to_no_queue(
    world: World, declare: Declare, claim: tuple[str, ...]
) -> None:
    await declare("of-both")
    for queue in ("own", "of-others"):
        await declare(queue, parent="of-both", resources={GPU: {"nominalQuota": 1}})
    await world.start_dispatcher()
    small = await world.create(in_queue("own", appwrapper("small", item(job("small")))))
    await world.until_state("small", "Running")

    await forge(world, small, claim)
    later = in_queue("own", small_job("later"))
    await world.create_until("Running", later)  # its pod came after the forged one, so that one was seen

    one = changed(job("one"), "spec.template.spec.containers.0.resources", {"limits": {GPU: "1"}})
    await world.create_until("Running", in_queue("of-others", appwrapper("other", item(one))))
    assert "held" not in ((await world.get("AppWrapper", "small")) or {})["status"]
    assert not {"grew", "granted"} & set(await world.causes("small"))


async def test_pod_under_the_uid_of_an_appwrapper_that_waits_for_its_intake_adopts_nothing(
    world: World, declare: Declare
) -> None:
    await declare("default", approvals=["example.com/budget"])
    first = await world.start_dispatcher()
    await world.create(appwrapper("before", item(job("before"))))
    await world.until_object("AppWrapper", "before", awaits_approval, "the first one waits for its approval")
    await world.kill_dispatcher(first)
    await age_key(world, CLOCKS_DIFFER + timedelta(minutes=1))
    await world.start_dispatcher()
    await world.create(appwrapper("leads", item(job("leads"))))
    await world.until_object("AppWrapper", "leads", awaits_approval, "the successor leads")

    await asyncio.gather(*(world.create(large(f"large-{number}")) for number in range(LARGE)))
    new = await world.create(appwrapper("new", item(pod("forged")), item(job("new"))))
    uid = new["metadata"]["uid"]
    body = marked_pod({UID_LABEL: uid, ATTEMPT_LABEL: "1"}, {}, {"cpu": "10m"}, uid=uid)
    await world.create(changed(body, "metadata.name", "forged"))

    await world.until_object("AppWrapper", "new", awaits_approval, "the new one waits for its approval")
    assert (await world.causes("new"))[0] == "submitted"


def large(name: str) -> Json:
    """A suspended AppWrapper that takes long to take in."""
    filled = changed(config_map(name), "data.filler", "x" * 20_000)
    return appwrapper(name, *[item(filled)] * 8, suspend=True)


def awaits_approval(found: Json | None) -> bool:
    waiting: Json = ((found or {}).get("status") or {}).get("waiting") or {}
    return waiting.get("reason") == "AwaitingApproval"


async def age_key(world: World, by: timedelta) -> None:
    """Let the key of the seals be older, so that a new AppWrapper is not as old as the key."""
    async with await psycopg.AsyncConnection.connect(world.database_url) as connection:
        found = await connection.execute(
            "UPDATE hub SET sealed_since = sealed_since - %s WHERE seal_key IS NOT NULL", (by,)
        )
        assert found.rowcount == 1
