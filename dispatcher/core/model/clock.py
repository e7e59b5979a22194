"""The time of records: the database's clock, extrapolated by the monotonic clock, never decreasing; and times as text.

One bad reading must not make every deadline due and every month of history old. A late time does little harm, an early
time does much. So a reading that is ahead by more than `LARGEST_STEP` is not followed at first. It is followed once
later readings agree with it for long enough, because the earlier one may have been wrong: after a minute if the host's
clock agrees, as after a suspended host, else after an hour, in which an operator can correct it.

A status has times as RFC 3339 in UTC, in whole seconds or, where MCAD wrote them, in microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from dispatcher.errors import StoreUnavailable

LARGEST_STEP: Final = timedelta(seconds=60)
"""Readings are seconds apart, in which two good clocks drift by microseconds; the shortest grace is a minute."""

AGREED_AFTER_SECONDS: Final = 60.0
"""Seconds for which readings must agree if the host's clock agrees: twenty renewals of the lease."""

SETTLED_AFTER_SECONDS: Final = 3600.0
"""Seconds for which readings must agree if the host's clock does not."""


class Clock:
    """The database's time, extrapolated between readings; it never decreases.

    `monotonic` is in seconds. `wall` is the host's own time; without it the first reading is always followed.
    """

    def __init__(self, monotonic: Callable[[], float], wall: Callable[[], datetime] | None = None) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._anchor: tuple[datetime, float] | None = None
        self._doubted: tuple[timedelta, float] | None = None
        self._off = timedelta(0)

    def set(self, database_now: datetime) -> None:
        """Follows a reading of the database's clock, unless it would turn time back or leap ahead."""
        if self._anchor is None:
            self._begin(self._first(database_now))
        off = database_now - self.now()
        if off > LARGEST_STEP and not self._is_settled(off, database_now):
            self._off = off
            return
        self._doubted = None
        self._off = off if off < -LARGEST_STEP else timedelta(0)
        self._begin(max(database_now, self.now()))

    def now(self) -> datetime:
        """The time; raises `StoreUnavailable` before the first `set`."""
        if self._anchor is None:
            raise StoreUnavailable("the database's clock was never read")
        moment, since = self._anchor
        return moment + timedelta(seconds=self._monotonic() - since)

    @property
    def off(self) -> timedelta:
        """The lead of the database's clock while it is not followed (negative if it is behind); 0 while it is."""
        return self._off

    @property
    def problem(self) -> str:
        """What is wrong with the database's clock and what to do; empty while it is followed."""
        if not self._off:
            return ""
        seconds = abs(round(self._off.total_seconds()))
        if self._off > timedelta(0):
            return (
                f"the database's clock leapt ahead by {seconds} s and is not followed: correct it, or wait; it is "
                f"followed after {SETTLED_AFTER_SECONDS / 60:g} minutes"
            )
        return (
            f"the database's clock is behind by {seconds} s and is not followed back: correct it; if it is right now, "
            "restart the dispatcher"
        )

    def _begin(self, moment: datetime) -> None:
        self._anchor = moment, self._monotonic()

    def _first(self, reading: datetime) -> datetime:
        """The first time: the database's, or the host's if that is much earlier."""
        wall = self._wall() if self._wall else reading
        return wall if reading - wall > LARGEST_STEP else reading

    def _is_settled(self, off: timedelta, reading: datetime) -> bool:
        """True once readings have agreed for long enough."""
        now = self._monotonic()
        if self._doubted is None or abs(off - self._doubted[0]) > LARGEST_STEP:
            self._doubted = off, now
        agrees = self._wall is not None and abs(self._wall() - reading) <= LARGEST_STEP
        return now - self._doubted[1] >= (AGREED_AFTER_SECONDS if agrees else SETTLED_AFTER_SECONDS)


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
