"""Queues on a real cluster: quota, preemption, and the return of the victim."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from dispatcher.api.names import QUEUE_LABEL, QUEUES_PATH
from dispatcher.kube.client import MERGE_PATCH, ClusterClient
from dispatcher.store.snapshot.snapshot_reader import Snapshot, read_snapshot
from testbed.plane import Plane
from testbed.processes import Supervisor
from tests.cluster.dispatch_queues import Declare
from tests.cluster.manifests import appwrapper, changed, item, job
from tests.cluster.outcomes import rows
from tests.cluster.test_explain import BASE_NODES, until_settled
from tests.cluster.world import World
from tests.commands import Run, runner

Json = dict[str, Any]


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher …` on the queue of this world."""
    monkeypatch.setenv("DISPATCHER_DATABASE_URL", world.database_url)
    return runner(monkeypatch, capsys)


async def test_a_gang_without_quota_waits_although_it_fits(world: World, declare: Declare, run: Run) -> None:
    await declare("default", resources={"cpu": {"nominalQuota": 4}})
    await world.start_dispatcher(snapshot_seconds="0.1")
    await world.create_until("Running", appwrapper("first", item(job("first", cpu="3"))))
    await world.create(appwrapper("second", item(job("second", cpu="2"))))
    await world.create(appwrapper("third", item(job("third", cpu="1"))))
    waiting = await world.until_state("second", "Backoff")
    assert waiting["waiting"]["reason"] == "InsufficientQuota"
    assert "cpu: needs 2, 1 available; nominal 4, 3 used" in waiting["waiting"]["message"]
    await world.until_state("third", "Running")
    await until_settled(world, BASE_NODES)
    told = (await run("explain", "second")).out
    assert "QUEUE    RESOURCE  NOMINAL  USED  BORROWS  AVAILABLE  AT MOST" in told
    assert "default  cpu       4        4     0        0          4" in told
    assert "gangs of this queue do not preempt each other" in told
    assert f"without {world.namespace}/first\n" in told
    assert "with a nominal quota of queue default that has 2 more cpu" in told
    waiting = await world.create_until("Backoff", appwrapper("fourth", item(job("fourth", cpu="5"))))
    assert waiting["waiting"]["reason"] == "LargerThanQuota"
    await world.delete("first")
    await world.until_state("second", "Running")


async def test_a_gang_of_higher_priority_preempts_and_the_victim_comes_back(
    world: World, declare: Declare
) -> None:
    await declare(
        "default",
        resources={"cpu": {"nominalQuota": 4}},
        preemption={"withinQueue": "LowerPriority"},
    )
    await world.start_dispatcher()
    await world.create_until("Running", appwrapper("dev", item(job("dev", 3, cpu="1")), priority=100))
    await world.create_until("Running", appwrapper("prod", item(job("prod", 2, cpu="1")), priority=1000))
    victim = await world.until_state("dev", "Backoff")
    (candidate,) = (each for each in victim["conditions"] if each["type"] == "PreemptCandidate")
    assert candidate["reason"] == "PriorityInQueue"
    expected = f"preempted for {world.namespace}/prod (queue default, priority 1000): "
    assert candidate["message"].startswith(expected)

    # Nothing of the preemptor existed before the pods of its victim were confirmed gone.
    (removed,) = await rows(world, "SELECT at FROM event WHERE name = 'dev' AND cause = 'removed'")
    (dispatched,) = await rows(world, "SELECT at FROM event WHERE name = 'prod' AND cause = 'dispatched'")
    assert removed["at"] <= dispatched["at"]
    assert (await world.causes("prod"))[:3] == ["submitted", "preempting", "dispatched"]
    (attempt,) = await rows(
        world, "SELECT outcome, preempted_by, error_class FROM history.attempt_history WHERE name = 'dev'"
    )
    (preemptor,) = await rows(world, "SELECT uid FROM appwrapper WHERE name = 'prod'")
    assert attempt == {
        "outcome": "preempted",
        "preempted_by": preemptor["uid"],
        "error_class": "PriorityInQueue",
    }
    (record,) = await rows(world, "SELECT requeuings, retries FROM appwrapper WHERE name = 'dev'")
    assert record == {"requeuings": 0, "retries": 0}

    await world.delete("prod")
    await world.until_state("dev", "Running")


