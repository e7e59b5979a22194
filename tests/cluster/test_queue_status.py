"""Queues as people see them on a real cluster: their status, and the commands that show and stop them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher.api.names import QUEUES_PATH as PATH
from tests.cluster.dispatch_queues import Declare
from tests.cluster.figures import cycles_of, writes_of
from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.test_queues import in_queue
from tests.cluster.world import World
from tests.commands import Ran, Run, runner

Json = dict[str, Any]
CPU = {"cpu": {"nominalQuota": 4}}
OFTEN = {"queue_status_seconds": "0.1"}


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher queues …` on the hub and the database of this world."""
    monkeypatch.setenv("KUBECONFIG", str(world.plane.kubeconfig))
    monkeypatch.setenv("DISPATCHER_DATABASE_URL", world.database_url)
    return runner(monkeypatch, capsys, "queues")


async def until_status(world: World, name: str, **expected: object) -> Json:
    """A DispatchQueue once its status has these fields."""

    async def look() -> Json | None:
        found = await world.client.get(f"{PATH}/{name}")
        status = found.get("status") or {}
        return found if expected.items() <= status.items() else None

    return await world.until(look, f"the status of {name} has {expected}")


def conditions(queue: Json) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each.get("reason", "")) for each in queue["status"]["conditions"]}


async def test_status_shows_quota_and_use_and_is_written_only_where_it_differs(
    world: World, declare: Declare
) -> None:
    await declare("company")
    await declare("default", parent="company", resources=CPU)
    await declare("lender", parent="company", resources=CPU, sharing="Division")
    await declare("lost", parent="nobody", resources=CPU)
    await world.start_dispatcher(**OFTEN)
    await world.create(appwrapper("borrower", item(job("borrower", 6, cpu="1"))))
    await world.create(appwrapper("large", item(job("large", 3, cpu="1"))))

    found = await until_status(world, "default", running=1, pending=1)
    status = {key: value for key, value in found["status"].items() if key != "conditions"}
    assert status == {
        "state": "Active",
        "running": 1,
        "pending": 1,
        "nominal": {"cpu": "4"},
        "used": {"cpu": "6"},
        "borrowed": {"cpu": "2"},
        "available": {"cpu": "2"},
    }
    assert conditions(found) == {"Valid": ("True", ""), "Stopped": ("False", ""), "Ignored": ("False", "")}
    await until_status(world, "company", running=1, pending=1, nominal={"cpu": "8"}, borrowed={"cpu": "0"})
    lender = await until_status(world, "lender", running=0, used={"cpu": "0"}, available={"cpu": "2"})
    assert conditions(lender)["Ignored"] == ("True", "NoEffect")
    lost = await until_status(world, "lost", state="ParentNotFound")
    assert conditions(lost)["Valid"] == ("False", "ParentNotFound")

    await declare("nobody")
    valid = await until_status(world, "lost", state="Active")
    times = [each["lastTransitionTime"] for each in valid["status"]["conditions"]]
    assert conditions(valid)["Valid"] == ("True", "")
    assert times[0] >= lost["status"]["conditions"][0]["lastTransitionTime"]
    # The round that has written this one has compared the others, too.
    for before in (found, lender):
        after = await world.client.get(f"{PATH}/{before['metadata']['name']}")
        assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]

    await world.delete("borrower")
    await world.until_state("large", "Running")
    await until_status(world, "default", running=1, pending=0, used={"cpu": "3"}, borrowed={"cpu": "0"})


