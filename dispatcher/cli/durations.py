"""Durations and moments as people write them: 90m, 24h, 7d, 4w; or a day, or a time, of ISO 8601."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

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
