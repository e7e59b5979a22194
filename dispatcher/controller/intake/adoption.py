"""Finds the cluster in which a new AppWrapper runs already: under an earlier database, or by MCAD."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping

from dispatcher import errors
from dispatcher.api.appwrapper import AppWrapperSpec
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.controller.intake.anchor_search import FoundAttempt, FoundAttempts, search
from dispatcher.controller.intake.specs import owner_of_new
from dispatcher.controller.members.cluster import Cluster
from dispatcher.core.intake.status_end import end_in_status
from dispatcher.kube.appwrappers import AppWrapperView


class Adoption:
    """Asks the clusters; `is_complete` is true if every cluster is known for certain and can be searched."""

    def __init__(self, clusters: Mapping[str, Cluster], hub_id: str, is_complete: Callable[[], bool]) -> None:
        self._clusters = clusters
        self._hub_id = hub_id
        self._is_complete = is_complete

    def may_run(self, view: AppWrapperView) -> bool:
        """True if a cluster may have objects of the AppWrapper: a search comes before its intake."""
        if end_in_status(view.status) is not None and not view.deleting:
            return False
        runs = any(cluster.pod_counts(view.uid).live for cluster in self._clusters.values())
        return view.has_finalizer or bool(view.status.get("canrun")) or runs

    async def search(self, uids: Collection[str]) -> FoundAttempts:
        """Ask every member for attempts of these AppWrappers."""
        are_all_asked = self._is_complete()
        found = await search(self._clusters, uids)
        found.are_complete &= are_all_asked
        return found

    async def find(
        self, view: AppWrapperView, spec: AppWrapperSpec, found_attempts: FoundAttempts
    ) -> tuple[str, int] | None:
        """The cluster that has objects of a new AppWrapper, and the number of their last attempt; None if none has."""
        found = [found_attempts.latest[view.uid]] if view.uid in found_attempts.latest else []
        attempt = await self._attempt_on_hub(view, spec)
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
        return (latest.cluster, latest.attempt) if latest else None

    async def _attempt_on_hub(self, view: AppWrapperView, spec: AppWrapperSpec) -> int | None:
        """The number of the latest attempt that created an object on the hub; None if none did.

        An AppWrapper without a status was never dispatched there, whatever its finalizers: the hub is not asked.
        """
        hub = self._clusters.get(HUB_CLUSTER)
        if hub is None or not (view.status or hub.pod_counts(view.uid).live):
            return None
        attempts = []
        for wrapped in spec.wrapped:
            # A hub that takes no gangs itself grants no right to read objects, and has none of ours.
            with contextlib.suppress(errors.Forbidden):
                attempts.append(await hub.object_client.attempt_of(wrapped, owner_of_new(view, self._hub_id)))
        return max((each for each in attempts if each is not None), default=None)
