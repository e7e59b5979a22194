"""Growth that is granted: within the quota, room and order of its queue, and told to the user where it waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest

from dispatcher.api.names import QUEUE_LABEL, QUEUES_PATH
from dispatcher.kube.client import MERGE_PATCH
from testbed.kuberay_operator import KubeRay
from tests.cluster.dispatch_queues import Declare
from tests.cluster.growing import scale, until_gated, workers
from tests.cluster.manifests import appwrapper, autoscaling, changed, item, job
from tests.cluster.outcomes import rows
from tests.cluster.world import World

Json = dict[str, Any]
GPU = "nvidia.com/gpu"


def labelled(queue: str, manifest: Json) -> Json:
    """The AppWrapper with the label that names its queue."""
    manifest["metadata"]["labels"] = {QUEUE_LABEL: queue}
    return manifest


async def change(world: World, queue: str, **spec: object) -> None:
    """Changes fields of a declared queue."""
    await world.client.patch(f"{QUEUES_PATH}/{queue}", {"spec": spec}, MERGE_PATCH)


async def until_growth(world: World, reason: str) -> Json:
    """The growth in the status of `ray` once it waits for that reason; without one, once nothing waits any more."""

    async def look() -> Json | None:
        status = ((await world.get("AppWrapper", "ray")) or {}).get("status") or {}
        growth: Json = status.get("growth") or {}
        return {**growth, **status} if growth.get("reason", "") == reason else None

    return await world.until(look, f"the growth of ray waits for {reason or 'nothing'}")


async def events_of(world: World) -> set[tuple[str, str]]:
    """The kinds and reasons of the Events about growth."""
    found = await world.client.get(f"/api/v1/namespaces/{world.namespace}/events")
    told = {(each["involvedObject"]["kind"], each["reason"]) for each in found["items"]}
    return {each for each in told if each[1].startswith("Growth")}


async def test_growth_is_granted_as_far_as_the_queue_has_quota_and_the_rest_once_it_has_more(
    world: World, declare: Declare
) -> None:
    await declare("default", resources={GPU: {"nominalQuota": 2}})
    await world.start_dispatcher()
    await world.create_until("Running", appwrapper("ray", item(autoscaling("ray", gpu="1"))))

    await scale(world, "ray", 3)
    growth = await until_growth(world, "InsufficientQuota")
    await until_gated(world, "ray", running=2, gated=1)
    assert (growth["pods"], growth["requested"][GPU], growth["granted"][GPU]) == (1, "1", "1")
    assert f"quota of default: {GPU}: needs 1, 0 available" in growth["message"]
    assert growth["gpus"] == 2

    await change(world, "default", resources={GPU: {"nominalQuota": 3}})
    await until_gated(world, "ray", running=3, gated=0)
    assert (await until_growth(world, ""))["held"][GPU] == "3"

    async def is_told() -> bool:
        both = {
            (kind, reason)
            for kind in ("AppWrapper", "RayCluster")
            for reason in ("GrowthWaits", "GrowthGranted")
        }
        return await events_of(world) == both

    await world.until(is_told, "the growth is told at the AppWrapper and at the RayCluster")
    causes = await world.causes("ray")
    assert ("granted" in causes, "grew" in causes) == (True, False)


async def test_slice_of_two_hosts_is_granted_whole(world: World, declare: Declare) -> None:
    """Head and autoscaler request 100m of cpu each, and a worker 200m, for its init container."""
    await declare("default", resources={"cpu": {"nominalQuota": "1200m"}})
    await world.start_dispatcher()
    ray = changed(autoscaling("ray"), "spec.workerGroupSpecs.0.numOfHosts", 2)
    await world.create_until("Running", appwrapper("ray", item(ray)))

    await scale(world, "ray", 3)
    growth = await until_growth(world, "InsufficientQuota")
    await until_gated(world, "ray", running=4, gated=2)
    assert (growth["pods"], growth["requested"]["cpu"], growth["granted"]["cpu"]) == (2, "400m", "400m")
    assert "quota of default: cpu: needs 400m, 200m available" in growth["message"]

    await change(world, "default", resources={"cpu": {"nominalQuota": "1400m"}})
    await until_gated(world, "ray", running=6, gated=0)


@pytest.mark.parametrize(
    "first", [pytest.param(False, id="after-it"), pytest.param(True, id="elastic-first")]
)
async def test_growth_waits_for_a_gang_of_its_queue_that_was_queued_before(
    world: World, declare: Declare, first: bool
) -> None:
    await declare("default", resources={GPU: {"nominalQuota": 3}})
    await world.start_dispatcher()
    await world.create_until("Running", appwrapper("ray", item(autoscaling("ray", gpu="1"))))
    large = job("large", 3)
    large["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
    await world.create_until("Backoff", appwrapper("large", item(large)))

    await scale(world, "ray", 2)
    growth = await until_growth(world, "GrowthBehindGang")
    assert f"{world.namespace}/large was queued before in queue default" in growth["message"]
    await until_gated(world, "ray", running=1, gated=1)

    if first:
        await change(world, "default", elastic="First")
    else:
        await world.delete("large")
    await until_gated(world, "ray", running=2, gated=0)
    told = "SELECT count(*) AS of_it FROM history.timeline WHERE name = 'ray' AND cause IN ('granted', 'growth-waits')"
    assert await rows(world, told) == [{"of_it": 2}]


async def test_surplus_is_preempted_for_a_gang_and_comes_back_once_the_gang_is_gone(
    world: World, declare: Declare
) -> None:
    """The guest's gang goes on without a worker; its owner's pods are made once that worker is gone."""
    await declare("org")
    reclaiming = {"reclaim": "Any"}
    await declare("owner", parent="org", resources={GPU: {"nominalQuota": 2}}, preemption=reclaiming)
    await declare("guest", parent="org", resources={GPU: {"nominalQuota": 1}})
    await world.start_dispatcher()
    await world.create_until(
        "Running", labelled("guest", appwrapper("ray", item(autoscaling("ray", gpu="1"))))
    )
    await scale(world, "ray", 3)
    await until_gated(world, "ray", running=3, gated=0)
    before = {each["metadata"]["uid"] for each in await workers(world, "ray")}

    own = job("own", 1)
    own["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
    await world.create_until("Running", labelled("owner", appwrapper("own", item(own))))
    await until_gated(world, "ray", running=2, gated=1)
    assert len(before & {each["metadata"]["uid"] for each in await workers(world, "ray")}) == 2
    status = ((await world.get("AppWrapper", "ray")) or {})["status"]
    assert (status["state"], status["held"][GPU]) == ("Running", "2")

    told = await rows(
        world,
        "SELECT reason, message FROM history.timeline WHERE name = 'ray' AND cause = 'surplus-preempted'",
    )
    assert [each["reason"] for each in told] == ["QuotaReclaimed"]
    expected = f"1 surplus pod preempted for {world.namespace}/own (queue owner, priority 0): "
    assert told[0]["message"].startswith(expected)
    assert "preempted" not in await world.causes("ray")

    await world.delete("own")
    await until_gated(world, "ray", running=3, gated=0)


@pytest.fixture
def stopped_kuberay(kuberay: KubeRay) -> Iterator[Callable[[], None]]:
    """Stops KubeRay until the test ends."""
    yield lambda: kuberay.operator.process.send(SIGSTOP)
    kuberay.operator.process.send(SIGCONT)


async def test_worker_that_ray_found_idle_is_preempted_before_a_newer_worker(
    world: World, declare: Declare, stopped_kuberay: Callable[[], None]
) -> None:
    """Ray names the oldest worker. Before KubeRay deletes it, the owner of the queue needs the room of one worker."""
    await declare("org")
    reclaiming = {"reclaim": "Any"}
    await declare("owner", parent="org", resources={GPU: {"nominalQuota": 2}}, preemption=reclaiming)
    await declare("guest", parent="org", resources={GPU: {"nominalQuota": 1}})
    await world.start_dispatcher()
    await world.create_until(
        "Running", labelled("guest", appwrapper("ray", item(autoscaling("ray", gpu="1"))))
    )
    await scale(world, "ray", 3)
    await until_gated(world, "ray", running=3, gated=0)
    before = sorted(
        (each["metadata"]["creationTimestamp"], each["metadata"]["name"])
        for each in await workers(world, "ray")
    )
    idle, *busy = (name for _, name in before)

    stopped_kuberay()
    (group,) = (await world.get("RayCluster", "ray") or {})["spec"]["workerGroupSpecs"]
    # The limit is changed as well: the dispatcher tells of that edit once it has seen it and the name.
    named = {**group, "replicas": 2, "maxReplicas": 4, "scaleStrategy": {"workersToDelete": [idle]}}
    await world.merge("RayCluster", "ray", {"spec": {"workerGroupSpecs": [named]}})

    async def is_seen() -> bool:
        return "unhealthy" in await world.causes("ray")

    await world.until(is_seen, "the edit of the RayCluster is seen")
    own = job("own", 1)
    own["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
    await world.create_until("Running", labelled("owner", appwrapper("own", item(own))))
    assert {each["metadata"]["name"] for each in await workers(world, "ray")} == set(busy)
    assert "surplus-preempted" in await world.causes("ray")
