"""A gang that requests less in some clusters is compared with each cluster by its demand there."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatcher.core.lifecycle import run_changes
from dispatcher.core.lifecycle.growth import growth_due
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.outcomes import Outcome, Placed, Waiting
from dispatcher.core.scheduling.cycle.recheck import still_fitting
from dispatcher.core.scheduling.explain.leader_snapshot import running_gang
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.fit.estimated_ends import LAST_RESORT, soonest_on
from dispatcher.core.scheduling.fit.fit import assignment_in_empty, fit_in_both, fits, fits_in_empty
from dispatcher.core.scheduling.sharing.gangs import active_gang
from dispatcher.core.status.samples import Moment, reading_of
from tests.builders import at, attempt_of, make_core_node, make_gang, make_record
from tests.one_queue import OneQueue, plan

FOUR = make_gang(2, cpu=4000)
"""Two pods of four CPUs, but of two CPUs each in the cluster east."""
GANG = FOUR.with_smaller({"east": make_gang(2, cpu=2000)})

BOTH = pytest.mark.parametrize("mode", FitMode)


def ledger(mode: FitMode, name: str, *cpus: int, used: int = 0) -> CapacityLedger:
    """A cluster with a node for each of `cpus`, of which a pod of another uses some of the first."""
    made = CapacityLedger(mode, name)
    for number, cpu in enumerate(cpus):
        made.set_node(make_core_node(f"n{number}", cpu=cpu))
    made.set_pod(Pod("other", Resources({"cpu": used}), "n0", PodPhase.RUNNING))
    return made


def snapshots(*ledgers: tuple[str, CapacityLedger]) -> dict[str, ClusterSnapshot]:
    return {name: ClusterSnapshot(name, each.snapshot()) for name, each in ledgers}


def clusters(mode: FitMode, **cpus: tuple[int, ...]) -> dict[str, ClusterSnapshot]:
    return snapshots(*((name, ledger(mode, name, *each)) for name, each in cpus.items()))


def record_of(gang: Gang, name: str = "aw", enqueue_seq: int = 0) -> Record:
    return make_record(name=name, gang=gang, enqueue_seq=enqueue_seq)


def clusters_of(outcomes: list[Outcome]) -> list[str]:
    return [each.cluster if isinstance(each, Placed) else type(each).__name__ for each in outcomes]


@BOTH
@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        pytest.param({"east": (2000, 2000)}, "east", id="fits-where-it-requests-less"),
        pytest.param({"east": (2000, 1999)}, "Impossible", id="a-little-too-small"),
        pytest.param({"west": (2000, 2000)}, "Impossible", id="fits-not-where-it-requests-more"),
        pytest.param({"east": (2000, 2000), "west": (4000, 3999)}, "east", id="each-by-its-own-demand"),
        pytest.param({"east": (8000, 8000), "west": (4000, 4000)}, "west", id="the-fuller-cluster-wins"),
        pytest.param({"east": (2000, 2000), "west": (9000, 9000)}, "east", id="the-fuller-by-its-own-demand"),
    ],
)
def test_gang_goes_where_its_demand_there_fits(
    mode: FitMode, cpus: dict[str, tuple[int, ...]], expected: str
) -> None:
    outcomes = plan([record_of(GANG)], clusters(mode, **cpus))
    assert clusters_of(outcomes) == [expected]


@BOTH
def test_placed_gang_takes_its_demand_there(mode: FitMode) -> None:
    queue = [record_of(GANG, name) for name in ("one", "two", "three")]
    assert clusters_of(plan(queue, clusters(mode, east=(4000, 4000)))) == ["east", "east", "Waiting"]


@BOTH
def test_held_gang_is_charged_with_its_demand_there(mode: FitMode) -> None:
    east, west = ledger(mode, "east", 8000), ledger(mode, "west", 8000)
    for each in (east, west):
        each.reserve("aw", GANG)
    assert (east.free()["cpu"], west.free()["cpu"]) == (4000, 0)


@BOTH
def test_message_of_a_cluster_has_the_demand_there(mode: FitMode) -> None:
    east, west = ledger(mode, "east", 4000, used=1000), ledger(mode, "west", 8000, used=4000)
    (outcome,) = plan([record_of(GANG)], snapshots(("east", east), ("west", west)))
    assert isinstance(outcome, Waiting)
    assert {each.cluster: each.message.partition(";")[0] for each in outcome.pending.clusters} == {
        "east": "cpu: needs 4, 3 free",
        "west": "cpu: needs 8, 4 free",
    }


def test_gangs_that_differ_in_one_cluster_alone_are_not_refused_alike() -> None:
    def queue() -> list[Record]:
        return [record_of(gang, name, enqueue_seq=number) for number, (name, gang) in enumerate(named)]

    named = [("large", FOUR), ("smaller", GANG)]
    by_definition = plan(queue(), clusters(FitMode.NODE, east=(2000, 2000), west=(3000, 3000)))
    kept = OneQueue()
    for each in queue():
        kept.put(each)
    there = clusters(FitMode.NODE, east=(2000, 2000), west=(3000, 3000))
    outcomes = kept.plan(there, QueueingStrategy.BEST_EFFORT_FIFO, timedelta(1), at(1))
    assert clusters_of(by_definition) == clusters_of(outcomes) == ["Impossible", "east"]


@BOTH
def test_every_question_about_a_cluster_is_about_the_demand_there(mode: FitMode) -> None:
    def answers(name: str) -> list[bool]:
        capacity = ledger(mode, name, 2000, 2000).snapshot()
        places = fit_in_both(GANG, capacity, capacity.copy())
        placed = Placed(record_of(GANG), name)
        found = [
            fits(GANG, capacity),
            fits_in_empty(GANG, capacity),
            soonest_on(GANG, capacity, (), at(0)).at != LAST_RESORT,
            type(places).__name__ == "Assignment",
            bool(still_fitting([placed], {name: ClusterSnapshot(name, capacity.copy())}).found),
        ]
        if mode is FitMode.NODE:
            found.append(bool(assignment_in_empty(GANG, capacity).places))
        return found

    assert set(answers("east")) == {True}
    assert set(answers("west")) == {False}


def held_by(cluster: str) -> Record:
    record = make_record(Phase.RUNNING, gang=GANG)
    return replace(record, attempt=replace(attempt_of(record), cluster=cluster))


@pytest.mark.parametrize(
    ("cluster", "bound", "held", "charged"),
    [
        pytest.param("east", 4000, 4000, 8000, id="less-than-the-largest"),
        pytest.param("east", 5000, 5000, 8000, id="grown-but-less-than-the-largest"),
        pytest.param("east", 9000, 9000, 9000, id="grown-beyond-the-largest"),
        pytest.param("west", 8000, 8000, 8000, id="the-largest"),
        pytest.param("west", 9000, 9000, 9000, id="the-largest-and-grown"),
    ],
)
def test_gang_holds_its_demand_there_and_its_queues_are_charged_the_largest(
    cluster: str, bound: int, held: int, charged: int
) -> None:
    record, requests = held_by(cluster), Resources({"cpu": bound})
    if growth_due(record, requests, 1) is not None:
        record = run_changes.note_growth(record, requests, at(9)).after
    assert growth_due(record, requests, 1) is None
    assert (record.held["cpu"], record.charge["cpu"]) == (held, charged)


def test_gang_of_a_leader_snapshot_has_its_demand_there() -> None:
    record = held_by("east")
    running = running_gang(record, attempt_of(record), (), None)
    assert (running.demand["cpu"], [each.pods.requests["cpu"] for each in running.pods]) == (4000, [2000])
    found = active_gang(record, is_unreachable=False)
    assert found is not None
    assert found.demand["cpu"] == 4000


def test_sample_has_the_demand_there_and_its_amounts_add_up() -> None:
    east, record = ledger(FitMode.NODE, "east", 9000, used=1000), held_by("east")
    east.reserve(record.uid, record.gang)
    moment = Moment([record], {"east": reading_of(east)})
    list(moment.count())
    (sample,) = [each for each in moment.capacities() if each.resource == "cpu"]
    assert (sample.capacity, sample.free, sample.held, sample.other) == (9000, 4000, 4000, 1000)


def test_only_gangs_with_smaller_requests_alone_count_in_their_clusters() -> None:
    given = {
        "equal": FOUR,
        "larger": make_gang(2, cpu=5000),
        "more-pods": make_gang(3, cpu=1000),
        "other-sets": Gang(Resources({"cpu": 1}), 2),
        "smaller": make_gang(2, cpu=1),
    }
    assert FOUR.with_smaller(given).smaller == (("smaller", make_gang(2, cpu=1)),)
    assert FOUR.with_smaller(given).in_cluster("equal").demand == FOUR.demand
