"""A gang that no cluster could hold: told so once, in nobody's way, free of charge, and ready to go one day."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dispatcher.settings import Settings
from testbed import nodes
from testbed.nodes import Shape
from testbed.processes import Process
from tests.cluster.figures import cycles_of, writes_of
from tests.cluster.manifests import appwrapper, bent, changed, daemonset, item, job, small_job
from tests.cluster.outcomes import LIVE, delete_all, epoch, rows
from tests.cluster.world import World

Json = dict[str, Any]

LARGE_NODE = 90
HUGE = appwrapper("huge", item(job("huge", cpu="30")), priority=100)
"""One pod, first of the queue, for which three nodes of 8 cpu are too small, together and each alone."""


@asynccontextmanager
async def large_node(world: World) -> AsyncIterator[None]:
    """A machine that could hold it, for a while."""
    await nodes.add(world.plane.client, Shape(cpu="64", memory="128Gi"), [LARGE_NODE])
    try:
        yield
    finally:
        await delete_all(world)
        await nodes.remove(world.plane.client, nodes.name_of(LARGE_NODE))


async def cycles_pass(world: World, process: Process, count: int) -> None:
    """Return when so many more cycles were run."""
    wanted = await cycles_of(process) + count

    async def enough() -> bool:
        return await cycles_of(process) >= wanted

    await world.until(enough, f"{count} more cycles")


async def events_about(world: World, name: str) -> list[tuple[str, str]]:
    found = (await world.client.get(f"/api/v1/namespaces/{world.namespace}/events")).get("items") or []
    return [
        (each["reason"], each["message"])
        for each in found
        if (each["involvedObject"]["kind"], each["involvedObject"]["name"]) == ("AppWrapper", name)
    ]


@pytest.mark.parametrize("policy", ["BestEffortFIFO", "StrictFIFO"])
async def test_gang_larger_than_the_cluster_is_noted_once_blocks_no_gang_and_goes_on_a_new_node(
    world: World, policy: str
) -> None:
    process = await world.start_dispatcher(
        queue_policy=policy, poll_seconds="0.1", cycle_seconds="0", snapshot_seconds="0.1"
    )
    await world.create(HUGE)
    await world.until_state("huge", "Backoff")

    for name in ("one", "two", "three"):  # every one of them wakes cycles that look at the huge one again
        await world.create_until("Running", small_job(name))
        await world.delete(name)
        await world.until_gone("Job", name)

    message = "cluster hub: cpu: needs 30, 24 in all of it"

    async def alone() -> bool:
        waiting = ((await world.get("AppWrapper", "huge")) or {})["status"]["waiting"]
        repair = waiting.pop("repair", {})
        return "add_nodes" in repair and waiting == {
            "reason": "LargerThanCluster",
            "message": message,
            "resource": "cpu",
            "cluster": "hub",
            "estimateUnknown": "it would not start if nothing else ran",
        }

    await world.until(alone, "its status has a repair and no position")
    told = await world.get("AppWrapper", "huge")
    assert await world.causes("huge") == ["submitted", "blocked"]
    assert await events_about(world, "huge") == [("Backoff", message)]

    async def nothing_held() -> bool:
        return await rows(world, "SELECT uid FROM attempt WHERE ended_at IS NULL") == []

    await world.until(nothing_held, "all small ones are released")
    row = await rows(world, "SELECT version, updated_at FROM appwrapper WHERE name = 'huge'")
    await cycles_pass(world, process, 3)  # what the small ones have left to be written is written
    writes = await writes_of(process)
    await cycles_pass(world, process, 20)
    assert await writes_of(process) == writes
    assert await world.get("AppWrapper", "huge") == told
    assert await rows(world, "SELECT version, updated_at FROM appwrapper WHERE name = 'huge'") == row

    async with large_node(world):
        await world.until_state("huge", "Running")
        assert (await world.causes("huge"))[1:4] == ["blocked", "dispatched", "created"]


@pytest.mark.parametrize("count", [40, pytest.param(100, marks=pytest.mark.exhaustive)])
async def test_many_gangs_that_never_fit_are_noted_once_each_and_a_canary_passes_them(
    world: World, count: int
) -> None:
    process = await world.start_dispatcher(queue_policy="StrictFIFO", poll_seconds="0.1")
    names = [f"huge-{number}" for number in range(count)]
    await asyncio.gather(
        *(
            world.create(appwrapper(name, item(job(name, cpu=str(100 + index))), priority=100))
            for index, name in enumerate(names)
        )
    )

    async def all_told() -> bool:
        found = await world.every("AppWrapper")
        return all((each.get("status") or {}).get("waiting") for each in found)

    await world.until(all_told, "all are told")
    await world.create_until("Running", small_job("canary"))
    await cycles_pass(world, process, 5)

    told = await rows(
        world, "SELECT name, count(*) AS times FROM history.timeline WHERE cause = 'blocked' GROUP BY name"
    )
    assert {row["name"]: row["times"] for row in told} == dict.fromkeys(names, 1)
    await delete_all(world)


# -----------------------------------------------------------------------------------------------------------
# What never becomes free, and what is given back because it never will be used, by a real scheduler's word.


PREFIX = "workload.codeflare.dev.appwrapper"


async def test_gang_that_needs_capacity_of_a_daemonset_shows_that_and_blocks_no_strict_queue(
    world: World,
) -> None:
    await world.create(daemonset("agent"))

    async def agents_run() -> bool:
        pods = await world.every("Pod")
        return len(pods) == 3 and all(each["status"].get("phase") == "Running" for each in pods)

    await world.until(agents_run, "a pod of the DaemonSet runs on each node")
    await world.start_dispatcher(queue_policy="StrictFIFO")
    told = await world.create_until(
        "Backoff", appwrapper("large", item(job("large", parallelism=3, cpu="8")), priority=100)
    )

    message = "cluster hub: cpu: needs 24, 23700m in all of it (of 24, 300m are taken by DaemonSets and static pods)"
    assert (told["waiting"]["reason"], told["waiting"]["message"]) == ("LargerThanCluster", message)
    await world.create_until("Running", small_job("small"))

    await world.delete("agent", "DaemonSet")
    await world.delete("small")
    await world.until_state("large", "Running")


async def test_gang_of_which_a_pod_can_never_be_scheduled_gives_its_capacity_back(world: World) -> None:
    await world.start_dispatcher(fit="aggregate")  # by nodes, it would not be dispatched
    nowhere = changed(job("nowhere"), "spec.template.spec.nodeSelector", {"rack": "none"})
    gang = appwrapper("gang", item(job("runs")), item(nowhere))
    patience = {"warmupGracePeriodDuration": "1s", "retryPausePeriodDuration": "0s", "retryLimit": "1"}
    await world.create(bent(gang, {f"{PREFIX}/{key}": value for key, value in patience.items()}))

    status = await world.until_state("gang", "Failed")

    assert await world.causes("gang") == [
        *("submitted", "dispatched", "created", "unhealthy", "evicted", "removed"),
        *("dispatched", "created", "unhealthy", "run-failed", "removed"),
    ]
    failed = next(each for each in status["conditions"] if each["type"] == "Failed")
    counts, scheduler = failed["message"].split("; no node for pod nowhere-")
    assert (failed["reason"], counts) == (
        "InsufficientPodsReady",
        "1 of 2 pods run: Pods failed scheduling failed=1, running=1. (requeued so far: 1)",
    )
    assert "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector" in scheduler
    assert await world.get("Job", "runs") is None


# -----------------------------------------------------------------------------------------------------------
# Many AppWrappers that fit nowhere are deleted at once: all are forgotten, and whoever comes next is served.


DELETED = "SELECT count(*) AS deleted FROM appwrapper WHERE phase = 'Deleted'"
HELD = "SELECT name FROM attempt JOIN appwrapper USING (uid) WHERE attempt.ended_at IS NULL"
COUNT_BLOCKED = (
    "SELECT count(*) AS blocked FROM appwrapper WHERE phase = 'Queued' AND pending_reason IS NOT NULL"
)


def doomed(number: int) -> str:
    return f"doomed-{number}"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("count", [60, pytest.param(150, marks=pytest.mark.exhaustive)])
async def test_after_a_mass_deletion_nothing_is_held_and_a_canary_runs(world: World, count: int) -> None:
    assert count > Settings().concurrency  # more than are reconciled at once
    process = await world.start_dispatcher()
    await world.create_until("Running", appwrapper("busy", item(job("busy", cpu="4"))))
    for number in range(count):
        # Half of them could never run on these 24 cpus; the others wait for the 4 that are taken.
        cpu, name = ("100" if number % 2 else "21"), doomed(number)
        await world.create(appwrapper(name, item(job(name, cpu=cpu)), priority=number % 3))

    async def all_told() -> bool:
        return await rows(world, COUNT_BLOCKED) == [{"blocked": count}]

    await world.until(all_told, "each was told that it must wait")
    leadership = await epoch(world)

    await asyncio.gather(*(world.delete(doomed(number)) for number in range(count)))
    await world.create_until("Running", small_job("canary"))

    async def all_forgotten() -> bool:
        return await rows(world, DELETED) == [{"deleted": count}]

    await world.until(all_forgotten, "every row is Deleted")
    assert sorted(row["name"] for row in await rows(world, LIVE)) == ["busy", "canary"]
    assert sorted(row["name"] for row in await rows(world, HELD)) == ["busy", "canary"]
    assert process.is_running()
    assert await epoch(world) == leadership
