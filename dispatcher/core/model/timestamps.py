"""Times as a status has them: RFC 3339 in UTC, in whole seconds or, where MCAD wrote them, in microseconds."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(moment: datetime) -> str:
    """The text of an aware time, such as `2026-11-20T09:00:00Z`; parts of a second are dropped."""
    return _in_utc(moment, "seconds")


def micro_timestamp(moment: datetime) -> str:
    """The text of an aware time, such as `2026-11-20T09:00:00.000000Z`."""
    return _in_utc(moment, "microseconds")


def time_in(written: object) -> datetime | None:
    """The time that a text of a status names, in UTC where it names no zone; None if it names none."""
    try:
        found = datetime.fromisoformat(written) if isinstance(written, str) else None
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found


def _in_utc(moment: datetime, timespec: str) -> str:
    # `isoformat` takes half the time of `strftime`, and a status has a dozen times.
    return moment.astimezone(UTC).isoformat(timespec=timespec).removesuffix("+00:00") + "Z"
