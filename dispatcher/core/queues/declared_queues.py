"""All queues that the hub declares, as one value: DispatchQueues and MCAD's trees in one forest.

A malformed DispatchQueue is no queue, and those below it have no valid parent: their gangs wait, rather than run
without a quota that somebody meant to write. The same holds for a queue, or a whole tree, that was there until lately:
the absence of one that is replaced (`lingering`) does not free its gangs.

Nor does it free those of other queues of the tree. A queue that is not valid, or lingers, is held: it takes no gang,
and its last valid declaration counts for quota. So its tree limits what it limited before, it keeps what its lending
limit kept, and its running gangs are charged, and give way, where they were.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.api.names import DEFAULT_QUEUE
from dispatcher.api.spec_errors import SpecError
from dispatcher.core.queues.declaration import parse_dispatch_queue
from dispatcher.core.queues.forest import Defaults, Forest, last_valid_places
from dispatcher.core.queues.queue import Access, Queue
from dispatcher.core.queues.quota_subtrees import Problem, read_quota_subtrees
from dispatcher.values import equal_without

MALFORMED: Final = "Malformed"
"""The problem of a DispatchQueue that cannot be read."""

_NONE_BEFORE: Final[Mapping[str, Queue]] = {}

_NONE_DELETED: Final[Mapping[str, datetime | None]] = {}

_NO_QUEUE: Final = ""
"""The parent of malformed DispatchQueues, which does not exist: names of DispatchQueues are not empty."""


@equal_without("status")
class DispatchQueue(Struct, frozen=True):
    """A DispatchQueue of the hub. `error` is one line with the place of what cannot be read; empty if nothing is.

    `created` is its creation time as the API server writes it, in UTC: its order as a text is that of the times.
    `status` is what it shows, as JSON; it is output only, so two that differ in it alone are equal.
    """

    queue: Queue
    uid: str = ""
    created: str = ""
    error: str = ""
    status: object = None


class DeclaredQueues(Struct, frozen=True):
    """The forest of all queues, and the names of MCAD's trees.

    `malformed` are the errors of malformed DispatchQueues by name, `problems` the parts of QuotaSubtrees that do not
    count. `names` are those of DispatchQueues that are there, valid or not, and that linger. `there` are the keys of
    all that is there (`tree_key`). `unread` are the trees of which a part cannot be read: it may be any node.
    `invalid` are the declarations that are there and not valid.
    """

    forest: Forest = field(default_factory=Forest.undeclared)
    trees: tuple[str, ...] = ()
    malformed: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    names: frozenset[str] = frozenset()
    there: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()
    invalid: tuple[Queue, ...] = ()

    @classmethod
    def of(
        cls,
        dispatch_queues: Iterable[DispatchQueue],
        quota_subtrees: Iterable[object],
        defaults: Defaults | None = None,
        lingering: Collection[str] = (),
        last: Mapping[str, Queue] = _NONE_BEFORE,
        deleted: Mapping[str, datetime | None] = _NONE_DELETED,
    ) -> DeclaredQueues:
        """The value of these objects, in any order; QuotaSubtrees are as the API server returns them.

        DispatchQueues are in the order of their creation, then by name; the nodes of MCAD's trees follow. `lingering`,
        `last` and `deleted` are as `forest_of` has them.
        """
        found = sorted(dispatch_queues, key=lambda each: (each.created, each.queue.name))
        subtrees = list(quota_subtrees)
        trees = read_quota_subtrees(subtrees)
        queues = (*(each.queue for each in found), *trees.queues)
        names = {each.queue.name for each in found}
        forest = forest_of(queues, defaults, lingering, last, deleted)
        return cls(
            forest=replace(forest, is_declared=bool(found or subtrees or lingering)),
            trees=tuple(sorted({*trees.trees, *_trees_of(lingering)})),
            malformed={each.queue.name: each.error for each in found if each.error},
            problems=trees.problems,
            names=frozenset({*names, *_of_dispatch_queues(lingering)}),
            there=frozenset({*names, *map(tree_key, trees.trees), *(each.name for each in trees.queues)}),
            unread=frozenset(trees.unread),
            invalid=tuple(each for each in queues if each.name not in forest.places),
        )

    @property
    def is_declared(self) -> bool:
        """True if there is any DispatchQueue or QuotaSubtree, valid or not, or one that lingers."""
        return self.forest.is_declared

    @property
    def valid(self) -> tuple[Queue, ...]:
        """The declarations of the valid queues, in order, with that of `default`; none if nothing is declared."""
        return tuple(each.queue for each in self.forest.places.values()) if self.is_declared else ()

    def not_valid_now(self, last: Mapping[str, Queue]) -> tuple[Queue, ...]:
        """Of the last valid declarations of all queues, those of queues that are not valid now, there or not."""
        valid = {each.name for each in self.valid}
        return tuple(each for name, each in last.items() if name not in valid)


def forest_of(
    queues: Sequence[Queue],
    defaults: Defaults | None = None,
    lingering: Collection[str] = (),
    last: Mapping[str, Queue] = _NONE_BEFORE,
    deleted: Mapping[str, datetime | None] = _NONE_DELETED,
) -> Forest:
    """The forest of these declarations, in their order: of DispatchQueues, also malformed ones, and of MCAD's nodes.

    `lingering` are the keys of queues and trees that are not there now, and not surely gone: nothing is dispatched that
    needed one. `last` has the last valid declaration of each queue that was ever valid (`last_valid`), by name.
    `deleted` are those of `lingering` that complete lists lack, as `Forest` has them.

    The queue `default` exists without a declaration, unless queues are to be named: DispatchQueues are declared under
    the access `selected`, all DispatchQueues linger, or `default` does.
    """
    is_any_there = any(not is_of_tree(each.name) for each in queues)
    gone = _of_dispatch_queues(lingering)
    are_to_be_named = is_any_there and defaults is not None and defaults.access is Access.SELECTED
    are_all_gone = bool(gone) and not is_any_there
    forest = Forest.of(
        queues,
        defaults,
        has_default=not (are_to_be_named or are_all_gone or DEFAULT_QUEUE in gone),
    )
    malformed = (each.name for each in queues if each.parent == _NO_QUEUE)
    problems = {**forest.problems, **dict.fromkeys(malformed, MALFORMED)}
    held = sorted((problems.keys() | set(lingering)) - forest.places.keys())
    parents = {name: queue.parent for name, queue in last.items() if queue.parent is not None}
    return replace(forest, problems=problems, deleted=deleted).charging(
        last_valid_places(parents, forest.places), (last[name] for name in held if name in last)
    )


def last_valid(valid: Iterable[Iterable[Queue]]) -> dict[str, Queue]:
    """The last valid declaration of each queue, by name, after these valid ones of successive times."""
    return {queue.name: queue for queues in valid for queue in queues}


_TREE: Final = "/"
"""The end of a tree's key, and within that of a node, which is its name; the name of a DispatchQueue has none."""


