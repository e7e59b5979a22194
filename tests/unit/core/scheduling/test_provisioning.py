"""Clusters that provide capacity on request: whether a gang fits them, and what it takes there."""

from __future__ import annotations

from datetime import timedelta

import pytest
import yaml
from msgspec.structs import replace

from dispatcher.api.clusters.provisioning import ProvisioningClass
from dispatcher.core.lifecycle import provisioning
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet
from dispatcher.core.model.records.pending_reasons import PROVISIONING_FAILED
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Preemption, Queue, Quota, Reclaim, StopPolicy, WithinQueue
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.cycle.cycle import Drained, QueueCycle, QueueFacts, QueueOutcome
from dispatcher.core.scheduling.cycle.outcomes import Outcome, Placed, Preempting, Waiting
from dispatcher.core.scheduling.cycle.recheck import still_fitting
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.fit.cluster_filters import Closed, ClusterSnapshot, rejection
from dispatcher.core.scheduling.fit.fit import Shortfall, fit, fit_in_both, fits, shortfall_in_empty
from dispatcher.core.scheduling.queued.queued_gangs import QueuedGangs
from dispatcher.core.scheduling.sharing.gangs import active_gang
from tests.builders import at, make_awaiting, make_record
from tests.one_queue import plan

GPU = "nvidia.com/gpu"
ASKED = ProvisioningClass("queued-provisioning.gke.io", frozenset({GPU}))


def gang(gpus: int = 8, cpu: int = 1000) -> Gang:
    requests = Resources({"cpu": cpu} | ({GPU: gpus} if gpus else {}))
    return Gang(requests, 1, (PodSet(1, requests),))


def capacity(
    mode: FitMode, provisioning: ProvisioningClass | None = ASKED, cpu: int = 4000
) -> CapacitySnapshot:
    """A cluster with one node without GPUs."""
    ledger = CapacityLedger(mode)
    ledger.set_node(Node("n1", Resources({"cpu": cpu})))
    return ledger.snapshot().provided_by(provisioning)


NEEDS_NO_REQUEST = (
    "no capacity is requested: its pods request no resource that class queued-provisioning.gke.io manages"
)

MODES = pytest.mark.parametrize("mode", list(FitMode))


@MODES
def test_managed_gang_fits_without_room_and_takes_nothing_that_is_there(mode: FitMode) -> None:
    there = capacity(mode)
    free = there.free_for(None)
    found = fit(gang(), there)
    assert found == Assignment(provisioning=ASKED)
    assert fits(gang(), there)
    assert shortfall_in_empty(gang(), there) is None
    there.take(gang(), Assignment(provisioning=ASKED))
    assert there.free_for(None) == free
    assert fit_in_both(gang(), there, there.copy()) == found


@MODES
def test_gang_without_a_managed_resource_needs_room(mode: FitMode) -> None:
    assert isinstance(fit(gang(gpus=0, cpu=9000), capacity(mode)), Shortfall)
    found = fit(gang(gpus=0), capacity(mode))
    assert isinstance(found, Assignment)
    assert found.provisioning is None


@MODES
def test_copies_keep_the_class(mode: FitMode) -> None:
    there = capacity(mode)
    copies = (there.copy(), there.without(Resources({"cpu": 1})), there.without_gangs(()))
    assert [each.provisioning for each in copies] == [ASKED] * 3
    assert there != there.provided_by(None)


def planned(record: Record, **clusters: CapacitySnapshot) -> Outcome:
    snapshots = {name: ClusterSnapshot(name, each) for name, each in clusters.items()}
    (outcome,) = plan([record], snapshots, reservations=None)
    return outcome


def test_cluster_with_room_is_preferred_to_a_cluster_that_must_provision() -> None:
    ledger = CapacityLedger(FitMode.NODE)
    ledger.set_node(Node("gpus", Resources({"cpu": 8000, GPU: 8})))
    record = make_record(gang=gang())
    outcome = planned(record, a=capacity(FitMode.NODE), b=ledger.snapshot())
    assert isinstance(outcome, Placed)
    assert (outcome.cluster, outcome.assignment.provisioning) == ("b", None)
    alone = planned(record, a=capacity(FitMode.NODE), b=capacity(FitMode.NODE, None))
    assert isinstance(alone, Placed)
    assert (alone.cluster, alone.assignment.provisioning) == ("a", ASKED)


