"""The nodes of a cluster without their amounts: usable or not, taints, labels, and which pods may use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from operator import and_, or_
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from dispatcher.core.model.bounded_dict import remember
from dispatcher.core.model.clusters.nodes import (
    ANY_NODE,
    HOSTNAME,
    Beside,
    LabelOperator,
    LabelRequirement,
    Node,
    NodeRequirements,
    NodeTerm,
    Taint,
    whole_number,
)
from dispatcher.core.model.gangs.gang import Constraint, PodSet, Spread
from dispatcher.core.model.gangs.pod_terms import EXCLUDING
from dispatcher.core.model.resources import NOTHING, Resources

Amounts = NDArray[np.int64]
Mask = NDArray[np.bool_]
"""Arrays with one entry for each node."""

_MOST_MASKS: Final = 2000
"""Constraints whose nodes are kept."""

_MOST_COMPARISONS: Final = 10_000
"""Comparisons of nodes with conditions at once after a change, some hundredths of a second; beyond that, all nodes are
compared, on the next question."""

_MOST_LABELS: Final = 1024
"""Labels of nodes whose values are kept, as numbers by node."""

_MOST_SPREADS: Final = 256
"""Constraints with spreads whose domains are kept, as numbers by node."""

_MOST_INCLUDING: Final = 64
"""Traits with different potential nodes that are kept."""

_MOST_BESIDE: Final = 64
"""Constraints with conditions by other pods whose nodes are kept."""

_MOST_EXCLUSIONS: Final = 2000
"""Sets of constraints for which the excluded nodes are kept."""

_MOST_REASONS: Final = 3
"""Reasons for the exclusion of nodes that are kept and named; the nodes of the others are counted together."""

_MOST_SIZES: Final = 1024
"""How many keys of `_size_and_taints` are kept: one for each distinct size of a node with its taints."""

PLAIN: Final = PodSet(1, NOTHING)
"""Pods without constraints: they stand for the pods of a gang without pod sets."""


class Exclusions(Struct, frozen=True):
    """The nodes that no pod may use: `named` has the most frequent reasons in words, each with its number of nodes."""

    named: tuple[tuple[str, int], ...] = ()
    others: int = 0
    """The nodes that are excluded for other reasons."""

    @property
    def total(self) -> int:
        """All excluded nodes."""
        return sum(count for _, count in self.named) + self.others


class Domains(Struct, frozen=True):
    """The `count` domains of a topology spread: the number of each node's domain, or -1 if the node counts for none."""

    of_node: Amounts
    count: int


