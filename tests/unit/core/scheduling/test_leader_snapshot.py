"""The world of the leader's snapshot decides as the leader's own ledgers do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.core.model import incremental
from dispatcher.core.model.clusters.nodes import (
    LabelOperator,
    LabelRequirement,
    Node,
    NodeRequirements,
    Taint,
    Toleration,
)
from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment, Gang, PodSet
from dispatcher.core.model.gangs.growth import SurplusPod
from dispatcher.core.model.gangs.pod_terms import PodSort, PodTerm
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.records.record import HOLDING, RESERVATION, Attempt, Phase, Record
from dispatcher.core.model.records.requirements import ANYWHERE
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.queues import ordering
from dispatcher.core.queues.queue import Access, Order, Queue, QueueingStrategy, Quota
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.capacity.node_snapshot import Place
from dispatcher.core.scheduling.capacity.queued_terms import followed_by
from dispatcher.core.scheduling.cycle.outcomes import Outcome, Placed, Waiting
from dispatcher.core.scheduling.explain.leader_snapshot import (
    ClusterFacts,
    OwnedPods,
    SchedulingRules,
    count_pods_by_place,
    world_of,
)
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
from dispatcher.core.scheduling.explain.world_facts import Cluster
from dispatcher.core.scheduling.fit.backfill_reservation import Reservation
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.preemption.surplus import NO_SURPLUS, Surplus
from tests.builders import NOW, at, make_core_node, make_gang, make_record
from tests.one_queue import plan, starved
from tests.unit.core.scheduling.clusters import KNOWN, WHERES, Known

TAINT = Taint("gpu", "", "NoSchedule")
TOLERATES = (Toleration("gpu", "Exists"),)
TAKEN_AT = at(-5)
BOUND = timedelta(minutes=10)
CLUSTERS = ["east", "hub", "west"]
NODES = ["n0", "n1", "n2"]


# --- whatever the clusters, pods and gangs ------------------------------------------------------------------


@dataclass(frozen=True)
class Leader:
    """The facts that a leader has in memory."""

    nodes: Mapping[str, list[Node]]
    known: Mapping[str, Known]
    reserves: Mapping[str, Resources]
    pods: Mapping[str, list[Pod]]
    records: list[Record]
    reservations: Mapping[str, Reservation]
    rules: SchedulingRules

    @property
    def pending(self) -> list[Record]:
        """The queued records in order; a hub numbers them, so none are of one rank there."""
        return sorted(
            ordering.in_order(self.records, NOW), key=lambda each: (ordering.rank(each, NOW), each.uid)
        )

    def ledgers(self) -> dict[str, CapacityLedger]:
        """The ledgers that the leader's cache charges."""
        ledgers = {name: CapacityLedger(self.rules.fit) for name in self.nodes}
        for name, ledger in ledgers.items():
            for node in self.nodes[name]:
                ledger.set_node(node)
            for pod in self.pods[name]:
                ledger.set_pod(pod)
        for record in self.records:
            if record.holds_capacity and record.attempt is not None:
                ledgers[record.attempt.cluster].reserve(record.uid, record.gang, record.attempt.assignment)
        queued = [each for each in self.records if each.phase is Phase.QUEUED]
        followed = followed_by(each for record in queued for each in record.gang.pod_sets)
        for ledger in ledgers.values():
            ledger.follow(followed)
        return ledgers

    def snapshots(self) -> dict[str, ClusterSnapshot]:
        """The clusters, for one cycle."""
        return {
            name: ClusterSnapshot(
                name, ledger.snapshot().without(self.reserves[name]), **self.known.get(name, {})
            )
            for name, ledger in self.ledgers().items()
        }

    def plan(self) -> dict[str, Outcome]:
        """The outcomes of the leader's cycle by uid, without the dates of reservations."""
        uids = starved(self.pending, NOW, self.rules.starvation_bound)
        found = plan(self.pending, self.snapshots(), self.rules.policy, uids, self.reservations)
        return {each.record.uid: without_dates(each) for each in found}

    def facts(self) -> list[ClusterFacts]:
        """The facts that the leader writes."""
        return [
            ClusterFacts(
                Cluster(name, tuple(ledger.nodes()), reserve=self.reserves[name], **self.known.get(name, {})),
                incremental.run(count_pods_by_place(ledger.pods(), ledger.concerns_terms)),
                self.rules,
                {uid: each for uid, each in self.reservations.items() if each.cluster == name},
                TAKEN_AT,
            )
            for name, ledger in self.ledgers().items()
        ]


