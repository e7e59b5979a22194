"""The check of placements before their commit: a cycle over a long queue takes seconds, and clusters change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from dispatcher.core.model.gang import Assignment
from dispatcher.core.scheduling.cycle.outcomes import Placed
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot, rejection, required
from dispatcher.core.scheduling.fit.fit import fit


def still_fitting(placed: Iterable[Placed], snapshots: Mapping[str, ClusterSnapshot]) -> list[Placed]:
    """The placements that still fit their clusters, in order, with their present assignments.

    Their demand is taken from `snapshots`. The next cycle decides on the other gangs. On the hub alone, cluster
    requirements do not count.
    """
    found = []
    for each in placed:
        snapshot, gang = snapshots.get(each.cluster), each.record.gang
        requirements = required(each.record.requirements, snapshots)
        if snapshot is None or rejection(requirements, snapshot) is not None:
            continue
        if each.assignment.provisioning is not None:
            found.append(each)  # it needs no room
            continue
        assignment = fit(gang, snapshot.capacity)
        if isinstance(assignment, Assignment):
            snapshot.capacity.take(gang, assignment)
            found.append(replace(each, assignment=assignment))
    return found
