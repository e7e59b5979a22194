"""Surplus: the pods of a running gang that can be taken from it, so that the gang itself is not preempted.

A gang that grows by grants has surplus pods: admitted pods beyond its base gang. A cycle sees such a gang as parts: one
for each surplus pod, and the rest. A search for victims takes parts as it takes gangs. What the gang gives up already
is leaving: the pods, and the charge of those that are gone until the gang is charged anew.

Each part has what its removal frees at least, if the pods go in their order: a demand may be declared larger than the
requests of its pods, and then the last surplus pods free less than they request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from dispatcher.core.model.growth import PodRef, Shrinking, SurplusPod
from dispatcher.core.model.record import Record
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, Part


@dataclass(frozen=True, slots=True)
class Surplus:
    """The surplus pods of one gang, the first to go first; `admitted` are the requests of all its admitted pods."""

    admitted: Resources
    pods: tuple[SurplusPod, ...]


NO_SURPLUS: Final = Surplus(NOTHING, ())


class GivenUp(NamedTuple):
    """The pods that a gang gives up, and the amounts that it keeps beyond its demand."""

    pods: tuple[PodRef, ...]
    growth: Resources


def in_parts(gangs: Iterable[ActiveGang], surplus: Mapping[str, Surplus]) -> list[ActiveGang]:
    """These gangs; those with surplus (by uid) in parts, the surplus pods first, in the order in which they go."""
    found: list[ActiveGang] = []
    for gang in gangs:
        known = surplus.get(gang.uid, NO_SURPLUS)
        if gang.is_leaving or gang.is_fixed or not (known.pods or _shrinking(gang.record)):
            found.append(gang)
        else:
            found += _parts(gang, known)
    return found


def _shrinking(record: Record) -> Shrinking | None:
    return record.attempt.shrinking if record.attempt else None


def _parts(gang: ActiveGang, surplus: Surplus) -> list[ActiveGang]:
    leaving = {pod.uid for pod in shrinking.pods} if (shrinking := _shrinking(gang.record)) else frozenset()
    rest = _Rest(gang.record, surplus.admitted)
    found = [
        replace(gang, part=rest.without(pod), is_leaving=True) for pod in surplus.pods if pod.uid in leaving
    ]
    if gone := rest.without_gone():
        found.append(replace(gang, part=gone, is_leaving=True))
    others = (rest.without(pod) for pod in surplus.pods if pod.uid not in leaving)
    found += [replace(gang, part=part) for part in others if part.charge or part.held]
    return [*found, replace(gang, part=Part(rest.charge, rest.held))] if found else [gang]


class _Rest:
    """What is left of a gang while its surplus pods are taken from it one by one."""

    def __init__(self, record: Record, admitted: Resources) -> None:
        self._record = record
        self._admitted = admitted
        self._taken = record.held.highest(admitted)
        self.charge, self.held = record.charge, record.held

    def without(self, pod: SurplusPod) -> Part:
        """The part of one more pod."""
        placed = self._record.placed_gang.demand
        admitted, self._admitted = self._admitted, self._admitted - pod.requests
        self._taken -= placed.highest(admitted) - placed.highest(self._admitted)
        held = (self.held - placed.highest(self._taken)).positive_part()
        self.held -= held
        return Part(self._charge_freed(self._taken), held, pod.uid, pod)

    def without_gone(self) -> Part | None:
        """The charge that is left of given up pods that are gone, None if there is none; their room is free."""
        if _shrinking(self._record) is None:
            return None
        charge = self._charge_freed(self._record.allowed)
        self._taken = self._record.allowed.highest(self._admitted)
        self.held = self._record.placed_gang.demand.highest(self._taken)
        return Part(charge, NOTHING, "gone") if charge else None

    def _charge_freed(self, held: Resources) -> Resources:
        freed = (self.charge - self._record.gang.demand.highest(held)).positive_part()
        self.charge -= freed
        return freed


def by_gang(gangs: Iterable[ActiveGang]) -> dict[str, list[ActiveGang]]:
    """The parts of each gang that is there in parts, by the uid of its AppWrapper."""
    found: dict[str, list[ActiveGang]] = {}
    for gang in gangs:
        if gang.part is not None:
            found.setdefault(gang.record.uid, []).append(gang)
    return found


def with_surplus(taken: Iterable[ActiveGang], parts: Mapping[str, Iterable[ActiveGang]]) -> list[ActiveGang]:
    """What is taken, and with each gang its surplus pods that do not leave yet."""
    found = {gang.uid: gang for gang in taken}
    for gang in list(found.values()):
        if not gang.is_surplus:
            more = (each for each in parts.get(gang.record.uid, ()) if not each.is_leaving)
            found |= {each.uid: each for each in more}
    return list(found.values())


def given_up(record: Record, parts: Iterable[ActiveGang]) -> GivenUp:
    """What a gang gives up with these surplus parts, and with those that it gives up already."""
    shrinking = _shrinking(record)
    pods, growth = (shrinking.pods, shrinking.growth) if shrinking else ((), record.grown)
    for gang in parts:
        part = gang.part
        if part is not None and part.pod is not None:
            pods = (*pods, PodRef(part.pod.namespace, part.pod.name, part.pod.uid))
            growth = (growth - part.held).positive_part()
    return GivenUp(pods, growth)
