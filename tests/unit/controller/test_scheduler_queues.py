"""Scheduling cycles over declared queues: a preemption is committed whole or not at all, and no gang is lost."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Iterable
from fractions import Fraction
from traceback import walk_stack
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api.selector import parse_selector
from dispatcher.controller.scheduling.committer import LARGEST_BATCH
from dispatcher.controller.scheduling.queue_cycles import QueueCycles
from dispatcher.controller.scheduling.scheduler import NONE_DECLARED, Lookups, Rules, Scheduler
from dispatcher.core.lifecycle import queue_changes, removal, run_changes
from dispatcher.core.model import incremental
from dispatcher.core.model.records.record import Change, Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.queues.declared_queues import DeclaredQueues, DispatchQueue
from dispatcher.core.queues.forest import Defaults, Forest
from dispatcher.core.queues.queue import (
    Access,
    Order,
    Preemption,
    Queue,
    Quota,
    Reclaim,
    Sharing,
    StopPolicy,
    WithinQueue,
)
from dispatcher.core.scheduling.cycle.outcomes import Impossible, Placed
from dispatcher.core.scheduling.cycle.queue_planner import QueueRules
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.sharing.gangs import RecentUse
from dispatcher.errors import StoreUnavailable
from dispatcher.probes import Metrics
from tests.builders import at, attempt_of, make_core_node, make_gang, make_record
from tests.unit.controller.test_scheduler import HubAlone, Shrinking, phases
from tests.unit.controller.world import World
from tests.unit.virtual_time import monotonic, until
from tests.unit.workers import running

ORG = Queue("org", None, {"cpu": Quota(8000)})
OF_A = Queue("a", "org", {"cpu": Quota(4000)})
TEAMS = (
    Queue("org"),
    Queue("a", "org", {"cpu": Quota(6000)}, preemption=Preemption(reclaim=Reclaim.ANY)),
    Queue("b", "org", {"cpu": Quota(2000)}),
)
"""Two teams share the hub's 8 cpus: `a` gets back what `b` borrows."""
NO_USE: RecentUse = {}
START = 100
"""Seconds after the dispatch of all that runs."""
WHY = (
    "preempted for default/owner (queue a, priority 0): "
    "its queue uses more than its quota, which the other queue takes back"
)


async def none_is_finished(_record: Record) -> Collection[int]:
    return ()


def scheduler_of(
    world: World,
    queues: tuple[Queue, ...] | None = TEAMS,
    *,
    forest: Forest | None = None,
    usage: RecentUse = NO_USE,
    clusters: HubAlone | None = None,
    is_unchanged: Callable[[Record], bool] = lambda _record: True,
    finished_items: Callable[[Record], Awaitable[Collection[int]]] = none_is_finished,
) -> Scheduler:
    declared = NONE_DECLARED.forest if queues is None else Forest.of(queues)
    rules = QueueRules(forest or declared, usage=usage)
    for reflector in (world.cluster._nodes, world.cluster._pods):  # noqa: SLF001  # as if both were listed
        reflector.synced.set()
    return Scheduler(
        world.cache,
        world.committer,
        clusters or HubAlone(world.cluster),
        Lookups(is_unchanged, lambda: rules, finished_items),
        on_decided=world.taken_in.append,
        now=lambda: at(START + monotonic()),
        metrics=Metrics(),
        rules=Rules(),
        monotonic=monotonic,
    )


def put(world: World, name: str, cpu: int, queue: str, phase: Phase = Phase.QUEUED, **fields: Any) -> Record:  # noqa: ANN401
    seq = len(world.cache.uids()) + 1
    record = make_record(phase, name, gang=make_gang(cpu=1000 * cpu), queue=queue, enqueue_seq=seq, **fields)
    world.cache.put(record)
    return record


def borrowed(world: World) -> tuple[Record, Record, Record]:
    """Two gangs of `b` run on all of the hub, and one of `a` comes back for the 4 cpus that are its own."""
    first = put(world, "first", 4, "b", Phase.RUNNING)
    second = put(world, "second", 4, "b", Phase.RUNNING)
    return first, second, put(world, "owner", 6, "a")


