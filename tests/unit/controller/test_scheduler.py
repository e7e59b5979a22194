"""The dispatch cycle: every decision of one look at the queue in one commit, and only when there is reason."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from itertools import count
from types import MappingProxyType
from typing import Any

import pytest

from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.scheduling.committer import LARGEST_BATCH
from dispatcher.controller.scheduling.scheduler import NONE_DECLARED, Lookups, Rules, Scheduler
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.cycle.queue_planner import QueueRules
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.queued.queued_gangs import QueuedGangs
from dispatcher.probes import Metrics
from tests import one_queue
from tests.builders import at, attempt_of, make_gang, make_record
from tests.unit.controller.world import World
from tests.unit.virtual_time import monotonic, until
from tests.unit.workers import running


class HubAlone:
    """What is known where no member is declared."""

    def __init__(self, hub: WatchedCluster) -> None:
        self._hub = hub

    async def get_ready(self, _wheres: Iterable[ClusterRequirements]) -> bool:
        """Nothing has to be asked."""
        return True

    def snapshots(self, _wheres: Iterable[ClusterRequirements]) -> dict[str, ClusterSnapshot]:
        return {"hub": ClusterSnapshot("hub", self._hub.capacity())} if self._hub.is_ready else {}


def dispatch_of(
    world: World,
    rules: Rules | None = None,
    *,
    queues: QueueRules = NONE_DECLARED,
    known: bool = True,
    clusters: HubAlone | None = None,
    is_unchanged: Callable[[Record], bool] = lambda _record: True,
) -> Scheduler:
    if known:
        for reflector in (world.cluster._nodes, world.cluster._pods):  # noqa: SLF001  # as if both were listed
            reflector.synced.set()
    return Scheduler(
        world.cache,
        world.committer,
        clusters or HubAlone(world.cluster),
        Lookups(is_unchanged, lambda: queues),
        on_decided=world.taken_in.append,
        now=world.now,
        metrics=Metrics(),
        rules=rules or Rules(),
        monotonic=monotonic,
    )


WITH_A_JOB = ClusterRequirements(kinds=frozenset({("batch/v1", "Job")}))


class SlowToAnswer(HubAlone):
    """A gang is submitted while the clusters are being asked what they serve, which takes a second.

    Its record says that it is older: the lifecycle takes no time earlier than the record's, which would hide one here.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world.cluster)
        self._world = world
        self.asked_about: list[frozenset[ClusterRequirements]] = []

    async def get_ready(self, wheres: Iterable[ClusterRequirements]) -> bool:
        self.asked_about.append(frozenset(wheres))
        if len(self.asked_about) > 1:
            return True
        await asyncio.sleep(1)
        submit(self._world, 1, requirements=WITH_A_JOB)
        return False


def submit(world: World, *cpus: int, **fields: Any) -> None:  # noqa: ANN401
    for index, cpu in enumerate(cpus):
        gang = make_gang(cpu=1000 * cpu)
        world.cache.put(make_record(name=f"aw-{index}", gang=gang, enqueue_seq=index, **fields))


def phases(world: World) -> dict[str, str]:
    return {record.name: record.phase.value for record in world.cache.records()}


async def test_cycle_admits_all_that_fit_and_tells_the_others_in_one_commit(world: World) -> None:
    submit(world, 4, 6, 4, 9)
    await dispatch_of(world).cycle()

    assert phases(world) == {"aw-0": "Dispatching", "aw-1": "Queued", "aw-2": "Dispatching", "aw-3": "Queued"}
    assert world.store.batches == [
        [("aw-0", "dispatched"), ("aw-1", "blocked"), ("aw-2", "dispatched"), ("aw-3", "blocked")]
    ]
    assert world.taken_in == [f"uid-of-aw-{index}" for index in range(4)]
    assert world.ledger.free()["cpu"] == 0


async def test_gang_suspended_by_its_user_before_any_reconcile_is_not_dispatched(
    world: World,
) -> None:
    submit(world, 4, 4)
    await dispatch_of(world, is_unchanged=lambda record: record.name != "aw-0").cycle()

    assert phases(world) == {"aw-0": "Queued", "aw-1": "Dispatching"}
    assert world.store.batches == [[("aw-1", "dispatched")]]


async def test_cycle_that_has_nothing_new_to_say_writes_nothing(world: World) -> None:
    submit(world, 4, 6, 9)
    dispatch = dispatch_of(world)
    await dispatch.cycle()
    await dispatch.cycle()
    assert len(world.store.batches) == 1


