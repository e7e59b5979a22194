"""Gangs in a member grow by grants as those on the hub do: the dispatcher removes its gate there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatcher.api.names import QUEUES_PATH
from dispatcher.kube.client import MERGE_PATCH
from testbed.kuberay_operator import KubeRay
from testbed.plane import Plane
from testbed.processes import Supervisor
from tests.cluster.dispatch_queues import Declare
from tests.cluster.growing import scale, until_gated
from tests.cluster.manifests import appwrapper, autoscaling, item, job
from tests.cluster.members.fleet import Fleet


@pytest.fixture(scope="module", autouse=True)
def operator(supervisor: Supervisor, planes: dict[str, Plane]) -> Iterator[None]:
    """KubeRay's operator runs in west."""
    operator = KubeRay(supervisor, planes["west"], "west")
    operator.up()
    yield
    operator.down()


async def test_base_gang_starts_in_a_member_and_a_growth_beyond_the_quota_neither_starts_nor_is_charged(
    fleet: Fleet, declare: Declare
) -> None:
    west = fleet.members["west"]
    await declare("default", resources={"cpu": {"nominalQuota": "500m"}})
    await fleet.declare("west")
    await fleet.start_dispatcher()
    await fleet.hub.create(appwrapper("ray", item(autoscaling("ray"))))
    assert (await fleet.hub.until_state("ray", "Running"))["cluster"] == "west"

    await scale(west, "ray", 3)

    await until_gated(west, "ray", running=1, gated=2)
    assert (await west.event("ray", "GrowthWaits"))["involvedObject"]["kind"] == "RayCluster"
    status = ((await fleet.hub.get("AppWrapper", "ray")) or {})["status"]
    assert "held" not in status
    assert not {"grew", "unhealthy", "granted"} & set(await fleet.hub.causes("ray"))

    more = {"spec": {"resources": {"cpu": {"nominalQuota": "2"}}}}
    await fleet.hub.client.patch(f"{QUEUES_PATH}/default", more, MERGE_PATCH)
    await until_gated(west, "ray", running=3, gated=0)
    assert "granted" in await fleet.hub.until_history("ray", "granted")


async def test_surplus_of_a_gang_in_a_member_is_preempted_there_and_comes_back(
    fleet: Fleet, declare: Declare
) -> None:
    """The dispatcher deletes the worker with its rights in the member."""
    west = fleet.members["west"]
    quota = {"cpu": {"nominalQuota": "600m"}}  # for the gang, and one worker more
    await declare("default", resources=quota, preemption={"withinQueue": "LowerPriority"})
    await fleet.declare("west")
    await fleet.start_dispatcher()
    await fleet.hub.create_until("Running", appwrapper("ray", item(autoscaling("ray"))))
    await scale(west, "ray", 2)
    await until_gated(west, "ray", running=2, gated=0)

    await fleet.hub.create_until(
        "Running", appwrapper("urgent", item(job("urgent", cpu="200m")), priority=10)
    )
    await until_gated(west, "ray", running=1, gated=1)
    assert {"surplus-preempted", "shrank"} <= set(await fleet.hub.causes("ray"))

    await fleet.hub.delete("urgent")
    await until_gated(west, "ray", running=2, gated=0)
    assert "preempted" not in await fleet.hub.causes("ray")
