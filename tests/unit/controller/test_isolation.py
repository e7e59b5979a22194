"""An exception about one gang, at any function of the core that a cycle calls for it, stops no other gang."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher import log
from dispatcher.controller.scheduling.scheduler import Scheduler
from dispatcher.core.model import incremental
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.records.record import Pending, Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import NOTHING, Resources, sum_of
from dispatcher.core.queues.queue import Elastic, Preemption, Queue, Quota, Reclaim
from dispatcher.core.scheduling.capacity.capacity_ledger import FitMode
from dispatcher.core.scheduling.cycle.isolation import BARRED_FOR
from dispatcher.core.status.outlook import positions
from dispatcher.errors import StoreUnavailable
from dispatcher.kube.client import ClusterClient
from tests.builders import WAITS, at, make_blocked, make_gang, make_record
from tests.fakes import FakeApiServer
from tests.unit.controller import injection
from tests.unit.controller.injection import injected, rooms_of
from tests.unit.controller.test_scheduler import dispatch_of
from tests.unit.controller.test_scheduler_growth import TakenMeanwhile, ask, ray
from tests.unit.controller.test_scheduler_queues import is_woken, put, scheduler_of
from tests.unit.controller.world import World, world_of

QUEUES = (
    Queue("org"),
    Queue("default", "org", {"cpu": Quota(6000)}, preemption=Preemption(reclaim=Reclaim.ANY)),
    Queue("other", "org", {"cpu": Quota(2000)}),
)


def two_sets(cpu: int) -> Gang:
    """Two pods of different size, so that a placement is searched."""
    sets = (PodSet(1, Resources({"cpu": cpu}), path="a"), PodSet(1, Resources({"cpu": cpu + 1}), path="b"))
    return Gang(sum_of(each.total for each in sets), 2, sets)


GANGS = {"fits": two_sets(501), "waits": two_sets(2501), "never": two_sets(90_001)}


CASES = (*GANGS, "starved")
ROOMS = {"lifecycle", "model", "queues", "scheduling"}
"""The rooms of the core that a cycle calls: it plans in some of them, and makes the changes in `lifecycle`."""


def tenant_of(case: str) -> Record:
    """A gang that fits, that waits for others, that never fits, or that has waited past the starvation bound."""
    alone = ClusterRequirements(namespace="tenant")  # which it shares with nobody
    gang = GANGS.get(case, GANGS["waits"])
    record = make_record(name="tenant", gang=gang, enqueue_seq=1, priority=5, requirements=alone)
    return replace(make_blocked(record), blocked_since=at(-7200)) if case == "starved" else record


def prepare(world: World, tenant: Record, *, running: bool = True) -> None:
    """Two nodes, half of them used by a gang of another queue; the tenant's gang is first, then the canary."""
    world.ledger.__init__(FitMode.NODE, "hub")  # type: ignore[misc]  # the world's parts know this ledger
    for name in ("n1", "n2"):
        world.ledger.set_node(Node(name, Resources({"cpu": 4000, "pods": 20})))
    if running:
        other = make_record(Phase.DISPATCHED, name="running", gang=make_gang(cpu=3000), queue="other")
        world.cache.put(other)
    world.cache.put(tenant)
    world.cache.put(make_record(name="canary", gang=make_gang(cpu=250), enqueue_seq=2))


def scheduler(world: World, *, has_queues: bool) -> Scheduler:
    """One that checks what it placed before the commit, because others take a little room while it plans."""
    clusters = TakenMeanwhile(world, 1, look=2)
    if has_queues:
        return scheduler_of(world, QUEUES, clusters=clusters)
    return dispatch_of(world, clusters=clusters)


async def called_for(
    server: FakeApiServer, client: ClusterClient, case: str, *, has_queues: bool
) -> list[str]:
    """The functions that a cycle calls for the tenant's gang."""
    gang = injection.Gang(tenant_of(case))
    async with world_of(server, client) as world:
        prepare(world, gang.record)
        with injected(gang), capture_logs():
            await scheduler(world, has_queues=has_queues)._cycle_safely()  # noqa: SLF001  # the loop's body
    return sorted(gang.calls)


