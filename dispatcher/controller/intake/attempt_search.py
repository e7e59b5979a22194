"""Finds what clusters have of AppWrappers without a record, or of attempts that the database lacks.

A member lists its anchors, the hub the requests for capacity, which an attempt has before any wrapped object. One list
answers for all new AppWrappers of a round, whatever they wrap. All clusters are asked at once, each with its timeout.
An AppWrapper with a forged finalizer costs its share of that list, and delays no AppWrapper without a finalizer.

After a restore, or with a new database, an attempt goes on that may wait for requested capacity. Without its request it
would be created before the capacity is there, and the request would outlive the attempt.

`Adoption` finds the cluster in which a new AppWrapper runs already: under an earlier database, or by MCAD. What the
clusters have is only a reason to search. An object counts if it proves an attempt: by its seal, or because the
AppWrapper is older than the key of the database (`core.model.seals`). Otherwise anybody could have a new AppWrapper
adopted, past its queue and all approvals, with a pod that names it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher import errors, log
from dispatcher.api.appwrapper import AppWrapperSpec, WrappedObject
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.controller.intake.attempt_context import AttemptContext, ClassOf
from dispatcher.controller.intake.specs import owner_of_new
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.core.intake.status_end import end_in_status
from dispatcher.core.kinds.manifest import Owner
from dispatcher.core.kinds.provisioning_request import API_VERSION, KIND
from dispatcher.core.lifecycle.provisioning import recovered
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.provisioning import Provisioning
from dispatcher.core.model.records.requirements import Kind
from dispatcher.kube.objects.appwrappers import AppWrapperView
from dispatcher.kube.objects.object_client import Mark

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
    clusters: Mapping[str, WatchedCluster], uids: Collection[str], on_hub: Collection[str], believes: Believes
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
    cluster: WatchedCluster,
    clusters: Mapping[str, WatchedCluster],
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


async def _ask_hub(
    hub: WatchedCluster, uids: frozenset[str], believes: Believes, found: FoundAttempts
) -> None:
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


REQUEST_KIND: Final[Kind] = (API_VERSION, KIND)


class UnknownAttempt(Struct, frozen=True):
    """An attempt that the database lacks: the owner that its objects bear, and its gang.

    `believes` says whether an object's mark proves an attempt.
    """

    owner: Owner
    gang: Gang
    queues: Sequence[str]
    wrapped: Sequence[WrappedObject]
    believes: Callable[[Mark], bool]


async def find_request(
    cluster: WatchedCluster, attempt: UnknownAttempt, class_of: ClassOf, now: datetime
) -> Provisioning | None:
    """The request for capacity with which the attempt goes on; None if it needs none. Raises `ClusterError`."""
    found = await cluster.object_client.request_of(attempt.owner)
    declared = class_of(attempt.gang, attempt.queues, cluster.name)
    if found is None and declared is None:
        return None
    has_objects = await _has_objects(cluster, attempt)
    return recovered(found, declared, has_objects, cluster.name, now)


async def _has_objects(cluster: WatchedCluster, attempt: UnknownAttempt) -> bool:
    """True if the cluster has a wrapped object that this attempt has created."""
    for wrapped in attempt.wrapped:
        try:
            mark = await cluster.object_client.mark_of(wrapped, attempt.owner)
        except errors.Forbidden:
            continue  # without the right to read such objects, the dispatcher has created none
        if mark is not None and mark.attempt == attempt.owner.attempt and attempt.believes(mark):
            return True
    return False


class Adoption:
    """Asks the clusters; `is_complete` is true if every cluster is known for certain and can be searched."""

    def __init__(self, context: AttemptContext, is_complete: Callable[[], bool]) -> None:
        self._context = context
        self._clusters = context.clusters
        self._hub_id = context.hub_id
        self._class_of = context.class_of
        self._now = context.now
        self._is_complete = is_complete

    def may_run(self, view: AppWrapperView) -> bool:
        """True if a cluster may have objects of the AppWrapper: a search comes before its intake."""
        if end_in_status(view.status) is not None and not view.deleting:
            return False
        runs = any(cluster.pod_counts(view.uid).live for cluster in self._clusters.values())
        return view.has_finalizer or bool(view.status.get("canrun")) or runs

    async def search(self, views: Sequence[AppWrapperView]) -> FoundAttempts:
        """Ask every member for attempts of these AppWrappers, and the hub for their requests for capacity.

        The hub is not asked for AppWrappers without a status: they were never dispatched there.
        """
        are_all_asked = self._is_complete()
        on_hub = {view.uid for view in views if view.status}
        created = {view.uid: view.created_at for view in views}

        def believes(mark: Mark) -> bool:
            return self._context.believes(mark, created[mark.appwrapper])

        found = await search(self._clusters, created, on_hub, believes)
        found.are_complete &= are_all_asked
        return found

    async def find(
        self, view: AppWrapperView, spec: AppWrapperSpec, found_attempts: FoundAttempts
    ) -> FoundAttempt | None:
        """The latest attempt of a new AppWrapper that has objects, and its cluster; None if none has."""
        found = [found_attempts.latest[view.uid]] if view.uid in found_attempts.latest else []
        if found_attempts.requested is None:
            raise errors.Unavailable("the hub may have a request for its capacity, and did not answer")
        requested = found_attempts.requested.get((view.namespace, view.uid))
        attempt = max(filter(None, (await self._attempt_on_hub(view, spec), requested)), default=None)
        if attempt is not None:
            found.append(FoundAttempt(attempt, HUB_CLUSTER))
        latest = max(found, default=None)
        # The latest attempt is in the cluster that the status names, or in a cluster that cannot be asked.
        is_certain = latest is not None and latest.cluster == view.status.get("cluster")
        if (
            view.has_finalizer
            and not is_certain
            and not (found_attempts.are_complete and self._is_complete())
        ):
            raise errors.Unavailable(
                "a member cluster may have objects of it, and not every member is known and can be asked now"
            )
        return latest

    async def request_of(
        self,
        view: AppWrapperView,
        spec: AppWrapperSpec,
        queues: Sequence[str],
        gang: Gang,
        found: FoundAttempt,
    ) -> Provisioning | None:
        """The request for capacity of the attempt that was found; None if it needs none."""
        cluster = self._clusters.get(found.cluster)
        if cluster is None:
            raise errors.Unavailable(f"cluster {found.cluster} was lost after it was searched")
        owner = replace(owner_of_new(view, self._hub_id), attempt=found.attempt)
        attempt = UnknownAttempt(
            owner, gang, queues, spec.wrapped, lambda mark: self._context.believes(mark, view.created_at)
        )
        return await find_request(cluster, attempt, self._class_of, self._now())

    async def _attempt_on_hub(self, view: AppWrapperView, spec: AppWrapperSpec) -> int | None:
        """The number of the latest attempt that created an object on the hub; None if none did.

        An AppWrapper without a status was never dispatched there, whatever its finalizers: the hub is not asked.
        """
        hub = self._clusters.get(HUB_CLUSTER)
        if hub is None or not (view.status or hub.pod_counts(view.uid).live):
            return None
        marks = []
        for wrapped in spec.wrapped:
            # A hub that takes no gangs itself grants no right to read objects, and has none of ours.
            with contextlib.suppress(errors.Forbidden):
                marks.append(await hub.object_client.mark_of(wrapped, owner_of_new(view, self._hub_id)))
        proven = (each for each in marks if each and self._context.believes(each, view.created_at))
        return max((each.attempt for each in proven), default=None)
