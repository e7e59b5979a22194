"""Sweeps: tests that kill or fail at every point of a kind, and take minutes together.

`make test` runs a part of them, another one each day, so that all have run after `PARTS` days. `make test-all`, and
pytest without options, runs all.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Final

import pytest
from hypothesis import settings

ALL: Final = "all"
TODAY: Final = "today"
PARTS: Final = 24


def part(option: str, today: date) -> str:
    """Return the part that an option of the command line means: `ALL`, or a number from 1; raises `UsageError`."""
    if option == TODAY:
        return str(today.toordinal() % PARTS + 1)
    if option == ALL or option in map(str, range(1, PARTS + 1)):
        return option
    raise pytest.UsageError(f"--sweeps {option}: choose {ALL}, {TODAY}, or a number from 1 to {PARTS}")


def header(part: str) -> str:
    """Return a line that says which part runs, and how it is run again."""
    return f"sweeps: {part}" if part == ALL else f"sweeps: part {part} of {PARTS}; again with --sweeps {part}"


def profile(part: str) -> str:
    """Return the Hypothesis profile of a run: all examples beside all sweeps, else the first of them."""
    return "suite" if part == ALL else "today"


def examples(count: int) -> int:
    """Return how many of so many examples this run tries: in a run of a part, as large a share as of other tests."""
    return count * settings().max_examples // settings.get_profile(profile(ALL)).max_examples


def spread(seeds: range, each_day: int) -> list[pytest.ParameterSet]:
    """Return the seeds of a test as parameters: the first so many for each day, and as many for each of some sweeps."""
    return [
        pytest.param(
            seeds[first : first + each_day],
            id=f"from-{seeds[first]}",
            marks=[pytest.mark.sweep] if first else [],
        )
        for first in range(0, len(seeds), each_day)
    ]


def left_out(items: Sequence[pytest.Item], part: str) -> list[pytest.Item]:
    """Return the sweeps that are not of that part."""
    sweeps = [item for item in items if item.get_closest_marker("sweep")]
    return (
        [] if part == ALL else [item for place, item in enumerate(sweeps) if place % PARTS != int(part) - 1]
    )
