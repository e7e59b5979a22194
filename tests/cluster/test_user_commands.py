"""The commands on a real API server, by a user with the rights to AppWrappers and pods alone.

`queue`, `show` and `explain` say the same of the statuses as of the database.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import yaml

from tests.cluster.dispatch_queues import Declare
from tests.cluster.manifests import appwrapper, changed, config_map, item, job
from tests.cluster.world import World
from tests.commands import Ran, Run, runner

Json = dict[str, Any]

RIGHTS = (
    {
        "apiGroups": ["workload.codeflare.dev"],
        "resources": ["appwrappers"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
)


@pytest.fixture
async def run(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher …` as that user, without a database."""
    kubeconfig = await asyncio.to_thread(
        world.plane.service_account_kubeconfig, world.namespace, "ada", RIGHTS
    )
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    return runner(monkeypatch, capsys)


async def test_user_submits_sees_and_ends_a_gang_with_a_kubeconfig_alone(world: World, run: Run) -> None:
    key, here = f"{world.namespace}/train", ("-n", world.namespace)
    await world.start_dispatcher()
    manifest = yaml.safe_dump(appwrapper("train", item(job("train", 2))))

    submitted = await run("submit", "-", *here, stdin=manifest)
    assert (submitted.code, submitted.out.splitlines()[0]) == (0, f"{key} submitted")
    waited = await run("wait", key, "--for", "running", "--timeout", "1m")
    assert (waited.code, waited.out.splitlines()[-1]) == (0, f"{key} Running on hub")

    ran = await run("running", *here, "-o", "json")
    [seen] = json.loads(ran.out)
    assert ran.err.startswith("Namespaces cannot be read")
    assert (seen["name"], seen["cluster"], seen["pods"]) == ("train", "hub", {"live": 2, "bound": 2})
    assert (seen["demand"]["cpu"], bool(seen["nodes"]), seen["since"] is not None) == (200, True, True)

    refused = await run("nodes", *here)
    assert "The nodes of hub cannot be seen: nodes is forbidden" in refused.err
    as_admin = await run("nodes", "--kubeconfig", str(world.plane.kubeconfig), "-o", "json")
    assert sum(each["gangs"].get(key, {}).get("cpu", 0) for each in json.loads(as_admin.out)) == 200

    assert (await run("priority", "7", key, "--dry-run")).code == 0
    assert await run("cancel", key, "--dry-run") == Ran(0, f"{key} deleted (dry run)\n")
    kept = await world.get("AppWrapper", "train")
    assert kept is not None
    assert "deletionTimestamp" not in kept["metadata"]
    assert await run("priority", "-7", "train", *here) == Ran(0, f"{key} has priority -7, before 0\n")
    assert (await run("hold", "train", *here)).code == 1
    assert await run("hold", "train", *here, "--evict") == Ran(0, f"{key} held\n")

    async def is_released() -> bool:
        status = ((await world.get("AppWrapper", "train")) or {})["status"]
        return status["queuejobstate"] == "Suspended" and "cluster" not in status

    await world.until(is_released, "the capacity of train is free")
    assert await run("running", *here) == Ran(
        0,
        "",
        "Namespaces cannot be read, so a queue that a label of the namespace names is shown as default.\n"
        f"No gang holds capacity in namespace {world.namespace}; -A shows all namespaces.\n",
    )
    assert await run("release", "train", *here) == Ran(0, f"{key} released\n")
    assert (await run("wait", "train", *here, "--for", "running", "--timeout", "1m")).code == 0

    assert await run("cancel", "train", *here) == Ran(0, f"{key} deleted\n")
    await world.until_gone("AppWrapper", "train")
    assert (await run("cancel", "train", *here)).code == 1


async def test_plain_objects_are_queued_as_one_gang_and_a_misspelt_field_is_refused(
    world: World, run: Run
) -> None:
    key, admin = f"{world.namespace}/train", str(world.plane.kubeconfig)
    asked = ("submit", "-", "-n", world.namespace, "--kubeconfig", admin)
    settings, plain = config_map("settings"), job("train", 2, run_for="1s")
    await world.start_dispatcher()

    misspelt = yaml.safe_dump_all([settings, changed(plain, "spec.paralellism", 2)])
    assert await run(*asked, stdin=misspelt) == Ran(
        2,
        "",
        f'dispatcher: {key}: Job/train: unknown field "spec.paralellism"; did you mean parallelism? Nothing was '
        "created\n",
    )
    assert await world.get("AppWrapper", "train") is None

    written = yaml.safe_dump_all([settings, plain])
    ran = await run(*asked, "--priority", "3", "--wait", "--timeout", "1m", stdin=written)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert (lines[0], lines[-1]) == (
        f"{key} submitted: ConfigMap/settings, Job/train",
        f"{key} Completed on hub",
    )
    made = await world.get("AppWrapper", "train")
    assert made is not None
    assert made["spec"]["priority"] == 3


