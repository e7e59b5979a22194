"""Estimated starts against the dispatcher's own cycles, played minute by minute with the durations kept exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.lifecycle import removal
from dispatcher.core.model.records.record import Record
from dispatcher.core.queues.queue import Queue, QueueingStrategy, Quota
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.cycle import Drained
from dispatcher.core.scheduling.cycle.outcome_changes import change_of
from dispatcher.core.scheduling.cycle.outcomes import Placed
from dispatcher.core.scheduling.explain.estimates import Estimate, UnknownStart, Why, estimated_starts
from dispatcher.core.scheduling.explain.leader_snapshot import ClusterFacts, SchedulingRules, world_of
from dispatcher.core.scheduling.explain.world_facts import Cluster
from dispatcher.core.scheduling.fit.backfill import Backfill, Backfills, Running
from dispatcher.core.scheduling.fit.backfill_reservation import Bounds
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.fit.estimated_ends import stated_end
from tests.builders import NOW, make_core_node, make_gang, make_record
from tests.one_queue import Cycles

MINUTE = timedelta(minutes=1)
STARVATION = 5 * MINUTE
WARM_UP = 12
"""Minutes in which gangs arrive."""
Durations = tuple[int, int]


@dataclass(frozen=True)
class Arrival:
    """A gang that arrives in a minute; durations are in minutes, 0 for none."""

    minute: int
    pods: int
    cpu: int
    priority: int
    expected: int
    limit: int
    queue: str = "default"

    def record(self, number: int) -> Record:
        """The gang, just submitted."""
        name = f"g{number:02}"
        return replace(
            make_record(name=name, uid=name, gang=make_gang(self.pods, cpu=self.cpu)),
            created_at=NOW + self.minute * MINUTE,
            enqueue_seq=number + 1,
            priority=self.priority,
            expected_seconds=60 * self.expected,
            limit_seconds=60 * self.limit,
            queue=self.queue,
        )


DURATIONS = st.sampled_from([(7, 0), (0, 20), (11, 30), (30, 9), (3, 0), (0, 45)])
MAYBE_ENDLESS = st.sampled_from([(7, 0), (0, 20), (0, 0), (3, 0), (30, 9)])


def arrivals(durations: st.SearchStrategy[Durations], *queues: str) -> st.SearchStrategy[list[Arrival]]:
    """Gangs of at most the size of the smallest cluster."""
    one = st.builds(
        lambda minute, pods, cpu, priority, lasts, queue: Arrival(
            minute, pods, cpu, priority, lasts[0], lasts[1], queue
        ),
        st.integers(0, WARM_UP),
        st.integers(1, 3),
        st.integers(1, 4),
        st.sampled_from([0, 0, 0, 1]),
        durations,
        st.sampled_from(queues or ("default",)),
    )
    return st.lists(one, min_size=4, max_size=12)


CLUSTERS = st.sampled_from(
    [{"hub": [4, 4, 4]}, {"hub": [8, 5, 5]}, {"east": [4, 4, 4], "west": [6, 6, 4]}],
)
"""The free cpus of each node."""


@dataclass
class Leader:
    """A leader's cache over clusters in which every gang ends when it says so; a cycle follows each change."""

    clusters: Mapping[str, list[int]]
    policy: QueueingStrategy
    now: datetime = NOW
    starts: dict[str, datetime] = field(default_factory=dict)
    cache: Cache = field(init=False)
    _cycles: Cycles = field(init=False)
    _ledgers: dict[str, CapacityLedger] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, cpus in self.clusters.items():
            ledger = self._ledgers[name] = CapacityLedger(FitMode.NODE)
            for number, cpu in enumerate(cpus):
                ledger.set_node(make_core_node(f"n{number}", cpu=cpu))
        self.cache = Cache(self._ledgers, bounds=Bounds(rest=STARVATION))
        self._cycles = Cycles(self.cache.pending_queue, self.cache.backfills)

    def pass_minute(self, arrived: Iterable[Record] = ()) -> None:
        """One minute later: gangs end, gangs arrive, and cycles follow until one changes nothing."""
        for record in list(self.cache.records()):
            if record.holds_capacity and stated_end(record, self.now) == self.now + MINUTE:
                deleting = removal.delete(record, self.now + MINUTE).after
                self.cache.put(deleting)
                self.cache.put(removal.release(deleting, self.now + MINUTE).after)
        self.now += MINUTE
        for record in arrived:
            self.cache.put(record)
        while self._cycle():
            pass

    def _cycle(self) -> bool:
        snapshots = {name: ClusterSnapshot(name, each.snapshot()) for name, each in self._ledgers.items()}
        self.cache.gather_running(snapshots)
        outcomes = self._cycles.plan(snapshots, self.policy, STARVATION, self.now)
        changes = [change for each in outcomes if (change := change_of(each, self.now))]
        for change in changes:
            self.cache.put(change.after)
        for outcome in outcomes:
            if isinstance(outcome, Placed):
                self.starts[outcome.record.uid] = self.now
        return bool(changes)

    def estimates(self) -> dict[str, Estimate]:
        """The estimates from what the leader knows now, for all pending gangs."""
        rules = SchedulingRules(self.policy, starvation_bound=STARVATION)
        kept = self.cache.backfills.room.reservations
        facts = [
            ClusterFacts(
                Cluster(name, tuple(each.nodes())),
                rules=rules,
                reservations={uid: found for uid, found in kept.items() if found.cluster == name},
            )
            for name, each in self._ledgers.items()
        ]
        records = {each.uid: each for each in self.cache.records()}
        world = world_of(facts, records.values(), (), self.now)
        return dict(estimated_starts(world, records, [each.uid for each in world.pending], 10**9).starts)

    def check_capacity(self) -> None:
        """No cluster has given more than it has."""
        for ledger in self._ledgers.values():
            assert all(amount >= 0 for amount in ledger.free().values())


