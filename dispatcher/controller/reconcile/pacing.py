"""How often the cluster_annotations of an owner are followed: each writes history, and anybody can patch in a loop."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta
from typing import Final

FOLLOWED_EVERY: Final = timedelta(seconds=1)
"""An AppWrapper's priority, selectors and `suspend` are followed once in so long: the last value wins, none is lost."""


class Pacing:
    """Gives each key a turn once in `every`."""

    def __init__(self, every: timedelta = FOLLOWED_EVERY) -> None:
        self._every = every
        self._turns: OrderedDict[str, datetime] = OrderedDict()
        """When each key had its last turn, the oldest first; those that are past waiting for are forgotten."""

    def wait(self, key: str, now: datetime) -> float:
        """The seconds until it is this key's turn; 0 if it is."""
        self._forget_past(now)
        last = self._turns.get(key)
        return (last + self._every - now).total_seconds() if last is not None else 0.0

    def note(self, key: str, now: datetime) -> None:
        """The key has had its turn: what its owner wished is committed."""
        self._forget_past(now)
        self._turns[key] = now
        self._turns.move_to_end(key)

    def had_turn(self, key: str, now: datetime) -> bool:
        """True if the key had a turn so recently that it has to wait for the next."""
        self._forget_past(now)
        return key in self._turns

    def _forget_past(self, now: datetime) -> None:
        while self._turns and next(iter(self._turns.values())) + self._every <= now:
            self._turns.popitem(last=False)