def reason_of(world: World, record: Record) -> str:
    pending = world.record(record.uid).pending
    return pending.reason if pending else ""


def is_woken(scheduler: Scheduler) -> bool:
    return scheduler._wake.is_set()  # noqa: SLF001  # what ends its pause


async def test_gangs_go_as_far_as_their_queues_have_quota(world: World) -> None:
    for name in ("one", "two"):
        put(world, name, 2, "b")
    put(world, "three", 2, "c")
    await scheduler_of(world, (Queue("b", None, {"cpu": Quota(3000)}),)).cycle()

    assert phases(world) == {"one": "Dispatching", "two": "Queued", "three": "Queued"}
    assert world.store.batches == [[("one", "dispatched"), ("two", "blocked"), ("three", "blocked")]]
    told = {record.name: record.pending.reason for record in world.cache.records() if record.pending}
    assert told == {"two": "InsufficientQuota", "three": "QueueNotFound"}


async def test_gang_that_ends_during_a_plan_counts_for_its_estimates_of_ends(world: World) -> None:
    """It is not in the free room of the snapshots either, so without its end there would seem to be no hope."""
    runs = put(world, "runs", 6, "default", Phase.RUNNING, expected_seconds=3600)
    starved = put(world, "starved", 4, "default", blocked_since=at(START - 600))
    scheduler_of(world)  # its cluster is ready
    snapshots = HubAlone(world.cluster).snapshots(())
    steps = QueueCycles(world.cache).plan_in_steps(NONE_DECLARED, snapshots, at(START))
    world.cache.put(replace(runs, phase=Phase.DELETED))
    incremental.run(steps)
    reservation = world.cache.backfills.room.reservations[starved.uid]
    assert (reservation.cluster, reservation.is_hopeful) == ("hub", True)


async def test_gangs_that_run_are_gathered_only_while_a_gang_waits_past_a_starvation_bound(
    world: World,
) -> None:
    runs, waits = put(world, "runs", 6, "default", Phase.RUNNING), put(world, "waits", 4, "default")
    scheduler_of(world)  # its cluster is ready
    cycles, snapshots = QueueCycles(world.cache), HubAlone(world.cluster).snapshots(())

    def gathered() -> list[Record]:
        cycles.plan_in_steps(NONE_DECLARED, snapshots, at(START))
        return list(world.cache.backfills.room.running.in_cluster("hub"))

    assert gathered() == []
    world.cache.put(replace(waits, blocked_since=at(START - 599)))
    assert gathered() == []
    world.cache.put(replace(waits, blocked_since=at(START - 600)))
    assert gathered() == [runs]


async def test_labels_of_namespaces_that_change_during_a_plan_count_in_the_next_one(world: World) -> None:
    put(world, "waits", 1, "b")
    scheduler_of(world)  # its cluster is ready
    namespaces = {"default": {"team": "b"}}
    rules = QueueRules(Forest.of([Queue("b", namespace_selector=parse_selector("team=b", ""))]), namespaces)
    cycles = QueueCycles(world.cache)
    for outcome in (Placed, Impossible):
        steps = cycles.plan_in_steps(rules, HubAlone(world.cluster).snapshots(()), at(START))
        namespaces.clear()
        (found,) = incremental.run(steps).others
        assert isinstance(found, outcome)
        world.cache.put(replace(found.record, version=found.record.version + 1))


@pytest.mark.parametrize(
    ("order", "first"),
    [
        pytest.param(Order.USAGE, "idle", id="who used less"),
        pytest.param(Order.PRIORITY, "busy", id="whose priority is higher"),
    ],
)
async def test_the_order_of_a_queue_decides_which_gang_goes_first(
    world: World, order: Order, first: str
) -> None:
    put(world, "busy", 2, "b", namespace="busy", priority=10)
    put(world, "idle", 2, "b", namespace="idle")
    queue = Queue("b", None, {"cpu": Quota(3000)}, order=order)
    usage = {("b", "busy"): Fraction(3, 2), ("b", "idle"): Fraction(1), ("a", "idle"): Fraction(9)}
    await scheduler_of(world, (queue,), usage=usage).cycle()

    assert [name for name, phase in phases(world).items() if phase == "Dispatching"] == [first]


