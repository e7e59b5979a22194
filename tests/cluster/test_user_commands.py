"""`running`, `nodes` and the verbs on a real API server, by a user with the rights to AppWrappers and pods alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import yaml

from tests.cluster.manifests import appwrapper, item, job
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

    assert await run("submit", "-", *here, stdin=manifest) == Ran(0, f"{key} submitted\n")
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
        f"No gang holds capacity in namespace {world.namespace}.\n",
    )
    assert await run("release", "train", *here) == Ran(0, f"{key} released\n")
    assert (await run("wait", "train", *here, "--for", "running", "--timeout", "1m")).code == 0

    assert await run("cancel", "train", *here) == Ran(0, f"{key} deleted\n")
    await world.until_gone("AppWrapper", "train")
    assert (await run("cancel", "train", *here)).code == 1
