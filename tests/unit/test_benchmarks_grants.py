"""What the benchmark of grants counts as the time with the gate, and when it has no result."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.failure import BenchmarkFailed
from benchmarks.grants import GateBook, Latency, Result, as_table, elastic_gang, mean_of_metric
from dispatcher.api.appwrapper import parse_spec
from dispatcher.api.names import GROWTH_GATE
from tests.builders import gang_of

METRICS = "dispatcher_growth_grant_seconds_count 4.0\ndispatcher_growth_grant_seconds_sum 2.0\n"


def pod(uid: str, *gates: str) -> dict[str, Any]:
    return {"metadata": {"uid": uid}, "spec": {"schedulingGates": [{"name": each} for each in gates]}}


@pytest.mark.parametrize(
    ("events", "times"),
    [
        pytest.param([(pod("a", GROWTH_GATE), 1.0), (pod("a"), 3.0)], {"a": 2.0}, id="with, then without"),
        pytest.param(
            [(pod("a", GROWTH_GATE), 1.0), (pod("a", GROWTH_GATE), 2.0), (pod("a"), 3.0), (pod("a"), 4.0)],
            {"a": 2.0},
            id="from the first event to the first without it",
        ),
        pytest.param(
            [(pod("a", GROWTH_GATE), 1.0), (pod("a", "other"), 2.0)],
            {"a": 1.0},
            id="other gates do not count",
        ),
        pytest.param([(pod("a", GROWTH_GATE), 1.0), (pod("b"), 2.0)], {}, id="never without, and never with"),
    ],
)
def test_time_is_that_with_the_gate(
    events: list[tuple[dict[str, Any], float]], times: dict[str, float]
) -> None:
    book = GateBook()
    for seen, now in events:
        book.note(seen, now)
    assert book.times() == times


def test_mean_needs_a_count_of_each_grant() -> None:
    assert mean_of_metric(METRICS, 4) == 0.5
    with pytest.raises(BenchmarkFailed, match="has 4 grants instead of 5"):
        mean_of_metric(METRICS, 5)


def test_workers_of_the_gang_are_its_demand_and_further_ones_are_not() -> None:
    gang = gang_of(parse_spec(elastic_gang("ray")["spec"], namespace="default"))
    assert gang.demand["nvidia.com/gpu"] == 4


def test_table_has_a_line_for_base_workers_and_one_for_growth() -> None:
    base, growth = Latency.of([0.1, 0.2]), Latency.of([0.3])
    assert as_table(Result(base, growth, 0.75, 0.5)).splitlines() == [
        "seconds with the gate           pods     p50     p95  longest",
        "base workers, admitted             2   0.100   0.200    0.200",
        "growth, granted and admitted       1   0.300   0.300    0.300",
        "dispatcher_growth_grant_seconds, mean (whole seconds: about 0.5 too high): 0.750",
        "cores used by others meanwhile: 0.50",
    ]
