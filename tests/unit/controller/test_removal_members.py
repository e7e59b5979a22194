"""What is in a member goes when it has to, the anchor last, and only then the AppWrapper that it was held for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api.names import FINALIZER
from dispatcher.controller.members.cluster import Cluster
from dispatcher.core.kinds.manifest import anchor_name
from dispatcher.core.lifecycle import queue_changes, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.record import Phase, Record
from tests.builders import make_appwrapper, make_metadata
from tests.fakes import FakeApiServer, answer, client_of
from tests.unit import workers
from tests.unit.controller.wire import ALL_PODS, APPWRAPPERS, MISSING, Watched, job, made, pods
from tests.unit.controller.world import SERVES, World

Json = dict[str, Any]

UID = "uid-of-aw"
AW = f"{APPWRAPPERS}/aw"
TRAIN = job("train")
ANCHOR = f"/api/v1/namespaces/default/configmaps/{anchor_name(UID, 1)}"
LABELS = {"dispatcher.codeflare.dev/appwrapper-uid": UID}
GOING = make_appwrapper("aw", TRAIN, finalizers=[FINALIZER], deletionTimestamp="2026-11-20T09:00:00Z")


class Place:
    """A cluster in which one attempt has its Job, and its anchor if it is a member."""

    def __init__(self, world: World, server: FakeApiServer, cluster: Cluster) -> None:
        self.world = world
        self.server = server
        self.cluster = cluster
        self.jobs = Watched(server, "/apis/batch/v1", "jobs")
        self.jobs.has(made(TRAIN))
        world.server.on("PATCH", AW, answer({}))

    async def holds(self) -> Record:
        """A gang that was created here, and runs."""
        record = await self.world.admit(make_appwrapper("aw", TRAIN))
        self.world.show(make_appwrapper("aw", TRAIN, finalizers=[FINALIZER]))
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
