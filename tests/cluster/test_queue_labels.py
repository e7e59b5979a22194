"""Labels name the queue and the priority of an AppWrapper, on a real hub."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatcher.api.names import (
    KAI_QUEUE_LABEL,
    KUEUE_PRIORITY_LABEL,
    KUEUE_QUEUE_LABEL,
    PRIORITY_LABEL,
    QUEUE_LABEL,
)
from dispatcher.kube.client import MERGE_PATCH
from testbed.plane import Plane
from testbed.processes import Process
from tests.cluster.definitions import optional_kinds_of
from tests.cluster.dispatch_queues import Declare
from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.mcad.suite import conditions
from tests.cluster.outcomes import rows
from tests.cluster.world import World

Json = dict[str, Any]
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
KUEUES_CLASSES = "/apis/kueue.x-k8s.io/v1beta1/workloadpriorityclasses"


def labelled(name: str, labels: dict[str, str], cpu: str = "100m", **spec: object) -> Json:
    """An AppWrapper of one pod with these labels."""
    made = appwrapper(name, item(job(name, cpu=cpu)), **spec)
    return {**made, "metadata": {**made["metadata"], "labels": labels}}


async def label(world: World, name: str, **labels: str | None) -> None:
    """Change labels of an AppWrapper."""
    await world.merge("AppWrapper", name, {"metadata": {"labels": labels}})


async def label_namespace(world: World, labels: dict[str, str | None]) -> None:
    body = {"metadata": {"labels": labels}}
    await world.client.patch(f"/api/v1/namespaces/{world.namespace}", body, MERGE_PATCH)


async def queues(world: World, name: str) -> tuple[str, ...] | None:
    """The queues in the row of an AppWrapper; None without a row."""
    # The name is the test's own.
    found = await rows(world, f"SELECT queue, more_queues FROM appwrapper WHERE name = '{name}'")
    return (found[0]["queue"], *found[0]["more_queues"]) if found else None


async def until_in(world: World, name: str, *expected: str) -> None:
    async def look() -> bool:
        return await queues(world, name) == expected

    await world.until(look, f"{name} is in {expected}")


@pytest.fixture
async def optional_kinds(plane: Plane) -> AsyncIterator[None]:
    """MCAD's QuotaSubtrees and Kueue's WorkloadPriorityClasses can be created on the hub."""
    async with optional_kinds_of(plane.kubeconfig):
        yield


async def test_labels_of_the_appwrapper_or_else_of_its_namespace_name_the_queue(world: World) -> None:
    await label_namespace(world, {KAI_QUEUE_LABEL: "of-namespace"})
    await world.start_dispatcher()
    named = {"ours": QUEUE_LABEL, "kueues": KUEUE_QUEUE_LABEL, "kais": KAI_QUEUE_LABEL}
    for name, key in named.items():
        await world.create(labelled(name, {key: f"team-{name}"}, suspend=True))
    await world.create(labelled("none", {"app": "none"}, suspend=True))

    for name in ("ours", "kais"):
        await until_in(world, name, f"team-{name}")
    # Kueue's label names a LocalQueue, which means the queue of the namespace where no queue has its name.
    for name in ("kueues", "none"):
        await until_in(world, name, "of-namespace")


async def test_changed_queue_label_moves_pending_gangs_and_never_running_gangs(
    world: World, declare: Declare
) -> None:
    for name in ("first", "second", "of-namespace", "default"):
        await declare(name)
    await world.start_dispatcher()
    await world.create_until("Running", labelled("runs", {QUEUE_LABEL: "first"}))
    await world.create_until("Backoff", labelled("waits", {QUEUE_LABEL: "first"}, cpu="1000"))

    for name in ("runs", "waits"):
        await label(world, name, **{QUEUE_LABEL: "second"})
    await until_in(world, "waits", "second")
    await label_namespace(world, {QUEUE_LABEL: "of-namespace"})
    for name in ("runs", "waits"):
        await label(world, name, **{QUEUE_LABEL: None})
    await until_in(world, "waits", "of-namespace")
    await label_namespace(world, {QUEUE_LABEL: None})
    await until_in(world, "waits", "default")

    # It was larger than the cluster, so each move says from when its age counts, too.
    assert [each.partition(";")[0] for each in await world.messages("waits") if " → " in each] == [
        "queue first → second",
        "queue second → of-namespace",
        "queue of-namespace → default",
    ]
    assert (await world.causes("waits")).count("moved") == 3
    assert (await queues(world, "runs"), "moved" in await world.causes("runs")) == (("first",), False)


async def test_tree_of_mcad_takes_pending_gangs_and_keeps_them_while_it_may_be_replaced(
    world: World, optional_kinds: None
) -> None:
    process = await world.start_dispatcher()
    await world.create(labelled("gold", {"context": "gold"}, suspend=True))
    await until_in(world, "gold", "default")
    subtree = {
        "apiVersion": "quota.codeflare.dev/v1alpha1",
        "kind": "QuotaSubtree",
        "metadata": {"name": "root", "labels": {"tree": "context"}},
        "spec": {"children": [{"name": "gold", "quotas": {"requests": {"cpu": 1}}}]},
    }
    path = f"/apis/quota.codeflare.dev/v1alpha1/namespaces/{world.namespace}/quotasubtrees"
    made = await world.client.create(path, subtree)
    await until_in(world, "gold", "default", "context/gold")
    await world.create(labelled("none", {}, suspend=True))
    await until_in(world, "none", "default", "context/default")

    await world.client.delete(f"{path}/root", made["metadata"]["uid"])
    await world.until(lambda: said_absent(process), "the tree is absent")
    await world.create(labelled("late", {"context": "gold"}, suspend=True))
    await until_in(world, "late", "default", "context/gold")
    assert await queues(world, "none") == ("default", "context/default")


async def said_absent(process: Process) -> bool:
    return '"event": "queues_absent"' in process.log.read_text()


async def test_priority_comes_from_the_class_and_an_unknown_class_sets_a_condition(
    world: World, optional_kinds: None
) -> None:
    train, later = f"train-{world.namespace}", f"later-{world.namespace}"
    made = [(CLASSES, await create_class(world, CLASSES, train, 50))]
    made.append((KUEUES_CLASSES, await create_class(world, KUEUES_CLASSES, train, 70)))
    try:
        await world.start_dispatcher()
        await world.create(labelled("kais", {PRIORITY_LABEL: train}, suspend=True))
        await world.create(
            labelled("kueues", {KUEUE_PRIORITY_LABEL: train, PRIORITY_LABEL: later}, suspend=True)
        )
        await world.create(labelled("written", {PRIORITY_LABEL: train}, suspend=True, priority=9))
        await world.create(labelled("unknown", {PRIORITY_LABEL: later}, suspend=True))
        for name, priority in {"kais": 70, "kueues": 70, "written": 9, "unknown": 0}.items():
            await until_priority(world, name, priority)
        said = (
            f"there is no PriorityClass {later}, which label priorityClassName names: "
            "the priority counts as 0, and no gang is preempted for it"
        )
        status = (await world.get("AppWrapper", "unknown") or {})["status"]
        assert conditions(status)["PriorityClassUnknown"] == ("True", "PriorityClassNotFound", said)
        assert (await world.event("unknown", "SpecAdjusted"))["message"] == said

        made.append((CLASSES, await create_class(world, CLASSES, later, -3)))
        status = await until_priority(world, "unknown", -3)
        assert conditions(status)["PriorityClassUnknown"][0] == "False"
    finally:
        for path, each in made:
            await world.client.delete(f"{path}/{each['metadata']['name']}", each["metadata"]["uid"])


async def create_class(world: World, path: str, name: str, value: int) -> Json:
    kind = "PriorityClass" if path == CLASSES else "WorkloadPriorityClass"
    version = path.removeprefix("/apis/").rpartition("/")[0]
    return await world.client.create(
        path, {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "value": value}
    )


async def until_priority(world: World, name: str, priority: int) -> Json:
    """The status of an AppWrapper once this is the priority that counts."""

    async def look() -> Json | None:
        status: Json = ((await world.get("AppWrapper", name)) or {}).get("status") or {}
        return status if status.get("systempriority") == priority else None

    return await world.until(look, f"the priority of {name} is {priority}")


async def test_labels_of_kueue_and_kai_on_wrapped_objects_stay_as_written(world: World) -> None:
    labels = {
        KUEUE_QUEUE_LABEL: "theirs",
        KAI_QUEUE_LABEL: "theirs",
        KUEUE_PRIORITY_LABEL: "theirs",
        PRIORITY_LABEL: "theirs",
    }
    wrapped = job("carried")
    wrapped["metadata"]["labels"] = dict(labels)
    wrapped["spec"]["template"]["metadata"]["labels"] = dict(labels)
    await world.start_dispatcher()
    await world.create_until("Running", appwrapper("carried", item(wrapped)))

    found = await world.get("Job", "carried")
    (pod,) = await world.every("Pod")
    assert found is not None
    for each in (found, pod):
        assert {key: each["metadata"]["labels"].get(key) for key in labels} == labels
    assert await queues(world, "carried") == ("default",)