def without_dates(outcome: Outcome) -> Outcome:
    """A world has no calendar, so its messages have no end of a reservation."""
    if isinstance(outcome, Placed) or not outcome.pending.reservation:
        return outcome
    before, _, words = outcome.pending.message.partition(RESERVATION)
    message = f"{before}{RESERVATION}{words.partition(' until ')[0]}"
    return replace(outcome, pending=replace(outcome.pending, message=message))


AMOUNTS = st.builds(
    lambda cpu, gpu: Resources({"cpu": cpu, "nvidia.com/gpu": gpu}), st.integers(0, 6), st.integers(0, 2)
)
REQUESTS = st.sampled_from([Resources({"cpu": 1}), Resources({"cpu": 2, "nvidia.com/gpu": 1}), NOTHING])
TERM = PodTerm("zone", frozenset({"ns"}), (LabelRequirement("app", LabelOperator.IN, ("web",)),))
SORTS = st.sampled_from(
    [
        PodSort.of("ns", [("app", app)], repels)
        for app, repels in (("web", ()), ("web", (TERM,)), ("db", ()), ("db", (TERM,)))
    ]
)


def pod_set_of(pod_set: PodSet, sort: PodSort | None) -> PodSet:
    """The pod set with pods of that sort, which have the terms of the sort."""
    return replace(pod_set, sort=sort, repels=sort.repels if sort else ())


POD_SETS = st.builds(
    pod_set_of,
    st.builds(
        PodSet,
        st.integers(0, 3),
        REQUESTS,
        st.sampled_from([(), TOLERATES]),
        st.sampled_from([NodeRequirements(), NodeRequirements((("zone", "a"),))]),
        attracts=st.sampled_from([(), (), (TERM,)]),
    ),
    st.none() | SORTS,
)
PLACES = st.sampled_from([(), (("n1", 1),), (("n2", 2),), (("n0", 1), ("n2", 2)), (("n2", 1), ("n1", 1))])


@st.composite
def gangs(draw: st.DrawFn) -> Gang:
    """A gang whose demand is that of its pods, or larger."""
    pod_sets = tuple(draw(POD_SETS) for _ in range(draw(st.sampled_from([1, 1, 2, 0]))))
    demand = sum((each.requests * each.count for each in pod_sets), start=NOTHING)
    beyond = draw(st.sampled_from([NOTHING, NOTHING, Resources({"cpu": 2})]))
    return Gang(demand + beyond, sum(each.count for each in pod_sets), pod_sets)


@st.composite
def assignments(draw: st.DrawFn, gang: Gang) -> Assignment:
    """Places for the pods of a gang, on nodes that may be gone or full; none for one that was placed by sums."""
    if draw(st.integers(0, 3)) == 0:
        return ASSIGNED_NOWHERE
    return Assignment(tuple(draw(PLACES) for _ in gang.pod_sets))


@st.composite
def running(draw: st.DrawFn, uid: str, clusters: list[str]) -> Record:
    """A gang that holds capacity since before the snapshot."""
    gang, phase = draw(gangs()), draw(st.sampled_from(sorted(HOLDING)))
    cluster = draw(st.sampled_from(clusters))
    attempt = Attempt(1, cluster, at(-60), assignment=draw(assignments(gang)))
    return make_record(phase, uid, uid=uid, gang=gang, attempt=attempt)


@st.composite
def queued(draw: st.DrawFn, uid: str) -> Record:
    """A gang in the queue, maybe starved, maybe not eligible yet."""
    return make_record(
        name=uid,
        uid=uid,
        gang=draw(gangs()),
        requirements=draw(st.just(ANYWHERE) | WHERES),
        created_at=at(-draw(st.integers(0, 3))),
        priority=draw(st.integers(-1, 1)),
        priority_slope=draw(st.sampled_from([0.0, 0.5])),
        blocked_since=draw(st.sampled_from([at(-601), None, at(-1)])),
        eligible_at=draw(st.sampled_from([None, None, at(-1), at(1)])),
    )


