"""A queue that is removed and put back does not free its gangs meanwhile, and a refused or unserved list frees none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

import orjson
import pytest
from aiohttp import web

from dispatcher.controller.scheduling.absence import LASTS_SECONDS
from dispatcher.controller.scheduling.queue_watch import QueueWatch
from dispatcher.core.queues.declared_queues import DeclaredQueues
from dispatcher.core.queues.forest import Defaults
from dispatcher.core.queues.queue import Access, Queue, Quota
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Discovery
from tests.builders import NOW
from tests.fakes import FakeApiServer, Reply, answer, never, refusal, watch
from tests.unit.controller.test_queue_watch import (
    OLD_QUOTA,
    OLD_SUBTREES,
    OURS,
    QUEUES,
    QUOTA,
    SUBTREES,
    Json,
    changed,
    listed,
    queue,
    serves,
    subtree,
)
from tests.unit.virtual_time import monotonic, until
from tests.unit.workers import listing

OPEN: Final = Defaults()
SELECTED: Final = Defaults(access=Access.SELECTED)
NONE_BEFORE: Final[Mapping[str, Queue]] = {}


async def nothing() -> None:
    """Ignore the change."""


def watch_of(
    client: ClusterClient,
    defaults: Defaults = OPEN,
    seen: Iterable[str] = (),
    last: Mapping[str, Queue] = NONE_BEFORE,
) -> QueueWatch:
    found = QueueWatch(client, Discovery(client), defaults, nothing, lambda: NOW, monotonic)
    found.load(seen, last)
    return found


def after(step: asyncio.Event, *events: Json) -> Reply:
    async def reply(request: web.Request) -> web.StreamResponse:
        await step.wait()
        return await watch(*events)(request)

    return reply


async def bookmarks(request: web.Request) -> web.StreamResponse:
    """Replies a watch in which nothing changes, as an API server does: a bookmark each minute."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await asyncio.sleep(60)  # virtual
        bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
        await response.write(orjson.dumps(bookmark) + b"\n")


def deleted(raw: Json) -> Json:
    return {"type": "DELETED", "object": {**raw, "metadata": {**raw["metadata"], "resourceVersion": "7"}}}


@pytest.mark.parametrize("defaults", [OPEN, SELECTED], ids=["open", "selected"])
async def test_last_queue_that_is_replaced_leaves_no_queue_to_run_in(
    server: FakeApiServer, client: ClusterClient, defaults: Defaults
) -> None:
    serves(server, OURS, "dispatchqueues", "DispatchQueue")
    gone, back = asyncio.Event(), asyncio.Event()
    server.on(
        "GET",
        QUEUES,
        listed(queue("vision", namespaceSelector="")),
        after(gone, deleted(queue("vision"))),
        after(back, changed(queue("vision", 8))),
        never,
    )
    queues = watch_of(client, defaults)
    async with listing(queues) as goes_on:
        await until(goes_on)
        assert "vision" in queues.declared.forest.places
        gone.set()
        await until(lambda: "vision" not in queues.declared.forest.places)
        assert queues.declared.is_declared
        assert queues.declared.forest.places == {}
        assert queues.declared.forest.deleted == {"vision": NOW}
        assert queues.seen == {"vision"}
        back.set()
        await until(lambda: "vision" in queues.declared.forest.places)
        assert queues.seen == {"vision"}
        assert queues.declared.forest.deleted == {}


async def test_hub_counts_as_one_without_queues_once_their_absence_has_lasted(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serves(server, OURS, "dispatchqueues", "DispatchQueue")
    server.on("GET", QUEUES, listed(), bookmarks)
    queues = watch_of(client, SELECTED, seen={"vision"})
    async with listing(queues) as goes_on:
        await until(goes_on)
        begun = monotonic()
        await asyncio.sleep(LASTS_SECONDS - 20)  # virtual
        assert (queues.declared.is_declared, queues.declared.forest.places) == (True, {})
        assert queues.declared.forest.deleted == {"vision": None}
        await until(lambda: not queues.declared.is_declared)
        assert monotonic() - begun >= LASTS_SECONDS
        assert list(queues.declared.forest.places) == ["default"]
        assert queues.seen == frozenset()


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        pytest.param(QUEUES, refusal(403, "Forbidden"), id="refused"),
        pytest.param(QUEUES, refusal(404, ""), id="not-found-although-served"),
        pytest.param(QUEUES, refusal(500, ""), id="fails"),
        pytest.param(OURS, refusal(403, "Forbidden"), id="discovery-is-refused"),
        pytest.param(OURS, refusal(500, ""), id="discovery-fails"),
        pytest.param("/readyz", refusal(500, ""), id="server-is-not-ready"),
    ],
)
async def test_list_that_cannot_be_read_is_no_absence(
    server: FakeApiServer, client: ClusterClient, path: str, reply: Reply
) -> None:
    if path != "/readyz":  # a server that is not ready does not know the group yet
        serves(server, OURS, "dispatchqueues", "DispatchQueue")
    server.on("GET", path, reply)
    queues = watch_of(client, SELECTED, seen={"vision"})
    async with listing(queues):
        await asyncio.sleep(3 * LASTS_SECONDS)  # virtual
        assert (queues.declared.is_declared, queues.declared.forest.places) == (True, {})
        assert queues.declared.forest.deleted == {}


