"""The explanation of one pending gang: the decision of the next cycle, its position, and changes that would let it go.

It is computed from a `World`, so the same function answers for the queue as it is, for a queue after a change, and for
a gang that was not submitted yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dispatcher.core.model.record import Record
from dispatcher.core.scheduling import ordering
from dispatcher.core.scheduling.advice import MOST_WORK, NO_ADVICE, Advice, advise_one
from dispatcher.core.scheduling.cycle import Outcome, Placed
from dispatcher.core.scheduling.world import KnownSnapshots, World


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decision of the next cycle on one gang.

    `outcome` is None for a gang that may not be dispatched before `eligible_at`; it has no position then. `ahead` and
    `behind` are the gangs before and after it, in order.
    """

    record: Record
    outcome: Outcome | None = None
    ahead: tuple[Record, ...] = ()
    behind: tuple[Record, ...] = ()
    advice: Advice = NO_ADVICE

    @property
    def position(self) -> int | None:
        """The position in the queue, from 1; None if the gang may not be dispatched yet."""
        return None if self.outcome is None else len(self.ahead) + 1

    @property
    def eligible_at(self) -> datetime | None:
        """The time from which the gang may be dispatched; None if it may be now."""
        return self.record.eligible_at if self.outcome is None else None


def explain(
    world: World, uid: str, most_work: int = MOST_WORK, known: KnownSnapshots | None = None
) -> Explanation:
    """The explanation of the pending gang `uid`, which must be in the world. Raises `NoNode`.

    `most_work` bounds the search for advice, as `repair.MOST_WORK` does. Explanations of one world share what is
    `known` of its clusters.
    """
    known = known or KnownSnapshots()
    outcomes = world.plan(known)
    outcome = next((each for each in outcomes if each.record.uid == uid), None)
    if outcome is None:
        return Explanation(next(each for each in world.pending if each.uid == uid))
    queue = ordering.in_order(world.pending, world.now)
    index = next(index for index, each in enumerate(queue) if each.uid == uid)
    advice = NO_ADVICE if isinstance(outcome, Placed) else advise_one(world, outcomes, uid, most_work, known)
    return Explanation(outcome.record, outcome, tuple(queue[:index]), tuple(queue[index + 1 :]), advice)
