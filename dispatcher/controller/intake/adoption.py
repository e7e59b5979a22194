"""Finds the cluster in which a new AppWrapper runs already: under an earlier database, or by MCAD.

What the clusters have is only a reason to search. An object counts if it proves an attempt: by its seal, or because the
AppWrapper is older than the key of the database (`core.model.seals`). Otherwise anybody could have a new AppWrapper
adopted, past its queue and all approvals, with a pod that names it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from dispatcher import errors
from dispatcher.api.appwrapper import AppWrapperSpec
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.controller.intake.anchor_search import FoundAttempt, FoundAttempts, search
from dispatcher.controller.intake.attempts import Attempts
from dispatcher.controller.intake.request_search import UnknownAttempt, find_request
from dispatcher.controller.intake.specs import owner_of_new
from dispatcher.core.intake.status_end import end_in_status
from dispatcher.core.model.gang import Gang
from dispatcher.core.model.provisioning import Provisioning
from dispatcher.kube.appwrappers import AppWrapperView
from dispatcher.kube.object_client import Mark


class Adoption:
    """Asks the clusters; `is_complete` is true if every cluster is known for certain and can be searched."""

    def __init__(self, attempts: Attempts, is_complete: Callable[[], bool]) -> None:
        self._attempts = attempts
        self._clusters = attempts.clusters
        self._hub_id = attempts.hub_id
        self._class_of = attempts.class_of
        self._now = attempts.now
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
            return self._attempts.believes(mark, created[mark.appwrapper])

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
            owner, gang, queues, spec.wrapped, lambda mark: self._attempts.believes(mark, view.created_at)
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
        proven = (each for each in marks if each and self._attempts.believes(each, view.created_at))
        return max((each.attempt for each in proven), default=None)
