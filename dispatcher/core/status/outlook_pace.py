"""When outlooks are renewed, and which statuses then change: a write costs the API server as much as a dispatch.

A round is busy if more than `MOST_DISPATCHED` gangs were dispatched since the round before. Of busy rounds in a row,
`MOST_PASSED` are passed over. A busy round writes the statuses of the first gangs, and `MOST_BUSY_WRITES` others; any
other round at most `MOST_WRITES` of gangs with an exact position, and as many of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct

from dispatcher.core.status.outlook import Outlook

MOST_WRITES: Final = 100
"""Statuses of one kind that a round changes: 20 writes per second of both kinds, with a round in ten seconds."""
MOST_DISPATCHED: Final = 20
"""Dispatches in a round that is not busy: 2 per second, with a round in ten seconds."""
MOST_PASSED: Final = 5
"""Busy rounds in a row that are passed over: an outlook is a minute old, with a round in ten seconds."""
MOST_BUSY_WRITES: Final = 10
"""Statuses that a busy round changes beside those of the first gangs."""


class Round(Struct, frozen=True):
    """One round: the count of dispatches at its begin, and how many busy rounds in a row are passed over with it."""

    dispatches: int
    is_busy: bool = False
    passed: int = 0

    @property
    def is_passed_over(self) -> bool:
        """True if nothing is renewed in this round."""
        return self.passed > 0

    def next(self, dispatches: int) -> Round:
        """The round after this one, which begins at this count of dispatches."""
        is_busy = dispatches - self.dispatches > MOST_DISPATCHED
        is_passed_over = is_busy and self.passed < MOST_PASSED
        return Round(dispatches, is_busy, self.passed + 1 if is_passed_over else 0)


def to_write(behind: Mapping[str, Outlook], first: Collection[str], *, is_busy: bool) -> list[str]:
    """The uids of the gangs whose statuses a round writes, of those that are behind in the order in which they fell.

    In a busy round the `first` gangs count, in other rounds those with an exact position; then some others.
    """
    urgent = [uid for uid, each in behind.items() if (uid in first if is_busy else "queueLength" in each)]
    chosen = frozenset(urgent)
    others = [uid for uid in behind if uid not in chosen]
    return [*urgent[:MOST_WRITES], *others[: MOST_BUSY_WRITES if is_busy else MOST_WRITES]]
