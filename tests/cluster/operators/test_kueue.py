"""Kueue in one cluster with the dispatcher, on the same objects: both admit a gang, and neither undoes the other.

docs/kueue.md says what happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from signal import SIGCONT, SIGSTOP
from typing import Any, Final

import pytest

from dispatcher.api.annotations import ADMISSION_GRACE
from testbed.kuberay_operator import KubeRay
from testbed.kueue_operator import KUEUE
from tests.cluster.figures import free_in
from tests.cluster.manifests import appwrapper, bent, component, components, item, job, raycluster
from tests.cluster.operators.conftest import Start
from tests.cluster.operators.kueue import KueueQueue, kueue_queue, labelled
from tests.cluster.operators.looks import (
    assert_placed_once,
    pods_of,
    until_healthy,
    until_no_pods,
    until_pods,
    until_unhealthy,
)
from tests.cluster.world import World

Json = dict[str, Any]
Make = Callable[..., Json]

MINUTE: Final = 60.0
WEBHOOK_SECONDS: Final = 10.0
"""For so long the API server waits for an answer of Kueue."""
WHOLE_CPU: Final = 24_000
SOON: Final = {ADMISSION_GRACE: "20s"}
"""Without pods the gang is requeued after these seconds, unless Kueue is to admit it; KubeRay makes pods sooner."""


def job_of(name: str = "train") -> Json:
    """A Job of two pods of one CPU each."""
    return job(name, 2, "1")


def ray_of(name: str = "train") -> Json:
    """A RayCluster of two pods of one CPU each."""
    return raycluster(name, "1", run_for="forever")


WRAPPED: Final = (pytest.param(job_of, id="Job"), pytest.param(ray_of, id="RayCluster"))


@pytest.fixture
async def queue(world: World, start: Start, kuberay: KubeRay) -> AsyncIterator[KueueQueue]:
    """Kueue beside KubeRay, with a queue of four CPUs."""
    start(KUEUE)
    kuberay.check()
    async with kueue_queue(world, "4") as queue:
        yield queue


def waits_in(world: World, kind: str, queue: str = "users") -> tuple[str, str]:
    """The health issue of an AppWrapper whose object Kueue has not admitted."""
    waits = f"{kind} {world.namespace}/train waits until Kueue admits it in queue {queue}"
    return "AdmissionAwaited", f"no pods, for at most 86400 s: {waits}"


def is_suspended(found: Json | None) -> bool:
    """True for an object that is to have no pods."""
    return found is not None and found["spec"].get("suspend") is True


async def there(world: World, kind: str, name: str = "train") -> Json:
    """The object at the API server."""
    found = await world.get(kind, name)
    assert found is not None
    return found


def writers_of(found: Json) -> str:
    """The programs that have written an object."""
    return ", ".join(each["manager"] for each in found["metadata"]["managedFields"])


async def until_suspended(world: World, kind: str) -> None:
    """Return once Kueue has suspended the object."""
    await world.until_object(kind, "train", is_suspended, "Kueue suspends it")


@pytest.mark.parametrize("make", WRAPPED)
async def test_wrapped_object_stays_suspended_until_kueue_admits_it_and_then_runs(
    world: World, queue: KueueQueue, make: Make
) -> None:
    await queue.set_quota("0")
    process = await world.start_dispatcher()
    manifest = labelled(make())
    kind = manifest["kind"]
    await world.create_until("Dispatched", bent(appwrapper("train", item(manifest)), SOON))

    held = await there(world, kind)
    assert is_suspended(held)
    await asyncio.sleep(MINUTE / 2)
    await world.kill_dispatcher(process)
    await world.start_dispatcher()
    await asyncio.sleep(MINUTE / 2)
    now = await there(world, kind)
    assert now["metadata"]["generation"] == held["metadata"]["generation"]  # nobody has written its spec
    assert await until_unhealthy(world) == waits_in(world, kind)
    assert await pods_of(world) == []

    await queue.set_quota("4")
    await world.until_state("train", "Running")
    await until_pods(world, 2, "its pods run")
    await until_healthy(world)
    assert not is_suspended(await there(world, kind))
    await queue.until_reserved("2")
    await assert_placed_once(world)


@pytest.mark.parametrize("make", WRAPPED)
async def test_gang_that_kueue_evicts_keeps_its_place_and_runs_again_once_it_is_admitted_again(
    world: World, queue: KueueQueue, make: Make
) -> None:
    await world.start_dispatcher()
    manifest = labelled(make())
    kind = manifest["kind"]
    await world.create_until("Running", bent(appwrapper("train", item(manifest)), SOON))
    await until_pods(world, 2, "its pods run")

    await queue.stop("HoldAndDrain")
    await until_suspended(world, kind)
    await until_no_pods(world, "its pods are gone")
    reason, message = await until_unhealthy(world)
    assert reason == "AdmissionAwaited"
    assert waits_in(world, kind)[1].endswith(message)  # its pods may have been there still

    await queue.stop("None")
    await until_pods(world, 2, "its pods are back")
    await until_healthy(world)
    await assert_placed_once(world)


@pytest.mark.parametrize("make", WRAPPED)
async def test_each_is_left_alone_where_only_one_is_asked(
    world: World, queue: KueueQueue, make: Make
) -> None:
    process = await world.start_dispatcher()
    theirs, ours = labelled(make("theirs")), make("train")
    kind, theirs_alone = ours["kind"], theirs["metadata"]["labels"]

    await world.create(theirs)
    await world.create_until("Running", appwrapper("train", item(ours)))
    await until_pods(world, 4, "the pods of both run")

    await queue.until_workloads({(kind, "theirs")})
    await queue.until_reserved("2")
    left, wrapped = await there(world, kind, "theirs"), await there(world, kind)
    assert (left["metadata"]["labels"], left["metadata"].get("ownerReferences")) == (theirs_alone, None)
    assert "kueue" not in writers_of(wrapped)
    assert not is_suspended(wrapped)

    async def is_counted() -> bool:
        return (await free_in(process)).get("cpu") == WHOLE_CPU - 4_000

    await world.until(is_counted, "the dispatcher counts the pods of both")


@pytest.mark.parametrize("make", WRAPPED)
async def test_default_queue_of_a_namespace_is_asked_for_wrapped_objects_without_a_label_too(
    world: World, queue: KueueQueue, make: Make
) -> None:
    await queue.set_quota("0")
    await queue.add_local("default")
    await world.start_dispatcher()
    manifest = make()
    kind = manifest["kind"]

    await world.create_until("Dispatched", bent(appwrapper("train", item(manifest)), SOON))
    assert await until_unhealthy(world) == waits_in(world, kind, "default")

    await queue.set_quota("4")
    await until_pods(world, 2, "its pods run")
    await until_healthy(world)
    await assert_placed_once(world)


@pytest.mark.parametrize("make", WRAPPED)
async def test_quota_of_kueue_is_released_once_the_appwrapper_is_deleted(
    world: World, queue: KueueQueue, make: Make
) -> None:
    await queue.set_quota("2")
    await world.start_dispatcher()
    # Kueue looks for a queue at the owners of an object that it knows: AppWrappers of this version.
    manifest = components("train", component(labelled(make())))
    await world.create(manifest, "AppWrapper/v1beta2")
    await world.until_state("train", "Running")
    await until_pods(world, 2, "its pods run")
    await queue.until_reserved("2")
    await world.create(labelled(job_of("next")))

    await world.delete("train")
    await world.until_gone("AppWrapper", "train")

    await until_pods(world, 2, "only the pods of the next one run")
    await queue.until_workloads({("Job", "next")})
    await world.delete("next", "Job")
    await queue.until_reserved("0")


@pytest.mark.parametrize("make", WRAPPED)
async def test_gang_that_is_dispatched_while_kueue_does_not_answer_runs_once_it_does(
    world: World, queue: KueueQueue, start: Start, make: Make
) -> None:
    """The API server refuses to create objects while Kueue does not answer, also those without its label."""
    kueue = start(KUEUE).process
    await world.start_dispatcher()
    kueue.send(SIGSTOP)
    try:
        await world.create(appwrapper("train", item(labelled(make()))))
        await asyncio.sleep(WEBHOOK_SECONDS * 1.5)
        assert await world.names(make()["kind"]) == set()
    finally:
        kueue.send(SIGCONT)

    await world.until_state("train", "Running")
    await until_pods(world, 2, "its pods run")
    await queue.until_reserved("2")