async def stopped_by(
    server: FakeApiServer, client: ClusterClient, case: str, names: Sequence[str], *, has_queues: bool
) -> list[str]:
    """The functions of these at which an exception keeps the canary from its dispatch, or is not counted."""
    found = []
    for name in names:
        gang = injection.Gang(tenant_of(case), raising=name)
        before = sum(log.internal_errors().values())
        async with world_of(server, client) as world:
            prepare(world, gang.record)
            one = scheduler(world, has_queues=has_queues)
            with injected(gang), capture_logs():
                await one._cycle_safely()  # noqa: SLF001  # the loop's body
            if world.record("uid-of-canary").phase is Phase.QUEUED:
                found.append(f"{name}: the canary waits")
            if gang.raised and sum(log.internal_errors().values()) == before:
                found.append(f"{name}: not counted")
    return found


@pytest.mark.parametrize("has_queues", [False, True], ids=["one-queue", "queues"])
@pytest.mark.parametrize("case", CASES)
async def test_exception_about_one_gang_at_any_function_of_the_core_stops_no_other(
    server: FakeApiServer, client: ClusterClient, case: str, has_queues: bool
) -> None:
    names = await called_for(server, client, case, has_queues=has_queues)
    assert len(names) > 30
    assert rooms_of(names) >= ROOMS
    assert await stopped_by(server, client, case, names, has_queues=has_queues) == []


FIT = "dispatcher.core.scheduling.fit.fit.fit"
TAKE = "dispatcher.core.scheduling.capacity.capacity_snapshot.CapacitySnapshot.take"


@pytest.mark.parametrize("has_queues", [False, True], ids=["one-queue", "queues"])
@pytest.mark.parametrize("raising", [FIT, TAKE])
async def test_gang_whose_decision_raised_waits_with_an_internal_error_and_is_logged_once(
    world: World, raising: str, has_queues: bool
) -> None:
    tenant = tenant_of("fits")
    prepare(world, tenant)
    for number in range(3):  # of the same class
        world.cache.put(replace(tenant, uid=f"uid-{number}", name=f"aw-{number}", enqueue_seq=10 + number))
    one = scheduler(world, has_queues=has_queues)
    before = log.internal_errors().get("scheduler", 0)
    with capture_logs() as logs, injected(injection.Gang(tenant, raising=raising)):
        await one._cycle_safely()  # noqa: SLF001  # the loop's body
    assert world.record("uid-of-canary").phase is Phase.DISPATCHING
    for uid in ("uid-of-tenant", "uid-0", "uid-1", "uid-2"):
        assert world.record(uid).phase is Phase.QUEUED
        assert world.record(uid).pending == Pending(
            "InternalError", "internal error; see the dispatcher's log"
        ) or world.record(uid).pending == Pending(
            "InternalError", "internal error; see the dispatcher's log", queue="default"
        )
    errors = [each["appwrapper"] for each in logs if each["event"] == "internal_error"]
    assert errors == ["uid-of-tenant"]
    assert log.internal_errors()["scheduler"] == before + 1


@pytest.mark.parametrize("has_queues", [False, True], ids=["one-queue", "queues"])
async def test_half_taken_capacity_of_a_plan_that_raised_is_given_to_others(
    world: World, has_queues: bool
) -> None:
    """The tenant's gang would take all that the canary needs; it raises once half of it is taken."""
    tenant = make_record(name="tenant", gang=two_sets(3_999), enqueue_seq=1, priority=5)
    prepare(world, tenant, running=False)
    canary = make_record(name="large", gang=make_gang(cpu=3_900), enqueue_seq=3)
    world.cache.put(canary)
    one = scheduler(world, has_queues=has_queues)
    node = "dispatcher.core.scheduling.capacity.node_snapshot.NodeSnapshot.take"
    with injected(injection.Gang(tenant, raising=node)):
        await one._cycle_safely()  # noqa: SLF001  # the loop's body
    assert world.record("uid-of-large").phase is Phase.DISPATCHING