class Traits:
    """The nodes without their free amounts: whether they are usable, their taints and labels; immutable.

    The nodes of each constraint are found once, and carried over to the next traits but for the changed node.

    Plans in threads and the loop share traits. So what is remembered is put down whole, by one operation, and nothing
    iterates over a dictionary that another thread may add to.
    """

    def __init__(self, nodes: tuple[Node | None, ...] = (), rows: Mapping[str, int] | None = None) -> None:
        self.nodes = nodes
        self.rows = rows or {}
        """The place of each node in the arrays, by name."""
        self._masks: dict[Constraint | None, Mask] = {}
        self._labels: frozenset[str] | None = None
        """The labels that some node has."""
        self._domains: dict[str, _Texts] = {}
        self._unlabelled: _Texts | None = None
        self._names: _Texts | None = None
        self._spread: dict[tuple[Constraint, tuple[Spread, ...]], tuple[Domains, ...]] = {}
        self._keys: list[_Key] | None = None
        self._order: Amounts | None = None
        self._exclusions: dict[frozenset[Constraint], Exclusions] = {}
        self._taints: _Taints | None = None
        self._including: dict[tuple[int, ...], Traits] = {}
        self._beside: dict[Constraint, Mask] = {}

    def including(self, rows: tuple[int, ...], others: Traits) -> Traits:
        """The traits with the nodes that `others` has in these rows; kept, because many gangs ask for the same."""
        known = self._including.get(rows)
        if known is None:
            known = self.changed({row: others.nodes[row] for row in rows}) if rows else self
            remember(self._including, _MOST_INCLUDING, rows, known)
        return known

    def changed(self, changes: Mapping[int, Node | None]) -> Traits:
        """The traits with other nodes in these rows."""
        nodes, rows = list(self.nodes), self.rows
        nodes.extend([None] * (max(changes) + 1 - len(nodes)))
        before = {row: nodes[row] for row in changes}
        for row, node in changes.items():
            nodes[row] = node
        if any(_name_of(before[row]) != _name_of(node) for row, node in changes.items()):
            rows = {node.name: row for row, node in enumerate(nodes) if node is not None}
        following = Traits(tuple(nodes), rows)
        # A plan may find the keys, and then the order, between these two: the order is never newer than the keys.
        order, keys = self._order, self._keys
        following._keys = _changed_keys(keys, nodes, changes)
        if following._keys == keys:
            following._order = order
        # A copy, because a plan may add masks meanwhile. It is whole: it uses the hashes that the dictionary has, and
        # keys with equal hashes are compared without Python code, so no other thread runs until it is made.
        masks = self._masks.copy()
        if len(changes) * sum(map(_comparisons_of, masks)) < _MOST_COMPARISONS:
            following._masks = {
                constraint: following._amended(constraint, mask, changes)
                for constraint, mask in masks.items()
            }
        return following

    def usable(self) -> Mask:
        """The usable nodes."""
        return self._mask(None)

    def usable_by(self, pod_set: PodSet) -> Mask:
        """The nodes that the pods of a set may use."""
        constraint = pod_set.constraint
        return self._beside_mask(constraint) if pod_set.nodes.beside else self._mask(constraint)

    def is_usable(self, node: str) -> bool:
        """True if a node is there, Ready and not cordoned."""
        row = self.rows.get(node)
        return row is not None and bool(self.usable()[row])

    def domains(self, label: str) -> Amounts:
        """The number of each node's value of a label; -1 where the node lacks the label."""
        return self._labelled(label).numbers

    def spread_domains(self, pod_set: PodSet) -> tuple[Domains, ...]:
        """The domains of each spread of a pod set; a node that lacks the label of one of them counts for none."""
        if pod_set.depends_on_others:  # kube-scheduler does not ask other pods whether a domain counts
            pod_set = _alone(pod_set)
        key = pod_set.constraint, pod_set.spread
        known = self._spread.get(key)
        if known is None:
            labelled = np.ones(len(self.nodes), np.bool_)
            for each in pod_set.spread:
                labelled &= self.domains(each.topology) >= 0
            known = tuple(self._domains_of(pod_set, each, labelled) for each in pod_set.spread)
            remember(self._spread, _MOST_SPREADS, key, known)
        return known

    def _domains_of(self, pod_set: PodSet, spread: Spread, labelled: Mask) -> Domains:
        rows = np.flatnonzero(labelled & self._counted_by(pod_set, spread))
        values, numbers = np.unique(self.domains(spread.topology)[rows], return_inverse=True)
        of_node = np.full(len(self.nodes), -1, np.int64)
        of_node[rows] = numbers
        return Domains(of_node, values.size)

    def _counted_by(self, pod_set: PodSet, spread: Spread) -> Mask:
        """The nodes whose domains count. kube-scheduler counts full, cordoned and, unless told, tainted nodes, too."""
        requirements = ANY_NODE if spread.ignores_requirements else pod_set.nodes
        if spread.honors_taints:
            return self._mask((pod_set.tolerations, requirements))
        return self._there() & self._meeting(requirements)

    def exclusions(self, pod_sets: Sequence[PodSet]) -> Exclusions:
        """How many nodes no pod of these sets may use, and why; the reason is that of the first set.

        Only what is named is kept: the nodes may have as many reasons as they have taints.
        """
        constraints = frozenset(each.constraint for each in pod_sets)
        known = self._exclusions.get(constraints)
        if known is None:
            counts = Counter[str]()
            for reason, count in self._count_excluded(pod_sets or (PLAIN,)):
                counts[reason] += count
            named = tuple(sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:_MOST_REASONS])
            known = Exclusions(named, counts.total() - sum(count for _, count in named))
            remember(self._exclusions, _MOST_EXCLUSIONS, constraints, known)
        return known

    def why_excluded(self, pod_sets: Sequence[PodSet]) -> dict[str, str]:
        """The nodes that no pod of these sets may use, by name, each with the reason, as `exclusions` counts them.

        Costs O(nodes), and nothing is kept.
        """
        sets = pod_sets or (PLAIN,)
        alone, excluded = self._excluded_alone(sets)
        found = {self._name(row): reason for reason, nodes in alone for row in np.flatnonzero(nodes).tolist()}
        distinct, numbers = self._distinct_taints()
        reasons = {
            number: _why_excluded(sets[0], distinct[number]) for number in np.unique(numbers[excluded])
        }
        return found | {self._name(row): reasons[numbers[row]] for row in np.flatnonzero(excluded).tolist()}

    def _count_excluded(self, pod_sets: Sequence[PodSet]) -> Iterator[tuple[str, int]]:
        alone, excluded = self._excluded_alone(pod_sets)
        for reason, nodes in alone:
            if count := int(nodes.sum()):
                yield reason, count
        distinct, numbers = self._distinct_taints()
        counts = Counter[str]()
        for number, count in zip(*np.unique(numbers[excluded], return_counts=True), strict=True):
            counts[_why_excluded(pod_sets[0], distinct[number])] += int(count)
        yield from counts.items()

    def _excluded_alone(self, pod_sets: Sequence[PodSet]) -> tuple[list[tuple[str, Mask]], Mask]:
        """The nodes that no pod of these sets may use whatever their taints, by the reason; and those left over.

        The latter are excluded for their taints or labels.
        """
        ready = np.fromiter(
            (node is not None and node.ready for node in self.nodes), np.bool_, len(self.nodes)
        )
        unusable = self._there() & ~self.usable()
        found = [("cordoned", unusable & ready), ("not ready", unusable & ~ready)]
        excluded = self.usable() & ~reduce(or_, map(self.usable_by, pod_sets))
        first = pod_sets[0]
        if first.nodes.beside:
            open_alone = self.usable_by(_alone(first))
            for each in first.nodes.beside:
                closed = excluded & open_alone & ~self._allowed_by(each)
                found.append((each.why, closed))
                excluded &= ~closed
        return found, excluded

    def _name(self, row: int) -> str:
        return _name_of(self.nodes[row])

    @property
    def order(self) -> Amounts:
        """The place of each node: it decides between equally good nodes, whatever the order in which they joined.

        Nodes with fewer labels and taints come first, and leave the others to pods that need these. Only nodes of one
        shape are in the order of their names, so how a plan goes on does not depend on the names of added nodes.
        """
        if self._order is None:
            keys = self._keys = self._keys or list(map(_key_of, self.nodes))
            order = np.empty(len(keys), np.int64)
            rows = sorted(range(len(keys)), key=keys.__getitem__)
            order[rows] = np.arange(len(rows))
            self._order = order
        return self._order

    def _mask(self, constraint: Constraint | None) -> Mask:
        known = self._masks.get(constraint)
        if known is None:
            known = self._find_mask(constraint)
            remember(self._masks, _MOST_MASKS, constraint, known)
        return known

    def _beside_mask(self, constraint: Constraint) -> Mask:
        """The nodes of a constraint with conditions of one moment, of which few are kept."""
        known = self._beside.get(constraint)
        if known is None:
            tolerations, requirements = constraint
            alone = self._mask((tolerations, replace(requirements, beside=())))
            known = reduce(and_, map(self._allowed_by, requirements.beside), alone)
            remember(self._beside, _MOST_BESIDE, constraint, known)
        return known

    def _allowed_by(self, condition: Beside) -> Mask:
        """The nodes that a condition on their domain allows."""
        labelled = self._labelled(condition.topology)
        answers = [condition.allows(value) for value in (*labelled.distinct, None)]
        return np.array(answers, np.bool_)[labelled.numbers]  # -1 is the last: without the label

    def _find_mask(self, constraint: Constraint | None) -> Mask:
        """The nodes of a constraint: each condition is compared once with each distinct value, not with each node."""
        if constraint is None:
            usable = (node is not None and node.usable for node in self.nodes)
            return np.fromiter(usable, np.bool_, len(self.nodes))
        tolerations, requirements = constraint
        pods = PodSet(1, NOTHING, tolerations)
        distinct, numbers = self._distinct_taints()
        tolerated = np.array([pods.tolerates(each) for each in distinct], np.bool_)
        return self.usable() & tolerated[numbers] & self._meeting(requirements)

    def _there(self) -> Mask:
        """The rows that have a node."""
        return np.fromiter((node is not None for node in self.nodes), np.bool_, len(self.nodes))

    def _meeting(self, requirements: NodeRequirements) -> Mask:
        """The nodes whose labels and names meet the requirements."""
        found = np.ones(len(self.nodes), np.bool_)
        if requirements.selector:
            selected = ((key, LabelOperator.IN, (value,)) for key, value in requirements.selector)
            found = found & self._matching(NodeTerm(tuple(LabelRequirement(*each) for each in selected)))
        if requirements.terms:
            found = found & reduce(or_, map(self._matching, requirements.terms))
        return found

    def _matching(self, term: NodeTerm) -> Mask:
        """The nodes that match a term of a node affinity; none for a term without conditions."""
        if not term.labels and not term.names:
            return np.zeros(len(self.nodes), np.bool_)
        by_text: dict[_Texts, Mask] = {}
        conditions = [(self._labelled(each.key), each) for each in term.labels]
        conditions += [(self._named(), each) for each in term.names]
        for texts, required in conditions:
            answers = texts.satisfying(required)
            by_text[texts] = by_text[texts] & answers if texts in by_text else answers
        return reduce(and_, (answers[texts.numbers] for texts, answers in by_text.items()))

    def _labelled(self, label: str) -> _Texts:
        """The values of a label; the same object for all labels that no node has, because anyone may invent such."""
        if self._labels is None:
            self._labels = frozenset[str]().union(*(node.labels for node in self.nodes if node is not None))
        if label not in self._labels:
            if self._unlabelled is None:
                self._unlabelled = _Texts([None] * len(self.nodes))
            return self._unlabelled
        known = self._domains.get(label)
        if known is None:
            known = _Texts([None if node is None else node.labels.get(label) for node in self.nodes])
            remember(self._domains, _MOST_LABELS, label, known)
        return known

    def _named(self) -> _Texts:
        """The names of the nodes."""
        if self._names is None:
            self._names = _Texts([None if node is None else node.name for node in self.nodes])
        return self._names

    def _distinct_taints(self) -> _Taints:
        if self._taints is None:
            numbers: dict[tuple[Taint, ...], int] = {}
            found = (
                numbers.setdefault(() if node is None else node.taints, len(numbers)) for node in self.nodes
            )
            array = np.fromiter(found, np.int64, len(self.nodes))
            self._taints = _Taints(list(numbers), array)
        return self._taints

    def _amended(self, constraint: Constraint | None, mask: Mask, rows: Iterable[int]) -> Mask:
        amended = np.zeros(len(self.nodes), np.bool_)
        amended[: mask.size] = mask
        for row in rows:
            amended[row] = _may_use(self.nodes[row], constraint)
        return amended


