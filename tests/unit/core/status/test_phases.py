"""The phase that is read from a status is that of the record."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.intake import namespace_bounds
from dispatcher.core.model.record import Phase, Record
from dispatcher.core.status.conditions import project
from dispatcher.core.status.phases import phase_in
from tests.builders import (
    make_blocked,
    make_evicted,
    make_failed_run,
    make_failing_run,
    make_preempted,
    make_record,
)

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
    del status["lifecyclePhase"]  # as an earlier release wrote it
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
