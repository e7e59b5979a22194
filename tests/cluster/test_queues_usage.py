"""`order: Usage` on a real cluster: the namespace that used less of late goes first, also after a restart."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from dispatcher.kube.client import ClusterClient
from dispatcher.store.snapshot_reader import Snapshot, read_snapshot
from testbed.plane import Plane
from testbed.processes import Supervisor
from tests.cluster.dispatch_queues import Declare
from tests.cluster.manifests import appwrapper, changed, item, job
from tests.cluster.outcomes import rows
from tests.cluster.world import World

Json = dict[str, Any]
GPU = "nvidia.com/gpu"


@pytest.fixture
async def other(
    supervisor: Supervisor, plane: Plane, client: ClusterClient, world: World
) -> AsyncIterator[World]:
    """Another namespace of the same cluster and queue."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await plane.create_namespace(name)
    other = World(supervisor, plane, client, name, world.database_url)
    yield other
    world.stop_dispatchers()
    await other.demolish()


def on_gpus(name: str, pods: int, **spec: int) -> Json:
    """A gang of pods with one GPU each."""
    one = {"requests": {GPU: "1"}, "limits": {GPU: "1"}}
    template = changed(job(name, pods), "spec.template.spec.containers.0.resources", one)
    return appwrapper(name, item(template), **spec)


async def test_the_namespace_that_used_less_goes_first_although_its_gang_is_younger(
    world: World, other: World, declare: Declare
) -> None:
    await declare("default", resources={GPU: {"nominalQuota": 3}}, order="Usage")
    first = await world.start_dispatcher()
    await world.create(on_gpus("before", 3))
    await world.until_state("before", "Running")
    await world.delete("before")
    await world.until_history("before", "released")
    await world.stop_dispatcher(first)
    await world.create(on_gpus("again", 2, priority=10))
    await other.create(on_gpus("younger", 2))

    await world.start_dispatcher(snapshot_seconds="0.1")
    await other.until_state("younger", "Running")
    assert (await world.until_state("again", "Backoff"))["waiting"]["reason"] == "InsufficientQuota"
    assert await world.causes("again") == ["submitted", "blocked"]

    async def written() -> Snapshot | None:
        snapshot = await read_snapshot(world.database_url, timedelta(seconds=10))
        return snapshot if snapshot.world.usage else None

    # Commands plan with the use that the leader plans with.
    snapshot = await world.until(written, "the snapshot has the recent use")
    assert snapshot.world.usage["default", world.namespace] > 0
    fairness = (
        "SELECT queue, resource, sum(used_h) > 0 AS is_used, sum(entitled_h) > 0 AS is_entitled "
        "FROM history.fairness_daily GROUP BY 1, 2"
    )
    (told,) = await rows(world, fairness)
    assert told == {"queue": "default", "resource": GPU, "is_used": True, "is_entitled": True}

    await other.delete("younger")
    await world.until_state("again", "Running")