async def test_preemption_is_one_transaction_of_the_victims_and_their_preemptor(world: World) -> None:
    first, second, owner = borrowed(world)
    await scheduler_of(world).cycle()

    (group,) = world.store.groups
    assert group[0] == ("owner", "preempting")
    assert sorted(group[1:]) == [("first", "preempted"), ("second", "preempted")]
    assert world.store.batches == []  # nothing more is news
    assert set(world.taken_in) == {first.uid, second.uid, owner.uid}
    preemptor = world.record(owner.uid)
    assert preemptor.pending is not None
    assert (preemptor.is_preempting, preemptor.pending.reason) == (True, "AwaitingRelease")
    for victim in map(world.record, (first.uid, second.uid)):
        assert (victim.phase, attempt_of(victim).preempted_by) == (Phase.REQUEUEING, owner.uid)
        assert (victim.reason, victim.message) == ("QuotaReclaimed", WHY)
    assert world.ledger.free()["cpu"] == 0  # until their pods are confirmed gone


@pytest.mark.parametrize("sharing", Sharing)
async def test_a_gang_preempts_in_a_tree_of_a_thousand_queues_two_hundred_deep_without_recursion(
    world: World, sharing: Sharing
) -> None:
    def inner(chain: str, depth: int) -> Queue:
        return Queue(f"{chain}-{depth}", f"{chain}-{depth - 1}" if depth else "org", {"cpu": Quota(4000)})

    chains = (inner(chain, depth) for chain in "abcde" for depth in range(199))
    leaves = (
        Queue(name, f"{name}-198", {"cpu": Quota(4000)}, preemption=Preemption(reclaim=Reclaim.ANY))
        for name in "abcde"
    )
    queues = (Queue("org", sharing=sharing), *leaves, *chains)
    first, second, owner = borrowed(world)
    own = put(world, "own", 4, "a")
    scheduler = scheduler_of(world, queues)

    deepest = sys.getrecursionlimit()
    sys.setrecursionlimit(sum(1 for _ in walk_stack(None)) + 100)  # less than the depth of the tree
    try:
        await scheduler.cycle()
    finally:
        sys.setrecursionlimit(deepest)

    assert reason_of(world, own) == "AwaitingRelease"
    assert reason_of(world, owner) == "InsufficientResources"
    assert sorted(world.record(each.uid).phase for each in (first, second)) == [
        Phase.REQUEUEING,
        Phase.RUNNING,
    ]


async def test_message_of_a_victim_names_all_queues_of_a_preemptor_in_several_trees(world: World) -> None:
    tree = Queue("t/gold", None, {"cpu": Quota(8000)}, preemption=Preemption(WithinQueue.LOWER_PRIORITY))
    low = put(world, "low", 6, "default", Phase.RUNNING, more_queues=("t/gold",))
    put(world, "high", 6, "default", more_queues=("t/gold",), priority=7)
    await scheduler_of(world, (tree,)).cycle()

    assert world.record(low.uid).message == (
        "preempted for default/high (queues default, t/gold, priority 7): "
        "in its own queue the other gang goes first"
    )


async def test_preemptor_goes_first_when_its_victims_are_gone_and_they_come_back_by_their_age(
    world: World,
) -> None:
    first, second, owner = borrowed(world)
    scheduler = scheduler_of(world)
    await scheduler.cycle()
    world.cache.put(removal.removed(world.record(first.uid), at(START)).after)
    await scheduler.cycle()
    assert phases(world) == {"first": "Queued", "second": "Requeueing", "owner": "Queued"}

    world.cache.put(removal.removed(world.record(second.uid), at(START)).after)
    async with running(scheduler.run()):
        await until(lambda: world.record(owner.uid).phase is Phase.DISPATCHING)
        await until(lambda: reason_of(world, first) == "InsufficientQuota")
    assert phases(world) == {"first": "Queued", "second": "Queued", "owner": "Dispatching"}
    assert not world.record(owner.uid).is_preempting
    assert len(world.store.groups) == 1


