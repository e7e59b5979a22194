"""Sorting in steps is sorting, and each step is about a part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.steps import PART, in_order, in_parts, run


@given(st.lists(st.tuples(st.integers(0, 5), st.integers()), max_size=50))
def test_items_are_in_order_and_equal_ones_stay_as_they_were(items: list[tuple[int, int]]) -> None:
    assert list(run(in_order(items * 20, key=lambda item: item[0]))) == sorted(
        items * 20, key=lambda item: item[0]
    )


def test_there_is_a_step_for_each_part() -> None:
    assert len(list(in_order(range(3 * PART + 1), key=lambda number: -number))) == 4
    assert [len(part) for part in in_parts(range(5), 2)] == [2, 2, 1]
