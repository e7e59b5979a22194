"""What users of the CodeFlare SDK of MCAD's time do, see and are told; the SDK is as it was published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.api.conditions import State
from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.sdk.conftest import MakeNotebook
from tests.cluster.sdk.ingress import IngressController
from tests.cluster.sdk.notebook import Notebook, Raised
from tests.cluster.sdk.observing import INGRESSES, RAYCLUSTERS, SECRETS, names_of, until_gone, until_ready
from tests.cluster.sdk.releases import RELEASES, Release
from tests.cluster.world import World, example

Json = dict[str, Any]

NO_DASHBOARD = "Dashboard not available yet, have you run cluster.up()?"
QUIETLY = "status(print_to_console=False)"
WAITING = "Waiting for requested resources to be set up...\n"
UP = "Requested cluster is up and running!\n"


def queued(name: str, status: str, can_run: bool, job_state: str) -> Json:
    """An AppWrapper as `list_all_queued` returns it."""
    return {"name": name, "status": status, "can_run": can_run, "job_state": job_state}


def ray_cluster(world: World, **told: Any) -> Json:  # noqa: ANN401
    """A cluster as the SDK describes it."""
    modest = {"head_cpus": 2, "head_gpu": 0, "workers": 2, "worker_cpu": 1, "namespace": world.namespace}
    return {"name": "blue", "status": "READY", **modest, **told}


def somebodys_ray_cluster(name: str) -> Json:
    """A RayCluster that needs next to nothing."""
    template = {"spec": {"containers": [{"name": "head", "image": "ray"}]}}
    head = {"rayStartParams": {}, "template": template}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {"headGroupSpec": head},
    }


async def test_cluster_goes_up_says_what_it_is_and_goes_down(
    world: World, release: Release, notebook: Notebook, ingress_controller: IngressController
) -> None:
    await notebook.run(release.make_cluster(world.namespace, "blue"))
    assert await notebook.value(f"blue.{QUIETLY}") == ["UNKNOWN", False]
    await notebook.run("blue.up()")
    assert await notebook.value(f"blue.{QUIETLY}") == ["QUEUEING", False]

    await world.start_dispatcher()
    await until_ready(world, "blue")

    assert await notebook.value(f"blue.{QUIETLY}") == ["READY", True]
    assert await notebook.value("blue.details()") == ray_cluster(
        world,
        head_mem=8,
        worker_mem_min=2,
        worker_mem_max=2,
        worker_gpu=1,
        dashboard=release.dashboard(world.namespace, "blue") or NO_DASHBOARD,
    )
    assert await notebook.value(f"list_all_clusters({world.namespace!r})") == [
        ray_cluster(
            world,
            head_mem="8G",
            worker_mem_min="2G",
            worker_mem_max="2G",
            worker_gpu=0,
            dashboard=release.dashboard(world.namespace, "blue"),
        )
    ]
    assert await notebook.value(release.list_all_queued(world.namespace)) == [
        queued("blue", "RUNNING", True, "Running")
    ]

    await notebook.run("blue.down()")
    await until_gone(world, "blue")
    assert await notebook.value(f"blue.{QUIETLY}") == ["UNKNOWN", False]
    assert await notebook.value(release.list_all_queued(world.namespace)) == []


async def test_cluster_that_finds_no_room_is_queued_and_waited_for(
    world: World, release: Release, notebook: Notebook, ingress_controller: IngressController
) -> None:
    await world.start_dispatcher()
    for name in ("blue", "green"):
        await notebook.run(release.make_cluster(world.namespace, name))
    await notebook.run("blue.up()")
    await until_ready(world, "blue")
    await notebook.run("green.up()")
    await world.until_state("green", "Backoff")

    assert await notebook.value(f"green.{QUIETLY}") == ["QUEUED", False]
    assert await notebook.value(release.list_all_queued(world.namespace)) == [
        queued("blue", "RUNNING", True, "Running"),
        queued("green", "PENDING", False, "Backoff"),
    ]
    assert await names_of(world, RAYCLUSTERS) == ["blue"]

    with pytest.raises(Raised, match=r"TimeoutError: wait\(\) timed out after waiting 1s for cluster"):
        await notebook.run("green.wait_ready(timeout=1)")

    await world.delete("blue")
    await until_gone(world, "blue")
    await until_ready(world, "green")

    dashboard = release.dashboard(world.namespace, "green")
    output = await notebook.run(f"green.wait_ready(dashboard_check={dashboard is not None})")
    assert output.printed == WAITING + UP + ("Dashboard is ready!\n" if dashboard else "")
    assert ingress_controller.asked == ([f"{dashboard}/"] if dashboard else [])
    assert await notebook.value(f"green.{QUIETLY}") == ["READY", True]


async def test_cluster_of_higher_dispatch_priority_goes_first(
    world: World, release: Release, notebook: Notebook
) -> None:
    await world.start_dispatcher()
    await notebook.run(release.make_cluster(world.namespace, "blue"))
    await notebook.run("blue.up()")
    await until_ready(world, "blue")
    await notebook.run(release.make_cluster(world.namespace, "green"))
    await notebook.run(
        release.make_cluster(world.namespace, "urgent", dispatch_priority="system-cluster-critical")
    )
    for name in ("green", "urgent"):
        await notebook.run(f"{name}.up()")
        await world.until_state(name, "Backoff")

    await notebook.run("blue.down()")

    await until_ready(world, "urgent")
    assert await notebook.value(f"urgent.{QUIETLY}") == ["READY", True]
    assert await notebook.value(f"green.{QUIETLY}") == ["QUEUED", False]


async def test_cluster_that_cannot_be_created_is_reported_as_failed(
    world: World, release: Release, notebook: Notebook
) -> None:
    await world.create(somebodys_ray_cluster("blue"))
    await world.start_dispatcher()
    await notebook.run(release.make_cluster(world.namespace, "blue"))

    await notebook.run("blue.up()")

    await world.until_state("blue", "Failed")
    assert await notebook.value(f"blue.{QUIETLY}") == ["FAILED", False]
    assert await notebook.value(release.list_all_queued(world.namespace)) == [
        queued("blue", "FAILED", False, "Failed")
    ]


async def test_appwrapper_that_is_no_ray_cluster_is_listed_as_completed_once_it_is(
    world: World, release: Release, notebook: Notebook
) -> None:
    await world.start_dispatcher()
    await world.create_until(
        "Completed", appwrapper("short", item(job("short", run_for="1s"), completionstatus="Complete"))
    )

    assert await notebook.value(release.list_all_queued(world.namespace)) == [
        queued("short", "COMPLETED", False, "Completed")
    ]


async def test_cluster_of_a_name_that_is_taken_is_refused(
    world: World, release: Release, notebook: Notebook
) -> None:
    await notebook.run(release.make_cluster(world.namespace, "blue"))
    await notebook.run("blue.up()")

    with pytest.raises(Raised, match="FileExistsError: Resource with this name already exists"):
        await notebook.run("blue.up()")


async def test_appwrapper_file_is_submitted_and_removed(
    world: World, release: Release, notebook: Notebook, tmp_path: Path
) -> None:
    await world.start_dispatcher()
    written = example("aw-raycluster-glue")
    name = written["metadata"]["name"]
    written["metadata"]["namespace"] = world.namespace
    file = tmp_path / "aw.yaml"
    file.write_text(yaml.safe_dump(written))

    await notebook.run(f"manager = AWManager({str(file)!r})")
    submitted = await notebook.run("manager.submit()")
    await until_ready(world, name)
    removed = await notebook.run("manager.remove()")
    await until_gone(world, name)

    assert submitted.printed == f"AppWrapper {file} submitted!\n"
    assert removed.printed == f"AppWrapper {name} removed!\n"


async def test_every_state_is_a_word_the_sdk_knows(release: Release, notebook: Notebook) -> None:
    words = [state.value for state in State]

    known = await notebook.value(f"[AppWrapperStatus(word.lower()) for word in {words!r}]")

    assert len(known) == len(words)


# --- What only one release can do --------------------------------------------------------------------------


OLDEST, NEWEST = RELEASES


@pytest.mark.parametrize("release", [OLDEST], ids=["0.12.1"], indirect=True)
async def test_cluster_to_work_with_from_outside_brings_its_certificates_and_takes_them_along(
    world: World, release: Release, notebook: Notebook
) -> None:
    await world.start_dispatcher(wrapped_secrets="stored")  # the SDK wraps the Secret of the certificates
    await notebook.run(release.make_cluster(world.namespace, "blue", local_interactive=True))

    await notebook.run("blue.up()")

    await until_ready(world, "blue")
    assert await notebook.value("blue.status(print_to_console=False)") == ["READY", True]
    assert await names_of(world, INGRESSES) == ["ray-dashboard-blue", "rayclient-blue"]
    assert await names_of(world, SECRETS) == ["ca-secret-blue"]

    await notebook.run("blue.down()")
    await until_gone(world, "blue")

    async def no_secrets() -> bool:
        return not await names_of(world, SECRETS)

    await world.until(no_secrets, "the secret is gone")


@pytest.mark.parametrize("release", [NEWEST], ids=["0.16.0"], indirect=True)
async def test_cluster_is_found_again_and_taken_down_from_another_notebook(
    world: World, release: Release, make_notebook: MakeNotebook
) -> None:
    await world.start_dispatcher()
    first, second = await make_notebook(), await make_notebook()
    await first.run(release.make_cluster(world.namespace, "blue"))
    await first.run("blue.up()")
    await until_ready(world, "blue")

    await second.run(f"found = get_cluster('blue', {world.namespace!r})")

    assert await second.value("found.config") == await first.value("blue.config")
    await second.run("found.down()")
    await until_gone(world, "blue")
