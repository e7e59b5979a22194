"""Declarations that change under AppWrappers on a real hub: gangs that run go on, and those that wait say why."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dispatcher.api.names import QUEUE_LABEL, QUEUES_PATH
from dispatcher.kube.client import MERGE_PATCH
from tests.cluster.dispatch_queues import Declare, declaring
from tests.cluster.lives import crash_all
from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.test_queue_status import OFTEN, until_status
from tests.cluster.world import World

Json = dict[str, Any]
CPU = {"cpu": {"nominalQuota": 4}}
NOT_BORROWING = {"cpu": {"nominalQuota": 4, "borrowingLimit": 0}}


async def submit(world: World, name: str, queue: str, cpu: str = "3") -> None:
    manifest = appwrapper(name, item(job(name, cpu=cpu)))
    manifest["metadata"]["labels"] = {QUEUE_LABEL: queue}
    await world.create(manifest)


async def change(world: World, name: str, **spec: object) -> None:
    await world.client.patch(f"{QUEUES_PATH}/{name}", {"spec": spec}, MERGE_PATCH)


DELETED = re.compile(
    r"queue team was deleted at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: declare it again, and its gangs go on"
)


async def until_waits(world: World, name: str, reason: str, message: str | re.Pattern[str]) -> None:
    async def look() -> bool:
        found = ((await world.get("AppWrapper", name)) or {}).get("status", {}).get("waiting") or {}
        told = str(found.get("message"))
        is_told = told == message if isinstance(message, str) else message.fullmatch(told) is not None
        return found.get("reason") == reason and is_told

    await world.until(look, f"{name} waits: {reason}: {message}")


async def test_queue_that_is_deleted_while_its_gang_runs(world: World, declare: Declare) -> None:
    """The gang goes on, and is charged again as soon as the queue is there again."""
    await declare("other", resources=CPU)
    short = "quota of team: cpu: needs 3, 1 available; nominal 4, 3 used"
    async with declaring(world.client) as declare_again:
        await declare_again("team", resources=CPU)
        await world.start_dispatcher(**OFTEN)
        await submit(world, "runs", "team")
        await world.until_state("runs", "Running")
        await submit(world, "waits", "team")
        await until_waits(world, "waits", "InsufficientQuota", short)
    await until_waits(world, "waits", "QueueNotFound", DELETED)
    await submit(world, "beside", "other")
    await world.until_state("beside", "Running")

    await declare("team", resources=CPU)
    await until_waits(world, "waits", "InsufficientQuota", short)
    await until_status(world, "team", running=1, pending=1, used={"cpu": "3"})
    await world.delete("runs")
    await world.until_state("waits", "Running")
    assert "preempted" not in await world.causes("runs")


async def test_queues_that_become_a_circle_and_are_repaired(world: World, declare: Declare) -> None:
    await declare("company", resources=CPU)
    await declare("team", parent="company", resources=CPU)
    await declare("other", resources=CPU)
    await world.start_dispatcher(**OFTEN)
    await submit(world, "runs", "team")
    await world.until_state("runs", "Running")

    await change(world, "company", parent="team")
    await until_status(world, "team", state="Circle", running=1)
    await submit(world, "waits", "team", cpu="1")
    await until_waits(world, "waits", "QueueNotFound", "queue team is not valid: Circle")
    await submit(world, "beside", "other")
    await world.until_state("beside", "Running")

    await change(world, "company", parent=None)
    await world.until_state("waits", "Running")
    await until_status(world, "team", state="Active", running=2, used={"cpu": "4"})
    assert "preempted" not in await world.causes("runs")


async def test_queue_that_gets_children_and_a_lower_quota(world: World, declare: Declare) -> None:
    await declare("team", resources=NOT_BORROWING)
    await world.start_dispatcher(**OFTEN)
    await submit(world, "runs", "team")
    await world.until_state("runs", "Running")
    await submit(world, "waits", "team", cpu="1500m")
    short = "quota of {}: cpu: needs 1500m, {} available; nominal {}, {} used"
    await until_waits(world, "waits", "InsufficientQuota", short.format("team", "1", "4", "3"))

    await declare("vision", parent="team", resources={"cpu": {"nominalQuota": 2}})
    why = "queue team has children: name one of the queues without any"
    await until_waits(world, "waits", "QueueNotLeaf", why)
    await world.merge("AppWrapper", "waits", {"metadata": {"labels": {QUEUE_LABEL: "vision"}}})
    await until_waits(world, "waits", "InsufficientQuota", short.format("vision", "1", "2", "0"))

    await change(world, "team", resources={"cpu": {"nominalQuota": 2, "borrowingLimit": 0}})
    await until_status(world, "team", running=1, pending=1, used={"cpu": "3"}, borrowed={"cpu": "1"})
    await change(world, "team", resources={"cpu": {"nominalQuota": 5}})
    await world.until_state("waits", "Running")
    assert "preempted" not in await world.causes("runs")


async def test_default_queue_with_settings_is_that_of_appwrappers_without_a_label(
    world: World, declare: Declare
) -> None:
    """A platform team that closes `default` for GPUs, and then hangs it below a parent that does not exist."""
    await declare("default", resources={"cpu": {"nominalQuota": 0}})
    await declare("team", resources=CPU)
    await world.start_dispatcher(**OFTEN)
    await world.create(appwrapper("stray", item(job("stray", cpu="1"))))
    most = "quota of default: cpu: needs 1, at most 0 is ever available"
    await until_waits(world, "stray", "LargerThanQuota", most)
    await change(world, "default", parent="nobody")
    await until_waits(world, "stray", "QueueNotFound", "queue default is not valid: ParentNotFound")
    await submit(world, "beside", "team")
    await world.until_state("beside", "Running")

    await world.merge("AppWrapper", "stray", {"metadata": {"labels": {QUEUE_LABEL: "team"}}})
    await world.until_state("stray", "Running")


# --- The last DispatchQueue of a hub is deleted and created again: no gang goes without quota meanwhile ----


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
