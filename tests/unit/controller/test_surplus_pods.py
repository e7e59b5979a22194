"""Surplus pods that a gang gives up are deleted, and its growth is noted once they are gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from datetime import timedelta
from itertools import count

import pytest
from msgspec.structs import replace

from dispatcher.controller.members.potential_trust import PoolsFailed
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.slices import SLICE_SECONDS, Slices
from dispatcher.core.lifecycle import run_changes
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.clusters.potential import PotentialPool
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.gangs.growth import PodRef, Shrinking
from dispatcher.core.model.gangs.pods import Gate, Pod, PodPhase, Unscheduled
from dispatcher.core.model.incremental import Steps, run
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Attempt, Growth, Phase
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.preemption.surplus import Parts, by_gang, split
from dispatcher.core.scheduling.sharing.gangs import active_gang
from dispatcher.kube.client import ClusterClient
from tests.builders import at, make_appwrapper, make_record, make_template
from tests.fakes import FakeApiServer, answer, refusal
from tests.unit.controller.world import World, world_of
from tests.unit.workers import running

POD = "/api/v1/namespaces/default/pods/worker-1"
UID = "uid-of-aw"
CPU = Resources({"cpu": 1000})
FORBIDDEN = refusal(403, "Forbidden")


def worker(number: int) -> Pod:
    at = Gate("default", f"worker-{number}", f"2026-01-01T00:00:0{number}Z")
    return Pod(
        f"uid-{number}",
        CPU,
        "n1",
        PodPhase.RUNNING,
        owner=UID,
        can_be_gated=True,
        template="0.w",
        base_pods=1,
        admitted_as=at,
    )


async def giving_up(world: World) -> None:
    """A running gang of one pod that has grown by one, and is to give that one up."""
    await world.running(make_appwrapper("aw", make_template()))
    for _, synced in world.cluster.first_lists:
        synced.set()
    for number in (0, 1):
        world.ledger.set_pod(worker(number))
    await world.reconcile(UID)
    assert world.record(UID).grown == CPU
    (surplus,) = world.ledger.surplus(UID)
    given = Shrinking((PodRef(surplus.namespace, surplus.name, surplus.uid),), NOTHING, "uid-of-another")
    why = "1 surplus pod preempted for default/another"
    await world.committer.commit(
        run_changes.give_up(world.record(UID), given, Reason.QUOTA_RECLAIMED, why, world.now())
    )


def attempt(world: World) -> Attempt:
    found = world.record(UID).attempt
    assert found is not None
    return found


async def test_pod_is_deleted_once_and_its_growth_is_over_once_it_is_gone(world: World) -> None:
    await giving_up(world)
    world.server.on("DELETE", POD, answer({"metadata": {}}))

    await world.reconcile(UID)
    world.ledger.set_pod(replace(worker(1), is_ending=True))
    await world.reconcile(UID, times=2)
    assert len(world.server.requests("DELETE", POD)) == 1
    assert (attempt(world).shrinking is None, world.record(UID).grown) == (False, CPU)

    world.ledger.remove_pod("uid-1")
    await world.reconcile(UID)
    assert (attempt(world).shrinking is None, world.record(UID).grown) == (True, NOTHING)
    assert len(world.server.requests("DELETE", POD)) == 1


async def test_leader_that_finds_the_pods_gone_only_notes_it(world: World) -> None:
    await giving_up(world)
    world.ledger.set_pod(replace(worker(1), phase=PodPhase.SUCCEEDED))
    await world.reconcile(UID)
    assert not world.server.requests("DELETE", POD)
    assert (attempt(world).shrinking, world.record(UID).grown) == (None, NOTHING)


async def test_refused_deletion_of_a_surplus_pod_makes_one_event_and_is_tried_again(world: World) -> None:
    await giving_up(world)
    world.server.on("DELETE", POD, FORBIDDEN, FORBIDDEN, FORBIDDEN, FORBIDDEN, answer({"metadata": {}}))

    await world.reconcile(UID)
    await world.forget_wakes()
    assert await world.is_woken_within(1)
    await world.reconcile(UID, times=2)

    (event,) = world.offered
    assert (event.reason, event.uid, event.warning) == ("PodsNotDeleted", UID, True)
    assert len(world.server.requests("DELETE", POD)) == 5


async def test_growth_that_no_pod_uses_is_noted_at_once_while_a_gang_waits_for_it(world: World) -> None:
    await world.running(make_appwrapper("aw", make_template()))
    for _, synced in world.cluster.first_lists:
        synced.set()
    for number in (0, 1):
        world.ledger.set_pod(worker(number))
    await world.reconcile(UID)
    world.ledger.remove_pod("uid-1")
    await world.reconcile(UID)
    assert world.record(UID).grown == CPU
    world.cache.awaited_growth = frozenset({UID})
    await world.reconcile(UID)
    assert world.record(UID).grown == NOTHING


class Trust:
    """What the fleet is told about pools."""

    def __init__(self, world: World) -> None:
        self.failed: list[PoolsFailed] = []
        self.came: list[tuple[str, list[str]]] = []
        world.members = replace(
            world.members,
            bind_within_of=lambda _cluster: timedelta(0),
            note_pools_failed=self._note_failed,
            note_pools_came=self._note_came,
        )
        world.reconciler = world.compose().reconciler

    async def _note_failed(self, failed: PoolsFailed) -> None:
        self.failed.append(failed)

    async def _note_came(self, cluster: str, pools: Collection[str]) -> None:
        self.came.append((cluster, list(pools)))


async def granted_on_trust(world: World) -> Trust:
    """A running gang of one pod on a full node, with one more pod that a node of a pool is to come for."""
    trust = Trust(world)
    await world.running(make_appwrapper("aw", make_template()))
    for _, synced in world.cluster.first_lists:
        synced.set()
    shape = Node("", CPU, labels={"pool": "l4"})
    world.ledger.set_pools((PotentialPool("l4", shape, 1),))
    world.ledger.set_pod(worker(0))
    world.ledger.set_pod(Pod("foreign", CPU * 7, "n1", PodPhase.RUNNING))
    nodes = ("potential/l4/0",)
    record, now = world.record(UID), world.now()
    grant = run_changes.grant(record, CPU, None, "1 pod may start", now, trusted=nodes, count=1)
    await world.committer.commit(grant)
    world.ledger.set_pod(replace(worker(1), node="", phase=PodPhase.PENDING))
    return trust


@pytest.fixture
async def node_world(server: FakeApiServer, client: ClusterClient) -> AsyncIterator[World]:
    """The controller, with gangs that are placed on nodes."""
    async with world_of(server, client, FitMode.NODE) as world:
        yield world


async def test_granted_pod_for_which_no_node_came_is_deleted_and_its_pool_not_trusted(
    node_world: World,
) -> None:
    world, trust = node_world, await granted_on_trust(node_world)
    world.server.on("DELETE", POD, answer({"metadata": {}}))
    await world.reconcile(UID)
    # No scheduler has looked at the pod.
    assert trust.failed == [PoolsFailed("hub", frozenset({"l4"}), "default", confirmed=False)]
    assert attempt(world).shrinking == Shrinking((PodRef("default", "worker-1", "uid-1"),), NOTHING, "")
    assert len(world.server.requests("DELETE", POD)) == 1
    world.ledger.remove_pod("uid-1")
    await world.reconcile(UID)
    assert (attempt(world).shrinking, world.record(UID).grown) == (None, NOTHING)
    assert (trust.came, len(trust.failed)) == ([], 1)


async def test_failure_of_a_pool_is_confirmed_by_a_scheduler_that_has_no_node_for_a_pod(
    node_world: World,
) -> None:
    world, trust = node_world, await granted_on_trust(node_world)
    world.server.on("DELETE", POD, answer({"metadata": {}}))
    pending = replace(worker(1), node="", phase=PodPhase.PENDING, unscheduled=Unscheduled("worker-1", "0/1"))
    world.ledger.set_pod(pending)
    await world.reconcile(UID)
    assert trust.failed == [PoolsFailed("hub", frozenset({"l4"}), "default", confirmed=True)]


async def test_granted_pod_with_a_new_node_ends_the_failures_of_its_pool(node_world: World) -> None:
    world, trust = node_world, await granted_on_trust(node_world)
    world.ledger.set_node(Node("new", CPU, labels={"pool": "l4"}))
    world.ledger.set_pod(replace(worker(1), node="new"))
    await world.reconcile(UID)
    assert (trust.came, trust.failed) == ([("hub", ["l4"])], [])
    assert (attempt(world).growth_trust, world.record(UID).grown) == (None, CPU)


# --- Surplus of many gangs: found once for each change, and in steps of one gang ---------------------------


GANGS, WORKERS = 8, 3


def pod(gang: int, number: int) -> Pod:
    return Pod(
        f"{gang}-{number}",
        CPU,
        "n",
        PodPhase.RUNNING,
        owner=f"uid-of-g{gang}",
        can_be_gated=True,
        template="0.w",
        base_pods=1,
        admitted_as=Gate("default", f"{gang}-{number}", f"2026-01-01T00:00:{number:02}Z"),
    )


def grown() -> tuple[CapacityLedger, Cache]:
    ledger = CapacityLedger(FitMode.NODE, "hub")
    ledger.set_node(Node("n", Resources({"cpu": 10**6})))
    cache = Cache({"hub": ledger})
    for gang in range(GANGS):
        record = make_record(Phase.RUNNING, f"g{gang}", gang=Gang(CPU, 1, (PodSet(1, CPU),)))
        assert record.attempt is not None
        assert record.uid == pod(gang, 0).owner
        growth = (Growth(at(1), CPU * WORKERS, pods=(("0.w", WORKERS),)),)
        cache.put(replace(record, attempt=replace(record.attempt, cluster="hub", growth=growth)))
        for number in range(WORKERS + 1):
            ledger.set_pod(pod(gang, number))
    return ledger, cache


def steps_of(steps: Steps[object]) -> int:
    return sum(1 for _ in steps)


def test_surplus_of_a_gang_is_found_again_only_once_its_pods_or_its_record_change() -> None:
    ledger, cache = grown()
    before = cache.surplus()
    assert {len(each.pods) for each in before.values()} == {WORKERS}
    ledger.remove_pod("0-3")
    after = cache.surplus()
    assert [uid for uid in after if after[uid] is not before[uid]] == ["uid-of-g0"]
    record = cache.get("uid-of-g1")
    assert record is not None
    cache.put(replace(record, priority=7))
    assert [uid for uid, each in cache.surplus().items() if each is not after[uid]] == ["uid-of-g1"]
    ledger.set_unwanted("ray", frozenset({("default", "2-1")}))
    assert cache.surplus()["uid-of-g2"].pods[0].name == "2-1"


async def test_other_tasks_run_while_the_surplus_of_many_gangs_is_prepared() -> None:
    _, cache = grown()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    clock = count()
    async with running(other()):
        await cache.prepare(Slices(lambda: next(clock) * SLICE_SECONDS))  # each gang takes a slice
        assert turns >= GANGS


def test_gangs_are_parted_and_split_in_steps_of_one_gang_that_changed() -> None:
    ledger, cache = grown()
    found_gangs = (active_gang(each, is_unreachable=False) for each in cache.records())
    active = [each for each in found_gangs if each is not None]
    assert len(active) == GANGS
    parts = Parts()
    assert steps_of(parts.in_steps(active, cache.surplus())) == GANGS
    ledger.remove_pod("5-2")
    assert steps_of(parts.in_steps(active, cache.surplus())) == 1
    found = run(parts.in_steps(active, cache.surplus()))
    snapshots = {"hub": ClusterSnapshot("hub", ledger.snapshot())}
    assert steps_of(split(by_gang(found), snapshots)) == 2 * GANGS


# -----------------------------------------------------------------------------------------------------------
# Pods with the dispatcher's gate start within what their gang holds; a cluster that forbids it is reported.


GATED_POD = "/api/v1/namespaces/default/pods/worker"


async def with_gated_pod(world: World, cpu: int) -> None:
    """A running gang of one cpu, which has no pod but a gated one."""
    await world.running(make_appwrapper("aw", make_template()))
    for _, synced in world.cluster.first_lists:
        synced.set()
    requests, gate = Resources({"cpu": cpu}), Gate("default", "worker", "2026-01-01T00:00:00Z")
    world.ledger.set_pod(Pod("uid-of-worker", requests, owner=UID, gate=gate, can_be_gated=True))


async def test_pod_within_the_demand_is_admitted(world: World) -> None:
    await with_gated_pod(world, cpu=1000)
    world.server.on("PATCH", GATED_POD, answer({"metadata": {}}))

    await world.reconcile(UID)

    assert len(world.server.requests("PATCH", GATED_POD)) == 1


async def test_pod_that_comes_before_the_watch_shows_an_admission_does_not_take_its_place(
    world: World,
) -> None:
    """KubeRay makes several pods within the second of their creationTimestamp, with names in no order."""
    await with_gated_pod(world, cpu=1000)
    world.server.on("PATCH", GATED_POD, answer({"metadata": {}}))
    await world.reconcile(UID)

    gate = Gate("default", "another", "2026-01-01T00:00:00Z")
    world.ledger.set_pod(
        Pod("uid-of-another", Resources({"cpu": 1000}), owner=UID, gate=gate, can_be_gated=True)
    )
    await world.reconcile(UID, times=2)

    assert len(world.server.requests("PATCH", GATED_POD)) == 1
    assert not world.server.requests("PATCH", GATED_POD.replace("worker", "another"))


async def test_nothing_is_written_for_a_growth_request(world: World) -> None:
    await with_gated_pod(world, cpu=1001)
    await world.reconcile(UID)
    version = world.record(UID).version

    await world.reconcile(UID, times=2)

    assert not world.server.requests("PATCH", GATED_POD)
    assert world.record(UID).version == version


async def test_refused_pod_admission_makes_one_event_and_is_tried_again(world: World) -> None:
    await with_gated_pod(world, cpu=1000)
    world.server.on("PATCH", GATED_POD, FORBIDDEN, FORBIDDEN, FORBIDDEN, FORBIDDEN, answer({"metadata": {}}))

    await world.reconcile(UID)
    await world.forget_wakes()
    assert await world.is_woken_within(1)
    await world.reconcile(UID, times=2)

    (event,) = world.offered
    assert (event.reason, event.uid, event.warning) == ("PodsNotAdmitted", UID, True)
    assert len(world.server.requests("PATCH", GATED_POD)) == 5