class _Texts:
    """A text of each node, such as the value of a label: the number of each distinct one, and -1 without a text."""

    __slots__ = ("_whole", "distinct", "numbers")

    def __init__(self, texts: Sequence[str | None]) -> None:
        there = sorted({text for text in texts if text is not None})
        self.distinct: dict[str, int] = {text: number for number, text in enumerate(there)}
        """The number of each text, in their order."""
        found = (-1 if text is None else self.distinct[text] for text in texts)
        self.numbers: Amounts = np.fromiter(found, np.int64, len(texts))
        self._whole: tuple[Mask, Amounts] | None = None

    def satisfying(self, required: LabelRequirement) -> Mask:
        """Which texts satisfy a condition, by their numbers; the last answer, that of -1, is for no text."""
        answers = np.zeros(len(self.distinct) + 1, np.bool_)
        match required.operator:
            case LabelOperator.IN | LabelOperator.NOT_IN:
                answers[[self.distinct[each] for each in required.values if each in self.distinct]] = True
            case LabelOperator.EXISTS | LabelOperator.DOES_NOT_EXIST:
                answers[:-1] = True
            case LabelOperator.GT | LabelOperator.LT:
                return self._comparing(required)
        return ~answers if required.operator in EXCLUDING else answers

    def _comparing(self, required: LabelRequirement) -> Mask:
        """As `satisfying`, for GT and LT; the numbers are read once for many conditions."""
        bound = whole_number(required.values[0])
        if self._whole is None:
            whole = [whole_number(each) for each in (*self.distinct, "")]
            is_whole = np.array([each is not None for each in whole], np.bool_)
            self._whole = is_whole, np.array([each or 0 for each in whole], np.int64)
        is_whole, amounts = self._whole
        if bound is None:
            return np.zeros_like(is_whole)
        found: Mask = is_whole & (
            amounts > bound if required.operator is LabelOperator.GT else amounts < bound
        )
        return found


