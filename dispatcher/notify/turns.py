"""Which messages of one target rest after failures, so that no message and no namespace blocks the others.

A lane has the messages about one namespace, or those about queues; lanes take turns. A message that its target does not
take is tried again after a pause, before the next message of its lane. After `SET_ASIDE` tries it is set aside: it
rests for twice as long, and its lane goes on. If the target takes others and not this one, the message is at fault, and
`MOST_STRIKES` more tries end it. While the target takes nothing at all, no message is at fault: each is kept until it
is too old, and the target rests for longer and longer. After each rest it is tried with another lane, until each had a
turn: else the oldest message that it does not take would be tried each time, and no other one ever.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from dispatcher.core.model.notifications import Outgoing
from dispatcher.notify.retry import (
    REFUSED,
    Failed,
    GiveUp,
    Refused,
    TryAgain,
    after_failure,
    asked_by,
    pause_after,
)

SET_ASIDE: Final = 5
"""Tries of a message after which the next one of its lane is tried, too."""
MOST_STRIKES: Final = 3
"""Failures of a message that was set aside, each after the target had taken another one, that end it."""
FORGET: Final = 3600.0
"""Seconds after the end of its rest after which a message counts as new: it is not in the outbox any more."""


class _Trouble(Struct, frozen=True):
    """A message that failed; `taken` is the number of messages that the target had taken by then."""

    lane: str
    tries: int
    refusals: int
    strikes: int
    taken: int
    until: float

    @property
    def is_aside(self) -> bool:
        return self.tries >= SET_ASIDE


class Turns:
    """The failures of one target. Moments are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._troubles: dict[str, _Trouble] = {}
        self._had_turn: set[str] = set()
        """The lanes of which a message failed since the target took one, or since all lanes had their turn."""
        self._taken = 0
        self._failures = 0
        self._until = 0.0

    def is_resting(self, clock: float) -> bool:
        """True if the target itself rests."""
        return clock < self._until

    def resting_lanes(self, clock: float) -> set[str]:
        """The lanes whose first message rests and was not set aside."""
        return {each.lane for each in self._troubles.values() if clock < each.until and not each.is_aside}

    @property
    def had_turn(self) -> frozenset[str]:
        """The lanes that had their turn: others go first."""
        return frozenset(self._had_turn)

    def begin_again(self) -> bool:
        """Let all lanes have a turn again; false if none of them had one."""
        had_turn, self._had_turn = self._had_turn, set()
        return bool(had_turn)

    def resting_messages(self, clock: float) -> list[str]:
        """The ids of the messages that were set aside and rest."""
        return [id_ for id_, each in self._troubles.items() if clock < each.until and each.is_aside]

    def tries(self, message: Outgoing) -> int:
        """How often the message failed."""
        trouble = self._troubles.get(message.id)
        return trouble.tries if trouble else 0

    def took(self, message: Outgoing) -> None:
        """Note that the target has taken a message."""
        self._taken += 1
        self._failures, self._until = 0, 0.0
        self._had_turn.clear()
        self._troubles.pop(message.id, None)

    def failed(
        self,
        message: Outgoing,
        outcome: Failed | Refused,
        now: datetime,
        keep: timedelta,
        clock: float,
        chance: float,
    ) -> TryAgain | GiveUp:
        """Note a failure, and decide what follows for the message; `chance` is from 0 to 1."""
        before = self._troubles.pop(message.id, _Trouble(message.lane, 0, 0, 0, self._taken, clock))
        tries, strikes = before.tries + 1, before.strikes
        refusals = before.refusals + isinstance(outcome, Refused)
        self._had_turn.add(message.lane)
        if before.is_aside and self._taken > before.taken and not asked_by(outcome):
            strikes += 1
        self._rest(outcome, clock, chance)
        decided = after_failure(outcome, tries, refusals, message.since, now, keep, chance)
        if strikes >= MOST_STRIKES:
            decided = REFUSED
        if isinstance(decided, TryAgain):
            pause = decided.pause.total_seconds() * (2 if tries >= SET_ASIDE else 1)
            self._forget(clock - FORGET)
            self._troubles[message.id] = _Trouble(
                message.lane, tries, refusals, strikes, self._taken, clock + pause
            )
        return decided

    def _rest(self, outcome: Failed | Refused, clock: float, chance: float) -> None:
        """Have the target rest after two failures in a row, or if it asks for it; a refusal is about the message."""
        if isinstance(outcome, Refused):
            return
        self._failures += 1
        pause = pause_after(self._failures - 1, chance) if self._failures > 1 else timedelta()
        self._until = clock + max(pause, asked_by(outcome)).total_seconds()

    def _forget(self, before: float) -> None:
        self._troubles = {id_: each for id_, each in self._troubles.items() if each.until >= before}
