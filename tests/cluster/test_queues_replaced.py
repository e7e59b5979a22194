"""The last DispatchQueue of a hub is deleted and created again: no gang goes without quota meanwhile."""

from __future__ import annotations

import pytest

from tests.cluster.dispatch_queues import Declare, declaring
from tests.cluster.lives import crash_all
from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.test_queues_changed import CPU, DELETED, change, submit, until_waits
from tests.cluster.world import World

OF_EARLIER_LEADER = "queue team was deleted: declare it again, and its gangs go on"
NO_DEFAULT = (
    "there is no queue default: its label dispatcher.codeflare.dev/queue, or that of its namespace, must name a "
    "declared queue"
)
SHORT = "quota of team: cpu: needs 3, 1 available; nominal 4, 3 used"


@pytest.mark.timeout(180)
async def test_last_queue_that_is_replaced_frees_neither_labelled_nor_unlabelled_gangs(
    world: World, declare: Declare
) -> None:
    """Also under a leader that begins while there is no queue: it knows of the queue from the database."""
    async with declaring(world.client) as declare_first:
        await declare_first("team", resources=CPU)
        await world.start_dispatcher()
        await submit(world, "runs", "team")
        await world.until_state("runs", "Running")
        await submit(world, "labelled", "team")
        await world.create(appwrapper("unlabelled", item(job("unlabelled", cpu="1"))))
        await until_waits(world, "labelled", "InsufficientQuota", SHORT)
        await until_waits(world, "unlabelled", "QueueNotFound", NO_DEFAULT)

    # The reason of a gang that comes in the gap shows that a cycle has decided in it.
    await submit(world, "comes", "team")
    for name in ("labelled", "comes"):
        await until_waits(world, name, "QueueNotFound", DELETED)
    await crash_all(world)
    await world.start_dispatcher()
    await submit(world, "comes-later", "team")
    await world.create(appwrapper("unlabelled-later", item(job("unlabelled-later", cpu="1"))))
    await until_waits(world, "comes-later", "QueueNotFound", OF_EARLIER_LEADER)
    await until_waits(world, "unlabelled-later", "QueueNotFound", NO_DEFAULT)
    assert await world.names("Job") == {"runs"}

    await declare("team", resources=CPU)
    for name in ("labelled", "comes", "comes-later"):
        await until_waits(world, name, "InsufficientQuota", SHORT)
    assert await world.names("Job") == {"runs"}

    await change(world, "team", resources={"cpu": {"nominalQuota": 6}})
    await world.until_state("labelled", "Running")
    await declare("default", resources=CPU)
    await world.until_state("unlabelled", "Running")
    assert "preempted" not in await world.causes("runs")
