"""Sorting in steps is sorting, and each step is about a part."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.model.incremental import PART, in_order, in_parts, release, run


@dataclass(eq=False)
class Item:
    """Something that can be seen to go."""

    number: int


@given(st.lists(st.tuples(st.integers(0, 5), st.integers()), max_size=50))
def test_items_are_in_order_and_equal_items_keep_their_order(items: list[tuple[int, int]]) -> None:
    assert list(run(in_order(items * 20, key=lambda item: item[0]))) == sorted(
        items * 20, key=lambda item: item[0]
    )


def test_there_is_a_step_for_each_part() -> None:
    assert len(list(in_order(range(3 * PART + 1), key=lambda number: -number))) == 4
    assert [len(part) for part in in_parts(range(5), 2)] == [2, 2, 1]


def test_items_that_were_read_in_order_are_released() -> None:
    items = [Item(number) for number in range(3 * PART)]
    refs = [weakref.ref(item) for item in items]
    in_turn = run(in_order(items, key=lambda item: item.number))
    items.clear()
    for read in range(1, 2 * PART):
        assert next(in_turn).number == read - 1
    assert sum(ref() is None for ref in refs) >= 2 * PART - 3


def test_entries_are_released_part_by_part() -> None:
    entries = dict.fromkeys(range(2 * PART + 1))
    left = [len(entries) for _ in release(entries)]
    assert left == [PART + 1, 1, 0]
