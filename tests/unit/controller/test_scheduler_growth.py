"""Growth of running gangs in the scheduler: decided after the cycle or before it, and committed only if it is news."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from fractions import Fraction

import pytest
from msgspec.structs import replace

from dispatcher.controller.scheduling.queue_cycles import QueueCycles
from dispatcher.core.lifecycle import run_changes
from dispatcher.core.model import incremental
from dispatcher.core.model.gangs.pods import Gate, Pod, PodPhase
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Elastic, Order, Queue, Quota
from dispatcher.core.scheduling.cycle.queue_planner import QueueRules
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.probes import Metrics
from tests.builders import at, attempt_of, make_gang
from tests.unit.controller.test_scheduler import HubAlone, Shrinking, dispatch_of, impatient
from tests.unit.controller.test_scheduler_queues import START, TEAMS, is_woken, put, scheduler_of
from tests.unit.controller.world import World

CPU = Resources({"cpu": 1000})


def ray(world: World, cpu: int = 2, queue: str = "default", *, name: str = "ray", **fields: object) -> Record:
    """A running gang with its pod on the hub's node of 8 cpus."""
    record = put(world, name, cpu, queue, Phase.RUNNING, **fields)
    pod = Pod(f"{name}-0", record.gang.demand, "n1", PodPhase.RUNNING, owner=record.uid, can_be_gated=True)
    world.ledger.set_pod(pod)
    return record


def ask(world: World, record: Record, pods: int, seconds: float = START) -> None:
    """The gang gets more pods of one cpu each, which the dispatcher's gate stops."""
    for number in range(pods):
        name = f"{record.name}-{number + 1}"
        gate = Gate("default", name, f"{at(seconds):%Y-%m-%dT%H:%M:%SZ}")
        world.ledger.set_pod(Pod(name, CPU, owner=record.uid, gate=gate, can_be_gated=True))


def wait(world: World, record: Record, seconds: float) -> None:
    """The last event of the gang was so many seconds ago."""
    last_event_at = world.now() - timedelta(seconds=seconds)
    world.cache.put(replace(world.record(record.uid), last_event_at=last_event_at))


def worker(record: Record, number: int, node: str = "n1") -> Pod:
    """A worker that was granted and admitted."""
    name = f"ray-{number}"
    return Pod(
        name,
        CPU,
        node,
        PodPhase.RUNNING if node else PodPhase.PENDING,
        owner=record.uid,
        can_be_gated=True,
        template="0.w",
        admitted_as=Gate("default", name, f"{at(START):%Y-%m-%dT%H:%M:%SZ}"),
    )


def message_of(world: World, record: Record) -> str:
    request = world.record(record.uid).growth_request
    return request.message if request else ""


async def test_growth_that_fits_is_granted_in_one_commit_and_its_room_is_taken(world: World) -> None:
    record = ray(world)
    ask(world, record, 3)
    metrics = Metrics()
    scheduler = dispatch_of(world)
    scheduler._growth._metrics = metrics  # noqa: SLF001  # to read them
    await scheduler.cycle()

    assert world.store.batches == [[("ray", "granted")]]
    assert world.taken_in == [record.uid]  # the reconciler admits the pods
    assert world.record(record.uid).held == CPU * 5
    assert world.ledger.free()["cpu"] == 3000  # before any of them is admitted
    assert metrics.registry.get_sample_value("dispatcher_growth_grant_seconds_count") == 3
    await scheduler.cycle()
    assert len(world.store.batches) == 1


async def test_growth_that_waits_is_noted_once_and_again_once_more_pods_wait(world: World) -> None:
    record = ray(world, 8)
    ask(world, record, 1)
    scheduler = dispatch_of(world)
    await scheduler.cycle()
    await scheduler.cycle()
    assert world.store.batches == [[("ray", "growth-waits")]]
    assert message_of(world, record) == "1 more pod waits (cpu 1): cluster hub: cpu: needs 1, 0 free"
    ask(world, record, 2)
    await scheduler.cycle()
    assert len(world.store.batches) == 2
    for name in ("ray-1", "ray-2"):
        world.ledger.remove_pod(name)
    wait(world, record, 10)
    await scheduler.cycle()
    assert world.record(record.uid).growth_request is None
    await scheduler.cycle()
    assert len(world.store.batches) == 3


