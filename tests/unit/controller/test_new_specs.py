"""The specs of new AppWrappers: in memory within a bound, else read again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher import errors
from dispatcher.api.annotations import FaultTolerance
from dispatcher.api.validation import LARGEST_SPEC, MOST_CONTAINERS
from dispatcher.controller.intake import specs
from dispatcher.controller.intake.appwrapper_informer import AppWrapperInformer, NewSpecs
from dispatcher.controller.intake.specs import Specs
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.kube.objects.appwrappers import NO_ANNOTATIONS, AppWrapperView, decode
from tests.builders import make_appwrapper, make_record, make_template
from tests.fakes import FakeApiServer, answer, refusal, text
from tests.unit import workers
from tests.unit.controller.store import FakeStore
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


# -----------------------------------------------------------------------------------------------------------
# Specs and terms, read once and kept: from memory, else from the database, many at a time where many are
# due.


class AskedStore(FakeStore):
    """Remembers which specs were asked for at once."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: list[int] = []

    async def load_specs(self, hashes: Collection[str]) -> dict[str, bytes]:
        self.questions.append(len(hashes))
        return {each: self.specs[each] for each in hashes if each in self.specs}


@pytest.fixture
def store() -> AskedStore:
    """A database with specs."""
    return AskedStore()


def stored(store: AskedStore, name: str, spec: dict[str, Any] | None = None) -> Record:
    """A gang that runs, whose spec only the database has."""
    view = decode(make_appwrapper(name, make_template(name=name), spec=spec))
    store.specs[view.spec_hash] = view.spec
    return replace(make_record(Phase.RUNNING, name), spec_hash=view.spec_hash)


async def test_time_for_kueue_is_the_operators(store: AskedStore) -> None:
    record, kept = stored(store, "aw"), Specs(store, kueue_wait=timedelta(hours=2))
    assert (await kept.policy_of(record, NO_ANNOTATIONS)).kueue_wait == timedelta(hours=2)


async def test_lifecycle_policy_is_built_once_for_each_spec_and_its_annotations(store: AskedStore) -> None:
    record, kept = stored(store, "aw"), Specs(store, timedelta(hours=1))
    terms = await kept.policy_of(record, NO_ANNOTATIONS)
    assert (terms.kept_completed, terms.kept_failed) == (timedelta(hours=1), timedelta(hours=1))
    assert await kept.policy_of(record, NO_ANNOTATIONS) is terms
    bent = await kept.policy_of(record, FaultTolerance(success_ttl=timedelta(seconds=5)))
    assert bent == replace(terms, kept_completed=timedelta(seconds=5))
    assert store.questions == [1]


async def test_terms_that_were_prepared_cost_one_question(store: AskedStore) -> None:
    records, kept = [stored(store, f"aw-{number}") for number in range(3)], Specs(store)
    unseen = stored(store, "unseen")
    await kept.prepare({record.uid: NO_ANNOTATIONS for record in records}, [*records, unseen])
    for record in records:
        await kept.policy_of(record, NO_ANNOTATIONS)
    assert store.questions == [3]


async def test_terms_outlive_the_specs_they_were_made_of(
    store: AskedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(specs, "MOST_PARSED", 1)
    monkeypatch.setattr(specs, "MOST_KEPT", 1)
    records, kept = [stored(store, f"aw-{number}") for number in range(2)], Specs(store)
    for record in (*records, *records):
        await kept.policy_of(record, NO_ANNOTATIONS)
    assert store.questions == [1, 1]


async def test_terms_that_are_too_many_are_made_again(
    store: AskedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(specs, "MOST_TERMS", 1)
    record, kept = stored(store, "aw"), Specs(store)
    bent = FaultTolerance(retry_limit=0)
    first = await kept.policy_of(record, NO_ANNOTATIONS)
    assert (await kept.policy_of(record, bent)).retry_limit == 0
    again = await kept.policy_of(record, NO_ANNOTATIONS)
    assert again == first
    assert again is not first


async def test_specs_are_bounded_in_bytes(store: AskedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [stored(store, f"aw-{number}") for number in range(3)]
    monkeypatch.setattr(specs, "MOST_KEPT", 2 * len(store.specs[records[0].spec_hash]))
    monkeypatch.setattr(specs, "MOST_PARSED", 1)
    kept = Specs(store)
    for record in records:
        await kept.of(record)
    store.questions.clear()
    for record in reversed(records):
        await kept.of(record)
    assert store.questions == [1]  # the oldest had to go


async def test_a_spec_that_is_no_longer_parsed_is_parsed_again_from_memory(
    store: AskedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [stored(store, f"aw-{number}") for number in range(2)]
    monkeypatch.setattr(specs, "MOST_PARSED", len(store.specs[records[0].spec_hash]))
    kept = Specs(store)
    first, second = [await kept.of(record) for record in records]
    assert await kept.of(records[1]) is second
    again = await kept.of(records[0])
    assert (again == first, again is first) == (True, False)
    assert store.questions == [1, 1]
