"""A status that says that an AppWrapper has ended is believed, unless it contradicts itself."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dispatcher.api.conditions import State
from dispatcher.core.intake.status_end import StatusEnd, end_in_status

Json = dict[str, Any]


def condition(type_: str, status: str = "True", **fields: str) -> Json:
    return {"type": type_, "status": status, **fields}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param({}, None, id="no-status"),
        pytest.param(
            {"state": "Completed", "conditions": [condition("Completed")]},
            StatusEnd(State.COMPLETED, "", "", None),
            id="completed",
        ),
        pytest.param(
            {"state": "Failed", "conditions": [condition("Failed", reason="PodsFailed", message="2 of 4")]},
            StatusEnd(State.FAILED, "PodsFailed", "2 of 4", None),
            id="failed",
        ),
        pytest.param({"state": "Completed", "conditions": []}, None, id="state-without-its-condition"),
        pytest.param(
            {"state": "Completed", "conditions": [condition("Completed", "False")]},
            None,
            id="condition-that-is-false",
        ),
        pytest.param(
            {"state": "Failed", "conditions": [condition("Completed")]}, None, id="condition-of-another-state"
        ),
        pytest.param(
            {"state": "Running", "conditions": [condition("Completed")]}, None, id="state-that-is-no-end"
        ),
        pytest.param({"state": "Completed", "conditions": "Completed"}, None, id="conditions-unreadable"),
        pytest.param({"state": "Completed", "conditions": ["Completed"]}, None, id="condition-unreadable"),
    ],
)
def test_status_is_believed_unless_it_contradicts_itself(status: Json, expected: StatusEnd | None) -> None:
    assert end_in_status(status) == expected


@pytest.mark.parametrize(
    ("kept_until", "expected"),
    [
        pytest.param("2026-11-20T08:58:10Z", datetime(2026, 11, 20, 8, 58, 10, tzinfo=UTC), id="a-time"),
        pytest.param("2026-11-20T08:58:10", None, id="a-time-of-no-zone"),
        pytest.param("0001-01-01T00:00:00+14:00", None, id="a-time-before-all-that-there-are"),
        pytest.param("9999-12-31T23:59:59-12:00", None, id="a-time-after-all-that-there-are"),
        pytest.param("soon", None, id="no-time"),
        pytest.param(7, None, id="no-text"),
    ],
)
def test_objects_are_kept_until_a_time_that_can_be_read(
    kept_until: object, expected: datetime | None
) -> None:
    status = {"state": "Completed", "conditions": [condition("Completed")], "keptUntil": kept_until}
    end = end_in_status(status)
    assert end is not None
    assert end.kept_until == expected
