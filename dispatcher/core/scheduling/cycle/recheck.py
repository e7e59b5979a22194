"""The check of decisions before their commit: a cycle over a long queue takes seconds, and clusters change.

Each decision is checked by itself: an exception about one gang leaves out its decision, and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from dispatcher.core.model.gangs.gang import Assignment
from dispatcher.core.model.records.failures import Failure
from dispatcher.core.model.records.record import Record
from dispatcher.core.scheduling.cycle.outcomes import Placed
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot, rejection, required
from dispatcher.core.scheduling.fit.fit import fit


class Decision(Protocol):
    """A decision about one gang."""

    @property
    def record(self) -> Record:
        """The record of the gang."""


D = TypeVar("D", bound=Decision)


class Rechecked(NamedTuple, Generic[D]):
    """The decisions that still hold, in order, and the exceptions about other gangs, whose decisions are left out."""

    found: list[D]
    failures: list[Failure]


def rechecked(decisions: Iterable[D], again: Callable[[D], D | None]) -> Rechecked[D]:
    """The decisions as they are `again`, None if one does not hold any more.

    One that raises may have taken a part of its room, which is missing for those behind it until the next cycle.
    """
    found, failures = list[D](), list[Failure]()
    for each in decisions:
        try:
            present = again(each)
        except Exception as error:  # noqa: BLE001  # one gang must not end the check of the others
            failures.append(Failure.of(each.record.uid, error))
        else:
            found += [] if present is None else [present]
    return Rechecked(found, failures)


def still_fitting(placed: Iterable[Placed], snapshots: Mapping[str, ClusterSnapshot]) -> Rechecked[Placed]:
    """The placements that still fit their clusters, in order, with their present assignments.

    Their demand is taken from `snapshots`. The next cycle decides on the other gangs. On the hub alone, cluster
    requirements do not count.
    """
    return rechecked(placed, lambda each: _placed_again(each, snapshots))


def _placed_again(placed: Placed, snapshots: Mapping[str, ClusterSnapshot]) -> Placed | None:
    snapshot, gang = snapshots.get(placed.cluster), placed.record.gang
    requirements = required(placed.record.requirements, snapshots)
    if snapshot is None or rejection(requirements, snapshot) is not None:
        return None
    if placed.assignment.provisioning is not None:
        return placed  # it needs no room
    assignment = fit(gang, snapshot.capacity)
    if not isinstance(assignment, Assignment):
        return None
    snapshot.capacity.take(gang, assignment)
    return replace(placed, assignment=assignment)
