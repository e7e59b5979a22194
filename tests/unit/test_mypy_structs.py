"""Mypy checks the changes of a struct, as it checks those of a dataclass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[2] / "tools" / "mypy_structs.py"
CONFIG = f"""
[mypy]
strict = true
plugins = {PLUGIN}
"""
SOURCE = """
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace


class Place(Struct, frozen=True):
    name: str
    pods: int = 0


@dataclass
class Other:
    name: str


replace(Place("a"), pods=1).name
replace(Place("a"), pod=1)
replace(Place("a"), pods="1")
replace(Other("a"), name="b")
replace(Place("a"), pods=1).nothing
"""
REFUSED = [("19", "[call-arg]"), ("20", "[arg-type]"), ("21", "[type-var]"), ("22", "[attr-defined]")]


@pytest.mark.timeout(60)
def test_changes_of_a_struct_are_checked(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(SOURCE)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "main.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)  # noqa: S603  # our own
    found = [(line.split(":")[1], line.rpartition("  ")[2]) for line in done.stdout.splitlines()]
    assert (found, done.stderr) == (REFUSED, "")