async def test_slice_whose_other_host_does_not_come_is_told_and_granted_once_it_has_come(
    world: World,
) -> None:
    record, scheduler = ray(world), dispatch_of(world)

    def make(number: int, age: int = 0) -> None:
        created_at = world.now() - timedelta(seconds=age)
        gate = Gate("default", f"ray-{number}", f"{created_at:%Y-%m-%dT%H:%M:%SZ}")
        world.ledger.set_pod(
            Pod(gate.name, CPU, owner=record.uid, gate=gate, can_be_gated=True, template="0.w", hosts=2)
        )

    make(1)
    await scheduler.cycle()
    assert world.store.batches == []
    make(1, age=10)
    await scheduler.cycle()
    assert message_of(world, record) == "1 more pod waits (cpu 1): its slice has 1 of 2 hosts"
    make(2)
    await scheduler.cycle()
    assert world.record(record.uid).held == CPU * 4
    assert world.record(record.uid).growth_request is None


@pytest.mark.parametrize(
    ("counts", "noted"),
    [
        pytest.param((1, 2) * 15, [1, 2, 1, 2], id="one-more-and-less"),
        pytest.param((1, 0) * 15, [1, None, 1], id="on-and-off"),
        pytest.param((1, 2, 3, 4), [1, 2, 3, 4], id="more-and-more"),
    ],
)
async def test_growth_that_an_autoscaler_asks_for_and_takes_back_in_a_loop_is_noted_every_ten_seconds(
    world: World, counts: tuple[int, ...], noted: list[int | None]
) -> None:
    record, scheduler = ray(world, 8), dispatch_of(world)
    seen: list[int | None] = []
    for turn, count in enumerate(counts):
        for number in range(1, 5):
            world.ledger.remove_pod(f"ray-{number}")
        ask(world, record, count)
        if turn == len(counts) // 2:
            wait(world, record, 10)
        batches = len(world.store.batches)
        await scheduler.cycle()
        request = world.record(record.uid).growth_request
        seen += [request.pods if request else None] * (len(world.store.batches) - batches)
    assert seen == noted


async def test_changed_message_alone_is_committed_at_most_once_a_minute(world: World) -> None:
    record = ray(world, 6)
    ask(world, record, 1)
    half = Resources({"cpu": 500})
    world.ledger.set_pod(Pod("foreign", half * 3, "n1", PodPhase.RUNNING))
    scheduler = dispatch_of(world)
    await scheduler.cycle()
    world.ledger.set_pod(Pod("more", half, "n1", PodPhase.RUNNING))
    await scheduler.cycle()
    assert message_of(world, record).endswith("cpu: needs 1, 500m free")
    known = world.record(record.uid)
    world.cache.put(replace(known, last_event_at=at(-100)))
    await scheduler.cycle()
    assert message_of(world, record).endswith("cpu: needs 1, 0 free")


async def test_changed_reason_is_committed_at_most_every_ten_seconds(world: World) -> None:
    queues = (Queue("a", None, {"cpu": Quota(8000)}),)
    record = ray(world, 8, "a")
    ask(world, record, 1)
    scheduler = scheduler_of(world, queues)
    await scheduler.cycle()
    first = world.record(record.uid).growth_request
    assert first is not None
    waits = put(world, "waits", 6, "a", created_at=at(0))
    await scheduler.cycle()
    noted = [batch for batch in world.store.batches if ("ray", "growth-waits") in batch]
    assert len(noted) == 1
    world.cache.put(replace(world.record(record.uid), last_event_at=at(START - 10)))
    await scheduler.cycle()
    known = world.record(record.uid).growth_request
    assert known is not None
    assert known.reason == "GrowthBehindGang" != first.reason
    assert world.record(waits.uid).phase is Phase.QUEUED


async def test_grant_of_a_record_that_changed_meanwhile_is_decided_again_at_once(world: World) -> None:
    record = ray(world)
    ask(world, record, 1)
    scheduler = dispatch_of(world)

    def change(_change: object) -> str:
        world.cache.put(replace(world.record(record.uid), version=9))
        return "stale"

    world.store.verdict = change
    await scheduler.cycle()
    assert is_woken(scheduler)
    world.store.verdict = lambda _change: ""
    await scheduler.cycle()
    assert world.record(record.uid).held == CPU * 3