class _Taints(NamedTuple):
    """The distinct taints of nodes, and the number of each node's."""

    distinct: list[tuple[Taint, ...]]
    numbers: Amounts


def _why_excluded(pod_set: PodSet, taints: tuple[Taint, ...]) -> str:
    """Why no pod of a set may use a usable node with these taints."""
    for taint in taints:
        if not pod_set.tolerates((taint,)):
            return f"with taint {taint} not tolerated"
    return "not selected by its pods"


def _alone(pod_set: PodSet) -> PodSet:
    """The pod set without the conditions by pods that are there, and without their number."""
    spread = tuple(replace(each, there=()) for each in pod_set.spread)
    return replace(pod_set, nodes=replace(pod_set.nodes, beside=()), spread=spread)


class _Key(NamedTuple):
    """By this nodes are in order: the number of labels and taints, the shape, the name.

    `shape` has the labels but for the host's name, the taints and the amounts. One text is compared faster than these.
    """

    size: int = 0
    shape: str = ""
    name: str = ""


def _key_of(node: Node | None) -> _Key:
    if node is None:
        return _Key()
    labels, taints = node.labels, node.taints
    shape = ",".join([f"{name},{labels[name]}" for name in sorted(labels) if name != HOSTNAME])
    constraints = len(labels) - (HOSTNAME in labels) + len(taints)
    return _Key(constraints, shape + _size_and_taints(node.allocatable, taints), node.name)


