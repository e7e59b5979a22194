"""After a change of a cluster only the gangs are compared with it again that it may refuse in another way."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.core.model.clusters.nodes import Node, Taint, Toleration
from dispatcher.core.model.clusters.potential import PotentialPool
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.incremental import run
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import Resources, sum_of
from dispatcher.core.queues.ordering import in_order
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.outcome_changes import change_of
from dispatcher.core.scheduling.fit.cluster_filters import Closed, ClusterSnapshot
from dispatcher.core.scheduling.queued import affected_classes
from dispatcher.core.scheduling.queued.affected_classes import LARGEST, MOST_COLUMNS, AffectedClasses
from tests import sweeps
from tests.builders import at, make_record
from tests.one_queue import OneQueue, plan

TAINT = Taint("gpu", "", "NoSchedule")
TOLERATES = (Toleration("gpu", "Exists"),)
NODES = ("n1", "n2", "n3")
LONG = timedelta(days=1)
FIFO = QueueingStrategy.BEST_EFFORT_FIFO


class FullClusters:
    """Two clusters with pods that come and go, and a queue in which few gangs fit; decides in both ways."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.ledgers = {name: CapacityLedger(FitMode.NODE, name) for name in ("east", "west")}
        self.queue = OneQueue()
        self.records: dict[str, Record] = {}
        self.running: dict[str, str] = {}
        """The clusters of running gangs by uid."""
        self.arrived = 0
        for ledger in self.ledgers.values():
            for name in NODES:
                has = Resources({"cpu": 6, "gpu": 2, "memory": 6})
                ledger.set_node(Node(name, has, taints=(TAINT,) if name == "n3" else ()))
        for name in ("east", "west") * 3:
            self.pods_change(name)
        for _ in range(30):
            self.gang_arrives(self.gang())

    def pods_change(self, cluster: str) -> None:
        """The pods of one node request other amounts."""
        node, draw = self.random.choice(NODES), self.random.choice
        amounts = Resources({"cpu": draw([2, 3, 4, 5, 7]), "gpu": draw([0, 1, 2]), "memory": draw([0, 3, 6])})
        never_ends = self.random.random() < 0.1
        self.ledgers[cluster].set_pod(
            Pod(f"pod-{node}", amounts, node, PodPhase.RUNNING, never_ends=never_ends)
        )

    def gang(self) -> Gang:
        """A gang of one or two pod sets; the demand may be larger than its pods."""
        draw = self.random.choice
        pod_sets = tuple(self.pod_set() for _ in range(draw([1, 1, 2])))
        demand = sum_of(each.total for each in pod_sets) + Resources({"cpu": draw([0, 0, 1])})
        return Gang(demand, sum(each.count for each in pod_sets), pod_sets)

    def pod_set(self) -> PodSet:
        """Some pods, of which those with GPUs tolerate the taint."""
        draw = self.random.choice
        each = Resources(
            {"cpu": draw([0, 1, 2, 3, 4]), "gpu": draw([0, 0, 1, 2]), "memory": draw([0, 0, 1, 2, 4])}
        )
        return PodSet(draw([1, 2, 3, 4]), each, TOLERATES if each["gpu"] else ())

    def gang_arrives(self, gang: Gang) -> None:
        """One more gang at the end of the queue."""
        self.arrived += 1
        self.put(make_record(name=f"aw-{self.arrived}", gang=gang, enqueue_seq=self.arrived))

    def put(self, record: Record) -> None:
        self.records[record.uid] = record
        self.queue.put(record)

    def something_changes(self) -> None:
        match self.random.randrange(7):
            case 4 if self.running:
                uid, cluster = self.running.popitem()
                self.ledgers[cluster].release(uid)
            case 0:
                self.gang_arrives(self.gang())
            case 1 if self.records:
                self.gang_arrives(self.random.choice(list(self.records.values())).gang)
            case 2 if self.records:
                uid = self.random.choice(list(self.records))
                del self.records[uid]
                self.queue.remove(uid)
            case 3:
                cluster = self.random.choice(["east", "west"])
                self.ledgers[cluster].reserve("others", Gang(Resources({"cpu": self.random.randrange(4)})))
            case _:
                self.pods_change(self.random.choice(["east", "west"]))

    def decide(self) -> None:
        """One cycle; its changes are those of a cycle from scratch, and are committed."""
        expected = [
            change
            for each in plan(in_order(self.records.values(), at(1)), self.snapshots(), FIFO)
            if (change := change_of(each, at(1)))
        ]
        outcomes = self.queue.plan(self.snapshots(), FIFO, LONG, at(1))
        assert [change_of(each, at(1)) for each in outcomes] == expected
        for change in expected:
            after = change.after
            if after.phase is Phase.QUEUED:
                self.put(after)
            elif after.attempt is not None:
                del self.records[after.uid]
                self.queue.remove(after.uid)
                self.running[after.uid] = after.attempt.cluster
                self.ledgers[after.attempt.cluster].reserve(after.uid, after.gang, after.attempt.assignment)

    def snapshots(self) -> dict[str, ClusterSnapshot]:
        return {name: ClusterSnapshot(name, ledger.snapshot()) for name, ledger in self.ledgers.items()}


