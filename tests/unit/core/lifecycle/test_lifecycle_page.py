"""docs/lifecycle.md says what the table says."""

from __future__ import annotations

import runpy
from pathlib import Path

from dispatcher.core.lifecycle.transitions import TRANSITIONS, Cause
from dispatcher.core.model.records.record import Phase

DOCS = Path(__file__).parents[4] / "docs"


def test_lifecycle_page_equals_the_output_of_its_generator() -> None:
    made = runpy.run_path(str(DOCS / "generate_lifecycle.py"))["page"]()
    assert (DOCS / "lifecycle.md").read_text(encoding="utf-8") == made, (
        "run `python docs/generate_lifecycle.py`"
    )


def test_page_names_every_phase_and_cause_and_transition() -> None:
    page = (DOCS / "lifecycle.md").read_text(encoding="utf-8")
    assert [phase for phase in Phase if f"| **{phase}** |" not in page] == []
    assert [cause for cause in Cause if f"`{cause}`" not in page] == []
    assert [row for row in TRANSITIONS if f"| {row.meaning} |" not in page] == []
