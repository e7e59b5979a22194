"""A queue with its planner decides as a cycle from scratch, whatever happened before, and says nothing twice."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec.structs import replace

from dispatcher.api.selector import parse_selector
from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.model.clusters.nodes import (
    HOSTNAME,
    LabelOperator,
    LabelRequirement,
    Node,
    Taint,
    Toleration,
)
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.gangs.pod_terms import PodSort, PodTerm
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.incremental import run
from dispatcher.core.model.records.record import Change, Phase, Record
from dispatcher.core.model.records.requirements import ANYWHERE, ClusterRequirements
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.ordering import in_order
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.outcome_changes import change_of
from dispatcher.core.scheduling.cycle.outcomes import Impossible, Outcome, Placed, Waiting
from dispatcher.core.scheduling.fit.backfill import Backfill, Backfills, Running
from dispatcher.core.scheduling.fit.backfill_reservation import Bounds
from dispatcher.core.scheduling.fit.cluster_filters import Closed, ClusterSnapshot
from dispatcher.core.scheduling.fit.cluster_room import ClusterRoom
from dispatcher.core.scheduling.fit.fit import Fit
from dispatcher.core.scheduling.queued.gang_class import key_of
from tests import sweeps
from tests.builders import at, make_core_node, make_gang, make_record, make_snapshot, make_snapshots
from tests.one_queue import OneQueue, cycle_over, outcomes_in, rules, starved
from tests.unit.core.scheduling.clusters import KNOWN, WHERES, Known

BOUND = timedelta(seconds=10)
TAINT = Taint("gpu", "", "NoSchedule")


def gang_of(cpu: int, gpu: int, tolerations: tuple[Toleration, ...], less: int) -> Gang:
    """A gang of one pod, which requests so much less cpu in one of the clusters."""

    def requesting(cpu: int) -> Gang:
        each = Resources({"cpu": cpu, "gpu": gpu})
        return Gang(each, 1, (PodSet(1, each, tolerations),))

    return requesting(cpu).with_smaller({"east": requesting(max(0, cpu - less))})


GANGS = st.builds(
    gang_of,
    st.integers(0, 5),
    st.integers(0, 2),
    st.sampled_from([(), (Toleration("gpu", "Exists"),)]),
    st.sampled_from([0, 0, 1, 3]),
)


class SameAsFromScratch(RuleBasedStateMachine):
    fit = FitMode.AGGREGATE

    """A queue that lives: what comes, goes, is told and changes around it."""

    def __init__(self) -> None:
        super().__init__()
        self.ledgers = {name: CapacityLedger(self.fit, name) for name in ("east", "west")}
        self.known: dict[str, Known] = {}
        self.running: dict[str, list[Record]] = {"east": [], "west": []}
        self.queue = OneQueue(self.make_backfill())
        self.backfills = Backfills(self.make_backfill())
        self.records: dict[str, Record] = {}
        self.seconds = 0
        self.arrived = 0

    def make_backfill(self) -> Backfill:
        """One that moves and ends its reservations often."""
        bounds = Bounds(timedelta(seconds=5), timedelta(seconds=3))
        return Backfill(bounds, Running(lambda name: self.running[name]))

    @initialize(
        policy=st.sampled_from(
            [
                QueueingStrategy.BEST_EFFORT_FIFO,
                QueueingStrategy.BEST_EFFORT_FIFO,
                QueueingStrategy.STRICT_FIFO,
            ]
        ),
        starving=st.lists(st.tuples(GANGS, WHERES), max_size=2),
        cpus=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    )
    def begin(
        self,
        policy: QueueingStrategy,
        starving: list[tuple[Gang, ClusterRequirements]],
        cpus: tuple[int, int],
    ) -> None:
        """Two clusters with something on each, and perhaps gangs that have been blocked for too long."""
        self.policy = policy
        for ledger, cpu in zip(self.ledgers.values(), cpus, strict=True):
            node = make_core_node("n1")
            ledger.set_node(replace(node, allocatable=Resources({"cpu": 5, "gpu": 2})))
            ledger.reserve("others", Gang(Resources({"cpu": cpu})))
        for gang, requirements in starving:
            self.arrived += 1
            name = f"aw-{self.arrived}"
            self.put(
                make_record(
                    name=name,
                    gang=gang,
                    requirements=requirements,
                    enqueue_seq=self.arrived,
                    blocked_since=at(-20),
                )
            )

    @rule(
        gang=GANGS,
        count=st.integers(1, 3),
        priority=st.integers(0, 2),
        slope=st.sampled_from([0.0, 0.0, 0.0, 0.5]),
        postponed=st.sampled_from([None, None, None, 3]),
        requirements=WHERES,
    )
    def some_arrive(
        self,
        gang: Gang,
        count: int,
        priority: int,
        slope: float,
        postponed: int | None,
        requirements: ClusterRequirements,
    ) -> None:
        for _ in range(count):
            self.arrived += 1
            record = make_record(
                name=f"aw-{self.arrived}",
                gang=gang,
                requirements=requirements,
                priority=priority,
                priority_slope=slope,
                enqueue_seq=self.arrived,
                created_at=self.now - timedelta(seconds=self.arrived % 3),
                eligible_at=None if postponed is None else self.now + timedelta(seconds=postponed),
            )
            self.put(record)

    @rule(data=st.data())
    def one_is_deleted(self, data: st.DataObject) -> None:
        if self.records:
            uid = data.draw(st.sampled_from(sorted(self.records)))
            del self.records[uid]
            self.queue.remove(uid)

    @rule(data=st.data(), priority=st.integers(0, 2), slope=st.sampled_from([0.0, 0.5]))
    def one_is_reprioritised(self, data: st.DataObject, priority: int, slope: float) -> None:
        if self.records:
            record = self.records[data.draw(st.sampled_from(sorted(self.records)))]
            self.put(queue_changes.reprioritise(record, priority, slope, self.now).after)

    @rule(
        cluster=st.sampled_from(["east", "west"]),
        name=st.sampled_from(["n1", "n2"]),
        cpu=st.integers(0, 5),
        gpu=st.integers(0, 2),
        taints=st.sampled_from([(), (TAINT,)]),
    )
    def a_node_changes(self, cluster: str, name: str, cpu: int, gpu: int, taints: tuple[Taint, ...]) -> None:
        node = make_core_node(name, *taints)
        self.ledgers[cluster].set_node(replace(node, allocatable=Resources({"cpu": cpu, "gpu": gpu})))

    @rule(cluster=st.sampled_from(["east", "west"]), cpu=st.integers(0, 5))
    def others_take_more_or_less(self, cluster: str, cpu: int) -> None:
        self.ledgers[cluster].reserve("others", Gang(Resources({"cpu": cpu})))

    @rule(cluster=st.sampled_from(["east", "west"]), known=KNOWN)
    def a_cluster_changes(self, cluster: str, known: Known) -> None:
        self.known[cluster] = known

    @rule(data=st.data(), requirements=WHERES)
    def one_is_found_to_require_something_else(
        self, data: st.DataObject, requirements: ClusterRequirements
    ) -> None:
        if self.records:
            record = self.records[data.draw(st.sampled_from(sorted(self.records)))]
            self.put(replace(record, requirements=requirements))

    @rule(data=st.data(), requirements=WHERES, priority=st.integers(0, 2), slope=st.sampled_from([0.0, 0.5]))
    def a_protected_gang_is_changed_between_two_cycles(
        self, data: st.DataObject, requirements: ClusterRequirements, priority: int, slope: float
    ) -> None:
        """All else stays: a cycle might take what the one before found out for still true."""
        self.a_cycle_runs(0, 1.0)
        self.a_cycle_runs(0, 1.0)
        starving = starved(self.records.values(), self.now, BOUND)
        if starving:
            record = self.records[data.draw(st.sampled_from(sorted(starving)))]
            redirected = queue_changes.redirect(record, requirements, self.now).after
            self.put(queue_changes.reprioritise(redirected, priority, slope, self.now).after)
            self.a_cycle_runs(0, 1.0)

    @rule(seconds=st.sampled_from([0, 1, 12]), accepted=st.sampled_from([0.0, 0.5, 1.0, 1.0]))
    def a_cycle_runs(self, seconds: int, accepted: float) -> None:
        self.seconds += seconds
        changes = self.from_scratch()
        outcomes = self.queue.plan(self.snapshots(), self.policy, BOUND, self.now)
        assert [change_of(each, self.now) for each in outcomes] == changes
        for change in changes[: round(len(changes) * accepted)]:
            self.commit(change)

    @rule()
    def somebody_asks_when_the_next_becomes_eligible(self) -> None:
        times = (record.eligible_at for record in self.records.values() if record.eligible_at)
        assert self.queue.next_eligible(self.now) == min((at for at in times if at > self.now), default=None)
        assert {record.uid: record for record in self.queue} == self.records

    @property
    def now(self) -> datetime:
        return at(self.seconds)

    def snapshots(self) -> dict[str, ClusterSnapshot]:
        for ledger in self.ledgers.values():
            ledger.follow(self.queue.followed)
        return {
            name: ClusterSnapshot(name, ledger.snapshot(), **self.known.get(name, {}))
            for name, ledger in self.ledgers.items()
        }

    def from_scratch(self) -> list[Change]:
        eligible = in_order(self.records.values(), self.now)
        queues = rules(self.policy, BOUND)
        outcomes = cycle_over(eligible, self.snapshots(), queues, self.now, backfills=self.backfills)
        outcomes.sort(key=lambda each: key_of(each.record, self.now))
        return [change for each in outcomes if (change := change_of(each, self.now))]

    def commit(self, change: Change) -> None:
        after = change.after
        if after.phase is Phase.QUEUED:
            self.put(after)
        else:
            assert after.attempt is not None
            del self.records[after.uid]
            self.queue.remove(after.uid)
            self.ledgers[after.attempt.cluster].reserve(after.uid, after.gang, after.attempt.assignment)
            self.running[after.attempt.cluster].append(after)

    def put(self, record: Record) -> None:
        self.records[record.uid] = record
        self.queue.put(record)


TestSameAsFromScratch = SameAsFromScratch.TestCase
TestSameAsFromScratch.settings = settings(
    max_examples=sweeps.examples(100), stateful_step_count=30, deadline=None
)


class SameAsFromScratchOnNodes(SameAsFromScratch):
    fit = FitMode.NODE


TERMS = st.builds(
    lambda topology, app: PodTerm(
        topology, frozenset({"ns"}), (LabelRequirement("app", LabelOperator.IN, (app,)),)
    ),
    st.sampled_from([HOSTNAME, "zone"]),
    st.sampled_from(["a", "b"]),
)
SORTS = st.builds(
    lambda app, repels: PodSort.of("ns", [("app", app)], tuple(repels)),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from([0, 0, 1]).flatmap(lambda size: st.lists(TERMS, min_size=size, max_size=size)),
)


def with_sort(pods: int, cpu: int, sort: PodSort, attracts: list[PodTerm]) -> Gang:
    """A gang of equal pods that others may select, and that may select others."""
    each = Resources({"cpu": cpu})
    pod_set = PodSet(pods, each, repels=sort.repels, attracts=tuple(attracts), sort=sort)
    return Gang(pod_set.total, pods, (pod_set,))


SORTED_GANGS = st.builds(
    with_sort,
    st.integers(1, 2),
    st.integers(0, 3),
    SORTS,
    st.one_of(st.just([]), st.lists(TERMS, max_size=1)),
)


class SameAsFromScratchBesidePods(SameAsFromScratchOnNodes):
    """Gangs and pods with terms about each other come and go beside those without."""

    @rule(gang=SORTED_GANGS, count=st.integers(1, 2), requirements=WHERES)
    def some_arrive_that_may_select_pods(
        self, gang: Gang, count: int, requirements: ClusterRequirements
    ) -> None:
        for _ in range(count):
            self.arrived += 1
            name = f"aw-{self.arrived}"
            self.put(make_record(name=name, gang=gang, requirements=requirements, enqueue_seq=self.arrived))

    @rule(
        cluster=st.sampled_from(["east", "west"]),
        name=st.sampled_from(["n1", "n2", "n3"]),
        zone=st.sampled_from(["x", "y", ""]),
        cpu=st.integers(0, 6),
    )
    def a_node_is_in_a_zone(self, cluster: str, name: str, zone: str, cpu: int) -> None:
        labels = {HOSTNAME: name, **({"zone": zone} if zone else {})}
        self.ledgers[cluster].set_node(Node(name, Resources({"cpu": cpu, "gpu": 1}), labels=labels))

    @rule(
        cluster=st.sampled_from(["east", "west"]),
        uid=st.sampled_from(["pod-1", "pod-2"]),
        node=st.sampled_from(["n1", "n2", "n3"]),
        sort=st.none() | SORTS,
        never_ends=st.booleans(),
    )
    def a_pod_comes_changes_or_goes(
        self, cluster: str, uid: str, node: str, sort: PodSort | None, *, never_ends: bool
    ) -> None:
        if sort is None:
            self.ledgers[cluster].remove_pod(uid)
        else:
            pod = Pod(uid, Resources(), node, PodPhase.RUNNING, never_ends=never_ends, sort=sort)
            self.ledgers[cluster].set_pod(pod)

    @rule(
        gangs=st.lists(SORTED_GANGS, min_size=1, max_size=3),
        cluster=st.sampled_from(["east", "west"]),
        labels=st.lists(SORTS, min_size=2, max_size=3),
        cpu=st.integers(0, 2),
    )
    def a_pod_is_relabelled_between_two_cycles(
        self, gangs: list[Gang], cluster: str, labels: list[PodSort], cpu: int
    ) -> None:
        """All else stays, but perhaps an amount: a cycle might keep a refusal that holds no more."""
        for each in self.ledgers:
            self.ledgers[each].remove_node("n2")
            self.a_node_is_in_a_zone(each, "n1", "x", 6)
        for gang in gangs:
            self.some_arrive_that_may_select_pods(gang, 1, ANYWHERE)
        for sort in labels:
            pod = Pod("pod-1", Resources({"cpu": cpu}), "n1", PodPhase.RUNNING, sort=sort)
            self.ledgers[cluster].set_pod(pod)
            self.a_cycle_runs(0, 1.0)
            self.a_cycle_runs(0, 1.0)
            self.ledgers[cluster].set_pod(replace(pod, requests=Resources()))
            self.a_cycle_runs(0, 1.0)

    @rule(data=st.data())
    def a_gang_ends(self, data: st.DataObject) -> None:
        cluster = data.draw(st.sampled_from(["east", "west"]))
        if self.running[cluster]:
            self.ledgers[cluster].release(self.running[cluster].pop().uid)


TestSameAsFromScratchBesidePods = SameAsFromScratchBesidePods.TestCase
TestSameAsFromScratchBesidePods.settings = settings(
    max_examples=sweeps.examples(60), stateful_step_count=30, deadline=None
)

TestSameAsFromScratchOnNodes = SameAsFromScratchOnNodes.TestCase
TestSameAsFromScratchOnNodes.settings = settings(
    max_examples=sweeps.examples(60), stateful_step_count=30, deadline=None
)


def plan_of(queue: OneQueue, cpu: int) -> list[Outcome]:
    return queue.plan(
        make_snapshots(hub=make_snapshot(cpu=cpu)), QueueingStrategy.BEST_EFFORT_FIFO, BOUND, at(1)
    )


def test_uncommitted_outcome_of_a_cycle_is_given_again() -> None:
    queue = OneQueue()
    queue.put(make_record(gang=make_gang(cpu=5000)))
    assert plan_of(queue, 1000) == plan_of(queue, 1000) != []


def test_cycle_over_unchanged_pending_gangs_evaluates_no_gang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = OneQueue()
    queue.put(make_record(gang=make_gang(cpu=5000)))
    for outcome in plan_of(queue, 1000):
        change = change_of(outcome, at(1))
        assert change is not None
        queue.put(change.after)
    assert plan_of(queue, 1000) == []

    monkeypatch.setattr(Gang, "tolerates", None)
    assert plan_of(queue, 1000) == []


def test_equal_gangs_are_evaluated_once_and_only_changed_records_are_returned() -> None:
    queue = OneQueue()
    records = [make_record(name=f"aw-{number}", enqueue_seq=number) for number in range(4)]
    for record in records:
        queue.put(record)
    outcomes = plan_of(queue, 2000)
    assert [type(each) for each in outcomes] == [Placed, Placed, Waiting, Waiting]
    assert [each.record for each in outcomes] == records


def tell(queue: OneQueue, outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        change = change_of(outcome, at(1))
        assert change is not None
        if change.after.phase is Phase.QUEUED:
            queue.put(change.after)
        else:
            queue.remove(change.after.uid)


def short_ledger() -> CapacityLedger:
    """Free are 4 cpus and 2 GPUs of 9 each: a gang of 4 and 4 is short of GPUs, until somebody takes the cpus."""
    ledger = CapacityLedger()
    ledger.set_node(make_core_node("n1", cpu=9000, gpu=9))
    ledger.reserve("others", Gang(Resources({"cpu": 5000, "nvidia.com/gpu": 7})))
    return ledger


def news_over(queue: OneQueue, ledger: CapacityLedger) -> list[tuple[str, str]]:
    """Whoever is told something and what of, in order; all of it is committed."""
    news = []
    for outcome in queue.plan(
        make_snapshots(hub=ledger.snapshot()), QueueingStrategy.BEST_EFFORT_FIFO, BOUND, at(1)
    ):
        record = outcome.record
        if isinstance(outcome, Placed):
            queue.remove(record.uid)
            ledger.reserve(record.uid, record.gang)
            news.append((record.name, "placed"))
        else:
            change = change_of(outcome, at(1))
            assert change is not None
            queue.put(change.after)
            news.append((record.name, outcome.pending.resource))
    return news


def test_remembered_rejections_do_not_hold_for_gangs_after_a_placed_gang() -> None:
    queue, ledger = OneQueue(), short_ledger()
    queue.put(make_record(name="waits", gang=make_gang(cpu=4000, gpu=4), enqueue_seq=2))
    assert news_over(queue, ledger) == [("waits", "nvidia.com/gpu")]

    queue.put(make_record(name="first", gang=make_gang(cpu=4000), enqueue_seq=1))
    assert news_over(queue, ledger) == [("first", "placed"), ("waits", "cpu")]


def settled_queue(ledger: CapacityLedger) -> OneQueue:
    """A queue whose two gangs, short of GPUs, have their reasons since a cycle without news; the first is the head."""
    queue = OneQueue()
    queue.put(make_record(name="head", gang=make_gang(cpu=1000, gpu=3), enqueue_seq=2))
    queue.put(make_record(name="waits", gang=make_gang(cpu=4000, gpu=4), enqueue_seq=4))
    assert news_over(queue, ledger) == [("head", "nvidia.com/gpu"), ("waits", "nvidia.com/gpu")]
    assert news_over(queue, ledger) == []
    return queue


@pytest.mark.parametrize(
    ("place", "news"),
    [
        pytest.param(1, [("first", "placed"), ("head", "cpu"), ("waits", "cpu")], id="before-all"),
        pytest.param(3, [("first", "placed"), ("waits", "cpu")], id="before-the-second"),
        pytest.param(5, [("first", "placed")], id="behind-all"),
    ],
)
def test_rejections_of_an_earlier_cycle_do_not_hold_for_gangs_after_a_placed_gang(
    place: int, news: list[tuple[str, str]]
) -> None:
    ledger = short_ledger()
    queue = settled_queue(ledger)
    queue.put(make_record(name="first", gang=make_gang(cpu=4000), enqueue_seq=place))
    assert news_over(queue, ledger) == news


@pytest.mark.parametrize(("place", "is_head"), [(1, True), (3, False), (5, False)])
def test_gang_that_arrives_is_the_head_only_if_it_is_the_first(place: int, *, is_head: bool) -> None:
    ledger = short_ledger()
    queue = settled_queue(ledger)
    queue.put(make_record(name="arrives", gang=make_gang(cpu=1000, gpu=5), enqueue_seq=place))
    (outcome,) = queue.plan(
        make_snapshots(hub=ledger.snapshot()), QueueingStrategy.BEST_EFFORT_FIFO, BOUND, at(2)
    )
    assert isinstance(outcome, Waiting)
    assert (outcome.record.name, outcome.is_head) == ("arrives", is_head)


def test_cycle_that_placed_a_gang_leaves_no_rejection_to_remember() -> None:
    queue, ledger = OneQueue(), short_ledger()
    queue.put(make_record(name="waits", gang=make_gang(cpu=4000, gpu=4), enqueue_seq=1))
    queue.put(make_record(name="second", gang=make_gang(cpu=4000), enqueue_seq=2))
    assert news_over(queue, ledger) == [("waits", "nvidia.com/gpu"), ("second", "placed")]
    assert news_over(queue, ledger) == [("waits", "cpu")]
    assert news_over(queue, ledger) == []


def test_equal_gangs_that_require_something_else_are_decided_apart() -> None:
    queue, elsewhere = OneQueue(), ClusterRequirements(selector=parse_selector("region=eu", ""))
    queue.put(make_record(name="anywhere", enqueue_seq=1))
    queue.put(make_record(name="elsewhere", enqueue_seq=2, requirements=elsewhere))
    queue.put(make_record(name="anywhere-too", enqueue_seq=3))
    snapshots = {"east": ClusterSnapshot("east", make_snapshot(cpu=1000))}
    outcomes = queue.plan(snapshots, QueueingStrategy.BEST_EFFORT_FIFO, BOUND, at(1))
    assert [(each.record.name, type(each)) for each in outcomes] == [
        ("anywhere", Placed),
        ("elsewhere", Impossible),
        ("anywhere-too", Waiting),
    ]


def test_remembered_refusals_do_not_hold_once_a_cluster_is_open_again() -> None:
    queue = OneQueue()
    queue.put(make_record())
    closed = {
        "east": ClusterSnapshot(
            "east", make_snapshot(cpu=1000), closed=Closed("ClusterCordoned", "new racks")
        )
    }
    told_to = queue.plan(closed, QueueingStrategy.BEST_EFFORT_FIFO, BOUND, at(1))
    assert [type(each) for each in told_to] == [Impossible]
    tell(queue, told_to)
    assert queue.plan(closed, QueueingStrategy.BEST_EFFORT_FIFO, BOUND, at(2)) == []
    opened = make_snapshots(east=make_snapshot(cpu=1000))
    assert [type(each) for each in queue.plan(opened, QueueingStrategy.BEST_EFFORT_FIFO, BOUND, at(3))] == [
        Placed
    ]


@pytest.mark.parametrize(
    ("clusters", "without_namespace", "asked"),
    [
        pytest.param(1, frozenset[str](), 2, id="one-cluster"),
        pytest.param(4, frozenset[str](), 8, id="namespaces-that-all-have-tell-nobody-apart"),
        pytest.param(4, frozenset({"team-2"}), 14, id="a-namespace-that-one-lacks-does"),
    ],
)
def test_cycle_without_a_fit_evaluates_one_record_of_each_class_some_cluster_distinguishes(
    clusters: int, without_namespace: frozenset[str], asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, looks = OneQueue(), 0
    for number in range(60):
        requirements = ClusterRequirements(
            namespace=f"team-{number % 3}", prefers=parse_selector(f"rack={number % 5}", "")
        )
        gang = replace(make_gang(cpu=5000 + number % 2), pods=number)
        slope = 0.5 if number % 7 == 0 else 0.0
        record = make_record(name=f"aw-{number}", gang=gang, requirements=requirements, enqueue_seq=number)
        queue.put(replace(record, priority_slope=slope))

    def snapshots(cpu: int) -> dict[str, ClusterSnapshot]:
        found = few(clusters, cpu)
        found["c0"] = replace(found["c0"], missing_namespaces=without_namespace)
        return found

    tell(queue, queue.plan(snapshots(1000), QueueingStrategy.BEST_EFFORT_FIFO, BOUND, at(1)))
    fit = ClusterRoom.fit

    def counted(room: ClusterRoom, gang: Gang) -> Fit:
        nonlocal looks
        looks += 1
        return fit(room, gang)

    monkeypatch.setattr(ClusterRoom, "fit", counted)
    assert queue.plan(snapshots(1001), QueueingStrategy.BEST_EFFORT_FIFO, BOUND, at(2)) == []
    assert looks == asked


def test_cycle_after_the_pending_reasons_of_distinct_gangs_compares_none_of_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = OneQueue()
    for number in range(10):
        queue.put(make_record(name=f"aw-{number}", gang=make_gang(cpu=5000 + number), enqueue_seq=number))
    snapshots = few(2, 1000)
    tell(queue, queue.plan(snapshots, QueueingStrategy.BEST_EFFORT_FIFO, BOUND, at(1)))
    monkeypatch.delattr(ClusterRoom, "fit")  # a comparison would raise
    assert queue.plan(snapshots, QueueingStrategy.BEST_EFFORT_FIFO, BOUND, at(2)) == []


def test_gang_that_changed_is_compared_again() -> None:
    queue, snapshots = OneQueue(), few(1, 1000)
    queue.put(make_record(gang=make_gang(cpu=5000)))
    tell(queue, queue.plan(snapshots, QueueingStrategy.BEST_EFFORT_FIFO, BOUND, at(1)))
    queue.put(make_record(gang=make_gang(cpu=1000)))
    outcomes = queue.plan(snapshots, QueueingStrategy.BEST_EFFORT_FIFO, BOUND, at(2))
    assert [type(each) for each in outcomes] == [Placed]


def test_records_that_change_during_a_cycle_take_part_in_the_next() -> None:
    queue = OneQueue()
    for number in range(300):
        queue.put(make_record(name=f"aw-{number}", gang=make_gang(cpu=1000 + number), enqueue_seq=number))
    snapshots = make_snapshots(hub=make_snapshot(cpu=500))
    changes = queue.changes_for(queue.planner, at(1))
    planning = queue.planner.news_in_steps(changes, rules(), (), snapshots, at(1))
    for _ in range(3):
        next(planning)
    queue.put(make_record(name="late", gang=make_gang(cpu=1), enqueue_seq=1000))
    queue.remove("uid-of-aw-7")
    news = outcomes_in(run(planning))
    assert [each.record.name for each in news] == [f"aw-{number}" for number in range(300)]
    assert [queue.holds(each.record) for each in news].index(False) == 7

    tell(queue, [each for each in news if queue.holds(each.record)])
    placed = queue.plan(
        make_snapshots(hub=make_snapshot(cpu=500)), QueueingStrategy.BEST_EFFORT_FIFO, BOUND, at(2)
    )
    assert [each.record.name for each in placed] == ["late"]


def few(count: int, cpu: int) -> dict[str, ClusterSnapshot]:
    """So many clusters with so much in use of 9 cpus that `cpu` is free."""
    snapshots = {f"c{number}": make_snapshot(cpu=9000) for number in range(count)}
    for snapshot in snapshots.values():
        snapshot.take(Gang(Resources({"cpu": 9000 - cpu})))
    return make_snapshots(**snapshots)


def test_gangs_are_classed_by_whether_a_cluster_closes_their_namespace() -> None:
    queue = OneQueue()
    for number, namespace in enumerate(("team-a", "team-b")):
        queue.put(
            make_record(
                name=namespace, requirements=ClusterRequirements(namespace=namespace), enqueue_seq=number
            )
        )

    def placed(cpu: int, closed_namespaces: frozenset[str], second: int) -> list[str]:
        snapshots = few(2, cpu)
        snapshots = {
            name: replace(snapshot, closed_namespaces=closed_namespaces)
            for name, snapshot in snapshots.items()
        }
        outcomes = queue.plan(snapshots, QueueingStrategy.BEST_EFFORT_FIFO, BOUND, at(second))
        tell(queue, outcomes)
        return [outcome.record.name for outcome in outcomes if isinstance(outcome, Placed)]

    assert placed(0, frozenset(), 1) == []
    assert placed(9000, frozenset({"team-a"}), 2) == ["team-b"]
    assert placed(9000, frozenset(), 3) == ["team-a"]


def test_cluster_opens_at_once_when_its_starved_gang_is_directed_elsewhere() -> None:
    """All else stays as it was when the other was refused: the answer of that pass might be given again."""
    queue = OneQueue(Backfill(Bounds(timedelta(hours=1), timedelta(minutes=1))))
    large = make_record(name="large", gang=make_gang(cpu=8000), enqueue_seq=1, blocked_since=at(-20))
    queue.put(large)
    queue.put(make_record(name="small", gang=make_gang(cpu=1000), enqueue_seq=2))

    def outcomes(second: int) -> list[tuple[str, str]]:
        snapshots = {
            name: replace(snapshot, labels={"name": name}) for name, snapshot in few(2, 2000).items()
        }
        snapshots["c1"].capacity.take(Gang(Resources({"cpu": 2000})))
        found = queue.plan(snapshots, QueueingStrategy.BEST_EFFORT_FIFO, BOUND, at(second))
        tell(queue, found)
        return [
            (each.record.name, each.cluster if isinstance(each, Placed) else each.pending.cluster)
            for each in found
        ]

    assert outcomes(1) == [("large", "c0"), ("small", "c0")]
    assert outcomes(2) == []
    waits = next(record for record in queue if record.uid == large.uid)
    queue.put(
        queue_changes.redirect(
            waits, ClusterRequirements(selector=parse_selector("name=c1", "")), at(3)
        ).after
    )
    assert outcomes(3) == [("large", "c1"), ("small", "c0")]
    assert [record.name for record in queue] == ["large"]
