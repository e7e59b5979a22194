"""What the benchmark of handovers measures as the pause, and what its table shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from benchmarks.handover import Handover, Result, as_table, longest_pause

START = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


def at(**seconds: float) -> dict[str, datetime]:
    return {name: START + timedelta(seconds=number) for name, number in seconds.items()}


@pytest.mark.parametrize(
    ("submitted", "dispatched", "pause"),
    [
        pytest.param(at(a=0, b=1), at(a=1, b=5), 4.0, id="from one dispatch to the next"),
        pytest.param(at(a=0, b=4), at(a=1, b=5), 1.0, id="only while a gang waits"),
        pytest.param(at(a=-3), at(a=2), 2.0, id="from the begin on"),
        pytest.param(at(a=0, b=8), at(a=1, b=14), 2.0, id="until the end"),
        pytest.param(at(a=-3), at(a=-2), 0.0, id="no gang waited"),
    ],
)
def test_pause_is_the_longest_time_without_a_dispatch_while_a_gang_waits(
    submitted: dict[str, datetime], dispatched: dict[str, datetime], pause: float
) -> None:
    assert longest_pause(submitted, dispatched, START, START + timedelta(seconds=10)) == pause


def test_table_has_a_line_for_each_handover() -> None:
    handovers = (Handover("SIGTERM", 1000, 0.25, 0.5, 0.75), Handover("SIGKILL", 1100, 14.0, 15.25, 16.0))
    assert as_table(Result(400, 0.1, handovers, 0.5)).splitlines() == [
        "                          live gangs  next leader s   pause s   of objects s",
        "SIGTERM                         1000           0.25      0.50           0.75",
        "SIGKILL                         1100          14.00     15.25          16.00",
        "before all of them                                       0.10",
        "400 gangs, each dispatched once; others used 0.50 cores",
    ]
