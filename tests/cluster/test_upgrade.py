"""The dispatcher of the schema before dispatches while this version migrates, and then hands over to it."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from dispatcher.core.model.record import Phase
from dispatcher.store import migrate, revision
from testbed.processes import Ending, Process, Supervisor
from tests.cluster.handover import leads, standby, users
from tests.cluster.wires import QUICK, Life, Wires, lives, wires_of
from tests.cluster.world import CHECKOUT, World
from tests.postgres.changes import forget_replay

pytestmark = pytest.mark.exhaustive

(LAST_MIGRATION,) = (CHECKOUT / "migrations" / "versions").glob(f"{revision.NEWEST}_*.py")

PROGRAM = (sys.executable, "-m", "dispatcher")
ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath)}


LOCK = "requirements.lock"
LIBRARIES = "libraries"


@pytest.fixture
def version_before(tmp_path: Path) -> Path:
    """A checkout of the last commit before the newest migration, from the history of this one, and its libraries."""
    if revision.NEWEST == migrate.FIRST:
        pytest.skip(f"{migrate.FIRST} is the only revision: no version before it can hand over")
    folder = tmp_path / "version-before"
    try:
        added = git("log", "--diff-filter=A", "--format=%H", "--", str(LAST_MIGRATION)).decode().split()
        archive = git("archive", f"{added[-1]}^", "dispatcher", "migrations", LOCK)
    except (OSError, IndexError, subprocess.CalledProcessError):
        pytest.skip(f"the history of git before {LAST_MIGRATION.name} is needed: git fetch --unshallow")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    if (folder / LOCK).read_bytes() != (CHECKOUT / LOCK).read_bytes():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes"]
        run([*install, "--target", LIBRARIES, "-r", LOCK], folder, dict(os.environ))
    return folder


@pytest.mark.timeout(600)
async def test_version_before_dispatches_during_the_migration_and_hands_over(
    world: World, supervisor: Supervisor, version_before: Path
) -> None:
    before = f"{int(revision.NEWEST) - 1:04}"
    forget_replay(world.database_url)
    await asyncio.to_thread(migrate.downgrade, world.database_url, before)
    assert migrate_by(version_before, world.database_url) == f"the database is at revision {before}\n"
    async with wires_of(world) as wires:
        old = start(supervisor, wires, version_before)
        async with users(world) as submitted:
            await leads(world, 1)
            await asyncio.to_thread(migrate.migrate, world.database_url)
            await leads(world, 1, more=True)
            await standby(wires)
            assert await asyncio.to_thread(end, supervisor, old) == 0
            await leads(world, 2)

        assert await lives(world.database_url) == {
            name: Life(Phase.RUNNING, ("submitted", "dispatched", "created", "pods-running"))
            for name in submitted
        }
        assert wires.created() == Counter(
            f"{world.path(kind)}/{name}" for name in submitted for kind in ("ConfigMap", "Job")
        )
        assert await world.names("Pod") != set()


def git(*arguments: str) -> bytes:
    return run(["git", *arguments], CHECKOUT, dict(os.environ))


def migrate_by(folder: Path, url: str) -> str:
    """What `dispatcher migrate` of a checkout says."""
    environment = ENVIRONMENT | {"DISPATCHER_DATABASE_URL": url, "PYTHONPATH": LIBRARIES}
    return run([*PROGRAM, "migrate"], folder, environment).decode()


def run(argv: list[str], folder: Path, environment: dict[str, str]) -> bytes:
    return subprocess.run(argv, cwd=folder, env=environment, check=True, capture_output=True).stdout  # noqa: S603


def start(supervisor: Supervisor, wires: Wires, folder: Path) -> Process:
    """The program of a checkout, through the proxies."""
    settings = {f"DISPATCHER_{name.upper()}": value for name, value in QUICK.items()}
    return supervisor.start(
        "dispatcher-before",
        [*PROGRAM, "run"],
        env={
            **ENVIRONMENT,
            "PYTHONPATH": LIBRARIES,
            "DISPATCHER_DATABASE_URL": wires.postgres.url,
            "DISPATCHER_LISTEN_PORT": "0",
            "KUBECONFIG": str(wires.api.kubeconfig(wires.world.plane)),
            **settings,
        },
        cwd=folder,
        ending=Ending(grace=30.0),
    )


def end(supervisor: Supervisor, process: Process) -> int | None:
    """Its exit code after SIGTERM."""
    process.stop()
    supervisor.stop(process)
    return process.exit_code
