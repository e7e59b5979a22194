"""docs/compatibility.md names settings that exist, tests that are there, and links that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

from dispatcher.settings import Settings

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "compatibility.md").read_text(encoding="utf-8")
MCAD = CHECKOUT / "tests" / "cluster" / "mcad"
TESTS = "\n".join(path.read_text(encoding="utf-8") for path in MCAD.glob("test_*.py"))
CLUSTER_TESTS = "\n".join(path.read_text(encoding="utf-8") for path in MCAD.parent.rglob("test_*.py"))
FILES = {path.stem for path in (MCAD / "yaml").glob("*.yaml")}
ROW = re.compile(
    r"^\| ((?:MCAD|Create AppWrapper|kuttl|test/yaml|doc/usage)[^|]*?) \| (?:same|stronger)", re.MULTILINE
)
"""What MCAD called a test that holds here; a case of kuttl's, or some; one file, or some."""
FOLDER = re.compile(r"kuttl |(?:test/yaml|doc/usage)[a-z/]*: ")
"""What stands before the names of cases and of files."""
MCADS_TESTS = 30
MCADS_CASES = {"deployment-01", "deployment-02", "quota-forest", "quota-errors", "extended-resources"}
OF_OLD = {"DISPATCHER_MODE", "DISPATCHER_AGENT_CONFIGS"}
"""Variables of MCAD that begin like ours."""


def names_in(row: str) -> list[str]:
    """The names in a row, which for one of the Go suite's is one, colons, commas and all."""
    folder = FOLDER.match(row)
    return re.split(r"[:,] ", row[folder.end() :]) if folder else [row]


def rows(*begin: str) -> list[str]:
    """The names in every row that begins like this, of what is said to hold."""
    return [name for row in ROW.findall(PAGE) if row.startswith(begin) for name in names_in(row)]


def test_every_variable_named_is_a_setting() -> None:
    named = set(re.findall(r"DISPATCHER_[A-Z_]+", PAGE)) - OF_OLD

    assert {name.removeprefix("DISPATCHER_").lower() for name in named} <= Settings.model_fields.keys()


def test_every_test_of_mcads_that_is_said_to_hold_is_in_the_suite() -> None:
    assert len(rows("MCAD", "Create AppWrapper")) == MCADS_TESTS
    assert set(rows("kuttl")) >= MCADS_CASES
    assert [name for name in rows("") if name not in TESTS] == []


def test_every_file_of_mcads_is_applied_and_has_its_row() -> None:
    told = rows("test/yaml", "doc/usage")

    assert sorted(told) == sorted(FILES)
    assert [name for name in told if f'"{name}"' not in TESTS] == []


def test_every_test_of_ours_that_is_named_is_there() -> None:
    named = re.findall(r"`(test_\w+)`", PAGE)

    assert [name for name in named if f"def {name}(" not in CLUSTER_TESTS] == []


def test_every_link_leads_to_a_heading() -> None:
    headings = {line.lstrip("# ").lower().replace(" ", "-") for line in PAGE.splitlines() if line[:1] == "#"}

    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= headings


def test_page_can_be_read_in_one_sitting() -> None:
    assert len(PAGE.splitlines()) <= 180
