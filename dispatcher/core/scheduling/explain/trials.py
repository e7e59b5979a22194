"""Plans of a world after one repair each. The searches for all of its waiting gangs share them; they are bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dispatcher.core.model.nodes import Node
from dispatcher.core.queues.queue import Queue, Reclaim, WithinQueue
from dispatcher.core.scheduling.cycle.cycle import Outcome, Placed
from dispatcher.core.scheduling.explain.missing_quota import MissingQuota
from dispatcher.core.scheduling.explain.repair import ADDED_NODES, AddNodes, Repair, apply
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
from dispatcher.core.scheduling.explain.world_facts import NoNode

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
