"""MCAD's quota trees, read as queues: each node of a tree is a queue `TREE/NODE`.

A QuotaSubtree declares children of one parent. Its label `tree` names the tree; several QuotaSubtrees make one tree.
A gang is charged in one node of every tree: the node in the label `TREE` of its AppWrapper, else the node `default`.

| QuotaSubtree | queue |
|---|---|
| `spec.parent`; none, or `nil` | `parent`; none |
| `spec.children[].quotas.requests` | `nominalQuota`; of an inner node the total for all below, as in MCAD |
| `spec.children[].quotas.hardLimit: true` | `borrowingLimit: 0` for each resource in `requests` |
| (any AppWrapper may name a node) | `namespaceSelector: ""` |
| (MCAD's rules of preemption) | `preemption: {withinQueue: LowerPriority, reclaim: Any}` |

`quotas.disabled` has no effect, as in MCAD. A malformed part does not count and becomes a `Problem`, not an exception.
Errors that span several nodes (a parent that does not exist, a circle) are found in the forest of all queues.

Source: https://github.com/project-codeflare/multi-cluster-app-dispatcher, pkg/quotaplugins/quota-forest and
pkg/controller/quota/quotaforestmanager.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from dispatcher.api.document import Entry
from dispatcher.api.selector import EVERYTHING
from dispatcher.api.spec_errors import SpecError, one_line, quoted
from dispatcher.core.model.quantity import amount_in
from dispatcher.core.queues.declaration import resource_names
from dispatcher.core.queues.queue import Preemption, Queue, Quota, Reclaim, WithinQueue
from dispatcher.text import name_of

API_VERSIONS: Final = ("quota.codeflare.dev/v1alpha1", "ibm.com/v1")
"""The versions of QuotaSubtree, the current one first; where both declare a node, the current one counts."""

TREE_LABEL: Final = "tree"
"""On a QuotaSubtree: the name of its tree. The same name is the key of a label on AppWrappers."""

DEFAULT_NODE: Final = "default"
"""The node of an AppWrapper without a label for the tree."""

MCAD_PREEMPTION: Final = Preemption(within_queue=WithinQueue.LOWER_PRIORITY, reclaim=Reclaim.ANY)

_NO_PARENT: Final = ("", "nil")
"""Values of `spec.parent` by which MCAD knows a root."""


class Problem(Struct, frozen=True):
    """A part of a QuotaSubtree that does not count.

    `subtree` is `NAMESPACE/NAME`; `message` is one line with the place and the error there.
    """

    subtree: str
    message: str


class QuotaTrees(Struct, frozen=True):
    """What all QuotaSubtrees together declare.

    `queues` are in the order of declaration: by version, namespace and name of their QuotaSubtree, then as written.
    `trees` are the names of the trees, sorted: also of a tree whose nodes are all malformed, so that its AppWrappers
    wait and do not run without quota. `unread` are the trees of which a part is malformed, sorted.
    """

    queues: tuple[Queue, ...] = ()
    trees: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    unread: tuple[str, ...] = ()


def read_quota_subtrees(documents: Iterable[object]) -> QuotaTrees:
    """The queues of all QuotaSubtrees, as the API server returns the objects; independent of their order.

    Of several declarations of one node the first counts; a later one that differs is a problem. Never raises for JSON.
    """
    reader = _Reader()
    for document in sorted(documents, key=_precedence):
        reader.read(document)
    return QuotaTrees(
        tuple(reader.queues.values()),
        tuple(sorted(reader.trees)),
        tuple(reader.problems),
        tuple(sorted(reader.unread)),
    )


def leaves_of(labels: Mapping[str, str], trees: Iterable[str]) -> tuple[str, ...]:
    """The names of the queues in which an AppWrapper with these labels is charged: one for each tree, in their order.

    Such a queue need not exist.
    """
    return tuple(queue_name(tree, labels.get(tree, DEFAULT_NODE)) for tree in trees)


def queue_name(tree: str, node: str) -> str:
    """The name of a node's queue; no DispatchQueue can have it, because names of objects have no slash."""
    return f"{tree}/{node}"


class _Reader:
    """Gathers nodes and problems of one QuotaSubtree after the other."""

    def __init__(self) -> None:
        self.trees: set[str] = set()
        self.unread: set[str] = set()
        self.queues: dict[str, Queue] = {}
        self.problems: list[Problem] = []
        self._declared_by: dict[str, str] = {}

    def read(self, document: object) -> None:
        subtree, top = _subtree_name(document), Entry(document, "")
        try:
            tree = top.child("metadata").child("labels").child(TREE_LABEL).name()
        except SpecError as error:
            self._report(subtree, error)
            return
        self.trees.add(tree)
        try:
            for parent, child in self._children(top.child("spec")):
                self._read_child(subtree, tree, parent, child)
        except SpecError as error:
            self.unread.add(tree)
            self._report(subtree, error)

    def _children(self, spec: Entry) -> Iterator[tuple[str | None, Entry]]:
        parent = spec.child("parent")
        above = None if parent.text() in _NO_PARENT else parent.name()
        for child in spec.child("children").elements():
            yield above, child

    def _read_child(self, subtree: str, tree: str, parent: str | None, child: Entry) -> None:
        try:
            queue = _queue(tree, parent, child)
        except SpecError as error:
            self.unread.add(tree)
            self._report(subtree, error)
            return
        try:
            self._check_first(tree, queue, child.child("name"))
        except SpecError as error:
            self._report(subtree, error)
            return
        self._declared_by.setdefault(queue.name, subtree)
        self.queues.setdefault(queue.name, queue)

    def _check_first(self, tree: str, queue: Queue, name: Entry) -> None:
        if self.queues.get(queue.name, queue) != queue:
            first = self._declared_by[queue.name]
            name.fail(
                f"QuotaSubtree {first} declares {quoted(name.value)} of tree {quoted(tree)} differently"
            )

    def _report(self, subtree: str, error: SpecError) -> None:
        self.problems.append(Problem(subtree, one_line(str(error))))


def _queue(tree: str, parent: str | None, child: Entry) -> Queue:
    name = child.child("name")
    if name.name() == parent:
        name.fail("a node cannot be its own parent")
    quotas = child.child("quotas")
    return Queue(
        name=queue_name(tree, name.name()),
        parent=None if parent is None else queue_name(tree, parent),
        resources=_quotas(quotas.child("requests"), 0 if quotas.child("hardLimit").flag() else None),
        preemption=MCAD_PREEMPTION,
        namespace_selector=EVERYTHING,
    )


def _quotas(requests: Entry, borrowing_limit: int | None) -> dict[str, Quota]:
    amounts = {name: amount_in(requests.child(name), name) for name in resource_names(requests)}
    return {name: Quota(amount, borrowing_limit) for name, amount in amounts.items() if amount is not None}


def _precedence(document: object) -> tuple[bool, str, str]:
    metadata = _inner(document, "metadata")
    is_older = _inner(document, "apiVersion") == API_VERSIONS[-1]
    return is_older, name_of(_inner(metadata, "namespace")), name_of(_inner(metadata, "name"))


def _subtree_name(document: object) -> str:
    _, namespace, name = _precedence(document)
    return f"{namespace}/{name}"


def _inner(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, Mapping) else None
