"""Tables of text: how they are laid out, and what gives way in a narrow terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.cli.screens.tables import Heading, age, table
from tests.builders import NOW

ROWS = [("east", "True", "22500m", "Unreachable"), ("a-cluster-of-a-long-name", "False", "", "")]
HEADINGS = ("NAME", "REACHABLE", "CPU FREE", "REASON")
QUEUE = (
    Heading("NAME", is_namespaced=True),
    Heading("USER", 1),
    Heading("PRIORITY", 2),
    Heading("MESSAGE", wraps=True),
)


def test_table_is_as_wide_as_it_has_to_be() -> None:
    assert table(HEADINGS, ROWS).splitlines() == [
        "NAME                      REACHABLE  CPU FREE  REASON",
        "east                      True       22500m    Unreachable",
        "a-cluster-of-a-long-name  False      -         -",
    ]


def screen(rows: Sequence[Sequence[str]], width: int, *headings: Heading) -> list[str]:
    return table(headings or QUEUE, rows, width).splitlines()


def test_namespace_that_all_share_is_shown_once() -> None:
    assert screen([("team-a/long-name-1", "a", "0", "-"), ("team-a/long-name-2", "b", "1", "-")], 40) == [
        "In all rows: NAMESPACE team-a",
        "NAME         USER  PRIORITY  MESSAGE",
        "long-name-1  a     0         -",
        "long-name-2  b     1         -",
    ]


def test_columns_that_are_equal_in_all_rows_are_shown_once() -> None:
    assert screen([("team-a/long-name", "a", "7", "gone"), ("team-b/long-name", "b", "7", "-")], 32) == [
        "In all rows: PRIORITY 7",
        "NAME              USER  MESSAGE",
        "team-a/long-name  a     gone",
        "team-b/long-name  b     -",
    ]


def test_text_wraps_and_then_columns_are_left_out_by_rank() -> None:
    rows = [("team-a/x", "a", "1", "lacks 1 cpu in each of all clusters"), ("team-b/y", "b", "2", "")]
    assert screen(rows, 52) == [
        "NAME      USER  PRIORITY  MESSAGE",
        "team-a/x  a     1         lacks 1 cpu in each of all",
        "                          clusters",
        "team-b/y  b     2         -",
    ]
    assert screen(rows, 34) == [
        "NAME      MESSAGE",
        "team-a/x  lacks 1 cpu in each of",
        "          all clusters",
        "team-b/y  -",
        "No room for: PRIORITY, USER (-o",
        "wide shows all)",
    ]


def test_names_are_never_cut() -> None:
    assert screen([("team-a/a-very-long-name", "a", "1", "x"), ("team-b/b", "b", "2", "y")], 20)[:3] == [
        "NAME                     MESSAGE",
        "team-a/a-very-long-name  x",
        "team-b/b                 y",
    ]


def test_row_that_is_too_long_because_of_names_continues_on_the_next_line() -> None:
    headings = (Heading("NAME", is_namespaced=True), Heading("NODES"))
    shown = table(headings, [("team-a/a-long-name", "gpu-node-1,gpu-node-2"), ("team-a/b", "gpu-3")], 30)
    assert shown.split("\n") == [
        "In all rows: NAMESPACE team-a",
        "NAME         NODES",
        "a-long-name",
        "  gpu-node-1,gpu-node-2",
        "b            gpu-3",
    ]


def test_column_is_put_back_where_a_later_one_leaves_room() -> None:
    headings = (Heading("NAME"), Heading("SHARE", 3), Heading("GPU", 2), Heading("A-WIDE-COLUMN", 1))
    shown = table(headings, [("a", "1", "2", "3"), ("b", "2", "3", "4")], 16)
    assert shown.split("\n")[0] == "NAME  SHARE  GPU"


@given(
    st.lists(st.tuples(*[st.from_regex(r"[a-z]{1,9}(/[a-z]{1,9})?", fullmatch=True)] * 4), max_size=4),
    st.integers(min_value=22, max_value=100),
)
def test_nothing_is_lost_silently(rows: list[tuple[str, ...]], width: int) -> None:
    shown = " ".join(screen(rows, width))

    for index, heading in enumerate(QUEUE):
        left_out = heading.rank and heading.name in shown.partition("No room for:")[2]
        assert left_out or all(part in shown for row in rows for part in row[index].split("/"))


@given(
    st.lists(st.tuples(*[st.from_regex(r"[a-z ]{1,40}", fullmatch=True)] * 2), max_size=4),
    st.integers(min_value=40, max_value=100),
)
def test_table_of_text_fits_its_terminal(rows: list[tuple[str, ...]], width: int) -> None:
    rows = [(f"name-{index}", *row) for index, row in enumerate(rows)]
    lines = screen(rows, width, Heading("NAME"), Heading("USER", 1), Heading("MESSAGE", wraps=True))
    longest = max([0, *(len(word) for row in rows for word in row[2].split())])
    assert longest > 24 or max(map(len, lines)) <= width


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