def _changed_keys(
    keys: Sequence[_Key] | None, nodes: Sequence[Node | None], changes: Iterable[int]
) -> list[_Key] | None:
    """The keys of all nodes after a change; None while no order was asked for."""
    if keys is None:
        return None
    changed = [*keys, *[_key_of(None)] * (len(nodes) - len(keys))]
    for row in changes:
        changed[row] = _key_of(nodes[row])
    return changed


def values_of(label: str, nodes: Iterable[Node]) -> frozenset[str]:
    """The values of a label of these nodes, of those that have it."""
    values = (node.labels.get(label) for node in nodes)
    return frozenset(value for value in values if value is not None)


@lru_cache(_MOST_SIZES)
def _size_and_taints(allocatable: Resources, taints: tuple[Taint, ...]) -> str:
    """The part of a key that most nodes share; kept, because it takes half of the time of a key."""
    amounts = "".join(f"{name}={amount}," for name, amount in sorted(allocatable.items()))
    return f" {''.join(sorted(f'{each},{each.effect},' for each in taints))} {amounts}"


def _name_of(node: Node | None) -> str:
    return "" if node is None else node.name


def _comparisons_of(constraint: Constraint | None) -> int:
    """The work of comparing a node with a constraint: that of its requirements, and one for the rest."""
    return 1 if constraint is None else 1 + constraint[1].comparisons


def _may_use(node: Node | None, constraint: Constraint | None) -> bool:
    if node is None or not node.usable:
        return False
    if constraint is None:
        return True
    tolerations, requirements = constraint
    return PodSet(1, NOTHING, tolerations, requirements).may_use(node)
