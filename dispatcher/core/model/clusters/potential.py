"""Potential nodes: nodes that a pool of a cluster would get if its autoscaler added them.

A potential node is a node like any other, with a name that no node of Kubernetes can have. A pool has as many of them
as its maximum exceeds the nodes that are there, but never more than `MOST_NODES` at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from dispatcher.api.clusters.potential import NodePool, OnPotential, PotentialNodes
from dispatcher.core.model.clusters.nodes import HOSTNAME, Node, Taint
from dispatcher.core.model.quantity import QuantityError, resource_amounts
from dispatcher.core.model.resources import Resources
from dispatcher.text import counted
from dispatcher.values import equal_without, shown_without

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


@equal_without("kept_from")
@shown_without("kept_from")
class Trust(Struct, frozen=True):
    """The potential nodes that gangs may count on in one cluster: the policy, and the pools that failed.

    `distrusted` are the pools that no gang trusts, each with the end of that. `in_namespaces` are the others that the
    gangs of one namespace do not trust: the namespace, the pool, and the end.
    """

    policy: OnPotential = OnPotential.DISPATCH
    distrusted: tuple[tuple[str, datetime], ...] = ()
    in_namespaces: tuple[tuple[str, str, datetime], ...] = ()
    kept_from: frozenset[tuple[str, str]] = frozenset()
    """The pairs of namespace and pool in `in_namespaces`, whatever is given; kept, because every fit asks for them."""

    def __post_init__(self) -> None:
        pairs = frozenset((namespace, pool) for namespace, pool, _ in self.in_namespaces)
        force_setattr(self, "kept_from", pairs)

    def has(self, pool: str, namespace: str) -> bool:
        """True if a gang of the namespace is dispatched although it needs nodes of that pool.

        A gang whose namespace is not known (empty) trusts no pool that some namespace distrusts.
        """
        if self.policy is not OnPotential.DISPATCH or any(pool == name for name, _ in self.distrusted):
            return False
        if not self.kept_from:
            return True
        if not namespace:
            return all(pool != name for _, name in self.kept_from)
        return (namespace, pool) not in self.kept_from


FULL_TRUST: Final = Trust()

_NEVER: Final = datetime.min.replace(tzinfo=UTC)
LONGEST_DISTRUST: Final = timedelta(hours=6)
NAMESPACES_FOR_ALL: Final = 3
"""Namespaces in which a pool must have failed before no gang trusts it: one author's pods need not want its nodes."""
_MOST_DOUBLINGS: Final = 20
"""Beyond it, every distrust is the longest one."""


class PoolFailures(Struct, frozen=True):
    """How often in a row the nodes of a pool did not come for gangs of one namespace, and the end of its distrust.

    The failures are `confirmed` once a scheduler has said of pods of one of these gangs that no node takes them. Pods
    that no scheduler looks at say nothing about the pool: only their own namespace distrusts it.
    """

    count: int = 0
    until: datetime = _NEVER
    confirmed: bool = False

    def after_failure(self, bind_within: timedelta, now: datetime, *, confirmed: bool = True) -> PoolFailures:
        """The failures after one more: the distrust lasts `bind_within`, and doubles.

        While it lasts, another failure can only confirm it. After `LONGEST_DISTRUST` of trust the count begins anew.
        """
        if now < self.until:
            return replace(self, confirmed=self.confirmed or confirmed)
        known = self if self.counts_at(now) else PoolFailures()
        doubled: timedelta = bind_within * 2 ** min(known.count, _MOST_DOUBLINGS)
        until = now + min(LONGEST_DISTRUST, doubled)
        return PoolFailures(known.count + 1, until, confirmed)

    def counts_at(self, now: datetime) -> bool:
        """True if these failures still matter for a distrust or for the length of the next one."""
        return self.count > 0 and now < self.until + LONGEST_DISTRUST


def distrusted_until(failures: Iterable[PoolFailures]) -> datetime | None:
    """The end of the distrust of all gangs in a pool, by its failures in each namespace; None if too few failed.

    It lasts while the confirmed distrust of at least `NAMESPACES_FOR_ALL` namespaces does.
    """
    ends = sorted((each.until for each in failures if each.confirmed), reverse=True)
    return ends[NAMESPACES_FOR_ALL - 1] if len(ends) >= NAMESPACES_FOR_ALL else None


def trust_in(policy: OnPotential, failures: Mapping[str, Mapping[str, PoolFailures]], now: datetime) -> Trust:
    """The trust in the pools of a cluster with these failures by pool and namespace; O(failures)."""
    for_all: list[tuple[str, datetime]] = []
    own: list[tuple[str, str, datetime]] = []
    for pool, by_namespace in sorted(failures.items()):
        end = distrusted_until(by_namespace.values())
        if end is not None and now < end:
            for_all.append((pool, end))
        else:
            own += (
                (name, pool, each.until) for name, each in sorted(by_namespace.items()) if now < each.until
            )
    return Trust(policy, tuple(for_all), tuple(own))
