"""Issues of Kueue about preemption that never ends or frees nothing of use, each as its reporter describes it.

Each issue is simulated until nothing changes any more, with victims that leave one after the other. Some are scenario
files, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.model.records.record import Pending, Record
from dispatcher.core.scheduling.cycle.news import ClassRefused, Unplaced, is_news, outcome_of
from dispatcher.core.scheduling.cycle.outcomes import Impossible, Waiting
from dispatcher.core.scheduling.fit.refused import Refused
from dispatcher.core.scheduling.queued.queued_gangs import QueuedGangs
from tests import sweeps
from tests.builders import NOW, make_record
from tests.unit.core.scheduling.queue_simulation import Simulation
from tests.unit.core.scheduling.queue_worlds import random_document
from tests.unit.core.scheduling.test_queue_scenarios import FOLDER

Json = dict[str, Any]

SCENARIO_OF_ISSUE = {
    2821: "kueue-queueing-issue-2821-priority-between-borrowers.yaml",
    5243: "nodes-scattered-gpus-free-one-node.yaml",
}

ROOM = "clusters: [{name: hub, nodes: [{name: n, allocatable: {cpu: 1000}}]}]"


def gang(name: str, queue: str, cpu: int | str, priority: int = 0, age: int = 0) -> Json:
    """A pending gang of one pod."""
    pods = [{"count": 1, "requests": {"cpu": cpu}}]
    return {"name": name, "queue": queue, "priority": priority, "age": age, "pods": pods}


def runs(pending: Json, ran: int = 1000) -> Json:
    """The gang as it runs."""
    (pods,) = pending["pods"]
    placed = [pods | {"nodes": ["n"]}]
    return pending | {"cluster": "hub", "ran": ran, "age": max(ran, pending["age"]), "pods": placed}


def simulated(text: str, running: Sequence[Json], pending: Sequence[Json], seed: int) -> Simulation:
    """The simulation at rest; the pending gangs are there from the beginning."""
    document = yaml.safe_load(text) | {"running": list(running), "pending": list(pending)}
    simulation = Simulation(document, Random(seed))  # noqa: S311 - repeatable
    assert simulation.comes_to_rest()
    return simulation


def running_in(simulation: Simulation) -> set[str]:
    return {each["name"] for each in simulation.document["running"]}


@pytest.mark.parametrize(("issue", "name"), SCENARIO_OF_ISSUE.items())
def test_the_scenario_file_of_an_issue_names_it(issue: int, name: str) -> None:
    document = yaml.safe_load((FOLDER / name).read_text())
    assert f"issue {issue}" in document["source"]


SEEDS = pytest.mark.parametrize("seed", range(4))


@SEEDS
def test_6947_a_workload_that_can_never_be_admitted_does_not_block_its_queue(seed: int) -> None:
    """Queue A (nominal 3, reclaim any), B (0). workload(1) in B, then (4) and (3) in A: (3) must run.

    In Kueue, (4) takes the place of (3) after each preemption of (1), which is then admitted again, for ever.
    """
    simulation = simulated(
        f"""
{ROOM}
queues:
- {{name: cohort}}
- {{name: a, parent: cohort, resources: {{cpu: {{nominalQuota: 3}}}}, preemption: {{reclaim: Any}}}}
- {{name: b, parent: cohort, resources: {{cpu: {{nominalQuota: 0}}}}}}
""",
        [runs(gang("one", "b", 1))],
        [gang("four", "a", 4, age=20), gang("three", "a", 3, age=10)],
        seed,
    )
    assert running_in(simulation) == {"three"}
    assert simulation.preemptions == [("one", "three")]


@SEEDS
def test_13797_of_two_victims_the_first_to_leave_is_not_admitted_again(seed: int) -> None:
    """A low-priority preemptor reclaims its quota from wlA and wlB, which leave at different times.

    In Kueue, wlA is admitted again while wlB leaves, is preempted again, and so on.
    """
    simulation = simulated(
        f"""
{ROOM}
queues:
- {{name: cohort}}
- {{name: cq1, parent: cohort, resources: {{cpu: {{nominalQuota: 4}}}}, preemption: {{reclaim: Any}}}}
- {{name: cq2, parent: cohort, resources: {{cpu: {{nominalQuota: 2}}}}, preemption: {{reclaim: Any}}}}
""",
        [runs(gang("wlA", "cq2", 3, priority=10)), runs(gang("wlB", "cq2", 3, priority=10), ran=900)],
        [gang("preemptor", "cq1", 4)],
        seed,
    )
    assert running_in(simulation) == {"preemptor"}
    assert sorted(simulation.preemptions) == [("wlA", "preemptor"), ("wlB", "preemptor")]


@SEEDS
def test_2821_a_preempted_workload_does_not_go_before_its_preemptor(seed: int) -> None:
    """B borrows and preempts, while it borrows, the older workload of lower priority in A, which borrows, too.

    In Kueue, without sorting by priority, the older one is admitted again before its preemptor.
    """
    simulation = simulated(
        f"""
{ROOM}
queues:
- {{name: all}}
- name: a
  parent: all
  resources: {{cpu: {{nominalQuota: 0}}}}
  preemption: {{withinQueue: LowerPriority, reclaim: Any}}
