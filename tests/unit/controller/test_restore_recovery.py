"""Restore recovery takes over missed attempts; it withholds AppWrappers that may be where no search was answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher.api.names import FINALIZER
from dispatcher.controller.scheduling import slices
from dispatcher.controller.scheduling.slices import SLICE_SECONDS
from dispatcher.controller.upkeep.restore_recovery import RestoreRecovery
from dispatcher.core.kinds.manifest import build
from dispatcher.core.lifecycle import run_changes
from dispatcher.core.model.clock import timestamp
from dispatcher.core.model.records.record import Attempt, Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.errors import Fenced
from dispatcher.kube.client import ClusterClient
from tests.builders import (
    at,
    attempt_of,
    make_appwrapper,
    make_owner,
    make_record,
    make_template,
    make_wrapped,
)
from tests.fakes import FakeApiServer, Reply, answer, client_of, hang_up, refusal
from tests.unit import workers
from tests.unit.controller.test_orphan_gc import CONFIGMAPS, anchor, page
from tests.unit.controller.wire import ALL_PODS, MISSING, PODS, job
from tests.unit.controller.world import World
from tests.unit.virtual_time import until
from tests.unit.workers import running

Json = dict[str, Any]

UID = "uid-of-aw"
WITH_FINALIZER: Json = {"finalizers": [FINALIZER]}
COMPLETED: Json = {
    "state": "Completed",
    "conditions": [{"type": "Completed", "status": "True"}],
    "keptUntil": "2026-11-27T09:00:00Z",
}
FAILED: Json = {
    "state": "Failed",
    "conditions": [{"type": "Failed", "status": "True", "reason": "FailedComponent", "message": "it failed"}],
}


class Restored:
    """A hub, one member and the restore recovery."""

    def __init__(self, world: World, east: FakeApiServer, client: ClusterClient) -> None:
        self.world = world
        self.server = east
        self.east = world.make_cluster("east", client)
        self.are_all_connected = True
        self.failure: Exception | None = None
        self.are_members_certain = True
        self.settled = 0
        self.woken: list[str] = []
        self.monotonic: Callable[[], float] = time.monotonic
        self.recovery = RestoreRecovery(
            world.context,
            world.cache,
            world.committer,
            self,
            self.settle,
            self.woken.append,
            lambda: self.monotonic(),
        )
        self.east_has()
        self.hub_has()

    def is_complete(self) -> bool:
        return self.are_all_connected

    def is_certain(self) -> bool:
        return self.are_members_certain

    async def settle(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.settled += 1

    def east_has(self, *anchors: Json) -> None:
        self.server.on("GET", CONFIGMAPS, page(anchors))

    def hub_has(self, *attempts: int) -> None:
        """Have the hub list the pod of the AppWrapper, as made by these attempts."""
        self.world.server.on("GET", ALL_PODS, page(map(pod_of, attempts)))

    def add_finalizer(self, status: Json | None = None) -> None:
        """Add our finalizer: a member may have objects of the AppWrapper."""
        self.world.show(make_appwrapper(status=status or {}, **WITH_FINALIZER))

    async def begin(self) -> Record:
        self.world.clusters["east"] = self.east
        await self.recovery.begin()
        return self.world.record(UID)

    def causes(self) -> list[str]:
        return [cause for batch in self.world.store.batches for _, cause in batch]

    def queued(self) -> list[str]:
        return [record.uid for record in self.world.cache.queued()]


def pod_of(attempt: int) -> Json:
    built = build(make_wrapped(), make_owner(attempt=attempt))
    return {**built, "metadata": {**built["metadata"], "uid": "uid-of-pod"}}


@pytest.fixture
async def restored(world: World) -> AsyncIterator[Restored]:
    async with FakeApiServer() as east, client_of(east) as client:
        restored = Restored(world, east, client)
        for reflector in world.hub.reflectors:
            reflector.synced.set()
        yield restored


def where(record: Record) -> tuple[Phase, int, str]:
    return record.phase, attempt_of(record).number, attempt_of(record).cluster


# --- what is taken over ----------------------------------------------------------------------------------------

TAKEN_OVER = ["found-running"]
ENDED_BEFORE = ["found-ended", "found-running"]


@pytest.mark.parametrize(
    ("phase", "causes"),
    [
        pytest.param(Phase.QUEUED, TAKEN_OVER, id="queued"),
        pytest.param(Phase.SUSPENDED, TAKEN_OVER, id="suspended"),
        pytest.param(Phase.DISPATCHING, ENDED_BEFORE, id="dispatching"),
        pytest.param(Phase.DISPATCHED, ENDED_BEFORE, id="dispatched"),
        pytest.param(Phase.RUNNING, ENDED_BEFORE, id="running"),
        pytest.param(Phase.RUNNING_HOLD_COMPLETION, ENDED_BEFORE, id="partly-done"),
        pytest.param(Phase.REQUEUEING, ENDED_BEFORE, id="requeueing"),
        pytest.param(Phase.SUSPENDING, ENDED_BEFORE, id="suspending"),
    ],
)
async def test_later_attempt_is_taken_over_in_the_member_that_has_its_anchor(
    world: World, restored: Restored, phase: Phase, causes: list[str]
) -> None:
    await world.brought_to(phase, make_appwrapper())
    restored.add_finalizer()
    before = len(restored.causes())
    restored.east_has(anchor(attempt=3))

    assert where(await restored.begin()) == (Phase.DISPATCHING, 3, "east")
    assert restored.causes()[before:] == causes
    assert (UID in restored.woken, restored.settled) == (True, 1)
    assert world.cache.count_holders("east") == 1
    assert world.cache.count_holders("hub") == 0


@pytest.mark.parametrize("phase", [Phase.FAILING, Phase.FAILED, Phase.COMPLETED])
async def test_ending_or_ended_appwrapper_is_not_changed(
    world: World, restored: Restored, phase: Phase
) -> None:
    before = await world.brought_to(phase, make_appwrapper())
    restored.add_finalizer()
    restored.east_has(anchor(attempt=3))
    assert await restored.begin() == before


async def test_later_attempt_is_taken_over_on_the_hub(world: World, restored: Restored) -> None:
    await world.admit(make_appwrapper())
    restored.hub_has(2)
    assert where(await restored.begin()) == (Phase.DISPATCHING, 2, "hub")


async def test_latest_of_all_attempts_is_taken_over(world: World, restored: Restored) -> None:
    await world.admit(make_appwrapper())
    restored.add_finalizer()
    restored.hub_has(2, 9)
    restored.east_has(anchor(attempt=10), anchor(attempt=4))
    assert where(await restored.begin()) == (Phase.DISPATCHING, 10, "east")


@pytest.mark.parametrize(
    ("reply", "is_over"),
    [
        pytest.param(MISSING, True, id="gone"),
        pytest.param(refusal(500, "InternalError"), False, id="nobody-can-say"),
        pytest.param(answer(pod_of(1)), False, id="there-without-our-marks"),
    ],
)
async def test_running_gang_without_objects_is_requeued_and_not_failed(
    world: World, restored: Restored, reply: Reply, is_over: bool
) -> None:
    running = await world.running(make_appwrapper())
    world.server.on("GET", f"{PODS}/pod", reply)
    after = await restored.begin()
    if not is_over:
        assert after == running
        return
    assert (after.phase, attempt_of(after).outcome, restored.queued()) == (Phase.QUEUED, "missed", [UID])


@pytest.mark.parametrize("phase", [Phase.DISPATCHING, Phase.REQUEUEING, Phase.SUSPENDING])
async def test_dispatching_gang_without_objects_goes_on(
    world: World, restored: Restored, phase: Phase
) -> None:
    before = await world.brought_to(phase, make_appwrapper())
    world.server.on("GET", f"{PODS}/pod", MISSING)
    assert await restored.begin() == before


async def test_finished_object_may_be_gone_and_is_not_repeated(world: World, restored: Restored) -> None:
    running = await world.running(make_appwrapper())
    before = await world.commit(run_changes.note_done(running, (0,), world.now()))
    world.server.on("GET", f"{PODS}/pod", MISSING)
    assert await restored.begin() == before


@pytest.mark.parametrize("number", [1, 0])
async def test_recorded_attempt_goes_on(world: World, restored: Restored, number: int) -> None:
    before = await world.running(make_appwrapper())
    restored.hub_has(number)
    assert await restored.begin() == before


async def test_labelled_object_of_another_namespace_does_not_count(world: World, restored: Restored) -> None:
    """Any user may write our labels and the number of an attempt there."""
    before = await world.admit(make_appwrapper())
    restored.add_finalizer()
    forged = pod_of(9)
    forged["metadata"]["namespace"] = "evil"
    world.server.on("GET", ALL_PODS, page([forged]))
    restored.east_has(anchor(attempt=9, namespace="evil"))
    assert await restored.begin() == before


async def test_object_without_a_seal_proves_no_attempt_of_a_young_appwrapper(
    world: World, restored: Restored
) -> None:
    before = await world.admit(make_appwrapper(creationTimestamp=timestamp(at(3600))))
    world.cache.put(replace(before, created_at=at(3600)))
    restored.east_has(anchor(attempt=3))
    restored.hub_has(2)
    assert (await restored.begin()).phase is Phase.QUEUED

    sealed = build(make_wrapped(), make_owner(attempt=4, seals=world.seals))
    world.server.on("GET", ALL_PODS, page([sealed]))
    assert where(await restored.begin()) == (Phase.DISPATCHING, 4, "hub")


async def test_anchors_of_another_hub_do_not_count(world: World, restored: Restored) -> None:
    before = await world.admit(make_appwrapper())
    restored.add_finalizer()
    restored.east_has(anchor(attempt=3, hub="another-hub"))
    assert await restored.begin() == before


async def test_attempt_that_was_taken_over_is_never_withdrawn_as_unsent(
    world: World, restored: Restored
) -> None:
    await world.admit(make_appwrapper())
    restored.add_finalizer()
    restored.east_has(anchor(attempt=1))
    assert not world.cache.is_unsent(await restored.begin())


async def test_deleted_appwrapper_is_not_searched_for(world: World, restored: Restored) -> None:
    before = await world.admit(make_appwrapper())
    world.hide(UID)
    restored.east_has(anchor(attempt=3))
    assert await restored.begin() == before


@pytest.mark.parametrize(
    ("status", "phase", "reason"),
    [
        pytest.param(COMPLETED, Phase.COMPLETED, "", id="completed"),
        pytest.param(FAILED, Phase.FAILED, "FailedComponent", id="failed"),
    ],
)
@pytest.mark.parametrize("before", [Phase.QUEUED, Phase.SUSPENDED, Phase.RUNNING, Phase.REQUEUEING])
async def test_appwrapper_that_has_ended_by_its_status_has_ended(
    world: World, restored: Restored, before: Phase, status: Json, phase: Phase, reason: str
) -> None:
    await world.brought_to(before, make_appwrapper())
    world.show(make_appwrapper(status=status))
    ended = await restored.begin()
    assert (ended.phase, ended.reason, ended.holds_capacity) == (phase, reason, False)
    assert restored.queued() == []


async def test_ended_attempt_in_a_member_is_kept_as_its_status_says(world: World, restored: Restored) -> None:
    await world.admit(make_appwrapper())
    restored.add_finalizer(COMPLETED)
    restored.east_has(anchor(attempt=2))
    ended = await restored.begin()
    assert ended.attempt == Attempt(
        2, "east", ended.phase_since, ended_at=ended.phase_since, outcome="completed"
    )
    assert ended.kept_until is not None
    assert ended.kept_until.isoformat() == "2026-11-27T09:00:00+00:00"


# --- who does not answer ---------------------------------------------------------------------------------------

SILENT = [
    pytest.param(refusal(500, "InternalError"), id="fails"),
    pytest.param(refusal(403, "Forbidden"), id="forbidden"),
    pytest.param(hang_up, id="hangs-up"),
    pytest.param(answer({}), id="nonsense"),
]


def are_left_alone(restored: Restored, names: Iterable[str]) -> dict[str, bool]:
    return {name: restored.recovery.is_in_doubt(f"uid-of-{name}") for name in names}


@pytest.mark.parametrize("reply", SILENT)
async def test_only_appwrappers_that_may_be_in_an_unreachable_member_are_withheld(
    world: World, restored: Restored, reply: Reply
) -> None:
    await world.admit(make_appwrapper())
    restored.add_finalizer()
    await world.admit(make_appwrapper("other"))
    restored.server.on("GET", CONFIGMAPS, reply)
    await restored.begin()
    assert are_left_alone(restored, ["aw", "other"]) == {"aw": True, "other": False}
    assert (restored.queued(), restored.settled) == (["uid-of-other"], 0)

    restored.woken.clear()
    async with running(restored.recovery.run()) as task:
        await asyncio.sleep(60)  # virtual
        assert (restored.queued(), restored.settled) == (["uid-of-other"], 0)
        restored.east_has()
        await task
    assert are_left_alone(restored, ["aw", "other"]) == {"aw": False, "other": False}
    assert (sorted(restored.queued()), restored.settled) == (["uid-of-aw", "uid-of-other"], 1)
    assert restored.woken == [UID]


async def test_appwrapper_is_withheld_until_the_unreachable_member_is_connected_and_searched(
    world: World, restored: Restored
) -> None:
    await world.running(make_appwrapper())
    restored.add_finalizer()
    restored.are_all_connected = False
    await restored.recovery.begin()
    assert restored.recovery.is_in_doubt(UID)
    async with running(restored.recovery.run()) as task:
        await asyncio.sleep(1)  # virtual
        world.clusters["east"], restored.are_all_connected = restored.east, True
        restored.east_has(anchor(attempt=2))
        restored.recovery.wake()
        await asyncio.sleep(1)  # virtual: sooner than it would have asked by itself
        assert task.done()
    assert where(world.record(UID)) == (Phase.DISPATCHING, 2, "east")


async def test_only_appwrappers_with_a_finalizer_wait_until_the_members_are_certain(
    world: World, restored: Restored
) -> None:
    """The backup may be older than the first member."""
    await world.admit(make_appwrapper())
    restored.add_finalizer()
    await world.admit(make_appwrapper("other"))
    restored.are_members_certain = False
    await restored.recovery.begin()
    assert are_left_alone(restored, ["aw", "other"]) == {"aw": True, "other": False}
    assert (restored.queued(), restored.settled) == (["uid-of-other"], 0)

    async with running(restored.recovery.run()) as task:
        await asyncio.sleep(60)  # virtual
        assert (restored.queued(), restored.settled) == (["uid-of-other"], 0)
        world.clusters["east"], restored.are_members_certain = restored.east, True
        restored.east_has(anchor(attempt=2))
        await task
    assert where(world.record(UID)) == (Phase.DISPATCHING, 2, "east")
    assert restored.settled == 1


async def test_recovery_without_finalizers_does_not_wait_for_certain_members(
    world: World, restored: Restored
) -> None:
    await world.admit(make_appwrapper())
    restored.are_members_certain = False
    await restored.begin()
    assert (restored.queued(), restored.settled) == ([UID], 1)


async def test_appwrapper_found_in_its_recorded_place_is_reconciled_but_not_dispatched(
    world: World, restored: Restored
) -> None:
    await world.running(make_appwrapper())
    restored.add_finalizer()
    restored.hub_has(1)
    restored.are_all_connected = False
    record = await restored.begin()
    assert not restored.recovery.is_in_doubt(UID)
    world.cache.put(replace(record, phase=Phase.QUEUED, attempt=None))
    assert restored.queued() == []
    restored.are_all_connected = True
    async with running(restored.recovery.run()) as task:
        await task
    assert (restored.queued(), restored.woken) == ([UID], [UID])


async def test_later_attempt_in_a_member_connected_late_still_counts(
    world: World, restored: Restored
) -> None:
    await world.admit(make_appwrapper())
    restored.add_finalizer()
    restored.hub_has(1)
    restored.server.on("GET", CONFIGMAPS, hang_up)
    assert where(await restored.begin()) == (Phase.DISPATCHING, 1, "hub")
    restored.east_has(anchor(attempt=2))
    async with running(restored.recovery.run()) as task:
        await task
    assert where(world.record(UID)) == (Phase.DISPATCHING, 2, "east")


async def test_unanswered_kind_of_the_hub_delays_only_appwrappers_that_wrap_it(
    world: World, restored: Restored
) -> None:
    await world.admit(make_appwrapper("aw", job()))
    await world.admit(make_appwrapper("other", make_template(name="other")))
    world.server.on("GET", "/apis/batch/v1/jobs", refusal(500, "InternalError"))
    with capture_logs() as logs:
        await restored.begin()
    assert are_left_alone(restored, ["aw", "other"]) == {"aw": True, "other": False}
    assert (restored.queued(), restored.settled) == (["uid-of-other"], 0)
    assert [each["kind"] for each in logs if each["event"] == "search_unanswered"] == ["Job"]


async def test_hub_without_the_right_to_list_has_no_objects(world: World, restored: Restored) -> None:
    await world.admit(make_appwrapper())
    world.server.on("GET", ALL_PODS, refusal(403, "Forbidden"))
    await restored.begin()
    assert (restored.queued(), restored.settled) == ([UID], 1)


async def test_search_is_not_repeated_after_it_is_settled(world: World, restored: Restored) -> None:
    await world.admit(make_appwrapper())
    await restored.begin()
    asked = len(restored.server.requests())
    async with running(restored.recovery.run()) as task:
        await until(task.done)
    assert (restored.settled, len(restored.server.requests())) == (1, asked)


def fails(*_: object) -> Any:  # noqa: ANN401  # in place of whatever is asked
    raise RuntimeError("nobody thought of this")


@pytest.mark.parametrize(
    ("at_fault", "searches"),
    [pytest.param("member", 1, id="member"), pytest.param("hub", 2, id="hub-pods-and-requests")],
)
async def test_internal_error_of_a_search_is_counted_and_the_search_repeated(
    world: World,
    restored: Restored,
    counted: Callable[[str], int],
    monkeypatch: pytest.MonkeyPatch,
    at_fault: str,
    searches: int,
) -> None:
    await world.admit(make_appwrapper())
    restored.add_finalizer()
    with monkeypatch.context() as patch:
        if at_fault == "member":
            patch.setattr(restored.east.anchors, "all", fails)
        else:
            patch.setattr(world.cluster.object_client, "marks", fails)
        await restored.begin()
        assert (restored.queued(), counted("restore_recovery")) == ([], searches)
    async with running(restored.recovery.run()) as task:
        await task
    assert (restored.queued(), restored.settled, counted("restore_recovery")) == ([UID], 1, searches)


@pytest.mark.parametrize("at_fault", ["member", "hub"])
async def test_missing_answer_is_not_counted_as_an_internal_error(
    world: World, restored: Restored, counted: Callable[[str], int], at_fault: str
) -> None:
    await world.admit(make_appwrapper())
    restored.server.on("GET", CONFIGMAPS, hang_up if at_fault == "member" else page([]))
    world.server.on("GET", ALL_PODS, hang_up if at_fault == "hub" else page([]))
    await restored.begin()
    assert (restored.settled, counted("restore_recovery")) == (0, 0)


async def test_object_with_an_unreadable_state_counts_as_present(
    world: World, restored: Restored, counted: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.running(make_appwrapper())
    monkeypatch.setattr(world.cluster.object_client, "is_gone", fails)
    record = await restored.begin()
    assert (record.phase, counted("restore_recovery")) == (Phase.RUNNING, 1)


async def test_failed_search_is_repeated(
    world: World, restored: Restored, counted: Callable[[str], int]
) -> None:
    await world.admit(make_appwrapper())
    restored.add_finalizer()
    restored.are_all_connected = False
    await restored.begin()
    restored.are_all_connected, restored.failure = True, RuntimeError("nobody thought of this")
    async with running(restored.recovery.run()) as task:
        await until(lambda: counted("restore_recovery") == 2)
        assert (task.done(), restored.settled) == (False, 0)
        restored.failure = None
        await task
    assert (restored.queued(), restored.settled) == ([UID], 1)


async def test_search_that_the_store_ends_is_not_repeated(world: World, restored: Restored) -> None:
    await world.admit(make_appwrapper())
    restored.add_finalizer()
    restored.are_all_connected = False
    await restored.begin()
    restored.are_all_connected, restored.failure = True, Fenced("another leads")
    with pytest.raises(Fenced):
        await restored.recovery.run()


# --- others have their turn -----------------------------------------------------------------------------------

PODS_ONLY = ClusterRequirements(kinds=frozenset({("v1", "Pod")}))
MANY = [f"many-{number}" for number in range(500)]


@asynccontextmanager
async def beside(turn: Callable[[], object]) -> AsyncIterator[None]:
    """Another task, which calls a function at each of its turns."""

    async def other() -> None:
        while True:
            turn()
            await asyncio.sleep(0)

    async with workers.running(other()):
        yield


@pytest.fixture
def no_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collect no garbage after slices: tests with thousands of slices would take long."""
    monkeypatch.setattr(slices, "collect_after", lambda _slices: None)