async def test_second_cycle_preempts_no_gang_for_capacity_that_is_being_released(world: World) -> None:
    borrowed(world)
    scheduler = scheduler_of(world)
    await scheduler.cycle()
    groups = list(world.store.groups)
    await scheduler.cycle()
    await scheduler.cycle()
    assert world.store.groups == groups
    assert world.store.batches == []  # nothing more is news


async def test_changed_row_of_a_victim_stops_the_preemption_and_the_next_cycle_decides_again(
    world: World,
) -> None:
    _, second, owner = borrowed(world)

    def moved(change: Change) -> str:
        """Another commit was faster, and its record is in the cache by now."""
        if change.after.name != "second":
            return ""
        noted = run_changes.note_health_issue(second, "Drifted", "one field was changed", at(5)).after
        world.cache.put(noted)
        return "stale"

    world.store.verdict = moved
    scheduler = scheduler_of(world)
    await scheduler.cycle()
    assert phases(world) == {"first": "Running", "second": "Running", "owner": "Queued"}
    assert not world.record(owner.uid).is_preempting
    assert world.taken_in == []
    assert is_woken(scheduler)

    world.store.verdict = lambda _change: ""
    await scheduler.cycle()
    assert phases(world) == {"first": "Requeueing", "second": "Requeueing", "owner": "Queued"}
    assert world.record(owner.uid).is_preempting


@pytest.mark.parametrize("of", ["owner", "second"])
async def test_group_with_a_record_that_changed_after_the_plan_is_not_committed(
    world: World, of: str
) -> None:
    *_, second, owner = borrowed(world)

    async def is_late(_record: Record) -> Collection[int]:
        """The user is faster than the look at what the victims have finished."""
        if of == "owner":
            world.cache.put(queue_changes.suspend(owner, at(6)).after)
        else:
            world.cache.put(removal.delete(second, at(6)).after)
        return ()

    scheduler = scheduler_of(world, finished_items=is_late)
    await scheduler.cycle()
    assert world.store.groups == []
    assert is_woken(scheduler)


class Growing(HubAlone):
    """A node of so many cpus joins the hub while a cycle is planned: before the second look."""

    looks = 0

    def __init__(self, world: World, cpu: int) -> None:
        super().__init__(world.cluster)
        self._world, self._cpu = world, cpu

    def snapshots(self, requirements: Iterable[ClusterRequirements]) -> dict[str, ClusterSnapshot]:
        self.looks += 1
        if self.looks == 2:
            self._world.ledger.set_node(make_core_node("n2", cpu=1000 * self._cpu))
        return super().snapshots(requirements)


@pytest.mark.parametrize(
    ("cpu", "phase"),
    [
        pytest.param(6, Phase.DISPATCHING, id="there-is-room-now"),
        pytest.param(5, Phase.QUEUED, id="there-is-still-too-little"),
    ],
)
async def test_no_gang_is_preempted_for_a_gang_that_fits_since_the_plan(
    world: World, cpu: int, phase: Phase
) -> None:
    put(world, "first", 8, "a", Phase.RUNNING)
    owner = put(world, "owner", 6, "a", priority=10)
    queue = Queue("a", preemption=Preemption(within_queue=WithinQueue.LOWER_PRIORITY))
    scheduler = scheduler_of(world, (queue,), clusters=Growing(world, cpu))
    await scheduler.cycle()
    assert is_woken(scheduler)
    await scheduler.cycle()
    assert world.record(owner.uid).phase is phase
    assert len(world.store.groups) == (0 if phase is Phase.DISPATCHING else 1)


async def test_room_that_was_there_when_the_plan_began_delays_no_preemption_for_quota(world: World) -> None:
    world.ledger.set_node(make_core_node("n0", cpu=8000))
    put(world, "first", 6, "b", Phase.RUNNING)
    put(world, "owner", 6, "a")
    limited = (replace(TEAMS[0], resources={"cpu": Quota(8000)}), *TEAMS[1:])
    await scheduler_of(world, limited, clusters=Growing(world, 8)).cycle()
    assert len(world.store.groups) == 1


