"""The examples of two published posts, on KubeRay with Kueue and with KAI, by the files in `examples/queues`.

Three nodes with a GPU each; KubeRay's operator is a stand-in.

Source: https://docs.ray.io/en/latest/cluster/kubernetes/k8s-ecosystem/kueue.html and
https://developer.nvidia.com/blog/enable-gang-scheduling-and-workload-prioritization-in-ray-with-nvidia-kai-scheduler
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
import yaml

from dispatcher.api.names import QUEUES_PATH
from tests.cluster.dispatch_queues import Declare, declare_all, priority_classes
from tests.cluster.outcomes import rows
from tests.cluster.world import World, example, examples
from tests.unit.test_queues_page import ANSWERED, EXAMPLES, MANIFESTS, SHARED

SILENCE_SECONDS = 120.0


class Deed(NamedTuple):
    """One event of a watch."""

    revision: int
    type: str
    kind: str
    name: str


class Deeds:
    """The creations and deletions of the watched kinds in one namespace."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: list[Deed] = []

    def of(self, type_: str, kind: str, prefix: str) -> list[Deed]:
        """The events of one type about objects of one kind, whose names begin so, in order."""
        return sorted(
            each for each in self._seen if (each.type, each.kind) == (type_, kind) and _is(each, prefix)
        )

    async def until(self, type_: str, kind: str, prefix: str, count: int) -> list[Deed]:
        """The first so many of these events, once they were seen."""

        async def look() -> list[Deed] | None:
            found = self.of(type_, kind, prefix)
            return found[:count] if len(found) >= count else None

        return await self._world.until(look, f"{count} times {type_} {kind} {prefix}")

    async def follow(self, kind: str) -> None:
        """Watch a kind until cancelled."""
        path = self._world.path(kind)
        listed = await self._world.client.get(path)
        query = {"watch": "true", "resourceVersion": listed["metadata"]["resourceVersion"]}
        async for line in self._world.client.watch(path, query, SILENCE_SECONDS):
            event = json.loads(line)
            metadata = event["object"]["metadata"]
            revision = int(metadata["resourceVersion"])
            self._seen.append(Deed(revision, event["type"], kind, metadata["name"]))


@asynccontextmanager
async def recording(world: World, kinds: Sequence[str]) -> AsyncIterator[Deeds]:
    """Records what happens to these kinds in the world's namespace."""
    deeds = Deeds(world)
    tasks = [asyncio.create_task(deeds.follow(kind)) for kind in kinds]
    try:
        yield deeds
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is(deed: Deed, prefix: str) -> bool:
    return deed.name == prefix or deed.name.startswith(f"{prefix}-")


# --- the tests -------------------------------------------------------------------------------------------


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


# --- The API server accepts every queue of docs/queues.md and of its examples ------------------------------


def manifest(queue: Json) -> Json:
    """The DispatchQueue of a queue in a file for `plan`."""
    spec = {key: value for key, value in queue.items() if key != "name"}
    return {
        "apiVersion": "dispatcher.codeflare.dev/v1alpha1",
        "kind": "DispatchQueue",
        "metadata": {"name": queue["name"]},
        "spec": spec,
    }


OF_SCENARIOS = [
    [manifest(queue) for queue in yaml.safe_load(text)["queues"]]
    for text in (SHARED, *(scenario for scenario, _ in ANSWERED))
]
OF_FILES = [list(yaml.safe_load_all(text)) for text in (*MANIFESTS, *(each.read_text() for each in EXAMPLES))]


@pytest.mark.parametrize("queues", [*OF_SCENARIOS, *OF_FILES])
async def test_queues_are_accepted(world: World, queues: list[Json]) -> None:
    for each in queues:
        created = world.plane.client.request("POST", f"{QUEUES_PATH}?dryRun=All&fieldValidation=Strict", each)
        assert created["spec"] == each.get("spec", {})
