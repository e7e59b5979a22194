"""Required terms about other pods, and the sorts of pods that they select, as in Kubernetes.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#inter-pod-affinity-and-anti-affinity
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.model.nodes import LabelOperator, LabelRequirement

Item = tuple[str, str]
"""A label: its key and its value."""

OWN_NAMESPACE: Final = ""
"""Stands for the namespace of the pod that has a term, until that is known."""


class PodTerm(Struct, frozen=True, cache_hash=True):
    """A required term about other pods: their domain is that of `topology`, a label of nodes.

    It selects the pods in `namespaces` (None: in every namespace) with labels that satisfy all `conditions`. Terms of
    affinity also select pods that are being deleted, `selects_ending`; those of a topology spread do not.
    """

    topology: str
    namespaces: frozenset[str] | None
    conditions: tuple[LabelRequirement, ...] = ()
    selects_ending: bool = True

    def selects(self, sort: PodSort) -> bool:
        """True if it selects pods of this sort."""
        if sort.is_ending and not self.selects_ending:
            return False
        if self.namespaces is not None and sort.namespace not in self.namespaces:
            return False
        labels = dict(sort.labels)
        return all(each.matches(labels) for each in self.conditions)

    @property
    def item(self) -> Item | None:
        """A label that every selected pod has; None if no condition names one."""
        for each in self.conditions:
            if each.operator is LabelOperator.IN and len(each.values) == 1:
                return each.key, each.values[0]
        return None

    def in_namespace(self, namespace: str) -> PodTerm:
        """The term of a pod in that namespace, if it was read without one."""
        if self.namespaces is None or OWN_NAMESPACE not in self.namespaces:
            return self
        return replace(self, namespaces=self.namespaces - {OWN_NAMESPACE} | {namespace})


class PodSort(Struct, frozen=True, weakref=True, cache_hash=True):
    """The facts of a pod that terms about pods depend on: `repels` are its own terms of required anti-affinity.

    `labels` are sorted. A pod `is_ending` once its deletion was requested. Equal sorts from `of` are one object: many
    pods are of one sort.
    """

    namespace: str
    labels: tuple[Item, ...] = ()
    repels: tuple[PodTerm, ...] = ()
    is_ending: bool = False

    @classmethod
    def of(
        cls,
        namespace: str,
        labels: Iterable[Item],
        repels: tuple[PodTerm, ...] = (),
        *,
        is_ending: bool = False,
    ) -> PodSort:
        """The sort of pods with these labels, of which none is of one pod alone."""
        return cls(namespace, tuple(sorted(labels)), repels, is_ending).shared()

    def shared(self) -> PodSort:
        """The one object for this sort."""
        return _SORTS.setdefault((self.namespace, self.labels, self.repels, self.is_ending), self)

    def in_namespace(self, namespace: str) -> PodSort:
        """The sort in that namespace, if it was read without one."""
        repels = tuple(each.in_namespace(namespace) for each in self.repels)
        return PodSort(self.namespace or namespace, self.labels, repels, self.is_ending).shared()


_SORTS: Final = WeakValueDictionary[object, PodSort]()


class TermIndex:
    """A set of terms, and which of them select a sort of pods; immutable.

    A sort is compared only with the terms about its namespace that name one of its labels, or no label.
    """

    __slots__ = ("_by_key", "_known", "terms")

    def __init__(self, terms: Iterable[PodTerm] = ()) -> None:
        self.terms = frozenset(terms)
        self._by_key: dict[_Key, tuple[PodTerm, ...]] = {}
        self._known: dict[PodSort, frozenset[PodTerm]] = {}
        self._index(self.terms)

    def _index(self, terms: Iterable[PodTerm]) -> None:
        new: dict[_Key, list[PodTerm]] = {}
        for each in terms:
            item = each.item
            for namespace in (None,) if each.namespaces is None else each.namespaces:
                new.setdefault((namespace, item), []).append(each)
        for key, found in new.items():
            self._by_key[key] = (*self._by_key.get(key, ()), *found)

    def __eq__(self, other: object) -> bool:
        """True if both have the same terms."""
        return isinstance(other, TermIndex) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self.terms)

    def selecting(self, sort: PodSort) -> frozenset[PodTerm]:
        """The terms that select pods of this sort."""
        known = self._known.get(sort)
        if known is None:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            known = self._known[sort] = frozenset(
                term for term in self._candidates(sort) if term.selects(sort)
            )
        return known

    def union(self, other: TermIndex) -> TermIndex:
        """The terms of both."""
        return self if other.terms <= self.terms else self.with_terms(other.terms)

    def with_terms(self, terms: Iterable[PodTerm]) -> TermIndex:
        """These terms, and others; costs one copy of a dictionary, and the terms that are new."""
        new = frozenset(terms) - self.terms
        if not new:
            return self
        found = TermIndex()
        found.terms = self.terms | new
        found._by_key = self._by_key.copy()
        found._index(new)
        return found

    def _candidates(self, sort: PodSort) -> Iterator[PodTerm]:
        for namespace in (None, sort.namespace):
            for item in (None, *sort.labels):
                yield from self._by_key.get((namespace, item), ())


NO_TERMS: Final = TermIndex()
_Key = tuple[str | None, Item | None]
"""A namespace, and a label that every selected pod has; None if a term names none."""
_MOST_REMEMBERED: Final = 20_000
