"""Surplus: the pods of a running gang that can be taken from it, so that the gang itself is not preempted.

A gang that grows by grants has surplus pods: admitted pods beyond its base gang. A cycle sees such a gang as parts: one
for each surplus pod, and the rest. A search for victims takes parts as it takes gangs. The part of a pod that the gang
gives up already is leaving.

Each part has what its removal frees at least, if the pods go in their order: a demand may be declared larger than the
requests of its pods, and then the last surplus pods free less than they request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from dispatcher.core.model.growth import PodRef, SurplusPod
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
        known = surplus.get(gang.uid)
        if known is None or gang.is_leaving or gang.is_fixed:
            found.append(gang)
        else:
            found += _parts(gang, known)
    return found


def _parts(gang: ActiveGang, surplus: Surplus) -> list[ActiveGang]:
    record, shrinking = gang.record, gang.record.attempt.shrinking if gang.record.attempt else None
    leaving = {pod.uid for pod in shrinking.pods} if shrinking else set()
    charge, held = record.charge, record.held
    left = record.held.highest(surplus.admitted)
    admitted, placed = surplus.admitted, record.placed_gang.demand
    found = []
    for pod in sorted(surplus.pods, key=lambda each: each.uid not in leaving):
        freed = placed.highest(admitted) - placed.highest(admitted - pod.requests)
        admitted, left = admitted - pod.requests, left - freed
        of_charge = (charge - record.gang.demand.highest(left)).positive_part()
        of_held = (held - placed.highest(left)).positive_part()
        if not of_charge and not of_held:
            continue
        charge, held = charge - of_charge, held - of_held
        part = Part(of_charge, of_held, pod)
        found.append(replace(gang, part=part, is_leaving=pod.uid in leaving))
    return [*found, replace(gang, part=Part(charge, held))] if found else [gang]


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
    shrinking = record.attempt.shrinking if record.attempt else None
    pods, growth = (shrinking.pods, shrinking.growth) if shrinking else ((), record.grown)
    for gang in parts:
        part = gang.part
        if part is not None and part.pod is not None:
            pods = (*pods, PodRef(part.pod.namespace, part.pod.name, part.pod.uid))
            growth = (growth - part.held).positive_part()
    return GivenUp(pods, growth)
