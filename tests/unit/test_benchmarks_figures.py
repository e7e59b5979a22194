from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.figures import difference, percentile, requests_of_flow, writes

METRICS = """\
# TYPE apiserver_request_total counter
apiserver_request_total{code="201",dry_run="",group="ray.io",resource="rayclusters",subresource="",verb="POST"} 7
apiserver_request_total{code="409",dry_run="",group="ray.io",resource="rayclusters",subresource="",verb="POST"} 1
apiserver_request_total{code="200",dry_run="",group="x",resource="appwrappers",subresource="status",verb="PATCH"} 1e+06
apiserver_request_total{code="200",dry_run="",group="x",resource="appwrappers",subresource="",verb="LIST"} 3
apiserver_request_total{code="201",dry_run="All",group="",resource="nodes",subresource="",verb="POST"} 2
apiserver_flowcontrol_dispatched_requests_total{flow_schema="exempt",priority_level="exempt"} 5
apiserver_flowcontrol_dispatched_requests_total{flow_schema="ours",priority_level="workload-low"} 8
"""


def test_every_write_counts_refused_ones_too_and_neither_reads_nor_dry_runs_do() -> None:
    assert writes(METRICS) == Counter({"POST rayclusters": 8, "PATCH appwrappers/status": 1_000_000})


def test_requests_are_classed_by_their_flow_schema() -> None:
    assert (requests_of_flow(METRICS, "ours"), requests_of_flow(METRICS, "absent")) == (8, 0)


def test_difference_is_what_grew() -> None:
    assert difference({"a": 5, "b": 2, "c": 1}, {"a": 3, "b": 2}) == {"a": 2, "c": 1}


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        pytest.param([3.0, 1.0, 2.0], 50, 2.0, id="median-of-unsorted"),
        pytest.param([float(number) for number in range(1, 101)], 99, 99.0, id="p99-of-a-hundred"),
        pytest.param([4.0], 1, 4.0, id="one-value"),
    ],
)
def test_percentile_is_a_value_that_was_measured(
    values: list[float], percent: float, expected: float
) -> None:
    assert percentile(values, percent) == expected
