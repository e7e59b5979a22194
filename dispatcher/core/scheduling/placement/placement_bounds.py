"""The bounds of one question whether pod sets have places, and the work that was done for it.

A tenant writes the pod sets, and so decides how many orders, combinations of domains and steps of a search there are.
These bounds are of all of them together.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

MOST_STEPS: Final = 2000
"""Steps of one search for a placement that no order finds; some tens of milliseconds."""
MOST_STEPS_IN_ALL: Final = 3 * MOST_STEPS
"""Steps of all searches for one question: each combination of domains has a search."""
MOST_ORDERED: Final = 4096
"""Pod sets that orders place one after the other for one question, each counted once for `_NODES` nodes or a part of
them. The first order is finished in any case; some tenths of a second."""
MOST_SPREAD: Final = 20_000
"""Steps of spreads for one question: pods that are placed one by one, about a second."""

_NODES: Final = 1000
_STEPS_OF_ORDERED: Final = 4
"""Steps in the time in which an order places a pod set on few nodes."""
_NODES_OF_ORDERED: Final = 5000
"""Each such number of nodes takes that time once more."""


class Tally(Struct):
    """The steps of all questions about the nodes of one cluster since its first snapshot."""

    steps: int = 0


class Work(Struct):
    """The work on one question: pod sets placed by orders, and steps of spreads and of searches.

    The first order is finished, if its spreads allow that; further ones and searches have at most `most`.

    `is_cut` is true once a bound has ended something that might have found a placement. So there may be one, even if
    none was found.
    """

    nodes: int
    most: int = MOST_STEPS_IN_ALL
    ordered: int = 0
    spread: int = 0
    searched: int = 0
    is_cut: bool = False

    @property
    def steps(self) -> int:
        """All steps so far, each of about the same time."""
        of_order = _STEPS_OF_ORDERED * (1 + self.nodes // _NODES_OF_ORDERED)
        return self.ordered * of_order + self.spread + self.searched

    @property
    def may_order(self) -> bool:
        """True if one more order may be tried."""
        return self.ordered * (1 + self.nodes // _NODES) + self.spread < min(self.most, MOST_ORDERED)

    def may_spread(self, steps: int) -> bool:
        """True if the pods of a set may be spread with so many steps, which are counted then; else the work is cut."""
        if self.spread + steps > MOST_SPREAD:
            self.is_cut = True
            return False
        self.spread += steps
        return True

    @property
    def most_steps(self) -> int:
        """The steps that one more search may have."""
        return min(MOST_STEPS, self.most - self.searched)