def warmed_up(clusters: Mapping[str, list[int]], policy: QueueingStrategy, gangs: list[Arrival]) -> Leader:
    """A leader some minutes after its first gang arrived."""
    leader = Leader(clusters, policy)
    records = [each.record(number) for number, each in enumerate(gangs)]
    for minute in range(1, WARM_UP + 2):
        leader.pass_minute(
            [record for record, each in zip(records, gangs, strict=True) if each.minute + 1 == minute]
        )
    return leader


def known_of(estimates: Mapping[str, Estimate]) -> dict[str, datetime]:
    """The starts that are known."""
    return {uid: each for uid, each in estimates.items() if isinstance(each, datetime)}


def played(leader: Leader, until: datetime) -> dict[str, datetime]:
    """The starts up to a time, if each gang runs for as long as it states and nothing arrives any more."""
    while leader.now < until:
        leader.pass_minute()
        leader.check_capacity()
    return leader.starts


@settings(max_examples=30)
@given(CLUSTERS, st.sampled_from(QueueingStrategy), arrivals(DURATIONS))
def test_gangs_that_all_state_their_durations_start_when_they_are_estimated_to(
    clusters: dict[str, list[int]], policy: QueueingStrategy, gangs: list[Arrival]
) -> None:
    leader = warmed_up(clusters, policy, gangs)
    known = known_of(leader.estimates())
    assert known.keys() == {each.uid for each in leader.cache.queued()}
    found = played(leader, max(known.values(), default=leader.now))
    assert known == {uid: found.get(uid) for uid in known}


@settings(max_examples=30)
@given(CLUSTERS, st.sampled_from(QueueingStrategy), arrivals(MAYBE_ENDLESS))
def test_no_estimate_depends_on_the_end_of_a_gang_that_states_none(
    clusters: dict[str, list[int]], policy: QueueingStrategy, gangs: list[Arrival]
) -> None:
    leader = warmed_up(clusters, policy, gangs)
    known = known_of(leader.estimates())
    found = played(leader, max(known.values(), default=leader.now))
    assert known == {uid: found.get(uid) for uid in known}