async def test_nothing_is_placed_on_a_cluster_that_has_not_been_listed(world: World) -> None:
    submit(world, 1)
    await dispatch_of(world, known=False).cycle()
    record = world.record("uid-of-aw-0")
    assert record.pending is not None
    assert (record.phase, record.pending.reason) == (Phase.QUEUED, "NoCluster")


async def test_decision_that_is_not_accepted_takes_nothing(world: World) -> None:
    submit(world, 4)
    world.store.verdict = lambda _change: "stale"
    await dispatch_of(world).cycle()
    assert phases(world) == {"aw-0": "Queued"}
    assert world.taken_in == []
    assert world.ledger.free()["cpu"] == 8000


async def test_strict_queue_notes_the_gangs_after_its_head_as_not_evaluated(world: World) -> None:
    submit(world, 6, 4, 1)
    strict = one_queue.rules(QueueingStrategy.STRICT_FIFO)
    await dispatch_of(world, queues=strict).cycle()
    assert phases(world) == {"aw-0": "Dispatching", "aw-1": "Queued", "aw-2": "Queued"}
    assert world.store.batches == [[("aw-0", "dispatched"), ("aw-1", "blocked"), ("aw-2", "not-evaluated")]]


async def test_starved_gang_is_dispatched_before_gangs_ahead_of_it(world: World) -> None:
    submit(world, 1, 8)
    world.cache.put(make_record(name="aw-1", gang=make_gang(cpu=8000), enqueue_seq=9, blocked_since=at(-10)))
    queues = one_queue.rules(bound=timedelta(seconds=10))
    await dispatch_of(world, queues=queues).cycle()
    assert phases(world) == {"aw-0": "Queued", "aw-1": "Dispatching"}


async def test_cycle_runs_when_woken_and_not_more_often_than_allowed(world: World) -> None:
    dispatch = dispatch_of(world, Rules(least=0.5, most=100))
    async with running(dispatch.run()):
        for index in range(100):
            world.cache.put(make_record(name=f"aw-{index}", gang=make_gang(cpu=1)))
            dispatch.wake()
            await asyncio.sleep(0.021)  # virtual
    assert len(world.store.batches) == 5


async def test_lost_wake_up_is_made_good_by_a_slow_poll(world: World) -> None:
    async with running(dispatch_of(world, Rules(most=10)).run()):
        await asyncio.sleep(1)
        submit(world, 1)
        await until(lambda: world.store.batches)
    assert 10 <= monotonic() < 12


async def test_postponed_gang_is_looked_at_the_moment_it_may_be(world: World) -> None:
    submit(world, 1, eligible_at=at(30))
    async with running(dispatch_of(world, Rules(most=1000)).run()):
        await until(lambda: world.store.batches)
    assert 30 <= monotonic() < 32


async def test_gang_that_may_be_dispatched_right_after_a_cycle_is_not_left_to_the_slow_poll(
    world: World,
) -> None:
    for name, when in (("aw-0", at(30)), ("aw-1", at(30.02))):
        world.cache.put(make_record(name=name, gang=make_gang(cpu=1000), eligible_at=when))
    async with running(dispatch_of(world, Rules(least=0.05, most=1000)).run()):
        await until(lambda: len(world.store.batches) == 2)
    assert 30 <= monotonic() < 32


async def test_dispatches_are_committed_before_the_pending_reasons_of_a_long_queue(world: World) -> None:
    submit(world, *[9] * LARGEST_BATCH, 1)
    await dispatch_of(world).cycle()
    assert [len(batch) for batch in world.store.batches] == [LARGEST_BATCH, 1]
    assert world.store.batches[0][0] == (f"aw-{LARGEST_BATCH}", "dispatched")


async def test_noting_pending_reasons_of_a_long_queue_stops_for_news_and_goes_on_in_the_next_cycle(
    world: World,
) -> None:
    submit(world, *[9] * (2 * LARGEST_BATCH))
    dispatch = dispatch_of(world)
    dispatch.wake()
    await dispatch.cycle()
    assert [len(batch) for batch in world.store.batches] == [LARGEST_BATCH]

    await dispatch.cycle()
    await dispatch.cycle()
    assert [len(batch) for batch in world.store.batches] == [LARGEST_BATCH, LARGEST_BATCH]