- name: b
  parent: all
  resources: {{cpu: {{nominalQuota: 2}}}}
  preemption: {{withinQueue: LowerPriority, reclaim: LowerPriority, whileBorrowing: {{}}}}
- {{name: shared, parent: all, resources: {{cpu: {{nominalQuota: 4}}}}}}
""",
        [runs(gang("b1", "b", 2, priority=5)), runs(gang("a1", "a", 4, priority=1, age=9000))],
        [gang("b2", "b", 4, priority=5)],
        seed,
    )
    assert running_in(simulation) == {"b1", "b2"}
    assert simulation.preemptions == [("a1", "b2")]


@SEEDS
def test_3779_best_effort_tenants_and_a_guaranteed_one_in_a_hierarchy_come_to_rest(seed: int) -> None:
    """Root without quota; a cohort with 300m for a guaranteed queue without its own; two best-effort tenants.

    In Kueue, the tenants' workloads are preempted and admitted again without an end. Guaranteed2 asks 100m.
    """
    simulation = simulated(
        f"""
{ROOM}
queues:
- {{name: root, sharing: DominantShare, resources: {{cpu: {{nominalQuota: 300m}}}}}}
- {{name: guaranteed, parent: root, resources: {{cpu: {{nominalQuota: 300m}}}}}}
- name: guaranteed-tenant
  parent: guaranteed
  resources: {{cpu: {{nominalQuota: 0}}}}
  preemption: {{withinQueue: LowerPriority, reclaim: Any}}
- name: tenant-a
  parent: root
  resources: {{cpu: {{nominalQuota: 0}}}}
  preemption: {{withinQueue: LowerPriority, reclaim: Any}}
- name: tenant-b
  parent: root
  resources: {{cpu: {{nominalQuota: 0}}}}
  preemption: {{withinQueue: LowerPriority, reclaim: Any}}
""",
        [
            runs(gang("a1", "tenant-a", "100m"), ran=4000),
            runs(gang("a2", "tenant-a", "100m"), ran=3000),
            runs(gang("b1", "tenant-b", "50m"), ran=2000),
            runs(gang("b2", "tenant-b", "50m"), ran=1000),
        ],
        [
            gang("guaranteed-1", "guaranteed-tenant", "50m", priority=5, age=10),
            gang("guaranteed-2", "guaranteed-tenant", "100m", priority=5, age=5),
        ],
        seed,
    )
    assert {"guaranteed-1", "guaranteed-2"} <= running_in(simulation)
    assert max(Counter(victim for victim, _ in simulation.preemptions).values()) == 1
    assert {preemptor for _, preemptor in simulation.preemptions} == {"guaranteed-1", "guaranteed-2"}


def test_5243_scattered_gpus_are_not_freed_for_a_pod_that_needs_a_whole_node() -> None:
    """4 nodes of 8 GPUs, each with 6 high-priority and 2 low-priority workloads of one GPU; then one of 8, one of 1.

    In Kueue, the 8 low ones are ended, the pod of 8 has no node, and the workload of 1 is not admitted.
    """

    def one_gpu(name: str, node: int, priority: int) -> Json:
        pods = [{"count": 1, "requests": {"gpu": 1}, "nodes": [f"n-{node}"]}]
        return {"name": name, "queue": "q", "cluster": "hub", "priority": priority, "ran": 600, "pods": pods}

    simulation = simulated(
        """