async def test_gang_that_ended_a_plan_is_decided_again_after_a_while(world: World) -> None:
    tenant = tenant_of("fits")
    prepare(world, tenant)
    one = dispatch_of(world)
    with injected(injection.Gang(tenant, raising=TAKE)):
        await one._cycle_safely()  # noqa: SLF001  # the loop's body
    await one._cycle_safely()  # noqa: SLF001  # the loop's body
    assert world.record("uid-of-tenant").phase is Phase.QUEUED
    await asyncio.sleep(BARRED_FOR.total_seconds())
    await one._cycle_safely()  # noqa: SLF001  # the loop's body
    assert world.record("uid-of-tenant").phase is Phase.DISPATCHING


@pytest.mark.parametrize("error", [MemoryError(), StoreUnavailable("gone")])
async def test_lack_of_memory_and_of_the_store_are_no_fault_of_a_gang(world: World, error: Exception) -> None:
    tenant = tenant_of("fits")
    prepare(world, tenant)
    one = dispatch_of(world)
    with injected(injection.Gang(tenant, raising=TAKE, error=error)), pytest.raises(type(error)):
        await one.cycle()
    assert world.record("uid-of-tenant").pending is None


@pytest.mark.parametrize(
    "raising",
    [
        "dispatcher.core.queues.ordering.rank",
        "dispatcher.core.queues.ordering.is_eligible",
        "dispatcher.core.queues.ordering.effective_priority",
        "dispatcher.core.model.records.record.Pending.is_in_no_queue",
        "dispatcher.core.model.records.record.Pending.has_position",
    ],
)
def test_exception_about_the_position_of_one_gang_leaves_all_other_positions(raising: str) -> None:
    tenant = make_blocked(
        tenant_of("waits"), replace(WAITS)
    )  # a reason of its own, which a call with it is about
    others = [make_blocked(make_record(name=f"aw-{number}", enqueue_seq=2 + number)) for number in range(3)]
    with injected(injection.Gang(tenant, raising=raising)):
        found = incremental.run(positions([tenant, *others], at(10), has_queues=False))
    assert [each.uid for each in found.failures] == [tenant.uid]
    assert [found.outlooks[each.uid]["position"] for each in others] == [1, 2, 3]
    assert tenant.uid not in found.outlooks


PLACE_OF_GROWTH = "dispatcher.core.scheduling.growth.growing.gangs_of"


@pytest.mark.parametrize("has_queues", [False, True], ids=["one-queue", "queues"])
async def test_exception_about_the_growth_of_one_gang_stops_no_other_growth(
    world: World, has_queues: bool
) -> None:
    tenant, honest = ray(world, name="tenant"), ray(world, name="honest")
    for each in (tenant, honest):
        ask(world, each, 1)
    one = (
        scheduler_of(world, (Queue("default", None, {"cpu": Quota(8000)}),))
        if has_queues
        else dispatch_of(world)
    )
    with capture_logs() as logs, injected(injection.Gang(tenant, raising=PLACE_OF_GROWTH)):
        await one._cycle_safely()  # noqa: SLF001  # the loop's body
    assert world.record(honest.uid).grown == Resources({"cpu": 1000})
    assert world.record(tenant.uid).grown == NOTHING
    assert {each["appwrapper"] for each in logs if each["event"] == "internal_error"} == {tenant.uid}


async def test_exception_about_the_growth_of_one_gang_delays_no_other_that_goes_before_the_cycle(
    world: World,
) -> None:
    tenant, honest = ray(world, name="tenant"), ray(world, name="honest")
    for each in (tenant, honest):
        ask(world, each, 1)
    put(world, "waits", 4, "default")  # takes all that is left unless growth goes first
    one = scheduler_of(world, (Queue("default", None, {"cpu": Quota(8000)}, elastic=Elastic.FIRST),))
    goes_first = "dispatcher.core.scheduling.growth.grants.goes_first"
    with capture_logs() as logs, injected(injection.Gang(tenant, raising=goes_first)):
        await one._cycle_safely()  # noqa: SLF001  # the loop's body
    assert world.record(honest.uid).grown == Resources({"cpu": 1000})
    assert {each["appwrapper"] for each in logs if each["event"] == "internal_error"} == {tenant.uid}