CHANGED_QUEUES = [
    pytest.param("a", {"stop_policy": StopPolicy.HOLD}, True, id="held"),
    pytest.param("a", {"resources": {"cpu": Quota(5000)}}, True, id="lowered"),
    pytest.param("org", {"stop_policy": StopPolicy.HOLD}, True, id="queue-above-held"),
    pytest.param("other", {"stop_policy": StopPolicy.HOLD}, False, id="another-queue"),
]


def declare_later(scheduler: Scheduler, queues: tuple[Queue, ...], name: str, fields: dict[str, Any]) -> None:
    """Change a queue while the scheduler plans: after the plan has read the queues."""
    plan, first = scheduler._queue_cycles.plan_in_steps, True  # noqa: SLF001  # the moment of the plan
    changed = tuple(replace(each, **fields) if each.name == name else each for each in queues)

    def plan_in_steps(rules: QueueRules, *args: Any) -> Any:  # noqa: ANN401
        nonlocal first
        steps = plan(rules, *args)
        if first:
            first, later = False, QueueRules(Forest.of(changed))
            scheduler._lookups = replace(scheduler._lookups, queues=lambda: later)  # noqa: SLF001
        return steps

    scheduler._queue_cycles.plan_in_steps = plan_in_steps  # type: ignore[method-assign,assignment]  # noqa: SLF001


@pytest.mark.parametrize(("name", "fields", "drops"), CHANGED_QUEUES)
async def test_gang_is_placed_anew_if_its_queue_changes_during_the_plan(
    world: World, name: str, fields: dict[str, Any], drops: bool
) -> None:
    queues = (*TEAMS, Queue("other"))
    owner = put(world, "owner", 6, "a")
    scheduler = scheduler_of(world, queues)
    declare_later(scheduler, queues, name, fields)
    await scheduler.cycle()
    assert world.record(owner.uid).phase is (Phase.QUEUED if drops else Phase.DISPATCHING)
    assert is_woken(scheduler)


@pytest.mark.parametrize(("name", "fields", "drops"), CHANGED_QUEUES)
async def test_no_gang_is_preempted_for_a_queue_that_changes_during_the_plan(
    world: World, name: str, fields: dict[str, Any], drops: bool
) -> None:
    queues = (*TEAMS, Queue("other"))
    borrowed(world)
    scheduler = scheduler_of(world, queues)
    declare_later(scheduler, queues, name, fields)
    await scheduler.cycle()
    assert len(world.store.groups) == (0 if drops else 1)
    assert is_woken(scheduler)


async def test_no_gang_is_preempted_for_a_gang_that_its_user_suspends(world: World) -> None:
    borrowed(world)
    scheduler = scheduler_of(world, is_unchanged=lambda record: record.name != "owner")
    await scheduler.cycle()
    assert world.store.groups == []
    assert not is_woken(scheduler)  # the reconciler does, once it has committed what the user asks for


async def test_preemption_that_the_database_cannot_hold_is_left_to_the_slow_poll(world: World) -> None:
    borrowed(world)
    world.store.verdict = lambda change: "NUL in a name" if change.after.name == "second" else ""
    scheduler = scheduler_of(world)
    async with running(scheduler.run()):
        await until(lambda: len(world.store.groups) == 3)
    assert monotonic() >= 2 * Rules().most
    assert phases(world) == {"first": "Running", "second": "Running", "owner": "Queued"}


