"""Why no cluster takes a gang now: the shortfall on each cluster, the nearest of them, and sentences about it.

A shortfall is found with the decision. Its sentences are made on demand: most refusals change no record, and a message
takes longer than the decision. So a shortfall keeps immutable values of that moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from copy import copy
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import Struct

from dispatcher.api.clusters.potential import OnPotential
from dispatcher.api.clusters.provisioning import ProvisioningClass
from dispatcher.api.syntax import most_similar
from dispatcher.core.model.clusters import potential
from dispatcher.core.model.clusters.nodes import WhyBeside
from dispatcher.core.model.clusters.potential import FULL_TRUST, Trust
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.gangs.pod_terms import attraction_of
from dispatcher.core.model.quantity import in_words
from dispatcher.core.model.records.pending_reasons import (
    DEVICE_CLAIMS_NOT_COUNTED,
    INSUFFICIENT,
    LARGER_THAN_CLUSTER,
    NEEDS_POTENTIAL,
    NO_CLUSTER,
    NOT_DECIDED,
    NOT_SELECTED,
    REQUIRED_PODS_MISSING,
    RESERVED,
)
from dispatcher.core.model.records.record import Pending
from dispatcher.core.model.records.requirements import Rejection
from dispatcher.core.model.resources import NOTHING, Resources, has_device_class
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.fit.backfill_reservation import Reservation, noted
from dispatcher.core.scheduling.fit.fit import Shortfall, shortfall_in_empty
from dispatcher.core.scheduling.placement.node_traits import Exclusions, Traits
from dispatcher.text import counted, one_line

MOST_NAMED: Final = 5
"""Clusters that a message names; the others are counted."""
_MOST_UNLISTED: Final = 2
"""Resources that no node lists and that a message says so of; each is compared with all names of the cluster."""


class ClusterShortfall(Struct, frozen=True, gc=False):  # as `Shortfall`
    """Why the capacity of `cluster` is too small for a gang: by `shortfall`.

    For LARGER_THAN_CLUSTER and NOT_DECIDED, that is of the capacity without pods that end, `permanent` are the requests
    of the other pods, and `reserve` is the reserve of the cluster. For RESERVED, `keeper` is the gang that the capacity
    is kept for; empty if it is promised to gangs that go first. `traits` are the nodes, where gangs are placed on
    nodes. `trust` is that in the pools of the cluster.
    """

    cluster: str
    reason: str
    shortfall: Shortfall
    permanent: Resources = NOTHING
    reserve: Resources = NOTHING
    keeper: str = ""
    traits: Traits | None = None
    trust: Trust = FULL_TRUST
    listed: frozenset[str] = frozenset()

    @property
    def may_fit_later(self) -> bool:
        """True if the gang fits once other gangs end; False if only more nodes or other pods help, or nobody knows."""
        return self.reason not in {LARGER_THAN_CLUSTER, NOT_DECIDED, NEEDS_POTENTIAL, REQUIRED_PODS_MISSING}

    def resource(self, gang: Gang) -> str:
        """The scarcest resource; empty if the capacity is only kept for another, or is not all that is missing."""
        if self.reason in {RESERVED, REQUIRED_PODS_MISSING}:
            return ""
        return self.shortfall.scarcest(gang.in_cluster(self.cluster))[0]


def short_when_empty(
    cluster: str, gang: Gang, capacity: CapacitySnapshot, in_empty: Shortfall
) -> ClusterShortfall:
    """The shortfall of a gang that does not even fit the empty cluster, or of which that is not decided."""
    traits = None if capacity.nodes is None else capacity.nodes.traits
    permanent = capacity.permanent_for(gang)
    reason = NOT_DECIDED if in_empty.undecided else LARGER_THAN_CLUSTER
    names = capacity.resource_names
    listed = frozenset(names) if any(each not in names for each in in_empty.missing) else frozenset()
    return ClusterShortfall(
        cluster, reason, in_empty, permanent, capacity.reserve, traits=traits, listed=listed
    )


def short_of_room(
    cluster: str, gang: Gang, capacity: CapacitySnapshot, shortfall: Shortfall
) -> ClusterShortfall:
    """The shortfall of a gang that does not fit the free capacity of a cluster, and would fit the empty one.

    Of an empty one that is true as far as the pods may come that its affinity requires.
    """
    traits = None if capacity.nodes is None else capacity.nodes.traits
    if shortfall.compared is not None and _missing_pods(shortfall.compared) is not None:
        return ClusterShortfall(cluster, REQUIRED_PODS_MISSING, shortfall)
    if not shortfall.needs:
        return ClusterShortfall(cluster, INSUFFICIENT, shortfall, traits=traits)
    lacks_nodes = shortfall_in_empty(gang, capacity.of_nodes()) is not None
    reason = NEEDS_POTENTIAL if lacks_nodes else INSUFFICIENT
    return ClusterShortfall(cluster, reason, shortfall, traits=traits, trust=capacity.trust)


class Nearest(NamedTuple):
    """The subject of a refusal: the rejection by the cluster that comes nearest to taking the gang."""

    reason: str
    resource: str
    cluster: str


class Refused:
    """No cluster takes a gang now. `nearest` is known at once, the message on demand."""

    __slots__ = (
        "_gang",
        "_has_members",
        "_pending",
        "_rejections",
        "_shortages",
        "may_fit_later",
        "nearest",
        "reservation",
    )

    def __init__(
        self,
        gang: Gang,
        rejections: Sequence[Rejection],
        shortfalls: Sequence[ClusterShortfall],
        *,
        has_members: bool,
    ) -> None:
        self._gang = gang
        self._rejections = rejections
        self._shortages = shortfalls
        self._has_members = has_members
        self._pending: Pending | None = None
        self.reservation: Reservation | None = None
        """The backfill reservation of the gang; None if a class shares the refusal."""
        has_clusters = rejections or shortfalls  # each cluster has one or the other
        self.may_fit_later = not has_clusters or any(each.may_fit_later for each in shortfalls)
        """True if the gang would fit a cluster once all pods that end there have ended, or if there is no cluster."""
        self.nearest = self._find_nearest()

    def depends_on_packing(self, clusters: Collection[str]) -> bool:
        """True if in one of these clusters the pods of each pod set have nodes, but not all at once."""
        return any(
            not each.shortfall.missing and each.shortfall.pod_set is None
            for each in self._shortages
            if each.cluster in clusters
        )

    @property
    def pending(self) -> Pending:
        """The pending reason with its message."""
        if self._pending is None:
            self._pending = self._explain()
        return noted(self._pending, self.reservation) if self.reservation else self._pending

    def reserved(self, reservation: Reservation) -> Refused:
        """A copy with this reservation, for one gang only."""
        alone = copy(self)
        alone.reservation = reservation
        return alone

    def _find_nearest(self) -> Nearest:
        found: list[Rejection | ClusterShortfall] = [*self._rejections, *self._shortages]
        if not found:
            return Nearest(NO_CLUSTER, "", "")
        nearest = min(found, key=lambda each: (_distance(each.reason), each.cluster))
        resource = nearest.resource(self._gang) if isinstance(nearest, ClusterShortfall) else ""
        return Nearest(nearest.reason, resource, nearest.cluster)

    def _explain(self) -> Pending:
        found = [*self._rejections, *(rejection_of(self._gang, each) for each in self._shortages)]
        if not found:
            return Pending(NO_CLUSTER, "no cluster has reported its capacity yet")
        return _pending(found, self._has_members)


def may_be_uncounted(gang: Gang, device_resources: Collection[str]) -> bool:
    """True if some cluster may not count devices of a gang; `device_resources` are those that DeviceClasses name."""
    for each in gang.pod_sets:  # noqa: SIM110  # as in `has_device_class`
        if each.claims or has_device_class(each.requests, device_resources):
            return True
    return False


def uncounted_claims(gang: Gang, cluster: str, capacity: CapacitySnapshot) -> Rejection | None:
    """The rejection of a gang with devices that nothing counts, by a cluster; None for other gangs.

    The devices are those of resource claims, and of extended resources that a DeviceClass backs and no node lists.
    """
    names = [path for pod_set in gang.pod_sets for path in pod_set.claims]
    names += capacity.uncounted_devices(each for each in gang.pod_sets if not each.is_trusted)
    if not names:
        return None
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    message = one_line(f"{', '.join(names[:MOST_NAMED])}{more}: {_NOT_COUNTED}")
    return Rejection(cluster, DEVICE_CLAIMS_NOT_COUNTED, message)


_NOT_COUNTED: Final = (
    "the devices of resource claims are not counted. Request devices as a resource of nodes such as nvidia.com/gpu, or "
    "declare custompodresources where the operator trusts declarations"
)


def why_no_other(
    gang: Gang,
    best: str,
    fitting: Iterable[str],
    rejections: Sequence[Rejection],
    shortfalls: Sequence[ClusterShortfall],
) -> str:
    """Why no other cluster was chosen: its score is worse, it rejects the gang, or its capacity is too small."""
    also = [f"it fits {cluster}, too" for cluster in fitting if cluster != best]
    refused = sorted(
        [*rejections, *(rejection_of(gang, each) for each in shortfalls)], key=lambda each: each.cluster
    )
    return "; ".join([*also[:MOST_NAMED], *([_in_short(refused)] if refused else ())])


def why_no_request(gang: Gang, named: ProvisioningClass | None) -> str:
    """That the capacity of a gang is not requested although a class is named; empty if there is nothing to say."""
    if named is None or not gang.pods or gang.is_managed_by(named):
        return ""
    return f"no capacity is requested: its pods request no resource that class {named.name} manages"


def rejection_of(gang: Gang, short: ClusterShortfall) -> Rejection:
    """The rejection by a cluster whose capacity is too small, with its message."""
    if short.reason == RESERVED and not short.keeper:
        message = "the free capacity there is promised to gangs ahead of it"
        return Rejection(short.cluster, RESERVED, message)
    if short.reason == RESERVED:
        message = f"the free capacity there is reserved for {short.keeper}, which has waited past the starvation bound"
        return Rejection(short.cluster, RESERVED, message)
    gang = short.shortfall.compared or gang.in_cluster(short.cluster)
    if short.reason == REQUIRED_PODS_MISSING:
        message = one_line(f"{_missing_pods(gang)}; its age counts once there is one")
        return Rejection(short.cluster, REQUIRED_PODS_MISSING, message)
    if short.reason == NEEDS_POTENTIAL:
        message = one_line("; ".join(_needed("needs", gang, short)))
        return Rejection(short.cluster, NEEDS_POTENTIAL, message, short.resource(gang))
    parts = _missing(gang, short) if short.shortfall.missing else [_fragmented(gang, short)]
    subject = gang.pod_sets if short.shortfall.pod_set is None else (gang.pod_sets[short.shortfall.pod_set],)
    also = _needed("would also fit with", gang, short) if short.shortfall.needs else []
    message = "; ".join(
        [*parts, *_exclusions(subject, short.traits), *_unlisted(short), *map(one_line, also)]
    )
    return Rejection(short.cluster, short.reason, message, short.resource(gang))


def _missing_pods(gang: Gang) -> str | None:
    """That no pod is on any node which the affinity of a pod set requires; None if one is, for each pod set.

    The gang has the conditions on its nodes by the pods that are there.
    """
    for pods in gang.pod_sets:
        for each in pods.nodes.beside if pods.attracts else ():
            if each.why is WhyBeside.ATTRACTS and not each.domains:
                whose = f"the pods of {pods.path}" if pods.path else "its pods"
                required = attraction_of(pods.attracts)
                return f"{whose} require a pod {required} in their {each.topology}, and there is none"
    return None


def _needed(verb: str, gang: Gang, short: ClusterShortfall) -> list[str]:
    """The sentences about a gang that would fit with potential nodes, and why it may not trust in them."""
    needs, trust = short.shortfall.needs, short.trust
    asked = f"it {verb} {potential.in_words(needs)} to come"
    if trust.policy is OnPotential.WAIT:
        return [asked, "with onPotential: Wait it is not dispatched before"]
    ends = [(pool, end, "") for pool, end in trust.distrusted]
    ends += [
        (pool, end, f" in namespace {name}")
        for name, pool, end in trust.in_namespaces
        if name == gang.namespace
    ]
    until = [
        f"pool {pool} is not trusted until {end:%Y-%m-%d %H:%M:%S} UTC{where}, because its nodes did not come"
        for pool, end, where in ends
        if pool in dict(needs)
    ]
    return [asked, *until]


def _missing(gang: Gang, short: ClusterShortfall) -> list[str]:
    is_now, available = short.reason == INSUFFICIENT, short.shortfall.available
    what = "free" if is_now else "in all of it"
    return [
        f"{name}: needs {in_words(name, gang.demand[name])}, "
        f"{in_words(name, available[name] if is_now else max(0, available[name]))} {what}"
        f"{_taken_for_ever(name, available[name], short)}"
        for name in sorted(short.shortfall.missing)
    ]


def _unlisted(short: ClusterShortfall) -> list[str]:
    """That no node lists a resource, with the one that its author probably means; such a gang waits for ever."""
    names = [name for name in sorted(short.shortfall.missing) if short.listed and name not in short.listed]
    what = "usable node" if short.traits is None else "node"  # sums are over usable nodes alone
    return [f"no {what} has {_with_hint(name, short.listed)}" for name in names[:_MOST_UNLISTED]]


@lru_cache(maxsize=1024)
def _with_hint(name: str, listed: frozenset[str]) -> str:
    """The name with the similar one of a node; cached, because many gangs have the same typing error."""
    similar = most_similar(name, sorted(listed))
    return f"{name}; did you mean {similar}?" if similar else name


def _taken_for_ever(resource: str, available: int, short: ClusterShortfall) -> str:
    """What no gang gets of a resource; together with what is available that is all of it."""
    permanent, reserve = short.permanent[resource], short.reserve[resource]
    taken = [f"{in_words(resource, permanent)} are taken by DaemonSets and static pods"] if permanent else []
    taken += [f"{in_words(resource, reserve)} are the reserve of the cluster"] if reserve else []
    total = in_words(resource, available + permanent + reserve)
    return f" (of {total}, {' and '.join(taken)})" if taken else ""


def _fragmented(gang: Gang, short: ClusterShortfall) -> str:
    """The sentence about a gang whose demand fits the sums, but whose pods have no nodes."""
    shortfall = short.shortfall
    resource, most = shortfall.scarcest(gang)
    what = "free" if short.reason == INSUFFICIENT else "in all of it"
    places = shortfall.lacking_places(gang)
    available = in_words(resource, shortfall.available[resource] if places is None else places.free)
    largest = in_words(resource, most)
    others = " on nodes with its other requests" * (places is not None and shortfall.pod_set is not None)
    facts = f"{resource}: {available} {what}{others}, at most {largest} on one node"
    if shortfall.pod_set is None:
        if shortfall.undecided:
            steps = counted(shortfall.undecided, "step")
            return f"{facts}; not decided within {steps} whether all {_count(gang)} pods have nodes at once"
        return f"{facts}; the pods of each pod set have nodes, but not all {_count(gang)} pods at once"
    pod_set = gang.pod_sets[shortfall.pod_set]
    if short.traits is not None and not short.traits.usable_by(pod_set).any():
        pods = "the pod" if pod_set.count == 1 else f"{pod_set.count} of the pods"
        return f"no node takes {pods}{f' of {pod_set.path}' if pod_set.path else ''}"
    each = "1" if places is not None else in_words(resource, pod_set.requests[resource])
    if pod_set.count == 1:
        return f"{facts}, and the pod requests {each}{_spread(pod_set, shortfall)}"
    fitting = f"{shortfall.fitting} of them have a node{_spread(pod_set, shortfall)}"
    return f"{facts}, and each of {pod_set.count} pods requests {each}: {fitting}"


def _spread(pod_set: PodSet, shortfall: Shortfall) -> str:
    """The spread of pods that would all have nodes without their rules about each other."""
    if shortfall.groups is None or shortfall.groups.fitting(pod_set) < pod_set.count:
        return ""
    return "".join(f", {each}" for each in pod_set.spread)


def _count(gang: Gang) -> int:
    return sum(pod_set.count for pod_set in gang.pod_sets)


def _exclusions(pod_sets: Sequence[PodSet], traits: Traits | None) -> list[str]:
    """How many nodes no pod of these sets may use, and why."""
    excluded = traits.exclusions(pod_sets) if traits is not None else Exclusions()
    if traits is None or not excluded.total:
        return []
    named = [f"{count} {reason}" for reason, count in excluded.named]
    also = [f"{excluded.others} for other reasons"] if excluded.others else []
    return [f"{excluded.total} of {len(traits.rows)} nodes excluded: {', '.join([*named, *also])}"]


def _pending(rejections: Iterable[Rejection], has_members: bool) -> Pending:
    """The pending reason about the nearest rejection; the message names the nearest rejections first."""
    by_name = sorted(rejections, key=lambda each: each.cluster)
    by_hope = sorted(by_name, key=lambda each: _distance(each.reason))
    nearest = by_hope[0]
    if not has_members:
        message = f"cluster {nearest.cluster}: {nearest.message}"
        return Pending(nearest.reason, message, nearest.resource, nearest.cluster)
    return Pending(
        nearest.reason, _in_short(by_hope), nearest.resource, nearest.cluster, clusters=tuple(by_name)
    )


def _distance(reason: str) -> int:
    """The distance from a dispatch there: 0 if other gangs must end, 1 if operators must act, more if neither helps."""
    return _DISTANCES.get(reason, 1)


_DISTANCES: Final = {
    INSUFFICIENT: 0,
    RESERVED: 0,
    LARGER_THAN_CLUSTER: 2,
    NOT_DECIDED: 2,
    NOT_SELECTED: 3,
}


def _in_short(rejections: Sequence[Rejection]) -> str:
    named = [f"{each.cluster} ({each.message})" for each in rejections[:MOST_NAMED]]
    more = len(rejections) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
