"""What v1beta2 shows of a life, beside what MCAD shows."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.api.conditions import ComponentsPhase
from dispatcher.core.intake import namespace_bounds
from dispatcher.core.lifecycle import queue_changes, removal
from dispatcher.core.model.records.record import NotedIssue, Phase, Record
from dispatcher.core.status.components import PHASES, component_status
from dispatcher.core.status.conditions import Shown, project
from dispatcher.core.status.phases import phase_in
from tests.builders import (
    at,
    make_blocked,
    make_evicted,
    make_failed_run,
    make_failing_run,
    make_preempted,
    make_record,
)

COMPONENTS = Shown(has_components=True)
REQUEUED = removal.removed(make_evicted(), at(5)).after
OURS = {"QuotaReserved", "ResourcesDeployed", "PodsReady", "Unhealthy", "DeletingResources"}


def shown(record: Record) -> list[tuple[str, str, str, str]]:
    """Type, status, reason and second of the last change of each condition that v1beta2 has."""
    return [
        (each["type"], each["status"], each["reason"], each["lastTransitionTime"][17:19])
        for each in project(record, COMPONENTS)["conditions"]
        if each["type"] in OURS
    ]


def test_each_phase_has_its_word() -> None:
    assert {phase: project(make_record(phase), COMPONENTS)["phase"] for phase in Phase} == {
        Phase.QUEUED: "Suspended",
        Phase.SUSPENDED: "Suspended",
        Phase.DISPATCHING: "Resuming",
        Phase.DISPATCHED: "Running",
        Phase.RUNNING: "Running",
        Phase.RUNNING_HOLD_COMPLETION: "Running",
        Phase.COMPLETED: "Succeeded",
        Phase.REQUEUEING: "Resetting",
        Phase.SUSPENDING: "Suspending",
        Phase.FAILING: "Failed",
        Phase.FAILED: "Failed",
        Phase.DELETING: "Terminating",
        Phase.DELETED: "Terminating",
    }
    assert set(PHASES.values()) == set(ComponentsPhase)


@pytest.mark.parametrize("phase", Phase)
def test_nothing_of_it_is_shown_on_appwrappers_without_components(phase: Phase) -> None:
    plain, whole = project(make_record(phase)), project(make_record(phase), COMPONENTS)
    theirs = {"phase", "componentStatus", "resettingCount"}
    kept = [each for each in whole["conditions"] if each["type"] not in OURS]
    assert {**whole, "conditions": kept} == {**plain, **{k: whole[k] for k in theirs & whole.keys()}}
    assert not theirs & plain.keys()


RESERVED = ("QuotaReserved", "True")
DEPLOYED = ("ResourcesDeployed", "True")
READY = ("PodsReady", "True", "SufficientPodsReady", "09")
NOT_READY = ("PodsReady", "False", "InsufficientPodsReady")

# `NOW` is second 6 of its minute.
STORIES: list[Any] = [
    pytest.param(make_record(), [], id="queued-for-the-first-time"),
    pytest.param(make_record(Phase.SUSPENDED), [], id="suspended-from-the-queue"),
    pytest.param(make_record(Phase.DISPATCHING), [(*RESERVED, "Resuming", "07")], id="dispatching"),
    pytest.param(
        make_record(Phase.DISPATCHED),
        [(*RESERVED, "Running", "07"), (*DEPLOYED, "Running", "08"), (*NOT_READY, "08")],
        id="dispatched",
    ),
    pytest.param(
        make_record(Phase.RUNNING),
        [(*RESERVED, "Running", "07"), (*DEPLOYED, "Running", "08"), READY],
        id="runs",
    ),
    pytest.param(
        make_record(Phase.RUNNING, unhealthy=NotedIssue("FoundFailedPods", "failed pods: 2", at(5))),
        [
            (*RESERVED, "Running", "07"),
            (*DEPLOYED, "Running", "08"),
            READY,
            ("Unhealthy", "True", "FoundFailedPods", "11"),
        ],
        id="ill",
    ),
    pytest.param(
        make_record(Phase.RUNNING_HOLD_COMPLETION),
        [(*RESERVED, "Running", "07"), (*DEPLOYED, "Running", "08"), READY],
        id="some-is-done",
    ),
    pytest.param(
        make_record(Phase.COMPLETED),
        [("QuotaReserved", "False", "Succeeded", "10"), (*DEPLOYED, "Succeeded", "08"), (*NOT_READY, "10")],
        id="completed-and-kept",
    ),
    pytest.param(
        removal.expire(make_record(Phase.COMPLETED), at(20)).after,
        [
            ("QuotaReserved", "False", "Succeeded", "10"),
            ("ResourcesDeployed", "False", "Succeeded", "10"),
            (*NOT_READY, "10"),
        ],
        id="completed-and-expired",
    ),
    pytest.param(
        make_evicted(),
        [
            (*RESERVED, "Resetting", "07"),
            (*DEPLOYED, "Resetting", "08"),
            (*NOT_READY, "10"),
            ("DeletingResources", "True", "Resetting", "10"),
        ],
        id="being-taken-back",
    ),
    pytest.param(
        REQUEUED,
        [
            ("QuotaReserved", "False", "Suspended", "11"),
            ("ResourcesDeployed", "False", "Suspended", "11"),
            (*NOT_READY, "11"),
        ],
        id="taken-back",
    ),
    pytest.param(
        queue_changes.dispatch(REQUEUED, "hub", at(50)).after,
        [(*RESERVED, "Resuming", "56")],
        id="dispatched-again",
    ),
    pytest.param(
        make_record(Phase.FAILING),
        [(*RESERVED, "Failed", "07"), ("DeletingResources", "True", "Failed", "08")],
        id="never-to-be-created",
    ),
    pytest.param(
        make_failing_run(),
        [
            (*RESERVED, "Failed", "07"),
            (*DEPLOYED, "Failed", "08"),
            (*NOT_READY, "10"),
            ("DeletingResources", "True", "Failed", "10"),
        ],
        id="failing",
    ),
    pytest.param(
        make_failed_run(),
        [
            ("QuotaReserved", "False", "Failed", "11"),
            (*DEPLOYED, "Failed", "08"),
            (*NOT_READY, "11"),
            ("Unhealthy", "True", "FailedComponent", "11"),
        ],
        id="failed-and-kept",
    ),
    pytest.param(
        make_record(Phase.DELETING),
        [
            (*RESERVED, "Terminating", "07"),
            (*DEPLOYED, "Terminating", "08"),
            (*NOT_READY, "10"),
            ("DeletingResources", "True", "Terminating", "10"),
        ],
        id="deleting",
    ),
]


@pytest.mark.parametrize(("record", "conditions"), STORIES)
def test_conditions_of_v1beta2_are_facts_with_the_times_at_which_they_came_about(
    record: Record, conditions: list[tuple[str, str, str, str]]
) -> None:
    assert shown(record) == conditions


@pytest.mark.parametrize("phase", Phase)
def test_components_are_listed_while_they_exist(phase: Phase) -> None:
    listed = component_status(make_record(phase))
    entry = {"name": "raycluster-0", "kind": "RayCluster", "apiVersion": "ray.io/v1", "podSets": []}
    deployed = {
        Phase.DISPATCHED,
        Phase.RUNNING,
        Phase.RUNNING_HOLD_COMPLETION,
        Phase.COMPLETED,
        Phase.SUSPENDING,
        Phase.DELETING,
    }
    assert listed == ([entry] if phase in deployed else [])


def test_each_component_says_since_when_it_is_deployed() -> None:
    (part,) = project(make_record(Phase.RUNNING), COMPONENTS)["componentStatus"]
    assert part == {
        "name": "raycluster-0",
        "kind": "RayCluster",
        "apiVersion": "ray.io/v1",
        "podSets": [],
        "conditions": [
            {
                "type": "ResourcesDeployed",
                "status": "True",
                "reason": "ComponentCreatedSuccessfully",
                "lastUpdateMicroTime": "2026-11-20T08:58:08.842261Z",
                "lastTransitionMicroTime": "2026-11-20T08:58:08.842261Z",
                "lastTransitionTime": "2026-11-20T08:58:08Z",
            }
        ],
    }


def test_resets_are_counted() -> None:
    counts = [
        project(record, COMPONENTS).get("resettingCount") for record in (make_record(Phase.RUNNING), REQUEUED)
    ]
    assert counts == [None, 1]


# --- The phase that is read from a status is that of the record --------------------------------------------


RECORDS = [
    *(make_record(phase) for phase in Phase if phase is not Phase.DELETED),
    make_blocked(),
    make_evicted(),
    make_preempted(),
    make_failing_run(),
    make_failed_run(),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.phase.value)
def test_phase_of_a_status_is_that_of_its_record(record: Record) -> None:
    status = project(record)
    assert status["lifecyclePhase"] == record.phase
    assert phase_in(status) is record.phase
    del status["lifecyclePhase"]  # which MCAD does not write
    assert phase_in(status) is record.phase


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        ({}, None),
        (namespace_bounds.deferred_status("team-a", 3), None),
        ({"state": "Pending"}, Phase.QUEUED),
        ({"state": "Pending", "queuejobstate": "Pending", "cluster": "hub"}, Phase.REQUEUEING),
    ],
)
def test_status_without_a_record_has_a_phase_if_it_is_known(
    status: dict[str, Any], phase: Phase | None
) -> None:
    assert phase_in(status) is phase
