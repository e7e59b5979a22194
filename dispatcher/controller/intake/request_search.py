"""Finds the request for capacity of an attempt that a cluster has and the database lacks.

After a restore, or with a new database, an attempt goes on that may wait for requested capacity. Without its request it
would be created before the capacity is there, and the request would outlive the attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct

from dispatcher import errors
from dispatcher.api.appwrapper import WrappedObject
from dispatcher.api.provisioning import ProvisioningClass
from dispatcher.controller.members.cluster import Cluster
from dispatcher.core.kinds.manifest import Owner
from dispatcher.core.kinds.provisioning_request import API_VERSION, KIND
from dispatcher.core.lifecycle.provisioning import recovered
from dispatcher.core.model.gang import Gang
from dispatcher.core.model.provisioning import Provisioning
from dispatcher.core.model.requirements import Kind
from dispatcher.kube.object_client import Mark

REQUEST_KIND: Final[Kind] = (API_VERSION, KIND)

ClassOf = Callable[[Gang, Iterable[str], str], ProvisioningClass | None]
"""The class from which a gang in these queues requests its capacity in the cluster of that name; None without one."""


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
    cluster: Cluster, attempt: UnknownAttempt, class_of: ClassOf, now: datetime
) -> Provisioning | None:
    """The request for capacity with which the attempt goes on; None if it needs none. Raises `ClusterError`."""
    found = await cluster.object_client.request_of(attempt.owner)
    declared = class_of(attempt.gang, attempt.queues, cluster.name)
    if found is None and declared is None:
        return None
    has_objects = await _has_objects(cluster, attempt)
    return recovered(found, declared, has_objects, cluster.name, now)


async def _has_objects(cluster: Cluster, attempt: UnknownAttempt) -> bool:
    """True if the cluster has a wrapped object that this attempt has created."""
    for wrapped in attempt.wrapped:
        try:
            mark = await cluster.object_client.mark_of(wrapped, attempt.owner)
        except errors.Forbidden:
            continue  # without the right to read such objects, the dispatcher has created none
        if mark is not None and mark.attempt == attempt.owner.attempt and attempt.believes(mark):
            return True
    return False