class TakenMeanwhile(HubAlone):
    """Others take room of the hub while something is planned: before this look at it.

    The first look is for a cycle, the next for its check if gangs are placed, and then come those for growth.
    """

    def __init__(self, world: World, cpu: int, look: int) -> None:
        super().__init__(world.cluster)
        self._world, self._cpu, self._look, self._looks = world, cpu, look, 0

    def snapshots(self, requirements: Iterable[ClusterRequirements]) -> dict[str, ClusterSnapshot]:
        self._looks += 1
        if self._looks == self._look:
            self._world.ledger.reserve("another", make_gang(cpu=self._cpu))
        return super().snapshots(requirements)


@pytest.mark.parametrize(
    ("taken", "granted"),
    [pytest.param(3000, 3, id="there-is-room-left"), pytest.param(4000, 0, id="its-room-is-gone")],
)
async def test_grant_whose_room_was_taken_meanwhile_is_decided_again_at_once(
    world: World, taken: int, granted: int
) -> None:
    record = ray(world)
    ask(world, record, 3)
    scheduler = dispatch_of(world, clusters=TakenMeanwhile(world, taken, look=3))
    await scheduler.cycle()
    assert world.record(record.uid).grown == CPU * granted
    assert is_woken(scheduler) == (not granted)
    await scheduler.cycle()
    assert world.record(record.uid).grown == CPU * (granted or 2)


async def test_grants_are_checked_and_committed_in_parts_by_the_clusters_of_each_moment(world: World) -> None:
    first, second, third = (ray(world, 1, name=name) for name in ("first", "second", "third"))
    for record in (first, second, third):
        ask(world, record, 1)
    scheduler = impatient(world, Shrinking(world, {3: 1, 5: 2}))
    await scheduler.cycle()
    assert world.store.batches == [[("first", "granted")], [("second", "granted")]]
    assert world.ledger.free()["cpu"] == 0
    assert is_woken(scheduler)


@pytest.mark.parametrize(
    ("order", "first"),
    [
        pytest.param(Order.USAGE, "idle", id="who-used-less"),
        pytest.param(Order.PRIORITY, "busy", id="whose-priority-is-higher"),
    ],
)
async def test_the_order_of_a_queue_decides_which_growth_goes_first(
    world: World, order: Order, first: str
) -> None:
    for record in (
        ray(world, name="busy", queue="b", namespace="busy", priority=10),
        ray(world, queue="b", name="idle", namespace="idle"),
    ):
        ask(world, record, 2)
    usage = {("b", "busy"): Fraction(3, 2), ("b", "idle"): Fraction(1), ("a", "idle"): Fraction(9)}
    queue = Queue("b", None, {"cpu": Quota(6000)}, order=order)
    await scheduler_of(world, (queue,), usage=usage).cycle()

    assert {each.name: each.held for each in world.cache.records()} == {
        "busy": CPU * 2,
        "idle": CPU * 2,
        first: CPU * 4,
    }


@pytest.mark.parametrize(
    ("elastic", "phase", "granted"),
    [
        pytest.param(Elastic.LAST, Phase.DISPATCHING, 0, id="the-gang-that-waited-goes-first"),
        pytest.param(Elastic.FIRST, Phase.QUEUED, 2, id="growth-goes-first"),
    ],
)
async def test_queue_says_whether_growth_goes_before_the_gangs_that_wait(
    world: World, elastic: Elastic, phase: Phase, granted: int
) -> None:
    queues = (Queue("a", None, {"cpu": Quota(8000)}, elastic=elastic),)
    record = ray(world, 2, "a")
    waits = put(world, "waits", 6, "a", created_at=at(0))
    ask(world, record, 2)
    await scheduler_of(world, queues).cycle()
    assert world.record(waits.uid).phase is phase
    assert world.record(record.uid).grown == CPU * granted


async def test_growth_waits_for_an_older_gang_of_its_queue_and_is_granted_after_its_dispatch(
    world: World,
) -> None:
    queues = (Queue("a", None, {"cpu": Quota(8000)}),)
    record = ray(world, 2, "a")
    waits = put(world, "waits", 6, "a", created_at=at(0))
    ask(world, record, 1)
    world.ledger.set_pod(Pod("foreign", CPU * 2, "n1", PodPhase.RUNNING))
    scheduler = scheduler_of(world, queues)
    await scheduler.cycle()
    assert message_of(world, record) == (
        "1 more pod waits (cpu 1): default/waits was queued before in queue a, and waits"
    )
    world.cache.put(replace(world.record(waits.uid), phase=Phase.SUSPENDED))
    await scheduler.cycle()
    assert world.record(record.uid).grown == CPU
    assert message_of(world, record) == ""


