"""Events: a courtesy that never holds up the work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher.kube.client import ClusterClient
from dispatcher.kube.objects.events import (
    BURST,
    MOST_WAITING,
    PER_SECOND,
    REFUSED_SECONDS,
    EventAbout,
    EventRecorder,
)
from tests.builders import NOW
from tests.fakes import FakeApiServer, answer, never, refusal
from tests.unit import workers
from tests.unit.virtual_time import monotonic, until

EVENTS = "/api/v1/namespaces/default/events"
EVENT = EventAbout(
    api_version="workload.codeflare.dev/v1beta1",
    kind="AppWrapper",
    namespace="default",
    name="aw",
    uid="uid-of-aw",
    reason="Dispatched",
    message="every wrapped object (1) was created in cluster hub",
    warning=False,
    at=NOW,
)


@asynccontextmanager
async def recording(client: ClusterClient) -> AsyncIterator[EventRecorder]:
    recorder = EventRecorder(client, monotonic)
    async with workers.running(recorder.run()):
        yield recorder


def dropped_by(client: ClusterClient) -> int:
    return client.writes.dropped_events.total()


async def test_event_is_about_the_appwrapper(server: FakeApiServer, client: ClusterClient) -> None:
    server.on("POST", EVENTS, answer({}, 201))
    async with recording(client) as recorder:
        recorder.offer(EVENT)
        await until(lambda: server.requests("POST"))

    assert server.requests("POST")[0].body == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "aw.", "namespace": "default"},
        "involvedObject": {
            "apiVersion": "workload.codeflare.dev/v1beta1",
            "kind": "AppWrapper",
            "namespace": "default",
            "name": "aw",
            "uid": "uid-of-aw",
        },
        "reason": "Dispatched",
        "message": "every wrapped object (1) was created in cluster hub",
        "type": "Normal",
        "source": {"component": "appwrapper-dispatcher"},
        "reportingComponent": "appwrapper-dispatcher",
        "firstTimestamp": "2026-11-20T08:58:06Z",
        "lastTimestamp": "2026-11-20T08:58:06Z",
        "count": 1,
    }


async def test_event_fits_the_bounds_of_the_server(server: FakeApiServer, client: ClusterClient) -> None:
    server.on("POST", EVENTS, answer({}, 201))
    async with recording(client) as recorder:
        recorder.offer(replace(EVENT, name="a" * 253, message="x" * 5000, warning=True))
        await until(lambda: server.requests("POST"))
    body = server.requests("POST")[0].body
    assert (len(body["metadata"]["generateName"]), len(body["message"]), body["type"]) == (
        201,
        1024,
        "Warning",
    )


async def test_event_that_cannot_be_written_is_dropped_and_the_next_is_written(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("POST", EVENTS, refusal(403, "Forbidden"), never, answer({}, 201))
    async with recording(client) as recorder:
        for _ in range(3):
            recorder.offer(EVENT)
        await until(lambda: len(server.requests("POST")) == 3)
    assert dropped_by(client) == 2


async def test_refusal_is_logged_once_until_an_event_is_written_again(
    server: FakeApiServer, client: ClusterClient
) -> None:
    refused = refusal(403, "Forbidden")
    server.on("POST", EVENTS, refused, refused, answer({}, 201), refused)
    with capture_logs() as logs:
        async with recording(client) as recorder:
            for _ in range(4):
                recorder.offer(EVENT)
            await until(lambda: dropped_by(client) == 3)
    assert [(each["event"], each["cluster"]) for each in logs] == [("events_forbidden", "hub")] * 2


async def test_more_than_there_is_room_for_is_dropped_at_once(client: ClusterClient) -> None:
    recorder = EventRecorder(client, monotonic)
    for _ in range(MOST_WAITING + 7):
        recorder.offer(EVENT)
    assert dropped_by(client) == 7


async def test_events_are_written_at_a_limited_rate_after_a_burst(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("POST", EVENTS, answer({}, 201))
    async with recording(client) as recorder:
        for _ in range(BURST + 20):
            recorder.offer(EVENT)
        await until(lambda: len(server.requests("POST")) == BURST + 20)
    assert 20 / PER_SECOND <= monotonic() < 20 / PER_SECOND + 1.1


def in_namespace(name: str, number: int = 0) -> EventAbout:
    return replace(EVENT, namespace=name, name=f"aw-{number}")


async def test_namespaces_take_turns_so_a_flood_of_events_delays_no_other_namespace(
    server: FakeApiServer, client: ClusterClient
) -> None:
    for name in ("noisy", "quiet", "calm"):
        server.on("POST", f"/api/v1/namespaces/{name}/events", answer({}, 201))
    recorder = EventRecorder(client, monotonic)
    for number in range(100):
        recorder.offer(in_namespace("noisy", number))
    for number in range(2):
        recorder.offer(in_namespace("quiet", number))
        recorder.offer(in_namespace("calm", number))
    async with workers.running(recorder.run()):
        await until(lambda: len(server.requests("POST")) >= 8)
    written = [request.body["metadata"] for request in server.requests("POST")[:8]]
    assert [(each["namespace"], each["generateName"]) for each in written] == [
        ("noisy", "aw-0."),
        ("quiet", "aw-0."),
        ("calm", "aw-0."),
        ("noisy", "aw-1."),
        ("quiet", "aw-1."),
        ("calm", "aw-1."),
        ("noisy", "aw-2."),
        ("noisy", "aw-3."),
    ]


async def test_full_event_buffer_drops_an_event_of_the_namespace_with_the_most(
    server: FakeApiServer, client: ClusterClient
) -> None:
    for name in ("noisy", "quiet"):
        server.on("POST", f"/api/v1/namespaces/{name}/events", answer({}, 201))
    recorder = EventRecorder(client, monotonic)
    for number in range(MOST_WAITING):
        recorder.offer(in_namespace("noisy", number))
    recorder.offer(in_namespace("quiet"))
    assert dropped_by(client) == 1
    async with workers.running(recorder.run()):
        await until(lambda: len(server.requests("POST")) == MOST_WAITING)
    written = [request.body["metadata"]["namespace"] for request in server.requests("POST")]
    assert (written[1], written.count("noisy")) == ("quiet", MOST_WAITING - 1)


async def test_of_as_many_namespaces_as_there_is_room_none_pushes_out_another(client: ClusterClient) -> None:
    recorder = EventRecorder(client, monotonic)
    for number in range(MOST_WAITING + 3):
        recorder.offer(in_namespace(f"ns-{number}"))
    assert dropped_by(client) == 3
    recorder.offer(in_namespace("ns-0"))
    assert dropped_by(client) == 4


async def test_member_that_forbids_events_is_tried_once_in_ten_minutes_with_one_log_line(
    server: FakeApiServer, client: ClusterClient
) -> None:
    denied = refusal(403, "Forbidden")
    server.on("POST", EVENTS, denied, denied, answer({}, 201))
    recorder = EventRecorder(client, monotonic, "east")
    for _ in range(3):
        recorder.offer(EVENT)
    with capture_logs() as logs:
        async with workers.running(recorder.run()):
            await until(lambda: dropped_by(client) == 3)
            recorder.offer(EVENT)
            assert (dropped_by(client), len(server.requests("POST"))) == (4, 1)
            await asyncio.sleep(REFUSED_SECONDS)
            recorder.offer(EVENT)
            await until(lambda: dropped_by(client) == 5)
            await asyncio.sleep(REFUSED_SECONDS)
            recorder.offer(EVENT)
            await until(lambda: len(server.requests("POST")) == 3)
    assert dropped_by(client) == 5
    assert [(each["event"], each["cluster"]) for each in logs] == [("events_forbidden", "east")]


async def test_namespace_with_refused_events_delays_no_other_namespace(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("POST", "/api/v1/namespaces/closed/events", refusal(403, "Forbidden"))
    server.on("POST", EVENTS, answer({}, 201))
    recorder = EventRecorder(client, monotonic, "east")
    for name in ("closed", "closed", "default", "default"):
        recorder.offer(in_namespace(name))
    async with workers.running(recorder.run()):
        await until(lambda: len(server.requests("POST")) == 3)
    written = [request.body["metadata"]["namespace"] for request in server.requests("POST")]
    assert (written, dropped_by(client)) == (["closed", "default", "default"], 2)
