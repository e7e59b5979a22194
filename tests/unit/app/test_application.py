"""What a process says of itself while it leads: its readiness, its metrics, and its log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from dispatcher import probes
from dispatcher.app import Application
from dispatcher.controller.members.first_lists import NotListed
from dispatcher.controller.members.membership import MembersUnknown
from dispatcher.core.model.seals import Seals
from dispatcher.errors import ClusterError, Forbidden, StoreUnavailable
from dispatcher.kube.client import ClusterClient
from dispatcher.probes import MetricValues
from dispatcher.session import Identity
from dispatcher.settings import Settings
from dispatcher.store.leadership import Lease
from dispatcher.store.state.restore_detection import Incarnation
from tests.builders import at
from tests.fakes import FakeApiServer, client_of
from tests.unit.controller.members import HUB_UID, FakeClusterRecords, is_cluster
from tests.unit.virtual_time import monotonic, until

HOUR = timedelta(hours=1)
FOLLOWED = timedelta(0)


@pytest.fixture(autouse=True)
def fresh_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scrape is of its moment: none shares the answer of another."""
    monkeypatch.setattr(probes, "SHARED_FOR", 0)


class Process:
    """A dispatcher that is granted every lease, and whose term has nothing to do."""

    def __init__(self) -> None:
        self.clock_off = FOLLOWED
        """How far the database's clock is ahead of the host's."""
        self.concern = ""
        self.is_away = False
        self.failure: ClusterError | None = None
        self.leads_at: list[float] = []
        self.has_begun = False
        self.may_renew = asyncio.Event()
        self.may_renew.set()
        self.renewals = 0
        self.probes = ""

    # --- as the office it runs for ---

    async def acquire(self) -> Lease:
        self.leads_at.append(monotonic())
        return self.lease

    async def renew(self) -> Lease:
        await self.may_renew.wait()
        if self.is_away:
            raise StoreUnavailable("the database is away")
        self.renewals += 1
        return self.lease

    async def release(self) -> None:
        pass

    @property
    def lease(self) -> Lease:
        return Lease(1, "me", timedelta(seconds=15), datetime.now(UTC) + self.clock_off)

    # --- as its term ---

    async def start(self, _tasks: asyncio.TaskGroup) -> None:
        if self.failure is not None:
            raise self.failure
        self.has_begun = True

    def watches_ready(self) -> bool:
        return True

    def metric_values(self) -> MetricValues:
        return MetricValues()

    # --- as whoever asks it ---

    async def has_renewed(self) -> None:
        """Return once it has heard what the database's clock says now."""
        before = self.renewals
        await until(lambda: self.renewals >= before + 2)

    async def readiness(self) -> tuple[int, str]:
        """What it answers when it is asked whether it is ready."""
        return await self._get("readyz")

    async def clock_metric(self) -> float:
        """How far the database's clock is off by its metrics."""
        return await self.metric("clock_off_seconds")

    async def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        _, text = await self._get("metrics")
        (line,) = [each for each in text.splitlines() if each.startswith(f"dispatcher_{name} ")]
        return float(line.partition(" ")[2])

    async def _get(self, path: str) -> tuple[int, str]:
        url = f"{self.probes}/{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, (await response.text()).strip()


class Session:
    """In place of a term of leadership."""

    def __init__(self, process: Process) -> None:
        self.start, self.metric_values = process.start, process.metric_values
        self.watches_ready = process.watches_ready
        self.concern: Callable[[], str] = lambda: process.concern


