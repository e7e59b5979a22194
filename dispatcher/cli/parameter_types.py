"""Types of parameters on the command line, which refuse a wrong value in a plain sentence."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, TypeVar

import click

LEAST_PRIORITY: Final = -(2**31)
MOST_PRIORITY: Final = 2**31 - 1
"""The bounds of `spec.priority`."""

LONGEST_SHOWN: Final = 40
"""Characters of a wrong value that its message repeats."""

Member = TypeVar("Member", bound=StrEnum)


class Word(click.Choice[Member]):
    """One of the words of an enumeration; the value is its member."""

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:  # noqa: ARG002
        """The word itself: click would take the name of the member."""
        return str(choice)


class WholeNumber(click.IntRange):
    """A whole number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401
        """The number; raises `BadParameter`."""
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{_short(value)!r} is no whole number", param, ctx)
        if problem := _outside(self, number):
            self.fail(f"{value} {problem}", param, ctx)
        return number

    def _describe_range(self) -> str:
        return _in_words(self)


class Number(click.FloatRange):
    """A number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """The number; raises `BadParameter`."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{_short(value)!r} is no number", param, ctx)
        if problem := _outside(self, number):
            self.fail(f"{value} {problem}", param, ctx)
        return number

    def _describe_range(self) -> str:
        return _in_words(self)


def _in_words(bounds: click.IntRange | click.FloatRange) -> str:
    """The bounds as help shows them; nothing for those of a number that is stored in four bytes."""
    if bounds.min == LEAST_PRIORITY:
        return ""
    if bounds.max is None:
        return f"at least {bounds.min:.10g}"
    return f"from {bounds.min:.10g} to {bounds.max:.10g}"


def _outside(bounds: click.IntRange | click.FloatRange, number: float) -> str:
    """What is wrong with a number; empty if it is within the bounds."""
    if bounds.min is not None and not number >= bounds.min:  # so, because nan is neither smaller nor larger
        return f"is too small: the least is {bounds.min:.10g}"
    if bounds.max is not None and number > bounds.max:
        return f"is too large: the most is {bounds.max:.10g}"
    return ""


def _short(written: str) -> str:
    return written if len(written) <= LONGEST_SHOWN else f"{written[:LONGEST_SHOWN]}…"
