"""Surplus pods that a gang gives up are deleted, and its growth is noted once they are gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatcher.controller.members.potential_trust import PoolsFailed
from dispatcher.core.lifecycle import run_changes
from dispatcher.core.model.growth import PodRef, Shrinking
from dispatcher.core.model.nodes import Node
from dispatcher.core.model.pods import Gate, Pod, PodPhase, Unscheduled
from dispatcher.core.model.potential import PotentialPool
from dispatcher.core.model.preemption import Reason
from dispatcher.core.model.record import Attempt
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity_ledger import FitMode
from dispatcher.kube.client import ClusterClient
from tests.builders import make_appwrapper, make_template
from tests.fakes import FakeApiServer, answer, refusal
from tests.unit.controller.world import World, world_of

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
