"""`kubectl aw web` on a real hub: the page of a user who may only list AppWrappers says why a gang waits."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.world import World

CHECKOUT = Path(__file__).parents[2]
LISTS = {
    "apiGroups": ["workload.codeflare.dev", "mcad.ibm.com"],
    "resources": ["appwrappers"],
    "verbs": ["list"],
}


@asynccontextmanager
async def page(kubeconfig: Path) -> AsyncIterator[str]:
    """The address that the command prints; Ctrl-C ends it well."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dispatcher", "web", "--no-open", "--kubeconfig", str(kubeconfig)),
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


async def test_page_says_why_a_gang_waits_as_its_status_does(world: World) -> None:
    await world.start_dispatcher()
    await world.create_until("Backoff", appwrapper("large", item(job("large", 2, cpu="60"))))
    reader = await asyncio.to_thread(
        world.plane.service_account_kubeconfig, world.namespace, "reader", [LISTS]
    )
    key = f"{world.namespace}/large"
    jar = aiohttp.CookieJar(unsafe=True)  # of an address that is no name
    async with page(reader) as address, aiohttp.ClientSession(cookie_jar=jar) as browser:
        async with browser.get(address) as response:
            entered = re.search(r'content="0; url=(/[\w-]+)/queue"', await response.text())
        assert entered is not None
        async with browser.get(response.url.with_path(f"{entered[1]}/queue").with_query(None)) as response:
            assert f">{key}</a>" in await response.text()
        async with browser.get(response.url.with_path(f"{entered[1]}/appwrapper/{key}")) as response:
            text = await response.text()
    found = await world.get("AppWrapper", "large")
    assert found is not None
    waiting = found["status"]["waiting"]
    assert f"{key} " in text
    assert waiting["reason"] in text
    assert waiting["message"].split(";")[0] in text