async def test_group_that_raises_does_not_end_the_cycle_of_the_others(
    world: World, counted: Callable[[str], int]
) -> None:
    put(world, "first", 6, "b", Phase.RUNNING)
    put(world, "owner", 6, "a")
    put(world, "other", 2, "c")

    async def unreadable(_record: Record) -> Collection[int]:
        raise KeyError("no such spec")

    scheduler = scheduler_of(world, (*TEAMS, Queue("c")), finished_items=unreadable)
    await scheduler.cycle()
    assert phases(world) == {"first": "Running", "owner": "Queued", "other": "Dispatching"}
    assert (counted("scheduler"), is_woken(scheduler)) == (1, True)  # another gang was dispatched
    scheduler._wake.clear()  # noqa: SLF001  # as `run` does
    await scheduler.cycle()
    assert (counted("scheduler"), is_woken(scheduler)) == (2, False)


async def test_lost_store_ends_the_cycle_because_the_cache_may_be_stale(world: World) -> None:
    borrowed(world)

    async def lost(_record: Record) -> Collection[int]:
        raise StoreUnavailable("gone")

    with pytest.raises(StoreUnavailable):
        await scheduler_of(world, finished_items=lost).cycle()


async def test_items_that_a_victim_has_finished_stay_done(world: World) -> None:
    borrowed(world)

    async def first_item(record: Record) -> Collection[int]:
        return (0,) if record.name == "first" else ()

    await scheduler_of(world, finished_items=first_item).cycle()
    done = {
        record.name: [ref.done for ref in record.attempt.objects]
        for record in world.cache.records()
        if record.attempt
    }
    assert done == {"first": [True], "second": [False]}


async def test_placement_is_compared_with_its_cluster_again_after_a_preemption_was_committed(
    world: World,
) -> None:
    put(world, "first", 4, "b", Phase.RUNNING)
    put(world, "owner", 6, "a")
    put(world, "small", 2, "c")
    scheduler = scheduler_of(world, (*TEAMS, Queue("c")), clusters=Shrinking(world))
    await scheduler.cycle()
    assert len(world.store.groups) == 1
    assert phases(world)["small"] == "Queued"
    assert is_woken(scheduler)


# --- drained queues ------------------------------------------------------------------------------------

DRAINED = (Queue("b", stop_policy=StopPolicy.HOLD_AND_DRAIN),)


async def test_drained_queue_gives_its_gangs_back_each_by_itself(world: World) -> None:
    first, second = put(world, "first", 2, "b", Phase.RUNNING), put(world, "second", 2, "b", Phase.DISPATCHED)
    put(world, "third", 2, "b", Phase.DISPATCHING)
    put(world, "fourth", 1, "b")
    await scheduler_of(world, DRAINED).cycle()

    assert phases(world) == {
        "first": "Requeueing",
        "second": "Requeueing",
        "third": "Dispatching",  # once it is created
        "fourth": "Queued",
    }
    assert world.store.groups == []
    for victim in map(world.record, (first.uid, second.uid)):
        assert (victim.reason, attempt_of(victim).preempted_by, victim.preempted_at) == (
            "QueueStopped",
            "",
            (),
        )
        assert victim.message == "its queue b is stopped and drained"
        assert (victim.requeuings, victim.retries, victim.requeuing_seconds) == (0, 0, 0)
    assert sorted(world.store.batches[0]) == [("first", "evicted"), ("second", "evicted")]


async def test_gangs_stay_if_their_queue_is_opened_again_before_they_are_drained(world: World) -> None:
    runs = put(world, "runs", 4, "b", Phase.RUNNING)
    scheduler = scheduler_of(world, DRAINED)
    declare_later(scheduler, DRAINED, "b", {"stop_policy": StopPolicy.NONE})
    await scheduler.cycle()
    assert world.record(runs.uid).phase is Phase.RUNNING
    assert is_woken(scheduler)


async def test_gang_leaves_a_drained_queue_though_its_other_queue_changes_all_the_time(world: World) -> None:
    queues = (*DRAINED, Queue("mine"))
    gangs = (put(world, "other", 1, "b", Phase.RUNNING), put(world, "of-both", 1, "b", Phase.RUNNING))
    world.cache.put(replace(gangs[1], more_queues=("mine",)))
    scheduler = scheduler_of(world, queues)
    declare_later(scheduler, queues, "mine", {"resources": {"cpu": Quota(9000)}})
    await scheduler.cycle()
    assert phases(world) == {"other": "Requeueing", "of-both": "Requeueing"}


