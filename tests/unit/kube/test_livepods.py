"""Who still has live pods: asked of the API server, one list for all who ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dispatcher import errors
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.livepods import LivePods
from tests.builders import make_pod
from tests.fakes import FakeApiServer, answer, refusal
from tests.unit.virtual_time import monotonic

PODS = "/api/v1/pods"
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "uid-of-j"}


def pods(*raw: Any, token: str = "") -> Any:  # noqa: ANN401
    return answer({"metadata": {"resourceVersion": "1", "continue": token}, "items": list(raw)})


@asynccontextmanager
async def live_pods(client: ClusterClient) -> AsyncIterator[LivePods]:
    it = LivePods(client)
    task = asyncio.create_task(it.run())
    try:
        yield it
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_only_live_pods_count_and_each_in_its_namespace(
    server: FakeApiServer, client: ClusterClient
) -> None:
    phases = {"a": "Running", "b": "Pending", "c": "Unknown", "d": "Succeeded", "e": "Failed"}
    terminating = make_pod("t", of="t", controller=JOB, deletionTimestamp="2026-11-20T09:00:00Z")
    listed = [make_pod(name, of=name, controller=JOB, phase=phase) for name, phase in phases.items()]
    copied = make_pod("copy", of="copied-labels-of")
    server.on("GET", PODS, pods(*listed, copied, token="more"), pods(terminating))
    async with live_pods(client) as it:
        assert await it.owners() == {("default", uid) for uid in ("a", "b", "c", "t")}

    assert [dict(each.query) for each in server.asked] == [
        {"labelSelector": "dispatcher.codeflare.dev/appwrapper-uid", "limit": "500"},
        {"labelSelector": "dispatcher.codeflare.dev/appwrapper-uid", "limit": "500", "continue": "more"},
    ]


async def test_one_list_answers_all_who_ask_together(server: FakeApiServer, client: ClusterClient) -> None:
    server.on("GET", PODS, pods())
    async with live_pods(client) as it:
        assert await asyncio.gather(*(it.owners() for _ in range(50))) == [frozenset()] * 50
    assert len(server.asked) == 1


async def test_answer_is_never_older_than_the_question(server: FakeApiServer, client: ClusterClient) -> None:
    """Who asks while a list is under way gets the next one, a second later."""
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: Any) -> Any:  # noqa: ANN401
        started.set()
        await go_on.wait()
        return await pods(make_pod(of="early", controller=JOB))(request)

    server.on("GET", PODS, slow, pods())
    async with live_pods(client) as it:
        first = asyncio.create_task(it.owners())
        await started.wait()
        second = asyncio.create_task(it.owners())
        await asyncio.sleep(0)
        go_on.set()
        assert await first == {("default", "early")}
        asked_at = monotonic()
        assert await second == frozenset()
        assert monotonic() - asked_at == pytest.approx(1, abs=0.1)


async def test_who_asks_is_told_when_there_is_no_answer_and_may_ask_again(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", PODS, refusal(503, "ServiceUnavailable"), pods())
    async with live_pods(client) as it:
        with pytest.raises(errors.Unavailable):
            await it.owners()
        assert await it.owners() == frozenset()


async def test_who_no_longer_waits_is_passed_over(server: FakeApiServer, client: ClusterClient) -> None:
    server.on("GET", PODS, pods())
    async with live_pods(client) as it:
        impatient = asyncio.create_task(it.owners())
        await asyncio.sleep(0)
        impatient.cancel()
        assert await it.owners() == frozenset()
