"""`status.about`: what a person reads first."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.core.lifecycle import run_changes
from dispatcher.core.lifecycle.record_change import with_failure
from dispatcher.core.model.gangs.pods import PodCounts, PodFailure
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.status.about import LONGEST
from dispatcher.core.status.conditions import Shown, project
from tests.builders import WAITS, at, make_blocked, make_failed_run, make_failing_run, make_record

OUTLOOK = {"position": 3, "queueLength": 9, "repair": {"message": "it would be dispatched without train"}}
WHY = {"reason": "InsufficientResources", "message": "cluster hub: cpu: needs 1, 0 free"}
FAILED_POD = PodFailure("train-0", "main", 137, "OOMKilled", "a secret")


def unhealthy() -> Record:
    return run_changes.note_health_issue(
        make_record(Phase.RUNNING), "Drifted", "a field differs", at(9)
    ).after


def failing() -> Record:
    record = make_failing_run()
    return replace(record, conditions=with_failure(record.conditions, FAILED_POD))


@pytest.mark.parametrize(
    ("record", "outlook", "expected"),
    [
        pytest.param(make_record(), {}, {"phase": "Queued"}, id="queued"),
        pytest.param(make_blocked(), {}, {"phase": "Queued", **WHY}, id="waits"),
        pytest.param(
            make_blocked(),
            OUTLOOK,
            {
                "phase": "Queued",
                **WHY,
                "position": "3 of 9",
                "repair": "it would be dispatched without train",
            },
            id="with-an-outlook",
        ),
        pytest.param(
            make_blocked(), {"position": 50}, {"phase": "Queued", **WHY, "position": "50+"}, id="rounded-down"
        ),
        pytest.param(
            make_record(Phase.RUNNING), {}, {"phase": "Running", "cluster": "hub"}, id="running-and-well"
        ),
        pytest.param(
            unhealthy(),
            {},
            {"phase": "Running", "cluster": "hub", "reason": "Drifted", "message": "a field differs"},
            id="unhealthy",
        ),
        pytest.param(
            failing(),
            {},
            {
                "phase": "Failing",
                "cluster": "hub",
                "reason": failing().reason,
                "message": failing().message,
                "failedFirst": "container main of pod train-0, exit code 137, OOMKilled",
                "logs": "kubectl aw logs aw -n default --pod train-0 -c main",
            },
            id="failing",
        ),
        pytest.param(
            make_failed_run(),
            {},
            {
                "phase": "Failed",
                "cluster": "hub",
                "reason": make_failed_run().reason,
                "message": make_failed_run().message,
            },
            id="failed",
        ),
    ],
)
def test_about_has_what_a_person_needs(
    record: Record, outlook: dict[str, Any], expected: dict[str, str]
) -> None:
    assert project(record, Shown(outlook=outlook))["about"] == expected


@pytest.mark.parametrize("phase", Phase)
def test_about_stands_first_where_fields_are_sorted_after_the_count_with_a_capital(phase: Phase) -> None:
    status = project(make_record(phase), Shown(PodCounts(succeeded=2), has_components=True))
    assert sorted(status)[:2] == ["Succeeded", "about"]


def test_long_message_is_cut_and_the_whole_one_is_elsewhere() -> None:
    long = replace(WAITS, message="x" * 4000)
    status = project(make_blocked(pending=long))
    assert len(status["about"]["message"]) == LONGEST
    assert status["waiting"]["message"] == long.message
