"""No watch and no list of a cluster ends because of one object: it is told and counted, the others go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher import errors
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.objects.events import EventRecorder
from dispatcher.kube.objects.live_pod_lister import LiveItems, LivePodLister
from dispatcher.kube.reflector import Pace, Reflector
from tests.builders import make_pod
from tests.fakes import FakeApiServer, answer
from tests.unit.kube.test_events import EVENT, EVENTS
from tests.unit.kube.test_reflector import PATH, at_path, page, thing
from tests.unit.virtual_time import monotonic, until
from tests.unit.workers import running

Json = dict[str, Any]
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "uid-of-j"}


def raises_of(name: str, told: list[str], error: Exception) -> Callable[..., Any]:
    """A decoder, or a handler, that one object makes fail."""

    def call(subject: Any, *_: Any) -> str:  # noqa: ANN401
        seen = subject if isinstance(subject, str) else str(subject["metadata"]["name"])
        told.append(seen)
        if seen == name:
            raise error
        return seen

    return call


@pytest.mark.parametrize("error", [RuntimeError("odd"), RecursionError(), OverflowError(), AssertionError()])
async def test_object_that_fails_to_decode_for_any_reason_is_left_out_logged_and_counted(
    server: FakeApiServer, client: ClusterClient, counted: Callable[[str], int], error: Exception
) -> None:
    server.on("GET", PATH, answer(page(1, thing("odd"), thing("fine"))))
    reflector: Reflector[str] = Reflector(
        "things", client, at_path, raises_of("odd", [], error), lambda *_: None
    )
    with capture_logs() as logs:
        async with running(reflector.run()):
            await reflector.synced.wait()
    assert reflector.items == {"fine": "fine"}
    assert [each["name"] for each in logs if each["event"] == "undecodable_object"] == ["odd"]
    assert counted("reflector") == 1


async def test_handler_that_fails_for_one_object_gets_the_other_objects(
    server: FakeApiServer, client: ClusterClient, counted: Callable[[str], int]
) -> None:
    told: list[str] = []
    server.on("GET", PATH, answer(page(1, thing("odd"), thing("fine"))))
    handler = raises_of("odd", told, RuntimeError("odd"))
    reflector: Reflector[str] = Reflector("things", client, at_path, lambda raw: str(raw["value"]), handler)
    async with running(reflector.run()) as task:
        await reflector.synced.wait()
        assert not task.done()
    assert (told, sorted(reflector.items), counted("reflector")) == (["odd", "fine"], ["fine", "odd"], 1)


async def test_handler_to_which_the_store_says_no_ends_the_watch(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", PATH, answer(page(1, thing("odd"))))
    handler = raises_of("odd", [], errors.Fenced("another leads"))
    reflector: Reflector[str] = Reflector("things", client, at_path, lambda raw: str(raw["value"]), handler)
    with pytest.raises(errors.Fenced):
        await reflector.run()


async def test_unexpected_failure_to_locate_a_path_is_repeated_with_pauses(
    server: FakeApiServer, client: ClusterClient, counted: Callable[[str], int]
) -> None:
    tries: list[float] = []

    async def locate() -> str:
        tries.append(monotonic())
        if len(tries) < 5:
            raise KeyError("kind")
        return PATH

    server.on("GET", PATH, answer(page(1)))
    reflector: Reflector[str] = Reflector(
        "things", client, locate, str, lambda *_: None, pace=Pace(jitter=lambda: 1.0)
    )
    async with running(reflector.run()):
        await reflector.synced.wait()
    assert counted("reflector") == 4
    assert tries == sorted(tries)
    assert tries[-1] > 5


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(
            {"metadata": {"name": "odd", "ownerReferences": [{**JOB, "controller": True}]}}, id="bare"
        ),
        pytest.param(make_pod("odd", controller=JOB), id="no-labels-though-asked-for"),
        pytest.param({"metadata": {"name": "odd", "ownerReferences": "yes"}}, id="no-references"),
    ],
)
async def test_malformed_pod_belongs_to_no_appwrapper_and_the_others_are_counted(
    server: FakeApiServer, client: ClusterClient, odd: Json
) -> None:
    fine = make_pod("fine", of="aw", controller=JOB)
    server.on("GET", "/api/v1/pods", answer({"metadata": {}, "items": [odd, fine]}))
    woken: list[str] = []
    live = LivePodLister(client, woken.append, lambda _node: False, lambda _view: None)
    async with running(live.run()):
        assert live.ask(("default", "aw"), 1) is None
        await until(lambda: woken)
        assert live.ask(("default", "aw"), 1) == LiveItems(frozenset({-1}), frozenset({-1}))


@pytest.mark.parametrize(
    "nonsense", [[], {"items": []}, {"metadata": {}, "items": [5]}, {"metadata": {}, "items": "a"}]
)
async def test_list_that_makes_no_sense_is_no_list_and_is_asked_for_again(
    server: FakeApiServer,
    client: ClusterClient,
    nonsense: Any,  # noqa: ANN401
) -> None:
    """What it left out would look as if it were gone, and capacity would be given back."""
    server.on("GET", "/api/v1/pods", answer(nonsense), answer({"metadata": {}, "items": []}))
    woken: list[str] = []
    live = LivePodLister(client, woken.append, lambda _node: False, lambda _view: None)
    async with running(live.run()):
        live.ask(("default", "aw"), 1)
        await until(lambda: woken)
    assert len(server.requests("GET", "/api/v1/pods")) == 2


async def test_event_that_cannot_be_written_whatever_the_reason_is_dropped_and_the_next_is_written(
    server: FakeApiServer, client: ClusterClient, counted: Callable[[str], int]
) -> None:
    server.on("POST", EVENTS, answer({}, 201))
    recorder = EventRecorder(client, monotonic)
    recorder.offer(replace(EVENT, at=None))  # type: ignore[arg-type]  # no time at all
    recorder.offer(EVENT)
    async with running(recorder.run()):
        await until(lambda: server.requests("POST"))
    assert (client.writes.dropped_events.total(), counted("events")) == (1, 1)


async def test_event_is_as_many_bytes_long_as_an_api_server_takes(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("POST", EVENTS, answer({}, 201))
    recorder = EventRecorder(client, monotonic)
    recorder.offer(replace(EVENT, message="é" * 2000))
    async with running(recorder.run()):
        await until(lambda: server.requests("POST"))
    assert server.requests("POST")[0].body["message"] == "é" * 512
