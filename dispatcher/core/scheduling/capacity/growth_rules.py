"""Required pod affinity and anti-affinity of growth: where the running pods of its gang let it be.

A cycle places all pods of a gang at once, by rules among them (`placement`). Growth is placed beside pods that are
there: so the rules become conditions on the domains of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from dispatcher.core.model.clusters.nodes import Beside, WhyBeside
from dispatcher.core.model.gangs.gang import PodSet

Nodes = Mapping[str, Collection[str]]
"""Nodes with pods of a gang, by template."""
DomainsOf = Callable[[str, Iterable[str]], frozenset[str]]
"""The values of a label of these nodes, of those that have it."""


def beside_own(pods: PodSet, pod_sets: Sequence[PodSet], there: Nodes, domains_of: DomainsOf) -> PodSet:
    """More pods of a gang with these pod sets, with conditions on their nodes by its pods on the nodes `there`.

    Pods of a template that none of these sets has are only apart from each other, as they say themselves.
    """
    index = next((number for number, each in enumerate(pod_sets) if each.template == pods.template), None)
    if index is None:
        return apart_from(pods, there.get(pods.template, ()), domains_of)
    for topology, distances, why in _conditions_of(pod_sets[index]):
        nodes = {node for each in distances for node in there.get(pod_sets[index + each].template, ())}
        pods = _with(pods, topology, domains_of(topology, nodes), why)
    return pods


def _conditions_of(rules: PodSet) -> Iterator[tuple[str, tuple[int, ...], WhyBeside]]:
    """Each rule of a pod set: a label of nodes, the distances to the pod sets that count, and how they count."""
    for topology in rules.apart:
        yield topology, (0,), WhyBeside.REPELS
    for topology, distance in rules.away:
        yield topology, (distance,), WhyBeside.REPELS
    for topology in rules.together:
        yield topology, (0,), WhyBeside.ATTRACTS
    for topology, distances in rules.near:
        yield topology, distances, WhyBeside.ATTRACTS


def apart_from(pods: PodSet, nodes: Collection[str], domains_of: DomainsOf) -> PodSet:
    """The pods, which are not to be in the domains of these nodes, because others of their set are."""
    for topology in pods.apart:
        pods = _with(pods, topology, domains_of(topology, nodes), WhyBeside.REPELS)
    return pods


def _with(pods: PodSet, topology: str, domains: frozenset[str], why: WhyBeside) -> PodSet:
    """The pods with one more condition on their nodes; none if no pod is there."""
    if not domains:
        return pods
    return replace(
        pods, nodes=replace(pods.nodes, beside=(*pods.nodes.beside, Beside(topology, domains, why)))
    )
