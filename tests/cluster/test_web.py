"""`kubectl aw web` on a real hub: why a gang waits for a user who may only list AppWrappers, and the GPU map."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path

import aiohttp

from tests.cluster.manifests import appwrapper, changed, item, job, pod
from tests.cluster.world import World

CHECKOUT = Path(__file__).parents[2]
LISTS = {
    "apiGroups": ["workload.codeflare.dev", "mcad.ibm.com"],
    "resources": ["appwrappers"],
    "verbs": ["list"],
}
LISTS_NODES = {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]}


@asynccontextmanager
async def page(kubeconfig: Path, database_url: str = "") -> AsyncIterator[str]:
    """The address that the command prints; Ctrl-C ends it well."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dispatcher", "web", "--no-open", "--kubeconfig", str(kubeconfig)),
        *("--database-url", database_url),
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        cwd=CHECKOUT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            said = (await process.stdout.readline()).decode()
        found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", said)
        assert found is not None, said
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0


@asynccontextmanager
async def browser_of(
    kubeconfig: Path, database_url: str = ""
) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """Reads pages in a browser that has opened the printed address."""
    jar = aiohttp.CookieJar(unsafe=True)  # of an address that is no name
    async with page(kubeconfig, database_url) as address, aiohttp.ClientSession(cookie_jar=jar) as client:
        async with client.get(address) as response:
            entered = re.search(r'content="0; url=(/[\w-]+)/queue"', await response.text())
        assert entered is not None

        async def read(path: str) -> str:
            url = response.url.with_path(f"{entered[1]}/{path}").with_query(None)
            async with client.get(url) as found:
                assert found.status == 200
                return await found.text()

        yield read


async def test_page_says_why_a_gang_waits_as_its_status_does(world: World) -> None:
    await world.start_dispatcher()
    await world.create_until("Backoff", appwrapper("large", item(job("large", 2, cpu="60"))))
    reader = await asyncio.to_thread(
        world.plane.service_account_kubeconfig, world.namespace, "reader", [LISTS]
    )
    key = f"{world.namespace}/large"
    async with browser_of(reader) as read:
        assert f">{key}</a>" in await read("queue")
        text = await read(f"appwrapper/{key}")
        assert "The nodes of hub cannot be seen: nodes is forbidden" in unescape(await read("map"))
    found = await world.get("AppWrapper", "large")
    assert found is not None
    waiting = found["status"]["waiting"]
    assert f"{key} " in text
    assert waiting["reason"] in text
    assert waiting["message"].split(";")[0] in text


async def test_map_shows_the_gpu_of_a_running_gang_on_its_node(world: World) -> None:
    await world.start_dispatcher()
    gpu = {"nvidia.com/gpu": "1"}
    alone = changed(pod("alone", gpu), "spec.containers.0.resources.limits", gpu)
    await world.create_until("Running", appwrapper("alone", item(alone)))
    running = await world.get("Pod", "alone")
    assert running is not None
    looker = await asyncio.to_thread(
        world.plane.service_account_kubeconfig, world.namespace, "looker", [LISTS, LISTS_NODES]
    )
    key = f"{world.namespace}/alone"
    async with browser_of(looker) as read:
        text = await read("map")
        assert f'/appwrapper/{key}">{key}</a> 1' in text
        assert f"<title>{running['spec']['nodeName']}, Ready: {key} 1</title>" in text
        assert re.findall(rf'<tr><th scope="row">(.*?)</th>.*<td>{key} 1</td>', text) == [
            running["spec"]["nodeName"]
        ]


async def test_page_with_the_database_draws_why_a_gang_waits_and_when_it_began(world: World) -> None:
    await world.start_dispatcher(snapshot_seconds="0.1")
    await world.create_until("Backoff", appwrapper("large", item(job("large", 2, cpu="60"))))
    reader = await asyncio.to_thread(
        world.plane.service_account_kubeconfig, world.namespace, "reader", [LISTS]
    )
    async with browser_of(reader, world.database_url) as read:

        async def is_drawn() -> str | None:
            text = await read(f"appwrapper/{world.namespace}/large")
            return text if "0 of 2 pods would fit now, each asks for 60 cpu" in text else None

        text = await world.until(is_drawn, "the page draws the nodes of the snapshot")
        nodes = await world.client.get("/api/v1/nodes")
        names = {each["metadata"]["name"] for each in nodes["items"]}
        assert set(re.findall(r'<tr><th scope="row">(.*?)</th>', text)) == names
        assert "It was never dispatched." in text
        assert re.findall(r'<rect class="bar (\w+)"', text) == ["queued"]
        assert f"{world.namespace}/large" in await read("history")