async def test_internal_error_about_growth_delays_no_gang(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(world, ray(world), 1)
    waits = put(world, "waits", 2, "default")
    scheduler = dispatch_of(world)

    def fail(**_arguments: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(scheduler, "_grant_growth", fail)
    await scheduler._cycle_safely()  # noqa: SLF001  # as its loop does
    assert world.record(waits.uid).phase is Phase.DISPATCHING
    assert not is_woken(scheduler)


async def test_surplus_pod_that_goes_while_a_cycle_is_planned_costs_the_gang_nothing(world: World) -> None:
    """A plan pauses while other tasks run. With later news than its snapshots, it would count the pod's room twice."""
    record = ray(world, 3, "b")
    ask(world, record, 1)
    scheduler = scheduler_of(world)
    await scheduler.cycle()
    world.ledger.set_pod(worker(record, 1))
    put(world, "owner", 5, "a")
    await scheduler.cycle()
    attempt = world.record(record.uid).attempt
    assert attempt is not None
    assert attempt.shrinking is not None

    snapshots = HubAlone(world.cluster).snapshots(())
    steps = QueueCycles(world.cache).plan_in_steps(QueueRules(Forest.of(TEAMS)), snapshots, at(START))
    next(steps)
    world.ledger.remove_pod("ray-1")
    assert incremental.run(steps).groups == ()


@pytest.mark.parametrize(
    ("is_admitted", "deleted"),
    [
        pytest.param(False, [], id="behind-its-gate"),
        pytest.param(True, ["ray-1"], id="without-a-node"),
    ],
)
async def test_granted_worker_that_does_not_run_yet_is_preempted_and_its_gang_runs_on(
    world: World, is_admitted: bool, deleted: list[str]
) -> None:
    record = ray(world, 3, "b")
    ask(world, record, 1)
    gated = next(each for each in world.ledger.pods() if each.uid == "ray-1")
    world.ledger.set_pod(replace(gated, template="0.w"))
    scheduler = scheduler_of(world)
    await scheduler.cycle()
    assert world.record(record.uid).grown == CPU
    if is_admitted:
        world.ledger.set_pod(worker(record, 1, node=""))
    waits = put(world, "owner", 5, "a")
    await scheduler.cycle()
    after = world.record(record.uid)
    assert (after.phase, after.allowed) == (Phase.RUNNING, CPU * 3)
    shrinking = attempt_of(after).shrinking
    assert shrinking is not None
    assert [each.name for each in shrinking.pods] == deleted
    assert world.record(waits.uid).is_preempting


@pytest.mark.parametrize(
    ("queues", "asks"),
    [
        pytest.param(TEAMS, ("owner", 5, "a"), id="of-an-owner-that-would-preempt-the-gang"),
        pytest.param((Queue("b", None, {"cpu": Quota(4000)}),), ("plain", 1, "b"), id="of-its-own-queue"),
    ],
)
async def test_growth_of_a_worker_that_ray_removed_is_released_for_a_gang_that_waits(
    world: World, queues: tuple[Queue, ...], asks: tuple[str, int, str]
) -> None:
    """The charge has a pause of up to five minutes. The reconciler is woken to note at once that it is over."""
    record = ray(world, 3, "b")
    ask(world, record, 1)
    scheduler = scheduler_of(world, queues)
    await scheduler.cycle()
    assert world.record(record.uid).growth_charge == CPU + {"pods": 1}
    world.ledger.set_pod(worker(record, 1))
    world.ledger.remove_pod("ray-1")
    await scheduler.cycle()
    assert world.cache.awaited_growth == set()

    waits = put(world, *asks)
    world.taken_in.clear()
    await scheduler.cycle()
    assert world.record(record.uid).phase is Phase.RUNNING
    pending = world.record(waits.uid).pending
    assert pending is not None
    assert pending.reason == "AwaitingRelease"
    assert world.cache.awaited_growth == {record.uid}
    assert record.uid in world.taken_in

    await world.committer.commit(run_changes.note_growth(world.record(record.uid), CPU * 3, at(START)))
    await scheduler.cycle()
    assert world.record(waits.uid).phase is Phase.DISPATCHING
    assert world.cache.awaited_growth == set()


async def test_growth_takes_no_room_of_surplus_preempted_for_a_gang(world: World) -> None:
    """Else the gang that they gave way to would lack room once they are gone, and preempt more."""
    queues = (*TEAMS, Queue("c", None, {"cpu": Quota(8000)}))
    record = ray(world, 2, "b")
    ask(world, record, 3)
    scheduler = scheduler_of(world, queues)
    await scheduler.cycle()
    for number in (1, 2, 3):
        world.ledger.set_pod(worker(record, number))
    waits = put(world, "owner", 4, "a")
    other = put(world, "other", 1, "c", Phase.RUNNING)
    pod = Pod("other-0", CPU, "n1", PodPhase.RUNNING, owner=other.uid, can_be_gated=True)
    world.ledger.set_pod(pod)
    gate = Gate("default", "other-1", f"{at(START):%Y-%m-%dT%H:%M:%SZ}")
    world.ledger.set_pod(replace(pod, uid="other-1", node="", phase=PodPhase.PENDING, gate=gate))
    await scheduler.cycle()
    assert world.record(waits.uid).is_preempting
    attempt = world.record(record.uid).attempt
    assert attempt is not None
    assert attempt.shrinking is not None
    assert len(attempt.shrinking.pods) == 2  # beside the two cpus that are free
    assert world.record(other.uid).grown == NOTHING
    request = world.record(other.uid).growth_request
    assert request is not None
    assert request.reason == "ReservedForAnother"


@pytest.mark.parametrize(
    ("cpu", "awaited"),
    [pytest.param(3, True, id="its-room-suffices"), pytest.param(4, False, id="it-does-not-suffice")],
)
async def test_room_of_a_worker_that_ray_removed_is_released_for_a_gang_without_declared_queues(
    world: World, cpu: int, awaited: bool
) -> None:
    record = ray(world, 5)
    ask(world, record, 1)
    scheduler = dispatch_of(world)
    await scheduler.cycle()
    world.ledger.set_pod(worker(record, 1))
    waits = put(world, "waits", cpu, "default")
    await scheduler.cycle()
    assert world.cache.awaited_growth == set()
    world.ledger.remove_pod("ray-1")
    await scheduler.cycle()
    assert world.record(waits.uid).phase is Phase.QUEUED
    assert world.cache.awaited_growth == ({record.uid} if awaited else set())

    await world.committer.commit(run_changes.note_growth(world.record(record.uid), CPU * 5, at(START)))
    await scheduler.cycle()
    assert world.record(waits.uid).phase is (Phase.DISPATCHING if awaited else Phase.QUEUED)


@pytest.mark.parametrize("node", ["", "ghost"])
async def test_pod_that_a_tenant_forges_under_its_own_gang_stops_no_other_gang(
    world: World, node: str
) -> None:
    record = ray(world)
    huge = Resources({"cpu": 4_000_000, "nvidia.com/gpu": 4000})
    gate = Gate("default", "forged", f"{at(START):%Y-%m-%dT%H:%M:%SZ}")
    forged = Pod("forged", huge, node, owner=record.uid, can_be_gated=True, template="0.x", admitted_as=gate)
    world.ledger.set_pod(forged)
    ask(world, record, 1)
    waiting = put(world, "victim", 1, "default", created_at=at(START - 60))
    scheduler = dispatch_of(world)
    await scheduler.cycle()
    await scheduler.cycle()
    assert world.record(waiting.uid).phase is Phase.DISPATCHING
    assert world.record(record.uid).held == CPU * 3
    assert world.ledger.free()["cpu"] >= 8000 - 3000 - 1000
    assert world.ledger.free()["nvidia.com/gpu"] == 0


@pytest.mark.parametrize("written", ["", "yesterday", "2026-01-01T00:00:00", "9999-12-31T23:59:59-23:59"])
async def test_pod_with_an_unreadable_age_stops_no_growth(world: World, written: str) -> None:
    good, odd = ray(world, 1, name="good"), ray(world, 1, name="odd")
    ask(world, good, 2)
    gate = Gate("default", "odd-1", written)
    world.ledger.set_pod(Pod("odd-1", CPU, owner=odd.uid, gate=gate, can_be_gated=True))
    await dispatch_of(world).cycle()
    assert world.record(good.uid).held == CPU * 3
    assert world.record(odd.uid).held == CPU * 2
