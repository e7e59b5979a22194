"""`explain` of an AppWrapper that is not in the queue names its state, and why its growth waits."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dispatcher.cli.people.explain import _not_pending
from dispatcher.cli.screens.explanation import render
from dispatcher.core.lifecycle import run_changes
from dispatcher.core.model.gangs.growth import GrowthRequest
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import Resources
from tests.builders import at, make_record

RUNS = make_record(Phase.RUNNING)
WAITS = GrowthRequest(2, Resources({"cpu": 2000}), at(9), "GrowthBehindGang", "2 more pods wait")
GROWS = run_changes.note_growth_request(RUNS, WAITS, at(9)).after


@pytest.mark.parametrize(
    ("record", "said"),
    [
        pytest.param(RUNS, "default/aw is Running on hub.", id="runs"),
        pytest.param(
            GROWS, "default/aw is Running on hub: GrowthBehindGang: 2 more pods wait.", id="growth-waits"
        ),
        pytest.param(
            replace(GROWS, reason="MinPodsNotRunning", message="too few"),
            "default/aw is Running on hub: MinPodsNotRunning: too few.",
            id="was-requeued-before",
        ),
    ],
)
def test_state_is_named_with_the_reason(record: Record, said: str) -> None:
    assert render(_not_pending(record), None) == said
