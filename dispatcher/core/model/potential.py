"""Potential nodes: nodes that a pool of a cluster would get if its autoscaler added them.

A potential node is a node like any other, with a name that no node of Kubernetes can have. A pool has as many of them
as its maximum exceeds the nodes that are there, but never more than `MOST_NODES` at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

from dispatcher.api.potential import NodePool, OnPotential, PotentialNodes
from dispatcher.core.model.nodes import HOSTNAME, Node, Taint
from dispatcher.core.model.quantity import QuantityError, resource_amounts
from dispatcher.core.model.resources import Resources
from dispatcher.text import counted

MOST_NODES: Final = 1000
"""Potential nodes of one pool at a time, so that a maximum of 10^9 costs no more than one of a thousand."""

_PREFIX: Final = "potential/"


class PotentialPool(Struct, frozen=True):
    """A pool whose nodes equal `shape`, up to `most` nodes. A node with all labels of the shape is of the pool."""

    name: str
    shape: Node
    most: int

    def has(self, node: Node) -> bool:
        """True if a node of the cluster is of this pool."""
        labels = node.labels
        return all(labels.get(key) == value for key, value in self.shape.labels.items())

    def is_ready(self, node: Node) -> bool:
        """True if a node of the pool is usable, and keeps no pod away that a potential node would take."""
        return node.usable and all(taint in self.shape.taints for taint in node.taints if taint.keeps_away)

    def node(self, number: int) -> Node:
        """The potential node with this number; like a real one, it has a host name of its own."""
        name = f"{_PREFIX}{self.name}/{number}"
        return Node(
            name,
            self.shape.allocatable,
            taints=self.shape.taints,
            labels={**self.shape.labels, HOSTNAME: name},
            most_pods=self.shape.most_pods,
        )

    def count(self, nodes: int) -> int:
        """How many potential nodes the pool has beside that many nodes of it."""
        return min(MOST_NODES, max(0, self.most - nodes))


def pools_of(declared: PotentialNodes) -> tuple[PotentialPool, ...]:
    """The pools of a declaration. Raises `QuantityError` with the pool and the field."""
    return tuple(
        PotentialPool(
            each.name,
            Node(
                "",
                _allocatable_of(each),
                taints=tuple(Taint(*taint) for taint in each.taints),
                labels=dict(each.labels),
            ),
            each.most,
        )
        for each in declared.pools
    )


def _allocatable_of(pool: NodePool) -> Resources:
    field = f"pool {pool.name}: node.allocatable"
    try:
        amounts = resource_amounts(pool.allocatable)
    except QuantityError as error:
        raise QuantityError(f"{field}: {error}") from error
    if not any(amounts.values()):
        raise QuantityError(f"{field}: no amount is above 0, so no pod fits such a node")
    return amounts


def is_potential(node: str) -> bool:
    """True for the name of a potential node."""
    return node.startswith(_PREFIX)


def pool_of(node: str) -> str:
    """The name of the pool of a potential node; empty for the name of a node that is there."""
    return node.removeprefix(_PREFIX).rpartition("/")[0] if is_potential(node) else ""


Trusted = tuple[tuple[str, int], ...]
"""Pools by name, and how many potential nodes of each."""


def trusted_of(nodes: Iterable[str]) -> Trusted:
    """How many potential nodes of each pool are among these nodes, each named once."""
    return tuple(sorted(Counter(pool_of(each) for each in nodes if is_potential(each)).items()))


def in_words(trusted: Trusted) -> str:
    """Potential nodes in words: "3 nodes of pool l4 and 1 node of pool cpu"."""
    named = [f"{counted(count, 'node')} of pool {pool}" for pool, count in trusted]
    return " and ".join(filter(None, (", ".join(named[:-1]), named[-1]))) if named else ""


class Trust(Struct, frozen=True):
    """What a gang may count on in one cluster: its policy, and the pools that failed, with the end of the distrust."""

    policy: OnPotential = OnPotential.DISPATCH
    distrusted: tuple[tuple[str, datetime], ...] = ()

    def has(self, pool: str) -> bool:
        """True if a gang is dispatched although it needs nodes of that pool."""
        return self.policy is OnPotential.DISPATCH and all(pool != name for name, _ in self.distrusted)


FULL_TRUST: Final = Trust()

_NEVER: Final = datetime.min.replace(tzinfo=UTC)
LONGEST_DISTRUST: Final = timedelta(hours=6)
_MOST_DOUBLINGS: Final = 20
"""Beyond it, every distrust is the longest one."""


class PoolFailures(Struct, frozen=True):
    """How often in a row the nodes of a pool did not come, and the end of the distrust."""

    count: int = 0
    until: datetime = _NEVER

    def after_failure(self, bind_within: timedelta, now: datetime) -> PoolFailures:
        """The failures after one more: the distrust lasts `bind_within`, and doubles; the same while it lasts."""
        if now < self.until:
            return self
        doubled: timedelta = bind_within * 2 ** min(self.count, _MOST_DOUBLINGS)
        return PoolFailures(self.count + 1, now + min(LONGEST_DISTRUST, doubled))