@st.composite
def leaders(draw: st.DrawFn) -> Leader:
    """Clusters with usable and other nodes, pods of anybody, gangs partly bound, and a queue."""
    clusters = draw(st.sampled_from([["hub"], ["east"], ["east", "west"], CLUSTERS]))
    active = [draw(running(f"r{index}", clusters)) for index in range(draw(st.sampled_from([2, 3, 0])))]
    queue = [draw(queued(f"q{index}")) for index in range(draw(st.sampled_from([3, 4, 1])))]
    records = [*active, *draw(st.permutations(queue))]
    return Leader(
        nodes={name: draw(st.permutations(draw(_nodes()))) for name in clusters},
        known={name: draw(st.just(Known()) | KNOWN) for name in clusters},
        reserves={name: draw(st.sampled_from([NOTHING, Resources({"cpu": 1})])) for name in clusters},
        pods={name: draw(_pods([each.uid for each in records])) for name in clusters},
        records=records,
        reservations=draw(_reservations(queue, clusters)),
        rules=SchedulingRules(draw(st.sampled_from(QueueingStrategy)), draw(st.sampled_from(FitMode)), BOUND),
    )


@st.composite
def _nodes(draw: st.DrawFn) -> list[Node]:
    names = draw(st.sampled_from([NODES, NODES, NODES[1:], []]))
    return [
        Node(
            name,
            draw(AMOUNTS),
            usable=draw(st.sampled_from([True, True, True, False])),
            taints=draw(st.sampled_from([(), (), (TAINT,)])),
            ready=draw(st.booleans()),
            labels=draw(st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}])),
            most_pods=draw(st.sampled_from([None, None, 2])),
        )
        for name in names
    ]


@st.composite
def _pods(draw: st.DrawFn, uids: list[str]) -> list[Pod]:
    nobody, somebody = st.none(), st.sampled_from([*uids, "unknown"])
    owners = st.tuples(nobody, nobody) | st.tuples(somebody, nobody) | st.tuples(nobody | somebody, somebody)
    found = []
    for _ in range(draw(st.sampled_from([4, 6, 0]))):
        owner, claim = draw(owners)
        node = draw(st.sampled_from([*NODES, *NODES, "gone", ""]))
        phase = draw(st.sampled_from([PodPhase.RUNNING, *PodPhase]))
        never_ends = draw(st.integers(0, 2)) == 0
        sort = draw(st.none() | SORTS) if node else None
        found.append(Pod("", draw(REQUESTS), node, phase, owner, claim, never_ends=never_ends, sort=sort))
    # Pods that lost their planned places get others in the order in which their gangs changed last.
    found.sort(key=lambda each: each.owner or each.claim or "")
    return [replace(each, uid=f"pod-{index}") for index, each in enumerate(found)]


@st.composite
def _reservations(draw: st.DrawFn, queue: list[Record], clusters: list[str]) -> dict[str, Reservation]:
    """At most one reservation for each cluster and each starved gang."""
    late = [each for each in queue if each.uid in starved(queue, NOW, BOUND)]
    kept = draw(st.permutations(clusters))
    return {
        record.uid: Reservation(cluster, at(-60), at(60), at(-60), assignment=draw(assignments(record.gang)))
        for record, cluster in zip(late, kept, strict=False)
        if draw(st.integers(0, 3))
    }


@settings(max_examples=100)
@given(leaders())
def test_the_world_of_a_snapshot_has_the_capacity_and_the_outcomes_of_the_leader(leader: Leader) -> None:
    world = world_of(leader.facts(), leader.records, (), NOW)
    found = KnownSnapshots().of(world)
    for name, expected in leader.snapshots().items():
        for gang in (None, *(each.gang for each in leader.records)):
            assert amounts(found[name].capacity, gang) == amounts(expected.capacity, gang)
        assert uses(found[name], leader.records) == uses(expected, leader.records)
    assert {each.record.uid: each for each in world.plan()} == leader.plan()


def amounts(capacity: CapacitySnapshot, gang: Gang | None) -> tuple[Resources, ...]:
    return capacity.free_for(gang), capacity.total_for(gang), capacity.attainable_for(gang)


