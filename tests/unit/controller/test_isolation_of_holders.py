"""An exception about a gang that holds capacity stops no other gang, and frees nothing of what that gang holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher import log
from dispatcher.controller.scheduling.scheduler import Scheduler
from dispatcher.core.model.clusters.nodes import Node, Taint, Toleration
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.gangs.pods import Gate, Pod, PodPhase
from dispatcher.core.model.records.pending_reasons import INTERNAL_ERROR
from dispatcher.core.model.records.record import Growth, Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import Resources, sum_of
from dispatcher.core.queues.queue import Preemption, Queue, Quota, Reclaim
from dispatcher.core.scheduling.capacity.capacity_ledger import FitMode
from dispatcher.core.scheduling.cycle.isolation import BARRED_FOR
from dispatcher.kube.client import ClusterClient
from tests.builders import at, attempt_of, make_blocked, make_gang, make_record
from tests.fakes import FakeApiServer
from tests.unit.controller import injection
from tests.unit.controller.injection import InjectedError, injected
from tests.unit.controller.test_scheduler import dispatch_of
from tests.unit.controller.test_scheduler_queues import scheduler_of
from tests.unit.controller.world import World, world_of

QUEUES = (
    Queue("org"),
    Queue("default", "org", {"cpu": Quota(6000)}, preemption=Preemption(reclaim=Reclaim.ANY)),
    Queue("other", "org", {"cpu": Quota(2000)}),
    Queue("calm", None, {"cpu": Quota(400)}),
)
WORKER = Resources({"cpu": 1003})
DEMAND = {"grown": 2001, "alone": 3001, "leaving": 3001}


def tenant_of(case: str) -> Record:
    """A gang of the queue `other` that borrows: one that has grown, one that never does, or one that is requeued."""
    sets = (PodSet(1, Resources({"cpu": DEMAND[case]}), path="head"), PodSet(0, WORKER, path="workers"))
    gang = Gang(sum_of(each.total for each in sets), 1, sets)
    alone = ClusterRequirements(namespace="tenant")
    phase = Phase.REQUEUEING if case == "leaving" else Phase.RUNNING
    record = make_record(
        phase,
        name="tenant",
        gang=gang,
        queue="other",
        requirements=alone,
        enqueue_seq=1,
    )
    growth = (Growth(at(2), WORKER, pods=(("0.workers", 1),)),) if case == "grown" else ()
    return replace(record, namespace="tenant", attempt=replace(attempt_of(record), growth=growth))


def pods_of(case: str, tenant: Record) -> list[Pod]:
    """Its head, and if it has grown, one worker on a node and one that waits for a grant."""
    is_gated = case == "grown"
    requests = tenant.gang.demand
    head = Pod("head", requests, "n1", PodPhase.RUNNING, owner=tenant.uid, can_be_gated=is_gated)
    if not is_gated:
        return [head]
    gates = [Gate("default", f"worker-{number}", f"2026-01-01T00:00:0{number}Z") for number in (1, 2)]
    worker = Pod("worker-1", WORKER, "n1", PodPhase.RUNNING, owner=tenant.uid, can_be_gated=True)
    return [
        head,
        replace(worker, template="0.workers", admitted_as=gates[0]),
        replace(worker, uid="worker-2", node="", phase=PodPhase.PENDING, template="0.workers", gate=gates[1]),
    ]


def prepare(world: World, case: str, tenant: Record, *, is_starved: bool, has_queues: bool) -> None:
    """The tenant's gang runs on one of two nodes, which another gang needs; the canary fits on a third one."""
    world.ledger.__init__(FitMode.NODE, "hub")  # type: ignore[misc]  # the world's parts know this ledger
    for name in ("n1", "n2"):
        world.ledger.set_node(Node(name, Resources({"cpu": 4000, "pods": 20})))
    calm = (Taint("calm", "", "NoSchedule"),)
    world.ledger.set_node(Node("n3", Resources({"cpu": 8000, "pods": 20}), taints=calm))
    world.cache.put(tenant)
    for pod in pods_of(case, tenant):
        world.ledger.set_pod(pod)
    for number in (1, 2):  # honest gangs that run as well
        world.cache.put(
            make_record(Phase.RUNNING, name=f"honest-{number}", gang=make_gang(cpu=7), queue="other")
        )
    large = make_blocked(
        make_record(name="large", gang=make_gang(cpu=2950, pods=2), enqueue_seq=2, priority=5)
    )
    world.cache.put(replace(large, blocked_since=at(-7200)) if is_starved else large)
    queue = "calm" if has_queues else "default"
    canary = make_gang(1, Toleration("calm", "Exists"), cpu=250)
    world.cache.put(make_record(name="canary", gang=canary, enqueue_seq=3, queue=queue))


def scheduler(world: World, *, has_queues: bool) -> Scheduler:
    return scheduler_of(world, QUEUES) if has_queues else dispatch_of(world)