@pytest.mark.parametrize(
    "seeds",
    [
        *sweeps.spread(range(20), 10),
        pytest.param(range(20, 1000), id="many", marks=[pytest.mark.exhaustive, pytest.mark.timeout(1200)]),
    ],
)
def test_cycles_after_changes_decide_as_from_scratch(seeds: range) -> None:
    for seed in seeds:
        clusters = FullClusters(Random(seed))  # noqa: S311  # a test
        for _ in range(40):
            clusters.decide()
            clusters.something_changes()


# --- single changes -------------------------------------------------------------------------------------


def ledger_of(**cpus: int) -> CapacityLedger:
    """Nodes of 8 cpus and two pods, with so many free."""
    ledger = CapacityLedger(FitMode.NODE, "hub")
    for name, cpu in cpus.items():
        ledger.set_node(Node(name, Resources({"cpu": 8, "gpu": 8}), most_pods=3))
        ledger.set_pod(using(name, 8 - cpu))
    return ledger


def using(node: str, cpu: int, gpu: int = 0) -> Pod:
    """The pod of a node."""
    return Pod(f"on-{node}", Resources({"cpu": cpu, "gpu": gpu}), node, PodPhase.RUNNING)


def gang_with(*pod_sets: tuple[int, int], **fields: Any) -> Gang:  # noqa: ANN401
    """A gang of so many pods with so many cpus each."""
    found = tuple(PodSet(count, Resources({"cpu": cpu}), **fields) for count, cpu in pod_sets)
    return Gang(sum_of(each.total for each in found), sum(each.count for each in found), found)


def hub(ledger: CapacityLedger, **fields: Any) -> dict[str, ClusterSnapshot]:  # noqa: ANN401
    return {"hub": ClusterSnapshot("hub", ledger.snapshot(), **fields)}


def settled(ledger: CapacityLedger, *gangs: Gang) -> OneQueue:
    """A queue whose records have their pending reasons; the first gang is the head."""
    queue = OneQueue()
    for number, gang in enumerate([gang_with((1, 8)), *gangs]):
        queue.put(make_record(name=f"aw-{number}", gang=gang, enqueue_seq=number))
    for outcome in queue.plan(hub(ledger), FIFO, LONG, at(1)):
        change = change_of(outcome, at(1))
        assert change is not None
        queue.put(change.after)
    assert queue.plan(hub(ledger), FIFO, LONG, at(1)) == []
    return queue


@pytest.mark.parametrize(
    ("cpus", "gang", "pod", "expected"),
    [
        pytest.param(
            {"a": 3, "b": 3}, gang_with((3, 2)), using("a", 4), [("aw-1", "")], id="a-node-takes-one-pod-more"
        ),
        pytest.param(
            {"a": 1, "b": 1}, gang_with((1, 2)), using("a", 6), [("aw-1", "")], id="a-node-takes-it"
        ),
        pytest.param(
            {"a": 4, "b": 1},
            gang_with((1, 3), (1, 2)),
            Pod("empty", Resources(), "b", PodPhase.RUNNING),
            [],
            id="a-place-for-a-pod-is-left",
        ),
        pytest.param({"a": 1, "b": 1}, gang_with((1, 4)), using("a", 8), [], id="sums-are-still-short"),
    ],
)
def test_gang_is_decided_on_again_where_a_change_matters(
    cpus: dict[str, int], gang: Gang, pod: Pod, expected: list[tuple[str, str]]
) -> None:
    ledger = ledger_of(**cpus)
    queue = settled(ledger, gang)
    ledger.set_pod(pod)
    outcomes = queue.plan(hub(ledger), FIFO, LONG, at(1))
    news = [(each.record.name, getattr(getattr(each, "pending", None), "resource", "")) for each in outcomes]
    assert news == expected


