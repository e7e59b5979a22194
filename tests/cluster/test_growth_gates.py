"""Gangs that grow by grants: the base gang starts by itself, and a growth that no quota has room for does not."""

from __future__ import annotations

import pytest

from dispatcher.api.names import GROWTH_GATE
from testbed.proxy import Exchange
from tests.cluster.dispatch_queues import Declare
from tests.cluster.growing import scale, until_gated
from tests.cluster.manifests import appwrapper, autoscaling, item
from tests.cluster.mortal import Mortal, When
from tests.cluster.wires import wires_of
from tests.cluster.world import World

GPU = "nvidia.com/gpu"


def admits(exchange: Exchange) -> bool:
    """True for the removal of the dispatcher's gate from a pod."""
    return exchange.is_write and "/pods/" in exchange.path and GROWTH_GATE in str(exchange.document)


async def test_base_gang_starts_and_a_growth_beyond_the_quota_neither_starts_nor_is_charged(
    world: World, declare: Declare
) -> None:
    await declare("default", resources={GPU: {"nominalQuota": 1}})
    await world.start_dispatcher()
    await world.create_until("Running", appwrapper("ray", item(autoscaling("ray", gpu="1"))))

    await scale(world, "ray", 3)

    await until_gated(world, "ray", running=1, gated=2)
    status = ((await world.get("AppWrapper", "ray")) or {})["status"]
    assert "held" not in status
    assert not {"grew", "unhealthy", "granted"} & set(await world.causes("ray"))

    await scale(world, "ray", 1)
    await until_gated(world, "ray", running=1, gated=0)


async def test_pods_start_by_themselves_where_growth_is_charged_once_it_has_happened(world: World) -> None:
    await world.start_dispatcher(growth="charge")
    await world.create_until("Running", appwrapper("ray", item(autoscaling("ray"))))

    await scale(world, "ray", 2)

    await until_gated(world, "ray", running=2, gated=0)
    assert "grew" in await world.until_history("ray", "grew")


@pytest.mark.parametrize("when", When)
async def test_granted_pod_is_admitted_by_the_successor_of_a_killed_dispatcher(
    world: World, when: When
) -> None:
    async with wires_of(world) as wires:
        mortal = Mortal(wires)
        await mortal.start()
        await world.create_until("Running", appwrapper("ray", item(autoscaling("ray"))))
        strike = mortal.at(wires.api.rules, admits, when)

        await scale(world, "ray", 2)
        await strike.done.wait()

        await until_gated(world, "ray", running=2, gated=0)
        mortal.spare()
        assert (await world.causes("ray")).count("granted") == 1
        assert "shrank" not in await world.causes("ray")