async def test_queue_default_that_is_replaced_stays_closed_beside_others(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serves(server, OURS, "dispatchqueues", "DispatchQueue")
    server.on(
        "GET", QUEUES, listed(queue("a"), queue("default")), watch(deleted(queue("default"))), bookmarks
    )
    queues = watch_of(client)
    async with listing(queues):
        await until(lambda: list(queues.declared.forest.places) == ["a"])
        await asyncio.sleep(LASTS_SECONDS + 20)  # virtual
        assert list(queues.declared.forest.places) == ["a", "default"]


async def test_tree_of_mcad_that_is_replaced_still_charges_every_gang(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serves(server, QUOTA, "quotasubtrees", "QuotaSubtree")
    server.on("GET", OLD_QUOTA, refusal(404, ""))
    server.on("GET", QUEUES, refusal(404, ""))
    tree = subtree("context", "gold")
    gone = asyncio.Event()
    server.on("GET", SUBTREES, listed(tree), after(gone, deleted(tree)), bookmarks)
    queues = watch_of(client)
    async with listing(queues):
        await until(lambda: "context/gold" in queues.declared.forest.places)
        gone.set()
        await until(lambda: "context/gold" not in queues.declared.forest.places)
        assert queues.declared.trees == ("context",)
        assert queues.declared.is_declared
        await asyncio.sleep(LASTS_SECONDS + 20)  # virtual
        assert queues.declared == DeclaredQueues()


async def test_tree_whose_crd_is_gone_is_forgotten_once_that_has_lasted(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """A CRD takes its objects with it: the end of a migration from MCAD."""
    server.on("GET", QUOTA, refusal(404, ""))
    server.on("GET", OLD_QUOTA, refusal(404, ""))
    serves(server, OURS, "dispatchqueues", "DispatchQueue")
    server.on("GET", QUEUES, listed(queue("vision")), bookmarks)
    queues = watch_of(client, seen={"context/", "vision"})
    async with listing(queues) as goes_on:
        await until(goes_on)
        begun = monotonic()
        await asyncio.sleep(LASTS_SECONDS - 40)  # virtual
        assert (queues.declared.trees, queues.declared.is_declared) == (("context",), True)
        await until(lambda: queues.declared.trees == ())
        assert monotonic() - begun >= LASTS_SECONDS - 10
        assert queues.seen == {"vision"}


async def test_tree_is_forgotten_if_only_the_older_crd_of_mcad_is_deleted(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", QUEUES, refusal(404, ""))
    serves(server, QUOTA, "quotasubtrees", "QuotaSubtree")
    serves(server, OLD_QUOTA, "quotasubtrees", "QuotaSubtree")
    server.on("GET", SUBTREES, listed(), bookmarks)
    old = subtree("context", "gold")
    server.on("GET", OLD_SUBTREES, listed(old), watch(deleted(old)), refusal(404, ""))
    queues = watch_of(client)
    async with listing(queues) as goes_on:
        await until(goes_on)
        server.on("GET", OLD_QUOTA, refusal(404, ""))
        await until(lambda: queues.declared.trees == ("context",) and not queues.declared.there)
        await asyncio.sleep(LASTS_SECONDS + 60)  # virtual
        assert queues.declared == DeclaredQueues()


@pytest.mark.parametrize("is_put_back", [False, True], ids=["for-good", "installed-again"])
async def test_queue_whose_crd_is_deleted_unseen_lingers_and_is_then_forgotten(
    server: FakeApiServer,
    client: ClusterClient,
    is_put_back: bool,
) -> None:
    """The reflector saw no deletion of the queue: its store is older than the CRD's end."""
    serves(server, OURS, "dispatchqueues", "DispatchQueue")
    gone = asyncio.Event()
    server.on("GET", QUEUES, listed(queue("vision")), after(gone), refusal(404, ""))
    queues = watch_of(client)
    async with listing(queues) as goes_on:
        await until(goes_on)
        assert "vision" in queues.declared.forest.places
        server.on("GET", OURS, answer({"resources": []}))
        gone.set()
        await until(lambda: queues.declared.forest.places == {})
        assert (queues.declared.is_declared, queues.seen) == (True, frozenset({"vision"}))
        await asyncio.sleep(LASTS_SECONDS / 2)  # virtual
        assert queues.declared.is_declared
        if is_put_back:
            server.on("GET", QUEUES, listed(queue("vision", 9)), bookmarks)
            serves(server, OURS, "dispatchqueues", "DispatchQueue")
            await until(lambda: "vision" in queues.declared.forest.places)
        await asyncio.sleep(LASTS_SECONDS)  # virtual
        assert queues.declared.is_declared is is_put_back
        assert queues.seen == ({"vision"} if is_put_back else frozenset())


async def test_quota_of_a_queue_counts_while_it_is_replaced_and_until_it_is_surely_gone(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serves(server, OURS, "dispatchqueues", "DispatchQueue")
    gone = asyncio.Event()
    pool = queue("pool", parent="org", resources={"cpu": {"nominalQuota": 8}})
    server.on("GET", QUEUES, listed(queue("org"), pool), after(gone, deleted(pool)), bookmarks)
    queues = watch_of(client)
    async with listing(queues):
        await until(lambda: "pool" in queues.declared.forest.places)
        gone.set()
        await until(lambda: "pool" not in queues.declared.forest.places)
        assert queues.declared.forest.held == (Queue("pool", "org", {"cpu": Quota(8000)}),)
        await asyncio.sleep(LASTS_SECONDS + 20)  # virtual
        assert not queues.declared.forest.held


async def test_quota_of_a_queue_that_an_earlier_leader_saw_counts(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serves(server, OURS, "dispatchqueues", "DispatchQueue")
    server.on("GET", QUEUES, listed(queue("org")), never)
    pool = Queue("pool", "org", {"cpu": Quota(8000)})
    queues = watch_of(
        client, seen={"org", "pool"}, last={"pool": pool, "long-gone": Queue("long-gone", "org")}
    )
    async with listing(queues) as goes_on:
        await until(goes_on)
        assert queues.declared.forest.held == (pool,)


@pytest.mark.parametrize("is_unread", [False, True], ids=["removed", "malformed"])
async def test_node_of_a_tree_is_held_until_it_is_surely_gone(
    server: FakeApiServer, client: ClusterClient, *, is_unread: bool
) -> None:
    """A node that is malformed has perhaps no name, so no node is surely gone while its tree has such a part."""
    serves(server, QUOTA, "quotasubtrees", "QuotaSubtree")
    server.on("GET", OLD_QUOTA, refusal(404, ""))
    server.on("GET", QUEUES, refusal(404, ""))
    left = ("default", "") if is_unread else ("default",)
    server.on(
        "GET",
        SUBTREES,
        listed(subtree("context", "default", "gold")),
        watch(changed(subtree("context", *left, version=6))),
        bookmarks,
    )
    queues = watch_of(client)
    async with listing(queues):
        await until(lambda: [each.name for each in queues.declared.forest.held] == ["context/gold"])
        assert queues.seen == {"context/", "context/default", "context/gold"}
        await asyncio.sleep(LASTS_SECONDS + 20)  # virtual
        assert bool(queues.declared.forest.held) is is_unread


async def test_leader_takes_the_last_valid_declaration_of_a_queue_that_became_a_root(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serves(server, OURS, "dispatchqueues", "DispatchQueue")
    moved = queue("a", 6)
    server.on("GET", QUEUES, listed(queue("org"), queue("a", parent="org")), watch(changed(moved)), bookmarks)
    queues = watch_of(client)
    async with listing(queues):
        await until(lambda: "a" in queues.declared.forest.trees)
        assert queues.last == {"org": Queue("org"), "a": Queue("a"), "default": Queue("default")}


async def test_hub_that_never_had_a_queue_needs_neither_the_crd_nor_the_right_to_list_it(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", QUEUES, refusal(403, "Forbidden"))
    serves(server, OURS, "dispatchqueues", "DispatchQueue")
    queues = watch_of(client, SELECTED)
    async with listing(queues) as goes_on:
        await until(goes_on)
        assert (queues.declared.is_declared, list(queues.declared.forest.places)) == (False, ["default"])