def uses(cluster: ClusterSnapshot, records: Iterable[Record]) -> dict[str, tuple[object, ...]]:
    """The bound pods of each gang that runs there, the places of the others, and its demand without a place."""
    if cluster.capacity.nodes is None:
        return {}
    there = {each.uid for each in records if each.attempt and each.attempt.cluster == cluster.name}
    return {
        uid: (by_node(use.bound), by_node(use.held), use.beyond)
        for uid, use in cluster.capacity.nodes.uses.items()
        if uid in there
    }


def by_node(places: Iterable[Place]) -> Counter[tuple[str, Resources]]:
    """The pods of these places, of whatever sort: that is kept only where a term about pods concerns it."""
    found = Counter[tuple[str, Resources]]()
    for each in places:
        found[each.node, each.requests] += each.pods
    return found


# --- gangs that changed since the snapshot, and what is carried ----------------------------------------------


ONE_CPU = Resources({"cpu": 1000})


def facts_of(*pods: OwnedPods, name: str = "east", **fields: Any) -> ClusterFacts:  # noqa: ANN401
    """A cluster of two nodes with 2 cpu each."""
    nodes = (make_core_node("n1", cpu=2000), make_core_node("n2", cpu=2000))
    return ClusterFacts(Cluster(name, nodes), pods, **{"taken_at": TAKEN_AT, **fields})


def owned(owner: str, node: str = "n1", pods: int = 1) -> OwnedPods:
    return OwnedPods(owner, Place(node, ONE_CPU, pods))


def runs(uid: str, seconds: float, cluster: str = "east", *places: tuple[str, int]) -> Record:
    """A gang of 2 cpu that was dispatched so many seconds after `NOW`."""
    attempt = Attempt(1, cluster, at(seconds), assignment=Assignment((places,) if places else ()))
    return make_record(Phase.RUNNING, uid, uid=uid, gang=make_gang(2, cpu=1000), attempt=attempt)


def free_cpu(world: World, cluster: str = "east") -> int:
    return KnownSnapshots().of(world)[cluster].capacity.free_for(None)["cpu"]


@pytest.mark.parametrize(
    ("pods", "records", "released", "free"),
    [
        pytest.param([owned("a", pods=2)], [], ["a"], 4000, id="of-a-gang-that-released-since"),
        pytest.param([owned("a", pods=2)], [], ["b"], 2000, id="of-an-owner-that-nobody-knows"),
        pytest.param([owned("", pods=2)], [], [""], 4000, id="no-uid-is-empty"),
        pytest.param([owned("", pods=2)], [], [], 2000, id="of-others"),
        pytest.param(
            [owned("a")], [make_record(name="a", uid="a")], [], 3000, id="of-a-gang-that-is-queued-again"
        ),
        pytest.param([owned("a")], [runs("a", -60)], [], 2000, id="of-a-running-gang-once"),
        pytest.param(
            [owned("a")], [runs("a", -60, "west")], [], 3000, id="left-behind-by-a-gang-that-runs-elsewhere"
        ),
        pytest.param(
            [owned("a")], [runs("a", -1, "west")], [], 4000, id="of-a-gang-that-went-elsewhere-since"
        ),
        pytest.param([], [runs("a", -1)], [], 2000, id="none-of-a-gang-that-was-dispatched-since"),
        pytest.param([], [runs("a", -60, "nowhere")], [], 4000, id="none-of-a-gang-of-an-unknown-cluster"),
    ],
)
def test_each_pod_counts_once(
    pods: list[OwnedPods], records: list[Record], released: list[str], free: int
) -> None:
    assert free_cpu(world_of([facts_of(*pods), facts_of(name="west")], records, released, NOW)) == free


def test_a_gang_that_was_dispatched_since_holds_the_places_of_its_assignment() -> None:
    pending = make_record(name="p", uid="p", gang=make_gang(cpu=2000))
    for mine, left in (("n1", "n2"), ("n2", "n1")):
        world = world_of([facts_of()], [runs("a", -1, "east", (mine, 2)), pending], (), NOW)
        expected = Placed(pending, "east", assignment=Assignment((((left, 1),),)))
        assert [replace(each, message="") for each in world.plan() if isinstance(each, Placed)] == [expected]