async def test_nothing_is_written_while_nothing_changes(world: World, declare: Declare) -> None:
    for name, sharing in (("company", "Priority"), ("shared", "DominantShare"), ("divided", "Division")):
        await declare(name, sharing=sharing)
        await declare(f"{name}-leaf", parent=name, resources=CPU, order="Usage", weight=2)
    await declare("held", resources=CPU, stopPolicy="Hold")
    await declare("lost", parent="nobody", resources=CPU)
    process = await world.start_dispatcher(poll_seconds="0.1", **OFTEN)
    waiting = {
        **dict.fromkeys(("company-leaf", "shared-leaf"), "InsufficientQuota"),
        "held": "QueueStopped",
        "lost": "QueueNotFound",
        "divided": "QueueNotLeaf",
    }
    for name in ("company-leaf", "shared-leaf", "divided-leaf"):
        await world.create_until(
            "Running", in_queue(name, appwrapper(f"runs-{name}", item(job(f"runs-{name}", cpu="3"))))
        )
    for name, reason in waiting.items():
        status = await world.create_until(
            "Backoff", in_queue(name, appwrapper(f"waits-{name}", item(job(f"waits-{name}", cpu="3"))))
        )
        assert status["waiting"]["reason"] == reason

    async def is_quiet() -> bool:
        writes, cycles = await writes_of(process), await cycles_of(process)

        async def passed() -> bool:
            return await cycles_of(process) >= cycles + 20  # two seconds: some rounds of the statuses

        await world.until(passed, "20 cycles more")
        return await writes_of(process) == writes

    await world.until(is_quiet, "a round of the statuses without a write")
    await until_status(world, "divided-leaf", running=1, fairShare={"cpu": "3"})


async def test_held_queue_dispatches_again_once_it_is_resumed(
    world: World, declare: Declare, run: Run
) -> None:
    await declare("company", resources=CPU)
    await declare("default", parent="company", minRuntimeSeconds=7)
    await world.start_dispatcher(**OFTEN)
    await world.create_until("Running", appwrapper("first", item(job("first", cpu="1"))))

    held = "held: nothing new is dispatched from it, and what runs goes on"
    assert await run("hold", "company") == Ran(0, f"company is {held}\n")
    assert await run("hold", "company") == Ran(0, f"company is already {held}\n")
    waiting = await world.create_until("Backoff", appwrapper("second", item(job("second", cpu="1"))))
    assert waiting["waiting"]["reason"] == "QueueStopped"
    await until_status(world, "default", state="Hold", running=1, pending=1)

    shown = (await run()).out.splitlines()
    assert shown[0].split() == [
        *("QUEUE", "RESOURCE", "NOMINAL", "USED", "BORROWED"),
        *("AVAILABLE", "RUNNING", "PENDING", "SHARE", "STATE"),
    ]
    assert [line.split() for line in shown[1:]] == [
        ["company", "cpu", "4", "1", "0", "3", "1", "1", "-", "Hold"],
        ["default", "cpu", "0", "1", "1", "3", "1", "1", "-", "Hold"],
    ]
    told = json.loads((await run("default", "-o", "json")).out)
    assert {"name": "stopPolicy", "value": "Hold", "origin": "company"} in told["settings"]
    assert {"name": "minRuntimeSeconds", "value": "7", "origin": "itself"} in told["settings"]
    assert [(each["name"], each["reason"]) for each in told["gangs"]] == [("second", "QueueStopped")]

    assert (await run("resume", "company")).out == "company is open: gangs may be dispatched from it\n"
    await world.until_state("second", "Running")
    await until_status(world, "default", state="Active", running=2, pending=0)
    assert (await world.causes("first")).count("dispatched") == 1


async def test_drained_queue_evicts_its_running_gangs(world: World, declare: Declare, run: Run) -> None:
    await declare("default", resources=CPU)
    await world.start_dispatcher(**OFTEN)
    await world.create_until("Running", appwrapper("gang", item(job("gang", 2, cpu="1"))))
    assert (await run("drain", "default")).code == 0
    await until_status(world, "default", state="HoldAndDrain", running=0, pending=1, used={"cpu": "0"})
    await run("resume", "default")
    await world.until_state("gang", "Running")
    causes = await world.causes("gang")
    assert (causes.count("evicted"), causes.count("preempted")) == (1, 0)
