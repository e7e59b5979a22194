"""Types of parameters on the command line, which refuse a wrong value in a plain sentence.

Durations and moments are read as people write them: 90m, 24h, 7d, 4w; or a day, or a time, of ISO 8601.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

import click

LEAST_PRIORITY: Final = -(2**31)
MOST_PRIORITY: Final = 2**31 - 1
"""The bounds of `spec.priority`."""

LONGEST_SHOWN: Final = 40
"""Characters of a wrong value that its message repeats."""

Member = TypeVar("Member", bound=StrEnum)
LONGEST: Final = timedelta(days=365 * 100)
"""Longer than any history, and short enough that adding it to a date does not overflow."""
_UNITS: Final = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_PART: Final = re.compile(r"(\d{1,8}(?:\.\d{1,6})?)([smhdw])", re.ASCII)
_WRITTEN: Final = re.compile(rf"(?:{_PART.pattern}){{1,5}}", re.ASCII)


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


class NotWritten(ValueError):
    """The text is no duration or moment; the message shows one."""


def duration(written: str) -> timedelta:
    """Read a duration: numbers with their units, each one of s, m, h, d and w, such as 1h30m."""
    if not _WRITTEN.fullmatch(written.strip()):
        raise NotWritten(
            f"{written!r} is no duration: a number and s, m, h, d or w, such as 90m, 1h30m, 7d or 4w"
        )
    parts = [min(float(number) * _UNITS[unit], 2 * LONGEST) for number, unit in _PART.findall(written)]
    length = sum(parts, timedelta())
    if not timedelta() < length <= LONGEST:
        raise NotWritten(f"{written!r} is out of range: a duration is more than 0 and at most 100 years")
    return length


def moment(written: str, now: datetime) -> datetime:
    """Read a moment: a duration ago, or an ISO 8601 date or time, in UTC unless it names another zone."""
    if _WRITTEN.fullmatch(written.strip()):
        return now - duration(written)
    try:
        read = datetime.fromisoformat(written.strip())
        return read.astimezone(UTC) if read.tzinfo else read.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise NotWritten(
            f"{written!r} is neither how long ago, such as 24h or 7d, nor a day or time, such as 2026-11-20 or "
            "2026-11-20T08:30Z"
        ) from error