def test_cluster_that_failed_is_not_asked_in_the_same_round() -> None:
    requirements = ClusterRequirements().unprovisioned_in("a", "no nodes")
    record = make_record(gang=gang(), requirements=requirements)
    outcome = planned(record, a=capacity(FitMode.NODE), b=capacity(FitMode.NODE))
    assert isinstance(outcome, Placed)
    assert outcome.cluster == "b"
    refused = rejection(requirements, ClusterSnapshot("a", capacity(FitMode.NODE)))
    assert refused is not None
    assert (refused.reason, refused.message) == (PROVISIONING_FAILED, "no nodes")


@pytest.mark.parametrize("is_removed", [True, False])
def test_cluster_that_failed_is_asked_again_once_no_other_takes_the_gang(is_removed: bool) -> None:
    record = make_record(gang=gang(), requirements=ClusterRequirements().unprovisioned_in("a", "no nodes"))
    closed = ClusterSnapshot("b", capacity(FitMode.NODE), closed=Closed("Cordoned", "it takes nothing new"))
    others = {} if is_removed else {"b": closed}
    snapshots = {"a": ClusterSnapshot("a", capacity(FitMode.NODE)), **others}
    (outcome,) = plan([record], snapshots, reservations=None)
    assert isinstance(outcome, Placed)
    assert outcome.cluster == "a"
    assert still_fitting([outcome], snapshots).found == [outcome]


# --- queues that name a class ------------------------------------------------------------------------------------


QUEUES = """
queues:
- name: org
  resources: {nvidia.com/gpu: {nominalQuota: 8}}
  provisioning: {className: queued-provisioning.gke.io, managedResources: [nvidia.com/gpu]}
- {name: a, parent: org, resources: {nvidia.com/gpu: {nominalQuota: 8}}, preemption: {withinQueue: LowerPriority}}
clusters:
- {name: west, nodes: [{name: n1, count: 1, allocatable: {cpu: 8}}]}
"""


def test_queue_that_names_a_class_needs_quota_and_no_room() -> None:
    first, second = planned_queues(
        QUEUES
        + """
pending:
- {name: first, queue: a, pods: [{count: 1, requests: {cpu: 1, nvidia.com/gpu: 8}}]}
- {name: second, queue: a, pods: [{count: 1, requests: {cpu: 1, nvidia.com/gpu: 8}}]}
"""
    )
    assert isinstance(first, Placed)
    assert first.assignment.provisioning is not None
    assert (first.cluster, first.assignment.provisioning.name) == ("west", "queued-provisioning.gke.io")
    assert isinstance(second, Waiting)
    assert second.pending.reason == "InsufficientQuota"


def test_gang_that_the_class_does_not_manage_needs_room() -> None:
    small, large = planned_queues(
        QUEUES
        + """
pending:
- {name: small, queue: a, pods: [{count: 1, requests: {cpu: 1}}]}
- {name: large, queue: a, pods: [{count: 1, requests: {cpu: 9}}]}
"""
    )
    assert isinstance(small, Placed)
    assert small.assignment.provisioning is None
    assert small.message.startswith(NEEDS_NO_REQUEST)
    assert not isinstance(large, Placed)


def test_gang_without_a_managed_resource_is_placed_without_a_provisioning_request() -> None:
    asked, unasked = capacity(FitMode.NODE), capacity(FitMode.NODE, None)
    found = [planned(make_record(gang=gang(0)), hub=asked), planned(make_record(gang=gang(0)), hub=unasked)]
    assert [each.message for each in found if isinstance(each, Placed)] == [NEEDS_NO_REQUEST, ""]
    others = [planned(make_record(gang=each), hub=asked) for each in (gang(), Gang())]
    assert [each.message for each in others if isinstance(each, Placed)] == ["", ""]


