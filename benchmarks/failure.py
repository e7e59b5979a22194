"""The ways in which a benchmark ends without a figure."""

from __future__ import annotations

import sys


class BenchmarkFailed(Exception):
    """There is no honest figure; the message says why."""


def is_told(error: BaseException, expected: tuple[type[BaseException], ...]) -> bool:
    """Tell in one line what went wrong, if that is no fault of the program; else False, and it is to be raised."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]  # behind the groups that tasks wrap it in
    if not isinstance(error, expected):
        return False
    print(f"benchmark: {error}", file=sys.stderr)
    return True
