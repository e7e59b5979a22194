"""Finds the clusters that have objects of AppWrappers without a record: one list for each cluster.

A member lists its anchors, the hub the requests for capacity, which an attempt has before any wrapped object. One list
answers for all new AppWrappers of a round, whatever they wrap. All clusters are asked at once, each with its timeout.
An AppWrapper with a forged finalizer costs its share of that list, and delays no AppWrapper without a finalizer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from msgspec import Struct, field

from dispatcher import errors, log
from dispatcher.controller.intake.request_search import REQUEST_KIND
from dispatcher.controller.members.cluster import Cluster
from dispatcher.kube.object_client import Mark

SEARCH_SECONDS: Final = 10.0
"""Timeout of the list of anchors of one member; enough for some ten thousand anchors."""


class FoundAttempt(NamedTuple):
    """An attempt that has an anchor in a member; the later of two attempts is the greater."""

    attempt: int
    cluster: str


class FoundAttempts(Struct):
    """The latest attempt seen of each AppWrapper by uid; `are_complete` is false if a member did not answer.

    `requested` has the latest attempt with a request for capacity on the hub, by namespace and uid: any user can write
    our labels in another namespace. It is None if the hub did not answer.
    """

    latest: dict[str, FoundAttempt] = field(default_factory=dict)
    are_complete: bool = True
    requested: dict[tuple[str, str], int] | None = field(default_factory=dict)


Believes = Callable[[Mark], bool]
"""True if an object with that mark proves an attempt of an AppWrapper that is searched for."""


async def search(
    clusters: Mapping[str, Cluster], uids: Collection[str], on_hub: Collection[str], believes: Believes
) -> FoundAttempts:
    """Ask every connected member for anchors of the AppWrappers, and the hub for the requests of those in `on_hub`."""
    found = FoundAttempts()
    members = [each for each in clusters.values() if each.is_member]
    searches = [_ask(each, clusters, frozenset(uids), believes, found) for each in members]
    if on_hub:
        hubs = [each for each in clusters.values() if not each.is_member]
        searches += [_ask_hub(each, frozenset(on_hub), believes, found) for each in hubs]
    await asyncio.gather(*searches)
    return found


async def _ask(
    cluster: Cluster,
    clusters: Mapping[str, Cluster],
    uids: frozenset[str],
    believes: Believes,
    found: FoundAttempts,
) -> None:
    try:
        async with asyncio.timeout(SEARCH_SECONDS):
            async for anchor in cluster.anchors.all(uids):
                if anchor.appwrapper in uids and believes(anchor.mark):
                    note_found(found.latest, anchor.appwrapper, FoundAttempt(anchor.attempt, cluster.name))
    except Exception as error:  # noqa: BLE001  # the loop's edge: one member must not end the others
        note_unanswered("anchor_search", error, cluster=cluster.name)
        if clusters.get(cluster.name) is cluster:
            found.are_complete = False  # a member that was lost meanwhile is known not to be connected


async def _ask_hub(hub: Cluster, uids: frozenset[str], believes: Believes, found: FoundAttempts) -> None:
    requested: dict[tuple[str, str], int] = {}
    try:
        async with asyncio.timeout(SEARCH_SECONDS):
            async for mark in hub.object_client.marks(*REQUEST_KIND):
                if mark.appwrapper in uids and believes(mark):
                    key = mark.namespace, mark.appwrapper
                    requested[key] = max(mark.attempt, requested.get(key, 0))
    except errors.Forbidden:
        return  # without the right to read requests, the dispatcher has made none
    except Exception as error:  # noqa: BLE001  # the loop's edge: the hub must not end the search of the members
        note_unanswered("anchor_search", error, cluster=hub.name)
        found.requested = None
    else:
        found.requested = requested


def note_found(latest: dict[str, FoundAttempt], appwrapper: str, found: FoundAttempt) -> None:
    """Note an attempt that was found, unless a later one was found before."""
    latest[appwrapper] = max(found, latest.get(appwrapper, found))


def note_unanswered(component: str, error: Exception, **about: str) -> None:
    """Log that a search was not answered; count an internal error if API servers do not cause such an error."""
    if isinstance(error, (errors.ClusterError, TimeoutError)):
        log.get(component).warning("search_unanswered", error=str(error), **about)
    else:
        log.internal_error(component, error, **about)