def test_gang_preempts_for_quota_where_its_capacity_is_requested() -> None:
    (outcome,) = planned_queues(
        QUEUES
        + """
running:
- {name: low, queue: a, cluster: west, priority: 0, pods: [{count: 1, requests: {cpu: 1}}],
   demand: {cpu: 1, nvidia.com/gpu: 8}}
pending:
- {name: high, queue: a, priority: 9, pods: [{count: 1, requests: {cpu: 100, nvidia.com/gpu: 8}}]}
"""
    )
    assert isinstance(outcome, Preempting)
    assert [victim.uid for victim, _ in outcome.victims] == ["low"]


def test_gang_that_awaits_capacity_gives_its_quota_to_a_more_urgent_one_and_no_room() -> None:
    """A minimal run time does not protect it: it does not run."""
    awaiting = make_awaiting(make_record(uid="early", queue="a", gang=gang()))
    urgent = make_record(uid="urgent", queue="a", priority=9, gang=gang())
    (outcome,) = cycle_of(STRICT, [urgent], awaiting)
    assert isinstance(outcome, Preempting)
    assert [victim.record for victim, _ in outcome.victims] == [awaiting]

    small = make_record(uid="small", queue="b", priority=9, gang=gang(gpus=0, cpu=5000))
    (outcome,) = cycle_of(STRICT, [small], awaiting)
    assert not isinstance(outcome, Preempting)


def test_stopped_queue_drains_gangs_awaiting_capacity_but_not_gangs_being_created() -> None:
    awaiting = make_awaiting(make_record(uid="early", queue="a", gang=gang()))
    stopped = [replace(STRICT[0], stop_policy=StopPolicy.HOLD_AND_DRAIN), *STRICT[1:]]
    (outcome,) = cycle_of(stopped, [], awaiting)
    assert isinstance(outcome, Drained)
    assert [each.record for each in outcome.gangs] == [awaiting]
    assert cycle_of(stopped, [], provisioning.provisioned(awaiting, "here", at(9)).after) == []


def test_minimum_runtime_of_a_provisioned_gang_counts_from_its_provisioning() -> None:
    awaiting = make_awaiting(make_record(uid="early", queue="a", gang=gang()))
    there = provisioning.provisioned(awaiting, "here", at(60)).after
    active = active_gang(there, is_unreachable=False)
    assert active is not None
    least = timedelta(seconds=30)
    assert [active.is_protected(least, at(second)) for second in (89, 90)] == [True, False]


STRICT = [
    Queue(
        "a",
        resources={GPU: Quota(8)},
        preemption=Preemption(within_queue=WithinQueue.LOWER_PRIORITY),
        min_runtime=timedelta(hours=1),
        provisioning=ASKED,
    ),
    Queue("b", preemption=Preemption(within_queue=WithinQueue.LOWER_PRIORITY, reclaim=Reclaim.ANY)),
]


def cycle_of(queues: list[Queue], pending: list[Record], active: Record) -> list[QueueOutcome]:
    """The outcomes of a cycle over gangs that wait, beside one that holds quota."""
    found = active_gang(active, is_unreachable=False)
    assert found is not None
    facts = QueueFacts(Forest.of(queues), QueuedGangs.of(pending, at(3)), [found], at(3))
    return QueueCycle(facts, {"hub": ClusterSnapshot("hub", capacity(FitMode.NODE, None))}).run()


def test_cluster_that_declares_another_class_is_not_asked() -> None:
    (outcome,) = planned_queues(
        QUEUES + "pending:\n- {name: x, queue: a, pods: [{count: 1, requests: {nvidia.com/gpu: 8}}]}\n",
        provisioning=ProvisioningClass("check-capacity.autoscaling.x-k8s.io"),
    )
    assert not isinstance(outcome, Placed)
    assert "queued-provisioning.gke.io" in outcome.pending.message


def planned_queues(text: str, provisioning: ProvisioningClass | None = None) -> list[Outcome]:
    """The outcomes of a scenario, in the order of its pending gangs."""
    world = parse_scenario(yaml.safe_load(text))
    clusters = tuple(replace(each, provisioning=provisioning) for each in world.clusters)
    found = {each.record.uid: each for each in replace(world, clusters=clusters).plan()}
    return [found[each.uid] for each in world.pending]
