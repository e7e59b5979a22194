"""How full clusters are and how long queues, as history keeps it: each amount exact, and each of whom it says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.core.lifecycle import queue_changes, run_changes
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.records.record import HOLDING, Phase, Record
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.core.status.samples import (
    AT_ONCE,
    CapacitySample,
    LedgerReading,
    Moment,
    QueueSample,
    moment_of,
    reading_of,
)
from tests.builders import NOW, at, make_gang, make_record, make_requested
from tests.unit.core.scheduling.capacity_definition import account

AWAY = CapacitySample("west", "cpu", 8000, 3000, 1000, 4000)


def counted(records: Iterable[Record], readings: Mapping[str, LedgerReading] | None = None) -> Moment:
    """A moment, counted to its end."""
    moment = Moment(records, readings or {})
    for _ in moment.count():
        pass
    return moment


def dispatched(name: str = "aw", cluster: str = "east", cpu: int = 4) -> Record:
    """An AppWrapper that holds so much."""
    queued = make_record(name=name, gang=make_gang(1, cpu=cpu))
    return queue_changes.dispatch(queued, cluster, at(1)).after


def node(name: str = "n1", *, usable: bool = True) -> Node:
    return Node(name, Resources({"cpu": 10}), usable)


def pod(uid: str = "p", *, cpu: int, node: str = "n1", **fields: object) -> Pod:
    made = Pod(uid, Resources({"cpu": cpu}), node, PodPhase.RUNNING)
    return replace(made, **fields)  # type: ignore[arg-type]  # Pod's own fields


OURS = "uid-of-aw"


@pytest.mark.parametrize(
    ("seen", "capacity", "other", "free"),
    [
        pytest.param([node()], 10, 0, 6, id="nothing-of-it-is-bound"),
        pytest.param([node(), pod(cpu=3, owner=OURS)], 10, 0, 6, id="some-of-it-is-bound"),
        pytest.param([node(), pod(cpu=3, claim=OURS)], 10, 0, 6, id="it-says-so-itself"),
        pytest.param([node(), pod(cpu=5, owner=OURS)], 10, 0, 5, id="more-than-it-asked-for-is-not-others"),
        pytest.param([node(), pod(cpu=3)], 10, 3, 3, id="foreign"),
        pytest.param([node(), pod(cpu=3, owner="ended")], 10, 3, 3, id="of-one-that-holds-nothing"),
        pytest.param([node(), pod(cpu=3, node="")], 10, 0, 6, id="foreign-and-unbound"),
        pytest.param([node(), pod(cpu=3, phase=PodPhase.SUCCEEDED)], 10, 0, 6, id="foreign-and-over"),
        pytest.param([node(), pod(cpu=3, node="gone")], 10, 0, 6, id="foreign-on-a-node-that-is-gone"),
        pytest.param([node(usable=False), pod(cpu=3)], 0, 0, -4, id="foreign-on-a-cordoned-node"),
        pytest.param(
            [node(usable=False), pod(cpu=4, owner=OURS)], 0, 0, 0, id="all-of-it-on-a-cordoned-node"
        ),
    ],
)
def test_amount_is_held_or_others_or_free(
    seen: list[Node | Pod], capacity: int, other: int, free: int
) -> None:
    ledger = CapacityLedger()
    for each in seen:
        if isinstance(each, Node):
            ledger.set_node(each)
        else:
            ledger.set_pod(each)
    ledger.reserve(OURS, Gang(Resources({"cpu": 4})))
    moment = counted([dispatched()], {"east": reading_of(ledger)})
    assert moment.capacities() == [CapacitySample("east", "cpu", capacity, 4, other, free)]


PODS = st.builds(
    pod,
    cpu=st.integers(0, 5),
    node=st.sampled_from(["", "n1", "n2", "n3"]),
    owner=st.sampled_from([None, "uid-of-a", "uid-of-b", "uid-of-c"]),
    phase=st.sampled_from([PodPhase.RUNNING, PodPhase.FAILED]),
)


@given(st.lists(PODS, max_size=8), st.integers(0, 9), st.integers(0, 9))
def test_capacity_that_is_not_free_belongs_to_others_or_is_charged_to_its_holders(
    drawn: list[Pod], of_a: int, of_b: int
) -> None:
    nodes = [node("n1"), node("n2"), node("n3", usable=False)]
    pods = [replace(each, uid=str(number)) for number, each in enumerate(drawn)]
    demands = {"uid-of-a": Resources({"cpu": of_a}), "uid-of-b": Resources({"cpu": of_b})}
    free = account(nodes, pods, demands)
    stock = LedgerReading(Resources({"cpu": 20}), free, frozenset({"n1", "n2"}), pods)
    (sample,) = counted([dispatched("a", cpu=of_a), dispatched("b", cpu=of_b)], {"east": stock}).capacities()
    charged = NOTHING
    for uid, demand in demands.items():
        own = [each for each in pods if each.owner == uid and each.occupies_node]
        bound = sum((each.requests for each in own), start=NOTHING)
        usable = sum((each.requests for each in own if each.node in stock.usable), start=NOTHING)
        charged += usable + (demand - bound).positive_part()
    assert sample.capacity == sample.free + sample.other + charged["cpu"]
    assert (sample.capacity, sample.held, sample.free) == (20, of_a + of_b, free["cpu"])


def test_each_cluster_is_sampled_resource_by_resource() -> None:
    full = LedgerReading(
        Resources({"cpu": 8000, "nvidia.com/gpu": 2}), Resources({"cpu": 7000, "nvidia.com/gpu": 2})
    )
    silent = replace(full, is_reachable=False)
    moment = counted([dispatched(cpu=1000)], {"west": silent, "east": full})
    assert moment.capacities() == [
        CapacitySample("west", "cpu", 8000, 0, 0, 7000, is_reachable=False),
        CapacitySample("west", "nvidia.com/gpu", 2, 0, 0, 2, is_reachable=False),
        CapacitySample("east", "cpu", 8000, 1000, 0, 7000),
        CapacitySample("east", "nvidia.com/gpu", 2, 0, 0, 2),
    ]


def test_sample_of_a_grown_gang_has_the_resources_it_holds() -> None:
    record = make_record(Phase.RUNNING)
    demand = record.gang.demand
    moment = counted([run_changes.note_growth(record, demand * 3, at(10)).after])
    (queue,) = moment.queues()
    away = CapacitySample("hub", "cpu", 8000, 0, 0, 8000)
    assert queue.running_demand == demand * 3
    assert [each.held for each in moment.capacities([away])] == [demand["cpu"] * 3]


def test_gang_that_awaits_its_capacity_is_sampled_in_its_queue_and_holds_nothing_of_its_cluster() -> None:
    moment = counted([make_requested()])
    away = CapacitySample("hub", "cpu", 8000, 0, 0, 8000)
    assert [each.held for each in moment.capacities([away])] == [0]
    (queue,) = moment.queues()
    assert queue.running == 1


def test_sample_of_an_unreachable_cluster_has_its_last_capacity_and_the_present_use() -> None:
    records = [dispatched("a", "west", 2000), dispatched("b", "west", 500), dispatched("c", "south", 1)]
    assert counted(records).capacities([AWAY]) == [replace(AWAY, held=2500, is_reachable=False)]


@pytest.mark.parametrize("phase", [each for each in Phase if each is not Phase.DELETED])
def test_sample_of_a_queue_has_pending_gangs_and_holders(phase: Phase) -> None:
    one = QueueSample("default")
    if phase is Phase.QUEUED:
        one = replace(one, queued=1, queued_demand=Resources({"cpu": 1000}))
    if phase in HOLDING:
        one = replace(one, running=1, running_demand=Resources({"cpu": 1000}))
    assert counted([make_record(phase)]).queues() == [one]


def test_queues_are_sampled_by_name_and_the_default_one_in_any_case() -> None:
    records = [
        make_record(name="a", queue="research", gang=make_gang(2, cpu=500, gpu=1)),
        make_record(name="b", queue="research"),
        make_record(Phase.FAILED, "c", queue="batch"),
    ]
    assert counted(records).queues() == [
        QueueSample("batch"),
        QueueSample("default"),
        QueueSample("research", 2, Resources({"cpu": 2000, "nvidia.com/gpu": 2})),
    ]


def test_sample_shows_the_moment_it_began_and_is_counted_in_parts() -> None:
    records = [make_record(name=str(number)) for number in range(AT_ONCE + 1)]
    pods = [pod(str(number), cpu=1) for number in range(2 * AT_ONCE)]
    stock = LedgerReading(Resources({"cpu": 1}), NOTHING, frozenset({"n1"}), pods)
    moment = Moment(records, {"east": stock})
    records.clear()
    assert len(list(moment.count())) == 4
    assert [each.queued for each in moment.queues()] == [AT_ONCE + 1]
    assert [each.other for each in moment.capacities()] == [2 * AT_ONCE]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(datetime(2026, 11, 20, 8, 58, 6, 842261, tzinfo=UTC), (8, 55), id="between"),
        pytest.param(datetime(2026, 11, 20, 8, 55, tzinfo=UTC), (8, 55), id="at-one"),
        pytest.param(datetime(2026, 11, 20, 8, 54, 59, 999999, tzinfo=UTC), (8, 50), id="just-before"),
    ],
)
def test_samples_are_due_at_multiples_of_the_period(now: datetime, expected: tuple[int, int]) -> None:
    hour, minute = expected
    due = NOW.replace(hour=hour, minute=minute, second=0, microsecond=0)
    assert moment_of(now, timedelta(minutes=5)) == due