def tree_key(tree: str) -> str:
    """The key of one of MCAD's trees among those of DispatchQueues, which are their names."""
    return tree + _TREE


def is_tree_key(key: str) -> bool:
    """True for the key of one of MCAD's trees."""
    return key.find(_TREE) == len(key) - len(_TREE)


def is_of_tree(key: str) -> bool:
    """True for the key of one of MCAD's trees, or of a node of one."""
    return _TREE in key


def tree_of(key: str) -> str:
    """The tree of a key that is of one."""
    return key.partition(_TREE)[0]


def _of_dispatch_queues(keys: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name in keys if not is_of_tree(name))


def _trees_of(keys: Iterable[str]) -> Iterator[str]:
    return (key.removesuffix(_TREE) for key in keys if is_tree_key(key))


def read_dispatch_queue(document: Mapping[str, object], name: str, uid: str, created: str) -> DispatchQueue:
    """The DispatchQueue of this name, as the API server returns the object. Never raises for JSON.

    A malformed one is kept by its name: nothing else may take its place, as the implicit queue `default` would.
    """
    status = document.get("status")
    try:
        return DispatchQueue(parse_dispatch_queue(document), uid, created, status=status)
    except SpecError as error:
        return DispatchQueue(Queue(name, parent=_NO_QUEUE), uid, created, str(error), status)
