"""A user chooses mail by an annotation, and gets a mail when the job is done, from the process as it is installed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dispatcher.api.names import NOTIFY
from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.outcomes import rows
from tests.cluster.world import World
from tests.receivers import mailbox, text_of

CHECKOUT = Path(__file__).parents[2]


@asynccontextmanager
async def notifying(
    world: World, folder: Path, declaration: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The notifier as a process of its own, once it has a cursor for its target; ended as an operator would."""
    targets = folder / "targets.yaml"
    targets.write_text(declaration)  # a few bytes
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dispatcher", "notify", "--targets", str(targets), "--listen-port", "0"),
        env={**os.environ, "DISPATCHER_DATABASE_URL": world.database_url},
        cwd=CHECKOUT,
    )

    async def has_cursor() -> bool:
        assert process.returncode is None
        return bool(await rows(world, "SELECT FROM notify.cursor"))

    try:
        await world.until(has_cursor, "the notifier sends")
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_mail_tells_that_a_job_is_done_by_the_latest_choice(world: World, tmp_path: Path) -> None:
    await world.start_dispatcher()
    async with mailbox() as box:
        declaration = f"targets: [{{name: mail, apprise: '{box.url}', namespaces: [{world.namespace}]}}]"
        async with notifying(world, tmp_path, declaration):
            made = appwrapper("short", item(job("short", run_for="1s")))
            made["metadata"]["annotations"] = {NOTIFY: "mail=Failed"}
            await world.create_until("Suspended", {**made, "spec": {**made["spec"], "suspend": True}})
            await world.merge("AppWrapper", "short", {"metadata": {"annotations": {NOTIFY: "mail=Evicted"}}})
            await world.until_history("short", "notifications-changed")
            # Within a minute of another choice, this one counts once the gang begins.
            latest = {"annotations": {NOTIFY: "mail=Started,Ended"}}
            await world.merge("AppWrapper", "short", {"metadata": latest, "spec": {"suspend": False}})
            await world.until_state("short", "Completed")

            async def are_there() -> bool:
                return len(box.mails) >= 2

            await world.until(are_there, "two mails")
    started, completed = map(text_of, box.mails)
    assert f"{world.namespace}/short runs in cluster hub (queue default, attempt 1)." in started
    assert f"{world.namespace}/short completed in cluster hub after" in completed
    assert f"kubectl aw show short -n {world.namespace}" in completed
