"""Outlooks give way to dispatches, and a round changes a bounded number of statuses."""

from __future__ import annotations

from itertools import accumulate

import pytest

from dispatcher.core.status.outlook import (
    MOST_BUSY_WRITES,
    MOST_DISPATCHED,
    MOST_PASSED,
    MOST_WRITES,
    Outlook,
    Round,
    to_write,
)

QUIET, BUSY = MOST_DISPATCHED, MOST_DISPATCHED + 1
EXACT: Outlook = {"position": 1, "queueLength": 500}
ROUNDED: Outlook = {"position": 200}


@pytest.mark.parametrize(
    ("dispatched", "renewed"),
    [
        pytest.param([0, QUIET, QUIET], [True, True, True], id="few-dispatches"),
        pytest.param([BUSY, QUIET, BUSY], [False, True, False], id="a-quiet-round-ends-the-row"),
        pytest.param(
            (MOST_PASSED + 1) * [BUSY] + [BUSY], MOST_PASSED * [False] + [True, False], id="busy-for-long"
        ),
    ],
)
def test_so_many_busy_rounds_in_a_row_are_passed_over(dispatched: list[int], renewed: list[bool]) -> None:
    rounds = accumulate(accumulate(dispatched), Round.next, initial=Round(0))
    assert [not each.is_passed_over for each in rounds][1:] == renewed


@pytest.mark.parametrize(
    ("behind", "first", "is_busy", "expected"),
    [
        pytest.param({}, {"a"}, False, [], id="none-is-behind"),
        pytest.param({"a": ROUNDED, "b": EXACT}, {"a"}, False, ["b", "a"], id="exact-positions-first"),
        pytest.param({"a": EXACT, "b": ROUNDED}, {"b"}, True, ["b", "a"], id="busy-first-gangs-first"),
        pytest.param({"b": EXACT, "a": EXACT}, {}, False, ["b", "a"], id="in-the-order-in-which-they-fell"),
    ],
)
def test_urgent_statuses_are_written_before_others(
    behind: dict[str, Outlook], first: set[str], is_busy: bool, expected: list[str]
) -> None:
    assert to_write(behind, first, is_busy=is_busy) == expected


@pytest.mark.parametrize(
    ("is_busy", "others"), [(False, MOST_WRITES), (True, MOST_BUSY_WRITES)], ids=["quiet", "busy"]
)
def test_statuses_of_each_kind_are_bounded(is_busy: bool, others: int) -> None:
    urgent = [f"urgent-{number}" for number in range(MOST_WRITES + 1)]
    behind: dict[str, Outlook] = {
        **dict.fromkeys(urgent, EXACT),
        **{f"other-{number}": ROUNDED for number in range(MOST_WRITES + 1)},
    }
    written = to_write(behind, frozenset(urgent), is_busy=is_busy)
    assert written == [*urgent[:MOST_WRITES], *(f"other-{number}" for number in range(others))]
