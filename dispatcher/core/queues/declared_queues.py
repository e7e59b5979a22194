"""All queues that the hub declares, as one value: DispatchQueues and MCAD's trees in one forest.

A malformed DispatchQueue is no queue, and those below it have no valid parent: their gangs wait, rather than run
without a quota that somebody meant to write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.core.model.document import DocumentError
from dispatcher.core.queues.declaration import parse_dispatch_queue
from dispatcher.core.queues.forest import Defaults, Forest
from dispatcher.core.queues.queue import Queue
from dispatcher.core.queues.quota_subtrees import Problem, read_quota_subtrees
from dispatcher.values import equal_without

MALFORMED: Final = "Malformed"
"""The problem of a DispatchQueue that cannot be read."""

_NO_QUEUE: Final = ""
"""A parent that does not exist: names of DispatchQueues are not empty."""


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
    count. `is_declared` is true if there is any DispatchQueue or QuotaSubtree, valid or not.
    """

    forest: Forest = field(default_factory=lambda: Forest.of(()))
    trees: tuple[str, ...] = ()
    malformed: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    is_declared: bool = False

    @classmethod
    def of(
        cls,
        dispatch_queues: Iterable[DispatchQueue],
        quota_subtrees: Iterable[object],
        defaults: Defaults | None = None,
    ) -> DeclaredQueues:
        """The value of these objects, in any order; QuotaSubtrees are as the API server returns them.

        DispatchQueues are in the order of their creation, then by name; the nodes of MCAD's trees follow.
        """
        found = sorted(dispatch_queues, key=lambda each: (each.created, each.queue.name))
        subtrees = list(quota_subtrees)
        trees = read_quota_subtrees(subtrees)
        malformed = {each.queue.name: each.error for each in found if each.error}
        forest = Forest.of((*(each.queue for each in found), *trees.queues), defaults)
        problems = {**forest.problems, **dict.fromkeys(malformed, MALFORMED)}
        return cls(
            forest=replace(forest, problems=problems),
            trees=trees.trees,
            malformed=malformed,
            problems=trees.problems,
            is_declared=bool(found or subtrees),
        )


def read_dispatch_queue(document: Mapping[str, object], name: str, uid: str, created: str) -> DispatchQueue:
    """The DispatchQueue of this name, as the API server returns the object. Never raises for JSON.

    A malformed one is kept by its name: nothing else may take its place, as the implicit queue `default` would.
    """
    status = document.get("status")
    try:
        return DispatchQueue(parse_dispatch_queue(document), uid, created, status=status)
    except DocumentError as error:
        return DispatchQueue(Queue(name, parent=_NO_QUEUE), uid, created, str(error), status)
