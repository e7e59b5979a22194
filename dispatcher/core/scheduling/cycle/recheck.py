"""The check of decisions before their commit: a cycle over a long queue takes seconds, and clusters change.

Each decision is checked by itself: an exception about one gang leaves out its decision, and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from dispatcher.api.selector import EVERYTHING
from dispatcher.core.model.gangs.gang import Assignment
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.failures import Failure
from dispatcher.core.model.records.record import Record
from dispatcher.core.queues.forest import Forest
from dispatcher.core.scheduling.cycle.outcomes import Placed
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot, has_members, rejection, required
from dispatcher.core.scheduling.fit.fit import fit, fits
from dispatcher.core.scheduling.fit.search_budget import steps_so_far

STEPS_OF_ROOM: Final = 1000
"""Steps of the searches for room that came for one preemptor; the last question may go beyond them."""


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


def has_new_room(
    record: Record,
    forest: Forest,
    before: Mapping[str, ClusterSnapshot],
    snapshots: Mapping[str, ClusterSnapshot],
) -> Steps[bool]:
    """True if a gang fits a cluster of its queues now that had no room for it `before`; in steps of a cluster.

    Where there was room before, the plan had another reason to leave it, such as quota or a reservation, and that
    reason may stay. A gang whose queues request its capacity needs no room. Once its searches have taken
    `STEPS_OF_ROOM`, the clusters that are left are not asked about, and count as without new room.
    """
    if forest.class_of(record.leaves, record.gang) is not None:
        return False
    selected = forest.clusters_of(record.leaves) if has_members(snapshots) else EVERYTHING
    changed = [name for name, each in snapshots.items() if each != before.get(name)]
    spent_before = steps_so_far(snapshots.values())
    for name in changed:
        yield
        if steps_so_far(snapshots.values()) - spent_before >= STEPS_OF_ROOM:
            return False
        if not selected.matches(snapshots[name].labels):
            continue
        if _fits(record, name, snapshots) and not _fits(record, name, before):
            return True
    return False


def _fits(record: Record, cluster: str, snapshots: Mapping[str, ClusterSnapshot]) -> bool:
    snapshot = _accepting(record, cluster, snapshots)
    return snapshot is not None and fits(record.gang, snapshot.capacity)


def _accepting(
    record: Record, cluster: str, snapshots: Mapping[str, ClusterSnapshot]
) -> ClusterSnapshot | None:
    """The snapshot of a cluster, if it accepts the requirements of a gang."""
    snapshot = snapshots.get(cluster)
    if snapshot is None or rejection(required(record.requirements, snapshots), snapshot) is not None:
        return None
    return snapshot


def _placed_again(placed: Placed, snapshots: Mapping[str, ClusterSnapshot]) -> Placed | None:
    snapshot, gang = _accepting(placed.record, placed.cluster, snapshots), placed.record.gang
    if snapshot is None:
        return None
    if placed.assignment.provisioning is not None:
        return placed  # it needs no room
    assignment = fit(gang, snapshot.capacity)
    if not isinstance(assignment, Assignment):
        return None
    snapshot.capacity.take(gang, assignment)
    return replace(placed, assignment=assignment)
