"""Does what was decided still hold: a plan over a long queue takes seconds, and clusters change meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dispatcher.api.names import HUB_CLUSTER
from dispatcher.core.model.requirements import ANYWHERE
from dispatcher.core.scheduling.cluster_filters import ClusterSnapshot, rejection
from dispatcher.core.scheduling.cycle import Placed


def still_fitting(placed: Iterable[Placed], snapshots: Mapping[str, ClusterSnapshot]) -> list[Placed]:
    """Those that their cluster takes still, in order, all of them at once; `snapshots` are used up by them.

    The others are for the next cycle to decide. On the hub alone nothing that is required of a cluster matters.
    """
    found = []
    for each in placed:
        snapshot, gang = snapshots.get(each.cluster), each.record.gang
        requirements = each.record.requirements if snapshots.keys() != {HUB_CLUSTER} else ANYWHERE
        if snapshot is None or rejection(requirements, snapshot) is not None:
            continue
        if gang.demand.fits_in(snapshot.capacity.free_for(gang)):
            snapshot.capacity.take(gang.demand)
            found.append(each)
    return found
