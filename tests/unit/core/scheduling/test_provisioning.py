"""Clusters that provide capacity on request: whether a gang fits them, and what it takes there."""

from __future__ import annotations

import pytest

from dispatcher.api.provisioning import ProvisioningClass
from dispatcher.core.model.gang import Assignment, Gang, PodSet
from dispatcher.core.model.nodes import Node
from dispatcher.core.model.record import Record
from dispatcher.core.model.requirements import ClusterRequirements
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity import CapacityLedger, CapacitySnapshot, FitMode
from dispatcher.core.scheduling.cluster_filters import PROVISIONING_FAILED, ClusterSnapshot, rejection
from dispatcher.core.scheduling.cycle import Outcome, Placed, plan
from dispatcher.core.scheduling.fit import Shortfall, fit, fit_in_both, fits, shortfall_in_empty
from tests.builders import make_record

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


def test_cluster_with_room_is_preferred_to_one_that_is_asked() -> None:
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
