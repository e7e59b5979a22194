"""What its author asked for is what becomes of a gang: exit codes, a time to live, infos of pod sets, its turn."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from dispatcher.api.annotations import (
    FAILURE_GRACE,
    RETRY_LIMIT,
    RETRY_PAUSE,
    RETRYABLE_EXIT_CODES,
    SUCCESS_TTL,
)
from testbed.nodes import name_of
from tests.cluster.manifests import appwrapper, bent, component, components, config_map, item, job, raycluster
from tests.cluster.mcad.suite import conditions
from tests.cluster.outcomes import rows
from tests.cluster.world import World

Json = dict[str, Any]

V1BETA2 = "AppWrapper/v1beta2"
HEAD = "template.spec.headGroupSpec.template"
WORKERS = "template.spec.workerGroupSpecs[0].template"


def failing(exit_code: int) -> Json:
    """A component whose pod fails with this code; another attempt may mend 3, and nothing else."""
    template = job("fails", fail_after="500ms", exit_code=str(exit_code))
    graces = {FAILURE_GRACE: "1s", RETRY_LIMIT: "1", RETRY_PAUSE: "0s", RETRYABLE_EXIT_CODES: "3"}
    return bent(components("fails", component(template, template__spec__template=1)), graces)


@pytest.mark.parametrize(
    ("exit_code", "dispatches", "said"),
    [
        pytest.param(3, 2, "failed pods: 1 (requeued so far: 1)", id="one-that-may-be-mended"),
        pytest.param(4, 1, "failed pods: 1, with exit code 4", id="any-other"),
    ],
)
async def test_only_exit_codes_that_were_called_retryable_are_tried_again(
    world: World, exit_code: int, dispatches: int, said: str
) -> None:
    await world.start_dispatcher()

    await world.create(failing(exit_code), V1BETA2)

    status = await world.until_shown("fails", "Failed", V1BETA2)
    pod = status["failure"]["pod"]
    first = f"container main of pod {pod}, exit code {exit_code}, Error"
    assert conditions(status)["Failed"] == ("True", "FoundFailedPods", f"{said}; failed first: {first}")
    assert (status["phase"], status.get("resettingCount", 0)) == ("Failed", dispatches - 1)
    assert (await world.causes("fails")).count("dispatched") == dispatches


async def test_objects_of_a_completed_gang_are_kept_for_as_long_as_its_author_asked(world: World) -> None:
    await world.start_dispatcher()
    short = item(job("work", run_for="500ms"))
    asked = {SUCCESS_TTL: "4s"}
    await world.create(bent(appwrapper("ends", short, item(config_map("input"))), asked))

    completed = await world.until_shown("ends", "Completed")

    since = next(each for each in completed["conditions"] if each["type"] == "Completed")
    kept_until, completed_at = map(
        datetime.fromisoformat, (completed["keptUntil"], since["lastTransitionTime"])
    )
    assert kept_until - completed_at == timedelta(seconds=4)
    causes = await world.until_history("ends", "expired")
    assert await world.names("Job") == set()
    assert "input" not in await world.names("ConfigMap")

    async def is_told() -> Json | None:
        status = await world.until_shown("ends", "Completed")
        return None if "keptUntil" in status else status

    after = await world.until(is_told, "nothing is kept any more")
    assert conditions(after) == conditions(completed)
    assert causes.count("dispatched") == 1


def info(name: str, node: int) -> Json:
    """What a quota manager adds to the pods of one pod set."""
    toleration = {"key": "example.com/quota", "operator": "Equal", "value": name, "effect": "NoSchedule"}
    return {
        "labels": {"example.com/flavor": name, "example.com/team": "of-the-quota"},
        "annotations": {"example.com/quota": name},
        "nodeSelector": {"kubernetes.io/hostname": name_of(node)},
        "tolerations": [toleration],
    }


async def test_pod_set_infos_reach_the_pods_of_their_pod_set_and_of_no_other(world: World) -> None:
    """Where both name a key, the author's value stays."""
    await world.start_dispatcher()
    cluster = raycluster("ray")
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        group["template"]["metadata"]["labels"] = {"example.com/team": "of-the-author"}
    infos = {"podSetInfos": [info("head", 1), info("workers", 2)]}
    await world.create(
        components("informed", {**component(cluster, **{HEAD: 1, WORKERS: 1}), **infos}), V1BETA2
    )

    await world.until_state("informed", "Running", V1BETA2)

    pods = {each["metadata"]["labels"]["ray.io/node-type"]: each for each in await world.every("Pod")}
    assert {type_: told(each) for type_, each in pods.items()} == {
        "head": ("head", "of-the-author", "head", name_of(1), ["head"]),
        "worker": ("workers", "of-the-author", "workers", name_of(2), ["workers"]),
    }


def told(pod: Json) -> tuple[str, str, str, str, list[str]]:
    """Its labels, its annotation, the node it was sent to, and the values of its own tolerations."""
    metadata, spec = pod["metadata"], pod["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": spec["nodeName"]}
    return (
        metadata["labels"]["example.com/flavor"],
        metadata["labels"]["example.com/team"],
        metadata["annotations"]["example.com/quota"],
        spec["nodeName"],
        [each["value"] for each in spec["tolerations"] if each.get("key") == "example.com/quota"],
    )


# -----------------------------------------------------------------------------------------------------------
# ObjectOwnership turn it is after a gang was taken back or has failed, and from when on its room is
# another's.


DISPATCHES = "SELECT name FROM history.timeline WHERE cause = 'dispatched' ORDER BY at, id"


def whole_cluster(name: str, scheduling: Json, **life: str) -> Json:
    """An AppWrapper that needs all 24 cpus of the three nodes."""
    return appwrapper(name, item(job(name, parallelism=3, cpu="8", **life)), schedulingSpec=scheduling)


async def dispatches(world: World) -> list[str]:
    """Who was dispatched, one after the other, each as often as it was."""
    return [row["name"] for row in await rows(world, DISPATCHES)]


async def test_requeued_gang_is_queued_before_a_younger_pending_gang(world: World) -> None:
    """It makes way once, for the next in line; behind that one its age counts again."""
    await world.start_dispatcher()
    requeuing = {"timeInSeconds": 2, "growthType": "none"}
    never = whole_cluster("oldest", {"minAvailable": 3, "requeuing": requeuing}, never_start="true")
    submitted = (await world.create(never))["metadata"]["creationTimestamp"]
    await world.until_history("oldest", "created")
    for name in ("next", "youngest"):
        await world.create(whole_cluster(name, {}))
    await world.until_state("next", "Running")

    async def both_wait() -> bool:
        return [(each.position, each.name) for each in await world.queue_now()] == [
            (1, "oldest"),
            (2, "youngest"),
        ]

    await world.until(both_wait, "the requeued one stands before the youngest")
    created_at = {each.name: each.created_at for each in await world.queue_now()}
    assert created_at["oldest"] == datetime.fromisoformat(submitted)
    assert await world.get("Job", "oldest") is None
    so_far = await dispatches(world)
    await world.delete("next")

    async def one_more() -> list[str] | None:
        found = await dispatches(world)
        return found if len(found) > len(so_far) else None

    assert (await world.until(one_more, "another is dispatched"))[len(so_far)] == "oldest"
