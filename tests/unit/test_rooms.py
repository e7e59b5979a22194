"""The folders of the program stay small enough to be read at a glance."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PROGRAM = Path(__file__).parents[2] / "dispatcher"
MOST_MODULES: Final = 16
"""Modules in a folder, without `__init__`. A folder that would hold more holds two ideas: give one of them its own."""


def modules_of(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")} - {"__init__"}


def test_no_folder_holds_more_modules_than_a_reader_sees_at_a_glance() -> None:
    folders = [PROGRAM, *(path for path in PROGRAM.rglob("*") if path.is_dir())]
    held = {str(each.relative_to(PROGRAM.parent)): len(modules_of(each)) for each in folders}

    assert held["dispatcher/controller/members"] > 0
    assert {folder: modules for folder, modules in held.items() if modules > MOST_MODULES} == {}
