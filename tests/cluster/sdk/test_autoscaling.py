"""Ray clusters of the SDK that Ray's autoscaler grows and shrinks, as docs/codeflare-sdk.md has them."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest

from dispatcher.api.names import QUEUES_PATH
from tests.cluster.dispatch_queues import Declare
from tests.cluster.outcomes import HELD, rows
from tests.cluster.sdk.notebook import Notebook, Raised
from tests.cluster.sdk.observing import until_ready
from tests.cluster.sdk.releases import AUTOSCALING, Release
from tests.cluster.world import CHECKOUT, World
from tests.commands import Run, runner

Json = dict[str, Any]

PAGE: Final = (CHECKOUT / "docs" / "codeflare-sdk.md").read_text()
DESCRIBE, SUBMIT, WAIT, DELETE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
"""The cells of the page: a cluster of one worker with a GPU, which may have three."""

GPU: Final = "nvidia.com/gpu"
GROUP: Final = "ray.io/group"
REFUSAL: Final = "ValueError: Autoscaling is not supported when Kueue is enabled"
GROWTHS: Final = f"""
    SELECT coalesce((step -> 'amounts' ->> '{GPU}')::int, 0) AS gpus
    FROM attempt, jsonb_array_elements(growth) WITH ORDINALITY AS growths(step, place) ORDER BY place
"""
HOURS: Final = """
    SELECT held_s / 3600 AS demand_h, gpu_h FROM history.attempt_history WHERE name = 'blue' AND ended_at IS NOT NULL
"""

pytestmark = pytest.mark.parametrize(
    "release", [AUTOSCALING], ids=lambda release: release.version, indirect=True
)


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher …` on the hub of this world."""
    monkeypatch.setenv("KUBECONFIG", str(world.plane.kubeconfig))
    return runner(monkeypatch, capsys)


def cell(page: str, world: World) -> str:
    """A cell of the page, in the namespace of this world."""
    return page.replace('"team-a"', repr(world.namespace))


async def create(world: World, notebook: Notebook) -> None:
    """Submit the cluster of the page, and return once it is ready."""
    await notebook.run(cell(DESCRIBE, world))
    await notebook.run(cell(SUBMIT, world))
    await until_ready(world, "blue")


async def scale(world: World, replicas: int, *unwanted: str) -> None:
    """Write into the RayCluster as Ray's autoscaler does: the new size, and the workers to remove."""
    (group,) = (await world.get("RayCluster", "blue") or {})["spec"]["workerGroupSpecs"]
    scaled = {**group, "replicas": replicas, "scaleStrategy": {"workersToDelete": list(unwanted)}}
    await world.merge("RayCluster", "blue", {"spec": {"workerGroupSpecs": [scaled]}})


async def workers(world: World) -> list[str]:
    """The names of the running workers, the oldest first."""
    found = [
        each["metadata"]
        for each in await world.every("Pod")
        if each["metadata"]["labels"].get(GROUP) == "small-group-blue"
        and (each.get("status") or {}).get("phase") == "Running"
        and "deletionTimestamp" not in each["metadata"]
    ]
    return [each["name"] for each in sorted(found, key=lambda each: each["creationTimestamp"])]


async def until_workers(world: World, number: int) -> list[str]:
    """The names of the running workers once there are so many."""

    async def look() -> list[str] | None:
        found = await workers(world)
        return found if len(found) == number else None

    return await world.until(look, f"blue has {number} workers")


async def until_charged(world: World, gpus: int) -> Json:
    """The status of the AppWrapper once it and its queue have that use of GPUs."""

    async def look() -> Json | None:
        status: Json = ((await world.get("AppWrapper", "blue")) or {}).get("status") or {}
        return status if status.get("gpus") == gpus and await used(world) == str(gpus) else None

    return await world.until(look, f"blue and its queue have {gpus} GPUs")


async def used(world: World) -> str:
    """The GPUs that the queue uses, as its status has them."""
    status: Json = (await world.client.get(f"{QUEUES_PATH}/default")).get("status") or {}
    return str(status.get("used", {}).get(GPU, "0"))


async def until_nothing_is_held(world: World) -> None:
    """Return once the queue uses nothing, no attempt holds capacity, and the RayCluster is gone."""
    await world.until_gone("RayCluster", "blue")

    async def nothing() -> bool:
        return await used(world) == "0" and await rows(world, HELD) == []

    await world.until(nothing, "nothing is held")


async def test_raycluster_that_kueue_would_refuse_grows_and_shrinks_charged_for_its_pods(
    world: World, declare: Declare, release: Release, notebook: Notebook, run: Run
) -> None:
    under_kueue = cell(DESCRIBE, world).replace("max_workers=3", "max_workers=3, local_queue='team-a'")
    with pytest.raises(Raised, match=REFUSAL):
        await notebook.run(under_kueue)
    await declare("default", resources={GPU: {"nominalQuota": 3}})
    await world.start_dispatcher(queue_status_seconds="0.1")

    await create(world, notebook)
    output = await notebook.run(WAIT)
    assert "Requested cluster is up and running!\n" in output.printed
    assert await notebook.value("blue.status(print_to_console=False)") == ["READY", True]
    (first,) = await until_workers(world, 1)
    assert "held" not in await until_charged(world, 1)

    await scale(world, 3)
    await until_workers(world, 3)
    grown = await until_charged(world, 3)
    assert (grown["held"][GPU], grown["queuejobstate"]) == ("3", "Running")
    (shown,) = json.loads((await run("running", "-n", world.namespace, "-o", "json")).out)
    assert (shown["name"], shown["gpus"]["held"], shown["demand"][GPU]) == ("blue", 3, 1)

    await scale(world, 2, first)
    rest = await until_workers(world, 2)
    assert first not in rest
    assert (await until_charged(world, 2))["held"][GPU] == "2"
    assert await workers(world) == rest

    await notebook.run(DELETE)
    await world.until_gone("AppWrapper", "blue")
    await until_nothing_is_held(world)
    growths = [row["gpus"] for row in await rows(world, GROWTHS)]
    assert (max(growths), growths[-1]) == (2, 1)
    (hours,) = await rows(world, HOURS)
    assert hours["gpu_h"] > hours["demand_h"]


async def test_cluster_that_the_sdk_takes_down_leaves_nothing_but_a_failed_appwrapper(
    world: World, declare: Declare, release: Release, notebook: Notebook
) -> None:
    await declare("default", resources={GPU: {"nominalQuota": 3}})
    await world.start_dispatcher(queue_status_seconds="0.1")
    await create(world, notebook)
    await until_charged(world, 1)

    await notebook.run("blue.down()")

    await world.until_state("blue", "Failed")
    assert "MissingComponent" in await world.reasons("blue")
    await until_nothing_is_held(world)
    await notebook.run(DELETE)
    await world.until_gone("AppWrapper", "blue")
