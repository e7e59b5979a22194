"""Required terms about other pods, and the sorts of pods that they select, as in Kubernetes.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#inter-pod-affinity-and-anti-affinity
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.model.clusters.nodes import HOSTNAME, LabelOperator, LabelRequirement

Item = tuple[str, str]
"""A label: its key and its value."""
Named = tuple[str, str | None]
"""A label that a term names: its key and its value; None for any value."""

OWN_NAMESPACE: Final = ""
"""Stands for the namespace of the pod that has a term, until that is known."""
WELL_KNOWN_TOPOLOGIES: Final = frozenset(
    {HOSTNAME, "topology.kubernetes.io/zone", "topology.kubernetes.io/region"}
)
EXCLUDING: Final = frozenset({LabelOperator.NOT_IN, LabelOperator.DOES_NOT_EXIST})
"""The conditions that pods without the label satisfy."""
_ANY_TOPOLOGY: Final = ""
_MOST_NAMED: Final = 5
"""Namespaces that a message names; the others are counted."""


class PodTerm(Struct, frozen=True, cache_hash=True, omit_defaults=True):
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
        return self.selects_labels(sort, dict(sort.labels))

    def selects_labels(self, sort: PodSort, labels: Mapping[str, str]) -> bool:
        """True if it selects pods of this sort, whose labels are `labels`."""
        if sort.is_ending and not self.selects_ending:
            return False
        if self.namespaces is not None and sort.namespace not in self.namespaces:
            return False
        return all(each.matches(labels) for each in self.conditions)

    @property
    def named(self) -> Named | None:
        """A label that every selected pod has, by its value if a term says one; None if no condition names a label."""
        keys = [each for each in self.conditions if each.operator in _NAMING]
        for each in keys:
            if each.operator is LabelOperator.IN and len(each.values) == 1:
                return each.key, each.values[0]
        return (keys[0].key, None) if keys else None

    def __str__(self) -> str:
        """The selected pods in words that follow "a pod"."""
        labels = f"with {', '.join(map(str, self.conditions))}" if self.conditions else "with any labels"
        if self.namespaces is None:
            return f"{labels} of any namespace"
        names = sorted(self.namespaces)
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        return f"{labels} of namespace {', '.join(names[:_MOST_NAMED])}{more}"

    def in_namespace(self, namespace: str) -> PodTerm:
        """The term of a pod in that namespace, if it was read without one."""
        if self.namespaces is None or OWN_NAMESPACE not in self.namespaces:
            return self
        return replace(self, namespaces=self.namespaces - {OWN_NAMESPACE} | {namespace})


@lru_cache(maxsize=10_000)
def selection_of(term: PodTerm) -> PodTerm:
    """The pods that a term selects, wherever they are."""
    return replace(term, topology=_ANY_TOPOLOGY)


@lru_cache(maxsize=10_000)
def attraction_of(terms: tuple[PodTerm, ...]) -> PodTerm:
    """The pods that all terms of an affinity select: kube-scheduler counts no others for any of them."""
    listed = [each.namespaces for each in terms if each.namespaces is not None]
    namespaces = frozenset.intersection(*listed) if listed else None
    conditions = dict.fromkeys(condition for each in terms for condition in each.conditions)
    return PodTerm(_ANY_TOPOLOGY, namespaces, tuple(conditions))


class PodSort(Struct, frozen=True, weakref=True, cache_hash=True, omit_defaults=True):
    """The facts of a pod that terms about pods depend on: `repels` are its own terms of required anti-affinity.

    `labels` are sorted. A pod `is_ending` once its deletion was requested. Equal sorts from `of` are one object: many
    pods are of one sort.
    """

    namespace: str
    labels: tuple[Item, ...] = ()
    repels: tuple[PodTerm, ...] = ()
    is_ending: bool = False

    @property
    def names(self) -> Iterator[Named]:
        """What terms may name that select it: each of its labels, with the value and with any."""
        for key, value in self.labels:
            yield key, value
            yield key, None

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

    A sort is compared only with the terms about its namespace that name one of its labels, or no label. A term that
    lists many namespaces is kept as one about every namespace, so a term has at most `_MOST_KEYS` keys.
    """

    __slots__ = ("_by_key", "_known", "terms")

    def __init__(self, terms: Iterable[PodTerm] = ()) -> None:
        self.terms = frozenset(terms)
        self._by_key: dict[_Key, tuple[PodTerm, ...]] = {}
        self._known: dict[PodSort, frozenset[PodTerm]] = {}
        self._index(self.terms)

    def _index(self, terms: Iterable[PodTerm]) -> None:
        for key, found in _by_key(terms).items():
            self._by_key[key] = (*self._by_key.get(key, ()), *found)

    def _remove(self, terms: Collection[PodTerm]) -> None:
        for key in _by_key(terms):
            kept = tuple(each for each in self._by_key[key] if each not in terms)
            if kept:
                self._by_key[key] = kept
            else:
                del self._by_key[key]

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
            labels = dict(sort.labels)
            known = self._known[sort] = frozenset(
                term for term in self._candidates(sort) if term.selects_labels(sort, labels)
            )
        return known

    def union(self, other: TermIndex) -> TermIndex:
        """The terms of both."""
        return self if other.terms <= self.terms else self.with_terms(other.terms)

    def with_terms(self, terms: Iterable[PodTerm]) -> TermIndex:
        """These terms, and others; costs one copy of a dictionary, and the terms that are new."""
        return self.changed(terms, ())

    def changed(self, came: Iterable[PodTerm], gone: Iterable[PodTerm]) -> TermIndex:
        """These terms without those that are gone, and with those that came.

        Costs one copy of a dictionary, the terms that differ, and those that name the same label as one that is gone.
        """
        coming = frozenset(came)
        new, lost = coming - self.terms, (frozenset(gone) & self.terms) - coming
        if not (new or lost):
            return self
        found = TermIndex()
        found.terms = (self.terms - lost) | new
        found._by_key = self._by_key.copy()
        found._remove(lost)
        found._index(new)
        return found

    def _candidates(self, sort: PodSort) -> Iterator[PodTerm]:
        for namespace in (None, sort.namespace):
            for named in (None, *sort.names):
                yield from self._by_key.get((namespace, named), ())


def _by_key(terms: Iterable[PodTerm]) -> dict[_Key, list[PodTerm]]:
    found: dict[_Key, list[PodTerm]] = {}
    for each in terms:
        named, listed = each.named, each.namespaces
        for namespace in (None,) if listed is None or len(listed) > _MOST_KEYS else listed:
            found.setdefault((namespace, named), []).append(each)
    return found


NO_TERMS: Final = TermIndex()
_Key = tuple[str | None, Named | None]
"""A namespace, and a label that every selected pod has; None if a term names none."""
_NAMING: Final = frozenset({LabelOperator.IN, LabelOperator.EXISTS})
"""The conditions that only pods with the label satisfy."""
_MOST_KEYS: Final = 4
_MOST_REMEMBERED: Final = 20_000
