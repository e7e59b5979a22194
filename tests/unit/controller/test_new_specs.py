"""The specs of new AppWrappers: in memory within a bound, else read again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatcher import errors
from dispatcher.api.validation import LARGEST_SPEC, MOST_CONTAINERS
from dispatcher.controller.intake.appwrapper_informer import AppWrapperInformer, NewSpecs
from dispatcher.core.model.record import Phase
from dispatcher.kube.objects.appwrappers import AppWrapperView
from tests.builders import make_appwrapper, make_template
from tests.fakes import FakeApiServer, answer, refusal, text
from tests.unit import workers
from tests.unit.controller.wire import APPWRAPPERS, Watched
from tests.unit.controller.world import World
from tests.unit.virtual_time import until

Json = dict[str, Any]
UID = "uid-of-aw"
OBJECT = f"{APPWRAPPERS}/aw"


def test_specs_are_kept_while_there_is_room() -> None:
    specs = NewSpecs(most=10)
    specs.put("a", b"1234")
    specs.put("b", b"123456")
    specs.put("c", b"1")
    assert [specs.get(uid) for uid in "abc"] == [b"1234", b"123456", None]
    specs.drop("a")
    specs.put("c", b"1")
    assert specs.get("c") == b"1"


def test_newer_spec_takes_the_place_of_the_one_before() -> None:
    specs = NewSpecs(most=10)
    specs.put("a", b"12345678")
    specs.put("a", b"87654321")
    assert specs.get("a") == b"87654321"
    specs.put("a", b"12345678")
    specs.put("a", b"too large to keep")
    assert specs.get("a") is None


def test_dropped_spec_makes_room() -> None:
    specs = NewSpecs(most=10)
    specs.put("a", b"0123456789")
    specs.drop("a")
    specs.drop("nobody")
    specs.put("b", b"0123456789")
    assert specs.get("b") == b"0123456789"


# --- on the hub -----------------------------------------------------------------------------------------------


@pytest.fixture
async def appwrappers(server: FakeApiServer, world: World) -> AsyncIterator[Watched]:
    """The AppWrappers of a hub that is watched."""
    appwrappers = Watched(server, "/apis/workload.codeflare.dev/v1beta1", "appwrappers")
    async with workers.running(world.hub.run()):
        yield appwrappers


async def seen(world: World) -> AppWrapperView:
    await until(lambda: world.hub.view(UID))
    view = world.hub.view(UID)
    assert view is not None
    return view


async def taken_in(world: World) -> AppWrapperView:
    """One whose spec is not in memory: as if it had been taken in when it was seen first."""
    world.hub = AppWrapperInformer(world.client, world.cluster.discovery, world.queue.add, lambda _uid: True)
    async with workers.running(world.hub.run()):
        return await seen(world)


async def test_spec_that_was_seen_is_not_asked_for_again(world: World, appwrappers: Watched) -> None:
    appwrappers.has(make_appwrapper())
    view = await seen(world)
    assert view.spec == b""
    with_spec = await world.hub.with_spec(view)
    assert with_spec is not None
    assert with_spec.spec.startswith(b'{"resources":')
    assert world.server.requests("GET", OBJECT) == []


async def test_spec_for_which_there_was_no_room_is_read_again(
    server: FakeApiServer, world: World, appwrappers: Watched
) -> None:
    appwrappers.has(make_appwrapper())
    view = await taken_in(world)
    server.on("GET", OBJECT, answer(make_appwrapper(spec={"priority": 5})))
    with_spec = await world.hub.with_spec(view)
    assert with_spec is not None
    assert (
        with_spec.mutable_spec is not None,
        with_spec.mutable_spec and with_spec.mutable_spec.priority,
    ) == (True, 5)
    assert with_spec.spec.endswith(b'"priority":5}')


async def test_new_appwrapper_that_went_or_was_followed_by_another_has_no_spec(
    server: FakeApiServer, world: World, appwrappers: Watched
) -> None:
    appwrappers.has(make_appwrapper())
    view = await taken_in(world)
    server.on("GET", OBJECT, refusal(404, "NotFound"), answer(make_appwrapper(uid="another")))
    assert [await world.hub.with_spec(view) for _ in range(2)] == [None, None]
    server.on("GET", OBJECT, text("404 page not found", 404))
    with pytest.raises(errors.Unavailable, match="is not served"):
        await world.hub.with_spec(view)


INTRICATE = make_template("ConfigMap", name="c") | {"data": {"a": [[] for _ in range(MOST_CONTAINERS)]}}
LONG = make_template("ConfigMap", name="c") | {"data": {"a": "x" * LARGEST_SPEC}}


@pytest.mark.parametrize("how", ["listed", "watched"])
@pytest.mark.parametrize(
    ("template", "problem"),
    [
        pytest.param(INTRICATE, "lists and objects; at most 16384 are taken. ", id="intricate"),
        pytest.param(LONG, "bytes of JSON; at most 262144 are taken. ", id="long"),
    ],
)
async def test_spec_that_is_too_large_fails_with_its_size_and_the_next_is_queued(
    world: World, appwrappers: Watched, template: Json, problem: str, how: str
) -> None:
    if how == "watched":
        appwrappers.has(make_appwrapper("first"))
        await until(lambda: world.hub.view("uid-of-first"))
    appwrappers.has(make_appwrapper("aw", template))
    appwrappers.has(make_appwrapper("beside"))
    await until(lambda: world.hub.view(UID) and world.hub.view("uid-of-beside"))
    for uid in (UID, "uid-of-beside"):
        world.intake.add(uid)
    await world.intake.take_in_all()

    failed = world.record(UID)
    assert failed.phase is Phase.FAILED
    assert failed.message.startswith("default/aw creation failure: spec: ")
    assert problem in failed.message
    assert world.record("uid-of-beside").phase is Phase.QUEUED
    assert world.store.specs[failed.spec_hash] == b""


async def test_status_of_a_too_large_appwrapper_is_written_once(world: World, appwrappers: Watched) -> None:
    """It is not parsed, but its status is: else it would be written again with every look at it."""
    appwrappers.has(make_appwrapper("first"))
    await until(lambda: world.hub.view("uid-of-first"))
    appwrappers.has(make_appwrapper("aw", INTRICATE, status={"state": "Failed"}))
    view = await seen(world)
    assert (view.excess is not None, view.status) == (True, {"state": "Failed"})


async def test_spec_of_an_appwrapper_is_not_kept_in_memory_after_its_intake(
    world: World, appwrappers: Watched
) -> None:
    appwrappers.has(make_appwrapper())
    await seen(world)
    world.intake.add(UID)
    await world.intake.take_in_all()
    record = world.record(UID)
    assert (record.phase, world.store.specs[record.spec_hash][:14]) == (Phase.QUEUED, b'{"resources":{')
