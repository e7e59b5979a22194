"""What an attempt created is removed, and its capacity given back when it is free: not earlier, not later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api.annotations import FORCE_DELETION_GRACE, SUCCESS_TTL
from dispatcher.api.names import FINALIZER, ITEM_LABEL
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.core.kinds.manifest import anchor_name
from dispatcher.core.lifecycle import queue_changes, removal, run_changes
from dispatcher.core.lifecycle.policy import KEPT
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.records.record import Change, Phase, Record
from dispatcher.core.model.resources import NOTHING
from tests.builders import make_appwrapper, make_metadata, make_pod
from tests.fakes import FakeApiServer, answer, client_of
from tests.unit import workers
from tests.unit.controller.wire import (
    ALL_PODS,
    APPWRAPPERS,
    JOBS,
    MISSING,
    PODS,
    Watched,
    job,
    made,
    pods,
    secret,
    true,
)
from tests.unit.controller.world import KEPT_FOR, SERVES, World
from tests.unit.virtual_time import until

Json = dict[str, Any]

UID = "uid-of-aw"
TRAIN, SERVE, TOKEN = job("train"), job("serve"), secret("token")
CONTROLLER: Json = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-of-train"}


def lives(item: int = 0, **metadata: Any) -> Json:  # noqa: ANN401
    """A live pod of that item, as the API server has it."""
    raw = make_pod(of=UID, controller=CONTROLLER, **metadata)
    raw["metadata"]["labels"][ITEM_LABEL] = str(item)
    return raw


async def running(world: World, train: Json | None = None) -> Record:
    """A gang of a Job that may have ended, a Job that runs, and a Secret."""
    world.jobs.has(made(TRAIN, 0, train))
    world.jobs.has(made(SERVE, 1))
    world.secrets.has(made(TOKEN, 2))
    record = await world.running(make_appwrapper("aw", TRAIN, SERVE, TOKEN))
    await world.sees(record)
    return record


async def failing(world: World, reason: str, train: str = "Failed") -> None:
    record = await running(world, true(train))
    await world.commit(run_changes.fail(record, EvictionReason(reason, "it failed"), world.now()))


def loses_all(world: World) -> None:
    world.jobs.loses("train")
    world.jobs.loses("serve")
    world.secrets.loses("token")


# --- what is kept for its logs -----------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["FailedComponent", "MissingComponent", "FoundFailedPods"])
@pytest.mark.parametrize("train", ["Failed", "Complete"])
async def test_ended_objects_are_kept_and_objects_that_may_make_pods_are_removed(
    world: World, reason: str, train: str
) -> None:
    await failing(world, reason, train)
    await world.reconcile(UID)
    assert world.jobs.deletions() == ["serve"]
    assert world.record(UID).phase is Phase.FAILING

    world.jobs.loses("serve")
    await world.reconcile_until_answered(UID)
    record = world.record(UID)
    assert (record.phase, record.kept_until) == (Phase.FAILED, world.now() + KEPT)
    assert world.ledger.free()["cpu"] == 8000
    assert (world.jobs.deletions(), world.secrets.deletions()) == (["serve"], [])


async def test_ended_object_is_removed_if_one_of_its_pods_stays(world: World) -> None:
    await failing(world, "FailedComponent")
    world.jobs.loses("serve")
    world.server.on("GET", ALL_PODS, answer(pods(lives(item=0))))
    await world.reconcile_until_answered(UID)
    assert (world.record(UID).phase, world.jobs.deletions()) == (Phase.FAILING, [])
    await asyncio.sleep(5)  # virtual
    await world.reconcile_until_answered(UID)
    assert (world.record(UID).phase, world.jobs.deletions()) == (Phase.FAILING, ["train"])


async def test_ended_object_stays_while_its_pods_are_being_deleted(world: World) -> None:
    await failing(world, "FailedComponent")
    world.jobs.loses("serve")
    going = lives(item=0, deletionTimestamp="2026-11-20T09:00:00Z")
    world.server.on("GET", ALL_PODS, answer(pods(going)), answer(pods()))
    await asyncio.sleep(60)  # virtual
    await world.reconcile_until_answered(UID)
    assert (world.record(UID).phase, world.jobs.deletions()) == (Phase.FAILING, [])
    await world.reconcile_until_answered(UID)
    assert (world.record(UID).phase, world.jobs.deletions()) == (Phase.FAILED, [])


async def test_ended_object_stays_though_the_watch_still_shows_its_pods(
    world: World,
) -> None:
    await failing(world, "FailedComponent")
    world.jobs.loses("serve")
    watch_shows(world, PodPhase.RUNNING)
    await asyncio.sleep(60)  # virtual
    await world.reconcile_until_answered(UID)
    assert (world.record(UID).phase, world.jobs.deletions()) == (Phase.FAILING, [])


async def test_item_that_its_author_calls_done_is_removed_if_its_kind_goes_on(world: World) -> None:
    record = await running(world)
    record = await world.commit(run_changes.complete_some(record, (0,), world.now()))
    await world.commit(run_changes.fail(record, EvictionReason("FailedComponent", "it failed"), world.now()))
    await world.reconcile(UID)
    assert world.jobs.deletions() == ["serve", "train"]


@pytest.mark.parametrize("reason", ["DispatchDeadlineExceeded", "MinPodsNotRunning", "InsufficientPodsReady"])
async def test_gang_that_did_not_end_by_itself_is_removed_whole(world: World, reason: str) -> None:
    await failing(world, reason, "Complete")
    await world.reconcile(UID)
    assert (world.jobs.deletions(), world.secrets.deletions()) == (["serve", "train"], ["token"])

    loses_all(world)
    await world.reconcile_until_answered(UID)
    assert (world.record(UID).phase, world.record(UID).kept_until) == (Phase.FAILED, None)


async def test_gang_that_could_not_be_created_is_removed_whole(world: World) -> None:
    world.jobs.has(made(TRAIN, 0, true("Failed")))
    world.server.on("GET", f"{JOBS}/serve", MISSING)
    record = await world.dispatched(make_appwrapper("aw", TRAIN, SERVE))
    (ref, _) = await world.context.refs(record)
    await world.commit(run_changes.refuse_creation(record, (ref,), "it is invalid", world.now()))
    await world.reconcile(UID)
    assert world.jobs.deletions() == ["train"]


@pytest.mark.parametrize("phase", [Phase.COMPLETED, Phase.FAILED])
async def test_kept_objects_are_removed_when_their_time_is_up(world: World, phase: Phase) -> None:
    world.jobs.has(made(TRAIN))
    world.secrets.has(made(TOKEN, 1))
    await world.sees(await world.brought_to(phase, make_appwrapper("aw", TRAIN, TOKEN)))
    await world.reconcile(UID)
    await world.forget_wakes()
    assert not await world.is_woken_within(KEPT_FOR.total_seconds() - 1)
    assert (world.jobs.deletions(), world.secrets.deletions()) == ([], [])
    assert await world.is_woken_within(2)

    await world.reconcile(UID)
    assert (world.jobs.deletions(), world.secrets.deletions()) == (["train"], ["token"])
    assert world.record(UID).kept_until is not None
    world.jobs.loses("train")
    world.secrets.loses("token")
    await world.reconcile(UID)
    assert (world.record(UID).phase, world.record(UID).kept_until) == (phase, None)


async def test_author_may_shorten_how_long_a_completed_gang_is_kept(world: World) -> None:
    world.jobs.has(made(TRAIN, 0, true("Complete")))
    record = await world.running(make_appwrapper("aw", TRAIN, annotations={SUCCESS_TTL: "90s"}))
    await world.sees(record)
    await world.reconcile_until_answered(UID)
    assert world.record(UID).kept_until == world.now() + timedelta(seconds=90)


# --- deletion ------------------------------------------------------------------------------------------


HOLDS = [
    Phase.DISPATCHING,
    Phase.DISPATCHED,
    Phase.RUNNING,
    Phase.RUNNING_HOLD_COMPLETION,
    Phase.REQUEUEING,
    Phase.SUSPENDING,
    Phase.FAILING,
]


@pytest.mark.parametrize("phase", HOLDS)
async def test_deleted_gang_is_released_once_it_is_gone_whatever_was_under_way(
    world: World, phase: Phase
) -> None:
    world.jobs.has(made(TRAIN))
    await world.brought_to(phase, make_appwrapper("aw", TRAIN))
    world.hide(UID)
    world.server.on("GET", f"{APPWRAPPERS}/aw", MISSING)
    await world.reconcile(UID, times=2)
    assert world.record(UID).phase is Phase.DELETING
    assert world.ledger.free()["cpu"] == 7000

    world.jobs.loses("train")
    await world.reconcile_until_answered(UID)
    assert world.cache.get(UID) is None
    assert world.ledger.free()["cpu"] == 8000
    assert world.jobs.deletions() == []  # Kubernetes removes it by its owner reference


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.SUSPENDED, Phase.FAILED, Phase.COMPLETED])
async def test_deleted_appwrapper_that_holds_nothing_is_forgotten_at_once(world: World, phase: Phase) -> None:
    await world.brought_to(phase, make_appwrapper("aw", TRAIN))
    world.hide(UID)
    await world.reconcile(UID)
    assert world.cache.get(UID) is None
    assert world.server.requests("DELETE") == []


# --- pods that will not go -------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.REQUEUEING, Phase.SUSPENDING, Phase.FAILING, Phase.DELETING])
@pytest.mark.parametrize(
    ("annotations", "seconds"),
    [
        pytest.param({}, 600, id="ten-minutes-if-nobody-says"),
        pytest.param({FORCE_DELETION_GRACE: "30s"}, 30, id="as-the-author-says"),
    ],
)
async def test_pods_that_will_not_go_are_deleted_without_their_node_after_their_time_only(
    world: World, phase: Phase, annotations: dict[str, str], seconds: int
) -> None:
    before = Phase.RUNNING if phase is Phase.DELETING else phase
    await world.brought_to(before, make_appwrapper("aw", TRAIN, annotations=annotations))
    world.jobs.has(made(TRAIN))
    world.jobs.loses("train")
    if phase is Phase.DELETING:
        deleted_at = "2026-11-20T09:00:00Z"
        world.show(make_appwrapper("aw", TRAIN, annotations=annotations, deletionTimestamp=deleted_at))
        await world.reconcile(UID)
    stuck = lives(deletionTimestamp="2026-11-20T08:58:06Z")
    world.server.on("GET", ALL_PODS, answer(pods(stuck)))
    world.server.on("GET", PODS, answer(pods(stuck)))
    world.server.on("DELETE", f"{PODS}/pod", answer({}))

    await world.reconcile_until_answered(UID)
    assert world.server.requests("DELETE") == []
    await asyncio.sleep(seconds)  # virtual
    await world.reconcile_until_answered(UID)
    (asked,) = world.server.requests("DELETE")
    assert (asked.path, asked.body["gracePeriodSeconds"]) == (f"{PODS}/pod", 0)
    assert world.record(UID).phase is phase


async def test_pods_of_another_maker_that_the_watch_sees_hold_on_though_no_list_has_them(
    world: World,
) -> None:
    await world.brought_to(Phase.SUSPENDING, make_appwrapper("aw", TRAIN))
    world.ledger.set_pod(Pod("p", NOTHING, "n1", PodPhase.RUNNING, owner=UID))
    world.jobs.has(made(TRAIN))
    world.jobs.loses("train")
    await world.reconcile(UID, times=2)
    assert world.record(UID).phase is Phase.SUSPENDING
    world.ledger.remove_pod("p")
    await world.reconcile_until_answered(UID)
    assert world.record(UID).phase is Phase.SUSPENDED


@pytest.mark.parametrize("phase", [Phase.REQUEUEING, Phase.DELETING])
async def test_pod_is_left_the_grace_that_it_was_given_itself(world: World, phase: Phase) -> None:
    await world.brought_to(Phase.RUNNING, make_appwrapper("aw", TRAIN))
    watch_shows(world, PodPhase.RUNNING)
    await world.commit(_ended(world, phase))
    world.jobs.has(made(TRAIN))
    world.jobs.loses("train")
    given = lives(deletionTimestamp="2026-11-20T09:13:06Z")  # a quarter of an hour
    world.server.on("GET", PODS, answer(pods(given)))
    world.server.on("DELETE", f"{PODS}/pod", answer({}))
    async with at_work(world):
        await asyncio.sleep(899)  # virtual
        assert world.server.requests("DELETE") == []
        await asyncio.sleep(31)  # virtual
    assert [asked.path for asked in world.server.requests("DELETE")] == [f"{PODS}/pod"]


async def test_pods_are_forced_when_their_time_is_up_and_not_at_every_look_after_it(world: World) -> None:
    await world.brought_to(
        Phase.SUSPENDING, make_appwrapper("aw", TRAIN, annotations={FORCE_DELETION_GRACE: "45s"})
    )
    watch_shows(world, PodPhase.RUNNING)
    world.jobs.has(made(TRAIN))
    world.jobs.loses("train")
    world.server.on("GET", PODS, answer(pods(lives(deletionTimestamp="2026-11-20T08:58:06Z"))))
    world.server.on("DELETE", f"{PODS}/pod", answer({}))
    async with at_work(world):
        await asyncio.sleep(44)  # virtual
        assert world.server.requests("DELETE") == []
        for _ in range(20):
            await asyncio.sleep(1)  # virtual
            world.wake(UID)
    assert len(world.server.requests("DELETE")) == 1


@pytest.mark.parametrize(
    ("annotations", "forced_after"),
    [
        pytest.param({FORCE_DELETION_GRACE: "15m"}, 900, id="as-the-author-said"),
        pytest.param({}, 600, id="nobody-said"),
    ],
)
async def test_annotation_holds_though_the_appwrapper_itself_is_gone_at_once(
    world: World, annotations: dict[str, str], forced_after: int
) -> None:
    """It has no finalizer of ours: what `kubectl delete` leaves to look at is pods."""
    raw = make_appwrapper("aw", TRAIN, annotations=annotations)
    appwrappers = Watched(world.server, "/apis/workload.codeflare.dev/v1beta1", "appwrappers")
    appwrappers.has(raw)
    world.jobs.has(made(TRAIN))
    await world.running(raw)
    watch_shows(world, PodPhase.RUNNING)
    world.server.on("GET", PODS, answer(pods(lives(deletionTimestamp="2026-11-20T08:58:06Z"))))
    world.server.on("DELETE", f"{PODS}/pod", answer({}))
    async with at_work(world, world.hub.run()):
        await world.hub.reflectors[0].synced.wait()
        appwrappers.loses("aw")
        await until(lambda: world.record(UID).phase is Phase.DELETING)
        await asyncio.sleep(forced_after - 2)  # virtual
        assert world.server.requests("DELETE") == []
        await asyncio.sleep(3)  # virtual
    assert [asked.path for asked in world.server.requests("DELETE")] == [f"{PODS}/pod"]


# --- what waiting costs ----------------------------------------------------------------------------------


async def test_api_server_is_asked_ever_less_while_pods_take_their_time(world: World) -> None:
    await world.brought_to(Phase.RUNNING, make_appwrapper("aw", TRAIN))
    watch_shows(world, PodPhase.RUNNING)
    await world.commit(_ended(world, Phase.REQUEUEING))
    world.jobs.has(made(TRAIN))
    world.jobs.loses("train")
    async with at_work(world):
        await asyncio.sleep(300)  # virtual
        assert len(world.server.requests("GET", f"{JOBS}/train")) < 25
        assert world.server.requests("GET", ALL_PODS) == []
        world.ledger.remove_pod("p")
        world.wake(UID)
        await until(lambda: world.record(UID).phase is Phase.QUEUED)
    assert len(world.server.requests("GET", ALL_PODS)) == 1


async def test_objects_to_keep_are_read_even_while_the_watch_shows_live_pods(world: World) -> None:
    """A RayJob that has failed may leave pods behind: it must go, too, else they never do."""
    await failing(world, "FailedComponent")
    world.jobs.loses("serve")
    watch_shows(world, PodPhase.RUNNING)
    world.server.on("GET", ALL_PODS, answer(pods(lives(item=0))))
    await asyncio.sleep(5)  # virtual
    await world.reconcile_until_answered(UID)
    assert world.jobs.deletions() == ["train"]


def watch_shows(world: World, phase: PodPhase) -> None:
    """What the watch tells of the one pod of the gang."""
    world.ledger.set_pod(Pod("p", NOTHING, "n1", phase, owner=UID))


def _ended(world: World, phase: Phase) -> Change:
    record, now = world.record(UID), world.now()
    if phase is Phase.DELETING:
        world.hide(UID)
        return removal.delete(record, now)
    return run_changes.evict(record, EvictionReason("MinPodsNotRunning", "too few"), now, 60, now)


@asynccontextmanager
async def at_work(world: World, *more: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """The reconciler works meanwhile, and so do these."""
    async with workers.running(world.reconciler.run(), *more):
        yield


# -----------------------------------------------------------------------------------------------------------
# What is in a member goes when it has to, the anchor last, and only then the AppWrapper that it was held
# for.


AW = f"{APPWRAPPERS}/aw"
MEMBERS_TRAIN = job("train")
ANCHOR = f"/api/v1/namespaces/default/configmaps/{anchor_name(UID, 1)}"
LABELS = {"dispatcher.codeflare.dev/appwrapper-uid": UID}
GOING = make_appwrapper("aw", MEMBERS_TRAIN, finalizers=[FINALIZER], deletionTimestamp="2026-11-20T09:00:00Z")


class Place:
    """A cluster in which one attempt has its Job, and its anchor if it is a member."""

    def __init__(self, world: World, server: FakeApiServer, cluster: WatchedCluster) -> None:
        self.world = world
        self.server = server
        self.cluster = cluster
        self.jobs = Watched(server, "/apis/batch/v1", "jobs")
        self.jobs.has(made(MEMBERS_TRAIN))
        world.server.on("PATCH", AW, answer({}))

    async def holds(self) -> Record:
        """A gang that was created here, and runs."""
        record = await self.world.admit(make_appwrapper("aw", MEMBERS_TRAIN))
        self.world.show(make_appwrapper("aw", MEMBERS_TRAIN, finalizers=[FINALIZER]))
        record = await self.world.commit(queue_changes.dispatch(record, self.cluster.name, self.world.now()))
        refs = [replace(ref, uid=f"uid-of-{ref.name}") for ref in await self.world.context.refs(record)]
        record = await self.world.commit(run_changes.created(record, tuple(refs), self.world.now()))
        return await self.world.commit(run_changes.mark_running(record, self.world.now()))

    async def looks(self, times: int = 1) -> Phase | None:
        """The phase after so many looks; None once nothing is known of it any more."""
        for _ in range(times):
            await self.world.reconcile(UID)
            await asyncio.sleep(0.5)  # virtual: who was asked for pods has answered
        record = self.world.cache.get(UID)
        return record.phase if record else None

    @property
    def deleted(self) -> list[str]:
        """The names of what was asked to be deleted, each once, in order."""
        return list(dict.fromkeys(each.path.rpartition("/")[2] for each in self.server.requests("DELETE")))

    @property
    def finalizer_removed(self) -> bool:
        """True once the AppWrapper has our finalizer no longer."""
        return any(
            each.body == {"metadata": {"uid": UID, "resourceVersion": "1", "finalizers": []}}
            for each in self.world.server.requests("PATCH", AW)
        )


@pytest.fixture
async def east(world: World) -> AsyncIterator[Place]:
    """A member."""
    async with FakeApiServer() as server, client_of(server) as client:
        for path, kinds in SERVES.items():
            resources = [{"name": name, "kind": kind, "namespaced": True} for name, kind in kinds.items()]
            server.on("GET", path, answer({"resources": resources}))
        server.on("GET", ALL_PODS, answer(pods()))
        server.on("GET", ANCHOR, answer({"metadata": make_metadata(anchor_name(UID, 1), labels=LABELS)}))
        server.on("DELETE", ANCHOR, answer({}))
        cluster = world.make_cluster("east", client)
        world.clusters["east"] = cluster
        async with workers.running(cluster.live_pods.run()):
            yield Place(world, server, cluster)


@pytest.fixture
def hub(world: World) -> Place:
    """The hub, where gangs may go, too."""
    return Place(world, world.server, world.cluster)


async def test_deleted_one_goes_once_its_objects_its_pods_and_its_anchor_are_gone(east: Place) -> None:
    await east.holds()
    east.world.show(GOING)
    assert await east.looks(3) is Phase.DELETING
    assert (east.deleted, east.finalizer_removed) == (["train"], False)
    east.jobs.loses("train")
    assert await east.looks(3) is Phase.DELETING
    assert (east.deleted, east.finalizer_removed) == (["train", anchor_name(UID, 1)], False)
    east.server.on("GET", ANCHOR, MISSING)
    assert await east.looks(3) is None
    assert east.finalizer_removed


async def test_deleted_gang_on_the_hub_goes_despite_an_earlier_finalizer_for_a_member(
    hub: Place,
) -> None:
    await hub.holds()
    hub.world.show(GOING)
    assert await hub.looks(3) is Phase.DELETING
    assert (hub.deleted, hub.finalizer_removed) == (["train"], False)
    hub.jobs.loses("train")
    assert await hub.looks(3) is None
    assert hub.finalizer_removed


async def test_deleted_appwrapper_without_a_finalizer_takes_its_objects_on_the_hub_with_it(
    hub: Place,
) -> None:
    await hub.holds()
    hub.world.hide(UID)
    hub.world.server.on("GET", AW, MISSING)
    assert await hub.looks(3) is Phase.DELETING
    assert hub.deleted == []
    hub.jobs.loses("train")
    assert await hub.looks(3) is None


async def test_deleted_one_stays_while_its_member_is_away(east: Place) -> None:
    await east.holds()
    east.world.show(GOING)
    del east.world.clusters["east"]
    assert await east.looks(5) is Phase.DELETING
    assert (east.server.requests(), east.finalizer_removed) == ([], False)


async def test_evicted_gang_is_queued_once_its_anchor_is_gone(east: Place) -> None:
    record, now = await east.holds(), east.world.now()
    verdict = EvictionReason("MinPodsNotRunning", "too few")
    await east.world.commit(run_changes.evict(record, verdict, now, 60, now))
    east.jobs.loses("train")
    assert await east.looks(3) is Phase.REQUEUEING
    assert east.deleted == [anchor_name(UID, 1)]
    east.server.on("GET", ANCHOR, MISSING)
    assert await east.looks(3) is Phase.QUEUED


async def test_kept_objects_are_removed_when_the_ended_appwrapper_is_deleted(east: Place) -> None:
    record, now = await east.holds(), east.world.now()
    await east.world.commit(run_changes.complete(record, (0,), now + timedelta(hours=1), now))
    assert await east.looks(2) is Phase.COMPLETED
    assert east.server.requests("DELETE") == []
    east.world.show(GOING)
    assert await east.looks(2) is Phase.COMPLETED
    east.jobs.loses("train")
    assert await east.looks(2) is Phase.COMPLETED
    east.server.on("GET", ANCHOR, MISSING)
    assert await east.looks(3) is None
    assert (east.deleted, east.finalizer_removed) == (["train", anchor_name(UID, 1)], True)


async def test_anchor_that_bears_anothers_mark_is_left_alone(east: Place) -> None:
    await east.holds()
    others = {"metadata": make_metadata(anchor_name(UID, 1), labels={next(iter(LABELS)): "uid-of-another"})}
    east.server.on("GET", ANCHOR, answer(others))
    east.world.show(GOING)
    east.jobs.loses("train")
    assert await east.looks(4) is None
    assert east.deleted == []
