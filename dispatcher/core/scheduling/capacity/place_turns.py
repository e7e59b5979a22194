"""Turns of the AppWrappers whose places on the nodes of one cluster are settled: which one is next, and at which stage.

Settling an AppWrapper takes the stages of `Stage`. All AppWrappers pass one stage before any of them
passes the next: a gang that needs other places must not take a planned place of another gang. Searches come last, in
the order in which their AppWrappers began to wait for places: neither many nor costly searches keep an AppWrapper from
its own.

A round has a number of steps for all its searches. An AppWrapper whose turn comes after they are used up is not tried:
a later round has its search made. A round settles AppWrappers without places again after news, or if they were not
tried since. So rounds without news come to an end.

The turns hold uids and numbers. They neither know nodes nor give places: the `NodeLedger` takes the steps, and reports.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple


class Stage(IntEnum):
    """The stages of settling, in order."""

    RELEASE = 0
    """Its places are released."""
    HOLD_PLANNED = 1
    """It holds its planned places again."""
    HOLD_OTHERS = 2
    """It gets places for its pods without a planned one, if that needs no search."""
    SEARCH = 3
    """Places are searched for."""


class PlaceTurn(NamedTuple):
    """The turn of one AppWrapper."""

    uid: str
    stage: Stage


class PlaceTurns:
    """The AppWrappers to settle, and those that wait for places.

    A round has `most_steps` steps. Who begins it says how many a search for an AppWrapper takes at least: a function
    that was kept would keep its ledger alive where no cycles of references are collected.
    """

    def __init__(self, most_steps: int) -> None:
        self._most_steps = most_steps
        self._steps_left = most_steps
        self._has_rounds = False
        self._has_news = True
        self._stages: tuple[dict[str, None], ...] = tuple({} for _ in Stage)
        """The AppWrappers at each stage, in the order in which they came to it."""
        self._waiting: dict[str, None] = {}
        """The AppWrappers with pods that have no place, in the order in which they are searched for."""
        self._untried: dict[str, None] = {}
        """The waiting AppWrappers that were not searched for since they changed, because too few steps were left."""

    # --- rounds ------------------------------------------------------------------------------------------------

    def begin_round(self, least_steps: Callable[[str], int]) -> None:
        """Renew the steps of searches: from now on they are those of all snapshots until the next round."""
        self._has_rounds = True
        self._renew_steps(least_steps)

    def begin_snapshot(self, least_steps: Callable[[str], int]) -> None:
        """Make the snapshot that follows a round of its own, unless rounds begin by `begin_round`."""
        if not self._has_rounds:
            self._renew_steps(least_steps)

    def note_news(self) -> None:
        """Let the next round search for all AppWrappers that wait: something changed beside the places found here."""
        self._has_news = True

    @property
    def has_steps(self) -> bool:
        """True if a search may begin in this round; it may use more steps than are left."""
        return self._steps_left > 0

    def use(self, steps: int) -> None:
        """Take the steps of a search from those of the round."""
        self._steps_left -= steps

    def _renew_steps(self, least_steps: Callable[[str], int]) -> None:
        self._steps_left = self._most_steps
        if self._has_news or self._untried:
            self._search_again(least_steps)

    def _search_again(self, least_steps: Callable[[str], int]) -> None:
        """Have places sought for the next AppWrappers that wait for some, as many as there may be steps for.

        After news that is any of them, else those that were not tried since.
        """
        has_news, self._has_news = self._has_news, False
        least = 0
        for uid in self._waiting:
            if not (has_news or uid in self._untried):
                continue
            if least >= self._most_steps:
                self._untried[uid] = None  # it has its turn in a later round
                continue
            least += least_steps(uid)
            self._untried.pop(uid, None)
            self.begin(uid)

    # --- turns -------------------------------------------------------------------------------------------------

    def begin(self, uid: str) -> None:
        """Settle an AppWrapper from the first stage, whatever was done so far."""
        first, *later = self._stages
        first[uid] = None
        for stage in later:
            stage.pop(uid, None)

    @property
    def has_new(self) -> bool:
        """True if some AppWrappers are at the first stage: they still hold the places that they had."""
        return bool(self._stages[Stage.RELEASE])

    @property
    def is_under_way(self) -> bool:
        """True if some AppWrappers are beyond the first stage: they are without places that they will get."""
        return any(self._stages[Stage.HOLD_PLANNED :])

    def next(self) -> PlaceTurn | None:
        """The next turn, which is to be ended before the following one; None if all are settled."""
        for stage, there in zip(Stage, self._stages, strict=True):
            if there:
                uid = self._next_to_search() if stage is Stage.SEARCH else next(iter(there))
                return PlaceTurn(uid, stage)
        return None

    def end(self, turn: PlaceTurn, *, is_settled: bool) -> None:
        """End the turn of an AppWrapper; it goes on to the next stage unless it is settled."""
        if not is_settled:
            self._stages[turn.stage + 1][turn.uid] = None
        del self._stages[turn.stage][turn.uid]

    def _next_to_search(self) -> str:
        """The AppWrapper that began to wait first; any of them if no steps are left to search with."""
        searching = self._stages[Stage.SEARCH]
        anyone = next(iter(searching))
        if not self.has_steps:
            return anyone
        return next((uid for uid in self._waiting if uid in searching), anyone)

    # --- waiting for places ------------------------------------------------------------------------------------

    def wait(self, uid: str) -> None:
        """Note that an AppWrapper has pods without a place; one that waits already keeps its turn."""
        self._waiting[uid] = None

    def end_wait(self, uid: str) -> None:
        """Note that an AppWrapper waits for no search: its pods have places, or its search begins."""
        self._waiting.pop(uid, None)
        self._untried.pop(uid, None)

    def is_waiting(self, uid: str) -> bool:
        """True if an AppWrapper has pods without a place."""
        return uid in self._waiting

    def try_later(self, uid: str) -> None:
        """Leave the search for an AppWrapper that waits to a later round, even if there is no news until then."""
        self._untried[uid] = None

    def is_untried(self, uid: str) -> bool:
        """True if the search for an AppWrapper is left to a later round."""
        return uid in self._untried

    @property
    def has_untried(self) -> bool:
        """True if a further round has searches to make, even if nothing changes until then."""
        return bool(self._untried)

    def try_now(self, uid: str) -> None:
        """Have the search for an AppWrapper made in this round, if need be with one more step."""
        self._steps_left = max(self._steps_left, 1)
        self.begin(uid)
