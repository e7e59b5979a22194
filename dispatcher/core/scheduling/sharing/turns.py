"""The next gang to decide, of the first undecided gangs of all queues.

Each tree names one of its heads by a tournament: at each inner queue the children's winners compare by a key that the
sharing of the tree gives, then by rank. Of the trees' winners, the rank decides. A gang for which gangs were preempted
goes before all others.

Growth: a gang that is decided without a change of its tree costs the siblings on the way to its root; a change costs
the heads of its tree. The gangs of a refused class cost nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from dispatcher.core.queues.accounts import Asked
from dispatcher.core.queues.queue import Sharing
from dispatcher.core.scheduling.gang_class import Key
from dispatcher.core.scheduling.sharing import division, dominant_share, priority
from dispatcher.core.scheduling.sharing.division import Shares
from dispatcher.core.scheduling.sharing.gangs import NO_USE, PendingGang, Rank, RecentUse, rank_in_queue
from dispatcher.core.scheduling.sharing.queued_gangs import QueueClass, QueuedGangs
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger

Keys = Mapping[str, Any]
"""The key of a gang at its leaf and at each queue above it; keys of one queue's children are comparable."""


class _Head(NamedTuple):
    """The first undecided gang of a class, and its rank in its queue; `uid` makes the order unique."""

    rank: Rank
    uid: str
    class_: QueueClass


class _Winner(NamedTuple):
    """The winner at one queue."""

    gang: PendingGang
    rank: Rank
    keys: Keys


class Turns:
    """The undecided gangs. `later` is the ledger by which queues are compared."""

    def __init__(
        self,
        queued: QueuedGangs,
        later: QuotaLedger,
        shares: Mapping[str, Shares],
        usage: RecentUse,
        now: datetime,
    ) -> None:
        self._queued = queued
        self._later = later
        self._shares = shares
        self._usage = usage
        self._now = now
        self._taken: set[str] = set()
        self._dropped: set[QueueClass] = set()
        self._keys_of: dict[str, dict[tuple[str, Asked], Keys]] = {}
        self._following: dict[QueueClass, Iterator[Key]] = {}
        self._queues: dict[str, list[_Head]] = {}
        for class_ in queued.classes():
            self._following[class_] = class_.in_order(now)
            self._queues.setdefault(class_.key.leaves[0], [])
            self._push_next(class_)
        self._preempting = {leaf for leaf, each in self._queues.items() if each[0].class_.key.is_preempting}
        self._trees: dict[str, dict[str, _Winner]] = {}
        self._roots = {leaf: self._root_of(leaf) for leaf in self._queues}
        for root in set(self._roots.values()):
            self._rebuild(root)

    def take(self, gang: PendingGang) -> None:
        """The gang is decided, in its turn or before; the next of its class may have a turn."""
        self._taken.add(gang.uid)
        self._advance(gang.leaves[0])

    def drop(self, class_: QueueClass) -> None:
        """No further gang of the class has a turn."""
        self._dropped.add(class_)
        self._following[class_] = iter(())
        self._advance(class_.key.leaves[0])

    def next(self) -> PendingGang | None:
        """The next gang to decide; None if all are decided or dropped."""
        heads = [tree[root] for root, tree in self._trees.items() if root in tree]
        preempting = [self._winner_of(self._queues[leaf][0], {}) for leaf in self._preempting]
        return min(preempting or heads, key=lambda each: each.rank).gang if heads else None

    def changed(self, leaves: Iterable[str]) -> None:
        """The use of these leaves' trees has changed."""
        for root in {self._root_of(leaf) for leaf in leaves}:
            if root in self._trees:
                self._rebuild(root)

    def _advance(self, leaf: str) -> None:
        """The head of a queue may have been decided, or its class dropped."""
        queue = self._queues[leaf]
        while queue and (queue[0].uid in self._taken or queue[0].class_ in self._dropped):
            self._push_next(heapq.heappop(queue).class_)
        if not queue or not queue[0].class_.key.is_preempting:
            self._preempting.discard(leaf)  # they are first in their queues
        self._update(leaf)

    def _push_next(self, class_: QueueClass) -> None:
        """Let the next undecided gang of a class, if there is one, wait for its turn."""
        uid = next((uid for _, uid in self._following[class_] if uid not in self._taken), None)
        if uid is None:
            return
        leaf = class_.key.leaves[0]
        place = self._later.forest.places.get(leaf)
        found = rank_in_queue(self._queued.gang(uid), self._now, place, self._usage)
        heapq.heappush(self._queues[leaf], _Head(found, uid, class_))

    def _winner_of(self, head: _Head, keys: Keys) -> _Winner:
        # Recent use decides only between gangs of one queue.
        found = head.rank if head.rank.recent_use is NO_USE else head.rank._replace(recent_use=NO_USE)
        return _Winner(self._queued.gang(head.uid), found, keys)

    def _root_of(self, leaf: str) -> str:
        """The root of a leaf's tree; a queue that takes no gangs is a tree of its own."""
        place = self._later.forest.places.get(leaf)
        return place.root if place is not None and place.is_leaf else f"!{leaf}"

    def _rebuild(self, root: str) -> None:
        tree = self._trees[root] = {}
        self._keys_of[root] = {}
        leaves = [leaf for leaf, at in self._roots.items() if at == root]
        if root.startswith("!"):
            self._update(leaves[0])
            return
        for leaf in leaves:
            self._set_head(tree, leaf)
        for name in reversed(self._later.accounts[root].quota.tree.names):
            self._set_winner(tree, name)

    def _update(self, leaf: str) -> None:
        """The head of a leaf has changed."""
        root = self._roots[leaf]
        tree = self._trees[root]
        if root.startswith("!"):
            queue = self._queues[leaf]
            tree.pop(root, None)
            if queue:
                tree[root] = self._winner_of(queue[0], {})
            return
        self._set_head(tree, leaf)
        for name in self._later.forest.places[leaf].path[1:]:
            self._set_winner(tree, name)

    def _set_head(self, tree: dict[str, _Winner], leaf: str) -> None:
        queue = self._queues[leaf]
        if not queue:
            tree.pop(leaf, None)
            return
        head, account = queue[0], self._later.account_of(leaf)
        known = self._keys_of[self._roots[leaf]]
        asked = account.quota.asked(head.class_.key.shape[0].demand)
        keys = known.get((leaf, asked))
        if keys is None:
            keys = known[leaf, asked] = self._keys(self._queued.gang(head.uid), leaf)
        tree[leaf] = self._winner_of(head, keys)

    def _set_winner(self, tree: dict[str, _Winner], name: str) -> None:
        """The winner of an inner queue among its children's."""
        children = self._later.forest.places[name].children
        if not children:
            return
        winners = [(child, tree[child]) for child in children if child in tree]
        if winners:
            tree[name] = min(winners, key=lambda each: (each[1].keys[each[0]], each[1].rank))[1]
        else:
            tree.pop(name, None)

    def _keys(self, gang: PendingGang, leaf: str) -> Keys:
        place, account = self._later.forest.places[leaf], self._later.account_of(leaf)
        demand, forest = gang.record.gang.demand, self._later.forest
        match place.sharing:
            case Sharing.PRIORITY:
                return dict.fromkeys(place.path, priority.level(account, leaf, demand))
            case Sharing.DOMINANT_SHARE:
                found: list[Any] = dominant_share.turn_keys(account, forest, leaf, demand)
            case Sharing.DIVISION:
                found = division.turn_keys(account, forest, self._shares[place.root], leaf, demand)
        return dict(zip(place.path, found, strict=False))
