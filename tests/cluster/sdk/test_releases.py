"""What only one release can do."""

from __future__ import annotations

import pytest

from tests.cluster.sdk.conftest import MakeNotebook
from tests.cluster.sdk.notebook import Notebook
from tests.cluster.sdk.observing import INGRESSES, SECRETS, names_of, until_gone, until_ready
from tests.cluster.sdk.releases import RELEASES, Release
from tests.cluster.world import World

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
