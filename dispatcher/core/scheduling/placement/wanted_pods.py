"""The pod sets of a gang that are to be placed, with the rules between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.core.model.gangs.gang import PodSet
from dispatcher.core.scheduling.placement.node_traits import Amounts, Mask, Traits
from dispatcher.core.scheduling.placement.spread import Spreading


class Wanted(Struct, frozen=True):
    """A pod set to place: `mask` are the nodes that it may use; `spreading` are the rules of its spread, if any.

    `away` are other pod sets by index, and the domains of nodes that these pods do not share with them. `near` are pod
    sets with which they share domains, and `led` pod sets that share domains with these only, so that these follow if
    those are placed first. `chosen` are the domains, by label, to which the mask was narrowed. `counted_over` are the
    labels over which later sets are spread, counting these pods.
    """

    index: int
    pods: PodSet
    count: int
    mask: Mask
    spreading: Spreading | None = None
    away: tuple[tuple[int, Amounts], ...] = ()
    near: tuple[Near, ...] = ()
    led: tuple[tuple[int, str, Amounts], ...] = ()
    chosen: Mapping[str, int] = field(default_factory=dict)
    counted_over: frozenset[str] = frozenset()

    def beside(self, placed: Mapping[int, Amounts]) -> Wanted:
        """The pod set on the nodes that these pods of other sets leave it."""
        mask, spreading = self.mask, self.spreading
        if spreading is not None:
            spreading = spreading.beside({other - self.index: pods for other, pods in placed.items()})
        for other, domains in self.away:
            if other in placed:
                mask = mask & ~_sharing(domains, placed[other] > 0)
        for rule in self.near:
            if rule.is_begun(placed):
                mask = mask & rule.allowed(placed)
        for other, _, domains in self.led:
            if other in placed:
                mask = mask & _sharing(domains, placed[other] > 0)
        if mask is self.mask and spreading is self.spreading:
            return self
        return replace(self, mask=mask, spreading=spreading)

    @property
    def counts_earlier(self) -> bool:
        """True if pods of earlier sets count for the spread of these."""
        return self.spreading is not None and self.spreading.counts_earlier

    @property
    def is_tentative(self) -> bool:
        """True if the pods may be in several of the domains of which one was chosen."""
        return any(label not in self.pods.together for label in self.chosen)

    def is_near(self, placed: Mapping[int, Amounts]) -> bool:
        """True if all pods of the set share domains with the others that they need."""
        nodes = placed[self.index] > 0
        return all(bool(rule.allowed(placed)[nodes].all()) for rule in self.near)


class Near(Struct, frozen=True):
    """The pod sets of which one must have a pod in the same domain; `served` are nodes with one that is there."""

    label: str
    others: tuple[int, ...]
    domains: Amounts
    served: Mask

    def is_begun(self, placed: Mapping[int, Amounts]) -> bool:
        """True if some of their pods have nodes."""
        return any(other in placed for other in self.others) or bool(self.served.any())

    def allowed(self, placed: Mapping[int, Amounts]) -> Mask:
        """The nodes that share a domain with some of their pods."""
        nodes = np.zeros_like(self.served)
        for other in self.others:
            if other in placed:
                nodes |= placed[other] > 0
        return self.served | _sharing(self.domains, nodes)


def _sharing(domains: Amounts, nodes: Mask) -> Mask:
    """The nodes that share a domain with one of `nodes`."""
    used = np.unique(domains[nodes])
    return np.isin(domains, used[used >= 0])


def wanted_of(
    pod_sets: Sequence[PodSet], counts: Sequence[int], traits: Traits, present: Sequence[Mapping[int, int]]
) -> list[Wanted]:
    """The pod sets with pods to place, `counts` of each; `present` are pods by row of their node, for each pod set."""
    there = _by_node(present, traits)
    wanted = [
        _wanted(index, pod_set, count, traits, there)
        for index, (pod_set, count) in enumerate(zip(pod_sets, counts, strict=True))
        if count
    ]
    if any(each.near for each in wanted):
        wanted = _with_led(wanted)
    if any(each.counts_earlier for each in wanted):
        wanted = _with_counted(wanted)
    return wanted


def _by_node(present: Sequence[Mapping[int, int]], traits: Traits) -> dict[int, Amounts]:
    """The pods on each node, by the index of their pod set."""
    found = {}
    for index, pods in enumerate(present):
        found[index] = np.zeros(len(traits.nodes), np.int64)
        found[index][list(pods)] = list(pods.values())
    return found


def _wanted(index: int, pods: PodSet, count: int, traits: Traits, present: Mapping[int, Amounts]) -> Wanted:
    wanted = Wanted(index, pods, count, traits.usable_by(pods))
    if pods.away:
        away = tuple((index + distance, traits.domains(label)) for label, distance in pods.away)
        wanted = replace(wanted, away=away).beside(present)
    if pods.spread:
        spreading = Spreading.of(pods, traits, {one - index: amounts for one, amounts in present.items()})
        wanted = replace(wanted, mask=wanted.mask & spreading.usable, spreading=spreading)
    if pods.near:
        near = tuple(_near(index, label, distances, traits, present) for label, distances in pods.near)
        labelled = reduce(and_, (rule.domains >= 0 for rule in near))
        wanted = replace(wanted, near=near, mask=wanted.mask & labelled)
    return wanted


def _near(
    index: int, label: str, distances: Sequence[int], traits: Traits, present: Mapping[int, Amounts]
) -> Near:
    others, domains = tuple(index + distance for distance in distances), traits.domains(label)
    nodes = np.zeros(len(traits.nodes), np.bool_)
    for other in others:
        if other in present:
            nodes |= present[other] > 0
    return Near(label, others, domains, _sharing(domains, nodes))


def _with_led(wanted: Sequence[Wanted]) -> list[Wanted]:
    """The pod sets, each with those that it alone must be near to."""
    led: dict[int, list[tuple[int, str, Amounts]]] = {}
    for each in wanted:
        for rule in each.near:
            if len(rule.others) == 1 and not rule.served.any():
                led.setdefault(rule.others[0], []).append((each.index, rule.label, rule.domains))
    return [replace(each, led=tuple(led[each.index])) if each.index in led else each for each in wanted]


def _with_counted(wanted: Sequence[Wanted]) -> list[Wanted]:
    """The pod sets, each with the labels over which later sets are spread that count its pods."""
    counted: dict[int, set[str]] = {}
    for each in wanted:
        for spread in each.pods.spread:
            for distance in spread.earlier:
                counted.setdefault(each.index + distance, set()).add(spread.topology)
    return [replace(each, counted_over=frozenset(counted.get(each.index, ()))) for each in wanted]
