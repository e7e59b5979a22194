"""The SDK's releases, each in an environment of its own, and notebooks that have one of them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from testbed.forkserver import ForkServer
from tests.cluster.sdk.ingress import IngressController
from tests.cluster.sdk.notebook import INTERPRETER, Notebook
from tests.cluster.sdk.releases import RELEASES, Release
from tests.cluster.world import CHECKOUT, World

ENVIRONMENT = CHECKOUT / ".dev" / "codeflare-sdk"

MakeNotebook = Callable[[], Awaitable[Notebook]]
Interpreters = Callable[[Release, dict[str, str]], ForkServer]


@pytest.fixture(scope="session")
def sdk_environment() -> Path:
    """A Python with what the SDK needs, and a folder for each release."""
    if not (ENVIRONMENT / "ready").exists():
        missing = "the CodeFlare SDK is not installed: `make codeflare-sdk` does it"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            raise FileNotFoundError(missing)
        pytest.skip(missing)
    return ENVIRONMENT


@pytest.fixture(
    params=[
        pytest.param(each, id=each.version, marks=[] if each is RELEASES[0] else pytest.mark.sweep)
        for each in RELEASES
    ]
)
def release(request: pytest.FixtureRequest) -> Release:
    """Each release in turn; every test has the oldest each day, which knows of no other dispatcher than MCAD."""
    chosen: Release = request.param
    return chosen


@pytest.fixture
async def ingress_controller() -> AsyncIterator[IngressController]:
    """Where every host leads that an Ingress may name."""
    async with IngressController.running() as controller:
        yield controller


@pytest.fixture(scope="session")
def interpreters(sdk_environment: Path) -> Iterator[Interpreters]:
    """Has imported a release, which takes several seconds of CPU: every notebook is a fork of it."""
    servers: dict[str, ForkServer] = {}

    def interpreter(release: Release, environment: dict[str, str]) -> ForkServer:
        if release.version not in servers:
            python = sdk_environment / release.environment / "bin" / "python"
            servers[release.version] = ForkServer(
                INTERPRETER, *release.modules, python=python, environment=environment
            )
        return servers[release.version]

    yield interpreter
    for server in servers.values():
        server.close()


@pytest.fixture
async def make_notebook(
    sdk_environment: Path,
    interpreters: Interpreters,
    release: Release,
    world: World,
    ingress_controller: IngressController,
    tmp_path: Path,
) -> AsyncIterator[MakeNotebook]:
    """Opens notebooks that have imported a release and logged in."""
    environment = {
        "HOME": str(tmp_path),
        "KUBECONFIG": str(world.plane.kubeconfig),
        "PATH": os.defpath,
        "PYTHONPATH": str(sdk_environment / release.version),
        "http_proxy": ingress_controller.url,
        "no_proxy": "127.0.0.1",
    }
    async with AsyncExitStack() as stack:

        async def open_notebook() -> Notebook:
            opened = Notebook.open(interpreters(release, environment), environment)
            notebook = await stack.enter_async_context(opened)
            await notebook.run(release.imports)
            await notebook.run(
                f"KubeConfigFileAuthentication({str(world.plane.kubeconfig)!r}).load_kube_config()"
            )
            return notebook

        yield open_notebook


@pytest.fixture
async def notebook(make_notebook: MakeNotebook) -> Notebook:
    """A notebook that has imported a release and logged in."""
    return await make_notebook()