async def called_for(
    server: FakeApiServer, client: ClusterClient, case: str, *, has_queues: bool, is_starved: bool
) -> list[str]:
    """The functions that a cycle calls for the tenant's gang."""
    gang = injection.Gang(tenant_of(case), is_in_amounts=False)
    async with world_of(server, client) as world:
        prepare(world, case, gang.record, is_starved=is_starved, has_queues=has_queues)
        with injected(gang), capture_logs():
            await scheduler(world, has_queues=has_queues)._cycle_safely()  # noqa: SLF001  # the loop's body
    return sorted(gang.calls)


async def stopped_by(
    server: FakeApiServer,
    client: ClusterClient,
    case: str,
    names: Sequence[str],
    *,
    has_queues: bool,
    is_starved: bool,
) -> list[str]:
    """The functions of these at which an exception stops the canary, is not counted, or frees capacity."""
    found = []
    for name in names:
        gang = injection.Gang(tenant_of(case), raising=name, is_in_amounts=False)
        before = sum(log.internal_errors().values())
        async with world_of(server, client) as world:
            prepare(world, case, gang.record, is_starved=is_starved, has_queues=has_queues)
            one = scheduler(world, has_queues=has_queues)
            with injected(gang), capture_logs():
                await one._cycle_safely()  # noqa: SLF001  # the loop's body
            if world.record("uid-of-canary").phase is Phase.QUEUED:
                found.append(f"{name}: the canary waits")
            large = world.record("uid-of-large")
            if large.phase is not Phase.QUEUED:
                found.append(f"{name}: the capacity is given away")
            if large.pending and large.pending.reason == INTERNAL_ERROR:
                found.append(f"{name}: another gang is refused for it")
            if gang.raised and sum(log.internal_errors().values()) == before:
                found.append(f"{name}: not counted")
    return found


@pytest.mark.parametrize("is_starved", [False, True], ids=["others-wait", "another-is-starved"])
@pytest.mark.parametrize("has_queues", [False, True], ids=["one-queue", "queues"])
@pytest.mark.parametrize("case", DEMAND)
async def test_exception_about_a_gang_that_holds_capacity_stops_no_other_and_frees_nothing(
    server: FakeApiServer, client: ClusterClient, case: str, has_queues: bool, is_starved: bool
) -> None:
    names = await called_for(server, client, case, has_queues=has_queues, is_starved=is_starved)
    assert len(names) > 3
    assert await stopped_by(server, client, case, names, has_queues=has_queues, is_starved=is_starved) == []


PROTECTED = "dispatcher.core.scheduling.sharing.gangs.ActiveGang.is_protected"


async def test_gang_that_holds_capacity_and_was_set_aside_is_considered_again_after_a_while(
    world: World,
) -> None:
    tenant = tenant_of("alone")
    prepare(world, "alone", tenant, is_starved=False, has_queues=True)
    one = scheduler(world, has_queues=True)
    with capture_logs() as logs, injected(injection.Gang(tenant, raising=PROTECTED, is_in_amounts=False)):
        for _ in range(3):
            await one._cycle_safely()  # noqa: SLF001  # the loop's body
    assert [each["appwrapper"] for each in logs if each["event"] == "internal_error"] == [tenant.uid]
    assert world.record(tenant.uid).phase is Phase.RUNNING
    await asyncio.sleep(BARRED_FOR.total_seconds())
    await one._cycle_safely()  # noqa: SLF001  # the loop's body
    assert world.record(tenant.uid).phase is Phase.REQUEUEING  # preempted


@pytest.mark.parametrize("has_queues", [False, True], ids=["one-queue", "queues"])
async def test_plan_that_no_gang_alone_ends_loses_no_gang(
    world: World, has_queues: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next cycle knows all gangs that wait."""
    prepare(world, "alone", tenant_of("alone"), is_starved=False, has_queues=has_queues)
    one = scheduler(world, has_queues=has_queues)
    plan = one._batches_of  # noqa: SLF001  # the far end of the cycle

    async def raises(*arguments: Any) -> Any:  # noqa: ANN401
        monkeypatch.setattr(one, "_batches_of", plan)
        await plan(*arguments)
        raise InjectedError

    monkeypatch.setattr(one, "_batches_of", raises)
    with capture_logs():
        await one._cycle_safely()  # noqa: SLF001  # the loop's body
        await one._cycle_safely()  # noqa: SLF001  # the loop's body
    assert world.record("uid-of-canary").phase is Phase.DISPATCHING


@pytest.mark.parametrize("raising", ["Record.grown", "Record.placed_gang", "Record.granted"])
async def test_leader_begins_with_a_record_whose_charge_raises_and_charges_the_worst_case(
    world: World, raising: str
) -> None:
    tenant = tenant_of("grown")
    gang = injection.Gang(
        tenant, raising=f"dispatcher.core.model.records.record.{raising}", is_in_amounts=False
    )
    with capture_logs(), injected(gang, leaves_out=()):
        prepare(world, "alone", tenant, is_starved=False, has_queues=False)
    assert world.ledger.free()["cpu"] == 16_000 - 2001 - 1003 - 14
