"""Tables of text: how they are laid out, and what gives way in a narrow terminal."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.cli.tables import age, table
from tests.builders import NOW

ROWS = [("east", "True", "22500m", "Unreachable"), ("a-cluster-of-a-long-name", "False", "", "")]
HEADINGS = ("NAME", "REACHABLE", "CPU FREE", "REASON")


def test_table_is_as_wide_as_it_has_to_be() -> None:
    assert table(HEADINGS, ROWS).splitlines() == [
        "NAME                      REACHABLE  CPU FREE  REASON",
        "east                      True       22500m    Unreachable",
        "a-cluster-of-a-long-name  False      -         -",
    ]


def test_headings_give_way_before_what_is_under_them() -> None:
    assert table(HEADINGS, ROWS, 54).splitlines() == [
        "NAME                      REACH…  CPU FR…  REASON",
        "east                      True    22500m   Unreachable",
        "a-cluster-of-a-long-name  False   -        -",
    ]


def test_longest_values_give_way_next() -> None:
    assert table(HEADINGS, ROWS, 40).splitlines() == [
        "NAME          REAC…  CPU F…  REASON",
        "east          True   22500m  Unreachable",
        "a-cluster-o…  False  -       -",
    ]


@given(st.lists(st.tuples(*[st.text(max_size=40)] * 4), max_size=4), st.integers(min_value=22, max_value=200))
def test_table_fits_its_terminal(rows: list[tuple[str, ...]], width: int) -> None:
    lines = table(HEADINGS, rows, width).splitlines()

    assert len(lines) == len(rows) + 1
    assert max(map(len, lines)) <= width


def test_nothing_steers_the_terminal() -> None:
    assert table(("MESSAGE",), [("\x1b[2Jgone\nnext",)]) == "MESSAGE\n\\x1b[2Jgone\\nnext"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (7199, "119m"),
        (7200, "2h"),
        (172_799, "47h"),
        (172_800, "2d"),
    ],
)
def test_age_is_in_the_largest_unit_of_which_there_are_two(seconds: int, shown: str) -> None:
    assert age(NOW - timedelta(seconds=seconds), NOW) == shown