async def test_gang_that_changes_while_its_queue_is_drained_keeps_no_other_from_leaving(world: World) -> None:
    gangs = [put(world, f"aw-{index}", 1, "b", Phase.RUNNING) for index in range(3)]

    async def deletes_one(record: Record) -> Collection[int]:
        if record.name == "aw-1":
            world.cache.put(removal.delete(gangs[1], at(6)).after)
        return ()

    world.store.verdict = lambda change: "stale" if change.before is gangs[1] else ""
    scheduler = scheduler_of(world, DRAINED, finished_items=deletes_one)
    await scheduler.cycle()
    assert phases(world) == {"aw-0": "Requeueing", "aw-1": "Deleting", "aw-2": "Requeueing"}
    assert is_woken(scheduler)


async def test_long_queue_is_drained_in_transactions_of_a_bounded_size(world: World) -> None:
    for index in range(LARGEST_BATCH + 1):
        put(world, f"aw-{index}", 0, "b", Phase.RUNNING)
    await scheduler_of(world, DRAINED).cycle()
    assert [len(batch) for batch in world.store.batches] == [LARGEST_BATCH, 1]
    assert world.store.groups == []


async def test_a_dispatch_is_followed_by_another_cycle_until_nothing_changes(world: World) -> None:
    """What a cycle changes may let a class go that it had refused before."""
    for name in ("one", "two"):
        put(world, name, 2, "b")
    scheduler = scheduler_of(world, (Queue("b", None, {"cpu": Quota(3000)}),))
    await scheduler.cycle()
    assert (phases(world)["one"], is_woken(scheduler)) == ("Dispatching", True)
    scheduler._wake.clear()  # noqa: SLF001  # as `run` does
    await scheduler.cycle()
    assert not is_woken(scheduler)


LAST = {"a": OF_A, "b": Queue("b", "org", {"cpu": Quota(2000)})}
"""The last valid declarations of queues."""


@pytest.mark.parametrize(
    "queues",
    [
        pytest.param((ORG, OF_A), id="deleted"),
        pytest.param((ORG, OF_A, Queue("b", "orgg", {"cpu": Quota(4000)})), id="its parent is misspelt"),
    ],
)
async def test_gang_of_a_queue_that_is_not_valid_any_more_stays_charged_in_the_tree(
    world: World, queues: tuple[Queue, ...]
) -> None:
    world.ledger.set_node(make_core_node("n2", cpu=32000))
    put(world, "b-runs", 4, "b", Phase.RUNNING)
    owner = put(world, "a-wants", 8, "a")
    forest = DeclaredQueues.of(map(DispatchQueue, queues), (), last=LAST).forest
    await scheduler_of(world, forest=forest).cycle()

    assert phases(world) == {"b-runs": "Running", "a-wants": "Queued"}
    assert reason_of(world, owner) == "InsufficientQuota"


async def test_gang_that_names_a_queue_waits_for_it_on_a_hub_without_queues(world: World) -> None:
    named = put(world, "named", 2, "b")
    put(world, "plain", 2, "default")
    await scheduler_of(world, None).cycle()
    assert phases(world) == {"named": "Queued", "plain": "Dispatching"}
    assert reason_of(world, named) == "QueueNotFound"

    await scheduler_of(world, (Queue("b"),)).cycle()
    assert phases(world) == {"named": "Dispatching", "plain": "Dispatching"}


async def test_label_names_no_queue_where_none_is_declared_and_queues_are_open(world: World) -> None:
    """As `DISPATCHER_QUEUE_ACCESS=open` says."""
    put(world, "named", 2, "b")
    undeclared = Forest.undeclared(Defaults(access=Access.OPEN))
    await scheduler_of(world, None, forest=undeclared).cycle()
    assert phases(world) == {"named": "Dispatching"}

    put(world, "later", 2, "c")
    await scheduler_of(world, (Queue("b"),)).cycle()
    assert phases(world) == {"named": "Dispatching", "later": "Queued"}
