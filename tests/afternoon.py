"""The commands of pages that are played: those of docs/try-it.md, By hand, and docs/first-appwrapper.md.

A step is a command with the output that the page shows; this module says how output is compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).parents[1]
PAGE: Final = CHECKOUT / "docs" / "try-it.md"
FIRST: Final = CHECKOUT / "docs" / "first-appwrapper.md"
STATE: Final = ".dev/dev"
"""The folder of `make dev` in the commands."""
CHANGES: Final = frozenset({"submit", "apply", "hold", "release"})
FOLLOWS: Final = frozenset({"wait", "--wait"})
UNORDERED: Final = frozenset({"history", "usage"})


@dataclass(frozen=True, slots=True)
class Step:
    """A command and the output that the page shows."""

    command: str
    output: str

    @property
    def words(self) -> frozenset[str]:
        """The words of the command."""
        return frozenset(self.command.split())

    @property
    def is_setting(self) -> bool:
        """True if it only changes the shell."""
        return self.command.startswith((". ", "export "))

    @property
    def is_repeatable(self) -> bool:
        """True if it changes nothing, so that it can be repeated until the cluster is as the page shows it."""
        return not self.words & CHANGES

    def is_shown_by(self, output: str) -> bool:
        """True if this output is the one on the page, times, hours used and the widths of columns apart.

        A command that follows a gang may skip states: the last one counts. The order of rows may depend on times.
        """
        if self.words & FOLLOWS:
            return output.splitlines()[-1:] == self.output.splitlines()[-1:]
        shown, found = (comparable(each) for each in (self.output, output))
        return sorted(shown) == sorted(found) if self.words & UNORDERED else shown == found


def steps() -> list[Step]:
    """The commands of the afternoon in order."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## By hand\n")[2]
    return _steps_in(section.partition("\n## ")[0])


def first_steps() -> list[Step]:
    """The commands of docs/first-appwrapper.md in order."""
    return _steps_in(FIRST.read_text(encoding="utf-8"))


def several_files() -> list[str]:
    """The commands in the table of docs/first-appwrapper.md, "Several files", in order."""
    section = FIRST.read_text(encoding="utf-8").partition("\n## Several files")[2].partition("\n## ")[0]
    return [each.replace(r"\|", "|") for each in re.findall(r"\| `(kubectl .*)` \|$", section, re.MULTILINE)]


def _steps_in(section: str) -> list[Step]:
    blocks: list[str] = re.findall(r"^```console\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    found = [
        each.partition("\n") for block in blocks for each in re.split(r"^\$ ", block, flags=re.MULTILINE)
    ]
    return [Step(command, output.rstrip("\n")) for command, _, output in found if command]


def comparable(output: str) -> list[str]:
    """The lines without timestamps, ages, fractions and the widths of columns."""
    without = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "AT", output)
    without = re.sub(r"\b(?:\d+[dhms])+\b", "AGE", without)
    without = re.sub(r"(?<=\s)\d+\.\d+\b", "NUMBER", without)
    return [" ".join(line.split()) for line in without.splitlines()]
