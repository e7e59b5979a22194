"""The fewest potential nodes with which a gang fits a cluster.

The search is over numbers of nodes for each pool. Nodes that hold places of gangs come first, because they cost nothing
more; a pool declared later is given up first. A gang whose pods are spread over domains may fit with few nodes and not
with many, since every node makes a domain, so such a gang is tried with few nodes first.

Growth: a fit for each halving of the nodes of each pool that the gang would use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from dispatcher.core.model.gang import Assignment, Gang
from dispatcher.core.model.potential import pool_of

Offered = Mapping[str, tuple[int, ...]]
"""The potential nodes by pool, as rows of the nodes of the cluster, the best first."""
Attempt = Callable[[tuple[int, ...]], Assignment | None]
"""The assignment of a gang with the potential nodes in these rows; None if it does not fit."""


def fewest(gang: Gang, offered: Offered, attempt: Attempt) -> Assignment | None:
    """The assignment of a gang with as few potential nodes as the search finds; None if it does not fit."""
    found = _first(gang, offered, attempt)
    if found is None:
        return None
    counts, assignment = found
    for pool in reversed(list(offered)):
        is_used = any(pool_of(node) == pool for node in assignment.nodes)
        least, most = 0, counts[pool] if is_used else min(1, counts[pool])
        while least < most:
            middle = (least + most) // 2
            fewer = attempt(_rows(offered, {**counts, pool: middle}))
            if fewer is None:
                least = middle + 1
            else:
                assignment, most = fewer, middle
                counts[pool] = middle
    return assignment


def any_of(gang: Gang, offered: Offered, attempt: Attempt) -> Assignment | None:
    """The assignment of a gang with any number of these potential nodes; None if it does not fit."""
    found = _first(gang, offered, attempt)
    return None if found is None else found[1]


def _first(gang: Gang, offered: Offered, attempt: Attempt) -> tuple[dict[str, int], Assignment] | None:
    for counts in _ladder(gang, offered):
        found = attempt(_rows(offered, counts))
        if found is not None:
            return counts, found
    return None


def _ladder(gang: Gang, offered: Offered) -> Iterator[dict[str, int]]:
    """The numbers of nodes to try: all of them, or for pods with a spread ever more of them."""
    largest = max(map(len, offered.values()), default=0)
    most = 1 if any(each.spread for each in gang.pod_sets) else largest
    while largest:
        yield {pool: min(len(rows), most) for pool, rows in offered.items()}
        if most >= largest:
            return
        most *= 2


def _rows(offered: Offered, counts: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(row for pool, rows in offered.items() for row in rows[: counts[pool]])
