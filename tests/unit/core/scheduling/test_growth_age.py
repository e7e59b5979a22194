"""The age of growth: by the hub's clock, or by our records where a member dates its pods by its own."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dispatcher.core.model.growth import GatedPod, GrowthRequest
from dispatcher.core.model.record import Phase
from dispatcher.core.model.resources import NOTHING
from dispatcher.core.scheduling.growth_turns import asked_at
from tests.builders import at, attempt_of, make_record

NOW = at(100)


@pytest.mark.parametrize(
    ("cluster", "noted", "created", "asked"),
    [
        pytest.param("hub", None, 50, 50, id="on-the-hub"),
        pytest.param("hub", None, 3600, 100, id="on-the-hub-and-in-the-future"),
        pytest.param("east", None, -3500, 100, id="in-a-member-that-lags-and-not-noted-yet"),
        pytest.param("east", 60, -3500, 60, id="in-a-member-that-lags"),
        pytest.param("east", 60, 80, 80, id="in-a-member-with-the-right-time"),
        pytest.param("east", 60, 3600, 100, id="in-a-member-that-is-ahead"),
    ],
)
def test_growth_asks_since_it_was_created_but_no_member_can_say_since_before_it_was_noted(
    cluster: str, noted: float | None, created: float, asked: float
) -> None:
    record = make_record(Phase.RUNNING)
    request = None if noted is None else GrowthRequest(1, NOTHING, at(noted), "", "")
    attempt = replace(attempt_of(record), cluster=cluster, growth_request=request)
    pod = GatedPod("default", "w", "w", NOTHING, at(created).isoformat())
    assert asked_at(replace(record, attempt=attempt), pod, NOW) == at(asked)
