"""How what belongs to an AppWrapper is told from what does not: labels, names, groups, namespaces."""

from __future__ import annotations

from typing import Any

from dispatcher.api.names import LEGACY_GROUP, MCAD_NAME_LABEL, NAME_LABEL
from tests.cluster.lives import breaking_job
from tests.cluster.manifests import appwrapper, changed, config_map, item, job, raycluster
from tests.cluster.world import World

Json = dict[str, Any]

LONGEST_NAME = "n" * 63 + "." + "a" * 63 + "." + "m" * 63 + "." + "e" * 61


def labels_of(manifest: Json) -> tuple[str | None, str | None]:
    labels = manifest["metadata"].get("labels", {})
    return labels.get(NAME_LABEL), labels.get(MCAD_NAME_LABEL)


async def test_both_names_of_the_label_reach_objects_and_every_pod(world: World) -> None:
    await world.start_dispatcher()
    await world.create_until(
        "Running", appwrapper("marked", item(raycluster("ray", workers=2)), item(job("job")))
    )

    found = [*await world.every("RayCluster"), *await world.every("Job"), *await world.every("Pod")]

    assert [labels_of(each) for each in found] == [("marked", "marked")] * 6


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
