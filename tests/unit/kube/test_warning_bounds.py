"""What a tenant writes into Events costs other tenants nothing: lists are bounded, and asked for once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from aiohttp import web

from dispatcher import errors
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.kube.bounds import LARGEST_ANSWER, LARGEST_HINT, MOST_HELD_OF_HINTS, Purpose
from dispatcher.kube.client import FIRST_SILENT_SECONDS, HINT_SECONDS, SILENT_SECONDS, ClusterClient
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.objects.events import MOST_READS, OWNERS_SECONDS, SHARED_SECONDS, WarningReader
from dispatcher.kube.objects.object_client import ObjectClient
from dispatcher.kube.objects.owner_resolver import OwnerResolver
from tests.fakes import FakeApiServer, Reply, answer, never, refusal
from tests.unit.virtual_time import monotonic

Json = dict[str, Any]

EVENTS = "/api/v1/namespaces/evil/events"
CONFIG_MAPS = "/api/v1/namespaces/evil/configmaps"
LISTED = {"resources": [{"name": "configmaps", "kind": "ConfigMap", "namespaced": True}]}


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def reader(client: ClusterClient, clock: Callable[[], float]) -> WarningReader:
    owners = OwnerResolver(client, Discovery(client), lambda _uid: None, lambda _uid: "evil")
    return WarningReader(client, owners, clock)


def event(uid: str, name: str, message: str = "is wrong") -> Json:
    about = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid}
    return {"type": "Warning", "reason": "Odd", "message": message, "involvedObject": about}


def config_map(name: str, uid: str, owner: Json | None = None) -> Json:
    metadata: Json = {"name": name, "namespace": "evil", "uid": uid}
    return {"metadata": {**metadata, "ownerReferences": [owner] if owner else []}}


TOO_LARGE = answer({"items": [event("u", "c", "x" * LARGEST_HINT)]})


@pytest.mark.parametrize("failing", [TOO_LARGE, refusal(403, "Forbidden"), refusal(500, "InternalError")])
async def test_events_that_cannot_be_listed_are_not_asked_for_by_each_gang(
    server: FakeApiServer, client: ClusterClient, failing: Reply
) -> None:
    server.on("GET", EVENTS, failing)
    clock = Clock()
    warnings = reader(client, clock)
    for number in range(20):
        assert await warnings.about_controllers(f"aw-{number}", [], "evil") == ""
    assert len(server.requests("GET", EVENTS)) == 1

    clock.now = SHARED_SECONDS
    server.on("GET", "/api/v1", answer(LISTED))
    owner = {"apiVersion": "workload.codeflare.dev/v1beta1", "kind": "AppWrapper", "name": "aw", "uid": "aw"}
    server.on("GET", f"{CONFIG_MAPS}/c", answer(config_map("c", "u", {**owner, "controller": True})))
    server.on("GET", EVENTS, answer({"items": [event("u", "c")]}))
    assert await warnings.about_controllers("aw", [], "evil") == "ConfigMap evil/c: Odd: is wrong"


async def test_owners_above_the_objects_of_events_are_read_once_for_all_gangs(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", "/api/v1", answer(LISTED))
    for number in range(4):
        server.on("GET", f"{CONFIG_MAPS}/c{number}", answer(config_map(f"c{number}", f"u{number}")))
    server.on("GET", f"{CONFIG_MAPS}/c3", refusal(403, "Forbidden"))
    server.on("GET", EVENTS, answer({"items": [event(f"u{number}", f"c{number}") for number in range(4)]}))
    warnings = reader(client, Clock())
    for number in range(5):
        assert await warnings.about_controllers(f"aw-{number}", [], "evil") == ""
    reads = [len(server.requests("GET", f"{CONFIG_MAPS}/c{number}")) for number in range(3)]
    assert reads == [1, 1, 1]


async def test_each_gang_of_a_sweep_is_told_the_words_about_its_own_objects(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", "/api/v1", answer(LISTED))
    events = []
    for number in range(20):
        name, uid = f"sweep-{number}-xyz", f"u{number}"
        owner = {"apiVersion": "workload.codeflare.dev/v1beta1", "kind": "AppWrapper", "controller": True}
        made = config_map(name, uid, {**owner, "name": f"sweep-{number}", "uid": f"aw{number}"})
        server.on("GET", f"{CONFIG_MAPS}/{name}", answer(made))
        events.append(event(uid, name, f"lacks {number}"))
    server.on("GET", EVENTS, answer({"items": events}))
    warnings = reader(client, Clock())
    for number in range(20):
        refs = [ObjectRef(0, "v1", "ConfigMap", "evil", f"sweep-{number}", "")]
        said = await warnings.about_controllers(f"aw{number}", refs, "evil")
        assert said == f"ConfigMap evil/sweep-{number}-xyz: Odd: lacks {number}"
        assert len(server.requests("GET", f"{CONFIG_MAPS}/sweep-{number}-xyz")) == 1


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ([("the-job", "train"), ("below", "train-xyz")], "ConfigMap evil/train-xyz: Odd: of train-xyz"),
        ([("the-job", "train")], "ConfigMap evil/train: Odd: of train"),
        ([("foreign", "train-of-others"), ("the-job", "train")], "ConfigMap evil/train: Odd: of train"),
    ],
    ids=["below", "alone", "of-others"],
)
async def test_warning_of_a_controller_below_comes_before_the_newer_one_about_the_wrapped_object(
    server: FakeApiServer, client: ClusterClient, about: list[tuple[str, str]], expected: str
) -> None:
    appwrapper = {"apiVersion": "workload.codeflare.dev/v1beta1", "kind": "AppWrapper", "controller": True}
    owner = {**appwrapper, "name": "train", "uid": "aw"}
    server.on("GET", "/api/v1", answer(LISTED))
    server.on("GET", f"{CONFIG_MAPS}/train-xyz", answer(config_map("train-xyz", "below", owner)))
    server.on("GET", f"{CONFIG_MAPS}/train-of-others", answer(config_map("train-of-others", "foreign")))
    times = {uid: f"2026-01-01T00:00:0{9 - number}Z" for number, (uid, _) in enumerate(about)}
    events = [{**event(uid, name, f"of {name}"), "lastTimestamp": times[uid]} for uid, name in about]
    server.on("GET", EVENTS, answer({"items": events}))

    wrapped = ObjectRef(0, "v1", "ConfigMap", "evil", "train", "the-job")
    assert await reader(client, Clock()).about_controllers("aw", [wrapped], "evil") == expected


@pytest.mark.parametrize("awaits_kueue", [True, False])
async def test_workload_of_kueue_counts_while_the_gang_awaits_its_admission(
    server: FakeApiServer, client: ClusterClient, awaits_kueue: bool
) -> None:
    about = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "name": "job-train", "uid": "w"}
    server.on("GET", EVENTS, answer({"items": [{**event("w", "job-train"), "involvedObject": about}]}))
    wrapped = ObjectRef(0, "batch/v1", "Job", "evil", "train", "the-job")
    warnings = reader(client, Clock())
    warnings._owners.learn("w", "aw")  # noqa: SLF001  # as if its owner was read before
    said = await warnings.about_controllers("aw", [wrapped], "evil", awaits_kueue=awaits_kueue)
    assert said == ("Workload evil/job-train: Odd: is wrong" if awaits_kueue else "")


async def test_lists_and_reads_go_on_while_the_events_of_a_tenant_take_all_that_hints_may_take(
    server: FakeApiServer, client: ClusterClient
) -> None:
    more = asyncio.Event()
    part = b'{"items": [' + b" " * (LARGEST_HINT - 100)

    async def without_end(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(part)
        await more.wait()
        await response.write(b"]}")
        return response

    server.on("GET", EVENTS, without_end)
    large = orjson.dumps({"metadata": {}, "items": ["x" * (LARGEST_ANSWER - 100)]})
    server.on("GET", "/api/v1/pods", lambda _request: asyncio.sleep(0, web.Response(body=large)))
    objects = ObjectClient(client, Discovery(client))
    refs = [ObjectRef(0, "v1", "ConfigMap", "evil", "c", f"u{number}") for number in range(16)]
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(objects.newest_warning(each)) for each in refs]
        for number in range(MOST_HELD_OF_HINTS // len(part)):
            while len(server.requests("GET", EVENTS)) <= number:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for purpose in (Purpose.CLUSTER, Purpose.OBJECT):
            assert len((await client.get("/api/v1/pods", purpose=purpose))["items"]) == 1
        with pytest.raises(errors.TooLarge, match=r"larger than 2 MiB|more than 16 MiB at once"):
            await client.get("/api/v1/pods", purpose=Purpose.HINT)
        more.set()
    assert [each.result() for each in asked] == [""] * len(refs)


# --- Events that nobody can read, or not in time -----------------------------------------------------------------


async def test_events_without_an_answer_keep_the_gangs_of_many_namespaces_for_seconds_alone(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """As while the etcd of the Events does not answer: whoever waits keeps a place in the work queue."""
    for number in range(40):
        server.on("GET", f"/api/v1/namespaces/n{number}/events", never)
    warnings, begun = reader(client, monotonic), monotonic()
    asked = (warnings.about_controllers(f"aw-{number}", [], f"n{number}") for number in range(40))
    assert await asyncio.gather(*asked) == [""] * 40
    assert monotonic() - begun <= 3 * HINT_SECONDS + 1


async def test_events_without_an_answer_are_not_asked_for_by_each_object_of_a_gang(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", EVENTS, never)
    objects, begun = ObjectClient(client, Discovery(client)), monotonic()
    for number in range(3):
        ref = ObjectRef(number, "v1", "ConfigMap", "evil", f"c{number}", f"u{number}")
        assert await objects.newest_warning(ref) == ""
    assert monotonic() - begun <= HINT_SECONDS + 1
    assert len(server.requests("GET", EVENTS)) == 1


async def test_events_of_one_namespace_without_an_answer_silence_no_other_and_are_asked_for_again(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", EVENTS, never)
    server.on("GET", "/api/v1/namespaces/honest/events", answer({"items": [event("u", "c")]}))
    objects = ObjectClient(client, Discovery(client))
    evil, honest = (ObjectRef(0, "v1", "ConfigMap", name, "c", "u") for name in ("evil", "honest"))
    assert await objects.newest_warning(evil) == ""
    assert await objects.newest_warning(honest) == "Odd: is wrong"
    server.on("GET", EVENTS, answer({"items": [event("u", "c")]}))
    assert await objects.newest_warning(evil) == ""
    await asyncio.sleep(FIRST_SILENT_SECONDS)  # virtual
    assert await objects.newest_warning(evil) == "Odd: is wrong"


async def test_events_that_stay_without_an_answer_are_asked_for_ever_more_seldom(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", EVENTS, never)
    objects, ref = ObjectClient(client, Discovery(client)), ObjectRef(0, "v1", "ConfigMap", "evil", "c", "u")
    for _ in range(600):
        assert await objects.newest_warning(ref) == ""
        await asyncio.sleep(1)  # virtual
    pauses = [5, 10, 20, 40, 60, 60, 60]
    assert len(server.requests("GET", EVENTS)) <= len(pauses) + (600 - sum(pauses)) / SILENT_SECONDS + 2
    server.on("GET", EVENTS, answer({"items": [event("u", "c")]}))
    await asyncio.sleep(SILENT_SECONDS)  # virtual
    assert await objects.newest_warning(ref) == "Odd: is wrong"


@pytest.mark.parametrize(
    "failing", [TOO_LARGE, refusal(429, "TooManyRequests"), refusal(500, "InternalError")]
)
async def test_answer_that_comes_at_once_silences_nothing(
    server: FakeApiServer, client: ClusterClient, failing: Reply
) -> None:
    server.on("GET", EVENTS, failing)
    objects, ref = ObjectClient(client, Discovery(client)), ObjectRef(0, "v1", "ConfigMap", "evil", "c", "u")
    assert await objects.newest_warning(ref) == ""
    server.on("GET", EVENTS, answer({"items": [event("u", "c")]}))
    assert await objects.newest_warning(ref) == "Odd: is wrong"


# --- Owners above the objects of Events that take long to be read ------------------------------------------------


async def test_long_chains_above_the_objects_of_events_cost_a_bounded_number_of_reads(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", "/api/v1", answer(LISTED))
    for chain in range(10):
        for number in range(8):
            above = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": f"c{chain}-{number + 1}",
                "controller": True,
            }
            made = config_map(
                f"c{chain}-{number}", f"u{chain}-{number}", {**above, "uid": f"u{chain}-{number + 1}"}
            )
            server.on("GET", f"{CONFIG_MAPS}/c{chain}-{number}", answer(made))
    events = [event(f"u{chain}-0", f"c{chain}-0") for chain in range(10)]
    server.on("GET", EVENTS, answer({"items": events}))
    assert await reader(client, Clock()).about_controllers("aw", [], "evil") == ""
    assert len([each for each in server.asked if each.path != EVENTS]) == MOST_READS


async def test_owner_without_an_answer_costs_bounded_time_and_silences_no_hint(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", "/api/v1", answer(LISTED))
    server.on("GET", EVENTS, answer({"items": [event("u", "c")]}))
    server.on("GET", f"{CONFIG_MAPS}/c", never)
    warnings, begun = reader(client, monotonic), monotonic()
    assert await warnings.about_controllers("aw", [], "evil") == ""
    assert monotonic() - begun <= OWNERS_SECONDS + 0.1
    assert not client._silent_hints.is_silent(f"{CONFIG_MAPS}/c", monotonic())  # noqa: SLF001