@settings(max_examples=20)
@given(CLUSTERS, arrivals(DURATIONS), st.data())
def test_without_the_duration_of_a_holder_no_estimate_relies_on_its_end(
    clusters: dict[str, list[int]], gangs: list[Arrival], data: st.DataObject
) -> None:
    leader = warmed_up(clusters, QueueingStrategy.STRICT_FIFO, gangs)
    holders = [each for each in leader.cache.records() if each.holds_capacity]
    for each in holders:
        leader.cache.put(replace(each, expected_seconds=0, limit_seconds=0))
    for uid, estimate in leader.estimates().items():
        assert isinstance(estimate, UnknownStart), uid
        assert estimate.why in (Why.NO_KNOWN_END, Why.BEHIND_HEAD)
        if estimate.why is Why.NO_KNOWN_END:
            assert set(estimate.gangs) <= {each.uid for each in holders}


# --- queues -------------------------------------------------------------------------------------------------

QUEUES = (
    Queue("root", resources={"cpu": Quota(9)}),
    Queue("a", "root", {"cpu": Quota(4)}),
    Queue("b", "root", {"cpu": Quota(3, borrowing_limit=2)}),
)


FACTS = ClusterFacts(
    Cluster("hub", (make_core_node("n0", cpu=6), make_core_node("n1", cpu=6))),
    rules=SchedulingRules(starvation_bound=STARVATION, queues=QUEUES),
)


def played_over_queues(records: dict[str, Record], now: datetime, until: datetime) -> dict[str, datetime]:
    """The starts up to a time: the cycles over queues of each minute, and each gang ends when it says so."""
    records, found = dict(records), dict[str, datetime]()
    running = Running(lambda _: [each for each in records.values() if each.holds_capacity])
    bounds = Bounds(rest=STARVATION)
    backfills = Backfills(Backfill(bounds, running), Backfill(bounds))
    while now <= until:
        for record in list(records.values()):
            if record.holds_capacity and stated_end(record, now - MINUTE) == now:
                del records[record.uid]
        while True:
            world = world_of([FACTS], records.values(), (), now)
            _, decided = world.plan_queues(backfills=backfills)
            outcomes = [each for each in decided if not isinstance(each, Drained)]
            records |= {
                change.after.uid: change.after for each in outcomes if (change := change_of(each, now))
            }
            placed = [each.record.uid for each in outcomes if isinstance(each, Placed)]
            found |= dict.fromkeys(placed, now)
            if not placed:
                break
        now += MINUTE
    return found


# Each example plays the cycles of half an hour, with their reservations.
@settings(max_examples=15)
@given(arrivals(DURATIONS, "a", "b"))
def test_gangs_start_when_the_quotas_of_their_queues_are_estimated_to_let_them(gangs: list[Arrival]) -> None:
    check_starts_over_queues(gangs)


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@settings(max_examples=100)
@given(arrivals(DURATIONS, "a", "b"))
def test_many_gangs_start_when_the_quotas_of_their_queues_are_estimated_to_let_them(
    gangs: list[Arrival],
) -> None:
    check_starts_over_queues(gangs)


def check_starts_over_queues(gangs: list[Arrival]) -> None:
    records = {each.uid: each for number, arrival in enumerate(gangs) if (each := arrival.record(number))}
    now = NOW + (WARM_UP + 1) * MINUTE
    found = estimated_starts(world_of([FACTS], records.values(), (), now), records, records, 10**9).starts
    unknown = {each.why for each in found.values() if isinstance(each, UnknownStart)}
    known = known_of(found)
    starts = played_over_queues(records, now, max(known.values(), default=now))
    assert (unknown <= {Why.TOO_LARGE}, known) == (True, starts)
