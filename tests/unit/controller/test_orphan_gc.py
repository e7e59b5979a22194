"""Orphan garbage collection removes ended attempts, and unknown ones if they are a small share; nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher.api.names import HUB_ANNOTATION, UID_LABEL
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.upkeep.orphan_gc import OrphanCollector
from dispatcher.core.kinds.manifest import anchor_name
from dispatcher.core.lifecycle import queue_changes, removal
from dispatcher.core.model.records.record import HOLDING, Phase, Record
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.kube.client import ClusterClient
from tests.builders import at, attempt_of, make_appwrapper, make_metadata, make_record
from tests.fakes import FakeApiServer, Reply, answer, client_of, hang_up, refusal
from tests.unit.controller.world import World
from tests.unit.virtual_time import until
from tests.unit.workers import running

Json = dict[str, Any]

CONFIGMAPS = "/api/v1/configmaps"
UID = "uid-of-aw"
FIVE = [f"uid-{number}" for number in range(5)]
SIX = [f"uid-{number}" for number in range(6)]


def anchor(appwrapper: str = UID, attempt: int = 1, hub: str = "the-hub", **metadata: object) -> Json:
    """The metadata of an anchor in a list."""
    fields = {"labels": {UID_LABEL: appwrapper}, "annotations": {HUB_ANNOTATION: hub}, **metadata}
    return {"metadata": make_metadata(anchor_name(appwrapper, attempt), **fields)}


def page(items: Iterable[Json], token: str = "") -> Reply:
    return answer({"metadata": {"continue": token} if token else {}, "items": list(items)})


class Member:
    """A member with anchors, and the requests to delete them."""

    def __init__(self, name: str, server: FakeApiServer, client: ClusterClient) -> None:
        self.server = server
        self.cluster = WatchedCluster(
            name, client, CapacityLedger(), on_capacity=lambda: None, on_pods=lambda _appwrapper: None
        )

    def has(self, *anchors: Json) -> None:
        """Have the member list these anchors from now on."""
        self.server.on("GET", CONFIGMAPS, page(anchors))
        for each in anchors:
            self.server.on("DELETE", path(each), answer({}))

    @property
    def deleted(self) -> list[str]:
        """The names of the anchors that were to be deleted, in order."""
        return [each.path.rpartition("/")[2] for each in self.server.requests("DELETE")]


def path(each: Json) -> str:
    metadata = each["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/configmaps/{metadata['name']}"


@asynccontextmanager
async def member(name: str) -> AsyncIterator[Member]:
    async with FakeApiServer() as server, client_of(server) as client:
        yield Member(name, server, client)


@pytest.fixture
async def east() -> AsyncIterator[Member]:
    """A member without anchors."""
    async with member("east") as east:
        yield east


DELETED = frozenset(f"uid-of-deleted-{number}" for number in range(10))
"""Uids of deleted AppWrappers: in the database, but not in the cache."""


def among(known: frozenset[str]) -> Callable[[Collection[str]], Awaitable[set[str]]]:
    async def deleted_among(uids: Collection[str]) -> set[str]:
        return set(uids) & known

    return deleted_among


@pytest.fixture
def collector(world: World) -> OrphanCollector:
    """The collector of a hub whose lists are complete."""
    for reflector in world.hub.reflectors:
        reflector.answered.set()
    return OrphanCollector(world.context, world.cache, among(DELETED))


def in_east(record: Record, **fields: Any) -> Record:  # noqa: ANN401
    return replace(record, attempt=replace(attempt_of(record), cluster="east"), **fields)


def later_attempt(record: Record) -> Record:
    """The same record, dispatched a second time, to another cluster."""
    return queue_changes.dispatch(removal.removed(record, at(8)).after, "west", at(9)).after


@pytest.mark.parametrize(
    "record",
    [
        *[pytest.param(in_east(make_record(phase)), id=phase) for phase in sorted(HOLDING)],
        pytest.param(in_east(make_record(Phase.COMPLETED)), id="completed-and-kept"),
        pytest.param(in_east(make_record(Phase.FAILED), kept_until=at(60)), id="failed-and-kept"),
        pytest.param(make_record(Phase.RUNNING), id="runs-where-the-member-had-another-name"),
    ],
)
async def test_anchor_of_a_live_or_kept_attempt_is_never_removed(
    world: World, collector: OrphanCollector, east: Member, record: Record
) -> None:
    world.cache.put(record)
    east.has(anchor())
    await collector.collect(east.cluster)
    assert east.deleted == []


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(in_east(make_record(Phase.COMPLETED), kept_until=None), id="completed"),
        pytest.param(in_east(make_record(Phase.FAILED)), id="failed"),
        pytest.param(removal.removed(in_east(make_record(Phase.REQUEUEING)), at(8)).after, id="queued-again"),
        pytest.param(
            removal.abandon(in_east(make_record(Phase.RUNNING)), "it is lost", at(8)).after,
            id="given-up",
        ),
        pytest.param(later_attempt(in_east(make_record(Phase.REQUEUEING))), id="dispatched-elsewhere"),
        pytest.param(
            in_east(later_attempt(in_east(make_record(Phase.REQUEUEING)))), id="dispatched-here-once-more"
        ),
    ],
)
async def test_anchors_of_ended_attempts_are_removed_whatever_their_number(
    world: World, collector: OrphanCollector, east: Member, record: Record
) -> None:
    uids = [UID, *SIX]
    for uid in uids:
        world.cache.put(replace(record, uid=uid))
    east.has(*map(anchor, uids))
    await collector.collect(east.cluster)
    assert east.deleted == [anchor_name(uid, 1) for uid in uids]


async def test_anchor_is_removed_only_if_it_has_the_listed_uid(
    collector: OrphanCollector, east: Member
) -> None:
    east.has(anchor(uid="of-the-anchor"))
    await collector.collect(east.cluster)
    (asked,) = east.server.requests("DELETE")
    assert (asked.body["preconditions"], asked.body["propagationPolicy"]) == (
        {"uid": "of-the-anchor"},
        "Background",
    )


@pytest.mark.parametrize("reply", [refusal(409, "Conflict"), refusal(404, "NotFound")])
async def test_changed_anchor_stays_and_the_next_is_removed(
    collector: OrphanCollector, east: Member, reply: Reply
) -> None:
    first, second = anchor("uid-1"), anchor("uid-2")
    east.has(first, second)
    east.server.on("DELETE", path(first), reply)
    await collector.collect(east.cluster)
    assert east.deleted == [anchor_name("uid-1", 1), anchor_name("uid-2", 1)]


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(anchor(hub="another-hub"), id="another-hubs"),
        pytest.param(anchor(annotations={}), id="nobodys"),
        pytest.param(anchor(deletionTimestamp="2026-11-20T09:00:00Z"), id="going"),
        pytest.param({"metadata": {**anchor()["metadata"], "name": "settings"}}, id="wrapped"),
        pytest.param(
            {"metadata": {**anchor("uid-of-b")["metadata"], "labels": {UID_LABEL: UID}}}, id="mislabelled"
        ),
    ],
)
async def test_foreign_or_terminating_anchor_is_not_touched(
    collector: OrphanCollector, east: Member, found: Json
) -> None:
    east.has(found)
    await collector.collect(east.cluster)
    assert east.deleted == []


def known(world: World, count: int) -> list[str]:
    """Records of that many gangs that run in east."""
    uids = [f"uid-of-known-{number}" for number in range(count)]
    for uid in uids:
        world.cache.put(in_east(make_record(Phase.RUNNING, uid=uid)))
    return uids


@pytest.mark.parametrize(
    ("unknown", "others", "removed"),
    [
        pytest.param(5, 0, 5, id="five-may-always-go"),
        pytest.param(6, 0, 0, id="six-of-six"),
        pytest.param(6, 24, 6, id="a-fifth"),
        pytest.param(6, 23, 0, id="more-than-a-fifth"),
    ],
)
async def test_unknown_anchors_are_removed_only_if_they_are_a_small_share(
    world: World, collector: OrphanCollector, east: Member, unknown: int, others: int, removed: int
) -> None:
    uids = [f"uid-{number}" for number in range(unknown)]
    east.has(*map(anchor, [*known(world, others), *uids]))
    with capture_logs() as logs:
        await collector.collect(east.cluster)
    assert east.deleted == [anchor_name(uid, 1) for uid in uids[:removed]]
    said = [entry for entry in logs if entry["event"] == "too_many_unknown"]
    assert [(entry["cluster"], entry["unknown"], entry["all"]) for entry in said] == (
        [] if removed else [("east", unknown, unknown + others)]
    )


async def test_anchors_of_deleted_appwrappers_are_removed_whatever_their_number(
    collector: OrphanCollector, east: Member
) -> None:
    east.has(*map(anchor, [*sorted(DELETED), *SIX]))
    await collector.collect(east.cluster)
    assert east.deleted == [anchor_name(uid, 1) for uid in sorted(DELETED)]


async def test_too_many_unknown_anchors_do_not_keep_ended_ones(
    world: World, collector: OrphanCollector, east: Member
) -> None:
    world.cache.put(in_east(make_record(Phase.FAILED)))
    east.has(*map(anchor, [*SIX, UID]))
    await collector.collect(east.cluster)
    assert east.deleted == [anchor_name(UID, 1)]


async def test_attempts_later_than_the_recorded_one_are_unknown(
    world: World, collector: OrphanCollector, east: Member
) -> None:
    for uid in SIX:
        world.cache.put(in_east(make_record(Phase.RUNNING, uid=uid)))
    east.has(*(anchor(uid, attempt=2) for uid in SIX))
    await collector.collect(east.cluster)
    assert east.deleted == []
    east.has(*(anchor(uid, attempt=2) for uid in FIVE))
    await collector.collect(east.cluster)
    assert east.deleted == [anchor_name(uid, 2) for uid in FIVE]


async def test_anchor_of_an_appwrapper_before_its_intake_stays(
    world: World, collector: OrphanCollector, east: Member
) -> None:
    world.show(make_appwrapper())
    east.has(anchor())
    await collector.collect(east.cluster)
    assert east.deleted == []


async def test_no_anchor_is_unknown_while_the_lists_of_the_hub_are_incomplete(
    world: World, collector: OrphanCollector, east: Member
) -> None:
    legacy = world.hub.reflectors[1]
    legacy.answered.clear()
    east.has(anchor())
    await collector.collect(east.cluster)
    assert east.deleted == []
    legacy.answered.set()
    await collector.collect(east.cluster)
    assert east.deleted == [anchor_name(UID, 1)]


async def test_attempt_that_becomes_known_during_a_collection_stays(
    world: World, collector: OrphanCollector, east: Member
) -> None:
    first, second = anchor("uid-1"), anchor("uid-2")
    east.has(first, second)

    async def comes_meanwhile(request: web.Request) -> web.StreamResponse:
        world.cache.put(in_east(make_record(Phase.DISPATCHING, uid="uid-2")))
        return await answer({})(request)

    east.server.on("DELETE", path(first), comes_meanwhile)
    await collector.collect(east.cluster)
    assert east.deleted == [anchor_name("uid-1", 1)]


@pytest.mark.parametrize(
    ("record", "removes"),
    [
        pytest.param(in_east(make_record(Phase.RUNNING)), False, id="runs"),
        pytest.param(in_east(make_record(Phase.COMPLETED)), False, id="completed-and-kept"),
        pytest.param(in_east(make_record(Phase.DELETING)), True, id="is-being-deleted"),
        pytest.param(in_east(make_record(Phase.FAILED)), True, id="failed"),
        pytest.param(later_attempt(in_east(make_record(Phase.REQUEUEING))), True, id="dispatched-elsewhere"),
        pytest.param(None, True, id="deleted-or-unknown"),
    ],
)
async def test_objects_of_an_ended_attempt_are_removed(
    world: World, collector: OrphanCollector, record: Record | None, removes: bool
) -> None:
    if record is not None:
        world.cache.put(record)
    assert collector.removes(UID, 1) is removes


async def test_objects_of_an_appwrapper_before_its_intake_are_not_removed(
    world: World, collector: OrphanCollector
) -> None:
    world.show(make_appwrapper())
    assert not collector.removes(UID, 1)
    world.show(make_appwrapper(deletionTimestamp="2026-11-20T09:00:00Z"))
    assert collector.removes(UID, 1)


async def test_gang_that_finds_a_name_taken_starts_at_most_one_collection_a_second(
    world: World, collector: OrphanCollector, east: Member
) -> None:
    world.clusters["east"] = east.cluster
    async with running(collector.run()):
        await asyncio.sleep(2)  # virtual
        east.has(anchor())
        for _ in range(30):
            assert collector.removes(UID, 1)
            await asyncio.sleep(0.1)  # virtual
        assert east.deleted
        assert len(east.server.requests("GET", CONFIGMAPS)) <= 5


# --- after a restore ---------------------------------------------------------------------------------------

RESTORED = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@pytest.fixture
def careful(world: World, collector: OrphanCollector) -> OrphanCollector:
    """The collector of a hub whose database was restored at noon."""
    return OrphanCollector(world.context, world.cache, among(DELETED), restored_at=RESTORED)


@pytest.mark.parametrize(
    ("made", "removed"),
    [
        pytest.param("2026-11-20T11:59:59Z", False, id="before"),
        pytest.param("2026-11-20T12:05:00Z", False, id="before-by-a-clock-that-is-fast"),
        pytest.param("2026-11-20T12:05:01Z", True, id="after"),
    ],
)
async def test_unknown_anchor_from_before_a_restore_stays(
    careful: OrphanCollector, east: Member, made: str, removed: bool
) -> None:
    east.has(anchor("uid-of-missed", creationTimestamp=made))
    await careful.collect(east.cluster)
    assert east.deleted == ([anchor_name("uid-of-missed", 1)] if removed else [])


async def test_ended_attempt_in_a_restored_database_is_removed(
    world: World, careful: OrphanCollector, east: Member
) -> None:
    world.cache.put(in_east(make_record(Phase.FAILED)))
    gone = sorted(DELETED)[0]
    east.has(anchor(UID), anchor(gone), anchor("uid-of-missed"))
    await careful.collect(east.cluster)
    assert east.deleted == [anchor_name(UID, 1), anchor_name(gone, 1)]


async def test_missed_anchors_are_logged_whenever_they_change(careful: OrphanCollector, east: Member) -> None:
    with capture_logs() as logs:
        for missed in ([], ["uid-1"], ["uid-1"], ["uid-1", "uid-2"], []):
            east.has(*map(anchor, missed))
            await careful.collect(east.cluster)
    said = [entry for entry in logs if entry["event"] == "anchors_missed_by_restore"]
    one, other = f"default/{anchor_name('uid-1', 1)}", f"default/{anchor_name('uid-2', 1)}"
    assert [(each["cluster"], each["number"], each["anchors"]) for each in said] == [
        ("east", 1, [one]),
        ("east", 2, [one, other]),
    ]


# --- lists that fail ---------------------------------------------------------------------------------------

FAILURES = [
    pytest.param(refusal(500, "InternalError"), id="fails"),
    pytest.param(refusal(410, "Expired"), id="expired"),
    pytest.param(refusal(403, "Forbidden"), id="forbidden"),
    pytest.param(hang_up, id="hangs-up"),
    pytest.param(answer({}), id="nonsense"),
    pytest.param(page([{"metadata": {"name": anchor_name(UID, 1)}}]), id="no-labels"),
]


@pytest.mark.parametrize("reply", FAILURES)
async def test_incomplete_list_removes_nothing(
    world: World, collector: OrphanCollector, east: Member, reply: Reply
) -> None:
    world.clusters["east"] = east.cluster
    east.has(anchor())
    east.server.on("GET", CONFIGMAPS, page([anchor()], token="more"), reply)
    async with running(collector.run()):
        await until(lambda: len(east.server.requests("GET")) > 1)
        await asyncio.sleep(30)  # virtual
        assert east.deleted == []


@pytest.mark.parametrize("reply", FAILURES)
async def test_failing_member_blocks_no_other_collection_and_is_retried(
    world: World, collector: OrphanCollector, east: Member, reply: Reply
) -> None:
    async with member("west") as west:
        world.clusters.update(east=east.cluster, west=west.cluster)
        east.server.on("GET", CONFIGMAPS, reply)
        west.has(anchor())
        async with running(collector.run()):
            await until(lambda: west.deleted)
            east.has(anchor("uid-of-b"))
            await until(lambda: east.deleted)


async def test_closed_connection_does_not_end_the_collector(
    world: World, collector: OrphanCollector, east: Member
) -> None:
    async with member("west") as west:
        world.clusters.update(west=west.cluster, east=east.cluster)
        east.has(anchor())
    async with running(collector.run()):
        await until(lambda: len(east.deleted) == 2)


async def test_members_are_collected_each_minute_and_at_once_after_a_connection_but_never_the_hub(
    world: World, collector: OrphanCollector, east: Member
) -> None:
    async with running(collector.run()):
        await asyncio.sleep(1)  # virtual
        world.clusters["east"] = east.cluster
        east.has(anchor())
        await asyncio.sleep(58)  # virtual
        assert east.deleted == []
        await asyncio.sleep(2)  # virtual
        assert len(east.deleted) == 1
        collector.wake()
        await asyncio.sleep(1)  # virtual
        assert len(east.deleted) == 2
    assert world.server.requests("GET", CONFIGMAPS) == []
