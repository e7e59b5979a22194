"""What a gang that does not fit means for those behind it, and how long it can be passed by."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core.model.clusters.nodes import HOSTNAME, Node, NodeRequirements
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet, Spread
from dispatcher.core.model.records.pending_reasons import INSUFFICIENT, LARGER_THAN_CLUSTER, NOT_DECIDED
from dispatcher.core.model.records.record import Pending, Record
from dispatcher.core.model.resources import Resources, sum_of
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.outcomes import Impossible, NotEvaluated, Outcome, Placed, Waiting
from dispatcher.core.scheduling.fit.fit import Shortfall, fit
from dispatcher.core.scheduling.placement.placement_bounds import MOST_ORDERED, MOST_STEPS, MOST_STEPS_IN_ALL
from tests.builders import at, make_gang, make_record, make_snapshot, make_snapshots
from tests.one_queue import plan, starved

STRICT = QueueingStrategy.STRICT_FIFO


def queue_of(*gangs: Gang) -> list[Record]:
    return [make_record(name=f"aw-{index}", gang=gang) for index, gang in enumerate(gangs)]


def places(outcomes: list[Outcome]) -> list[str]:
    """The cluster of what is placed, else in a word what became of it."""
    return [each.cluster if isinstance(each, Placed) else type(each).__name__ for each in outcomes]


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        pytest.param([2, 2, 2], ["hub", "hub", "hub"], id="all-fit"),
        pytest.param(
            [2, 8, 2, 2],
            ["hub", "Waiting", "NotEvaluated", "NotEvaluated"],
            id="the-head-stops-all-behind-it",
        ),
        pytest.param(
            [9, 2, 8, 2], ["Impossible", "hub", "Waiting", "NotEvaluated"], id="what-never-fits-stops-nobody"
        ),
        pytest.param([6, 6, 6], ["hub", "Waiting", "NotEvaluated"], id="equal-ones-stand-in-line-too"),
    ],
)
def test_strict_queue_on_eight_cpus(cpus: list[int], expected: list[str]) -> None:
    queue = queue_of(*(make_gang(cpu=1000 * cpu) for cpu in cpus))
    assert places(plan(queue, make_snapshots(hub=make_snapshot(cpu=8000)), STRICT)) == expected


def test_gang_that_is_not_evaluated_names_the_head() -> None:
    queue = queue_of(make_gang(cpu=8000), make_gang(cpu=1000))
    snapshot = make_snapshot(cpu=8000)
    snapshot.take(Gang(Resources({"cpu": 1})))
    not_evaluated = Pending("AwaitingHeadOfLine", "behind default/aw-0, which waits")
    assert plan(queue, make_snapshots(hub=snapshot), STRICT)[1] == NotEvaluated(queue[1], not_evaluated)


@pytest.mark.parametrize("policy", QueueingStrategy)
def test_head_is_the_first_of_the_queue_that_must_wait(policy: QueueingStrategy) -> None:
    queue = queue_of(make_gang(cpu=9000), make_gang(cpu=2000), make_gang(cpu=8000), make_gang(cpu=7000))
    outcomes = plan(queue, make_snapshots(hub=make_snapshot(cpu=8000)), policy)
    heads = [each.record.name for each in outcomes if isinstance(each, Waiting) and each.is_head]
    assert heads == ["aw-2"]


def test_strict_queue_needs_no_protection() -> None:
    queue = queue_of(make_gang(cpu=1000), make_gang(cpu=8000))
    assert places(plan(queue, make_snapshots(hub=make_snapshot(cpu=8000)), STRICT, {"uid-of-aw-1"})) == [
        "hub",
        "Waiting",
    ]


# --- protection of the starved -------------------------------------------------------------------------


def test_starved_gang_gets_free_capacity_before_all_other_gangs() -> None:
    queue = queue_of(make_gang(cpu=6000), make_gang(cpu=6000))
    assert places(plan(queue, make_snapshots(hub=make_snapshot(cpu=8000)), starved={"uid-of-aw-1"})) == [
        "Waiting",
        "hub",
    ]


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        pytest.param([make_gang(cpu=2000)], ["Waiting"], id="what-it-will-need-is-kept"),
        pytest.param([make_gang(memory=1000)], ["hub"], id="what-it-does-not-ask-for-is-open"),
        pytest.param([make_gang(cpu=1000, gpu=1)], ["Waiting"], id="all-of-a-gang-must-fit-what-is-open"),
    ],
)
def test_other_gangs_get_free_capacity_less_the_need_of_a_starved_gang(
    others: list[Gang], expected: list[str]
) -> None:
    queue = queue_of(make_gang(cpu=8000), *others)
    snapshot = make_snapshot(cpu=8000, memory=10**4, gpu=2)
    snapshot.take(Gang(Resources({"cpu": 4000})))
    assert places(plan(queue, make_snapshots(hub=snapshot), starved={"uid-of-aw-0"}))[1:] == expected


def test_other_gangs_may_take_capacity_that_a_starved_gang_leaves() -> None:
    queue = queue_of(make_gang(1, cpu=2000, gpu=2), make_gang(cpu=6000), make_gang(cpu=1000))
    snapshot = make_snapshot(cpu=8000, gpu=2)
    snapshot.take(Gang(Resources({"nvidia.com/gpu": 1})))
    assert places(plan(queue, make_snapshots(hub=snapshot), starved={"uid-of-aw-0"})) == [
        "Waiting",
        "hub",
        "Waiting",
    ]


def test_gang_kept_out_by_a_reservation_names_its_gang() -> None:
    queue = queue_of(make_gang(cpu=8000), make_gang(cpu=1000))
    snapshot = make_snapshot(cpu=8000)
    snapshot.take(Gang(Resources({"cpu": 4000})))
    kept = Pending(
        "ReservedForAnother",
        "cluster hub: the free capacity there is reserved for default/aw-0, which has waited past the starvation bound",
        cluster="hub",
    )
    assert plan(queue, make_snapshots(hub=snapshot), starved={"uid-of-aw-0"})[1] == Waiting(queue[1], kept)


def test_each_cluster_reserves_for_one_starved_gang_and_other_clusters_stay_open() -> None:
    big, small = make_gang(cpu=4000), make_gang(cpu=1000)
    queue = queue_of(big, small)
    clusters = {name: make_snapshot(cpu=4000) for name in ("east", "west")}
    for cluster in clusters.values():
        cluster.take(Gang(Resources({"cpu": 2000})))
    assert places(plan(queue, make_snapshots(**clusters), starved={"uid-of-aw-0"})) == ["Waiting", "west"]


def test_second_starved_gang_gets_its_reservation_on_the_next_cluster() -> None:
    queue = queue_of(*[make_gang(cpu=4000)] * 2, make_gang(cpu=1000))
    clusters = {name: make_snapshot(cpu=4000) for name in ("east", "west")}
    for cluster in clusters.values():
        cluster.take(Gang(Resources({"cpu": 2000})))
    outcomes = plan(queue, make_snapshots(**clusters), starved={"uid-of-aw-0", "uid-of-aw-1"})
    assert places(outcomes) == ["Waiting", "Waiting", "Waiting"]


def test_gang_that_never_fits_gets_no_reservation() -> None:
    queue = queue_of(make_gang(cpu=9000), make_gang(cpu=8000))
    assert places(plan(queue, make_snapshots(hub=make_snapshot(cpu=8000)), starved={"uid-of-aw-0"})) == [
        "Impossible",
        "hub",
    ]


def test_gang_is_starved_once_it_was_blocked_for_the_bound_since_it_became_the_head() -> None:
    records = [make_record(name=f"aw-{n}", blocked_since=when) for n, when in enumerate((None, at(0), at(1)))]
    assert starved(records, at(600), timedelta(seconds=600)) == {"uid-of-aw-1"}


AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "gpu"]), st.integers(0, 6)).map(Resources)
GANGS = st.builds(Gang, AMOUNTS)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["east", "west"]), st.tuples(AMOUNTS, AMOUNTS), min_size=1),
    st.lists(GANGS, max_size=8),
    st.sets(st.integers(0, 7), max_size=3),
    st.sampled_from(QueueingStrategy),
)
def test_whatever_the_policy_capacity_is_never_exceeded_and_the_first_starved_loses_nothing(
    clusters: dict[str, tuple[Resources, Resources]],
    gangs: list[Gang],
    starving: set[int],
    policy: QueueingStrategy,
) -> None:
    queue, uids = queue_of(*gangs), {f"uid-of-aw-{index}" for index in starving}
    free = {name: make_snapshot(**dict(total)) for name, (total, _) in clusters.items()}
    for name, (_, taken) in clusters.items():
        free[name].take(Gang(taken))
    before = {name: snapshot.free_for(None) for name, snapshot in free.items()}

    outcomes = plan(queue, make_snapshots(**free), policy, uids)

    assert [outcome.record for outcome in outcomes] == queue
    for name, snapshot in free.items():
        placed = [each.record.gang for each in outcomes if isinstance(each, Placed) and each.cluster == name]
        demand = sum((gang.demand for gang in placed), start=Resources())
        assert snapshot.free_for(None) == before[name] - demand
        assert demand.fits_in(before[name])
    first = next((each for each in outcomes if each.record.uid in uids), None)
    if policy is QueueingStrategy.BEST_EFFORT_FIFO and isinstance(first, Waiting):
        needs = first.record.gang.demand
        home = min(name for name in free if needs.fits_in(free[name].total_for(None)))
        for resource in needs:
            left = free[home].free_for(None)[resource]
            assert left >= min(before[home][resource], needs[resource])
    assert not any(isinstance(each, NotEvaluated) for each in outcomes) or policy is STRICT
    assert not any(
        isinstance(each, Impossible) and each.record.gang.demand == Resources() for each in outcomes
    )


# -----------------------------------------------------------------------------------------------------------
# A gang of any pod sets gets an answer within stated steps: places, none, or that its search was not
# decided.


def node(at: int, *, cpu: int = 32_000, zone: str = "a") -> Node:
    name = f"n{at:03}"
    return Node(name, Resources({"cpu": cpu, "pods": 110}), labels={HOSTNAME: name, "zone": zone})


def ledger_of(*nodes: Node) -> CapacityLedger:
    ledger = CapacityLedger(FitMode.NODE, "hub")
    for each in nodes:
        ledger.set_node(each)
    return ledger


def gang_of(*pod_sets: PodSet) -> Gang:
    return Gang(sum_of(each.total for each in pod_sets), sum(each.count for each in pod_sets), pod_sets)


def crowd_on_the_last_of(nodes: int) -> Gang:
    """Pods of different sizes that each fit the last node alone but not together, after one that fits any node."""
    last = NodeRequirements(selector=((HOSTNAME, f"n{nodes - 1:03}"),))
    crowd = [PodSet(1, Resources({"cpu": 521 + at}), nodes=last, path=f"jobs/{at}") for at in range(60)]
    return gang_of(PodSet(1, Resources({"cpu": 520}), path="first"), *crowd)


def pairs(pods: int) -> Gang:
    """Pods of different sizes, of which a node with 1 cpu takes two."""
    return gang_of(*(PodSet(1, Resources({"cpu": 334 + at}), path=f"jobs/{at}") for at in range(pods)))


SMALL = [node(at, cpu=1000) for at in range(12)]


@pytest.mark.parametrize("nodes", [12, 18, 24])
def test_search_over_many_pod_sets_and_nodes_ends_without_an_exception(nodes: int) -> None:
    found = fit(crowd_on_the_last_of(nodes), ledger_of(*map(node, range(nodes))).snapshot())
    assert isinstance(found, Shortfall)
    assert found.pod_set is None
    assert found.undecided == 0


def test_search_ends_at_its_bound() -> None:
    found = fit(pairs(25), ledger_of(*SMALL).snapshot())
    assert isinstance(found, Shortfall)
    assert MOST_STEPS <= found.undecided <= MOST_STEPS + MOST_ORDERED


def test_gang_that_was_not_decided_says_so_and_others_are_dispatched() -> None:
    crowd = make_record(name="crowd", gang=pairs(25))
    canary = make_record(name="canary", gang=gang_of(PodSet(1, Resources({"cpu": 1000}))))
    refused, placed = plan([crowd, canary], make_snapshots(hub=ledger_of(*SMALL).snapshot()))
    assert isinstance(placed, Placed)
    assert isinstance(refused, Impossible)
    assert refused.pending.reason == NOT_DECIDED
    words = "cpu: 12 in all of it, at most 1 on one node; not decided within "
    assert refused.pending.message.startswith(f"cluster hub: {words}")
    assert refused.pending.message.endswith(" steps whether all 25 pods have nodes at once")


def test_gang_that_fits_once_others_end_waits_for_room_although_that_was_not_decided_now() -> None:
    ledger = ledger_of(*SMALL)
    assert isinstance(fit(pairs(24), ledger.snapshot()), Assignment)
    ledger.reserve("other", gang_of(PodSet(1, Resources({"cpu": 1000}))))
    (waiting,) = plan([make_record(gang=pairs(24))], make_snapshots(hub=ledger.snapshot()))
    assert isinstance(waiting, Waiting)
    assert waiting.pending.reason == INSUFFICIENT
    assert "not decided within" in waiting.pending.message


def test_gang_that_a_whole_search_refuses_is_told_that_it_does_not_fit() -> None:
    gang = gang_of(PodSet(1, Resources({"cpu": 3})), PodSet(1, Resources({"cpu": 2})))
    ledger = ledger_of(node(0, cpu=4), node(1, cpu=1))
    (refused,) = plan([make_record(gang=gang)], make_snapshots(hub=ledger.snapshot()))
    assert isinstance(refused, Impossible)
    assert refused.pending.reason == LARGER_THAN_CLUSTER
    assert "but not all 2 pods at once" in refused.pending.message


def test_thousand_different_pods_have_places() -> None:
    gang = gang_of(*(PodSet(1, Resources({"cpu": 100 + at}), path=f"pods/{at}") for at in range(1000)))
    nodes = [node(at, cpu=640_000) for at in range(40)]
    assert isinstance(fit(gang, ledger_of(*nodes).snapshot()), Assignment)


def test_each_of_many_sets_that_counts_the_earlier_ones_comes_after_them() -> None:
    spread = [
        PodSet(1, Resources({"cpu": 1}), spread=(Spread("zone", 1, 1, counts=tuple(range(-at, 0))),))
        for at in range(300)
    ]
    nodes = [node(at, zone=f"zone-{at % 3}") for at in range(24)]
    assert isinstance(fit(gang_of(*spread), ledger_of(*nodes).snapshot()), Assignment)


def test_steps_in_all_combinations_of_domains_are_bounded_together() -> None:
    """Each zone has nodes for each pod set alone; in each combination orders fail, and a search is long."""
    nodes = [node(at, cpu=100, zone=f"zone-{at % 70}") for at in range(70 * 6)]
    sizes = [51, 50, 49, 48, 47, 46, 45, 44, 43, 42, 41, 40, 39, 38, 37]
    near = [
        PodSet(1, Resources({"cpu": size}), together=("zone",), near=(("zone", (-at or 1,)),))
        for at, size in enumerate(sizes)
    ]
    found = fit(gang_of(*near), ledger_of(*nodes).snapshot())
    assert isinstance(found, Shortfall)
    assert MOST_STEPS < found.undecided <= MOST_STEPS_IN_ALL + MOST_ORDERED + len(sizes)


def test_pod_set_without_a_domain_ends_the_search_for_combinations() -> None:
    """Sixty sets with two zones each have more combinations than can be looked at before the set that has none."""
    nodes = [node(at, cpu=1000, zone="ab"[at % 2]) for at in range(8)]
    free = [PodSet(1, Resources({"cpu": 1 + at}), together=("zone",)) for at in range(60)]
    torn = PodSet(5, Resources({"cpu": 600}), together=("zone",))
    found = fit(gang_of(*free, torn), ledger_of(*nodes).snapshot())
    assert isinstance(found, Shortfall)
    assert found.undecided == 0
