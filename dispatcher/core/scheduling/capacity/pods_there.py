"""The pods that are there, as far as required terms about pods concern them, and the domains that these terms close.

kube-scheduler places a pod by four rules about the pods on nodes, which include pods that are being deleted:

1. Affinity: its domain has a pod that all of its terms select. If no pod anywhere is selected, and the pod selects
   itself, any domain does.
2. Anti-affinity: its domain has no pod that one of its terms selects.
3. Symmetry: its domain has no pod with a term of anti-affinity that selects it.
4. Topology spread: the pods that its constraint selects count for the skew, but those that are being deleted.

The rules among the pods of one gang are those of `core.scheduling.placement.placement`. This module is about all other
pods: of other AppWrappers, bound or with a place that they hold, and of none.

Growth: nothing is kept while no term is known. Else a pod costs the terms that name one of its labels; a snapshot costs
the known terms; a question costs the domains of the terms that concern it.
Source: https://github.com/kubernetes/kubernetes/blob/master/pkg/scheduler/framework/plugins/interpodaffinity/filtering.go
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from operator import is_
from typing import Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.core.model.clusters.nodes import HOSTNAME, Beside, WhyBeside
from dispatcher.core.model.gangs.gang import Gang, PodSet, Spread
from dispatcher.core.model.gangs.pod_terms import (
    EXCLUDING,
    NO_TERMS,
    WELL_KNOWN_TOPOLOGIES,
    Named,
    PodSort,
    PodTerm,
    TermIndex,
    attraction_of,
    selection_of,
)
from dispatcher.core.model.gangs.term_bounds import MOST_OF_PODS, Breadth, OwnTerms, TermBounds, namespace_of
from dispatcher.core.scheduling.placement.node_traits import Traits

Repelled = tuple[frozenset[PodTerm], ...]
"""For each pod set of a gang the known terms of anti-affinity of other pods that select it; empty if none does."""
_Key = TypeVar("_Key", bound=Hashable)
_Nodes = dict[str, int]
"""The number of pods by node."""
_MOST_GONE: Final = 64
"""Terms that no pod has any more and that are still compared, beside as many as there are others."""
_MOST_TOPOLOGIES: Final = dict.fromkeys(Breadth, 64)
"""Other topologies of the terms of a namespace that are read as terms about every pod."""


class FollowedTerms(Struct, frozen=True):
    """The terms of gangs that may be compared with pods: `selecting` those of pods, without topologies, by either rule.

    `repelling` are the terms of anti-affinity among them, with their topologies. `exceeding` are the namespaces with
    queued gangs whose terms are too many to be followed.
    """

    selecting: TermIndex = NO_TERMS
    repelling: TermIndex = NO_TERMS
    exceeding: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """True if there are any terms, followed or not."""
        return bool(self.selecting.terms or self.exceeding)

    def concern(self, sort: PodSort) -> bool:
        """True if one of these terms, or one of its own, concerns pods of this sort."""
        return bool(sort.repels or self.selecting.selecting(sort))

    def leaves_out(self, pods: PodSet) -> bool:
        """True if terms of these pods are not followed because their namespace has too many."""
        if not self.exceeding or not pods.depends_on_others or namespace_of(pods) not in self.exceeding:
            return False
        own = OwnTerms.of((pods,))
        return not (own.selecting <= self.selecting.terms and own.repelling <= self.repelling.terms)


FOLLOWS_NONE: Final = FollowedTerms()


def repelled_by(gang: Gang, repelling: TermIndex) -> Repelled:
    """The terms of `repelling` that select pods of a gang."""
    if not repelling.terms:
        return ()
    found = tuple(
        repelling.selecting(each.sort) if each.sort is not None else frozenset[PodTerm]()
        for each in gang.pod_sets
    )
    return found if any(found) else ()


class PodsThere:
    """The number of pods by node, for each selection that is followed and each term of anti-affinity of pods.

    `repelling` has the terms of anti-affinity of all these pods, and those that are followed: a gang placed within a
    cycle brings no others. A pod costs its own terms, however many others are known.
    """

    __slots__ = (
        "_by_term",
        "_coming",
        "_domains",
        "_followed",
        "_gone",
        "_mine",
        "_repelling",
        "_selected",
        "widened",
    )

    def __init__(
        self,
        followed: FollowedTerms = FOLLOWS_NONE,
        repelling: TermIndex = NO_TERMS,
        selected: dict[PodTerm, _Nodes] | None = None,
        by_term: dict[PodTerm, _Nodes] | None = None,
        widened: dict[PodSort, tuple[PodTerm, ...]] | None = None,
    ) -> None:
        self._repelling = repelling
        self._coming: dict[PodTerm, None] = {}
        """Terms of `repelling` that are not in the index yet: it is made when it is asked for, not with each pod."""
        self._gone: dict[PodTerm, None] = {}
        """Terms of `repelling` that are not followed, and that no pod has any more."""
        self._followed = followed
        self._selected = {} if selected is None else selected
        self._by_term = {} if by_term is None else by_term
        self._mine: set[int] = set()
        """The values, by id, of the two mappings that no copy shares."""
        self._domains: dict[tuple[PodTerm, str, bool], frozenset[str]] = {}
        self.widened = {} if widened is None else widened
        """The terms that count for sorts in place of their own: see `PodSorts`."""

    def copy(self) -> PodsThere:
        """A copy; a change of one does not change the other."""
        self._mine.clear()
        return PodsThere(
            self._followed, self.repelling, dict(self._selected), dict(self._by_term), dict(self.widened)
        )

    def follow(self, followed: FollowedTerms, new: Mapping[PodTerm, _Nodes]) -> None:
        """Let other terms be followed; `new` are the pods of those that were not. Costs the terms that differ."""
        before, self._followed = self._followed, followed
        for each in before.selecting.terms - followed.selecting.terms:
            self._selected.pop(each, None)
        self._selected.update((each, nodes) for each, nodes in new.items() if nodes)
        came = followed.repelling.terms - before.repelling.terms
        gone = before.repelling.terms - followed.repelling.terms
        unused = [each for each in gone if each not in self._by_term]
        self._repelling = self._repelling.changed(came, unused)
        for each in chain(came, unused):
            self._coming.pop(each, None)
            self._gone.pop(each, None)
        self._domains.clear()

    @property
    def repelling(self) -> TermIndex:
        """The terms of anti-affinity of all these pods, and those that are followed."""
        if self._coming:
            self._repelling = self._repelling.with_terms(self._coming)
            self._coming = {}
        return self._repelling

    def forget_gone(self) -> bool:
        """Drop the terms that no pod has any more, once these are most of all; False if they are not."""
        known = len(self._repelling.terms) + len(self._coming)
        if 2 * len(self._gone) <= _MOST_GONE + known:
            return False
        came = (each for each in self._coming if each not in self._gone)
        self._repelling = self._repelling.changed(came, self._gone)
        self._coming, self._gone = {}, {}
        return True

    @property
    def followed(self) -> FollowedTerms:
        """The terms that are followed."""
        return self._followed

    def count(self, sort: PodSort, node: str, pods: int) -> bool:
        """Count pods of a sort on a node, or uncount them; False if no term concerns them."""
        selections = self._followed.selecting.selecting(sort)
        for each in selections:
            self._add(self._selected, each, node, pods)
        for each in self.widened.get(sort, sort.repels) if sort.repels else ():
            if each not in self._repelling.terms:
                self._coming[each] = None
            self._add(self._by_term, each, node, pods)
            if each in self._by_term:
                self._gone.pop(each, None)
            elif each not in self._followed.repelling.terms:
                self._gone[each] = None
        is_concerned = bool(selections or sort.repels)
        if is_concerned:
            self._domains.clear()
        return is_concerned

    def beside(self, gang: Gang, traits: Traits, *, lasts: bool = False) -> Gang:
        """The gang with the conditions on its nodes that follow from these pods; `traits` has their nodes.

        If these are the pods that last while all others end, `lasts`, others may still come that its affinity requires.
        """
        found = tuple(
            _with(each, tuple(self._conditions(each, gang, traits, lasts=lasts)), self._spread(each))
            for each in gang.pod_sets
        )
        return gang if all(map(is_, found, gang.pod_sets)) else replace(gang, pod_sets=found)

    def _spread(self, pods: PodSet) -> tuple[Spread, ...]:
        """The spreads with the pods by node that count for them; those of the pod set itself if there are none."""
        if not any(each.others in self._selected for each in pods.spread):
            return pods.spread
        return tuple(
            replace(each, there=tuple(self._selected[each.others].items()))
            if each.others in self._selected
            else each
            for each in pods.spread
        )

    def _conditions(self, pods: PodSet, gang: Gang, traits: Traits, *, lasts: bool) -> Iterator[Beside]:
        if not lasts and self._followed.leaves_out(pods):
            yield Beside(HOSTNAME, frozenset(), WhyBeside.EXCEEDS)
            return
        closed: dict[tuple[str, WhyBeside], frozenset[str]] = {}
        for each in pods.repels:
            domains = self._domains_of(selection_of(each), each.topology, traits, is_selection=True)
            _extend(closed, (each.topology, WhyBeside.REPELS), domains)
        for each in self.repelling.selecting(pods.sort) if pods.sort is not None else ():
            domains = self._domains_of(each, each.topology, traits, is_selection=False)
            _extend(closed, (each.topology, WhyBeside.IS_REPELLED), domains)
        for (topology, why), domains in sorted(closed.items()):
            if domains:
                yield Beside(topology, domains, why)
        if pods.attracts and not lasts:
            yield from self._attracted(pods, gang, traits)

    def _attracted(self, pods: PodSet, gang: Gang, traits: Traits) -> Iterator[Beside]:
        """The conditions by rule 1. Pods of the gang itself may be those that the terms require.

        If the gang can bring the first such pod wherever it is, because that pod requires nothing itself, or because
        there is none yet, the rules among its pods suffice.
        """
        attraction = attraction_of(pods.attracts)
        nodes = self._selected.get(attraction)
        if attraction not in self._followed.selecting.terms:
            return
        own = [each for each in gang.pod_sets if each.sort is not None and attraction.selects(each.sort)]
        if own and (not nodes or any(not each.attracts for each in own)):
            return
        for topology in sorted({each.topology for each in pods.attracts}):
            domains = self._domains_of(attraction, topology, traits, is_selection=True)
            yield Beside(topology, domains, WhyBeside.ATTRACTS)

    def _domains_of(
        self, term: PodTerm, topology: str, traits: Traits, *, is_selection: bool
    ) -> frozenset[str]:
        """The domains with such pods; a node without the label is in none."""
        key = term, topology, is_selection
        known = self._domains.get(key)
        if known is None:
            nodes = (self._selected if is_selection else self._by_term).get(term, {})
            rows = (traits.rows.get(name) for name, pods in nodes.items() if pods > 0)
            there = (traits.nodes[row] for row in rows if row is not None)
            values = {node.labels.get(topology) for node in there if node is not None}
            known = self._domains[key] = frozenset(value for value in values if value is not None)
        return known

    def _add(self, by_term: dict[PodTerm, _Nodes], term: PodTerm, node: str, pods: int) -> None:
        nodes = by_term.get(term)
        if nodes is None or id(nodes) not in self._mine:
            nodes = by_term[term] = dict(nodes or {})
            self._mine.add(id(nodes))
        left = nodes.get(node, 0) + pods
        if left:
            nodes[node] = left
        else:
            del nodes[node]
        if not nodes:
            self._mine.discard(id(nodes))
            del by_term[term]


def _extend(
    closed: dict[tuple[str, WhyBeside], frozenset[str]], key: tuple[str, WhyBeside], domains: frozenset[str]
) -> None:
    before = closed.get(key)
    closed[key] = domains if not before else before | domains


def _with(pods: PodSet, conditions: tuple[Beside, ...], spread: tuple[Spread, ...]) -> PodSet:
    if not conditions and spread is pods.spread:
        return pods
    beside = tuple(dict.fromkeys((*pods.nodes.beside, *conditions)))
    return replace(pods, nodes=replace(pods.nodes, beside=beside), spread=spread)


class PodSorts(Struct):
    """All pods of one cluster by sort and node, while some term is known; it keeps a `PodsThere` of them.

    `version` grows with each change that concerns a known term. The terms of a sort count as they are if its namespace
    may have that many (`core.model.gangs.term_bounds`). Else they are widened for as long as there are pods of the
    sort: by the same topology they repel every pod of the namespaces that they are about, so they select no fewer pods.
    """

    there: PodsThere = field(default_factory=PodsThere)
    version: int = 0
    _pods: dict[PodSort, _Nodes] = field(default_factory=dict)
    _by_name: dict[Named, dict[PodSort, None]] = field(default_factory=dict)
    _by_namespace: dict[str, dict[PodSort, None]] = field(default_factory=dict)
    _followed: FollowedTerms = FOLLOWS_NONE
    _bounds: TermBounds = field(default_factory=lambda: TermBounds(MOST_OF_PODS))
    _topologies: TermBounds = field(default_factory=lambda: TermBounds(_MOST_TOPOLOGIES))

    def count(self, sort: PodSort, node: str, pods: int) -> None:
        """Count pods of a sort on a node, or uncount them with a negative number."""
        nodes = self._pods.get(sort)
        if nodes is None:
            nodes = self._pods[sort] = {}
            self._note(sort)
        left = nodes.get(node, 0) + pods
        if left:
            nodes[node] = left
        else:
            del nodes[node]
        self.version += self.there.count(sort, node, pods)
        if not nodes:
            self._forget(sort)

    def taken(self) -> PodsThere:
        """The pods at this moment, without the terms of anti-affinity that no pod has any more."""
        self.version += self.there.forget_gone()
        return self.there.copy()

    def follow(self, followed: FollowedTerms) -> bool:
        """Follow these terms, and no others but those of the pods themselves; False if they are the same as before.

        A new term costs the sorts that have the label that it names, or those of its namespaces if it names none; about
        a microsecond for each that it selects.
        """
        before = self._followed
        if followed is before or followed == before:
            return False
        new = followed.selecting.terms - before.selecting.terms
        self.there.follow(followed, {each: self._selected_by(each) for each in new})
        self._followed = followed
        if before.exceeding:
            self.version += 1  # a gang whose terms are followed now was refused whatever pods there are
        return True

    def _selected_by(self, term: PodTerm) -> _Nodes:
        found: _Nodes = {}
        for sort in self._sorts_of(term):
            for node, pods in self._pods[sort].items():
                found[node] = found.get(node, 0) + pods
        return found

    def _sorts_of(self, term: PodTerm) -> Iterable[PodSort]:
        """The sorts that a term selects. They are found by sets, because many may have the label that a term names."""
        found = self._candidates(term)
        for each in term.conditions:
            names: list[Named] = [(each.key, value) for value in each.values] or [(each.key, None)]
            if names == [term.named]:
                continue
            having = set[PodSort]().union(*(self._by_name.get(name, ()) for name in names))
            found = found - having if each.operator in EXCLUDING else found & having
        listed, takes_ending = term.namespaces, term.selects_ending
        if listed is None and takes_ending:
            return found
        return (
            each
            for each in found
            if (listed is None or each.namespace in listed) and (takes_ending or not each.is_ending)
        )

    def _candidates(self, term: PodTerm) -> AbstractSet[PodSort]:
        if term.named is not None:
            return self._by_name.get(term.named, {}).keys()
        if term.namespaces is None:
            return self._pods.keys()
        return set(chain.from_iterable(self._by_namespace.get(each, ()) for each in term.namespaces))

    def _note(self, sort: PodSort) -> None:
        for name in sort.names:
            self._by_name.setdefault(name, {})[sort] = None
        self._by_namespace.setdefault(sort.namespace, {})[sort] = None
        if sort.repels and not self._bounds.take(sort.namespace, sort.repels):
            self.there.widened[sort] = self._widened(sort)

    def _widened(self, sort: PodSort) -> tuple[PodTerm, ...]:
        """The terms by topology; those of topologies beyond the bound count for the node alone."""
        own = frozenset({sort.namespace})
        wide = {PodTerm(each.topology, own if each.namespaces == own else None) for each in sort.repels}
        if not self._topologies.take(sort.namespace, _of_unknown_topology(wide)):
            wide = {
                each if each.topology in WELL_KNOWN_TOPOLOGIES else replace(each, topology=HOSTNAME)
                for each in wide
            }
        return tuple(wide)

    def _forget(self, sort: PodSort) -> None:
        del self._pods[sort]
        for name in sort.names:
            _discard(self._by_name, name, sort)
        _discard(self._by_namespace, sort.namespace, sort)
        widened = self.there.widened.pop(sort, None)
        if widened is not None:
            self._topologies.release(sort.namespace, _of_unknown_topology(widened))
        elif sort.repels:
            self._bounds.release(sort.namespace, sort.repels)


def _of_unknown_topology(terms: Iterable[PodTerm]) -> list[PodTerm]:
    return [each for each in terms if each.topology not in WELL_KNOWN_TOPOLOGIES]


def _discard(found: dict[_Key, dict[PodSort, None]], key: _Key, sort: PodSort) -> None:
    sorts = found[key]
    del sorts[sort]
    if not sorts:
        del found[key]
