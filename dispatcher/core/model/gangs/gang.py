"""A gang: its pod sets and their total demand, as comparable values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from dispatcher.api.clusters.provisioning import ProvisioningClass
from dispatcher.core.model.clusters.nodes import ANY_NODE, Node, NodeRequirements, Taint, Toleration
from dispatcher.core.model.clusters.potential import Trusted, trusted_of
from dispatcher.core.model.gangs.pod_terms import PodSort, PodTerm
from dispatcher.core.model.resources import NOTHING, PODS, Resources, sum_of
from dispatcher.values import equal_without, shown_without


def template_name(item: int, path: str) -> str:
    """The name of the pod template at a path inside a wrapped object, by the index of that object."""
    return f"{item}.{path}"


Constraint = tuple[tuple[Toleration, ...], NodeRequirements]
"""The properties of a pod that decide which nodes it may use, without regard to free amounts."""


class Spread(Struct, frozen=True, omit_defaults=True):
    """A required topology spread of the pods of a set over the domains of `topology`, a label of nodes.

    A domain takes at most `most_skew` (1 or more) pods more than the domain with the fewest, which counts as 0 pods
    while there are fewer than `least_domains` (1 or more) domains. Nodes without the label take no pod. A node counts
    for its domain if its labels satisfy the requirements of the pods; with `ignores_requirements` every node counts.
    Full, cordoned and tainted nodes count, too; with `honors_taints` only usable nodes with tolerated taints do.

    `counts` are the distances to other sets of the gang whose pods count as well (`PodSet.away` says what a distance
    is). Of these, pods of a later set that have no node yet do not: it is made later, and finds these pods there.

    `others` selects the pods of others that count as well, wherever they are; None if none can. `there` is their number
    by node, a fact of one moment that a template does not have: see `core.scheduling.capacity.pods_there`.
    Source: https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/
    """

    topology: str
    most_skew: int = 1
    least_domains: int = 1
    ignores_requirements: bool = False
    honors_taints: bool = False
    others: PodTerm | None = None
    there: tuple[tuple[str, int], ...] = ()
    counts: tuple[int, ...] = ()

    @property
    def earlier(self) -> tuple[int, ...]:
        """The distances to the sets that count while their pods are being placed, too."""
        return tuple(distance for distance in self.counts if distance < 0)

    def in_namespace(self, namespace: str) -> Spread:
        """The spread of pods in that namespace, if it was read without one."""
        return self if self.others is None else replace(self, others=self.others.in_namespace(namespace))

    def __str__(self) -> str:
        """The spread in words."""
        domains = f" and at least {self.least_domains} domains" if self.least_domains > 1 else ""
        templates = ", counting the pods of other templates" if self.counts else ""
        there = (
            f", counting pods of others that are there: {sum(dict(self.there).values())}"
            if self.there
            else ""
        )
        return (
            f"spread over {self.topology} with a skew of at most {self.most_skew}{domains}{templates}{there}"
        )


@equal_without("path", "item", "sort")
class PodSet(Struct, frozen=True, omit_defaults=True):
    """`count` equal pods; `requests` is per pod.

    `nodes` are the requirements on a node's labels. `apart` are labels of nodes: no two pods of the set may be on
    nodes with the same value of one of them (required pod anti-affinity among themselves). `together` are labels of
    nodes that must have one value for all pods of the set (required pod affinity among themselves). `path` is the
    place of the template inside the wrapped object, and `item` the index of this object in the AppWrapper. `claims` are
    the paths of the object's resource claims; nothing counts their devices. If the set `is_trusted`, a declaration that
    the operator trusts stands for devices that nothing counts. `spread` are the bounds on the differences
    between domains, one for each topology.

    `away` and `near` are rules about other sets of the gang. A rule is a label of nodes with the distance from this set
    to another one in the gang's order, negative if the other one comes first. `away`: no pod of this set is on a node
    with the same value of the label as a pod of the other set (required pod anti-affinity); both sets have the rule.
    `near` has several distances: each pod of this set is on a node with the same value of the label as a pod of one of
    these sets (required pod affinity).

    `repels` and `attracts` are all its required terms of pod anti-affinity and affinity, which also hold for pods of
    others. `sort` is what the terms of others select it by; None if its labels are not known.
    """

    count: int
    requests: Resources
    tolerations: tuple[Toleration, ...] = ()
    nodes: NodeRequirements = ANY_NODE
    apart: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    path: str = ""
    item: int = 0
    spread: tuple[Spread, ...] = ()
    away: tuple[tuple[str, int], ...] = ()
    near: tuple[tuple[str, tuple[int, ...]], ...] = ()
    repels: tuple[PodTerm, ...] = ()
    attracts: tuple[PodTerm, ...] = ()
    sort: PodSort | None = None
    is_trusted: bool = False

    @property
    def template(self) -> str:
        """The name of its template among those of the AppWrapper."""
        return template_name(self.item, self.path)

    @property
    def has_terms(self) -> bool:
        """True if these pods have required terms of affinity or anti-affinity."""
        return bool(self.repels or self.attracts)

    @property
    def depends_on_others(self) -> bool:
        """True if pods of others that are there decide where these pods may be."""
        return self.has_terms or any(each.others for each in self.spread)

    @property
    def total(self) -> Resources:
        """The requests of all pods."""
        return self.requests * self.count

    @property
    def has_rules(self) -> bool:
        """True if where one of these pods is decides where others may be."""
        return bool(self.apart or self.together or self.spread or self.away or self.near)

    @property
    def constraint(self) -> Constraint:
        """The properties of these pods that decide which nodes they may use."""
        return self.tolerations, self.nodes

    def may_use(self, node: Node) -> bool:
        """True if these pods tolerate the taints of a node and it has the required labels, usable or not."""
        return self.tolerates(node.taints) and self.nodes.matches(node.name, node.labels)

    def tolerates(self, taints: tuple[Taint, ...]) -> bool:
        """True if these pods tolerate every scheduling taint of `taints`."""
        return all(
            not taint.keeps_away or any(each.covers(taint) for each in self.tolerations) for taint in taints
        )


@lru_cache(maxsize=10_000)
def _with_pods(demand: Resources, pods: int) -> Resources:
    """One shared value for equal gangs: few differ, and a cycle compares the values of all by identity first."""
    return Resources({**demand, PODS: max(demand[PODS], pods)})


@equal_without("constraints", "namespace", "charged")
@shown_without("constraints", "charged")
class Gang(Struct, frozen=True):
    """The pods that must fit at once.

    `demand` is the total that the capacity check uses: see `core.kinds.demand`. `pods` is the number of pods that must
    run for the gang to be Running. `pod_sets` come from the templates where these can be read.

    A cluster adds its own defaults to the requests of pods. The gang has the largest of all clusters; `smaller` is the
    same gang in each cluster, by name, where it requests less.
    """

    demand: Resources = NOTHING
    pods: int = 0
    pod_sets: tuple[PodSet, ...] = ()
    smaller: tuple[tuple[str, Gang], ...] = ()
    namespace: str = ""
    """The namespace of its pods; empty where it is not known. Without it, that in the labels of its pod sets counts."""
    constraints: frozenset[Constraint] = frozenset()
    """The distinct constraints of its pod sets, whatever is given; kept, because every cycle asks for them."""
    charged: Resources = NOTHING
    """The amounts that its queues are charged with, whatever is given: its demand, and the number of its pods."""

    def __post_init__(self) -> None:
        # With `minAvailable` fewer pods must run than there are.
        pods = max(self.pods, sum(each.count for each in self.pod_sets))
        force_setattr(self, "charged", _with_pods(self.demand, pods))
        force_setattr(self, "constraints", frozenset(each.constraint for each in self.pod_sets))
        if not self.namespace:
            sorts = (each.sort.namespace for each in self.pod_sets if each.sort is not None)
            force_setattr(self, "namespace", next(sorts, ""))

    @property
    def may_need_search(self) -> bool:
        """True if finding places for it may cost steps."""
        sets = self.pod_sets
        return len(sets) > 1 or (len(sets) == 1 and sets[0].has_rules)

    def in_cluster(self, cluster: str) -> Gang:
        """The gang as its pods are made in that cluster."""
        for name, gang in self.smaller:
            if name == cluster:
                return gang
        return self

    def without_resources(self, names: Collection[str]) -> Gang:
        """The gang as if it requested none of these resources."""

        def rest(amounts: Resources) -> Resources:
            return Resources({name: amount for name, amount in amounts.items() if name not in names})

        pod_sets = tuple(replace(each, requests=rest(each.requests)) for each in self.pod_sets)
        return replace(self, demand=rest(self.demand), pod_sets=pod_sets)

    def with_smaller(self, gangs: Mapping[str, Gang]) -> Gang:
        """The gang with these in clusters, by name; without those that are equal, or differ by more than requests."""
        smaller = [
            (name, gangs[name])
            for name in sorted(gangs)
            if self.pod_sets and gangs[name] != self and gangs[name].is_within(self)
        ]
        return replace(self, smaller=tuple(smaller))

    def is_within(self, other: Gang) -> bool:
        """True if the gang differs from the other one by nothing, or by smaller requests alone."""
        if len(self.pod_sets) != len(other.pod_sets):
            return False
        pairs = zip(self.pod_sets, other.pod_sets, strict=True)
        return (
            self._without_requests() == other._without_requests()
            and self.demand.fits_in(other.demand)
            and all(less.requests.fits_in(more.requests) for less, more in pairs)
        )

    def _without_requests(self) -> Gang:
        return Gang(NOTHING, self.pods, tuple(replace(each, requests=NOTHING) for each in self.pod_sets))

    def tolerates(self, taints: tuple[Taint, ...]) -> bool:
        """True if every pod set tolerates `taints`; a gang without pod sets tolerates none."""
        if not self.pod_sets:
            return not any(taint.keeps_away for taint in taints)
        return all(pod_set.tolerates(taints) for pod_set in self.pod_sets)

    def is_managed_by(self, asked: ProvisioningClass) -> bool:
        """True if the capacity of some of its pods is requested from that class before the dispatch."""
        return any(pod_set.count and asked.manages(pod_set.requests) for pod_set in self.pod_sets)

    def requested_from(self, named: Iterable[ProvisioningClass | None]) -> ProvisioningClass | None:
        """The class from which its capacity is requested: the first that manages it; None if none does."""
        return next((each for each in named if each is not None and self.is_managed_by(each)), None)


Places = tuple[tuple[str, int], ...]
"""Names of nodes, and how many pods each takes."""


class Assignment(Struct, frozen=True):
    """Where the pods of a gang go: for each pod set, in the order of the gang's, its places; empty if unknown.

    With `provisioning` they have no places yet: their capacity is to be requested from that class. Places on potential
    nodes say which pools the gang trusts.
    """

    places: tuple[Places, ...] = ()
    provisioning: ProvisioningClass | None = None

    @property
    def nodes(self) -> frozenset[str]:
        """The names of the nodes."""
        return frozenset(node for each in self.places for node, _ in each)

    @property
    def trusted(self) -> Trusted:
        """The pools whose potential nodes it needs, with how many of each."""
        return trusted_of(self.nodes)

    def requests(self, gang: Gang) -> Resources:
        """The requests of all pods that have a place."""
        placed = zip(gang.pod_sets, self.places, strict=False)
        return sum_of(pod_set.requests * sum(pods for _, pods in places) for pod_set, places in placed)


ASSIGNED_NOWHERE: Final = Assignment()
