"""A new leader without its first lists is not ready, and gives up leadership after a bound."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from aiohttp import web

from dispatcher.api.names import MEMBERS_PATH
from dispatcher.controller.intake.limits import PATH as NAMESPACES
from dispatcher.controller.members.first_lists import NotListed
from dispatcher.core.model.clock import Clock
from dispatcher.core.model.seals import Seals
from dispatcher.kube.client import ClusterClient, always
from dispatcher.probes import Metrics
from dispatcher.session import Identity, Process, Session
from dispatcher.settings import Settings
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.restore_detection import Incarnation
from tests.builders import at
from tests.fakes import FakeApiServer, Reply, answer, never, refusal
from tests.unit.controller.members import (
    HUB_UID,
    NODES,
    FakeClusterRecords,
    collection,
    declaration,
    is_cluster,
)
from tests.unit.virtual_time import monotonic, until

PODS = "/api/v1/pods"
GROUP = "/apis/workload.codeflare.dev/v1beta1"
APPWRAPPERS = f"{GROUP}/appwrappers"
OURS = "/apis/dispatcher.codeflare.dev/v1alpha1"
KIND = {"name": "appwrappers", "kind": "AppWrapper", "namespaced": True}

FORBIDDEN = refusal(403, "Forbidden")
FAILS = refusal(500, "InternalError")


@pytest.fixture
async def session(
    server: FakeApiServer, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Session]:
    """The session of a leader of a hub that lists everything and has no members."""
    is_cluster(server, HUB_UID)
    server.on("GET", GROUP, answer({"resources": [KIND]}))
    server.on("GET", APPWRAPPERS, collection())
    monkeypatch.setattr("dispatcher.session.ClusterStore", lambda *_: FakeClusterRecords())
    database = Database("postgresql:///never-asked")
    clock = Clock(time.monotonic)
    clock.set(datetime.now(UTC))
    leadership = Leadership(database, "me")
    settings = Settings(author_check="off")
    process = Process(settings, client, database, leadership, clock, Metrics(), always)
    yield Session(process, Identity(HUB_UID, "the-hub", Incarnation(), Seals(b"key", at(0))))
    await database.close()


@asynccontextmanager
async def watching(session: Session) -> AsyncIterator[asyncio.Task[None]]:
    """A task that is done once a leader would begin to decide."""

    async def watch() -> None:
        async with asyncio.TaskGroup() as tasks:
            await session.watch(tasks)
            begun.set()

    begun = asyncio.Event()
    term = asyncio.create_task(watch())
    beginning = asyncio.create_task(_first(begun, term))
    try:
        yield beginning
    finally:
        term.cancel()
        await asyncio.gather(term, beginning, return_exceptions=True)


async def _first(begun: asyncio.Event, term: asyncio.Task[None]) -> None:
    waiting = asyncio.create_task(begun.wait())
    await asyncio.wait({waiting, term}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if term.done():
        term.result()


async def test_leader_that_can_list_everything_begins_and_is_ready(session: Session) -> None:
    assert not session.watches_ready()
    async with watching(session) as beginning:
        await beginning
        assert (session.watches_ready(), session.concern()) == (True, "")


@pytest.mark.parametrize(
    ("path", "reply", "watch"),
    [
        pytest.param(NODES, FAILS, "nodes", id="nodes-fail"),
        pytest.param(NODES, FORBIDDEN, "nodes", id="nodes-forbidden"),
        pytest.param(PODS, FAILS, "pods", id="pods-fail"),
        pytest.param(APPWRAPPERS, FAILS, "appwrappers.workload.codeflare.dev", id="appwrappers-fail"),
        pytest.param(
            APPWRAPPERS, FORBIDDEN, "appwrappers.workload.codeflare.dev", id="appwrappers-forbidden"
        ),
        pytest.param(NAMESPACES, FAILS, "hub-namespaces", id="namespaces-fail"),
        pytest.param(NAMESPACES, never, "hub-namespaces", id="namespaces-silent"),
        pytest.param(OURS, FAILS, "dispatchqueues", id="queues-fail"),
    ],
)
async def test_leadership_is_given_up_when_the_hub_cannot_be_listed(
    server: FakeApiServer, session: Session, path: str, reply: Reply, watch: str
) -> None:
    server.on("GET", path, reply)
    async with watching(session) as beginning:
        await asyncio.sleep(59)  # virtual
        assert (beginning.done(), session.watches_ready()) == (False, False)
        await asyncio.wait([beginning], timeout=2)
        with pytest.raises(ExceptionGroup) as caught:
            await beginning
    assert caught.group_contains(
        NotListed, match=rf"^no list got any further within 60 s: {re.escape(watch)}: [^;]+$"
    )


def paged(breaks_off_at: int) -> Reply:
    """A list of ten pages, each of which takes 9 s; one of them may fail, and then the list begins anew."""

    async def page(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(9)  # virtual
        number = int(request.query.get("continue", "0")) + 1
        if "watch" in request.query:
            return await never(request)
        if number == breaks_off_at:
            return await FAILS(request)
        token = "" if number == 10 else str(number)
        return await answer({"metadata": {"resourceVersion": "1", "continue": token}, "items": []})(request)

    return page


async def test_leader_waits_for_a_list_as_long_as_it_gets_further(
    server: FakeApiServer, session: Session
) -> None:
    server.on("GET", NAMESPACES, paged(breaks_off_at=11))
    async with watching(session) as beginning:
        await asyncio.sleep(85)  # virtual
        assert not beginning.done()
        await beginning


async def test_leader_does_not_wait_for_a_list_that_breaks_off_at_the_same_page_again_and_again(
    server: FakeApiServer, session: Session
) -> None:
    server.on("GET", NAMESPACES, paged(breaks_off_at=4))
    async with watching(session) as beginning:
        await asyncio.wait([beginning], timeout=27 + 60 + 5)
        assert isinstance(beginning.exception(), ExceptionGroup)


async def test_leader_begins_when_the_lists_come_in_time(server: FakeApiServer, session: Session) -> None:
    server.on("GET", NAMESPACES, FAILS)
    async with watching(session) as beginning:
        await asyncio.sleep(20)  # virtual
        assert not beginning.done()
        server.on("GET", NAMESPACES, collection())
        await beginning
        assert session.watches_ready()


async def test_member_that_does_not_answer_is_no_reason_to_give_up(
    server: FakeApiServer, session: Session
) -> None:
    server.on("GET", MEMBERS_PATH, collection(declaration("east")))
    server.on("GET", "/api/v1/namespaces/default/secrets/cluster-east", never)
    async with watching(session) as beginning:
        await beginning
        assert monotonic() == pytest.approx(10, abs=1)
        assert session.watches_ready()


async def test_leader_that_cannot_list_the_members_it_knows_is_concerned(
    server: FakeApiServer, session: Session
) -> None:
    server.on("GET", MEMBERS_PATH, FAILS)
    async with watching(session):
        await until(session.watches_ready)
        assert session.concern().startswith("the MemberClusters cannot be listed: ")