async def test_queue_that_is_meant_is_named_to_users_who_may_list_queues(
    world: World, declare: Declare, run: Run
) -> None:
    key, admin = f"{world.namespace}/train", ("--kubeconfig", str(world.plane.kubeconfig))
    absent = "there is no queue vison"
    await declare("vision")
    await world.start_dispatcher()

    asked = ("submit", "-", "-n", world.namespace, "--queue", "vison", *admin)
    assert await run(*asked, stdin=yaml.safe_dump(job("train"))) == Ran(
        0,
        f"{key} submitted: Job/train\n"
        f"{key} cannot run as it is: QueueNotFound: {absent}; did you mean vision?\n",
    )
    by_ada, by_admin = await run("explain", key), await run("explain", key, *admin)
    assert (by_ada.code, by_ada.out.splitlines()[-1], by_ada.err) == (0, f"  {absent}", "")
    assert by_admin.out.splitlines()[-1] == f"  {absent}; did you mean vision?"


ROW = (
    *(
        "queue",
        "position",
        "namespace",
        "name",
        "uid",
        "priority",
        "created_at",
        "submitted_at",
        "reason",
        "message",
    ),
    *("user_name", "gpu", "blocking_clusters", "estimated_start"),
)
JOB = (
    *(
        "uid",
        "namespace",
        "name",
        "kinds",
        "queue",
        "user_name",
        "priority",
        "submitted_at",
        "state",
        "reason",
    ),
    *("message", "last_cluster", "pods", "cpu", "memory_gib", "gpu"),
)
EXPLANATION = ("name", "namespace", "uid", "state", "verdict", "position", "reason", "resource", "cluster")


async def test_statuses_and_the_database_say_the_same(world: World, run: Run) -> None:
    await world.start_dispatcher(snapshot_seconds="0.1")
    await world.create_until("Running", appwrapper("runs", item(job("runs", 3, cpu="5"))))
    await world.create(appwrapper("large", item(job("large", 2, cpu="6"))))
    await world.create(appwrapper("small", item(with_gpu(job("small", cpu="4"))), priority=3))
    await world.create(appwrapper("huge", item(job("huge", cpu="900"))))
    await world.create(appwrapper("held", item(job("held")), suspend=True))
    for name, position in (("small", 1), ("large", 2)):
        await until_advised(world, name, position)
    await world.until_state("huge", "Backoff")
    await world.until_state("held", "Suspended")

    async def ask(*asked: str) -> tuple[list[Json], list[Json]]:
        """The answers from the kubeconfig and from the database."""
        ran = [
            await run(*asked, "-n", world.namespace, "-o", "json", "--database-url", url)
            for url in ("", world.database_url)
        ]
        assert [each.code for each in ran] == [0, 0], [each.err for each in ran]
        return json.loads(ran[0].out), json.loads(ran[1].out)

    statuses, rows = await ask("queue")
    assert [(each["name"], each["position"]) for each in rows] == [("small", 1), ("large", 2), ("huge", None)]
    assert of(ROW, statuses) == of(ROW, rows)
    assert [each["gpu"] for each in statuses] == [1, 0, 0]

    states = []
    for name in ("runs", "large", "small", "huge", "held"):
        statuses, rows = await ask("show", name)
        assert of(JOB, statuses) == of(JOB, rows)
        states.append(statuses[0]["state"])
    assert states == ["Running", "Queued", "Queued", "Queued", "Suspended"]

    for name in ("runs", "large", "small", "huge"):
        statuses, rows = await ask("explain", name)
        assert of(EXPLANATION, statuses) == of(EXPLANATION, rows)


def with_gpu(template: Json) -> Json:
    """The Job with a GPU for each of its pods."""
    resources = template["spec"]["template"]["spec"]["containers"][0]["resources"]
    for amounts in ("requests", "limits"):
        resources[amounts] = {**resources.get(amounts, {}), "nvidia.com/gpu": "1"}
    return template


def of(columns: tuple[str, ...], rows: list[Json]) -> list[Json]:
    """These columns of each row, as far as it has them."""
    return [{column: row.get(column) for column in columns} for row in rows]


async def until_advised(world: World, name: str, position: int) -> None:
    """Return once the status of an AppWrapper has this position and a repair."""

    async def look() -> bool:
        status = ((await world.get("AppWrapper", name)) or {}).get("status") or {}
        waiting = status.get("waiting") or {}
        return "repair" in waiting and waiting.get("position") == position

    await world.until(look, f"{name} is at position {position} with a repair")
