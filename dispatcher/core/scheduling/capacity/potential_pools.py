"""Which nodes of one cluster are of the pools that may grow, and which potential nodes there are beside them.

`NodeLedger` gives a potential node (`core.model.clusters.potential`) a row like that of a node, and places of gangs on
trust. `PotentialPools` adds and removes potential nodes, so that a pool has as many as it may still grow by. The ledger
tells it of all nodes; it knows neither rows nor places. A potential node without places disappears before one with
places.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct, field

from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.clusters.potential import PotentialPool, pool_of


class _PoolState(Struct):
    """A pool, the names of its nodes, and the numbers of its potential nodes."""

    pool: PotentialPool
    nodes: dict[str, None] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)


class PotentialPools:
    """The pools of one cluster that may grow, with their nodes and their potential nodes."""

    def __init__(self) -> None:
        self._pools: dict[str, _PoolState] = {}

    def __bool__(self) -> bool:
        """True if any pool may grow."""
        return bool(self._pools)

    @property
    def pools(self) -> tuple[PotentialPool, ...]:
        """The pools, as they were declared."""
        return tuple(each.pool for each in self._pools.values())

    def names(self) -> dict[str, tuple[str, ...]]:
        """The names of the potential nodes of each pool, in the order of their numbers."""
        return {
            name: tuple(each.pool.node(number).name for number in sorted(each.numbers))
            for name, each in self._pools.items()
        }

    def declare(self, pools: Iterable[PotentialPool], nodes: Iterable[Node]) -> None:
        """Declare the pools, in place of those before, without potential nodes; `nodes` are all that are there."""
        there = list(nodes)
        self._pools = {
            pool.name: _PoolState(pool, {node.name: None for node in there if pool.has(node)})
            for pool in pools
        }

    def set_node(self, node: Node, known: Node | None) -> bool:
        """Add a node to the pools that it belongs to, or replace its last state, `known`; true if a pool has changed.

        A node that comes, or becomes usable, may take the places that are held for it.
        """
        is_news = False
        for each in self._pools.values():
            was_there, is_there = node.name in each.nodes, each.pool.has(node)
            if is_there:
                each.nodes[node.name] = None
            else:
                each.nodes.pop(node.name, None)
            is_news |= was_there is not is_there or (is_there and known is not None and known != node)
        return is_news

    def remove_node(self, name: str) -> bool:
        """Note that a node is gone; true if it was of a pool."""
        left = [each.nodes.pop(name, name) is None for each in self._pools.values()]
        return any(left)

    def grow(self) -> list[Node]:
        """Add the potential nodes that the pools lack, and return them."""
        added: list[Node] = []
        for each in self._pools.values():
            lacking = max(0, each.pool.count(len(each.nodes)) - len(each.numbers))
            free = (number for number in itertools.count() if number not in each.numbers)
            numbers = list(itertools.islice(free, lacking))
            each.numbers.update(numbers)
            added += map(each.pool.node, numbers)
        return added

    def shrink(self, node_of: Callable[[str], Node], has_places: Callable[[str], bool]) -> list[str]:
        """Remove the potential nodes for which nodes came, and return their names; both functions take a name.

        Potential nodes with places are removed only if the pool has no others. A node that is not usable takes no
        place, and neither does a node with a taint that the pool lacks, as a node that is still set up may have. A
        place that is held for such a node stays where it is.
        """
        removed: list[str] = []
        for each in self._pools.values():
            held = {number for number in each.numbers if has_places(each.pool.node(number).name)}
            ready = sum(each.pool.is_ready(node_of(name)) for name in each.nodes)
            kept = max(each.pool.count(len(each.nodes)), min(len(held), each.pool.count(ready)))
            surplus = [*sorted(each.numbers - held, reverse=True), *sorted(held, reverse=True)]
            gone = surplus[: len(each.numbers) - kept]
            each.numbers.difference_update(gone)
            removed += [each.pool.node(number).name for number in gone]
        return removed

    def homes(self, name: str) -> Iterator[str]:
        """The nodes for places planned on a node, the best first: for a potential one, first the nodes of its pool."""
        each = self._pools.get(pool_of(name))
        if each is not None:
            yield from sorted(each.nodes)
        yield name