def test_the_unbound_pods_of_a_partly_bound_gang_hold_their_places() -> None:
    gang = runs("a", -60, "east", ("n1", 1), ("n2", 1))
    (found,) = world_of([facts_of(owned("a", "n1"))], [gang], (), NOW).running
    assert (found.bound, found.assignment) == (
        (Place("n1", ONE_CPU, 1),),
        gang.attempt and gang.attempt.assignment,
    )
    world = world_of([facts_of(owned("a", "n1"))], [gang], (), NOW)
    nodes = KnownSnapshots().of(world)["east"].capacity.nodes
    assert nodes is not None
    assert nodes.uses["a"] == ((Place("n1", ONE_CPU, 1),), (Place("n2", ONE_CPU, 1),), NOTHING)


def test_running_gangs_are_in_the_order_of_their_dispatch() -> None:
    records = [runs("a", -10), runs("b", -30), runs("c", -20)]
    assert [each.name for each in world_of([facts_of()], records, (), NOW).running] == ["b", "c", "a"]


def test_a_gang_has_the_surplus_that_the_leader_knows_in_its_cluster() -> None:
    pod = SurplusPod("default", "ray-2", "uid-ray-2", ONE_CPU, "n1", "2026-01-01T00:00:00Z")
    surplus = Surplus(ONE_CPU * 3, ONE_CPU * 3, (pod,))
    facts = [
        facts_of(owned("a", pods=3), surplus={"a": surplus}),
        facts_of(name="west", surplus={"b": surplus}),
    ]
    world = world_of(facts, [runs("a", -60), runs("b", -50)], [], NOW)
    assert [each.surplus for each in world.running] == [surplus, NO_SURPLUS]


def test_reservations_and_rules_are_those_of_the_leader() -> None:
    kept = Reservation("east", at(-60), at(60), at(-60), ("east",))
    large = make_record(name="l", uid="l", gang=make_gang(2, cpu=2000), blocked_since=at(-61))
    small = make_record(name="s", uid="s", gang=make_gang(cpu=1000), created_at=at(5))
    rules = SchedulingRules(fit=FitMode.AGGREGATE, starvation_bound=timedelta(minutes=1))
    facts = facts_of(owned("", pods=1), rules=rules, reservations={"l": kept})
    world = world_of([facts], [large, small], (), NOW)
    assert world.reservations == {"l": kept}
    assert (world.policy, world.fit, world.starvation_bound) == (
        rules.policy,
        rules.fit,
        timedelta(minutes=1),
    )
    assert reasons(world) == {"l": "InsufficientResources", "s": "ReservedForAnother"}
    without = world_of([replace(facts, reservations={})], [large, small], (), NOW)
    assert reasons(without) == {"l": "InsufficientResources", "s": "east"}


def test_gang_waits_in_a_tree_of_which_no_node_is_valid() -> None:
    gang = make_record(name="q", uid="q", gang=make_gang(cpu=1000), more_queues=("context/default",))
    world = world_of([facts_of(rules=SchedulingRules(trees=("context",)))], [gang], (), NOW)
    assert reasons(world) == {"q": "QueueNotFound"}


@pytest.mark.parametrize(
    ("access", "answer"), [(Access.SELECTED, "QueueNotFound"), (Access.OPEN, "east")], ids=str
)
@pytest.mark.parametrize("fields", [{"queue": "team"}, {"more_queues": ("context/default",)}], ids=str)
def test_gang_that_names_a_queue_waits_where_none_is_declared_unless_queues_are_open(
    access: Access, answer: str, fields: dict[str, Any]
) -> None:
    gang = make_record(name="q", uid="q", gang=make_gang(cpu=1000), **fields)
    world = world_of([facts_of(rules=SchedulingRules(access=access))], [gang], (), NOW)
    assert reasons(world) == {"q": answer}


