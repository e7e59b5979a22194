"""The tables of the demos in a terminal of 80 and of 120 columns."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from testbed.screen import fitted

HISTORY = Table("at", "after", "cause", "from", "to", "message", title="raycluster-glue-1", caption="2 gangs")
HISTORY.add_row("11:33:39.168", "", "submitted", "", "Queued", "")
HISTORY.add_row(
    "11:33:39.177", "0.009 s", "blocked", "Queued", "Queued", "cluster hub: nvidia.com/gpu: needs 2, 1 free"
)
HISTORY.add_row("11:33:43.612", "0.027 s", "pods-running", "Dispatched", "Running", "")


def rendered(table: Table, width: int) -> str:
    output = io.StringIO()
    Console(file=output, width=width).print(table)
    return output.getvalue()


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (120, ["at", "after", "cause", "from", "to", "message"]),
        (80, ["at", "after", "cause", "to", "message"]),
        (60, ["at", "cause", "to", "message"]),
    ],
)
def test_table_keeps_words_whole_and_leaves_out_what_can_be_spared(width: int, headings: list[str]) -> None:
    table = fitted(HISTORY, width)
    shown = rendered(table, width)

    assert [each.header for each in table.columns] == headings
    assert max(map(len, shown.splitlines())) <= width
    words = shown.replace("│", " ").split()
    assert {"pods-running", "nvidia.com/gpu:", "11:33:39.177", "raycluster-glue-1", "gangs"} <= set(words)


def test_table_without_columns_stays() -> None:
    assert fitted(Table(), 80).columns == []
