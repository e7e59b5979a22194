"""The next gang to decide, of the first undecided gangs of all queues.

Each tree names one of its heads by a tournament: at each inner queue the children's winners compare by a key that the
sharing of the tree gives, then by rank. Of the trees' winners, the rank decides. A gang for which gangs were preempted
goes before all others.

Growth: a gang that is decided, and a change of the use of a queue, cost the siblings on the way to the root, each with
a key; under the sharing Priority a change costs the heads of the tree. The gangs of a refused class cost nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from fractions import Fraction
from typing import Any, Final, NamedTuple

from dispatcher.core.model.incremental import Steps
from dispatcher.core.queues.queue import Sharing
from dispatcher.core.scheduling.queued.gang_class import Key
from dispatcher.core.scheduling.queued.queued_gangs import QueueClass, QueuedGangs
from dispatcher.core.scheduling.sharing import division, dominant_share
from dispatcher.core.scheduling.sharing.division import Shares
from dispatcher.core.scheduling.sharing.gangs import NO_USE, PendingGang, Rank, RecentUse, recent_use
from dispatcher.core.scheduling.sharing.priority import Levels
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger
from dispatcher.core.scheduling.sharing.search import children_with

_ALONE: Final = "!"
"""Before the name of a queue that takes no gangs, which is a tree of its own."""


class _Head(NamedTuple):
    """The first undecided gang of a class, and its rank in its queue; `uid` makes the order unique."""

    rank: Rank
    uid: str
    class_: QueueClass


class _Winner(NamedTuple):
    """The winner at one queue, with the key of the queue; keys of one queue's children are comparable.

    `counted` is what the parent needs to count the gang in.
    """

    gang: PendingGang
    rank: Rank
    key: Any = None
    counted: Any = None


class Turns:
    """The undecided gangs. `later` is the ledger by which queues are compared.

    The classes of `asleep` have no turn until they `wake`; each is in a queue that is a tree of its own.
    """

    def __init__(
        self,
        queued: QueuedGangs,
        later: QuotaLedger,
        shares: Mapping[str, Shares],
        usage: RecentUse,
        now: datetime,
        asleep: Collection[QueueClass] = (),
    ) -> None:
        self._queued = queued
        self._later = later
        self._shares = shares
        self._usage = usage
        self._now = now
        self._taken: set[str] = set()
        self._dropped: set[QueueClass] = set()
        self._following: dict[QueueClass, Iterator[Key]] = {}
        self._queues: dict[str, list[_Head]] = {}
        self._last: Rank | None = None
        """The highest rank of all gangs that had a turn."""
        classes = list(queued.classes())
        self._queues.update((leaf, []) for leaf in dict.fromkeys(class_.key.leaves[0] for class_ in classes))
        for class_ in [class_ for class_ in classes if class_ not in asleep]:
            self._begin_with(class_)
        self._preempting = {
            leaf for leaf, each in self._queues.items() if each and each[0].class_.key.is_preempting
        }
        self._roots = {leaf: self._root_of(leaf) for leaf in self._queues}
        self._trees: dict[str, dict[str, _Winner]] = {root: {} for root in self._roots.values()}
        self._children: dict[str, dict[str, list[str]]] = {}
        """By root, the queues with queued gangs at or below them, each with such children."""
        self._levels: dict[str, Levels] = {}
        self._stale = dict.fromkeys(self._trees)
        """The trees in which every winner may be another one; in no order."""
        self._changed: dict[str, None] = {}
        """The leaves whose head or use has changed, in no order."""
        self._only: list[_Head] | None = None
        """The heads of the only queue, if there is one queue alone: nothing compares them with others."""
        for root in self._trees if len(self._trees) == 1 else ():
            self._only = self._queues[root.removeprefix(_ALONE)] if self._is_alone(root) else None

    def take(self, gang: PendingGang) -> None:
        """The gang is decided, in its turn or before; the next of its class may have a turn."""
        self._taken.add(gang.uid)
        self._advance(gang.leaves[0])

    def drop(self, class_: QueueClass) -> None:
        """No further gang of the class has a turn."""
        self._dropped.add(class_)
        self._following[class_] = iter(())
        self._advance(class_.key.leaves[0])

    def next_in_steps(self) -> Steps[PendingGang | None]:
        """The next gang to decide; None if all are decided or dropped."""
        if self._only is not None:
            return self._next_of(self._only)
        for root in self._stale:
            yield from self._rebuild(root)
        for leaf in self._changed:
            self._update(leaf)
            yield
        self._stale.clear()
        self._changed.clear()
        heads = [tree[root] for root, tree in self._trees.items() if root in tree]
        preempting = [self._winner_of(self._queues[leaf][0]) for leaf in self._preempting]
        if not heads:
            return None
        first = min(preempting or heads, key=lambda each: each.rank)
        self._last = first.rank if self._last is None else max(first.rank, self._last)
        return first.gang

    def drop_queue(self, leaf: str) -> list[QueueClass]:
        """Let no gang have a turn any more that waits only in this queue, a tree of its own; returns their classes."""
        queue = self._queues[leaf]
        there = (head.class_ for head in queue if head.class_ not in self._dropped)
        classes = [class_ for class_ in there if len(class_.key.leaves) == 1]
        self._dropped.update(classes)
        for class_ in classes:
            self._following[class_] = iter(())
        queue[:] = [head for head in queue if head.class_ not in self._dropped]
        heapq.heapify(queue)
        self._advance(leaf)
        return classes

    def wake(self, class_: QueueClass) -> bool:
        """Let a class have turns that was asleep; false if its turn would be over: it was before those that had one."""
        first, _ = class_.keys[0]
        if (
            self._last is not None
            and Rank(is_not_preempting=True, recent_use=NO_USE, in_queue=first) < self._last
        ):
            return False
        self._begin_with(class_)
        self._changed[class_.key.leaves[0]] = None
        return True

    def _begin_with(self, class_: QueueClass) -> None:
        self._following[class_] = class_.in_order(self._now)
        self._push_next(class_)

    def changed(self, leaves: Iterable[str]) -> None:
        """The use of these leaves' trees has changed."""
        for place in self._later.forest.places_of(leaves):
            if place.root not in self._trees:
                continue
            if place.sharing is Sharing.PRIORITY:
                self._stale[place.root] = None
            else:
                self._changed[place.name] = None

    def _next_of(self, queue: list[_Head]) -> PendingGang | None:
        """The head of a queue that is alone."""
        if not queue:
            return None
        found = _without_use(queue[0].rank)
        self._last = found if self._last is None else max(found, self._last)
        return self._queued.gang(queue[0].uid)

    def _advance(self, leaf: str) -> None:
        """The head of a queue may have been decided, or its class dropped."""
        queue = self._queues[leaf]
        while queue and (queue[0].uid in self._taken or queue[0].class_ in self._dropped):
            self._push_next(heapq.heappop(queue).class_)
        if not queue or not queue[0].class_.key.is_preempting:
            self._preempting.discard(leaf)  # they are first in their queues
        self._changed[leaf] = None

    def _push_next(self, class_: QueueClass) -> None:
        """Let the next undecided gang of a class, if there is one, wait for its turn."""
        key = class_.key
        for in_queue, uid in self._following[class_]:
            if uid not in self._taken:
                use = NO_USE if key.is_by_clusters else self._use_of(class_)
                found = Rank(not key.is_preempting, use, in_queue)
                heapq.heappush(self._queues[key.leaves[0]], _Head(found, uid, class_))
                return

    def _use_of(self, class_: QueueClass) -> Fraction:
        place = self._later.forest.places.get(class_.key.leaves[0])
        return recent_use(place, class_.key.namespace, self._usage)

    def _winner_of(self, head: _Head) -> _Winner:
        return _Winner(self._queued.gang(head.uid), _without_use(head.rank))

    def _root_of(self, leaf: str) -> str:
        """The root of a leaf's tree; a queue that takes no gangs is a tree of its own."""
        place = self._later.forest.places.get(leaf)
        return place.root if place is not None and place.is_leaf else f"{_ALONE}{leaf}"

    def _rebuild(self, root: str) -> Steps[None]:
        if self._is_alone(root):
            self._set_alone(root.removeprefix(_ALONE))
            return
        self._trees[root].clear()
        self._levels[root] = Levels(self._later.accounts[root])
        if root not in self._children:
            leaves = [leaf for leaf, at in self._roots.items() if at == root]
            paths = self._later.accounts[root].quota.paths
            self._children[root] = children_with(leaves, self._later.forest, paths)
        for name in reversed(self._children[root]):
            self._set_winner(root, name)
            yield

    def _update(self, leaf: str) -> None:
        """The head of a leaf has changed, or its use."""
        root = self._roots.get(leaf)
        if root is not None and self._is_alone(root):
            self._set_alone(leaf)
            return
        for place in self._later.forest.places_of([leaf]):
            children = self._children.get(place.root, {})
            for name in place.path:
                if name in children:
                    self._set_winner(place.root, name)

    def _is_alone(self, root: str) -> bool:
        """True if a tree is one queue: its winner is its head."""
        tree = self._later.forest.trees.get(root)
        return tree is None or len(tree.names) == 1

    def _set_alone(self, leaf: str) -> None:
        """The winner of a queue that is a tree of its own."""
        root, queue = self._roots[leaf], self._queues[leaf]
        if queue:
            self._trees[root][root] = self._winner_of(queue[0])
        else:
            self._trees[root].pop(root, None)

    def _set_winner(self, root: str, name: str) -> None:
        """The winner at a queue, of which the children's are known: its head, or the best of theirs."""
        tree = self._trees[root]
        below = [tree[child] for child in self._children[root][name] if child in tree]
        if below:
            best = min(below, key=lambda each: (each.key, each.rank))
        elif name in self._queues and self._queues[name] and self._roots[name] == root:
            best = self._winner_of(self._queues[name][0])
            if name != root:
                best = best._replace(counted=self._counted_in_leaf(name, best.gang))
        else:
            tree.pop(name, None)
            return
        tree[name] = best if name == root else self._counted_in(root, name, best)

    def _counted_in_leaf(self, leaf: str, gang: PendingGang) -> object:
        """What a leaf needs to count a gang in: its level, the amounts or the demand."""
        place, demand = self._later.forest.places[leaf], gang.record.gang.charged
        match place.sharing:
            case Sharing.PRIORITY:
                return self._levels[place.root].of(leaf, demand)
            case Sharing.DOMINANT_SHARE:
                return self._later.accounts[place.root].quota.asked(demand)
            case Sharing.DIVISION:
                return demand

    def _counted_in(self, root: str, name: str, winner: _Winner) -> _Winner:
        """The winner with the key of a queue in which it is counted, and what arrives at the queue above."""
        account, forest, counted = self._later.accounts[root], self._later.forest, winner.counted
        match forest.places[root].sharing:
            case Sharing.PRIORITY:
                return winner._replace(key=counted)
            case Sharing.DOMINANT_SHARE:
                key = dominant_share.turn_key(account, forest, name, counted)
                return winner._replace(key=key, counted=account.passed_on(name, counted))
            case Sharing.DIVISION:
                return winner._replace(
                    key=division.turn_key(account, forest, self._shares[root], name, counted)
                )


def _without_use(found: Rank) -> Rank:
    """The rank among gangs of all queues: recent use decides only between those of one queue."""
    return found if found.recent_use is NO_USE else found._replace(recent_use=NO_USE)
