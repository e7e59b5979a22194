"""The queues of a plan for people: a table of the trees, with what each queue was promised and uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dispatcher.cli.tables import table
from dispatcher.core.model.quantity import in_words
from dispatcher.core.queues.accounts import TreeQuota
from dispatcher.core.queues.forest import Forest, Place
from dispatcher.core.scheduling.sharing.cycle import QueueShare
from dispatcher.core.scheduling.world import World

HEADINGS: Final = ("QUEUE", "RESOURCE", "NOMINAL", "USED", "SHARE")

_INFINITE: Final = "infinite"
_STEP: Final = "  "
"""The indentation below a parent."""


def queue_table(world: World, shares: Mapping[str, QueueShare], width: int | None) -> list[str]:
    """A table of the declared queues, trees in the order of declaration, and lines for queues that are not valid.

    Each queue has a row for each limited resource. `SHARE` is the dominant share, or the fair share of the resource.
    Nothing if no queue is declared.
    """
    forest = world.forest
    declared = {queue.name for queue in world.queues or ()}
    rows: list[Sequence[str]] = []
    for root, tree in forest.trees.items():
        if not declared.isdisjoint(tree.names):  # `default` need not be declared to have children
            quota = TreeQuota.of(tree, forest)
            for place in _in_tree_order(forest, root):
                rows += _rows(place, quota, shares[place.name])
    blocks = [table(HEADINGS, rows, width)] if rows else []
    invalid = [f"queue {name} is not valid: {forest.problems[name]}" for name in sorted(forest.problems)]
    return [*blocks, "\n".join(invalid)] if invalid else blocks


def _in_tree_order(forest: Forest, root: str) -> Iterator[Place]:
    """Each queue, then all queues below it."""
    names = [root]
    while names:
        place = forest.places[names.pop()]
        yield place
        names += reversed(place.children)


def _rows(place: Place, quota: TreeQuota, share: QueueShare) -> Iterator[tuple[str, ...]]:
    name, total = f"{_STEP * (len(place.path) - 1)}{place.name}", quota.queues[place.name].total
    if not quota.limited:
        yield name, "", "", "", ""
    for resource in quota.limited:
        amounts = in_words(resource, total[resource]), in_words(resource, share.used[resource])
        yield name, resource, *amounts, _share(share, resource)


def _share(share: QueueShare, resource: str) -> str:
    if share.fair is not None:
        return in_words(resource, share.fair[resource])
    if share.is_infinite:
        return _INFINITE
    return "" if share.share is None else str(share.share)
