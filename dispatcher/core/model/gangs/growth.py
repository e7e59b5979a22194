"""Values of growth: pods that wait for a grant behind a scheduling gate, and pods that a gang gives up."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct

from dispatcher.core.model.clusters.nodes import ANY_NODE
from dispatcher.core.model.clusters.potential import Trusted, trusted_of
from dispatcher.core.model.gangs.gang import Constraint, PodSet
from dispatcher.core.model.resources import Resources

PodsByTemplate = tuple[tuple[str, int], ...]
"""Names of pod templates, in order, with how many pods of each a gang has beyond its base gang; without zeros."""


class PodShape(NamedTuple):
    """What decides where a pod may be: the name of its template, its requests, and its own conditions on nodes.

    `template` is empty where the pod does not name it. `constraint` is None where it is not known: a pod has it while
    it has no node. `apart` are the labels of nodes by which the pod repels others of its template.
    """

    template: str
    requests: Resources
    constraint: Constraint | None = None
    apart: tuple[str, ...] = ()

    @property
    def pod_set(self) -> PodSet:
        """An empty pod set of such pods."""
        tolerations, nodes = self.constraint or ((), ANY_NODE)
        item, _, path = self.template.partition(".")
        number = int(item) if item.isdigit() else 0
        return PodSet(0, self.requests, tolerations, nodes=nodes, apart=self.apart, path=path, item=number)


AGE_UNKNOWN: Final = datetime.max.replace(tzinfo=UTC)
"""Stands for a time that cannot be read: such a pod is the youngest, so it gains nothing."""


def age_in(created_at: str) -> datetime:
    """The time that a cluster wrote as a pod's creation; `AGE_UNKNOWN` if it is no time, or names no zone."""
    try:
        found = datetime.fromisoformat(created_at)
        return found.astimezone(UTC) if found.tzinfo else AGE_UNKNOWN
    except (ValueError, OverflowError):
        return AGE_UNKNOWN


class GatedPod(Struct, frozen=True):
    """A live pod with the dispatcher's gate, of an AppWrapper; it has no node.

    `created_at` is its creationTimestamp as the API server wrote it: in UTC and of fixed width, so it sorts by age.
    A pod `is_base` if it belongs to the gang as it was dispatched, and not to a growth. Of its `template`, `beyond`
    pods more than the base gang has are admitted.

    With a `slice`, it is one of the `hosts` of that: the hosts of a slice are granted and admitted together, once all
    are there. To be whole, the slice needs `missing` gated pods.
    """

    namespace: str
    name: str
    uid: str
    requests: Resources
    created_at: str
    is_base: bool = False
    template: str = ""
    constraint: Constraint | None = None
    beyond: int = 0
    slice: str = ""
    missing: int = 1
    hosts: int = 1
    apart: tuple[str, ...] = ()

    @property
    def shape(self) -> PodShape:
        """What decides where it may be."""
        return PodShape(self.template, self.requests, self.constraint, self.apart)


class GrowthTrust(Struct, frozen=True):
    """The potential nodes that granted pods wait for; `since` the last grant that trusts in one."""

    since: datetime
    nodes: tuple[str, ...]

    @property
    def pools(self) -> Trusted:
        """How many nodes of each pool it trusts to come."""
        return trusted_of(self.nodes)


class GrowthRequest(Struct, frozen=True):
    """The growth that a gang asks for and does not have: `pods` gated pods that request `amounts` in all.

    `since` is when it was first noted that the gang waits, `reason` and `message` say what for.
    """

    pods: int
    amounts: Resources
    since: datetime
    reason: str
    message: str


class SurplusPod(Struct, frozen=True):
    """A live pod of an AppWrapper beyond the base gang, which grows by grants; `node` is empty until it is bound.

    It `is_ending` once its deletion was requested: Ray deletes idle workers itself. It `is_gated` if it was granted,
    and is not admitted yet. `created_at` and `slice` as for a `GatedPod`: the hosts of a slice go together.
    """

    namespace: str
    name: str
    uid: str
    requests: Resources
    node: str
    created_at: str
    is_ending: bool = False
    is_gated: bool = False
    slice: str = ""


_Host = TypeVar("_Host", GatedPod, SurplusPod)


def slices_of(pods: Iterable[_Host]) -> list[tuple[_Host, ...]]:
    """The pods by slice, in the order of the first of each; a pod without a slice is by itself."""
    found: dict[str, list[_Host]] = {}
    for pod in pods:
        found.setdefault(pod.slice or pod.uid, []).append(pod)
    return [tuple(each) for each in found.values()]


class PodRef(Struct, frozen=True):
    """A pod by its name; another pod with the name has another uid."""

    namespace: str
    name: str
    uid: str


class Shrinking(Struct, frozen=True):
    """The surplus pods that a gang gives up. They are deleted, and charged until they are gone.

    `growth` is what it keeps beyond its demand: until the pods are gone, no pod is admitted beyond that. `preempted_by`
    is the uid of the AppWrapper that it gives way to; empty if no nodes came for the pods.
    """

    pods: tuple[PodRef, ...]
    growth: Resources
    preempted_by: str
