"""The watch of the queues: what it lists, when it waits, and when it tells of a change."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from dispatcher.controller.scheduling.queue_watch import MOST_PAUSES, SETTLE_SECONDS, QueueWatch
from dispatcher.core.queues.accounts import tree_quotas
from dispatcher.core.queues.forest import Defaults
from dispatcher.core.queues.queue import Access, QueueingStrategy, StopPolicy
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Discovery
from tests.builders import NOW
from tests.fakes import FakeApiServer, Reply, answer, never, refusal, watch
from tests.unit.virtual_time import monotonic, until
from tests.unit.workers import listing

Json = dict[str, Any]
OURS = "/apis/dispatcher.codeflare.dev/v1alpha1"
QUEUES = f"{OURS}/dispatchqueues"
QUOTA = "/apis/quota.codeflare.dev/v1alpha1"
SUBTREES = f"{QUOTA}/quotasubtrees"
OLD_QUOTA = "/apis/ibm.com/v1"
OLD_SUBTREES = f"{OLD_QUOTA}/quotasubtrees"
DEFAULTS = Defaults(QueueingStrategy.STRICT_FIFO, timedelta(seconds=5))


def queue(name: str, version: int = 1, status: Json | None = None, **spec: object) -> Json:
    metadata = {
        "uid": name,
        "name": name,
        "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {"metadata": metadata, "spec": spec, "status": status or {}}


def subtree(tree: str, *nodes: str, version: int = 1) -> Json:
    metadata = {
        "uid": f"tree-{tree}",
        "namespace": "kube-system",
        "name": tree,
        "resourceVersion": str(version),
        "labels": {"tree": tree},
    }
    return {"metadata": metadata, "spec": {"children": [{"name": each} for each in nodes]}}


def listed(*raw: Json) -> Reply:
    return answer({"metadata": {"resourceVersion": "5"}, "items": list(raw)})


def serves(server: FakeApiServer, group: str, plural: str, kind: str) -> None:
    server.on("GET", group, answer({"resources": [{"name": plural, "kind": kind, "namespaced": True}]}))


def changed(raw: Json) -> Json:
    return {"type": "MODIFIED", "object": raw}


@pytest.fixture
def told() -> list[tuple[str, ...]]:
    """The names of the valid queues at each call of `on_changed`."""
    return []


@pytest.fixture
def queues(server: FakeApiServer, client: ClusterClient, told: list[tuple[str, ...]]) -> QueueWatch:
    """The watch, on a hub that serves DispatchQueues and nothing of MCAD's."""
    serves(server, OURS, "dispatchqueues", "DispatchQueue")

    async def tell() -> None:
        told.append(tuple(found.declared.forest.places))

    found = QueueWatch(client, Discovery(client), DEFAULTS, tell, lambda: NOW)
    return found


async def test_queues_of_both_kinds_are_one_value(server: FakeApiServer, queues: QueueWatch) -> None:
    serves(server, QUOTA, "quotasubtrees", "QuotaSubtree")
    serves(server, OLD_QUOTA, "quotasubtrees", "QuotaSubtree")
    server.on("GET", QUEUES, listed(queue("b"), queue("a")), never)
    server.on("GET", SUBTREES, listed(subtree("context", "gold")), never)
    server.on("GET", OLD_SUBTREES, listed(subtree("context", "gold", "silver")), never)
    async with listing(queues) as goes_on:
        await until(goes_on)
        found = queues.declared
        assert list(found.forest.places) == ["a", "b", "context/gold", "context/silver", "default"]
        assert (found.trees, found.forest.defaults, found.is_declared) == (("context",), DEFAULTS, True)
        assert queues.declared is found


