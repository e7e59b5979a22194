"""The refusals that stand from one cycle to the next: their classes need no decision, and no gang of them has a turn.

A refusal for lack of room stands while nothing changes that it follows from: the gangs of its class, the declared
queues, and the clusters as far as they matter to its class (`affected_classes`). Only the amounts in its message are
from an earlier cycle then. It stands no longer once a cycle takes room before the turn of its class.

Refusals stand in queues without any quota or preemption that are a tree of their own: there nothing but age and
priority decides whose turn it is, so a class without a turn changes no other's. And they stand while no gang waits past
the starvation bound and no priority grows with age.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dispatcher.core.model.incremental import Steps, in_parts, release
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.cycle.news import Unplaced
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.queued.gang_class import Key
from dispatcher.core.scheduling.queued.queued_gangs import QueueClass, QueuedGangs
from dispatcher.core.scheduling.queued.room_classes import Leaving, RoomClass, RoomStates

RefusedClasses = dict[QueueClass, Unplaced]


class StandingRefusals:
    """What one planner remembers of its last cycle: the states of rooms, and the refusals by class."""

    def __init__(self) -> None:
        self.states = RoomStates()
        self._refused: RefusedClasses = {}
        self._forest: Forest | None = None
        self._namespaces: Mapping[str, Mapping[str, str]] = {}
        self._own_trees: frozenset[str] = frozenset()
        self._clusters: Collection[str] = ()

    def begin(
        self,
        forest: Forest,
        queued: QueuedGangs,
        namespaces: Mapping[str, Mapping[str, str]],
        snapshots: Mapping[str, ClusterSnapshot],
        leaving: Mapping[str, Leaving],
        *,
        is_in_order: bool,
    ) -> Steps[RefusedClasses]:
        """A cycle begins: the refusals that stand, but for that of the first gang of a queue that may be its head.

        `namespaces` are the labels that decide something. Nothing stands unless the queues are `in_order` of age.
        """
        before = self.states.snapshots
        self.states.begin(snapshots, leaving)
        refused, self._refused = self._refused, {}
        touched, queued.touched = queued.touched, set()
        is_as_before = forest is self._forest and namespaces == self._namespaces
        if forest is not self._forest:
            self._forest, self._own_trees = forest, _own_trees(forest)
        self._namespaces = namespaces
        are_same_clusters = self._clusters == snapshots.keys()
        if not are_same_clusters:
            self._clusters = frozenset(snapshots)
            queued.rooms.forget_answers()
        kept: RefusedClasses = {}
        is_as_before = is_as_before and are_same_clusters and not self.states.leaves_differently
        if refused and is_in_order and is_as_before:
            changed = self.states.changed
            affected = yield from queued.rooms.affected_by(before, snapshots, changed)
            if affected is not None:
                kept = yield from self._standing(refused, queued, touched, affected, changed)
        yield from release(refused)
        return kept

    def _standing(
        self,
        refused: RefusedClasses,
        queued: QueuedGangs,
        touched: Collection[QueueClass],
        affected: Collection[RoomClass],
        changed: Collection[str],
    ) -> Steps[RefusedClasses]:
        kept: RefusedClasses = {}
        first: dict[str, tuple[Key, QueueClass]] = {}
        rooms = queued.rooms
        for part in in_parts(refused.items()):
            for class_, answer in part:
                if class_ in touched:
                    continue
                if changed:
                    room_class = rooms.of(class_)
                    is_known = rooms.is_known_to_hold(room_class, answer.refused, changed)
                    if room_class in affected or not is_known:
                        continue
                kept[class_] = answer
                if answer.may_be_head:
                    for leaf in class_.key.leaves:
                        if leaf not in first or class_.keys[0] < first[leaf][0]:
                            first[leaf] = class_.keys[0], class_
            yield
        for _, class_ in first.values():
            kept.pop(class_, None)
        return kept

    def may_stand(self, class_: QueueClass) -> bool:
        """True if a refusal of the class for lack of room may stand."""
        key = class_.key
        return not (key.is_preempting or class_.sloped) and self._own_trees.issuperset(key.leaves)

    def end(
        self,
        refused: RefusedClasses,
        kept: RefusedClasses,
        snapshots: Mapping[str, ClusterSnapshot],
        dispatched_to: Collection[str],
    ) -> Steps[None]:
        """The cycle has ended; beside its own refusals those that it `kept` stand."""
        self.states.end(snapshots, dispatched_to)
        for part in in_parts(kept.items()):
            refused.update(part)
            yield
        self._refused = refused


def _own_trees(forest: Forest) -> frozenset[str]:
    """The queues whose order is that of priority and age alone, and that go on after a gang that waits."""
    return frozenset(
        place.name for place in forest.unlimited if place.strategy is not QueueingStrategy.STRICT_FIFO
    )
