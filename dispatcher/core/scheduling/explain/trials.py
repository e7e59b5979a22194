"""Plans of a world after one repair each. The searches for all of its waiting gangs share them; they are bounded."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import LARGEST_AMOUNT, Resources
from dispatcher.core.queues.accounts import Account, tree_quotas
from dispatcher.core.queues.forest import Place
from dispatcher.core.queues.queue import Queue, Reclaim, Sharing, WithinQueue
from dispatcher.core.scheduling.cycle.outcomes import Outcome, Placed
from dispatcher.core.scheduling.explain.repair import ADDED_NODES, AddNodes, Repair, apply
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
from dispatcher.core.scheduling.explain.world_facts import NoNode, RunningGang
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger

MOST_PLANS: Final = 1024
"""Plans of one search."""


class Spent(Exception):  # not an error: the bound of a search is reached
    """A search has made as many plans as it may."""


class Trials:
    """Plans of the world after one repair each, remembered for all gangs."""

    def __init__(
        self, world: World, outcomes: Sequence[Outcome], most_work: int, known: KnownSnapshots
    ) -> None:
        self.world = world
        self.forest = world.forest
        placed = frozenset(each.record.uid for each in outcomes if isinstance(each, Placed))
        self.missing_quota = MissingQuota(world, placed)
        self._most_work = most_work
        self._known = known
        self._counts: dict[tuple[str, Node], set[int]] = {}
        self._placed: dict[tuple[Repair, str], frozenset[str]] = {}
        self._work = 0
        self._plans = 0

    @property
    def size(self) -> int:
        """The size of the world: a plan costs about so much."""
        return size_of(self.world)

    def begin_kind(self) -> None:
        """Allows plans of the most work from now on."""
        self._work = 0

    def begin(self) -> None:
        """Allows `MOST_PLANS` new plans from now on."""
        self._plans = 0

    def counts_of(self, cluster: str, shape: Node) -> list[int]:
        """The numbers of nodes of a shape that were added to a cluster in some plan, ascending."""
        return sorted(self._counts.get((cluster, shape), ()))

    def goes(self, gang: str, repair: Repair, name: str = ADDED_NODES) -> bool:
        """True if the next cycle dispatches the gang after the repair. Raises `Spent`."""
        placed = self._placed.get((repair, name))
        if placed is None:
            placed = self._placed[repair, name] = self._plan(apply(self.world, repair, name))
            if isinstance(repair, AddNodes):
                self._counts.setdefault((repair.cluster, repair.node), set()).add(repair.count)
        return gang in placed

    def _plan(self, world: World) -> frozenset[str]:
        self._plans += 1
        self._work += size_of(world)
        if self._plans > MOST_PLANS or self._work > self._most_work:
            raise Spent
        try:
            return frozenset(each.record.uid for each in world.plan(self._known) if isinstance(each, Placed))
        except NoNode:
            return frozenset()  # without named nodes, the pods of another running gang would have no place


def size_of(world: World) -> int:
    """The cost of a plan, in nodes: a snapshot copies its nodes, and a gang is compared with the nodes, group by group.

    With queues that preempt, a gang is also compared with the running gangs as its victims.
    """
    size = sum(len(cluster.nodes) for cluster in world.clusters) + _GANG * len(world.pending)
    if not world.has_queues:
        return size
    preempts = any(_preempts(queue) for queue in (world.queues or ()))
    return size + _QUEUES + len(world.queues or ()) + len(world.pending) * len(world.running) // 2 * preempts


def _preempts(queue: Queue) -> bool:
    preemption = queue.preemption
    return preemption.reclaim is not Reclaim.NEVER or preemption.within_queue is not WithinQueue.NEVER


def is_too_large(world: World) -> bool:
    """True if a world with queues is too large for estimates and repairs: every search would be cut short."""
    return world.has_queues and size_of(world) > MOST_PLANNED


MOST_PLANNED: Final = 100_000
"""The largest plan over queues that starts are estimated from: some seconds in the largest clusters."""
_GANG: Final = 10
"""The cost of one pending gang, in nodes."""
_QUEUES: Final = 100
"""The cost of a cycle over queues, in nodes, beside its gangs."""


class MissingQuota:
    """The accounts of a world before a cycle, and after it with the gangs that it placed."""

    def __init__(self, world: World, placed: Collection[str]) -> None:
        self._world = world
        self._forest = world.forest.for_quota
        quotas = tree_quotas(self._forest)
        before, after = QuotaLedger(self._forest, quotas), QuotaLedger(self._forest, quotas)
        for gang in world.running:
            if gang.active is not None:
                for ledger in (before, after):
                    ledger.charge(gang.active.leaves, _charge(gang), gang.active.record.priority)
        for record in world.pending:
            if record.uid in placed:
                after.charge(record.leaves, record.gang.charged, record.priority)
        self._ledgers = (before, after)

    def asked(self, place: Place, demand: Resources) -> list[str]:
        """The limited resources of a leaf's tree that a demand asks for."""
        return [name for name, _ in self._ledgers[0].accounts[place.root].quota.asked(demand)]

    def guesses(self, place: Place, record: Record, resource: str) -> set[int]:
        """Amounts of a resource, in base units and above 0, that a gang may miss in a leaf or further up."""
        found: set[int] = set()
        for ledger in self._ledgers:
            found.update(_missing(ledger.accounts[place.root], place, record, resource))
        return {amount for amount in found if amount > 0}

    def most(self, queue: str, resource: str) -> int:
        """An amount, in base units, that a queue may add and that all gangs of the world together do not exceed."""
        tree = self._forest.trees[self._forest.places[queue].root]
        quotas = {each: self._forest.places[each].queue.resources.get(resource) for each in tree.names}
        nominal = {each: quota.nominal for each, quota in quotas.items() if quota is not None}
        pending = sum(each.gang.charged[resource] for each in self._world.pending)
        running = sum(_charge(each)[resource] for each in self._world.running)
        return min(sum(nominal.values()) + pending + running, LARGEST_AMOUNT - nominal[queue])


def _charge(gang: RunningGang) -> Resources:
    """The amounts that the queues of a running gang are charged with; as much as it holds if it has no queues."""
    return gang.held if gang.active is None else gang.held.highest(gang.active.record.quota_charge)


def _missing(account: Account, place: Place, record: Record, resource: str) -> Iterator[int]:
    demand, leaf = record.gang.charged[resource], account.quota.queues[place.name]
    yield account.used[place.name][resource] + demand - leaf.own[resource]
    if place.sharing is not Sharing.DIVISION:
        yield demand - leaf.most[resource]
        yield demand - account.available(place.name, resource)
    for name in place.path:
        queue, limit = account.quota.queues[name], account.quota.queues[name].limit[resource]
        if place.sharing is Sharing.DIVISION and limit is not None:
            yield demand - limit
            yield account.plain[name][resource] + demand - limit
        if not place.is_preemptible(record.priority):
            yield demand - queue.total[resource]
            yield account.firm[name][resource] + demand - queue.total[resource]
