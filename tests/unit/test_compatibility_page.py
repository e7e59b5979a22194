"""docs/compatibility.md names settings that exist, tests that are there, and links that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

from dispatcher.settings import Settings

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "compatibility.md").read_text(encoding="utf-8")
TESTS = "\n".join(
    path.read_text(encoding="utf-8") for path in (CHECKOUT / "tests/cluster/mcad").glob("test_*.py")
)
ROW = re.compile(r"^\| ((?:MCAD|Create AppWrapper).*?) \| (?:same|stronger)", re.MULTILINE)
"""What MCAD called a test that holds here."""
MCADS_TESTS = 30
OF_OLD = {"DISPATCHER_MODE", "DISPATCHER_AGENT_CONFIGS"}
"""Variables of MCAD that begin like ours."""


def test_every_variable_named_is_a_setting() -> None:
    named = set(re.findall(r"DISPATCHER_[A-Z_]+", PAGE)) - OF_OLD

    assert {name.removeprefix("DISPATCHER_").lower() for name in named} <= Settings.model_fields.keys()


def test_every_test_of_mcads_that_is_said_to_hold_is_in_the_suite() -> None:
    held = ROW.findall(PAGE)

    assert len(held) == MCADS_TESTS
    assert [name for name in held if name not in TESTS] == []


def test_every_link_leads_to_a_heading() -> None:
    headings = {line.lstrip("# ").lower().replace(" ", "-") for line in PAGE.splitlines() if line[:1] == "#"}

    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= headings


def test_page_can_be_read_in_one_sitting() -> None:
    assert len(PAGE.splitlines()) <= 180