clusters: [{name: hub, nodes: [{name: n, count: 4, allocatable: {gpu: 8}}]}]
queues: [{name: q, resources: {gpu: {nominalQuota: 32}}, preemption: {withinQueue: LowerPriority}}]
""",
        [
            *(one_gpu(f"high-{node}-{number}", node, 9) for node in range(4) for number in range(6)),
            *(one_gpu(f"low-{node}-{number}", node, 1) for node in range(4) for number in range(2)),
        ],
        [
            {
                "name": "eight",
                "queue": "q",
                "priority": 9,
                "age": 60,
                "pods": [{"requests": {"gpu": 8}, "count": 1}],
            },
            {
                "name": "one",
                "queue": "q",
                "priority": 9,
                "age": 30,
                "pods": [{"requests": {"gpu": 1}, "count": 1}],
            },
        ],
        0,
    )
    assert [each["name"] for each in simulation.document["pending"]][:1] == ["eight"]
    assert [preemptor for _, preemptor in simulation.preemptions] == ["one"]
    assert "one" in running_in(simulation)


# --- Which outcomes of a cycle over queues are written, and which a record already says --------------------


NO_QUOTA = Pending("InsufficientQuota", "needs 2, 1 available", "cpu", queue="a")
KEPT = Pending("ReservedForAnother", "what is left is kept for gangs that go first", "", "hub", queue="a")
LARGER = Pending("LargerThanQuota", "needs 9, at most 8 is ever available", "cpu", queue="a")


def told(pending: Pending, *, is_head: bool = False) -> Record:
    change = queue_changes.block(make_record(queue="a"), pending, NOW, is_head=is_head)
    assert change is not None
    return change.after


@pytest.mark.parametrize(
    ("before", "after", "is_head", "expected"),
    [
        pytest.param(NO_QUOTA, KEPT, False, False, id="what became free is kept for another"),
        pytest.param(KEPT, NO_QUOTA, False, False, id="what was kept is used"),
        pytest.param(NO_QUOTA, KEPT, True, True, id="a head is told"),
        pytest.param(NO_QUOTA, NO_QUOTA, False, False, id="the same"),
        pytest.param(NO_QUOTA, NO_QUOTA, True, False, id="the same, of a head"),
        pytest.param(LARGER, NO_QUOTA, False, True, id="the quota grew"),
        pytest.param(NO_QUOTA, LARGER, False, True, id="the quota shrank"),
    ],
)
def test_a_gang_that_is_no_head_lacks_quota_in_one_way_or_the_other(
    before: Pending, after: Pending, is_head: bool, expected: bool
) -> None:
    record = told(before, is_head=is_head)
    outcome = Impossible(record, after) if after is LARGER else Waiting(record, after, is_head)
    assert is_news(outcome) is expected
    if not is_head:
        (class_,) = QueuedGangs.of([record], NOW).classes()
        assert list(ClassRefused.by(outcome, class_).news()) == ([record.uid] if expected else [])


def test_another_queue_is_news() -> None:
    moved = Pending(KEPT.reason, KEPT.message, KEPT.resource, KEPT.cluster, queue="b")
    assert is_news(Waiting(told(NO_QUOTA), moved))


def test_a_gang_that_preempts_no_longer_is_written() -> None:
    waiting = Pending(pending_reasons.AWAITING_RELEASE, "fits once r is gone", cluster="hub", queue="a")
    preempting = queue_changes.begin_preempting(make_record(queue="a"), waiting, NOW).after
    assert is_news(Waiting(preempting, NO_QUOTA))


def test_a_first_head_is_written_although_its_reason_is_known() -> None:
    assert is_news(Waiting(told(NO_QUOTA), NO_QUOTA, is_head=True))


def without_room(record: Record, *, is_head: bool = False) -> Unplaced:
    return Unplaced(record, Refused(record.gang, (), (), has_members=False), "a", is_head=is_head)


def test_a_gang_that_no_cluster_takes_is_written_unless_its_record_says_so() -> None:
    first = without_room(make_record(queue="a"))
    assert is_news(first)
    outcome = outcome_of(first)
    assert isinstance(outcome, Waiting)
    assert outcome.pending.queue == "a"
    record = told(outcome.pending)
    assert not is_news(without_room(record))
    assert is_news(without_room(record, is_head=True))
    assert not is_news(without_room(told(outcome.pending, is_head=True), is_head=True))
    (class_,) = QueuedGangs.of([record], NOW).classes()
    assert list(ClassRefused.by(without_room(record, is_head=True), class_).news()) == []


def test_a_gang_that_no_cluster_takes_and_that_preempted_before_is_written() -> None:
    record = told(outcome_of(without_room(make_record(queue="a"))).pending)  # type: ignore[union-attr]
    assert is_news(without_room(replace(record, is_preempting=True)))


# --- Preemption comes to rest: with gangs that arrive and never end, and victims that leave one by one -----


def simulation_of(seed: int, max_preemptions: int | None = None) -> Simulation:
    """A random forest with gangs that arrive; with another bound than the default if one is given."""
    chance = Random(seed)  # noqa: S311 - repeatable
    document = random_document(chance, arrivals=10)
    for gang in (*document["running"], *document["pending"]):
        for key in ("ending", "preempting", "preemptions"):
            gang.pop(key, None)
    if max_preemptions is not None:
        for queue in document["queues"]:
            if "parent" not in queue:
                queue["maxPreemptions"] = max_preemptions
    arrivals, document["pending"] = document["pending"], []
    return Simulation(document, chance, arrivals)


def check(seeds: range) -> int:
    """The preemptions until each of these simulations is at rest."""
    found = 0
    for seed in seeds:
        simulation = simulation_of(seed)
        assert simulation.comes_to_rest(), f"seed {seed}: {simulation.preemptions[-8:]}"
        found += len(simulation.preemptions)
    return found


@pytest.mark.parametrize("seeds", sweeps.spread(range(40), 20))
def test_random_forests_come_to_rest(seeds: range) -> None:
    assert check(seeds) > 7


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_three_thousand_random_forests_come_to_rest() -> None:
    assert check(range(3000)) > 1000
