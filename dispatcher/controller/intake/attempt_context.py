"""The current attempt of a gang: its cluster, its objects, their owner and the lifecycle policy of the gang."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from dispatcher.api.clusters.provisioning import ProvisioningClass
from dispatcher.controller.intake.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.intake.specs import Specs, owner_of
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.members.potential_trust import PoolsFailed
from dispatcher.core.kinds.manifest import Owner, reference
from dispatcher.core.kinds.provisioning_request import refs_of
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.lifecycle.step import Loss
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.record import ObjectRef, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.seals import Seals
from dispatcher.kube.objects.object_client import Mark

ClassOf = Callable[[Gang, Iterable[str], str], ProvisioningClass | None]
"""The class from which a gang in these queues requests its capacity in the cluster of that name; None without one."""


class Members(Struct, frozen=True):
    """The state of clusters in the fleet, by name."""

    is_connecting: Callable[[str], bool]
    loss_of: Callable[[str], Loss | None]
    has_no_cluster_left: Callable[[ClusterRequirements], bool]
    note_error: Callable[[str, str], None]
    """Notes an error of a cluster at a gang of a namespace."""
    provides_elsewhere: Callable[[Record, ClusterRequirements], bool]
    """True if a cluster that may take a gang with these requirements provides its capacity on request."""
    bind_within_of: Callable[[str], timedelta]
    """The time in which the pods of a gang on trust must have nodes."""
    note_pools_failed: Callable[[PoolsFailed], Awaitable[None]]
    """Notes that the nodes of these pools did not come in that time. Raises `StoreError`."""
    note_pools_came: Callable[[str, Collection[str]], Awaitable[None]]
    """Notes that the nodes of these pools came. Raises `StoreError`."""


class AttemptContext(Struct, frozen=True):
    """Answers questions about attempts, from the caches, and from the database where a spec is not in memory."""

    informer: AppWrapperInformer
    clusters: Mapping[str, WatchedCluster]
    specs: Specs
    hub_id: str
    now: Callable[[], datetime]
    class_of: ClassOf
    seals: Seals

    def believes(self, mark: Mark, created_at: datetime) -> bool:
        """True if an object with this mark proves its attempt; `created_at` is the age of the AppWrapper."""
        return self.seals.vouch_for(mark.appwrapper, mark.attempt, mark.seal, created_at)

    def cluster_of(self, record: Record | None) -> WatchedCluster | None:
        """The cluster that has objects of the AppWrapper; None if none has, or it is not connected."""
        if record is None or record.attempt is None:
            return None
        return self.clusters.get(record.attempt.cluster) if record.has_objects else None

    def owner_of(self, record: Record) -> Owner:
        """The owner that the objects of the attempt bear."""
        return owner_of(record, self.hub_id, self.seals)

    def is_wanted(self, record: Record) -> bool:
        """False once the AppWrapper is gone or being deleted, as far as the watch shows."""
        view = self.informer.view(record.uid)
        return view is not None and not view.deleting

    async def refs(self, record: Record) -> list[ObjectRef]:
        """Every object that the attempt may have created: with its uid where the API server's answer was committed."""
        known = {ref.item: ref for ref in record.attempt.objects} if record.attempt else {}
        if not record.spec_hash:
            return [
                *refs_of(record),
                *known.values(),
            ]  # the database has no spec of it, and the record names all objects
        spec, owner = await self.specs.of(record), self.owner_of(record)
        wrapped = [known.get(wrapped.index, reference(wrapped, owner)) for wrapped in spec.wrapped]
        return [*refs_of(record), *wrapped]

    async def policy_of(self, record: Record) -> LifecyclePolicy:
        """The lifecycle policy of a dispatched gang.

        An AppWrapper that was deleted before our watch began counts as one without annotations.
        """
        return await self.specs.policy_of(record, self.informer.tolerance(record.uid))
