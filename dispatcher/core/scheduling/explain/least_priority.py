"""The least priority with which a waiting gang would be dispatched in the next cycle, if its priority alone suffices.

The decision on a gang changes only at priorities of others, so few numbers are tried. As in `advice`, the next cycle is
planned with each: the returned priority suffices, and one less does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import floor
from typing import Final

from dispatcher.core.model.records.record import Record
from dispatcher.core.queues import ordering
from dispatcher.core.scheduling.cycle.outcomes import Placed
from dispatcher.core.scheduling.explain.minimal_changes import boundary, first_that_goes
from dispatcher.core.scheduling.explain.trials import size_of
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World

HIGHEST: Final = 2**31 - 1
"""The highest priority that an AppWrapper may have."""
_MOST_TRIED: Final = 16
"""Priorities that are all tried, the lowest first; of more, the sufficient one that is found may not be the lowest."""


def least_priority(
    world: World, record: Record, ceiling: int | None, most_work: int, known: KnownSnapshots
) -> int | None:
    """The least priority, of at most the `ceiling` of the namespace, that suffices; None if there is none.

    The gang waits with its own. `most_work` bounds the plans as `advice.MOST_WORK` does; beyond it there is none.
    """
    highest = HIGHEST if ceiling is None else ceiling
    steps = sorted({each for each in _steps(world, record) if record.priority < each <= highest})
    plans = min(len(steps), max(_MOST_TRIED, 2 * len(steps).bit_length())) + 1
    if not steps or plans * size_of(world) > most_work:
        return None

    def goes(priority: int) -> bool:
        outcomes = world.with_priority(record.uid, priority).plan(known)
        return any(isinstance(each, Placed) and each.record.uid == record.uid for each in outcomes)

    if len(steps) <= _MOST_TRIED:
        found = next(filter(goes, steps), None)
    else:
        bounds = first_that_goes(len(steps), lambda count: goes(steps[count - 1]))
        found = (
            None if bounds is None else steps[boundary(*bounds, lambda count: goes(steps[count - 1]))[1] - 1]
        )
    if found is None or (found - 1 > record.priority and goes(found - 1)):
        return None
    return found


def _steps(world: World, record: Record) -> Iterator[int]:
    """The priorities at which the gang is as urgent as another one, or more urgent, or not preemptible any more."""
    rise = ordering.effective_priority(record, world.now) - record.priority
    levels = [
        floor(ordering.effective_priority(each, world.now) - rise)
        for each in world.pending
        if each.uid != record.uid
    ]
    levels += [each.active.record.priority for each in world.running if each.active is not None]
    for level in levels:
        yield from (level, level + 1)
    for queue in world.queues or ():
        if queue.preemptible_below is not None:
            yield queue.preemptible_below
