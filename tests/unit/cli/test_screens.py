"""The screens of the commands that read no database, and those of docs/cli.md."""

from __future__ import annotations

import pytest

from tests.hub_screens import OF_HUB
from tests.screens import (
    GOLDEN,
    OF_DATABASE,
    OF_FILES,
    OF_PAGE,
    OF_VALUES,
    PAGE,
    WIDTHS,
    golden,
    page_of,
    without_database,
)

SCREENS = dict(without_database())


@pytest.mark.parametrize("name", SCREENS)
def test_screen_is_the_golden_one(name: str) -> None:
    assert SCREENS[name] == golden(name), "run `make docs`"


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    lines = [
        line
        for path in GOLDEN.glob(f"*-{width}.txt")
        for line in path.read_text(encoding="utf-8").splitlines()
        if not line.startswith("$ ")
    ]
    assert [line for line in lines if len(line) > width] == []


def test_each_golden_screen_is_of_a_command() -> None:
    names = {*OF_DATABASE, *OF_FILES, *OF_VALUES}
    assert {path.stem for path in GOLDEN.iterdir()} == {
        *(f"{name}-{width}" for name in names for width in WIDTHS),
        *(f"{name}-{OF_PAGE}" for name in OF_HUB),
    }


@pytest.mark.parametrize("width", [120, 160])
def test_tables_of_120_columns_leave_nothing_out(width: int) -> None:
    shown = [drawn(width) for drawn in OF_VALUES.values()]
    assert [screen for screen in shown if "No room for" in screen] == []


def test_screens_of_the_page_are_the_golden_ones() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page_of(page) == page, "run `make docs`"
