"""Circles of preemptions: a gang was preempted for another one, that one for a third, and so back to the first.

The rules exclude circles of two gangs in one tree, and the bound on preemptions ends longer ones. A report of the
circles names the gangs whose queues should be looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

WINDOW: Final = timedelta(hours=24)
"""The age up to which preemptions count."""


class Preempted(NamedTuple):
    """A gang, the gang for which it was preempted (by uid), and when."""

    victim: str
    preemptor: str
    at: datetime


Circle = tuple[str, ...]
"""The uids of gangs, each preempted for the next and the last for the first; the circle begins with the lowest."""


def circles(preemptions: Iterable[Preempted], now: datetime) -> list[Circle]:
    """The shortest circle through each gang that is in one, each circle once, in order.

    Growth: O(gangs in circles x preemptions among them).
    """
    later = _preemptors(each for each in preemptions if now - each.at <= WINDOW)
    found = {_rotated(circle) for victim in later if (circle := _shortest(victim, later))}
    return sorted(found)


def _preemptors(preemptions: Iterable[Preempted]) -> dict[str, list[str]]:
    """The preemptors of each victim, without the gangs that cannot be in a circle: those that were never preempted."""
    found: dict[str, dict[str, None]] = {}
    for victim, preemptor, _ in preemptions:
        found.setdefault(victim, {})[preemptor] = None
    victims_of: dict[str, list[str]] = {}
    for victim, preemptors in found.items():
        for preemptor in preemptors:
            victims_of.setdefault(preemptor, []).append(victim)
    outside = deque(name for name in victims_of if name not in found)
    while outside:
        preemptor = outside.popleft()
        for victim in victims_of.get(preemptor, ()):
            del found[victim][preemptor]
            if not found[victim]:
                del found[victim]
                outside.append(victim)
    return {victim: sorted(preemptors) for victim, preemptors in found.items()}


def _shortest(start: str, later: Mapping[str, list[str]]) -> Circle:
    """The shortest circle through a gang; empty if there is none."""
    before: dict[str, str] = {}
    reached = deque([start])
    while reached:
        victim = reached.popleft()
        for preemptor in later[victim]:
            if preemptor == start:
                return _way(victim, before)
            if preemptor not in before:
                before[preemptor] = victim
                reached.append(preemptor)
    return ()


def _way(last: str, before: Mapping[str, str]) -> Circle:
    """The gangs on the way to the last one."""
    found = [last]
    while found[-1] in before:
        found.append(before[found[-1]])
    return tuple(reversed(found))


def _rotated(circle: Circle) -> Circle:
    first = circle.index(min(circle))
    return (*circle[first:], *circle[:first])