def has_many(world: World, restored: Restored) -> None:
    """Queue many AppWrappers that may be in an unreachable member; each step of a search takes a slice."""
    for reflector in world.hub.reflectors:
        reflector.synced.clear()
    world.cache.load(make_record(name=name, requirements=PODS_ONLY) for name in MANY)
    restored.are_all_connected = False
    clock = count()
    restored.monotonic = lambda: next(clock) * 2 * SLICE_SECONDS


@pytest.mark.usefixtures("no_collections")
async def test_other_tasks_run_while_many_appwrappers_are_withheld_and_released(
    world: World, restored: Restored
) -> None:
    has_many(world, restored)
    queued: list[int] = []
    async with beside(lambda: queued.append(len(restored.queued()))):
        await restored.recovery.begin()
        assert are_left_alone(restored, MANY) == dict.fromkeys(MANY, True)
        assert (len(queued) > 4 * len(MANY), set(queued)) == (True, {*range(len(MANY) + 1)})
        queued.clear()
        restored.are_all_connected = True
        restored.recovery.wake()
        async with running(restored.recovery.run()) as task:
            await task
    assert (len(queued) > 3 * len(MANY), set(queued)) == (True, {*range(len(MANY) + 1)})
    assert are_left_alone(restored, MANY) == dict.fromkeys(MANY, False)
    assert sorted(restored.woken) == sorted(f"uid-of-{name}" for name in MANY)


@pytest.mark.usefixtures("no_collections")
async def test_appwrapper_that_ends_during_the_search_is_decided_on_its_current_record(
    world: World, restored: Restored
) -> None:
    has_many(world, restored)
    first, last = MANY[0], MANY[-1]

    def end_last() -> None:
        world.cache.put(make_record(Phase.DELETED, name=last))

    async with beside(end_last):
        await restored.recovery.begin()
    assert are_left_alone(restored, [first, last]) == {first: True, last: False}


async def test_more_attempts_than_one_batch_are_taken_over(world: World, restored: Restored) -> None:
    names = MANY[:250]
    for name in names:
        record = make_record(name=name, requirements=PODS_ONLY)
        world.store.records[record.uid] = record
        world.cache.put(record)
    for reflector in world.hub.reflectors:
        reflector.synced.clear()
    world.clusters["east"] = restored.east
    restored.east_has(*(anchor(f"uid-of-{name}", attempt=2) for name in names))
    await restored.recovery.begin()
    assert {where(world.record(f"uid-of-{name}")) for name in names} == {(Phase.DISPATCHING, 2, "east")}
    assert [len(batch) for batch in world.store.batches] == [200, 50]
