"""Dispatchers are replaced while users submit gangs: every gang runs once, and nothing is lost."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import psycopg
import pytest

from dispatcher.core.model.records.record import Phase
from dispatcher.store import migrate, revision
from testbed.processes import Ending, Process, Supervisor
from tests.cluster.figures import readiness_of
from tests.cluster.wires import QUICK, Life, Wires, gang, lives, wires_of
from tests.cluster.world import CHECKOUT, World
from tests.postgres.changes import forget_replay

USERS = 3


@asynccontextmanager
async def users(world: World) -> AsyncIterator[list[str]]:
    """Users who each submit the next gang once the last one runs; yields the names of all gangs.

    On exit each user waits until the last gang runs.
    """
    names: list[str] = []
    numbers, is_over = count(), False

    async def submit() -> None:
        while not is_over:
            names.append(f"gang-{next(numbers)}")
            await world.create(gang(name := names[-1], cpu="10m"))
            await world.until_state(name, "Running")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(USERS):
            tasks.create_task(submit())
        yield names
        is_over = True


async def standby(wires: Wires) -> Process:
    """A new dispatcher, once it has seen that another one leads."""
    process = await wires.start_dispatcher()

    async def stands_by() -> bool:
        return await readiness_of(process) == (200, "standby\n")

    await wires.world.until(stands_by, "a dispatcher stands by")
    return process


async def leads(world: World, epoch: int, *, more: bool = False) -> None:
    """Return once the leader of this epoch has dispatched three gangs; three more than now, if `more`."""
    least = (await _dispatched_by(world, epoch) if more else 0) + 3

    async def dispatched() -> bool:
        return await _dispatched_by(world, epoch) >= least

    await world.until(dispatched, f"the leader of epoch {epoch} dispatches")


async def _dispatched_by(world: World, epoch: int) -> int:
    async with await psycopg.AsyncConnection.connect(world.database_url) as connection:
        found = await connection.execute(
            "SELECT count(*) FROM event WHERE cause = 'dispatched' AND epoch = %s", [epoch]
        )
        (number,) = await found.fetchone() or (0,)
        return int(number)


# --- the tests -------------------------------------------------------------------------------------------


@pytest.fixture
async def wires(world: World) -> AsyncIterator[Wires]:
    """The proxies through which all dispatchers of a test go."""
    async with wires_of(world) as wires:
        yield wires


async def test_rolling_restart_and_a_killed_leader_under_load_run_every_gang_once(wires: Wires) -> None:
    world = wires.world
    first = await wires.start_dispatcher()
    async with users(world) as submitted:
        await leads(world, 1)
        second = await standby(wires)

        assert await world.stop_dispatcher(first) == 0
        await leads(world, 2)
        third = await standby(wires)
        assert await world.stop_dispatcher(second) == 0
        await leads(world, 3)
        await standby(wires)
        await world.kill_dispatcher(third)
        await leads(world, 4)

    assert await lives(world.database_url) == {
        name: Life(Phase.RUNNING, ("submitted", "dispatched", "created", "pods-running"))
        for name in submitted
    }
    assert wires.created() == Counter(
        f"{world.path(kind)}/{name}" for name in submitted for kind in ("ConfigMap", "Job")
    )
    assert len(await world.every("Pod")) == len(submitted)


async def test_new_leader_dispatches_before_it_has_read_the_specs_of_running_gangs(world: World) -> None:
    first = await world.start_dispatcher()
    await world.create(gang("runs"))
    waits = gang("waits")
    await world.create({**waits, "spec": {**waits["spec"], "suspend": True}})
    await world.until_state("runs", "Running")
    await world.until_state("waits", "Suspended")
    assert await world.stop_dispatcher(first) == 0
    await world.merge("AppWrapper", "waits", {"spec": {"suspend": False}})

    async with await psycopg.AsyncConnection.connect(world.database_url) as connection:
        await connection.execute("LOCK TABLE spec_blob IN ACCESS EXCLUSIVE MODE")
        await world.start_dispatcher()
        await world.until_history("waits", "dispatched")
        await connection.rollback()

    await world.until_state("waits", "Running")
    await world.delete("runs")
    await world.until_gone("Job", "runs")


# -----------------------------------------------------------------------------------------------------------
# The dispatcher of the schema before dispatches while this version migrates, and then hands over to it.


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
@pytest.mark.exhaustive
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