def test_gangs_of_a_queue_that_orders_by_use_go_by_the_use_that_the_leader_knows() -> None:
    rules = SchedulingRules(
        queues=(Queue("default", resources={"cpu": Quota(1000)}, order=Order.USAGE),),
        usage={("default", "busy"): Fraction(1, 2)},
    )
    busy = make_record(name="b", uid="b", namespace="busy", gang=make_gang(cpu=1000), priority=10)
    idle = make_record(name="i", uid="i", namespace="idle", gang=make_gang(cpu=1000))
    world = world_of([facts_of(rules=rules)], [busy, idle], (), NOW)
    assert reasons(world) == {"i": "east", "b": "InsufficientQuota"}
    without = world_of([facts_of(rules=replace(rules, usage={}))], [busy, idle], (), NOW)
    assert reasons(without) == {"b": "east", "i": "InsufficientQuota"}


def test_quota_of_held_queues_counts_as_for_the_leader() -> None:
    rules = SchedulingRules(
        queues=(Queue("org"), Queue("team", "org")),
        held=(Queue("pool", "org", {"cpu": Quota(1000)}),),
        has_default=False,
    )
    first, second = (
        make_record(name=each, uid=each, queue="team", gang=make_gang(cpu=1000)) for each in "ab"
    )
    assert reasons(world_of([facts_of(rules=rules)], [first, second], (), NOW)) == {
        "a": "east",
        "b": "InsufficientQuota",
    }


@pytest.mark.parametrize(
    ("queue", "message"),
    [
        ("nowhere", "there is no queue nowhere"),
        ("lost", "queue lost is not valid: Circle"),
        ("team", "queue team was deleted at 2026-11-20 08:58:11 UTC: declare it again, and its gangs go on"),
        ("old", "queue old was deleted: declare it again, and its gangs go on"),
        ("default", "queue default was deleted: declare it again, and its gangs go on"),
    ],
)
def test_gang_that_waits_for_a_queue_is_told_what_became_of_it_in_an_explanation_too(
    queue: str, message: str
) -> None:
    rules = SchedulingRules(
        queues=(Queue("org"),),
        problems={"lost": "Circle"},
        deleted={"team": at(5), "old": None, "default": None},
        has_default=False,
    )
    gang = make_record(name="q", uid="q", queue=queue)
    (outcome,) = world_of([facts_of(rules=rules)], [gang], (), NOW).plan()
    assert not isinstance(outcome, Placed)
    assert (outcome.pending.reason, outcome.pending.message) == ("QueueNotFound", message)


def reasons(world: World) -> dict[str, str]:
    return {
        each.record.uid: each.cluster if isinstance(each, Placed) else each.pending.reason
        for each in world.plan()
    }


def test_a_cluster_that_is_left_out_keeps_nothing_for_a_starved_gang() -> None:
    kept = Reservation("east", at(-60), at(60), at(-60), ("east",))
    large = make_record(name="l", uid="l", gang=make_gang(2, cpu=2000), blocked_since=at(-601))
    facts = [facts_of(reservations={"l": kept}), facts_of(owned(""), name="west")]
    world = world_of(facts, [large], (), NOW).without_cluster("east")
    (outcome,) = world.plan()
    assert isinstance(outcome, Waiting)
    assert outcome.pending.reservation == ""


def test_a_world_without_clusters_has_only_the_queue() -> None:
    queued = make_record(name="q", uid="q")
    world = world_of([], [queued, runs("a", -60)], (), NOW)
    assert (world.clusters, world.running, world.pending) == ((), (), (queued,))


def test_equal_pods_of_one_node_and_owner_are_counted_together() -> None:
    def pod(number: int, **fields: Any) -> Pod:  # noqa: ANN401
        return Pod(f"p{number}", ONE_CPU, **{"node": "n1", "phase": PodPhase.RUNNING, **fields})

    pods: Iterable[Pod] = [
        pod(0),
        pod(1, never_ends=True),
        pod(2, owner="a", claim="b"),
        pod(3, claim="a", never_ends=True),
        pod(4, phase=PodPhase.SUCCEEDED),
        pod(5, node=""),
        pod(6),
        pod(7, node="n2"),
    ]
    assert set(incremental.run(count_pods_by_place(pods))) == {
        OwnedPods("", Place("n1", ONE_CPU, 2)),
        OwnedPods("", Place("n1", ONE_CPU, 1), never_ends=True),
        OwnedPods("a", Place("n1", ONE_CPU, 2)),
        OwnedPods("", Place("n2", ONE_CPU, 1)),
    }
