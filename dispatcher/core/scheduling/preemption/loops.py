"""Circles of preemptions: a gang was preempted for another one, that one for a third, and so back to the first.

The rules exclude circles of two gangs in one tree, and the bound on preemptions ends longer ones. A report of the
circles names the gangs whose queues should be looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Preempted(NamedTuple):
    """A gang, and the gang for which it was preempted, both by uid; `key` is `namespace/name` of the first."""

    victim: str
    preemptor: str
    key: str


Circle = tuple[Preempted, ...]
"""Preemptions, each of the gang for which the one before was preempted; the last is for the victim of the first."""


def by_victim(preemptions: Iterable[Preempted]) -> dict[str, list[Preempted]]:
    """The preemptions of each gang, by uid, in order."""
    found: dict[str, list[Preempted]] = {}
    for each in preemptions:
        found.setdefault(each.victim, []).append(each)
    return found


def closed_circle(victim: str, preemptor: str, preemptions: Mapping[str, Sequence[Preempted]]) -> Circle:
    """The shortest circle that begins with the preemption of `victim` for `preemptor`; empty if there is none.

    `preemptions` are by victim, and that one is among them. Growth: O(preemptions).
    """
    first = next((each for each in preemptions.get(victim, ()) if each.preemptor == preemptor), None)
    if first is None:
        return ()
    before = {preemptor: first}
    reached = deque([preemptor])
    while reached and victim not in before:
        for each in preemptions.get(reached.popleft(), ()):
            if each.preemptor not in before:
                before[each.preemptor] = each
                reached.append(each.preemptor)
    return _way(victim, before) if victim in before else ()


def _way(victim: str, before: Mapping[str, Preempted]) -> Circle:
    """The preemptions on the way from a gang back to itself; `before` has the preemption that leads to each gang."""
    found = [before[victim]]
    while found[-1].victim != victim:
        found.append(before[found[-1].victim])
    return tuple(reversed(found))