async def test_pending_gang_names_the_borrowers_and_then_its_victims(world: World, declare: Declare) -> None:
    await declare("company")
    await declare("owner", parent="company", resources={"cpu": {"nominalQuota": 4}})
    await declare("guest", parent="company", resources={"cpu": {"nominalQuota": 1}})
    await world.start_dispatcher()
    await world.create_until(
        "Running", in_queue("guest", appwrapper("small", item(job("small", 3, cpu="1"))))
    )
    await world.merge("Job", "small", {"metadata": {"finalizers": ["example.com/slow"]}})
    await world.create(in_queue("owner", appwrapper("large", item(job("large", 1, cpu="3500m")))))
    waiting = (await world.until_state("large", "Backoff"))["waiting"]
    assert (waiting["reason"], waiting["resource"], waiting["queue"]) == ("InsufficientQuota", "cpu", "owner")
    assert waiting["quota"] == {
        "nominal": "4",
        "used": "0",
        "available": "2",
        "most": "5",
        "borrowers": [{"queue": "guest", "amount": "2"}],
    }

    reclaims = {"spec": {"preemption": {"reclaim": "Any"}}}
    await world.client.patch(f"{QUEUES_PATH}/owner", reclaims, MERGE_PATCH)

    async def preempting() -> Json | None:
        found: Json = ((await world.get("AppWrapper", "large")) or {})["status"]["waiting"]
        return found if found["reason"] == "AwaitingRelease" else None

    waiting = await world.until(preempting, "large awaits the release of small")
    assert (waiting["queue"], waiting["preempting"]) == ("owner", [f"{world.namespace}/small"])
    assert "quota" not in waiting
    await world.merge("Job", "small", {"metadata": {"finalizers": None}})
    assert "waiting" not in await world.until_state("large", "Running")


@pytest.mark.parametrize("change", ["deleted", "suspended", "moved"])
async def test_a_victim_runs_again_if_its_preemptor_goes_away_meanwhile(
    world: World, declare: Declare, change: str
) -> None:
    await declare(
        "default",
        resources={"cpu": {"nominalQuota": 4, "borrowingLimit": 0}},
        preemption={"withinQueue": "LowerPriority"},
    )
    await declare("other", resources={"cpu": {"nominalQuota": 4}}, stopPolicy="Hold")
    await world.start_dispatcher()
    await world.create_until("Running", appwrapper("victim", item(job("victim", 3, cpu="1"))))
    await world.merge("Job", "victim", {"metadata": {"finalizers": ["example.com/slow"]}})
    await world.create(appwrapper("preemptor", item(job("preemptor", cpu="2")), priority=5))
    preempting = await world.until_history("preemptor", "preempting")
    victim, preemptor = f"{world.namespace}/victim", f"{world.namespace}/preemptor"
    assert victim in (await world.event("preemptor", "Preempting"))["message"]
    assert preemptor in (await world.event("victim", "Preempted"))["message"]

    match change:
        case "deleted":
            await world.delete("preemptor")
        case "suspended":
            await world.merge("AppWrapper", "preemptor", {"spec": {"suspend": True}})
            await world.until_state("preemptor", "Suspended")
        case _:
            await world.merge("AppWrapper", "preemptor", {"metadata": {"labels": {QUEUE_LABEL: "other"}}})
            await world.until_history("preemptor", "moved")
    await world.merge("Job", "victim", {"metadata": {"finalizers": None}})
    await world.until_history("victim", "pods-running", 2)
    assert "dispatched" not in await world.causes("preemptor")
    assert preempting.count("preempting") == (await world.causes("preemptor")).count("preempting") == 1


async def test_a_circle_of_preemptions_is_an_event_of_the_gang_that_closes_it(
    world: World, declare: Declare
) -> None:
    """A user who raises the priority of a victim lets it preempt its preemptor."""
    quota = {"cpu": {"nominalQuota": 4}}
    await declare("default", resources=quota, preemption={"withinQueue": "LowerPriority"})
    process = await world.start_dispatcher()
    await world.create_until("Running", appwrapper("first", item(job("first", cpu="3")), priority=1))
    await world.create_until("Running", appwrapper("second", item(job("second", cpu="3")), priority=2))
    await world.merge("AppWrapper", "first", {"spec": {"priority": 3}})
    await world.until_state("first", "Running")

    event = await world.event("second", "PreemptionLoop")
    first, second = f"{world.namespace}/first", f"{world.namespace}/second"
    assert event["type"] == "Warning"
    assert event["message"].endswith(f"The circle: {second} → {first} → {second}")
    lines = map(json.loads, process.log.read_text().splitlines())
    assert [each["appwrapper"] for each in lines if each["event"] == "preemption_loop"] == [second]


def in_queue(name: str, manifest: Json) -> Json:
    """The AppWrapper with the label that names its queue."""
    manifest["metadata"]["labels"] = {QUEUE_LABEL: name}
    return manifest


# -----------------------------------------------------------------------------------------------------------
# `order: Usage` on a real cluster: the namespace that used less of late goes first, also after a restart.


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