@asynccontextmanager
async def running(process: Process, logs: list[Any]) -> AsyncIterator[None]:
    application = Application(Settings(database_url="postgresql:///never-asked", listen_port=0))
    task = asyncio.create_task(application.run())
    try:
        await until(lambda: process.leads_at or task.done())
        (process.probes,) = [each["probes"] for each in logs if each["event"] == "started"]
        yield
    finally:
        application.stop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def process(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> Process:
    """A process whose hub is there, and whose database needs no Postgres."""
    process = Process()

    async def connect(*_: object, **__: object) -> ClusterClient:
        return client_of(server)

    async def identify(_process: object, hub_uid: str) -> Identity:
        return Identity(hub_uid, "the-hub", Incarnation(), Seals(b"key", at(0)))

    is_cluster(server, HUB_UID)
    monkeypatch.setattr("dispatcher.app.ClusterClient.connect", connect)
    monkeypatch.setattr("dispatcher.app.revision.check_revision", lambda _url: None)
    monkeypatch.setattr("dispatcher.app.ClusterStore", lambda *_: FakeClusterRecords())
    monkeypatch.setattr("dispatcher.app.Leadership", lambda *_, **__: process)
    monkeypatch.setattr("dispatcher.app.identify", identify)
    monkeypatch.setattr("dispatcher.app.Session", lambda *_: Session(process))
    return process


def events(logs: list[Any]) -> list[str]:
    """What its log tells of the clock."""
    return [each["event"] for each in logs if each["event"].startswith("clock_")]


async def test_leader_that_is_kept_from_its_work_is_not_ready_and_says_why(process: Process) -> None:
    with capture_logs() as logs:
        async with running(process, logs):
            await process.has_renewed()
            assert await process.readiness() == (200, "leader")
            process.concern = "the MemberClusters cannot be listed"
            assert await process.readiness() == (503, "leader: the MemberClusters cannot be listed")


async def test_metrics_say_whether_the_process_is_ready_and_the_database_answers(process: Process) -> None:
    with capture_logs() as logs:
        async with running(process, logs):
            await process.has_renewed()
            assert (await process.metric("ready"), await process.metric("database_up")) == (1, 1)
            process.concern, process.is_away = "the MemberClusters cannot be listed", True
            await until(lambda: "renewal_failed" in [each["event"] for each in logs])
            assert (await process.metric("ready"), await process.metric("database_up")) == (0, 0)


@pytest.mark.parametrize(
    ("off", "words"),
    [
        pytest.param(HOUR, "the database's clock leapt ahead by 3600 s and is not followed", id="ahead"),
        pytest.param(-HOUR, "the database's clock is behind by 3600 s and is not followed back", id="behind"),
    ],
)
async def test_leap_of_the_clock_is_reported_while_it_is_not_followed(
    process: Process, off: timedelta, words: str
) -> None:
    with capture_logs() as logs:
        async with running(process, logs):
            await process.has_renewed()
            assert (await process.readiness(), await process.clock_metric()) == ((200, "leader"), 0)

            process.clock_off = off
            await process.has_renewed()
            status, line = await process.readiness()
            assert (status, line.startswith(f"leader: {words}")) == (503, True)
            assert await process.clock_metric() == pytest.approx(off.total_seconds(), abs=30)
            assert events(logs) == ["clock_not_followed"]

            process.clock_off = FOLLOWED
            await process.has_renewed()
            assert (await process.readiness(), await process.clock_metric()) == ((200, "leader"), 0)
            assert events(logs) == ["clock_not_followed", "clock_followed"]
    (told,) = [each for each in logs if each["event"] == "clock_not_followed"]
    assert (told["log_level"], told["error"].startswith(words)) == ("warning", True)


async def test_clock_that_is_wrong_from_the_start_is_reported_by_a_new_leader(process: Process) -> None:
    process.clock_off = HOUR
    process.may_renew.clear()
    with capture_logs() as logs:
        async with running(process, logs):
            await until(lambda: process.has_begun)
            status, line = await process.readiness()
            assert (status, line.startswith("leader: the database's clock leapt ahead")) == (503, True)
            assert await process.clock_metric() == pytest.approx(3600, abs=30)
    assert events(logs) == ["clock_not_followed"]


@pytest.mark.parametrize(
    ("failure", "pauses"),
    [
        pytest.param(NotListed("no"), [2, 4, 8, 16, 30, 30], id="hub-not-listed"),
        pytest.param(MembersUnknown("no"), [2, 4, 8, 16, 30, 30], id="members-unknown"),
        pytest.param(Forbidden("no"), [1] * 6, id="another-error"),
    ],
)
async def test_replica_that_cannot_list_leaves_leadership_to_another_for_longer_and_longer(
    process: Process, failure: ClusterError, pauses: list[float]
) -> None:
    process.failure = failure
    with capture_logs() as logs:
        async with running(process, logs):
            await until(lambda: len(process.leads_at) == 7)
            begun = process.leads_at
    waited = [after - before for before, after in pairwise(begun)]
    assert waited == pytest.approx(pauses, abs=0.5)
