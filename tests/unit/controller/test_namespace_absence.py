"""A namespace that is removed and put back: what counts meanwhile, at the hub and in a member.

A member's namespace that is not listed takes no gang. A namespace of the hub that is gone has no AppWrapper: the API
server deletes the objects of a namespace before the namespace. So nothing lingers: an AppWrapper of a namespace that is
not listed has the default ceiling, and no label of a namespace puts it into a queue. A list that is refused or fails is
no absence: what was read before still counts. `test_limits` has a list that is refused from the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from dispatcher.api.names import DISPATCH_ENABLED, DISPATCH_LABEL, MAX_PRIORITY, QUEUE_LABEL
from dispatcher.controller.intake.limits import PATH, Namespaces
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.core.intake.namespace_bounds import Ceiling
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.kube.client import ClusterClient
from tests.builders import make_metadata
from tests.fakes import FakeApiServer, Reply, answer, never, refusal
from tests.unit.controller.test_queue_absence import after, deleted
from tests.unit.virtual_time import until
from tests.unit.workers import running

Json = dict[str, Any]

DEFAULT: Final = Ceiling(50)
LABELS: Final = {QUEUE_LABEL: "vision"}
ENABLED: Final = {DISPATCH_LABEL: DISPATCH_ENABLED}
TEAM: Final = frozenset({"team"})
NOBODY: Final = frozenset[str]()

EXPIRED: Final = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}
FAILURES: Final = [
    pytest.param(refusal(403, "Forbidden"), id="refused"),
    pytest.param(refusal(404, "NotFound"), id="not-found"),
    pytest.param(refusal(500, ""), id="fails"),
]


def namespace(version: int, uid: str = "1", **fields: Any) -> Json:  # noqa: ANN401
    metadata = make_metadata("team", resourceVersion=str(version), **fields)
    return {"metadata": {**metadata, "uid": uid}}


def page(*items: Json) -> Reply:
    return answer({"metadata": {"resourceVersion": "5"}, "items": list(items)})


def limited(version: int, uid: str = "1") -> Json:
    """A namespace of the hub with a ceiling and a queue of its own."""
    return namespace(version, uid, annotations={MAX_PRIORITY: "5"}, labels=LABELS)


def added(raw: Json) -> Json:
    return {"type": "ADDED", "object": raw}


@pytest.mark.parametrize("is_listed_anew", [False, True], ids=["watched", "listed-anew"])
async def test_namespace_of_the_hub_that_is_replaced_has_the_default_bounds_meanwhile_and_its_own_at_once(
    server: FakeApiServer, client: ClusterClient, is_listed_anew: bool
) -> None:
    gone, back = asyncio.Event(), asyncio.Event()
    without: list[Reply] = (
        [after(gone, EXPIRED), page()] if is_listed_anew else [after(gone, deleted(limited(6)))]
    )
    server.on("GET", PATH, page(limited(1)), *without, after(back, added(limited(8, "2"))), never)
    changed: list[str] = []
    seen: list[Mapping[str, str]] = []
    namespaces = Namespaces(
        client, DEFAULT, changed.append, lambda: seen.append(dict(namespaces.labels_of("team")))
    )

    def bounds() -> tuple[Ceiling, Mapping[str, str], Mapping[str, Mapping[str, str]]]:
        return namespaces.ceiling_of("team"), namespaces.labels_of("team"), dict(namespaces.labels)

    async with running(namespaces.run()):
        await namespaces.wait_until_listed()
        assert bounds() == (Ceiling(5), LABELS, {"team": LABELS})
        gone.set()
        await until(lambda: len(changed) == 2)
        assert bounds() == (DEFAULT, {}, {})
        back.set()
        await until(lambda: len(changed) == 3)
        assert bounds() == (Ceiling(5), LABELS, {"team": LABELS})
    assert (changed, seen) == (["team"] * 3, [LABELS, {}, LABELS])


@pytest.mark.parametrize("reply", FAILURES)
async def test_ceilings_and_labels_of_the_hub_outlast_a_list_that_cannot_be_read_any_more(
    server: FakeApiServer, client: ClusterClient, reply: Reply
) -> None:
    gone = asyncio.Event()
    server.on("GET", PATH, page(limited(1)), after(gone, EXPIRED), reply)
    namespaces = Namespaces(client, DEFAULT, lambda _name: None, lambda: None)
    async with running(namespaces.run()):
        await namespaces.wait_until_listed()
        asked = len(server.requests("GET", PATH))
        gone.set()
        await until(lambda: len(server.requests("GET", PATH)) > asked + 3)
        assert (namespaces.ceiling_of("team"), namespaces.labels_of("team")) == (Ceiling(5), LABELS)


def member(server: FakeApiServer, client: ClusterClient, *replies: Reply) -> WatchedCluster:
    """A member without nodes and pods; its API server answers lists and watches of namespaces with these replies."""
    for plural in ("nodes", "pods"):
        server.on("GET", f"/api/v1/{plural}", page(), never)
    server.on("GET", PATH, *replies)
    return WatchedCluster(
        "east", client, CapacityLedger(), on_capacity=lambda: None, on_pods=lambda _appwrapper: None
    )


def refused_by(cluster: WatchedCluster) -> Callable[[], tuple[frozenset[str], frozenset[str]]]:
    """The namespaces that are missing, and those that are closed, if a gang of `team` asks."""
    return lambda: (cluster.missing_namespaces(TEAM), cluster.closed_namespaces(TEAM))


async def test_namespace_of_a_member_that_is_replaced_takes_no_gang_until_it_is_there_with_its_label(
    server: FakeApiServer, client: ClusterClient
) -> None:
    ends, gone, back, labelled = (asyncio.Event() for _ in range(4))
    terminating = namespace(6, labels=ENABLED, deletionTimestamp="2026-11-20T09:00:00Z")
    cluster = member(
        server,
        client,
        page(namespace(1, labels=ENABLED)),
        after(ends, {"type": "MODIFIED", "object": terminating}),
        after(gone, deleted(terminating)),
        after(back, added(namespace(8, "2"))),
        after(labelled, {"type": "MODIFIED", "object": namespace(9, "2", labels=ENABLED)}),
        never,
    )
    refused = refused_by(cluster)
    async with running(cluster.run()):
        await cluster.wait_until_listed()
        assert refused() == (NOBODY, NOBODY)
        ends.set()
        await until(lambda: refused() == (TEAM, NOBODY))
        gone.set()
        await until(lambda: len(server.requests("GET", PATH)) == 4)
        assert refused() == (TEAM, NOBODY)
        back.set()
        await until(lambda: refused() == (NOBODY, TEAM))
        labelled.set()
        await until(lambda: refused() == (NOBODY, NOBODY))


@pytest.mark.parametrize("reply", FAILURES)
async def test_member_whose_namespaces_were_never_listed_takes_no_gang(
    server: FakeApiServer, client: ClusterClient, reply: Reply
) -> None:
    cluster = member(server, client, reply)
    async with running(cluster.run()):
        await until(lambda: len(server.requests("GET", PATH)) > 3)
        assert not cluster.is_ready
        assert refused_by(cluster)() == (TEAM, NOBODY)


@pytest.mark.parametrize("reply", FAILURES)
async def test_namespaces_of_a_member_neither_open_nor_vanish_while_their_list_cannot_be_read(
    server: FakeApiServer, client: ClusterClient, reply: Reply
) -> None:
    gone = asyncio.Event()
    cluster = member(server, client, page(namespace(1)), after(gone, EXPIRED), reply)
    async with running(cluster.run()):
        await cluster.wait_until_listed()
        asked = len(server.requests("GET", PATH))
        gone.set()
        await until(lambda: len(server.requests("GET", PATH)) > asked + 3)
        assert refused_by(cluster)() == (NOBODY, TEAM)