def test_gang_whose_pod_sets_must_be_packed_is_compared_again_after_every_change() -> None:
    """A node that takes none of its pods has fewer places: then places are what it lacks."""
    ledger = ledger_of(a=4, b=1)
    ledger.set_pod(Pod("on-a-too", Resources(), "a", PodPhase.RUNNING))
    queue = settled(ledger, gang_with((1, 3), (1, 2)))
    for number in range(2):
        ledger.set_pod(Pod(f"empty-{number}", Resources(), "b", PodPhase.RUNNING))
    (outcome,) = queue.plan(hub(ledger), FIFO, LONG, at(1))
    assert getattr(outcome, "pending").resource == "pods"  # noqa: B009  # only a refusal has one


CLASS = "class"


def affected(
    gang: Gang, before: ClusterSnapshot | None, now: ClusterSnapshot, classes: int = 1
) -> set[str] | None:
    table = AffectedClasses[str]()
    for number in range(classes):
        table.add(f"{CLASS}-{number}", gang)
    return run(table.of(before, now))


def snapshot_of(ledger: CapacityLedger, **fields: Any) -> ClusterSnapshot:  # noqa: ANN401
    return hub(ledger, **fields)["hub"]


def test_every_class_is_affected_if_more_than_free_amounts_of_few_nodes_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger, gang = ledger_of(a=1, b=1), gang_with((1, 4))
    before = snapshot_of(ledger)
    assert affected(gang, before, snapshot_of(ledger)) == set()
    assert affected(gang, None, before) is None
    assert affected(gang, before, replace(before, closed=Closed("ClusterCordoned", ""))) is None
    assert affected(gang, before, replace(before, labels={"a": "b"})) is None

    ledger.set_pod(replace(using("a", 8), never_ends=True))
    assert affected(gang, before, snapshot_of(ledger)) is None  # less is attainable
    before = snapshot_of(ledger)
    ledger.set_pod(replace(using("a", 7), never_ends=True))
    assert affected(gang, before, snapshot_of(ledger)) is None
    before = snapshot_of(ledger)
    ledger.set_pod(Pod("x", Resources({"cpu": 1}), "a", PodPhase.RUNNING))
    ledger.set_pod(using("b", 8))
    assert affected(gang, before, snapshot_of(ledger)) == set()
    monkeypatch.setattr(affected_classes, "MOST_CHANGED_NODES", 1)
    assert affected(gang, before, snapshot_of(ledger)) is None
    monkeypatch.undo()
    ledger.set_pools((PotentialPool("new", Node("", Resources({"cpu": 8})), 1),))
    assert affected(gang, snapshot_of(ledger), snapshot_of(ledger)) is None  # potential nodes count, too
    ledger.set_pools(())
    ledger.set_node(Node("c", Resources({"cpu": 1})))
    assert affected(gang, before, snapshot_of(ledger)) is None


@pytest.mark.parametrize(
    "gang",
    [
        pytest.param(Gang(Resources({"cpu": 9})), id="no-pod-sets"),
        pytest.param(gang_with((1, 9), apart=True), id="rules-about-other-pods"),
        pytest.param(gang_with((1, 9), claims=("claim",)), id="claims"),
        pytest.param(gang_with((1, 9)).with_smaller({"hub": gang_with((1, 8))}), id="less-in-a-cluster"),
        pytest.param(gang_with((1, LARGEST + 1)), id="larger-than-the-arrays-hold"),
    ],
)
def test_gangs_that_the_test_does_not_know_count_as_affected(gang: Gang) -> None:
    table = AffectedClasses[str]()
    table.add(CLASS, gang)
    assert not table.knows(CLASS)


def test_rows_are_used_again() -> None:
    table = AffectedClasses[str]()
    ledger = ledger_of(a=1, b=1)
    before = snapshot_of(ledger)
    for _ in range(3):
        for number in range(100):
            table.add(f"{number}", gang_with((1, 1 + number % 5), (1, 1)))
        for number in range(99):
            table.remove(f"{number}")
            table.remove(f"{number}")
    ledger.set_pod(using("a", 8))
    assert run(table.of(before, snapshot_of(ledger))) == set()
    assert table._demands.size == 128  # noqa: SLF001  # its rows


def test_names_that_gangs_request_take_a_bounded_number_of_columns_which_go_with_their_gangs() -> None:
    table = AffectedClasses[str]()
    for round_ in range(3):
        for number in range(40):
            names = (f"a.b/{round_}-{number}-{each}" for each in range(20))
            requests = Resources(dict.fromkeys(names, 1))
            table.add(f"{number}", Gang(requests, 1, (PodSet(1, requests),)))
        known = [number for number in range(40) if table.knows(f"{number}")]
        assert known == list(range(MOST_COLUMNS // 20))  # the others always count as affected
        assert len(table._demands.columns) == 20 * len(known)  # noqa: SLF001  # its columns
        for number in range(40):
            table.remove(f"{number}")
        assert not table._demands.columns  # noqa: SLF001
