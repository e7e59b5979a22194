"""Which members have something of AppWrappers that the database does not know: one list of anchors for each member.

A list is for all newcomers of a round, whatever they wrap, and members are asked at the same time, each for a limited
time. Who bears our finalizer by forgery costs its share of that list, and holds up nobody who does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dispatcher import errors, log
from dispatcher.controller.members.cluster import Cluster

SEARCH_SECONDS: Final = 10.0
"""For so long a member may take to list its anchors; that is enough for some ten thousand."""

_log = log.get("anchor_search")


class Sighting(NamedTuple):
    """An attempt that has an anchor in a member; the later of two is the greater."""

    attempt: int
    cluster: str


@dataclass
class Sightings:
    """The latest attempt seen of each AppWrapper by uid; `are_complete` is false if a member did not answer."""

    latest: dict[str, Sighting] = field(default_factory=dict)
    are_complete: bool = True


async def search(clusters: Mapping[str, Cluster], uids: Collection[str]) -> Sightings:
    """Ask every member that can be reached which of the AppWrappers it has an anchor of."""
    found = Sightings()
    members = [each for each in clusters.values() if each.is_member]
    await asyncio.gather(*(_ask(each, clusters, frozenset(uids), found) for each in members))
    return found


async def _ask(
    cluster: Cluster, clusters: Mapping[str, Cluster], uids: frozenset[str], found: Sightings
) -> None:
    try:
        async with asyncio.timeout(SEARCH_SECONDS):
            async for anchor in cluster.anchors.all(uids):
                if anchor.appwrapper in uids:
                    seen = Sighting(anchor.attempt, cluster.name)
                    found.latest[anchor.appwrapper] = max(seen, found.latest.get(anchor.appwrapper, seen))
    except Exception as error:  # noqa: BLE001  # the loop's edge: one member must not end the others
        if isinstance(error, (errors.ClusterError, TimeoutError)):
            _log.warning("not_told", cluster=cluster.name, error=str(error))
        else:
            log.internal_error("anchor_search", error, cluster=cluster.name)
        if clusters.get(cluster.name) is cluster:
            found.are_complete = False  # of one that has left meanwhile it is known that it cannot be asked