async def test_value_is_new_only_when_a_declaration_changes(
    server: FakeApiServer, queues: QueueWatch, told: list[tuple[str, ...]]
) -> None:
    late: asyncio.Queue[None] = asyncio.Queue()

    async def wait_first(request: web.Request) -> web.StreamResponse:
        await late.get()
        return await watch(changed(queue("a", 8, weight=2)), changed(queue("b", 9)))(request)

    server.on(
        "GET",
        QUEUES,
        listed(queue("a")),
        watch(changed(queue("a", 6, status={"used": {"cpu": "1"}}))),
        wait_first,
        never,
    )
    async with listing(queues) as goes_on:
        await until(goes_on)
        before = queues.declared
        await until(lambda: len(server.requests("GET", QUEUES)) == 3)
        assert queues.declared is before
        late.put_nowait(None)
        await until(lambda: len(told) >= 2)
        assert queues.declared.forest.places["a"].queue.weight == 2
    assert (told[0], told[-1]) == (("a", "default"), ("a", "b", "default"))


GPUS = {"nvidia.com/gpu": {"nominalQuota": 8}}


def gone(raw: Json) -> Json:
    return {"type": "DELETED", "object": raw}


@pytest.mark.parametrize(
    ("first", "second", "trees"),
    [
        pytest.param(
            changed(queue("a", 6, parent="y", resources=GPUS)),
            changed(queue("b", 7, parent="x", resources=GPUS)),
            [{"x": {"a", "c"}, "y": {"b"}}, {"x": {"b", "c"}, "y": {"a"}}],
            id="parents-swapped",
        ),
        pytest.param(
            changed(queue("a", 6, parent="x")),
            changed(queue("c", 7, parent="x", resources=GPUS)),
            [{"x": {"a", "c"}, "y": {"b"}}],
            id="quota-moved",
        ),
        pytest.param(
            changed(queue("a", 6, parent="b", resources=GPUS)),
            changed(queue("b", 7, parent="x", resources=GPUS)),
            [{"x": {"a", "c"}, "y": {"b"}}, {"x": {"b", "a", "c"}, "y": set[str]()}],
            id="one-moved-below-the-other",
        ),
        pytest.param(
            changed(queue("c", 6, parent="y")),
            gone(queue("a", 7)),
            [{"x": {"a", "c"}, "y": {"b"}}, {"x": set[str](), "y": {"b", "c"}}],
            id="moved-and-deleted",
        ),
    ],
)
async def test_queues_are_never_as_between_two_changes_of_one_apply(
    server: FakeApiServer, queues: QueueWatch, first: Json, second: Json, trees: list[dict[str, set[str]]]
) -> None:
    begun = asyncio.Event()

    async def apply(request: web.Request) -> web.StreamResponse:
        await begun.wait()
        return await watch(first)(request)

    async def go_on(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(1)  # virtual
        return await watch(second)(request)

    known = [
        queue("x"),
        queue("a", parent="x", resources=GPUS),
        queue("c", parent="x"),
        queue("y"),
        queue("b", parent="y", resources=GPUS),
    ]
    server.on("GET", QUEUES, listed(*known), apply, go_on, never)
    async with listing(queues) as goes_on:
        await until(goes_on)
        begun.set()
        seen: list[dict[str, set[str]]] = []
        limited: set[bool] = set()
        for _ in range(100):
            forest = queues.declared.forest
            found = {root: set(forest.trees[root].names) - {root} for root in ("x", "y")}
            seen += [found] if found not in seen[-1:] else []
            quotas = tree_quotas(forest)
            limited |= {"nvidia.com/gpu" in quotas[forest.for_quota.places["c"].root].limited}
            await asyncio.sleep(0.1)  # virtual
    assert seen == trees
    assert limited == {True}


async def test_changes_that_go_on_count_after_a_while(server: FakeApiServer, queues: QueueWatch) -> None:
    version = iter(range(6, 1000))

    async def change(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(1)  # virtual
        number = next(version)
        amounts = {"nvidia.com/gpu": {"nominalQuota": number}}
        return await watch(changed(queue("a", number, resources=amounts)))(request)

    server.on("GET", QUEUES, listed(queue("a", resources=GPUS)), change)
    async with listing(queues) as goes_on:
        await until(goes_on)
        before, begun = queues.declared, monotonic()
        await until(lambda: queues.declared is not before)
        assert SETTLE_SECONDS < monotonic() - begun <= (MOST_PAUSES + 1) * SETTLE_SECONDS + 1


async def test_queue_that_is_stopped_is_stopped_at_once(server: FakeApiServer, queues: QueueWatch) -> None:
    stopped = watch(changed(queue("a", 6, resources=GPUS, stopPolicy="Hold")))
    server.on("GET", QUEUES, listed(queue("a", resources=GPUS)), stopped, never)
    async with listing(queues) as goes_on:
        await until(goes_on)
        begun = monotonic()
        await until(lambda: queues.declared.forest.places["a"].stop_policy is StopPolicy.HOLD)
        assert monotonic() - begun < SETTLE_SECONDS


async def test_each_queue_is_shown_with_its_status_of_now(server: FakeApiServer, queues: QueueWatch) -> None:
    status = {"used": {"cpu": "1"}}
    bad = queue("bad", weight=[])
    server.on("GET", QUEUES, listed(queue("a"), bad), watch(changed(queue("a", 6, status=status))), never)
    async with listing(queues):
        await until(lambda: {each.queue.name: each.status for each in queues.dispatch_queues}.get("a"))
        found = {each.queue.name: (each.uid, each.status) for each in queues.dispatch_queues}
        assert found == {"a": ("a", status), "bad": ("bad", {})}


async def test_malformed_queue_does_not_hide_the_others(server: FakeApiServer, queues: QueueWatch) -> None:
    server.on("GET", QUEUES, listed(queue("bad", weight=[]), queue("good")), never)
    async with listing(queues) as goes_on:
        await until(goes_on)
        assert list(queues.declared.forest.places) == ["good", "default"]
        assert list(queues.declared.malformed) == ["bad"]


async def test_malformed_part_of_a_subtree_is_logged_once_until_it_changes(
    server: FakeApiServer, queues: QueueWatch, told: list[tuple[str, ...]]
) -> None:
    serves(server, QUOTA, "quotasubtrees", "QuotaSubtree")
    server.on("GET", QUEUES, listed(), watch(changed(queue("a", 6))), never)
    steps = [asyncio.Event(), asyncio.Event()]

    def after(step: asyncio.Event, raw: Json) -> Reply:
        async def reply(request: web.Request) -> web.StreamResponse:
            await step.wait()
            return await watch(changed(raw))(request)

        return reply

    bad = subtree("context", "gold", "")
    worse = subtree("context", "gold", "", "", version=7)
    good = subtree("context", "gold", version=8)
    server.on("GET", SUBTREES, listed(bad), after(steps[0], worse), after(steps[1], good), never)
    with capture_logs() as logs:
        async with listing(queues) as goes_on:
            await until(goes_on)
            for step, problems in zip(steps, (2, 0), strict=True):
                step.set()
                await until(lambda count=problems: len(queues.declared.problems) == count)  # type: ignore[misc]
            await until(lambda: told[-1:] == [("a", "context/gold", "default")])
    found = [each for each in logs if each["event"] == "quota_subtree_malformed"]
    assert [(each["subtree"], each["error"].partition(":")[0]) for each in found] == [
        ("kube-system/context", "spec.children[1].name"),
        ("kube-system/context", "spec.children[2].name"),
    ]


@pytest.mark.parametrize(
    ("group", "path", "reply", "remedies"),
    [
        pytest.param(OURS, QUEUES, refusal(403, "Forbidden"), 1, id="may-not-list"),
        pytest.param(OURS, QUEUES, refusal(404, ""), 0, id="not-served"),
        pytest.param(OURS, OURS, refusal(404, ""), 0, id="no-such-group"),
        pytest.param(QUOTA, SUBTREES, refusal(403, "Forbidden"), 1, id="may-not-list-subtrees"),
        pytest.param(OLD_QUOTA, OLD_QUOTA, refusal(403, "Forbidden"), 1, id="may-not-discover"),
    ],
)
async def test_kind_that_is_not_served_or_may_not_be_listed_has_no_objects(
    server: FakeApiServer, queues: QueueWatch, group: str, path: str, reply: Reply, remedies: int
) -> None:
    server.on("GET", QUEUES, listed(), never)
    if group is QUOTA:
        serves(server, QUOTA, "quotasubtrees", "QuotaSubtree")
    server.on("GET", path, reply)
    with capture_logs() as logs:
        async with listing(queues) as goes_on:
            await until(goes_on)
            assert not queues.declared.is_declared
            assert list(queues.declared.forest.places) == ["default"]
    assert [each["event"] for each in logs].count("queues_unknown") == remedies


@pytest.mark.parametrize("path", [QUEUES, OLD_QUOTA])
async def test_leader_waits_while_a_list_fails(
    server: FakeApiServer, queues: QueueWatch, told: list[tuple[str, ...]], path: str
) -> None:
    server.on("GET", QUEUES, listed(queue("a")), never)
    server.on("GET", path, refusal(500, "InternalError"))
    async with listing(queues) as goes_on:
        await asyncio.sleep(100)  # virtual
        assert not goes_on()
        assert [first.is_set() for _, first in queues.first_lists].count(False) == 1
        if path is QUEUES:
            assert (queues.declared.is_declared, told) == (False, [])
        server.on("GET", path, *((listed(queue("a")), never) if path is QUEUES else [refusal(404, "")]))
        await until(goes_on)
        assert list(queues.declared.forest.places) == ["a", "default"]


async def test_crd_that_is_installed_later_is_found(
    server: FakeApiServer, queues: QueueWatch, told: list[tuple[str, ...]]
) -> None:
    server.on("GET", QUEUES, listed(), never)
    async with listing(queues) as goes_on:
        await until(goes_on)
        serves(server, QUOTA, "quotasubtrees", "QuotaSubtree")
        server.on("GET", SUBTREES, listed(subtree("context", "gold")), never)
        await until(lambda: queues.declared.is_declared)
        await until(lambda: told[-1:] == [("context/gold", "default")])


async def test_error_of_the_callback_does_not_end_the_watch(
    server: FakeApiServer, client: ClusterClient
) -> None:
    calls: list[int] = []

    async def fails() -> None:
        calls.append(len(calls))
        raise ValueError("a defect")

    serves(server, OURS, "dispatchqueues", "DispatchQueue")
    server.on("GET", QUEUES, listed(queue("a")), watch(changed(queue("b", 6))), never)
    queues = QueueWatch(client, Discovery(client), DEFAULTS, fails, lambda: NOW)
    async with listing(queues):
        await until(lambda: len(calls) == 2)
        assert "b" in queues.declared.forest.places


@pytest.mark.parametrize(
    ("access", "event", "named"),
    [
        (Access.OPEN, "queues_open", ["default", "plain"]),
        (Access.SELECTED, "queues_without_selector", ["plain"]),
    ],
)
async def test_queues_without_a_selector_are_logged_once_at_the_start(
    server: FakeApiServer, client: ClusterClient, access: Access, event: str, named: list[str]
) -> None:
    serves(server, OURS, "dispatchqueues", "DispatchQueue")
    chosen = queue("chosen", namespaceSelector="team=vision")
    late = watch(changed(queue("chosen", 6, namespaceSelector="team=speech")))
    server.on("GET", QUEUES, listed(queue("plain"), chosen), late, never)

    async def nothing() -> None:
        pass

    found = QueueWatch(client, Discovery(client), Defaults(access=access), nothing, lambda: NOW)
    with capture_logs() as logs:
        async with listing(found) as goes_on:
            await until(goes_on)
            await until(lambda: len(server.requests("GET", QUEUES)) == 3)
    told = [each for each in logs if each["event"] in ("queues_open", "queues_without_selector")]
    assert [(each["event"], list(each["queues"])) for each in told] == [(event, named)]
