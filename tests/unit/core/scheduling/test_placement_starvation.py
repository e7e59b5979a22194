"""A large gang under a stream of small ones: how long it can be passed by, and what that costs the others."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.ordering import in_order
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.outcomes import Impossible, NotEvaluated, Placed, Waiting
from tests.builders import at, make_gang, make_record, make_snapshot, make_snapshots
from tests.one_queue import plan, starved

BOUND = timedelta(minutes=10)


def test_first_that_does_not_fit_is_the_head_and_only_that_one() -> None:
    large, larger, small = (
        make_record(name="large", gang=make_gang(cpu=3000)),
        make_record(name="larger", gang=make_gang(cpu=4000)),
        make_record(name="small", gang=make_gang(cpu=1000)),
    )
    ledger = CapacityLedger(FitMode.AGGREGATE)
    ledger.set_node(Node("n1", Resources({"cpu": 4000})))
    ledger.reserve("somebody", Gang(Resources({"cpu": 2000})))

    outcomes = plan([large, larger, small], make_snapshots(hub=ledger.snapshot()))

    assert [each.is_head for each in outcomes if isinstance(each, Waiting)] == [True, False]
    assert isinstance(outcomes[2], Placed)


def test_strict_queue_evaluates_no_gang_after_a_waiting_head() -> None:
    impossible, head, not_evaluated = (
        make_record(name="impossible", gang=make_gang(cpu=9000)),
        make_record(name="head", gang=make_gang(gpu=1)),
        make_record(name="behind", gang=make_gang(cpu=1000)),
    )
    ledger = CapacityLedger(FitMode.AGGREGATE)
    ledger.set_node(Node("n1", Resources({"cpu": 8000, "nvidia.com/gpu": 1})))
    ledger.reserve("somebody", Gang(Resources({"nvidia.com/gpu": 1})))

    outcomes = plan(
        [impossible, head, not_evaluated], make_snapshots(hub=ledger.snapshot()), QueueingStrategy.STRICT_FIFO
    )

    last = outcomes[2]
    assert [type(each) for each in outcomes] == [Impossible, Waiting, NotEvaluated]
    assert isinstance(last, NotEvaluated)
    assert last.pending.message == "behind default/head, which waits"


def test_reservation_of_a_starved_gang_is_its_demand_and_no_more() -> None:
    starving = make_record(name="starving", gang=make_gang(cpu=6000), blocked_since=at(0))
    fits_beside = make_record(name="fits-beside", gang=make_gang(cpu=1000))
    would_take_it = make_record(name="would-take-it", gang=make_gang(cpu=2000))
    other_resource = make_record(name="other-resource", gang=make_gang(gpu=1))
    ledger = CapacityLedger(FitMode.AGGREGATE)
    ledger.set_node(Node("n1", Resources({"cpu": 12000, "nvidia.com/gpu": 1})))
    ledger.reserve("somebody", Gang(Resources({"cpu": 7000})))
    queue = [would_take_it, fits_beside, starving, other_resource]

    outcomes = plan(queue, make_snapshots(hub=ledger.snapshot()), starved=starved(queue, at(601), BOUND))

    # 5 cpu are free, 6 are asked for: nothing of what is free may go to others, but the GPU may.
    assert [type(each) for each in outcomes] == [Waiting, Waiting, Waiting, Placed]
    assert isinstance(outcomes[0], Waiting)
    assert outcomes[0].pending.reason == "ReservedForAnother"
    assert "default/starving" in outcomes[0].pending.message


def test_starved_goes_first_even_before_a_higher_priority() -> None:
    starving = make_record(name="starving", gang=make_gang(cpu=4000), blocked_since=at(0))
    urgent = make_record(name="urgent", gang=make_gang(cpu=4000), priority=100)
    queue = in_order([starving, urgent], at(601))

    outcomes = plan(
        queue, make_snapshots(hub=make_snapshot(cpu=4000)), starved=starved(queue, at(601), BOUND)
    )

    assert {each.record.name: type(each) for each in outcomes} == {"starving": Placed, "urgent": Waiting}


def test_starved_keeps_one_cluster_and_leaves_the_others_open() -> None:
    starving = make_record(name="starving", gang=make_gang(cpu=8000), blocked_since=at(0))
    small = make_record(name="small", gang=make_gang(cpu=1000))
    clusters = {}
    for name in ("a", "b"):
        ledger = CapacityLedger(FitMode.AGGREGATE)
        ledger.set_node(Node("n1", Resources({"cpu": 8000})))
        ledger.reserve("somebody", Gang(Resources({"cpu": 4000})))
        clusters[name] = ledger.snapshot()
    queue = [starving, small]

    outcomes = plan(queue, make_snapshots(**clusters), starved=starved(queue, at(601), BOUND))

    assert isinstance(outcomes[0], Waiting)
    kept = "a (the free capacity there is reserved for default/starving, which has waited past the starvation bound)"
    assert outcomes[1] == Placed(small, "b", kept)


def test_no_capacity_is_reserved_for_a_gang_that_never_fits() -> None:
    never = make_record(name="never", gang=make_gang(cpu=9000), blocked_since=at(0))
    small = make_record(name="small", gang=make_gang(cpu=8000))

    outcomes = plan([never, small], make_snapshots(hub=make_snapshot(cpu=8000)), starved=[never.uid])

    assert isinstance(outcomes[0], Impossible)
    assert outcomes[1] == Placed(small, "hub")


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 30)), min_size=1, max_size=60))
def test_large_gang_starts_once_its_bound_is_over_whatever_keeps_arriving(
    stream: list[tuple[int, int]],
) -> None:
    """Small gangs of some cpus arrive one a tick and run for some ticks; the large one wants all eight."""
    bound = 20
    life = _Life(cpus=8, bound=timedelta(seconds=bound))
    life.arrive("large", cpus=8, ticks=1, tick=0, busy=True)
    for tick in range(bound + 2 * 30 + 2):
        cpus, ticks = stream[tick % len(stream)]
        life.arrive(f"small-{tick}", cpus, ticks, tick)
        life.step(tick)
        if "large" in life.started:
            break

    # Blocked within the first tick or two, protected `bound` later; nothing small runs longer than 30.
    assert life.started["large"] <= bound + 30 + 2


class _Life:
    """A cluster of one node, its queue, and time in ticks of a second."""

    def __init__(self, cpus: int, bound: timedelta) -> None:
        self.started: dict[str, int] = {}
        self._bound = bound
        self._ledger = CapacityLedger(FitMode.AGGREGATE)
        self._ledger.set_node(Node("n1", Resources({"cpu": cpus * 1000})))
        self._queue: dict[str, Record] = {}
        self._lengths: dict[str, int] = {}
        self._ends: dict[str, int] = {}

    def arrive(self, name: str, cpus: int, ticks: int, tick: int, busy: bool = False) -> None:
        record = make_record(name=name, gang=make_gang(cpu=cpus * 1000))
        self._queue[record.uid] = replace(record, enqueue_seq=tick, created_at=at(tick))
        self._lengths[record.uid] = ticks
        if busy:
            self._ledger.reserve("earlier", Gang(Resources({"cpu": 1000})))
            self._ends["earlier"] = 3

    def step(self, tick: int) -> None:
        for uid in [uid for uid, end in self._ends.items() if end <= tick]:
            self._ledger.release(uid)
            del self._ends[uid]
        queue = in_order(self._queue.values(), at(tick))
        protected = starved(queue, at(tick), self._bound)
        for outcome in plan(queue, make_snapshots(hub=self._ledger.snapshot()), starved=protected):
            self._carry_out(outcome, tick)

    def _carry_out(self, outcome: object, tick: int) -> None:
        match outcome:
            case Placed(record, _):
                self._ledger.reserve(record.uid, record.gang)
                self._ends[record.uid] = tick + self._lengths[record.uid]
                self.started[record.name] = tick
                del self._queue[record.uid]
            case Waiting(record, pending, is_head):
                change = queue_changes.block(record, pending, at(tick), is_head=is_head)
                if change:
                    self._queue[record.uid] = change.after