async def test_gang_submitted_while_the_cycle_waits_is_not_dispatched_before_it_was_submitted(
    world: World,
) -> None:
    clusters = SlowToAnswer(world)
    await dispatch_of(world, clusters=clusters).cycle()
    record = world.record("uid-of-aw-0")
    assert attempt_of(record).decided_at == at(1) == world.now()
    # Its kind, which no cluster was asked about before, must not be taken for one that is not served.
    assert clusters.asked_about == [frozenset(), {WITH_A_JOB}]


class Shrinking(HubAlone):
    """Somebody else's pods take these cpus while a long queue is planned and committed: before these looks."""

    looks = 0

    def __init__(self, world: World, taken: Mapping[int, int] = MappingProxyType({2: 6})) -> None:
        super().__init__(world.cluster)
        self._world = world
        self._taken = taken

    def snapshots(self, requirements: Iterable[ClusterRequirements]) -> dict[str, ClusterSnapshot]:
        self.looks += 1
        if self.looks in self._taken:
            gang = make_gang(cpu=1000 * self._taken[self.looks])
            self._world.ledger.reserve(f"another-{self.looks}", gang)
        return super().snapshots(requirements)


def impatient(world: World, clusters: HubAlone) -> Scheduler:
    """Every look at its clock finds a slice over."""
    dispatch = dispatch_of(world, clusters=clusters)
    clock = count()
    dispatch._monotonic = lambda: float(next(clock))  # noqa: SLF001  # the clock of the slices alone
    return dispatch


async def test_placement_that_no_longer_fits_when_it_is_to_be_committed_is_left_to_the_next_cycle(
    world: World,
) -> None:
    submit(world, 2, 2)
    dispatch = impatient(world, Shrinking(world))
    await dispatch.cycle()
    assert phases(world) == {"aw-0": "Dispatching", "aw-1": "Queued"}
    assert world.ledger.free()["cpu"] == 0

    await dispatch.cycle()
    record = world.record("uid-of-aw-1")
    assert record.pending is not None
    assert record.pending.reason == "InsufficientResources"


async def test_placements_are_checked_and_committed_in_parts_by_the_clusters_of_each_moment(
    world: World,
) -> None:
    submit(world, 1, 1, 1, 9, 1)
    dispatch = impatient(world, Shrinking(world, {2: 1, 4: 5}))
    await dispatch.cycle()
    assert world.store.batches == [[("aw-0", "dispatched"), ("aw-3", "blocked")], [("aw-1", "dispatched")]]
    assert world.ledger.free()["cpu"] == 0
    assert dispatch._wake.is_set()  # noqa: SLF001  # what ends its pause


async def test_other_tasks_run_between_parts_that_commit_nothing(world: World) -> None:
    submit(world, 1, 1, 1, 1)
    dispatch = impatient(world, Shrinking(world, {2: 8}))
    check, turns, seen = dispatch._still_placed, itertools.count(), list[int]()  # noqa: SLF001

    async def other() -> None:
        while True:
            next(turns)
            await asyncio.sleep(0)

    def still_placed(*args: Any) -> Any:  # noqa: ANN401
        seen.append(next(turns))
        return check(*args)

    dispatch._still_placed = still_placed  # type: ignore[method-assign,assignment]  # noqa: SLF001
    async with running(other()):
        await dispatch.cycle()
    assert world.store.batches == []
    between = [later - earlier for earlier, later in itertools.pairwise(seen[:4])]
    assert len(between) == 3
    assert min(between) > 1


async def test_placements_are_committed_at_once_if_no_cluster_has_changed(world: World) -> None:
    submit(world, 1, 1, 1)
    await impatient(world, HubAlone(world.cluster)).cycle()
    assert [len(batch) for batch in world.store.batches] == [3]


async def test_gang_that_changes_while_the_queue_is_planned_is_left_to_the_next_cycle(world: World) -> None:
    submit(world, 1)
    dispatch = impatient(world, HubAlone(world.cluster))
    cycle = asyncio.create_task(dispatch.cycle())
    await asyncio.sleep(0)
    submit(world, 9)
    await cycle
    assert (phases(world), world.store.batches) == ({"aw-0": "Queued"}, [])

    await dispatch.cycle()
    assert world.store.batches == [[("aw-0", "blocked")]]


async def test_gang_that_came_with_a_plan_without_memory_is_decided_in_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatch = dispatch_of(world)
    await dispatch.cycle()
    submit(world, 1)

    def full(*_: object) -> None:
        raise MemoryError("once")

    with monkeypatch.context() as once:
        once.setattr(QueuedGangs, "put", full)
        with pytest.raises(MemoryError):
            await dispatch.cycle()
    await dispatch.cycle()
    assert phases(world) == {"aw-0": "Dispatching"}
