"""The examples of two published posts, on KubeRay with Kueue and with KAI, by the files in `examples/queues`.

Three nodes with a GPU each; KubeRay's operator is a stand-in.

Source: https://docs.ray.io/en/latest/cluster/kubernetes/k8s-ecosystem/kueue.html and
https://developer.nvidia.com/blog/enable-gang-scheduling-and-workload-prioritization-in-ray-with-nvidia-kai-scheduler
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.cluster.dispatch_queues import Declare, declare_all, priority_classes
from tests.cluster.outcomes import rows
from tests.cluster.revisions import Deeds, recording
from tests.cluster.world import World, example, examples

Json = dict[str, Any]


@asynccontextmanager
async def started(world: World, declare: Declare, post: str) -> AsyncIterator[None]:
    """A dispatcher with the queues and the priority classes of a post."""
    async with priority_classes(world.client, examples(f"queues/{post}/priority-classes")):
        await declare_all(declare, examples(f"queues/{post}/queues"))
        await world.start_dispatcher()
        yield


async def apply(world: World, file: str) -> Json:
    """Creates the AppWrapper of an example."""
    return await world.create(example(f"queues/{file}"))


def preempted(status: Json) -> tuple[str, str]:
    """The reason and the message by which an AppWrapper says that it was preempted."""
    (candidate,) = (each for each in status["conditions"] if each["type"] == "PreemptCandidate")
    return candidate["reason"], candidate["message"]


async def last_gone(deeds: Deeds, name: str, pods: int) -> int:
    """The revision in which the last of a RayCluster and its pods was gone."""
    gone = [
        *await deeds.until("DELETED", "RayCluster", name, 1),
        *await deeds.until("DELETED", "Pod", name, pods),
    ]
    return max(gone).revision


async def first_made(deeds: Deeds, kind: str, name: str, after: int = 0) -> int:
    """The revision after `after` in which the first object or pod of a gang was made."""
    made = [*await deeds.until("ADDED", kind, name, 1), *await deeds.until("ADDED", "Pod", name, 1)]
    made += [*deeds.of("ADDED", kind, name), *deeds.of("ADDED", "Pod", name)]
    return min(each.revision for each in made if each.revision > after)


async def test_prod_preempts_dev_which_runs_again_after_it(world: World, declare: Declare) -> None:
    async with (
        started(world, declare, "kueue"),
        recording(world, ["RayCluster", "Pod"]) as deeds,
    ):
        await apply(world, "kueue/aw-ray-dev")
        await world.until_state("ray-dev", "Running")
        first = {each.name for each in await deeds.until("ADDED", "Pod", "ray-dev", 4)}

        await apply(world, "kueue/aw-ray-prod")
        await world.until_state("ray-prod", "Running")
        victim = await world.until_state("ray-dev", "Backoff")

        assert preempted(victim) == (
            "PriorityInQueue",
            f"preempted for {world.namespace}/ray-prod (queue cluster-queue, priority 1000): "
            "in its own queue the other gang goes first",
        )
        prod_made = await first_made(deeds, "RayCluster", "ray-prod")
        assert await last_gone(deeds, "ray-dev", 4) < prod_made
        assert await world.names("RayCluster") == {"ray-prod"}
        assert (await waiting(world, "ray-dev"))["reason"] == "InsufficientQuota"

        await world.delete("ray-prod")
        await world.until_state("ray-dev", "Running")
        again = await deeds.until("ADDED", "Pod", "ray-dev", 8)
        assert len({each.name for each in again} - first) == 4
        dev_made = await first_made(deeds, "RayCluster", "ray-dev", after=prod_made)
        assert await last_gone(deeds, "ray-prod", 3) < dev_made


@pytest.mark.parametrize(
    ("training", "reason", "words"),
    [
        pytest.param(
            "training-a", "PriorityInQueue", "in its own queue the other gang goes first", id="its-own-team"
        ),
        pytest.param(
            "training-b",
            "QuotaReclaimed",
            "its queue uses more than its quota, which the other queue takes back",
            id="another-department-over-its-quota",
        ),
    ],
)
async def test_serving_preempts_training_which_resumes_after_it(
    world: World, declare: Declare, training: str, reason: str, words: str
) -> None:
    async with (
        started(world, declare, "kai"),
        recording(world, ["RayCluster", "RayService", "Pod"]) as deeds,
    ):
        await apply(world, f"kai/aw-{training}")
        await world.until_state(training, "Running")

        await apply(world, "kai/aw-vllm")
        await world.until_state("vllm", "Running")
        victim = await world.until_state(training, "Backoff")

        why = f"preempted for {world.namespace}/vllm (queue team-a, priority 125): {words}"
        assert preempted(victim) == (reason, why)
        assert await last_gone(deeds, training, 4) < await first_made(deeds, "RayService", "vllm")
        told = await waiting(world, training)
        assert (told["reason"], told["message"]) == (
            "InsufficientResources",
            "cluster hub: nvidia.com/gpu: needs 3, 2 free",
        )
        await until_served(world)

        await world.delete("vllm")
        await world.until_state(training, "Running")
        assert await world.names("RayService") == set()

    (told,) = await rows(world, "SELECT name, reason, by_name, by_queue FROM history.preemptions")
    assert told == {"name": training, "reason": reason, "by_name": "vllm", "by_queue": "team-a"}


async def waiting(world: World, name: str) -> Json:
    """Why an AppWrapper waits, once the reason is its own and no more that gangs are leaving."""

    async def look() -> Json | None:
        status: Json = (await world.get("AppWrapper", name) or {}).get("status") or {}
        found: Json = status.get("waiting") or {}
        return found if found.get("reason") in {"InsufficientQuota", "InsufficientResources"} else None

    return await world.until(look, f"{name} waits for quota or room")


async def until_served(world: World) -> None:
    """Return once the RayService says that it serves."""

    async def look() -> bool:
        found: Json = await world.get("RayService", "vllm") or {}
        conditions = (found.get("status") or {}).get("conditions") or []
        return ("Ready", "True") in {(each["type"], each["status"]) for each in conditions}

    await world.until(look, "the RayService is Ready")
