"""Limits how often the requests of a user, and approvals, are committed: each writes history.

Users can patch in a loop.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta
from typing import Final

from dispatcher.core.lifecycle.approvals import pause_after

FOLLOWED_EVERY: Final = timedelta(seconds=1)
"""The pause between two commits of a changed priority, selector or `suspend`; the last value wins, and none is lost."""


class Pacing:
    """Gives each key one turn per `every`."""

    def __init__(self, every: timedelta = FOLLOWED_EVERY) -> None:
        self._every = every
        self._turns: OrderedDict[str, datetime] = OrderedDict()
        """When each key had its last turn, the oldest first; turns older than `every` are dropped."""

    def wait(self, key: str, now: datetime) -> float:
        """Seconds until the next turn of this key; 0 if it may have one now."""
        self._forget_past(now)
        last = self._turns.get(key)
        return (last + self._every - now).total_seconds() if last is not None else 0.0

    def note(self, key: str, now: datetime) -> None:
        """Note that the key had a turn: a request of its user was committed."""
        self._forget_past(now)
        self._turns[key] = now
        self._turns.move_to_end(key)

    def had_turn(self, key: str, now: datetime) -> bool:
        """True if the key must wait for its next turn."""
        self._forget_past(now)
        return key in self._turns

    def _forget_past(self, now: datetime) -> None:
        while self._turns and next(iter(self._turns.values())) + self._every <= now:
            self._turns.popitem(last=False)


WITHDRAWALS_COUNTED_FOR: Final = timedelta(hours=1)
"""The time after the last withdrawal of an approval until all withdrawals of its AppWrapper are forgotten."""


class Withdrawals:
    """Counts by key how often approvals were withdrawn; the pause before a change is followed grows with that."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, tuple[int, datetime]] = OrderedDict()
        """The number of withdrawals by key and the time of the last one, the oldest first."""

    def note(self, key: str, now: datetime) -> None:
        """Note that an approval was withdrawn."""
        self._forget_past(now)
        count, _ = self._counts.get(key, (0, now))
        self._counts[key] = count + 1, now
        self._counts.move_to_end(key)

    def wait(self, key: str, now: datetime) -> float:
        """Seconds until the next change is followed; 0 if it may be now."""
        self._forget_past(now)
        count, last = self._counts.get(key, (0, now))
        return max(0.0, (last + pause_after(count) - now).total_seconds())

    def _forget_past(self, now: datetime) -> None:
        while self._counts and next(iter(self._counts.values()))[1] + WITHDRAWALS_COUNTED_FOR <= now:
            self._counts.popitem(last=False)