CHECK = "dispatcher.core.scheduling.cycle.recheck._placed_again"
CHECK_OF_GROWTH = "dispatcher.core.scheduling.growth.grants._GrantCycle.takes"


@pytest.mark.parametrize("has_queues", [False, True], ids=["one-queue", "queues"])
async def test_exception_in_the_check_of_one_placed_gang_before_the_commit_stops_no_other(
    world: World, has_queues: bool
) -> None:
    tenant = tenant_of("fits")
    prepare(world, tenant)
    one = scheduler(world, has_queues=has_queues)
    with capture_logs() as logs, injected(injection.Gang(tenant, raising=CHECK)):
        await one._cycle_safely()  # noqa: SLF001  # the loop's body
    assert world.record("uid-of-canary").phase is Phase.DISPATCHING
    assert world.record("uid-of-tenant").phase is Phase.QUEUED
    assert [each["appwrapper"] for each in logs if each["event"] == "internal_error"] == ["uid-of-tenant"]
    assert is_woken(one)  # the next cycle decides it


async def test_exception_in_the_check_of_the_growth_of_one_gang_before_the_commit_stops_no_other_growth(
    world: World,
) -> None:
    tenant, honest = ray(world, name="tenant"), ray(world, name="honest")
    for each in (tenant, honest):
        ask(world, each, 1)
    one = dispatch_of(world, clusters=TakenMeanwhile(world, 1, look=3))
    with capture_logs() as logs, injected(injection.Gang(tenant, raising=CHECK_OF_GROWTH)):
        await one._cycle_safely()  # noqa: SLF001  # the loop's body
    assert world.record(honest.uid).grown == Resources({"cpu": 1000})
    assert world.record(tenant.uid).grown == NOTHING
    assert [each["appwrapper"] for each in logs if each["event"] == "internal_error"] == [tenant.uid]
    assert is_woken(one)  # the next pass decides it


async def calls_while_growing(world: World, gang: injection.Gang, *, has_queues: bool) -> Record:
    """Run a cycle in which the gang and an honest one ask for a pod each; the honest gang's record before.

    Others take a little room meanwhile, so that grants are checked before the commit.
    """
    honest = ray(world, name="honest")
    for each in (gang.record, honest):
        ask(world, each, 1)
    queues = (Queue("default", None, {"cpu": Quota(8000)}),)
    clusters = TakenMeanwhile(world, 1, look=3)
    one = (
        scheduler_of(world, queues, clusters=clusters)
        if has_queues
        else dispatch_of(world, clusters=clusters)
    )
    with injected(gang), capture_logs():
        await one._cycle_safely()  # noqa: SLF001  # the loop's body
    return honest


@pytest.mark.parametrize("has_queues", [False, True], ids=["one-queue", "queues"])
async def test_exception_about_the_growth_of_one_gang_at_any_function_of_the_core_stops_no_other(
    server: FakeApiServer, client: ClusterClient, has_queues: bool
) -> None:
    async with world_of(server, client) as world:
        gang = injection.Gang(ray(world, name="tenant"), is_in_amounts=False)
        await calls_while_growing(world, gang, has_queues=has_queues)
    assert len(gang.calls) > 30
    assert rooms_of(gang.calls) >= ROOMS - {"queues"}
    found = []
    for name in sorted(gang.calls):
        before = sum(log.internal_errors().values())
        async with world_of(server, client) as world:
            raising = injection.Gang(ray(world, name="tenant"), raising=name, is_in_amounts=False)
            honest = await calls_while_growing(world, raising, has_queues=has_queues)
            if world.record(honest.uid).grown != Resources({"cpu": 1000}):
                found.append(f"{name}: the honest gang does not grow")
        if raising.raised and sum(log.internal_errors().values()) == before:
            found.append(f"{name}: not counted")
    assert found == []
