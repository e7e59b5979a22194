"""How many different terms about pods one namespace may have among those that are compared with pods.

The work of a term depends on the pods that it is compared with: a term that names a label and its own namespace costs
other tenants nothing, one that names no label is compared with every pod. So each breadth has a bound of its own, and
each namespace has its own bounds: a tenant uses up nobody else's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from dispatcher.core.model.gangs.gang import PodSet
from dispatcher.core.model.gangs.pod_terms import OWN_NAMESPACE, PodTerm, attraction_of, selection_of


class Breadth(StrEnum):
    """The pods that a term is compared with, in words that follow a number of terms."""

    OWN = "that name a label and only their own namespace"
    BEYOND = "that name a label and reach other namespaces"
    UNLABELLED = "that name no label which the pods must have"


MOST_OF_GANGS: Final[Mapping[Breadth, int]] = {
    Breadth.OWN: 1000,
    Breadth.BEYOND: 64,
    Breadth.UNLABELLED: 16,
}
"""Of the queued gangs of a namespace: a new term is compared with all pods in its breadth, and each pod with it."""
MOST_OF_PODS: Final[Mapping[Breadth, int]] = {
    Breadth.OWN: 1000,
    Breadth.BEYOND: 1000,
    Breadth.UNLABELLED: 64,
}
"""Of the pods of a namespace in one cluster: such a term is compared with the gangs that are decided."""


class OwnTerms(Struct, frozen=True):
    """The different terms of the pods of one gang in `namespace`: of anti-affinity, and others without a topology.

    The others are those of an affinity as one, and of the pods of others that count for a spread.
    """

    namespace: str
    repelling: frozenset[PodTerm]
    others: frozenset[PodTerm]

    @classmethod
    def of(cls, pod_sets: Iterable[PodSet]) -> OwnTerms:
        """The terms of these pod sets, which are of one namespace."""
        namespace, repelling, others = OWN_NAMESPACE, set[PodTerm](), set[PodTerm]()
        for each in pod_sets:
            namespace = namespace or namespace_of(each)
            repelling.update(each.repels)
            if each.attracts:
                others.add(attraction_of(each.attracts))
            others.update(spread.others for spread in each.spread if spread.others is not None)
        return cls(namespace, frozenset(repelling), frozenset(others))

    @property
    def selecting(self) -> frozenset[PodTerm]:
        """The terms without topologies."""
        return self.others.union(map(selection_of, self.repelling))

    @property
    def counted(self) -> frozenset[PodTerm]:
        """The terms that count towards the bounds of the namespace."""
        return self.others | self.repelling


def namespace_of(pods: PodSet) -> str:
    """The namespace of these pods, if the labels of their template are known."""
    return OWN_NAMESPACE if pods.sort is None else pods.sort.namespace


def breadth_of(term: PodTerm, namespace: str) -> Breadth:
    """The breadth of a term of pods in that namespace."""
    if term.named is None:
        return Breadth.UNLABELLED
    return Breadth.OWN if term.namespaces == frozenset({namespace}) else Breadth.BEYOND


def excess_of(namespace: str, terms: Iterable[PodTerm], most: Mapping[Breadth, int]) -> str:
    """Why these terms alone are too many, as words that follow `has`; empty if they are not."""
    for breadth, found in _by_breadth(namespace, terms).items():
        if len(found) > most[breadth]:
            return f"{len(found)} different terms about pods {breadth}, and at most {most[breadth]} are taken"
    return ""


class TermBounds:
    """The terms of each namespace that count towards its bounds; to take or to release some costs their number."""

    def __init__(self, most: Mapping[Breadth, int]) -> None:
        self._most = most
        self._counted: dict[tuple[str, Breadth], Counter[PodTerm]] = {}

    def take(self, namespace: str, terms: Iterable[PodTerm]) -> bool:
        """Count these terms; False, and count none, if the namespace would then have too many different ones."""
        found = _by_breadth(namespace, terms)
        for breadth, new in found.items():
            known = self._counted.get((namespace, breadth), Counter())
            if len(known) + sum(each not in known for each in new) > self._most[breadth]:
                return False
        for breadth, new in found.items():
            self._counted.setdefault((namespace, breadth), Counter()).update(new)
        return True

    def release(self, namespace: str, terms: Iterable[PodTerm]) -> None:
        """Count terms that were taken no more."""
        for breadth, gone in _by_breadth(namespace, terms).items():
            counted = self._counted[namespace, breadth]
            for each in gone:
                counted[each] -= 1
                if not counted[each]:
                    del counted[each]
            if not counted:
                del self._counted[namespace, breadth]


def _by_breadth(namespace: str, terms: Iterable[PodTerm]) -> dict[Breadth, Collection[PodTerm]]:
    found: dict[Breadth, set[PodTerm]] = {}
    for each in terms:
        found.setdefault(breadth_of(each, namespace), set()).add(each)
    return dict(found)
